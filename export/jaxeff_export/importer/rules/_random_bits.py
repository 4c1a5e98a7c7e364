"""rng_bit_generator: counter-based random bits, the same as from XLA's CPU compiler.

A kernel runs the generator once for each value of its counter, which gives a block of several
32-bit words; each element of the result then picks its words. XLA says in which order: Philox
fills the result in row-major order; Threefry, which gives two words, splits one dimension in
halves (a detail that sharding wants).
"""

import math
from collections.abc import Callable, Sequence

from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, TensorType, Unsupported, enumerator
from jaxeff_export.importer._loops import CodeBuilder, View, kernel
from jaxeff_export.importer._scalar_rules import ScalarOp, apply_scalar, bits_of, is_float

Words = list[Expr]  # of 32 bits
Place = Callable[[Sequence[Expr]], tuple[Expr, Expr]]  # index of an element -> block, first word


@rule("stablehlo.rng_bit_generator")
def _rng_bit_generator(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    (length,) = node.operands[0].type.shape
    result = node.results[1].type
    algorithm = enumerator(node.op, "rng_algorithm")
    if node.operands[0].type.dtype != "uint64" or is_float(result.dtype):
        raise Unsupported("random bits are integers, made from a state of 64-bit words")
    if algorithm == "THREE_FRY" and length == 2:
        generator, lanes = _threefry, 2
        blocks, place = _threefry_layout(result)
    elif algorithm in ("DEFAULT", "PHILOX") and length in (2, 3):
        generator, lanes = _philox, 4
        blocks, place = _philox_layout(result)
    else:
        raise Unsupported(f"the algorithm {algorithm} with a state of {length} words")

    def body(code: CodeBuilder, state: View, new_state: View, words: View) -> None:
        # The key is the state's first word; the rest counts blocks, so any block can be made alone.
        key = _halves(code, state[0])
        counter = [state[k] for k in range(1, length)]
        if algorithm != "THREE_FRY" and length == 2:
            counter.append(state[0])  # the key is the upper half of the counter too
        with code.loop(blocks) as i:
            numbers = _advance(code, counter, tirx.Cast("uint64", i))
            parts = [part for number in numbers for part in _halves(code, number)]
            for lane, word in enumerate(generator(code, parts, key)):
                words[i, lane] = word
        after = [state[0], *_advance(code, counter, tirx.const(blocks, "uint64"))]
        for k in range(length):
            new_state[k] = after[k]

    def generate(state: te.Tensor) -> list[te.Tensor]:
        results = [((length,), "uint64"), ((blocks, lanes), "uint32")]
        new_state, words = kernel(body, [state], results, "random_words")
        return [new_state, _assemble(words, result, place)]

    both = e.te(generate, node.operands[0], name="rng_bit_generator")
    return e.unpack(both, 2)


@rule("stablehlo.rng")
def _rng(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    raise Unsupported(
        "it draws from a hidden state, so no two runs agree; use jax.random with a key"
    )


def _assemble(words: te.Tensor, result: TensorType, place: Place) -> te.Tensor:
    """Makes the elements of the result from 32-bit words."""
    bits = bits_of(result.dtype)

    def element(*index: Expr) -> Expr:
        block, first = place(index)
        if bits < 64:
            return tirx.Cast(result.dtype, tirx.Cast(f"uint{bits}", words(block, first)))
        low, high = (tirx.Cast("uint64", words(block, first + k)) for k in range(2))
        return tirx.Cast(result.dtype, low | (high << tirx.const(32, "uint64")))

    return te.compute(result.shape, element, name="random_bits")


def _philox_layout(result: TensorType) -> tuple[int, Place]:
    per_block = 2 if bits_of(result.dtype) == 64 else 4

    def place(index: Sequence[Expr]) -> tuple[Expr, Expr]:
        at, size = _row_major(index, result.shape), tirx.const(per_block, "int64")
        return tirx.floordiv(at, size), tirx.floormod(at, size) * (4 // per_block)

    return -(-result.size // per_block), place


def _threefry_layout(result: TensorType) -> tuple[int, Place]:
    shape = list(result.shape)
    zero, two = tirx.const(0, "int64"), tirx.const(2, "int64")
    if bits_of(result.dtype) == 64 or not shape:
        return result.size, lambda index: (_row_major(index, shape), zero)
    # As XLA: the first even dimension is halved, or the longest, rounded up.
    even = [d for d, n in enumerate(shape) if n % 2 == 0]
    split = even[0] if even else shape.index(max(shape))
    halves = list(shape)
    halves[split] = -(-shape[split] // 2)

    def place(index: Sequence[Expr]) -> tuple[Expr, Expr]:
        at = list(index)
        at[split] = tirx.floordiv(index[split], two)
        return _row_major(at, halves), tirx.floormod(index[split], two)

    return math.prod(halves), place


def _row_major(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    at: Expr = tirx.const(0, "int64")
    for i, n in zip(index, shape, strict=True):
        at = at * n + i
    return at


_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_THREEFRY_PARITY = 0x1BD11BDA


def _philox(code: CodeBuilder, x: Words, key: Words) -> Words:
    """Applies Philox 4x32 with ten rounds (Salmon et al., SC 2011)."""
    for round_number in range(10):
        if round_number:
            # Weyl sequences with the golden ratio and sqrt(3) - 1 as 32-bit fractions.
            key = [
                _add(code, k, tirx.const(step, "uint32"))
                for k, step in zip(key, _PHILOX_KEY_STEPS, strict=True)
            ]
        # 32 x 32 -> 64 bits: high halves are mixed with the counter and the key.
        (low0, high0), (low1, high1) = (
            _halves(code, tirx.Cast("uint64", word) * tirx.const(factor, "uint64"))
            for word, factor in zip(x[::2], _PHILOX_FACTORS, strict=True)
        )
        x = [code.let(high1 ^ x[1] ^ key[0]), low1, code.let(high0 ^ x[3] ^ key[1]), low0]
    return x


def _threefry(code: CodeBuilder, x: Words, key: Words) -> Words:
    """Applies Threefry 2x32 with twenty rounds (Salmon et al., SC 2011)."""
    # The third key word is a parity, as in Skein: its constant makes one of the words nonzero.
    keys = [*key, code.let(key[0] ^ key[1] ^ tirx.const(_THREEFRY_PARITY, "uint32"))]
    x = [_add(code, word, k) for word, k in zip(x, key, strict=True)]
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            first = _add(code, *x)
            left, right = tirx.const(rotation, "uint32"), tirx.const(32 - rotation, "uint32")
            x = [first, code.let(((x[1] << left) | (x[1] >> right)) ^ first)]
        # The key goes in after every four rounds, with their number to break symmetry.
        count = tirx.const(group + 1, "uint32")
        x = [
            _add(code, x[0], keys[(group + 1) % 3]),
            _add(code, _add(code, x[1], keys[(group + 2) % 3]), count),
        ]
    return x


def _add(code: CodeBuilder, a: Expr, b: Expr) -> Expr:
    """Adds two unsigned integers; the sum wraps around."""
    if str(a.ty.dtype) == "uint64":
        return apply_scalar("stablehlo.add", code, ScalarOp("uint64", None), a, b)
    # TVM assumes that 32-bit sums never overflow; in 64 bits they don't.
    total = tirx.Cast("uint64", a) + tirx.Cast("uint64", b)
    return code.let(tirx.Cast("uint32", total & tirx.const(0xFFFFFFFF, "uint64")))


def _advance(code: CodeBuilder, counter: Sequence[Expr], amount: Expr) -> list[Expr]:
    """Adds to a counter of one or two 64-bit words, the lower first."""
    low = _add(code, counter[0], amount)
    if len(counter) == 1:
        return [low]
    # A sum that is less than an addend has wrapped around.
    carry = code.let(tirx.Cast("uint64", low < amount))
    return [low, _add(code, counter[1], carry)]


def _halves(code: CodeBuilder, number: Expr) -> Words:
    """Splits a 64-bit integer into its lower and its upper half."""
    number = code.let(number)
    mask, shift = tirx.const(0xFFFFFFFF, "uint64"), tirx.const(32, "uint64")
    halves = (number & mask, number >> shift)
    return [code.let(tirx.Cast("uint32", half)) for half in halves]
