"""Kernels as C functions: every argument is a plain pointer, and no runtime is needed.

TVM's own pipeline ends in functions that unpack an array of tagged arguments, allocate from its
runtime and wake its threads. Here its passes stop before that. Arrays that a kernel allocates
become arguments, whose places the library plans; loops over threads become plain loops, or
functions that the library's own threads share; nothing of the arithmetic is touched, so that
results have the bits of the same kernels in a bundle.

Schedules mark loops whose turns don't depend on each other as parallel. Such a loop becomes a
function of its own with two more arguments, the turns it begins and ends with; what lies between
two of them is a function too, which one thread calls. All threads compute turns by the same code,
so the bits are the same for any number of threads.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from jaxeff_export.clib._c_source import write_kernels
from jaxeff_export.clib._objects import CLibraryError
from jaxeff_export.compiler import in_memory_files
from jaxeff_export.compiler.passes import IN_PLACE

_DECLARATIONS = (tirx.AllocBuffer, tirx.DeclBuffer)


@dataclasses.dataclass(frozen=True)
class Part:
    """A function of a kernel.

    Attributes:
        symbol: the name of the function in C.
        turns: iterations of its loop, which threads may share; None if one thread does all of it.
    """

    symbol: str
    turns: int | None = None


def declared(body: tirx.Stmt) -> list[tirx.Stmt]:
    """Lists what a kernel declares before it begins, with the arrays that all of its parts know."""
    return list(itertools.takewhile(lambda s: isinstance(s, _DECLARATIONS), _flat(body)))


def phases(body: tirx.Stmt) -> list[tirx.Stmt]:
    """Splits what follows into loops to share, and all that lies between two of them.

    A kernel that declares anything later, or has no loop to share at its top, is one phase.
    """
    rest = _flat(body)[len(declared(body)) :]
    # A variable that is bound in one function would be unknown in the next.
    later = any(isinstance(s, (*_DECLARATIONS, tirx.Bind)) for s in rest)
    if later or all(turns(s) is None for s in rest):
        return [_sequence(rest) if rest else tirx.Evaluate(0)]
    statements: list[tirx.Stmt] = []
    for shared, group in itertools.groupby(rest, lambda s: turns(s) is not None):
        several = list(group)
        statements.extend(several if shared else [_sequence(several)])
    return statements


def used(phase: tirx.Stmt, declarations: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
    """Selects the declarations that a phase needs, in their order."""
    names = _names(phase)
    needed = []
    # Backwards, since a declaration may refer to those before it.
    for declaration in reversed(declarations):
        if declaration.buffer in names:
            needed.append(declaration)
            names |= _names(declaration)
    return needed[::-1]


def turns(statement: tirx.Stmt) -> int | None:
    """Counts the turns of a loop that threads may share; None if it is none."""
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.PARALLEL:
        return None
    first, extent = statement.min, statement.extent
    known = isinstance(first, tirx.IntImm) and isinstance(extent, tirx.IntImm)
    # Turns are counted from zero in 32 bits, as `NAME_run` divides them among threads.
    if not known or int(first) or str(statement.loop_var.ty.dtype) != "int32":
        return None
    return int(extent)


def some_turns(loop: tirx.For) -> tuple[tirx.For, list[tirx.Var]]:
    """Makes a loop over turns that are given, and the arguments that say which: begin and end."""
    begin, end = (tirx.Var(name, "int32") for name in ("begin", "end"))
    kind = tirx.ForKind.SERIAL
    return tirx.For(loop.loop_var, begin, end - begin, kind, loop.body), [begin, end]


def _names(tree: object) -> set[tirx.Var]:
    """Collects the variables and arrays of a statement."""
    names: set[tirx.Var] = set()
    tvm_ffi.structural_walk(tree, (tirx.Var, names.add), order="post")
    return names


def _flat(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


STACK_BYTES = 1024
"""Arrays below this many bytes stay on the stack, as in TVM's own pipeline."""
FEW_STACK_BYTES = 256
"""The same for a microcontroller, whose registers hold less: more would be kept twice, here and in
a workspace that has room while the kernel runs."""

_LINE = 64  # bytes; threads that write to the same line of the cache wait for each other
_CPU = 1  # DLPack's number of the kind of device


@dataclasses.dataclass(frozen=True)
class Scratch:
    """An array that a kernel needs while it runs.

    Attributes:
        size: in bytes, of all threads.
        alignment: in bytes.
        stride: bytes from one thread's to the next one's; 0 if there is one for all.
    """

    size: int
    alignment: int
    stride: int = 0


