"""Default CPU schedules: good loops without tuning.

There are three kinds of kernel, which differ in their blocks:

- a contraction (a block that reduces a product: matmul, convolution) gets a register tile: the
  innermost output dimension in vectors, the next ones unrolled, the reduction around them, and
  what follows it (bias, activation) applied while the tile is in registers;
- other reductions (pooling, sums) get the innermost output dimension vectorised;
- elementwise kernels are one vectorised loop.

Outer loops run in parallel when the kernel is worth a thread. A loop over a batch that only the
call determines is walked example by example: no tile reaches across it. A kernel that no rule below
fits keeps its plain loops.
"""

import dataclasses
import functools
import math

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, Schedule

from jaxeff_export.compiler import _tiles, tir
from jaxeff_export.compiler._merging import LONG, is_dear, merge_blocks
from jaxeff_export.compiler._tiles import Machine, strip_of

PARALLEL_WORK = 60_000  # multiply-adds; waking a thread costs some microseconds
_UNKNOWN = 16  # what a size that only the call tells counts as, when work is estimated
_NODES = 16  # expression nodes of a multiply-add: two loads and their indices
_SPARE = 4  # registers more for sums where weights are operands in memory
_FAR = 1 << 20  # bytes of a copy that doesn't stay in the second cache
_FAIR = 4  # images a core, from which on it matters little if one has one more


def schedule_cpu(mod: tvm.IRModule, machine: Machine) -> tvm.IRModule:
    """Schedules every kernel of a module; a kernel that no rule fits stays as it is."""
    return tir.map_kernels(mod, lambda function: _schedule_function(function, machine))


