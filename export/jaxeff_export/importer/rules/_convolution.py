"""convolution: ``relax.op.nn.conv2d`` for the common layouts, a direct loop for everything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import Emitter, accumulator, rounded, rule
from jaxeff_export.importer.reading import HloNode, attribute, integers, padding
from jaxeff_export.importer.rules._contraction import summation
from jaxeff_export.importer.rules._shapes import padded_index
from jaxeff_export.importer.scalar import dtype_of, load


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
    padded_shape = list(lhs.type.shape)
    low, interior = [0] * len(padded_shape), [0] * len(padded_shape)
    for d, (lo, hi), dilation in zip(in_spatial, window.padding, window.lhs_dilation, strict=True):
        # Dilation by d puts d - 1 zeros between neighbours.
        padded_shape[d] = (padded_shape[d] - 1) * dilation + 1 + lo + hi
        low[d], interior[d] = lo, dilation - 1
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
            a, b = tirx.Cast(accumulate, load(data(*at_x))), tirx.Cast(accumulate, load(w(*at_w)))
            return summation(accumulate, a, b, [channel, *taps])

        total = te.compute(result.shape, element, name="convolution")
        if accumulate == result.dtype:
            return total
        return rounded(total, result)

    return convolve


def _padded(
    x: te.Tensor, index: Sequence[Expr], low: Sequence[int], interior: Sequence[int]
) -> Expr:
    shape = [int(d) for d in x.shape]
    inside, at = padded_index(index, low, interior, shape)
    element = load(x(*at))
    if inside is None:
        return element
    return tirx.if_then_else(inside, element, tirx.const(0, dtype_of(element)))
