"""Loops and branches: one TIR function each, which holds the kernels of its bodies.

A body is emitted like any function, fused and scheduled for any machine. The kernels that it calls
then follow each other, with buffers in place of tensors. A loop's state lies in buffers that live
as long as the loop runs, so a million iterations take no more stack than one.

The last kernels of a loop's body often compute the next state from the old, element by element, or
change a few elements of it, as a ``dynamic_update_slice`` of a scan's outputs does. Where that is
safe the result is written over the old state: it saves a copy, which for a scatter is most of the
work.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from jaxeff_export.compiler import ANY_MACHINE, Machine, fuse, schedule_cpu
from jaxeff_export.compiler.passes import OUTSIDE
from jaxeff_export.compiler.tir import (
    called_kernel,
    clamped,
    lets_to_locals,
    renamed,
    statements_of,
)
from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloGraph, HloNode, HloValue, TensorType
from jaxeff_export.importer._loops import CodeBuilder, View
from jaxeff_export.importer._scalar_rules import HELD_AS_FLOAT32


@dataclasses.dataclass
class KernelStep:
    """One kernel of a body: its statement, and the buffers it takes and fills."""

    statement: tirx.Stmt
    reads: tuple[tirx.Buffer, ...]
    writes: tuple[tirx.Buffer, ...]


def update_in_place(
    steps: Sequence[KernelStep], results: Sequence[tirx.Buffer], state: Sequence[tirx.Buffer | None]
) -> tuple[list[KernelStep], list[bool]]:
    """Makes steps write the next state over the old where no result changes.

    `state` is for each result the buffer that it replaces, None where it replaces none. Returns the
    steps, in an order in which they may run, and for each result whether it has been written over
    its state.
    """
    # Steps whose results no other step reads run last, after all that read the old state. They
    # keep their order, so an overwritten state can only be missed by a later one of them.
    read = {buffer for step in steps for buffer in step.reads}
    last = [not read.intersection(step.writes) for step in steps]  # these may run at the end
    renamed: dict[tirx.Buffer, tirx.Buffer] = {}
    for result, old in zip(results, state, strict=True):
        # A state that is itself returned must survive; a result returned twice has two places.
        if old is None or old in results or results.count(result) > 1:
            continue
        at = next((k for k, step in enumerate(steps) if result in step.writes), None)
        if at is None or not last[at] or not old.ty.shape:  # copying a scalar costs nothing
            continue
        read_later = any(last[k] and old in steps[k].reads for k in range(at + 1, len(steps)))
        if not read_later and _may_alias(steps[at].statement, old, result):
            renamed[result] = old
    moved = [step for step, is_last in zip(steps, last, strict=True) if not is_last]
    for step, is_last in zip(steps, last, strict=True):
        if is_last:
            moved.append(dataclasses.replace(step, statement=_renamed(step.statement, renamed)))
    return moved, [result in renamed for result in results]


def _may_alias(statement: tirx.Stmt, source: tirx.Buffer, target: tirx.Buffer) -> bool:
    """Tells whether an element of ``source`` is read only where ``target``'s is written."""
    # Every load of the source has to be accounted for: one elsewhere could come after a write.
    fine = 0
    leaves = [block for block in _blocks(statement) if len(_blocks(block.body)) == 0]
    for block in leaves:
        loads = _loads(block.body, source)
        stores = _stores(block.body, target)
        # Iterations of a spatial block touch different elements, so equal indices are enough.
        # A reduction reads its inputs again after it has stored a partial result.
        spatial = all(v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars)
        overwritten = _reads_after_writing(block.body, source, target)
        if stores and spatial and block.init is None and not overwritten:
            fine += sum(all(_same(load, store) for store in stores) for load in loads)
    inside = sum(len(_stores(block.body, target)) for block in leaves)
    stores = _stores(statement, target)
    if inside < len(stores):  # a kernel without blocks, as those that copy and then change
        fine += sum(
            isinstance(s.value, tvm.ir.TensorLoad)
            and s.value.source.same_as(source)
            and _same(s.value, s)
            for s in stores
        )
    return fine == len(_loads(statement, source))


def _reads_after_writing(body: tirx.Stmt, source: tirx.Buffer, target: tirx.Buffer) -> bool:
    """Tells whether a block of several stores reads one buffer after it has written another."""
    statements = statements_of(body)
    first = next((i for i, s in enumerate(statements) if _stores(s, target)), len(statements))
    return any(_loads(statement, source) for statement in statements[first + 1 :])


def _same(load: tvm.ir.TensorLoad, store: tirx.BufferStore) -> bool:
    pairs = zip(load.indices, store.indices, strict=True)
    return all(tvm_ffi.structural_equal(a, b) for a, b in pairs)


def _blocks(tree: object) -> list[s_tir.SBlock]:
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(tree, (s_tir.SBlock, blocks.append))
    return blocks


