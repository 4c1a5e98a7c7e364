"""Bayesian networks that meet truly ambiguous digits: MCMC, SVI and the moment pass on Dirty-MNIST.

    python -m experiments.dirty_mnist

1. builds Dirty-MNIST, or reads it from its cache;
2. trains an MLP (784-100-10) and LeNet-5 by SVI, and samples the MLP by Hamiltonian Monte Carlo;
3. tells clean digits, ambiguous digits and Fashion-MNIST apart by softmax entropy (aleatoric) and
   mutual information (epistemic), for each of them and for the moment pass;
4. sweeps the moment pass' calibration factor, to measure what it should be and find out where the
   source's 0.3 and 0.4 come from;
5. asks how many weight samples it takes until uncertainties are those of many.

``--fast`` does it with the embedded digits. Training and chains can be killed and started again.
Source: chapters 5 and 6 of the dissertation; arXiv 2511.23440.
"""

from typing import Any

import numpy as np

from experiments.dirty_mnist import evaluation, findings, recipe
from experiments.dirty_mnist.findings import PASSES, SOURCE
from experiments.dirty_mnist.recipe import Settings, load, split
from experiments.dirty_mnist.training import Sampled, sample_mlp, train
from experiments.harness import Found, Run, Study


def run(run: Run[Settings]) -> Found:
    """Trains, samples and evaluates everything."""
    settings, samples_key = run.settings, split(run.key, "samples")
    sets = load(settings, run.say)
    outcomes: dict[str, evaluation.Outcome] = {}
    extra: dict[str, Any] = {"trainings": {}, "sweep": [], "draws": []}
    arrays: dict[str, np.ndarray] = {}
    trained = {}
    for name in settings.svi:
        model = trained[name] = train(name, sets, run)
        extra["trainings"][name] = model.history[-1]
        run.say(f"{name}: evaluation")
        logits = evaluation.sampled_logits(
            samples_key, model.f, model.posterior, sets, settings.samples
        )
        outcomes[f"{name} svi"] = evaluation.evaluate(logits, sets)
        if name not in PASSES:
            continue
        passed = evaluation.gaussian_logits(model.f, model.posterior, sets)
        outcomes[f"{name} moments"] = evaluation.evaluate(
            evaluation.draw_logits(run.key, passed, settings), sets
        )
        swept = evaluation.sweep(run.key, model.f, model.posterior, logits, settings, sets)
        extra["sweep"] += [{"network": name, **row} for row in swept]
        drawn = evaluation.over_draws(samples_key, model.f, model.posterior, settings, sets)
        extra["draws"] += [{"network": name, **row} for row in drawn]
    chains = sample_mlp(trained["mlp"], sets, run)
    extra["chains"] = _describe(chains)
    run.say("mlp mcmc: evaluation")
    logits = evaluation.sampled_logits(samples_key, chains.f, chains.result.posterior, sets, None)
    outcomes["mlp mcmc"] = evaluation.evaluate(logits, sets)
    for method, outcome in outcomes.items():
        for domain, parts in outcome.uncertainty.items():
            kinds = {"aleatoric": parts.aleatoric, "epistemic": parts.epistemic}
            arrays |= {f"{method}/{domain}/{k}": np.asarray(values) for k, values in kinds.items()}
    rows = [{"method": m, **o.figures, **_beside(m, extra["chains"])} for m, o in outcomes.items()]
    return Found(rows, extra, arrays)


def _beside(method: str, chains: dict[str, Any]) -> dict[str, Any]:
    """The source's figures, and what the chains say of themselves."""
    source = {f"source_{name}": value for name, value in SOURCE.get(method, {}).items()}
    own = ("max_rhat", "converged") if method == "mlp mcmc" else ()
    return source | {name: chains[name] for name in own}


def _describe(chains: Sampled) -> dict[str, Any]:
    result = chains.result
    mixing = result.predictions
    assert mixing is not None
    rhat = mixing.rhat[~np.isnan(mixing.rhat)]
    return {
        "max_rhat": mixing.max_rhat,
        "median_rhat": float(np.median(rhat)),
        "share_of_rhat_below_1.05": float(np.mean(rhat < 1.05)),
        "min_ess": mixing.min_ess,
        "converged": result.converged,
        "problems": result.problems,
        "acceptance": float(result.acceptance.mean()),
        "step_size": float(result.stats["step_size"].mean()),
        "divergences": int(result.divergences.sum()),
    }


STUDY = Study(
    "dirty_mnist", __doc__, recipe.SIZES,
    (run,), findings.CLAIMS, findings.PLOTS, findings.TABLES,
    (
        "The ambiguous digits are made here by the published recipe; they are not the published "
        "ones.",
        "auroc_dirty is that of mutual information, clean and ambiguous digits (each image once) "
        "against out-of-domain images, as in the source; auroc leaves the ambiguous ones out. All "
        "images are normalised by the clean digits' statistics.",
        "'mlp' by SVI has the source's start, for a twentieth of its epochs at the default size; "
        "its prior is ours. 'lenet5' starts at a point estimate, with a learning rate that falls "
        "to 0.",
        "What the source samples on, and for how long, is not known. 'mlp mcmc' are chains on the "
        "images of `config`, which start at draws of 'mlp', so near one mode; 'mlp-subset' is SVI "
        "on the same images.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
