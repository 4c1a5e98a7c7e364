"""Writes values as codes, before the first product of a network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, tirx

from jaxeff_export.operators.statements import (
    StatementBuilder,
    cast,
    const,
    declare,
    function,
    load,
    splat,
)

_UNROLLED = 4
_SHARED = 4_000
"""Vectors that are worth waking threads for."""


def write_codes(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    lanes: int,
    cores: int = 1,
    *,
    per_step: float,
    zero: int,
    lower: int,
    upper: int,
    any_batch: bool = False,
) -> relax.Expr:
    """Writes float32 values as codes: a product, rounded once and clamped; NaN as the smallest.

    Cores share large inputs. With `any_batch` the kernel takes any number of examples, the first
    axis of `x`, and runs on one core.
    """
    shape = tuple(int(n) for n in x.ty.shape)
    several = any_batch and len(shape) > 0
    batch: Any = tirx.Var("batch", "int64") if several else 1
    taken = (batch, *shape[1:]) if several else shape
    source, target = declare(taken, "float32", "x"), declare(taken, "uint8", "y")
    # An operand, for TVM takes a kernel of one array and one result for a reshape.
    unit = declare((1,), "float32", "per_step")
    code, size = StatementBuilder(), math.prod(shape[1:] if several else shape)
    factor = code.vector(load(unit, 0), 1, "float32", "factor")

    def write(at: Any, lanes: int) -> None:
        steps = tirx.nearbyint(load(source, at, lanes) * splat(factor.get(), lanes))
        # This maximum of no number and a number is the second.
        steps = tirx.max(steps, const(float(lower - zero), "float32", lanes))
        steps = tirx.min(steps, const(float(upper - zero), "float32", lanes))
        whole = cast(steps, "int32", lanes) + const(zero, "int32", lanes)
        code.store(target, at, cast(whole, "uint8", lanes), lanes)

    with code.loop(batch) as n:
        first, done = n * size, 0
        # Several vectors a turn while they last, then single ones, then scalars: nothing is read or
        # written beyond the end.
        for many in (lanes * _UNROLLED, lanes):
            if turns := (size - done) // many:
                start = first + done
                shared = cores > 1 and not several and turns * many >= _SHARED * lanes
                with code.loop(turns, shared) as i:
                    for part in range(many // lanes):
                        write(start + i * many + part * lanes, lanes)
                done += turns * many
        for at in range(done, size):
            write(first + at, 1)
    kernel = function([source, unit, target], code.finish(), None if several else 0)
    kind = relax.TensorType(shape, "uint8")
    operands = relax.Tuple([x, relax.const(np.full(1, per_step, np.float32))])
    return bb.emit(relax.call_tir(bb.add_func(kernel, "q_codes"), operands, kind))
