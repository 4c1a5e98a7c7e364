"""Operands padded to whole vectors, so that no contraction computes in odd widths.

A layer of 100 features fills 6 1/4 vectors of 16 lanes: computed in equal vectors those have 10
lanes, and a prime number of features leaves scalars. Weights belong to the bundle, so they can be
padded with zeros once; the contraction then runs over whole vectors, aligned in memory, and only
real columns are read from its result. Data has to be padded in every call, which pays where it is
used for many rows and equal vectors would be short.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tvm
from tvm import ir, relax, s_tir, tirx

from jaxeff_export.compiler.passes._calls import CallRewriter, Other
from jaxeff_export.compiler.tir import Nest, renamed, root_of, statements_of

SHORT = 3  # times the number of vectors, if they are all of one width
MANY_ROWS = 8  # that an operand is used for, so that padding it in every call pays


def widen_contractions(mod: tvm.IRModule, parameters: int, lanes: int) -> tvm.IRModule:
    """Pads operands so that contractions work on whole vectors.

    Args:
        mod: a module of kernels (operators are legalised); it is not changed.
        parameters: number of leading arguments of ``main`` that are parameters.
        lanes: float32 elements in a vector register.

    Returns:
        A module that computes the same and pads operands on the way, for `lift_parameters`.
    """
    return _Widening(mod, parameters, partial(_widened, lanes)).module()


class _Widening(CallRewriter):
    def _laid_out(self, array: relax.Var, columns: int) -> relax.Var:
        shape = [int(n) for n in array.ty.shape]
        margins = [0] * (2 * len(shape) - 1) + [columns - shape[-1]]
        padded = relax.op.nn.pad(array, margins)
        return self._bound("padded", padded, array, [*shape[:-1], columns])


def _widened(lanes: int, function: tirx.PrimFunc, weights: Sequence[int]) -> Other | None:
    """Widens the contractions of a kernel; None if there is no need or no way."""
    root = root_of(function)
    if root is None:
        return None
    statements = statements_of(root.body)
    nests = {i: nest for i, s in enumerate(statements) if (nest := Nest.of(s)) is not None}
    widths = {nest.width for nest in nests.values()}
    # Fewer columns than a vector would mostly compute padding.
    if len(widths) != 1 or not all(n > lanes and n % lanes for n in widths):
        return None
    written = {buffer for nest in nests.values() for buffer in nest.written}
    across = {buffer for nest in nests.values() for buffer in nest.across}
    # Padding is zero, and the columns that it adds are cut off again: results do not change.
    padded = across - written
    width = widths.pop()
    columns = -(-width // lanes) * lanes
    paddable = {function.params[i] for i in weights}
    # Short equal vectors cost more than padding data in every call, if many rows share it.
    if _in_equal_vectors(width, lanes) >= SHORT * columns // lanes:
        paddable |= {
            parameter
            for parameter in function.params
            if all(nest.rows(parameter) >= MANY_ROWS for nest in nests.values())
        }
    if not padded <= paddable:
        return None

    # Results and temporaries widen along, so that blocks between contractions need no conversion.
    wide = {buffer: _with_columns(buffer, columns) for buffer in across | written}
    for i, nest in nests.items():
        statements[i] = nest.over(columns, wide)
    # What follows reads real columns only.
    statements = [renamed(statement, wide) for statement in statements]
    results = [buffer for buffer in function.params if buffer in written]
    statements += [_cut(wide[result], result) for result in results]
    # Results are computed in wide buffers of the kernel's own and cut to the caller's.
    own = [wide.get(buffer, buffer) for buffer in root.alloc_buffers]
    own += [wide[result] for result in results]
    body = s_tir.SBlock([], [], [], root.name_hint, tirx.SeqStmt(statements), alloc_buffers=own)
    params = [p if p in written else wide.get(p, p) for p in function.params]
    kernel = tirx.PrimFunc(
        params, s_tir.SBlockRealize([], True, body), function.ret_type, function.attrs
    )
    return Other(kernel, [i for i, p in enumerate(function.params) if p in padded], columns)


def _in_equal_vectors(width: int, lanes: int) -> int:
    """Counts the vectors of one width that make up so many columns."""
    return min(n for n in range(1, width + 1) if width % n == 0 and width // n <= lanes)


def _with_columns(buffer: tirx.Buffer, columns: int) -> tirx.Buffer:
    *others, last = buffer.shape
    shape = [*others, tirx.const(columns, last.ty.dtype)]
    return tirx.decl_buffer(shape, buffer.dtype, f"{buffer.name}_wide")


def _cut(wide: tirx.Buffer, result: tirx.Buffer) -> tirx.Stmt:
    """Copies the columns that are no padding."""
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
