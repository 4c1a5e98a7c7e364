"""The instructions that add products of bytes to int32 sums, by processor.

Each takes a vector of outputs, four products (two without dot products of bytes) for each at once:
a dword of the input is broadcast, the weights lie as `lanes` outputs of a dword each.

| instructions | input | products per instruction |
|---|---|---|
| `vpdpbusd` (AVX-512 VNNI; AVX-VNNI in half the width) | u8 | 64; 32 |
| `vpmaddwd`, `vpaddd` (AVX-512 BW; AVX2) | as int16 | 16; 8 |
| `vpsignb`, `vpmaddubsw`, `vpmaddwd` (AVX2, few examples) | u8 - 128 as s8 | 32 / 4 |
| `sdot` (ARMv8.2) | u8 - 128 as s8 | 16 |
| `smull`, `smlal2`, `sadalp` (ARMv8.0) | u8 - 128 as s8 | 16 / 3 |
| `smlad` (ARMv7E-M: Cortex-M4, M7) | u8 as int16 | 2 |

`vpmaddubsw` of codes as they are saturates; with signs moved it can't: two products of a code in
[-128, 127] and one in [-127, 127] fit int16, in which `smlal2` adds them too.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features
from tvm.tirx import Expr

from jaxeff_export.operators._statements import cast, const, splat
from jaxeff_export.targets import target_machine

Load = Callable[[int, int], Expr]
"""`load(offset, count)`: neighbouring elements of the input, from an offset within the group."""

CHUNK = 32
"""Products that a part adds up at most: 32 of 127 * 8 come to 32,512, which int16 holds."""
MASK = 0x0F0F0F0F
_WORD = 0xFFFF


@dataclasses.dataclass(frozen=True)
class Dot:
    """The instructions that add products on a processor.

    Attributes:
        name: name of the instruction.
        lanes: outputs in a vector.
        group: products of an output that one step adds.
        data: dtype that the input is kept in.
        weight: dtype that weights are kept in.
        offset: number that is subtracted from the input's codes.
        registers: vector registers for sums, weights and an input.
        step: sums after a step, from the sums, the input of `prepare` and the weights.
        prepare: a group of the input in every lane.
        halves: whether weights lie as the first half of every lane's group, then the second.
    """

    name: str
    lanes: int
    group: int
    data: str
    weight: str
    offset: int
    registers: int
    step: Callable[[Expr, Any, Expr], Expr]
    prepare: Callable[[Load], Any]
    halves: bool = False


def dot_of(target: Target) -> Dot:
    """Chooses the fastest instructions that a processor has."""
    has = llvm_cpu_has_features
    # Of each architecture, the most products per instruction first.
    if has("avx512vnni", target) and has("avx512f", target):
        return vnni(16, "llvm.x86.avx512.vpdpbusd.512", 32)
    if has("avxvnni", target):
        return vnni(8, "llvm.x86.avx512.vpdpbusd.256", 16)
    if has("avx512bw", target):
        return multiply_words(16, "llvm.x86.avx512.pmaddw.d.512", 32)
    if has("avx2", target):
        return multiply_words(8, "llvm.x86.avx2.pmadd.wd", 16)
    if has("dotprod", target):
        return signed_dot()
    if has_neon(target):
        return multiply_long()
    if target_machine(dict(target.attrs)).startswith("thumb") and has("dsp", target):
        return multiply_dual()
    return plain()


def has_neon(target: Target) -> bool:
    """Tells whether a processor has the vectors of 64-bit ARM (32-bit ones have other names)."""
    machine = target_machine(dict(target.attrs))
    return machine == "aarch64" and llvm_cpu_has_features("neon", target)


def broadcast(data: str, lanes: int, group: int) -> Callable[[Load], Expr]:
    """Makes what fills all lanes with a group of the input."""

    def prepare(load: Load) -> Expr:
        # A group is one dword, so that a single broadcast from memory fills all lanes.
        word = tirx.reinterpret("int32", load(0, group))
        return tirx.reinterpret(f"{data}x{lanes * group}", splat(word, lanes))

    return prepare


def call_intrinsic(name: str, dtype: str, *operands: Expr) -> Expr:
    """Calls an instruction by its name in LLVM."""
    return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(name), *operands, dtype=dtype)


def vnni(lanes: int, intrinsic: str, registers: int) -> Dot:
    """Describes `vpdpbusd`."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return call_intrinsic(intrinsic, f"int32x{lanes}", sums, x, w)

    prepare = broadcast("uint8", lanes, 4)
    return Dot("vpdpbusd", lanes, 4, "uint8", "int8", 0, registers, step, prepare)


