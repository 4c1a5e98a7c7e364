"""Building blocks of imperative kernels: statements, local variables, loops.

Some operations are no pure function of the output's index: a scatter writes where its indices say,
a sort moves elements about. Their kernels are written with these few blocks, each of which is an
ordinary statement of TVM: nothing here depends on the target, and a kernel may itself become part
of a larger loop.

Scalars live in one-element local buffers, which LLVM turns into registers; TVM takes time
exponential in chains of named values (``Let`` and ``Bind`` alike).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, te, tirx
from tvm.tirx import Expr, Stmt

from .elementwise import immediate, is_immediate
from .emitter import Emitter
from .graph import Value
from .narrow_floats import held, load, store
from .scope import Scope, dtype_of
from .types import TensorType


def index(value: int) -> Expr:
    """Return an integer as a literal of the dtype of indices."""
    return tirx.const(value, "int64")


class Array:
    """A tensor that a kernel reads or writes, whose elements are as scopes hold scalars."""

    def __init__(self, shape: Sequence[int], dtype: str, buffer: tirx.Buffer):
        self.shape = tuple(shape)
        self.dtype = dtype
        self._buffer = buffer

    def __call__(self, *at: Expr) -> Expr:
        """Read an element."""
        return load(tirx.BufferLoad(self._buffer, list(at)))

    def set(self, value: Expr, *at: Expr) -> Stmt:
        """Write an element."""
        return tirx.BufferStore(self._buffer, store(value, self.dtype), list(at))


class Splat(Array):
    """A tensor whose elements are all one constant: it needs no memory."""

    def __init__(self, value: Value):
        self.shape = value.type.shape
        self.dtype = value.type.dtype
        self._element = immediate(value)

    def __call__(self, *at: Expr) -> Expr:
        """Read an element."""
        return self._element


class Variable:
    """A scalar of a block that may change: call it for its value."""

    def __init__(self, dtype: str, name: str):
        self.buffer = tirx.decl_buffer((index(1),), dtype, name, scope="local")

    def __call__(self) -> Expr:
        """Read the variable."""
        return tirx.BufferLoad(self.buffer, [index(0)])

    def set(self, value: Expr) -> Stmt:
        """Assign to the variable."""
        return tirx.BufferStore(self.buffer, value, [index(0)])


class Block(Scope):
    """A sequence of statements, and the scope of the scalars that they name."""

    def __init__(self) -> None:
        super().__init__()
        self._statements: list[Stmt] = []

    def let(self, expr: Expr) -> Expr:
        """Evaluate ``expr`` here, and name its value."""
        if isinstance(expr, tirx.Var | tirx.IntImm | tirx.FloatImm):
            return expr
        return self.variable(expr)()

    def variable(self, initial: Expr, name: str = "v") -> Variable:
        """Declare a variable of the dtype of its initial value."""
        variable = Variable(dtype_of(initial), name)
        self.add(tirx.AllocBuffer(variable.buffer), variable.set(initial))
        return variable

    def array(self, shape: Sequence[int], dtype: str, name: str) -> Array:
        """Declare temporary memory; narrow floats are held in it as in a scope."""
        dtype = held(dtype)
        buffer = tirx.decl_buffer([index(n) for n in shape], dtype, name)
        self.add(tirx.AllocBuffer(buffer))
        return Array(shape, dtype, buffer)

    def add(self, *statements: Stmt) -> None:
        """Append statements."""
        self._statements += statements

    def statement(self) -> Stmt:
        """The whole sequence as one statement."""
        if len(self._statements) == 1:
            return self._statements[0]
        return tirx.SeqStmt(self._statements)


def loop(extents: Sequence[int | Expr], body: Callable[[Block, list[Expr]], None]) -> Stmt:
    """Nested loops from zero to ``extents``; ``body`` fills a block for one index of them."""
    counters = [tirx.Var(f"i{d}", "int64") for d in range(len(extents))]
    inner = Block()
    body(inner, list(counters))
    statement = inner.statement()
    for counter, extent in reversed(list(zip(counters, extents, strict=True))):
        stop = index(extent) if isinstance(extent, int) else extent
        statement = tirx.For(counter, index(0), stop, tirx.ForKind.SERIAL, statement)
    return statement


def repeat(condition: Expr, body: Callable[[Block], None]) -> Stmt:
    """Repeat a block while a condition, which reads variables, holds."""
    inner = Block()
    body(inner)
    return tirx.While(condition, inner.statement())


def when(
    condition: Expr,
    then: Callable[[Block], None],
    otherwise: Callable[[Block], None] | None = None,
) -> Stmt:
    """Fill a block that runs if a condition holds, and perhaps one that runs if not."""
    yes, no = Block(), Block()
    then(yes)
    if otherwise is not None:
        otherwise(no)
    return tirx.IfThenElse(
        condition, yes.statement(), None if otherwise is None else no.statement()
    )


def every(conditions: Sequence[Expr]) -> Expr:
    """Tell whether all of the conditions hold."""
    return tirx.all(*conditions) if conditions else tirx.const(True, "bool")


def kernel(
    e: Emitter,
    name: str,
    inputs: Sequence[Value],
    results: Sequence[TensorType],
    body: Callable[[Block, list[Array], list[Array]], None],
) -> list[relax.Expr]:
    """Emit an imperative kernel.

    Args:
        e: where to.
        name: of the kernel.
        inputs: the values it reads; splat constants among them become literals.
        results: the types of the tensors it writes.
        body: fills a block, given the inputs and the results.

    Returns:
        The results.
    """
    tensors = [value for value in inputs if not is_immediate(value)]

    def extern(*arguments: te.Tensor) -> te.Tensor | list[te.Tensor]:
        def build(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> Stmt:
            buffers = iter(ins)
            reads = [
                Splat(v) if is_immediate(v) else Array(v.type.shape, v.type.dtype, next(buffers))
                for v in inputs
            ]
            writes = [Array(k.shape, k.dtype, out) for k, out in zip(results, outs, strict=True)]
            block = Block()
            body(block, reads, writes)
            return block.statement()

        return te.extern(
            [kind.shape for kind in results],
            list(arguments),
            build,
            name=name,
            dtype=[kind.dtype for kind in results],
            in_buffers=[_buffer(x.shape, x.dtype, f"x{i}") for i, x in enumerate(arguments)],
            out_buffers=[_buffer(k.shape, k.dtype, f"y{i}") for i, k in enumerate(results)],
        )

    emitted = e.te(extern, *tensors, name=name)
    if len(results) == 1:
        return [emitted]
    return [e.bb.emit(relax.TupleGetItem(emitted, i)) for i in range(len(results))]


def _buffer(shape: Sequence[int | Expr], dtype: str, name: str) -> tirx.Buffer:
    """Declare a buffer without an offset, which ``te.extern`` would make a parameter."""
    return tirx.decl_buffer([index(n) if isinstance(n, int) else n for n in shape], dtype, name)