@dataclasses.dataclass(frozen=True)
class CKernel:
    """C functions that are called one after the other, mostly a single one.

    Attributes:
        parts: these functions; all take the same arguments.
        scratch: what they take after arguments and results.
        stack: bytes of the arrays they keep on the stack; registers that spill come on top.
        over: positions of the arguments that the result may be written over.
    """

    parts: tuple[Part, ...]
    scratch: tuple[Scratch, ...]
    stack: int
    over: tuple[int, ...] = ()


def compile_kernels(
    mod: tvm.IRModule,
    where: Target,
    prefix: str,
    path: Path,
    threads: int = 1,
    stack: int = STACK_BYTES,
) -> Mapping[str, CKernel]:
    """Compiles the kernels of a scheduled module into an object file.

    Kernels are in the form that `jaxeff_export.compiler.ready_to_lower` leaves them in; other
    functions are ignored. `prefix` begins the names of the functions, `threads` is the most that
    may share a loop, and an array below `stack` bytes stays on the stack. Returns the functions by
    the names of their kernels.

    Raises:
        CLibraryError: if a kernel has arrays whose sizes are not known.
        OSError: if the object file cannot be written (the disk is full), naming it.
    """
    finished, kernels = _lowered(mod, where, where, prefix, threads, stack)
    code = tvm.get_global_func("target.build.llvm")(finished, where)
    # LLVM writes into memory: on a full disk it would end the process, Python raises an error.
    with in_memory_files([path]) as to_disk:
        code.write_to_file(str(path))
        to_disk()
    return kernels


def kernels_in_c(
    mod: tvm.IRModule, where: Target, prefix: str, threads: int = 1, stack: int = STACK_BYTES
) -> tuple[list[str], Mapping[str, CKernel]]:
    """Writes the kernels of a scheduled module as C99 source.

    Takes what `compile_kernels` takes. Returns lines of C, and the functions by the names of their
    kernels.

    Raises:
        CLibraryError: if a kernel has arrays whose sizes are not known, or what C99 has not.
    """
    # For TVM's own kind of C, elementary functions stay what they are and are no intrinsics.
    finished, kernels = _lowered(mod, where, Target("c"), prefix, threads, stack)
    return write_kernels(finished), kernels


