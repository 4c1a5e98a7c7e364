"""A word of every plane of up to 32 codes: bit i of plane p is bit p of code i.

| instructions | codes at once, for a plane |
|---|---|
| `vpsllw`, `vpmovmskb`: the uppermost bit of every byte (AVX2) | 32, 16 or 8 |
| shift, and, product, shift: the lowest bit of every byte, by a product | 8 |
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx import Expr

from jaxeff_export.operators.statements import StatementBuilder, const, load, splat

WORD = 32
_ONES, _GATHER = 0x0101010101010101, 0x0102040810204080
_EIGHT = 8  # codes of a dword pair
_SIGNS = {32: "llvm.x86.avx2.pmovmskb", 16: "llvm.x86.sse2.pmovmskb.128"}


def words_of_planes(
    code: StatementBuilder, x: tirx.Buffer, at: Expr, count: int, planes: int, by_signs: bool
) -> list[Expr]:
    """Makes the words of some codes, as int32.

    Args:
        code: the code under construction, which statements are appended to.
        x: codes.
        at: the first of them.
        count: number of codes, at most 32.
        planes: their width in bits.
        by_signs: whether the target has `vpmovmskb`.
    """
    parts = []
    for start, many in _parts(count, by_signs):
        if many > _EIGHT:
            value, dtype, lanes = load(x, at + start, many), "uint8", many
        else:
            value, dtype, lanes = _eight(x, at + start, many), "uint64", 1
        parts.append((start, many, code.vector(value, lanes, dtype, "codes").get()))
    found = []
    for plane in range(planes):
        word = const(0, "uint32")
        for start, many, codes in parts:
            bits = _signs(codes, many, plane) if by_signs else _product(codes, plane)
            word = word | (bits << const(start, "uint32"))
        found.append(tirx.reinterpret("int32", word))
    return found


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
