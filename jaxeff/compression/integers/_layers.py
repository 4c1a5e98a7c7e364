"""Layers that integer arithmetic can compute, and how: any product is one of matrices.

`[..., in] x [in, out]` and convolutions of NHWC with HWIO are there already. Products over other
axes (the heads of attention, an `einsum`) are brought to matrices, those with a weight for each
entry of an axis to a convolution of one pixel in groups, convolutions in other layouts or over one
axis to NHWC, and what lies between the inputs of a transposed convolution is filled with the code
of zero.

Sharp edge: a transposed convolution multiplies these zeros too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.compression.integers._operators import ProductSpec, q_conv2d, q_dense
from jaxeff.compression.numerics import LayerQuantization
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer
from jaxeff.program.ir import Contraction, compute, entering, noted, run_nodes
from jaxeff.program.ir import primitives as prim

# On, between and far beyond the ends of usual clamps, all exact in floats of 16 bits; three of many
# digits, so that a rounding to quarters, or to any finer power of two, isn't taken for a clamp.
_PROBES = np.array(
    [-50, -7.25, -6, -3, -1, -0.5, 0, 171 * 2**-21, 171 * 2**-15, 0.25, 171 * 2**-9, 1, 2.5, 3, 6,
     7.25, 60],
    np.float32,
)  # fmt: skip


@noted
def is_affine(layer: Layer, channels: int = -1) -> bool:
    """Tells whether a layer is affine in each channel, as batch norm in inference is."""
    if layer.kind not in {"normalization", "elementwise"} or len(layer.data) != 1:
        return False
    if len(layer.inputs) < 2 or len(layer.outputs) != 1:
        return False
    aval = layer.inputs[layer.data[0]].aval
    return layer.outputs[0].aval.shape == aval.shape and _is_affine_by_channel(layer, channels)


def is_batch_norm(layer: Layer, channels: int) -> bool:
    """Tells whether a layer is a batch norm in training, affine in inference.

    Layer, group and RMS norms and a softmax have other numbers for each example. A batch norm's
    are those of a channel: means over all axes but that of channels.
    """
    if layer.kind != "normalization" or len(layer.data) != 1:
        return False
    shape = layer.inputs[layer.data[0]].aval.shape
    sums = [node for node in layer.nodes if _is_smaller(node, shape)]
    over = tuple(axis for axis in range(len(shape)) if axis != channels % len(shape))
    by_channel = all(tuple(node.params.get("axes", ())) == over for node in sums)
    return bool(sums) and by_channel and layer.outputs[0].aval.shape == shape


def _is_smaller(node: Any, shape: tuple[int, ...]) -> bool:
    """Returns whether a node makes fewer numbers of an array of a shape."""
    takes = any(v.aval.shape == shape for v in node.values)
    return takes and any(v.aval.shape != shape for v in node.outputs)


def affine_of(layer: Layer, values: Sequence[Any], channels: int) -> tuple[Array, Array]:
    """Computes gain and offset of each channel; of the data only the shape counts."""
    (i,) = layer.data
    aval = layer.inputs[i].aval

    def run(x: Array) -> Array:
        y: Array = layer.fn(*(x if j == i else v for j, v in enumerate(values)))[0]
        return y

    zeros = jnp.zeros(aval.shape, aval.dtype)
    # The value at zero is the offset of an affine map, the derivative along ones its gain.
    offset, gain = jax.jvp(run, (zeros,), (jnp.ones_like(zeros),))
    lines = (jnp.moveaxis(y, channels, -1) for y in (gain, offset))
    gain, offset = (y[(0,) * (y.ndim - 1)].astype(jnp.float32) for y in lines)
    return gain, offset


_AFFINE = {"add", "sub", "mul", "div", "neg", "broadcast_in_dim", "reshape", "convert_element_type"}


def _is_affine_by_channel(layer: Layer, channels: int) -> bool:
    """Tells whether the data is only added to and multiplied by numbers of one axis."""
    moving = {layer.inputs[i] for i in layer.data}
    for node in layer.nodes:
        theirs = [v for v in node.values if v in moving]
        if not theirs:
            continue
        name = node.primitive.name
        # A product of two arrays of data isn't affine; nor is a number divided by data.
        if name not in _AFFINE or len(theirs) > 1:
            return False
        if name == "div" and node.inputs[0] is not theirs[0]:
            return False
        rank = len(theirs[0].aval.shape)
        # Other operands vary along channels only: else a channel has more than one line.
        for v in node.values:
            others = (n for axis, n in enumerate(v.aval.shape) if axis != channels % rank)
            if v is not theirs[0] and any(n != 1 for n in others):
                return False
        if node.outputs[0].aval.shape != theirs[0].aval.shape:
            return False
        moving.update(node.outputs)
    return True


@noted
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
    # One that lets the smallest probe pass has no lower end that is known.
    if low == _PROBES.min() or not np.array_equal(y, np.clip(x, low, high)):
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


def pool_of(layer: Layer, order: Sequence[int]) -> tuple[int, int] | None:
    """Returns the window of a max pooling without overlap; None of any other layer.

    `order` are the axes of samples, rows, columns and channels that it has.
    """
    if layer.kind != "pooling" or len(layer.nodes) != 1 or len(layer.inputs) != 1:
        return None
    (node,) = layer.nodes
    if node.primitive.name != "reduce_window_max":
        return None
    options = node.params
    window = tuple(options["window_dimensions"])
    if len(window) != 4 or len(order) != 4:
        return None
    samples, *pixels, channels = (window[axis] for axis in order)
    if samples != 1 or channels != 1 or pixels == [1, 1]:
        return None
    if tuple(options["window_strides"]) != window or any(map(any, options["padding"])):
        return None
    if set(options["base_dilation"]) | set(options["window_dilation"]) != {1}:
        return None
    return pixels[0], pixels[1]


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
        return compute(inner.replace(params=params), operands)

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


Move = Callable[[Array], Array]
_POINT: Mapping[str, Any] = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}


@dataclass(frozen=True, eq=False)
class Kernel:
    """An operator on codes, and how the arrays of a layer are laid out for it.

    Attributes:
        operator: `q_dense` or `q_conv2d`.
        shape: Shape of its result; outputs are last.
        depth: Products in a sum.
        lay_input: Moves the activations.
        lay_weight: Moves the weight, or its steps.
        lay_scale: Moves a number for each sample, to stand beside so many entries of the last axis.
        lay_result: Moves the result to the layer's.
        lay_shortcut: Moves what is added to the result, the other way; None where the operator's
            outputs aren't axes of the layer's result.
        columns: How many of these there are.
        order: The axes of the layer's result, outputs last, as the operator has them.
        pools: Whether maxima over windows of the result's pixels can go into it.
        window: Attributes of a convolution.
        apart: Distance of a transposed convolution's inputs, down and across.
    """

    operator: Callable[..., Array]
    shape: tuple[int, ...]
    depth: int
    lay_input: Move
    lay_weight: Move
    lay_scale: Callable[[Array, int], Array]
    lay_result: Move
    lay_shortcut: Move | None
    columns: int = 1
    order: tuple[int, ...] = ()
    pools: bool = False
    window: Mapping[str, Any] = field(default_factory=dict)
    apart: tuple[int, int] = (1, 1)

    def __call__(self, x: Array, w: Array, bias: Array, *rest: Array, **attributes: Any) -> Array:
        """Computes the layer; activations, shortcut and result are laid out as the program's."""
        scale, added = ProductSpec.of(attributes).parted(rest)
        if added and self.lay_shortcut is not None:
            added[0] = self.lay_shortcut(added[0])
        x = self._padded(self.lay_input(x), attributes.get("input_zero", 0), (0, 0, 0, 0))
        y = self.product(x, w, bias, *scale, *added, **attributes)
        # Sums over pixels have no pixels left to lay out.
        return y if attributes.get("total") else self.lay_result(y)

    def product(self, *operands: Array, **attributes: Any) -> Array:
        """Computes the operator alone, of activations that are laid out and without gaps."""
        return self.operator(*operands, **{**self.window, **attributes})

    def padded(self, x: Array) -> Array:
        """Fills gaps and pads activations that are laid out and no codes yet."""
        return self._padded(x, 0, self.window.get("padding", (0, 0, 0, 0)))

    def _padded(self, x: Array, zero: Any, padding: Sequence[int]) -> Array:
        if self.apart == (1, 1) and not any(padding):
            return x
        top, bottom, left, right = padding
        down, across = (n - 1 for n in self.apart)
        config = ((0, 0, 0), (top, bottom, down), (left, right, across), (0, 0, 0))
        return jax.lax.pad(x, jnp.asarray(zero, x.dtype), config)

    @property
    def takes_affine(self) -> bool:
        """Whether entries of an axis of the layer's result are outputs, as batch norms need."""
        return self.lay_shortcut is not None

    @property
    def channels(self) -> int:
        """The axis of the layer's result whose entries are outputs."""
        return self.order[-1] if self.order else -1

    def along(self, vector: Array) -> Array:
        """Repeats numbers of the layer's channels to be one for each output."""
        times = self.shape[-1] // vector.shape[0]
        return vector if times == 1 else jnp.tile(vector, times)

    def column_of(self, y: Array) -> Array:
        """Returns the numbers at one position of the layer's result, one for each output."""
        y = jax.lax.transpose(y, self.order) if self.order else y
        return y[(0,) * (y.ndim - self.columns)].reshape(-1)


