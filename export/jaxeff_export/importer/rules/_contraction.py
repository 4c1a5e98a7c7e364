"""Products that sum: dot_general and convolution.

Where Relax has the layout they are its ``matmul`` and ``nn.conv2d``, else direct loops. A sum along
the innermost dimension is kept in several partial results (``lanes_of``): vector units need
independent ones, and sums of many terms are more accurate so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer import _scalar_rules as scalar_rules
from jaxeff_export.importer._elementwise import accumulator, rounded
from jaxeff_export.importer._emitter import Emitter, constant, rule
from jaxeff_export.importer._graph import HloNode, HloValue, attribute, integers, padding
from jaxeff_export.importer._graph import TensorType as HloType
from jaxeff_export.importer.rules._indexing import padded_index

# Eight float32 fill one vector of AVX2 or two of NEON.
_VECTOR = 8
_MOST = 64
_TURNS = 4  # at least; LLVM's vectoriser breaks some products of fewer, once these are unrolled


def lanes_of(length: int) -> int | None:
    """Returns into how many lanes ``length`` elements divide well, or None if they do not.

    The lanes fill vectors as well as they can: 32 of 512, 50 of 500.
    """
    # Whole lanes only: a remainder would need a loop of its own.
    divisors = [d for d in range(_VECTOR, _MOST + 1) if length % d == 0 and length >= _TURNS * d]
    if not divisors:
        return None

    def fill(lanes: int) -> float:
        return lanes / (math.ceil(lanes / _VECTOR) * _VECTOR)

    # Full vectors first. Then close to 32 sums: four chains of AVX2 vectors, or eight of NEON,
    # hide the latency of an addition and still leave registers for the operands.
    return max(divisors, key=lambda d: (fill(d), -abs(d - 32)))


_TRANSPOSED_ROWS = 8  # so many rows pay for transposing the other operand
_MOVED = 32, 96  # so many rows, and columns, or the reverse pay for moving batches to the front
_LARGE = 1 << 17  # bytes of an operand to several axes, from which on a loop nest is slower


class _Factor(NamedTuple):
    """An operand of a dot product, and what its axes are.

    Attributes:
        value: the operand.
        batch: the axes that both operands and the result have.
        contract: the axes that are summed over.
    """

    value: HloValue
    batch: list[int]
    contract: list[int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The operand's shape."""
        return self.value.type.shape

    @property
    def free(self) -> list[int]:
        """The axes that only the result has beside it."""
        return _rest(len(self.shape), self.batch, self.contract)

    def at(self, batch: Sequence, free: Sequence, contract: Sequence) -> list:
        """Returns the index of an entry."""
        parts = (self.batch, batch), (self.free, free), (self.contract, contract)
        return _position(len(self.shape), *parts)


@rule("stablehlo.dot_general")
def _dot_general(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    numbers = stablehlo.DotDimensionNumbers(node.op.attributes["dot_dimension_numbers"])
    result = node.result.type
    lhs = _Factor(
        node.operands[0],
        list(numbers.lhs_batching_dimensions),
        list(numbers.lhs_contracting_dimensions),
    )
    rhs = _Factor(
        node.operands[1],
        list(numbers.rhs_batching_dimensions),
        list(numbers.rhs_contracting_dimensions),
    )
    batch = len(lhs.batch)
    # A sum of no terms; TVM's reductions have at least one.
    if 0 in (lhs.shape[d] for d in lhs.contract):
        return [constant(np.zeros(result.shape, result.numpy_dtype))]

    innermost = lhs.contract == [len(lhs.shape) - 1]
    if innermost and not batch and len(rhs.free) <= 1:
        emitted = _emit_inner(e, node, lhs.value, rhs.value, rhs.contract[0])
        if emitted is not None:
            return [emitted]
    # What follows is Relax's form of a matmul: batches first, then [rows, k] and [k, columns].
    # Relax's matmul sums in the operands' dtype, which is right for full-width floats only.
    native = result.dtype in ("float32", "float64")
    native = native and lhs.value.type.dtype == rhs.value.type.dtype == result.dtype
    if (
        native
        and lhs.batch == rhs.batch == list(range(batch))
        and innermost
        and rhs.contract == [batch]
        and len(rhs.free) == 1
        and (len(lhs.free) == 1 or not batch)
    ):
        left = e.tensor(lhs.value)
        return [e.bb.emit(relax.op.matmul(left, e.tensor(rhs.value)))]

    # A nest's tile of several axes, such as heads, loads weights of its own for each.
    large = math.prod(n for n in rhs.shape if isinstance(n, int)) * 4 >= _LARGE
    moved = native and (batch or large)
    if moved and _pays_to_move(lhs.value, lhs.free, rhs.value, rhs.free, result.shape):
        left = _moved(e, lhs.value, lhs.batch, lhs.free, lhs.contract)
        right = _moved(e, rhs.value, rhs.batch, rhs.contract, rhs.free)
        product = e.bb.emit(relax.op.matmul(left, right))
        return [e.bb.emit(relax.op.reshape(product, result.shape))]
    return [e.te(_contraction(lhs, rhs, result), lhs.value, rhs.value, name="contraction")]


def _contraction(
    lhs: _Factor, rhs: _Factor, result: HloType
) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """Writes a product of any layout as one loop nest, indexed as the dimension numbers say."""
    batch, rows = len(lhs.batch), len(lhs.free)
    extents = [lhs.shape[d] for d in lhs.contract]
    accumulate = accumulator(result.dtype)

    def contract(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, n), name=f"k{i}") for i, n in enumerate(extents)]

        def element(*index: Expr) -> Expr:
            at_a = lhs.at(index[:batch], index[batch : batch + rows], axes)
            at_b = rhs.at(index[:batch], index[batch + rows :], axes)
            x, y = (
                tirx.Cast(accumulate, scalar_rules.load(a(*at_a))),
                tirx.Cast(accumulate, scalar_rules.load(b(*at_b))),
            )
            return summation(accumulate, x, y, axes)

        total = te.compute(result.shape, element, name="contraction")
        return total if accumulate == result.dtype else rounded(total, result)

    return contract


def _pays_to_move(
    lhs: HloValue, rows: list[int], rhs: HloValue, columns: list[int], result: Sequence[int]
) -> bool:
    """Tells whether a matmul repays moving batches to the front, as in attention over long texts.

    An element is moved once and read as often as the other operand has rows or columns. Of few the
    loop nest takes a third to two thirds of the time. Weights by values, of 197 tokens and 64
    channels a head, take .39 of the nest's time as a matmul, .52 of 32 channels.
    """
    shapes = (lhs.type.shape, rhs.type.shape)
    if not all(isinstance(n, int) for shape in (*shapes, result) for n in shape):
        return False
    counts = (
        math.prod(shape[d] for d in axes)
        for shape, axes in zip(shapes, (rows, columns), strict=True)
    )
    return all(n >= least for n, least in zip(sorted(counts), _MOVED, strict=True))


def _moved(
    e: Emitter, operand: HloValue, batch: list[int], rows: list[int], columns: list[int]
) -> relax.Expr:
    """Emits an operand as batches of matrices."""
    shape, order = operand.type.shape, [*batch, *rows, *columns]
    tensor = e.tensor(operand)
    if order != list(range(len(order))):
        tensor = e.bb.emit(relax.op.permute_dims(tensor, order))
    matrix = [shape[d] for d in batch] + [
        math.prod(shape[d] for d in axes) for axes in (rows, columns)
    ]
    return e.bb.emit(relax.op.reshape(tensor, matrix)) if len(matrix) < len(shape) else tensor


def _emit_inner(
    e: Emitter, node: HloNode, lhs: HloValue, rhs: HloValue, contracted: int
) -> relax.Expr | None:
    """Emits a product of which both operands are contracted along their innermost dimension.

    Returns None where another layout of the loops is better.
    """
    dtype = node.result.type.dtype
    if dtype not in ("float32", "float64") or not lhs.type.dtype == rhs.type.dtype == dtype:
        return None
    rows = math.prod(lhs.type.shape[:-1])
    innermost = contracted == len(rhs.type.shape) - 1
    # A pass over rhs to transpose it is repaid by the tiled matmul over several rows; a weight, as
    # PyTorch has it, is transposed once and for all.
    transposed = rows >= _TRANSPOSED_ROWS or e.is_read_once(rhs)
    if innermost and len(rhs.type.shape) == 2 and transposed:
        right = e.bb.emit(relax.op.permute_dims(e.tensor(rhs)))
        return e.bb.emit(relax.op.matmul(e.tensor(lhs), right))
    if not innermost:  # it may be a transpose of what was
        source = rhs.node
        if source is None or source.name != "stablehlo.transpose" or rows >= _TRANSPOSED_ROWS:
            return None
        if integers(source.op, "permutation") != [1, 0]:
            return None
        rhs = source.operands[0]
        # A weight's transpose is made once and for all, and multiplied as any matrix.
        if e.is_read_once(rhs):
            return None
    lanes = lanes_of(lhs.type.shape[-1])
    return e.te(_inner_products(lanes), lhs, rhs, name="contraction") if lanes else None


