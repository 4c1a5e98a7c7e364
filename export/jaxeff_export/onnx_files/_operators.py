"""What ONNX's operators compute element by element, and over axes; what a rule of one is given.

A rule takes a `Call` and the inputs, and returns a result, or a tuple of them. Inputs that are
NumPy arrays are known while tracing; from these alone rules make NumPy arrays where NumPy has the
same function, so that computed shapes stay known at no cost.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from jaxeff_export.onnx_files._graph import OnnxError

Value = Any
"""An array of NumPy (known), of JAX, a list of them (a sequence), or None (left out)."""

LARGEST = 2**28
"""Elements of an array whose shape is a value of the graph: a few bytes must not ask for more."""


@dataclass(frozen=True)
class Call:
    """A node as a rule sees it.

    Attributes:
        operator: The node's operator, such as Conv.
        name: The node's name; may be empty.
        opset: The version of its domain.
        attributes: Values by name, the defaults of this version among them.
        wanted: Whether each of its results has a name.
        graph: Computes the graph of an attribute from arguments.
    """

    operator: str
    name: str
    opset: int
    attributes: Mapping[str, Any]
    wanted: tuple[bool, ...]
    graph: Callable[[str, Sequence[Value]], list[Value]]

    def __getitem__(self, name: str) -> Any:
        """Returns an attribute that has to be there."""
        if name not in self.attributes:
            raise self.refused(f"needs the attribute {name!r}")
        return self.attributes[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, or a default."""
        return self.attributes.get(name, default)

    def refused(self, why: str, domain: str = "") -> OnnxError:
        """Makes the error that names the operator, its node and its version."""
        where = f"{domain} {self.opset}" if domain else str(self.opset)
        return OnnxError(
            f"from_onnx: {self.operator} (node {self.name!r}, operator set {where}) {why}."
        )


def is_static(value: Value) -> bool:
    """Returns whether a value is one of NumPy's; of a sequence, whether all are."""
    if isinstance(value, list):
        return all(map(is_static, value))
    return value is None or isinstance(value, (np.ndarray, np.generic))


def is_known(value: Value) -> bool:
    """Returns whether a value can be read now."""
    return not isinstance(value, jax.core.Tracer)


def known(call: Call, value: Value, what: str) -> np.ndarray:
    """Returns a value as an array of NumPy, or refuses it as one that depends on inputs."""
    if not is_known(value):
        raise call.refused(
            f"needs {what} when it is traced, and it depends on an input: make the input a NumPy "
            "array that the traced function closes over"
        )
    return np.asarray(value)


def integers(call: Call, value: Value, what: str) -> list[int]:
    """Returns a value as known whole numbers."""
    return [int(i) for i in np.ravel(known(call, value, what))]


def bounded(call: Call, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape that the graph asks for, or refuses one that is far too large."""
    if any(size < 0 for size in shape) or math.prod(shape) > LARGEST:
        raise call.refused(
            f"asks for an array of {tuple(shape)}; at most {LARGEST} elements are made"
        )
    return tuple(map(int, shape))


def int64() -> Any:
    """The dtype of indices: of 64 bits where JAX has those."""
    return jax.dtypes.canonicalize_dtype(np.int64)


def dtype_of(call: Call, kind: int) -> Any:
    """Returns the dtype of a number of ONNX's."""
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    except KeyError as error:
        raise call.refused(f"names the dtype {kind}, which there isn't") from error
    if dtype.kind in "OSU":
        raise call.refused("makes texts; only numbers are read")
    return jax.dtypes.canonicalize_dtype(dtype)


def module_of(*values: Value) -> Any:
    """Returns NumPy if all values are its arrays, else JAX's."""
    return np if all(map(is_static, values)) else jnp


def aligned(*values: Value) -> tuple[Any, list[Any]]:
    """Returns NumPy or JAX, and the arrays with axes in front so that all have the same number."""
    xp = module_of(*values)
    rank = max(np.ndim(v) for v in values)
    arrays = [np.asarray(v) if xp is np else in_range(v) for v in values]
    return xp, [x.reshape((1,) * (rank - x.ndim) + x.shape) for x in arrays]


def in_range(x: Value) -> Any:
    """Returns an array of JAX; integers of 64 bits that JAX would cut to 32 are refused."""
    if isinstance(x, np.ndarray) and x.dtype in (np.int64, np.uint64) and x.size:
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(x.dtype))
        if x.min() < limits.min or x.max() > limits.max:
            raise OnnxError(
                f"from_onnx: integers from {x.min()} to {x.max()} don't fit into 32 bits: enable "
                "x64 (jax.config.update('jax_enable_x64', True))."
            )
    return jnp.asarray(x)


