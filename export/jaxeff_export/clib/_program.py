"""Program of a library: calls of kernels, one after the other, and a static plan of their memory.

Loops and branches of the function lie within kernels (see `jaxeff_export.importer.rules`), so a
program is a straight line.

An array of the workspace lives from the call that writes it to the last that reads it; a kernel's
scratch lives for its call. Arrays that live at the same time lie apart, others may lie in the same
place, and a result where the argument was that its kernel reads for the last time, if the kernel
allows that. The largest arrays are placed first, each as low as those that it meets allow (greedy
by size: Pisarchyk and Lee 2020, arXiv 2001.03288).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from jaxeff_export.clib._objects import CLibraryError
from jaxeff_export.compiler import tiles_of
from jaxeff_export.compiler.tir import called_kernel

if TYPE_CHECKING:
    from jaxeff_export.clib._kernels import CKernel


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """A call of a kernel.

    Attributes:
        kernel: the name of the kernel.
        arguments: the arrays it reads; state among them it also writes.
        results: the arrays it writes.
    """

    kernel: str
    arguments: tuple[int, ...]
    results: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KernelProgram:
    """Calls of kernels on numbered arrays.

    Attributes:
        sizes: sizes of all arrays, in bytes.
        operands: the arrays that hold what is bound: parameters, and what is derived from them.
        inputs: the arrays that a call is given.
        constants: the arrays that the function itself holds, with their values.
        outputs: the arrays that are results.
        calls: what is done, in order.
        tiles: by kernel the extents of its result that registers hold at once.
    """

    sizes: tuple[int, ...]
    operands: tuple[int, ...]
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, np.ndarray], ...]
    outputs: tuple[int, ...]
    calls: tuple[KernelCall, ...]
    tiles: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def with_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes views of what only changes its shape, and drops the kernels that this leaves unused."""
    passes = [relax.transform.RewriteDataflowReshape(), relax.transform.DeadCodeElimination()]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod)


