"""Distilling chains: what is left of MCMC's uncertainty in a variational posterior.

    python -m experiments.beyond.bridges

On two moons and the noisy sine, NUTS is the teacher. Its draws are distilled into a mean field by
the cross-entropy to their mean prediction, and by the energy score between predictions draw by
draw; beside them stands variational inference of the data themselves, whose draws in turn are where
other chains start.

Klein's thesis proposes it and has no numbers (section 11.3: "high-quality MCMC posteriors can serve
as a teacher model to regularize or initialize SVI"). Chains and trainings are kept: a run that was
killed goes on where it stopped.
"""

import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments.beyond.bridges import problems
from experiments.beyond.bridges.methods import FROM_SVI, compare
from experiments.beyond.bridges.problems import SIDE, Settings
from experiments.harness import Found, Kept, Report, Row, Run, apart, without_curves
from jaxeff.bayes import CollapseWarning, ConvergenceWarning

SIZES = {
    "fast": Settings(8, 100, 100, 6, 100, 600),
    "default": Settings(20, 300, 200, 8, 300, 2000),
    "full": Settings(50, 1000, 1000, 10, 300, 5000),
}
SHOWN = ("mcmc", "svi", "distilled: mean", "distilled: draws")


def run(run: Run[Settings]) -> Found:
    """Distils the chains of both problems, a problem at a time."""
    by = apart(run.each(("moons", "sine"), lambda name: _problem(run, name)))
    maps = without_curves(Found(by["map"]), lambda row: row["problem"])
    return Found(by["method"], arrays=maps.arrays)


def _problem(run: Run[Settings], name: str) -> Iterator[Row]:
    problem = {"moons": problems.moons, "sine": problems.sine}[name](run.settings, run.seed)
    with warnings.catch_warnings():
        # Collapsed and short runs are among what is compared; the table shows them.
        warnings.simplefilter("ignore", CollapseWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        rows, maps = compare(problem, run)
    yield from ({"of": "method", **row} for row in rows)
    shown = {"points": problem.points, "outside": problem.outside, "train": problem.train[0]}
    yield {
        "of": "map", "problem": name,
        "curves": {key: np.asarray(values).tolist() for key, values in (shown | maps).items()},
    }  # fmt: skip


def distilled(report: Report) -> Iterator[Row]:
    """Selects a row per problem: what is left of MCMC's uncertainty, by what was distilled."""
    for (problem,), rows in h.grouped(report.rows, "problem").items():
        by = {row["method"]: row for row in rows}
        outside = by["mcmc"]["epistemic_outside"]
        draws, mean = by["distilled: draws"], by["distilled: mean"]
        yield {
            "problem": problem, "draws": draws["epistemic_outside"] / outside,
            "mean": mean["epistemic_outside"] / outside,
            "closer": draws["distance_to_mcmc"] / by["svi"]["distance_to_mcmc"],
        }  # fmt: skip


def started(report: Report) -> Iterator[Row]:
    """Selects a row per problem: chains that start at variational draws, beside the teacher's."""
    for (problem,), rows in h.grouped(report.rows, "problem").items():
        by = {row["method"]: row for row in rows}
        if FROM_SVI in by:  # runs of the study's first version lack them
            teacher, other = by["mcmc"], by[FROM_SVI]
            left = other["epistemic_outside"] / teacher["epistemic_outside"]
            yield {
                "problem": problem, "rhat": other["max_rhat"], "teacher": teacher["max_rhat"],
                "left": left,
            }  # fmt: skip


claim = partial(h.Claim, of=distilled, needs="default")  # the thesis has no numbers
CLAIMS = (
    claim("{problem}: distilling draws keeps epistemic uncertainty", "draws", h.above(0.5)),
    claim("{problem}: distilling the mean loses it", "mean", h.below(0.5)),
    claim("{problem}: distance to MCMC, distilled over SVI", "closer", h.below(1)),
    claim(
        "{problem}: chains that start at variational draws agree better (largest R-hat of "
        "predictions) than those from draws of the prior",
        "rhat",
        h.below("teacher"),
        of=started,
        shown="{rhat:.3f}; {teacher:.3f}",
    ),
    claim(
        "{problem}: what those chains keep of epistemic uncertainty outside of the data",
        "left",
        h.near(1, 0.1),
        of=started,
    ),
)


def maps(report: Report) -> Iterator[h.Panel]:
    """Makes a panel per problem and method: epistemic uncertainty over the input space."""
    for (problem,), rows in h.grouped(report.rows, "problem").items():
        auroc = {row["method"]: row["auroc"] for row in rows}
        results = {
            name.partition("/")[2]: array for name, array in report.arrays.items()
            if name.partition("/")[0] == problem
        }  # fmt: skip
        paint = {"moons": _plane, "sine": _line}[problem]
        for name in SHOWN:
            title = f"{problem}, {name}: AUROC {auroc[name]:.2f}"
            yield h.Panel(title, partial(paint, results, results[name]))


def _plane(of: dict[str, np.ndarray], epistemic: np.ndarray, axis: Axes) -> None:
    square = partial(np.reshape, shape=(SIDE, SIDE))
    first, second = (square(of["points"][:, i]) for i in (0, 1))
    levels = np.linspace(0, of[SHOWN[0]].max() * 1.2, 13)
    axis.contourf(first, second, square(epistemic), levels, extend="max")
    border = square(of["outside"]).astype(float)
    axis.contour(first, second, border, [0.5], colors="w", linestyles="--", linewidths=0.8)
    axis.scatter(of["train"][:, 0], of["train"][:, 1], s=1, c="w")
    axis.set(xlabel="dashed: the data end", ylabel="colour: mutual information")


def _line(of: dict[str, np.ndarray], epistemic: np.ndarray, axis: Axes) -> None:
    x, top = of["points"][:, 0], of[SHOWN[0]].max() * 1.2
    axis.plot(x, epistemic, lw=1)
    axis.fill_between(x, 0, top, where=~of["outside"], color="0.9")
    axis.set(ylim=(0, top), xlabel="input (grey: data)", ylabel="deviation of the mean")


STUDY = h.Study(
    "bridges", __doc__, SIZES, (Kept(run),), CLAIMS,
    (h.Plot("epistemic", maps, columns=len(SHOWN), size=(3.2, 2.8)),),
    version=2,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
