"""Tiles of results that registers hold at once, chosen for a processor.

A convolution to few features takes vectors of pixels instead of features. Six features fill six
lanes of sixteen, and are loaded and stored in odd widths. Where neighbouring pixels of the input
are neighbours in memory (images of one channel, stride 1), a row of pixels is the vector: a
feature's weight is one number for all of them. The tile is turned on its way out, from rows of
pixels to rows of features, in a loop that LLVM vectorises by interleaving.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, Schedule
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features

from jaxeff_export.compiler.tir import index_uses

_ACCUMULATORS = 20  # of 32 registers; the rest hold operands
_ACCUMULATORS_UNROLLED = 12
LANED = 4  # elements of NEON's vectors, one of which a product may take of each
_IN_FLIGHT = 8  # sums that hide the latency of a fused multiply-add
# Microcontrollers with a floating-point unit and no vectors: 32 registers of one number each. Sums
# of vectors of four would be twice what there is room for, and go to memory and back.
_NUMBER_BY_NUMBER = ("cortex-m4", "cortex-m7", "cortex-m33")
_FARTHER = 2.25  # a load of weights, in loads of data
_WORTH_OVERLAP = 1.3  # times fewer loads; tiles that divide the extents compute nothing twice


@dataclasses.dataclass(frozen=True)
class Machine:
    """The properties of a processor that schedules depend on."""

    lanes: int  # float32 elements in a vector register
    registers: int
    cores: int
    tiling: Tiling | None = None  # what tuning tries; the rules below by default

    @classmethod
    def of(cls, target: Target) -> Machine:
        """Reads a target by its features: TVM's own vector width is AVX-512's on every x86."""
        cores = int(target.attrs.get("num-cores", 1))
        for feature, lanes, registers in (("avx512f", 16, 32), ("avx", 8, 16), ("neon", 4, 32)):
            if llvm_cpu_has_features(feature, target):
                return cls(lanes, registers, cores)
        if str(target.attrs.get("mcpu")) in _NUMBER_BY_NUMBER:
            return cls(1, 32, cores)
        return cls(4, 16, cores)


ANY_MACHINE = Machine(lanes=8, registers=16, cores=1)


@dataclasses.dataclass(frozen=True)
class RegisterTile:
    """The part of a result that registers hold at once: rows of outer dimensions, and vectors.

    Rows of the last outer dimension need not divide it: the last tile then begins early, and
    computes some rows again (`tir.overlap_tiles`).
    """

    rows: list[int]
    vectors: int
    width: int  # elements of the last dimension in a vector
    columns_first: bool = False  # walk the last dimension outermost: its weights stay in the cache

    @property
    def columns(self) -> int:
        """Returns the elements of the last dimension."""
        return self.vectors * self.width


# Of extents, for so many results, of weights of which so many columns lie together.
Tiling = Callable[[list[int], Machine, int, int | None], RegisterTile]


def sum_registers(machine: Machine, depth: int) -> int:
    """Counts the registers that may hold sums, given the terms of the innermost loop.

    LLVM unrolls a loop of few terms (the channels of an image) with the one around it. Where
    instructions take no operand from memory, the weights of all terms are in registers too.
    """
    # x86 multiplies by a number in memory; NEON loads every weight into a register first.
    unrolled = machine.lanes == LANED and depth < LANED
    return (_ACCUMULATORS_UNROLLED if unrolled else _ACCUMULATORS) * machine.registers // 32


def tile_of(blocks: Sequence[s_tir.SBlock], machine: Machine) -> RegisterTile:
    """Chooses the tile of contractions that will be one block and aren't scheduled yet."""
    extents: dict[bool, list[int]] = {False: [], True: []}
    for v in blocks[0].iter_vars:
        n = int(v.dom.extent) if isinstance(v.dom.extent, tirx.IntImm) else 1
        extents[v.iter_type == tirx.IterVar.CommReduce].append(n)
    results = sum(len(block.writes) for block in blocks)
    return register_tile(extents[False], machine, results, None, extents[True][-1])


def register_tile(
    extents: list[int], machine: Machine, results: int, together: int | None, depth: int
) -> RegisterTile:
    """Chooses the tile of each result; ``together`` columns of the weights lie side by side.

    Vectors fill a register as well as they can; wider ones than a register are not promoted to
    registers unless their width is a power of two, which costs a factor of ten.
    """
    # The widest equal vectors: a divisor, so that no remainder is left.
    width = max(d for d in divisors(extents[-1]) if d <= machine.lanes)
    budget = sum_registers(machine, depth) // results
    across = [d for d in divisors(extents[-1] // width) if d == 1 or d <= budget]
    if together is not None:
        across = [v for v in across if v * width == together] or across
    # rows * vectors sums have to stay within the budget; what vectors leave goes to rows.
    rows = {v: _rows(extents[:-1], max(1, budget // v)) for v in across}
    tiles = [RegisterTile(rows[v], v, width, columns_first=together is not None) for v in across]
    best = min(tiles, key=_loads)
    if len(extents) < 2:
        return best

    def cost(tile: RegisterTile) -> float:
        computed = math.ceil(extents[-2] / tile.rows[-1]) * tile.rows[-1]
        return _loads(tile) * computed / extents[-2]

    # A prime number of rows, such as 196 patches and a class token, is divided by one row alone.
    overlapping = [
        dataclasses.replace(tile, rows=[*[1] * (len(extents) - 2), n])
        for tile in tiles
        for n in range(1, min(extents[-2], max(1, budget // tile.vectors)) + 1)
    ]
    other = min(overlapping, key=cost)
    return other if cost(other) * _WORTH_OVERLAP < _loads(best) else best


def partial_tile(extents: list[int], machine: Machine) -> RegisterTile | None:
    """Chooses the tile of partial results, one row of which lies along the last dimension.

    Rows share no operands, so one at a time is enough; there is none where vectors don't fill
    registers (`register_tile`).
    """
    width = math.gcd(extents[-1], machine.lanes)
    if width < machine.lanes:
        return None
    return RegisterTile([1] * (len(extents) - 1), extents[-1] // width, width)


def _rows(extents: list[int], most: int) -> list[int]:
    """Chooses how many rows of each dimension to compute at once, from the last on."""
    rows = [1] * len(extents)
    for d in reversed(range(len(rows))):
        rows[d] = max(n for n in divisors(extents[d]) if n <= most)
        most //= rows[d]
    return rows


def _loads(tile: RegisterTile) -> float:
    """Estimates loads per vector of products: an element of data a row, and vectors of weights.

    Weights count more, as they come from farther away. Too few sums wait for each other.
    """
    rows = math.prod(tile.rows)
    loads = 1 / tile.vectors + _FARTHER / rows
    return loads * max(1.0, _IN_FLIGHT / (rows * tile.vectors))


def divisors(n: int) -> list[int]:
    """Lists the divisors of `n` in rising order."""
    return [d for d in range(1, n + 1) if n % d == 0]


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

    `accumulators` is the number of registers that may hold sums, of `lanes` lanes each.
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

    `loops` are the spatial loops (image, row, pixel, feature), and those it reduces over;
    `epilogue` is what follows, element by element. Returns the loop over strips.
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
        across, channel = sch.get_loops(copy)[-2:]
        copied, elements = sch.split(across, [strip.vectors, strip.width])
        sch.reorder(channel, copied, elements)
        for loop in (channel, copied):
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