def inside(
    call: Call, indices: Value, length: int, axis: int | str, first: int | None = None
) -> None:
    """Refuses known indices that lie outside an axis: JAX clips, drops or fills there.

    `first` is the smallest one, `-length` if negative ones count from the end.
    """
    if is_known(indices):
        numbers = np.asarray(indices)
        lowest = -length if first is None else first
        if numbers.size and not (lowest <= numbers.min() and numbers.max() < length):
            raise call.refused(
                f"has indices from {numbers.min()} to {numbers.max()} on axis {axis}, which has "
                f"{length}"
            )


def axes_of(call: Call, x: Value, axes: Value = None) -> tuple[int, ...] | None:
    """Returns axes from an attribute (of old operator sets) or an input, counted from the front."""
    numbers = call.get("axes") if axes is None else integers(call, axes, "the axes")
    if numbers is None:
        return None
    rank = np.ndim(x)
    if any(not -rank <= axis < rank for axis in numbers):
        raise call.refused(f"has axes {list(numbers)} of an input with {rank}")
    return tuple(axis % rank for axis in numbers)


def _inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


# -------------------------------------------------------------------------------- elementwise


def _named(name: str) -> Callable[..., Value]:
    def rule(call: Call, *values: Value) -> Value:
        xp, arrays = aligned(*values)
        return getattr(xp, name)(*arrays)

    return rule


def _folded(name: str) -> Callable[..., Value]:
    def rule(call: Call, *values: Value) -> Value:
        xp, arrays = aligned(*values)
        result = arrays[0]
        for x in arrays[1:]:
            result = getattr(xp, name)(result, x)
        return result / np.asarray(len(arrays), result.dtype) if call.operator == "Mean" else result

    return rule


def _of_jax(function: Callable[..., Any], *names: str) -> Callable[..., Value]:
    """Makes a rule of a function and the names of attributes that it takes last."""

    def rule(call: Call, *values: Value) -> Value:
        return function(*aligned(*map(jnp.asarray, values))[1], *(call[n] for n in names))

    return rule


def _divide(call: Call, a: Value, b: Value) -> Value:
    _, (a, b) = aligned(jnp.asarray(a), jnp.asarray(b))
    if _inexact(a):
        return a / b
    return jax.lax.div(*jnp.broadcast_arrays(a, b))  # towards zero


def _modulo(call: Call, a: Value, b: Value) -> Value:
    xp, (a, b) = aligned(a, b)
    return xp.fmod(a, b) if call["fmod"] else xp.mod(a, b)


def _power(call: Call, x: Value, exponent: Value) -> Value:
    if isinstance(exponent, np.ndarray) and exponent.ndim == 0 and not is_static(x):
        number = exponent.item()
        if number == int(number) and abs(number) < 64:
            return jax.lax.integer_pow(x, int(number)) if _inexact(x) or number >= 0 else 1 // x
        if number == 0.5 and _inexact(x):
            return jnp.sqrt(x)
    _, (x, exponent) = aligned(jnp.asarray(x), jnp.asarray(exponent))
    kind = jnp.promote_types(x.dtype, exponent.dtype)
    return jnp.power(x.astype(kind), exponent.astype(kind)).astype(x.dtype)


def _shift(call: Call, x: Value, by: Value) -> Value:
    xp, (x, by) = aligned(x, by)
    bits = 8 * x.dtype.itemsize
    if call["direction"] == "RIGHT" and x.dtype.kind == "i":  # nothing but the sign is left
        return xp.right_shift(x, xp.minimum(by, xp.asarray(bits - 1, by.dtype)))
    moved = xp.left_shift(x, by) if call["direction"] == "LEFT" else xp.right_shift(x, by)
    return xp.where(by < bits, moved, xp.zeros_like(moved))


def _clip(call: Call, x: Value, low: Value = None, high: Value = None) -> Value:
    low = call.get("min") if low is None else low
    high = call.get("max") if high is None else high
    largest = float(np.finfo(np.float32).max)
    xp = module_of(x, *(v for v in (low, high) if not isinstance(v, float)))
    x = xp.asarray(x)
    if low is not None and not (isinstance(low, float) and low <= -largest):
        x = xp.maximum(x, xp.asarray(low, x.dtype).reshape((1,) * x.ndim))
    if high is not None and not (isinstance(high, float) and high >= largest):
        x = xp.minimum(x, xp.asarray(high, x.dtype).reshape((1,) * x.ndim))
    return x


