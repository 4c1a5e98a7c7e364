"""Effective samples per second: chains on both cores with one warm-up, against a plain NumPyro run.

    python -m experiments.ess [--fast] [--json PATH]

NUTS on the noisy sine by a 2x50 MLP. Each round runs both contenders, one after the other, each in
a process of its own and with the same two cores; the ratio is the median over the rounds. What is
counted is the bulk effective sample size of the predictive mean over 100 inputs, data and gaps,
its median and its minimum, over the wall time: of everything, and of sampling alone. Chains whose
R-hat exceeds 1.05 anywhere among the inputs count for nothing.

A round that was run stays in `results/ess` and is not run again.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.report import Report, make_console, show_rows

SETTINGS: dict[str, dict[str, dict[str, int]]] = {
    "full": {
        "numpyro": {"warmup": 1000, "samples": 1000, "chains": 1},
        "jaxeff": {"warmup": 300, "samples": 500, "chains": 4},
    },
    "fast": {
        "numpyro": {"warmup": 300, "samples": 300, "chains": 1},
        "jaxeff": {"warmup": 150, "samples": 300, "chains": 2},
    },
}
ROUNDS = {"full": 3, "fast": 1}
RHAT = 1.05
FACTOR = 2.0
CORES = 2
TIMES = ("contender", "round", "compile_s", "warmup_s", "sampling_s", "gradients", "divergences")
RATES = (
    "contender", "round", "max_rhat", "min_ess", "median_ess", "min_ess_per_s", "median_ess_per_s",
)  # fmt: skip
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A small network and short chains")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Where the JSON goes; results/ess.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the rounds")] = Path("results"),
    rounds: Annotated[int | None, typer.Option(help="How often each contender runs")] = None,
    resume: Annotated[bool, typer.Option(help="Keep the rounds that are there")] = True,
) -> None:
    """Run both contenders in turn and compare them."""
    console, mode = make_console(), "fast" if fast else "full"
    count = ROUNDS[mode] if rounds is None else rounds
    config = {"mode": mode, "rounds": count, "cores": CORES, **SETTINGS[mode]}
    report = Report("ess", config)
    for number in range(count):
        for name, settings in SETTINGS[mode].items():
            path = results / "ess" / f"{mode}-{name}-{number}.json"
            command = {"contender": name, "mode": mode, "seed": number, **settings}
            if not (resume and path.exists() and _read(path)["command"] == command):
                console.print(f"round {number + 1} of {count}: {name}, {settings}")
                _run(command, path)
            report.rows.append(_row(_read(path)))
    show_rows(console, "NUTS on the noisy sine", report.rows, TIMES)
    show_rows(console, "Predictive means over 100 inputs", report.rows, RATES)
    _check(report)
    report.show_checks(console)
    path = report.save(json_path or results / f"ess{'-fast' if fast else ''}.json")
    console.print(f"written to {path}")


def _run(command: dict[str, Any], path: Path) -> None:
    """In a process of its own, which alone can set how many devices the cores are."""
    devices = CORES if command["contender"] == "jaxeff" else 1
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    arguments = [sys.executable, "-m", "experiments.ess.worker", json.dumps(command), str(path)]
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run(arguments, env=environment, check=True)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _row(content: dict[str, Any]) -> dict[str, Any]:
    command, found = content["command"], content["measured"]
    counts = found["max_rhat"] <= RHAT
    gradients = found["warmup_gradients"] + found["sampling_gradients"]
    whole = found["compile_s"] + found["warmup_s"] + found["sampling_s"]
    rates = {}
    for which in ("min", "median"):
        ess = found[f"{which}_ess"] if counts else 0.0
        rates[f"{which}_ess_per_s"] = ess / whole
        rates[f"{which}_ess_per_sampling_s"] = ess / found["sampling_s"]
    name = {"contender": command["contender"], "round": command["seed"] + 1}
    return {**name, **found, "gradients": gradients, **rates}


def _check(report: Report) -> None:
    theirs, ours = (
        [row for row in report.rows if row["contender"] == name] for name in ("numpyro", "jaxeff")
    )
    report.check("R-hat of our predictions at most 1.05", None, *_at_most(ours))
    for rate in (name for name in ours[0] if "_ess_per_" in name):
        # A chain of theirs that has not converged counts for nothing: any of ours is more.
        ratios = [
            a[rate] / b[rate] if b[rate] else float("inf")
            for a, b in zip(ours, theirs, strict=True)
        ]
        ratio = statistics.median(ratios)
        shown = ratio if ratio < float("inf") else "theirs has not converged"
        report.check(f"{rate} over NumPyro's at least {FACTOR:g}", None, shown, ratio >= FACTOR)


def _at_most(rows: list[dict[str, Any]]) -> tuple[float, bool]:
    worst = max(row["max_rhat"] for row in rows)
    return worst, worst <= RHAT


if __name__ == "__main__":
    app()
