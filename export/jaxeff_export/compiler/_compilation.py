"""Relax to machine code for a CPU: passes, schedules, and the target's description.

```python
import jax
import jax.numpy as jnp
import numpy as np
import tvm
from tvm import relax

from jaxeff_export import compile_module, import_stablehlo

x = np.linspace(-1, 1, 6, dtype=np.float32)
exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x) * 2))(x)
executable = compile_module(import_stablehlo(exported))
main = relax.VirtualMachine(executable, tvm.cpu())["main"]
assert np.allclose(main(tvm.runtime.tensor(x)).numpy(), np.tanh(x) * 2, atol=1e-6)
```

Where LLVM cannot write a file (the disk is full), it ends the process. So it is given links to
files in memory, and what it wrote there is written to the disk by Python, which raises an error.

Recorded schedules are traces of MetaSchedule, applied to the kernels that their hashes identify.

Sharp edge: only Linux has files in memory. Elsewhere LLVM writes to the disk itself.
"""

import contextlib
import json
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule, Trace
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features

from jaxeff.store import write_atomically
from jaxeff_export.artifact import digest
from jaxeff_export.compiler import tir
from jaxeff_export.compiler._merging import merge_blocks
from jaxeff_export.compiler._scheduling import schedule_cpu, schedule_kernel
from jaxeff_export.compiler._tiles import Machine
from jaxeff_export.compiler.passes import (
    BOUND,
    LiftedModule,
    block_weights,
    chained,
    decode_where_read,
    lift_parameters,
    narrow_floats_to_bits,
    updates_alone,
    widen_contractions,
    write_over_state,
)
from jaxeff_export.schedules import TuningDatabase, TuningError
from jaxeff_export.targets import OPERATOR_BY_OPERATOR, resolve_target, tvm_target

NARROW = "prefer-256-bit"  # LLVM's name of the tuning
MOST_CALLS = 1000
"""Steps of a function, calls and moves of its arrays, from which on it is interpreted."""


def compile_module(
    mod: tvm.IRModule,
    target: Mapping[str, object] | None = None,
    tuned: Callable[[tirx.PrimFunc], tirx.PrimFunc] | None = None,
    once: bool = False,
) -> relax.VMExecutable:
    """Compiles an imported module.

    Args:
        mod: a Relax module, such as ``import_stablehlo`` returns; it is not changed.
        target: a TVM target as a mapping, e.g. ``{"kind": "llvm", "mtriple": "aarch64-linux-gnu",
            "mcpu": "cortex-a72", "mattr": ["+neon"], "num-cores": 4}``; this machine by default.
        tuned: schedules the kernels it knows a better schedule for than the default one, and
            returns the others as they are; see `jaxeff_export.schedules`.
        once: whether it is called once, so that its calls of kernels are interpreted.

    Returns:
        An executable for ``relax.VirtualMachine``, or for ``.export_library(path, cc=...)``.
    """
    return lower_module(schedule_module(mod, target, tuned), target, once)


def schedule_module(
    mod: tvm.IRModule,
    target: Mapping[str, object] | None = None,
    tuned: Callable[[tirx.PrimFunc], tirx.PrimFunc] | None = None,
) -> tvm.IRModule:
    """Fuses and schedules kernels: the first half of `compile_module`, with its arguments."""
    where = compilation_target(target or resolve_target("host"))
    with where, tvm.transform.PassContext(opt_level=3):
        mod = fused_kernels(mod, where)
        if tuned:
            mod = tir.map_kernels(mod, tuned)
        mod = ready_to_lower(schedule_cpu(mod, Machine.of(where)))
        return write_over_state(mod)


def lower_module(
    mod: tvm.IRModule, target: Mapping[str, object] | None = None, once: bool = False
) -> relax.VMExecutable:
    """Makes machine code of scheduled kernels: the second half of `compile_module`."""
    where = compilation_target(target or resolve_target("host"))
    # Kernels are called by ``main`` alone, which checks its arguments.
    with where, tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        apart = _lower()(mod)
        # Reshapes become views first: a copy between two kernels would end their chain.
        joined = chained(relax.transform.RewriteDataflowReshape()(mod))
        # Lowered one by one: TVM plans the memory of every call once, whatever functions share it.
        together = apart if len(joined.functions) == len(mod.functions) else _lower()(joined)
        together[OPERATOR_BY_OPERATOR] = apart["main"].with_attr(
            "global_symbol", OPERATOR_BY_OPERATOR
        )
        return _link(together, where, 0 if once else MOST_CALLS)


