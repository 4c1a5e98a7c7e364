"""Operations that move elements: reshapes, slices and pads, gathers and scatters.

Indices known only at run time are clamped as StableHLO says. Updates of a scatter, and of
select_and_scatter, are applied one after the other, in order.
"""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler.passes import WINDOW
from jaxeff_export.compiler.tir import clamped
from jaxeff_export.importer._arithmetic import negation
from jaxeff_export.importer._elementwise import evaluate_region, immediate, is_immediate
from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, HloValue, attribute, integers, padding
from jaxeff_export.importer._loops import CodeBuilder, Index, View, int64
from jaxeff_export.importer._scalar_rules import bits_of, store


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


@rule("stablehlo.scatter")
def _scatter(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    count = len(node.results)
    operands, updates = node.operands[:count], node.operands[count + 1 :]
    start_rank = len(node.operands[count].type.shape)
    if updates[0].type.size == 0:
        return [e.tensor(operand) for operand in operands]
    numbers = stablehlo.ScatterDimensionNumbers(node.op.attributes["scatter_dimension_numbers"])
    shape, update_shape = operands[0].type.shape, updates[0].type.shape
    update_window_dims = list(numbers.update_window_dims)
    scatter_dims = [d for d in range(len(update_shape)) if d not in update_window_dims]
    batching = list(numbers.input_batching_dims)
    indices_batching = list(numbers.scatter_indices_batching_dims)
    dropped = {*numbers.inserted_window_dims, *batching}
    window_dims = [d for d in range(len(shape)) if d not in dropped]
    extents = [1] * len(shape)
    for d, u in zip(window_dims, update_window_dims, strict=True):
        extents[d] = update_shape[u]
    index_map = list(numbers.scattered_dims_to_operand_dims)
    vector_dim = numbers.index_vector_dim

    def body(code: CodeBuilder, *views: View) -> None:
        inputs, starts = views[:count], views[count]
        news, writes = views[count + 1 : 2 * count + 1], views[2 * count + 1 :]
        for x, y in zip(inputs, writes, strict=True):
            code.copy(x, y, shape)
        with code.loops([update_shape[d] for d in scatter_dims]) as point:
            at: list[Expr] = [int64(0)] * len(shape)
            for k, d in enumerate(index_map):
                component: list[Index] = list(point)
                if vector_dim < start_rank:
                    component.insert(vector_dim, k)
                # Not clamped, unlike a gather's: what sticks out is dropped below.
                at[d] = code.let(tirx.Cast("int64", starts[*component]))
            for d, b in zip(batching, indices_batching, strict=True):
                at[d] = point[b if b < vector_dim else b - 1]
            inside = [
                tirx.all(at[d] >= 0, at[d] <= int64(shape[d] - extents[d])) for d in index_map
            ]
            window = [update_shape[d] for d in update_window_dims]
            # A window that leaves the operand anywhere is dropped as a whole.
            with code.when(*inside), code.loops(window) as offset:
                place, source = list(at), list(offset)
                for d, o in zip(window_dims, offset, strict=True):
                    place[d] = at[d] + o if d in index_map else o
                for d, p in zip(scatter_dims, point, strict=True):
                    source.insert(d, p)
                old, new = [y[*place] for y in writes], [x[*source] for x in news]
                _combine(code, node.op.regions[0], [*old, *new], writes, place)

    return e.kernel(body, node, name="scatter")


def _combine(
    code: CodeBuilder,
    region: ir.Region,
    arguments: Sequence[Expr],
    results: Sequence[View],
    place: Sequence[Expr],
) -> None:
    """Applies a region to scalars and writes its results."""
    values = evaluate_region(region, code, [code.let(x) for x in arguments])
    for y, value in zip(results, values, strict=True):
        y[*place] = value


@rule("stablehlo.select_and_scatter")
def _select_and_scatter(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    operand, source, _ = node.operands
    shape = operand.type.shape
    ones = [1] * len(shape)
    window = integers(node.op, "window_dimensions", ones)
    strides = integers(node.op, "window_strides", ones)
    low = [before for before, _ in padding(node.op, len(shape))]
    select, scatter = node.op.regions

    def body(code: CodeBuilder, x: View, news: View, init: View, y: View) -> None:
        with code.loops(shape) as everywhere:
            y[*everywhere] = init[()]
        with code.loops(source.type.shape) as point:
            # Positions in the padding are never chosen, so a window's best starts undefined.
            corner = [code.let(i * s - lo) for i, s, lo in zip(point, strides, low, strict=True)]
            selected = code.variable(tirx.const(False, "bool"))
            best = code.variable(x[(0,) * len(shape)])
            place = [code.variable(int64(0)) for _ in shape]
            with code.loops(window) as offset:
                at = [c + o for c, o in zip(corner, offset, strict=True)]
                inside = [
                    tirx.all(i >= 0, i < int64(n))
                    for i, n, w, s, lo in zip(at, shape, window, strides, low, strict=True)
                    if (w, s, lo) != (1, 1, 0)
                ]
                with code.when(*inside):
                    new = code.let(x[*at])
                    (keep,) = evaluate_region(select, code, [best[()], new])
                    # select(best, new) keeps the best: of equal elements the first one wins.
                    with code.when(tirx.Or(negation(selected[()]), negation(keep))):
                        best[()] = new
                        selected[()] = tirx.const(True, "bool")
                        for p, i in zip(place, at, strict=True):
                            p[()] = i
            with code.when(selected[()]):
                target = [p[()] for p in place]
                _combine(code, scatter, [y[*target], news[*point]], [y], target)

    return e.kernel(body, node, name="select_and_scatter")


@rule("stablehlo.reshape")
def _reshape(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    return [e.reshape(e.tensor(node.operands[0]), node.result.type.shape)]


@rule("stablehlo.optimization_barrier")
def _barrier(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    return [e.tensor(operand) for operand in node.operands]


@rule("stablehlo.transpose")
def _transpose(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    axes, source = integers(node.op, "permutation"), node.operands[0]
    # Layers that lie otherwise than their kernels want are moved twice: there and back is nowhere.
    while source.node is not None and source.node.name == "stablehlo.transpose":
        before = integers(source.node.op, "permutation")
        axes, source = [before[axis] for axis in axes], source.node.operands[0]
    operand = e.tensor(source)
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

    Per dimension, `low` elements of padding stand before the first (it may be negative) and
    `interior` between neighbours. `extent` is one more than the largest value of `index`, where
    known: dimensions that need no check are left out. Returns the condition that the position holds
    an element (None: always), and the element's index.
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
