"""TIR: the functions of a module (its kernels), and what their blocks do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

FUSES_WHAT_FOLLOWS = 4  # TVM's OpPatternKind.kOutEWiseFusable


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


def renamed(node: Any, names: Mapping[tirx.Var, tirx.Var]) -> Any:
    """Replaces some variables or buffers of a statement or expression by others."""
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
    found: list[bool] = []
    tvm_ffi.structural_walk(tree, (kind, lambda node: found.append(test(node))), order="post")
    return sum(map(bool, found))
