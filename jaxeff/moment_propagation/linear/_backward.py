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
from dataclasses import dataclass, field
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

        Args:
            program: The program.
            env: All its values.
            variances: Variances of values that are owned.
            reached: Slopes by its results.

        Returns:
            The part of the variance that was found on the way, as `SpreadSum` returns it.
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
            if layer.kind == "control flow" and self.flow.examples is not None:
                by_inputs, part = self._control_flow(layer, node, env, variances, here)
                total = total + part
            else:
                by_inputs = {}
                for i in wanted:
                    if node.inputs[i] in variances and self._is_read_by(node, i):
                        total = total + self._owned(node, i, env, variances, here[0])
                rest = [i for i in wanted if node.inputs[i] not in variances]
                by_inputs = self._derived(layer, node, rest, env, here) if rest else {}
            for i, one in by_inputs.items():
                value = node.inputs[i]
                reached[value] = add_slopes(reached.get(value), one)
        return total

    def _is_read_by(self, node: Node, operand: int) -> bool:
        return flows.is_product(node, operand, self.flow) or flows.is_look_up(
            node, operand, self.flow
        )

    def _owned(
        self,
        node: Node,
        operand: int,
        env: Mapping[Any, Any],
        variances: Mapping[Value, Array],
        slopes: Slopes | None,
    ) -> Array:
        """Computes the part of the variance of an array that this node alone reads."""
        assert isinstance(slopes, RowSlopes)
        other = value_of(node.inputs[1 - operand], env)
        var = variances[node.inputs[operand]]
        if node.primitive is p.gather_p:
            return products.of_look_up(self.spread, node, other, slopes, var)
        axis = self.flow.axis(node.inputs[1 - operand])
        return products.of_product(self.spread, node, operand, other, axis, slopes, var)

    def _derived(self, layer: Layer, node: Node, *how: Any) -> dict[int, Slopes]:
        """Returns the slopes by operands of a node, or names it if JAX has no derivative of it."""
        try:
            return self._node(node, *how)
        except (NotImplementedError, ValueError) as error:
            words = ("ifferentiation", "JVP", "ranspose")
            if isinstance(error, _values.MomentsError) or not any(w in str(error) for w in words):
                raise
            is_loop = node.primitive is p.while_p
            reason = "has no derivative in reverse, as method='linear' needs"
            if is_loop:
                reason = f"loops until something is reached, which {reason}"
            way = _LOOP if is_loop else _CALL
            raise _values.no_rule(node, layer.site, reason, way_out=way) from error

    def _node(
        self,
        node: Node,
        wanted: Sequence[int],
        env: Mapping[Any, Any],
        here: Sequence[Slopes | None],
    ) -> dict[int, Slopes]:
        """Returns the slopes by operands of a node."""
        operands = [value_of(a, env) for a in node.inputs]
        single = self.flow.examples is None
        axes = {i: self.flow.axis(node.inputs[i]) for i in wanted}
        rowwise = [i for i in wanted if single or axes[i] is not None]
        results: dict[int, Slopes] = {}
        if rowwise:
            pull = _pull(node, rowwise, operands)
            for i, g in zip(rowwise, jax.vmap(pull)(self._filled(node, here)), strict=True):
                results[i] = RowSlopes(g, axes[i])
        for i in wanted:
            if i not in results:
                results[i] = self._by_shared(node, i, operands, here)
        return results

    def _filled(self, node: Node, here: Sequence[Slopes | None]) -> list[Array]:
        """Returns the slopes by all results that have any, zeros included: arrays of all seeds."""
        return [
            jnp.zeros((self.seeds, *v.aval.shape), v.aval.dtype) if one is None else one.slopes
            for v, one in zip(node.outputs, here, strict=True)
            if flows.is_inexact(v)
        ]

    def _by_shared(
        self,
        node: Node,
        operand: int,
        operands: Sequence[Any],
        here: Sequence[Slopes | None],
    ) -> Slopes:
        """Returns the slopes by an operand that examples share."""
        if any(isinstance(one, SharedSlopes) for one in here):
            return self._of_shared(node, operand, operands, here)
        if len(node.outputs) == 1:
            (slopes,) = here
            assert isinstance(slopes, RowSlopes)
            assert slopes.axis is not None
            kept = flows.keeps_rows(node, operand, slopes.axis)
            if kept is not None:
                return RowSlopes(
                    jax.vmap(_pull(node, [operand], operands))([slopes.slopes])[0], kept
                )
            rule = _BY_KIND.get(kind_of(node.primitive))
            slopes_of_each = None if rule is None else rule(self, node, operand, operands, slopes)
            if slopes_of_each is not None:
                return SharedSlopes(slopes_of_each)
        return self._one_by_one(node, operand, operands, here)

    def _of_affine(
        self, node: Node, operand: int, operands: Sequence[Any], slopes: RowSlopes
    ) -> Array | None:
        """Returns the slopes by what is repeated, or looked up."""
        if node.primitive is p.broadcast_in_dim_p:
            along = node.params["broadcast_dimensions"]
            return products.repeated(operands[0].shape, along, slopes)
        if flows.is_look_up(node, operand, self.flow):
            return products.by_table(node, operands[1], slopes)
        return None

    def _of_bilinear(
        self, node: Node, operand: int, operands: Sequence[Any], slopes: RowSlopes
    ) -> Array | None:
        """Returns the slopes by matrices that examples are multiplied by."""
        if not flows.is_product(node, operand, self.flow):
            return None
        of, other = self.flow.axis(node.inputs[1 - operand]), operands[1 - operand]
        return products.by_matrix(node, operand, other, of, slopes)

    def _of_shared(
        self, node: Node, operand: int, operands: Sequence[Any], here: Sequence[Slopes | None]
    ) -> SharedSlopes:
        """Returns the slopes by an operand, given each example's slopes by results they share."""
        slopes = [
            jnp.zeros((self.seeds, self.examples, *v.aval.shape), v.aval.dtype)
            if one is None
            else to_shared(one).slopes
            for v, one in zip(node.outputs, here, strict=True)
            if flows.is_inexact(v)
        ]
        return SharedSlopes(jax.vmap(jax.vmap(_pull(node, [operand], operands)))(slopes)[0])

    def _one_by_one(
        self, node: Node, operand: int, operands: Sequence[Any], here: Sequence[Slopes | None]
    ) -> SharedSlopes:
        """Returns the slopes by an operand, an example's after the other."""
        pull, filled = _pull(node, [operand], operands), self._filled(node, here)
        known = [one for v, one in zip(node.outputs, here, strict=True) if flows.is_inexact(v)]

        def example(b: Array) -> Array:
            alone = [
                only_row(g, one.axis, b)
                if isinstance(one, RowSlopes) and one.axis is not None
                else g
                for g, one in zip(filled, known, strict=True)
            ]
            return jax.vmap(pull)(alone)[0]

        return SharedSlopes(jnp.moveaxis(jax.lax.map(example, jnp.arange(self.examples)), 0, 1))

    def _of_pointwise(
        self, node: Node, operand: int, operands: Sequence[Any], slopes: RowSlopes
    ) -> Array:
        """Returns the slopes by an operand that a pointwise function repeats."""
        shape = jnp.shape(operands[operand])
        repeated = [*operands]
        repeated[operand] = jnp.broadcast_to(operands[operand], node.outputs[0].aval.shape)
        (g,) = jax.vmap(_pull(node, [operand], repeated))([slopes.slopes])
        return products.repeated(shape, range(len(shape)), RowSlopes(g, slopes.axis))

    @property
    def examples(self) -> int:
        """The number of examples."""
        return self.spread.examples

    def _control_flow(
        self,
        layer: Layer,
        node: Node,
        env: Mapping[Any, Any],
        variances: Mapping[Value, Array],
        here: Sequence[Slopes | None],
    ) -> tuple[dict[int, Slopes], Array | float]:
        operands = [value_of(a, env) for a in node.inputs]
        wanted = [i for i, a in enumerate(node.inputs) if self.flow.is_random(a)]
        shares = any(self.flow.axis(node.inputs[i]) is None for i in wanted)
        owned = {i: variances[a] for i, a in enumerate(node.inputs)
                 if isinstance(a, Value) and a in variances}  # fmt: skip
        if not shares:
            return self._derived(layer, node, wanted, env, here), 0.0
        if node.primitive is p.remat_p:
            return self._body(layer.programs[0], operands, owned, here)
        if node.primitive is p.scan_p:
            return self._scan(layer, node, operands, owned, here)
        if node.primitive is p.cond_p and self.flow.axis(node.inputs[0]) is None:
            return self._branches(layer, node, operands, wanted, here)
        return self._derived(layer, node, wanted, env, here), 0.0

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

    def _branches(
        self,
        layer: Layer,
        node: Node,
        operands: Sequence[Any],
        wanted: Sequence[int],
        here: Sequence[Slopes | None],
    ) -> tuple[dict[int, Slopes], Array | float]:
        def branch(program: Program) -> Callable[..., Any]:
            def back(slopes: Sequence[Slopes | None]) -> dict[int, Slopes]:
                by_inputs, _ = self._body(program, operands[1:], {}, slopes)
                return {
                    i: self._formed(node.inputs[i], by_inputs[i - 1])
                    if i - 1 in by_inputs
                    else self._zeros(node.inputs[i])
                    for i in wanted
                }

            return back

        return jax.lax.switch(operands[0], [branch(one) for one in layer.programs], list(here)), 0.0

    def _scan(
        self,
        layer: Layer,
        node: Node,
        operands: Sequence[Any],
        owned: Mapping[int, Array],
        here: Sequence[Slopes | None],
    ) -> tuple[dict[int, Slopes], Array | float]:
        (body,) = layer.programs
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


def _pull(
    node: Node, wanted: Sequence[int], operands: Sequence[Any]
) -> Callable[[Sequence[Array]], list[Array]]:
    """Returns the slopes by some operands as a function of those by all results that have any."""
    inexact = [i for i, v in enumerate(node.outputs) if flows.is_inexact(v)]

    def results(*moved: Any) -> list[Any]:
        values = list(operands)
        for i, value in zip(wanted, moved, strict=True):
            values[i] = value
        out = _compat.bind(node.eqn, *values)
        return [out[i] for i in inexact]

    _, back = jax.vjp(results, *(operands[i] for i in wanted))
    return lambda g: list(back(list(g)))


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
