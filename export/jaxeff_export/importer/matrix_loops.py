"""Matrix algorithms as imperative kernels: loops that read and write views of tensors.

A kernel is written with :func:`kernel`, which hands a function the :class:`Code` to write into and
one :class:`View` per tensor::

    def body(code: Code, x: View, total: View) -> None:
        with code.loop(n) as i:
            total[()] = total[()] + x[i]

    te_tensor = kernel(body, [x], [((), "float32")], name="total")
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from tvm import s_tir, te, tirx
from tvm.tirx import Expr

from .narrow_floats import load, store
from .scalars import ScalarOp, apply_scalar
from .scope import Scope, dtype_of

Index: TypeAlias = "Expr | int"


class Code(Scope):
    """A statement being written, and the local variables it needs."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[list[tirx.Stmt]] = [[]]
        self._locals: list[tirx.Buffer] = []

    def write(self, statement: tirx.Stmt) -> None:
        """Append a statement."""
        self._open[-1].append(statement)

    def let(self, expr: Expr) -> Expr:
        """Evaluate ``expr`` here, and name its value."""
        if isinstance(expr, tirx.Var | tirx.IntImm | tirx.FloatImm):
            return expr
        variable = self.local(dtype_of(expr))
        variable[()] = expr
        return variable[()]

    @contextmanager
    def loop(self, stop: Index, start: Index = 0) -> Iterator[Expr]:
        """Repeat what is written inside for every integer from ``start`` up to ``stop``."""
        # Loops in TIR start at zero: TVM's own shifting of others forgets the loops inside.
        i = tirx.Var("i", "int64")
        with self._nested() as inside:
            yield i + _int64(start)
        if isinstance(stop, int) and isinstance(start, int):
            stop = max(stop, start)  # TVM refuses negative extents
        extent = _int64(stop) - _int64(start)
        self.write(tirx.For(i, _int64(0), extent, tirx.ForKind.SERIAL, inside()))

    @contextmanager
    def loops(self, shape: Sequence[Index]) -> Iterator[tuple[tirx.Var, ...]]:
        """Repeat what is written inside for every index of ``shape``."""
        index = tuple(tirx.Var(f"i{d}", "int64") for d in range(len(shape)))
        with self._nested() as inside:
            yield index
        body = inside()
        for i, extent in reversed(list(zip(index, shape, strict=True))):
            body = tirx.For(i, _int64(0), _int64(extent), tirx.ForKind.SERIAL, body)
        self.write(body)

    @contextmanager
    def loop_while(self, condition: Expr) -> Iterator[None]:
        """Repeat what is written inside while ``condition`` holds; it is read again each time."""
        with self._nested() as inside:
            yield
        self.write(tirx.While(condition, inside()))

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Do what is written inside only if ``condition`` holds."""
        with self._nested() as inside:
            yield
        self.write(tirx.IfThenElse(condition, inside(), None))

    def local(self, dtype: str, *shape: int) -> View:
        """Declare a local tensor; a scalar variable if no shape is given."""
        name = f"local{len(self._locals)}"
        buffer = _buffer([max(n, 1) for n in shape or (1,)], dtype, name)
        self._locals.append(buffer)
        return View(self, buffer, lambda *index: index if shape else (0,))

    def copy(self, source: View, target: View, shape: Sequence[Index]) -> None:
        """Copy all elements of ``source``."""
        with self.loops(shape) as index:
            target[index] = source[index]

    def exchange(self, x: View, y: View) -> None:
        """Exchange two scalars."""
        held = self.local(x.dtype)
        held[()] = x[()]
        x[()] = y[()]
        y[()] = held[()]

    def swap(self, x: View, y: View, length: Index) -> None:
        """Exchange two vectors."""
        with self.loop(length) as i:
            self.exchange(x.at(i), y.at(i))

    def finish(self) -> tirx.Stmt:
        """Return the statement written so far."""
        body = _sequence(self._open[0])
        if not self._locals:
            return body
        block = s_tir.SBlock([], [], [], "local", body, alloc_buffers=self._locals)
        return s_tir.SBlockRealize([], True, block)

    @contextmanager
    def _nested(self) -> Iterator[Callable[[], tirx.Stmt]]:
        statements: list[tirx.Stmt] = []
        self._open.append(statements)
        yield lambda: _sequence(statements)
        self._open.pop()


class View:
    """A tensor as a kernel sees it: ``view[i, j]`` reads, ``view[i, j] = x`` writes."""

    def __init__(self, code: Code, buffer: tirx.Buffer, place: Callable[..., Any] | None = None):
        self.dtype = str(buffer.dtype)
        self._code = code
        self._buffer = buffer
        self._place = place or (lambda *index: index)

    def __getitem__(self, index: Any) -> Expr:
        return tirx.BufferLoad(self._buffer, self._at(index))

    def __setitem__(self, index: Any, value: Expr) -> None:
        self._code.write(tirx.BufferStore(self._buffer, value, self._at(index)))

    def map(self, place: Callable[..., Any]) -> View:
        """View this tensor through ``place``, which maps an index of the result to one of this."""
        inner = self._place
        return View(self._code, self._buffer, lambda *index: inner(*place(*index)))

    def at(self, *leading: Index) -> View:
        """View the part of this tensor at a leading index."""
        return self.map(lambda *index: (*leading, *index))

    def shifted(self, *offsets: Index) -> View:
        """View this tensor from a later first element."""
        return self.map(lambda *index: tuple(i + k for i, k in zip(index, offsets, strict=True)))

    @property
    def T(self) -> View:
        """View a matrix transposed."""
        return self.map(lambda i, j: (j, i))

    def _at(self, index: Any) -> list[Expr]:
        return [_int64(i) for i in self._place(*(index if isinstance(index, tuple) else (index,)))]


def kernel(
    body: Callable[..., None],
    operands: Sequence[te.Tensor],
    results: Sequence[tuple[Sequence[int], str]],
    name: str,
) -> te.Tensor | list[te.Tensor]:
    """Return tensors that ``body(code, *views of the operands, *views of the results)`` writes."""

    def statement(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        code = Code()
        body(code, *(View(code, buffer) for buffer in itertools.chain(ins, outs)))
        return code.finish()

    return te.extern(
        [tuple(shape) for shape, _ in results],
        list(operands),
        statement,
        name=name,
        dtype=[dtype for _, dtype in results],
        in_buffers=[_buffer(x.shape, x.dtype, f"x{i}") for i, x in enumerate(operands)],
        out_buffers=[_buffer(*result, f"y{i}") for i, result in enumerate(results)],
    )


def converted(tensor: te.Tensor, dtype: str) -> te.Tensor:
    """Return a tensor in another dtype, rounding as StableHLO's convert does."""
    if str(tensor.dtype) == dtype:
        return tensor

    def element(*index: Expr) -> Expr:
        scope = Scope()
        target = ScalarOp(dtype, None)
        value = apply_scalar("stablehlo.convert", scope, target, load(tensor(*index)))
        return scope.wrap(store(value, dtype))

    return te.compute(tensor.shape, element, name="convert")


def _sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _buffer(shape: Sequence[Index], dtype: str, name: str) -> tirx.Buffer:
    return tirx.decl_buffer([_int64(n) for n in shape], dtype, name)


def _int64(index: Index) -> Expr:
    return tirx.const(index, "int64") if isinstance(index, int) else index
