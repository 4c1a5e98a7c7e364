"""Rebuilds scan, while, cond and remat around bodies that run under a rule.

They are built anew through `jax.lax` and `jax.checkpoint` rather than bound again: the primitives'
parameters change between JAX versions, and a body's values may be pytrees where the traced function
had arrays. A carry whose structure the body changes (it becomes random) is promoted until it
doesn't.

A scan's body gets a key per iteration, a while loop's too; remat and cond pass the key through, for
every site inside has a name of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxeff.core import Literal
from jaxeff.program.ir import Layer, Node, Program, Scan, While, fixed_point
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import UNNAMED

Run = Callable[[Program, Any, Sequence[Any]], list[Any]]
Promote = Callable[[Any, Any], Any]


class _Evaluation(NamedTuple):
    """What one control-flow primitive is rebuilt from."""

    node: Node
    programs: tuple[Program, ...]
    key: Any
    values: list[Any]
    body: Run
    promote: Promote


def run(
    layer: Layer, key: Any, values: Sequence[Any], body: Run, promote: Promote | None
) -> Sequence[Any]:
    """Evaluates a control-flow layer; `body(program, key, values)` runs one of its programs."""
    (node,) = layer.nodes
    arguments = _in_order(layer, values)
    builders = {
        prim.p.scan_p: _scan,
        prim.p.while_p: _while,
        prim.p.cond_p: _cond,
        prim.p.remat_p: _remat,
    }
    build = builders[node.primitive]
    outputs = build(_Evaluation(node, layer.programs, key, arguments, body, promote or _keep))
    by_value = dict(zip(node.outputs, outputs, strict=True))
    return [by_value[v] for v in layer.outputs]


def _keep(value: Any, like: Any) -> Any:
    del like
    return value


def _in_order(layer: Layer, values: Sequence[Any]) -> list[Any]:
    env = dict(zip(layer.inputs, values, strict=True))
    return [a.val if isinstance(a, Literal) else env[a] for a in layer.nodes[0].inputs]


def _promote_all(values: Sequence[Any], like: Sequence[Any], promote: Promote) -> list[Any]:
    return [promote(v, w) for v, w in zip(values, like, strict=True)]


def _fixed_point(
    carry: Sequence[Any], step: Callable[[list[Any]], list[Any]], promote: Promote
) -> list[Any]:
    """Promotes a carry until one step leaves its structure as it is."""
    # Promotion only ever turns an array into a random value and never back, so this ends
    # after at most one step per leaf of the carry. `eval_shape` traces without computing.
    return fixed_point(
        lambda state: (jax.eval_shape(step, state), None), carry, promote, jax.tree.structure
    )[0]


def _scan(at: _Evaluation) -> list[Any]:
    node, (program,), key, values, body, promote = at
    loop = Scan.of(node, values)
    # Independent noise in each iteration: one key would repeat the same draw.
    keys = None if key is None else jax.random.split(key, loop.length)

    def step(state: list[Any], slices: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
        row, row_key = slices
        after, row_results = loop.split(body(program, row_key, loop.inputs(state, row)))
        return _promote_all(after, state, promote), row_results

    def first_step(state: list[Any]) -> list[Any]:
        # The structure is the same in every iteration, so the first one settles it.
        row = jax.tree.map(lambda x: x[0], loop.xs)
        row_key = None if keys is None else keys[0]
        return loop.split(body(program, row_key, loop.inputs(state, row)))[0]

    # With no iterations there is no row to trace with, and the carry leaves as it came.
    carry = _fixed_point(loop.carry, first_step, promote) if loop.length else loop.carry
    rows = (loop.xs, keys)
    carry, ys = jax.lax.scan(step, carry, rows, loop.length, loop.reverse, loop.unroll)
    return [*carry, *ys]


def _while(at: _Evaluation) -> list[Any]:
    node, (test, program), key, values, body, promote = at
    loop = While.of(node, values)

    # The number of iterations is unknown, so keys can't be split in advance: the count is
    # folded in.
    def step(state: list[Any], count: Any = 0) -> list[Any]:
        step_key = None if key is None else jax.random.fold_in(key, count)
        return body(program, step_key, loop.inputs(state))

    carry = _fixed_point(loop.carry, step, promote)

    def cond_fun(state: tuple[list[Any], Any]) -> Any:
        # Converted: a value that a rule put in an array's place says why it can't decide.
        return jax.lax.convert_element_type(body(test, key, loop.test_inputs(state[0]))[0], bool)

    def body_fun(state: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
        inner, count = state
        return _promote_all(step(inner, count), inner, promote), count + 1

    # Without a key the loop carries no counter: the compiled loop is that of the original.
    if key is None:
        return jax.lax.while_loop(
            lambda s: cond_fun((s, 0)), lambda s: _promote_all(step(s), s, promote), carry
        )
    return jax.lax.while_loop(cond_fun, body_fun, (carry, jnp.int32(0)))[0]


def _cond(at: _Evaluation) -> list[Any]:
    _, programs, key, (index, *operands), body, promote = at

    def branch(program: Program) -> Callable[[list[Any]], list[Any]]:
        return lambda inner: body(program, key, inner)

    branches = [branch(p) for p in programs]
    # `lax.switch` needs branches of one structure: every branch is promoted to the join of
    # all, random where any of them is.
    shapes = [jax.eval_shape(b, operands) for b in branches]
    like = shapes[0]
    for other in shapes[1:]:
        like = jax.eval_shape(lambda a, b=other: _promote_all(a, b, promote), like)

    def unified(fn: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        return lambda inner: _promote_all(fn(inner), like, promote)

    with jax.named_scope(UNNAMED):  # switch clamps its index
        return jax.lax.switch(index, [unified(b) for b in branches], operands)


def _remat(at: _Evaluation) -> list[Any]:
    node, (program,), key, values, body, _ = at
    # The key is an argument and not closed over: the recomputation in the backward pass
    # must draw the same noise as the forward pass.
    checkpointed = jax.checkpoint(
        lambda inner_key, inner: body(program, inner_key, inner),
        prevent_cse=node.params["prevent_cse"],
        policy=node.params["policy"],
    )
    return checkpointed(key, values)
