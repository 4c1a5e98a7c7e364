"""Complex tensors as pairs of real ones: TVM has no complex types.

While the graph is built, an operation with a complex operand or result is replaced by real
operations on the parts. Only arguments and results of the module itself have to be real.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxlib.mlir import ir

from .attributes import direction, integers
from .errors import Unsupported
from .types import TensorType, printed_elements, tensor_type

if TYPE_CHECKING:
    from .graph import Value

_PARTS = {"complex<f32>": ("f32", "float32"), "complex<f64>": ("f64", "float64")}


@dataclasses.dataclass(eq=False, slots=True)
class Complex:
    """The two parts of a complex tensor."""

    real: Value
    imaginary: Value
    constant: None = None

    @property
    def type(self) -> TensorType:
        """The type of each part."""
        return self.real.type


Operand: TypeAlias = "Value | Complex"


def is_complex(mlir_type: ir.Type) -> bool:
    """Tell whether a type is a tensor of complex numbers."""
    return isinstance(mlir_type, ir.RankedTensorType) and isinstance(
        mlir_type.element_type, ir.ComplexType
    )


def part_type(mlir_type: Any) -> TensorType:
    """Return the type of either part of a complex tensor, and of a real one that of itself."""
    if not is_complex(mlir_type):
        return tensor_type(mlir_type)
    element = str(mlir_type.element_type)
    if element not in _PARTS:
        raise Unsupported(f"TVM has no type for the parts of {element}")
    if not mlir_type.has_static_shape:
        raise Unsupported(f"the shape of {mlir_type} is dynamic")
    return TensorType(tuple(mlir_type.shape), _PARTS[element][1])


def constant_parts(op: ir.Operation) -> list[np.ndarray]:
    """Read a complex constant, which the bindings cannot, from how MLIR prints it."""
    kind = part_type(op.results[0].type)
    flat = printed_elements(str(op), kind.numpy_dtype).reshape(-1, 2)
    if len(flat) == 1:
        return [np.asarray(flat[0, k]) for k in range(2)]
    return [flat[:, k].reshape(kind.shape) for k in range(2)]


def flattened(values: Iterable[Operand]) -> list[Value]:
    """Return values with pairs taken apart."""
    flat: list[Value] = []
    for value in values:
        flat += [value.real, value.imaginary] if isinstance(value, Complex) else [value]
    return flat


def paired(flat: Iterable[Value], like: Iterable[Operand]) -> list[Operand]:
    """Put values together again: the inverse of :func:`flattened`."""
    rest = iter(flat)
    return [Complex(next(rest), next(rest)) if isinstance(v, Complex) else next(rest) for v in like]


class Parts:
    """Writes real operations in the place of one complex operation."""

    def __init__(
        self,
        op: ir.Operation,
        add_node: Callable[..., Any],
        splat: Callable[..., Value],
        modules: list[ir.Module],
    ):
        self.op = op
        self._add_node, self._splat, self._modules = add_node, splat, modules

    def __call__(
        self,
        name: str,
        *operands: Value,
        kind: TensorType | None = None,
        op: ir.Operation | None = None,
    ) -> Value:
        """Add an operation; its result is of the first operand's type unless ``kind`` says."""
        kind = kind or operands[0].type
        node = self._add_node(f"stablehlo.{name}", op or self.op, operands, [kind])
        result: Value = node.result
        return result

    def same(self, number: float, like: Value) -> Value:
        """A constant of the type of ``like``."""
        return self._splat(number, like.type)

    def equal(self, x: Value, y: Value) -> Value:
        """Compare two real tensors."""
        kind = TensorType(x.type.shape, "bool")
        result: Value = self._add_node("importer.equal", self.op, (x, y), [kind]).result
        return result

    def template(self, text: str) -> ir.Operation:
        """Return the one operation of a function, for its attributes and body."""
        module = ir.Module.parse(text)
        self._modules.append(module)  # which owns the operation
        function = module.body.operations[0].operation
        found: ir.Operation = function.regions[0].blocks[0].operations[0].operation
        return found

    def fft(self, operands: Sequence[Value], kinds: Sequence[TensorType]) -> Sequence[Value]:
        """Add a Fourier transform."""
        node = self._add_node("importer.fft", self.op, tuple(operands), list(kinds))
        results: Sequence[Value] = node.results
        return results


