"""The parts of loops, whatever stands for their values: arrays, roles, axes.

JAX keeps a loop's operands in one list and their numbers in its parameters, under other names for
each primitive. Here the list is split once, so that readers say `loop.carry`. (Of a `cond`, the
first operand is the index of the branch and the others go to every branch.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jaxeff.core import ClosedJaxpr
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import _primitives as prim

T = TypeVar("T")
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
        steps, carry, made = range(self.length), self.carry, []
        for i in reversed(steps) if self.reverse else steps:
            carry, ys = self.split(run(self.inputs(carry, [row(x, i) for x in self.xs])))
            made.append(ys)
        return carry, made[::-1] if self.reverse else made


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
