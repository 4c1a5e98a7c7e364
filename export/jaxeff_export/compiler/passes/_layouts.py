"""How arrays lie in memory: weights in blocks, operands in whole vectors, narrow floats as bits.

A tile of a contraction computes a few vectors of features and reads all of their weights. In a
matrix of many columns these lie a row apart. Rows whose bytes are a power of two map to few sets of
a cache, so that weights that would fit are fetched again for every tile. Weights belong to the
bundle: the columns of a tile can be laid side by side once, row after row. They are then read as
one stream, and stay in the cache while the tiles of other pixels or examples use them.

Operands are padded to whole vectors, so that no contraction computes in odd widths. A layer of 100
features fills 6 1/4 vectors of 16 lanes: computed in equal vectors those have 10 lanes, and a prime
number of features leaves scalars. Weights belong to the bundle, so they can be padded with zeros
once; the contraction then runs over whole vectors, aligned in memory, and only real columns are
read from its result. Data has to be padded in every call, which pays where it is used for many rows
and equal vectors would be short.

TVM's lowering turns a kernel's own bfloat16 (or 8-bit float) buffers into float32 ones, and a
choice between two such numbers into one between two float32. It then fails on bit casts of the
narrow type. Loops keep their state in such buffers, and fusion makes both. So buffers of narrow
floats become integers, and the bit casts of a choice move into its branches.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler import tir
from jaxeff_export.compiler._tiles import Machine, tile_of
from jaxeff_export.compiler.passes._lifting import sources_of, stays_small


@dataclasses.dataclass(frozen=True)
class Other:
    """A kernel that takes some of its operands in another form, given by a number of columns."""

    kernel: tirx.PrimFunc
    exchanged: list[int]
    columns: int


FindOther = Callable[[tirx.PrimFunc, Sequence[int]], Other | None]


class CallRewriter(abc.ABC):
    """Replaces calls of kernels by calls of kernels that take operands in another form.

    Args:
        mod: a module of kernels (operators are legalised); it is not changed.
        parameters: number of leading arguments of ``main`` that are parameters.
        other: finds the kernel to call instead of a kernel, if there is one, given which of its
            operands depend on parameters alone.
    """

    def __init__(self, mod: tvm.IRModule, parameters: int, other: FindOther) -> None:
        self._mod = mod
        self._other = other
        self._sources = sources_of(mod["main"], parameters)
        self._builder = relax.BlockBuilder(mod)
        self._bindings: list[relax.VarBinding] = []
        self._others: dict[tuple[relax.Var, int], relax.Var] = {}

    def module(self) -> tvm.IRModule:
        """Rewrites the module: same results, operands computed on the way for `lift_parameters`."""
        main = self._mod["main"]
        (block,) = main.body.blocks
        for binding in block.bindings:
            call = binding.value
            if tir.called_kernel(call) is not None:
                binding = relax.VarBinding(binding.var, self._exchanged(call, binding.var.ty))
            self._bindings.append(binding)
        body = relax.SeqExpr([relax.DataflowBlock(self._bindings)], main.body.body)
        result = self._builder.get()
        result["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return result

    def _exchanged(self, call: ir.Call, result: ir.Type) -> ir.Call:
        """Returns the call to make instead, or the same call."""
        callee, arguments = call.args[:2]
        operands = list(arguments.fields)
        weights = [i for i, operand in enumerate(operands) if stays_small(operand, self._sources)]
        other = self._other(self._mod[callee], weights)
        if other is None:
            return call
        for i in other.exchanged:
            operands[i] = self._laid_out_once(operands[i], other.columns)
        kernel = other.kernel
        # The rewritten kernel is still to be fused with what follows it, such as an activation.
        if "op_pattern" not in kernel.attrs:
            kernel = kernel.with_attr("op_pattern", tir.FUSES_WHAT_FOLLOWS)
        name = self._builder.add_func(kernel, callee.name_hint)
        results = list(result.fields) if isinstance(result, relax.TupleType) else result
        return relax.call_tir(name, relax.Tuple(operands), results)

    def _laid_out_once(self, array: relax.Var, columns: int) -> relax.Var:
        """Lays out an array, once for all calls that take it."""
        if (array, columns) not in self._others:
            self._others[array, columns] = self._laid_out(array, columns)
        return self._others[array, columns]

    @abc.abstractmethod
    def _laid_out(self, array: relax.Var, columns: int) -> relax.Var:
        """Lays out an array as the other kernel takes it."""

    def _bound(self, name: str, value: relax.Expr, like: relax.Var, shape: list[int]) -> relax.Var:
        """Binds a value of another array's dtype to a name."""
        var = relax.DataflowVar(name, relax.TensorType(shape, like.ty.dtype))
        self._bindings.append(relax.VarBinding(var, value))
        return var


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
    root = tir.root_of(function)
    statements = tir.statements_of(root.body) if root else []
    nests = [nest for statement in statements if (nest := tir.Nest.of(statement))]
    across = {buffer for nest in nests for buffer in nest.across}
    large = [i for i in weights if function.params[i] in across and _is_large(function, i)]
    # One layout serves all readers, so contractions have to agree on the columns.
    if not large or len({nest.width for nest in nests}) != 1:
        return None
    # Anything else that reads the weights would need them in their own order.
    others = [statement for statement in statements if tir.Nest.of(statement) is None]
    if any(tir.contains(others, tirx.Var, function.params[i].same_as) for i in large):
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
    size, rows = tir.bytes_of(buffer), math.prod(int(n) for n in buffer.shape[:-1])
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
    root = tir.root_of(function)
    if root is None:
        return None
    statements = tir.statements_of(root.body)
    nests = {i: nest for i, s in enumerate(statements) if (nest := tir.Nest.of(s)) is not None}
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
    statements = [tir.renamed(statement, wide) for statement in statements]
    results = [buffer for buffer in function.params if buffer in written]
    statements += [_cut(wide[result], result) for result in results]
    # Results are computed in wide buffers of the kernel's own and cut to the caller's.
    allocated = [wide.get(buffer, buffer) for buffer in root.alloc_buffers]
    allocated += [wide[result] for result in results]
    body = s_tir.SBlock(
        [], [], [], root.name_hint, tirx.SeqStmt(statements), alloc_buffers=allocated
    )
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


