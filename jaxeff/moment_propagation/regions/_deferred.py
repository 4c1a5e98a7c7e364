"""Pointwise functions of one random value, integrated where their moments are first needed.

Equation by equation `where(x > 0, x, a * x)` would choose by a decision that is random, and
`max(softplus(x), b)` take a softplus as Gaussian. So pointwise equations that follow from one
random value alone wait until one that isn't (a sum, a product with another random value) reads
them, and are integrated over that value then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxeff.moment_propagation.dependence import is_pointwise
from jaxeff.moment_propagation.regions._propagation import Environment, step
from jaxeff.moment_propagation.values import AtMean, is_random
from jaxeff.program.ir import Node, Value


@dataclass
class Deferred:
    """The equations that wait.

    Attributes:
        env: Environment that values are read from and written to.
        integrate: Integrates equations over a random value and writes one result.
        root_of: For each value that waits, or has waited, the random value it is a function of.
        nodes: The equations that make them, in order.
    """

    env: Environment
    integrate: Callable[[list[Node], Value, Value], None]
    root_of: dict[Value, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def take(self, node: Node) -> None:
        """Evaluates an equation, or defers it."""
        if self.wait(node):
            return
        # The equation is no function of one random value alone: its operands are needed as moments.
        for value in node.values:
            self.settle(value)
        step(node, self.env)

    def wait(self, node: Node) -> bool:
        """Defers an equation that is a pointwise function of one random value."""
        values = self.env.values
        # A rule of the user's own replaces one equation, so that one can't be part of an integral.
        if not is_pointwise(node.eqn) or node.primitive in self.env.rules:
            return False
        others = [v for v in node.values if v not in self.root_of]
        if any(v not in values or isinstance(values[v], AtMean) for v in others):
            return False
        # An integral over two random values would cost the square: they are combined as moments.
        roots = {self.root_of[v] for v in node.values if v in self.root_of}
        roots.update(v for v in others if is_random(values[v]))
        if len(roots) != 1:
            return False
        self.root_of.update(dict.fromkeys(node.outputs, *roots))
        self.nodes.append(node)
        return True

    def settle(self, value: Value) -> None:
        """Integrates the deferred equations that make a value, if there are any."""
        if value not in self.root_of or value in self.env.values:
            return
        # Only the equations that this value follows from: others that wait may never be read.
        needed, made = {value}, []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.outputs):
                made.append(node)
                needed.update(node.values)
        self.integrate(made[::-1], self.root_of[value], value)