def _loads(tree: object, buffer: tirx.Buffer) -> list[tvm.ir.TensorLoad]:
    loads: list[tvm.ir.TensorLoad] = []
    tvm_ffi.structural_walk(tree, (tvm.ir.TensorLoad, loads.append))
    return [load for load in loads if load.source.same_as(buffer)]


def _stores(tree: object, buffer: tirx.Buffer) -> list[tirx.BufferStore]:
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(tree, (tirx.BufferStore, stores.append))
    return [store for store in stores if store.buffer.same_as(buffer)]


def _renamed(statement: tirx.Stmt, renamed: dict[tirx.Buffer, tirx.Buffer]) -> tirx.Stmt:
    """Redirects writes to other buffers, and drops copies of a buffer to itself that result."""

    def clean(store: tirx.BufferStore) -> tirx.Stmt:
        value = store.value
        if (
            isinstance(value, tvm.ir.TensorLoad)
            and value.source.same_as(store.buffer)
            and _same(value, store)
        ):
            return tirx.Evaluate(tirx.const(0, "int32"))
        return store

    if not renamed:
        return statement
    other = tvm_ffi.structural_map(statement, (tirx.Var, lambda v: renamed.get(v, v)))
    return tvm_ffi.structural_map(other, (tirx.BufferStore, clean))


class KernelBuilder:
    """Builds a TIR function.

    Attributes:
        constants: tensors known at import time, which become parameters.
        spilled: temporaries that become further results: TVM would make float32 of them.
        outside: what the kernels call in C of a library.
    """

    def __init__(self) -> None:
        self.constants: dict[tvm.ir.GenericConst, tirx.Buffer] = {}
        self.spilled: list[tirx.Buffer] = []
        self.outside: list[Any] = []
        self._allocated: list[tirx.Buffer] = []

    def allocate(self, kind: TensorType, name: str) -> tirx.Buffer:
        """Returns a new buffer that lives as long as the function runs."""
        buffer = declare_tensor(kind, name)
        if kind.dtype in HELD_AS_FLOAT32:
            self.spilled.append(buffer)
        else:
            self.adopt([buffer])
        return buffer

    def adopt(self, buffers: Sequence[tirx.Buffer]) -> None:
        """Takes over buffers that an inlined function allocates."""
        self._allocated += list(buffers)

    def inline(
        self, module: tvm.IRModule, inputs: Sequence[tirx.Buffer]
    ) -> tuple[list[KernelStep], list[tirx.Buffer]]:
        """Returns the kernels of a body and the buffers that hold its results.

        The module is one that ``Emitter.emit_body`` returned; `inputs` has one buffer for each
        parameter of its ``main``. A result that is an input has the input's buffer.
        """
        return _Body(self, _scheduled(module)).inline(inputs)

    def function(
        self, inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer], body: tirx.Stmt
    ) -> tirx.PrimFunc:
        """Returns the finished function of inputs, constants, outputs and spilled buffers."""
        root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=self._allocated)
        attributes: dict[str, Any] = {"s_tir": True, "tirx.noalias": True}
        attributes["tirx.is_scheduled"] = True
        if self.outside:
            attributes[OUTSIDE] = json.dumps(self.outside)
        return tirx.PrimFunc(
            [*inputs, *self.constants.values(), *outputs, *self.spilled],
            s_tir.SBlockRealize([], True, root),
        ).with_attr(attributes)


def declare_tensor(kind: TensorType, name: str) -> tirx.Buffer:
    """Returns a buffer for a tensor of type ``kind``."""
    return tirx.decl_buffer([tirx.const(n, "int64") for n in kind.shape], kind.dtype, name)


def copy_statement(
    source: tirx.Buffer, target: tirx.Buffer, offsets: Sequence[tirx.Expr] | None = None
) -> tirx.Stmt:
    """Copies one buffer into all of another, or into its part from ``offsets`` on."""
    code = CodeBuilder()
    part = View(code.write, target)
    if offsets is not None:
        part = part.shifted(*offsets)
    code.copy(View(code.write, source), part, source.ty.shape)
    return code.finish()


def _scheduled(module: tvm.IRModule) -> tvm.IRModule:
    # Bodies are scheduled here, for any machine where nobody has said for which one.
    target = tvm.target.Target.current(allow_none=True)
    machine = ANY_MACHINE if target is None else Machine.of(target)
    fused = fuse(relax.transform.LegalizeOps()(module))
    return lets_to_locals(schedule_cpu(fused, machine))


