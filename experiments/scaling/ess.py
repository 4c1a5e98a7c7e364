"""Effective samples per second: chains on both cores with one warm-up, against a plain NumPyro run.

    python -m experiments.scaling.ess

NUTS on the noisy sine by a 2x50 MLP. Each round runs both contenders, one after the other, each in
a process of its own and with the same two cores; the ratio is the median over the rounds. What is
counted is the bulk effective sample size of the predictive mean over 100 inputs, data and gaps,
its median and its minimum, over the wall time: of everything, and of sampling alone. Chains whose
R-hat exceeds 1.05 anywhere among the inputs count for nothing.

A round that was run is kept and not run again.
"""

import statistics
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.harness import SELECTS, Count, Found, Least, Report, Row, Run, Study, Table
from experiments.scaling.samplers import CORES, run_alone

RHAT = 1.05
FACTOR = 2.0
TIMES = ("contender", "round", "compile_s", "warmup_s", "sampling_s", "gradients", "divergences")
RATES = (
    "contender", "round", "max_rhat", "min_ess", "median_ess", "min_ess_per_s", "median_ess_per_s",
)  # fmt: skip


@dataclass(frozen=True)
class Chains:
    """A contender's run.

    Attributes:
        warmup: Iterations of warm-up.
        samples: Draws of each chain.
        chains: Number of chains.
    """

    warmup: Count
    samples: Annotated[int, Least(4)]
    chains: Count


@dataclass(frozen=True)
class Settings:
    """Both contenders.

    Attributes:
        numpyro: NumPyro's run.
        jaxeff: Ours.
        hidden: Units of both hidden layers.
        rounds: How often each contender runs.
    """

    numpyro: Chains
    jaxeff: Chains
    hidden: Count = 50
    rounds: Annotated[int, Least(1), SELECTS] = 3


SIZES = {
    "fast": Settings(Chains(300, 300, 1), Chains(150, 300, 2), hidden=10, rounds=1),
    "default": Settings(Chains(1000, 1000, 1), Chains(300, 500, 4)),
    "full": Settings(Chains(1000, 1000, 1), Chains(300, 500, 4), rounds=11),
}


def run(run: Run[Settings]) -> Found:
    """Runs both contenders in turn."""

    def measure(task: dict[str, Any]) -> list[Row]:
        chains = getattr(run.settings, task["contender"])
        shared = {"seed": run.seed + task["round"], "hidden": run.settings.hidden}
        return [task | run_alone(task["contender"], shared | asdict(chains))]

    rounds = range(run.settings.rounds)
    tasks = [{"contender": who, "round": i} for i in rounds for who in ("numpyro", "jaxeff")]
    rows = run.each(tasks, measure)
    return Found([rates(row) | {"round": row["round"] + 1} for row in rows], {"cores": CORES})


def rates(found: Row) -> Row:
    """A row with its effective samples per second, none where a chain has not converged."""
    counts = found["max_rhat"] <= RHAT
    gradients = found["warmup_gradients"] + found["sampling_gradients"]
    whole = found["compile_s"] + found["warmup_s"] + found["sampling_s"]
    row = found | {"gradients": gradients}
    for which in ("min", "median"):
        ess = found[f"{which}_ess"] if counts else 0.0
        row[f"{which}_ess_per_s"] = ess / whole
        row[f"{which}_ess_per_sampling_s"] = ess / found["sampling_s"]
    return row


def judge(report: Report) -> None:
    """Our convergence, and our rates over NumPyro's; short chains decide neither."""
    theirs, ours = (
        [row for row in report.rows if row["contender"] == name] for name in ("numpyro", "jaxeff")
    )
    worst = max(row["max_rhat"] for row in ours)
    report.check(
        "R-hat of our predictions at most 1.05", None, worst, worst <= RHAT, needs="default"
    )
    for rate in (name for name in ours[0] if "_ess_per_" in name):
        # A chain of theirs that has not converged counts for nothing: any of ours is more.
        ratios = [
            a[rate] / b[rate] if b[rate] else float("inf")
            for a, b in zip(ours, theirs, strict=True)
        ]
        ratio = statistics.median(ratios)
        shown = ratio if ratio < float("inf") else "theirs has not converged"
        claim = f"{rate} over NumPyro's at least {FACTOR:g}"
        report.check(claim, None, shown, ratio >= FACTOR, needs="default")


def draw(report: Report) -> dict[str, Figure]:
    """Where each run's seconds go, and what comes of them."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    names = [f"{row['contender']}, {row['round']}" for row in report.rows]
    start = [0.0] * len(names)
    for part in ("compile_s", "warmup_s", "sampling_s"):
        seconds = [row[part] for row in report.rows]
        left.barh(names, seconds, left=start, label=part.removesuffix("_s"))
        start = [a + b for a, b in zip(start, seconds, strict=True)]
    left.set_xlabel("seconds")
    for shift, which in ((-0.2, "min"), (0.2, "median")):
        values = [row[f"{which}_ess_per_s"] for row in report.rows]
        places = [i + shift for i in range(len(names))]
        right.barh(places, values, 0.38, color=f"C{3 if which == 'min' else 4}", label=which)
    right.set_yticks(range(len(names)), names)
    right.set_xlabel("effective samples per second, over 100 inputs")
    for axis in (left, right):
        axis.invert_yaxis()
    return {"ess": figure}


def tables(report: Report) -> list[Table]:
    """Times and rates."""
    return [
        Table.from_rows("NUTS on the noisy sine", report.rows, TIMES),
        Table.from_rows("predictive means over 100 inputs", report.rows, RATES),
    ]


STUDY = Study("ess", __doc__, SIZES, (run,), (judge,), (draw,), (tables,))

if __name__ == "__main__":
    STUDY.main()
