"""Sums of products, one product after the other, so that each is one fused instruction.

The variance of a layer adds two products per iteration, ``v + (a b + c d)``. In this order that is
a product, a fused multiply-add and a sum; ``(v + a b) + c d`` is two fused multiply-adds. LLVM may
fuse (`fast-math-contract`), but never reorders a floating-point sum.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from jaxeff_export.compiler.tir._tir import contains, map_kernels


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