def _schedule_function(function: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    if "tirx.is_scheduled" in function.attrs:
        return function
    sch = schedule_kernel(merge_blocks(function), machine)
    return sch.mod["main"].with_attr("tirx.is_scheduled", True) if sch else function


def schedule_kernel(function: tirx.PrimFunc, machine: Machine) -> Schedule | None:
    """Schedules one kernel whose blocks are merged; None if no rule fits.

    The trace of the schedule can be applied to the same kernel again.
    """
    # A failed attempt leaves a half-changed schedule, so each starts from the kernel.
    for attempt in (_schedule, _schedule_simple):
        try:
            sch = Schedule(tvm.IRModule({"main": function}))
            attempt(sch, machine)
            return sch
        except (s_tir.ScheduleError, _NotForeseenError):
            continue
    return None


class _NotForeseenError(Exception):
    """The kernel does not have the form a schedule is for."""


def _schedule(sch: Schedule, machine: Machine) -> None:
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    contractions = [b for b in blocks if tir.is_contraction(sch.get(b))]
    # The rules tile one contraction, with what follows it as its epilogue.
    if len(contractions) > 1:
        raise _NotForeseenError
    for block in contractions:
        taken = [sch.get(b) for b in (block, *_tile_reduction(sch, block, machine))]
        blocks = [b for b in blocks if not any(sch.get(b).same_as(t) for t in taken)]
    _schedule_rest(sch, blocks, machine)


def _schedule_simple(sch: Schedule, machine: Machine) -> None:
    _schedule_rest(sch, sch.get_child_blocks(sch.get_sblock("root")), machine)


def _schedule_rest(sch: Schedule, blocks: list[SBlockRV], machine: Machine) -> None:
    for block in blocks:
        if _is_reduction(sch, block):
            _schedule_reduction(sch, block, machine)
        else:
            _schedule_spatial(sch, block, machine)


def _is_reduction(sch: Schedule, block: SBlockRV) -> bool:
    return any(v.iter_type == tirx.IterVar.CommReduce for v in sch.get(block).iter_vars)


def _vectorizable(sch: Schedule, block: SBlockRV) -> bool:
    """Tells whether TVM may vectorise a block; LLVM vectorises what is left to it.

    TVM mistypes vectors of booleans, and cannot have local variables in a vector's lanes.
    """
    body = sch.get(block).body
    buffers = [region.source for region in (*sch.get(block).reads, *sch.get(block).writes)]
    if any(str(buffer.ty.dtype) == "bool" for buffer in buffers):
        return False
    return not tir.becomes_locals(body)


def _epilogue(sch: Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Finds the blocks that write a tile out of registers: an elementwise consumer, or copies.

    A long chain of scalars is no epilogue: it runs fastest in a flat loop of its own.
    """
    consumers = sch.get_consumers(block)
    if len(consumers) == 1 and not _is_reduction(sch, consumers[0]):
        ours = _extents(sch, [x for x, k in _loops(sch, block) if k == "S"])
        theirs = _extents(sch, sch.get_loops(consumers[0]))
        if ours == theirs and not tir.becomes_locals(sch.get(consumers[0]).body):
            return consumers
    return [sch.cache_write(block, i, "global") for i in range(len(sch.get(block).writes))]


def _loops(sch: Schedule, block: SBlockRV) -> list[tuple[LoopRV, str]]:
    """Lists a block's loops, each S (spatial) or R (reduction); iterators have to match them."""
    loops = sch.get_loops(block)
    kinds = sch.get(block).iter_vars
    if len(loops) != len(kinds):
        raise _NotForeseenError
    reduce = tirx.IterVar.CommReduce
    return [
        (loop, "R" if v.iter_type == reduce else "S") for loop, v in zip(loops, kinds, strict=True)
    ]


def _extents(sch: Schedule, loops: list[LoopRV], unknown: int = 1) -> list[int]:
    """Returns the lengths of loops; a length that only the call tells counts as ``unknown``."""
    extents = [sch.get(loop).extent for loop in loops]
    return [int(n) if isinstance(n, tirx.IntImm) else unknown for n in extents]


def _turns(sch: Schedule, loops: list[LoopRV]) -> int:
    """Estimates how often the body of loops runs."""
    return math.prod(_extents(sch, loops, _UNKNOWN))


def _split_loop(sch: Schedule, loop: LoopRV, size: int) -> tuple[LoopRV, LoopRV]:
    """Splits a loop into pieces of a size; the last one is guarded where that doesn't divide it."""
    extent = sch.get(loop).extent
    outer = -(-int(extent) // size) if isinstance(extent, tirx.IntImm) else None
    first, second = sch.split(loop, [outer, size])
    return first, second


def _tile_reduction(sch: Schedule, block: SBlockRV, machine: Machine) -> list[SBlockRV]:
    """Tiles a reduction in registers; returns the blocks that were scheduled with it."""
    loops = _loops(sch, block)
    spatial = [loop for loop, kind in loops if kind == "S"]
    reduce_loops = [loop for loop, kind in loops if kind == "R"]
    extents = _extents(sch, spatial)
    if not all(isinstance(sch.get(loop).extent, tirx.IntImm) for loop in reduce_loops):
        raise _NotForeseenError
    turns = _turns(sch, spatial) * _turns(sch, reduce_loops)
    # Multiply-adds; a joined block of mean and variance has several in its body.
    work = turns * tir.count(sch.get(block).body, tirx.Mul)
    if not extents:
        return []
    epilogue = _epilogue(sch, block)
    depth = _extents(sch, reduce_loops)[-1]
    accumulators = _tiles.sum_registers(machine, depth)
    strip = strip_of(sch.get(block), machine.lanes, accumulators + _SPARE)
    if strip and not machine.tiling:
        _note_tile(sch, block, [strip.vectors * strip.width, extents[-1]])
        fused = _tiles.tile_strip(sch, block, (spatial, reduce_loops), strip, epilogue)
        return _begun(sch, block, fused, reduce_loops[0], work, machine, epilogue)
    choose = machine.tiling or functools.partial(_tiles.register_tile, depth=depth)
    tile = choose(extents, machine, len(sch.get(block).writes), tir.columns_of(sch.get(block)))
    _note_tile(sch, block, [*tile.rows, tile.columns])

    # Tiles divide the extents, so that no iteration is guarded and all loads are whole vectors.
    outer, inner = [], []
    for loop, size in zip(spatial, [*tile.rows, tile.columns], strict=True):
        o, i = _split_loop(sch, loop, size)
        outer.append(o)
        inner.append(i)
    # Blocked weights: all rows are computed with one block of columns while it is in the cache.
    if tile.columns_first:
        outer = [outer[-1], *outer[:-1]]
    # NEON multiplies by a lane of a vector: four neighbouring terms of data are one load.
    if machine.lanes == _tiles.LANED and depth % _tiles.LANED == 0:
        # Two results bring twice the operands, all of which LLVM loads first: half as many terms.
        several, each = _split_loop(
            sch, reduce_loops[-1], _tiles.LANED // len(sch.get(block).writes)
        )
        reduce_loops = [*reduce_loops[:-1], several]
        inner = [each, *inner]
    # Reductions run outside the tile: each step loads operands once for all sums in registers.
    sch.reorder(*outer, *reduce_loops, *inner)
    copies = _copied_by_image(sch, block, extents[0], tile, machine)
    # Images stay apart where copies are made per image; else tiles are one loop, shared evenly.
    shared = fused = sch.fuse(*outer[1 if copies else 0 :])
    for following in epilogue:
        sch.reverse_compute_at(following, fused, preserve_unit_loops=True)
        _in_registers(sch, following, sch.get_loops(following)[2 if copies else 1 :], tile)
    _in_registers(sch, block, inner, tile)
    for copy in copies:
        shared = outer[0]
        sch.compute_at(copy, shared, preserve_unit_loops=True)
    return [*_begun(sch, block, shared, reduce_loops[0], work, machine, epilogue), *copies]


def _note_tile(sch: Schedule, block: SBlockRV, extents: list[int]) -> None:
    """Writes a product's tile into its block, where `tiles_of` reads it."""
    if tir.is_contraction(sch.get(block)):
        sch.annotate(block, tir.TILE, extents)


def _copied_by_image(
    sch: Schedule, block: SBlockRV, images: int, tile: _tiles.RegisterTile, machine: Machine
) -> list[SBlockRV]:
    """Finds large padded copies that are best written image by image, just before they are read.

    Copies of all images at once would go to memory and come back. None are found where tiles of
    the same columns follow each other over all images, or images can't be shared evenly.
    """
    # A core that has one image more than the others makes them wait, unless each has several.
    even = images % machine.cores == 0 or images >= _FAIR * machine.cores
    dimensions = len(tile.rows)
    if images < 2 or dimensions < 3 or tile.rows[0] > 1 or tile.columns_first or not even:
        return []
    image = sch.get(block).iter_vars[0].var
    copies = []
    for producer in sch.get_producers(block):
        written = [region.source for region in sch.get(producer).writes]
        reads = [r.region for r in sch.get(block).reads if any(map(r.source.same_as, written))]
        alone = len(sch.get_consumers(producer)) == 1 and not _is_reduction(sch, producer)
        if (
            alone
            and sum(map(tir.bytes_of, written)) >= _FAR
            and all(r[0].min.same_as(image) for r in reads)
        ):
            copies.append(producer)
    return copies


def _begun(
    sch: Schedule,
    block: SBlockRV,
    tiles: LoopRV,
    first: LoopRV,
    work: int,
    machine: Machine,
    epilogue: list[SBlockRV],
) -> list[SBlockRV]:
    """Runs a loop over tiles in parallel, and starts sums before their first reduction loop."""
    if work >= PARALLEL_WORK and machine.cores > 1:
        sch.parallel(tiles)
    around = next(i for i, x in enumerate(sch.get_loops(block)) if _is_same(sch, x, first))
    # Sums start in registers too: unrolled and in vectors, like the tile.
    init = sch.decompose_reduction(block, first)
    # A loop over registers has to be unrolled, or LLVM keeps the sums in memory.
    for loop in sch.get_loops(init)[around:-1]:
        sch.unroll(loop)
    sch.vectorize(sch.get_loops(init)[-1])
    return epilogue


def _is_same(sch: Schedule, one: LoopRV, other: LoopRV) -> bool:
    return bool(sch.get(one).same_as(sch.get(other)))


def _in_registers(
    sch: Schedule, block: SBlockRV, loops: list[LoopRV], tile: _tiles.RegisterTile
) -> None:
    """Unrolls the loops over a tile and vectorises the innermost elements."""
    vectors, lanes = sch.split(loops[-1], [tile.vectors, tile.width])
    for loop in [*loops[:-1], vectors]:
        sch.unroll(loop)
    if _vectorizable(sch, block):
        sch.vectorize(lanes)


def _schedule_reduction(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    loops = _loops(sch, block)
    spatial = [x for x, k in loops if k == "S"]
    if not spatial or len(sch.get(block).writes) != 1:
        return
    # Pooling and the like: neighbouring results read neighbouring inputs, so vectors are of these.
    after = sch.get_consumers(block)
    along = _last_index_is_spatial(sch, block)
    # Partial results, of which a reduction of its own makes one afterwards: LLVM alone walks each
    # of them from end to end, one number at a time.
    if along and after and all(_is_reduction(sch, each) for each in after):
        partial = _tiles.partial_tile(_extents(sch, spatial), machine)
        if partial is not None:
            tiling = dataclasses.replace(machine, tiling=lambda *_: partial)
            _tile_reduction(sch, block, tiling)
            return
    if along and not after:
        _tile_reduction(sch, block, machine)
        return
    extents = _extents(sch, spatial)
    work = _turns(sch, [x for x, _ in loops])
    if work >= PARALLEL_WORK and machine.cores > 1:
        sch.parallel(spatial[0] if extents[0] > 1 else sch.fuse(*spatial))


def _last_index_is_spatial(sch: Schedule, block: SBlockRV) -> bool:
    """Tells whether neighbours in the output are computed from neighbours in every input."""
    iters = sch.get(block).iter_vars
    spatial = [v.var for v in iters if v.iter_type != tirx.IterVar.CommReduce]
    for read in sch.get(block).reads:
        if not read.region:
            continue
        index = read.region[-1].min
        if not tir.contains(index, tirx.Var, lambda v: v.same_as(spatial[-1])):
            return False
    return True


def _schedule_spatial(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    loops = sch.get_loops(block)
    if not loops or sch.get(loops[0]).kind == tirx.ForKind.PARALLEL:  # shared with another block
        return
    extents = _extents(sch, loops)
    if 0 in extents:  # fused, its index would be divided by nothing
        return
    # Nodes of the expression stand for its time, in units of a multiply-add.
    work = _turns(sch, loops) * max(1, tir.count(sch.get(block).body, object) // _NODES)
    threads = work >= PARALLEL_WORK and machine.cores > 1
    # LLVM vectorises the innermost loop. A short one it unrolls, to gather along the next.
    flat = _is_flat(sch.get(block)) and math.prod(extents) == _turns(sch, loops)
    if flat or is_dear(sch.get(block)):
        # Fused, a loop over channels is a remainder to what only channels have: no vectors. A core
        # without any has one loop less to count.
        least = LONG if machine.lanes == 1 else machine.lanes
        enough = LONG * machine.lanes if flat and threads else math.inf if flat else least
        # One loop without threads; with them, outer loops are left to share.
        while (
            len(loops) > 1
            and extents[-1] < enough
            and (flat or not _wraps_in_a_vector(extents[-1], machine))
        ):
            extents[-2:] = [extents[-2] * extents[-1]]
            loops[-2:] = [sch.fuse(*loops[-2:])]
    if threads and len(loops) > 1:
        sch.parallel(sch.fuse(*loops[:-1]))
    # A short loop LLVM unrolls before it looks for vectors, and then gathers along the next one.
    if (
        machine.lanes > 1
        and extents[-1] <= LONG
        and extents[-1] % machine.lanes == 0
        # A kernel of several results has several blocks in a loop.
        and all(
            _vectorizable(sch, each) and not is_dear(sch.get(each))
            for each in sch.get_child_blocks(loops[-1])
        )
    ):
        sch.vectorize(_split_loop(sch, loops[-1], machine.lanes)[1])


def _wraps_in_a_vector(extent: int, machine: Machine) -> bool:
    """Tells whether an index that starts again after so many turns may not be written for LLVM.

    Of a fused loop the inner index is the remainder by its extent, for a power of two a mask.
    LLVM 22 takes an array that is read at it for one that is read on and on, and loads a whole
    vector past the place where the index starts again: channels of positions get each other's
    values, or what lies behind the array. Vectors that end before that place are right.
    """
    return extent < machine.lanes and extent & (extent - 1) == 0


def _is_flat(block: s_tir.SBlock) -> bool:
    """Tells whether a block reads and writes whole arrays, element by element, and scalars."""
    at = [v.var for v in block.iter_vars]
    extents = [v.dom.extent for v in block.iter_vars]
    for region in (*(read for read in block.reads if len(read.region)), *block.writes):
        same = len(region.region) == len(at) and all(
            part.min.same_as(var) for part, var in zip(region.region, at, strict=True)
        )
        if not same or not tvm_ffi.structural_equal(list(region.source.shape), extents):
            return False
    return True
