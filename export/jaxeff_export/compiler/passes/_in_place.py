"""Short kernels joined into one call, and kernels that write over the state that a bundle keeps.

Calling a kernel takes some tenths of a microsecond, for its arguments and for the array that it
writes: as long as a dense layer of a small network. Kernels that are written statement by statement
(integer layers) and that read each other's results become one function, whose results in between
are scratch memory. ``operator_by_operator`` keeps them apart, so that a profile shows each.

Sharp edge: their code is then there twice, so only small chains are joined.

``main`` is told in an attribute which arguments are state and which results replace them. Where a
new state is the old one with windows replaced (``dynamic_update_slice``), the windows alone are
written, whatever the size of the array. What else computes a state is copied over the old one at
the end of a call, so that the array a caller gave always holds the new state.

Sharp edge: a window is written in place only if nothing reads what it replaces afterwards; the
order is that after fusion, which puts a reader behind all that it was fused with.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from jaxeff_export.compiler.tir import bytes_of, called_kernel, clamped, renamed, statements_of

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
    rewritten: list[relax.Binding] = []
    run: list[relax.VarBinding] = []
    late: list[relax.Binding] = []  # views at the end of a run, which come behind its call

    def close(following: Sequence[relax.Binding]) -> None:
        # Views at the end of a run belong to what follows it.
        while run and _chained_kernel(mod, run[-1]) is None:
            following = [run.pop(), *following]
            late.insert(0, following[0])
        # A single kernel gains nothing from a copy of its code.
        if sum(_chained_kernel(mod, b) is not None for b in run) > 1:
            rewritten.extend(_joined(bb, mod, run, following, main))
        else:
            rewritten.extend(run)
        rewritten.extend(late)
        run.clear()
        late.clear()

    for i, binding in enumerate(bindings):
        kernel, viewed = _chained_kernel(mod, binding), _viewed(binding)
        of_run = any(viewed is not None and viewed.same_as(b.var) for b in run)
        # A view of an array that was there before the run doesn't end it.
        if run and viewed is not None and not of_run:
            rewritten.append(binding)
            continue
        # A view of a result in the run stays inside: the buffer is the same under another shape.
        if (kernel is not None or of_run) and _fits(mod, [*run, binding]):
            run.append(binding)
            continue
        close(bindings[i:])
        if kernel is not None:
            run.append(binding)
        else:
            rewritten.append(binding)
    close([])
    return rewritten


def _fits(mod: tvm.IRModule, run: Sequence[relax.VarBinding]) -> bool:
    kernels = [each for b in run if (each := _chained_kernel(mod, b)) is not None]
    # Long kernels gain nothing from a call less, and scratch memory adds to what a call needs.
    products = sum(int(kernel.attrs[CHAINS]) for kernel in kernels)
    scratch = sum(bytes_of(binding.var) for binding in run)
    return products <= _MOST_PRODUCTS and scratch <= _MOST_SCRATCH


def _chained_kernel(mod: tvm.IRModule, binding: relax.Binding) -> tirx.PrimFunc | None:
    """Returns the kernel that a binding calls, if it can be one of a chain."""
    name = called_kernel(binding.value)
    if name is None:
        return None
    kernel = mod[name]
    attrs = getattr(kernel, "attrs", None) or {}
    return kernel if CHAINS in attrs and isinstance(binding.var.ty, relax.TensorType) else None


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
    origin = _origins(run)
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
        kernel = _chained_kernel(mod, binding)
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
            buffer = tirx.decl_buffer(output.shape, output.dtype, f"y{len(outputs)}")
            outputs.append(buffer)
        else:
            size = math.prod(int(n) for n in output.shape)  # flat: of others TVM takes one axis
            buffer = tirx.decl_buffer([size], output.dtype, "between")
            scratch.append(tirx.AllocBuffer(buffer))
        buffers[binding.var] = replaced[output] = buffer
        body.append(_with_buffers(kernel.body, replaced))
        names.append(binding.value.args[0].name_hint)
    statements = [s for part in (*scratch, *body) for s in statements_of(part)]
    parameters = [*operands.values(), *outputs]
    attributes = dict(_chained_kernel(mod, run[0]).attrs)  # type: ignore[union-attr]
    attributes.pop("global_symbol", None)
    attributes.pop(IN_PLACE, None)
    kernel = tirx.PrimFunc(parameters, tirx.SeqStmt(statements)).with_attrs(attributes)
    stem = "_".join(names) if len(names) <= 3 else f"{names[0]}_to_{names[-1]}"
    name = bb.add_func(kernel, stem)
    bindings = _call_bindings(bb, name, list(operands), results)
    return bindings + [b for b in run if _viewed(b) is not None and b.var in read]


def _origins(run: Sequence[relax.VarBinding]) -> dict[relax.Var, relax.Var]:
    """Finds the array that owns each result's memory: views of views lead back to it."""
    origin: dict[relax.Var, relax.Var] = {}
    for binding in run:
        viewed = _viewed(binding)
        origin[binding.var] = binding.var if viewed is None else origin.get(viewed, viewed)
    return origin


