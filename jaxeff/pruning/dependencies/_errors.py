"""Why channels can't be removed, and what to do about it.

A reason is text: what forbids it, as `sort at 'fc1' [model.py:12]`, which names the primitive, the
site and the line. The way out depends on what it is.
"""

from __future__ import annotations

INPUT = "an input of the function"
RESULT = "a result of the function"
RECTANGLE = "it doesn't stay rectangular"
BLOCK = "it cuts between the channels of a block"
ALONG = "the axis that it runs along"
STACKED = "the parts of a concatenation, taken as blocks by a reshape"
UNKNOWN = "no rule says which channels it reads"
MEAN = "a mean"
"""Reason of a statistic that depends on the number of channels alone."""
PLACE = ": a place, not a channel"
"""Ending of the reasons for an axis that has no channels."""

_WAYS = {
    INPUT: "Slice what goes in, and train a narrower model on it; or prune the next layer.",
    RESULT: "Leave it out, or prune the layers before it.",
    RECTANGLE: "Reshape so that axes are split where they were joined, into blocks of equal size.",
    BLOCK: "Cut at a boundary between blocks, or before the reshape that makes them.",
    ALONG: "Unroll the loop to remove a layer; channels inside of it can be removed in all layers.",
    STACKED: "Index the parts instead of reshaping their concatenation.",
    UNKNOWN: "Write it with primitives that keep channels apart, or leave its layers out.",
}
_OTHERWISE = "Leave it out, or write what holds it so that channels stay apart."


class PlanError(ValueError):
    """A plan that can't be carried out, or is of another model."""


def remedy(reason: str) -> str:
    """Returns advice, for an error message, on a reason why channels stay."""
    return next((way for part, way in _WAYS.items() if part in reason), _OTHERWISE)
