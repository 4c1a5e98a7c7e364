"""Finds random values that are applied to what they made before, and warns of them.

A recurrence, `h = tanh(h @ w + x)`, reads one w at all steps. Noise of w moves h at every step, and
these moves depend on one another; the pass takes each as a new one. Whether they add up or cancel
depends on the states and inputs that w meets, not on the structure: of eight units at noise of
5 % the variances after five steps are .8 to 1.3 of the true ones where inputs are new at every
step, and .8 to 2.2 where they repeat. A state that is kept in part adds them up: `.5 * h + x @ w`
has .35 of the true variance where inputs repeat, `h + .2 * (tanh(h @ w) - h)` .21 whatever they
are. Blocks with one kernel, written one after the other (ALBERT, arXiv 1909.11942; the steps of an
integrator), are alike in this.

Sharp edges
- Products with one kernel that don't follow on each other (two towers with the same weights) aren't
  looked for.
- Steps that read another row of an array each, by a count, read no row twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxeff.core import primitives as p
from jaxeff.core import split_p
from jaxeff.moment_propagation.values import MomentsWarning
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Node, Scan, Value, While
from jaxeff.program.ir import primitives as prim

# Without a sum, twice in a row keeps .99 of the true variance (.86 to 1.18); three convolutions
# .88 (.64 to 1.15), three dense layers with repeated inputs 1.11 (.74 to 2.81).
_FEW_TIMES = 2

_SUMS = {p.add_p, p.add_jaxvals_p, p.sub_p}
_CUTS = {p.slice_p, split_p}
_LOOKED_UP = {p.dynamic_slice_p, p.gather_p}

Times = Mapping[Hashable, tuple[int, int]]
"""How often each random kernel was applied to what it had made; of factors, the least and most."""


class Reuse(NamedTuple):
    """Where a random value meets what it made before.

    Attributes:
        site: The site of a loop, or of the layer.
        is_loop: Whether it is a loop.
    """

    site: str
    is_loop: bool


def reused(program: Program, random: Collection[Value]) -> Reuse | None:
    """Finds the first loop or layer that applies a random value to what it made before.

    Args:
        program: A program or a loop's body.
        random: Inputs of it that are random.

    Returns:
        The place; None if there is none.
    """
    known, kernels = set(random), _UseSearch({v: frozenset((v,)) for v in random})
    for layer in program.layers:
        if known.isdisjoint(layer.inputs):
            continue
        known.update(layer.outputs)
        if _repeats(layer, known):
            return Reuse(layer.site or layer.kind, is_loop=True)
        if any(kernels.visit(node) for node in layer.nodes):
            return Reuse(layer.site or layer.kind, is_loop=False)
    return None


def warn_of_reuse(found: Reuse) -> None:
    """Warns of random values that are applied to what they made before."""
    what = (
        f"the steps of {found.site!r} read the same random values, and what these made at steps "
        "before"
        if found.is_loop
        else f"{found.site!r} is made of a random kernel that was applied to its own results"
    )
    warnings.warn(
        f"moments: {what}; noise that is the same each time is taken as independent, and variances "
        "may be several times too small or too large. Take method='linear' or correlations=True, "
        "or moments(f, shared=False) to leave it so.",
        MomentsWarning,
        stacklevel=2,
    )


@dataclass
class _UseSearch:
    """Which random parameters have made a value, and how often.

    Attributes:
        origins: The random parameters that a value without data is made of.
        times: How often random kernels were applied, by value with data.
    """

    origins: dict[Value, frozenset[Hashable]]
    times: dict[Value, Times] = field(default_factory=dict)

    def visit(self, node: Node) -> bool:
        """Reads an equation; returns whether a kernel meets what it made before."""
        if not any(v.is_data for v in node.values):
            self._make_parameter(node)
            return False
        found = [self.times[v] for v in node.values if v in self.times]
        times: dict[Hashable, tuple[int, int]] = {}
        for w in frozenset[Hashable]().union(*found):
            counts = [one[w] for one in found if w in one]
            times[w] = min(n for n, _ in counts), max(n for _, n in counts)
            if node.primitive in _SUMS and len(counts) > 1 and len(set(counts)) > 1:
                return True
        if node.primitive in prim.LINEAR:
            kernels = [self.origins.get(v, frozenset()) for v in node.values if not v.is_data]
            for w in frozenset[Hashable]().union(*kernels):
                n = times.get(w, (0, 0))[1] + 1
                times[w] = n, n
        if times:
            self.times.update(dict.fromkeys(node.outputs, times))
        return any(most > _FEW_TIMES for _, most in times.values())

    def _make_parameter(self, node: Node) -> None:
        given = [self.origins[v] for v in node.values if v in self.origins]
        if not given:
            return
        origins = frozenset[Hashable]().union(*given)
        for place, made in enumerate(node.outputs):
            if node.primitive in _CUTS:
                # Another block of stacked kernels is another one; the same block, cut again, isn't.
                cut = (str(node.eqn.params), place)
                self.origins[made] = frozenset((w, *cut) for w in origins)
            else:
                looked_up = node.primitive in _LOOKED_UP
                self.origins[made] = frozenset((made,)) if looked_up else origins


def _repeats(layer: Layer, random: Collection[Value]) -> bool:
    """Returns whether steps of a loop read the same random values and what these made before."""
    loop = _loop(layer)
    if loop is None or (isinstance(loop, Scan) and loop.length < 2):
        return False
    body, first = layer.programs[-1], len(loop.consts)
    # What a step hands on as it is, is read by all steps as well.
    ends = dict(zip(body.inputs[first : first + len(loop.carry)], body.outputs, strict=False))
    states = {v: end for v, end in ends.items() if end is not v}
    given = zip(body.inputs, [*loop.consts, *loop.carry], strict=False)
    noisy = {v for v, outer in given if isinstance(outer, Value) and outer in random}
    changing = _made_of(body, {*states, *body.inputs[first + len(ends) :]}, floats=False)
    tied = {v for v in noisy - states.keys() if not _is_looked_up(body, v, changing)}
    moved = set[Value]()  # states that have noise of what is tied
    while (made := _made_of(body, tied | moved)) and (
        more := {v for v, end in states.items() if end in made} - moved
    ):
        moved |= more
    again = _made_of(body, moved)
    return any(end in again for end in states.values())


def _loop(layer: Layer) -> Scan[Any] | While[Any] | None:
    if layer.kind != "control flow":
        return None
    (node,) = layer.nodes
    if node.primitive is p.scan_p:
        return Scan.of(node, node.inputs)
    return While.of(node, node.inputs) if node.primitive is p.while_p else None


def _is_looked_up(body: Program, value: Value, changing: Collection[Value]) -> bool:
    """Returns whether steps read a value only in part, each by another index."""
    readers = [node for node in _nodes(body) if value in node.values]
    return value not in body.outputs and all(
        node.primitive in _LOOKED_UP
        and node.inputs[0] is value
        and not set(changing).isdisjoint(node.values)
        for node in readers
    )


def _made_of(program: Program, values: Iterable[Value], *, floats: bool = True) -> set[Value]:
    """Returns what a program makes of some values, and these; of it floats alone pass on noise."""
    made = set(values)
    for node in _nodes(program):
        if not made.isdisjoint(node.values):
            made.update(
                v for v in node.outputs if not floats or jnp.issubdtype(v.aval.dtype, jnp.floating)
            )
    return made


def _nodes(program: Program) -> Iterable[Node]:
    return (node for layer in program.layers for node in layer.nodes)