def _is_infinite(call: Call, x: Value) -> Value:
    result = jnp.zeros(jnp.shape(x), bool)
    if call["detect_positive"]:
        result |= jnp.isposinf(x)
    if call["detect_negative"]:
        result |= jnp.isneginf(x)
    return result


def converted(call: Call, x: Value, dtype: Any, saturate: bool = True) -> Value:
    """Converts to a dtype; what is too large for a float of 8 or 4 bits becomes its largest."""
    xp, dtype = module_of(x), np.dtype(dtype)
    x = xp.asarray(x)
    if dtype.kind == "b":
        return x != 0
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 1
    if dtype == ml_dtypes.float8_e8m0fnu:
        return _power_of_two(call, x, saturate)
    if narrow and dtype != ml_dtypes.float4_e2m1fn and not saturate:
        return jnp.asarray(x).astype(dtype)
    if narrow:
        largest = float(ml_dtypes.finfo(dtype).max)
        wide = jnp.asarray(x).astype(jnp.promote_types(x.dtype, np.float32))
        return jnp.clip(wide, -largest, largest).astype(dtype)
    if jnp.issubdtype(x.dtype, jnp.floating) and _wraps(call, dtype):
        return _wrapped(x, dtype)
    return x.astype(dtype)


def _wraps(call: Call, dtype: Any) -> bool:
    """Returns whether floats beyond an integer dtype wrap around: all but int64, which is wider."""
    if jnp.issubdtype(dtype, jnp.floating) or dtype.kind == "c":
        return False
    return dtype.itemsize < 4 or call.get("to") in (TensorProto.INT32, TensorProto.UINT32)


def _wrapped(x: Value, dtype: Any) -> Value:
    """Converts floats to integers of up to 32 bits as ONNX Runtime does on x86.

    ONNX leaves open what numbers beyond the range become. There they are int32 first, whose lowest
    number stands for all that is beyond it, and NaN; the bits that the dtype has are kept.
    """
    xp, lowest, end = module_of(x), -(2.0**31), 2.0**31
    wide = xp.asarray(x).astype(np.float64 if xp is np else jnp.promote_types(x.dtype, np.float32))
    inner = (wide >= lowest) & (wide < end)
    result = xp.where(inner, wide, lowest).astype(np.int32).astype(dtype)
    if dtype == np.uint32:
        above = xp.where((wide >= end) & (wide < 2 * end), wide, 0).astype(dtype)
        result = xp.where(wide >= end, above, result)
    return result


def _power_of_two(call: Call, x: Value, saturate: bool) -> Value:
    """Rounds to a power of two: up, down, or to the nearer one."""
    x = jnp.asarray(x).astype(np.float32)
    mode = call.get("round_mode", "up")
    fraction, exponent = jnp.frexp(jnp.abs(x))  # fraction in [.5, 1)
    exponent = exponent - 1
    above = {"up": fraction > 0.5, "down": fraction < 0, "nearest": fraction >= 0.75}[mode]
    exponent = exponent + above.astype(exponent.dtype)
    code = exponent + 127
    code = jnp.where(code < 0, 0, code)
    code = jnp.where(code > 254, 254 if saturate else 255, code)
    code = jnp.where(x == 0, 0, code)
    infinite = 254 if saturate else 255
    code = jnp.where(jnp.isinf(x), infinite, code)
    code = jnp.where(jnp.isnan(x), 255, code)
    return jax.lax.bitcast_convert_type(code.astype(np.uint8), ml_dtypes.float8_e8m0fnu)


def _cast(call: Call, x: Value) -> Value:
    return converted(call, x, dtype_of(call, call["to"]), bool(call.get("saturate", 1)))


def _cast_like(call: Call, x: Value, like: Value) -> Value:
    return converted(call, x, like.dtype, bool(call.get("saturate", 1)))


def _bit_cast(call: Call, x: Value) -> Value:
    dtype = dtype_of(call, call["to"])
    if np.dtype(dtype) == bool or x.dtype == bool:
        return (np.asarray if is_static(x) else jnp.asarray)(x).view(dtype)
    return jax.lax.bitcast_convert_type(jnp.asarray(x), dtype)


def _where(call: Call, condition: Value, a: Value, b: Value) -> Value:
    xp, (condition, a, b) = aligned(condition, a, b)
    return xp.where(condition, a, b)


