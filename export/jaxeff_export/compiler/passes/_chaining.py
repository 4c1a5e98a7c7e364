"""Joins kernels that follow each other: a small network becomes a single call.

Calling a kernel takes some tenths of a microsecond, for its arguments and for the array that it
writes: as long as a dense layer of a small network. Kernels that are written statement by statement
(integer layers) and that read each other's results become one function, whose results in between
are scratch memory. ``operator_by_operator`` keeps them apart, so that a profile shows each.

Sharp edge: their code is then there twice, so only small chains are joined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from jaxeff_export.compiler.tir import bytes_of, renamed, statements_of

CHAINS = "jaxeff.chains"  # attribute of a kernel of flat loops: how much it multiplies
IN_PLACE = "jaxeff.in_place"
"""Attribute of a kernel: positions of the arguments that its result may be written over."""
_MOST_PRODUCTS = 20_000_000
"""From here on calls are a hundredth of the time, and code counts."""
_MOST_SCRATCH = 1 << 20


def chained(mod: tvm.IRModule) -> tvm.IRModule:
    """Joins kernels that follow each other in ``main`` into single calls."""
    main = mod["main"]
    if not all(isinstance(block, relax.DataflowBlock) for block in main.body.blocks):
        return mod.clone()
    bb = relax.BlockBuilder(mod)
    blocks = [
        relax.DataflowBlock(_rewritten(bb, mod, list(block.bindings), main))
        for block in main.body.blocks
    ]
    result = bb.get()
    body = relax.SeqExpr(blocks, main.body.body)
    result["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return result


def _rewritten(
    bb: relax.BlockBuilder, mod: tvm.IRModule, bindings: list[relax.Binding], main: relax.Function
) -> list[relax.Binding]:
    """Replaces every run of kernels in a list of bindings by one call."""
    made: list[relax.Binding] = []
    run: list[relax.VarBinding] = []

    def close(following: Sequence[relax.Binding]) -> None:
        # Views at the end of a run belong to what follows it.
        while run and _kernel(mod, run[-1]) is None:
            following = [run.pop(), *following]
            late.insert(0, following[0])
        # A single kernel gains nothing from a copy of its code.
        if sum(_kernel(mod, b) is not None for b in run) > 1:
            made.extend(_joined(bb, mod, run, following, main))
        else:
            made.extend(run)
        made.extend(late)
        run.clear()
        late.clear()

    late: list[relax.Binding] = []
    for i, binding in enumerate(bindings):
        kernel, viewed = _kernel(mod, binding), _viewed(binding)
        own = any(viewed is not None and viewed.same_as(b.var) for b in run)
        if run and viewed is not None and not own:  # of what is there before the run
            made.append(binding)
            continue
        # A view of a result in the run stays inside: the buffer is the same under another shape.
        if (kernel is not None or own) and _fits(mod, [*run, binding]):
            run.append(binding)
            continue
        close(bindings[i:])
        if kernel is not None:
            run.append(binding)
        else:
            made.append(binding)
    close([])
    return made


def _fits(mod: tvm.IRModule, run: Sequence[relax.VarBinding]) -> bool:
    kernels = [found for b in run if (found := _kernel(mod, b)) is not None]
    # Long kernels gain nothing from a call less, and scratch memory adds to what a call needs.
    products = sum(int(kernel.attrs[CHAINS]) for kernel in kernels)
    scratch = sum(bytes_of(binding.var) for binding in run)
    return products <= _MOST_PRODUCTS and scratch <= _MOST_SCRATCH


def _kernel(mod: tvm.IRModule, binding: relax.Binding) -> tirx.PrimFunc | None:
    """Returns the kernel that a binding calls, if it can be one of a chain."""
    value = binding.value
    if not isinstance(value, tvm.ir.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return None
    found = mod[value.args[0]]
    attrs = getattr(found, "attrs", None) or {}
    return found if CHAINS in attrs and isinstance(binding.var.ty, relax.TensorType) else None


def _viewed(binding: relax.Binding) -> relax.Var | None:
    """Returns the array that a reshape is a view of."""
    value = binding.value
    if isinstance(value, tvm.ir.Call) and value.op == tvm.ir.Op.get("relax.reshape"):
        return value.args[0] if isinstance(value.args[0], relax.Var) else None
    return None


def _joined(
    bb: relax.BlockBuilder,
    mod: tvm.IRModule,
    run: Sequence[relax.VarBinding],
    following: Sequence[relax.Binding],
    main: relax.Function,
) -> list[relax.Binding]:
    """Makes one call of a run, and views of its results that others read."""
    within = {binding.var for binding in run}
    read = {v for b in following for v in relax.analysis.free_vars(b.value)} | {main.body.body}
    # Views of views lead back to the array that owns the memory.
    origin: dict[relax.Var, relax.Var] = {}
    for binding in run:
        viewed = _viewed(binding)
        origin[binding.var] = binding.var if viewed is None else origin.get(viewed, viewed)
    # Only arrays read after the run are results; all others become scratch memory.
    results = [b.var for b in run if b.var in {origin[v] for v in within & read}]
    results = [v for v in results if v in within]
    operands: dict[Any, tirx.Var] = {}
    buffers: dict[relax.Var, tirx.Var] = {}
    outputs: list[tirx.Var] = []
    scratch: list[tirx.Stmt] = []
    body: list[tirx.Stmt] = []
    names: list[str] = []
    for binding in run:
        kernel = _kernel(mod, binding)
        if kernel is None:
            continue
        kernel = s_tir.renew_defs(kernel)  # one kernel may be called twice
        *inputs, output = kernel.params
        replaced = {}
        for argument, parameter in zip(binding.value.args[1].fields, inputs, strict=True):
            source = origin.get(argument, argument)
            # Made in this run: the reader gets the writer's buffer directly.
            if source in buffers:
                replaced[parameter] = buffers[source]
            else:
                replaced[parameter] = operands.setdefault(argument, parameter)
        if binding.var in results:
            made = tirx.decl_buffer(output.shape, output.dtype, f"y{len(outputs)}")
            outputs.append(made)
        else:
            size = math.prod(int(n) for n in output.shape)  # flat: of others TVM takes one axis
            made = tirx.decl_buffer([size], output.dtype, "between")
            scratch.append(tirx.AllocBuffer(made))
        buffers[binding.var] = replaced[output] = made
        body.append(_with_buffers(kernel.body, replaced))
        names.append(binding.value.args[0].name_hint)
    statements = [s for part in (*scratch, *body) for s in statements_of(part)]
    parameters = [*operands.values(), *outputs]
    attributes = dict(_kernel(mod, run[0]).attrs)  # type: ignore[union-attr]
    attributes.pop("global_symbol", None)
    attributes.pop(IN_PLACE, None)
    kernel = tirx.PrimFunc(parameters, tirx.SeqStmt(statements)).with_attrs(attributes)
    stem = "_".join(names) if len(names) <= 3 else f"{names[0]}_to_{names[-1]}"
    name = bb.add_func(kernel, stem)
    types = [v.ty for v in results]
    call = relax.call_tir(name, relax.Tuple(list(operands)), types if len(types) > 1 else types[0])
    if len(results) == 1:
        bindings: list[relax.Binding] = [relax.VarBinding(results[0], bb.normalize(call))]
    else:
        both = relax.DataflowVar("results", relax.TupleType(types))
        bindings = [relax.VarBinding(both, bb.normalize(call))]
        bindings += [
            relax.VarBinding(v, bb.normalize(relax.TupleGetItem(both, i)))
            for i, v in enumerate(results)
        ]
    return bindings + [b for b in run if _viewed(b) is not None and b.var in read]


def _with_buffers(body: tirx.Stmt, replaced: Mapping[tirx.Var, tirx.Var]) -> tirx.Stmt:
    """Rewrites a kernel's statements to other buffers of any shape, which are indexed flat."""

    def place(buffer: tirx.Var, indices: Sequence[Any]) -> list[Any]:
        # Kernels of flat loops index their arrays by the last axis alone.
        return [tirx.const(0, "int64")] * (len(buffer.shape) - 1) + [indices[-1]]

    def load(node: Any) -> Any:
        buffer = replaced.get(node.source)
        return node if buffer is None else tirx.BufferLoad(buffer, place(buffer, node.indices))

    def store(node: Any) -> Any:
        buffer = replaced.get(node.buffer)
        if buffer is None:
            return node
        return tirx.BufferStore(buffer, node.value, place(buffer, node.indices))

    made = tvm_ffi.structural_map(body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    return renamed(made, replaced)
