"""Kernels of products with packed weights: one stream of codes, unpacked in registers.

Weights lie as vectors of outputs, each output's codes of neighbouring inputs in a dword, so that a
tile reads its weights once from one end to the other. With few rows that is all the memory traffic,
a half or one byte a weight; with more, unpacked weights serve all rows of a tile.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.operators.integer._contraction import ContractionBuilder
from jaxeff_export.operators.integer._dots import NibbleDot
from jaxeff_export.operators.integer._epilogue import Epilogue
from jaxeff_export.operators.integer.packed._layout import CODES
from jaxeff_export.operators.statements import Vector, cast, const, declare, load, splat

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
        return cls(result, "none", 0, 0, 0, 0, 0, bias, more=more)


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


class PackedBuilder(ContractionBuilder):
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
        made = code.local(g.columns * self.line, dtype, "padded")
        with code.loop(self.width) as row:
            with code.loop(g.depth) as k:
                code.store(
                    made, row * self.line + k, load(self.x, (n * g.columns + row) * g.depth + k)
                )
            for k in range(g.depth, self.line):
                code.store(made, row * self.line + k, const(0, dtype))
        return made, tirx.const(0, "int64")

    def steps_at(self, vector: Any, chunk: Any) -> tuple[tirx.Buffer, Any]:
        """Returns the buffer of the steps of a chunk's group, and where they start."""
        assert self.epilogue.steps is not None
        groups = -(-self.chunks // self.per_step)
        group = chunk if self.per_step == 1 else tirx.indexdiv(chunk, self.per_step)
        return self.epilogue.steps, (vector * groups + group) * self.dot.lanes

    def sums(
        self, source: Any, base: Any, group: Any, first: Any, row: Any, column: Any, pixels: Any
    ) -> dict[tuple[int, int], Expr]:
        """Writes the sums of a tile."""
        del group, row
        place = Place(source, base, first, column, [c for _, c in pixels])
        return {key: total.get() for key, total in self.totals(place).items()}

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
        made = code.local(self.g.columns * self.chunks, "int32", "starts")
        # By the instructions of the product itself, so that each half of a lane that is kept apart
        # there starts from its own part; all outputs would start from the same, so lane 0 is kept.
        eights = const(8, "uint8", 4 * lanes)
        with code.loop(self.width) as row, code.loop(self.chunks) as chunk:
            total = code.vector(const(0, "int32", lanes), lanes, "int32", "total")
            for word in range(self.chunk // 4):
                at = base + row * self.line + chunk * self.chunk + word * 4
                total.set(dot.step(total.get(), dot.prepare(reader(source, at)), eights))
            code.store(made, row * self.chunks + chunk, self._negated(total))
        self.corrections = made
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
