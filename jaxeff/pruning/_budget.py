"""`Budget`: how much a pruned model may cost, which decides what every group keeps.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.pruning import Budget, Prune, prune_plan, pruned

f, params, (x, y) = small_classifier()
spec = {"*": Prune(0.9, round_to=2)}                        # at most .9 of a layer goes
half = prune_plan(f, params, x, spec, budget=Budget(parameters=0.5))
same = prune_plan(f, params, x, spec, budget=Budget(macs=0.5, uniform=True))

def operations(plan):                                       # or the seconds that a call takes
    compiled = jax.jit(pruned(f, plan)).lower(plan.shrink(params), x).compile()
    return compiled.cost_analysis()["flops"]

light = prune_plan(f, params, x, spec, budget=Budget(measured=0.6, measure=operations))
```

Channels of all groups compete by their scores, each divided by its group's mean, since the sizes of
weights differ between layers: those below a threshold go, and the threshold is the least that meets
the budget, found by bisection. The part of the budget that rounding leaves is given back, a block
of channels at a time, the highest scores first, until no group's next block fits.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from jaxeff.core import Choice, Number, Setting, check_number, register_setting, static
from jaxeff.program import Program
from jaxeff.program.costs import node_macs
from jaxeff.program.ir import Contraction, Node, Role, branch_operands, repetitions
from jaxeff.pruning import dependencies
from jaxeff.pruning._plan import Plan

Counts = Mapping[dependencies.Dimension, int]
Count = Callable[[Counts], float]


def parameters(channels: dependencies.Channels) -> Count:
    """Returns a function from kept channels to entries of all parameters, without statistics."""
    # Resolved once: a count is then a product of numbers, for thousands of plans.
    read = {v.path for v in channels.program.inputs if v.role & Role.PARAM}
    shapes = [
        [*map(dependencies.resolve_axis, axes)]
        for path, axes in channels.leaves.items()
        if path in read
    ]

    def count(counts: Counts) -> float:
        return float(sum(math.prod(axis_size(axis, counts) for axis in axes) for axes in shapes))

    return count


def macs(channels: dependencies.Channels) -> Count:
    """Returns a function from kept channels to multiply-accumulates, for the traced batch."""
    return _macs(channels.program, channels.labels)


def _macs(program: Program, labels: dependencies.Labels, times: int = 1) -> Count:
    terms: list[Count] = []
    for layer in program.layers:
        if layer.kind == "control flow":
            (node,) = layer.nodes
            bodies = [_macs(b, labels, times * repetitions(node)) for b in layer.programs]
            if branch_operands(node, node.inputs) is not None:
                # As `jaxeff.cost`: a branch costs as much as the dearest one.
                terms.append(_dearest(bodies))
            else:
                terms += bodies
            continue
        terms += [_term(times * node_macs(n), n, labels) for n in layer.nodes if node_macs(n)]

    def count(counts: Counts) -> float:
        return sum(term(counts) for term in terms)

    return count


def _dearest(bodies: list[Count]) -> Count:
    return lambda counts: max(body(counts) for body in bodies)


def _term(total: int, node: Node, labels: dependencies.Labels) -> Count:
    """Returns a product's cost, in proportion to the sizes of what it makes and sums."""
    contraction = Contraction.of(node)
    output, right = labels.of(node.outputs[0]), labels.of(node.inputs[1])
    # Without the places of the result: the cost per entry stays a whole number, and exact.
    axes = [axis for i, axis in enumerate(output) if i not in contraction.window(2)]
    axes += [right[i] for i in contraction.summed(1)]
    # A kernel's places and strides lose nothing: what is left over is the same for every plan.
    per_entry = total / math.prod(axis.size for axis in axes)
    axes = [*map(dependencies.resolve_axis, axes)]

    def count(counts: Counts) -> float:
        return per_entry * math.prod(axis_size(axis, counts) for axis in axes)

    return count


def axis_size(axis: dependencies.Axis, counts: Mapping[dependencies.Dimension, Any]) -> Any:
    """Computes the number of indices of a resolved axis that stay; it may be traced.

    The cost of a pruned model is a function of how many channels its groups keep, counted on the
    axes of the program that was read, so that thousands of plans cost no trace: the entries of
    parameters, and the multiply-accumulates that `jaxeff.cost` counts for the smaller model.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.pruning import axis_size, channels
    from jaxeff.pruning.dependencies import resolve_axis

    f, params, (x, y) = small_classifier(4)
    groups = channels(f, params, x)
    conv1 = groups.dimensions[0]                           # its channels
    rows = resolve_axis(groups.leaves["fc1/kernel"][0])    # the pixels of these channels, flattened
    assert axis_size(rows, {}) == params["fc1"]["kernel"].shape[0]
    assert axis_size(rows, {conv1: 1}) == axis_size(rows, {}) // conv1.size
    ```
    """
    if isinstance(axis, dependencies.Dimension):
        return counts.get(axis, axis.size)
    sizes = [axis_size(part, counts) for part in axis.parts]
    return sum(sizes) if isinstance(axis, dependencies.Concatenation) else math.prod(sizes)


