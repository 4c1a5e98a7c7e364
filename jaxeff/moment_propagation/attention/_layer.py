"""The layer that attention is in a program of moments, and its moments."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import jax_internals as _compat
from jaxeff.moment_propagation.attention._rule import Axes, attention
from jaxeff.moment_propagation.dependence import WholeLayer
from jaxeff.moment_propagation.rules import map_linear
from jaxeff.moment_propagation.values import Gaussian, is_random, to_variance
from jaxeff.program.ir import Node, Value, run_nodes


@dataclass(frozen=True, eq=False)
class Score:
    """The product of queries and keys.

    Attributes:
        node: The dot product.
        queries: The operand without the softmax's axes.
        keys: The operand with them.
        of_queries: A letter for each axis of the queries.
        of_keys: A letter for each axis of the keys.
    """

    node: Node
    queries: Value
    keys: Value
    of_queries: str
    of_keys: str

    @property
    def value(self) -> Value:
        """The product."""
        return self.node.outputs[0]


@dataclass(eq=False, kw_only=True)
class AttentionLayer(WholeLayer):
    """Attention, from its queries, keys and values to its result; named as the last product.

    Attributes:
        axes: The axes of its arrays.
        scores: What the softmax is taken of.
        score: The product of queries and keys; None where the scores are made in another way.
        values: The values.
        terms: Other random terms of the scores, and a letter for each of their axes.
    """

    axes: Axes
    scores: Value
    score: Score | None
    values: Value
    terms: Mapping[Value, str]


def attention_moments(layer: AttentionLayer, values: Sequence[Any]) -> list[Gaussian]:
    """Computes the moments of an attention layer from those of its inputs."""
    known = dict(zip(layer.inputs, values, strict=True))
    random = {v: to_variance(x) for v, x in known.items() if is_random(x)}
    means = {v: random[v].mean if v in random else x for v, x in known.items()}
    operands = {"v": layer.values}
    if layer.score is not None:
        operands |= {"q": layer.score.queries, "k": layer.score.keys}
    for value in operands.values():
        if value not in means:
            nodes = behind(layer.nodes, value)
            (means[value],) = run_nodes(nodes, list(means), list(means.values()), [value])
    arrays = _scores(layer, means, random)
    for name, value in operands.items():
        arrays[name] = means[value]
        if value in random:
            arrays[f"{name}_var"] = random[value].var
    # Half precision has too few digits for differences of squares.
    dtype = jnp.result_type(jnp.float32, *arrays.values())
    y = attention(layer.axes, {name: a.astype(dtype) for name, a in arrays.items()})
    made = layer.outputs[0].aval
    return [map_linear(lambda a: a.reshape(made.shape).astype(made.dtype), y)]


def _scores(
    layer: AttentionLayer, means: Mapping[Value, Array], random: Mapping[Value, Gaussian]
) -> dict[str, Array]:
    """Evaluates the scores, their slope, and the variance of their biases."""
    given = dict(means)
    nodes = behind(layer.nodes, layer.scores)
    if layer.score is not None:
        node = layer.score.node
        nodes = [n for n in nodes if n is not node]
        (given[layer.score.value],) = _compat.bind(node.eqn, *(given[v] for v in node.inputs))

    def scores(value: Value, array: Array) -> Array:
        at = given | {value: array}
        (made,) = run_nodes(nodes, list(at), list(at.values()), [layer.scores])
        return made

    def slope(value: Value) -> Array:
        # A score is a function of one entry: the derivative by each is that along all of them.
        along = functools.partial(scores, value)
        return jax.jvp(along, (given[value],), (jnp.ones_like(given[value]),))[1]

    start = layer.score.value if layer.score is not None else next(iter(layer.terms))
    arrays = {"scores": scores(start, given[start])}
    if layer.score is not None:
        arrays["slope"] = slope(layer.score.value)
    to = layer.axes.scores
    # What all scores of a row share cancels.
    varied = {v: of for v, of in layer.terms.items() if set(layer.axes.softmax) <= set(of)}
    parts = [
        jnp.einsum(f"{to},{of}->{to}", slope(v) ** 2, random[v].var)
        for v, of in varied.items()
        if v in random
    ]
    if parts:
        arrays["bias_var"] = functools.reduce(jnp.add, parts)
    return arrays


def behind(nodes: Sequence[Node], value: Value) -> list[Node]:
    """Returns the equations that a value is made by, in order."""
    needed, found = {value}, []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            found.append(node)
            needed.update(node.values)
    return found[::-1]
