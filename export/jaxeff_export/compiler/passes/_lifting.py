"""Where what depends on parameters alone is computed: once outside of calls, or where it is read.

A bundle binds the parameters, so the squares of weights, transposed and converted weights, and sums
over them need computing once, when the bundle is made, and not in every call.

A parameter of int8 codes becomes float32 weights in the call: float32 weights would take four times
its bytes in the bundle. Decoding by a kernel of its own needs memory for all
weights of a layer, which many microcontrollers lack. Where a layer reads each weight only a few
times, as a dense one of few rows does, its kernel decodes them within the product, with the same
bits. A convolution reads its few weights often, so they are decoded before.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence, Set

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.s_tir.schedule import Schedule

from jaxeff_export.compiler import tir
from jaxeff_export.compiler.tir import called_kernel, contains, count

PACKS = "jaxeff.packs"  # attribute of a kernel that lays weights out: it is worth its bytes
OUTSIDE = "jaxeff.outside"
"""Attribute of a kernel that calls C of a library, which no host has: the functions, as JSON."""
BOUND = "jaxeff.bound"  # attribute of ``main``: how many of its first arguments are bound
CallsOfKernels = tuple[tuple[str, tuple[int, ...]], ...]  # and what each reads
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

    def parameters_of(
        self, calls: Iterable[tuple[str, Sequence[int]]], count: int
    ) -> CallsOfKernels:
        """Names the parameters that calls of kernels read, whatever was made of them before.

        Args:
            calls: kernels, and the operands that each reads.
            count: number of parameters.
        """
        theirs: list[Sequence[int]] = [(i,) for i in range(count)]
        if self.derive is not None:
            main = self.derive["main"]
            sources, numbers = sources_of(main, count), {v: i for i, v in enumerate(main.params)}
            values = {b.var: b.value for block in main.body.blocks for b in block.bindings}
            arrays = values.get(main.body.body, main.body.body).fields
            theirs += [sorted(numbers[v] for v in sources.get(array) or ()) for array in arrays]
        return tuple(
            (kernel, tuple(n for place in read for n in theirs[self.operands[place]]))
            for kernel, read in calls
        )


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
    renamed = []
    for binding in bindings:
        if sources[binding.var] is None:  # data takes part
            renamed.append(binding)
            continue
        rename = (relax.Var, lambda v: names.get(v, v))
        value = tvm_ffi.structural_map(binding.value, rename)
        alike = first.setdefault(tvm_ffi.structural_hash(value), [])
        same = next((b for b in alike if tvm_ffi.structural_equal(b.value, value)), None)
        if same is not None:
            names[binding.var] = same.var
            renamed.append(relax.VarBinding(binding.var, same.var))
            continue
        alike.append(relax.VarBinding(binding.var, value))
        renamed.append(alike[-1])
    return renamed


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
    # Where all was computed before there are no blocks.
    for binding in (b for block in main.body.blocks for b in block.bindings):
        # Derived arrays are computed here, where what such a kernel calls isn't.
        away = called_kernel(binding.value) in outside
        parameters: frozenset[relax.Var] | None = None if away else frozenset()
        for var in relax.analysis.free_vars(binding.value):
            theirs = sources.get(var)  # a size that only the call tells is in nobody's sources
            parameters = None if parameters is None or theirs is None else parameters | theirs
        sources[binding.var] = parameters
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
        packs = called_kernel(binding.value) in packing and sources.get(binding.var)
        if not _is_view(binding.value) and (packs or stays_small(binding.var, sources)):
            lifted.append(binding)
        else:
            kept.append(binding)
            used.update(relax.analysis.free_vars(binding.value))
    return kept[::-1], lifted[::-1], used


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


FEW = 8
"""Times that a layer may read a weight, and decode it, in a call."""
_BROADCAST, _OPAQUE = 1, 8  # TVM's OpPatternKind: element by element; nothing is known
_LETS = 8  # intermediate values of a decoded weight; each use of one is written out


def decode_where_read(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes layers decode the codes that they read.

    Args:
        mod: fused kernels, not scheduled yet; a ``main`` without bound parameters stays as it is.

    Returns:
        A module that computes the same, with kernels of two in place of some pairs.
    """
    main = mod["main"]
    bound = int((main.attrs or {}).get(BOUND, 0))
    if not bound or not main.body.blocks:
        return mod
    (block,) = main.body.blocks
    made_by = {b.var: b.value for b in block.bindings}
    # Decoding inside a kernel is for one reader: others would decode the same weights again.
    uses = Counter(v for b in block.bindings for v in relax.analysis.free_vars(b.value))
    # The result of ``main`` is a use too, though no binding has it.
    uses.update([main.body.body])
    sources, parameters = sources_of(main, bound), set(main.params[:bound])
    builder = relax.BlockBuilder(mod)
    bindings = []
    for binding in block.bindings:
        call = binding.value
        if called_kernel(call) is not None:
            read = [
                argument
                for i, argument in enumerate(call.args[1])
                if uses[argument] == 1
                and _decodes(mod, made_by.get(argument), argument, sources, parameters)
                and 0 < _reads(mod[call.args[0]], i) <= FEW
            ]
            if read:
                call = _together(builder, mod, call, {v: made_by[v] for v in read})
        bindings.append(relax.VarBinding(binding.var, call))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], main.body.body)
    result = builder.get()
    result["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return relax.transform.DeadCodeElimination()(result)


def _decodes(
    mod: tvm.IRModule,
    made_by: relax.Expr | None,
    array: relax.Var,
    sources: Sources,
    parameters: Set[relax.Var],
) -> bool:
    """Tells whether an array is computed elementwise from parameters that take fewer bytes."""
    if made_by is None or called_kernel(made_by) is None:
        return False
    if not all(argument in parameters for argument in made_by.args[1]):
        return False
    # Small derived arrays are computed once, with the bundle (`lift_parameters`).
    if not sources.get(array) or stays_small(array, sources):
        return False
    function = mod[made_by.args[0]]
    blocks = _blocks(function)
    simple = len(blocks) == 1 and count(blocks[0].body, tirx.Let) <= _LETS
    if not simple:
        return False
    # A kernel of narrow floats isn't fused, as TVM has no buffers of them; its result is none.
    return int(function.attrs.get("op_pattern", _OPAQUE)) <= _BROADCAST or _converts(blocks[0])


def _converts(block: s_tir.SBlock) -> bool:
    """Tells whether a block makes float32 numbers of those at the same place of its argument."""
    if [str(w.source.dtype) for w in block.writes] != ["float32"] or len(block.reads) != 1:
        return False
    iterators = [v.var for v in block.iter_vars]
    regions = [block.writes[0].region, block.reads[0].region]
    return all(
        len(region) == len(iterators)
        and all(r.min.same_as(v) for r, v in zip(region, iterators, strict=True))
        for region in regions
    )


def _reads(function: tirx.PrimFunc, position: int) -> int:
    """Counts how often a kernel's contractions read an element of an argument; 0 if none does."""
    buffer = function.params[position]
    times = 0
    for block in _blocks(function):
        if not tir.is_contraction(block) or not any(r.source.same_as(buffer) for r in block.reads):
            continue
        at = [r.region for r in block.reads if r.source.same_as(buffer)]
        # Iterators that do not move the read repeat it: their extents multiply the decoding work.
        elsewhere = [
            v for v in block.iter_vars
            if not any(contains([r.min for r in region], tirx.Var, v.var.same_as) for region in at)
        ]  # fmt: skip
        extents = [v.dom.extent for v in elsewhere]
        # A size that only the call tells may be large: count it as too often.
        if not all(isinstance(n, tirx.IntImm) for n in extents):
            return FEW + 1
        times = max(times, math.prod(int(n) for n in extents))
    return times


def _blocks(function: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """Lists the blocks of a kernel of plain loops; none of any other."""
    root = tir.root_of(function)
    blocks = []
    for statement in tir.statements_of(root.body) if root else []:
        while isinstance(statement, tirx.For):
            statement = statement.body
        if not isinstance(statement, s_tir.SBlockRealize):
            return []
        blocks.append(statement.block)
    return blocks


def _together(
    builder: relax.BlockBuilder,
    mod: tvm.IRModule,
    call: tvm.ir.Call,
    decoded: dict[relax.Var, tvm.ir.Call],
) -> tvm.ir.Call:
    """Calls one kernel that does the work of several, whose results are its arguments."""
    calls = [*decoded.items(), (relax.Var("made", call.ty), call)]
    operands = [a for _, c in calls for a in c.args[1] if a not in decoded]
    arguments = list(dict.fromkeys(operands))
    kernel = _inlined(mod, calls, arguments)
    name = builder.add_func(kernel, f"decoded_{call.args[0].name_hint}")
    return _called(name, relax.Tuple(arguments), call)


def _called(name: tvm.ir.GlobalVar, arguments: relax.Tuple, like: tvm.ir.Call) -> tvm.ir.Call:
    """Calls a kernel whose results are those of another call."""
    several = isinstance(like.ty, relax.TupleType)
    return relax.call_tir(name, arguments, list(like.ty.fields) if several else like.ty)


def _inlined(
    mod: tvm.IRModule,
    calls: Sequence[tuple[relax.Var, tvm.ir.Call]],
    arguments: Sequence[relax.Var],
) -> tirx.PrimFunc:
    """Joins the kernels of several calls into one, with all but the last inlined into the last."""
    names = {v: relax.Var(v.name, v.ty) for v in arguments}
    names |= {v: relax.DataflowVar(v.name, v.ty) for v, _ in calls}
    bindings = []
    for var, call in calls:
        fields = relax.Tuple([names[a] for a in call.args[1]])
        bindings.append(relax.VarBinding(names[var], _called(call.args[0], fields, call)))
    last, kind = bindings[-1].var, calls[-1][1].ty
    result = relax.Var("result", kind)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(result, last)])
    # The form that FuseTIR turns into a kernel: a primitive function around several calls.
    group = relax.Function(
        [names[a] for a in arguments], relax.SeqExpr([block], result), kind
    ).with_attr("Primitive", True)
    inner = {f: mod[f] for f in {call.args[0] for _, call in calls}}
    for _, call in calls[:-1]:  # a term is written twice, and a local of it would have two places
        inner[call.args[0]] = tir.without_lets(mod[call.args[0]])
    outer = relax.BlockBuilder(tvm.IRModule(inner))
    gvar = outer.add_func(group, "group")
    outer_args = [relax.Var(f"a{i}", a.ty) for i, a in enumerate(arguments)]
    with outer.function("main", outer_args):
        with outer.dataflow():
            out = outer.emit_output(gvar(*outer_args))
        outer.emit_func_output(out)
    fused = relax.transform.FuseTIR()(outer.get())
    (kernel,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
    # FuseTIR leaves the decoded weights in a buffer; inlining puts them into the product.
    sch = Schedule(tvm.IRModule({"main": kernel}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    for block in blocks[: len(calls) - 1]:
        sch.compute_inline(block)
    return sch.mod["main"]
