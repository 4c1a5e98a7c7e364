"""Bayesian networks that meet truly ambiguous digits: MCMC, SVI and the moment pass on Dirty-MNIST.

    python -m experiments.dirty_mnist

1. builds Dirty-MNIST, or reads it from its cache;
2. trains an MLP (784-100-10) and LeNet-5 by SVI, and samples the MLP by Hamiltonian Monte Carlo;
3. tells clean digits, ambiguous digits and Fashion-MNIST apart by softmax entropy (aleatoric) and
   mutual information (epistemic), for each of them and for the moment pass;
4. sweeps the moment pass' calibration factor, to measure what it should be and find out where the
   thesis' 0.3 and 0.4 come from;
5. asks how many weight samples it takes until uncertainties are those of many.

``--lenet5-epochs 1000`` trains LeNet-5 for as long as ``--full`` does, and the rest as the default;
``--mlp-epochs 1000 --normal`` does so with the MLP, under a second prior as well.
``--fast`` does it with the embedded digits. Training and chains can be killed and started again.
Source: chapters 5 and 6 of the dissertation; arXiv 2511.23440.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.dirty_mnist import evaluation, findings, recipe
from experiments.dirty_mnist.findings import PASSES, SOURCE
from experiments.dirty_mnist.recipe import Sets, Settings, load, split
from experiments.dirty_mnist.training import Sampled, sample_mlp, train
from experiments.harness import Found, Kept, Row, Run, Study, apart, without_curves

CHAINS = "mcmc"
SHOWN = 1000
"""Images of each test set in the figure of both kinds of uncertainty."""


def run(run: Run[Settings]) -> Found:
    """Trains, samples and evaluates everything, a posterior at a time."""
    sampled = {f"{name} {CHAINS}": name for name in ("mlp", recipe.NORMAL)}
    tasks = [*run.settings.svi, *(t for t, name in sampled.items() if name in run.settings.svi)]
    rows = run.each(
        tasks,
        lambda task: _chains(run, sampled[task]) if task in sampled else _posterior(run, task),
    )

    by = apart(rows)
    extra: dict[str, Any] = {
        "sweep": by["sweep"], "draws": by["draws"],
        "trainings": {row.pop("network"): row for row in by["training"]},
    }  # fmt: skip
    if by["chains"]:
        extra["chains"], *extra["other_chains"] = by["chains"]
    return without_curves(Found(by["method"], extra), lambda row: row["method"])


def _posterior(run: Run[Settings], name: str) -> Iterator[Row]:
    """Trains a posterior by SVI: its own figures, and those of the moment pass."""
    settings, sets, samples_key = run.settings, _sets(run), split(run.key, "samples")
    model = train(name, sets, run)
    yield {"of": "training", "network": name, **model.history[-1]}
    run.say(f"{name}: evaluation")
    logits = evaluation.sampled_logits(
        samples_key, model.f, model.posterior, sets, settings.samples
    )
    yield _method(f"{name} svi", evaluation.evaluate(logits, sets))
    if name not in PASSES:
        return
    passed = evaluation.gaussian_logits(model.f, model.posterior, sets)
    drawn = evaluation.draw_logits(run.key, passed, settings)
    yield _method(f"{name} moments", evaluation.evaluate(drawn, sets))
    swept = evaluation.sweep(run.key, model.f, model.posterior, logits, settings, sets)
    over = evaluation.over_draws(samples_key, model.f, model.posterior, settings, sets)
    for kind, results in (("sweep", swept), ("draws", over)):
        yield from ({"of": kind, "network": name, **row} for row in results)


def _chains(run: Run[Settings], name: str) -> Iterator[Row]:
    """Samples the MLP from its posterior by SVI, which is trained or read again."""
    sets = _sets(run)
    chains = sample_mlp(name, sets, run)
    said = _describe(chains)
    yield {"of": "chains", **({} if name == "mlp" else {"network": name}), **said}
    run.say(f"{name} {CHAINS}: evaluation")
    logits = evaluation.sampled_logits(
        split(run.key, "samples"), chains.f, chains.result.posterior, sets, None
    )
    row = _method(f"{name} {CHAINS}", evaluation.evaluate(logits, sets))
    yield row | {name: said[name] for name in ("max_rhat", "converged")}


@functools.cache
def _sets(run: Run[Settings]) -> Sets:
    return load(run.settings, run.say)


def _method(method: str, outcome: evaluation.Outcome) -> Row:
    """A method's figures beside the thesis', and both uncertainties of some images."""
    curves = {
        f"{domain}/{kind}": [float(f"{value:.5g}") for value in np.asarray(values[:SHOWN])]
        for domain, parts in outcome.uncertainty.items()
        for kind, values in (("aleatoric", parts.aleatoric), ("epistemic", parts.epistemic))
    }
    source = {f"source_{name}": value for name, value in SOURCE.get(method, {}).items()}
    return {"of": "method", "method": method, **outcome.figures, **source, "curves": curves}


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
    (Kept(run),), findings.CLAIMS, findings.PLOTS, findings.TABLES,
    (
        "The ambiguous digits are made here by the published recipe; they are not the published "
        "ones.",
        "auroc_dirty is that of mutual information, clean and ambiguous digits (each image once) "
        "against out-of-domain images, as in the thesis; auroc leaves the ambiguous ones out. All "
        "images are normalised by the clean digits' statistics.",
        "'mlp' by SVI has the thesis' start, for a twentieth of its epochs at the default size; "
        "its prior is ours, of fan-in, and 'mlp-normal' has unit normals. 'lenet5' starts at a "
        "point estimate, with a learning rate that falls to 0.",
        "What the thesis samples on, and for how long, is not known. 'mlp mcmc' are chains on the "
        "images of `config`, which start at draws of 'mlp', so near one mode; 'mlp-subset' is SVI "
        "on the same images.",
    ),
    settle=recipe.settle,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
