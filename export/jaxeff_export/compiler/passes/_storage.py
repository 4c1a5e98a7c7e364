"""Narrow floats as bits, wherever a kernel keeps or chooses them.

TVM's lowering turns a kernel's own bfloat16 (or 8-bit float) buffers into float32 ones, and a
choice between two such numbers into one between two float32. It then fails on bit casts of the
narrow type. Loops keep their state in such buffers, and fusion makes both. So these buffers become
integers, and the bit casts of a choice move into its branches.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler.tir import map_kernels

_NARROW = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if name == "bfloat16" or name.startswith("float8")
}


def narrow_floats_to_bits(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrites the narrow floats inside every kernel of a module; arguments stay what they are."""
    return map_kernels(mod, _rewritten)


def _rewritten(function: tirx.PrimFunc) -> tirx.PrimFunc:
    body, found = function.body, []
    tvm_ffi.structural_walk(body, (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)))
    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, lambda alloc: found.append(alloc.buffer)))
    own = {buffer: _as_bits(buffer) for buffer in found if _is_narrow(buffer)}
    if own:
        body = tvm_ffi.structural_map(body, _in_terms_of(own))
    # Neither own buffers nor arguments of narrow floats: nothing to rewrite.
    elif not any(_is_narrow(parameter) for parameter in function.params):
        return function
    return function.with_body(tvm_ffi.structural_map(body, (tvm.ir.Call, _sink)))


def _is_narrow(buffer: tirx.Var) -> bool:
    return str(getattr(buffer.ty, "dtype", "")) in _NARROW


def _as_bits(buffer: tirx.Buffer) -> tirx.Buffer:
    dtype = f"uint{8 * _NARROW[str(buffer.dtype)].itemsize}"
    return tirx.decl_buffer(buffer.ty.shape, dtype, buffer.name, scope=buffer.scope())


def _in_terms_of(own: dict[tirx.Buffer, tirx.Buffer]) -> list:
    """Returns rewriting rules that put integer buffers in the place of narrow ones."""

    def load(node: tvm.ir.TensorLoad) -> Expr:
        if node.source not in own:
            return node
        # The cast back to the narrow type meets another to bits in `_bits`, where the two cancel.
        return tirx.reinterpret(node.source.dtype, tirx.BufferLoad(own[node.source], node.indices))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in own:
            return node
        bits = own[node.buffer]
        return tirx.BufferStore(bits, tirx.reinterpret(bits.dtype, node.value), node.indices)

    def regions(found: list[tirx.BufferRegion]) -> list[tirx.BufferRegion]:
        return [tirx.BufferRegion(own.get(r.source, r.source), r.region) for r in found]

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        return s_tir.SBlock(
            node.iter_vars,
            regions(node.reads),
            regions(node.writes),
            node.name_hint,
            node.body,
            node.init,
            [own.get(buffer, buffer) for buffer in node.alloc_buffers],
            node.match_buffers,
            node.annotations,
        )

    def allocation(node: tirx.AllocBuffer) -> tirx.Stmt:
        return tirx.AllocBuffer(own[node.buffer]) if node.buffer in own else node

    return [
        (tvm.ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (s_tir.SBlock, block),
        (tirx.AllocBuffer, allocation),
    ]


def _sink(call: tvm.ir.Call) -> Expr:
    if call.op.name != "tirx.reinterpret" or str(call.args[0].ty.dtype) not in _NARROW:
        return call
    return _bits(call.args[0], str(call.ty.dtype))


def _bits(x: Expr, dtype: str) -> Expr:
    """Returns the bits of a narrow float."""
    match x:
        case tirx.FloatImm():
            bits = np.array(x.value, _NARROW[str(x.ty.dtype)]).view(dtype)
            return tirx.const(int(bits), dtype)
        case tirx.Select():
            arms = (_bits(arm, dtype) for arm in (x.true_value, x.false_value))
            return tirx.Select(x.condition, *arms)
        case tirx.Let():
            return tirx.Let(x.var, x.value, _bits(x.body, dtype))
        # The branches stay branches: one of them may read out of bounds.
        case tvm.ir.Call() if x.op.name == "prim.if_then_else":
            condition, *arms = x.args
            return tirx.if_then_else(condition, *(_bits(arm, dtype) for arm in arms))
        case tvm.ir.Call() if x.op.name == "tirx.reinterpret":
            return x.args[0]
    return tirx.reinterpret(dtype, x)
