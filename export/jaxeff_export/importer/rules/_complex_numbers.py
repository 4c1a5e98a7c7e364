"""Complex tensors as pairs of real ones: TVM has no complex types.

While the graph is built, an operation with a complex operand or result is replaced by real
operations on the parts. Only arguments and results of the module itself have to be real.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxlib.mlir import ir

from jaxeff_export.importer import _graph as graph

_COMPLEX = re.compile(r"complex<(f32|f64)>")


class ComplexRewriter:
    """Writes real operations in place of one complex operation."""

    def __init__(self, op: ir.Operation, add_node: Callable[..., Any], modules: list[ir.Module]):
        self.op = op
        self._add_node, self._modules = add_node, modules

    def __call__(
        self,
        name: str,
        *operands: graph.HloValue,
        kind: graph.TensorType | None = None,
        op: ir.Operation | None = None,
    ) -> graph.HloValue:
        """Adds an operation; its result is of the first operand's type unless ``kind`` says."""
        kind = kind or operands[0].type
        node = self._add_node(f"stablehlo.{name}", op or self.op, operands, [kind])
        result: graph.HloValue = node.result
        return result

    def same(self, number: float, like: graph.HloValue) -> graph.HloValue:
        """Makes a constant of the type of ``like``."""
        return graph.splat(number, like.type)

    def equal(self, x: graph.HloValue, y: graph.HloValue) -> graph.HloValue:
        """Compares two real tensors."""
        kind = graph.TensorType(x.type.shape, "bool")
        result: graph.HloValue = self._add_node("importer.equal", self.op, (x, y), [kind]).result
        return result

    def template(self) -> ir.Operation:
        """Returns the same operation on real tensors, for its attributes and body."""
        text = self.op.get_asm(print_generic_op_form=True, use_local_scope=True)
        # The bindings cannot change an operation's types, but its text can be parsed with others.
        _, text = text.split("(", 1)[1].split(")", 1)  # what follows the operands
        names = [f"%x{i}" for i in range(len(self.op.operands))]
        arguments = ", ".join(
            f"{n}: {o.type}" for n, o in zip(names, self.op.operands, strict=True)
        )
        source = f"""func.func @main({arguments}) {{
          "{self.op.name}"({", ".join(names)}){text}
          return
        }}"""
        module = ir.Module.parse(_COMPLEX.sub(r"\1", source))
        self._modules.append(module)  # which owns the operation
        function = module.body.operations[0].operation
        operation: ir.Operation = function.regions[0].blocks[0].operations[0].operation
        return operation

    def fft(
        self, operands: Sequence[graph.HloValue], kinds: Sequence[graph.TensorType]
    ) -> Sequence[graph.HloValue]:
        """Adds a Fourier transform."""
        node = self._add_node("importer.fft", self.op, tuple(operands), list(kinds))
        results: Sequence[graph.HloValue] = node.results
        return results


def rewrite(
    op: ir.Operation,
    operands: Sequence[graph.HloValue],
    add_node: Callable[..., Any],
    modules: list[ir.Module],
) -> list[graph.HloValue]:
    """Returns the results of an operation on complex tensors.

    Args:
        op: the operation.
        operands: the operands, the complex ones as pairs.
        add_node: adds a node of the graph for its name, operation, operands and result types.
        modules: takes the modules that own the operations made here.

    Raises:
        Unsupported: there is no rule for it.
    """
    parts = ComplexRewriter(op, add_node, modules)
    name = op.name.removeprefix("stablehlo.")
    pairs = [
        graph.Complex.of(value, value)
        if graph.is_complex(o.type) and not isinstance(value, graph.Complex)
        else value
        for value, o in zip(operands, op.operands, strict=True)
    ]  # what could not be imported has no parts, and was reported
    if name in _MOVES:
        return [_by_parts(parts, name, pairs)]
    if name not in _RULES:
        raise graph.Unsupported("there is no lowering of it for complex numbers")
    return [_RULES[name](parts, *pairs)]


def _by_parts(
    p: ComplexRewriter,
    name: str,
    operands: Sequence[graph.HloValue],
    op: ir.Operation | None = None,
) -> graph.Complex:
    """Applies an operation to the real parts, and to the imaginary ones."""
    kind = graph.part_type(p.op.results[0].type)
    real, imaginary = (
        p(
            name,
            *(o.parts[k] if isinstance(o, graph.Complex) else o for o in operands),
            kind=kind,
            op=op,
        )
        for k in range(2)
    )
    return graph.Complex.of(real, imaginary)


