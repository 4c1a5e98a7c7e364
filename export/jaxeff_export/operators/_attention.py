"""Attention to a cache of keys and values that reads only the slots that are filled.

The composite `jaxeff.cached_attention` (`jaxeff/contrib/_decoder.py`) as one kernel: of a
cache of 256 slots whose first 10 are filled, 10 are read. Keys and values may be codes of 8 bits
with a step for each head and slot, which are decoded in registers. A query's scores stay in scratch
memory, and nothing of the cache is copied or repeated for the heads that share it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler import Machine
from jaxeff_export.operators import _statements as statements
from jaxeff_export.targets import tvm_target

CACHED_ATTENTION = "jaxeff.cached_attention"
_Place = tuple[Expr, Expr, Expr]
_LOWEST = -3.0e38
_LEAST_EXPONENT = -126.0  # of normal float32 numbers
_BIAS, _FRACTION = 127, 23  # of their exponent; bits of their fraction
_SHARED = 1 << 22
"""Products that are worth waking threads for."""


def attention_operators(target: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """Returns the lowering of the composite for a TVM target dict."""
    machine = Machine.of(tvm_target(target))
    cores = int(target.get("num-cores", 1))

    def lower(bb: relax.BlockBuilder, *tensors: relax.Expr) -> relax.Expr:
        query, keys, *_ = tensors
        batch, length, heads, size = (int(n) for n in query.ty.shape)
        _, room, shared, _ = (int(n) for n in keys.ty.shape)
        lanes = math.gcd(size, machine.lanes)
        form = _Sizes(batch, length, heads, size, room, shared, lanes, len(tensors) > 4, cores)
        name = bb.add_func(_AttentionKernel(form).written(), "cached_attention")
        kind = relax.TensorType((batch, length, heads, size), "float32")
        return bb.emit(relax.call_tir(name, relax.Tuple(list(tensors)), kind))

    return {CACHED_ATTENTION: lower}


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes of the arrays, and what the target has."""

    batch: int
    length: int
    heads: int
    size: int
    room: int
    shared: int
    lanes: int
    coded: bool
    cores: int

    @property
    def row(self) -> int:
        """Scores of a head: whole vectors, and one more that closes them."""
        return (-(-self.room // self.lanes) + 1) * self.lanes

    @property
    def is_parallel(self) -> bool:
        products = self.batch * self.length * self.heads * self.room * self.size
        return self.cores > 1 and products >= _SHARED


class _AttentionKernel:
    """Writes the kernel, statement by statement."""

    def __init__(self, form: _Sizes) -> None:
        self.form, self.code = form, statements.StatementBuilder()
        of_query, kept = (form.batch, form.length, form.heads, form.size), form.shared
        cache = (form.batch, form.room, kept, form.size)
        kind = "int8" if form.coded else "float32"
        self.query, self.result = (
            statements.declare(of_query, "float32", name) for name in ("query", "y")
        )
        self.keys, self.values = (
            statements.declare(cache, kind, name) for name in ("keys", "values")
        )
        self.before = statements.declare((), "int32", "before")
        names = ("key_steps", "value_steps") if form.coded else ()
        self.steps = [statements.declare(cache[:3], "float32", name) for name in names]

    def written(self) -> tirx.PrimFunc:
        form, code = self.form, self.code
        # One loop over all that is independent, so that threads share it evenly.
        with code.loop(form.batch * form.length * form.shared, form.is_parallel) as turn:
            head, token = turn % form.shared, turn // form.shared % form.length
            sequence = turn // (form.shared * form.length)
            filled = code.vector(self._filled(token), 1, "int64", "filled")
            groups = form.heads // form.shared
            scores = code.local(groups * form.row, "float32", "scores")
            for group in range(groups):
                at, row = (sequence, token, head * groups + group), group * form.row
                self._score(scores, row, at, head, filled)
                total = self._weigh(scores, row, filled)
                self._mix(scores, row, at, head, filled, total)
        operands = [self.query, self.keys, self.values, self.before, *self.steps, self.result]
        # Not chained: how much it multiplies only the call tells.
        return statements.function(operands, code.finish(), None)

    def _filled(self, token: Expr) -> Expr:
        """Counts the slots that a token attends to: those before it, and its own."""
        many = statements.cast(tirx.BufferLoad(self.before, []), "int64", 1) + token + 1
        return tirx.max(tirx.min(many, _int64(self.form.room)), _int64(1))

    def _score(
        self, scores: tirx.Buffer, row: int, at: _Place, head: Expr, filled: statements.Vector
    ) -> None:
        """Writes the products of a query with the keys of all filled slots."""
        form, code = self.form, self.code
        with code.loop(filled.get()) as slot:
            place = (at[0], slot, head)
            total = code.vector(
                statements.const(0.0, "float32", form.lanes), form.lanes, "float32", "total"
            )
            for done in range(0, form.size, form.lanes):
                key = self._load(self.keys, place, done)
                total.set(total.get() + self._load(self.query, at, done) * key)
            score = self._added(total, tirx.Add) * statements.const(form.size**-0.5, "float32")
            if form.coded:
                score = score * tirx.BufferLoad(self.steps[0], place)
            code.store(scores, slot + row, score)
        # The last vector ends with scores that weigh nothing.
        lowest = statements.const(_LOWEST, "float32", form.lanes)
        code.store(scores, filled.get() + row, lowest, form.lanes)

    def _weigh(self, scores: tirx.Buffer, row: int, filled: statements.Vector) -> statements.Vector:
        """Makes weights of scores, and returns their sum: a softmax that is not divided yet."""
        form, code = self.form, self.code
        lanes = form.lanes
        turns = tirx.floordiv(filled.get() + _int64(lanes - 1), _int64(lanes))
        best = code.vector(statements.const(_LOWEST, "float32", lanes), lanes, "float32", "best")
        with code.loop(turns) as turn:
            best.set(tirx.max(best.get(), statements.load(scores, turn * lanes + row, lanes)))
        highest = code.vector(self._added(best, tirx.max), 1, "float32", "highest")
        total = code.vector(statements.const(0.0, "float32", lanes), lanes, "float32", "total")
        with code.loop(turns) as turn:
            place = turn * lanes + row
            x = statements.load(scores, place, lanes) - statements.splat(highest.get(), lanes)
            weight = code.vector(self._exponential(x), lanes, "float32", "weight")
            code.store(scores, place, weight.get(), lanes)
            total.set(total.get() + weight.get())
        return code.vector(self._added(total, tirx.Add), 1, "float32", "sum")

    def _mix(
        self,
        scores: tirx.Buffer,
        row: int,
        at: _Place,
        head: Expr,
        filled: statements.Vector,
        total: statements.Vector,
    ) -> None:
        """Writes the mean of the values of all filled slots by their weights."""
        form, code = self.form, self.code
        starts, lanes = range(0, form.size, form.lanes), form.lanes
        # A head's whole result stays in registers while slots pass by.
        sums = [
            code.vector(statements.const(0.0, "float32", lanes), lanes, "float32") for _ in starts
        ]
        with code.loop(filled.get()) as slot:
            place = (at[0], slot, head)
            weight = statements.load(scores, slot + row)
            if form.coded:
                weight = weight * tirx.BufferLoad(self.steps[1], place)
            for done, mixed in zip(starts, sums, strict=True):
                value = self._load(self.values, place, done)
                mixed.set(mixed.get() + statements.splat(weight, lanes) * value)
        share = code.vector(statements.const(1.0, "float32") / total.get(), 1, "float32", "share")
        for done, mixed in zip(starts, sums, strict=True):
            mean = mixed.get() * statements.splat(share.get(), lanes)
            code.write(tirx.BufferStore(self.result, mean, self._vector(at, done)))

    def _load(self, source: tirx.Buffer, at: _Place, done: int) -> Expr:
        """Loads a vector of a row as floats."""
        loaded = tirx.BufferLoad(source, self._vector(at, done))
        is_float32 = str(source.dtype) == "float32"
        return loaded if is_float32 else statements.cast(loaded, "float32", self.form.lanes)

    def _vector(self, at: _Place, done: int) -> list[Expr]:
        """Indexes neighbours of a row, axis by axis: loops take such kernels into their bodies."""
        first = _int64(done)
        many = self.form.lanes
        return [*at, first if many == 1 else tirx.Ramp(first, _int64(1), many)]

    def _added(self, x: statements.Vector, combine: Callable[[Expr, Expr], Expr]) -> Expr:
        """Combines the lanes of a vector, half with half."""
        lanes = x.lanes
        while lanes > 1:
            lanes //= 2
            halves = [
                tirx.Shuffle([x.get()], [tirx.const(i + start, "int32") for i in range(lanes)])
                for start in (0, lanes)
            ]
            x = self.code.vector(combine(*halves), lanes, "float32", "half")
        return x.get()

    def _exponential(self, x: Expr) -> Expr:
        """Computes e^x of numbers up to 0, to 2e-7: a polynomial times a power of two."""
        lanes = self.form.lanes
        y = tirx.max(
            x * statements.const(math.log2(math.e), "float32", lanes),
            statements.const(_LEAST_EXPONENT, "float32", lanes),
        )
        y = self.code.vector(y, lanes, "float32", "y").get()
        integer = self.code.vector(tirx.nearbyint(y), lanes, "float32", "whole").get()
        part = self.code.vector(y - integer, lanes, "float32", "part").get()
        # The series of 2^x, from its last term: within 1e-8 for halves.
        power = statements.const(0.0, "float32", lanes)
        for n in reversed(range(8)):
            power = power * part + statements.const(
                math.log(2) ** n / math.factorial(n), "float32", lanes
            )
        exponent = statements.cast(integer, "int32", lanes) + statements.const(
            _BIAS, "int32", lanes
        )
        shifted = tirx.shift_left(exponent, statements.const(_FRACTION, "int32", lanes))
        kind = "float32" if lanes == 1 else f"float32x{lanes}"
        return power * tirx.reinterpret(kind, shifted)


def _int64(n: int) -> Expr:
    return tirx.const(n, "int64")
