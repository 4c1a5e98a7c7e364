"""fft of any length: Stockham's algorithm, one pass for each prime factor (four for pairs of two).

A pass over a factor p takes n * p multiplications, so a length that is a large prime takes n * n.
Work is done in double precision, whose rounding is then far below the result's.
"""

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, HloValue, TensorType, enumerator, integers
from jaxeff_export.importer._loops import CodeBuilder, View, kernel


@rule("importer.fft")
def _fft(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    """Transforms a tensor given as its real and, unless it is real, its imaginary part."""
    kind = enumerator(node.op, "fft_type")
    lengths = integers(node.op, "fft_length")
    parts: list[relax.Expr] = [e.tensor(value) for value in node.operands]
    rank = len(node.operands[0].type.shape)
    axes = list(range(rank - len(lengths), rank))
    # The axis that is real on one side comes first of a real transform, last of an inverse one.
    order = axes if kind == "IRFFT" else axes[::-1]
    result = node.results[0].type
    shape = list(node.operands[0].type.shape)
    for axis in order:
        n = lengths[axis - axes[0]]
        last = axis == rank - 1
        shape[axis] = result.shape[axis]
        parts = _along(
            e,
            parts,
            TensorType(tuple(shape), result.dtype),
            axis,
            n,
            inverse=kind in ("IFFT", "IRFFT"),
            hermitian=kind == "IRFFT" and last,
        )
    return parts


def _along(
    e: Emitter,
    parts: Sequence[relax.Expr],
    result: TensorType,
    axis: int,
    n: int,
    *,
    inverse: bool,
    hermitian: bool,
) -> list[relax.Expr]:
    """Transforms along one axis; ``hermitian``: from the first half of a real signal's spectrum."""
    # One table of roots in double precision: powers by repeated rotation would drift.
    angles = 2 * np.pi * np.arange(n) / n
    table = np.stack([np.cos(angles), np.sin(angles) * (1 if inverse else -1)])
    roots = HloValue(TensorType(table.shape, "float64"), constant=table)
    length = int(parts[0].ty.shape[axis])
    lines = [d for i, d in enumerate(result.shape) if i != axis]
    count = 1 if hermitian else 2

    def body(code: CodeBuilder, *views: View) -> None:
        inputs, roots, outputs = views[: len(parts)], views[len(parts)], views[len(parts) + 1 :]
        buffers = [code.local("float64", 2, n) for _ in range(2)]
        with code.loops(lines) as at:

            def line(view: View) -> View:
                return view.map(lambda i: (*at[:axis], i, *at[axis:]))

            x, y = buffers
            with code.loop(length) as i:
                for part in range(2):
                    zero = tirx.const(0, "float64")
                    is_given = part < len(inputs)
                    x[part, i] = tirx.Cast("float64", line(inputs[part])[i]) if is_given else zero
            # X[n - k] is the conjugate of X[k], so X[0] and X[n / 2] are real: XLA ignores what
            # imaginary parts they are given with.
            if hermitian:
                x[1, 0] = tirx.const(0, "float64")
                if n % 2 == 0:
                    x[1, n // 2] = tirx.const(0, "float64")
                with code.loop(n, length) as i:
                    x[0, i] = x[0, n - i]
                    x[1, i] = -x[1, n - i]
            done = 1
            # Stockham's passes write to the other buffer in order: no index is reversed.
            for factor in factors(n):
                _pass(code, x, y, roots, n, done, factor)
                done *= factor
                x, y = y, x
            scale = tirx.const(1 / n if inverse else 1.0, "float64")
            with code.loop(result.shape[axis]) as i:
                for part, output in enumerate(outputs):
                    line(output)[i] = tirx.Cast(result.dtype, x[part, i] * scale)

    def transform(*tensors: te.Tensor) -> object:
        return kernel(body, tensors, [(result.shape, result.dtype)] * count, "fft")

    written = e.bb.emit_te(transform, *parts, e.tensor(roots), primfunc_name_hint="fft")
    return e.unpack(written, count)


def _pass(code: CodeBuilder, x: View, y: View, roots: View, n: int, done: int, factor: int) -> None:
    """Combines transforms of length ``done`` to transforms ``factor`` times as long.

    ``x`` holds, at ``k * rest + r``, coefficient k of the signal that starts at r and takes every
    ``rest``-th element; ``y`` becomes the same for the longer transforms.
    """
    before, rest = n // done, n // done // factor
    with code.loop(done * factor) as k:
        source = tirx.floormod(k, tirx.const(done, "int64")) * before
        with code.loop(rest) as r:
            for part in range(2):
                y[part, k * rest + r] = x[part, source + r]
        with code.loop(factor, 1) as s:
            # The exponent of the root of unity is reduced in integers, exactly.
            turn = tirx.floormod(k * s * rest, tirx.const(n, "int64"))
            cos, sin = code.let(roots[0, turn]), code.let(roots[1, turn])
            with code.loop(rest) as r:
                at, target = source + s * rest + r, k * rest + r
                real, imaginary = x[0, at], x[1, at]
                y[0, target] = y[0, target] + (cos * real - sin * imaginary)
                y[1, target] = y[1, target] + (cos * imaginary + sin * real)


def factors(n: int) -> list[int]:
    """Factors a length into fours, at most one two, and odd primes in rising order."""
    radices = []
    for p in (4, 2, *range(3, n + 1, 2)):
        while n % p == 0:
            radices.append(p)
            n //= p
        if n == 1:
            break
    return radices
