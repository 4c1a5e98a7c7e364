"""Variances of the linear method through the last hidden state, where results outnumber its units.

A language model's logits are y_t = h_t E with a vocabulary larger than the width of h. Their slopes
are those of h_t times E, so the covariance S_t = J_t diag(v) J_t^T of one position's hidden state
gives all of its variances after as many passes backward as h_t has units:

    Var[y_tk] = (E^T S_t E)_kk + sum_i v_ik h_ti^2 + 2 c_tk,

where c is what an embedding that E is tied to adds, sum_w v_w (dy_tk/dh_t)(dh_t/dw) (dy_tk/dw) with
the last derivative at a fixed h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import identity, walk
from jaxeff.moment_propagation.values import Gaussian
from jaxeff.program import Layer, Program, plain_rule
from jaxeff.program.ir import Value

_REARRANGING = {p.broadcast_in_dim_p, p.reshape_p, p.squeeze_p, p.transpose_p}


@dataclass(frozen=True)
class OutputLayer:
    """A linear layer that makes the result, position by position, of fewer hidden units.

    Attributes:
        layer: The layer.
        hidden: The hidden state it reads, of the result's shape but for the last axis.
        arranging: Layers that rearrange its other operands, in order.
        sources: Random inputs among these operands, before they are rearranged.
        tied: Sources that other layers read, too.
    """

    layer: Layer
    hidden: Value
    arranging: tuple[Layer, ...]
    sources: tuple[Value, ...]
    tied: tuple[Value, ...]

    @property
    def units(self) -> int:
        """The size of a position's hidden state."""
        return self.hidden.aval.shape[-1]

    def result(self, hidden: Array, values: Mapping[Value, Any]) -> Array:
        """Evaluates the layer, given its hidden state and all other values it is made of."""
        env = {**values, self.hidden: hidden}
        for layer in (*self.arranging, self.layer):
            made = plain_rule(layer, None, *(env[v] for v in layer.inputs))
            env.update(zip(layer.outputs, made, strict=True))
        return env[self.layer.outputs[0]]

    def operands(self, known: Mapping[Value, Any], hidden: Array) -> list[Any]:
        """Returns the layer's operands, random ones as `Gaussian`s, and its hidden state."""
        env = {**known, self.hidden: hidden}
        for layer in self.arranging:
            (operand,) = (env[v] for v in layer.inputs)
            # Entries only change places, and so do their variances.
            env[layer.outputs[0]] = jax.tree.map(lambda a: layer.fn(a)[0], operand)  # noqa: B023
        return [env[v] for v in self.layer.inputs]


def last_layer(program: Program, random: Sequence[Value]) -> OutputLayer | None:
    """Finds a linear layer that makes the one result of fewer hidden units; None if there is none.

    Args:
        program: The program.
        random: Inputs that are random.
    """
    makers = {v: layer for layer in program.layers for v in layer.outputs}
    result = program.outputs[0]
    if len(program.outputs) != 1 or not isinstance(result, Value) or result not in makers:
        return None
    layer = makers[result]
    data = [v for v in layer.inputs if v.is_data]
    if layer.kind != "linear" or len(layer.outputs) != 1 or len(data) != 1:
        return None
    (hidden,) = data
    shape, made = hidden.aval.shape, result.aval.shape
    if hidden not in makers or shape[:-1] != made[:-1] or shape[-1] >= made[-1]:
        return None
    # Every position of the result is made of the same position of the hidden state.
    lineages, _ = walk(layer.nodes, {hidden: {hidden: identity(shape)}})
    labels = lineages.get(result, {}).get(hidden, ())
    if tuple(labels[:-1]) != identity(shape)[:-1]:
        return None
    arranging: list[Layer] = []
    sources: list[Value] = []
    for operand in layer.inputs:
        value = operand
        while value in makers and value is not hidden:
            maker = makers[value]
            rearranges = all(node.primitive in _REARRANGING for node in maker.nodes)
            if len(maker.inputs) != 1 or len(maker.outputs) != 1 or not rearranges:
                return None
            arranging.insert(0, maker)
            value = maker.inputs[0]
        if value in random:
            sources.append(value)
        elif value not in program.inputs and value not in program.constants and value is not hidden:
            return None
    own = {layer, *arranging}
    tied = tuple(
        v for v in sources if any(v in other.inputs for other in program.layers if other not in own)
    )
    if len(set(sources)) != len(sources) or len(set(arranging)) != len(arranging):
        return None
    return OutputLayer(layer, hidden, tuple(arranging), tuple(sources), tied)


def variance_through(
    last: OutputLayer,
    slopes: Callable[[Array], tuple[Array, Sequence[Array]]],
    hidden: Array,
    known: Mapping[Value, Any],
    own_variance: Callable[..., Array],
) -> Array:
    """Computes the variances of the last layer's result.

    Args:
        last: The last layer.
        slopes: A function of a position. It returns the covariance of the position's hidden state,
            `[units, units]`, and the slopes of its units by each tied source, `[units, ...]`.
        hidden: The hidden state, at the means.
        known: Values of the program's inputs and constants; `Gaussian`s for random ones.
        own_variance: Computes the variance of a linear layer's result from its operands.

    Returns:
        The variances, of the result's shape.
    """
    fixed = {v: x.mean if isinstance(x, Gaussian) else x for v, x in known.items()}
    width = last.units
    shape = last.layer.outputs[0].aval.shape
    unit = jnp.eye(width, dtype=hidden.dtype)

    def along(tangent: Array) -> Array:
        return jax.jvp(lambda h: last.result(h, fixed), (hidden,), (tangent,))[1]

    def by_sources(steps: Sequence[Array]) -> Array:
        def moved(at: Sequence[Array]) -> Array:
            return last.result(hidden, {**fixed, **dict(zip(last.tied, at, strict=True))})

        start = [fixed[v] for v in last.tied]
        return jax.jvp(moved, (start,), (list(steps),))[1]

    def position(number: Array) -> tuple[Array, Array]:
        covariance, by_tied = slopes(number)

        def cross(total: Array, i: Array) -> tuple[Array, None]:
            steps = [known[v].var * s[i] for v, s in zip(last.tied, by_tied, strict=True)]
            both = along(jnp.broadcast_to(unit[i], hidden.shape)) * by_sources(steps)
            return total + both.reshape(-1, shape[-1])[number], None

        none = jnp.zeros(shape[-1], hidden.dtype)
        shared = lax.scan(cross, none, jnp.arange(width))[0] if last.tied else none
        return covariance, shared

    # One position after the other: the slopes of one are as many numbers as fit.
    covariance, shared = lax.map(position, jnp.arange(hidden.size // width))
    covariance = covariance.reshape(*hidden.shape, width)

    def column(total: Array, i: Array) -> tuple[Array, None]:
        # The diagonal of E^T S E, a column of S at a time.
        row = along(jnp.broadcast_to(unit[i], hidden.shape))
        return total + row * along(covariance[..., i]), None

    through, _ = lax.scan(column, jnp.zeros(shape, hidden.dtype), jnp.arange(width))
    own = own_variance(last.layer, *last.operands(known, hidden)) if last.sources else 0
    # Rounding may leave a sum of squares below zero where its parts cancel.
    return jnp.maximum(through + own + 2 * shared.reshape(shape), 0)
