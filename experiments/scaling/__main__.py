"""What Bayesian inference costs: FLOPs, latency, memory and intensity, as networks and data grow.

    python -m experiments.scaling [--fast] [--json PATH]

NUTS (50 samples after 100 of warm-up) and mean-field SVI (150 epochs) of a multilayer perceptron on
the noisy sine, over depth 1 to 5, width 25 to 200 and the size of the data set, by NumPyro,
BlackJAX, TensorFlow Probability and Pyro (where installed: `pip install "jaxeff[benchmark]"`) and
by jaxeff itself; and a roofline whose ceilings are measured here.

Rows are kept as they come in a file beside the JSON: a run that was killed goes on where it
stopped. `--fresh` measures everything again. Source: T3308-3420 of the thesis.
"""

import json as json_format
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from experiments.kept import Kept
from experiments.report import Report, make_console, show_rows
from experiments.scaling import figure, judging, workers
from experiments.scaling.engines import OPTIONAL, available
from experiments.scaling.plan import DEFAULT, Task, plan
from experiments.scaling.problem import Settings, analytic_macs

COLUMNS = ["engine", "method", "depth", "width", "examples", "ms", "total_flops", "intensity"]
COLUMNS += ["gflops", "peak_mb", "step_size"]
FAST = Settings(warmup=10, samples=5, doublings=5, epochs=5, rounds=2)
CEILING_ROUNDS = 10
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[
        bool, typer.Option("--fast", help="Few configurations, samples and epochs, short trees")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/scaling.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the figures")] = Path("results"),
    engines: Annotated[
        list[str] | None, typer.Option(help="Engines; may be repeated; all there are if unset")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Start nothing after so long, and report what there is", min=0)
    ] = math.inf,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure everything again")] = False,
) -> None:
    """Measure what inference costs and hold it to the source's claims."""
    console = make_console()
    name = f"scaling{'-fast' if fast else ''}"
    there = available()
    for engine in sorted(set(OPTIONAL) - set(there)):
        packages = " and ".join(OPTIONAL[engine])
        console.print(f'without {engine} ({packages}): pip install "jaxeff\\[benchmark]"')
    chosen = engines or there
    if missing := sorted(set(chosen) - set(there)):
        raise typer.BadParameter(f"{', '.join(missing)} is not among {', '.join(there)}")
    settings = FAST if fast else Settings()
    path = json or results / f"{name}.json"
    kept = Kept(path.with_suffix(".jsonl"), fresh)
    workers.preload()

    config = {**asdict(settings), **asdict(DEFAULT), "engines": chosen, "fast": fast}
    report = Report("scaling", config)
    deadline = time.monotonic() + 60 * minutes
    report.rows = measure(plan(fast, settings, chosen), kept, deadline, console)
    if not report.rows:
        raise typer.BadParameter("nothing was measured yet: allow more --minutes")
    ceilings = measure_ceilings(kept)
    judging.judge(report.rows, ceilings, report)
    report.extra = {"ceilings": ceilings, "differences": list(judging.DIFFERENCES)}
    report.save(path)
    pictures = figure.draw(json_format.loads(path.read_text()), results / name)

    show_rows(console, "Cost of inference", report.rows, COLUMNS)
    report.show_checks(console)
    for difference in judging.DIFFERENCES:
        console.print(f"- {difference}")
    console.print(*(f"[bold]{p}[/bold]" for p in (path, *pictures)), sep=", ")


def measure(
    tasks: list[Task], kept: Kept, deadline: float, console: Console
) -> list[dict[str, Any]]:
    """The rows of every task, those that were kept from an earlier run as they are.

    Args:
        tasks: What to measure.
        kept: Rows of earlier runs.
        deadline: When to start no further task, by the monotonic clock.
        console: Where progress goes.
    """
    todo = [task for task in tasks if task.as_dict() not in kept]
    if len(todo) < len(tasks):
        console.print(f"{len(tasks) - len(todo)} of {len(tasks)} tasks were measured before")
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*Progress.get_default_columns()[:2], *columns, console=console) as progress:
        bar = progress.add_task("starting", total=len(todo))
        for task in todo:
            if time.monotonic() >= deadline:
                progress.console.print(f"{task.name} and what follows it is left for another run")
                break
            progress.update(bar, description=task.name)
            rows = workers.measure(task.contestants, task.configuration, task.settings)
            kept.add(task.as_dict(), [finished(row, task) for row in rows])
            progress.advance(bar)
            progress.console.print(f"{task.name}: {len(rows)} rows")
    done = [task.as_dict() for task in tasks if task.as_dict() in kept]
    return [row for task in done for row in kept[task]]


def finished(row: dict[str, Any], task: Task) -> dict[str, Any]:
    """A row with what its task says about it."""
    point, settings = task.configuration, task.settings
    examples = point.examples if row["method"] == "mcmc" else settings.batch
    macs = analytic_macs(point.widths, examples)
    return {**row, "doublings": settings.doublings, "analytic_macs": macs}


def measure_ceilings(kept: Kept) -> dict[str, Any]:
    """The machine's, measured once."""
    task = {"ceilings": CEILING_ROUNDS}
    if task not in kept:
        kept.add(task, [workers.measure_machine(CEILING_ROUNDS)])
    return kept[task][0]


if __name__ == "__main__":
    app()
