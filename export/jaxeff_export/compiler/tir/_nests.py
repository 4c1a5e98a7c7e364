"""The loops around the block of a contraction, and the same loops on other buffers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from jaxeff_export.compiler.tir._tir import contains, is_contraction, renamed

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
        found: list[s_tir.SBlockRealize] = []
        tvm_ffi.structural_walk(statement, (s_tir.SBlockRealize, found.append))
        if len(found) != 1 or not is_contraction(found[0].block):
            return None
        block, column = found[0].block, cls.column_of(found[0].block)
        if column is None:
            return None
        loops = zip(block.iter_vars, found[0].iter_values, strict=True)
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
    found = set()
    for buffer, indices in accesses(block):
        if not any(index_uses(index, column) for index in indices):
            continue
        *others, last = indices
        if any(index_uses(index, column) for index in others) or not last.same_as(column.var):
            return None
        # A part of a wider row could not be padded at its end.
        if not tvm_ffi.structural_equal(buffer.shape[-1], column.dom.extent):
            return None
        found.add(buffer)
    return frozenset(found)


def accesses(block: s_tir.SBlock) -> list[tuple[tirx.Buffer, Any]]:
    """Lists the buffers a block reads and writes, each with its indices."""
    found: list[tuple[tirx.Buffer, Any]] = []
    for part in (block.body, block.init):
        tvm_ffi.structural_walk(
            part,
            [
                (ir.TensorLoad, lambda node: found.append((node.source, node.indices))),
                (tirx.BufferStore, lambda node: found.append((node.buffer, node.indices))),
            ],
        )
    return found


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