def with_narrow_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Keeps whole numbers of the function in as few bytes as hold them, to widen as they are read.

    Indices and tables of a function are mostly of 32 bits and small: in flash they are two to
    eight times as large as they have to be, and a core loads a byte in the same cycle.
    """
    main = mod["main"]
    calls = [
        binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if called_kernel(binding.value, in_place=True) is not None
    ]
    arguments_of: dict[tuple[tvm.ir.GlobalVar, int], list[relax.Expr]] = {}
    for call in calls:
        for i, argument in enumerate(call.args[1]):
            arguments_of.setdefault((call.args[0], i), []).append(argument)
    narrow: dict[tuple[tvm.ir.GlobalVar, int], str] = {}
    for (kernel, i), arguments in arguments_of.items():
        dtype = _narrowest(arguments)
        if dtype is not None and (other := _reading(mod[kernel], i, dtype)) is not None:
            mod.update_func(kernel, other)
            narrow[kernel, i] = dtype
    if not narrow:
        return mod

    def with_them(call: relax.Expr) -> relax.Expr:
        if call not in calls:
            return call
        arguments = [
            relax.const(argument.value.numpy().astype(dtype), dtype)
            if (dtype := narrow.get((call.args[0], i)))
            else argument
            for i, argument in enumerate(call.args[1])
        ]
        return tvm.ir.Call(
            call.op,
            [call.args[0], relax.Tuple(arguments), *call.args[2:]],
            call.attrs,
            call.ty_args,
        )

    blocks = [
        type(block)([relax.VarBinding(b.var, with_them(b.value)) for b in block.bindings])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    main = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    mod.update_func(mod.get_global_var("main"), main)
    return mod


def _narrowest(arguments: Sequence[relax.Expr]) -> str | None:
    """Returns the dtype of fewest bits that holds all of them; None if they have it, or vary."""
    if not all(isinstance(a, tvm.ir.expr.GenericConst) for a in arguments):
        return None
    values = [a.value.numpy() for a in arguments]
    if not values[0].size or values[0].dtype.kind not in "iu":
        return None
    low, high = min(int(v.min()) for v in values), max(int(v.max()) for v in values)
    dtype = np.min_scalar_type(high if low >= 0 else min(low, -1 - high))
    return dtype.name if dtype.itemsize < values[0].itemsize else None


def _reading(kernel: tirx.PrimFunc, position: int, dtype: str) -> tirx.PrimFunc | None:
    """Makes a kernel read an argument of another dtype; None if it does more than read numbers."""
    old = kernel.params[position]
    new = tirx.decl_buffer(old.ty.shape, dtype, old.name)
    loads: list[tvm.ir.TensorLoad] = []
    called: list[tvm.ir.Call] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.TensorLoad, loads.append))
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.Call, called.append))
    # C that is handed the array's address reads what it was written for; a vector is one load.
    loads = [load for load in loads if load.source.same_as(old)]
    if any(argument.same_as(old) for call in called for argument in call.args) or any(
        "x" in str(load.ty.dtype) for load in loads
    ):
        return None

    def widened(load: tvm.ir.TensorLoad) -> tirx.Expr:
        if not load.source.same_as(new):
            return load
        return tirx.Cast(old.ty.dtype, tirx.BufferLoad(new, load.indices))

    body = tvm_ffi.structural_map(kernel.body, (tirx.Var, lambda v: new if v.same_as(old) else v))
    body = tvm_ffi.structural_map(body, (tvm.ir.TensorLoad, widened))
    params = [*kernel.params[:position], new, *kernel.params[position + 1 :]]
    return tirx.PrimFunc(params, body, kernel.ret_type, kernel.attrs)


def program_of(mod: tvm.IRModule, bound: int) -> KernelProgram:
    """Reads the program of a module.

    The module is one that `with_views` returned, whose ``main`` calls kernels; the first `bound` of
    its arguments are bound.

    Raises:
        CLibraryError: if a size is not known, or ``main`` does anything but call kernels.
    """
    return dataclasses.replace(_ArrayNumbering(mod["main"]).read(bound), tiles=tiles_of(mod))


class _ArrayNumbering:
    """Numbers arrays; a view of an array has its number."""

    def __init__(self, main: relax.Function) -> None:
        self._main = main
        self._sizes: list[int] = []
        self._values: dict[relax.Var, int | list[int]] = {}
        self._constants: list[tuple[int, np.ndarray]] = []
        self._calls: list[KernelCall] = []

    def read(self, bound: int) -> KernelProgram:
        arguments = [self._new(parameter.ty, parameter.name) for parameter in self._main.params]
        self._values.update(zip(self._main.params, arguments, strict=True))
        for block in self._main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._bound(binding)
        outputs = self._of(self._main.body.body)
        return KernelProgram(
            sizes=tuple(self._sizes),
            operands=tuple(arguments[:bound]),
            inputs=tuple(arguments[bound:]),
            constants=tuple(self._constants),
            outputs=tuple(outputs if isinstance(outputs, list) else [outputs]),
            calls=tuple(self._calls),
        )

    def _bound(self, binding: relax.Binding) -> int | list[int]:
        value = binding.value
        if not isinstance(value, tvm.ir.Call):
            return self._of(value)
        name = getattr(value.op, "name", str(value.op))
        # The same bytes in the same order: the view has the number of what it views.
        if name == "relax.reshape":
            return self._of(value.args[0])
        # State: the kernel writes over the array that it is given first.
        if name == "relax.call_tir_inplace":
            read = [self._one(argument) for argument in value.args[1]]
            self._calls.append(KernelCall(value.args[0].name_hint, tuple(read), ()))
            return read[0]
        # A third argument would be sizes that only a call tells.
        if name != "relax.call_tir" or len(value.args) != 2:
            raise CLibraryError(
                f"{binding.var.name} is computed by {name}, which has no static kernel; "
                "a C library calls kernels of fixed shapes alone"
            )
        # The type of the results is the only place that says how many arrays the kernel writes.
        made_of, name = value.ty_args[0], binding.var.name
        several = isinstance(made_of, relax.TupleType)
        results = [self._new(kind, name) for kind in (made_of.fields if several else [made_of])]
        read = [self._one(argument) for argument in value.args[1]]
        self._calls.append(KernelCall(value.args[0].name_hint, tuple(read), tuple(results)))
        return results if several else results[0]

    def _of(self, value: relax.Expr) -> int | list[int]:
        match value:
            case relax.Var():
                return self._values[value]
            case relax.Tuple():
                return [self._one(field) for field in value.fields]
            case relax.TupleGetItem():
                return self._several(value.tuple_value)[value.index]
            case tvm.ir.expr.GenericConst():
                number = self._new(value.ty, "a constant")
                self._constants.append((number, value.value.numpy()))
                return number
        raise CLibraryError(f"a {type(value).__name__} has no place in a C library")

    def _one(self, value: relax.Expr) -> int:
        numbers = self._of(value)
        if isinstance(numbers, list):
            raise CLibraryError("a kernel takes a tuple, which has no place in a C library")
        return numbers

    def _several(self, value: relax.Expr) -> list[int]:
        numbers = self._of(value)
        return numbers if isinstance(numbers, list) else [numbers]

    def _new(self, kind: relax.Type, name: str) -> int:
        shape: Sequence[Any] = getattr(getattr(kind, "shape", None), "values", [None])
        if not all(isinstance(n, tirx.IntImm) for n in shape):
            raise CLibraryError(
                f"{name} has no fixed shape; a C library plans its memory in advance: deploy for a "
                "fixed batch, without any_batch"
            )
        # Booleans are stored as a byte each.
        bits = tvm.DataType(str(kind.dtype)).bits
        self._sizes.append(math.prod(int(n) for n in shape) * -(-int(bits) // 8))
        return len(self._sizes) - 1


ALIGNMENT = 16
"""Bytes that every array of the workspace is aligned to, at least."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Bytes that are needed for a while.

    Attributes:
        size: in bytes.
        first: the call from which they are needed.
        last: the call up to which they are needed.
    """

    size: int
    first: int
    last: int

    def meets(self, other: Piece) -> bool:
        """Tells whether both are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


