"""`prune_plan`: which channels go, by site, budget and score.

```python
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.pruning import Budget, Prune, prune_plan, pruned

f, params, (x, y) = small_classifier()
plan = prune_plan(f, params, x, {"*:linear": Prune(0.5, round_to=4)})
g, small = pruned(f, plan), plan.shrink(params)
print(plan, jaxeff.cost(g, small, x[:1]).macs / jaxeff.cost(f, params, x[:1]).macs)

half = prune_plan(f, params, x, {"*": Prune(0.9)}, budget=Budget(macs=0.5))
```

Of some layers the channels are a product: heads times channels of a head, blocks of a group norm. A
reshape splits what such a layer makes into factors, which are groups of channels of their own. A
share of the layer's channels is not that share of every factor: half of both would be three
quarters of the layer. So a share is taken along one factor, the one by which what is left comes
nearest to what was asked; of equals one that no statistic crosses, then the larger. A factor that
is chosen for one layer is chosen for all that make it.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from jaxeff import core
from jaxeff.program import Program, check_settings, resolve, trace
from jaxeff.pruning import dependencies
from jaxeff.pruning._budget import Allowed, Budget, kept_best, within
from jaxeff.pruning._plan import Plan
from jaxeff.pruning.scores import Score, l1


class Made(NamedTuple):
    """Channels that a layer makes.

    Attributes:
        size: Number of channels.
        groups: The groups that are factors of them; one, where nothing is split.
    """

    size: int
    groups: tuple[str, ...]


def made_channels(channels: dependencies.Channels) -> list[Made]:
    """Returns what the layers make, in order of execution; parts of a concatenation one by one."""
    names = {d: g.name for g, d in zip(channels, channels.dimensions, strict=True)}
    labels = channels.labels
    outputs: dict[Made, None] = {}
    for layer in channels.program.sites:
        if layer.kind != "linear" or not layer.weights:
            continue
        weight = {
            d
            for i in layer.weights
            for a in labels.of(layer.inputs[i])
            for d in dependencies.dimensions(a)
        }
        axes = [
            a
            for a in labels.of(layer.outputs[0])
            if weight.intersection(dependencies.dimensions(a))
        ]
        for factors in _products(axes):
            factors_of_weight = [d for d in dict.fromkeys(factors) if d in weight]
            groups = tuple(names[d] for d in factors_of_weight if d in names)
            outputs[Made(math.prod(d.size for d in factors_of_weight), groups)] = None
    return list(outputs)


def chosen_factors(
    outputs: Sequence[Made],
    allowed: Collection[str],
    missed: Callable[[str, Made], tuple[float, ...]],
) -> set[str]:
    """Returns the groups that lose channels, one factor of what a layer makes.

    `missed` is, for a group and what it is a factor of, what to minimise: how far from what was
    asked it ends, and what decides between equals.
    """
    wanted = [
        (m, names) for m in outputs if (names := [name for name in m.groups if name in allowed])
    ]
    # Where there is no choice it is made first: it may settle the choice of other layers.
    chosen = {names[0] for _, names in wanted if len(names) == 1}
    spared: set[str] = set()
    for m, names in wanted:
        if chosen.isdisjoint(names):
            # A factor that another layer keeps whole would take twice from that one.
            free = [name for name in names if name not in spared]
            if free:
                chosen.add(min(free, key=lambda name: missed(name, m)))
        spared.update(name for name in names if name not in chosen)
    return chosen


def _products(axes: Sequence[dependencies.Axis]) -> list[list[dependencies.Dimension]]:
    """Returns the factors of axes together; of a concatenation, those of every part."""
    ways: list[list[list[dependencies.Dimension]]] = []
    for axis in map(dependencies.resolve_axis, axes):
        if isinstance(axis, dependencies.Dimension):
            ways.append([[axis]])
        elif isinstance(axis, dependencies.AxisProduct):
            ways.append(_products(axis.parts))
        else:
            ways.append([way for part in axis.parts for way in _products([part])])
    return [list(itertools.chain(*way)) for way in itertools.product(*ways)]


@core.register_setting
class Prune(core.Setting):
    """Setting of `prune_plan`: the share or number of a layer's channels to remove.

    Attributes:
        ratio: The share, 0 to below 1.
        count: The number, in the place of a share.
        round_to: Divisor of the number that is kept (rounded up), so that vectors stay full.
        crossed: Choice where a statistic is taken over the channels (`Group.crossed`), as in
            a layer norm: "keep" removes none of them. "left" takes it over those left, as in a
            narrower network. "zeros" counts removed channels as zeros, so that `pruned` is
            `masked`. None does what "left" does, and `pruned` warns (`CrossedWarning`).

    Raises:
        ValueError: Neither ratio nor count is given, or both; or one is out of bounds.
    """

    ratio: Annotated[float | None, core.Number(0, below=1)] = core.static(None)
    count: Annotated[int | None, core.Count(0)] = core.static(None)
    round_to: Annotated[int, core.Count(1)] = core.static(1)
    crossed: dependencies.Crossed = core.static(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.ratio is None) == (self.count is None):
            raise ValueError("Prune takes a ratio or a count: Prune(0.5), Prune(count=16).")

    def left(self, size: int, name: str) -> int:
        """Returns how many of a layer's channels stay, before rounding.

        Args:
            size: Number of channels it makes.
            name: The group that an error names.

        Raises:
            PlanError: None would.
        """
        removed = self.count if self.count is not None else int(self.ratio * size)  # type: ignore[operator]
        if removed >= size:
            raise dependencies.PlanError(
                f"{removed} channels can't be removed from {name!r}, which has {size}: one has to "
                "stay."
            )
        return size - removed


class NothingPrunedWarning(UserWarning):
    """A layer that a spec prunes keeps all of its channels."""


@core.validate(
    batch=core.input_batch,
    spec=core.string_mapping,
    score=core.function_of_form("score(params, channels)"),
    budget=core.instance_of(Budget),
)
def prune_plan(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Prune | None],
    *,
    score: Score = l1,
    budget: Budget | None = None,
) -> Plan:
    """Plans which channels of a model are removed.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`. Of their shapes (`jax.ShapeDtypeStruct`) a plan has the sizes
            and costs that it has of the parameters, as far as no budget compares their scores;
            which channels stay means nothing then.
        batch: `args` as a tuple, or the only one of them; only shapes matter.
        spec: Maps patterns of sites to `Prune`. A group of channels that several layers make is
            pruned where all of them say the same; a layer without a setting keeps its channels.
            Where a layer's channels are a product (heads, the blocks of a group norm), one factor
            loses channels (`jaxeff.pruning`); with a budget any may.
        score: Score of channels; those with the highest stay (`jaxeff.pruning.scores`).
        budget: Cost allowed for the whole model, which then decides how many channels each group
            keeps; ratios and counts of the spec are the most that may go.

    Returns:
        The plan.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `Prune`.
        ValueError: A pattern matches or decides no site, or nothing that it decides makes channels
            that can be removed: the message says why.
        PlanError: All channels of a group would go, layers that share one disagree, the score says
            nothing about one, or the budget is below the least that the spec allows.

    Warns:
        NothingPrunedWarning: A layer keeps all of its channels, because others that make the same
            ones (a depthwise convolution behind it, another term of a sum) have no setting, or
            because of rounding.
    """
    check_settings(spec, Prune, "a Prune, such as Prune(0.5)")
    args = core.as_arguments(batch)
    program = trace(f, params, *args)
    all_channels = dependencies.read_channels(program)
    settings = _settings_of_makers(spec, program, all_channels)
    scores = _all_scores(score, params, all_channels)
    wanted = _settings_of_groups(all_channels, settings)
    groups = {group.name: group for group in all_channels}
    crossed = {n: s.crossed for n, s in wanted.items() if groups[n].crossed and s.crossed}
    dependencies.check_crossed(groups, crossed)
    least = _least(made_channels(all_channels), wanted, groups, all_factors=budget is not None)
    allowed = {
        name: Allowed(_scores_of(groups[name], scores), n, wanted[name].round_to, crossed.get(name))
        for name, n in least.items()
    }
    _warn_of_kept(all_channels, spec, settings, least)
    if budget is not None:
        return within(budget, all_channels, allowed)
    return kept_best(all_channels, allowed, least)


def _settings_of_makers(
    spec: Mapping[str, Prune | None], program: Program, all_channels: dependencies.Channels
) -> dict[str, Prune]:
    """Resolves a spec among the layers that make channels which can be removed."""
    # Which layers a setting applies to depends on what it says of statistics across channels.
    makes = {site for group in all_channels if group.free for site in group.sites}
    uncrossed = {site for group in all_channels.free if not group.crossed for site in group.sites}
    held = {site: group.refusal for group in all_channels if group.held for site in group.sites}

    def applies(layer: Any, setting: Prune) -> bool:
        return layer.site in (uncrossed if setting.crossed == dependencies.KEEP else makes)

    try:
        return resolve(spec, program, applies, "channels that can be removed")
    except ValueError as error:
        # The pattern may name a layer whose channels are held: then the reason helps more than a
        # list of sites.
        why = next((f" {held[s]}" for s in held if repr(s) in str(error) or s in spec), "")
        if not why and any(s is not None and s.crossed == dependencies.KEEP for s in spec.values()):
            why = f' Statistics cross all others, which crossed="{dependencies.KEEP}" leaves out.'
        raise type(error)(f"{error}{why}") from None


def _warn_of_kept(
    channels: dependencies.Channels,
    spec: Mapping[str, Prune | None],
    settings: Mapping[str, Prune],
    least: Mapping[str, int],
) -> None:
    """Warns of layers that lose nothing, with the names that would have to be added."""
    losing = {s for g in channels if least.get(g.name, g.size) < g.size for s in g.sites}
    # What a spec's None leaves alone is meant to stay, and all that shares channels with it.
    left_alone = resolve(
        {p: True if s is None else None for p, s in spec.items()}, channels.program
    )
    added: dict[str, dict[str, None]] = {}
    for group in channels.free:
        kept = [s for s in group.sites if s in settings and s not in losing]
        missing = [s for s in group.sites if s not in settings]
        if missing and not left_alone.keys() & missing:
            for site in kept:
                added.setdefault(site, {}).update(dict.fromkeys(missing))
    asked = any(s.ratio or s.count for s in settings.values())
    if added:
        listed = [f"{_shown([s])} (add {_shown(list(names))})" for s, names in added.items()]
        reason = (
            "layers keep all of their channels, for others that make the same ones have no "
            f"setting: {_shown(listed, quoted=False)}. Add them with the same setting, or give "
            "them None"
        )
    elif asked and not losing and not left_alone:
        reason = (
            "nothing is removed: the shares asked for are less than a channel of any layer, or "
            "than round_to. Ask for more, or for a smaller round_to"
        )
    else:
        return
    warnings.warn(f"prune_plan: {reason}.", NothingPrunedWarning, stacklevel=4)


def _shown(names: Sequence[str], quoted: bool = True) -> str:
    shown = [repr(name) if quoted else name for name in names[:_SHOWN]]
    return ", ".join([*shown, "..."] if len(names) > _SHOWN else shown)


_SHOWN = 5


def _least(
    outputs: Sequence[Made],
    wanted: Mapping[str, Prune],
    groups: Mapping[str, dependencies.Group],
    *,
    all_factors: bool,
) -> dict[str, int]:
    """Returns how many channels of every group stay at least.

    `all_factors` says whether all factors of what a layer makes may lose channels, as with a
    budget; otherwise one of them takes the layer's share.
    """

    def missed(name: str, m: Made) -> tuple[float, bool, int]:
        group = groups[name]
        # First how far from the share this factor ends, for heads only come whole; then a factor
        # that no statistic crosses; then the larger one.
        ends = _kept(group, wanted[name], [m]) * (m.size // group.size)
        asked = wanted[name].left(m.size, name)
        return ends - asked, bool(group.crossed), -group.size

    chosen = set(wanted) if all_factors else chosen_factors(outputs, wanted, missed)
    return {
        name: _kept(
            groups[name],
            setting,
            [m for m in outputs if name in m.groups],
            {m: sum(n in wanted for n in m.groups) for m in outputs} if all_factors else {},
        )
        for name, setting in wanted.items()
        if name in chosen
    }


def _kept(
    group: dependencies.Group,
    setting: Prune,
    outputs: Sequence[Made],
    factors: Mapping[Made, int] | None = None,
) -> int:
    """Returns how many channels of a group stay, so that enough stay of what layers make of it.

    `factors` share the loss of what a layer makes, one without it: each then keeps at least the
    root of the share, so that their product keeps the share.
    """
    needed = 1
    for m in outputs:
        share = setting.left(m.size, group.name) / m.size
        # A share s spread over k factors is s^(1/k) of each. The tolerance is for roots that are
        # whole but for rounding.
        needed = max(
            needed, math.ceil(group.size * share ** (1 / (factors or {}).get(m, 1)) - 1e-6)
        )
    # What a layer makes of the group is a multiple, not the group's channels by themselves.
    each = [m.size // group.size for m in outputs]
    fits = (
        n
        for n in range(needed, group.size)
        if all(n * times % setting.round_to == 0 for times in each)
    )
    return next(fits, group.size)


def _settings_of_groups(
    all_channels: dependencies.Channels, settings: Mapping[str, Prune]
) -> dict[str, Prune]:
    """Returns the settings of the groups that may lose channels, by name."""
    wanted = {}
    for group in all_channels.free:
        setting = _setting(group, settings)
        if setting is not None and not (group.crossed and setting.crossed == dependencies.KEEP):
            wanted[group.name] = setting
    return wanted


def _setting(group: dependencies.Group, settings: Mapping[str, Prune]) -> Prune | None:
    """Returns what the layers of a group agree on."""
    chosen = {site: settings.get(site) for site in group.sites}
    wanted = {setting for setting in chosen.values() if setting is not None}
    # A layer without a setting keeps its channels, hence all layers that share them do.
    if not wanted or None in chosen.values():
        return None
    if len(wanted) > 1:
        raise dependencies.PlanError(
            f"{', '.join(chosen)} make the same channels ({group.name!r}), so they need the same "
            "setting."
        )
    return wanted.pop()


def _all_scores(
    score: Score, params: Any, all_channels: dependencies.Channels
) -> Mapping[str, np.ndarray]:
    """Scores all channels, of parameters or of their shapes."""
    by_shapes = any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(params))
    if by_shapes and score is l1:
        # Shapes have no magnitudes: all channels are alike, and the plan says how many stay.
        return {group.name: np.ones(group.size) for group in all_channels}
    return score(params, all_channels)


def _scores_of(group: dependencies.Group, scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns a group's scores, as numbers that can be put in order."""
    where = f"the channels of {group.name!r} (made by {', '.join(group.sites)})"
    if group.name not in scores:
        raise dependencies.PlanError(
            f"the score says nothing about {where}; set None at these sites, or take another score."
        )
    numbers = np.asarray(scores[group.name], np.float64)
    if numbers.shape != (group.size,):
        raise dependencies.PlanError(
            f"the score of {where} has shape {numbers.shape}; it has to have one number per "
            f"channel, {(group.size,)}."
        )
    if np.isnan(numbers).any():
        raise dependencies.PlanError(
            f"the score of {where} has NaN; look at the parameters and the batch."
        )
    return numbers
