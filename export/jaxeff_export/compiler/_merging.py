"""Fewer blocks in a kernel before it is scheduled: producers inlined, siblings joined.

A fused kernel has one block per operation. Short producers are inlined into their consumers, so
that no intermediate goes through memory. Blocks that walk the same loops become one
(`join_siblings`): the mean and the variance of a layer read the same operands at the same indices.
As two blocks every load, and every term the two share, is paid twice; as one block with two stores
they are paid once, and a contraction keeps both of its accumulators in registers. TE cannot say
this: it makes a block of every result. The remaining blocks are scheduled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, Schedule

from jaxeff_export.compiler import tir


def join_siblings(function: tirx.PrimFunc, worth: Callable[[s_tir.SBlock], bool]) -> tirx.PrimFunc:
    """Joins the blocks of a kernel that walk the same loops.

    Contractions are joined with contractions, and elementwise blocks with those that read the
    same tensor, or results of the same block. A kernel whose blocks are not plain loop nests stays
    as it is.

    Args:
        function: a kernel that is not scheduled yet.
        worth: test of whether to join two blocks.

    Returns:
        The kernel with fewer blocks and the same results.
    """
    nests = _nests(function)
    joined = _join(nests, worth)
    if len(joined) == len(nests):
        return function
    root = function.body.block
    nested = [nest.statement() for nest in joined]
    body = tirx.SeqStmt(nested) if len(nested) > 1 else nested[0]
    block = s_tir.SBlock(
        [], root.reads, root.writes, root.name_hint, body, alloc_buffers=root.alloc_buffers
    )
    return function.with_body(s_tir.SBlockRealize([], True, block))


def is_plain(function: tirx.PrimFunc) -> bool:
    """Tells whether a kernel is nothing but loop nests around blocks, one after the other.

    In others, such as loops that carry a state, a buffer changes while the kernel runs: no block
    may be moved there.
    """
    if tir.root_of(function) is None:
        return False
    nests = _nests(function)
    written = [target for nest in nests for target in nest.targets]
    return bool(nests) and len(written) == len(set(written))


def _nests(function: tirx.PrimFunc) -> list[_Nest]:
    """Lists the loop nests of a kernel; none if there is anything else in it."""
    statements = tir.statements_of(function.body.block.body)
    nests = [nest for statement in statements for nest in _nests_of(statement, [])]
    return [] if any(nest is None for nest in nests) else [nest for nest in nests if nest]


@dataclasses.dataclass(frozen=True)
class _Nest:
    """Serial loops, one to an iterator, around one block."""

    loops: tuple[tirx.For, ...]
    block: s_tir.SBlock

    @property
    def walk(self) -> tuple[object, ...]:
        """Returns what two nests must have in common: extents and kinds of their loops."""
        return tuple(
            (int(loop.extent), int(v.iter_type))
            for loop, v in zip(self.loops, self.block.iter_vars, strict=True)
        )

    @property
    def sources(self) -> set[tirx.Var]:
        """Returns the buffers that it reads."""
        return {region.source for region in self.block.reads} - self.targets

    @property
    def targets(self) -> set[tirx.Var]:
        """Returns the buffers that it writes."""
        return {region.source for region in self.block.writes}

    def statement(self) -> tirx.Stmt:
        """Writes the nest as a statement, with loop variables of its own."""
        names = [loop.loop_var for loop in self.loops]
        variables = [tirx.Var(name.name, name.ty.dtype) for name in names]
        body: tirx.Stmt = s_tir.SBlockRealize(variables, True, self.block)
        for loop, variable in reversed(list(zip(self.loops, variables, strict=True))):
            body = tirx.For(variable, loop.min, loop.extent, loop.kind, body)
        return body


def _nests_of(statement: tirx.Stmt, loops: Sequence[tirx.For]) -> list[_Nest | None]:
    """Lists the loop nests of a statement, with None for one of another form."""
    if isinstance(statement, tirx.For):
        plain = statement.kind == tirx.ForKind.SERIAL and isinstance(statement.extent, tirx.IntImm)
        return _nests_of(statement.body, [*loops, statement]) if plain else [None]
    if isinstance(statement, tirx.SeqStmt) and loops:  # several results of one computation
        return [nest for part in statement.seq for nest in _nests_of(part, loops)]
    if not isinstance(statement, s_tir.SBlockRealize):
        return [None]
    block = statement.block
    variables = [loop.loop_var for loop in loops]
    simple = len(variables) == len(statement.iter_values) and all(
        isinstance(value, tirx.Var) and value.same_as(variable)
        for value, variable in zip(statement.iter_values, variables, strict=True)
    )
    if not simple or block.alloc_buffers or block.match_buffers:
        return [None]
    return [_Nest(tuple(loops), block)]


def _join(nests: Sequence[_Nest], worth: Callable[[s_tir.SBlock], bool]) -> list[_Nest]:
    """Joins the nests that can be joined, and puts the rest where their operands are ready."""
    done: list[_Nest] = []
    for nest in nests:
        for i, earlier in enumerate(done):
            if not worth(earlier.block) or not worth(nest.block):
                continue
            # Joined, both run at the same point of the loops: the later must not need the earlier.
            if _are_siblings(earlier, nest, done) and not _feeds(earlier, nest, done):
                done[i] = _joined(earlier, nest)
                break
        else:
            done.append(nest)
    # The joined nest stands at the earlier one's place, before operands that the later one reads.
    return _in_order(done)


def _feeds(first: _Nest, second: _Nest, others: Sequence[_Nest]) -> bool:
    """Tells whether one nest depends on another's results, directly or through others."""
    reached, ways = set(first.targets), [other for other in others if other is not first]
    while True:
        next_ = [other for other in ways if other.sources & reached]
        if not next_:
            return bool(second.sources & reached)
        for other in next_:
            reached |= other.targets
            ways.remove(other)


