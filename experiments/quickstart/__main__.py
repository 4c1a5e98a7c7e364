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

from collections.abc import Sequence

import numpy as np

from experiments.harness import Found, Report, Run, Study, Table
from experiments.quickstart import compiled, evaluation, figure, latency, recipe, training

COLUMNS = ("method", "accuracy", "nll", "ece", "auroc", "latency_ms", "max_abs_error")


def run(run: Run[recipe.Settings]) -> Found:
    """Trains, propagates, compiles, checks and compares: the whole road in one command."""
    settings = run.settings
    sets = recipe.load(settings)
    run.say(
        f"{len(sets.train_labels):,} training images of {settings.data}, {len(sets.test_labels):,} "
        f"test images, {len(sets.ood_images):,} out of domain ({settings.training.ood})"
    )
    models = training.train(run, sets)
    outcome = evaluation.evaluate(run, sets, models)
    libraries = compiled.compile_all(run, sets, models)
    compiled.measure(run, sets, libraries, outcome)
    for method, timing in latency.measure(run, sets, models, libraries).items():
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


def tables(report: Report) -> Sequence[Table]:
    """The methods."""
    where = f"LeNet-5 on {report.config['data']}, batch {report.config['batch']}"
    return [Table.from_rows(where, report.rows, COLUMNS)]


STUDY = Study(
    "quickstart", __doc__, recipe.SIZES, (run,), (evaluation.judge,), (figure.draw,), (tables,),
    (
        "The source trains on Dirty-MNIST (MNIST with ambiguous digits) for 1000 epochs; here it "
        "is the data set and the epochs of `config`, warm-started from a trained point estimate.",
        "The source scales the moment pass' weight variances by 0.4; here the factor is 1.",
        "Latency is measured on this machine; the source's is a Raspberry Pi's.",
    ),
    recipe.settle,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