class _Body:
    """Walks the bindings of one Relax function."""

    def __init__(self, kernel: KernelBuilder, module: tvm.IRModule):
        self._kernel = kernel
        self._module = module
        self._values: dict[relax.Var, tirx.Buffer | list[tirx.Buffer]] = {}
        self._steps: list[KernelStep] = []

    def inline(self, inputs: Sequence[tirx.Buffer]) -> tuple[list[KernelStep], list[tirx.Buffer]]:
        main = self._module["main"]
        self._values.update(zip(main.params, inputs, strict=True))
        for block in main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._binding(binding)
        results = self._value(main.body.body)
        assert isinstance(results, list)
        return self._steps, results

    def _binding(self, binding: relax.Binding) -> tirx.Buffer | list[tirx.Buffer]:
        value = binding.value
        if called_kernel(value) is not None:
            return self._call(value, binding.var)
        return self._value(value)

    def _value(self, expr: relax.Expr) -> tirx.Buffer | list[tirx.Buffer]:
        if isinstance(expr, relax.Tuple):
            return [self._value(field) for field in expr.fields]  # type: ignore[misc]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]  # type: ignore[index]
        if isinstance(expr, tvm.ir.GenericConst):
            return self._constant(expr)
        return self._values[expr]

    def _constant(self, expr: tvm.ir.GenericConst) -> tirx.Buffer:
        constants = self._kernel.constants
        if expr not in constants:
            constants[expr] = declare_tensor(TensorType.of(expr.ty), f"constant{len(constants)}")
        return constants[expr]

    def _call(self, call: relax.Call, var: relax.Var) -> tirx.Buffer | list[tirx.Buffer]:
        name, arguments = call.args
        tuple_type = isinstance(var.ty, relax.TupleType)
        types = var.ty.fields if tuple_type else [var.ty]
        results = [self._kernel.allocate(TensorType.of(ty), name.name_hint) for ty in types]
        # Every call gets variables and buffers of its own: TIR allows one definition of each.
        function = s_tir.renew_defs(self._module[name])
        self._kernel.outside += json.loads(str(function.attrs.get(OUTSIDE, "[]")))
        taken = [self._value(a) for a in arguments.fields]
        place = dict(zip(function.params, [*taken, *results], strict=True))
        body = renamed(function.body, place)
        if isinstance(body, s_tir.SBlockRealize):
            self._kernel.adopt(body.block.alloc_buffers)
            body = body.block.body
        else:
            # Kernels that are written statement by statement have no block around them. They index
            # arrays as if they were flat, or hand their addresses to C: in an array that lies
            # within a kernel TVM would leave room for the elements of the first row alone, or for
            # the first of all. An address of the whole array, which nobody takes, keeps it whole.
            arrays = [a for a in (*taken, *results) if isinstance(a, tirx.Var)]
            body = tirx.SeqStmt([*(tirx.Evaluate(a.access_ptr("rw")) for a in arrays), body])
        self._steps.append(KernelStep(body, tuple(taken), tuple(results)))  # type: ignore[arg-type]
        return results if tuple_type else results[0]


@rule("importer.loop")
def _loop(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    cond, body = node.bodies
    count = len(body.arguments)
    inits, captured = node.operands[:count], node.operands[count:]
    kernel = KernelBuilder()
    starts = [declare_tensor(v.type, f"init{i}") for i, v in enumerate(inits)]
    outside = [declare_tensor(v.type, f"captured{i}") for i, v in enumerate(captured)]
    state = [declare_tensor(v.type, f"state{i}") for i, v in enumerate(inits)]

    # TIR's While tests an expression, but the condition takes kernels: they run at the head of a
    # turn and leave a flag, which also guards the rest of the turn.
    proceed = kernel.allocate(TensorType((), "bool"), "proceed")
    test, (proceeds,) = kernel.inline(e.emit_body(cond, captured, cond.outputs), [*state, *outside])
    advance = _sequence(_advance(e, kernel, body, captured, state, outside))
    going = tirx.BufferLoad(proceed, [])
    turn = [
        *(step.statement for step in test),
        copy_statement(proceeds, proceed),
        tirx.IfThenElse(going, advance, None),
    ]
    loop = tirx.While(going, _sequence(turn))
    # Inputs are only read: the state is a copy, and the flag lets the first turn test itself.
    begin = [copy_statement(start, carried) for start, carried in zip(starts, state, strict=True)]
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
            before.append(copy_statement(old, new))
        if not is_done:
            replaced.append(copy_statement(new, carried))
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
    # Updates are copied in after all kernels: one that copies this very value would see it changed.
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
    return copy_statement(new, carried, begin)


@rule("importer.branch")
def _branch(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    index, *captured = node.operands
    kernel = KernelBuilder()
    chosen = declare_tensor(index.type, "index")
    outside = [declare_tensor(v.type, f"captured{i}") for i, v in enumerate(captured)]
    outputs = [declare_tensor(r.type, f"result{i}") for i, r in enumerate(node.results)]
    branches = []
    for graph in node.bodies:
        body = e.emit_body(graph, captured, graph.outputs)
        steps, results = kernel.inline(body, outside)
        kernels = [step.statement for step in steps]
        branches.append(_sequence([*kernels, *map(copy_statement, results, outputs)]))
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
