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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features

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
from jaxeff_export.compiler.schedules import Machine, schedule_cpu
from jaxeff_export.compiler.tir import (
    lets_to_locals,
    locals_to_lets,
    map_kernels,
    renamed,
    unpair_products,
)
from jaxeff_export.targets import OPERATOR_BY_OPERATOR, resolve_target

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
            mod = map_kernels(mod, tuned)
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
        together = apart if _same_kernels(joined, mod) else _lower()(joined)
        together[OPERATOR_BY_OPERATOR] = apart["main"].with_attr(
            "global_symbol", OPERATOR_BY_OPERATOR
        )
        return _link(together, where, 0 if once else MOST_CALLS)


def _same_kernels(one: tvm.IRModule, other: tvm.IRModule) -> bool:
    return len(one.functions) == len(other.functions)


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
    where = Target(target or resolve_target("host"))
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
    where = Target({"fast-math-contract": True, **target})
    attributes = [str(name) for name in where.attrs.get("mattr", [])]
    said = [name[1:] for name in attributes]
    if NARROW in said or not llvm_cpu_has_features("avx512f", where):
        return where
    return Target({"fast-math-contract": True, **target, "mattr": [*attributes, f"-{NARROW}"]})


def fused_kernels(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Fuses an imported module into the kernels that will be compiled, not scheduled yet."""
    with target, tvm.transform.PassContext(opt_level=3):
        # Lets can be inlined and vectorised by schedules, which blocks with local buffers cannot.
        return decode_where_read(fuse(locals_to_lets(updates_alone(_fold(mod)))))


def ready_to_lower(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrites scheduled kernels into the form that TVM lowers correctly and fast."""
    # Bit casts move into the branches of choices while these are still expressions, then long
    # chains become locals: TVM's later passes take exponential time in chains of lets.
    return lets_to_locals(narrow_floats_to_bits(unpair_products(mod)))


def _fold(mod: tvm.IRModule) -> tvm.IRModule:
    """Computes what depends on constants only; kernels still hold locals, so they compile fast."""
    dispatch = [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]
    fold = [relax.transform.LegalizeOps(), relax.transform.FoldConstant()]
    return tvm.transform.Sequential([*dispatch, *fold])(mod)


def fuse(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes one kernel of each group of kernels that belong together."""
    passes = [
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(mod)


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
        result[name] = renamed(function, trusted) if trusted else function
    return result


def _is_fixed(function: relax.Function) -> bool:
    """Tells whether the sizes of all arguments are known numbers."""
    shapes = [getattr(v.ty, "shape", None) for v in function.params]
    return all(
        isinstance(shape, relax.ShapeExpr) and all(isinstance(n, tirx.IntImm) for n in shape)
        for shape in shapes
    )
