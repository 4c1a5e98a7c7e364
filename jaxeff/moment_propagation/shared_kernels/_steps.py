"""Loops whose steps read the same random parameters, and add up what these share.

`h + f(w, h)` moves h in the same direction at every step, and so do the errors that w's noise
makes: their standard deviations add up, and not their variances, which is what a pass that takes w
anew at every step adds. So does a state that a gate keeps, where the gate reads random parameters
and the state: an LSTM's `f * c + i * g`, a GRU's `z * h + (1 - z) * n`. A constant that forgets
(`a * h + f(w, h)`) bounds the difference, and a step that doesn't read h (`h + f(w, x)`) adds what
inputs of both signs cancel: neither is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.shared_kernels.layouts import BATCH, CHANNEL, FIRST_PLACE
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Node, Scan, Value, While, axes
from jaxeff.program.ir import primitives as prim

# Twice the same layer: .80 of the true variance; six times .44, twenty times .12.
_FEW_STEPS = 2
_SUMS = {p.add_p, p.add_jaxvals_p, p.sub_p}
_SCALED = {p.mul_p, p.div_p, p.neg_p}
_ODD = {p.tanh_p, p.erf_p, p.sin_p, p.atan_p, p.asinh_p, p.sinh_p, p.reduce_sum_p}
_SAME = axes.MOVES | prim.IN_PLACE | {p.convert_element_type_p}


def adds_up(layer: Layer, random: Collection[Value]) -> bool:
    """Returns whether the steps of a loop add what the same random parameters make of its carry.

    Args:
        layer: A layer.
        random: Random values, those that the layer reads among them.
    """
    loop = _loop(layer)
    if loop is None or (isinstance(loop, Scan) and loop.length <= _FEW_STEPS):
        return False
    program = layer.programs[-1]
    known = program.inputs[: len(loop.consts)]
    tied = [v for v, given in zip(known, loop.consts, strict=True) if given in random]
    before = program.inputs[len(loop.consts) :]
    ends = program.outputs[: len(loop.carry)]
    of_parameters = _made_of(program, tied)
    of_states = _made_of(program, before[: len(loop.carry)])
    return any(
        isinstance(end, Value)
        and (
            _is_sum(program, start, end, of_parameters)
            or _is_gated(program, start, end, of_parameters & of_states)
        )
        for start, end in zip(before, ends, strict=False)
    )


def stacked_steps(layer: Layer, random: Collection[Value]) -> dict[Value, Axes]:
    """Returns the layouts of a scan's rows whose errors don't cancel in a mean over the steps.

    Steps are the positions; which of the other axes are what isn't known, and doesn't matter.
    """
    loop = _loop(layer)
    if not isinstance(loop, Scan) or not any(v in random for v in loop.consts):
        return {}
    if _is_odd(layer.programs[-1], len(loop.consts)):
        return {}
    rows = layer.nodes[0].outputs[len(loop.carry) :]
    tail = (BATCH, *(CHANNEL,) * 8)
    return {v: (FIRST_PLACE, *tail[: len(v.aval.shape) - 1]) for v in rows if v in layer.outputs}


def _loop(layer: Layer) -> Scan[object] | While[object] | None:
    if layer.kind != "control flow":
        return None
    (node,) = layer.nodes
    if node.primitive is p.scan_p:
        return Scan.of(node, node.inputs)
    return While.of(node, node.inputs) if node.primitive is p.while_p else None


def _is_sum(program: Program, start: Value, end: Value, of_parameters: set[Value]) -> bool:
    """Returns whether a carry is itself and something that parameters make of it."""
    made_by = {v: node for node in _nodes(program) for v in node.outputs}
    of_carry, terms = _made_of(program, [start]), _terms(end, made_by)
    added = [v for v in terms if v is not start]
    if start not in terms or any(_scales(v, start, made_by) for v in added):
        return False
    return any(v in of_carry and v in of_parameters for v in added)


def _is_gated(program: Program, start: Value, end: Value, gates: set[Value]) -> bool:
    """Returns whether a gate decides how much of a carry the next step gets."""
    made_by = {v: node for node in _nodes(program) for v in node.outputs}
    for value in _terms(end, made_by):
        node = made_by.get(value)
        if node is None or node.primitive is not p.mul_p or len(node.values) != 2:
            continue
        pairs = (node.values, node.values[::-1])
        if any(gate in gates and _scales(kept, start, made_by) for gate, kept in pairs):
            return True
    return False


def _terms(end: Value, made_by: Mapping[Value, Node]) -> list[Value]:
    """Returns the terms of the sum that a value is."""
    waiting, terms = [end], list[Value]()
    while waiting:
        value = waiting.pop()
        node = made_by.get(value)
        if node is not None and node.primitive in _SUMS | _SAME:
            waiting += node.values
        else:
            terms.append(value)
    return terms


def _scales(value: Value, start: Value, made_by: Mapping[Value, Node]) -> bool:
    """Returns whether a value is a multiple of another, perhaps with something added."""
    if value is start:
        return True
    node = made_by.get(value)
    if node is None or node.primitive not in _SUMS | _SAME | _SCALED:
        return False
    return any(_scales(v, start, made_by) for v in node.values)


def _is_odd(program: Program, consts: int) -> bool:
    """Returns whether a step changes its sign with its state and its row, but for biases."""
    moved = _made_of(program, program.inputs[consts:])
    for node in _nodes(program):
        read = sum(v in moved for v in node.values)
        linear = node.primitive in _SCALED | prim.LINEAR and read < 2
        if read and not linear and node.primitive not in _ODD | _SAME | _SUMS:
            return False
    return True


def _nodes(program: Program) -> Iterable[Node]:
    return (node for layer in program.layers for node in layer.nodes)


def _made_of(program: Program, values: Sequence[Value]) -> set[Value]:
    """Returns what a program makes of some values, and these."""
    found = set(values)
    for node in _nodes(program):
        if not found.isdisjoint(node.values):
            found.update(node.outputs)
    return found