def _link(mod: tvm.IRModule, where: Target, most: int) -> relax.VMExecutable:
    """Makes machine code of the kernels and of ``main``, which calls them without an interpreter.

    ``OPERATOR_BY_OPERATOR`` is the same function, without chains, for TVM's interpreter, which
    costs about half a microsecond a kernel, but can be watched. ``relax.build`` makes one or the
    other, so its steps are taken here. A ``main`` of very many calls is for the interpreter too.
    """
    builder = relax.ExecBuilder()
    watched = mod.get_global_var(OPERATOR_BY_OPERATOR)
    functions = dict(mod.functions_items())
    kernels = {name: f for name, f in functions.items() if isinstance(f, tirx.PrimFunc)}
    # Layers of one shape share kernels, but not their calls: as machine code a deep network's
    # calls are one function that LLVM takes longer for than for all kernels.
    relaxed = [name for name in functions if name not in kernels]
    byte_code = {
        name: functions.pop(name)
        for name in relaxed
        if name.same_as(watched) or _calls(functions[name]) > most
    }
    interpreted = tvm.IRModule({**kernels, **byte_code}, attrs=mod.attrs)
    # Both functions go into one executable, so they share kernels and constants.
    vm_build._vmcodegen(builder, interpreted, "bytecode")
    compiled = vm_build._vmcodegen(builder, tvm.IRModule(functions, attrs=mod.attrs), "compiled")
    return vm_build._vmlink(
        builder=builder,
        target=where,
        tir_mod=vm_build._filter_tir(compiled),
        tir_pipeline="default",
        params=dict(mod.attrs.get("const_name_to_constant", {})) if mod.attrs else {},
    )


def _calls(function: relax.Function) -> int:
    """Counts what a function does, step by step."""
    return sum(len(block.bindings) for block in function.body.blocks)


def bind_parameters(
    mod: tvm.IRModule, count: int, target: Mapping[str, object] | None = None
) -> LiftedModule:
    """Splits an imported module into what depends on its parameters alone and the rest.

    Args:
        mod: a Relax module, such as ``import_stablehlo`` returns; it is not changed.
        count: number of leading arguments of ``main`` that are parameters.
        target: same as for `compile_module`; weights are laid out for it.

    Returns:
        Both parts, each to be compiled.
    """
    where = tvm_target(target or resolve_target("host"))
    with where, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.RewriteDataflowReshape()(_fold(mod))
        machine = Machine.of(where)
        # Widths first: a block of columns is a tile of whole vectors.
        mod = block_weights(widen_contractions(mod, count, machine.lanes), count, machine)
        return lift_parameters(mod, count)


def compilation_target(target: Mapping[str, object]) -> Target:
    """Completes a target: products and sums may be fused, vectors of AVX-512 are whole.

    LLVM's tuning for Intel's cores with AVX-512 prefers vectors of 256 bits, because the first of
    them lowered their clock for a few wide instructions in other code. Contractions are written in
    512 bits whatever it prefers, so what runs between them has nothing to save: long loops of
    scalars take about half the time in 512. A target that says which it prefers is left alone.
    """
    where = tvm_target({"fast-math-contract": True, **target})
    attributes = [str(name) for name in where.attrs.get("mattr", [])]
    said = [name[1:] for name in attributes]
    if NARROW in said or not llvm_cpu_has_features("avx512f", where):
        return where
    mattr = [*attributes, f"-{NARROW}"]
    return tvm_target({"fast-math-contract": True, **target, "mattr": mattr})


