"""A network of integer codes, rewritten so that LiteRT computes its products in int8.

LiteRT's converter computes a product in int8 where its operands and its result pass a quantization:
so the products of `integer` (`jaxeff.q_dense`, `jaxeff.q_conv2d`) are written as products of floats
between composites `jaxeff.int8`, which hold a step and a zero each; the converter gets them as
`uniform_quantize` and `uniform_dequantize`.

- A code u of `integer` is the int8 number u - 128: steps, zeros and weights are the same.
- A result that `integer` keeps in float or as a whole number (logits, sums before a mean, what a
  shortcut adds) has no grid there and needs one here: its range over typical inputs.
- Only ratios of steps matter between layers of codes, so where a program doesn't say what a step
  is worth, it is worth 1.

References:
    LiteRT's 8-bit quantization specification: int8 with a zero for activations, symmetric weights
    by output channel, int32 biases of zero 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxeff import core
from jaxeff.core import primitives as p
from jaxeff.program.ir import primitives as prim

COMPOSITE = "jaxeff.int8"
"""Name of what stands for `uniform_quantize` and `uniform_dequantize`."""
WHOLE = 2.0**20
"""Bounds from here on only keep a sum of whole numbers within int32."""


class Int8Grid(NamedTuple):
    """Where int8 codes q stand for `(q - zero) * step`.

    Attributes:
        steps: A step, or one for each entry of `axis`.
        zero: The code of zero, -128 to 127.
        axis: The axis of several steps.
    """

    steps: tuple[float, ...]
    zero: int = 0
    axis: int | None = None

    @classmethod
    def over(cls, low: float, high: float) -> Int8Grid:
        """Makes the grid of a range of values, zero among them."""
        low, high = min(low, 0.0), max(high, 0.0)
        step = (high - low) / 255 or 1.0
        return cls((step,), round(-low / step) - 128)

    def quantize(self, x: jax.Array) -> jax.Array:
        """Rounds values to the grid, in a composite that the converter is told of.

        Values are on a grid of several steps already: they are weights.
        """

        def rule(x: jax.Array, **_: Any) -> jax.Array:
            if self.axis is not None:
                return x
            (step,) = self.steps
            return (jnp.clip(jnp.round(x / step) + self.zero, -128, 127) - self.zero) * step

        axis = {} if self.axis is None else {"axis": self.axis}
        attributes = {"steps": np.asarray(self.steps, np.float64), "zero": self.zero, **axis}
        return lax.composite(rule, COMPOSITE)(x, **attributes)

    def element_type(self) -> str:
        """Writes the quantized type of an element, as MLIR does."""
        each = [f"{step!r}:{self.zero}" for step in self.steps]
        if self.axis is None:
            return f"!quant.uniform<i8:f32, {each[0]}>"
        return f"!quant.uniform<i8:f32:{self.axis}, {{{', '.join(each)}}}>"


class CodeValues(NamedTuple):
    """Codes of the network.

    Attributes:
        values: What they stand for, on a grid.
        step: The step between neighbouring codes, in units of `values`.
        zero: The code of zero, 0 to 255.
    """

    values: jax.Array
    step: float
    zero: int

    @property
    def grid(self) -> Int8Grid:
        return Int8Grid((self.step,), self.zero - 128)


class ProductValues(NamedTuple):
    """Numbers that follow from products: `values * factor + offset`.

    Attributes:
        values: An array.
        factor: What one unit of `values` is.
        offset: What is added.
        has_grid: Whether `values` passed a grid; else the next operation may go in before it.
    """

    values: jax.Array
    factor: float = 1.0
    offset: float = 0.0
    has_grid: bool = False

    def plain(self) -> jax.Array:
        """Computes the numbers."""
        scaled = self.values if self.factor == 1 else self.values * np.float32(self.factor)
        return scaled if self.offset == 0 else scaled + np.float32(self.offset)

    def without_offset(self) -> ProductValues:
        """Returns the same numbers as multiples of `factor`."""
        return self if self.offset == 0 else ProductValues(self.plain())


Place = Callable[[jax.Array], jax.Array]
"""Puts values on a grid of their own range."""


class NoInt8FormError(ValueError):
    """An equation of integer codes that has no int8 form; says which."""


def has_products(jaxpr: Any) -> bool:
    """Whether a program has products of integer codes."""
    return any(_operator(eqn) in _PRODUCTS for eqn in core.jax_internals.nested_equations(jaxpr))


def follows(value: Any) -> bool:
    """Whether a value is one of those that this module computes with."""
    return isinstance(value, CodeValues | ProductValues)


def plain(value: Any, place: Place) -> Any:
    """Returns what a value stands for as an array, numbers of products on a grid."""
    if isinstance(value, ProductValues):
        return _on_grid(value, place).plain()
    if isinstance(value, CodeValues):
        return value.values / np.float32(value.step) + np.float32(value.zero)
    return value


def compute(eqn: Any, inputs: Sequence[Any], place: Place) -> Any | None:
    """Computes an equation of codes or of what follows from products.

    Operands are known arrays, tracers, `CodeValues` and `ProductValues`; `place` puts values on a
    grid of their own range. Returns None if the equation is an ordinary one, of `plain` operands.

    Raises:
        NoInt8FormError: It reads codes in a way that int8 operators can't.
    """
    operator = _operator(eqn)
    if operator == "jaxeff.q_codes":
        return _codes(inputs[0], dict(eqn.params["attributes"]))
    if operator in _PRODUCTS:
        return _product(operator, inputs, dict(eqn.params["attributes"]), place)
    if not any(map(follows, inputs)):
        return None
    first = next(value for value in inputs if follows(value))
    if isinstance(first, CodeValues):
        return _of_codes(eqn, inputs, first)
    rule = _RULES.get(eqn.primitive)
    return rule(eqn, inputs, place) if rule else None


def is_operator(eqn: Any) -> bool:
    """Whether an equation is one of the operators of integer networks."""
    return _operator(eqn) in _PRODUCTS | {"jaxeff.q_codes"}


def _operator(eqn: Any) -> str:
    return eqn.params["operator"] if eqn.primitive is core.export_composite_p else ""


def _bind(eqn: Any, *operands: Any) -> Any:
    (result,) = core.jax_internals.bind(eqn, *operands)
    return result


def _codes(x: Any, attributes: dict[str, Any]) -> CodeValues:
    step = 1 / attributes["per_step"]
    if isinstance(x, ProductValues):
        # The step takes the factor, so that nothing has to be multiplied.
        x = x.without_offset()
        return _written(x.values, step / x.factor, attributes)
    return _written(x, step, attributes)


def _written(values: jax.Array, step: float, attributes: dict[str, Any]) -> CodeValues:
    """Puts values on a grid of codes, clamped to those that are used."""
    zero, lower, upper = (attributes[name] for name in ("zero", "lower", "upper"))
    # The grid's ends clamp by themselves.
    if lower > 0:
        values = jnp.maximum(values, np.float32((lower - zero) * step))
    if upper < 255:
        values = jnp.minimum(values, np.float32((upper - zero) * step))
    codes = CodeValues(values, step, zero)
    return codes._replace(values=codes.grid.quantize(values))


def _on_grid(numbers: ProductValues, place: Place) -> ProductValues:
    if numbers.has_grid:
        return numbers
    return numbers._replace(values=place(numbers.values), has_grid=True)


def _product(
    operator: str, inputs: Sequence[Any], attributes: dict[str, Any], place: Place
) -> CodeValues | ProductValues:
    x, codes, bias, *others = inputs
    is_known = all(isinstance(value, np.ndarray) for value in (codes, bias, *others[:1]))
    if not isinstance(x, CodeValues) or not is_known:
        raise NoInt8FormError(f"{operator} of weights that aren't constants")
    if attributes["result"] == "sums" or attributes.get("scales") == "fixed":
        kind = "sums" if attributes["result"] == "sums" else "fixed-point scales"
        raise NoInt8FormError(f"{operator} with {kind}; integer(..., scales='float') has none")
    scale, *shortcut = others
    # The results' unit: free without a shortcut, else such that the shortcut's values are added as
    # they are, without a factor.
    unit = 1.0
    if shortcut:
        added, factor = shortcut
        per_unit = float(np.median(np.float64(factor) * np.float64(scale)))
        size = added.step if isinstance(added, CodeValues) else 1.0
        if isinstance(added, ProductValues):
            added = added.without_offset()
            size = 1 / added.factor
        unit = size / per_unit
    accumulator_unit = np.float64(scale) * unit
    guard = 2 ** attributes.get("finer", 0)
    # The inputs' zero is a part of the bias; LiteRT's kernels subtract it themselves.
    sums = codes.reshape(-1, codes.shape[-1]).astype(np.int64).sum(0)
    bias = (bias + x.zero * guard * sums) * accumulator_unit
    steps = accumulator_unit * guard / x.step
    # A channel without a scale has results of zero.
    codes = np.where(steps > 0, codes, 0)
    steps = np.where(steps > 0, steps, 1.0)
    weight = Int8Grid(tuple(steps.tolist()), 0, codes.ndim - 1).quantize(
        jnp.asarray(codes * np.float32(steps))
    )
    y = _SUMS[operator](x, weight, attributes)
    y = y + jnp.asarray(np.float32(bias))
    if shortcut:
        if isinstance(added, ProductValues):
            added = _on_grid(added, place)
        added = place(added) if not follows(added) else added.values
        y = place(y) + added
    return _result(y, unit, attributes, place)


def _result(
    y: jax.Array, unit: float, attributes: dict[str, Any], place: Place
) -> CodeValues | ProductValues:
    window = (1, *attributes.get("pool", (1, 1)), 1)
    if attributes["result"] == "codes":
        codes = _written(y, unit, attributes)
        if math.prod(window) > 1:
            largest = lax.reduce_window(codes.values, -jnp.inf, lax.max, window, window, "VALID")
            codes = codes._replace(values=codes.grid.quantize(largest))
        return codes
    if attributes["result"] == "whole":
        zero, lower, upper = (attributes[name] for name in ("zero", "lower", "upper"))
        if lower > -WHOLE:
            bound = (lower - zero) * unit
            y = jax.nn.relu(y) if bound == 0 else jnp.maximum(y, np.float32(bound))
        if upper < WHOLE:
            y = jnp.minimum(y, np.float32((upper - zero) * unit))
    if math.prod(window) > 1:
        y = lax.reduce_window(place(y), -jnp.inf, lax.max, window, window, "VALID")
    if attributes.get("total"):
        pixels = y.shape[1] * y.shape[2]
        return ProductValues(jnp.mean(place(y), (1, 2)), pixels / unit)
    return ProductValues(
        y, 1 / unit, float(attributes["zero"] if attributes["result"] == "whole" else 0)
    )


def _dense(x: CodeValues, weight: jax.Array, attributes: dict[str, Any]) -> jax.Array:
    del attributes
    return x.values @ weight


def _convolution(x: CodeValues, weight: jax.Array, attributes: dict[str, Any]) -> jax.Array:
    values, pads = x.values, attributes["padding"]
    strides, dilation = attributes["strides"], attributes["dilation"]
    sizes = [(n - 1) * d + 1 for n, d in zip(weight.shape[:2], dilation, strict=True)]
    pairs = [(pads[0], pads[1]), (pads[2], pads[3])]
    same = lax.padtype_to_pads(values.shape[1:3], sizes, strides, "SAME")
    padding = "SAME" if pairs == list(same) else "VALID"
    if padding == "VALID" and any(pads):
        padded = jnp.pad(values, ((0, 0), *pairs, (0, 0)))
        values = x.grid.quantize(padded)
    return lax.conv_general_dilated(
        values,
        weight,
        strides,
        padding,
        rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=attributes["groups"],
    )


_SUMS = {"jaxeff.q_dense": _dense, "jaxeff.q_conv2d": _convolution}
_PRODUCTS = frozenset(_SUMS)


def _value_of(number: Any, codes: CodeValues) -> Any:
    """What the code `number`, known, stands for."""
    return np.float32((np.float64(number) - codes.zero) * codes.step)


def _of_codes(eqn: Any, inputs: Sequence[Any], codes: CodeValues) -> Any:
    """Computes what takes codes as they are: moves, the largest of several, and reading them."""
    if eqn.primitive is p.convert_element_type_p:
        return ProductValues(codes.values, 1 / codes.step, codes.zero, True)
    if eqn.primitive not in _OF_CODES:
        raise NoInt8FormError(f"{eqn.primitive.name} of codes")
    operands = []
    for value in inputs:
        is_other = isinstance(value, CodeValues) and not math.isclose(value.step, codes.step)
        if is_other or isinstance(value, ProductValues | jax.core.Tracer):
            raise NoInt8FormError(f"{eqn.primitive.name} of codes of several grids")
        operands.append(value.values if isinstance(value, CodeValues) else _value_of(value, codes))
    return codes._replace(values=codes.grid.quantize(_bind(eqn, *operands)))


def _converted(eqn: Any, inputs: Sequence[Any], place: Place) -> Any:
    # Sums of whole numbers, which are values in a finer unit: here they are the values themselves.
    # What the network itself rounds has no such unit, and is computed as it is written.
    del place
    is_float = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
    is_rounded = eqn.primitive is p.round_p or not is_float
    return None if is_rounded and inputs[0].factor == 1 else inputs[0]


def _scaled(eqn: Any, inputs: Sequence[Any], place: Place) -> Any:
    """Multiplies by, or divides by, one known number."""
    numbers, by = _with_known(inputs)
    is_reversed = eqn.primitive is p.div_p and not isinstance(inputs[0], ProductValues)
    if by is None or is_reversed:
        return None
    by = 1 / by if eqn.primitive is p.div_p else by
    if by <= 0:
        return None
    return numbers._replace(factor=numbers.factor * by, offset=numbers.offset * by)


def _shifted(eqn: Any, inputs: Sequence[Any], place: Place) -> Any:
    """Adds or subtracts one known number, or adds two results of products."""
    numbers, by = _with_known(inputs)
    if by is None:
        return _sum(inputs, place) if eqn.primitive in {p.add_p, p.add_jaxvals_p} else None
    if eqn.primitive is p.sub_p:
        if not isinstance(inputs[0], ProductValues):
            return None
        by = -by
    return numbers._replace(offset=numbers.offset + by)


def _sum(inputs: Sequence[Any], place: Place) -> Any:
    if not all(isinstance(value, ProductValues) for value in inputs):
        return None
    a, b = (value if value.factor == 1 else ProductValues(value.plain()) for value in inputs)
    return ProductValues(
        _on_grid(a, place).values + _on_grid(b, place).values, 1.0, a.offset + b.offset
    )


def _bounded(eqn: Any, inputs: Sequence[Any], place: Place) -> Any:
    """Takes the larger or the smaller of a result and one known number."""
    numbers, bound = _with_known(inputs)
    if bound is None:
        return None
    if abs(bound) >= WHOLE and numbers.factor != 1:
        return numbers
    bound = (bound - numbers.offset) / numbers.factor
    if eqn.primitive is p.max_p and bound == 0:
        return numbers._replace(values=jax.nn.relu(numbers.values))
    larger = jnp.maximum if eqn.primitive is p.max_p else jnp.minimum
    return numbers._replace(values=larger(numbers.values, np.float32(bound)))


def _summed(eqn: Any, inputs: Sequence[Any], place: Place) -> Any:
    """Adds entries, as a mean times how many there are: LiteRT has means in int8."""
    if inputs[0].offset:
        return None
    numbers = _on_grid(inputs[0], place)
    if eqn.primitive is p.reduce_sum_p:
        axes = eqn.params["axes"]
        count = math.prod(numbers.values.shape[axis] for axis in axes)
        mean = jnp.mean(numbers.values, axes)
    else:
        count = math.prod(eqn.params["window_dimensions"])
        mean = _bind(eqn, numbers.values) / np.float32(count)
    return ProductValues(mean, numbers.factor * count)


def _with_known(inputs: Sequence[Any]) -> tuple[ProductValues, float | None]:
    """Splits a result of products from the one known number beside it, if there is one."""
    numbers = next(value for value in inputs if isinstance(value, ProductValues))
    others = [value for value in inputs if not isinstance(value, ProductValues)]
    if len(others) != 1 or follows(others[0]) or isinstance(others[0], jax.core.Tracer):
        return numbers, None
    flat = np.ravel(np.asarray(others[0], np.float64))
    return numbers, float(flat[0]) if flat.size and np.all(flat == flat[0]) else None


def _moved(eqn: Any, inputs: Sequence[Any], place: Place) -> Any:
    del place
    return inputs[0]._replace(values=_bind(eqn, inputs[0].values)) if len(inputs) == 1 else None


_MOVES = prim.VIEWS | {p.copy_p, p.name_p}
_OF_CODES = _MOVES | {
    p.concatenate_p, p.pad_p, p.max_p, p.min_p, p.reduce_max_p, p.reduce_window_max_p,
}  # fmt: skip
_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_MOVES | {p.reduce_max_p, p.reduce_window_max_p}, _moved),
    **dict.fromkeys([p.convert_element_type_p, p.round_p], _converted),
    **dict.fromkeys([p.mul_p, p.div_p], _scaled),
    **dict.fromkeys([p.add_p, p.add_jaxvals_p, p.sub_p], _shifted),
    **dict.fromkeys([p.max_p, p.min_p], _bounded),
    **dict.fromkeys([p.reduce_sum_p, p.reduce_window_sum_p], _summed),
}
