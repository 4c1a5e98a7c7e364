"""TIR: the functions of a module (its kernels), and what their blocks do.

A `Nest` is the loops around the block of a contraction, and the same loops on other buffers.

Kernels name their intermediate scalars with nested ``Let`` expressions: that is what TVM's
schedules can inline and vectorise. Several of TVM's lowering passes take time exponential in the
length of such a chain, so before lowering each intermediate of a long chain, or of one that holds
integers, is stored in a one-element local buffer instead; LLVM turns these into registers. An
imported module holds locals too, so that any TVM pipeline can lower it; ours turns them back into
lets first.

Sums of products are taken one product after the other, so that each is one fused instruction. The
variance of a layer adds two products per iteration, ``v + (a b + c d)``. In this order that is
a product, a fused multiply-add and a sum; ``(v + a b) + c d`` is two fused multiply-adds. LLVM may
fuse (`fast-math-contract`), but never reorders a floating-point sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.tirx import Expr

FUSES_WHAT_FOLLOWS = 4  # TVM's OpPatternKind.kOutEWiseFusable


def called_kernel(value: Any, *, in_place: bool = False) -> tvm.ir.GlobalVar | None:
    """Returns the kernel that an expression calls; None if it calls none.

    A call in which a kernel writes over its first array, as state does, counts with `in_place`.
    """
    name = getattr(getattr(value, "op", None), "name", "")
    calls = name == "relax.call_tir" or (in_place and name == "relax.call_tir_inplace")
    return value.args[0] if calls else None


TILE = "jaxeff.tile"
"""Attribute of a kernel, or of a block: extents of its result that registers hold at once."""


def map_kernels(
    mod: tvm.IRModule, rewrite: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """Returns a copy of a module in which every kernel is rewritten."""
    result = mod.clone()
    for name, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            result[name] = rewrite(function)
    return result


def root_of(function: tirx.PrimFunc) -> s_tir.SBlock | None:
    """Returns the root around a kernel's blocks; imperative kernels have none."""
    body = function.body
    if not isinstance(body, s_tir.SBlockRealize) or body.block.name_hint != "root":
        return None
    return body.block


def statements_of(body: tirx.Stmt) -> list[tirx.Stmt]:
    """Lists the statements of a body, which is the only one if it is no sequence."""
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def renamed(node: Any, names: Mapping[tirx.Var, Expr]) -> Any:
    """Replaces some variables or buffers of a statement or expression."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda var: names.get(var, var)))


def stores_of(body: tirx.Stmt) -> list[tirx.BufferStore] | None:
    """Lists the stores of a block that does nothing but store; None for any other."""
    statements = statements_of(body)
    return statements if all(isinstance(s, tirx.BufferStore) for s in statements) else None


def bytes_of(array: tirx.Var) -> int:
    """Returns the bytes of a buffer or tensor whose shape is known."""
    return math.prod(int(n) for n in array.ty.shape) * tvm.DataType(array.ty.dtype).itemsize


def is_contraction(block: s_tir.SBlock) -> bool:
    """Tells whether a block accumulates products of tensors, in each of its results."""
    if block.init is None:
        return False
    stores = stores_of(block.body)
    # Two sources besides the result: a sum of squares of one tensor is no matrix product.
    sources = {region.source for region in block.reads} - {r.source for r in block.writes}
    return (
        stores is not None
        and len(sources) >= 2
        and all(isinstance(s.value, tirx.Add) and contains(s.value.b, tirx.Mul) for s in stores)
    )


def contains(tree: object, kind: type, test: Callable[[Any], bool] = lambda _: True) -> bool:
    """Tells whether a tree has a node of a kind that passes a test."""
    return count(tree, kind, test) > 0


def count(tree: object, kind: type, test: Callable[[Any], bool] = lambda _: True) -> int:
    """Counts a tree's nodes of a kind that pass a test."""
    passed: list[bool] = []
    tvm_ffi.structural_walk(tree, (kind, lambda node: passed.append(test(node))), order="post")
    return sum(map(bool, passed))


Buffers = Mapping[tirx.Buffer, tirx.Buffer]