def fused_kernels(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Fuses an imported module into the kernels that will be compiled, not scheduled yet."""
    with target, tvm.transform.PassContext(opt_level=3):
        # Lets can be inlined and vectorised by schedules, which blocks with local buffers cannot.
        return decode_where_read(fuse(tir.locals_to_lets(updates_alone(_fold(mod)))))


def ready_to_lower(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrites scheduled kernels into the form that TVM lowers correctly and fast."""
    # Bit casts move into the branches of choices while these are still expressions, then long
    # chains become locals: TVM's later passes take exponential time in chains of lets.
    products = tir.overlap_tiles(tir.unpair_products(mod))
    stored = tir.lets_to_locals(narrow_floats_to_bits(products))
    # Short chains are written out: what TVM's search for common subexpressions finds in a let, it
    # doesn't count as a use, and defines the subexpression below it. The search joins them again.
    return tir.map_kernels(stored, tir.without_lets)


def _fold(mod: tvm.IRModule) -> tvm.IRModule:
    """Computes what depends on constants only; kernels still hold locals, so they compile fast."""
    dispatch = [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]
    fold = [relax.transform.LegalizeOps(), relax.transform.FoldConstant()]
    return tvm.transform.Sequential([*dispatch, *fold])(mod)


def fuse(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes one kernel of each group of kernels that belong together."""
    annotated = relax.transform.AnnotateTIROpPattern()(mod)
    # Where a group reads some results of two kernels with several, TVM's FuseOps puts them into the
    # place of the second kernel's tuple as it was before the first one's were put in, and the group
    # reads variables that it doesn't have: by the order of addresses, so not in every run. Results
    # that are read one by one can't go wrong. Those of kernels that are never fused lose nothing by
    # it; those of others only have to where the groups would be wrong.
    grouped = relax.transform.FuseOps()(_results_apart(annotated, {_OPAQUE}))
    if any(relax.analysis.free_vars(function) for function in _relax_functions(grouped)):
        grouped = relax.transform.FuseOps()(_results_apart(annotated, set(range(_OPAQUE + 1))))
    passes = [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(_without_marks(grouped))


_OPAQUE = 8
"""TVM's pattern of a kernel that isn't fused with others (``OpPatternKind::kOpaque``)."""
_MARK = tvm.ir.Op.get("relax.builtin.stop_lift_params")
"""An operator that returns what it is given, and that FuseOps knows nothing of."""


def _relax_functions(mod: tvm.IRModule) -> list[relax.Function]:
    return [each for each in mod.functions.values() if isinstance(each, relax.Function)]


def _results_apart(mod: tvm.IRModule, patterns: Container[int]) -> tvm.IRModule:
    """Marks the results of kernels of some patterns, so that no group takes their tuples."""
    tuples: set[relax.Var] = set()

    def apart(binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value
        kernel = tir.called_kernel(value)
        if kernel is not None and int(mod[kernel].attrs["op_pattern"]) in patterns:
            tuples.add(binding.var)
        if not isinstance(value, relax.TupleGetItem) or value.tuple_value not in tuples:
            return [binding]
        item = relax.DataflowVar(f"{binding.var.name}_item", binding.var.ty)
        marked = relax.Call(_MARK, [item])
        return [relax.VarBinding(item, value), relax.VarBinding(binding.var, marked)]

    # What the mark returns has its type only after this.
    return relax.transform.Normalize()(_with_bindings(mod, apart))


def _without_marks(mod: tvm.IRModule) -> tvm.IRModule:
    """Reads the results that `_results_apart` marked from their tuples again."""
    items: dict[relax.Var, relax.TupleGetItem] = {}

    def unmarked(binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            items[binding.var] = value
        if isinstance(value, relax.Call) and value.op == _MARK:
            return [relax.VarBinding(binding.var, items[value.args[0]])]
        return [binding]

    return _with_bindings(mod, unmarked)


def _with_bindings(
    mod: tvm.IRModule, rewrite: Callable[[relax.Binding], list[relax.Binding]]
) -> tvm.IRModule:
    """Rewrites what the dataflow blocks of all of a module's functions bind, one by one."""
    result = mod.clone()
    for name, function in mod.functions_items():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            blocks = [
                relax.DataflowBlock([new for each in block.bindings for new in rewrite(each)])
                if isinstance(block, relax.DataflowBlock)
                else block
                for block in function.body.blocks
            ]
            body = relax.SeqExpr(blocks, function.body.body)
            result[name] = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs
            )
    return result


def _lower() -> tvm.transform.Pass:
    """Lists the passes of TVM's CPU pipeline that follow fusion."""
    return tvm.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            _trust_parameters,
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


@tvm.transform.module_pass(opt_level=0, name="TrustParameters")
def _trust_parameters(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Removes the types of bound parameters, which would be checked twice in every call.

    A bundle binds them once, and checks them then.
    """
    functions = [f for _, f in mod.functions_items() if isinstance(f, relax.Function)]
    entered = sum(BOUND in (f.attrs or {}) for f in functions)
    # Where sizes are symbols, or functions call each other, calls are typed anew after this.
    if entered < len(functions) or not all(map(_is_fixed, functions)):
        return mod
    result = mod.clone()
    for name, function in mod.functions_items():
        attrs = function.attrs if isinstance(function, relax.Function) else None
        count = int(attrs.get(BOUND, 0)) if attrs else 0
        # A variable of any type leaves nothing to check in a call.
        trusted = {v: relax.Var(v.name, relax.AnyType()) for v in function.params[:count]}
        result[name] = tir.renamed(function, trusted) if trusted else function
    return result


def _is_fixed(function: relax.Function) -> bool:
    """Tells whether the sizes of all arguments are known numbers."""
    shapes = [getattr(v.ty, "shape", None) for v in function.params]
    return all(
        isinstance(shape, relax.ShapeExpr) and all(isinstance(n, tirx.IntImm) for n in shape)
        for shape in shapes
    )


@contextlib.contextmanager
def in_memory_files(paths: Sequence[Path]) -> Iterator[Callable[[], None]]:
    """Redirects what LLVM writes to paths into memory.

    Args:
      paths: files that it may write, in a folder that is there.

    Yields:
      A function that writes its files to the disk; raises OSError naming one that fails.
    """
    if not hasattr(os, "memfd_create"):
        yield lambda: None
        return
    with contextlib.ExitStack() as stack:
        files = {}
        for path in paths:
            files[path] = stack.enter_context(os.fdopen(os.memfd_create(path.name), "rb"))
            # LLVM opens files by name; this name leads to the memory.
            path.symlink_to(f"/proc/self/fd/{files[path].fileno()}")

        def to_disk() -> None:
            for path, file in files.items():
                path.unlink()
                # An empty file is one that LLVM did not write.
                if content := file.read():
                    write_atomically(path, content)

        yield to_disk


@dataclass(frozen=True)
class UnscheduledKernel:
    """A kernel on its own, without its module.

    Attributes:
      name: name of its function in the module.
      function: the function, blocks merged and not scheduled.
      workload: the structural hash, equal for equal kernels of other modules.
    """

    name: str
    function: tirx.PrimFunc
    workload: str

    @property
    def module(self) -> tvm.IRModule:
        """Returns a module of the kernel alone, as MetaSchedule takes it."""
        return tvm.IRModule({"main": self.function})

    @property
    def outputs(self) -> list[int]:
        """Returns the positions of the arguments that it writes."""
        written: list[tirx.Var] = []
        tvm_ffi.structural_walk(
            self.function.body, (tirx.BufferStore, lambda store: written.append(store.buffer))
        )
        return [
            index
            for index, parameter in enumerate(self.function.params)
            if any(parameter.same_as(buffer) for buffer in written)
        ]


def kernel_of(name: str, function: tirx.PrimFunc) -> UnscheduledKernel:
    """Makes a kernel of a module's function that is not scheduled yet."""
    # Schedules apply to merged blocks, so these are what a record has to be matched by.
    merged = merge_blocks(function)
    return UnscheduledKernel(name, merged, workload_of(merged))


def workload_of(function: tirx.PrimFunc) -> str:
    """Returns the structural hash of a kernel whose blocks are merged."""
    return str(ms.database.Workload(tvm.IRModule({"main": function})).as_json()[0])


def tuned_schedules(
    database: TuningDatabase, target: Mapping[str, Any]
) -> Callable[[tirx.PrimFunc], tirx.PrimFunc]:
    """Returns the `tuned` argument of `compile_module`: a database's choices for a target.

    A choice was measured against the default schedule of its time. If this version's default is
    another, the choice is ignored.

    Raises:
      TuningError: if the database's list of choices is damaged.
    """
    # The target as compiled for, so that the default compared here is the one that would run.
    machine = Machine.of(compilation_target(target))
    choices = {key: c for key, c in database.choices(target).items() if c.trace is not None}

    def tuned(function: tirx.PrimFunc) -> tirx.PrimFunc:
        if not choices or "tirx.is_scheduled" in function.attrs:
            return function
        kernel = kernel_of("", function)
        choice = choices.get(kernel.workload)
        if choice is None or choice.default != digest_of(kernel, default_schedule(kernel, machine)):
            return function
        return replay_trace(kernel, choice.trace).mod["main"].with_attr("tirx.is_scheduled", True)

    return tuned


def default_schedule(kernel: UnscheduledKernel, machine: Machine) -> Schedule:
    """Schedules a kernel without tuning; plain loops if no rule applies to it."""
    return schedule_kernel(kernel.function, machine) or Schedule(kernel.module)


def digest_of(kernel: UnscheduledKernel, schedule: Schedule) -> str:
    """Hashes a schedule's trace, which tells the schedules of a kernel apart."""
    if any(step.kind.name == "TransformLayout" for step in schedule.trace.insts):
        return digest(str(schedule.trace).encode())[:16]  # MetaSchedule writes no maps down
    record = ms.database.TuningRecord(schedule.trace, ms.database.Workload(kernel.module))
    return trace_digest(record.as_json()[0])


def trace_digest(trace: Any) -> str:
    """Hashes a trace as MetaSchedule writes it."""
    return digest(json.dumps(trace).encode())[:16]


def replay_trace(kernel: UnscheduledKernel, trace: Any) -> Schedule:
    """Schedules a kernel as recorded.

    Args:
      kernel: the kernel.
      trace: MetaSchedule's record of a schedule.

    Raises:
      TuningError: if TVM cannot apply it to this kernel.
    """
    schedule = Schedule(kernel.module)
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise TuningError(
            f"a recorded schedule does not fit the kernel {kernel.name or kernel.workload}: "
            f"{reason}; tune it again into another folder"
        ) from error
    return schedule
