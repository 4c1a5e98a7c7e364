"""Products with weights of which two of four inputs are kept: values and their places.

A vector of values holds neighbours in the sums of as many outputs. Sixteen values of every output
share a dword of places in 2 bits, which one shift after the other moves to where shuffles read. A
shuffle by places picks the inputs out of a block that fills the vector, so that nothing is
multiplied by a zero and no weight is unpacked.

| instructions | inputs picked by | values at once |
|---|---|---|
| `vpdpbusd` (AVX-512 VNNI, AVX-VNNI) | `vpshufb` | 64, 32 |
| `vpsignb`, `vpmaddubsw`, `vpmaddwd` (AVX2) | `vpshufb` | 32 |
| `sdot`; `smull`, `smlal2`, `sadalp` (ARM) | `tbl` | 16 |
| products of float32 (AVX-512, AVX; ARM) | `vpermilps`; `tbl` | 16, 8; 4 |
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features
from tvm.tirx import Expr

from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators._statements import Vector, cast, const, index, load, splat
from jaxeff_export.operators.integer import _packed
from jaxeff_export.operators.integer._contraction import KernelPlan, vectors_of
from jaxeff_export.operators.integer._dots import Dot, call_intrinsic, dot_of, of_few
from jaxeff_export.operators.integer._layers import Geometry

_PLACES, _SECOND = 0x03030303, 0x04040000

Pick = Callable[[Callable[[int, int], Expr], Expr], Any]
"""`pick(load, places)`: inputs of values, of a function that loads the input of their blocks."""


@dataclasses.dataclass(frozen=True)
class SparseDot:
    """Products of values that are kept, on a processor.

    Attributes:
        dot: the products.
        pick: finds what they multiply.
        each: values of an output that an instruction takes.
    """

    dot: Dot
    pick: Pick
    each: int


def bytes_of(target: Target) -> SparseDot | None:
    """Chooses the instructions for codes; none on processors without shuffles of bytes."""
    dot = of_few(target, dot_of(target))
    has = functools.partial(llvm_cpu_has_features, target=target)
    if dot.name == "vpdpbusd" and (dot.lanes == 8 or has("avx512bw")):
        wide = dot.lanes == 16
        name = "llvm.x86.avx512.pshuf.b.512" if wide else "llvm.x86.avx2.pshuf.b"

        def pick(load: Any, places: Expr) -> Expr:
            return tirx.reinterpret(
                f"uint8x{4 * dot.lanes}", _shuffled(name, dot.lanes, load, places)
            )

        return SparseDot(dot, pick, 4)
    if dot.name == "vpmaddubsw":

        def with_size(load: Any, places: Expr) -> tuple[Expr, Expr]:
            x = _shuffled("llvm.x86.avx2.pshuf.b", 8, load, places)
            return x, tirx.reinterpret("uint8x32", tirx.max(x, const(0, "int8", 32) - x))

        return SparseDot(dot, with_size, 4)
    if dot.name == "sdot":
        return SparseDot(dot, functools.partial(_shuffled, "llvm.aarch64.neon.tbl1.v16i8", 4), 4)
    if dot.name == "smlal2":
        return SparseDot(dot, _halves, 4)
    return None


def floats_of(target: Target) -> SparseDot | None:
    """Chooses the instructions for floats; none on processors without such shuffles."""
    plain, has = dot_of(target), functools.partial(llvm_cpu_has_features, target=target)
    lanes = max(4, plain.lanes)
    picks: dict[str, tuple[int, Pick]] = {
        "avx512f": (16, functools.partial(_permuted, "llvm.x86.avx512.vpermilvar.ps.512", 16)),
        "avx": (8, functools.partial(_permuted, "llvm.x86.avx.vpermilvar.ps.256", 8)),
        "neon": (4, _looked_up),
    }
    for feature, (width, pick) in picks.items():
        if lanes == width and has(feature):
            dot = dataclasses.replace(
                plain, name="values", lanes=lanes, group=1, data="float32", offset=0,
                step=functools.partial(_multiplied, lanes), halves=False,
            )  # fmt: skip
            return SparseDot(dot, pick, 1)
    return None


def _multiplied(lanes: int, total: Expr, x: Expr, values: Expr) -> Expr:
    return total + x * cast(values, "float32", lanes)


def _shuffled(name: str, lanes: int, load: Any, places: Expr) -> Expr:
    """Picks bytes of two blocks, which lie in all parts that a shuffle stays within."""
    # Values 2 and 3 are of the second block.
    control = (places & const(_PLACES, "int32", lanes)) | const(_SECOND, "int32", lanes)
    both = splat(tirx.reinterpret("int64", load(0, 8)), lanes // 2)
    kind = f"int8x{4 * lanes}"
    return call_intrinsic(name, kind, tirx.reinterpret(kind, both), tirx.reinterpret(kind, control))


def _halves(load: Any, places: Expr) -> tuple[Expr, Expr]:
    """Picks bytes of one block for half a vector each, as `smull` takes them."""
    control = tirx.reinterpret("int8x16", places & const(_PLACES, "int32", 4))
    name, halves = "llvm.aarch64.neon.tbl1.v8i8", []
    for block, part in enumerate((T.vectorlow, T.vectorhigh)):
        word = splat(tirx.reinterpret("int32", load(4 * block, 4)), 4)
        table = tirx.reinterpret("int8x16", word)
        halves.append(call_intrinsic(name, "int8x8", table, part(control, dtype="int8x8")))
    return halves[0], halves[1]


def _permuted(name: str, lanes: int, load: Any, places: Expr) -> Expr:
    """Picks floats of a block; of the places' bits the instruction reads the lowest two."""
    # The block lies in every 128 bits.
    copies = [load(0, 4)] * (lanes // 4)
    block = tirx.Shuffle(copies, [tirx.const(i, "int32") for i in range(lanes)])
    return call_intrinsic(name, f"float32x{lanes}", block, places)


def _looked_up(load: Any, places: Expr) -> Expr:
    """Picks floats of a block by the numbers of their four bytes."""
    table = tirx.reinterpret("int8x16", load(0, 4))
    first = (places & const(3, "int32", 4)) * const(0x04040404, "int32", 4)
    control = tirx.reinterpret("int8x16", first + const(0x03020100, "int32", 4))
    picked = call_intrinsic("llvm.aarch64.neon.tbl1.v16i8", "int8x16", table, control)
    return tirx.reinterpret("float32x4", picked)


CHUNK, SHARED = 32, 16
"""Inputs of a turn of a kernel, and the values of them, whose places are a dword."""


class SparseBuilder(_packed.PackedBuilder):
    """A kernel of products with values that are kept."""

    def __init__(self, sparse: SparseDot, *operands: Any):
        geometry, dot, epilogue, *rest = operands
        self.places, *starts = epilogue.more
        self.starts = starts[0] if starts else None
        super().__init__(geometry.depth, CHUNK, geometry, dot, epilogue, *rest)
        self.sparse = sparse

    def source(self, n: Any) -> tuple[Any, Any]:
        """Returns rows filled up to whole chunks, of unsigned codes where products take them."""
        if self.starts is None:
            return super().source(n)
        g, code = self.g, self.code
        image = code.local(g.columns * self.line, "uint8", "moved")
        with code.loop(self.width) as row:
            with code.loop(g.depth) as k:
                value = load(self.x, (n * g.columns + row) * g.depth + k)
                moved = tirx.reinterpret("uint8", value) ^ tirx.const(128, "uint8")
                code.store(image, row * self.line + k, moved)
            # Values there are zero, so that any input does.
            for k in range(g.depth, self.line):
                code.store(image, row * self.line + k, const(0, "uint8"))
        return image, tirx.const(0, "int64")

    def totals(self, place: _packed.Place) -> dict[tuple[int, int], Vector]:
        """Writes the sums of a tile, of one chunk after the other."""
        code, lanes = self.code, self.dot.lanes
        dtype = "float32" if self.dot.data == "float32" else "int32"
        totals = self.vectors(dtype, place)
        if self.starts is not None:
            for (_, v), total in totals.items():
                total.set(load(self.starts, (place.first + v) * lanes, lanes))
        with code.loop(self.chunks) as chunk:
            held = []
            for v in range(self.tile.vectors):
                at = ((place.first + v) * self.chunks + chunk) * lanes
                held.append(code.vector(load(self.places, at, lanes), lanes, "int32", "places"))
            for turn, v in itertools.product(
                range(SHARED // self.sparse.each), range(self.tile.vectors)
            ):
                self._turn(place, chunk, turn, v, held[v].get(), totals)
        return totals

    def _turn(
        self,
        place: _packed.Place,
        chunk: Any,
        turn: int,
        v: int,
        places: Expr,
        totals: dict[tuple[int, int], Vector],
    ) -> None:
        """Writes the products of as many values of a vector as an instruction takes."""
        each, lanes, dot = self.sparse.each, self.dot.lanes, self.dot
        at = (((place.first + v) * self.chunks + chunk) * SHARED + turn * each) * lanes
        values = load(self.w, at, each * lanes)
        shifted = tirx.shift_right(places, const(2 * turn, "int32", lanes))
        # Two values of every block of four inputs.
        start = chunk * CHUNK + (turn * each // 2) * 4
        for p, c in enumerate(place.pixels):
            here = place.base + (place.column + c) * self.line + start
            picked = self.sparse.pick(_packed.reader(place.source, here), shifted)
            totals[p, v].set(dot.step(totals[p, v].get(), picked, values))


def laid_sparse(
    bb: relax.BlockBuilder,
    values: relax.Expr,
    places: relax.Expr,
    geometry: Geometry,
    sparse: SparseDot,
) -> list[relax.Expr]:
    """Lays values as vectors of outputs, chunks, turns, lanes and neighbours; places alike."""
    lanes, each, halves = sparse.dot.lanes, sparse.each, sparse.dot.halves
    kept, columns = _packed.shape_of(values)
    vectors, chunks = vectors_of(geometry, sparse.dot), -(-geometry.depth // CHUNK)
    turns, dtype = SHARED // each, str(values.ty.dtype)

    def spot(lane: Any, one: Any) -> tuple[Any, Any]:
        """Finds lane and neighbour of a place in a vector."""
        if not halves:
            return lane, one
        flat = lane * each + one
        half, left = tirx.indexdiv(flat, 2 * lanes), tirx.indexmod(flat, 2 * lanes)
        return tirx.indexdiv(left, 2), 2 * half + tirx.indexmod(left, 2)

    def pack_values(values: te.Tensor) -> te.Tensor:
        def element(v: Any, chunk: Any, turn: Any, lane: Any, one: Any) -> Any:
            lane, one = spot(lane, one)
            k, feature = chunk * SHARED + turn * each + one, v * lanes + lane
            inside = tirx.all(k < kept, feature < columns)
            return tirx.if_then_else(inside, values(k, feature), tirx.const(0, dtype))

        return te.compute((vectors, chunks, turns, lanes, each), element, name="packed")

    def pack_places(places: te.Tensor) -> te.Tensor:
        def of_value(k: Any, feature: Any) -> Any:
            byte = tirx.Cast("int32", places(tirx.indexdiv(k, 4), feature))
            code = tirx.shift_right(byte, tirx.Cast("int32", 2 * tirx.indexmod(k, 4))) & 3
            inside = tirx.all(k < kept, feature < columns)
            return tirx.if_then_else(inside, code, tirx.const(0, "int32"))

        def element(v: Any, chunk: Any, lane: Any) -> Any:
            # A shift by two bits for each turn brings the places of its values to the lowest bits
            # of `each` bytes.
            total: Any = tirx.const(0, "int32")
            for turn, one in itertools.product(range(turns), range(each)):
                mine, neighbour = spot(lane, index(one))
                k = chunk * SHARED + turn * each + neighbour
                code = of_value(k, v * lanes + mine)
                total = total | tirx.shift_left(code, tirx.const(8 * one + 2 * turn, "int32"))
            return total

        return te.compute((vectors, chunks, lanes), element, name="places")

    packed = [(pack_values, values, "q_values"), (pack_places, places, "q_places")]
    return [
        bb.emit_te(pack, of, primfunc_name_hint=name, primfunc_attrs={PACKS: True})
        for pack, of, name in packed
    ]


def sparse_starts(
    bb: relax.BlockBuilder, values: relax.Expr, geometry: Geometry, dot: Dot
) -> relax.Expr:
    """Computes -128 times the sum of an output's values."""
    kept, columns = _packed.shape_of(values)

    def sums(values: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, kept), name="k")
        total = te.compute(
            (columns,), lambda n: te.sum(tirx.Cast("int32", values(k, n)), axis=k), name="sums"
        )
        return te.compute(
            (vectors_of(geometry, dot) * dot.lanes,),
            lambda n: tirx.if_then_else(n < columns, total(n) * -128, tirx.const(0, "int32")),
            name="starts",
        )

    return bb.emit_te(sums, values, primfunc_name_hint="q_starts", primfunc_attrs={PACKS: True})


SPARSE = "jaxeff.q_sparse"


def sparse_products(target: Target, cores: int, any_batch: bool) -> Any:
    """Returns the lowering of products with weights of 2 of 4 for a target."""
    of_codes, of_floats = bytes_of(target), floats_of(target)
    written = _packed.WrittenKernels("q_sparse")

    def lower(
        bb: relax.BlockBuilder,
        x: relax.Expr,
        values: relax.Expr,
        places: relax.Expr,
        *,
        weight_bits: int,
    ) -> relax.Expr:
        del weight_bits  # values of fewer bits are bytes, too
        codes = str(x.ty.dtype) == "int8"
        sparse = of_codes if codes else of_floats
        # A variable batch, and processors without shuffles: loops that the scheduler tiles.
        if sparse is None or any_batch:
            return _written_out(bb, x, values, places)
        (rows, depth), columns = _packed.shape_of(x), _packed.shape_of(values)[1]
        dot = sparse.dot
        geometry = Geometry.dense(rows, depth, columns)
        operands = [x, *laid_sparse(bb, values, places, geometry, sparse)]
        # Inputs of an unsigned dot product are 128 above theirs, which the sums begin below.
        if dot.data == "uint8":
            operands.append(sparse_starts(bb, values, geometry, dot))
        sizes = [(_packed.shape_of(o), str(o.ty.dtype)) for o in operands]
        tile = _packed.packed_tile(geometry, dot.lanes, dot.registers, 1)
        result, build = "sums" if codes else "float", functools.partial(SparseBuilder, sparse)
        plan, shape = KernelPlan(geometry, dot, tile, build), (rows, columns)
        name = written.name_of(
            bb,
            (*shape, depth, str(sizes)),
            lambda: _packed.product_kernel(plan, result, sizes, shape, cores),
        )
        kind = relax.TensorType(shape, "int32" if codes else "float32")
        return bb.emit(relax.call_tir(name, relax.Tuple(operands), kind))

    return lower


def _written_out(
    bb: relax.BlockBuilder, x: relax.Expr, values: relax.Expr, places: relax.Expr
) -> relax.Expr:
    """Emits the product as loops over the values that are kept."""
    dtype = "int32" if str(x.ty.dtype) == "int8" else "float32"

    def product(x: te.Tensor, values: te.Tensor, places: te.Tensor) -> te.Tensor:
        kept, columns = values.shape
        i = te.reduce_axis((0, kept), name="i")

        def picked(m: Any, n: Any) -> Any:
            byte = tirx.Cast("int32", places(tirx.indexdiv(i, 4), n))
            place = tirx.shift_right(byte, tirx.Cast("int32", 2 * tirx.indexmod(i, 4))) & 3
            return x(m, tirx.indexdiv(i, 2) * 4 + tirx.Cast("int64", place))

        return te.compute(
            (x.shape[0], columns),
            lambda m, n: te.sum(
                tirx.Cast(dtype, picked(m, n)) * tirx.Cast(dtype, values(i, n)), axis=i
            ),
            name="product",
        )

    return bb.emit_te(product, x, values, places, primfunc_name_hint="q_sparse")
