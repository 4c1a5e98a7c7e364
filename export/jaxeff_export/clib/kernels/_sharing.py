"""Parts of a kernel: loops whose turns threads may share, and what lies before and behind them.

Schedules mark loops whose turns don't depend on each other as parallel. Such a loop becomes a
function of its own with two more arguments, the turns it begins and ends with; what lies between
two of them is a function too, which one thread calls. All threads compute turns by the same code,
so the bits are the same for any number of threads.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import tvm_ffi
from tvm import tirx

_DECLARATIONS = (tirx.AllocBuffer, tirx.DeclBuffer)


@dataclasses.dataclass(frozen=True)
class Part:
    """A function of a kernel.

    Attributes:
        symbol: the name of the function in C.
        turns: iterations of its loop, which threads may share; None if one thread does all of it.
    """

    symbol: str
    turns: int | None = None


def declared(body: tirx.Stmt) -> list[tirx.Stmt]:
    """Lists what a kernel declares before it begins, with the arrays that all of its parts know."""
    return list(itertools.takewhile(lambda s: isinstance(s, _DECLARATIONS), _flat(body)))


def phases(body: tirx.Stmt) -> list[tirx.Stmt]:
    """Splits what follows into loops to share, and all that lies between two of them.

    A kernel that declares anything later, or has no loop to share at its top, is one phase.
    """
    rest = _flat(body)[len(declared(body)) :]
    # A variable that is bound in one function would be unknown in the next.
    later = any(isinstance(s, (*_DECLARATIONS, tirx.Bind)) for s in rest)
    if later or all(turns(s) is None for s in rest):
        return [_sequence(rest) if rest else tirx.Evaluate(0)]
    made: list[tirx.Stmt] = []
    for shared, group in itertools.groupby(rest, lambda s: turns(s) is not None):
        several = list(group)
        made.extend(several if shared else [_sequence(several)])
    return made


def used(phase: tirx.Stmt, declarations: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
    """Selects the declarations that a phase needs, in their order."""
    names = _names(phase)
    needed = []
    # Backwards, since a declaration may refer to those before it.
    for declaration in reversed(declarations):
        if declaration.buffer in names:
            needed.append(declaration)
            names |= _names(declaration)
    return needed[::-1]


def turns(statement: tirx.Stmt) -> int | None:
    """Counts the turns of a loop that threads may share; None if it is none."""
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.PARALLEL:
        return None
    first, extent = statement.min, statement.extent
    known = isinstance(first, tirx.IntImm) and isinstance(extent, tirx.IntImm)
    # Turns are counted from zero in 32 bits, as `NAME_run` divides them among threads.
    if not known or int(first) or str(statement.loop_var.ty.dtype) != "int32":
        return None
    return int(extent)


def some_turns(loop: tirx.For) -> tuple[tirx.For, list[tirx.Var]]:
    """Makes a loop over turns that are given, and the arguments that say which: begin and end."""
    begin, end = (tirx.Var(name, "int32") for name in ("begin", "end"))
    kind = tirx.ForKind.SERIAL
    return tirx.For(loop.loop_var, begin, end - begin, kind, loop.body), [begin, end]


def _names(tree: object) -> set[tirx.Var]:
    """Collects the variables and arrays of a statement."""
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(tree, (tirx.Var, found.add), order="post")
    return found


def _flat(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
