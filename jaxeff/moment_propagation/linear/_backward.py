"""The pass backward: slopes of all seeds by every value, node by node, from results to inputs.

A node hands the slopes by its results on to its operands by its own derivative (`jax.vjp`), for all
seeds in one `vmap`. What needs thought are operands that examples share, at a node that makes
examples of them: their slopes have to stay apart by example.

    rows are kept     a sum, a concatenation: the slopes' rows stay as they are
    by its kind       (`rules`) what is repeated is summed over, but for the examples' axis; of a
                      product or a look-up the gradient of each example's rows, or the variance
                      instead if nobody else reads the array (`_slopes`)
    scan              the body's own pass backward, step by step
    anything else     one example after the other, with the slopes of all others set to zero

Layers that are equal but for their names call one function, as in `once_for_equal`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation import _values
from jaxeff.moment_propagation.linear import _flow as flows
from jaxeff.moment_propagation.linear import _products as products
from jaxeff.moment_propagation.linear._flow import ExampleFlow, value_of
from jaxeff.moment_propagation.linear._slopes import (
    RowSlopes,
    SharedSlopes,
    Slopes,
    SpreadSum,
    add_slopes,
    only_row,
    to_shared,
)
from jaxeff.moment_propagation.rules import Kind, kind_of
from jaxeff.program import Layer, Program, evaluate, plain_rule
from jaxeff.program.ir import Node, Scan, Value, form_of

SlopesByValue = dict[Value, Slopes]

_LOOP = (
    "Give the loop a fixed number of steps (lax.scan, or lax.fori_loop between constants), or draw "
    "samples with jaxeff.bayes.predict."
)
_CALL = (
    "Give it one (jax.custom_vjp), take method='diagonal' with a rule of your own as "
    "moments(f, rules={primitive: rule}), or draw samples with jaxeff.bayes.predict."
)


@dataclass(frozen=True)
class _BackStep:
    """A node on the way back, in its layer.

    Attributes:
        layer: The layer that the node belongs to.
        node: The node.
        operands: The values of its operands.
        here: The slopes by its results, None for a result without any.
    """

    layer: Layer
    node: Node
    operands: Sequence[Any]
    here: Sequence[Slopes | None]

    def pull(self, wanted: Sequence[int]) -> Callable[[Sequence[Array]], list[Array]]:
        """Returns the slopes by some operands as a function of those by all results that have any.

        These are the results of floating-point numbers.
        """
        inexact = [i for i, v in enumerate(self.node.outputs) if flows.is_inexact(v)]

        def results(*moved: Any) -> list[Any]:
            values = list(self.operands)
            for i, value in zip(wanted, moved, strict=True):
                values[i] = value
            out = _compat.bind(self.node.eqn, *values)
            return [out[i] for i in inexact]

        _, back = jax.vjp(results, *(self.operands[i] for i in wanted))
        return lambda g: list(back(list(g)))


@dataclass
class Backward:
    """One pass backward.

    Attributes:
        flow: What is known of the program's values.
        spread: How slopes are squared and summed.
        seeds: The number of seeds.
        shared: Functions of layers by form, which equal ones call.
    """

    flow: ExampleFlow
    spread: SpreadSum
    seeds: int
    shared: dict[Any, Any] = field(default_factory=dict)

    def program(
        self,
        program: Program,
        env: Mapping[Any, Any],
        variances: Mapping[Value, Array],
        reached: SlopesByValue,
    ) -> Array | float:
        """Goes back through a program's layers, writing slopes by its inputs into `reached`.

        `env` has all values of the program, `variances` those of what is owned; `reached` begins
        with the slopes by its results. Returns the part of the variance that was found on the way,
        as `SpreadSum` returns it.
        """
        total: Array | float = 0.0
        for layer in reversed(program.layers):
            here = {v: reached.pop(v) for v in layer.outputs if v in reached}
            if not here or not any(self.flow.is_random(v) for v in layer.inputs):
                continue
            if not layer.nodes:
                for source, output in zip(layer.inputs, layer.outputs, strict=True):
                    if output in here:
                        reached[source] = add_slopes(reached.get(source), here[output])
                continue
            inputs = [env[v] for v in layer.inputs]
            owned = {i: variances[v] for i, v in enumerate(layer.inputs) if v in variances}
            slopes = {i: here[v] for i, v in enumerate(layer.outputs) if v in here}
            by_inputs, part = self._layer(layer)(inputs, owned, slopes)
            total = total + part
            for i, one in by_inputs.items():
                value = layer.inputs[i]
                reached[value] = add_slopes(reached.get(value), one)
        return total

    def _layer(self, layer: Layer) -> Callable[..., Any]:
        """Returns a layer's function, or that of an equal one."""

        def back(
            inputs: Sequence[Any], owned: Mapping[int, Array], slopes: Mapping[int, Slopes]
        ) -> tuple[dict[int, Slopes], Array | float]:
            env: dict[Any, Any] = dict(zip(layer.inputs, inputs, strict=True))
            variances = {layer.inputs[i]: v for i, v in owned.items()}
            reached = {layer.outputs[i]: one for i, one in slopes.items()}
            total = self._nodes(layer, env, variances, reached)
            return {i: reached[v] for i, v in enumerate(layer.inputs) if v in reached}, total

        if layer.programs or not _compat.is_staged():
            return back
        flow = self.flow
        values = [*layer.inputs, *(v for node in layer.nodes for v in node.outputs)]
        known = [(flow.axis(v), flow.is_random(v), v in flow.owned) for v in values]
        form = form_of(layer, known)
        if form is None:
            return back
        if form not in self.shared:
            self.shared[form] = jax.jit(back)
        shared: Callable[..., Any] = self.shared[form]
        return shared

    def _nodes(
        self,
        layer: Layer,
        env: dict[Any, Any],
        variances: dict[Value, Array],
        reached: SlopesByValue,
    ) -> Array | float:
        """Goes back through the nodes of a layer, all values of which it computes again."""
        _compute(layer.nodes[:-1], env)
        variances.update(moved_variances(layer.nodes, env, variances, self.flow))
        total: Array | float = 0.0
        for node in reversed(layer.nodes):
            here = [reached.pop(v, None) for v in node.outputs]
            wanted = [i for i, a in enumerate(node.inputs) if self.flow.is_random(a)]
            if not wanted or all(one is None for one in here):
                continue
            step = _BackStep(layer, node, [value_of(a, env) for a in node.inputs], here)
            if layer.kind == "control flow" and self.flow.examples is not None:
                by_inputs, part = self._control_flow(step, wanted, variances)
                total = total + part
            else:
                by_inputs = {}
                for i in wanted:
                    if node.inputs[i] in variances and flows.is_reader(node, i, self.flow):
                        total = total + self._owned(step, i, variances[node.inputs[i]])
                rest = [i for i in wanted if node.inputs[i] not in variances]
                by_inputs = self._derived(step, rest) if rest else {}
            for i, one in by_inputs.items():
                value = node.inputs[i]
                reached[value] = add_slopes(reached.get(value), one)
        return total

    def _owned(self, step: _BackStep, operand: int, var: Array) -> Array:
        """Computes the part of the variance of an array that this node alone reads."""
        node, (slopes, *_) = step.node, step.here
        assert isinstance(slopes, RowSlopes)
        other = step.operands[1 - operand]
        if node.primitive is p.gather_p:
            return products.of_look_up(self.spread, node, other, slopes, var)
        axis = self.flow.axis(node.inputs[1 - operand])
        return products.of_product(self.spread, node, operand, other, axis, slopes, var)

    def _derived(self, step: _BackStep, wanted: Sequence[int]) -> dict[int, Slopes]:
        """Returns the slopes by operands of a node, or names it if JAX has no derivative of it."""
        try:
            return self._node(step, wanted)
        except (NotImplementedError, ValueError) as error:
            words = ("ifferentiation", "JVP", "ranspose")
            if isinstance(error, _values.MomentsError) or not any(w in str(error) for w in words):
                raise
            is_loop = step.node.primitive is p.while_p
            reason = "has no derivative in reverse, as method='linear' needs"
            if is_loop:
                reason = f"loops until something is reached, which {reason}"
            way = _LOOP if is_loop else _CALL
            raise _values.no_rule(step.node, step.layer.site, reason, way_out=way) from error

    def _node(self, step: _BackStep, wanted: Sequence[int]) -> dict[int, Slopes]:
        """Returns the slopes by operands of a node."""
        single = self.flow.examples is None
        axes = {i: self.flow.axis(step.node.inputs[i]) for i in wanted}
        rowwise = [i for i in wanted if single or axes[i] is not None]
        results: dict[int, Slopes] = {}
        if rowwise:
            pull = step.pull(rowwise)
            for i, g in zip(rowwise, jax.vmap(pull)(self._filled(step)), strict=True):
                results[i] = RowSlopes(g, axes[i])
        for i in wanted:
            if i not in results:
                results[i] = self._by_shared(step, i)
        return results

    def _filled(self, step: _BackStep) -> list[Array]:
        """Returns the slopes by all results that have any, zeros included: arrays of all seeds."""
        return [
            jnp.zeros((self.seeds, *v.aval.shape), v.aval.dtype) if one is None else one.slopes
            for v, one in zip(step.node.outputs, step.here, strict=True)
            if flows.is_inexact(v)
        ]

    def _by_shared(self, step: _BackStep, operand: int) -> Slopes:
        """Returns the slopes by an operand that examples share."""
        node = step.node
        if any(isinstance(one, SharedSlopes) for one in step.here):
            return self._of_shared(step, operand)
        if len(node.outputs) == 1:
            (slopes,) = step.here
            assert isinstance(slopes, RowSlopes)
            assert slopes.axis is not None
            kept = flows.keeps_rows(node, operand, slopes.axis)
            if kept is not None:
                return RowSlopes(jax.vmap(step.pull([operand]))([slopes.slopes])[0], kept)
            rule = _BY_KIND.get(kind_of(node.primitive))
            slopes_of_each = None if rule is None else rule(self, step, operand, slopes)
            if slopes_of_each is not None:
                return SharedSlopes(slopes_of_each)
        return self._one_by_one(step, operand)

    def _of_affine(self, step: _BackStep, operand: int, slopes: RowSlopes) -> Array | None:
        """Returns the slopes by what is repeated, or looked up."""
        node, operands = step.node, step.operands
        if node.primitive is p.broadcast_in_dim_p:
            along = node.params["broadcast_dimensions"]
            return products.repeated(operands[0].shape, along, slopes)
        if flows.is_look_up(node, operand, self.flow):
            return products.by_table(node, operands[1], slopes)
        return None

    def _of_bilinear(self, step: _BackStep, operand: int, slopes: RowSlopes) -> Array | None:
        """Returns the slopes by matrices that examples are multiplied by."""
        node = step.node
        if not flows.is_product(node, operand, self.flow):
            return None
        of, other = self.flow.axis(node.inputs[1 - operand]), step.operands[1 - operand]
        return products.by_matrix(node, operand, other, of, slopes)

    def _of_shared(self, step: _BackStep, operand: int) -> SharedSlopes:
        """Returns the slopes by an operand, given each example's slopes by results they share."""
        slopes = [
            jnp.zeros((self.seeds, self.examples, *v.aval.shape), v.aval.dtype)
            if one is None
            else to_shared(one).slopes
            for v, one in zip(step.node.outputs, step.here, strict=True)
            if flows.is_inexact(v)
        ]
        return SharedSlopes(jax.vmap(jax.vmap(step.pull([operand])))(slopes)[0])

    def _one_by_one(self, step: _BackStep, operand: int) -> SharedSlopes:
        """Returns the slopes by an operand, an example's after the other."""
        pull, filled = step.pull([operand]), self._filled(step)
        pairs = zip(step.node.outputs, step.here, strict=True)
        known = [one for v, one in pairs if flows.is_inexact(v)]

        def example(b: Array) -> Array:
            alone = [
                only_row(g, one.axis, b)
                if isinstance(one, RowSlopes) and one.axis is not None
                else g
                for g, one in zip(filled, known, strict=True)
            ]
            return jax.vmap(pull)(alone)[0]

        return SharedSlopes(jnp.moveaxis(jax.lax.map(example, jnp.arange(self.examples)), 0, 1))

    def _of_pointwise(self, step: _BackStep, operand: int, slopes: RowSlopes) -> Array:
        """Returns the slopes by an operand that a pointwise function repeats."""
        value = step.operands[operand]
        repeated = [*step.operands]
        repeated[operand] = jnp.broadcast_to(value, step.node.outputs[0].aval.shape)
        pull = replace(step, operands=repeated).pull([operand])
        (g,) = jax.vmap(pull)([slopes.slopes])
        axes = range(jnp.ndim(value))
        return products.repeated(jnp.shape(value), axes, RowSlopes(g, slopes.axis))

    @property
    def examples(self) -> int:
        """The number of examples."""
        return self.spread.examples

    def _control_flow(
        self, step: _BackStep, wanted: Sequence[int], variances: Mapping[Value, Array]
    ) -> tuple[dict[int, Slopes], Array | float]:
        node = step.node
        shares = any(self.flow.axis(node.inputs[i]) is None for i in wanted)
        owned = {i: variances[a] for i, a in enumerate(node.inputs)
                 if isinstance(a, Value) and a in variances}  # fmt: skip
        if shares and node.primitive is p.remat_p:
            return self._body(step.layer.programs[0], step.operands, owned, step.here)
        if shares and node.primitive is p.scan_p:
            return self._scan(step, owned)
        if shares and node.primitive is p.cond_p and self.flow.axis(node.inputs[0]) is None:
            return self._branches(step, wanted), 0.0
        return self._derived(step, wanted), 0.0

    def _body(
        self,
        body: Program,
        inputs: Sequence[Any],
        owned: Mapping[int, Array],
        slopes: Sequence[Slopes | None],
    ) -> tuple[dict[int, Slopes], Array | float]:
        """Goes back through a program inside of another; slopes are of all its outputs."""
        env = forward(body, inputs)
        variances = owned_variances(
            body, env, {body.inputs[i]: v for i, v in owned.items()}, self.flow
        )
        reached: SlopesByValue = {}
        for value, one in zip(body.outputs, slopes, strict=True):
            if one is not None and self.flow.is_random(value):
                reached[value] = add_slopes(reached.get(value), self._formed(value, one))
        total = self.program(body, env, variances, reached)
        return {i: reached[v] for i, v in enumerate(body.inputs) if v in reached}, total

    def _formed(self, value: Value, slopes: Slopes) -> Slopes:
        """Brings slopes to the form of a value: in a loop they have one in all steps."""
        return to_shared(slopes) if self.flow.axis(value) is None else slopes

    def _zeros(self, value: Value) -> Slopes:
        axis, shape = self.flow.axis(value), value.aval.shape
        if axis is None:
            return SharedSlopes(jnp.zeros((self.seeds, self.examples, *shape), value.aval.dtype))
        return RowSlopes(jnp.zeros((self.seeds, *shape), value.aval.dtype), axis)

    def _branches(self, step: _BackStep, wanted: Sequence[int]) -> dict[int, Slopes]:
        operands, inputs = step.operands, step.node.inputs

        def branch(program: Program) -> Callable[..., Any]:
            def back(slopes: Sequence[Slopes | None]) -> dict[int, Slopes]:
                by_inputs, _ = self._body(program, operands[1:], {}, slopes)
                return {
                    i: self._formed(inputs[i], by_inputs[i - 1])
                    if i - 1 in by_inputs
                    else self._zeros(inputs[i])
                    for i in wanted
                }

            return back

        branches = [branch(one) for one in step.layer.programs]
        slopes: dict[int, Slopes] = jax.lax.switch(operands[0], branches, list(step.here))
        return slopes

    def _scan(
        self, at: _BackStep, owned: Mapping[int, Array]
    ) -> tuple[dict[int, Slopes], Array | float]:
        node, operands, here = at.node, at.operands, at.here
        (body,) = at.layer.programs
        loop = Scan.of(node, list(operands))
        consts, carries = len(loop.consts), len(loop.carry)
        first = consts + carries

        def run(carry: Sequence[Any], row: Sequence[Any]) -> tuple[Any, Any]:
            after, _ = loop.split(evaluate(body, plain_rule, None, loop.inputs([*carry], [*row])))
            return after, carry

        ins = jax.lax.scan(run, loop.carry, loop.xs, loop.length, loop.reverse)[1]
        inside = [self.flow.is_random(v) for v in body.inputs]
        moving = [i for i in range(first) if inside[i]]
        after = {
            i: self._formed(body.inputs[i], here[i - consts] or self._zeros(body.inputs[i]))
            if i >= consts
            else self._zeros(body.inputs[i])
            for i in moving
        }
        stacked = [one and _by_step(one) for one in here[carries:]]
        zero = self._nothing(operands)

        def step(state: Any, row: Any) -> Any:
            slopes, total = state
            carry, xs, stacked, variances = row
            by_results: list[Slopes | None] = [slopes.get(consts + i) for i in range(carries)]
            by_inputs, part = self._body(
                body, loop.inputs([*carry], [*xs]), variances, [*by_results, *stacked]
            )
            formed = {i: self._formed(body.inputs[i], one) for i, one in by_inputs.items()}
            before = {
                i: (formed.get(i) or self._zeros(body.inputs[i]))
                if i >= consts
                else add_slopes(slopes[i], formed[i])
                if i in formed
                else slopes[i]
                for i in moving
            }
            rows = {i: formed.get(i) or self._zeros(body.inputs[i])
                    for i in range(first, len(inside)) if inside[i] and i not in owned}  # fmt: skip
            return (before, total + part), rows

        # Steps read a place of the first axis of the variances, too.
        stacks = {i: jnp.broadcast_to(v, operands[i].shape) for i, v in owned.items()}
        (slopes, total), rows = jax.lax.scan(
            step, (after, zero), (ins, loop.xs, stacked, stacks), loop.length, not loop.reverse
        )
        slopes = {i: one for i, one in slopes.items() if self.flow.is_random(node.inputs[i])}
        return slopes | {i: _stacked(one) for i, one in rows.items()}, total

    def _nothing(self, operands: Sequence[Any]) -> Array:
        dtypes = [
            jnp.result_type(x) for x in operands if jnp.issubdtype(jnp.result_type(x), jnp.inexact)
        ]
        seeds = (self.seeds,) * (1 + self.spread.full)
        return jnp.zeros((*seeds, self.examples), jnp.result_type(*dtypes))


