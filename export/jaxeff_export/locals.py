"""Turn chains of scalar lets into local variables.

Kernels name their intermediate scalars with nested ``Let`` expressions. Several of TVM's lowering
passes take time exponential in the length of such a chain, so the last step before lowering stores
each intermediate in a one-element local buffer instead; LLVM turns these into registers.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import Expr

SHORT = 4  # lets that may stay: what vectorised loops hold


def lets_to_locals(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every kernel of a module."""
    result = mod.clone()
    for name, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            body = tvm_ffi.structural_map(function.body, (s_tir.SBlock, _rewrite_block))
            result[name] = function.with_body(body)
    return result


def count_lets(tree: object) -> int:
    """Count the lets in a statement or expression."""
    found: list[object] = []
    tvm_ffi.structural_walk(tree, (tirx.Let, found.append))
    return len(found)


def _rewrite_block(block: s_tir.SBlock) -> s_tir.SBlock:
    store = block.body
    if not isinstance(store, tirx.BufferStore) or count_lets(store) <= SHORT:
        return block
    chain = _Chain()
    value = chain.flatten(store.value)
    store = tirx.BufferStore(store.buffer, value, store.indices)
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.SeqStmt([*chain.stores, store]),
        block.init,
        [*block.alloc_buffers, *chain.buffers],
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
        """Return ``expr`` without lets that every evaluation reaches."""
        while isinstance(expr, tirx.Let):
            value = self.flatten(expr.value)
            zero = tirx.const(0, "int64")
            local = tirx.decl_buffer((tirx.const(1, "int64"),), expr.var.ty.dtype, expr.var.name)
            self.buffers.append(local)
            self.stores.append(tirx.BufferStore(local, value, [zero]))
            self._loads[expr.var] = tirx.BufferLoad(local, [zero])
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
        if getattr(call.op, "name", "") != "tirx.if_then_else":
            return mutator.default_mutate(call)  # type: ignore[attr-defined]
        # What a branch computes must not be hoisted out of it; names from outside still apply.
        return tvm_ffi.structural_map(call, (tirx.Var, lambda var: self._loads.get(var, var)))