def _inner_products(lanes: int) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """Contracts the innermost dimensions of two tensors, with one partial result per lane."""

    def contract(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        *rows, length = a.shape
        columns = list(b.shape[:-1])
        # A single sum would be a chain of dependent additions, as long as the dimension.
        chunk = te.reduce_axis((0, length // lanes), name="chunk")

        def partial(*index: Expr) -> Expr:
            k = chunk * lanes + index[-1]
            return te.sum(a(*index[: len(rows)], k) * b(*index[len(rows) : -1], k), axis=chunk)

        partials = te.compute([*rows, *columns, lanes], partial, name="lanes")
        lane = te.reduce_axis((0, lanes), name="lane")
        return te.compute(
            [*rows, *columns], lambda *i: te.sum(partials(*i, lane), axis=lane), name="contraction"
        )

    return contract


def summation(dtype: str, x: Expr, y: Expr, axes: Sequence[tirx.IterVar]) -> Expr:
    """Sums ``x * y`` over reduction axes; integers wrap around, booleans are and/or."""
    if not axes:
        return _product(dtype, x, y)
    if scalar_rules.is_float(dtype):
        return te.sum(x * y, axis=list(axes))

    def add(a: Expr, b: Expr) -> Expr:
        scope = scalar_rules.Scope()
        return scope.wrap(
            scalar_rules.apply_scalar(
                "stablehlo.add", scope, scalar_rules.ScalarOp(dtype, None), a, b
            )
        )

    # TVM marks its own integer sums as never overflowing; StableHLO's wrap around.
    reducer = te.comm_reducer(add, lambda t: tirx.const(0, t), name="wrapping_sum")
    return reducer(_product(dtype, x, y), axis=list(axes))


def _product(dtype: str, x: Expr, y: Expr) -> Expr:
    scope = scalar_rules.Scope()
    return scope.wrap(
        scalar_rules.apply_scalar(
            "stablehlo.multiply", scope, scalar_rules.ScalarOp(dtype, None), x, y
        )
    )


def _rest(rank: int, *taken: Sequence[int]) -> list[int]:
    used = {d for dims in taken for d in dims}
    return [d for d in range(rank) if d not in used]


def _position(rank: int, *parts: tuple[Sequence[int], Sequence]) -> list:
    at: list = [None] * rank
    for dims, indices in parts:
        for d, index in zip(dims, indices, strict=True):
            at[d] = index
    return at


@dataclasses.dataclass(frozen=True)
class ConvolutionWindow:
    """A convolution's attributes, defaults filled in; one entry for each spatial dimension."""

    strides: list[int]
    padding: list[tuple[int, int]]
    lhs_dilation: list[int]
    rhs_dilation: list[int]
    reversal: list[bool]
    feature_groups: int
    batch_groups: int

    @classmethod
    def of(cls, op: ir.Operation, spatial: int) -> ConvolutionWindow:
        """Reads the attributes of a ``stablehlo.convolution``."""
        ones = [1] * spatial
        return cls(
            strides=integers(op, "window_strides", ones),
            padding=padding(op, spatial),
            lhs_dilation=integers(op, "lhs_dilation", ones),
            rhs_dilation=integers(op, "rhs_dilation", ones),
            reversal=[bool(r) for r in integers(op, "window_reversal", [0] * spatial)],
            feature_groups=attribute(op, "feature_group_count"),
            batch_groups=attribute(op, "batch_group_count"),
        )


@rule("stablehlo.convolution")
def _convolution(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    numbers = stablehlo.ConvDimensionNumbers(node.op.attributes["dimension_numbers"])
    window = ConvolutionWindow.of(node.op, len(numbers.input_spatial_dimensions))
    layouts = _relax_layouts(node, numbers, window)
    if layouts is not None:
        data_layout, kernel_layout = layouts
        (top, bottom), (left, right) = window.padding
        return [
            e.bb.emit(
                relax.op.nn.conv2d(
                    e.tensor(node.operands[0]),
                    e.tensor(node.operands[1]),
                    strides=window.strides,
                    padding=[top, left, bottom, right],
                    dilation=window.rhs_dilation,
                    groups=window.feature_groups,
                    data_layout=data_layout,
                    kernel_layout=kernel_layout,
                )
            )
        ]
    return [e.te(_direct(node, numbers, window), *node.operands, name="convolution")]


def _relax_layouts(node: HloNode, numbers, window: ConvolutionWindow) -> tuple[str, str] | None:  # type: ignore[no-untyped-def]
    """Returns the layouts for ``relax.op.nn.conv2d``, or None where it has no such convolution."""
    lhs, rhs = node.operands
    # conv2d takes two spatial dimensions, one group, no dilated input, no reversal, no cropping.
    dtypes = {lhs.type.dtype, rhs.type.dtype, node.result.type.dtype}
    if (
        len(window.strides) != 2
        or dtypes not in ({"float32"}, {"float64"})
        or window.lhs_dilation != [1, 1]
        or any(window.reversal)
        or window.batch_groups != 1
        or window.feature_groups != 1
        or any(p < 0 for pair in window.padding for p in pair)
    ):
        return None
    data = _layout(
        "NC", numbers.input_batch_dimension, numbers.input_feature_dimension,
        numbers.input_spatial_dimensions,
    )  # fmt: skip
    out = _layout(
        "NC", numbers.output_batch_dimension, numbers.output_feature_dimension,
        numbers.output_spatial_dimensions,
    )  # fmt: skip
    kernel = _layout(
        "OI", numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension,
        numbers.kernel_spatial_dimensions,
    )  # fmt: skip
    if data != out or (data, kernel) not in (("NHWC", "HWIO"), ("NCHW", "OIHW")):
        return None
    return data, kernel


def _layout(pair: str, first: int, second: int, spatial: Sequence[int]) -> str:
    letters = {first: pair[0], second: pair[1], spatial[0]: "H", spatial[1]: "W"}
    return "".join(letters[d] for d in range(4))


def _direct(node: HloNode, numbers, window: ConvolutionWindow):  # type: ignore[no-untyped-def]
    """Writes a convolution of any rank and attributes as one reduction over a padded input."""
    lhs, rhs = node.operands
    result = node.result.type
    accumulate = accumulator(result.dtype)
    in_spatial = list(numbers.input_spatial_dimensions)
    kernel_spatial = list(numbers.kernel_spatial_dimensions)
    in_batch, in_feature = numbers.input_batch_dimension, numbers.input_feature_dimension
    kernel_size = [rhs.type.shape[d] for d in kernel_spatial]
    group_in = rhs.type.shape[numbers.kernel_input_feature_dimension]
    out_features = rhs.type.shape[numbers.kernel_output_feature_dimension]
    group_out = out_features // (window.feature_groups * window.batch_groups)
    batch_per_group = lhs.type.shape[in_batch] // window.batch_groups

    # Padding and dilation first, in a tensor of their own: the sum then has no condition inside.
    padded_shape, low, interior = _padding_of(lhs.type.shape, in_spatial, window)
    needs_padding = padded_shape != list(lhs.type.shape) or any(low)

    def convolve(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        if needs_padding:
            data = te.compute(padded_shape, lambda *i: _padded(x, i, low, interior), name="padded")
        else:
            data = x
        channel = te.reduce_axis((0, group_in), name="rc")
        taps = [te.reduce_axis((0, n), name=f"r{i}") for i, n in enumerate(kernel_size)]

        def element(*index: Expr) -> Expr:
            feature = index[numbers.output_feature_dimension]
            batch = index[numbers.output_batch_dimension]
            # Groups are runs of neighbouring output features, each with its own input channels.
            group = tirx.floordiv(feature, group_out)
            at_x: list = [None] * len(padded_shape)
            at_w: list = [None] * len(rhs.type.shape)
            at_x[in_batch], at_x[in_feature] = batch, channel
            if window.feature_groups > 1:
                at_x[in_feature] = group * group_in + channel
            if window.batch_groups > 1:
                at_x[in_batch] = group * batch_per_group + batch
            at_w[numbers.kernel_input_feature_dimension] = channel
            at_w[numbers.kernel_output_feature_dimension] = feature
            for k, tap in enumerate(taps):
                out = index[numbers.output_spatial_dimensions[k]]
                at_x[in_spatial[k]] = out * window.strides[k] + tap * window.rhs_dilation[k]
                at_w[kernel_spatial[k]] = kernel_size[k] - 1 - tap if window.reversal[k] else tap
            a, b = (
                tirx.Cast(accumulate, scalar_rules.load(data(*at_x))),
                tirx.Cast(accumulate, scalar_rules.load(w(*at_w))),
            )
            return summation(accumulate, a, b, [channel, *taps])

        total = te.compute(result.shape, element, name="convolution")
        if accumulate == result.dtype:
            return total
        return rounded(total, result)

    return convolve


def _padding_of(
    shape: Sequence[int], spatial: Sequence[int], window: ConvolutionWindow
) -> tuple[list[int], list[int], list[int]]:
    """Computes the padded input's shape, and of each axis the zeros before and between entries."""
    padded = list(shape)
    low, interior = [0] * len(padded), [0] * len(padded)
    for d, (lo, hi), dilation in zip(spatial, window.padding, window.lhs_dilation, strict=True):
        # Dilation by d puts d - 1 zeros between neighbours.
        padded[d] = (padded[d] - 1) * dilation + 1 + lo + hi
        low[d], interior[d] = lo, dilation - 1
    return padded, low, interior


def _padded(
    x: te.Tensor, index: Sequence[Expr], low: Sequence[int], interior: Sequence[int]
) -> Expr:
    shape = [int(d) for d in x.shape]
    inside, at = padded_index(index, low, interior, shape)
    element = scalar_rules.load(x(*at))
    if inside is None:
        return element
    return tirx.if_then_else(inside, element, tirx.const(0, scalar_rules.dtype_of(element)))