_BY_KIND: dict[Kind, Callable[..., Array | None]] = {
    Kind.AFFINE: Backward._of_affine,
    Kind.BILINEAR: Backward._of_bilinear,
    Kind.POINTWISE: Backward._of_pointwise,
    Kind.STEP: Backward._of_pointwise,
}
"""The slopes by an operand that examples share, of a node of a kind; of others one by one."""


def _by_step(slopes: Slopes) -> Slopes:
    """Brings the axis of steps to the front, for a scan to read."""
    if isinstance(slopes, SharedSlopes):
        return SharedSlopes(jnp.moveaxis(slopes.slopes, 2, 0))
    return RowSlopes(jnp.moveaxis(slopes.slopes, 1, 0), (slopes.axis or 1) - 1)


def _stacked(slopes: Slopes) -> Slopes:
    """Brings the axis of steps from the front to where it is in the array."""
    if isinstance(slopes, SharedSlopes):
        return SharedSlopes(jnp.moveaxis(slopes.slopes, 0, 2))
    return RowSlopes(jnp.moveaxis(slopes.slopes, 0, 1), (slopes.axis or 0) + 1)


def moved_variances(
    nodes: Sequence[Node], env: Mapping[Any, Any], known: Mapping[Value, Array], flow: ExampleFlow
) -> dict[Value, Array]:
    """Follows variances of owned arrays through what moves or scales their entries."""
    variances = dict(known)
    for node in nodes:
        source = next(
            (i for i, a in enumerate(node.inputs) if isinstance(a, Value) and a in variances), None
        )
        if source is None or not node.outputs or node.outputs[0] not in flow.owned:
            continue
        var, shape = variances[node.inputs[source]], node.inputs[source].aval.shape
        if node.primitive is p.transpose_p:
            variances[node.outputs[0]] = (
                _compat.bind(node.eqn, var)[0]
                if var.shape == shape
                else var.transpose(node.params["permutation"])
            )
            continue
        var = jnp.broadcast_to(var, shape)
        if kind_of(node.primitive) is Kind.MOVE:
            variances[node.outputs[0]] = _compat.bind(node.eqn, var)[0]
            continue
        operands = [value_of(a, env) for a in node.inputs]

        def at(
            x: Array, operands: list[Any] = operands, source: int = source, node: Node = node
        ) -> Array:
            result: Array = _compat.bind(node.eqn, *operands[:source], x, *operands[source + 1 :])[
                0
            ]
            return result

        # Entry by entry: the slopes are the derivative along all at once.
        x = operands[source]
        slopes = jax.jvp(at, (x,), (jnp.ones_like(x),))[1]
        variances[node.outputs[0]] = var.astype(slopes.dtype) * slopes**2
    return {v: a for v, a in variances.items() if v not in known}


