"""Loops whose steps don't wait for each other: they are taken all at once, and their results added.

A scan that only adds to its carry, `c + f(w, x_t)`, or only stacks what its steps make, computes a
sum or rows of one function at many inputs. As a function of all rows its steps are positions, whose
noise is followed (`_plan`); as a loop, they would be taken as independent. A carry that is read in
another way (a recurrent state) stays a loop, unless it is certain: a count, a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxeff.core import Literal
from jaxeff.core import primitives as p
from jaxeff.program import Layer, Program, plain_rule, run_layers
from jaxeff.program.ir import Scan, Value

_SUMS = {p.add_p, p.add_jaxvals_p}


@dataclass(frozen=True)
class _Steps:
    """A scan whose steps can be taken at once.

    Attributes:
        added: Whether steps only add to a carry, for each; the others are certain.
    """

    added: tuple[bool, ...]


def steps_apart(program: Program, random: Collection[Value]) -> Callable[..., Any] | None:
    """Makes a program's function with the steps of loops taken at once where that is possible.

    Args:
        program: A program.
        random: Inputs of it that are random.

    Returns:
        A function of the same arguments; None if there is no such loop.
    """
    found = _found(program, set(random))
    if not found:
        return None

    def outputs_of(layer: Layer, inputs: Sequence[Any]) -> Sequence[Any]:
        if layer not in found:
            return plain_rule(layer, None, *inputs)
        (node,) = layer.nodes
        env = dict(zip(layer.inputs, inputs, strict=True))
        values = [a.val if isinstance(a, Literal) else env[a] for a in node.inputs]
        made = dict(zip(node.outputs, _at_once(layer, found[layer], values), strict=True))
        return [made[v] for v in layer.outputs]

    def apart(*args: Any, **kwargs: Any) -> Any:
        outputs = run_layers(program, jax.tree.leaves((args, kwargs)), outputs_of)
        return jax.tree.unflatten(program.out_tree, outputs)

    return apart


def _found(program: Program, random: set[Value]) -> Mapping[Layer, _Steps]:
    read = set[Value]().union(*(layer.inputs for layer in program.layers))
    found = {}
    for layer in program.layers:
        noisy = random.intersection(layer.inputs)
        if not noisy:
            continue
        random.update(layer.outputs)
        steps = _steps(layer, noisy)
        # Rows that nobody adds up stay in a loop, which holds one of them at a time.
        if steps is not None and (any(steps.added) or read.intersection(layer.outputs)):
            found[layer] = steps
    return found


def _steps(layer: Layer, random: Collection[Value]) -> _Steps | None:
    """Reads a layer; None for another one than a scan of steps that don't wait."""
    if layer.kind != "control flow" or layer.nodes[0].primitive is not p.scan_p:
        return None
    loop, (body,) = Scan.of(layer.nodes[0], layer.nodes[0].inputs), layer.programs
    # Rows of their own share nothing.
    if not loop.length or not any(_is_in(v, random) for v in loop.consts):
        return None
    first, last = len(loop.consts), len(loop.consts) + len(loop.carry)
    before, after = body.inputs[first:last], body.outputs[: len(loop.carry)]
    added = tuple(_only_adds(body, v, end) for v, end in zip(before, after, strict=True))
    outer = [*loop.consts, *loop.carry, *loop.xs]
    noisy = {
        inner
        for i, (inner, given) in enumerate(zip(body.inputs, outer, strict=True))
        if _is_in(given, random) and not (first <= i < last and added[i - first])
    }
    for part in body.layers:
        if not noisy.isdisjoint(part.inputs):
            noisy.update(part.outputs)
    waits = any(
        not adds and (v in noisy or end in noisy)
        for adds, v, end in zip(added, before, after, strict=True)
    )
    return None if waits else _Steps(added)


def _is_in(given: Any, values: Collection[Value]) -> bool:
    return isinstance(given, Value) and given in values


def _only_adds(body: Program, start: Value, end: Any) -> bool:
    """Returns whether a carry is read by one chain of additions alone, which ends in itself."""
    nodes = [node for layer in body.layers for node in layer.nodes]
    value = start
    while value is not end:
        readers = [node for node in nodes if value in node.values]
        if value in body.outputs or len(readers) != 1:
            return False
        (node,) = readers
        if node.primitive not in _SUMS or sum(a is value for a in node.inputs) != 1:
            return False
        if node.outputs[0].aval.shape != start.aval.shape:
            return False
        value = node.outputs[0]
    return value is not start and list(body.outputs).count(value) == 1


def _at_once(layer: Layer, steps: _Steps, values: Sequence[Any]) -> list[Any]:
    """Evaluates a scan as a function of all of its rows."""
    loop, (body,) = Scan.of(layer.nodes[0], values), layer.programs

    def of_row(certain: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        left = iter(certain)
        # What a step adds to zero is what it adds.
        carry = [
            jnp.zeros_like(v) if adds else next(left)
            for adds, v in zip(steps.added, loop.carry, strict=True)
        ]
        outputs = run_layers(
            body, loop.inputs(carry, row), lambda one, v: plain_rule(one, None, *v)
        )
        return loop.split(outputs)

    def chosen(carry: Sequence[Any], adds: bool) -> list[Any]:
        return [v for v, is_sum in zip(carry, steps.added, strict=True) if is_sum is adds]

    def step(certain: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        return chosen(of_row(certain, row)[0], adds=False), certain

    first = chosen(loop.carry, adds=False)
    end, states = lax.scan(step, first, loop.xs, loop.length, loop.reverse)
    made, rows = jax.vmap(of_row, axis_size=loop.length)(states, loop.xs)
    sums = iter(chosen(made, adds=True))
    ends = iter(end)
    carry = [
        v + next(sums).sum(0) if adds else next(ends)
        for adds, v in zip(steps.added, loop.carry, strict=True)
    ]
    return [*carry, *rows]
