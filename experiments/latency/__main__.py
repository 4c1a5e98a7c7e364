"""What a prediction costs: deterministic, sampled, by moments, by ensembles; on every engine here.

    python -m experiments.latency [--fast] [--json PATH]

1. the main table: MLP 784-100-100-10 and LeNet-5 at batch 1, 10 and 100, with one thread and two;
2. latency per image and speed-up over sampling, at batch 1 to 256;
3. ten-head networks, deep ensembles, and ten heads beside the moment pass;
4. where the time of the moment pass goes, operator by operator, and max pooling in two forms;
5. the forms of the dense operator, and its optimizations switched on and off.

XLA and TVM (`jaxeff_export.deploy`) are always there, NumPyro's `Predictive` too; Pyro, ONNX
Runtime and IREE where they can be imported (`pip install "jaxeff[benchmark]"`). Everything of one
network, batch and number of threads is timed in the same rounds, so ratios hold on a busy machine;
times don't.

Rows are kept as they come in a file beside the JSON: a run that was killed goes on where it
stopped. `--fresh` measures everything again. Source: arXiv 2511.23440 and 2412.15758.
"""

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from experiments.kept import Kept
from experiments.latency import figure, judging, networks, source, tables
from experiments.latency.engines import OPTIONAL, available
from experiments.latency.tasks import Task, cores, plan, run_all
from experiments.report import Report, make_console

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[
        bool, typer.Option("--fast", help="Batch 10 and few others, one thread, few rounds")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/latency.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the figures")] = Path("results"),
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each timing; 21 if unset, 5 with --fast", min=1)
    ] = None,
    threads: Annotated[
        list[int] | None, typer.Option(help="Threads; may be repeated; 1 and 2 if unset", min=1)
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Candidates per kernel to tune with; 16 if unset, 0 with --fast", min=0),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure everything again")] = False,
) -> None:
    """Measure latency, side by side, and hold it to the figures to reach."""
    console = make_console()
    name = f"latency{'-fast' if fast else ''}"
    rounds = rounds or (5 if fast else 21)
    counts = threads or [n for n in ((1,) if fast else (1, 2)) if n <= len(cores())]
    trials = (0 if fast else 16) if trials is None else trials
    config = {"fast": fast, "rounds": rounds, "threads": counts, "trials": trials}
    report = Report("latency", config)
    for engine in sorted(set(OPTIONAL) - set(available())):
        console.print(f"without {engine}, which is not installed")

    path = json or results / f"{name}.json"
    tasks = plan(fast, rounds, counts, trials)
    report.rows = measure(tasks, path, fresh, console)
    judging.judge(report.rows, report)
    report.extra = {"samples": networks.SAMPLES, "differences": list(source.DIFFERENCES)}
    report.save(path)
    pictures = figure.draw(json_format.loads(path.read_text()), results / name)

    tables.show(report.rows, console)
    report.show_checks(console)
    for difference in source.DIFFERENCES:
        console.print(f"- {difference}")
    console.print(*(f"[bold]{p}[/bold]" for p in (path, *pictures)), sep=", ")


def measure(tasks: list[Task], path: Path, fresh: bool, console: Console) -> list[dict[str, Any]]:
    """The rows of every task, those that were kept from an earlier run as they are.

    Args:
        tasks: What to measure.
        path: The JSON; rows and tuning records are kept beside it.
        fresh: Whether to forget the rows. Tuning records are kept.
        console: Where progress goes.
    """
    kept = Kept(path.with_suffix(".jsonl"), fresh)
    todo = [task for task in tasks if task.as_dict() not in kept]
    if len(todo) < len(tasks):
        console.print(f"{len(tasks) - len(todo)} of {len(tasks)} tasks were measured before")
    with _progress(console) as progress:
        bar = progress.add_task("starting", total=len(todo))
        started = lambda task: progress.update(bar, description=task.name)  # noqa: E731
        for task, rows in run_all(todo, path.with_suffix(".tuning"), started):
            kept.add(task.as_dict(), rows)
            progress.advance(bar)
            progress.console.print(f"{task.name}: {len(rows)} rows")
    return [row for task in tasks for row in kept[task.as_dict()]]


def _progress(console: Console) -> Progress:
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*Progress.get_default_columns()[:2], *columns, console=console)


if __name__ == "__main__":
    app()