@dataclasses.dataclass(frozen=True)
class Nest:
    """The loops around the block of a contraction.

    Attributes:
        statement: the loops.
        block: the contraction.
        column: the iterator along the last dimension of the result.
        loop: the loop over columns.
        across: the buffers it reads or writes from column to column.
    """

    statement: tirx.Stmt
    block: s_tir.SBlock
    column: tirx.IterVar
    loop: tirx.Var
    across: frozenset[tirx.Buffer]

    @classmethod
    def of(cls, statement: tirx.Stmt) -> Nest | None:
        """Recognises a statement as a nest; None if its columns are not just the last dimension."""
        realized: list[s_tir.SBlockRealize] = []
        tvm_ffi.structural_walk(statement, (s_tir.SBlockRealize, realized.append))
        if len(realized) != 1 or not is_contraction(realized[0].block):
            return None
        block, column = realized[0].block, cls.column_of(realized[0].block)
        if column is None:
            return None
        loops = zip(block.iter_vars, realized[0].iter_values, strict=True)
        (loop,) = [loop for v, loop in loops if v.same_as(column)]
        if not isinstance(loop, tirx.Var) or not isinstance(column.dom.extent, tirx.IntImm):
            return None
        across = _buffers_across(block, column)
        return cls(statement, block, column, loop, across) if across else None

    @staticmethod
    def column_of(block: s_tir.SBlock) -> tirx.IterVar | None:
        """Returns a block's iterator along the last dimension of its result."""
        spatial = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
        return spatial[-1] if spatial else None

    @property
    def width(self) -> int:
        """Returns the number of columns."""
        return int(self.column.dom.extent)

    @property
    def written(self) -> set[tirx.Buffer]:
        """Returns the buffers of the results."""
        return {region.source for region in self.block.writes}

    def rows(self, buffer: tirx.Buffer) -> int:
        """Counts the rows of a result that an element of a buffer is used for."""
        indices = [at for source, at in accesses(self.block) if source.same_as(buffer)]
        # Spatial iterators that do not index the buffer: along these an element is read again.
        extents = [
            int(v.dom.extent)
            for v in self.block.iter_vars
            if v.iter_type == tirx.IterVar.DataPar
            and not any(index_uses(index, v) for at in indices for index in at)
        ]
        return math.prod(extents)

    def over(self, columns: int, wide: Buffers) -> tirx.Stmt:
        """Rewrites the nest to more columns, on wide buffers."""
        extent = tirx.const(columns, self.column.dom.extent.ty.dtype)

        def loop(node: tirx.For) -> tirx.Stmt:
            if not node.loop_var.same_as(self.loop):
                return node
            return tirx.For(node.loop_var, node.min, extent, node.kind, node.body)

        def block(node: s_tir.SBlock) -> s_tir.SBlock:
            iters = [
                tirx.IterVar(ir.Range.from_min_extent(v.dom.min, extent), v.var, v.iter_type)
                if v.var.same_as(self.column.var)
                else v
                for v in node.iter_vars
            ]
            return s_tir.SBlock(
                iters, node.reads, node.writes, node.name_hint, node.body, node.init
            )

        longer = tvm_ffi.structural_map(self.statement, [(tirx.For, loop), (s_tir.SBlock, block)])
        return renamed(longer, wide)


def _buffers_across(block: s_tir.SBlock, column: tirx.IterVar) -> frozenset[tirx.Buffer] | None:
    """Finds the buffers accessed column by column; None if not by their last index alone."""
    across = set()
    for buffer, indices in accesses(block):
        if not any(index_uses(index, column) for index in indices):
            continue
        *others, last = indices
        if any(index_uses(index, column) for index in others) or not last.same_as(column.var):
            return None
        # A part of a wider row could not be padded at its end.
        if not tvm_ffi.structural_equal(buffer.shape[-1], column.dom.extent):
            return None
        across.add(buffer)
    return frozenset(across)


def accesses(block: s_tir.SBlock) -> list[tuple[tirx.Buffer, Any]]:
    """Lists the buffers a block reads and writes, each with its indices."""
    pairs: list[tuple[tirx.Buffer, Any]] = []
    for part in (block.body, block.init):
        tvm_ffi.structural_walk(
            part,
            [
                (ir.TensorLoad, lambda node: pairs.append((node.source, node.indices))),
                (tirx.BufferStore, lambda node: pairs.append((node.buffer, node.indices))),
            ],
        )
    return pairs


def index_uses(index: Any, iterator: tirx.IterVar) -> bool:
    """Tells whether an index depends on an iterator."""
    return contains(index, tirx.Var, lambda v: v.same_as(iterator.var))


def columns_of(block: s_tir.SBlock) -> int | None:
    """Counts the columns of its weights that lie side by side; None if all of them do."""
    column = Nest.column_of(block)
    if column is None:
        return None
    for _, indices in accesses(block):
        last = indices[-1] if len(indices) else None
        # The form that `block_weights` writes: the column within its block.
        if isinstance(last, tirx.FloorMod) and last.a.same_as(column.var):
            return int(last.b)
    return None


def clamped(index: Expr, limit: int) -> Expr:
    """Clamps a start index of any integer dtype to [0, limit], as int64."""
    if limit <= 0:
        return tirx.const(0, "int64")
    if str(index.ty.dtype) == "uint64":  # beyond int64 it is beyond the limit too
        index = tirx.Select(index > tirx.const(limit, "uint64"), tirx.const(limit, "uint64"), index)
    wide = tirx.Cast("int64", index)
    return tirx.max(tirx.min(wide, tirx.const(limit, "int64")), tirx.const(0, "int64"))