_MOVES = (
    "broadcast_in_dim", "reshape", "slice", "transpose", "concatenate", "reverse", "pad", "gather",
    "dynamic_slice", "dynamic_update_slice", "select",
)  # fmt: skip
_RULES: dict[str, Callable[..., graph.HloValue]] = {}


_Rule = TypeVar("_Rule", bound=Callable[..., graph.HloValue])


def _complex_rule(name: str) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES[name] = function
        return function

    return register


@_complex_rule("complex")
def _complex(p: ComplexRewriter, real: graph.HloValue, imaginary: graph.HloValue) -> graph.HloValue:
    return graph.Complex.of(real, imaginary)


@_complex_rule("real")
def _real(p: ComplexRewriter, z: graph.Complex) -> graph.HloValue:
    return z.real


@_complex_rule("imag")
def _imag(p: ComplexRewriter, z: graph.Complex) -> graph.HloValue:
    return z.imaginary


@_complex_rule("convert")
def _convert(p: ComplexRewriter, z: graph.HloValue) -> graph.HloValue:
    kind = graph.part_type(p.op.results[0].type)
    real = p("convert", z.real if isinstance(z, graph.Complex) else z, kind=kind)
    if not graph.is_complex(p.op.results[0].type):
        return real
    if isinstance(z, graph.Complex):
        return graph.Complex.of(real, p("convert", z.imaginary, kind=kind))
    return graph.Complex.of(real, p.same(0.0, real))


