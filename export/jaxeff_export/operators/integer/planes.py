"""Products of few bits by planes: and, count, add, for every pair of bits of two codes.

A code of an activation is sum_i 2^i x_i, one of a weight in two's complement -2^(b-1) w_(b-1) +
sum_j 2^j w_j, so

    sum x w = sum_ij +- 2^(i+j) popcount(x_i & w_j)

Binary weights are -1 and 1, in two bits 11 and 01: their lower plane is all ones. Every lane holds
one output, and a word of 32 products of it, so tiles, results and layouts are those of the other
kernels. Planes of the input are made in the kernel, pixel by pixel, from the codes.

| instructions | bit products per instruction |
|---|---|
| `vpand`, `vpopcntd`, `vpaddd` (AVX-512 VPOPCNTDQ) | 512 / 3 |
| `and`, `cnt`, `add`, and `uadalp` now and then (NEON) | 128 / 3 |

By this count they beat dot products of bytes where the product of both widths is at most 2 with
VNNI, 10 with `smlal2` and 5 with `sdot`. Where cores count more vectors a cycle than they multiply
it is more: on Zen 5 a product of 4 was still 1.1 to 1.2 times faster than `vpdpbusd`, one of 8 not.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features
from tvm.tirx import Expr

from .code import Vector, const, index, load, splat
from .contraction import Kernel, nested, vectors_of
from .dots import Dot, has_neon
from .geometry import Geometry

WORD = 32
_ONES, _GATHER = 0x0101010101010101, 0x0102040810204080
MOST_ADDED = 31  # counts of a byte, at most 8 each, that fit a byte


@dataclasses.dataclass(frozen=True)
class Planes:
    """How bits are counted on a processor.

    Attributes:
        name: of the instruction.
        lanes: outputs in a vector.
        registers: vector registers for counts, weights and an input.
        bytewise: whether counts are of bytes, to be added up later.
        worth: the largest product of both widths that counting is faster for.
    """

    name: str
    lanes: int
    registers: int
    bytewise: bool
    worth: int


def planes_of(target: Target, dot: Dot) -> Planes | None:
    """How bits are counted on a processor; None if it has no instruction for it."""
    if llvm_cpu_has_features("avx512vpopcntdq", target):
        return Planes("vpopcntd", 16, 14, False, 4 if dot.name == "vpdpbusd" else 8)
    if has_neon(target):
        return Planes("cnt", 4, 12, True, 5 if dot.name == "sdot" else 10)
    return None


def weight_planes(bits: int) -> list[tuple[int, int]]:
    """Shift and sign of each plane of weights that is stored."""
    if bits == 1:
        return [(1, -1)]
    return [(j, -1 if j == bits - 1 else 1) for j in range(bits)]


class PlanesKernel(Kernel):
    """The kernel of a layer by planes; where it differs from that of bytes."""

    def __init__(self, planes: Planes, bits: tuple[int, int], *operands: Any):
        super().__init__(*operands)
        self.planes, (self.weight_bits, self.activation_bits) = planes, bits
        g = self.g
        self.words = words_of(g)
        taps = math.prod(count for count, _ in g.taps)
        self.steps = self.words * taps * len(weight_planes(self.weight_bits))
        self.pixel = self.words * self.activation_bits * g.groups

    def source(self, n: Any) -> tuple[Any, Any]:
        """Planes of an image: pixel, group, plane, word."""
        g, code = self.g, self.code
        height, width, channels = g.image
        top, _, left, _ = g.padding
        padded_height, padded_width, _ = g.padded
        size = padded_height * padded_width * self.pixel
        made = code.local(size, "int32", "planes", "global")
        if any(g.padding):
            rest = g.stretch % WORD
            for plane, k in itertools.product(range(self.activation_bits), range(self.words)):
                # Only the bits of channels: those beyond would be counted with binary weights.
                ones = (1 << rest) - 1 if rest and k == self.words - 1 else -1
                border = const(ones if self.zero >> plane & 1 else 0, "int32")
                with code.loop(padded_height * padded_width * g.groups) as i:
                    at = (i * self.activation_bits + plane) * self.words + k
                    code.store(made, at, border)
        with code.loop(height) as h, code.loop(self.width) as w, code.loop(g.groups) as group:
            place = ((h + top) * padded_width + (w + left)) * g.groups + group
            base = ((n * height + h) * width + w) * channels + group * g.stretch
            whole, rest = divmod(g.stretch, WORD)
            with code.loop(whole) as k:
                self._write(made, base + k * WORD, place, k, WORD)
            if rest:
                self._write(made, base + whole * WORD, place, whole, rest)
        return made, index(0)

    def _write(self, made: tirx.Buffer, base: Any, place: Any, k: Any, count: int) -> None:
        """The planes of up to 32 codes: a product gathers the bits of eight bytes."""
        code = self.code
        eights = []
        for start in range(0, count, 8):
            if count - start >= 8:
                eight = tirx.reinterpret("uint64", load(self.x, base + start, 8))
            else:
                eight = const(0, "uint64")
                for i in range(count - start):
                    byte = tirx.Cast("uint64", load(self.x, base + start + i))
                    eight = eight | (byte << const(8 * i, "uint64"))
            eights.append(code.vector(eight, 1, "uint64"))
        for plane in range(self.activation_bits):
            word = const(0, "uint32")
            for i, eight in enumerate(eights):
                ones = (eight.get() >> const(plane, "uint64")) & const(_ONES, "uint64")
                byte = (ones * const(_GATHER, "uint64")) >> const(56, "uint64")
                word = word | (tirx.Cast("uint32", byte) << const(8 * i, "uint32"))
            at = (place * self.activation_bits + plane) * self.words + k
            code.store(made, at, tirx.reinterpret("int32", word))

    def sums(
        self, source: Any, base: Any, group: Any, first: Any, row: Any, column: Any, pixels: Any
    ) -> dict[tuple[int, int], Expr]:
        """Sums of a tile, one pair of planes after the other."""
        g, code, lanes = self.g, self.code, self.dot.lanes
        places = list(itertools.product(range(len(pixels)), range(self.tile.vectors)))
        totals = {place: self._zero() for place in places}
        planes, shifts = len(weight_planes(self.weight_bits)), 1 if self.weight_bits == 1 else 0
        line = g.padded[1] * self.pixel
        down, right = (n * self.pixel // g.image[2] for n in (g.step[0], g.step[1]))
        start = row * down + column * right + group * (self.words * self.activation_bits)
        del line
        for_own = self.weight_bits == 1
        with code.loop(self.activation_bits) as i, code.loop(planes) as j:
            counts = {place: self._zero() for place in places}
            own = [self._zero() for _ in pixels] if for_own else []
            here = start + i * self.words
            there = (group * vectors_of(g, self.dot) + first) * self.steps
            self._count(source, here, there, j, pixels, (down, right), counts, own)
            factor = tirx.shift_left(tirx.const(1, "int32"), tirx.Cast("int32", i + j) + shifts)
            last = tirx.Cast("int32", j) == planes - 1
            factor = tirx.Select(last, tirx.const(0, "int32") - factor, factor)
            power = tirx.shift_left(tirx.const(1, "int32"), tirx.Cast("int32", i))
            for p, v in places:
                total = totals[p, v].get() + counts[p, v].get() * splat(factor, lanes)
                if for_own:
                    total = total + own[p].get() * splat(power, lanes)
                totals[p, v].set(total)
        return {place: total.get() for place, total in totals.items()}

    def _count(
        self,
        source: Any,
        here: Any,
        there: Any,
        j: Any,
        pixels: Any,
        steps: tuple[int, int],
        counts: dict[tuple[int, int], Vector],
        own: list[Vector],
    ) -> None:
        """Adds the counts of one pair of planes over all taps and words."""
        g, code, lanes = self.g, self.code, self.dot.lanes
        planes = len(weight_planes(self.weight_bits))
        down, right = steps

        def add(sums: Any, at: Any, tap: Any, k: Any) -> None:
            place = (tap * planes + j) * self.words + k
            weights = [
                load(self.w, ((there + v * self.steps) + place) * lanes, lanes)
                for v in range(self.tile.vectors)
            ]
            for p, (r, c) in enumerate(pixels):
                x = splat(load(source, at + r * down + c * right + k), lanes)
                for v, w in enumerate(weights):
                    sums[p, v].set(sums[p, v].get() + self._ones(x & w))
                if own:
                    sums[p, None].set(sums[p, None].get() + self._ones(x))

        def all_sums() -> Any:
            return {**counts, **{(p, None): one for p, one in enumerate(own)}}

        distances = [n * self.pixel // g.image[2] for _, n in g.taps]
        with nested(code, [count for count, _ in g.taps[:-1]]) as outer:
            at, tap = here, index(0)
            for i, (count, _), distance in zip(outer, g.taps[:-1], distances[:-1], strict=True):
                at, tap = at + i * distance, tap * count + i
            inner, distance = (g.taps[-1][0], distances[-1]) if g.taps else (1, 0)
            if not self.planes.bytewise:
                with code.loop(inner) as i, code.loop(self.words) as k:
                    add(all_sums(), at + i * distance, tap * inner + i, k)
                return
            steps_ = [(i, k) for i in range(inner) for k in range(self.words)]
            for start in range(0, len(steps_), MOST_ADDED):
                narrow = {key: self._zero("uint8", 4) for key in all_sums()}
                for i, k in steps_[start : start + MOST_ADDED]:
                    add(narrow, at + i * distance, tap * inner + i, k)
                for key, total in all_sums().items():
                    total.set(total.get() + _added_up(narrow[key].get()))

    def _ones(self, x: Expr) -> Expr:
        if self.planes.bytewise:
            return tirx.popcount(tirx.reinterpret(f"uint8x{4 * self.dot.lanes}", x))
        return tirx.popcount(x)

    def _zero(self, dtype: str = "int32", times: int = 1) -> Vector:
        lanes = self.dot.lanes * times
        return self.code.vector(const(0, dtype, lanes), lanes, dtype)


def _added_up(counts: Expr) -> Expr:
    """The counts of four bytes of every lane."""
    pairs = T.call_llvm_pure_intrin(
        T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.uaddlp.v8i16.v16i8"), counts, dtype="int16x8"
    )
    return T.call_llvm_pure_intrin(
        T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.uaddlp.v4i32.v8i16"), pairs, dtype="int32x4"
    )


def words_of(geometry: Geometry) -> int:
    """Words of the channels of a pixel."""
    return -(-geometry.stretch // WORD)