def _prelu(call: Call, x: Value, slope: Value) -> Value:
    _, (x, slope) = aligned(jnp.asarray(x), jnp.asarray(slope))
    return jnp.where(x >= 0, x, x * slope)


def _gelu(call: Call, x: Value) -> Value:
    return jax.nn.gelu(jnp.asarray(x), approximate=call["approximate"] == "tanh")


def _dropout(call: Call, x: Value, ratio: Value = None, training: Value = None) -> Any:
    ratio = call.get("ratio", 0.5) if ratio is None else known(call, ratio, "the ratio").item()
    if training is not None and known(call, training, "the mode").item() and ratio:
        raise call.refused("is in training mode and draws random numbers")
    # The mask had the input's dtype first.
    return x, module_of(x).ones(np.shape(x), bool if call.opset >= 10 else x.dtype)


def _random(call: Call, *_: Value) -> Value:
    raise call.refused("draws random numbers: draw outside, and hand them in")


def _softmax(call: Call, x: Value) -> Value:
    functions = {"Softmax": jax.nn.softmax, "LogSoftmax": jax.nn.log_softmax, "Hardmax": _hardmax}
    function, axis, x = functions[call.operator], call["axis"], jnp.asarray(x)
    if call.opset >= 13:
        return function(x, axis=axis)
    flat = x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)  # before, over all axes from this one
    return function(flat, axis=-1).reshape(x.shape)


def _hardmax(x: Any, axis: int) -> Any:
    return jax.nn.one_hot(jnp.argmax(x, axis), x.shape[axis], dtype=x.dtype, axis=axis)


# --------------------------------------------------------------------------------- reductions


def _reduction(function: Callable[..., Any]) -> Callable[..., Value]:
    def rule(call: Call, x: Value, axes: Value = None) -> Value:
        over = axes_of(call, x, axes)
        if not over:
            # Over none, nothing is summed, yet what is done to each element is done.
            over = () if call.get("noop_with_empty_axes") else tuple(range(np.ndim(x)))
        xp = module_of(x)
        return function(xp, xp.asarray(x), axis=over, keepdims=bool(call["keepdims"]))

    return rule


def _sum(xp: Any, x: Any, **where: Any) -> Any:
    return xp.sum(x, dtype=x.dtype, **where)


def _log_sum_exp(xp: Any, x: Any, **where: Any) -> Any:
    y = jax.nn.logsumexp(x, **where) if xp is jnp else np.log(np.sum(np.exp(x), **where))
    return y.astype(x.dtype)


def _mean(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    if _inexact(x):
        return xp.mean(x, axis=axis, keepdims=keepdims)
    count = math.prod(x.shape[a] for a in axis)
    total = jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
    return jax.lax.div(total, jnp.full_like(total, count))  # towards zero


def _extreme(name: str) -> Callable[..., Any]:
    def extreme(xp: Any, x: Any, **where: Any) -> Any:
        if x.dtype == bool:
            return (xp.any if name == "max" else xp.all)(x, **where)
        if _inexact(x):
            first: Any = -np.inf if name == "max" else np.inf
        else:
            limits = ml_dtypes.iinfo(x.dtype)
            first = limits.min if name == "max" else limits.max
        return getattr(xp, name)(x, **where, **({} if x.size else {"initial": first}))

    return extreme


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _extreme("max"),
    "ReduceMin": _extreme("min"),
    "ReduceProd": lambda xp, x, **where: xp.prod(x, dtype=x.dtype, **where),
    "ReduceL1": lambda xp, x, **where: _sum(xp, xp.abs(x), **where),
    "ReduceL2": lambda xp, x, **where: xp.sqrt(_sum(xp, x * x, **where)).astype(x.dtype),
    "ReduceSumSquare": lambda xp, x, **where: _sum(xp, x * x, **where),
    "ReduceLogSum": lambda xp, x, **where: xp.log(_sum(xp, x, **where)).astype(x.dtype),
    "ReduceLogSumExp": _log_sum_exp,
}


def _arg(call: Call, x: Value) -> Value:
    x, axis = jnp.asarray(x), call["axis"]
    function = jnp.argmax if call.operator == "ArgMax" else jnp.argmin
    if call.get("select_last_index"):
        result = (
            x.shape[axis] - 1 - function(jnp.flip(x, axis), axis, keepdims=bool(call["keepdims"]))
        )
    else:
        result = function(x, axis, keepdims=bool(call["keepdims"]))
    return result.astype(int64())


