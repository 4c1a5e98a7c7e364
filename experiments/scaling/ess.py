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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from experiments import harness as h
from experiments.harness import SELECTS, Count, Found, Least, Report, Row, Run
from experiments.scaling.samplers import CORES, run_alone

RHAT = 1.05
FACTOR = 2.0
TIMES = ("contender", "round", "compile_s", "warmup_s", "sampling_s", "gradients", "divergences")
RATES = (
    "contender", "round", "max_rhat", "min_ess", "median_ess", "min_ess_per_s", "median_ess_per_s",
)  # fmt: skip


@dataclass(frozen=True)
class Chains:
    """A contender's run."""

    warmup: Count  # iterations of warm-up
    samples: Annotated[int, Least(4)]  # draws of each chain
    chains: Count  # number of chains


@dataclass(frozen=True)
class Settings:
    """Both contenders."""

    numpyro: Chains  # NumPyro's run
    jaxeff: Chains  # ours
    hidden: Count = 50  # units of both hidden layers
    rounds: Annotated[int, Least(1), SELECTS] = 3  # how often each contender runs


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


def worst(report: Report) -> list[Row]:
    """Selects our chains that mix worst."""
    return [max(h.where(contender="jaxeff")(report), key=lambda row: row["max_rhat"])]


def compared(report: Report) -> Iterator[Row]:
    """Selects our rates over NumPyro's, the median over rounds."""
    theirs, ours = (h.where(contender=name)(report) for name in ("numpyro", "jaxeff"))
    for rate in (name for name in ours[0] if "_ess_per_" in name):
        # A chain of theirs that has not converged counts for nothing: any of ours is more.
        pairs = [(a[rate], b[rate]) for a, b in zip(ours, theirs, strict=True)]
        ratio = statistics.median(a / b if b else float("inf") for a, b in pairs)
        shown = ratio if ratio < float("inf") else "theirs has not converged"
        yield {"rate": rate, "ratio": ratio, "shown": shown}


CLAIMS = (  # short chains decide neither
    h.Claim(
        "R-hat of our predictions at most {bound}", "max_rhat", h.at_most(RHAT), of=worst,
        needs="default",
    ),
    h.Claim(
        "{rate} over NumPyro's at least {bound:g}", "ratio", h.at_least(FACTOR), of=compared,
        needs="default", shown="shown",
    ),
)  # fmt: skip
RUN = "{contender}, {round}"
PLOT = h.Plot(
    "ess",
    h.Stacks(
        RUN, {f"{part}_s": part for part in ("compile", "warmup", "sampling")},
        axes={"xlabel": "seconds"},
    ),
    h.Dots(
        RUN, {"min_ess_per_s": "min", "median_ess_per_s": "median"},
        axes={"xlabel": "effective samples per second, over 100 inputs"},
    ),
)  # fmt: skip
STUDY = h.Study(
    "ess", __doc__, SIZES, (run,), CLAIMS, (PLOT,),
    (
        h.Listing("NUTS on the noisy sine", TIMES),
        h.Listing("predictive means over 100 inputs", RATES),
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
