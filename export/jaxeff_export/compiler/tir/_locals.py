"""Chains of scalar lets and local variables, and how to turn one into the other.

Kernels name their intermediate scalars with nested ``Let`` expressions: that is what TVM's
schedules can inline and vectorise. Several of TVM's lowering passes take time exponential in the
length of such a chain, so before lowering each intermediate of a long chain, or of one that holds
integers, is stored in a one-element local buffer instead; LLVM turns these into registers. An
imported module holds locals too, so that any TVM pipeline can lower it; ours turns them back into
lets first.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.tirx import Expr

from jaxeff_export.compiler.tir._tir import map_kernels, stores_of

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
    names = [str(let.var.ty.dtype) for let in _lets(tree)]
    return len(names) > SHORT or not all("float" in name for name in names)


def _lets(tree: object) -> list[tirx.Let]:
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(tree, (tirx.Let, found.append))
    return found


def _to_locals(function: tirx.PrimFunc) -> tirx.PrimFunc:
    if not _has_long_chain(function.body):
        return function
    body = tvm_ffi.structural_map(function.body, (s_tir.SBlock, _block_to_locals))
    if _has_long_chain(body):  # stores inside loops of their own: imperative kernels
        body = tvm_ffi.structural_map(body, (tirx.BufferStore, _store_to_locals))
    return function.with_body(body)


def _has_long_chain(body: tirx.Stmt) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(
        body, (tirx.BufferStore, lambda store: found.append(becomes_locals(store)))
    )
    return any(found)


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
        if getattr(call.op, "name", "") != "prim.if_then_else" or not _lets(call):
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
