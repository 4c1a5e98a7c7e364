"""Recognition of the layers that integer arithmetic can compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer
from jaxeff.program.ir import entering, run_nodes

# On, between and far beyond the ends of usual clamps, all exact in floats of 16 bits.
_PROBES = np.array([-50, -7.25, -6, -3, -1, -0.5, 0, 0.25, 1, 2.5, 3, 6, 7.25, 60], np.float32)


def is_line(layer: Layer) -> bool:
    """Tells whether a layer is affine in each channel, as batch norm in inference is."""
    if layer.kind not in {"normalization", "elementwise"} or len(layer.data) != 1:
        return False
    if len(layer.inputs) < 2 or len(layer.outputs) != 1:
        return False
    aval = layer.inputs[layer.data[0]].aval
    return layer.outputs[0].aval.shape == aval.shape and _is_affine(layer)


def is_batch_norm(layer: Layer) -> bool:
    """Tells whether a layer is a batch norm in training, a line in inference.

    Layer, group and RMS norms and a softmax have other numbers for each example. A batch norm's
    are those of a channel: means over all axes but the last.
    """
    if layer.kind != "normalization" or len(layer.data) != 1:
        return False
    shape = layer.inputs[layer.data[0]].aval.shape
    sums = [node for node in layer.nodes if _is_smaller(node, shape)]
    over = tuple(range(len(shape) - 1))
    by_channel = all(tuple(node.params.get("axes", ())) == over for node in sums)
    return bool(sums) and by_channel and layer.outputs[0].aval.shape == shape


def _is_smaller(node: Any, shape: tuple[int, ...]) -> bool:
    """Returns whether a node makes fewer numbers of an array of a shape."""
    takes = any(v.aval.shape == shape for v in node.values)
    return takes and any(v.aval.shape != shape for v in node.outputs)


def line_of(layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
    """Computes gain and offset of each channel; of the data only the shape counts."""
    (i,) = layer.data
    aval = layer.inputs[i].aval

    def run(x: Array) -> Array:
        y: Array = layer.fn(*(x if j == i else v for j, v in enumerate(values)))[0]
        return y

    zeros = jnp.zeros(aval.shape, aval.dtype)
    # The value at zero is the offset of an affine map, the derivative along ones its gain.
    offset, gain = jax.jvp(run, (zeros,), (jnp.ones_like(zeros),))
    at = (0,) * (len(aval.shape) - 1)
    return gain[at].astype(jnp.float32), offset[at].astype(jnp.float32)


_LINES = {"add", "sub", "mul", "div", "neg", "broadcast_in_dim", "reshape", "convert_element_type"}


def _is_affine(layer: Layer) -> bool:
    """Tells whether the data is only added to and multiplied by numbers of the last axis."""
    moving = {layer.inputs[i] for i in layer.data}
    for node in layer.nodes:
        theirs = [v for v in node.values if v in moving]
        if not theirs:
            continue
        name = node.primitive.name
        # A product of two arrays of data isn't affine; nor is a number divided by data.
        if name not in _LINES or len(theirs) > 1:
            return False
        if name == "div" and node.inputs[0] is not theirs[0]:
            return False
        rank = len(theirs[0].aval.shape)
        # Other operands vary along channels only: else a channel has more than one line.
        for v in node.values:
            if v is not theirs[0] and any(n != 1 for n in v.aval.shape[: rank - 1]):
                return False
        if node.outputs[0].aval.shape != theirs[0].aval.shape:
            return False
        moving.update(node.outputs)
    return True


def bounds_of(layer: Layer) -> tuple[float, float | None] | None:
    """Returns the ends that a ReLU or one like ReLU6 clamps to; None of any other layer."""
    if layer.kind != "elementwise" or len(layer.inputs) != 1 or len(layer.outputs) != 1:
        return None
    aval = layer.inputs[0].aval
    shape = shape_of(aval)
    if not jnp.issubdtype(aval.dtype, jnp.floating) or 0 in shape:
        return None
    # An array may have fewer elements than there are probes: it is evaluated until all are tried,
    # so that a layer is the same thing for a batch of any size.
    x = np.resize(_PROBES, (-(-len(_PROBES) // math.prod(shape)), *shape))
    # Probes are the same numbers in floats of 16 bits.
    results = [evaluated(layer, part.astype(aval.dtype)).astype(np.float32) for part in x]
    if any(y.shape != shape for y in results):
        return None
    y = np.stack(results)
    low, high = float(y.min()), float(y.max())
    # Tried, not read: relu, clip and min or max are different primitives of one function.
    if not np.array_equal(y, np.clip(x, low, high)):
        return None
    # The largest probe itself means that nothing is clamped above.
    return low, None if high == _PROBES.max() else high


def is_sum(layer: Layer) -> bool:
    """Returns whether a layer adds two arrays of data, and nothing else."""
    names = [node.primitive.name for node in layer.nodes]
    return names in (["add"], ["add_any"]) and len(layer.data) == 2 == len(layer.inputs)


def is_move(layer: Layer) -> bool:
    """Tells whether a layer moves elements or takes maxima, which commute with rounding."""
    if len(layer.inputs) != 1 or len(layer.outputs) != 1:
        return False
    names = {node.primitive.name for node in layer.nodes}
    if layer.kind == "pooling":
        return names == {"reduce_window_max"}
    return layer.kind == "shape" and names <= {"reshape", "transpose", "squeeze", "expand_dims"}


def pool_of(layer: Layer) -> tuple[int, int] | None:
    """Returns the window of a max pooling without overlap; None of any other layer."""
    if layer.kind != "pooling" or len(layer.nodes) != 1 or len(layer.inputs) != 1:
        return None
    (node,) = layer.nodes
    if node.primitive.name != "reduce_window_max":
        return None
    given = node.params
    window = tuple(given["window_dimensions"])
    if len(window) != 4 or window[0] != 1 or window[3] != 1 or window[1:3] == (1, 1):
        return None
    if tuple(given["window_strides"]) != window or any(map(any, given["padding"])):
        return None
    if set(given["base_dilation"]) | set(given["window_dilation"]) != {1}:
        return None
    return window[1], window[2]


_EXAMPLES = 16
"""As many as a batch of any size is thought to have where a layer is tried out."""


def shape_of(aval: Any) -> tuple[int, ...]:
    """Returns an array's shape; where a size may vary, one that it may have."""
    return tuple(_compat.at_size(tuple(aval.shape), _EXAMPLES))


def arrays_like(layer: Layer) -> list[Any]:
    """Makes arrays like what a layer reads, which take no memory."""
    return [np.broadcast_to(np.zeros((), v.aval.dtype), shape_of(v.aval)) for v in layer.inputs]


def bind_at_size(eqn: Any, size: int, *values: Any) -> list[Any]:
    """Evaluates an equation with every size that may vary set to that of the values."""

    def rule(inner: Any, operands: Sequence[Any]) -> list[Any]:
        params = {name: _compat.at_size(value, size) for name, value in inner.params.items()}
        return _compat.bind(inner, *operands, **params)

    # A call's body holds the sizes too: it is evaluated equation by equation.
    return list(entering(rule)(eqn, list(values)))


def evaluated(
    layer: Layer, x: np.ndarray, rule: Callable[..., list[Any]] = bind_at_size
) -> np.ndarray:
    """Evaluates a layer of one input and result; `rule(eqn, size, *values)` does an equation."""

    def bind(eqn: Any, *values: Any) -> list[Any]:
        return rule(eqn, _EXAMPLES, *values)

    with jax.ensure_compile_time_eval():
        (y,) = run_nodes(layer.nodes, layer.inputs, [x], layer.outputs, bind)
        return np.asarray(y)