@_complex_rule("add")
def _add(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.Complex:
    return graph.Complex.of(p("add", x.real, y.real), p("add", x.imaginary, y.imaginary))


@_complex_rule("subtract")
def _subtract(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.Complex:
    return graph.Complex.of(p("subtract", x.real, y.real), p("subtract", x.imaginary, y.imaginary))


@_complex_rule("negate")
def _negate(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    return graph.Complex.of(p("negate", z.real), p("negate", z.imaginary))


def _bilinear(
    p: ComplexRewriter, name: str, x: graph.Complex, y: graph.Complex, kind: graph.TensorType
) -> graph.Complex:
    def product(a: graph.HloValue, b: graph.HloValue) -> graph.HloValue:
        return p(name, a, b, kind=kind)

    return graph.Complex.of(
        p("subtract", product(x.real, y.real), product(x.imaginary, y.imaginary)),
        p("add", product(x.real, y.imaginary), product(x.imaginary, y.real)),
    )


@_complex_rule("multiply")
def _multiply(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.Complex:
    return _bilinear(p, "multiply", x, y, x.type)


@_complex_rule("dot_general")
def _dot_general(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.Complex:
    return _bilinear(p, "dot_general", x, y, graph.part_type(p.op.results[0].type))


@_complex_rule("convolution")
def _convolution(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.Complex:
    return _bilinear(p, "convolution", x, y, graph.part_type(p.op.results[0].type))


@_complex_rule("divide")
def _divide(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.Complex:
    # x / y = x * conj(y) / |y|^2 with y scaled to at most sqrt(2), whose square cannot overflow.
    largest = p("maximum", p("abs", y.real), p("abs", y.imaginary))
    scaled = graph.Complex.of(p("divide", y.real, largest), p("divide", y.imaginary, largest))
    squares = (p("multiply", part, part) for part in (scaled.real, scaled.imaginary))
    size = p("multiply", p("add", *squares), largest)
    above = _multiply(p, x, graph.Complex.of(scaled.real, p("negate", scaled.imaginary)))
    return graph.Complex.of(p("divide", above.real, size), p("divide", above.imaginary, size))


@_complex_rule("abs")
def _abs(p: ComplexRewriter, z: graph.Complex) -> graph.HloValue:
    """Computes the length of (real, imaginary), without overflow on the way."""
    a, b = p("abs", z.real), p("abs", z.imaginary)
    # max * sqrt(1 + (min / max)^2): the square of a large part itself would overflow.
    large, small = p("maximum", a, b), p("minimum", a, b)
    one = p.same(1.0, large)
    same = p.equal(large, small)  # both zero, or infinite
    ratio = p("select", same, one, p("divide", small, large), kind=large.type)
    return p("multiply", large, p("sqrt", p("add", one, p("multiply", ratio, ratio))))


@_complex_rule("sign")
def _sign(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    size = _abs(p, z)
    is_zero = p.equal(size, p.same(0.0, size))
    divisor = p("select", is_zero, p.same(1.0, size), size, kind=size.type)
    return graph.Complex.of(p("divide", z.real, divisor), p("divide", z.imaginary, divisor))


@_complex_rule("exponential")
def _exponential(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    size = p("exponential", z.real)
    cosine, sine = p("cosine", z.imaginary), p("sine", z.imaginary)
    return graph.Complex.of(p("multiply", size, cosine), p("multiply", size, sine))


@_complex_rule("log")
def _log(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    return graph.Complex.of(p("log", _abs(p, z)), p("atan2", z.imaginary, z.real))


@_complex_rule("power")
def _power(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.Complex:
    return _exponential(p, _multiply(p, y, _log(p, x)))


@_complex_rule("sine")
def _sine(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    rising, falling = _hyperbolic(p, z.imaginary)
    real = p("multiply", p("sine", z.real), rising)
    return graph.Complex.of(real, p("multiply", p("cosine", z.real), falling))


@_complex_rule("cosine")
def _cosine(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    rising, falling = _hyperbolic(p, z.imaginary)
    real = p("multiply", p("cosine", z.real), rising)
    return graph.Complex.of(real, p("negate", p("multiply", p("sine", z.real), falling)))


def _hyperbolic(p: ComplexRewriter, x: graph.HloValue) -> tuple[graph.HloValue, graph.HloValue]:
    """Computes the hyperbolic cosine and sine."""
    # From exp(x) - 1, whose digits near zero survive in sinh; exp(x) - exp(-x) would cancel.
    up, down = (p("exponential_minus_one", y) for y in (x, p("negate", x)))
    half, one = p.same(0.5, x), p.same(1.0, x)
    return (
        p("add", p("multiply", half, p("add", up, down)), one),
        p("multiply", half, p("subtract", up, down)),
    )


@_complex_rule("rsqrt")
def _rsqrt(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    root = _sqrt(p, z)
    one = p.same(1.0, z.real)
    return _divide(p, graph.Complex.of(one, p.same(0.0, one)), root)


@_complex_rule("sqrt")
def _sqrt(p: ComplexRewriter, z: graph.Complex) -> graph.Complex:
    """Computes the square root whose real part is not negative."""
    half, zero = p.same(0.5, z.real), p.same(0.0, z.real)
    # (a + ib)^2 = z with a = sqrt((|z| + |Re z|) / 2) and b = Im z / (2 a). The sum has terms of
    # one sign; |z| - |Re z| would cancel.
    far = p("add", _abs(p, z), p("abs", z.real))
    main = p("sqrt", p("multiply", half, far))
    other = p("divide", p("multiply", half, z.imaginary), main)
    other = p("select", p.equal(main, zero), z.imaginary, other, kind=main.type)
    right = p.equal(p("abs", z.real), z.real)
    lower = p.equal(p("abs", z.imaginary), p("negate", z.imaginary))
    turned = p("select", lower, p("negate", main), main, kind=main.type)
    # On the cut, Im z = 0 of either sign, XLA gives +i sqrt(|z|).
    turned = p("select", p.equal(z.imaginary, zero), main, turned, kind=main.type)
    return graph.Complex.of(
        p("select", right, main, p("abs", other), kind=main.type),
        p("select", right, other, turned, kind=main.type),
    )


@_complex_rule("compare")
def _compare(p: ComplexRewriter, x: graph.Complex, y: graph.Complex) -> graph.HloValue:
    kind = graph.tensor_type(p.op.results[0].type)
    pairs = ((x.real, y.real), (x.imaginary, y.imaginary))
    both = [p("compare", *pair, kind=kind) for pair in pairs]
    return p("and" if graph.direction(p.op) == "EQ" else "or", *both)


def _accumulate(p: ComplexRewriter, *operands: graph.HloValue) -> graph.Complex:
    """Sums or replaces the two parts separately: a sum of complex numbers never mixes them."""
    body = {view.operation.name for view in p.op.regions[0].blocks[0].operations}
    if not body <= {"stablehlo.add", "stablehlo.return"}:
        raise graph.Unsupported("complex numbers can only be summed or replaced")
    name, op = p.op.name.removeprefix("stablehlo."), p.template()
    return _by_parts(p, name, operands, op)


for _name in ("reduce", "reduce_window", "scatter"):
    _complex_rule(_name)(_accumulate)


@_complex_rule("fft")
def _fft(p: ComplexRewriter, x: graph.HloValue) -> graph.HloValue:
    result = p.op.results[0].type
    kind = graph.part_type(result)
    operands = [x.real, x.imaginary] if isinstance(x, graph.Complex) else [x]
    if not graph.is_complex(result):
        return p.fft(operands, [kind])[0]
    return graph.Complex.of(*p.fft(operands, [kind, kind]))
