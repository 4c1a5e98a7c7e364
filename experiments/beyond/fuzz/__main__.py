"""Random small networks through transforms and files, each held against an oracle.

    python -m experiments.beyond.fuzz --seeds 20 --first 100

A seed gives a network: two to five blocks of a grammar (products, convolutions, pools, norms,
activations, sums, gates, attention, recurrences, changes of shape; layers, kernels, values and
windows that are shared) of random widths and sizes, and examples. It is tried as

| column | what is held |
|---|---|
| integer | codes of 8 bits, calibrated on 8 examples, are `integer_aware` at batch 1 and 8 |
| moments, linear | variances, parameters random by 5 %, are those of 2,048 draws of the function |
| pruned | the smaller network is the masked one |
| deploy, onnx, litert | a bundle of this machine, ONNX Runtime and LiteRT compute what XLA does |
| c_source | so does source in C by `gcc` with -O0, -O3, -ffast-math and sanitizers |
| torch | a module of PyTorch of the same seed computes what PyTorch does, in batches of two sizes |
| onnx_edges, litert_edges | a function of values at the edges of dtypes is XLA's to the bit |

PyTorch's modules are recurrent, pooled, have views, write in place and read sizes. What goes
through ONNX is also read back. Each is found to be right, off by no more than float32's own
rounding (measured against float64), off and warned of, refused in the library's words, or else
wrong, without a word, or a crash. A ratio of variances is right from .8 to 1.25, two standard
errors aside. XLA compiles without its optimizations, which take most of the time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from matplotlib.axes import Axes

from experiments.beyond.fuzz.cells import COLUMNS, subject
from experiments.beyond.fuzz.grammar import network
from experiments.beyond.trials import in_processes
from experiments.harness import (
    SELECTS,
    Claim,
    Count,
    Least,
    Panel,
    Plot,
    Report,
    Row,
    Run,
    Study,
    Table,
    choose,
    equals,
    every,
    summary,
)

Task = tuple[int, str]
"""A seed and a column."""

_TOGETHER = 20  # seeds in a process: more would pay its start less, and hold more memory
STATUSES = ("right", "rounding", "warned", "refused", "slow", "absent", "wrong", "crash")
_COLORS = dict(
    zip(
        STATUSES,
        (
            "tab:green",
            "tab:olive",
            "tab:orange",
            "tab:blue",
            "tab:gray",
            "lightgray",
            "tab:red",
            "black",
        ),
        strict=True,
    )
)


@dataclass(frozen=True)
class Settings:
    """What is tried.

    Attributes:
        seeds: How many networks.
        first: Seed of the first.
        columns: Names of transforms; all if empty.
        blocks: The most blocks of a network.
        limit: Seconds of a processor for a task.
    """

    seeds: Annotated[Count, SELECTS] = 200
    first: Annotated[int, Least(0), SELECTS] = 0
    columns: Annotated[tuple[str, ...], SELECTS] = ()
    blocks: Annotated[int, Least(2)] = 5
    limit: Annotated[float, Least(1), SELECTS] = 120.0


def trials(run: Run[Settings]) -> list[Row]:
    """Tries every seed with every column."""
    settings = run.settings
    columns = choose(settings.columns, tuple(COLUMNS), "column")
    seeds = range(settings.first, settings.first + settings.seeds)

    def make(todo: Sequence[Task]) -> Iterator[tuple[Task, list[Row]]]:
        left = list(dict.fromkeys(seed for seed, _ in todo))
        for at in range(0, len(left), _TOGETHER):
            seeds = left[at : at + _TOGETHER]
            nets = {seed: network(seed, settings.blocks) for seed in seeds}
            tasks = [f"{seed}:{column}" for seed, column in todo if seed in nets]
            for task, cell in in_processes(
                "experiments.beyond.fuzz.worker", [str(settings.blocks)], tasks, settings.limit
            ):
                seed, column = int(task.split(":")[0]), task.split(":")[1]
                words = subject(nets[seed], column)
                kept = {"seed": seed, "column": column, **cell, "network": words}
                yield (seed, column), [kept]

    return run.stream(
        [(seed, column) for seed in seeds for column in columns],
        make,
        again=lambda rows: any(r.get("limit", settings.limit) < settings.limit for r in rows),
    )


def _counts(report: Report) -> dict[str, Counter[str]]:
    counters: dict[str, Counter[str]] = {}
    for row in report.rows:
        counters.setdefault(row["column"], Counter())[row["status"]] += 1
    return counters


def counts(report: Report) -> list[Table]:
    """How many networks each transform is right of, and so on."""
    lines = [
        {"column": column, **{status: count[status] for status in STATUSES}}
        for column, count in _counts(report).items()
    ]
    seeds = len({row["seed"] for row in report.rows})
    return [Table.from_rows(f"{seeds} networks", lines)]


def defects(report: Report) -> list[Table]:
    """What is wrong or crashed, and how often each refusal and warning was met."""
    rows = [row for row in report.rows if row["status"] in ("wrong", "crash", "slow")]
    lines = [
        {
            "where": f"{row['seed']}:{row['column']}", "status": row["status"],
            "number": row["number"], "words": row["words"][:50], "network": row["network"][:80],
        }
        for row in rows
    ]  # fmt: skip
    tables = [Table.from_rows("what is wrong", lines)] if rows else []
    told = Counter(
        (row["column"], row["status"], row["words"][:90])
        for row in report.rows
        if row["status"] in ("refused", "warned")
    )
    lines = [
        {"column": column, "status": status, "count": count, "words": words}
        for (column, status, words), count in told.most_common()
    ]
    return [*tables, Table.from_rows("warnings and refusals", lines)] if lines else tables


def picture(report: Report) -> list[Panel]:
    """A bar for each transform, of what became of the networks."""

    def paint(axis: Axes) -> None:
        counts = _counts(report)
        below = [0] * len(counts)
        for status in STATUSES:
            heights = [count[status] for count in counts.values()]
            if any(heights):
                axis.bar(list(counts), heights, bottom=below, color=_COLORS[status], label=status)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axis.set_ylabel("networks")

    return [Panel("", paint)]


def _defects(rows: list[Row]) -> int:
    return sum(row["status"] in ("wrong", "crash") for row in rows)


STUDY = Study(
    "fuzz",
    __doc__,
    {"fast": Settings(seeds=12), "default": Settings(), "full": Settings(seeds=2000, blocks=8)},
    parts=(trials,),
    claims=[
        Claim(
            "{column}: networks that are wrong or crash", "defects", equals(0),
            of=summary(every, "column", defects=_defects),
        )
    ],
    plots=(Plot("counts", picture),),
    tables=(counts, defects),
    differences=("Networks are untrained, their weights normal with gains from 1 to 1.5.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