def _call_bindings(
    bb: relax.BlockBuilder, name: Any, operands: list[Any], results: Sequence[relax.Var]
) -> list[relax.Binding]:
    """Binds the results of a call of a kernel, several of them by way of a tuple."""
    types = [v.ty for v in results]
    call = relax.call_tir(name, relax.Tuple(operands), types if len(types) > 1 else types[0])
    if len(results) == 1:
        return [relax.VarBinding(results[0], bb.normalize(call))]
    both = relax.DataflowVar("results", relax.TupleType(types))
    bindings = [relax.VarBinding(both, bb.normalize(call))]
    bindings += [
        relax.VarBinding(v, bb.normalize(relax.TupleGetItem(both, i)))
        for i, v in enumerate(results)
    ]
    return bindings


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

    mapped = tvm_ffi.structural_map(body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    return renamed(mapped, replaced)


WINDOW = "jaxeff.window"  # attribute of an update: its starts, -1 for those that a call tells
STATE = "jaxeff.state"  # attribute of ``main``: pairs of an argument, from the last, and a result
_OPAQUE = 8  # TVM's OpPatternKind.kOpaque
_SERIAL = tirx.ForKind.SERIAL


def with_state(mod: tvm.IRModule, pairs: Sequence[tuple[int, int]]) -> tvm.IRModule:
    """Declares which arguments of ``main`` are state.

    Args:
        mod: an imported module; it is not changed.
        pairs: per array the argument, counted from the last one (-1), and the result.
    """
    result = mod.clone()
    if pairs:
        # Attributes of functions are flat lists of numbers.
        flat = [number for pair in pairs for number in pair]
        result["main"] = mod["main"].with_attr(STATE, flat)
    return result


def updates_alone(mod: tvm.IRModule) -> tvm.IRModule:
    """Keeps updates of state apart from what fusion joins, so that they are still known after."""
    pairs = _pairs(mod["main"])
    if not pairs:
        return mod
    result, program = mod.clone(), _Program(mod, legalised=True)
    for pair in pairs:
        for binding in program.chain(*pair) or ():
            callee = binding.value.args[0]
            # Other calls of the same kernel stay apart as well, which only costs their fusion.
            result[callee] = mod[callee].with_attr("op_pattern", _OPAQUE)
    return result


def write_over_state(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes kernels of a scheduled module write new states over the old ones."""
    if not _pairs(mod["main"]):
        return mod
    mod = relax.transform.RewriteDataflowReshape()(mod)  # views share the memory of an array
    return _InPlace(mod).module()


class _Program:
    """Bindings of ``main``, and the arrays whose memory a variable shares.

    Where operators are `legalised`, reshapes are kernels, which will be views later.
    """

    def __init__(self, mod: tvm.IRModule, *, legalised: bool = False) -> None:
        self.mod, self.main, self._legalised = mod, mod["main"], legalised
        self.bindings = [b for block in self.main.body.blocks for b in block.bindings]
        self.place_of = {b.var: i for i, b in enumerate(self.bindings)}
        body = self.main.body.body
        # The result is a name of a tuple, or of the only array.
        while isinstance(body, relax.Var) and body in self.place_of:
            value = self.bindings[self.place_of[body]].value
            if not isinstance(value, relax.Var | relax.Tuple):
                break
            body = value
        self.alone = not isinstance(body, relax.Tuple)
        self.results = [body] if self.alone else list(body.fields)

    def owner(self, value: relax.Expr) -> relax.Expr:
        """Follows views and names back to the variable that owns the memory."""
        while isinstance(value, relax.Var) and value in self.place_of:
            value_of = self.bindings[self.place_of[value]].value
            if isinstance(value_of, relax.Var):
                value = value_of
            elif isinstance(value_of, relax.TupleGetItem):
                # Of a kernel's tuple each field is an array of its own.
                fields = self._fields(value_of.tuple_value)
                if fields is None:
                    return value
                value = fields[value_of.index]
            elif (viewed := self._viewed(value_of)) is not None:
                value = viewed
            else:
                return value
        return value

    def _viewed(self, value: relax.Expr) -> relax.Expr | None:
        """Returns the array that a reshape is a view of."""
        if not isinstance(value, tvm.ir.Call):
            return None
        if value.op == tvm.ir.Op.get("relax.reshape"):
            return value.args[0]
        kernel = called_kernel(value)
        if not self._legalised or kernel is None or len(value.args[1].fields) != 1:
            return None
        # The test of the pass that will make a view of it.
        is_view = relax.analysis.has_reshape_pattern(self.mod[kernel])
        return value.args[1].fields[0] if is_view else None

    def _fields(self, value: relax.Expr) -> list[relax.Expr] | None:
        while isinstance(value, relax.Var) and value in self.place_of:
            value = self.bindings[self.place_of[value]].value
        return list(value.fields) if isinstance(value, relax.Tuple) else None

    def chain(self, argument: relax.Var, result: relax.Expr) -> list[relax.VarBinding] | None:
        """Finds the updates that lead from a state to its result, the first one first."""
        updates: list[relax.VarBinding] = []
        at = self.owner(result)
        while not at.same_as(argument):
            if not isinstance(at, relax.Var) or at not in self.place_of:
                return None
            binding = self.bindings[self.place_of[at]]
            if _window(self.mod, binding.value) is None:
                return None
            updates.append(binding)
            # The first operand is what the window is replaced in.
            at = self.owner(binding.value.args[1].fields[0])
        return updates[::-1]

    def read_after(self, array: relax.Expr, place: int) -> bool:
        """Tells whether a binding behind a place, or a result, reads the memory of an array."""
        # A view reads nothing until it is read itself: so owners are compared, not names.
        later = [v for b in self.bindings[place + 1 :] for v in self._read(b.value)]
        return any(self.owner(v).same_as(array) for v in [*later, *self.results])

    def _read(self, value: relax.Expr) -> list[relax.Var]:
        """Lists what a binding reads; a name or a view reads nothing by itself."""
        named = isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem)
        if named or self._viewed(value) is not None:
            return []
        return list(relax.analysis.free_vars(value))


class _InPlace:
    """Rewrites ``main`` so that its results of state lie in the arguments."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._program = _Program(mod)
        self._builder = relax.BlockBuilder(mod)
        self._mod = mod
        self._before: list[relax.Binding] = []
        self._after: list[relax.Binding] = []
        self._changed: dict[relax.Var, relax.Binding] = {}

    def module(self) -> tvm.IRModule:
        program = self._program
        pairs = _pairs(program.main)
        states = [argument for argument, _ in pairs]
        results = list(program.results)
        numbers = [int(n) for n in program.main.attrs[STATE]][1::2]
        chains = {n: self._chain(*pair) for n, pair in zip(numbers, pairs, strict=True)}
        # Whatever returns the old content of a state takes it before anything is written.
        for i, result in enumerate(results):
            owner = program.owner(result)
            mine = i in chains and chains[i] is not None
            if not mine and any(owner.same_as(state) for state in states):
                results[i] = self._copy(result, self._before)
        for number, (argument, _) in zip(numbers, pairs, strict=True):
            chain = chains[number]
            # At the end all readers of the old state are done.
            if chain is None:
                results[number] = self._overwritten(argument, results[number])
                continue
            for binding in chain:
                self._changed[binding.var] = self._window_written(binding)
            results[number] = argument if not chain else results[number]
        middle = [self._changed.get(b.var, b) for b in program.bindings]
        module = self._builder.get()
        returned = relax.Var("results", program.main.ret_ty)
        value = results[0] if program.alone else relax.Tuple(results)
        bindings = [*self._before, *middle, *self._after, relax.VarBinding(returned, value)]
        module["main"] = _with_body(program.main, bindings, returned)
        return module

    def _chain(self, argument: relax.Var, result: relax.Expr) -> list[relax.VarBinding] | None:
        """Returns the updates that may be written in place; none at all for an unchanged state."""
        program = self._program
        chain = program.chain(argument, result)
        if chain is None:
            return None
        for binding in chain:
            old = program.owner(binding.value.args[1].fields[0])
            # A window that is part of the state itself would change while it is copied.
            new = [program.owner(v) for v in binding.value.args[1].fields[1:]]
            place = program.place_of[binding.var]
            if program.read_after(old, place) or any(v.same_as(old) for v in new):
                return None
        return chain

    def _window_written(self, binding: relax.VarBinding) -> relax.Binding:
        callee, operands = binding.value.args[:2]
        # Starts that the program says are in the attribute, the others are operands.
        starts = [int(n) for n in self._mod[callee].attrs[WINDOW]]
        kernel = _writes_window(operands.fields, starts)
        return self._call(kernel, "write_window", binding.var, list(operands.fields))

    def _overwritten(self, argument: relax.Var, result: relax.Expr) -> relax.Var:
        written = relax.DataflowVar("state", argument.ty)
        kernel = _writes_window([argument, result], [0] * len(argument.ty.shape))
        call = self._call(kernel, "keep", written, [argument, result])
        self._after.append(call)
        return written

    def _copy(self, value: relax.Expr, bindings: list[relax.Binding]) -> relax.Var:
        # Of the state itself: a view of it is made later than the copy.
        owner = self._program.owner(value)
        before = relax.DataflowVar("before", owner.ty)
        name = self._builder.add_func(_copies(owner), "copy_state")
        call = relax.call_tir(name, relax.Tuple([owner, owner]), owner.ty)
        bindings.append(relax.VarBinding(before, self._builder.normalize(call)))
        if value.same_as(owner):
            return before
        view = relax.DataflowVar("view", value.ty)
        shaped = self._builder.normalize(relax.op.reshape(before, value.ty.shape))
        bindings.append(relax.VarBinding(view, shaped))
        return view

    def _call(
        self, kernel: tirx.PrimFunc, name: str, var: relax.Var, operands: list[relax.Expr]
    ) -> relax.Binding:
        callee = self._builder.add_func(kernel, name)
        call = relax.op.call_tir_inplace(callee, relax.Tuple(operands), [0], var.ty)
        return relax.VarBinding(var, self._builder.normalize(call))


def _pairs(main: relax.Function) -> list[tuple[relax.Var, relax.Expr]]:
    """Returns the arguments that are state, each with the result that replaces it."""
    numbers = [int(n) for n in (main.attrs or {}).get(STATE, ())]
    if not numbers:
        return []
    # From the last argument: binding parameters changes how many come before.
    results = _Program(tvm.IRModule({"main": main})).results
    return [(main.params[a], results[r]) for a, r in zip(numbers[::2], numbers[1::2], strict=True)]


def _window(mod: tvm.IRModule, value: relax.Expr) -> Sequence[int] | None:
    """Returns the starts of a call that replaces a window of an array."""
    kernel = called_kernel(value)
    return None if kernel is None else (getattr(mod[kernel], "attrs", None) or {}).get(WINDOW)


def _with_body(
    main: relax.Function, bindings: Sequence[relax.Binding], result: relax.Var
) -> relax.Function:
    """Returns a function of other bindings, with the rest as it was."""
    body = relax.SeqExpr([relax.DataflowBlock(list(bindings))], result)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)


def _writes_window(operands: Sequence[relax.Expr], starts: Sequence[int]) -> tirx.PrimFunc:
    """Makes the kernel that writes a window into an array, both of any axes."""
    state, new, *runtime = [
        tirx.decl_buffer([int(n) for n in operand.ty.shape], operand.ty.dtype, f"x{i}")
        for i, operand in enumerate(operands)
    ]
    rest = iter(runtime)
    # StableHLO moves a window until it lies inside.
    limits = [int(n) - int(w) for n, w in zip(state.shape, new.shape, strict=True)]
    begin = [
        clamped(tirx.BufferLoad(next(rest), []), limit)
        if start < 0
        else tirx.const(min(start, limit), "int64")
        for start, limit in zip(starts, limits, strict=True)
    ]
    index = [tirx.Var(f"i{d}", "int64") for d in range(len(limits))]
    places = [b + i for b, i in zip(begin, index, strict=True)]
    body: tirx.Stmt = tirx.BufferStore(state, tirx.BufferLoad(new, index), places)
    return _opaque_kernel([state, new, *runtime], _looped(body, index, new))


def _copies(value: relax.Expr) -> tirx.PrimFunc:
    """Makes the kernel that copies an array, which it is given twice.

    TVM takes a kernel that reads one array and writes another of its size for a reshape. So both
    operands are read, until it finds that a loop of one turn has no second one.
    """
    shape = [int(n) for n in value.ty.shape]
    old, again, new = (tirx.decl_buffer(shape, value.ty.dtype, name) for name in "xzy")
    turn, *index = (tirx.Var(f"i{d}", "int64") for d in range(len(shape) + 1))
    loads = [tirx.BufferLoad(source, index) for source in (old, again)]
    copied = tirx.Select(turn < tirx.const(1, "int64"), *loads)
    body = _looped(tirx.BufferStore(new, copied, index), index, new)
    once = tirx.For(turn, tirx.const(0, "int64"), tirx.const(1, "int64"), _SERIAL, body)
    return _opaque_kernel([old, again, new], once)


def _looped(body: tirx.Stmt, index: Sequence[tirx.Var], like: tirx.Buffer) -> tirx.Stmt:
    for i, size in reversed(list(zip(index, like.shape, strict=True))):
        body = tirx.For(i, tirx.const(0, "int64"), tirx.const(int(size), "int64"), _SERIAL, body)
    return body


def _opaque_kernel(buffers: Sequence[tirx.Buffer], body: tirx.Stmt) -> tirx.PrimFunc:
    # No `noalias`: state and window may be parts of one array.
    attributes = {"tirx.is_scheduled": True, "op_pattern": _OPAQUE}
    return tirx.PrimFunc(list(buffers), body).with_attrs(attributes)
