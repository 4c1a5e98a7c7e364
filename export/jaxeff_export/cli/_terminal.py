"""Output of commands: tables and progress on standard output, a line per failure on the other."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

BundlePath = Annotated[Path, typer.Argument(help="The bundle's folder.")]
BoardName = Annotated[
    str,
    typer.Option(
        help="local, emulated[:core], serial:/dev/ttyACM0, rpc://host:port or "
        "rpc://tracker:port/key."
    ),
]
BoardNames = Annotated[
    list[str],
    typer.Option(
        "--board",
        help="local, emulated[:core], serial:/dev/ttyACM0, rpc://host:port or "
        "rpc://tracker:port/key; may be repeated for several boards at once.",
    ),
]

FlashCommand = Annotated[
    str | None,
    typer.Option(
        help="Command that flashes a serial board first, such as "
        "\"openocd -f board.cfg -c 'program {image} verify reset exit'\"; {port} is its port."
    ),
]
FlashImage = Annotated[Path | None, typer.Option(help="The file that becomes {image} there.")]


def flash(boards: Sequence[str], command: str | None, image: Path | None) -> None:
    """Flashes the serial boards among some."""
    if command is None and image is None:
        return
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.boards import BoardError, flash_firmware

    serial = [board for board in boards if board.startswith("serial:")]
    if command is None or not serial:
        raise BoardError(
            "an --image needs a --flash command"
            if command is None
            else "--flash is for boards on a serial line: --board serial:/dev/ttyACM0"
        )
    for board in serial:
        with console.status(f"flashing {board}"):
            flash_firmware(command, image=image, board=board)


Seed = Annotated[
    int, typer.Option(min=-(2**63), max=2**63 - 1, help="What is drawn follows from it.")
]

# What goes into a file or a pipe is not folded at the width of some terminal.
console = Console(width=None if sys.stdout.isatty() else 160)


def table(*headings: str, title: str | None = None) -> Table:
    """Makes an empty table; columns whose heading ends in a unit or a count hold numbers."""
    empty = Table(title=title, title_justify="left")
    for heading in headings:
        numeric = heading in ("calls", "cycles", "share") or heading.endswith(" ms")
        empty.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    return empty


def complain(message: object) -> None:
    """Prints one line on standard error."""
    # Messages may quote several lines of a tool: a failure is one line, easily found by others.
    line = " ".join(str(message).split())
    Console(stderr=True).print(f"error: {line}", style="red", markup=False, soft_wrap=True)


@contextlib.contextmanager
def failures_in_one_line() -> Iterator[None]:
    """Turns this package's errors, and the file system's, into a line and exit status 1.

    Anything else is a defect and keeps its traceback.
    """
    try:
        yield
    except Exception as error:
        # By name: a list of the classes would import every package for each command.
        ours = type(error).__module__.partition(".")[0] == "jaxeff_export"
        if isinstance(error, BrokenPipeError):
            raise  # who reads the output has enough of it (`head`): typer ends without a word
        if not ours and not isinstance(error, OSError):
            raise
        complain(error)
        raise typer.Exit(code=1) from error


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Yields what to call with each step's name; a finished step is printed with its duration."""
    running: list[tuple[str, float]] = []

    def finish() -> None:
        if running:
            name, started = running.pop()
            console.print(f"{name}: {time.perf_counter() - started:.1f} s", highlight=False)

    with console.status("starting") as status:

        def step(name: str) -> None:
            finish()
            running.append((name, time.perf_counter()))
            status.update(name)

        yield step
        finish()
