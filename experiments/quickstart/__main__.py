"""The main job, end to end: a trained LeNet-5 that knows what it doesn't know, on an ARM processor.

    python -m experiments.quickstart [--data mnist|digits]

1. trains LeNet-5, once as a point estimate and once by stochastic variational inference (SVI);
2. turns the posterior into a network that propagates means and variances in a single pass;
3. exports and compiles both, and SVI with 30 drawn weights, for this machine and an ARM Cortex-A72;
4. checks every compiled version against JAX, the ARM ones on an emulated processor;
5. reports accuracy, likelihood, calibration, out-of-domain detection and latency.

Training can be killed and started again: it goes on from its last epoch. Source: the probabilistic
forward pass, arXiv 2511.23440.
"""

import numpy as np

from experiments.harness import Found, Run, Study
from experiments.quickstart import compiled, findings, models, recipe


def run(run: Run[recipe.Settings]) -> Found:
    """Trains, propagates, compiles, checks and compares: the whole road in one command."""
    settings = run.settings
    sets = recipe.load(settings)
    run.say(
        f"{len(sets.train_labels):,} training images of {settings.data}, {len(sets.test_labels):,} "
        f"test images, {len(sets.ood_images):,} out of domain ({settings.training.ood})"
    )
    trained = models.train(run, sets)
    outcome = models.evaluate(run, sets, trained)
    libraries = compiled.compile_all(run, sets, trained)
    compiled.compare(run, sets, libraries, outcome)
    timings = compiled.latencies(run, sets, trained, libraries) if settings.timed else {}
    for method, timing in timings.items():
        outcome.methods.setdefault(method, {}).update(
            latency_ms=timing["ms"], latency_spread_ms=timing["spread"]
        )
    scores = {
        f"{method}/{side}": np.asarray(score)
        for method, pair in outcome.scores.items()
        for side, score in zip(("inside", "outside"), pair, strict=True)
    }
    rows = [{"method": method, **values} for method, values in outcome.methods.items()]
    return Found(rows, {"dataset": settings.data}, scores)


STUDY = Study(
    "quickstart", __doc__, recipe.SIZES, (run,), findings.CLAIMS, findings.PLOTS, findings.TABLES,
    (
        "The thesis trains on Dirty-MNIST (MNIST with ambiguous digits) for 1000 epochs; here it "
        "is the data set and the epochs of `config`, warm-started from a trained point estimate.",
        "The thesis scales the moment pass' weight variances by 0.4; here the factor is 1.",
        "Latency is measured on this machine; the thesis' is a Raspberry Pi's.",
    ),
    recipe.settle,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