def rewrite(parts: Parts, operands: Sequence[Operand]) -> list[Operand]:
    """Return the results of an operation on complex tensors.

    Raises:
        Unsupported: there is no rule for it.
    """
    op = parts.op
    name = op.name.removeprefix("stablehlo.")
    pairs = [
        Complex(value, value) if is_complex(o.type) and not isinstance(value, Complex) else value
        for value, o in zip(operands, op.operands, strict=True)
    ]  # what could not be imported has no parts, and was reported
    if name in _MOVES:
        kind = part_type(op.results[0].type)
        return [
            Complex(
                *(
                    parts(name, *(getattr(p, k) if isinstance(p, Complex) else p for p in pairs),
                          kind=kind)
                    for k in ("real", "imaginary")
                )
            )
        ]  # fmt: skip
    if name not in _RULES:
        raise Unsupported("there is no lowering of it for complex numbers")
    return [_RULES[name](parts, *pairs)]


_MOVES = (
    "broadcast_in_dim", "reshape", "slice", "transpose", "concatenate", "reverse", "pad", "gather",
    "dynamic_slice", "dynamic_update_slice", "select",
)  # fmt: skip
_RULES: dict[str, Callable[..., Operand]] = {}


def _complex_rule(name: str) -> Callable[[Callable[..., Operand]], Callable[..., Operand]]:
    def register(function: Callable[..., Operand]) -> Callable[..., Operand]:
        _RULES[name] = function
        return function

    return register


@_complex_rule("complex")
def _complex(p: Parts, real: Value, imaginary: Value) -> Operand:
    return Complex(real, imaginary)


@_complex_rule("real")
def _real(p: Parts, z: Complex) -> Operand:
    return z.real


@_complex_rule("imag")
def _imag(p: Parts, z: Complex) -> Operand:
    return z.imaginary


@_complex_rule("convert")
def _convert(p: Parts, z: Operand) -> Operand:
    kind = part_type(p.op.results[0].type)
    real = p("convert", z.real if isinstance(z, Complex) else z, kind=kind)
    if not is_complex(p.op.results[0].type):
        return real
    if isinstance(z, Complex):
        return Complex(real, p("convert", z.imaginary, kind=kind))
    return Complex(real, p.same(0.0, real))


@_complex_rule("add")
def _add(p: Parts, x: Complex, y: Complex) -> Complex:
    return Complex(p("add", x.real, y.real), p("add", x.imaginary, y.imaginary))


@_complex_rule("subtract")
def _subtract(p: Parts, x: Complex, y: Complex) -> Complex:
    return Complex(p("subtract", x.real, y.real), p("subtract", x.imaginary, y.imaginary))


@_complex_rule("negate")
def _negate(p: Parts, z: Complex) -> Complex:
    return Complex(p("negate", z.real), p("negate", z.imaginary))


def _bilinear(p: Parts, name: str, x: Complex, y: Complex, kind: TensorType) -> Complex:
    def product(a: Value, b: Value) -> Value:
        return p(name, a, b, kind=kind)

    return Complex(
        p("subtract", product(x.real, y.real), product(x.imaginary, y.imaginary)),
        p("add", product(x.real, y.imaginary), product(x.imaginary, y.real)),
    )


@_complex_rule("multiply")
def _multiply(p: Parts, x: Complex, y: Complex) -> Complex:
    return _bilinear(p, "multiply", x, y, x.type)


@_complex_rule("dot_general")
def _dot_general(p: Parts, x: Complex, y: Complex) -> Complex:
    return _bilinear(p, "dot_general", x, y, part_type(p.op.results[0].type))


@_complex_rule("convolution")
def _convolution(p: Parts, x: Complex, y: Complex) -> Complex:
    return _bilinear(p, "convolution", x, y, part_type(p.op.results[0].type))


@_complex_rule("divide")
def _divide(p: Parts, x: Complex, y: Complex) -> Complex:
    largest = p("maximum", p("abs", y.real), p("abs", y.imaginary))
    scaled = Complex(p("divide", y.real, largest), p("divide", y.imaginary, largest))
    squares = (p("multiply", part, part) for part in (scaled.real, scaled.imaginary))
    size = p("multiply", p("add", *squares), largest)
    above = _multiply(p, x, Complex(scaled.real, p("negate", scaled.imaginary)))
    return Complex(p("divide", above.real, size), p("divide", above.imaginary, size))


