"""Products of few bits by planes: and, count, add, for every pair of bits of two codes.

A code of an activation is sum_i 2^i x_i, one of a weight in two's complement -2^(b-1) w_(b-1) +
sum_j 2^j w_j, so

    sum x w = sum_ij +- 2^(i+j) popcount(x_i & w_j)

Binary weights are -1 and 1, in two bits 11 and 01: their lower plane is all ones, and adds the
codes of a window, whose sums are made with the planes, pixel by pixel. Every lane holds one
output, and a word of 32 products of it, so tiles, results and layouts are those of the other
kernels.

| instructions | bit products per instruction |
|---|---|
| `vpand`, `vpopcntd`, `vpaddd` (AVX-512 VPOPCNTDQ) | 512 / 3 |
| `and`, `cnt`, `add`, and `uadalp` now and then (NEON) | 128 / 3 |
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features
from tvm.tirx import Expr

from jaxeff_export.operators._statements import StatementBuilder, Vector, const, index, load, splat
from jaxeff_export.operators.integer._contraction import (
    ContractionBuilder,
    NestedLoops,
    TilePlace,
    vectors_of,
)
from jaxeff_export.operators.integer._convolutions import suits
from jaxeff_export.operators.integer._dots import Dot, has_neon
from jaxeff_export.operators.integer._layers import Geometry

WORD = 32
_ONES, _GATHER = 0x0101010101010101, 0x0102040810204080
_EIGHT = 8  # codes of a dword pair
_SIGNS = {32: "llvm.x86.avx2.pmovmskb", 16: "llvm.x86.sse2.pmovmskb.128"}


def words_of_planes(
    code: StatementBuilder, x: tirx.Buffer, at: Expr, count: int, planes: int, by_signs: bool
) -> list[Expr]:
    """Makes the words of some codes, as int32.

    `at` is the first of the codes, at most 32, of `planes` bits; `by_signs` says whether the target
    has `vpmovmskb`.

    Planes of the input are made in the kernel, a word of every plane of up to 32 codes at a time:
    bit i of plane p is bit p of code i.

    | instructions | codes at once, for a plane |
    |---|---|
    | `vpsllw`, `vpmovmskb`: the uppermost bit of every byte (AVX2) | 32, 16 or 8 |
    | shift, and, product, shift: the lowest bit of every byte, by a product | 8 |
    """
    parts = []
    for start, many in _parts(count, by_signs):
        if many > _EIGHT:
            value, dtype, lanes = load(x, at + start, many), "uint8", many
        else:
            value, dtype, lanes = _eight(x, at + start, many), "uint64", 1
        parts.append((start, many, code.vector(value, lanes, dtype, "codes").get()))
    words = []
    for plane in range(planes):
        word = const(0, "uint32")
        for start, many, codes in parts:
            bits = _signs(codes, many, plane) if by_signs else _product(codes, plane)
            word = word | (bits << const(start, "uint32"))
        words.append(tirx.reinterpret("int32", word))
    return words


def packing(count: int, planes: int, by_signs: bool) -> int:
    """Counts the instructions that make the words of some codes."""
    parts, words = len(_parts(count, by_signs)), -(-count // WORD)
    # A load; shift, gather, and join with the other parts or store.
    return parts * (1 + planes * (3 if by_signs else 5)) + words * planes


def _parts(count: int, by_signs: bool) -> list[tuple[int, int]]:
    """Splits some codes into parts taken at once: where each starts, and its length."""
    parts, done = [], 0
    while done < count:
        # The widest gather that reads no code beyond the last: memory may end there.
        wide = [n for n in _SIGNS if by_signs and n <= count - done]
        many = max(wide, default=min(count - done, _EIGHT))
        parts.append((done, many))
        done += many
    return parts


def _eight(x: tirx.Buffer, at: Expr, count: int) -> Expr:
    """Loads eight codes, of which the last may be zeros."""
    if count == _EIGHT:
        return tirx.reinterpret("uint64", load(x, at, _EIGHT))
    eight = const(0, "uint64")
    for i in range(count):
        eight = eight | (tirx.Cast("uint64", load(x, at + i)) << const(8 * i, "uint64"))
    return eight


def _signs(codes: Expr, many: int, plane: int) -> Expr:
    """Gathers a plane's bits by the instruction that gathers the signs of bytes."""
    wide = max(many, 16)
    words = f"uint16x{wide // 2}"
    if many > _EIGHT:
        pairs = tirx.reinterpret(words, codes)
    else:
        pairs = tirx.reinterpret(words, splat(codes, 2))
    # x86 shifts no bytes. In shifted words, bits that leave the lower byte stay below the upper
    # one's sign bit.
    moved = tirx.reinterpret(f"int8x{wide}", pairs << const(7 - plane, "uint16", wide // 2))
    name = T.llvm_lookup_intrinsic_id(_SIGNS[wide])
    bits = tirx.reinterpret("uint32", T.call_llvm_pure_intrin(name, moved, dtype="int32"))
    # Eight codes fill both halves of the vector; one half is enough.
    return bits if many > _EIGHT else bits & const((1 << _EIGHT) - 1, "uint32")


def _product(codes: Expr, plane: int) -> Expr:
    """Gathers a plane's bits in the uppermost byte of a product."""
    # Bit 8i times 2^(56 - 7i) is bit 56 + i. All 64 partial products fall on different bits, so
    # nothing carries into the uppermost byte.
    ones = (codes >> const(plane, "uint64")) & const(_ONES, "uint64")
    return tirx.Cast("uint32", (ones * const(_GATHER, "uint64")) >> const(56, "uint64"))


_COUNT = 3  # instructions
MOST_ADDED = 31  # counts of a byte, at most 8 each, that fit a byte
_MOST_SUMS = 8  # in a tile, of bytes and of lanes


@dataclasses.dataclass(frozen=True)
class Planes:
    """The instructions that count bits on a processor.

    Attributes:
        name: name of the instruction.
        lanes: outputs in a vector.
        registers: vector registers for counts, weights and an input.
        bytewise: whether counts are of bytes, to be added up later.
        worth: the product of both widths at which a full word costs as much as its products of
            bytes; from it on bytes are as fast.
        by_signs: whether an instruction gathers the signs of bytes.
    """

    name: str
    lanes: int
    registers: int
    bytewise: bool
    worth: int
    by_signs: bool


def planes_of(target: Target, dot: Dot) -> Planes | None:
    """Chooses how bits are counted on a processor; None if it has no instruction for it."""
    if llvm_cpu_has_features("avx512vpopcntdq", target):
        return Planes("vpopcntd", 16, 14, False, 5 if dot.name == "vpdpbusd" else 8, True)
    if has_neon(target):
        return Planes("cnt", 4, 17, True, 5 if dot.name == "sdot" else 10, False)
    return None


def are_faster(
    planes: Planes, bits: tuple[int, int], dot: Dot, of_bytes: Geometry, of_planes: Geometry
) -> bool:
    """Tells whether a layer takes fewer instructions by planes than by products of bytes.

    `of_bytes` is the layer as products of bytes walk it; `of_planes` has its taps apart.

    By this count a full word costs as much as its dot products of bytes if the product of both
    widths is 2.7 with VNNI, 10 with `smlal2` and 5 with `sdot`. It is more on cores that count more
    vectors per cycle than they multiply: 5 on Zen 5. A word that is not full is counted whole,
    planes have to be made, and every plane of weights ends in a product: `are_faster` counts all of
    that.
    """
    pairs = bits[0] * bits[1]
    products = _steps(of_bytes) * -(-of_bytes.stretch // dot.group)
    # A pair of planes ends in a sum, a plane of weights in a product and a zero more.
    ends = (pairs + _COUNT * bits[0]) / _COUNT
    counts = pairs * _steps(of_planes) * plane_words(of_planes) + ends
    pixels, vectors = math.prod(of_bytes.walked), of_bytes.groups * vectors_of(of_bytes, dot)
    filled = of_bytes.features / dot.lanes if suits(of_bytes, dot) else vectors
    height, width, _ = of_planes.image
    packed_words = (
        height * width * of_planes.groups * packing(of_planes.stretch, bits[1], planes.by_signs)
    )
    a_count = WORD / dot.group / planes.worth  # in products
    return (
        pixels * vectors * counts + packed_words / _COUNT
    ) * a_count < pixels * filled * products


def step_of(planes: Planes) -> Callable[[int, int], float] | None:
    """Counts the instructions of a tile's step; None: those of products of bytes.

    On NEON a number for all lanes comes through the pipes of vectors, as weights do not.
    """

    def instructions(pixels: int, vectors: int) -> float:
        sums = pixels * vectors
        return _COUNT * max(sums, 2) + pixels if sums <= _MOST_SUMS else math.inf

    return instructions if planes.bytewise else None


def _steps(geometry: Geometry) -> int:
    """Counts the stretches in a sum."""
    return math.prod(count for count, _ in geometry.taps)


def weight_planes(bits: int) -> list[tuple[int, int]]:
    """Lists the shift and the sign of each plane of weights that is stored."""
    # Of -1 = 11 and 1 = 01 only the sign plane is stored; the other is all ones.
    if bits == 1:
        return [(1, -1)]
    return [(j, -1 if j == bits - 1 else 1) for j in range(bits)]


class PlanesKernel(ContractionBuilder):
    """Writes the kernel of a layer by planes; only what differs from products of bytes."""

    def __init__(self, planes: Planes, bits: tuple[int, int], *operands: Any):
        super().__init__(*operands)
        self.planes, (self.weight_bits, self.activation_bits) = planes, bits
        g = self.g
        self.words = plane_words(g)
        self.steps = self.words * _steps(g) * len(weight_planes(self.weight_bits))
        self.summed = self.weight_bits == 1
        self.each = self.words * self.activation_bits + self.summed
        self.pixel = self.each * g.groups

    def source(self, n: Any) -> tuple[Any, Any]:
        """Makes the planes of an image: pixel, group, plane, word; then the sum of the codes."""
        g, code = self.g, self.code
        height, width, channels = g.image
        top, _, left, _ = g.padding
        padded_height, padded_width, _ = g.padded
        size = padded_height * padded_width * self.pixel
        planes = code.local(size, "int32", "planes", "global")
        if any(g.padding):
            with code.loop(padded_height * padded_width * g.groups) as place:
                self._border(planes, place)
        with code.loop(height) as h, code.loop(self.width) as w, code.loop(g.groups) as group:
            place = ((h + top) * padded_width + (w + left)) * g.groups + group
            base = ((n * height + h) * width + w) * channels + group * g.stretch
            full, rest = divmod(g.stretch, WORD)
            total = code.vector(const(0, "int32"), 1, "int32", "total")
            with code.loop(full) as k:
                self._write(planes, base + k * WORD, place, k, WORD, total)
            if rest:
                self._write(planes, base + full * WORD, place, full, rest, total)
            if self.summed:
                code.store(planes, place * self.each + self.each - 1, total.get())
        return planes, index(0)

    def _border(self, planes: tirx.Buffer, place: Any) -> None:
        """Writes the planes of a pixel of padding."""
        rest = self.g.stretch % WORD
        for plane, k in itertools.product(range(self.activation_bits), range(self.words)):
            # Only the bits of channels: those beyond would be counted with binary weights.
            ones = (1 << rest) - 1 if rest and k == self.words - 1 else -1
            border = const(ones if self.zero >> plane & 1 else 0, "int32")
            self.code.store(planes, place * self.each + plane * self.words + k, border)
        if self.summed:
            total = const(self.zero * self.g.stretch, "int32")
            self.code.store(planes, place * self.each + self.each - 1, total)

    def _write(
        self, planes: tirx.Buffer, base: Any, place: Any, k: Any, count: int, total: Vector
    ) -> None:
        """Writes the planes of up to 32 codes."""
        words = words_of_planes(
            self.code, self.x, base, count, self.activation_bits, self.planes.by_signs
        )
        for plane, word in enumerate(words):
            # LLVM 22 miscompiles signs of bytes that are gathered to a word and broadcast (it
            # broadcasts an undefined mask register), where it sees both in one block.
            seen = self.code.through_memory(word, "int32", "word")
            held = self.code.vector(seen, 1, "int32", "held").get()
            self.code.store(planes, place * self.each + plane * self.words + k, held)
            if self.summed:
                # sum_i 2^i popcount(x_i) is the sum of the codes, from words that are at hand.
                total.set(total.get() + (tirx.popcount(held) << const(plane, "int32")))

    def sums(self, place: TilePlace, pixels: Any) -> dict[tuple[int, int], Expr]:
        """Writes the sums of a tile, one pair of planes after the other."""
        g, code, lanes = self.g, self.code, self.dot.lanes
        source, _, _, group, first, row, column = place
        entries = list(itertools.product(range(len(pixels)), range(self.tile.vectors)))
        planes = len(weight_planes(self.weight_bits))
        down, right = (n * self.pixel // g.image[2] for n in (g.step[0], g.step[1]))
        start = row * down + column * right + group * self.each
        at_weight = (group * vectors_of(g, self.dot) + first) * self.steps
        pixel_sums = self._code_sums(source, start, pixels, (down, right))
        totals = {} if self.summed else {entry: self._zero() for entry in entries}
        # From the uppermost planes down, doubling what is there: no pair ends in a product.
        with code.loop(planes) as turn:
            counts = {entry: self._zero() for entry in entries}
            there = at_weight + (planes - 1 - turn) * (self.steps // planes)
            with code.loop(self.activation_bits) as i:
                for count in counts.values():
                    count.set(count.get() + count.get())
                here = start + (self.activation_bits - 1 - i) * self.words
                self._count(source, here, there, pixels, (down, right), counts)
            # Two's complement: the uppermost plane has the weight -2^(b - 1).
            sign = tirx.Select(turn == 0, tirx.const(-1, "int32"), tirx.const(1, "int32"))
            for entry, total in totals.items():
                twice = total.get() + total.get()
                total.set(twice + counts[entry].get() * splat(sign, lanes))
        if not self.summed:
            return {entry: total.get() for entry, total in totals.items()}
        return {
            # w = 1 - 2 w_1: the window's codes less twice the counts of the sign plane.
            (p, v): splat(pixel_sums[p].get(), lanes) - (counts[p, v].get() + counts[p, v].get())
            for p, v in entries
        }

    def _code_sums(
        self, source: Any, start: Any, pixels: Any, steps: tuple[int, int]
    ) -> list[Vector]:
        """Sums the codes of a window: the lower plane of binary weights is all ones."""
        if not self.summed:
            return []
        code, (down, right) = self.code, steps
        pixel_sums = [code.vector(const(0, "int32"), 1, "int32", "own") for _ in pixels]
        with NestedLoops(code, [count for count, _ in self.g.taps]) as taps:
            at = start + self.each - 1
            for i, (_, distance) in zip(taps, self.g.taps, strict=True):
                at = at + i * (distance * self.pixel // self.g.image[2])
            for (r, c), total in zip(pixels, pixel_sums, strict=True):
                total.set(total.get() + load(source, at + r * down + c * right))
        return pixel_sums

    def _count(
        self,
        source: Any,
        here: Any,
        there: Any,
        pixels: Any,
        steps: tuple[int, int],
        counts: dict[tuple[int, int], Vector],
    ) -> None:
        """Adds the counts of one pair of planes over all taps and words."""
        code, lanes = self.code, self.dot.lanes
        down, right = steps

        def add(sums: Any, at: Any, place: Any) -> None:
            weights = [
                load(self.w, (there + v * self.steps + place) * lanes, lanes)
                for v in range(self.tile.vectors)
            ]
            for p, (r, c) in enumerate(pixels):
                x = splat(load(source, at + r * down + c * right), lanes)
                for v, w in enumerate(weights):
                    sums[p, v].set(sums[p, v].get() + self._ones(x & w))

        if not self.planes.bytewise:
            with _walk(code, [*self._taps(), (self.words, 1, 1)], here) as (at, place):
                add(counts, at, place)
            return
        for start, words in self._stretches():
            every = [*self._taps(), *words]
            # The innermost loops of at most 31 turns count in bytes (31 * 8 < 256), which are added
            # up to int32 once: a fraction of the instructions of widening every count.
            sizes = [math.prod(count for count, *_ in every[i:]) for i in range(len(every))]
            first = next(i for i, size in enumerate(sizes) if size <= MOST_ADDED)
            with _walk(code, every[:first], here + start, start) as (at, place):
                narrow = {key: self._zero("uint8", 4) for key in counts}
                with _walk(code, every[first:], at, place) as (at, place):
                    add(narrow, at, place)
                for key, total in counts.items():
                    total.set(total.get() + _added_up(narrow[key].get()))

    def _taps(self) -> list[tuple[int, int, int]]:
        """Lists taps: how many, and how far apart in the planes of the input and of the weights."""
        apart, taps = self.words, []
        for count, distance in reversed(self.g.taps):
            taps.append((count, distance * self.pixel // self.g.image[2], apart))
            apart *= count
        return taps[::-1]

    def _stretches(self) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Yields runs of words counted in bytes: where each starts, and its equal parts."""
        # Equal parts, so that one loop body serves nearly all words.
        size = -(-self.words // -(-self.words // MOST_ADDED))
        parts, left = divmod(self.words, size)
        yield 0, [(parts, size, size), (size, 1, 1)]
        if left:
            yield self.words - left, [(left, 1, 1)]

    def _ones(self, x: Expr) -> Expr:
        if self.planes.bytewise:
            return tirx.popcount(tirx.reinterpret(f"uint8x{4 * self.dot.lanes}", x))
        return tirx.popcount(x)

    def _zero(self, dtype: str = "int32", times: int = 1) -> Vector:
        lanes = self.dot.lanes * times
        return self.code.vector(const(0, dtype, lanes), lanes, dtype)


@contextmanager
def _walk(
    code: StatementBuilder, dimensions: Sequence[tuple[int, int, int]], at: Any, place: Any = 0
) -> Iterator[tuple[Any, Any]]:
    """Loops over dimensions, and tracks the place in the planes of the input and of the weights."""
    with NestedLoops(code, [count for count, *_ in dimensions]) as loops:
        for i, (_, distance, apart) in zip(loops, dimensions, strict=True):
            at, place = at + i * distance, place + i * apart
        yield at, place


def _added_up(counts: Expr) -> Expr:
    """Adds up the counts of four bytes of every lane."""
    pairs = T.call_llvm_pure_intrin(
        T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.uaddlp.v8i16.v16i8"), counts, dtype="int16x8"
    )
    return T.call_llvm_pure_intrin(
        T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.uaddlp.v4i32.v8i16"), pairs, dtype="int32x4"
    )


def plane_words(geometry: Geometry) -> int:
    """Counts the words of the channels of a pixel."""
    return -(-geometry.stretch // WORD)