def multiply_words(lanes: int, intrinsic: str, registers: int) -> Dot:
    """Describes `vpmaddwd` and `vpaddd`, on words: exact, where `vpmaddubsw` saturates."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return sums + call_intrinsic(intrinsic, f"int32x{lanes}", x, w)

    prepare = broadcast("int16", lanes, 2)
    return Dot("vpmaddwd", lanes, 2, "int16", "int16", 0, registers, step, prepare)


def multiply_bytes() -> Dot:
    """Describes `vpsignb`, `vpmaddubsw`, `vpmaddwd` and `vpaddd`, on weights that stay bytes.

    |x| is at most 128 and w x has the sign moved to w, so that two products are at most 32,512 and
    none saturates. As many instructions as on words, and half the bytes: for few examples.
    """

    def prepare(load: Load) -> tuple[Expr, Expr]:
        x = broadcast("int8", 8, 4)(load)
        return x, tirx.reinterpret("uint8x32", tirx.max(x, const(0, "int8", 32) - x))

    def step(sums: Expr, x: tuple[Expr, Expr], w: Expr) -> Expr:
        signed = call_intrinsic("llvm.x86.avx2.psign.b", "int8x32", w, x[0])
        pairs = call_intrinsic("llvm.x86.avx2.pmadd.ub.sw", "int16x16", x[1], signed)
        return sums + call_intrinsic(
            "llvm.x86.avx2.pmadd.wd", "int32x8", pairs, const(1, "int16", 16)
        )

    return Dot("vpmaddubsw", 8, 4, "int8", "int8", 128, 14, step, prepare)


def of_few(target: Target, dot: Dot) -> Dot:
    """Chooses the instructions for few examples, where fetching weights takes the longest."""
    words = dot.name == "vpmaddwd"
    return multiply_bytes() if words and llvm_cpu_has_features("avx2", target) else dot


def signed_dot() -> Dot:
    """Describes `sdot`."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return call_intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", "int32x4", sums, x, w)

    return Dot("sdot", 4, 4, "int8", "int8", 128, 32, step, broadcast("int8", 4, 4))


def multiply_long() -> Dot:
    """Describes `smull`, `smlal2` and `sadalp`: two products of each lane, then the other two."""

    def prepare(load: Load) -> tuple[Expr, Expr]:
        pairs = (tirx.reinterpret("int16", load(at, 2)) for at in (0, 2))
        first, second = (tirx.reinterpret("int8x8", splat(pair, 4)) for pair in pairs)
        return first, second

    def step(sums: Expr, x: tuple[Expr, Expr], w: Expr) -> Expr:
        first, second = _long_products(x, w)
        # Two products of at most 128 * 127 come to 32,512, which int16 holds; four would not fit.
        return sums + _pairs_added(first + second)

    # Halves of the weights and of the input take registers beside the sums.
    return Dot("smlal2", 4, 4, "int8", "int8", 128, 20, step, prepare, halves=True)


def _long_products(x: tuple[Expr, Expr], w: Expr) -> tuple[Expr, Expr]:
    """Multiplies both halves of a vector of weights, by `smull` and `smull2`."""
    long = "llvm.aarch64.neon.smull.v8i16"
    return (
        call_intrinsic(long, "int16x8", x[0], T.vectorlow(w, dtype="int8x8")),
        call_intrinsic(long, "int16x8", x[1], T.vectorhigh(w, dtype="int8x8")),
    )


