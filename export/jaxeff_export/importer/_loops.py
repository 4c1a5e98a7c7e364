"""Imperative kernels: loops and branches that read and write views of tensors.

Some operations are no pure function of the output's index: a scatter writes where its indices say,
a sort moves elements, a factorization overwrites a matrix. Their kernels are written by a
function that is handed the :class:`CodeBuilder` to write into and one :class:`View` per tensor:

```python
from tvm import te

from jaxeff_export.importer._loops import CodeBuilder, View, kernel

def body(code: CodeBuilder, x: View, total: View) -> None:
    total[()] = 0.0
    with code.loop(8) as i:
        total[()] = total[()] + x[i]

total = kernel(body, [te.placeholder((8,), "float32")], [((), "float32")], name="total")
```

Kernels are ordinary statements of TVM: nothing depends on the target, and a kernel may become part
of a larger loop. Scalars live in one-element local buffers, which LLVM turns into registers; TVM
takes time exponential in chains of named values (``Let`` and ``Bind`` alike).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from tvm import te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer._scalar_rules import Scope, dtype_of, load, scalar_dtype, store

Index: TypeAlias = "Expr | int"


class View:
    """A tensor as a kernel sees it: ``view[i, j]`` reads, ``view[i, j] = x`` writes.

    Scalars are as scopes hold them.
    """

    def __init__(
        self,
        write: Callable[[tirx.Stmt], None],
        buffer: tirx.Buffer,
        place: Callable[..., Any] | None = None,
    ):
        self.dtype = str(buffer.dtype)
        self._write = write
        self._buffer = buffer
        self._place = place or (lambda *index: index)

    def __getitem__(self, index: Any) -> Expr:
        return load(self.get(index if isinstance(index, tuple) else (index,)))

    def __setitem__(self, index: Any, value: Expr) -> None:
        self.put(store(value, self.dtype), index if isinstance(index, tuple) else (index,))

    def get(self, index: Sequence[Index]) -> Expr:
        """Reads an element as the tensor holds it."""
        return tirx.BufferLoad(self._buffer, self._at(index))

    def put(self, element: Expr, index: Sequence[Index]) -> None:
        """Writes an element as the tensor holds it."""
        self._write(tirx.BufferStore(self._buffer, element, self._at(index)))

    def map(self, place: Callable[..., Any]) -> View:
        """Views this tensor through ``place``, which maps an index of the result to one of this."""
        inner = self._place
        return View(self._write, self._buffer, lambda *index: inner(*place(*index)))

    def at(self, *leading: Index) -> View:
        """Views the part of this tensor at a leading index."""
        return self.map(lambda *index: (*leading, *index))

    def shifted(self, *offsets: Index) -> View:
        """Views this tensor from a later first element."""
        return self.map(lambda *index: tuple(i + k for i, k in zip(index, offsets, strict=True)))

    @property
    def T(self) -> View:
        """Views a matrix transposed."""
        return self.map(lambda i, j: (j, i))

    def _at(self, index: Sequence[Index]) -> list[Expr]:
        return [int64(i) for i in self._place(*index)]


class Splat(View):
    """A tensor whose elements are all one constant, which needs no memory."""

    def __init__(self, element: Expr):
        self.dtype = dtype_of(element)
        self._element = element

    def get(self, index: Sequence[Index]) -> Expr:
        """Reads an element."""
        return self._element

    def map(self, place: Callable[..., Any]) -> View:
        """Views this tensor in any way: it is the same."""
        return self


def int64(index: Index) -> Expr:
    """Returns an integer as an expression of the dtype of indices."""
    return tirx.const(index, "int64") if isinstance(index, int) else index


def declare(shape: Sequence[Index], dtype: str, name: str, scope: str = "global") -> tirx.Buffer:
    """Declares a buffer without an offset, which ``te.extern`` would make a parameter."""
    return tirx.decl_buffer([int64(n) for n in shape], dtype, name, scope=scope)


class CodeBuilder(Scope):
    """Writes a statement; also the scope of the scalars that it names."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[list[tirx.Stmt]] = [[]]

    def write(self, statement: tirx.Stmt) -> None:
        """Appends a statement."""
        self._open[-1].append(statement)

    def let(self, expr: Expr) -> Expr:
        """Evaluates ``expr`` at this point, and names its value."""
        if isinstance(expr, tirx.Var | tirx.IntImm | tirx.FloatImm):
            return expr
        return self.variable(expr)[()]

    def variable(self, initial: Expr) -> View:
        """Declares a scalar that may change, of the dtype of its initial value."""
        variable = self.local(dtype_of(initial))
        variable[()] = initial
        return variable

    def local(self, dtype: str, *shape: int) -> View:
        """Declares a local tensor, which holds elements as scopes do; a scalar without a shape."""
        scope = "global" if shape else "local"
        buffer = declare([max(n, 1) for n in shape or (1,)], scalar_dtype(dtype), "local", scope)
        self.write(tirx.AllocBuffer(buffer))
        return View(self.write, buffer, None if shape else lambda *index: (*index, 0))

    @contextmanager
    def loop(self, stop: Index, start: Index = 0) -> Iterator[Expr]:
        """Repeats what is written inside for every integer from ``start`` up to ``stop``."""
        # Loops in TIR start at zero: TVM's own shifting of others forgets the loops inside.
        i = tirx.Var("i", "int64")
        with self._nested() as inside:
            yield i + int64(start)
        if isinstance(stop, int) and isinstance(start, int):
            stop = max(stop, start)  # TVM refuses negative extents
        self.write(_for(i, int64(stop) - int64(start), inside()))

    @contextmanager
    def loops(self, shape: Sequence[Index]) -> Iterator[tuple[tirx.Var, ...]]:
        """Repeats what is written inside for every index of ``shape``."""
        # Bodies are written once with all indices; loops are then put around from the inside out.
        index = tuple(tirx.Var(f"i{d}", "int64") for d in range(len(shape)))
        with self._nested() as inside:
            yield index
        body = inside()
        for i, extent in reversed(list(zip(index, shape, strict=True))):
            body = _for(i, int64(extent), body)
        self.write(body)

    @contextmanager
    def loop_while(self, condition: Expr) -> Iterator[None]:
        """Repeats what is written inside while ``condition`` holds; it is read again each time."""
        with self._nested() as inside:
            yield
        self.write(tirx.While(condition, inside()))

    @contextmanager
    def when(self, *conditions: Expr) -> Iterator[None]:
        """Guards the statements written inside by conditions, all of which must hold."""
        with self._nested() as inside:
            yield
        self.write(
            tirx.IfThenElse(tirx.all(*conditions), inside(), None) if conditions else inside()
        )

    def copy(self, source: View, target: View, shape: Sequence[Index]) -> None:
        """Copies all elements of ``source``."""
        with self.loops(shape) as index:
            if source.dtype == target.dtype:
                target.put(source.get(index), index)
            else:  # one is a local that holds narrow floats
                target[index] = source[index]

    def exchange(self, x: View, y: View) -> None:
        """Exchanges two scalars."""
        # Reads are expressions that run where they stand, so the first value is copied before.
        first = self.let(x[()])
        x[()] = y[()]
        y[()] = first

    def swap(self, x: View, y: View, length: Index) -> None:
        """Exchanges two vectors."""
        with self.loop(length) as i:
            self.exchange(x.at(i), y.at(i))

    def finish(self) -> tirx.Stmt:
        """Returns the statement written so far."""
        return _sequence(self._open[0])

    @contextmanager
    def _nested(self) -> Iterator[Callable[[], tirx.Stmt]]:
        statements: list[tirx.Stmt] = []
        self._open.append(statements)
        yield lambda: _sequence(statements)
        self._open.pop()


