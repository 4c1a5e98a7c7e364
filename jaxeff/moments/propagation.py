"""Propagates moments through the equations of a layer, watching what depends on what.

`propagate` runs equations one after the other under the rules of `primitives`, which take operands
as independent. Every value carries the set of the layer's random inputs it depends on; two operands
that share one would make a rule's answer wrong, so they are an error here and the business of
`regions`, which sees such a region as a whole.

Sharp edges
- Independence is tracked within a layer. Between layers it is assumed: a residual sum treats its
  branches as independent, a convolution its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxeff import _compat
from jaxeff._compat import Literal
from jaxeff.moments.errors import AtMean, MomentsError, no_rule
from jaxeff.moments.polynomial import known_number
from jaxeff.moments.primitives import DISCRETE, RULES, Rule, twice
from jaxeff.moments.raw import is_random
from jaxeff.program import primitives as prim
from jaxeff.program.graph import Node, Value
from jaxeff.program.layers import Layer


@dataclass
class Environment:
    """The values of a layer while it is evaluated.

    Attributes:
        site: The layer's name, for error messages.
        rules: Rules of the user's own, by primitive; they come before the built-in ones.
        values: What each traced value is: an array or a random array.
        sources: For each random value, the layer's random inputs it depends on.
        numbers: Deterministic values that are one known number everywhere.
    """

    site: str
    rules: Mapping[Any, Rule]
    values: dict[Any, Any] = field(default_factory=dict)
    sources: dict[Any, frozenset] = field(default_factory=dict)
    numbers: dict[Any, float] = field(default_factory=dict)

    @classmethod
    def of(cls, layer: Layer, values: Sequence[Any], rules: Mapping[Any, Rule]) -> Environment:
        """The environment of a layer's inputs."""
        env = cls(layer.site, rules, dict(zip(layer.inputs, values, strict=True)))
        env.sources = {v: frozenset({v}) for v in layer.inputs if is_random(env.values[v])}
        return env

    def read(self, atom: Any) -> Any:
        """The value of an equation's operand."""
        return atom.val if isinstance(atom, Literal) else self.values[atom]

    def number(self, atom: Any) -> float | None:
        """The number an operand is everywhere, where that is known while tracing."""
        if isinstance(atom, Literal):
            return float(atom.val) if np.ndim(atom.val) == 0 else None
        return self.numbers.get(atom)

    def sources_of(self, atoms: Sequence[Any]) -> frozenset:
        """The random inputs that any of the operands depends on."""
        found = (self.sources.get(a, frozenset()) for a in atoms if isinstance(a, Value))
        return frozenset().union(*found)

    def write(self, outputs: Sequence[Value], results: Sequence[Any], sources: frozenset) -> None:
        """Records an equation's results."""
        for value, result in zip(outputs, results, strict=True):
            self.values[value] = result
            if is_random(result):
                self.sources[value] = sources


def propagate(nodes: Sequence[Node], env: Environment) -> None:
    """Evaluates equations in order, writing their results into `env`.

    Raises:
        MomentsError: A primitive has no rule, combines values that share a random input, or
            computes on from a discrete function of a random value.
    """
    for node in nodes:
        step(node, env)


def step(node: Node, env: Environment) -> None:
    """Evaluates one equation."""
    operands = [env.read(a) for a in node.inputs]
    if any(isinstance(o, AtMean) for o in operands):
        raise no_rule(node, env.site, "computes with a discrete function of a random value")
    if not any(is_random(o) for o in operands):
        env.write(node.outputs, _compat.bind(node.eqn, *operands), frozenset())
        number = known_number(node.eqn, [env.number(a) for a in node.inputs])
        if number is not None:
            env.numbers[node.outputs[0]] = number
        return
    sources = env.sources_of(node.inputs)
    env.write(node.outputs, _apply(node, operands, env), sources)


def _apply(node: Node, operands: Sequence[Any], env: Environment) -> Sequence[Any]:
    if node.primitive in env.rules:
        return env.rules[node.primitive](node, *operands)
    if node.primitive in DISCRETE:
        means = [o.mean if is_random(o) else o for o in operands]
        return [AtMean(v) for v in _compat.bind(node.eqn, *means)]
    if shares_source(node, env):
        same = twice(node, operands[0]) if _is_twice(node) else None
        if same is not None:
            return same
        raise no_rule(node, env.site, "combines values that depend on the same random input")
    rule = RULES.get(node.primitive)
    if rule is None:
        raise no_rule(node, env.site)
    try:
        return rule(node, *operands)
    except TypeError as error:
        if isinstance(error, MomentsError):
            raise
        raise no_rule(node, env.site, f"can't be propagated here: {error}") from error


def shares_source(node: Node, env: Environment) -> bool:
    """Whether two operands of an equation depend on one random input."""
    seen: set[Any] = set()
    for atom in node.inputs:
        sources = env.sources.get(atom, frozenset()) if isinstance(atom, Value) else frozenset()
        if seen & sources and node.primitive not in _MOVES:
            return True
        seen |= sources
    return False


# These only put entries side by side: no entry meets another.
_MOVES = {prim.p.concatenate_p, prim.p.dynamic_update_slice_p, prim.p.pad_p, prim.p.select_n_p}


def _is_twice(node: Node) -> bool:
    return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
