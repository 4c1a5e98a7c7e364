"""Architectures as people write them, and what every transform makes of each.

    python -m experiments.beyond.zoo --models vit t5

Each model runs in a process of its own, with a limit for each cell in seconds of a processor. A
cell is

- right: held against the function, draws of it, or another way to compute the same;
- off: variances of moments whose median is below .8 of that of 256 draws, or above 1.25 of it, with
  the words that a user is warned by;
- refused: an error of the library, whose words are in the JSON;
- wrong or crash: a defect;
- slow: not done within the limit;
- absent: a package isn't installed.

The number is the largest error over the largest result (functional to quantized, ensemble to onnx),
the share of all multiply-accumulates that is in codes (integer, which is held against
`integer_aware`: the same to the digits of float32, but where a value lies between two codes), the
variance over that of draws (moments, linear) or of the reference (verdict), or the share of the
parameters that is left (pruned, where channels stay whose statistics can't count zeros). Parameters
are initial values, and noise of 5 % of each.

Models that are loops are tried on every microcontroller, too, as int8 libraries on an emulated one.

`--full` takes networks of published sizes (224 x 224 pixels, one image). `--models` takes small
networks of torchvision, timm, Keras and transformers too (`pip install "jaxeff[torch,keras]"
torchvision timm transformers`), whose names begin with the library's, and 36 modules as users of
PyTorch bring them, written here from their papers (`torch-unet`, `torch-conformer`, `torch-pinn`).

Models with a package in their name are built of it, the others written here. For equimo's
`jaxeff[zoo]` is enough. The others' packages ask for more than pip finds a set of, and need less:

    pip install "jaxeff[zoo]"
    pip install --no-deps flaxdiff gemma google-tunix google-metrax kauldron
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from matplotlib.axes import Axes

from experiments.beyond.trials import in_processes
from experiments.beyond.zoo.cells import COLUMNS, CORES
from experiments.beyond.zoo.models import LOOPS, MODELS, OF_LIBRARIES, REAL
from experiments.harness import (
    SELECTS,
    Claim,
    Kept,
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

Task = tuple[str, str]
"""A model and a column."""


@dataclass(frozen=True)
class Settings:
    """What is tried.

    Attributes:
        models: Names of models; all tiny ones if empty.
        columns: Names of transforms; all if empty.
        limit: Seconds of a processor for a cell; one that took longer is tried again with more.
    """

    models: Annotated[tuple[str, ...], SELECTS] = ()
    columns: Annotated[tuple[str, ...], SELECTS] = ()
    limit: Annotated[float, Least(1), SELECTS] = 240.0


def cells(run: Run[Settings]) -> list[Row]:
    """Fills the table, each model's row by processes of its own."""
    known = (*MODELS, *REAL, *OF_LIBRARIES)
    models = choose(run.settings.models or MODELS, known, "model")
    columns = choose(run.settings.columns, tuple(COLUMNS), "column")
    tasks = [
        (model, column)
        for model in models
        for column in columns
        if column not in CORES or model in LOOPS or column in run.settings.columns
    ]

    def make(todo: Sequence[Task]) -> Iterator[tuple[Task, list[Row]]]:
        for model in dict.fromkeys(model for model, _ in todo):
            left = [column for name, column in todo if name == model]
            for column, cell in in_processes(
                "experiments.beyond.zoo.worker", [model], left, run.settings.limit
            ):
                yield (model, column), [{"model": model, "column": column, **cell}]

    limit = run.settings.limit
    return run.stream(
        tasks, make, again=lambda rows: any(r.get("limit", limit) < limit for r in rows)
    )


def counts(report: Report) -> list[Table]:
    """How many cells have each status, in a column per transform."""
    rows = report.rows
    counts = Counter((row["status"], name) for row in rows for name in (row["column"], "all"))
    lines = [
        {"status": status, **{c: counts[status, c] for c in (*_columns(report), "all")}}
        for status in dict.fromkeys(row["status"] for row in rows)
    ]
    models = len({row["model"] for row in rows})
    return [Table.from_rows(f"{len(rows)} cells of {models} models", lines)]


def _columns(report: Report) -> list[str]:
    tried = {row["column"] for row in report.rows}
    return [name for name in COLUMNS if name in tried]


def matrix(report: Report) -> list[Table]:
    """A row per model and a column per transform."""
    by_cell = {(row["model"], row["column"]): row for row in report.rows}
    columns = _columns(report)
    rows = [
        {"model": model, **{c: _short(by_cell.get((model, c))) for c in columns}}
        for model in dict.fromkeys(model for model, _ in by_cell)
    ]
    others = [r for r in report.rows if r["status"] != "right"]
    words = [{key: r[key] for key in ("model", "column", "status", "words")} for r in others]
    tables = [Table.from_rows("what each transform makes of each model", rows)]
    with_files = [row for row in report.rows if row.get("megabytes") is not None]
    files = [
        {key: row[key] for key in ("model", "column", "megabytes", "times")} for row in with_files
    ]
    if files:
        tables.append(Table.from_rows("megabytes of files, and times of calls over XLA's", files))
    return [*tables, Table.from_rows("and why not", words)] if words else tables


_MARKS = {
    "right": ("o", "tab:green"), "off": ("D", "tab:orange"), "refused": ("s", "tab:blue"),
    "slow": (">", "tab:gray"), "absent": (".", "tab:gray"), "wrong": ("X", "tab:red"),
    "crash": ("P", "tab:red"),
}  # fmt: skip


def picture(report: Report) -> list[Panel]:
    """A mark for each cell, whose form is its status."""
    models = list(dict.fromkeys(row["model"] for row in report.rows))[::-1]
    columns = _columns(report)

    def paint(axis: Axes) -> None:
        for status, (form, color) in _MARKS.items():
            rows = [row for row in report.rows if row["status"] == status]
            if rows:
                places = [columns.index(row["column"]) for row in rows]
                lines = [models.index(row["model"]) for row in rows]
                axis.plot(places, lines, form, color=color, ms=5, label=status)
        axis.set_xticks(range(len(columns)), columns, fontsize=7)
        axis.set_yticks(range(len(models)), models, fontsize=8)
        axis.margins(0.06, 0.03)
        # A line of the figure is a model, however many there are.
        if (figure := axis.get_figure(root=True)) is not None:
            figure.set_size_inches(8.0, 1.5 + 0.22 * len(models))

    return [Panel("", paint)]


def _short(row: Row | None) -> str:
    if row is None:
        return ""
    number = row["number"]
    shown = "" if number is None or row["column"] not in _SHOWN else f" {number:.2f}"
    return ("" if row["status"] == "right" and shown else row["status"]) + shown


def _defects(rows: list[Row]) -> int:
    return sum(row["status"] in ("wrong", "crash") for row in rows)


_SHOWN = {"integer", "moments", "linear", "verdict", "pruned"}

STUDY = Study(
    "zoo",
    __doc__,
    {"fast": Settings(("mobilenet",), ("functional", "noisy")), "default": Settings(),
     "full": Settings(REAL, ("functional", "quantized", "deploy", "onnx"), 1200.0)},
    parts=(Kept(cells),),
    claims=[
        Claim(
            "{model}: cells that are wrong or crash", "defects", equals(0),
            of=summary(every, "model", defects=_defects),
        )
    ],
    plots=(Plot("cells", picture),),
    tables=(counts, matrix),
    differences=(
        "All models are untrained, and all but those whose names end in `real` are tiny.",
        "Times over XLA's are of CPU time, in one process, in turn.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
