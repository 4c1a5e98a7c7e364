"""Operations that only move elements."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import Emitter, immediate, is_immediate, rule
from jaxeff_export.importer.reading import HloNode, attribute, integers
from jaxeff_export.importer.scalar import bits_of, store


@rule("stablehlo.reshape")
def _reshape(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    return [e.reshape(e.tensor(node.operands[0]), node.result.type.shape)]


@rule("stablehlo.transpose")
def _transpose(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    axes = integers(node.op, "permutation")
    operand = e.tensor(node.operands[0])
    if axes == list(range(len(axes))):
        return [operand]
    return [e.bb.emit(relax.op.permute_dims(operand, axes))]


@rule("stablehlo.slice")
def _slice(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    starts = integers(node.op, "start_indices")
    strides = integers(node.op, "strides")

    def take(x: te.Tensor) -> te.Tensor:
        return te.compute(
            node.result.type.shape,
            lambda *i: x(*(s + k * d for s, k, d in zip(starts, i, strides, strict=True))),
            name="slice",
        )

    return [e.te(take, node.operands[0], name="slice")]


@rule("stablehlo.reverse")
def _reverse(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    dims = set(integers(node.op, "dimensions"))
    shape = node.result.type.shape

    def flip(x: te.Tensor) -> te.Tensor:
        return te.compute(
            shape,
            lambda *i: x(*(shape[d] - 1 - k if d in dims else k for d, k in enumerate(i))),
            name="reverse",
        )

    return [e.te(flip, node.operands[0], name="reverse")]


@rule("stablehlo.concatenate")
def _concatenate(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    axis = attribute(node.op, "dimension")
    # TVM cannot load operands without elements, and they contribute nothing.
    tensors = [e.tensor(v) for v in node.operands if v.type.size]
    if len(tensors) == 1:
        return tensors
    return [e.bb.emit(relax.op.concat(tensors, axis))]


@rule("stablehlo.pad")
def _pad(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    low = integers(node.op, "edge_padding_low")
    interior = integers(node.op, "interior_padding")
    operand, value = node.operands
    result = node.result.type
    if operand.type.size == 0:
        fill = e.bb.emit(relax.op.broadcast_to(e.tensor(value), result.shape))
        return [fill]

    def pad(x: te.Tensor, fill: te.Tensor | None = None) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            inside, at = padded_index(index, low, interior, operand.type.shape)
            outside = store(immediate(value), result.dtype) if fill is None else fill()
            return x(*at) if inside is None else tirx.if_then_else(inside, x(*at), outside)

        return te.compute(result.shape, element, name="pad")

    if is_immediate(value):
        return [e.te(pad, operand, name="pad")]
    return [e.te(pad, operand, value, name="pad")]


def padded_index(
    index: Sequence[Expr],
    low: Sequence[int],
    interior: Sequence[int],
    shape: Sequence[int],
    extent: Sequence[int] | None = None,
) -> tuple[Expr | None, list[Expr]]:
    """Maps an index of a padded tensor to the tensor itself.

    Args:
        index: the position in the padded tensor.
        low: elements of padding before the first, per dimension; may be negative.
        interior: elements of padding between neighbours, per dimension.
        shape: shape of the tensor without its padding.
        extent: one more than the largest value of ``index``, where known: dimensions that need
            no check are left out.

    Returns:
        The condition that the position holds an element (None: always), and the element's index.
    """
    conditions, at = [], []
    for d, (i, lo, gap, size) in enumerate(zip(index, low, interior, shape, strict=True)):
        position = i - lo if lo else i
        if gap:
            step = tirx.const(gap + 1, "int64")
            conditions.append(tirx.EQ(tirx.floormod(position, step), tirx.const(0, "int64")))
            position_in = tirx.floordiv(position, step)
        else:
            position_in = position
        # The window's furthest position lies on the last element or before: nothing to check.
        covers = extent is not None and lo <= 0 and extent[d] - lo <= (size - 1) * (gap + 1) + 1
        if lo > 0:
            conditions.append(position >= 0)
        if not covers:
            conditions.append(position_in < size)
        at.append(position_in)
    return (tirx.all(*conditions) if conditions else None), at


@rule("stablehlo.bitcast_convert")
def _bitcast_convert(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    source, target = node.operands[0].type, node.result.type
    narrow, wide = sorted((bits_of(source.dtype), bits_of(target.dtype)))

    def same(x: te.Tensor) -> te.Tensor:
        return te.compute(
            target.shape, lambda *i: _reinterpret(target.dtype, x(*i)), name="bitcast"
        )

    def split(x: te.Tensor) -> te.Tensor:  # one wide element to several narrow ones
        def element(*i: Expr) -> Expr:
            bits = _reinterpret(f"uint{wide}", x(*i[:-1]))
            # The first narrow element has the lowest bits, as in XLA and little-endian memory.
            shift = tirx.Cast(f"uint{wide}", i[-1] * narrow)
            return _reinterpret(target.dtype, tirx.Cast(f"uint{narrow}", bits >> shift))

        return te.compute(target.shape, element, name="bitcast")

    def join(x: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            total = None
            for k in range(wide // narrow):
                bits = _reinterpret(f"uint{narrow}", x(*i, tirx.const(k, "int64")))
                part = tirx.Cast(f"uint{wide}", bits) << tirx.const(k * narrow, f"uint{wide}")
                total = part if total is None else total | part
            return _reinterpret(target.dtype, total)

        return te.compute(target.shape, element, name="bitcast")

    several = split if bits_of(source.dtype) == wide else join
    return [e.te(same if narrow == wide else several, node.operands[0], name="bitcast")]


def _reinterpret(dtype: str, x: Expr) -> Expr:
    return x if str(x.ty.dtype) == dtype else tirx.reinterpret(dtype, x)
