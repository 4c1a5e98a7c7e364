"""Bayesian networks that meet truly ambiguous digits: MCMC, SVI and the moment pass on Dirty-MNIST.

    python -m experiments.dirty_mnist

1. builds Dirty-MNIST, or reads it from its cache;
2. trains an MLP (784-100-10) and LeNet-5 by SVI, and samples the MLP by Hamiltonian Monte Carlo;
3. tells clean digits, ambiguous digits and Fashion-MNIST apart by softmax entropy (aleatoric) and
   mutual information (epistemic), for each of them and for the moment pass;
4. sweeps the moment pass' calibration factor, to measure what it should be and find out where the
   source's 0.3 and 0.4 come from;
5. varies the number of samples of SVI.

``--fast`` does it with the embedded digits. Training and chains can be killed and started again.
Source: chapters 5 and 6 of the dissertation; arXiv 2511.23440.
"""

from typing import Any

import numpy as np
from scipy.stats import entropy

from experiments.dirty_mnist import evaluation, findings, recipe
from experiments.dirty_mnist.findings import PASSES, SOURCE
from experiments.dirty_mnist.recipe import Sets, Settings, load, split
from experiments.dirty_mnist.training import Sampled, sample_mlp, train
from experiments.harness import Found, Run, Study

Arrays = dict[str, np.ndarray]
SHOWN = 40
"""Ambiguous digits in the picture of the data."""


def run(run: Run[Settings]) -> Found:
    """Trains, samples and evaluates everything."""
    settings, samples_key = run.settings, split(run.key, "samples")
    sets = load(settings, run.say)
    outcomes: dict[str, evaluation.Outcome] = {}
    extra: dict[str, Any] = {"trainings": {}, "sweep": [], "samples": []}
    arrays, trained = describe_data(sets), {}
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
        counted = evaluation.over_samples(logits, sets)
        extra["samples"] += [{"network": name, **row} for row in counted]
        for domain, gaussian in passed.items():
            shown = {"sampled": logits[domain][:, 0], "mean": gaussian.mean[0],
                     "var": gaussian.var[0]}  # fmt: skip
            place = f"example/{name}/{domain}"
            arrays |= {f"{place}/{part}": np.asarray(values) for part, values in shown.items()}
    chains = sample_mlp(trained["mlp"], sets, run)
    extra["chains"] = _describe(chains)
    run.say("mlp mcmc: evaluation")
    logits = evaluation.sampled_logits(samples_key, chains.f, chains.result.posterior, sets, None)
    outcomes["mlp mcmc"] = evaluation.evaluate(logits, sets)
    for method, outcome in outcomes.items():
        for domain, parts in outcome.uncertainty.items():
            found = parts._asdict().items()
            arrays |= {f"{method}/{domain}/{part}": np.asarray(values) for part, values in found}
    rows = [{"method": m, **o.figures, **_beside(m, extra["chains"])} for m, o in outcomes.items()]
    return Found(rows, extra | {"notes": notes(settings)}, arrays)


def describe_data(sets: Sets) -> Arrays:
    """Some ambiguous digits by rising entropy, all entropies, and an image of each domain."""
    dirty = sets.dirty
    order = np.argsort(entropy(dirty.train_probs, axis=1))
    shown = order[np.linspace(0, len(order) - 1, SHOWN).astype(int)]
    return {
        "data/images": dirty.train_images[shown, ..., 0],
        "data/probs": dirty.train_probs[shown],
        "data/training": entropy(dirty.train_probs, axis=1),
        "data/test": entropy(dirty.test_probs, axis=1),
        **{f"example/{domain}": images[0, ..., 0] for domain, images in sets.test.items()},
    }


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


def notes(settings: Settings) -> list[str]:
    """How the set-up differs from the source's in numbers, and the variants of it."""
    svi, mcmc = settings.svi, settings.mcmc
    return [
        f"'mlp' and 'mlp-long' by SVI: the source's start (means {svi['mlp'].init_mean}, "
        f"deviations {svi['mlp'].init_scale}) and learning rate, but {svi['mlp'].epochs} and "
        f"{svi['mlp-long'].epochs} epochs instead of 1000 to 2000, over which the KL weight is "
        "annealed.",
        f"The prior is {svi['mlp'].prior!r}, for 'mlp-unit' {svi['mlp-unit'].prior}; the source's "
        "is not known.",
        f"'lenet5' and 'mlp-warm' by SVI: {svi['lenet5'].pretrain_epochs} and "
        f"{svi['mlp-warm'].pretrain_epochs} epochs of a point estimate, then "
        f"{svi['lenet5'].epochs} and {svi['mlp-warm'].epochs} of SVI from there, with deviations "
        f"of {svi['lenet5'].init_scale} and a learning rate of {svi['lenet5'].rate} that falls to "
        "0.",
        f"'mlp mcmc': Hamiltonian Monte Carlo on {mcmc.images} training images, {mcmc.chains} "
        f"chains of {mcmc.samples} draws that start at draws of 'mlp', so near one mode; what the "
        "source samples on, and for how long, is not known. 'mlp-subset' is SVI on the same "
        "images.",
    ]


STUDY = Study(
    "dirty_mnist", __doc__, recipe.SIZES,
    (run,), findings.CLAIMS, findings.PLOTS, findings.TABLES,
    (
        "The ambiguous digits are made here by the published recipe; they are not the published "
        "ones.",
        "auroc_dirty is that of mutual information, clean and ambiguous digits (each image once) "
        "against out-of-domain images, as in the source; auroc leaves the ambiguous ones out. All "
        "images are normalised by the clean digits' statistics.",
        "Trainings and chains are shorter than the source's or start elsewhere; `notes` in the "
        "JSON says which.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
