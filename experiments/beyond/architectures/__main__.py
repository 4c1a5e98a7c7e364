"""Architectures of other libraries: are they read, quantized, pruned and given moments?

    python -m experiments.beyond.architectures --libraries torchvision

Every classification network of torchvision and of keras.applications, much used ones of timm, one
or two of each family, and transformers' models with two narrow layers, all with random weights.
Nothing is computed: programs are traced by shapes, in a process of each library's own, with a limit
for each column in seconds of a processor. The columns are

- functional: `jaxeff.functional` reads it, and `trace` finds its layers;
- pruned: the share of the parameters that is left where half of all channels go. Where a statistic
  over channels can't count zeros, which is refused, these channels are kept ("keep");
- integer: the share of all multiply-accumulates whose weights become 8-bit codes;
- moments: whether the moment pass takes random parameters, and whether it warns.

A column is right, refused (an error of the library that says why), a crash (any other error), or
slow. Only what shapes say is judged: that results are right says the study `zoo`, of small ones.

    pip install "jaxeff[torch,keras]" torchvision timm transformers
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from experiments.beyond.architectures import models
from experiments.beyond.trials import in_processes
from experiments.harness import (
    SELECTS,
    Claim,
    Curves,
    Kept,
    Least,
    Plot,
    Report,
    Row,
    Run,
    Study,
    Table,
    at_least,
    choose,
    equals,
    every,
    grouped,
    summary,
)

Task = tuple[str, str, str]
"""A library, the name of an architecture and a column."""
COLUMNS = ("functional", "pruned", "integer", "moments")
"""What is tried of each architecture, in order."""
_TORCH_PRUNING = 81 / 85
"""Share of torchvision's classification networks that Torch-Pruning's list says it prunes."""


@dataclass(frozen=True)
class Settings:
    """What is tried.

    Attributes:
        libraries: Whose architectures; all if empty.
        architectures: Names of architectures; all if empty.
        columns: What is tried of each; all if empty.
        limit: Seconds of a processor for a column; one that took longer is tried again with more.
    """

    libraries: Annotated[tuple[str, ...], SELECTS] = ()
    architectures: Annotated[tuple[str, ...], SELECTS] = ()
    columns: Annotated[tuple[str, ...], SELECTS] = ()
    limit: Annotated[float, Least(1), SELECTS] = 240.0


def read(run: Run[Settings]) -> list[Row]:
    """Reads the architectures, those of each library in a process of its own."""
    chosen = run.settings.architectures
    columns = choose(run.settings.columns, COLUMNS, "column")
    tasks: list[Task] = []
    for library in choose(run.settings.libraries, models.LIBRARIES, "library"):
        try:
            names = models.names(library)
        except ImportError as error:
            run.say(f"{library} is left out: {error}")
            continue
        names = [name for name in names if name in chosen or not chosen]
        tasks += [(library, name, column) for name in names for column in columns]

    def make(todo: Sequence[Task]) -> Iterator[tuple[Task, list[Row]]]:
        for library in dict.fromkeys(library for library, *_ in todo):
            left = [f"{name}/{column}" for of, name, column in todo if of == library]
            module = "experiments.beyond.architectures.worker"
            for task, row in in_processes(module, [library], left, run.settings.limit):
                name, column = task.split("/")
                named = {"library": library, "architecture": name, "column": column}
                yield (library, name, column), [{**named, **row}]

    def again(rows: list[Row]) -> bool:
        # What crashed may be mended since; what took too long may have more time.
        limit = run.settings.limit
        return any(r["status"] == "crash" or r.get("limit", limit) < limit for r in rows)

    return run.stream(tasks, make, again=again)


def counts(report: Report) -> list[Table]:
    """How many architectures of each library have each outcome, and what a column takes."""
    lines: list[Row] = []
    for (library, column), rows in grouped(report.rows, "library", "column").items():
        outcomes = Counter(row["status"] for row in rows)
        times = sorted(row.get("seconds") or 0.0 for row in rows)
        lines.append(
            {"library": library, "column": column, "architectures": len(rows),
             "outcomes": ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common()),
             "median seconds": times[len(times) // 2], "most": times[-1]}
        )  # fmt: skip
    return [Table.from_rows("architectures", lines)]


def refusals(report: Report) -> list[Table]:
    """Every refusal and crash with its reason, equal ones of a library together."""
    others = [row for row in report.rows if row["status"] != "right"]
    together = grouped(others, "library", "column", "status", "words")
    lines = [
        {**dict(zip(("library", "column", "outcome", "why"), key, strict=True)),
         "architectures": " ".join(row["architecture"] for row in rows)}
        for key, rows in together.items()
    ]  # fmt: skip
    return [Table.from_rows("and why not", lines)] if lines else []


def listed(report: Report) -> list[Table]:
    """A line for each architecture."""
    lines: list[Row] = []
    for (library, name), rows in grouped(report.rows, "library", "architecture").items():
        by_column = {row["column"]: row for row in rows}
        read = by_column.get("functional", {})
        lines.append(
            {"library": library, "architecture": name, "parameters": read.get("number"),
             "layers": read.get("sites"),
             **{column: _shown(by_column.get(column)) for column in COLUMNS},
             "opaque": " ".join(read.get("undescribed", ())),
             "seconds": sum(row.get("seconds") or 0.0 for row in rows)}
        )  # fmt: skip
    return [Table.from_rows("by architecture", lines)]


def _shown(row: Row | None) -> str:
    """Returns an outcome, or what was measured."""
    if row is None:
        return ""
    if row["status"] != "right" or row["column"] == "functional":
        outcome: str = row["status"]
        return outcome
    if row["column"] == "moments":
        return "warns" if row["number"] else "right"
    return f"{row['number']:.2f}" + (" (keep)" if row["words"] else "")


def _defects(rows: list[Row]) -> int:
    return sum(row["status"] in ("wrong", "crash") for row in rows)


def _share(rows: list[Row]) -> float:
    return sum(row["status"] == "right" for row in rows) / len(rows)


def _pruned(report: Report) -> list[Row]:
    """Selects the rows of pruning torchvision's networks."""
    return [r for r in report.rows if (r["library"], r["column"]) == ("torchvision", "pruned")]


def _left(report: Report) -> list[Row]:
    """Selects what half of the channels leave of each architecture."""
    by_column = grouped(report.rows, "library", "architecture", "column")
    return [
        {"library": library, "parameters": rows[0]["number"], "left": pruned[0]["number"]}
        for (library, name, column), rows in by_column.items()
        if column == "functional" and (pruned := by_column.get((library, name, "pruned")))
    ]


STUDY = Study(
    "architectures",
    __doc__,
    {
        "fast": Settings(("torchvision",), ("resnet18", "squeezenet1_1")),
        "default": Settings(), "full": Settings(limit=1200.0),
    },
    parts=(Kept(read),),
    claims=[
        Claim(
            "{library}: columns that crash", "defects", equals(0),
            of=summary(every, "library", defects=_defects),
        ),
        Claim(
            "{library}: share that is pruned", "share", at_least(_TORCH_PRUNING),
            of=summary(_pruned, "library", share=_share), needs="default",
        ),
    ],
    plots=(
        Plot(
            "pruned",
            Curves(
                "parameters", "left", _left, "{library}", style="o",
                axes={"xscale": "log", "xlabel": "parameters", "ylabel": "share that is left"},
            ),
        ),
    ),
    tables=(counts, refusals, listed),
    differences=(
        "Torch-Pruning counts 85 networks of torchvision, its segmentation networks among them.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