@_complex_rule("abs")
def _abs(p: Parts, z: Complex) -> Value:
    """The length of (real, imaginary), without overflow on the way."""
    a, b = p("abs", z.real), p("abs", z.imaginary)
    large, small = p("maximum", a, b), p("minimum", a, b)
    one = p.same(1.0, large)
    same = p.equal(large, small)  # both zero, or infinite
    ratio = p("select", same, one, p("divide", small, large), kind=large.type)
    return p("multiply", large, p("sqrt", p("add", one, p("multiply", ratio, ratio))))


@_complex_rule("sign")
def _sign(p: Parts, z: Complex) -> Complex:
    size = _abs(p, z)
    is_zero = p.equal(size, p.same(0.0, size))
    divisor = p("select", is_zero, p.same(1.0, size), size, kind=size.type)
    return Complex(p("divide", z.real, divisor), p("divide", z.imaginary, divisor))


@_complex_rule("exponential")
def _exponential(p: Parts, z: Complex) -> Complex:
    size = p("exponential", z.real)
    cosine, sine = p("cosine", z.imaginary), p("sine", z.imaginary)
    return Complex(p("multiply", size, cosine), p("multiply", size, sine))


@_complex_rule("log")
def _log(p: Parts, z: Complex) -> Complex:
    return Complex(p("log", _abs(p, z)), p("atan2", z.imaginary, z.real))


@_complex_rule("power")
def _power(p: Parts, x: Complex, y: Complex) -> Complex:
    return _exponential(p, _multiply(p, y, _log(p, x)))


@_complex_rule("sqrt")
def _sqrt(p: Parts, z: Complex) -> Complex:
    """The root in the right half plane: what is added to the size has its sign, so is not lost."""
    half, zero = p.same(0.5, z.real), p.same(0.0, z.real)
    far = p("add", _abs(p, z), p("abs", z.real))
    main = p("sqrt", p("multiply", half, far))
    other = p("divide", p("multiply", half, z.imaginary), main)
    other = p("select", p.equal(main, zero), z.imaginary, other, kind=main.type)
    right = p.equal(p("abs", z.real), z.real)
    lower = p.equal(p("abs", z.imaginary), p("negate", z.imaginary))
    turned = p("select", lower, p("negate", main), main, kind=main.type)
    return Complex(
        p("select", right, main, p("abs", other), kind=main.type),
        p("select", right, other, turned, kind=main.type),
    )


@_complex_rule("compare")
def _compare(p: Parts, x: Complex, y: Complex) -> Value:
    kind = tensor_type(p.op.results[0].type)
    pairs = ((x.real, y.real), (x.imaginary, y.imaginary))
    both = [p("compare", *pair, kind=kind) for pair in pairs]
    return p("and" if direction(p.op) == "EQ" else "or", *both)


@_complex_rule("reduce")
def _reduce(p: Parts, x: Complex, start: Complex) -> Complex:
    body = [view.operation.name for view in p.op.regions[0].blocks[0].operations]
    if body != ["stablehlo.add", "stablehlo.return"]:
        raise Unsupported("complex numbers can only be summed")
    kind = part_type(p.op.results[0].type)
    element = _PARTS[str(p.op.results[0].type.element_type)][0]
    source, target = (
        f"tensor<{''.join(f'{d}x' for d in shape)}{element}>" for shape in (x.type.shape, kind.shape)
    )
    op = p.template(
        _SUM.format(
            source=source, target=target, element=element, dims=integers(p.op, "dimensions")
        )
    )
    return Complex(
        p("reduce", x.real, start.real, kind=kind, op=op),
        p("reduce", x.imaginary, start.imaginary, kind=kind, op=op),
    )


@_complex_rule("fft")
def _fft(p: Parts, x: Operand) -> Operand:
    result = p.op.results[0].type
    kind = part_type(result)
    operands = [x.real, x.imaginary] if isinstance(x, Complex) else [x]
    if not is_complex(result):
        return p.fft(operands, [kind])[0]
    return Complex(*p.fft(operands, [kind, kind]))


_SUM = """func.func @main(%x: {source}, %start: tensor<{element}>) -> {target} {{
  %0 = stablehlo.reduce(%x init: %start) applies stablehlo.add across dimensions = {dims}
    : ({source}, tensor<{element}>) -> {target}
  return %0 : {target}
}}"""