SHORT = 4  # lets that may stay


def lets_to_locals(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrites the long chains of every kernel of a module into local variables."""
    return map_kernels(mod, _to_locals)


def locals_to_lets(mod: tvm.IRModule) -> tvm.IRModule:
    """Undoes :func:`lets_to_locals`, for kernels that are not scheduled yet."""
    return map_kernels(mod, _to_lets)


def becomes_locals(tree: object) -> bool:
    """Tells whether a statement's lets must go: all but a few that name floats.

    TVM gets the bounds of named integers wrong. It vectorises loops around lets, but not around
    local variables.
    """
    names: list[str] = []
    tvm_ffi.structural_walk(tree, (tirx.Let, lambda let: names.append(str(let.var.ty.dtype))))
    return len(names) > SHORT or not all("float" in name for name in names)


def without_lets(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Writes out what the lets of a kernel name, wherever a name is used: for short chains."""

    def written_out(let: tirx.Let) -> Expr:
        return renamed(let.body, {let.var: let.value})

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.Let, written_out)))


def _to_locals(function: tirx.PrimFunc) -> tirx.PrimFunc:
    if not _has_long_chain(function.body):
        return function
    body = tvm_ffi.structural_map(function.body, (s_tir.SBlock, _block_to_locals))
    if _has_long_chain(body):  # stores inside loops of their own: imperative kernels
        body = tvm_ffi.structural_map(body, (tirx.BufferStore, _store_to_locals))
    return function.with_body(body)


def _has_long_chain(body: tirx.Stmt) -> bool:
    return contains(body, tirx.BufferStore, becomes_locals)


def _block_to_locals(block: s_tir.SBlock) -> s_tir.SBlock:
    stores = stores_of(block.body)
    if stores is None or not becomes_locals(block.body):
        return block
    flat = [_flat(store) for store in stores]
    body = tirx.SeqStmt([statement for statements, _ in flat for statement in statements])
    buffers = [buffer for _, locals_ in flat for buffer in locals_]
    return _with_body(block, body, [*block.alloc_buffers, *buffers])


def _store_to_locals(store: tirx.BufferStore) -> tirx.Stmt:
    if not becomes_locals(store):
        return store
    stores, buffers = _flat(store)
    body = tirx.SeqStmt(stores)
    # A block gives the locals a scope inside the loops; TVM wants its accesses declared.
    bare = s_tir.SBlock([], [], [], "chain", body, alloc_buffers=buffers)
    reads, writes, _ = get_sblock_access_region(bare, {})
    block = s_tir.SBlock([], reads, writes, "chain", body, alloc_buffers=buffers)
    return s_tir.SBlockRealize([], True, block)


def _flat(store: tirx.BufferStore) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
    chain = _Chain()
    value = chain.flatten(store.value)
    last = tirx.BufferStore(store.buffer, value, store.indices)
    return [*chain.stores, last], chain.buffers


def _to_lets(function: tirx.PrimFunc) -> tirx.PrimFunc:
    if "tirx.is_scheduled" in function.attrs:
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, _block_to_lets)))


def _block_to_lets(block: s_tir.SBlock) -> s_tir.SBlock:
    if not isinstance(block.body, tirx.SeqStmt) or not block.alloc_buffers:
        return block
    # Exactly the form that `lets_to_locals` writes: one store to each local, then the result.
    *stores, last = block.body.seq
    locals_ = {buffer: tirx.Var(buffer.name, str(buffer.dtype)) for buffer in block.alloc_buffers}
    if not isinstance(last, tirx.BufferStore) or len(stores) != len(locals_):
        return block
    if not all(isinstance(s, tirx.BufferStore) and s.buffer in locals_ for s in stores):
        return block

    def named(load: tvm.ir.TensorLoad) -> Expr:
        return locals_.get(load.source, load)

    value = tvm_ffi.structural_map(last.value, (tvm.ir.TensorLoad, named))
    for store in reversed(stores):
        bound = tvm_ffi.structural_map(store.value, (tvm.ir.TensorLoad, named))
        value = tirx.Let(locals_[store.buffer], bound, value)
    return _with_body(block, tirx.BufferStore(last.buffer, value, last.indices), [])


def _with_body(
    block: s_tir.SBlock, body: tirx.Stmt, alloc_buffers: list[tirx.Buffer]
) -> s_tir.SBlock:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


