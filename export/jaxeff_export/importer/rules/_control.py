"""Loops and branches: one TIR function each, which holds the kernels of its bodies.

A loop's state lies in buffers that live as long as the loop runs, so a million iterations take no
more stack than one. A ``dynamic_update_slice`` of the state (the outputs of a scan) is written in
place.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from jaxeff_export.compiler.tir import clamped
from jaxeff_export.importer.emission import (
    Emitter,
    KernelBuilder,
    copy,
    declare,
    rule,
    update_in_place,
)
from jaxeff_export.importer.reading import HloGraph, HloNode, HloValue, TensorType


@rule("importer.loop")
def _loop(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    cond, body = node.bodies
    count = len(body.arguments)
    inits, captured = node.operands[:count], node.operands[count:]
    kernel = KernelBuilder()
    starts = [declare(v.type, f"init{i}") for i, v in enumerate(inits)]
    outside = [declare(v.type, f"captured{i}") for i, v in enumerate(captured)]
    state = [declare(v.type, f"state{i}") for i, v in enumerate(inits)]

    # TIR's While tests an expression, but the condition takes kernels: they run at the head of a
    # turn and leave a flag, which also guards the rest of the turn.
    proceed = kernel.allocate(TensorType((), "bool"), "proceed")
    test, (found,) = kernel.inline(e.emit_body(cond, captured, cond.outputs), [*state, *outside])
    advance = _sequence(_advance(e, kernel, body, captured, state, outside))
    going = tirx.BufferLoad(proceed, [])
    turn = [
        *(step.statement for step in test),
        copy(found, proceed),
        tirx.IfThenElse(going, advance, None),
    ]
    loop = tirx.While(going, _sequence(turn))
    # Inputs are only read: the state is a copy, and the flag lets the first turn test itself.
    begin = [copy(start, carried) for start, carried in zip(starts, state, strict=True)]
    begin.append(tirx.BufferStore(proceed, tirx.const(True, "bool"), []))
    function = kernel.function([*starts, *outside], state, _sequence([*begin, loop]))
    return _call(e, function, "loop", [*inits, *captured], kernel, [v.type for v in inits])


def _advance(
    e: Emitter,
    kernel: KernelBuilder,
    body: HloGraph,
    captured: Sequence[HloValue],
    state: Sequence[tirx.Buffer],
    outside: Sequence[tirx.Buffer],
) -> list[tirx.Stmt]:
    """Writes one iteration: computes everything from the old state, then replaces the state."""
    # Of a value that is updated in place only the update and its position are computed.
    updates = [_update_in_place(body, i) for i in range(len(state))]
    wanted: list[HloValue] = []
    replaces: list[tirx.Buffer | None] = []
    for output, update, carried in zip(body.outputs, updates, state, strict=True):
        wanted += [output] if update is None else update.operands[1:]
        replaces += [carried] if update is None else [None] * (len(update.operands) - 1)
    steps, results = kernel.inline(e.emit_body(body, captured, wanted), [*state, *outside])
    steps, done = update_in_place(steps, results, replaces)
    before: list[tirx.Stmt] = []
    written: list[tirx.Stmt] = []
    replaced: list[tirx.Stmt] = []
    remaining = iter(zip(results, done, strict=True))
    for carried, update in zip(state, updates, strict=True):
        if update is not None:
            new, *at = [next(remaining)[0] for _ in update.operands[1:]]
            written.append(_write(new, at, carried))
            continue
        new, is_done = next(remaining)
        if new in state:  # it may be replaced before it is read
            old, new = new, kernel.allocate(TensorType.of(new.ty), "old")
            before.append(copy(old, new))
        if not is_done:
            replaced.append(copy(new, carried))
    # Everything is computed before any state changes: kernels read the old state throughout.
    return [*before, *(step.statement for step in steps), *written, *replaced]


def _update_in_place(body: HloGraph, i: int) -> HloNode | None:
    """Finds the update of carried value ``i``, if it may be written over the old value.

    The kernels of an iteration read the old value before it is written. Only values that the body
    returns unchanged would be read later.
    """
    argument, output = body.arguments[i], body.outputs[i]
    node = output.node
    if node is None or node.name != "stablehlo.dynamic_update_slice" or node not in body.nodes:
        return None
    if node.operands[0] is not argument or node.operands[1].type.size == 0:
        return None
    # Updates are copied in after all kernels: one that copies this very value would see it
    # changed.
    handed_on = [o for v in body.outputs if v.node for o in v.node.operands[1:]]
    if argument in (*body.outputs, *handed_on) or body.outputs.count(output) > 1:
        return None
    return None if any(output in other.operands for other in body.nodes) else node


def _write(new: tirx.Buffer, at: Sequence[tirx.Buffer], carried: tirx.Buffer) -> tirx.Stmt:
    begin = [
        # StableHLO moves the update until it lies inside.
        clamped(tirx.BufferLoad(start, []), int(n) - int(w))
        for start, n, w in zip(at, carried.ty.shape, new.ty.shape, strict=True)
    ]
    return copy(new, carried, begin)


@rule("importer.branch")
def _branch(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    index, *captured = node.operands
    kernel = KernelBuilder()
    chosen = declare(index.type, "index")
    outside = [declare(v.type, f"captured{i}") for i, v in enumerate(captured)]
    outputs = [declare(r.type, f"result{i}") for i, r in enumerate(node.results)]
    branches = []
    for graph in node.bodies:
        body = e.emit_body(graph, captured, graph.outputs)
        steps, results = kernel.inline(body, outside)
        kernels = [step.statement for step in steps]
        branches.append(_sequence([*kernels, *map(copy, results, outputs)]))
    which = tirx.BufferLoad(chosen, [])
    # The last branch takes every index that no other one has.
    chain = branches[-1]
    for i, branch in reversed(list(enumerate(branches[:-1]))):
        hit = tirx.Not(which) if index.type.dtype == "bool" else which == i
        chain = tirx.IfThenElse(hit, branch, chain)
    function = kernel.function([chosen, *outside], outputs, chain)
    return _call(e, function, "branch", node.operands, kernel, [r.type for r in node.results])


def _call(
    e: Emitter,
    function: tirx.PrimFunc,
    name: str,
    operands: Sequence[HloValue],
    kernel: KernelBuilder,
    kinds: Sequence[TensorType],
) -> Sequence[relax.Expr]:
    arguments = [*(e.tensor(v) for v in operands), *kernel.constants]
    types = [relax.TensorType(kind.shape, kind.dtype) for kind in kinds]
    types += [relax.TensorType(b.ty.shape, str(b.ty.dtype)) for b in kernel.spilled]
    callee = e.bb.add_func(function, name)
    result = e.bb.emit(relax.call_tir(callee, arguments, types if len(types) > 1 else types[0]))
    return e.unpack(result, len(kinds))


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
