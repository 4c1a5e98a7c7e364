"""Statistics over channels of which some are removed: `Group.crossed`.

A layer norm's mean is one over channels. Masked, a removed channel is a zero that counts; removed,
it doesn't count, as in a network that was built narrower. A plan chooses one of the two:

- `"left"`: the statistic of the channels left;
- `"zeros"`: that of all channels, the removed ones being zeros, so that `pruned` is `masked`.

`Prune(..., crossed="keep")` is the third way: such channels aren't removed.

A sum of zeros needs no place, only the count that it is divided by has to stay. So RMS norms can be
kept, and layer and group norms that compute a variance as `E[x^2] - E[x]^2`, as Flax's do. What
sums or compares something else than zeros (a softmax, a maximum, squared distances from a mean) is
refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated

from jaxeff.core import Choice
from jaxeff.pruning.dependencies._errors import MEAN, PlanError
from jaxeff.pruning.dependencies._groups import Group

LEFT, ZEROS, KEEP = "left", "zeros", "keep"
Crossed = Annotated[str | None, Choice(LEFT, ZEROS, KEEP)]
_SHOWN = 8


class CrossedWarning(UserWarning):
    """A smaller model isn't the masked one: statistics are taken over fewer channels."""


def counts_zeros(group: Group) -> bool:
    """Returns whether all that crosses a group can count its removed channels as zeros."""
    # A mean of zeros needs its old count alone; no other crossing has a neutral zero.
    return all(f"({MEAN})" in note for note in group.crossed)


def check_crossed(groups: Mapping[str, Group], crossed: Mapping[str, str]) -> None:
    """Checks the choices of a plan for statistics.

    Raises:
        PlanError: It is no choice, about no group, or removed channels can't count as zeros.
    """
    for name, choice in crossed.items():
        if name not in groups:
            raise PlanError(f"the model has no group {name!r}; there are {list(groups)}")
        if choice not in (LEFT, ZEROS):
            raise PlanError(
                f"statistics over {name!r} are of the channels {LEFT!r} or count {ZEROS!r}, "
                f"not {choice!r}"
            )
        if choice == ZEROS and not counts_zeros(groups[name]):
            (note, *_) = [n for n in groups[name].crossed if f"({MEAN})" not in n]
            raise PlanError(
                f"removed channels of {name!r} can't count as zeros: {note} reads something else "
                f'of them. Take crossed="{LEFT}", or leave them out with crossed="{KEEP}".'
            )


def warn_of_crossed(groups: Iterable[Group], stacklevel: int) -> None:
    """Warns of groups whose statistics a smaller model takes over fewer channels, if any.

    Args:
        groups: Groups that lose channels and that the plan says nothing of.
        stacklevel: Stack level of the caller, as `warnings.warn` counts.
    """
    places = [f"{group.name!r} by {_places(group)}" for group in groups if group.crossed]
    if places:
        warnings.warn(
            "the pruned model isn't the masked one, since statistics are taken over the channels "
            f'left of {"; ".join(places)}. Say what is meant: Prune(..., crossed="{LEFT}") takes '
            f'this, crossed="{ZEROS}" counts removed channels as zeros, as masked does, and '
            f'crossed="{KEEP}" leaves them out; a Plan has crossed={{group: choice}}.',
            CrossedWarning,
            stacklevel=stacklevel + 1,
        )


def _places(group: Group) -> str:
    """Lists primitives and sites that cross a group, without their lines."""
    places = list(dict.fromkeys(note.split(" [")[0] for note in group.crossed))
    more = len(places) - _SHOWN
    return ", ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


__all__ = ["Crossed", "CrossedWarning", "check_crossed", "counts_zeros", "warn_of_crossed"]
