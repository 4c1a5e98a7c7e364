"""What the transforms cost, everything side by side in one run.

    python -m experiments.transforms [--fast] [--json PATH]

1. FLOPs and bytes, by XLA's own count, of `noisy`, `quantized` and `moments` on LeNet-5 and
   ResNet-18, each beside the same network written by hand;
2. how long reading ResNet-18 takes;
3. the moment pass of LeNet-5 and of the MLP 784-100-100-10 against 30 weight samples, with the
   weights drawn on every call and beforehand, at batch 1, 5 and 10. Rounds are interleaved, so
   ratios hold on a busy machine; times don't.

The source (arXiv 2511.23440) compares its compiled moment pass with sampling in Pyro.
"""

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

import jaxeff
from experiments.report import Report, show_rows
from experiments.transforms import cost, figure, latency

LIMIT = 1.02  # of the hand-written count
FRESH_TARGET, DRAWN_TARGET = 10, 5  # times faster than sampling
READING_TARGET = 1.0  # seconds
NETS = {"lenet5": 10, "resnet18-imagenet": 1, "resnet18-cifar": 1}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[
        bool, typer.Option("--fast", help="LeNet-5 and one ResNet-18; batch 10; few rounds")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/transforms.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the figure")] = Path("results"),
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each timing; 25 if unset, 7 with --fast", min=1)
    ] = None,
) -> None:
    """Measure FLOPs, bytes, reading time and latency of the transforms."""
    console = Console()
    name = f"transforms{'-fast' if fast else ''}"
    rounds = rounds or (7 if fast else 25)
    config = {
        "fast": fast,
        "rounds": rounds,
        "samples": latency.SAMPLES,
        "backend": jax.default_backend(),
    }
    report = Report("transforms", config)

    nets = dict(list(NETS.items())[:2]) if fast else NETS
    costs = count(nets, report, console)
    show_rows(console, "XLA's count, ours over hand-written", [_short(row) for row in costs])
    reading = read(rounds, report)
    console.print(f"reading ResNet-18 takes {reading['ms']:.0f} ms")
    timings = []
    for net in ("lenet5", "mlp"):
        for batch in (10,) if fast else (1, 5, 10):
            with console.status(f"timing {net}, batch {batch}"):
                rows = latency.measure(cost.subject(net, batch), rounds)
            judge(rows, report)
            show_rows(console, f"{net}, batch {batch}", rows)
            timings += rows
    report.rows = [*costs, reading, *timings]

    path = report.save(json or results / f"{name}.json")
    picture = figure.draw(costs, timings, (FRESH_TARGET, DRAWN_TARGET), results / f"{name}.png")
    report.show_checks(console)
    console.print(f"[bold]{path}[/bold], [bold]{picture}[/bold]")


def count(nets: dict[str, int], report: Report, console: Console) -> list[dict[str, Any]]:
    """Compares XLA's counts of every transform on every network."""
    rows = []
    for net, batch in nets.items():
        subject = cost.subject(net, batch)
        for transform in cost.TRANSFORMS:
            with console.status(f"compiling {transform} {net}, ours and by hand"):
                row = cost.compare(subject, transform)
            rows.append(row)
            for what in ("flops", "bytes"):
                ratio = row[f"{what}_ratio"]
                claim = f"{what} of {transform} {net} over hand-written: at most {LIMIT}"
                report.check(claim, None, ratio, ratio <= LIMIT)
    return rows


def read(rounds: int, report: Report) -> dict[str, Any]:
    """Times reading ResNet-18 into a program, nothing cached but what a user's process has."""
    net = cost.subject("resnet18-imagenet", 1)
    times = []
    for _ in range(max(rounds // 5, 3)):
        jax.clear_caches()
        start = time.perf_counter()
        jaxeff.trace(net.f, net.params, net.x)
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    claim = f"seconds to read ResNet-18: less than {READING_TARGET:g}"
    report.check(claim, None, seconds, seconds < READING_TARGET)
    return {"net": net.name, "batch": 1, "method": "trace", "ms": 1e3 * seconds}


def judge(rows: list[dict[str, Any]], report: Report) -> None:
    """Holds one round of timings to the targets."""
    fresh, drawn = latency.speedups(rows)
    where = f"{rows[0]['net']}, batch {rows[0]['batch']}"
    for what, ours, target in (
        ("drawn per call", fresh, FRESH_TARGET),
        ("drawn beforehand", drawn, DRAWN_TARGET),
    ):
        claim = f"{where}: moments over {latency.SAMPLES} samples {what}: at least {target}x"
        report.check(claim, None, ours, ours >= target)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "net": f"{row['net']} x {row['batch']}",
        "transform": row["transform"],
        "MFLOPs": row["flops"] / 1e6,
        "ratio": row["flops_ratio"],
        "MB": row["bytes"] / 1e6,
        "ratio ": row["bytes_ratio"],
        "differ by": row["difference"],
    }


if __name__ == "__main__":
    app()
