"""Bridges between inference methods: what MCMC and SVI can do for each other.

    python -m experiments.bridges

Klein's thesis proposes them and has no numbers (section 11.3: "high-quality MCMC posteriors can
serve as a teacher model to regularize or initialize SVI, priors learned by SVI can accelerate
MCMC"). On two moons and the noisy sine, with the long NUTS run as reference:

- MCMC with a short warm-up that starts at draws from the prior, around trained weights, or at draws
  from an SVI posterior: R-hat and effective samples, per gradient and per second;
- SVI that starts at trained weights, at the moments of MCMC's draws or around the best of them;
- MCMC distilled into an SVI posterior: by the cross-entropy to its mean prediction, or by the
  energy score between predictions draw by draw.

Chains and trainings are kept: a run that was killed goes on where it stopped.
"""

import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments.bridges import problems
from experiments.bridges.methods import Comparison
from experiments.bridges.problems import SIDE, Settings
from experiments.harness import Found, Report, Row, Run
from jaxeff.bayes import CollapseWarning, ConvergenceWarning

QUALITY = ("method", "nll", "auroc", "epistemic_outside", "distance_to_mcmc", "loss")
SAMPLING = ("method", "rhat", "ess", "gradients", "ess_per_1000_gradients", "ess_per_second")


SIZES = {
    "fast": Settings(8, 100, 30, 100, 6, 100, 600),
    "default": Settings(20, 300, 50, 200, 8, 300, 2000),
    "full": Settings(50, 1000, 100, 1000, 10, 300, 5000),
}
SHOWN = (
    "mcmc", "mcmc, short warm-up, from the prior", "mcmc, short warm-up, from svi", "svi",
    "svi from mcmc's best draw", "distilled: mean", "distilled: draws, mean_field",
    "distilled: draws, low_rank",
)  # fmt: skip


def run(run: Run[Settings]) -> Found:
    """Compares what each method gains from another."""
    rows: list[Row] = []
    arrays: dict[str, np.ndarray] = {}
    with warnings.catch_warnings():
        # Collapsed and short runs are among what is compared; the tables show them.
        warnings.simplefilter("ignore", CollapseWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        for make in (problems.moons, problems.sine):
            comparison = Comparison(problem := make(run.settings, run.seed), run)
            comparison.run()
            rows += comparison.rows
            where = {"points": problem.points, "outside": problem.outside}
            found = where | {"train": problem.train[0]} | comparison.maps
            arrays |= {f"{problem.name}/{name}": np.asarray(a) for name, a in found.items()}
    return Found(rows, arrays=arrays)


def distilled(report: Report) -> Iterator[Row]:
    """Selects a row per problem: what is left of MCMC's uncertainty, by what was distilled."""
    for (problem,), rows in h.grouped(report.rows, "problem").items():
        by = {row["method"]: row for row in rows}
        outside = by["mcmc"]["epistemic_outside"]
        draws, mean = by["distilled: draws, mean_field"], by["distilled: mean"]
        yield {
            "problem": problem, "draws": draws["epistemic_outside"] / outside,
            "mean": mean["epistemic_outside"] / outside,
            "closer": draws["distance_to_mcmc"] / by["svi"]["distance_to_mcmc"],
        }  # fmt: skip


claim = partial(h.Claim, of=distilled, needs="default")  # the source has no numbers
CLAIMS = (
    claim("{problem}: distilling draws keeps epistemic uncertainty", "draws", h.above(0.5)),
    claim("{problem}: distilling the mean loses it", "mean", h.below(0.5)),
    claim("{problem}: distance to MCMC, distilled over SVI", "closer", h.below(1)),
)


def tables(report: Report) -> list[h.Table]:
    """Lists what is predicted, and how well samplers mix."""
    found = []
    for (problem,), rows in h.grouped(report.rows, "problem").items():
        sampled = [row for row in rows if "rhat" in row]
        found.append(h.Table.from_rows(f"{problem}: predictions", rows, QUALITY))
        found.append(h.Table.from_rows(f"{problem}: samplers", sampled, SAMPLING))
    return found


def maps(report: Report) -> Iterator[h.Panel]:
    """Makes a panel per problem and method: epistemic uncertainty over the input space."""
    for (problem,), rows in h.grouped(report.rows, "problem").items():
        auroc = {row["method"]: row["auroc"] for row in rows}
        found = {
            name.partition("/")[2]: array for name, array in report.arrays.items()
            if name.partition("/")[0] == problem
        }  # fmt: skip
        paint = {"moons": _plane, "sine": _line}[problem]
        for name in SHOWN:
            title = name.replace(", ", ",\n", 1)
            paints = partial(paint, found, found[name])
            yield h.Panel(f"{title}\nAUROC {auroc[name]:.2f}", paints)


def _plane(of: dict[str, np.ndarray], epistemic: np.ndarray, axis: Axes) -> None:
    square = partial(np.reshape, shape=(SIDE, SIDE))
    first, second = (square(of["points"][:, i]) for i in (0, 1))
    levels = np.linspace(0, of[SHOWN[0]].max() * 1.2, 13)
    axis.contourf(first, second, square(epistemic), levels, extend="max")
    border = square(of["outside"]).astype(float)
    axis.contour(first, second, border, [0.5], colors="w", linestyles="--", linewidths=0.8)
    axis.scatter(of["train"][:, 0], of["train"][:, 1], s=1, c="w")


def _line(of: dict[str, np.ndarray], epistemic: np.ndarray, axis: Axes) -> None:
    x, top = of["points"][:, 0], of[SHOWN[0]].max() * 1.2
    axis.plot(x, epistemic, lw=1)
    axis.fill_between(x, 0, top, where=~of["outside"], color="0.9")
    axis.set_ylim(0, top)


STUDY = h.Study(
    "bridges", __doc__, SIZES, (run,), CLAIMS,
    (h.Plot("epistemic", maps, columns=len(SHOWN), size=(2.4, 2.5)),), (tables,),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
