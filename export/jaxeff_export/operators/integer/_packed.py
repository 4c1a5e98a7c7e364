"""Products with packed weights: one stream of codes, unpacked in registers.

Weights lie as vectors of outputs, each output's codes of neighbouring inputs in a dword, so that a
tile reads its weights once from one end to the other. With few rows that is all the memory traffic,
a half or one byte a weight; with more, unpacked weights serve all rows of a tile. They are laid so
once, with the bundle. Groups that no kernel has are tensor expressions.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.target import Target
from tvm.tirx import Expr

from jaxeff.compression.integers import ProductSpec
from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators._statements import Vector, cast, const, declare, load, splat
from jaxeff_export.operators.integer import _contraction
from jaxeff_export.operators.integer._dots import CHUNK, Dot, NibbleDot, dot_of, nibbles_of
from jaxeff_export.operators.integer._layers import DotTile, Epilogue, Geometry

CODES = 8
"""Codes of an output in a dword."""


def laid_weights(
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, dot: Dot, chunk: int, codes: bool
) -> relax.Expr:
    """Packs weights as vectors of outputs, dwords and lanes; or as vectors, inputs and lanes."""
    lanes, depth = dot.lanes, geometry.depth
    vectors, padded = _contraction.vectors_of(geometry, dot), -(-depth // chunk) * chunk
    halved = str(w.ty.dtype) == "uint8"

    def pack(w: te.Tensor) -> te.Tensor:
        def code(k: Any, feature: Any) -> Any:
            """Reads a code as a whole number; zero where there is none."""
            inside = tirx.all(k < depth, feature < geometry.features)
            weight = nibble(w, k, feature) if halved else tirx.Cast("int32", w(k, feature))
            return tirx.if_then_else(inside, weight, tirx.const(0, "int32"))

        # Bytes lie output beside output: a load that widens is cheaper than unpacking dwords.
        if not halved:
            shape = (vectors, padded, lanes)
            return te.compute(
                shape, lambda v, k, n: tirx.Cast("int8", code(k, v * lanes + n)), name="packed"
            )
        # Unsigned for products with bytes; floats take two's complement, which shifts extend.
        moved = 8 if codes else 0

        def byte(v: Any, d: Any, lane: Any, one: Any) -> Any:
            low, high = (code(d * CODES + at + one, v * lanes + lane) for at in (0, 4))
            both = ((low + moved) & 15) | tirx.shift_left(
                (high + moved) & 15, tirx.const(4, "int32")
            )
            return tirx.Cast("uint8", both)

        dwords = (vectors, padded // CODES)
        if codes and dot.halves:
            return te.compute(
                (*dwords, 2, lanes, 2),
                lambda v, d, h, n, i: byte(v, d, n, 2 * h + i),
                name="packed",
            )
        return te.compute((*dwords, lanes, 4), byte, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_nibbles", primfunc_attrs={PACKS: True})


def nibble(w: te.Tensor, k: Any, feature: Any) -> Any:
    """Reads a code of 4 bits, of which a byte holds two inputs of an output, each 8 above it."""
    byte = tirx.Cast("int32", w(tirx.indexdiv(k, 2), feature))
    return (tirx.shift_right(byte, 4 * tirx.Cast("int32", tirx.indexmod(k, 2))) & 15) - 8


def laid_steps(
    bb: relax.BlockBuilder, steps: relax.Expr, geometry: Geometry, lanes: int
) -> relax.Expr:
    """Packs steps as vectors of outputs, groups and lanes; float16 as its bits."""
    groups, columns = shape_of(steps)
    half = str(steps.ty.dtype) == "float16"
    # Signed, so that what widens a word extends its sign.
    dtype = "int16" if half else str(steps.ty.dtype)

    def pack(s: te.Tensor) -> te.Tensor:
        def element(v: Any, g: Any, lane: Any) -> Any:
            feature = v * lanes + lane
            step = s(g, feature)
            # Not every processor reads float16, and TVM would call a function for it.
            step = tirx.reinterpret("int16", step) if half else step
            return tirx.if_then_else(feature < columns, step, tirx.const(0, dtype))

        return te.compute((-(-columns // lanes), groups, lanes), element, name="packed")

    return bb.emit_te(pack, steps, primfunc_name_hint="q_steps", primfunc_attrs={PACKS: True})


def shape_of(tensor: relax.Expr) -> tuple[int, ...]:
    """Returns the sizes of a tensor."""
    return tuple(int(n) for n in tensor.ty.shape)


_HALF = 0x8FFFE000 - (1 << 32)
"""The bits of a dword that a float16 has after a shift by 13: its sign, exponent and fraction."""


@dataclasses.dataclass(frozen=True)
class Unscaled(Epilogue):
    """An epilogue that writes sums as they are.

    Attributes:
        more: operands after the weights: steps by group; none for a step of one.
    """

    more: tuple[tirx.Buffer, ...] = ()

    @property
    def steps(self) -> tirx.Buffer | None:
        """Returns the steps, if there are any."""
        return self.more[0] if self.more else None

    def scaled(self, sums: Expr, feature: Any, added: Any, lanes: int, alone: bool = False) -> Expr:
        """Returns the sums."""
        del feature, added, lanes, alone
        return sums

    @classmethod
    def of(cls, result: str, *more: tirx.Buffer) -> Unscaled:
        """Describes sums in int32 ("sums") or float32 ("float")."""
        bias = declare([1], "int32", "none")
        return cls(ProductSpec(result), bias, more=more)


@dataclasses.dataclass(frozen=True)
class Place:
    """What the sums of a tile read.

    Attributes:
        source: rows of the input.
        base: start of the first row.
        first: first vector of outputs.
        column: first row of the tile.
        pixels: rows of the tile, as their distance from the first.
    """

    source: tirx.Buffer
    base: Any
    first: Any
    column: Any
    pixels: list[int]


class PackedBuilder(_contraction.ContractionBuilder):
    """A kernel of a product with packed weights that is being written.

    Attributes:
        group: codes that share a step.
        chunk: codes that a turn of the inner loop takes.
    """

    epilogue: Unscaled

    def __init__(self, group: int, chunk: int, *operands: Any):
        super().__init__(*operands)
        self.group, self.chunk = group, chunk
        self.chunks = -(-self.g.depth // chunk)
        # A single group goes on to the end of what is filled up.
        self.per_step = self.chunks if group >= self.g.depth else group // chunk

    @property
    def line(self) -> int:
        """Elements from one row of the input to the next, as it is read."""
        return self.chunks * self.chunk

    def source(self, n: Any) -> tuple[Any, Any]:
        """Returns rows whose length is that of the weights, filled up with zeros."""
        g, code = self.g, self.code
        # Rows that fill whole chunks are read where they are.
        if self.line == g.depth:
            return self.x, n * (g.columns * g.depth)
        dtype = self.dot.data
        # Zeros meet codes of zero there, but what lies behind a row may be NaN.
        padded = code.local(g.columns * self.line, dtype, "padded")
        with code.loop(self.width) as row:
            with code.loop(g.depth) as k:
                code.store(
                    padded, row * self.line + k, load(self.x, (n * g.columns + row) * g.depth + k)
                )
            for k in range(g.depth, self.line):
                code.store(padded, row * self.line + k, const(0, dtype))
        return padded, tirx.const(0, "int64")

    def steps_at(self, vector: Any, chunk: Any) -> tuple[tirx.Buffer, Any]:
        """Returns the buffer of the steps of a chunk's group, and where they start."""
        assert self.epilogue.steps is not None
        groups = -(-self.chunks // self.per_step)
        group = chunk if self.per_step == 1 else tirx.indexdiv(chunk, self.per_step)
        return self.epilogue.steps, (vector * groups + group) * self.dot.lanes

    def sums(self, place: _contraction.TilePlace, pixels: Any) -> dict[tuple[int, int], Expr]:
        """Writes the sums of a tile."""
        columns = [c for _, c in pixels]
        read = Place(place.source, place.base, place.first, place.column, columns)
        return {key: total.get() for key, total in self.totals(read).items()}

    def totals(self, place: Place) -> dict[tuple[int, int], Vector]:
        """Writes the sums of a tile, by row and vector."""
        raise NotImplementedError

    def vectors(self, dtype: str, place: Place) -> dict[tuple[int, int], Vector]:
        """Starts sums of a tile at zero."""
        places = itertools.product(range(len(place.pixels)), range(self.tile.vectors))
        zero = const(0, dtype, self.dot.lanes)
        return {key: self.code.vector(zero, self.dot.lanes, dtype, "sum") for key in places}


class NibbleBuilder(PackedBuilder):
    """A kernel of products of four-bit codes by bytes."""

    def __init__(self, nibbles: NibbleDot, *operands: Any):
        super().__init__(*operands)
        self.nibbles = nibbles
        self.corrections: tirx.Buffer | None = None

    def source(self, n: Any) -> tuple[Any, Any]:
        """Returns the rows, and writes what parts of them start from: -8 sum x."""
        source, base = super().source(n)
        code, dot, lanes = self.code, self.dot, self.dot.lanes
        corrections = code.local(self.g.columns * self.chunks, "int32", "starts")
        # By the instructions of the product itself, so that each half of a lane that is kept apart
        # there starts from its own part; all outputs would start from the same, so lane 0 is kept.
        eights = const(8, "uint8", 4 * lanes)
        with code.loop(self.width) as row, code.loop(self.chunks) as chunk:
            total = code.vector(const(0, "int32", lanes), lanes, "int32", "total")
            for word in range(self.chunk // 4):
                at = base + row * self.line + chunk * self.chunk + word * 4
                total.set(dot.step(total.get(), dot.prepare(reader(source, at)), eights))
            code.store(corrections, row * self.chunks + chunk, self._negated(total))
        self.corrections = corrections
        return source, base

    def _negated(self, total: Vector) -> Expr:
        if not self.nibbles.narrow:
            return const(0, "int32") - load(total.buffer, 0)
        # Both words of a lane: negating the dword would carry from one into the other.
        lanes = 2 * self.dot.lanes
        pairs = tirx.reinterpret(f"int16x{lanes}", total.get())
        negated = const(0, "int16", lanes) - pairs
        held = self.code.vector(
            tirx.reinterpret(f"int32x{self.dot.lanes}", negated), self.dot.lanes, "int32", "negated"
        )
        return load(held.buffer, 0)

    def totals(self, place: Place) -> dict[tuple[int, int], Vector]:
        """Writes the sums of a tile, of one chunk after the other."""
        code, lanes = self.code, self.dot.lanes
        totals = self.vectors("int32", place)
        with code.loop(self.chunks) as chunk:
            parts = {}
            for p, c in enumerate(place.pixels):
                start = load(self.corrections, (place.column + c) * self.chunks + chunk)
                for v in range(self.tile.vectors):
                    parts[p, v] = code.vector(splat(start, lanes), lanes, "int32", "part")
            for dword in range(self.chunk // CODES):
                self._dword(place, chunk, dword, parts)
            # Steps belong to outputs, so one vector of them serves all rows.
            for v in range(self.tile.vectors):
                steps = self._steps_of(place.first + v, chunk)
                for p in range(len(place.pixels)):
                    added = self.nibbles.widen(parts[p, v].get(), steps)
                    totals[p, v].set(totals[p, v].get() + added)
        return totals

    def _dword(
        self, place: Place, chunk: Any, dword: int, parts: dict[tuple[int, int], Vector]
    ) -> None:
        """Writes eight products of every output of a tile."""
        dot, bytes_ = self.dot, 4 * self.dot.lanes
        each = self.chunk // CODES
        halves = []
        for v in range(self.tile.vectors):
            at = ((place.first + v) * self.chunks + chunk) * each + dword
            halves.append(self.nibbles.unpacked(load(self.w, at * bytes_, bytes_)))
        # Unpacked once for all rows: with many of them unpacking costs little.
        for p, c in enumerate(place.pixels):
            at = place.base + (place.column + c) * self.line + chunk * self.chunk + dword * CODES
            for half in range(2):
                x = dot.prepare(reader(place.source, at + 4 * half))
                for v, unpacked in enumerate(halves):
                    parts[p, v].set(dot.step(parts[p, v].get(), x, unpacked[half]))

    def _steps_of(self, vector: Any, chunk: Any) -> Expr:
        lanes = self.dot.lanes
        if self.epilogue.steps is None:
            return const(1, "int32", lanes)
        buffer, at = self.steps_at(vector, chunk)
        return cast(load(buffer, at, lanes), "int32", lanes)


class FloatBuilder(PackedBuilder):
    """A kernel of products of codes by floats."""

    def totals(self, place: Place) -> dict[tuple[int, int], Vector]:
        """Writes the sums of a tile, of one group after the other."""
        code, rows = self.code, range(len(place.pixels))
        groups = -(-self.chunks // self.per_step)
        totals = self.vectors("float32", place)
        with code.loop(groups) as g:
            # Few sums would wait for each other: then two chains take turns.
            count = 2 if len(totals) < 2 * CODES else 1
            chains = [self.vectors("float32", place) for _ in range(count)]
            with code.loop(self.per_step) as k:
                self._chunk(place, g * self.per_step + k, chains)
            # The step factors out of the sum: one product for a group, not one for each weight.
            for v in range(self.tile.vectors):
                buffer, at = self.steps_at(place.first + v, g * self.per_step)
                steps = _as_float(load(buffer, at, self.dot.lanes), buffer, self.dot.lanes)
                for p in rows:
                    part = chains[0][p, v].get()
                    for chain in chains[1:]:
                        part = part + chain[p, v].get()
                    totals[p, v].set(totals[p, v].get() + part * steps)
        return totals

    def _chunk(self, place: Place, chunk: Any, chains: list[dict[tuple[int, int], Vector]]) -> None:
        """Writes the products of a chunk of every output of a tile."""
        lanes = self.dot.lanes
        held = [self._held(place.first + v, chunk) for v in range(self.tile.vectors)]
        for i in range(self.chunk):
            weights = [code(i) for code in held]
            for p, c in enumerate(place.pixels):
                at = place.base + (place.column + c) * self.line + chunk * self.chunk + i
                x = splat(load(place.source, at), lanes)
                for v, w in enumerate(weights):
                    total = chains[i % len(chains)][p, v]
                    total.set(total.get() + x * w)

    def _held(self, vector: Any, chunk: Any) -> Callable[[int], Expr]:
        """Loads a chunk of a vector of outputs; returns a function of one of its codes."""
        lanes = self.dot.lanes
        at = (vector * self.chunks + chunk) * self.chunk
        if self.dot.group == 1:
            return lambda i: cast(load(self.w, (at + i) * lanes, lanes), "float32", lanes)
        dwords = tirx.reinterpret(
            f"int32x{lanes}", load(self.w, tirx.indexdiv(at, CODES) * (4 * lanes), 4 * lanes)
        )
        # Held in a register: eight codes come from one load.
        kept = self.code.vector(dwords, lanes, "int32", "codes")

        def code_at(i: int) -> Expr:
            # Halves of bytes in order of k, k + 4: shifted up to the sign, and down again.
            place = 2 * (i % 4) + i // 4
            up = tirx.shift_left(kept.get(), const(28 - 4 * place, "int32", lanes))
            return cast(tirx.shift_right(up, const(28, "int32", lanes)), "float32", lanes)

        return code_at


def reader(source: tirx.Buffer, here: Any) -> Callable[[int, int], Expr]:
    """Returns a function that loads so many elements from an offset on."""
    return lambda offset, count: load(source, here + offset, count)


def _as_float(value: Expr, buffer: tirx.Buffer, lanes: int) -> Expr:
    """Converts steps; those of float16 by their bits, as every processor can."""
    dtype = str(buffer.dtype)
    if dtype == "int16":
        # Exponent and fraction one place above float32's lowest bits, then 2^(127 - 15). The sign
        # goes from the word's highest bit to the dword's; its copies in between are masked away.
        signed = cast(value, "int32", lanes)
        bits = tirx.shift_left(signed, const(13, "int32", lanes)) & const(_HALF, "int32", lanes)
        return tirx.reinterpret(f"float32x{lanes}", bits) * const(2.0**112, "float32", lanes)
    return value if dtype == "float32" else cast(value, "float32", lanes)


def written_out(
    bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr, *steps: relax.Expr, group: int
) -> relax.Expr:
    """Emits the product; the scheduler tiles its loops."""
    halved, dtype = str(w.ty.dtype) == "uint8", "float32"
    if str(x.ty.dtype) == "int8":
        dtype = "int32"

    def product(x: te.Tensor, w: te.Tensor, *steps: te.Tensor) -> te.Tensor:
        rows, depth = x.shape
        columns = w.shape[1]

        def weight(k: Any, n: Any) -> Any:
            value = tirx.Cast(dtype, nibble(w, k, n) if halved else w(k, n))
            for each in steps:
                value = value * tirx.Cast(dtype, each(tirx.indexdiv(k, group), n))
            return value

        weights = te.compute((depth, columns), weight, name="weights")
        k = te.reduce_axis((0, depth), name="k")
        return te.compute(
            (rows, columns),
            lambda m, n: te.sum(tirx.Cast(dtype, x(m, k)) * weights(k, n), axis=k),
            name="product",
        )

    return bb.emit_te(product, x, w, *steps, primfunc_name_hint="q_product")


PACKED = "jaxeff.q_packed"
STEPS_SHARED = 12_000
"""Vectors of products that are worth waking threads for, which takes a microsecond or more."""


def packed_products(target: Target, cores: int, any_batch: bool) -> Any:
    """Returns the lowering of products with packed weights for a target."""
    nibbles, plain = nibbles_of(target), dot_of(target)
    written = WrittenKernels("q_packed")

    def lower(
        bb: relax.BlockBuilder,
        x: relax.Expr,
        w: relax.Expr,
        *steps: relax.Expr,
        weight_bits: int,
        group: int,
    ) -> relax.Expr:
        (rows, depth), columns = shape_of(x), shape_of(w)[1]
        codes = str(x.ty.dtype) == "int8"
        chunk = _chunk(depth, group, codes, weight_bits)
        # Other sizes of groups are rare: loops that the scheduler tiles do for them.
        if not chunk:
            return written_out(bb, x, w, *steps, group=group)
        dot = nibbles.dot if codes else float_dot(plain, weight_bits)
        geometry = Geometry.dense(rows, depth, columns)
        result = "sums" if codes else "float"
        # A sum takes a register for the part of its group, too.
        tile = packed_tile(geometry, dot.lanes, dot.registers, 2)
        make: Any = FloatBuilder
        if codes:
            make = functools.partial(NibbleBuilder, nibbles)
        operands = [x, laid_weights(bb, w, geometry, dot, chunk, codes)]
        operands += [laid_steps(bb, each, geometry, dot.lanes) for each in steps]
        if not codes and not steps:
            raise ValueError("products of floats have steps")
        batch = tirx.Var("batch", "int64")
        geometry = geometry.of_any(batch) if any_batch else geometry
        if any_batch:
            tile = packed_tile(geometry, dot.lanes, dot.registers, 2)
        sizes: list[Any] = [(shape_of(o), str(o.ty.dtype)) for o in operands]
        if any_batch:
            sizes[0] = ((batch, depth), sizes[0][1])
        shape = (batch if any_batch else rows, columns)
        build = functools.partial(make, group, chunk)
        plan = _contraction.KernelPlan(geometry, dot, tile, build)
        # A batch that varies is a variable of its own, so that no two kernels are the same.
        key = None if any_batch else (rows, depth, columns, weight_bits, group, str(sizes))
        name = written.name_of(
            bb,
            key,
            lambda: product_kernel(plan, result, sizes, shape, cores),
        )
        kind = relax.TensorType((rows, columns), "int32" if codes else "float32")
        return bb.emit(relax.call_tir(name, relax.Tuple(operands), kind))

    return lower


class WrittenKernels:
    """The kernels that modules have been given.

    A decoder has hundreds of products of a few shapes, and a kernel takes a tenth of a second to
    write, and as long to be compared with those that a module has.

    Args:
        hint: what kernels are called, but for a number.
    """

    def __init__(self, hint: str):
        self._hint = hint
        # Each with its module's builder, which stays alive that way: another can't have its number.
        self._written: dict[Any, tuple[relax.BlockBuilder, relax.GlobalVar]] = {}

    def name_of(
        self, bb: relax.BlockBuilder, key: Any, write: Callable[[], tirx.PrimFunc]
    ) -> relax.GlobalVar:
        """Returns a kernel's name in a module, where it is written at first.

        `key` is what two kernels that are the same have in common; None for one of its own.
        """
        if key is None:
            return bb.add_func(write(), self._hint)
        if (id(bb), key) not in self._written:
            self._written[id(bb), key] = bb, bb.add_func(write(), self._hint)
        return self._written[id(bb), key][1]


def product_kernel(
    plan: _contraction.KernelPlan,
    result: str,
    sizes: Sequence[tuple[Any, str]],
    shape: tuple[Any, int],
    cores: int,
) -> tirx.PrimFunc:
    """Writes a kernel whose sums leave as they are.

    `result` is "sums" or "float"; `sizes` are shape and dtype of every operand; `cores` share rows,
    where there is enough to do.
    """
    sharing = _contraction.Sharing(cores, STEPS_SHARED * plan.dot.lanes * 4)
    return _contraction.contraction(
        plan, {}, lambda _, *rest: Unscaled.of(result, *rest), sizes, shape, sharing
    )


def float_dot(dot: Dot, bits: int) -> Dot:
    """Describes products of codes by floats in vectors of a processor's length."""
    group = CODES if bits <= 4 else 1
    lanes = max(4, dot.lanes)
    return dataclasses.replace(
        dot, name="codes", lanes=lanes, group=group, data="float32", offset=0
    )


def packed_tile(geometry: Geometry, lanes: int, registers: int, sums: int) -> DotTile:
    """Chooses a tile of rows and vectors.

    `registers` are for sums, each of which takes `sums` of them, and operands.
    """
    across = -(-geometry.per_group // lanes)
    # Four are for unpacked weights and an input.
    room = max(1, (registers - 4) // sums)
    rows = min(geometry.walked[1], 4, room)
    # A rest of unknown length is walked in tiles of halving widths.
    if geometry.examples is not None and rows == 3:
        rows = 2
    return DotTile(1, rows, max(1, min(across, room // rows, 8)))


def _chunk(depth: int, group: int, codes: bool, bits: int) -> int:
    """Chooses how many codes a turn of a kernel takes; none if there is no kernel."""
    if codes and bits > 4:
        return 0
    # Floats have no part that could overflow: a dword at a time keeps the loop's body short.
    most = CHUNK if codes else CODES
    if group >= depth:
        return most
    return next((n for n in (32, 16, 8) if n <= most and group % n == 0), 0)
