"""Takes out of a function what it computes of its parameters alone.

A bundle binds the parameters, so the squares of weights, transposed and converted weights, and sums
over them need computing once, when the bundle is made, and not in every call.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container

import tvm
import tvm_ffi
from tvm import relax, tirx

PACKS = "jaxeff.packs"  # attribute of a kernel that lays weights out: it is worth its bytes
OUTSIDE = "jaxeff.outside"  # attribute of a kernel that calls C of a library, which no host has
BOUND = "jaxeff.bound"  # attribute of ``main``: how many of its first arguments are bound
GROWTH = 2  # how many times the bytes it is computed from a derived array may take


@dataclasses.dataclass(frozen=True)
class LiftedModule:
    """A module in two parts.

    Attributes:
        main: a module whose ``main`` takes the `operands`, and after them the data.
        derive: a module whose ``main`` takes the parameters and returns a tuple of derived arrays;
            None if there are none.
        operands: leading arguments of ``main``, as indices into parameters followed by derived
            arrays; unused parameters are left out.
    """

    main: tvm.IRModule
    derive: tvm.IRModule | None
    operands: tuple[int, ...]


def lift_parameters(mod: tvm.IRModule, count: int) -> LiftedModule:
    """Splits a module into what depends on its parameters alone and the rest.

    Derived arrays that are much larger than what they come from (a broadcast) stay where they are
    used, and so do views, which cost nothing.

    Args:
        mod: an imported module; it is not changed.
        count: number of leading arguments of ``main`` that are parameters.
    """
    main = mod["main"]
    parameters, inputs = list(main.params[:count]), list(main.params[count:])
    (block,) = main.body.blocks
    packing, outside = (_marked(mod, attribute) for attribute in (PACKS, OUTSIDE))
    sources = sources_of(main, count, outside)
    result = main.body.body
    bindings = _once(block.bindings, sources)
    kept, lifted, used = _partition(bindings, sources, result, packing)
    derived = [relax.Var(f"derived{i}", binding.var.ty) for i, binding in enumerate(lifted)]
    named = [relax.VarBinding(b.var, new) for b, new in zip(lifted, derived, strict=True)]
    available = [*parameters, *derived]
    operands = tuple(i for i, v in enumerate(available) if i >= count or v in used)
    body = relax.SeqExpr([relax.DataflowBlock([*named, *kept])], result)
    params = [*(available[i] for i in operands), *inputs]
    rest = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    # Later passes tell weights from data by this count.
    rest = rest.with_attr(BOUND, len(operands))
    derive = _derivation(bindings, parameters, lifted)
    return LiftedModule(
        _with_main(mod, rest), _with_main(mod, derive) if lifted else None, operands
    )


def _once(bindings: list[relax.VarBinding], sources: Sources) -> list[relax.VarBinding]:
    """Makes names of what is computed of the parameters again: uses of a weight pack it once."""
    first: dict[int, list[relax.VarBinding]] = {}
    names: dict[relax.Var, relax.Var] = {}
    found = []
    for binding in bindings:
        if sources[binding.var] is None:  # data takes part
            found.append(binding)
            continue
        rename = (relax.Var, lambda v: names.get(v, v))
        value = tvm_ffi.structural_map(binding.value, rename)
        alike = first.setdefault(tvm_ffi.structural_hash(value), [])
        same = next((b for b in alike if tvm_ffi.structural_equal(b.value, value)), None)
        if same is not None:
            names[binding.var] = same.var
            found.append(relax.VarBinding(binding.var, same.var))
            continue
        alike.append(relax.VarBinding(binding.var, value))
        found.append(alike[-1])
    return found


def _marked(mod: tvm.IRModule, attribute: str) -> set[tvm.ir.GlobalVar]:
    """Finds the kernels that have an attribute."""
    return {
        name for name, f in mod.functions_items() if attribute in (getattr(f, "attrs", None) or {})
    }


Sources = dict[relax.Var, frozenset[relax.Var] | None]


def sources_of(
    main: relax.Function, count: int, outside: Container[tvm.ir.GlobalVar] = ()
) -> Sources:
    """Finds the parameters that each variable is computed from; None where data takes part.

    Args:
        main: the function.
        count: number of its leading arguments that are parameters.
        outside: kernels that don't run here, whose results count as data.
    """
    sources: Sources = {parameter: frozenset([parameter]) for parameter in main.params[:count]}
    sources |= dict.fromkeys(main.params[count:])
    (block,) = main.body.blocks
    for binding in block.bindings:
        # Derived arrays are computed here, where what such a kernel calls isn't.
        away = _callee(binding.value) in outside
        found: frozenset[relax.Var] | None = None if away else frozenset()
        for var in relax.analysis.free_vars(binding.value):
            theirs = sources.get(var)  # a size that only the call tells is in nobody's sources
            found = None if found is None or theirs is None else found | theirs
        sources[binding.var] = found
    return sources


def _partition(
    bindings: list[relax.VarBinding],
    sources: Sources,
    result: relax.Var,
    packing: Container[tvm.ir.GlobalVar],
) -> tuple[list[relax.VarBinding], list[relax.VarBinding], set[relax.Var]]:
    """Splits bindings into those that stay and derived arrays; also returns the variables used."""
    used = {result}
    kept, lifted = [], []
    # Backwards, so that every use of a value is known before its binding is reached: only derived
    # arrays that the remaining program reads are lifted, not the steps that lead to them.
    for binding in reversed(bindings):
        if binding.var not in used:
            continue
        # Packed weights are lifted whatever their size: packing costs more than reading them.
        packs = _callee(binding.value) in packing and sources.get(binding.var)
        if not _is_view(binding.value) and (packs or stays_small(binding.var, sources)):
            lifted.append(binding)
        else:
            kept.append(binding)
            used.update(relax.analysis.free_vars(binding.value))
    return kept[::-1], lifted[::-1], used


def _callee(value: relax.Expr) -> tvm.ir.GlobalVar | None:
    """Returns the kernel that a binding calls."""
    if isinstance(value, tvm.ir.Call) and value.op == tvm.ir.Op.get("relax.call_tir"):
        return value.args[0]
    return None


def stays_small(value: relax.Expr, sources: Sources) -> bool:
    """Tells whether an array depends on parameters alone and is not much larger than they are."""
    parameters = sources.get(value)
    if not parameters or not isinstance(value.ty, relax.TensorType):
        return False
    if len(parameters) == 1 and _widens(value, *parameters):
        return False
    size, *theirs = (_bytes(var) for var in (value, *parameters))
    # Bytes of the bundle against work in every call: an array that grows more is recomputed.
    return size is not None and None not in theirs and size <= GROWTH * sum(filter(None, theirs))


def _widens(value: relax.Var, parameter: relax.Var) -> bool:
    """Tells whether an array holds a parameter of narrow floats, or a part of it, in more bits."""
    wide, narrow = (tvm.DataType(v.ty.dtype) for v in (value, parameter))
    if "float" not in str(narrow) or narrow.itemsize >= min(wide.itemsize, 4):
        return False
    # The bundle keeps the bits that it was given, and few rows read half as much.
    size, most = _bytes(value), _bytes(parameter)
    return None not in (size, most) and size // wide.itemsize <= most // narrow.itemsize


def _is_view(value: relax.Expr) -> bool:
    if isinstance(value, relax.Var):
        return True
    return isinstance(value, tvm.ir.Call) and value.op == tvm.ir.Op.get("relax.reshape")


def _bytes(var: relax.Var) -> int | None:
    """Returns the bytes of a tensor, or None where they are not known before the call."""
    shape = var.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(n, tirx.IntImm) for n in shape):
        return None
    return math.prod(int(n) for n in shape) * tvm.DataType(var.ty.dtype).itemsize


def _derivation(
    bindings: list[relax.VarBinding], parameters: list[relax.Var], lifted: list[relax.VarBinding]
) -> relax.Function:
    """Makes a function from parameters to derived arrays."""
    used = {binding.var for binding in lifted}
    needed = []
    for binding in reversed(bindings):
        if binding.var in used:
            needed.append(binding)
            used.update(relax.analysis.free_vars(binding.value))
    arrays = relax.Tuple([binding.var for binding in lifted])
    kind = relax.TupleType([binding.var.ty for binding in lifted])
    result = relax.Var("derived", kind)
    block = relax.DataflowBlock([*needed[::-1], relax.VarBinding(result, arrays)])
    return relax.Function(parameters, relax.SeqExpr([block], result), kind).with_attr(
        "global_symbol", "main"
    )


def _with_main(mod: tvm.IRModule, function: relax.Function) -> tvm.IRModule:
    result = mod.clone()
    result["main"] = function
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(result)
