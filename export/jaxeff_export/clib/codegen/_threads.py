"""The C of a library whose loops several threads share.

Threads live in a struct of the caller's, made by ``NAME_start`` and ended by ``NAME_stop``, for a
thread that is made for a call costs more than many a kernel. A call that is given none, or some
that another call has at the moment, runs by itself, with the same bits. Threads wait by a mutex
and a condition, never busily, so that a loop has to be worth the microseconds of waking them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxeff_export.clib.codegen._rendering import render

if TYPE_CHECKING:
    from jaxeff_export.clib.codegen._sources import Library

FIELD = "threads"  # of the inputs


def declarations(library: Library) -> list[str]:
    """Writes the struct and its functions, for the header."""
    return render(
        "threads.h", name=library.name, NAME=library.upper, threads=library.threads
    ).splitlines()


def source(library: Library, steps: list[str]) -> list[str]:
    """Writes the functions, for what calls the kernels.

    Args:
        library: library that the threads belong to.
        steps: the calls of the loops that are shared, in order, of `inputs`, `outputs`, `at`,
            `task` and `tasks`.
    """
    n, u = library.name, library.upper
    # The name by which embedded constants are known: the calls are the same text.
    parameters = []
    if not library.embedded and library.parameters.blob:
        parameters = [f"    const unsigned char *const {n}_parameters = inputs->parameters;"]
        # No loop may be worth a thread, and then nothing here reads them.
        parameters += [f"    (void){n}_parameters;"]
    cases = "\n".join(
        f"    case {i}:\n        {call}\n        break;" for i, call in enumerate(steps)
    )
    text = render("threads.c", name=n, NAME=u, parameters=parameters, cases=cases)
    return text.splitlines()
