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

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.activations import figure, judging, moons, network, recipe, sine, trials
from experiments.harness import Found, Report, Row, Run, Study, Table

MIXING = ("rhat_max", "rhat_share", "ess_min", "ess_median", "divergences", "converged", "seconds")


SINE_COLUMNS = (
    ("activation", "mse_prediction", "mse_aleatoric"),
    ("activation", "euc", "auroc", "converged"),
    ("activation", "auroc", *MIXING),
)
COLUMNS = {
    "sine-nuts": SINE_COLUMNS,
    "sine-nuts-prior": SINE_COLUMNS,
    "moons-nuts": (
        ("activation", "accuracy", "auroc", "converged"),
        ("activation", "auroc", *MIXING),
    ),
    "moons-svi": (("activation", "accuracy", "auroc", "seconds"),),
}
DIFFERENCES = (
    "the source gives neither regimes, gaps, counts nor the evaluation grid of the noisy sine, nor "
    "the size, noise and out-of-domain quantile of the moons; ours are in `config`",
    "its prior is not given; ours, the same for all, has standard deviation 1 for biases, 1.4 for "
    "the first layer's weights and 0.5 (sine, inputs standardised) or 1 (moons) for the others'",
    "ours runs fewer iterations than its 1000 + 1000 (sine) and 2000 + 2000 (moons), with four "
    "chains and a limit on the depth of trajectories; see `config`",
    "where its chains start is not said; ours start at networks trained from draws of the prior, "
    "in the table 'sine-nuts-prior' at the draws themselves",
    "its RReLU draws a slope per call; ours is the mean slope, since a likelihood needs a function",
)


def run(run: Run[recipe.Settings]) -> Found:
    """Infers networks that differ in nothing but their activation function."""
    settings = run.settings
    tasks = {(*trial, settings.draws(trial)): trial for trial in settings.plan()}
    found = run.each([*tasks], lambda task: [trials.infer(tasks[task], run)])
    rows = [{k: v for k, v in row.items() if k != "curves"} for row in found]
    arrays = {
        f"{row['table']}/{row['activation']}/{name}": np.array(curve)
        for row in found
        for name, curve in row["curves"].items()
    }
    known, plane = sine.scene(settings, run.seed), moons.scene(settings, run.seed)
    scenes: dict[str, Any] = {f"sine/{k}": v for k, v in known._asdict().items() if k != "train"}
    scenes |= {"moons/first": plane.grid[0], "moons/second": plane.grid[1]}
    scenes |= {"moons/outside": plane.outside}
    for name, (x, y) in (("sine", known.train), ("moons", plane.train)):
        scenes |= {f"{name}/train x": x, f"{name}/train y": y}
    arrays |= {name: np.asarray(value) for name, value in scenes.items()}
    return Found(rows, {"hidden": network.HIDDEN, "rankings": _comparisons(rows)}, arrays)


def tables(report: Report) -> Sequence[Table]:
    """Each table by falling AUROC, and how far our order is the source's."""
    shown = []
    for name in dict.fromkeys(row["table"] for row in report.rows):
        rows = sorted((r for r in report.rows if r["table"] == name), key=lambda r: -r["auroc"])
        shown += [Table.from_rows(name, rows, columns) for columns in COLUMNS[name]]
    short = [{k: v for k, v in e.items() if k != "ranking"} for e in report.extra["rankings"]]
    return [*shown, Table.from_rows("rank correlation with the source", short)]


def _comparisons(rows: Sequence[Row]) -> list[dict[str, Any]]:
    sine = ("auroc", "euc", "mse_prediction", "mse_aleatoric")
    compared = {
        "sine-nuts": sine,
        "sine-nuts-prior": sine,
        "moons-nuts": ("auroc", "accuracy"),
        "moons-svi": ("auroc", "accuracy"),
    }
    return [
        {"table": table, **judging.compare(own, quantity)}
        for table, quantities in compared.items()
        if (own := [row for row in rows if row["table"] == table])
        for quantity in quantities
    ]


STUDY = Study(
    "activations", __doc__, recipe.SIZES,
    (run,), (judging.judge,), (figure.draw,), (tables,), DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
