"""Follows what is known of values through equations, and through the parts of loops.

One loop walks a jaxpr or a list of nodes. What is followed is the caller's: arrays, signs, degrees,
dimensions, symbols. A rule says what an
equation makes of its operands; here are the variables' scope, literals, constants, and calls
(`jit`, composites, custom derivatives), whose bodies stand in their place. Loops and branches
are equations like any other.

JAX keeps a loop's operands in one list and their numbers in its parameters, under other names for
each primitive. Here the list is split once, so that readers say `loop.carry`. (Of a `cond`, the
first operand is the index of the branch and the others go to every branch.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

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

    for eqn, inputs, results in equations:
        known.update(zip(results, rule(eqn, [read(a) for a in inputs]), strict=True))
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


R = TypeVar("R")


@dataclass(frozen=True)
class _Loop(Generic[T]):
    """Base of scans and while loops.

    Attributes:
        consts: What every iteration reads.
        carry: What an iteration changes, as it is before the first.
        xs: What iterations read one row of each.
        body: What an iteration computes.
    """

    consts: list[T]
    carry: list[T]
    xs: list[T]
    body: ClosedJaxpr

    def inputs(self, carry: Sequence[T], row: Sequence[T] | None = None) -> list[T]:
        """Orders the inputs of the body, for the carry and the rows of one iteration."""
        return [*self.consts, *carry, *(self.xs if row is None else row)]

    def split(self, outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Splits the body's outputs, or the loop's, into the carry and what is stacked."""
        return list(outputs[: len(self.carry)]), list(outputs[len(self.carry) :])


@dataclass(frozen=True)
class Scan(_Loop[T]):
    """The parts of a `lax.scan`.

    Attributes:
        length: Number of runs of the body.
        reverse: Whether it begins with the last row.
        unroll: Number of iterations that one step of the compiled loop takes.
    """

    length: int
    reverse: bool
    unroll: int

    @classmethod
    def of(cls, node: Any, values: Sequence[T]) -> Scan[T]:
        """Splits a scan's operands.

        Args:
            node: The node or equation of a scan.
            values: One per operand.
        """
        q = node.params
        first, carries = _compat.scan_counts(q)
        last = first + carries
        consts, carry, xs = values[:first], values[first:last], values[last:]
        body, length, reverse, unroll = (q[n] for n in ("jaxpr", "length", "reverse", "unroll"))
        return cls([*consts], [*carry], [*xs], body, length, reverse, unroll)

    def unrolled(
        self, run: Callable[[list[T]], Sequence[T]], row: Callable[[T, int], T]
    ) -> tuple[list[T], list[list[T]]]:
        """Runs the body once for each row.

        Args:
            run: Gives the body's outputs for its inputs.
            row: Reads a row of one of the `xs`.

        Returns:
            The carry after the last iteration, and what each row made, in the order of rows.
        """
        steps, carry, rows = range(self.length), self.carry, []
        for i in reversed(steps) if self.reverse else steps:
            carry, ys = self.split(run(self.inputs(carry, [row(x, i) for x in self.xs])))
            rows.append(ys)
        return carry, rows[::-1] if self.reverse else rows


@dataclass(frozen=True)
class While(_Loop[T]):
    """The parts of a `lax.while_loop`, which has no `xs`.

    Attributes:
        test: What decides whether another iteration follows.
        test_consts: What the test reads beside the carry.
    """

    test: ClosedJaxpr
    test_consts: list[T]

    @classmethod
    def of(cls, node: Any, values: Sequence[T]) -> While[T]:
        """Splits a while loop's operands: see `Scan.of`."""
        q = node.params
        first, last = q["cond_nconsts"], q["cond_nconsts"] + q["body_nconsts"]
        fixed, consts, carry = values[:first], values[first:last], values[last:]
        return cls([*consts], [*carry], [], q["body_jaxpr"], q["cond_jaxpr"], [*fixed])

    def test_inputs(self, carry: Sequence[T]) -> list[T]:
        """Orders the inputs of the test."""
        return [*self.test_consts, *carry]


def repetitions(node: Any) -> int:
    """Returns the number of runs of a loop's body: one for a `while`, whose length isn't known."""
    return node.params["length"] if node.primitive is prim.p.scan_p else 1


def fixed_point(
    body: Callable[[list[T]], tuple[Sequence[T], R]],
    carry: Sequence[T],
    join: Callable[[T, T], T],
    compared: Callable[[list[T]], Any] = list,
) -> tuple[list[T], R]:
    """Widens a loop's carry until an iteration leaves it as it is.

    Args:
        body: Gives the carry after an iteration, and something else.
        carry: What holds before the first iteration.
        join: Gives what holds of both its arguments. Repeated, it must come to an end.
        compared: What of a carry says whether it has changed: all of it, unless arrays in it
            can't be compared.

    Returns:
        The widened carry, and what the last iteration gave beside it.
    """
    carry = list(carry)
    while True:
        after, rest = body(carry)
        wider = [join(a, b) for a, b in zip(carry, after, strict=True)]
        if compared(wider) == compared(carry):
            return carry, rest
        carry = wider
