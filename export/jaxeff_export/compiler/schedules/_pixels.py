"""Convolutions to few features: vectors of pixels instead of features.

Six features fill six lanes of sixteen, and are loaded and stored in odd widths. Where neighbouring
pixels of the input are neighbours in memory (images of one channel, stride 1), a row of pixels is
the vector: a feature's weight is one number for all of them. The tile is turned on its way out,
from rows of pixels to rows of features, in a loop that LLVM vectorises by interleaving.
"""

from __future__ import annotations

import dataclasses

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, Schedule

from jaxeff_export.compiler.tir import index_uses

_BETTER = 1.3  # times more lanes in use make up for turning the tile
_STACK_FLOATS = 256  # TVM keeps a local buffer on the stack below 1024 bytes


@dataclasses.dataclass(frozen=True)
class Strip:
    """All features of a strip of pixels, which are computed at once.

    Attributes:
        vectors: number of vectors of pixels, side by side.
        width: pixels in a vector.
    """

    vectors: int
    width: int


def strip_of(block: s_tir.SBlock, lanes: int, accumulators: int) -> Strip | None:
    """Chooses the strip to compute a contraction in; None if vectors of features are better.

    Args:
        block: the contraction.
        lanes: number of lanes of a vector register.
        accumulators: number of registers that may hold sums.
    """
    spatial = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if len(spatial) != 4 or not all(isinstance(v.dom.extent, tirx.IntImm) for v in block.iter_vars):
        return None
    pixel, feature = spatial[-2:]
    columns, features = int(pixel.dom.extent), int(feature.dom.extent)
    sums = features * len(block.writes)
    width = max(d for d in range(1, lanes + 1) if columns % d == 0)
    # All features of a strip stay in registers: one sum each, for every vector of pixels.
    if features >= lanes or width < _BETTER * features or sums > accumulators:
        return None
    # The turned tile is a local buffer, which has to stay on the stack.
    if features * width > _STACK_FLOATS or not _walks_rows(block, pixel, feature):
        return None
    most = min(accumulators // sums, _STACK_FLOATS // (features * width))
    vectors = max(d for d in range(1, most + 1) if columns // width % d == 0)
    return Strip(vectors, width)


def _walks_rows(block: s_tir.SBlock, pixel: tirx.IterVar, feature: tirx.IterVar) -> bool:
    """Tells whether the next pixel reads the next number, and the next feature the next weight."""
    loads: list[tvm.ir.TensorLoad] = []
    tvm_ffi.structural_walk(block.body, (tvm.ir.TensorLoad, loads.append))
    written = {region.source for region in block.writes}
    data = 0
    for load in loads:
        if load.source in written:
            continue
        moves = [i for i, index in enumerate(load.indices) if index_uses(index, pixel)]
        if not moves:
            continue
        # Data that differs by feature (a depthwise layer) is no shared vector of pixels.
        if any(index_uses(index, feature) for index in load.indices):
            return False
        rank = len(load.indices)
        # One channel: the next pixel is the next element, so a row is a vector without gathering.
        if moves != [rank - 2] or int(load.source.shape[-1]) != 1:
            return False
        if not _is_next(load.indices[rank - 2], pixel):
            return False
        data += 1
    return data > 0


def _is_next(index: tirx.Expr, pixel: tirx.IterVar) -> bool:
    """Tells whether an index is the pixel plus something else."""
    if isinstance(index, tirx.Add):
        sides = [index.a, index.b]
        using = [side for side in sides if index_uses(side, pixel)]
        return len(using) == 1 and _is_next(using[0], pixel)
    return isinstance(index, tirx.Var) and bool(index.same_as(pixel.var))


def tile_strip(
    sch: Schedule,
    block: SBlockRV,
    loops: tuple[list[LoopRV], list[LoopRV]],
    strip: Strip,
    epilogue: list[SBlockRV],
) -> LoopRV:
    """Schedules a convolution strip by strip.

    Args:
        sch: the schedule.
        block: the contraction.
        loops: the spatial loops (image, row, pixel, feature), and those it reduces over.
        strip: the pixels to compute at once.
        epilogue: what follows it, element by element.

    Returns:
        The loop over strips.
    """
    # [feature, pixel] in the tile: vectors of pixels are stored whole, and turned on the way out.
    turned = lambda n, h, w, c: [n, h, c, w]  # noqa: E731
    results = range(len(sch.get(block).writes))
    copies = [sch.cache_write(block, i, "global") for i in results]
    for i, copy in zip(results, copies, strict=True):
        sch.transform_layout(block, ("write", i), turned)
        sch.transform_layout(copy, ("write", 0), turned)
    (image, row, pixel, feature), reduced = loops
    strips, vectors, lanes = sch.split(pixel, [None, strip.vectors, strip.width])
    sch.reorder(image, row, strips, *reduced, feature, vectors, lanes)
    outer = sch.fuse(image, row, strips)
    for copy in copies:
        sch.reverse_compute_at(copy, outer, preserve_unit_loops=True)
        across, own = sch.get_loops(copy)[-2:]
        copied, elements = sch.split(across, [strip.vectors, strip.width])
        sch.reorder(own, copied, elements)
        for loop in (own, copied):
            sch.unroll(loop)
        sch.vectorize(elements)
    for following in epilogue:
        sch.reverse_compute_at(following, outer, preserve_unit_loops=True)
        sch.unroll(sch.get_loops(following)[-1])
    # Sums of all features and vectors are unrolled: registers need constant indices.
    for loop in (feature, vectors):
        sch.unroll(loop)
    sch.vectorize(lanes)
    return outer
