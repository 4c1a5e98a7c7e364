"""The instructions that add products of bytes to int32 sums, by processor.

Each takes a vector of outputs, four products (two without dot products of bytes) for each at once:
a dword of the input is broadcast, the weights lie as `lanes` outputs of a dword each.

| instructions | input | products per instruction |
|---|---|---|
| `vpdpbusd` (AVX-512 VNNI; AVX-VNNI in half the width) | u8 | 64; 32 |
| `vpmaddwd`, `vpaddd` (AVX-512 BW; AVX2) | as int16 | 16; 8 |
| `sdot` (ARMv8.2) | u8 - 128 as s8 | 16 |
| `smull`, `smlal2`, `sadalp` (ARMv8.0) | u8 - 128 as s8 | 16 / 3 |
| `smlad` (ARMv7E-M: Cortex-M4, M7) | u8 as int16 | 2 |

`vpmaddubsw` is none of them: it saturates. Two products of a code in [-128, 127] and one in
[-127, 127] fit the int16 that `smlal2` adds them in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features
from tvm.tirx import Expr

from jaxeff_export.operators.integer._code import splat
from jaxeff_export.targets import target_machine

Load = Callable[[int, int], Expr]
"""`load(offset, count)`: neighbouring elements of the input, from an offset within the group."""


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


def _broadcast(data: str, lanes: int, group: int) -> Callable[[Load], Expr]:
    def prepare(load: Load) -> Expr:
        # A group is one dword, so that a single broadcast from memory fills all lanes.
        word = tirx.reinterpret("int32", load(0, group))
        return tirx.reinterpret(f"{data}x{lanes * group}", splat(word, lanes))

    return prepare


def _call(name: str, dtype: str, *operands: Expr) -> Expr:
    return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(name), *operands, dtype=dtype)


def vnni(lanes: int, intrinsic: str, registers: int) -> Dot:
    """Describes `vpdpbusd`."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return _call(intrinsic, f"int32x{lanes}", sums, x, w)

    prepare = _broadcast("uint8", lanes, 4)
    return Dot("vpdpbusd", lanes, 4, "uint8", "int8", 0, registers, step, prepare)


def multiply_words(lanes: int, intrinsic: str, registers: int) -> Dot:
    """Describes `vpmaddwd` and `vpaddd`, on words: exact, where `vpmaddubsw` saturates."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return sums + _call(intrinsic, f"int32x{lanes}", x, w)

    prepare = _broadcast("int16", lanes, 2)
    return Dot("vpmaddwd", lanes, 2, "int16", "int16", 0, registers, step, prepare)


def signed_dot() -> Dot:
    """Describes `sdot`."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return _call("llvm.aarch64.neon.sdot.v4i32.v16i8", "int32x4", sums, x, w)

    return Dot("sdot", 4, 4, "int8", "int8", 128, 32, step, _broadcast("int8", 4, 4))


def multiply_long() -> Dot:
    """Describes `smull`, `smlal2` and `sadalp`: two products of each lane, then the other two."""
    long = "llvm.aarch64.neon.smull.v8i16"

    def prepare(load: Load) -> tuple[Expr, Expr]:
        pairs = (tirx.reinterpret("int16", load(at, 2)) for at in (0, 2))
        first, second = (tirx.reinterpret("int8x8", splat(pair, 4)) for pair in pairs)
        return first, second

    def step(sums: Expr, x: tuple[Expr, Expr], w: Expr) -> Expr:
        first = _call(long, "int16x8", x[0], T.vectorlow(w, dtype="int8x8"))
        second = _call(long, "int16x8", x[1], T.vectorhigh(w, dtype="int8x8"))
        # Two products of at most 128 * 127 come to 32,512, which int16 holds; four would not fit.
        pairs = _call("llvm.aarch64.neon.saddlp.v4i32.v8i16", "int32x4", first + second)
        return sums + pairs

    # Halves of the weights and of the input take registers beside the sums.
    return Dot("smlal2", 4, 4, "int8", "int8", 128, 20, step, prepare, halves=True)


def multiply_dual() -> Dot:
    """Describes `smlad`: two products of words, taken from dwords by `sxtb16` and `uxtb16`.

    There are no vectors: an output is a lane. Of fourteen registers some hold addresses.
    """

    def words(extend: str, dword: Expr) -> tuple[Expr, Expr]:
        # The extensions take bytes 0 and 2; a rotation by eight bits brings 1 and 3 there.
        odd = _call("llvm.fshr", "int32", dword, dword, tirx.const(8, "int32"))
        even, odd = (_call(f"llvm.arm.{extend}", "int32", x) for x in (dword, odd))
        return even, odd

    def prepare(load: Load) -> tuple[Expr, Expr]:
        return words("uxtb16", tirx.reinterpret("int32", load(0, 4)))

    def step(sums: Expr, x: tuple[Expr, Expr], w: Expr) -> Expr:
        for one, other in zip(x, words("sxtb16", tirx.reinterpret("int32", w)), strict=True):
            sums = _call("llvm.arm.smlad", "int32", one, other, sums)
        return sums

    return Dot("smlad", 1, 4, "uint8", "int8", 0, 11, step, prepare)


def plain() -> Dot:
    """Describes products in int32 of weights kept as bytes, for all other processors."""

    def step(sums: Expr, x: Expr, w: Expr) -> Expr:
        return sums + tirx.Cast("int32x4", x) * tirx.Cast("int32x4", w)

    return Dot("plain", 4, 1, "uint8", "int8", 0, 16, step, lambda load: splat(load(0, 1), 4))
