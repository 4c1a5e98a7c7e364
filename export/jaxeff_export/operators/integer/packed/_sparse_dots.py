"""The instructions that multiply values of sparse weights by the inputs that their places name.

A shuffle by places picks the inputs out of a block that fills the vector, so that nothing is
multiplied by a zero and no weight is unpacked.

| instructions | inputs picked by | values at once |
|---|---|---|
| `vpdpbusd` (AVX-512 VNNI, AVX-VNNI) | `vpshufb` | 64, 32 |
| `vpsignb`, `vpmaddubsw`, `vpmaddwd` (AVX2) | `vpshufb` | 32 |
| `sdot`; `smull`, `smlal2`, `sadalp` (ARM) | `tbl` | 16 |
| products of float32 (AVX-512, AVX; ARM) | `vpermilps`; `tbl` | 16, 8; 4 |
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features
from tvm.tirx import Expr

from jaxeff_export.operators.integer._dots import Dot, called, dot_of, of_few
from jaxeff_export.operators.statements import cast, const, splat

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
    return called(name, kind, tirx.reinterpret(kind, both), tirx.reinterpret(kind, control))


def _halves(load: Any, places: Expr) -> tuple[Expr, Expr]:
    """Picks bytes of one block for half a vector each, as `smull` takes them."""
    control = tirx.reinterpret("int8x16", places & const(_PLACES, "int32", 4))
    name, found = "llvm.aarch64.neon.tbl1.v8i8", []
    for block, part in enumerate((T.vectorlow, T.vectorhigh)):
        word = splat(tirx.reinterpret("int32", load(4 * block, 4)), 4)
        table = tirx.reinterpret("int8x16", word)
        found.append(called(name, "int8x8", table, part(control, dtype="int8x8")))
    return found[0], found[1]


def _permuted(name: str, lanes: int, load: Any, places: Expr) -> Expr:
    """Picks floats of a block; of the places' bits the instruction reads the lowest two."""
    # The block lies in every 128 bits.
    copies = [load(0, 4)] * (lanes // 4)
    block = tirx.Shuffle(copies, [tirx.const(i, "int32") for i in range(lanes)])
    return called(name, f"float32x{lanes}", block, places)


def _looked_up(load: Any, places: Expr) -> Expr:
    """Picks floats of a block by the numbers of their four bytes."""
    table = tirx.reinterpret("int8x16", load(0, 4))
    first = (places & const(3, "int32", 4)) * const(0x04040404, "int32", 4)
    control = tirx.reinterpret("int8x16", first + const(0x03020100, "int32", 4))
    found = called("llvm.aarch64.neon.tbl1.v16i8", "int8x16", table, control)
    return tirx.reinterpret("float32x4", found)