def kernel_of(layer: Layer, setting: LayerQuantization) -> Kernel | str:
    """Finds the operator of a linear layer on codes.

    Returns:
        It; or why there is none.
    """
    if setting.weights is None or setting.activations is None or setting.at != "input":
        return "quantized in its weights or its inputs alone"
    if getattr(setting.weights, "group", None) is not None:
        return "quantized by group"
    return product_of(layer)


@noted
def product_of(layer: Layer) -> Kernel | str:
    """Finds the operator of a linear layer, whatever its operands are; or why there is none."""
    node = layer.op
    if node is None or len(layer.weights) != 1 or len(layer.data) != 1:
        if not layer.weights and len(layer.data) == 1:
            return f"a {layer.kind} whose weights f closes over, and which are none of its params"
        return f"a {layer.kind} of {len(layer.weights)} weights and {len(layer.data)} data arrays"
    if len(layer.outputs) != 1:
        return "a layer of several results"
    # An adapter beside the weight, say: a kernel would leave all but one product out.
    products = [n for n in layer.nodes if n.primitive in prim.LINEAR]
    if sum(any(v.is_data for v in n.values) for n in products) > 1:
        return "a sum of several products"
    x, w = layer.inputs[layer.data[0]], layer.inputs[layer.weights[0]]
    if node.primitive not in prim.LINEAR or list(node.inputs) not in ([x, w], [w, x]):
        return "a product whose operands are rearranged"
    contraction, moves = Contraction.of(node), _moves_of(layer)
    if contraction.is_convolution:
        return _convolution(contraction, moves)
    return _dense(contraction, moves)


