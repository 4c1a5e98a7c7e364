"""Weights in blocks of columns, as a tile of a contraction reads them.

A tile computes a few vectors of features and reads all of their weights. In a matrix of many
columns these lie a row apart. Rows whose bytes are a power of two map to few sets of a cache, so
that weights that would fit are fetched again for every tile. Weights belong to the bundle: the
columns of a tile can be laid side by side once, row after row. They are then read as one stream,
and stay in the cache while the tiles of other pixels or examples use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from jaxeff_export.compiler.passes._calls import CallRewriter, Other
from jaxeff_export.compiler.schedules import Machine, tile_of
from jaxeff_export.compiler.tir import Nest, bytes_of, contains, root_of, statements_of

LONG_ROW = 1024  # bytes; shorter ones a cache holds side by side
LARGE = 1 << 18  # bytes of weights; fewer stay in the nearest caches wherever they lie


def block_weights(mod: tvm.IRModule, parameters: int, machine: Machine) -> tvm.IRModule:
    """Makes contractions read their weights in blocks of the columns that they compute at once.

    Args:
        mod: a module of kernels (operators are legalised); it is not changed.
        parameters: number of leading arguments of ``main`` that are parameters.
        machine: the processor that the kernels are scheduled for.

    Returns:
        A module that computes the same and lays weights out on the way, for `lift_parameters`.
    """
    return _Blocking(mod, parameters, partial(_blocked, machine)).module()


class _Blocking(CallRewriter):
    def _laid_out(self, array: relax.Var, columns: int) -> relax.Var:
        *rows, width = (int(n) for n in array.ty.shape)
        # [rows, width] -> [width / columns, rows, columns]: a tile's columns, row after row.
        count, order = width // columns, [len(rows), *range(len(rows)), len(rows) + 1]
        apart = [*rows, count, columns]
        split = self._bound("split", relax.op.reshape(array, apart), array, apart)
        turned = relax.op.permute_dims(split, order)
        return self._bound("blocks", turned, array, [count, *rows, columns])


def _blocked(machine: Machine, function: tirx.PrimFunc, weights: Sequence[int]) -> Other | None:
    """Makes a kernel's contractions read weights in blocks; None where that has no use."""
    root = root_of(function)
    statements = statements_of(root.body) if root else []
    nests = [nest for statement in statements if (nest := Nest.of(statement))]
    across = {buffer for nest in nests for buffer in nest.across}
    large = [i for i in weights if function.params[i] in across and _is_large(function, i)]
    # One layout serves all readers, so contractions have to agree on the columns.
    if not large or len({nest.width for nest in nests}) != 1:
        return None
    # Anything else that reads the weights would need them in their own order.
    others = [statement for statement in statements if Nest.of(statement) is None]
    if any(contains(others, tirx.Var, function.params[i].same_as) for i in large):
        return None
    columns = tile_of([nest.block for nest in nests], machine).columns
    # The tile takes whole rows: they are one stream already.
    if columns == nests[0].width:
        return None
    buffers = {function.params[i]: _in_blocks(function.params[i], columns) for i in large}
    params = [buffers.get(p, p) for p in function.params]
    body = _reading(function.body, buffers, columns)
    kernel = tirx.PrimFunc(params, body, function.ret_type, function.attrs)
    return Other(kernel, large, columns)


def _is_large(function: tirx.PrimFunc, position: int) -> bool:
    buffer = function.params[position]
    if not all(isinstance(n, tirx.IntImm) for n in buffer.shape):
        return False
    size, rows = bytes_of(buffer), math.prod(int(n) for n in buffer.shape[:-1])
    return size >= LARGE and size >= LONG_ROW * rows


def _in_blocks(buffer: tirx.Buffer, columns: int) -> tirx.Buffer:
    *rows, width = (int(n) for n in buffer.shape)
    shape = [width // columns, *rows, columns]
    return tirx.decl_buffer(shape, buffer.dtype, f"{buffer.name}_blocks")


def _reading(body: Any, buffers: dict[tirx.Buffer, tirx.Buffer], columns: int) -> Any:
    """Rewrites a statement to read blocks in place of whole rows."""

    def load(node: ir.TensorLoad) -> tirx.Expr:
        if node.source not in buffers:
            return node
        *rows, column = node.indices
        # The scheduler recognises this form (`columns_of`) and tiles by the block's columns.
        at = [tirx.floordiv(column, columns), *rows, tirx.floormod(column, columns)]
        return tirx.BufferLoad(buffers[node.source], at)

    def region(node: ir.TensorRegion) -> ir.TensorRegion:
        if node.source not in buffers:
            return node
        *rows, column = node.region
        block = ir.Range.from_min_extent(tirx.floordiv(column.min, columns), 1)
        within = ir.Range.from_min_extent(tirx.floormod(column.min, columns), 1)
        return tirx.BufferRegion(buffers[node.source], [block, *rows, within])

    return tvm_ffi.structural_map(body, [(ir.TensorLoad, load), (ir.TensorRegion, region)])