def _pairs_added(words: Expr) -> Expr:
    """Adds neighbouring words to dwords, by `saddlp`, or `sadalp` where they are added to sums."""
    return call_intrinsic("llvm.aarch64.neon.saddlp.v4i32.v8i16", "int32x4", words)


def multiply_dual() -> Dot:
    """Describes `smlad`: two products of words, taken from dwords by `sxtb16` and `uxtb16`.

    There are no vectors: an output is a lane. Of fourteen registers some hold addresses.
    """

    def words(extend: str, dword: Expr) -> tuple[Expr, Expr]:
        # The extensions take bytes 0 and 2; a rotation by eight bits brings 1 and 3 there.
        odd = call_intrinsic("llvm.fshr", "int32", dword, dword, tirx.const(8, "int32"))
        even, odd = (call_intrinsic(f"llvm.arm.{extend}", "int32", x) for x in (dword, odd))
        return even, odd

    def prepare(load: Load) -> tuple[Expr, Expr]:
        return words("uxtb16", tirx.reinterpret("int32", load(0, 4)))

    def step(sums: Expr, x: tuple[Expr, Expr], w: Expr) -> Expr:
        for one, other in zip(x, words("sxtb16", tirx.reinterpret("int32", w)), strict=True):
            sums = call_intrinsic("llvm.arm.smlad", "int32", one, other, sums)
        return sums

    return Dot("smlad", 1, 4, "uint8", "int8", 0, 11, step, prepare)


