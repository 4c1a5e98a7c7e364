"""What the activation function does to the uncertainty of a Bayesian network.

    python -m experiments.activations

1. noisy sine: 27 activation functions, and a learned one, by NUTS in an MLP 2 x 50 with an
   aleatoric head: errors of the prediction and of the predicted noise, correlation of epistemic
   uncertainty with the sparsity of the data (EUC), and whether it tells gaps from regimes (AUROC);
   twice, with chains that start at trained networks and at draws of the prior, since where a
   posterior has several modes the start decides what is found;
2. two moons: ten of them, and the learned one, by NUTS and by SVI: accuracy, and whether mutual
   information tells what is far from the data.

All activation functions of a task run in one compiled sampler. R-hat is that of the predictions;
what has not converged is marked. Finished networks and all chains are kept: a run that was killed
goes on where it stopped, and one with more samples where the chains ended. Source: Klein's
thesis, tables 7.1 and 7.2.
"""

from typing import Any

import numpy as np

from experiments.activations import findings, network, recipe, scenes, trials
from experiments.harness import Found, Part, Run, Study, without_curves

DIFFERENCES = (
    "the thesis gives neither regimes, gaps, counts nor the evaluation grid of the noisy sine, nor "
    "the size, noise and out-of-domain quantile of the moons; ours are in `config`",
    "its prior is not given; ours, the same for all, has standard deviation 1 for biases, 1.4 for "
    "the first layer's weights and 0.5 (sine, inputs standardised) or 1 (moons) for the others'",
    "ours runs fewer iterations than its 1000 + 1000 (sine) and 2000 + 2000 (moons), with four "
    "chains and a limit on the depth of trajectories; see `config`",
    "where its chains start is not said; ours start at networks trained from draws of the prior, "
    "in the table 'sine-nuts-prior' at the draws themselves",
    "its RReLU draws a slope per call; ours is the mean slope, since a likelihood needs a function",
)


def _with_scenes(run: Run[recipe.Settings], found: Found) -> Found:
    """Moves curves to the arrays, with the data behind them, and compares with the thesis."""
    each = without_curves(found, lambda row: f"{row['table']}/{row['activation']}")
    rows, arrays = findings.over_sets(each.rows), each.arrays
    sine, moons = scenes.sine(run.settings, run.seed), scenes.moons(run.settings, run.seed)
    known: dict[str, Any] = {f"sine/{k}": v for k, v in sine._asdict().items() if k != "train"}
    known |= {"moons/first": moons.grid[0], "moons/second": moons.grid[1]}
    known |= {"moons/outside": moons.outside}
    for name, (x, y) in (("sine", sine.train), ("moons", moons.train)):
        known |= {f"{name}/train x": x, f"{name}/train y": y}
    arrays |= {name: np.asarray(value) for name, value in known.items()}
    extra = {"hidden": network.HIDDEN, "rankings": findings.comparisons(rows)}
    if run.settings.moons_sets > 1:
        extra["sets"] = each.rows
    return Found(rows, extra, arrays)


def _tasks(run: Run[recipe.Settings]) -> list[tuple[Any, ...]]:
    """What is to be inferred, with the number of draws; of the first data set if none is said."""
    samples = [(trial, run.settings.how(trial).samples) for trial in run.settings.plan()]
    return [(*trial[:3], n, *([trial.drawn] if trial.drawn else [])) for trial, n in samples]


PART = Part[recipe.Settings, tuple[Any, ...]](
    _tasks, lambda run, task: [trials.infer(recipe.Trial(*task[:3], *task[4:]), run)]
)
STUDY = Study(
    "activations", __doc__, recipe.SIZES,
    (PART,), findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES, derive=_with_scenes,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
