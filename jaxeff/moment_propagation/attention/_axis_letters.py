"""Letters for axes: the same letter for axes of several arrays that meet entry by entry."""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import is_pointwise
from jaxeff.program.ir import Contraction, Node, Value
from jaxeff.program.ir import axes as following


class Alphabet:
    """Letters that nobody has yet: small ones, then capitals."""

    def __init__(self) -> None:
        self._left: Iterator[str] = iter(string.ascii_letters)

    def take(self, count: int) -> str:
        """Returns new letters."""
        return "".join(itertools.islice(self._left, count))


def is_followed(node: Node) -> bool:
    """Returns whether letters go through an equation: pointwise, or moving whole axes."""
    if is_pointwise(node.eqn) or node.primitive is p.convert_element_type_p:
        return True
    return node.primitive in following.MOVES and _moved(node) is not None


def _moved(node: Node) -> following.Axes | None:
    """Returns where each axis of the operand has gone, by its number."""
    shape = node.inputs[0].aval.shape
    return following.moved(node.eqn, tuple(range(len(shape))), shape)


def before(node: Node, result: str, operand: Value, alphabet: Alphabet) -> str | None:
    """Returns the letters of a followed equation's operand, given its result's; None if unknown."""
    shape, after = operand.aval.shape, node.outputs[0].aval.shape
    if node.primitive not in following.MOVES:
        return result if shape == after else None
    moved = _moved(node)
    if moved is None:
        return None
    places = {axis: letter for axis, letter in zip(moved, result, strict=True) if axis is not None}
    if any(n != 1 and axis not in places for axis, n in enumerate(shape)):
        return None
    return "".join(places.get(axis) or alphabet.take(1) for axis in range(len(shape)))


def of_values(
    nodes: Sequence[Node],
    dependent: Collection[Value],
    known: Mapping[Value, str],
    alphabet: Alphabet,
) -> dict[Value, str] | None:
    """Follows letters back through equations.

    Args:
        nodes: Pointwise and moving equations, in order.
        dependent: Values to follow.
        known: Letters of the last results.
        alphabet: Letters to take new ones from.

    Returns:
        The letters of all values; None where an axis can't be followed, or goes two ways.
    """
    letters = dict(known)
    for node in reversed(nodes):
        for value in (v for v in node.values if v in dependent):
            own = before(node, letters[node.outputs[0]], value, alphabet)
            if own is None or letters.setdefault(value, own) != own:
                return None
    return letters


def of_operands(node: Node, result: str, alphabet: Alphabet) -> tuple[str, str]:
    """Returns the letters of a dot product's operands, given its result's."""
    c = Contraction.of(node)
    batch = result[: len(c.batch(0))]
    rows = result[len(batch) :][: len(c.free(0))]
    columns = result[len(batch) + len(rows) :]
    summed = alphabet.take(len(c.summed(0)))
    sides = []
    for side, free in enumerate((rows, columns)):
        places = dict(
            zip(c.batch(side) + c.summed(side) + c.free(side), batch + summed + free, strict=True)
        )
        sides.append("".join(places[axis] for axis in range(len(places))))
    return sides[0], sides[1]


def of_product(node: Node, side: int, own: str, alphabet: Alphabet) -> tuple[str, str]:
    """Returns letters of a dot product's other operand and its result, given one operand's."""
    c = Contraction.of(node)
    other = 1 - side
    places = {
        o: own[axis]
        for pair in (c.batch, c.summed)
        for axis, o in zip(pair(side), pair(other), strict=True)
    }
    letters = [places.get(axis) or alphabet.take(1) for axis in range(len(c.shapes[other]))]
    both = {side: own, other: "".join(letters)}
    batch = [own[axis] for axis in c.batch(side)]
    free = [both[i][axis] for i in (0, 1) for axis in c.free(i)]
    return both[other], "".join(batch + free)