def kernel(
    body: Callable[..., None],
    operands: Sequence[te.Tensor | Expr],
    results: Sequence[tuple[Sequence[int], str]],
    name: str,
) -> te.Tensor | list[te.Tensor]:
    """Emits an imperative kernel in TE.

    `body` is called as ``body(code, *views of the operands, *views of the results)``; a scalar
    operand stands for a tensor of such elements; `results` are shapes and dtypes.
    """
    tensors = [x for x in operands if isinstance(x, te.Tensor)]

    def statement(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        code = CodeBuilder()
        buffers = itertools.chain(ins, outs)
        reads = [
            View(code.write, next(buffers)) if isinstance(x, te.Tensor) else Splat(x)
            for x in operands
        ]
        body(code, *reads, *(View(code.write, buffer) for buffer in buffers))
        return code.finish()

    return te.extern(
        [tuple(shape) for shape, _ in results],
        tensors,
        statement,
        name=name,
        dtype=[dtype for _, dtype in results],
        in_buffers=[declare(x.shape, x.dtype, f"x{i}") for i, x in enumerate(tensors)],
        out_buffers=[declare(*result, f"y{i}") for i, result in enumerate(results)],
    )


def _for(i: tirx.Var, extent: Expr, body: tirx.Stmt) -> tirx.Stmt:
    return tirx.For(i, int64(0), extent, tirx.ForKind.SERIAL, body)


def _sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
