"""How many programs the importer takes, and whether TVM then computes what XLA computes.

    python -m experiments.importer [--fast] [--group G]... [--compiler plain] [--json PATH]

Each case is exported by JAX, run by XLA, imported, compiled by TVM, run and compared, in a worker
process that a crash or a hang can't take the study with. The programs (`--suite programs`) are
also timed beside XLA. Every case ends as one of

- ok: equal, or floats within three units in the last place;
- rounding: floats further apart, within the tolerances of JAX's own tests;
- wrong, unsupported, import error, compile error, run error, crash, timeout;
- left out: JAX doesn't run it here, or it has a type that TVM lacks. Counted nowhere.

Records are kept as lines in a file beside the JSON as they come, so a run that was killed goes on
where it stopped; `--retry` runs again what didn't end well, `--fresh` everything.
"""

import collections
import json as json_format
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from experiments.importer import suites
from experiments.importer.workers import run_cases
from experiments.report import Report, make_console, show_rows

GOOD = ("ok", "rounding")
BAD = ("wrong", "unsupported", "import error", "compile error", "run error", "crash", "timeout")
TARGET = 2558 / 2578  # of the official cases
FAST = 2  # cases of each group
SLOWEST = 10  # shown, of the cases that are timed
TIMES = ("case", "import_s", "compile_s", "xla_ms", "tvm_ms", "ratio")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help=f"{FAST} cases of each group")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/importer*.json if unset")
    ] = None,
    suite: Annotated[str, typer.Option(help=", ".join(suites.SUITES))] = "harnesses",
    group: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated")] = None,
    match: Annotated[str, typer.Option(help="Only cases with this in their name")] = "",
    most: Annotated[int | None, typer.Option(help="Cases of each group at most", min=1)] = None,
    compiler: Annotated[str, typer.Option(help="pipeline, or plain: tvm.compile")] = "pipeline",
    constants: Annotated[
        bool, typer.Option("--constants", help="Arguments written into the module")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Worker processes", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="Time for one case")] = 60.0,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again")] = False,
) -> None:
    """Measure what the importer covers."""
    console = make_console()
    most = most or (FAST if fast else None)
    name = "-".join(
        ["importer", suite, *([] if compiler == "pipeline" else [compiler])]
        + (["constants"] if constants else [])
    )
    path = json or Path("results") / f"{name}{'-fast' if fast else ''}.json"
    table = suites.SUITES[suite]
    cases = suites.choose(pkgutil.resolve_name(table)().values(), group or [], most)
    cases = [case for case in cases if match in case.name]

    kept = path.with_suffix(".jsonl")
    known = {} if fresh else _read(kept)
    if fresh:
        kept.unlink(missing_ok=True)
    todo = [
        case.name
        for case in cases
        if case.name not in known or (retry and known[case.name]["outcome"] in BAD)
    ]
    groups = {case.name: case.group for case in cases}
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a") as file, _progress(console) as progress:
        task = progress.add_task("cases", total=len(todo))
        for row in run_cases(todo, table, compiler, constants, jobs, seconds):
            row = {"group": groups[row["case"]], **row}
            known[row["case"]] = row
            file.write("\n" + json_format.dumps(row))  # never onto half a line
            file.flush()
            progress.advance(task)
            if row["outcome"] in BAD:
                progress.console.print(
                    f"[red]{row['outcome']}[/red] {row['case']}", soft_wrap=True, highlight=False
                )

    rows = [known[case.name] for case in cases if known[case.name]["outcome"] != "left out"]
    config = {"suite": suite, "groups": group or "all", "most": most, "compiler": compiler}
    report = Report("importer", config | {"constants": constants, "seconds": seconds}, rows)
    summary = summarize(rows)
    report.extra["summary"] = summary
    judge(summary, len(cases) - len(rows), report)
    show_rows(console, f"{suite}, {compiler}", summary)
    timed = sorted((row for row in rows if "ratio" in row), key=lambda row: -row["ratio"])
    if timed:
        show_rows(console, "Slowest beside XLA", timed[:SLOWEST], TIMES)
    report.show_checks(console)
    console.print(f"[bold]{report.save(path)}[/bold]")


def summarize(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts the outcomes of every group, and of all together in the last row."""
    counts: dict[str, collections.Counter] = {}
    for row in rows:
        for where in (row["group"], "all"):
            counts.setdefault(where, collections.Counter())[row["outcome"]] += 1
    counts["all"] = counts.pop("all", collections.Counter())
    outcomes = [o for o in (*GOOD, *BAD) if counts["all"][o] or o in GOOD]
    return [
        {"group": where, "cases": count.total(), **{o: count[o] or None for o in outcomes}}
        for where, count in counts.items()
    ]


def judge(summary: list[dict[str, Any]], left_out: int, report: Report) -> None:
    """Holds the counts to the targets."""
    total = summary[-1]
    cases = total["cases"]
    good = sum(total[o] or 0 for o in GOOD)
    report.extra["left_out"] = left_out
    share = good / max(cases, 1)
    report.check(f"of {cases} cases: at least {TARGET:.1%} well", None, share, share >= TARGET)
    bad = sum(total.get(o) or 0 for o in ("crash", "timeout"))
    report.check("no crash and no hang", None, bad, bad == 0)


def _progress(console: Console) -> Progress:
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*Progress.get_default_columns()[:2], *columns, console=console)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The records kept so far: the last of each case counts, half a line doesn't."""
    known = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json_format.loads(line)
        except json_format.JSONDecodeError:
            continue
        known[row["case"]] = row
    return known


if __name__ == "__main__":
    app()