def _lowered(
    mod: tvm.IRModule, where: Target, kind: Target, prefix: str, threads: int, stack: int
) -> tuple[tvm.IRModule, dict[str, CKernel]]:
    """Lowers kernels to functions of pointers, as a code generator of that kind takes them."""
    functions = {g: f for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    with where, tvm.transform.PassContext(opt_level=3):
        # Host and device are one: kernels are called from C, not launched.
        lowered = tirx.transform.BindTarget(kind.with_host(kind))(tvm.IRModule(functions))
        lowered = tvm.transform.Sequential(_until_the_interface())(lowered)
        plain, kernels = {}, {}
        for g, f in lowered.functions_items():
            parts, kernel = _with_pointers(f, f"{prefix}_{g.name_hint}", threads, stack)
            kernels[g.name_hint] = kernel
            for part, function in zip(kernel.parts, parts, strict=True):
                plain[tvm.ir.GlobalVar(part.symbol)] = function
        return tvm.transform.Sequential(_after_the_interface())(tvm.IRModule(plain)), kernels


def _until_the_interface() -> list[tvm.transform.Pass]:
    """Lists TVM's default pipeline for a CPU (tvm.s_tir.pipeline) up to MakePackedAPI.

    Its order is TVM's, so that kernels are those of a bundle, to the bit.
    """
    return [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.InjectSoftwarePipeline(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(),
        s_tir.transform.InjectVirtualThread(),
        s_tir.transform.InjectDoubleBuffer(),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.CommonSubexprElim(),
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
    ]


def _after_the_interface() -> list[tvm.transform.Pass]:
    return [
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
        tirx.transform.SkipAssert(),
        tirx.transform.LowerIntrin(),
    ]


def _with_pointers(
    function: tirx.PrimFunc, symbol: str, threads: int, most: int
) -> tuple[list[tirx.PrimFunc], CKernel]:
    """Makes a kernel's functions, whose arguments, results and larger arrays are pointers."""
    pointers, scratch = [], []
    known: list[tirx.Stmt] = []
    for parameter in function.params:
        pointer = _pointer(parameter.name, str(parameter.ty.dtype))
        pointers.append(pointer)
        known.append(tirx.DeclBuffer(parameter, data=pointer))
    stack = 0

    def place(node: tirx.AllocBuffer, least: int, copies: int) -> tirx.Stmt:
        nonlocal stack
        size, unit = _bytes(node.buffer, symbol)
        if 0 < size < least:  # of no bytes there can be none on the stack
            stack += size
            return node
        # Of a vector dtype (float32x4) the element's, which is what C's pointers are to.
        pointer = _pointer(node.buffer.name, str(node.buffer.dtype).partition("x")[0])
        pointers.append(pointer)
        # Whole lines of the cache per thread: two that write to one line would wait for each other.
        stride = -(-size // _LINE) * _LINE if copies > 1 else 0
        # The next power of two: vectors are loaded from addresses that are multiples of theirs.
        alignment = 1 << max(0, unit - 1).bit_length()
        scratch.append(Scratch(stride * copies or size, alignment, stride))
        return tirx.DeclBuffer(node.buffer, data=pointer)

    first = declared(function.body)
    rest = phases(function.body) if threads > 1 else [function.body]
    # Nothing to share: the kernel stays one function, which keeps its small arrays on the stack.
    if len(rest) == 1 and turns(rest[0]) is None:
        first, rest = [], [function.body]
    needs = [used(phase, first) for phase in rest]
    # Functions have no stack in common: arrays of several parts lie in the workspace.
    common = [s for s in first if _allocates(s) and sum(s in n for n in needs) > 1]
    placed = {s: place(s, least=0, copies=1) for s in common}
    bodies, arguments, parts = [], [], []
    for number, (phase, needed) in enumerate(zip(rest, needs, strict=True)):
        shared = turns(phase) if threads > 1 else None
        body, more = some_turns(phase) if shared is not None else (phase, [])
        # Each thread that takes turns of a loop needs its own copy of the loop's arrays.
        on_stack = functools.partial(place, least=most, copies=threads if more else 1)
        body = tirx.SeqStmt([*(placed.get(s, s) for s in needed), body]) if needed else body
        body = tvm_ffi.structural_map(body, (tirx.AllocBuffer, on_stack))
        bodies.append(tvm_ffi.structural_map(body, (tirx.For, _on_one_thread)))
        arguments.append(more)
        parts.append(Part(symbol if len(rest) == 1 else f"{symbol}_part{number}", shared))
    functions = []
    for part, body, more in zip(parts, bodies, arguments, strict=True):
        # Each part is a function, which has to declare on its own what its pointers are.
        body = tirx.SeqStmt([*known, body]) if known else body
        # MakePackedAPI, which is left out, would set these for LLVM's code generator.
        for attribute, value in (("device_type", _CPU), ("device_id", 0)):
            body = tirx.AttrStmt(0, attribute, value, body)
        plain = tirx.PrimFunc([*pointers, *more], body, function.ret_type, function.attrs)
        functions.append(plain.with_attr("global_symbol", part.symbol))
    over = tuple(int(i) for i in (function.attrs or {}).get(IN_PLACE, ()))
    return functions, CKernel(tuple(parts), tuple(scratch), stack, over)


def _allocates(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.AllocBuffer)


def _pointer(name: str, dtype: str) -> tirx.Var:
    return tirx.Var(name, tvm.ir.PointerType(tvm.ir.PrimType(dtype), "global"))


def _bytes(buffer: tirx.Buffer, symbol: str) -> tuple[int, int]:
    """Computes the size of an array that a kernel allocates, and that of its elements."""
    # Symbolic sizes are those of a batch that may vary.
    shape: Sequence[Any] = buffer.shape
    if not all(isinstance(n, tirx.IntImm) for n in shape):
        raise CLibraryError(
            f"{symbol} allocates {buffer.name} of shape {list(shape)}, which only the call tells; "
            "a C library plans its memory in advance: deploy for a fixed batch"
        )
    dtype = tvm.DataType(str(buffer.dtype))
    # Bits in whole bytes: booleans have one, as C reads them.
    unit = -(-dtype.bits // 8) * max(1, int(dtype.lanes))
    return math.prod(int(n) for n in shape) * unit, unit


def _on_one_thread(node: tirx.For) -> tirx.For:
    # The library's own threads take whole parts (`Part`); TVM's runtime isn't there.
    if node.kind != tirx.ForKind.PARALLEL:
        return node
    return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)
