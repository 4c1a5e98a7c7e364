"""Which method `moments(f)` takes: the diagonal pass where it is right, the linear one elsewhere.

Where lineage proves that the operands of every layer are independent (`dependence.fuse_dependent`
finds no place that combines dependent entries and isn't integrated as a whole), the diagonal pass
is right. Elsewhere the linear method is, to first order, at the price of a pass backward for each
result of an example: it is taken up to `LINEAR_RESULTS` of them. Beyond, the diagonal pass is taken
all the same, with a `MomentsWarning` if what entries share adds up somewhere.

Sharp edges
- The linear method follows slopes. A function that has none where random values reach it (rounding
  of values, a mask made of a random comparison) or a loop of unknown length has the diagonal pass.
- What the user gives for layers (`rules`, `form="raw"`) is the diagonal pass's.
- The choice depends on the program and on shapes, never on values: it is the same under `jit`.
- Whether what is shared matters depends on values: where they are at hand, outside of `jit`,
  results are compared with `DRAWS` draws before the warning is given.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import jax.numpy as jnp

from jaxeff.core import primitives as p
from jaxeff.moment_propagation._moment_pass import RandomProgram
from jaxeff.moment_propagation.dependence import Assumptions, Ratio
from jaxeff.moment_propagation.linear import LINEAR_RESULTS, results_of_an_example
from jaxeff.moment_propagation.rules import Kind, kind_of
from jaxeff.program import Program
from jaxeff.program.ir import Node, Value

METHODS = ("auto", "diagonal", "linear", "calibrated")
DRAWS = 100
"""Draws that results are compared with before a warning."""
_MEDIAN, _SINGLE = (0.8, 1.25), (0.5, 2.0)
"""What the median of variances over the drawn ones has to lie within, and nine in ten of them."""
_NINE_IN_TEN = 3.29
"""From 5 to 95 % of a normal value, in deviations."""


def misleads(ratio: Ratio) -> bool:
    """Returns whether variances are off by more than a user would want to know."""
    if ratio.low <= 0 or not _MEDIAN[0] <= ratio.median <= _MEDIAN[1]:
        return True
    # Of a ratio's logarithm the draws' own error makes a part, which isn't the moments'.
    deviation = math.log(ratio.high / ratio.low) / _NINE_IN_TEN
    share = math.sqrt(1 - min(ratio.error / deviation, 1) ** 2) if deviation else 0
    low, high = (ratio.median * (end / ratio.median) ** share for end in (ratio.low, ratio.high))
    return not (_SINGLE[0] <= low and high <= _SINGLE[1])


@dataclass(frozen=True)
class MethodChoice:
    """The method that `moments(f)` takes at some arguments, and why. It prints as a sentence.

    Attributes:
        method: "diagonal", "linear" or "calibrated".
        reason: Why it is this one.
        places: Places where dependent entries are combined, as `assumptions` lists them.
    """

    method: str
    reason: str
    places: Assumptions = field(default_factory=Assumptions)

    @property
    def adds_up(self) -> bool:
        """Whether what entries share adds up somewhere that the method takes as independent."""
        return self.method == "diagonal" and any(one.adds_up for one in self.places)

    def __str__(self) -> str:
        """Returns a sentence, and the first places."""
        return f"{self.method}: {self.reason}"

    def warning(self, deployed: bool, measured: Ratio | None = None) -> str:
        """Returns the words of the one warning: what is off, or may be, and what to do."""
        first, *more = (one for one in self.places if one.adds_up)
        others = f", as at {len(more)} other places" if more else ""
        way = (
            "calibrate_moments(key, f, params, x) measures factors that make up for it"
            if deployed
            else "moments_check(key, f, params, x) says by how much; calibrate_moments makes up "
            "for it, method='linear' follows it, and method='diagonal' takes it as it is"
        )
        off = "may be too small or too large"
        if measured is not None:
            off = f"are {measured} of those of {DRAWS} draws"
        return (
            f"moments: at {first.site or first.kind!r}, {first.reason} (of "
            f"{', '.join(first.shares[:3])}), taken as independent{others}: variances {off}. {way}."
        )


def choose(read: RandomProgram, places: Assumptions, *, layers_only: bool) -> MethodChoice:
    """Chooses between the diagonal pass and the linear method.

    Args:
        read: The function at its arguments, as it is evaluated.
        places: Places where the diagonal pass would combine dependent entries.
        layers_only: Whether the linear method is out of question.
    """
    if not places:
        return MethodChoice("diagonal", "no dependent entries are combined")
    if layers_only:
        return MethodChoice("diagonal", "rules and forms of layers are for this method", places)
    if (obstacle := _obstacle(read.program, read.random)) is not None:
        return MethodChoice("diagonal", f"{obstacle} has no slope to follow", places)
    entries = results_of_an_example(read)
    if entries > LINEAR_RESULTS:
        reason = f"dependent entries are combined, but {entries} results an example are many"
        return MethodChoice("diagonal", reason, places)
    first = places[0].site or places[0].kind
    reason = f"{first!r} combines dependent entries, and an example has few results, {entries}"
    return MethodChoice("linear", reason, places)


def _obstacle(program: Program, random: Collection[Value]) -> str | None:
    """Names the first layer that random values reach and that has no slope; None without one."""
    reached, decisions = set(random), set[Value]()
    for layer in program.layers:
        if reached.isdisjoint(layer.inputs) and decisions.isdisjoint(layer.inputs):
            continue
        name = layer.site or layer.kind
        if layer.kind == "quantize" or any(n.primitive is p.while_p for n in layer.nodes):
            return name
        if any(_obstacle(part, part.inputs) is not None for part in layer.programs):
            return name
        for node in layer.nodes:
            if _is_step(node, reached, decisions):
                return name
            if not reached.isdisjoint(node.values):
                for value in node.outputs:
                    is_float = jnp.issubdtype(value.aval.dtype, jnp.inexact)
                    (reached if is_float else decisions).add(value)
            elif not decisions.isdisjoint(node.values):
                decisions.update(node.outputs)
        if not layer.nodes or layer.programs:
            reached.update(layer.outputs)
    return None


def _is_step(node: Node, reached: Collection[Value], decisions: Collection[Value]) -> bool:
    """Returns whether an equation makes numbers of random values without a slope."""
    random = [v for v in node.values if v in reached]
    if kind_of(node.primitive) is Kind.STEP:
        return bool(random)
    # What a random decision chooses between has a slope only if it is random itself.
    makes_floats = any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in node.outputs)
    return makes_floats and not random and any(v in decisions for v in node.values)