def _moves_of(layer: Layer) -> Move | None:
    """Returns what moves a product before its bias is added; None if nothing does."""
    node: Any = layer.op
    (value,), between = node.outputs, []
    for reader in layer.nodes:
        if value in reader.values and reader.primitive is not prim.p.add_p:
            between.append(reader)
            (value,) = reader.outputs
    if all(reader.primitive is prim.p.convert_element_type_p for reader in between):
        return None

    def bind(eqn: Any, *values: Any) -> list[Any]:
        # Codes are moved as they are.
        is_same = eqn.primitive is prim.p.convert_element_type_p
        return list(values) if is_same else _compat.bind(eqn, *values)

    return lambda y: run_nodes(between, node.outputs, [y], [value], bind)[0]


def _dense(c: Contraction, moves: Move | None) -> Kernel:
    other, (groups, depth, outputs) = 1 - c.side, c.matrix_shape
    input_shape, result, free = c.shapes[other], c.shapes[2], c.free(c.side)
    sizes = [1 if axis in c.summed(other) else n for axis, n in enumerate(input_shape)]
    # Rows of several matrices are pixels: the first axis, which may be of any size, is a batch.
    first, *others = [input_shape[axis] for axis in c.free(other)] or [1]
    height, is_one_matrix = math.prod(others), groups == 1
    # Of `x @ w` outputs are last; of `w @ x`, or with a weight for each head, they aren't.
    is_last = c.side == 1 and not c.batch(0) and bool(free) and moves is None

    def lay_scale(scale: Array, entries: int) -> Array:
        each = c.rows(jnp.broadcast_to(scale, sizes))
        if is_one_matrix:
            return each[0]
        return _pixels(jnp.broadcast_to(each, (*each.shape[:2], entries // groups)), height)

    # A usual product is one reshape away from `q_dense`, or none: what moves groups would leave a
    # chain of reshapes around every layer.
    usual = is_one_matrix and c.side == 1 and not c.batch(0)
    in_order = usual and (*c.free(0), *c.summed(0)) == tuple(range(len(input_shape)))

    def lay_input(x: Array) -> Array:
        if in_order:
            return x.reshape(-1, depth)
        return c.rows(x)[0] if is_one_matrix else _pixels(c.rows(x), height)

    def lay_weight(w: Array) -> Array:
        if usual and (*c.summed(1), *c.free(1)) == tuple(range(w.ndim)):
            return w.reshape(math.prod(w.shape[axis] for axis in c.summed(1)), -1)
        return c.matrix(w)[0] if is_one_matrix else _pixels(c.matrix(w), 1).swapaxes(0, 2)

    def lay_result(y: Array) -> Array:
        if usual:
            y = y.reshape(-1, *result[1:]) if c.free(0) else y.reshape(result)
        else:
            y = c.restore(
                y[None] if is_one_matrix else y.reshape(-1, groups, outputs).swapaxes(0, 1)
            )
        return y if moves is None else moves(y)

    def lay_shortcut(added: Array) -> Array:
        return added.reshape(-1, outputs)

    return Kernel(
        q_dense if is_one_matrix else q_conv2d,
        (first * height, outputs) if is_one_matrix else (first, height, 1, groups * outputs),
        depth,
        lay_input,
        lay_weight,
        lay_scale,
        lay_result,
        lay_shortcut if is_last and result else None,
        len(free),
        window={} if is_one_matrix else {**_POINT, "groups": groups},
    )


def _pixels(matrices: Array, height: int) -> Array:
    """Lays matrices of groups side by side, `[g, n, m]` to `[n / height, height, 1, g * m]`."""
    groups, _, columns = matrices.shape
    return matrices.swapaxes(0, 1).reshape(-1, height, 1, groups * columns)


def _convolution(c: Contraction, moves: Move | None) -> Kernel | str:
    params, places = c.params, len(c.window(0))
    if places not in (1, 2):
        return f"a convolution over {places} axes; kernels have one or two"
    if params["batch_group_count"] != 1:
        return "a convolution with groups of its batch"
    if any(low < 0 or high < 0 for low, high in params["padding"]):
        return "a convolution that is padded by less than nothing"
    (n, channels, *at), (out, into, *taps), (batch, features, *pixels) = c.layouts
    order = (batch, *pixels, features)
    back = sorted(range(len(order)), key=order.__getitem__)
    # A sequence is an image of one row.
    flat = places == 1
    ones = (1,) * flat

    def lay_input(x: Array) -> Array:
        return _with_row(jax.lax.transpose(x, (n, *at, channels)), 1, flat)

    def lay_scale(scale: Array, entries: int) -> Array:
        del entries  # one number for each sample
        return lay_input(scale.reshape(scale.shape or (1,) * len(order)))

    def lay_result(y: Array) -> Array:
        y = jax.lax.transpose(y[:, 0] if flat else y, back)
        return y if moves is None else moves(y)

    (top, bottom), (left, right) = ((0, 0),) * flat + tuple(params["padding"])
    first = [c.shapes[2][axis] for axis in order]
    return Kernel(
        q_conv2d,
        (first[0], *ones, *first[1:]),
        c.matrix_shape[1],
        lay_input,
        lambda w: _with_row(jax.lax.transpose(w, (*taps, into, out)), 0, flat),
        lay_scale,
        lay_result,
        None if moves else lambda added: _with_row(jax.lax.transpose(added, order), 1, flat),
        order=order,
        pools=moves is None and not flat,
        window={
            "strides": (*ones, *params["window_strides"]),
            "padding": (top, bottom, left, right),
            "dilation": (*ones, *params["rhs_dilation"]),
            "groups": c.groups,
        },
        apart=(*ones, *params["lhs_dilation"]),
    )


def _with_row(x: Array, axis: int, flat: bool) -> Array:
    return jnp.expand_dims(x, axis) if flat else x
