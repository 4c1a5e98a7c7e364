"""The command line: from an exported function to a bundle, and bundles on boards.

    jaxeff-export compile lenet.zip lenet --arrays posterior.npz --target cortex-a72
    jaxeff-export check lenet --board emulated
    jaxeff-export benchmark lenet --board rpc://pi-a:9090 --board rpc://pi-b:9090

Every command is a function in a file of this folder and says in its docstring, which is its
``--help``, what it does. What it needs it imports when it runs, so that help is there at once.
"""

from importlib import metadata
from typing import Annotated

import typer

from jaxeff_export.cli._compiling import c, compile_bundle, inspect, spotter
from jaxeff_export.cli._running import (
    benchmark,
    boards,
    check,
    generate,
    hear,
    model,
    prepare,
    profile,
    report,
    run,
    targets,
)
from jaxeff_export.cli._searching import search, tune

app = typer.Typer(
    help=(
        "Compile exported functions for this machine or an ARM board, and run, check and time "
        "them there.\n\n"
        "A **bundle** is a folder with the compiled library, its parameters, and inputs with the "
        "results JAX computed from them. A **board** is where it runs:\n\n"
        "* `local`: this process\n\n"
        "* `rpc://host:port`: a machine running `python -m tvm.exec.rpc_server`\n\n"
        "* `rpc://tracker:port/key`: any free machine of a `python -m tvm.exec.rpc_tracker`\n\n"
        "* `emulated`, `emulated:cortex-m7`: a core in software, for correctness only\n\n"
        "* `serial:/dev/ttyACM0`: a microcontroller with `NAME_serial.c` of `c` in its firmware\n\n"
        "RPC boards take `?session_timeout=60&connect_timeout=5`, in seconds.\n\n"
        "`--install-completion` makes the shell complete commands and options."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"jaxeff {metadata.version('jaxeff')}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


app.command(name="compile")(compile_bundle)
app.command()(c)
app.command()(inspect)
app.command()(check)
app.command()(run)
app.command()(generate)
app.command()(benchmark)
app.command()(profile)
app.command()(model)
app.command()(report)
app.command()(tune)
app.command()(search)
app.command()(spotter)
app.command()(hear)
app.command()(targets)
app.command()(boards)
app.command()(prepare)