@register_setting
class Budget(Setting):
    """The cost of a pruned model, as a share of the whole model's: one of three.

    Sharp edges:
        MACs are those of `jaxeff.cost` for the smaller model and the batch of `prune_plan`; they
        are counted without tracing it.
        A measurement is taken at every step of the bisection, about as often as the binary
        logarithm of the number of channels; nothing is given back. The plan has been measured
        within the budget itself, whatever the noise of the others.

    Attributes:
        parameters: Share of its parameters.
        macs: Share of its multiply-accumulates.
        measured: Share of what `measure` gives for it.
        measure: `measure(plan)` gives a positive number, such as a time.
        uniform: Whether every group keeps the same share, as far as rounding allows, and scores
            decide within groups only.
        normalize: Divisor that makes scores of different groups comparable: the group's
            "mean", its "max", or "nothing".

    Raises:
        ValueError: None of the three is given, or several; one is out of bounds, or a measured one
            has no `measure`.
    """

    parameters: Annotated[float | None, Number(above=0, high=1)] = static(None)
    macs: Annotated[float | None, Number(above=0, high=1)] = static(None)
    measured: Annotated[float | None, Number(above=0, high=1)] = static(None)
    measure: Callable[[Plan], Any] | None = static(None)
    uniform: bool = static(False)
    normalize: Annotated[str, Choice("mean", "max", "nothing")] = static("mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = [self.parameters, self.macs, self.measured]
        if sum(share is not None for share in shares) != 1:
            raise ValueError(
                "Budget takes one share: Budget(parameters=0.5), Budget(macs=0.5) or "
                "Budget(measured=0.5, measure=seconds)."
            )
        if (self.measured is None) != (self.measure is None):
            raise ValueError("Budget takes measured and measure together, or neither.")

    @property
    def of(self) -> tuple[str, float]:
        """The counted quantity, and the share."""
        for name in ("parameters", "macs", "measured"):
            share = getattr(self, name)
            if share is not None:
                return name, share
        raise AssertionError


class Allowed(NamedTuple):
    """The channels that a group may keep.

    Attributes:
        scores: The higher the more, `[channels]`.
        least: The fewest channels.
        round_to: Divisor of the number that it keeps, unless it keeps all.
        crossed: Choice of a plan for it (`Plan.crossed`), if any.
    """

    scores: np.ndarray
    least: int
    round_to: int
    crossed: str | None = None

    def rounded(self, count: int) -> int:
        """Returns the next number up that is allowed."""
        multiple = -(-max(count, self.least) // self.round_to) * self.round_to
        return min(multiple, len(self.scores))


def within(budget: Budget, channels: dependencies.Channels, allowed: Mapping[str, Allowed]) -> Plan:
    """Returns the plan that keeps as much as a budget allows.

    Groups that aren't `allowed` to lose any keep everything.
    """
    # Both ends first: cost is monotone in the level, so a budget between them can be bisected.
    search = _Search(budget, channels, allowed)
    what, share = budget.of
    unpruned, least = search.cost(search.at(0)), search.cost(search.at(search.levels))
    if least > share * unpruned:
        raise dependencies.PlanError(
            f"a budget of {share:g} of the {_words(what)} can't be reached: what the spec allows "
            f"to be removed leaves {least / unpruned:.4g} ({least:.6g} of {unpruned:.6g}); raise "
            "the budget, or the ratios and the layers of the spec."
        )
    if unpruned <= share * unpruned:
        return search.plan(search.at(0))
    # Thresholds remove from all groups at once, so there may be room for single blocks afterwards.
    # Not for measurements: each would cost another, and noise decides between small steps.
    counts = search.least_level(share * unpruned)
    if what != "measured":
        counts = search.given_back(counts, share * unpruned)
    return search.plan(counts)


class _Search:
    """Plans by level: at each the next channels have gone, and the cost has fallen."""

    def __init__(
        self, budget: Budget, channels: dependencies.Channels, allowed: Mapping[str, Allowed]
    ) -> None:
        self._channels, self._allowed, self._measure = channels, allowed, budget.measure
        self._uniform = budget.uniform
        self._scores = {n: _normalized(n, a.scores, budget.normalize) for n, a in allowed.items()}
        # Costs are counted on dimensions, plans are made of names.
        self._ids = {g.name: d for g, d in zip(channels, channels.dimensions, strict=True)}
        count = {"parameters": parameters, "macs": macs}.get(budget.of[0])
        self._count = None if count is None else count(channels)
        if budget.uniform:
            # The shares at which some group's count changes: between two of them nothing does.
            shares = {i / len(a.scores) for a in allowed.values() for i in range(len(a.scores))}
            self._thresholds = sorted(shares - {0.0})
        else:
            # Between two neighbouring scores no channel changes sides: the scores are all
            # thresholds there are.
            everything = [s for scores in self._scores.values() for s in scores]
            self._thresholds = [float(t) for t in np.unique(everything)]

    @property
    def levels(self) -> int:
        """The last level, where as much has gone as may."""
        return len(self._thresholds)

    def at(self, level: int) -> dict[str, int]:
        """Returns how many channels every group keeps at a level; all at the first."""
        if level == 0:
            return {name: len(a.scores) for name, a in self._allowed.items()}
        threshold = self._thresholds[level - 1]
        return {
            name: a.rounded(
                len(a.scores) - int(threshold * len(a.scores) + 1e-9)
                if self._uniform
                else int((self._scores[name] > threshold).sum())
            )
            for name, a in self._allowed.items()
        }

    def cost(self, counts: Mapping[str, int]) -> float:
        """Returns what a plan with so many channels costs."""
        if self._count is not None:
            return self._count({self._ids[name]: n for name, n in counts.items()})
        assert self._measure is not None
        measured = float(self._measure(self.plan(counts)))
        check_number("Budget.measure(plan)", measured, above=0)
        return measured

    def plan(self, counts: Mapping[str, int]) -> Plan:
        """Returns the best channels, so many of each group."""
        return kept_best(self._channels, self._allowed, counts)

    def least_level(self, limit: float) -> dict[str, int]:
        """Returns what is kept at the first level within a limit, by bisection; the last one is."""
        low, high = 0, self.levels
        # Cost falls with the level, as fewer channels stay. `high` always meets the limit.
        while high - low > 1:
            middle = (low + high) // 2
            if self.cost(self.at(middle)) <= limit:
                high = middle
            else:
                low = middle
        return self.at(high)

    def given_back(self, counts: dict[str, int], limit: float) -> dict[str, int]:
        """Adds every block of channels that still fits, the highest scores first."""
        # Greedy: the best next block that fits. A group whose block doesn't fit is closed, for room
        # only shrinks; so there are at most as many cost evaluations as blocks and groups.
        counts, open_ = dict(counts), set(counts)
        while open_:
            steps = {n: self._allowed[n].rounded(counts[n] + 1) for n in open_}
            ranked = [(self._worth(n, counts[n]), n) for n in sorted(open_) if steps[n] > counts[n]]
            if not ranked:
                break
            _, name = max(ranked, key=lambda pair: pair[0])
            more = {**counts, name: steps[name]}
            if self.cost(more) <= limit:
                counts = more
            else:
                open_.discard(name)  # the others only take room away
        return counts

    def _worth(self, name: str, kept: int) -> float:
        """Returns the score of the next channel to keep; with equal shares, minus the share."""
        scores = self._scores[name]
        if self._uniform:
            return -kept / len(scores)
        return float(np.sort(scores)[::-1][kept]) if kept < len(scores) else -np.inf


def kept_best(
    channels: dependencies.Channels, allowed: Mapping[str, Allowed], counts: Mapping[str, int]
) -> Plan:
    """Returns the plan that keeps the best channels, so many of each group."""
    keep = {name: best(allowed[name].scores, n) for name, n in counts.items()}
    crossed = {name: what for name in counts if (what := allowed[name].crossed) is not None}
    return Plan(keep, channels, crossed)


def best(scores: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices with the highest scores; of equals the first."""
    # Stable, so that equal scores give the same plan on every machine.
    order = np.argsort(-scores, kind="stable")
    keep = np.zeros(len(scores), bool)
    keep[order[:count]] = True
    return keep


def _normalized(name: str, scores: np.ndarray, by: str) -> np.ndarray:
    if by == "nothing":
        return scores
    if (scores < 0).any():
        raise dependencies.PlanError(
            f"scores of {name!r} are negative, so that dividing by their {by} means nothing; use "
            'Budget(..., normalize="nothing").'
        )
    # A group of zeros stays as it is: all of its channels are the first to go.
    scale = scores.mean() if by == "mean" else scores.max()
    return scores / scale if scale > 0 else scores


def _words(what: str) -> str:
    return {"macs": "multiply-accumulates", "measured": "measured cost"}.get(what, what)