def _in_order(nests: Sequence[_Nest]) -> list[_Nest]:
    """Sorts nests topologically, keeping their order where it is free."""
    ordered: list[_Nest] = []
    waiting = list(nests)
    while waiting:
        # Kernels have no cycles, so a nest with all of its operands always exists.
        missing = set().union(*(nest.targets for nest in waiting))
        ready = next(nest for nest in waiting if not nest.sources & missing)
        ordered.append(ready)
        waiting.remove(ready)
    return ordered


def _are_siblings(first: _Nest, second: _Nest, others: Sequence[_Nest]) -> bool:
    if first.walk != second.walk:
        return False
    # Of reductions only contractions are joined, whose sums then share the loads.
    if any(nest.block.init is not None for nest in (first, second)):
        return all(tir.is_contraction(nest.block) for nest in (first, second))
    # Without common inputs, one walk over both would only compete for the cache.
    related = first.sources & second.sources or any(
        other.targets & first.sources and other.targets & second.sources for other in others
    )
    return bool(related) and all(tir.stores_of(n.block.body) is not None for n in (first, second))


def _joined(first: _Nest, second: _Nest) -> _Nest:
    """Makes one nest that does the work of two."""
    # Equal walks pair the iterators, so the second block can run on the first one's.
    names = {
        theirs.var: ours.var
        for ours, theirs in zip(first.block.iter_vars, second.block.iter_vars, strict=True)
    }
    ours, theirs = first.block, second.block
    init = None
    if ours.init is not None:
        init = tirx.SeqStmt(
            [*tir.statements_of(ours.init), *tir.statements_of(tir.renamed(theirs.init, names))]
        )
    reads = _united([*ours.reads, *(tir.renamed(region, names) for region in theirs.reads)])
    block = s_tir.SBlock(
        ours.iter_vars,
        reads,
        [*ours.writes, *(tir.renamed(region, names) for region in theirs.writes)],
        f"{ours.name_hint}_{theirs.name_hint}",
        tirx.SeqStmt(
            [*tir.statements_of(ours.body), *tir.statements_of(tir.renamed(theirs.body, names))]
        ),
        init,
    )
    return _Nest(first.loops, block)


def _united(regions: Sequence[tirx.BufferRegion]) -> list[tirx.BufferRegion]:
    """Unites regions, one to a buffer: TVM's fusion of kernels keeps only the first."""
    united: dict[tirx.Var, tirx.BufferRegion] = {}
    for region in regions:
        known = united.setdefault(region.source, region)
        if not tvm_ffi.structural_equal(known, region, map_free_vars=False):
            # Different parts: the whole buffer is the safe bound of both.
            ranges = [ir.Range(0, extent) for extent in region.source.shape]
            united[region.source] = tirx.BufferRegion(region.source, ranges)
    return list(united.values())


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
    joined = join_siblings(function, lambda block: tir.is_contraction(block) or is_dear(block))
    sch = Schedule(tvm.IRModule({"main": joined}))
    _inline(sch)
    return join_siblings(sch.mod["main"], lambda block: True)


def is_dear(block: s_tir.SBlock) -> bool:
    """Tells whether a block computes much for an element."""
    return tir.count(block.body, object) > _DEAR


def _inline(sch: Schedule) -> None:
    """Inlines elementwise producers into their consumer."""
    root = sch.get_sblock("root")
    for block in sch.get_child_blocks(root):
        if sch.get(block).init is not None or len(sch.get(block).writes) != 1:
            continue
        consumers = sch.get_consumers(block)
        # Several consumers can share what is computed, but may each read what is only copied.
        if len(consumers) != 1 and (not consumers or _copied(sch.get(block)) is None):
            continue
        # A producer inlined into a contraction runs once per product instead of once per element.
        if len(sch.get_loops(block)) and any(tir.is_contraction(sch.get(c)) for c in consumers):
            continue
        if any(_grows(sch, block, c) or _scatters_loads(sch, block, c) for c in consumers):
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

    reads = tir.count(sch.get(consumer).body, object, reads_it)
    return reads > 1 and reads * tir.count(sch.get(block).body, object) > _CHEAP


def _from(index: tirx.Expr, variable: tirx.Var) -> bool:
    """Tells whether an index counts up with a variable, from some constant on."""
    if isinstance(index, tirx.Add) and isinstance(index.b, tirx.IntImm):
        index = index.a
    return bool(index.same_as(variable))


def _scatters_loads(sch: Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    """Tells whether a slice is better copied, for a costly consumer to read in vectors.

    Rows that stay whole can be read in place.
    """
    load = _copied(sch.get(block))
    if load is None or not is_dear(sch.get(consumer)):
        return False
    # Elements that are contiguous in both tensors, from the innermost dimension outwards.
    run = 1
    iters, shape = sch.get(block).iter_vars, load.source.shape
    for v, index, extent in list(zip(iters, load.indices, shape, strict=False))[::-1]:
        if len(iters) != len(shape) or not _from(index, v.var):
            break
        run *= int(v.dom.extent)
        if not tvm_ffi.structural_equal(v.dom.extent, extent):
            break
    return run < LONG


def _copied(block: s_tir.SBlock) -> tvm.ir.TensorLoad | None:
    """Returns the element that a block copies, if that is all it does."""
    store = block.body
    loads = isinstance(store, tirx.BufferStore) and isinstance(store.value, tvm.ir.TensorLoad)
    return store.value if loads else None
