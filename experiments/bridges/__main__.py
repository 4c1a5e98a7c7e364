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
from collections.abc import Sequence
from functools import partial

import numpy as np

from experiments.bridges import figure, problems, recipe
from experiments.bridges.methods import Comparison
from experiments.harness import Found, Report, Row, Run, Study, Table
from jaxeff.bayes import CollapseWarning, ConvergenceWarning

QUALITY = ("method", "nll", "auroc", "epistemic_outside", "distance_to_mcmc", "loss")
SAMPLING = ("method", "rhat", "ess", "gradients", "ess_per_1000_gradients", "ess_per_second")


def run(run: Run[recipe.Settings]) -> Found:
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


def judge(report: Report) -> None:
    """Hold the bridges to what they are for; the source has no numbers."""
    claim = partial(report.check, needs="default")
    by_name = {(row["problem"], row["method"]): row for row in report.rows}
    for problem in ("moons", "sine"):
        reference = by_name[problem, "mcmc"]
        usual, kept = (
            by_name[problem, f"distilled: {how}"] for how in ("mean", "draws, mean_field")
        )
        share = kept["epistemic_outside"] / reference["epistemic_outside"]
        claim(f"{problem}: distilling draws keeps epistemic uncertainty", None, share, share > 0.5)
        share = usual["epistemic_outside"] / reference["epistemic_outside"]
        claim(f"{problem}: distilling the mean loses it", None, share, share < 0.5)
        closer = kept["distance_to_mcmc"] / by_name[problem, "svi"]["distance_to_mcmc"]
        claim(f"{problem}: distance to MCMC, distilled over SVI", None, closer, closer < 1)


def tables(report: Report) -> Sequence[Table]:
    """What is predicted, and how well samplers mix."""
    found = []
    for problem in dict.fromkeys(row["problem"] for row in report.rows):
        rows = [row for row in report.rows if row["problem"] == problem]
        sampled = [row for row in rows if "rhat" in row]
        found.append(Table.from_rows(f"{problem}: predictions", rows, QUALITY))
        found.append(Table.from_rows(f"{problem}: samplers", sampled, SAMPLING))
    return found


STUDY = Study("bridges", __doc__, recipe.SIZES, (run,), (judge,), (figure.draw,), (tables,))

if __name__ == "__main__":
    STUDY.main()