def forward(
    program: Program, values: Sequence[Any], rule: Callable[..., Sequence[Any]] = plain_rule
) -> dict[Any, Any]:
    """Evaluates a program and returns all its values."""
    env: dict[Any, Any] = dict(program.constants)
    env.update(zip(program.inputs, values, strict=True))
    for layer in program.layers:
        one = Program(layer.inputs, {}, (layer,), layer.outputs)
        outputs = evaluate(one, rule, None, [env[v] for v in layer.inputs])
        env.update(zip(layer.outputs, outputs, strict=True))
    return env


def owned_variances(
    program: Program, env: Mapping[Any, Any], owned: Mapping[Value, Array], flow: ExampleFlow
) -> dict[Value, Array]:
    """Follows variances of owned inputs from layer to layer, to those that read them."""
    known = dict(owned)
    for layer in program.layers:
        if not any(v in known for v in layer.inputs) or not any(
            v in flow.owned for v in layer.outputs
        ):
            continue
        if not layer.nodes:
            pairs = zip(layer.inputs, layer.outputs, strict=True)
            known.update((o, known[i]) for i, o in pairs if i in known)
            continue
        inside = {v: env[v] for v in layer.inputs}
        _compute(layer.nodes, inside)
        moved = moved_variances(layer.nodes, inside, known, flow)
        known.update((v, moved[v]) for v in layer.outputs if v in moved)
    return known


def _compute(nodes: Sequence[Node], env: dict[Any, Any]) -> None:
    """Evaluates nodes, writing their results into `env`."""
    for node in nodes:
        operands = [value_of(a, env) for a in node.inputs]
        env.update(zip(node.outputs, _compat.bind(node.eqn, *operands), strict=True))
