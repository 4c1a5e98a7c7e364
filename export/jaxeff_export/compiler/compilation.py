"""Relax to machine code for a CPU: passes, schedules, and the target's description."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.target import Target

from ..targets.target import resolve_target
from .entry_points import OPERATOR_BY_OPERATOR
from .lifting import Lifted, lift_parameters
from .locals import lets_to_locals, locals_to_lets
from .scheduling import Machine, schedule_cpu
from .storage import narrow_floats_to_bits
from .tir import map_kernels
from .widening import widen_contractions


def compile_module(
    mod: tvm.IRModule,
    target: Mapping[str, object] | None = None,
    tuned: Callable[[tirx.PrimFunc], tirx.PrimFunc] | None = None,
) -> relax.VMExecutable:
    """Compile an imported module.

    Args:
        mod: a Relax module, such as ``import_stablehlo`` returns; it is not changed.
        target: a TVM target as a mapping, e.g. ``{"kind": "llvm", "mtriple": "aarch64-linux-gnu",
            "mcpu": "cortex-a72", "mattr": ["+neon"], "num-cores": 4}``; this machine by default.
        tuned: schedules the kernels it knows a better schedule for than the default one, and
            returns the others as they are; see `jaxeff_export.schedules`.

    Returns:
        An executable for ``relax.VirtualMachine``, or for ``.export_library(path, cc=...)``.
    """
    where = compilation_target(target or resolve_target("host"))
    with where, tvm.transform.PassContext(opt_level=3):
        mod = fused_kernels(mod, where)
        if tuned:
            mod = map_kernels(mod, tuned)
        mod = ready_to_lower(schedule_cpu(mod, Machine.of(where)))
        return _link(_lower()(mod), where)


def _link(mod: tvm.IRModule, where: Target) -> relax.VMExecutable:
    """Machine code for the kernels and for ``main``, which calls them without an interpreter.

    ``OPERATOR_BY_OPERATOR`` is the same function for TVM's interpreter, which costs about half a
    microsecond a kernel, but can be watched. ``relax.build`` makes one or the other, so its steps
    are taken here.
    """
    builder = relax.ExecBuilder()
    main = mod["main"]
    watched = main.with_attr("global_symbol", OPERATOR_BY_OPERATOR)
    kernels = {name: f for name, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    interpreted = tvm.IRModule({**kernels, tvm.ir.GlobalVar(OPERATOR_BY_OPERATOR): watched})
    vm_build._vmcodegen(builder, interpreted, "bytecode")
    compiled = vm_build._vmcodegen(builder, mod, "compiled")
    return vm_build._vmlink(
        builder=builder,
        target=where,
        tir_mod=vm_build._filter_tir(compiled),
        tir_pipeline="default",
        params=dict(mod.attrs.get("const_name_to_constant", {})) if mod.attrs else {},
    )


def bind_parameters(
    mod: tvm.IRModule, count: int, target: Mapping[str, object] | None = None
) -> Lifted:
    """Split an imported module into what depends on its parameters alone and the rest.

    Args:
        mod: a Relax module, such as ``import_stablehlo`` returns; it is not changed.
        count: how many of the first arguments of ``main`` are parameters.
        target: as for `compile_module`; weights are laid out for it.

    Returns:
        Both parts, each to be compiled.
    """
    where = Target(target or resolve_target("host"))
    with where, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.RewriteDataflowReshape()(_fold(mod))
        return lift_parameters(widen_contractions(mod, count, Machine.of(where).lanes), count)


def compilation_target(target: Mapping[str, object]) -> Target:
    """The target as kernels are compiled for it: sums of products may be fused."""
    return Target({"fast-math-contract": True, **target})


def fused_kernels(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """An imported module with the kernels that will be compiled, not scheduled yet."""
    with target, tvm.transform.PassContext(opt_level=3):
        return fuse(locals_to_lets(_fold(mod)))


def ready_to_lower(mod: tvm.IRModule) -> tvm.IRModule:
    """Scheduled kernels in the form that TVM lowers right and fast."""
    return lets_to_locals(narrow_floats_to_bits(mod))


def _fold(mod: tvm.IRModule) -> tvm.IRModule:
    """What depends on constants only, computed now: kernels still hold locals, so they compile."""
    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(),
        relax.transform.FoldConstant(),
    ]
    return tvm.transform.Sequential(passes)(mod)


def fuse(mod: tvm.IRModule) -> tvm.IRModule:
    """Make one kernel of each group of kernels that belong together."""
    passes = [
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(mod)


def _lower() -> tvm.transform.Pass:
    """The rest of TVM's CPU pipeline: what follows fusion."""
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
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )
