"""The places where moments take dependent values as independent, for people to read.

A rule of moment propagation is exact for independent operands. Where operands depend on one another
and no exact rule is known, independence is assumed, and such a place is an `Assumption`. See
`_fusion` for how they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jaxeff.core import jax_internals as _compat
from jaxeff.moment_propagation.dependence._lineage import SHARED, DependentCombination, Lineage
from jaxeff.program import Layer
from jaxeff.program.ir import Node, Value


class Ratio(NamedTuple):
    """Ratio of a rule's variance to Monte Carlo's, over the entries of a result.

    Attributes:
        median: Half of the entries are below.
        low: One entry in twenty is below.
        high: One entry in twenty is above.
        error: The standard error of one entry's ratio that the number of samples leaves.
    """

    median: float
    low: float
    high: float
    error: float

    def __str__(self) -> str:
        """Returns the median and the range."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Assumption:
    """A place where independence is assumed.

    Attributes:
        site: The layer's name; for one without a site, what it prepares an operand of is unnamed.
        kind: The layer's kind.
        reason: The values taken as independent.
        shares: The random arrays that more than one entry of its operands depends on: parameter
            paths, `input`, or the site of a loop.
        line: Source line of the operation, `file:line (function)`.
        ratio: Ratio of the rule's variance to Monte Carlo's, given its inputs' true moments;
            None until it was estimated.
    """

    site: str
    kind: str
    reason: str
    shares: tuple[str, ...]
    line: str
    ratio: Ratio | None = None

    @classmethod
    def of(
        cls,
        layer: Layer,
        meeting: DependentCombination,
        leaves: Mapping[Value, Lineage] | None = None,
    ) -> Assumption:
        """Makes the assumption that a layer combines independent entries where they meet.

        Args:
            layer: The layer.
            meeting: The dependent entries it combines.
            leaves: Lineage of the source from the random inputs.
        """
        name = meeting.eqn.primitive.name
        reason = (
            f"{name} combines entries of one array that share noise"
            if meeting.along
            else f"{name} combines values that share noise"
        )
        shared = _names(_shared(meeting, leaves or {}) or [meeting.source])
        return cls(layer.site, layer.kind, reason, shared, _compat.source_line(meeting.eqn))

    @classmethod
    def in_a_loop(cls, layer: Layer, sources: Iterable[Any]) -> Assumption:
        """Makes the assumption that what a loop or branch reads is fresh at every step."""
        node = layer.nodes[0]
        reason = f"{node.primitive.name} takes what it reads as independent, at every step anew"
        line = _compat.source_line(node.eqn)
        return cls(layer.site, layer.kind, reason, _names(sources), line)

    @classmethod
    def expanded(cls, layer: Layer, random: Iterable[Any]) -> Assumption:
        """Makes the assumption that a smooth function of several dependent entries is quadratic."""
        reason = "dependent entries are combined, to second order about their means,"
        line = _compat.source_line(layer.nodes[-1].eqn)
        return cls(layer.site, layer.kind, reason, _names(random), line)

    @classmethod
    def approximated(cls, layer: Layer, node: Node, root: Value, name: str) -> Assumption:
        """Makes the assumption that a statistic has the distribution of its rule."""
        reason = f"the {name} of so few entries is approximated, a statistic"
        if name == "logsumexp":
            reason = "pairs of a log-sum-exp are taken as Gaussian, a statistic"
        line = _compat.source_line(node.eqn)
        return cls(layer.site, layer.kind, reason, _names([root]), line)

    def __str__(self) -> str:
        """Returns one line: where, what, and how far off."""
        where = self.site or "(operand)"
        off = "" if self.ratio is None else f", variance {self.ratio} of the true one"
        return f"{where}: {self.reason} of {', '.join(self.shares)}{off} [{self.line}]"


Note = Callable[[Assumption], None]


def _shared(meeting: DependentCombination, leaves: Mapping[Value, Lineage]) -> list[Any]:
    """Returns the random arrays that dependent entries have in common."""
    own = leaves.get(meeting.source, {})
    if meeting.partners:
        return [s for s in own if any(s in leaves.get(v, {}) for v in meeting.partners)]
    # Within one value: the sources that several of its entries depend on; all of them where the
    # labels cannot tell.
    return [s for s, labels in own.items() if SHARED in labels] or list(own)


def _names(sources: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(s.path or "input" for s in sources if isinstance(s, Value)))


class Assumptions(tuple[Assumption, ...]):
    """Assumptions in order of execution; prints as a list."""

    __slots__ = ()

    @classmethod
    def merged(cls, found: Sequence[Assumption]) -> Assumptions:
        """Merges the assumptions of one place and reason, with everything that is shared there."""
        places: dict[tuple[str, ...], Assumption] = {}
        for one in found:
            place = (one.site, one.kind, one.reason, one.line)
            known = places.get(place)
            shares = dict.fromkeys((*(known.shares if known else ()), *one.shares))
            places[place] = replace(one, shares=tuple(shares))
        return cls(places.values())

    def __str__(self) -> str:
        """Returns a line for each."""
        if not self:
            return "Nothing is assumed to be independent that may not be."
        return "\n".join(str(one) for one in self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Assumptions(...)" if cycle else str(self))
