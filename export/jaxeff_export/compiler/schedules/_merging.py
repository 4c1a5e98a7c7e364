"""Fewer blocks in a kernel before it is scheduled: producers inlined, siblings joined.

A fused kernel has one block per operation. Short producers are inlined into their consumers, so
that no intermediate goes through memory. Blocks that walk the same loops become one (``joining``).
The remaining blocks are scheduled.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, Schedule

from jaxeff_export.compiler.schedules._joining import is_plain, join_siblings
from jaxeff_export.compiler.tir import count, is_contraction

LONG = 64  # turns of a loop that is worth vectorising
_DEAR = 200  # expression nodes; computing them takes longer than copying what they read
_CHEAP = 24  # expression nodes that may be repeated rather than stored


def merge_blocks(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inlines and joins the blocks of a kernel that is not scheduled yet.

    A kernel that is not plain stays as it is.
    """
    if not is_plain(function):
        return function
    # Costly siblings share their terms only as one block; cheap ones mostly vanish by inlining.
    joined = join_siblings(function, lambda block: is_contraction(block) or is_dear(block))
    sch = Schedule(tvm.IRModule({"main": joined}))
    _inline(sch)
    return join_siblings(sch.mod["main"], lambda block: True)


def is_dear(block: s_tir.SBlock) -> bool:
    """Tells whether a block computes much for an element."""
    return count(block.body, object) > _DEAR


def _inline(sch: Schedule) -> None:
    """Inlines elementwise producers into their consumer."""
    root = sch.get_sblock("root")
    for block in sch.get_child_blocks(root):
        if sch.get(block).init is not None or len(sch.get(block).writes) != 1:
            continue
        consumers = sch.get_consumers(block)
        # A producer inlined into a contraction runs once per product instead of once per element.
        if len(consumers) != 1 or (
            len(sch.get_loops(block)) and is_contraction(sch.get(consumers[0]))
        ):
            continue
        if _grows(sch, block, consumers[0]) or _scatters_loads(sch, block, consumers[0]):
            continue
        try:
            sch.compute_inline(block)
        # TVM finds more reasons than these to refuse; the block then stays.
        except s_tir.ScheduleError:
            continue


def _grows(sch: Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    """Tells whether inlining would repeat work: the consumer reads the value more than once.

    A chain of such values (a polynomial, an error function) would double at every link.
    """
    if _copied(sch.get(block)) is not None:
        return False
    (written,) = sch.get(block).writes

    def reads_it(node: Any) -> bool:
        return isinstance(node, tvm.ir.TensorLoad) and node.source.same_as(written.source)

    reads = count(sch.get(consumer).body, object, reads_it)
    return reads > 1 and reads * count(sch.get(block).body, object) > _CHEAP


def _scatters_loads(sch: Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    """Tells whether a slice is better copied, for a costly consumer to read in vectors.

    Rows that stay whole can be read in place.
    """
    load = _copied(sch.get(block))
    if load is None or not is_dear(sch.get(consumer)):
        return False
    # Elements that are contiguous in both tensors, from the innermost dimension outwards.
    whole = 1
    iters, shape = sch.get(block).iter_vars, load.source.shape
    for v, index, extent in list(zip(iters, load.indices, shape, strict=False))[::-1]:
        if len(iters) != len(shape) or not index.same_as(v.var):
            break
        whole *= int(v.dom.extent)
        if not tvm_ffi.structural_equal(v.dom.extent, extent):
            break
    return whole < LONG


def _copied(block: s_tir.SBlock) -> tvm.ir.TensorLoad | None:
    """Returns the element that a block copies, if that is all it does."""
    store = block.body
    loads = isinstance(store, tirx.BufferStore) and isinstance(store.value, tvm.ir.TensorLoad)
    return store.value if loads else None
