"""The command line: look at a bundle, check it, time it, and run it on a board.

python -m jaxeff_export inspect lenet
python -m jaxeff_export check lenet --board emulated
python -m jaxeff_export run lenet inputs.npz outputs.npz --board rpc://raspberrypi:9090
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from jaxeff_export.archive import new_file
from jaxeff_export.boards import BoardError, emulated
from jaxeff_export.bundle import Bundle, BundleError
from jaxeff_export.signature import SignatureError, TensorSpec
from jaxeff_export.toolchain import ToolchainError

app = typer.Typer(help="Inspect, check, time and run compiled bundles.", no_args_is_help=True)
console = Console()

BundlePath = Annotated[Path, typer.Argument(help="The bundle's folder.")]
BoardName = Annotated[
    str, typer.Option(help="local, emulated, emulated:<core> or rpc://host:port.")
]
_FAILURES = (BundleError, BoardError, SignatureError, ToolchainError)


@app.command()
def inspect(bundle: BundlePath) -> None:
    """Show what a bundle holds, after checking every file of it."""
    manifest = _load(bundle).manifest
    table = Table(title=f"{bundle}: {manifest.target_name} ({manifest.machine})")
    for heading in ("role", "name", "shape", "dtype"):
        table.add_column(heading)
    groups: tuple[tuple[str, tuple[TensorSpec, ...]], ...] = (
        ("parameter", manifest.parameters),
        ("derived", manifest.derived),
        ("input", manifest.inputs),
        ("output", manifest.outputs),
    )
    for role, specs in groups:
        for spec in specs:
            table.add_row(role, spec.name, "×".join(map(str, spec.shape)) or "scalar", spec.dtype)
    console.print(table)
    for name, facts in manifest.files.items():
        console.print(f"{name}: {facts['size']:,} bytes, intact")
    console.print(", ".join(f"{name} {version}" for name, version in manifest.versions.items()))


@app.command()
def check(bundle: BundlePath, board: BoardName = "local") -> None:
    """Replay the recorded inputs on a board and compare with what JAX computed."""
    loaded = _load(bundle)
    try:
        with console.status(f"checking on {board}"):
            result = loaded.check(board)
    except _FAILURES as error:
        _fail(error)
    console.print(str(result))
    if not result.passed:
        raise typer.Exit(code=1)


@app.command()
def benchmark(
    bundle: BundlePath, board: BoardName = "local", number: int = 10, repeat: int = 10
) -> None:
    """Time one call on a board."""
    loaded = _load(bundle)
    try:
        with console.status(f"timing on {board}"):
            timing = loaded.benchmark(board, number, repeat)
    except (*_FAILURES, ValueError) as error:
        _fail(error)
    console.print(
        f"{timing.board}: median {timing.median_ms:.4g} ms over {repeat} × {number} calls, "
        f"spread {timing.spread_ms:.2g} ms"
    )


@app.command()
def run(
    bundle: BundlePath,
    inputs: Annotated[Path, typer.Argument(help="An npz file, one array per input name.")],
    outputs: Annotated[Path, typer.Argument(help="The npz file to write, one array per result.")],
    board: BoardName = "local",
) -> None:
    """Call the function on arrays from a file."""
    loaded = _load(bundle)
    try:
        arrays = _read_inputs(inputs, loaded)
        with console.status(f"running on {board}"), loaded.on(board) as runner:
            results = runner.run_leaves(arrays)
    except _FAILURES as error:
        _fail(error)
    named = {spec.name: array for spec, array in zip(loaded.manifest.outputs, results, strict=True)}
    with new_file(outputs.absolute()) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **named)  # type: ignore[arg-type]
    console.print(f"{outputs}: {', '.join(named)}")


@app.command()
def prepare() -> None:
    """Download what the emulated board needs; once per version of TVM."""
    try:
        emulated.prepare(progress=console.print)
    except _FAILURES as error:
        _fail(error)


def _read_inputs(path: Path, bundle: Bundle) -> list[np.ndarray]:
    names = [spec.name for spec in bundle.manifest.inputs]
    try:
        with np.load(path, allow_pickle=False) as archive:
            if missing := [name for name in names if name not in archive]:
                raise SignatureError(f"{path} has no array {missing[0]}; it needs {names}")
            return [archive[name] for name in names]
    except SignatureError:
        raise
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise SignatureError(f"{path} is no readable npz file: {error}") from error


def _load(path: Path) -> Bundle:
    try:
        return Bundle.load(path)
    except BundleError as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    Console(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code=1)