class _Chain:
    """The local variables of one block, and the stores that fill them, in order."""

    def __init__(self) -> None:
        self.buffers: list[tirx.Buffer] = []
        self.stores: list[tirx.Stmt] = []
        self._loads: dict[tirx.Var, Expr] = {}

    def flatten(self, expr: Expr) -> Expr:
        """Returns ``expr`` without lets."""
        # A loop along the body: recursion would overflow on chains of thousands of lets.
        while isinstance(expr, tirx.Let):
            value = self.flatten(expr.value)
            local = self._local(expr.var.ty.dtype, expr.var.name)
            self.stores.append(tirx.BufferStore(local, value, [_ZERO]))
            self._loads[expr.var] = tirx.BufferLoad(local, [_ZERO])
            expr = expr.body
        return tvm_ffi.structural_mutate(
            expr,
            [
                (tirx.Let, lambda let, _: self.flatten(let)),
                (tvm.ir.Call, self._call),
                (tirx.Var, lambda var, _: self._loads.get(var, var)),
            ],
        )

    def _call(self, call: tvm.ir.Call, mutator: object) -> Expr:
        if getattr(call.op, "name", "") != "prim.if_then_else" or not contains(call, tirx.Let):
            return mutator.default_mutate(call)  # type: ignore[attr-defined]
        # What a branch computes must stay in it: it may read out of bounds elsewhere.
        condition, *arms = call.args
        condition = self.flatten(condition)
        chosen = self._local(call.ty.dtype, "chosen")
        branches = tirx.IfThenElse(condition, *(self._branch(arm, chosen) for arm in arms))
        self.stores.append(branches)
        return tirx.BufferLoad(chosen, [_ZERO])

    def _branch(self, arm: Expr, chosen: tirx.Buffer) -> tirx.Stmt:
        # Stores of a branch go into the branch.
        outer, self.stores = self.stores, []
        value = self.flatten(arm)
        stores, self.stores = self.stores, outer
        last = tirx.BufferStore(chosen, value, [_ZERO])
        return tirx.SeqStmt([*stores, last]) if stores else last

    def _local(self, dtype: str, name: str) -> tirx.Buffer:
        local = tirx.decl_buffer((tirx.const(1, "int64"),), dtype, name)
        self.buffers.append(local)
        return local


_ZERO = tirx.const(0, "int64")


def unpair_products(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrites the accumulating stores of every kernel of a module."""
    rewrite = [(tirx.BufferStore, _unpaired)]
    return map_kernels(
        mod, lambda kernel: kernel.with_body(tvm_ffi.structural_map(kernel.body, rewrite))
    )


def _unpaired(store: tirx.BufferStore) -> tirx.BufferStore:
    total = store.value
    if not isinstance(total, tirx.Add) or "float" not in str(total.ty.dtype):
        return store
    so_far, terms = total.a, total.b
    if not isinstance(so_far, tvm.ir.TensorLoad) or not so_far.source.same_as(store.buffer):
        return store
    if not isinstance(terms, tirx.Add | tirx.Sub):
        return store
    # A term without a product gains nothing, and reordering it would change the rounding.
    if not all(contains(term, tirx.Mul) for term in (terms.a, terms.b)):
        return store
    value = type(terms)(tirx.Add(so_far, terms.a), terms.b)
    return tirx.BufferStore(store.buffer, value, store.indices)


def overlap_tiles(mod: tvm.IRModule) -> tvm.IRModule:
    """Lets the last tile of rows begin early in every kernel of a module, where it would be cut.

    Of 197 rows in tiles of 5 the last tile is the rows 192 to 196, the first three of which are
    computed twice, to the same values. A guard around each row would keep sums out of registers.
    """
    return map_kernels(mod, _overlapped)


def _overlapped(function: tirx.PrimFunc) -> tirx.PrimFunc:
    blocks: list[s_tir.SBlockRealize] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlockRealize, blocks.append))
    tiles = [each.block.annotations[TILE] for each in blocks if TILE in each.block.annotations]
    # A tile of a vector has no rows.
    tiles = [tile for tile in tiles if len(tile) > 1]
    cut = [each for each in blocks if not isinstance(each.predicate, tirx.IntImm)]
    # All blocks of a tile begin early, or none: each reads what the one before it wrote.
    if not tiles or not all(any(_is_row(each, v) for v in each.iter_values) for each in cut):
        return function
    rows = int(tiles[0][-2])

    def early(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        if isinstance(realize.predicate, tirx.IntImm):
            return realize
        last = realize.predicate.b - rows
        values = [
            tirx.min(value.a, last) + value.b if _is_row(realize, value) else value
            for value in realize.iter_values
        ]
        return s_tir.SBlockRealize(values, True, realize.block)

    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlockRealize, early)))


def _is_row(realize: s_tir.SBlockRealize, value: Expr) -> bool:
    """Tells whether an iterator is what the guard of a split bounds: `first + row < rows in all`.

    Both have the same loop over rows of a tile; how the first row is written may differ.
    """
    guard = realize.predicate
    sums = isinstance(guard, tirx.LT) and all(isinstance(v, tirx.Add) for v in (guard.a, value))
    return sums and bool(value.b.same_as(guard.a.b))
