"""gather, dynamic_slice and dynamic_update_slice: indices are clamped as StableHLO says."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir.dialects import stablehlo
from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler.passes import WINDOW
from jaxeff_export.compiler.tir import clamped
from jaxeff_export.importer.emission import Emitter, immediate, is_immediate, rule
from jaxeff_export.importer.reading import HloNode, HloValue, integers


@rule("stablehlo.gather")
def _gather(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    numbers = stablehlo.GatherDimensionNumbers(node.op.attributes["dimension_numbers"])
    sizes = integers(node.op, "slice_sizes")
    operand, indices = node.operands
    shape, vector_dim = operand.type.shape, numbers.index_vector_dim
    offset_dims = list(numbers.offset_dims)
    result = node.result.type
    batch_dims = [d for d in range(len(result.shape)) if d not in offset_dims]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window_dims = [d for d in range(len(shape)) if d not in dropped]
    operand_batching = list(numbers.operand_batching_dims)
    indices_batching = list(numbers.start_indices_batching_dims)
    index_map = list(numbers.start_index_map)

    def gather(x: te.Tensor, start: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            batch = [index[d] for d in batch_dims]

            def start_at(k: int) -> Expr:
                at = list(batch)
                # Beyond the last dimension, the index vector is a single number without an axis.
                if vector_dim < len(indices.type.shape):
                    at.insert(vector_dim, tirx.const(k, "int64"))
                return start(*at)

            at: list = [tirx.const(0, "int64")] * len(shape)
            for k, d in enumerate(index_map):
                at[d] = clamped(start_at(k), shape[d] - sizes[d])
            for d, b in zip(operand_batching, indices_batching, strict=True):
                # Positions in `batch` leave out the index vector's dimension.
                at[d] = batch[b if b < vector_dim else b - 1]
            for d, o in zip(window_dims, offset_dims, strict=True):
                at[d] = at[d] + index[o]
            return x(*at)

        return te.compute(result.shape, element, name="gather")

    return [e.te(gather, operand, indices, name="gather")]


@rule("stablehlo.dynamic_slice")
def _dynamic_slice(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    operand, *starts = node.operands
    result = node.result.type

    def take(x: te.Tensor, *runtime: te.Tensor) -> te.Tensor:
        # StableHLO clamps starts so that the slice lies inside: no element is checked.
        limits = [n - s for n, s in zip(operand.type.shape, result.shape, strict=True)]
        begin = _starts(starts, runtime, limits)
        return te.compute(
            result.shape,
            lambda *i: x(*(b + k for b, k in zip(begin, i, strict=True))),
            name="dynamic_slice",
        )

    return [e.te(take, operand, *_runtime(starts), name="dynamic_slice")]


@rule("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    operand, update, *starts = node.operands
    shape, window = operand.type.shape, update.type.shape
    if update.type.size == 0:
        return [e.tensor(operand)]
    # A window of the whole shape is clamped to start at zero.
    if shape == window:
        return [e.tensor(update)]

    def replace(x: te.Tensor, new: te.Tensor, *runtime: te.Tensor) -> te.Tensor:
        limits = [n - s for n, s in zip(shape, window, strict=True)]
        begin = _starts(starts, runtime, limits)

        def element(*index: Expr) -> Expr:
            inside, at = [], []
            for i, b, w, n in zip(index, begin, window, shape, strict=True):
                at.append(i - b)
                # Along a whole dimension the start is clamped to zero: every index is inside.
                if w != n:
                    inside += [i >= b, i - b < w]
            return tirx.if_then_else(tirx.all(*inside), new(*at), x(*index))

        return te.compute(shape, element, name="dynamic_update_slice")

    # Where the operand is state that a bundle keeps, the window alone is written (`_resident.py`).
    known = [_known(start) for start in starts]
    return [
        e.te(
            replace,
            operand,
            update,
            *_runtime(starts),
            name="dynamic_update_slice",
            marks={WINDOW: known},
        )
    ]


def _known(start: HloValue) -> int:
    """Returns a start that the program says, as XLA clamps it from below; -1 of others."""
    return max(0, int(start.constant.item())) if start.constant is not None else -1


def _runtime(starts: Sequence[HloValue]) -> list[HloValue]:
    return [v for v in starts if not is_immediate(v)]


def _starts(
    starts: Sequence[HloValue], runtime: Sequence[te.Tensor], limits: Sequence[int]
) -> list[Expr]:
    remaining = iter(runtime)
    return [
        clamped(immediate(v) if is_immediate(v) else next(remaining)(), limit)
        for v, limit in zip(starts, limits, strict=True)
    ]