def _cumulative(call: Call, x: Value, axis: Value) -> Value:
    along = known(call, axis, "the axis").item()
    x = jnp.asarray(x)
    if call["reverse"]:
        x = jnp.flip(x, along)
    total = call.operator == "CumSum"
    result = (jnp.cumsum if total else jnp.cumprod)(x, along, dtype=x.dtype)
    if call["exclusive"]:
        shape = [1 if a == along % x.ndim else n for a, n in enumerate(x.shape)]
        first = jnp.full(shape, 0 if total else 1, x.dtype)
        result = jnp.concatenate(
            [first, jax.lax.slice_in_dim(result, 0, x.shape[along] - 1, axis=along)], along
        )
    return jnp.flip(result, along) if call["reverse"] else result


def _top_k(call: Call, x: Value, k: Value = None) -> Any:
    count = call["k"] if k is None else known(call, k, "the number of values").item()
    axis, x = call["axis"], jnp.moveaxis(jnp.asarray(x), call["axis"], -1)
    if not 0 <= count <= x.shape[-1]:
        raise call.refused(f"asks for {count} of {x.shape[-1]} values")
    order = jnp.argsort(x, axis=-1, stable=True, descending=bool(call.get("largest", 1)))[
        ..., :count
    ]
    values = jnp.take_along_axis(x, order, -1)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(order, -1, axis).astype(int64())


_NAMES = {
    "Abs": "abs", "Neg": "negative", "Sign": "sign", "Ceil": "ceil", "Floor": "floor",
    "Round": "round", "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos",
    "Tan": "tan", "Asin": "arcsin", "Acos": "arccos", "Atan": "arctan", "Sinh": "sinh",
    "Cosh": "cosh", "Tanh": "tanh", "Asinh": "arcsinh", "Acosh": "arccosh", "Atanh": "arctanh",
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Equal": "equal", "Less": "less",
    "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
    "BitwiseNot": "bitwise_not", "IsNaN": "isnan", "Det": "linalg.det",
}  # fmt: skip
_FOLDED = {"Max": "maximum", "Min": "minimum", "Sum": "add", "Mean": "add"}

OPERATORS: dict[str, Callable[..., Any]] = {
    **{op: _named(name) for op, name in _NAMES.items()},
    **{op: _folded(name) for op, name in _FOLDED.items()},
    **{op: _reduction(function) for op, function in _REDUCTIONS.items()},
    "Det": _of_jax(jnp.linalg.det),
    "Div": _divide, "Mod": _modulo, "Pow": _power, "BitShift": _shift, "Clip": _clip,
    "Reciprocal": _of_jax(lambda x: 1 / x), "Erf": _of_jax(jax.lax.erf), "IsInf": _is_infinite,
    "Relu": _of_jax(jax.nn.relu), "Sigmoid": _of_jax(jax.nn.sigmoid),
    "Softplus": _of_jax(jax.nn.softplus), "Softsign": _of_jax(jax.nn.soft_sign),
    "LeakyRelu": _of_jax(jax.nn.leaky_relu, "alpha"), "Elu": _of_jax(jax.nn.elu, "alpha"),
    "Celu": _of_jax(jax.nn.celu, "alpha"), "Mish": _of_jax(jax.nn.mish), "Gelu": _gelu,
    "Selu": _of_jax(lambda x, a, g: g * jax.nn.elu(x, a), "alpha", "gamma"),
    "HardSigmoid": _of_jax(lambda x, a, b: jnp.clip(a * x + b, 0, 1), "alpha", "beta"),
    "HardSwish": _of_jax(jax.nn.hard_swish), "PRelu": _prelu,
    "ThresholdedRelu": _of_jax(lambda x, a: jnp.where(x > a, x, jnp.zeros_like(x)), "alpha"),
    "Swish": _of_jax(lambda x, a: jax.nn.silu(x) if a == 1 else x * jax.nn.sigmoid(a * x), "alpha"),
    "Cast": _cast, "CastLike": _cast_like, "BitCast": _bit_cast, "Where": _where,
    "Dropout": _dropout, "Softmax": _softmax, "LogSoftmax": _softmax, "Hardmax": _softmax,
    "RandomNormal": _random, "RandomNormalLike": _random, "RandomUniform": _random,
    "RandomUniformLike": _random, "Bernoulli": _random, "Multinomial": _random,
    "ArgMax": _arg, "ArgMin": _arg, "CumSum": _cumulative, "CumProd": _cumulative, "TopK": _top_k,
}  # fmt: skip
