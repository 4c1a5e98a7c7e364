"""Kernels written statement by statement: loops, local vectors, loads and stores of vectors.

Schedules make loops of one kind; these kernels hold instructions that no schedule finds, so they
are written out. Buffers are taken as flat: four neighbouring bytes may cross the end of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.compiler.passes import CHAINS
from jaxeff_export.compiler.tir import TILE

Index = Any  # an integer, or an expression of one


def index(n: Index) -> Expr:
    """Returns an index as an expression of TVM."""
    return tirx.const(n, "int64") if isinstance(n, int) else n


def declare(shape: Sequence[Index], dtype: str, name: str, scope: str = "global") -> tirx.Buffer:
    """Declares a buffer, which is read and written as if it were flat."""
    return tirx.decl_buffer([index(n) for n in shape], dtype, name, scope=scope)


def _flat(buffer: tirx.Buffer, at: Index, lanes: int) -> list[Expr]:
    """Indexes a buffer by the distance from its start, whatever axes it has."""
    place = index(at) if lanes == 1 else tirx.Ramp(index(at), index(1), lanes)
    return [index(0)] * (len(buffer.shape) - 1) + [place]


def dtype_of(buffer: tirx.Buffer) -> str:
    """Names the dtype of a buffer's elements."""
    return str(buffer.dtype)


def load(buffer: tirx.Buffer, at: Index, lanes: int = 1) -> Expr:
    """Loads an element, or a vector of neighbours."""
    return tirx.BufferLoad(buffer, _flat(buffer, at, lanes))


def splat(x: Expr, lanes: int) -> Expr:
    """Makes a vector of one value."""
    return tirx.Broadcast(x, lanes) if lanes > 1 else x


def const(value: float, dtype: str, lanes: int = 1) -> Expr:
    """Makes a constant, or a vector of it."""
    return splat(tirx.const(value, dtype), lanes)


def cast(x: Expr, dtype: str, lanes: int) -> Expr:
    """Converts a value or a vector."""
    return tirx.Cast(dtype if lanes == 1 else f"{dtype}x{lanes}", x)


class StatementBuilder:
    """A statement being written."""

    def __init__(self) -> None:
        self._open: list[list[tirx.Stmt]] = [[]]

    def write(self, statement: tirx.Stmt) -> None:
        """Appends a statement."""
        self._open[-1].append(statement)

    def store(self, buffer: tirx.Buffer, at: Index, value: Expr, lanes: int = 1) -> None:
        """Writes an element, or a vector of neighbours."""
        self.write(tirx.BufferStore(buffer, value, _flat(buffer, at, lanes)))

    def local(
        self,
        size: int,
        dtype: str,
        name: str = "local",
        scope: str = "global",
        volatile: bool = False,
    ) -> Any:
        """Allocates a buffer here: in this scope, TVM puts it on the stack below 1024 bytes."""
        buffer = declare([max(size, 1)], dtype, name, scope)
        self.write(tirx.AllocBuffer(buffer, {"tirx.volatile": True} if volatile else None))
        return buffer

    def vector(self, value: Expr, lanes: int, dtype: str, name: str = "v") -> Vector:
        """Declares a vector that may change; LLVM keeps it in a register."""
        vector = Vector(self, self.local(lanes, dtype, name), lanes)
        vector.set(value)
        return vector

    def through_memory(self, value: Expr, dtype: str, name: str) -> Expr:
        """Writes a value to the stack and reads it again: LLVM can't tell how it was computed."""
        stored = Vector(self, self.local(1, dtype, name, volatile=True), 1)
        stored.set(value)
        return stored.get()

    def unknown(self, extent: int) -> Index:
        """Returns the extent of a loop that LLVM is to keep: it unrolls copies of whole images.

        Thousands of moves in a row are no faster, and compile in a second where a loop takes none.
        """
        return self.through_memory(tirx.const(extent, "int64"), "int64", "extent")

    @contextmanager
    def loop(self, extent: Index, parallel: bool = False) -> Iterator[Expr]:
        """Repeats what is written inside; a single turn needs no loop."""
        # No loop: constant indices fold, and LLVM has nothing to unroll.
        if isinstance(extent, int) and extent == 1:
            yield index(0)
            return
        i = tirx.Var("i", "int64")
        self._open.append([])
        yield i
        body = sequence(self._open.pop())
        kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
        self.write(tirx.For(i, index(0), index(extent), kind, body))

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[Iterator[None]]:
        """Writes a branch: statements before the only `next` run if the condition holds."""
        parts: list[tirx.Stmt] = []

        def turn() -> Iterator[None]:
            parts.append(sequence(self._open.pop()))
            self._open.append([])
            yield

        self._open.append([])
        yield turn()
        otherwise = sequence(self._open.pop())
        self.write(tirx.IfThenElse(condition, parts[0], otherwise))

    def finish(self) -> tirx.Stmt:
        """Returns the statement written so far."""
        return sequence(self._open[0])


class Vector:
    """Holds a vector that may change."""

    def __init__(self, code: StatementBuilder, buffer: tirx.Buffer, lanes: int):
        self._code, self.buffer, self.lanes = code, buffer, lanes

    def get(self) -> Expr:
        """Returns the value."""
        return load(self.buffer, 0, self.lanes)

    def set(self, value: Expr) -> None:
        """Assigns another value."""
        self._code.store(self.buffer, 0, value, self.lanes)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Joins statements one after the other."""
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def function(
    parameters: Sequence[tirx.Buffer],
    body: tirx.Stmt,
    products: int | None = 0,
    tile: Sequence[int] = (),
) -> tirx.PrimFunc:
    """Finishes a kernel.

    ``products`` is None if only the call tells their number; ``tile`` has the extents of the result
    that registers hold at once.
    """
    # Opaque to fusion and marked as scheduled: TVM takes the statements as they are written.
    attributes: dict[str, Any] = {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}
    if products is not None:
        attributes[CHAINS] = products
    if tile:
        attributes[TILE] = list(tile)
    return tirx.PrimFunc(list(parameters), body).with_attrs(attributes)
