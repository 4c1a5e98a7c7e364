"""The textbook optimizations of the dense operator, each of which can be switched on and off.

They exist to be measured one by one, like the source's table of manual optimizations. Deployed
networks run with the schedules of ``jaxeff_export.compiler.schedules``.
"""

from __future__ import annotations

import dataclasses

import tvm
from tvm import te, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, Schedule

from jaxeff_export.compiler.schedules import divisors, join_siblings
from jaxeff_export.compiler.tir import is_contraction
from jaxeff_export.operators import _linear as linear
from jaxeff_export.operators._layers import Form, tensors_in

_TILE_ROWS, _TILE_COLUMNS, _TILE_DEPTH = 5, 20, 16
_UNROLLED = 8


@dataclasses.dataclass(frozen=True)
class Optimizations:
    """The optimizations that are on.

    Attributes:
        tiling: blocks of rows, columns and depth, so that operands are used again while cached.
        reordering: columns innermost instead of the sum, so that memory is read in order.
        vectorization: several columns in one instruction.
        parallelization: rows on several cores.
        unrolling: several terms of the sum in one turn of its loop.
    """

    tiling: bool = False
    reordering: bool = False
    vectorization: bool = False
    parallelization: bool = False
    unrolling: bool = False


def dense_kernel(
    rows: int,
    depth: int,
    columns: int,
    optimizations: Optimizations,
    *,
    lanes: int = 16,
    form: Form | None = None,
) -> tirx.PrimFunc:
    """Builds the joint dense operator under a choice of optimizations.

    Args:
        rows: batch size M.
        depth: inputs K.
        columns: outputs N.
        optimizations: what is on.
        lanes: float32 elements in a vector; the widest divisor of N up to it is used.
        form: form of the operands.

    Returns:
        A kernel of x (M, K) and w (K, N), each a mean and what else its form has, that writes
        mean and variance (M, N), all float32.
    """
    form = form or Form()
    x = [te.placeholder((rows, depth), name=f"x{i}") for i in range(tensors_in(form.input))]
    w = [te.placeholder((depth, columns), name=f"w{i}") for i in range(tensors_in(form.weight))]
    plain = te.create_prim_func([*x, *w, *linear.dense(form, *x, *w)])
    sch = Schedule(tvm.IRModule({"main": join_siblings(plain, lambda block: True)}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    (block,) = (b for b in blocks if is_contraction(sch.get(b)))
    _schedule(sch, block, optimizations, lanes)
    return sch.mod["main"]


def _schedule(sch: Schedule, block: SBlockRV, on: Optimizations, lanes: int) -> None:
    i, j, k = sch.get_loops(block)
    outer: list[LoopRV] = []
    if on.tiling:
        (i0, i), (j0, j), (k0, k) = (
            sch.split(loop, [None, _divisor(sch, loop, size)])
            for loop, size in ((i, _TILE_ROWS), (j, _TILE_COLUMNS), (k, _TILE_DEPTH))
        )
        outer = [i0, j0, k0]
    inner = [i, k, j] if on.reordering else [i, j, k]
    sch.reorder(*outer, *inner)
    first_sum = outer[2] if outer else k
    vector = None
    if on.vectorization:
        j, vector = sch.split(j, [None, _divisor(sch, j, lanes)])
    if on.unrolling:
        k, several = sch.split(k, [None, _divisor(sch, k, _UNROLLED)])
        sch.unroll(several)
        first_sum = outer[2] if outer else k
    if vector is not None:
        sch.vectorize(vector)
    if on.parallelization:
        sch.parallel(outer[0] if outer else i)
    if on.reordering or on.tiling:  # the sum is no longer innermost
        # Sums have to start outside of all loops over their terms.
        init = sch.decompose_reduction(block, first_sum)
        if vector is not None:
            _vectorize_last(sch, init)


def _vectorize_last(sch: Schedule, block: SBlockRV) -> None:
    last = sch.get_loops(block)[-1]
    if sch.get(last).kind != tirx.ForKind.VECTORIZED:
        sch.vectorize(last)


def _divisor(sch: Schedule, loop: LoopRV, most: int) -> int:
    return max(d for d in divisors(int(sch.get(loop).extent)) if d <= most)
