"""Operands padded to whole vectors, so that no contraction computes in odd widths.

A layer of 100 features fills 6 1/4 vectors of 16 lanes: computed in equal vectors those have 10
lanes, and a prime number of features leaves scalars. Weights belong to the bundle, so they can be
padded with zeros once; the contraction then runs over whole vectors, aligned in memory, and only
real columns are read from its result. Data has to be padded in every call, which pays where it is
used for many rows and equal vectors would be short.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from .lifting import Sources, sources_of, stays_small
from .tir import (
    FUSES_WHAT_FOLLOWS,
    contains,
    is_contraction,
    renamed,
    root_of,
    statements_of,
)

SHORT = 3  # times the number of vectors, if they are all of one width
MANY_ROWS = 8  # that an operand is used for, so that padding it in every call pays
_Buffers = Mapping[tirx.Buffer, tirx.Buffer]


def widen_contractions(mod: tvm.IRModule, parameters: int, lanes: int) -> tvm.IRModule:
    """Let contractions work on whole vectors.

    Args:
        mod: a module of kernels (operators are legalised); it is not changed.
        parameters: how many of the first arguments of ``main`` are parameters.
        lanes: float32 elements in a vector register.

    Returns:
        A module that computes the same and pads operands on the way, for `lift_parameters`.
    """
    main = mod["main"]
    (block,) = main.body.blocks
    rewriter = _Rewriter(mod, sources_of(main, parameters), lanes)
    for binding in block.bindings:
        rewriter.take(binding)
    body = relax.SeqExpr([relax.DataflowBlock(rewriter.bindings)], main.body.body)
    result = rewriter.builder.get()
    result["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return result


class _Rewriter:
    """Rewrites one binding after the other.

    Attributes:
        bindings: those of the new module.
        builder: holds its kernels.
    """

    def __init__(self, mod: tvm.IRModule, sources: Sources, lanes: int) -> None:
        self.bindings: list[relax.VarBinding] = []
        self.builder = relax.BlockBuilder(mod)
        self._mod = mod
        self._sources = sources
        self._lanes = lanes
        self._padded: dict[tuple[relax.Var, int], relax.Var] = {}

    def take(self, binding: relax.VarBinding) -> None:
        """Add a binding; if it calls a kernel that can be widened, a call of the wide one."""
        call = binding.value
        if isinstance(call, ir.Call) and call.op == ir.Op.get("relax.call_tir"):
            binding = relax.VarBinding(binding.var, self._on_whole_vectors(call))
        self.bindings.append(binding)

    def _on_whole_vectors(self, call: ir.Call) -> ir.Call:
        callee, arguments = call.args[:2]
        operands = list(arguments.fields)
        weights = [i for i, operand in enumerate(operands) if stays_small(operand, self._sources)]
        wide = _widened(self._mod[callee], weights, self._lanes)
        if wide is None:
            return call
        for i in wide.padded:
            operands[i] = self._with_zeros(operands[i], wide.columns)
        name = self.builder.add_func(wide.kernel, callee.name_hint)
        results = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else call.ty
        return relax.call_tir(name, relax.Tuple(operands), results)

    def _with_zeros(self, array: relax.Var, columns: int) -> relax.Var:
        if (array, columns) not in self._padded:
            shape = [int(n) for n in array.ty.shape]
            kind = relax.TensorType([*shape[:-1], columns], array.ty.dtype)
            margins = [0] * (2 * len(shape) - 1) + [columns - shape[-1]]
            padded = relax.DataflowVar("padded", kind)
            self.bindings.append(relax.VarBinding(padded, relax.op.nn.pad(array, margins)))
            self._padded[array, columns] = padded
        return self._padded[array, columns]


@dataclasses.dataclass(frozen=True)
class _Wide:
    """A kernel on whole vectors: which of its arguments are padded, and to how many columns."""

    kernel: tirx.PrimFunc
    padded: list[int]
    columns: int


def _widened(function: tirx.PrimFunc, weights: Collection[int], lanes: int) -> _Wide | None:
    """Widen the contractions of a kernel; None if they need or allow it not."""
    root = root_of(function)
    if root is None:
        return None
    statements = statements_of(root.body)
    nests = {i: nest for i, s in enumerate(statements) if (nest := _Nest.of(s)) is not None}
    widths = {nest.width for nest in nests.values()}
    if len(widths) != 1 or not all(n > lanes and n % lanes for n in widths):
        return None
    written = {buffer for nest in nests.values() for buffer in nest.written}
    across = {buffer for nest in nests.values() for buffer in nest.across}
    padded = across - written
    width = widths.pop()
    columns = -(-width // lanes) * lanes
    paddable = {function.params[i] for i in weights}
    if _in_equal_vectors(width, lanes) >= SHORT * columns // lanes:
        paddable |= {
            parameter
            for parameter in function.params
            if all(nest.rows(parameter) >= MANY_ROWS for nest in nests.values())
        }
    if not padded <= paddable:
        return None

    wide = {buffer: _with_columns(buffer, columns) for buffer in across | written}
    for i, nest in nests.items():
        statements[i] = nest.over(columns, wide)
    # What follows reads real columns only.
    statements = [renamed(statement, wide) for statement in statements]
    results = [buffer for buffer in function.params if buffer in written]
    statements += [_cut(wide[result], result) for result in results]
    own = [wide.get(buffer, buffer) for buffer in root.alloc_buffers]
    own += [wide[result] for result in results]
    body = s_tir.SBlock([], [], [], root.name_hint, tirx.SeqStmt(statements), alloc_buffers=own)
    params = [p if p in written else wide.get(p, p) for p in function.params]
    kernel = tirx.PrimFunc(
        params, s_tir.SBlockRealize([], True, body), function.ret_type, function.attrs
    )
    if "op_pattern" not in kernel.attrs:
        kernel = kernel.with_attr("op_pattern", FUSES_WHAT_FOLLOWS)
    return _Wide(kernel, [i for i, p in enumerate(function.params) if p in padded], columns)


def _in_equal_vectors(width: int, lanes: int) -> int:
    """How many vectors of one width make so many columns."""
    return min(n for n in range(1, width + 1) if width % n == 0 and width // n <= lanes)


@dataclasses.dataclass(frozen=True)
class _Nest:
    """The loops around the block of a contraction.

    Attributes:
        statement: the loops.
        block: the contraction.
        column: its iterator along the last dimension of the result.
        loop: the loop over columns.
        across: the buffers it reads or writes from column to column.
    """

    statement: tirx.Stmt
    block: s_tir.SBlock
    column: tirx.IterVar
    loop: tirx.Var
    across: frozenset[tirx.Buffer]

    @classmethod
    def of(cls, statement: tirx.Stmt) -> _Nest | None:
        """The nest that a statement is; None if its columns are more than a dimension."""
        found: list[s_tir.SBlockRealize] = []
        tvm_ffi.structural_walk(statement, (s_tir.SBlockRealize, found.append))
        if len(found) != 1 or not is_contraction(found[0].block):
            return None
        block = found[0].block
        spatial = [
            (v, loop)
            for v, loop in zip(block.iter_vars, found[0].iter_values, strict=True)
            if v.iter_type == tirx.IterVar.DataPar
        ]
        if not spatial:
            return None
        column, loop = spatial[-1]
        if not isinstance(loop, tirx.Var) or not isinstance(column.dom.extent, tirx.IntImm):
            return None
        across = _buffers_across(block, column)
        return cls(statement, block, column, loop, across) if across else None

    @property
    def width(self) -> int:
        """How many columns there are."""
        return int(self.column.dom.extent)

    @property
    def written(self) -> set[tirx.Buffer]:
        """The results."""
        return {region.source for region in self.block.writes}

    def rows(self, buffer: tirx.Buffer) -> int:
        """How many rows of a result an element of a buffer is used for."""
        indices = [at for source, at in _accesses(self.block) if source.same_as(buffer)]
        extents = [
            int(v.dom.extent)
            for v in self.block.iter_vars
            if v.iter_type == tirx.IterVar.DataPar
            and not any(_uses(index, v) for at in indices for index in at)
        ]
        return math.prod(extents)

    def over(self, columns: int, wide: _Buffers) -> tirx.Stmt:
        """The nest over more columns, on wide buffers."""
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
    """The buffers a block accesses from column to column; None if not by their last index alone."""
    found = set()
    for buffer, indices in _accesses(block):
        if not any(_uses(index, column) for index in indices):
            continue
        *others, last = indices
        if any(_uses(index, column) for index in others) or not last.same_as(column.var):
            return None
        if not tvm_ffi.structural_equal(buffer.shape[-1], column.dom.extent):
            return None
        found.add(buffer)
    return frozenset(found)


def _accesses(block: s_tir.SBlock) -> list[tuple[tirx.Buffer, Any]]:
    """The buffers a block reads and writes, each with its indices."""
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


def _uses(index: Any, iterator: tirx.IterVar) -> bool:
    return contains(index, tirx.Var, lambda v: v.same_as(iterator.var))


def _with_columns(buffer: tirx.Buffer, columns: int) -> tirx.Buffer:
    *others, last = buffer.shape
    shape = [*others, tirx.const(columns, last.ty.dtype)]
    return tirx.decl_buffer(shape, buffer.dtype, f"{buffer.name}_wide")


def _cut(wide: tirx.Buffer, result: tirx.Buffer) -> tirx.Stmt:
    """Copy the real columns."""
    extents = list(result.shape)
    iters = [
        tirx.IterVar(
            ir.Range.from_min_extent(tirx.const(0, n.ty.dtype), n),
            tirx.Var(f"v{i}", n.ty.dtype),
            tirx.IterVar.DataPar,
        )
        for i, n in enumerate(extents)
    ]
    at = [v.var for v in iters]
    point = [ir.Range.from_min_extent(v, 1) for v in at]
    block = s_tir.SBlock(
        iters,
        [tirx.BufferRegion(wide, point)],
        [tirx.BufferRegion(result, point)],
        "cut",
        tirx.BufferStore(result, tirx.BufferLoad(wide, at), at),
    )
    loops = [tirx.Var(f"i{i}", n.ty.dtype) for i, n in enumerate(extents)]
    statement: tirx.Stmt = s_tir.SBlockRealize(loops, True, block)
    for loop, extent in list(zip(loops, extents, strict=True))[::-1]:
        statement = tirx.For(
            loop, tirx.const(0, extent.ty.dtype), extent, tirx.ForKind.SERIAL, statement
        )
    return statement