_NARROW = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if name == "bfloat16" or name.startswith("float8")
}


def narrow_floats_to_bits(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrites the narrow floats inside every kernel of a module; arguments stay what they are."""
    return tir.map_kernels(mod, _rewritten)


def _rewritten(function: tirx.PrimFunc) -> tirx.PrimFunc:
    body, buffers = function.body, []
    tvm_ffi.structural_walk(body, (s_tir.SBlock, lambda block: buffers.extend(block.alloc_buffers)))
    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, lambda alloc: buffers.append(alloc.buffer)))
    bits_of = {buffer: _as_bits(buffer) for buffer in buffers if _is_narrow(buffer)}
    if bits_of:
        body = tvm_ffi.structural_map(body, _in_terms_of(bits_of))
    # Neither own buffers nor arguments of narrow floats: nothing to rewrite.
    elif not any(_is_narrow(parameter) for parameter in function.params):
        return function
    return function.with_body(tvm_ffi.structural_map(body, (tvm.ir.Call, _sink)))


def _is_narrow(buffer: tirx.Var) -> bool:
    return str(getattr(buffer.ty, "dtype", "")) in _NARROW


def _as_bits(buffer: tirx.Buffer) -> tirx.Buffer:
    dtype = f"uint{8 * _NARROW[str(buffer.dtype)].itemsize}"
    return tirx.decl_buffer(buffer.ty.shape, dtype, buffer.name, scope=buffer.scope())


def _in_terms_of(bits_of: dict[tirx.Buffer, tirx.Buffer]) -> list:
    """Returns rewriting rules that put integer buffers in the place of narrow ones."""

    def load(node: tvm.ir.TensorLoad) -> Expr:
        if node.source not in bits_of:
            return node
        # The cast back to the narrow type meets another to bits in `_bits`, where the two cancel.
        return tirx.reinterpret(
            node.source.dtype, tirx.BufferLoad(bits_of[node.source], node.indices)
        )

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in bits_of:
            return node
        bits = bits_of[node.buffer]
        return tirx.BufferStore(bits, tirx.reinterpret(bits.dtype, node.value), node.indices)

    def regions(buffer_regions: list[tirx.BufferRegion]) -> list[tirx.BufferRegion]:
        return [
            tirx.BufferRegion(bits_of.get(r.source, r.source), r.region) for r in buffer_regions
        ]

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        return s_tir.SBlock(
            node.iter_vars,
            regions(node.reads),
            regions(node.writes),
            node.name_hint,
            node.body,
            node.init,
            [bits_of.get(buffer, buffer) for buffer in node.alloc_buffers],
            node.match_buffers,
            node.annotations,
        )

    def allocation(node: tirx.AllocBuffer) -> tirx.Stmt:
        return tirx.AllocBuffer(bits_of[node.buffer]) if node.buffer in bits_of else node

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