def plain() -> Dot:
    """Describes products in int32 of weights kept as bytes, for all other processors."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return sums + tirx.Cast("int32x4", x) * tirx.Cast("int32x4", w)

    return Dot("plain", 4, 1, "uint8", "int8", 0, 16, step, lambda load: splat(load(0, 1), 4))


@dataclasses.dataclass(frozen=True)
class NibbleDot:
    """Products of halves of bytes on a processor.

    Codes of four bits lie two in a byte, as unsigned halves u = w + 8, so that a mask and a shift
    unpack a dword of eight of them for every output. Products u x of a signed byte x add up in a
    part; it starts at -8 sum x, which all outputs share, and is therefore sum w x. A few dwords
    later it is multiplied by the step of the group and added to the sums.

    | instructions | a part |
    |---|---|
    | `vpdpbusd` (AVX-512 VNNI, AVX-VNNI) | int32 |
    | `vpmaddubsw` (AVX-512 BW, AVX2) | int16, two for an output |
    | `sdot` (ARMv8.2) | int32 |
    | `smlal`, `smlal2` (ARMv8.0) | int16, two for an output |
    | products in int32 (all others) | int32 |

    Attributes:
        dot: products of unsigned bytes of weights and signed ones of the input.
        narrow: whether parts are pairs of int16 in every lane.
        widen: sums of a part times steps, from the part (int32 lanes) and steps (int32 lanes).
    """

    dot: Dot
    narrow: bool
    widen: Callable[[Expr, Expr], Expr]

    def unpacked(self, w: Expr) -> tuple[Expr, Expr]:
        """Unpacks a vector of dwords: the first four products of every output, then the others."""
        lanes = self.dot.lanes
        mask, four = const(MASK, "int32", lanes), const(4, "int32", lanes)
        dwords = tirx.reinterpret(_lanes("int32", lanes), w)
        both = (dwords & mask, tirx.shift_right(dwords, four) & mask)
        first, second = (tirx.reinterpret(f"uint8x{4 * lanes}", half) for half in both)
        return first, second


def nibbles_of(target: Target) -> NibbleDot:
    """Chooses the fastest instructions that a processor has."""
    has, dot = llvm_cpu_has_features, dot_of(target)
    if dot.name == "vpdpbusd":
        swapped = dot.step
        wide = dot.lanes == 16
        name = "llvm.x86.avx512.pmaddw.d.512" if wide else "llvm.x86.avx2.pmadd.wd"

        def step(sums: Expr, x: Any, w: Expr) -> Expr:
            return swapped(sums, w, x)

        def widen(part: Expr, steps: Expr) -> Expr:
            # A part fits the lower word of its lane, and a step's upper one is masked away: a
            # negative part has an upper word, too, which must meet a zero.
            lower = steps & const(_WORD, "int32", dot.lanes)
            words = (tirx.reinterpret(f"int16x{2 * dot.lanes}", each) for each in (part, lower))
            return call_intrinsic(name, f"int32x{dot.lanes}", *words)

        return NibbleDot(_signed(dot, step), False, widen)
    if has("avx512bw", target):
        return _pairs(16, "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512", 32)
    if has("avx2", target):
        return _pairs(8, "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd", 16)
    if dot.name == "smlal2":
        return _long_pairs(dot)
    if dot.name == "sdot":

        def as_signed(sums: Expr, x: Any, w: Expr) -> Expr:
            return dot.step(sums, x, tirx.reinterpret(f"int8x{4 * dot.lanes}", w))

        return NibbleDot(dataclasses.replace(dot, step=as_signed), False, _product)
    return NibbleDot(_scalar(dot.registers), False, _product)


def _signed(dot: Dot, step: Any) -> Dot:
    prepare = broadcast("int8", dot.lanes, 4)
    return dataclasses.replace(dot, data="int8", offset=128, step=step, prepare=prepare)


def _pairs(lanes: int, products: str, sums_of_pairs: str, registers: int) -> NibbleDot:
    """Describes `vpmaddubsw`, whose parts `vpmaddwd` multiplies by steps and adds up."""
    words = f"int16x{2 * lanes}"

    def step(part: Expr, x: Any, w: Expr) -> Expr:
        total = tirx.reinterpret(words, part) + call_intrinsic(products, words, w, x)
        return tirx.reinterpret(f"int32x{lanes}", total)

    def widen(part: Expr, steps: Expr) -> Expr:
        # The upper word of a negative step is all ones: masked away, both words are the step.
        lower = steps & const(_WORD, "int32", lanes)
        twice = lower | tirx.shift_left(steps, const(16, "int32", lanes))
        pairs = (tirx.reinterpret(words, each) for each in (part, twice))
        return call_intrinsic(sums_of_pairs, f"int32x{lanes}", *pairs)

    prepare = broadcast("int8", lanes, 4)
    dot = Dot("vpmaddubsw", lanes, 4, "int8", "uint8", 128, registers, step, prepare)
    return NibbleDot(dot, True, widen)


def _long_pairs(dot: Dot) -> NibbleDot:
    """Describes `smlal` and `smlal2` to words, which are added up once for a part."""

    def step(part: Expr, x: tuple[Expr, Expr], w: Expr) -> Expr:
        first, second = _long_products(x, tirx.reinterpret("int8x16", w))
        # A word takes sixteen products of a part. They may wrap around on the way: what they come
        # to, w x of at most 16 * 8 * 128, fits.
        total = tirx.reinterpret("int16x8", part) + first + second
        return tirx.reinterpret("int32x4", total)

    def widen(part: Expr, steps: Expr) -> Expr:
        return _pairs_added(tirx.reinterpret("int16x8", part)) * steps

    return NibbleDot(dataclasses.replace(dot, step=step), True, widen)


def _scalar(registers: int) -> Dot:
    """Describes products in int32, for processors without any of bytes."""
    lanes = 4

    def prepare(load: Any) -> list[Expr]:
        return [splat(cast(load(i, 1), "int32", 1), lanes) for i in range(4)]

    def step(part: Expr, x: Any, w: Expr) -> Expr:
        dwords = tirx.reinterpret(f"int32x{lanes}", w)
        for i, value in enumerate(x):
            byte = tirx.shift_right(dwords, const(8 * i, "int32", lanes))
            part = part + (byte & const(255, "int32", lanes)) * value
        return part

    return Dot("plain", lanes, 4, "int8", "uint8", 128, registers, step, prepare)


def _product(part: Expr, steps: Expr) -> Expr:
    return part * steps


def _lanes(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
