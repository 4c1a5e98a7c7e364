"""Propagates moments through the equations of a layer, and tracks dependence in it.

`propagate` runs equations one after the other under the rules of `rules`, which take operands
as independent. The layer's random inputs are independent of each other, entries and all
(`fuse_dependent` has joined layers until they are, or noted that it is assumed). Where dependent
entries meet inside the layer a rule would be wrong: that is an error, unless the environment allows
to assume independence, which is then noted.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.moment_propagation.dependence import (
    Assumption,
    DependentCombination,
    Lineage,
    Note,
    independent_lineages,
    walk,
)
from jaxeff.moment_propagation.regions._repeated_rows import sum_of_rows
from jaxeff.moment_propagation.regions._running_sums import difference, weighs_by_differences
from jaxeff.moment_propagation.rules import DISCRETE, RULES, Rule, shared_operand
from jaxeff.moment_propagation.values import (
    AtMean,
    DependenceError,
    MomentsError,
    MomentsWarning,
    is_random,
    no_rule,
)
from jaxeff.program import Layer
from jaxeff.program.ir import Node, Value
from jaxeff.program.reading import known_number


@dataclass
class Environment:
    """The values of a layer while it is evaluated.

    Attributes:
        layer: The layer.
        rules: Rules of the user's own, by primitive; they come before the built-in ones.
        assume: Function that notes an assumption of independence; None where none may be made.
        values: Arrays and random arrays by traced value.
        lineages: Dependence of values on the layer's random inputs.
        meetings: The equations that combine dependent entries.
        numbers: Deterministic values that are one known number everywhere.
        approximated: Places where a rule is known to be inexact.
    """

    layer: Layer
    rules: Mapping[Any, Rule]
    assume: Note | None = None
    values: dict[Any, Any] = field(default_factory=dict)
    lineages: dict[Any, Lineage] = field(default_factory=dict)
    meetings: dict[Node, list[DependentCombination]] = field(default_factory=dict)
    numbers: dict[Any, float] = field(default_factory=dict)
    approximated: list[Assumption] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        layer: Layer,
        values: Sequence[Any],
        rules: Mapping[Any, Rule],
        assume: Note | None = None,
    ) -> Environment:
        """Makes the environment of a layer from its inputs."""
        env = cls(layer, rules, assume, dict(zip(layer.inputs, values, strict=True)))
        random = [v for v in layer.inputs if is_random(env.values[v])]
        # The lineages of all equations at once, before any is evaluated: they depend on shapes
        # alone.
        env.lineages, env.meetings = walk(layer.nodes, independent_lineages(random))
        return env

    @property
    def site(self) -> str:
        """The layer's name, for error messages."""
        return self.layer.site

    def read(self, atom: Any) -> Any:
        """Returns the value of an equation's operand."""
        return atom.val if isinstance(atom, Literal) else self.values[atom]

    def number(self, atom: Any) -> float | None:
        """Returns the number an operand is everywhere, or None where that isn't known."""
        if isinstance(atom, Literal):
            return float(atom.val) if np.ndim(atom.val) == 0 else None
        return self.numbers.get(atom)

    def sources(self, atom: Any) -> frozenset:
        """Returns the layer's random inputs that a value depends on."""
        return frozenset(self.lineages.get(atom, ())) if isinstance(atom, Value) else frozenset()

    def write(self, outputs: Sequence[Value], results: Sequence[Any]) -> None:
        """Records an equation's results."""
        self.values.update(zip(outputs, results, strict=True))


def propagate(nodes: Sequence[Node], env: Environment) -> None:
    """Evaluates equations in order, writing their results into `env`.

    Raises:
        DependenceError: A primitive combines dependent entries; independence mustn't be assumed.
        MomentsError: A primitive has no rule, or computes on from a discrete function of a random
            value.
    """
    for node in nodes:
        step(node, env)


def step(node: Node, env: Environment) -> None:
    """Evaluates one equation."""
    operands = [env.read(a) for a in node.inputs]
    if any(isinstance(o, AtMean) for o in operands):
        raise no_rule(node, env.site, "computes with a discrete function of a random value")
    if not any(is_random(o) for o in operands):
        env.write(node.outputs, _compat.bind(node.eqn, *operands))
        # An epsilon or a floor may have been computed: statistics and kinks need it as a number.
        number = known_number(node.eqn, [env.number(a) for a in node.inputs])
        if number is not None:
            env.numbers[node.outputs[0]] = number
        return
    env.write(node.outputs, _apply(node, operands, env))


def _apply(node: Node, operands: Sequence[Any], env: Environment) -> Sequence[Any]:
    if node.primitive in env.rules:
        return env.rules[node.primitive](node, *operands)
    if node.primitive in DISCRETE:
        # Discrete results have no variance: they are those of the means, and marked as such.
        means = [o.mean if is_random(o) else o for o in operands]
        return [AtMean(v) for v in _compat.bind(node.eqn, *means)]
    if node in env.meetings:
        same = shared_operand(node, operands[0]) if _is_twice(node) else None
        if same is not None:
            return same
        between = difference(node, env.layer.nodes, env.meetings, operands)
        if between is None:
            tables = [v for v in env.layer.inputs if env.lineages.get(v)]
            between = sum_of_rows(
                node, env.layer.nodes, tables, lambda a: env.number(a) is not None, env.read
            )
        if between is not None:
            return [between]
        if env.assume is None:
            reason = "combines values that depend on the same random input"
            raise no_rule(node, env.site, reason, DependenceError)
        # The last resort of `region`: earlier attempts had no `assume` and failed here.
        for meeting in env.meetings[node]:
            env.assume(Assumption.of(env.layer, meeting))
        if weighs_by_differences(node, env.layer.nodes):
            _warn_of_differences(env)
    rule = RULES.get(node.primitive)
    if rule is None:
        raise no_rule(node, env.site)
    try:
        return rule(node, *operands)
    except TypeError as error:
        if isinstance(error, MomentsError):
            raise
        raise no_rule(node, env.site, f"can't be propagated here: {error}") from error


def _warn_of_differences(env: Environment) -> None:
    warnings.warn(
        f"moments: {env.site or env.layer.kind!r} takes the exponential of a difference of two "
        "running sums, whose terms share noise, as if the two were independent: variances may be "
        "far too large. Take method='linear', or draw samples.",
        MomentsWarning,
        stacklevel=2,
    )


def _is_twice(node: Node) -> bool:
    return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
