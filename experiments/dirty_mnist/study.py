"""Every method on every set."""

from typing import Any

import numpy as np
from scipy.stats import entropy

from experiments.dirty_mnist import calibration, counts
from experiments.dirty_mnist.evaluation import (
    Outcome,
    draw_logits,
    evaluate,
    gaussian_logits,
    sampled_logits,
)
from experiments.dirty_mnist.findings import PASSES, SOURCE
from experiments.dirty_mnist.recipe import Sets, Settings, load, split
from experiments.dirty_mnist.sampling import Sampled, sample_mlp
from experiments.dirty_mnist.training import train
from experiments.harness import Found, Run

Arrays = dict[str, np.ndarray]
SHOWN = 40
"""Ambiguous digits in the picture of the data."""


def run(run: Run[Settings]) -> Found:
    """Trains, samples and evaluates everything."""
    settings, samples_key = run.settings, split(run.key, "samples")
    sets = load(settings, run.say)
    outcomes: dict[str, Outcome] = {}
    extra: dict[str, Any] = {"trainings": {}, "sweep": [], "samples": []}
    arrays, trained = describe_data(sets), {}
    for name in settings.svi:
        model = trained[name] = train(name, sets, run)
        extra["trainings"][name] = model.history[-1]
        run.say(f"{name}: evaluation")
        logits = sampled_logits(samples_key, model.f, model.posterior, sets, settings.samples)
        outcomes[f"{name} svi"] = evaluate(logits, sets)
        if name not in PASSES:
            continue
        passed = gaussian_logits(model.f, model.posterior, sets)
        outcomes[f"{name} moments"] = evaluate(draw_logits(run.key, passed, settings), sets)
        swept = calibration.sweep(run.key, model.f, model.posterior, logits, settings, sets)
        extra["sweep"] += [{"network": name, **row} for row in swept]
        counted = counts.over_samples(logits, sets)
        extra["samples"] += [{"network": name, **row} for row in counted]
        for domain, gaussian in passed.items():
            place = f"example/{name}/{domain}"
            arrays |= {f"{place}/sampled": np.asarray(logits[domain][:, 0])}
            arrays |= {f"{place}/mean": np.asarray(gaussian.mean[0])}
            arrays |= {f"{place}/var": np.asarray(gaussian.var[0])}
    chains = sample_mlp(trained["mlp"], sets, run)
    extra["chains"] = _describe(chains)
    run.say("mlp mcmc: evaluation")
    logits = sampled_logits(samples_key, chains.f, chains.result.posterior, sets, None)
    outcomes["mlp mcmc"] = evaluate(logits, sets)
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
