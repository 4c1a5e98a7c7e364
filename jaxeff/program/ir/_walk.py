"""Follows what is known of values through equations: the one loop over a jaxpr or a list of nodes.

What is followed is the caller's: arrays, signs, degrees, dimensions, symbols. A rule says what an
equation makes of its operands; here are the variables' scope, literals, constants, and calls
(`jit`, composites, custom derivatives), whose bodies stand in their place. Loops and branches
are equations like any other; `_loops.py` tells their parts.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar

from jaxeff.core import ClosedJaxpr, JaxprEqn, Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import _primitives as prim

T = TypeVar("T")
_ENTERED = prim.CALLS | prim.CUSTOM
Rule = Callable[[JaxprEqn, list[T]], Sequence[T]]
"""Gives one result per output of an equation, for one operand per input."""
Constant = Callable[[Any, Any], T]
"""Gives what is known of a literal or a variable that holds a constant, and of its value."""


class Step(Protocol):
    """An equation with variables of its own, such as a `Node`."""

    eqn: JaxprEqn
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def _value(atom: Any, value: Any) -> Any:
    del atom
    return value


def walk(
    closed: ClosedJaxpr, values: Iterable[T], rule: Rule[T], constant: Constant[T] = _value
) -> list[T]:
    """Follows values through a jaxpr.

    Args:
        closed: The jaxpr.
        values: One per input.
        rule: Called for every equation, calls too (`entering` makes one that enters them).
        constant: Called for literals, and for the jaxpr's own constants; takes their values if it
            isn't given.

    Returns:
        One value per output.
    """
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.invars, values, strict=True))
    known.update((v, constant(v, c)) for v, c in zip(jaxpr.constvars, closed.consts, strict=True))
    equations = ((eqn, eqn.invars, eqn.outvars) for eqn in jaxpr.eqns)
    return _follow(equations, known, jaxpr.outvars, rule, constant)


def walk_nodes(
    nodes: Iterable[Step],
    known: MutableMapping[Any, T],
    outputs: Iterable[Any],
    rule: Rule[T],
    constant: Constant[T] = _value,
) -> list[T]:
    """Follows values through nodes.

    Args:
        nodes: Each after those whose results it reads.
        known: Holds the values of all that they read and don't make; the others' are added.
        outputs: Values and literals whose values to return.
        rule: Called for every node's equation.
        constant: Called for literals, as in `walk`.
    """
    equations = ((node.eqn, node.inputs, node.outputs) for node in nodes)
    return _follow(equations, known, outputs, rule, constant)


def _follow(
    equations: Iterable[tuple[JaxprEqn, Sequence[Any], Sequence[Any]]],
    known: MutableMapping[Any, T],
    outputs: Iterable[Any],
    rule: Rule[T],
    constant: Constant[T],
) -> list[T]:
    def read(atom: Any) -> T:
        return constant(atom, atom.val) if isinstance(atom, Literal) else known[atom]

    for eqn, inputs, made in equations:
        known.update(zip(made, rule(eqn, [read(a) for a in inputs]), strict=True))
    return [read(a) for a in outputs]


def entering(rule: Rule[T], constant: Constant[T] = _value) -> Rule[T]:
    """Makes a rule that follows calls into their bodies, and leaves the rest to `rule`."""

    def entered(eqn: JaxprEqn, values: Sequence[T]) -> Sequence[T]:
        if eqn.primitive in _ENTERED:
            # The first jaxpr is the primal function's: a custom derivative's rules come later.
            return walk(_compat.sub_jaxprs(eqn)[0], values, entered, constant)
        return rule(eqn, list(values))

    return entered


def inside(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """Yields an equation, or of a call those of its body, at any depth."""
    if eqn.primitive not in _ENTERED:
        yield eqn
        return
    for inner in _compat.sub_jaxprs(eqn)[0].jaxpr.eqns:
        yield from inside(inner)