@dataclasses.dataclass(frozen=True)
class Memory:
    """Plan of a library's workspace.

    Attributes:
        arrays: the offset in the workspace of each array that lies there.
        scratch: per call the offsets of its kernel's scratch.
        size: size of the workspace, in bytes.
        live: the largest number of bytes that are needed at the same time, which no plan is below.
        alignment: alignment of the workspace, in bytes.
        by_call: the bytes that are needed at each call.
        owners: the array in whose place each array of the workspace lies, mostly its own.
        lives: when these places are needed, and their sizes.
    """

    arrays: Mapping[int, int]
    scratch: tuple[tuple[int, ...], ...]
    size: int
    live: int
    alignment: int
    by_call: tuple[int, ...]
    owners: Mapping[int, int]
    lives: Mapping[int, Piece]


def plan(
    program: KernelProgram, kernels: Mapping[str, CKernel], alignment: int = ALIGNMENT
) -> Memory:
    """Plans the workspace of a program.

    Its alignment is `alignment` at least.
    """
    scratch = [kernels[call.kernel].scratch for call in program.calls]
    alignment = max([alignment, *(s.alignment for several in scratch for s in several)])
    owners = _owners(program, kernels)
    arrays = _lives(program, owners)
    pieces = [*arrays.values()]
    for step, several in enumerate(scratch):
        # Scratch is needed for its call alone: arrays of other calls may lie there.
        pieces += [Piece(s.size, step, step) for s in several]
    # With sizes that are multiples of the alignment, all offsets below are as well.
    pieces = [dataclasses.replace(p, size=-(-p.size // alignment) * alignment) for p in pieces]
    offsets = place(pieces)
    places = dict(zip(arrays, offsets, strict=False))
    rest = iter(offsets[len(arrays) :])
    ends = [p.size + offset for p, offset in zip(pieces, offsets, strict=True)]
    needed = tuple(
        sum(p.size for p in pieces if p.first <= t <= p.last) for t in range(len(program.calls))
    )
    return Memory(
        arrays={number: places[owner] for number, owner in owners.items()},
        scratch=tuple(tuple(next(rest) for _ in several) for several in scratch),
        size=max(ends, default=0),
        # At each call the sum of what is needed: no plan can do with less than the largest.
        live=max(needed, default=0),
        alignment=alignment,
        by_call=needed,
        owners=owners,
        lives=arrays,
    )


def place(pieces: Sequence[Piece]) -> list[int]:
    """Finds offsets at which no two pieces that meet overlap."""
    offsets = [0] * len(pieces)
    placed: list[int] = []
    # Largest first, then earliest: what is left over are gaps that small ones fit in.
    for i in sorted(range(len(pieces)), key=lambda i: (-pieces[i].size, pieces[i].first)):
        neighbours = [j for j in placed if pieces[j].meets(pieces[i])]
        # From the lowest neighbour upwards to the first gap that holds it. Neighbours may overlap
        # each other, hence the maximum.
        for j in sorted(neighbours, key=lambda j: offsets[j]):
            if offsets[i] + pieces[i].size <= offsets[j]:
                break
            offsets[i] = max(offsets[i], offsets[j] + pieces[j].size)
        placed.append(i)
    return offsets


def _owners(program: KernelProgram, kernels: Mapping[str, CKernel]) -> dict[int, int]:
    """Finds the array in whose place each array of the workspace lies, mostly its own."""
    elsewhere = {*program.operands, *program.inputs, *program.outputs}
    elsewhere.update(number for number, _ in program.constants)
    last = {n: step for step, call in enumerate(program.calls) for n in call.arguments}
    owners: dict[int, int] = {}
    for step, call in enumerate(program.calls):
        # Written before it is read: its first call is the one that makes it.
        for result in (*call.results, *call.arguments):
            if result not in elsewhere:
                owners.setdefault(result, result)
        for i in kernels[call.kernel].over:
            operand, result = call.arguments[i], call.results[0]
            alone = call.arguments.count(operand) == 1 and last[operand] == step
            if operand in owners and owners.get(result) == result and alone:
                owner = owners[operand]
                if program.sizes[result] <= program.sizes[owner]:
                    owners[result] = owner
    return owners


def _lives(program: KernelProgram, owners: Mapping[int, int]) -> dict[int, Piece]:
    """Finds when the places of the workspace are needed: arrays neither given, bound nor results.

    `owners` is the array in whose place each array lies.
    """
    lives: dict[int, Piece] = {}
    for step, call in enumerate(program.calls):
        for number in (*call.results, *call.arguments):
            if number in owners:
                owner = owners[number]
                first = lives[owner].first if owner in lives else step
                lives[owner] = Piece(program.sizes[owner], first, step)
    return lives
