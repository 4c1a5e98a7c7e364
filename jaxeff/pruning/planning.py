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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from jaxeff.program import trace
from jaxeff.program.spec import check_settings, resolve
from jaxeff.pruning.budget import Allowed, Budget, best, within
from jaxeff.pruning.channels import Group, read_channels
from jaxeff.pruning.plan import Plan, PlanError
from jaxeff.pruning.scores import Score, l1
from jaxeff.settings import Count, Number, Setting, register_setting, static


@register_setting
@dataclass(frozen=True)
class Prune(Setting):
    """How many of the channels that a layer makes are removed.

    Attributes:
        ratio: The share, 0 to below 1.
        count: The number, in the place of a share.
        round_to: What is kept is a multiple of it (rounded up), so that vectors stay full.

    Raises:
        ValueError: Neither ratio nor count is given, or both; or one is out of bounds.
    """

    ratio: Annotated[float | None, Number(0, below=1)] = static(None)
    count: Annotated[int | None, Count(0)] = static(None)
    round_to: Annotated[int, Count(1)] = static(1)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if (self.ratio is None) == (self.count is None):
            raise ValueError("Prune takes a ratio or a count: Prune(0.5), Prune(count=16).")

    def kept(self, group: Group) -> int:
        """How many channels of a group stay.

        Raises:
            PlanError: None would.
        """
        removed = self.count if self.count is not None else int(self.ratio * group.size)  # type: ignore[operator]
        if removed >= group.size:
            raise PlanError(
                f"{removed} channels can't be removed from {group.name!r}, which has {group.size}: "
                "one has to stay."
            )
        rounded = -(-(group.size - removed) // self.round_to) * self.round_to
        return min(rounded, group.size)


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
        params: Its parameters.
        batch: `args` as a tuple, or the only one of them; only shapes matter.
        spec: Maps patterns of sites to `Prune`. A group of channels that several layers make is
            pruned where all of them say the same; a layer without a setting keeps its channels.
        score: Which channels stay: those with the highest (`jaxeff.pruning.scores`).
        budget: How much the whole model may cost, which then decides how many channels each group
            keeps; ratios and counts of the spec are the most that may go.

    Returns:
        The plan.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `Prune`.
        ValueError: A pattern matches or decides no site, or nothing that it decides makes channels
            that can be removed: the message says why.
        PlanError: All channels of a group would go, layers that share one disagree, the score says
            nothing about one, or the budget is below the least that the spec allows.
    """
    check_settings(spec, Prune, "a Prune, such as Prune(0.5)")
    args = batch if isinstance(batch, tuple) else (batch,)
    program = trace(f, params, *args)
    found = read_channels(program)
    makes = {site for group in found if group.free for site in group.sites}
    held = {site: group.refusal for group in found if group.held for site in group.sites}

    def applies(layer: Any, setting: Prune) -> bool:
        del setting
        return layer.site in makes

    try:
        settings = resolve(spec, program, applies, "channels that can be removed")
    except ValueError as error:
        why = next((f" {held[s]}" for s in held if repr(s) in str(error) or s in spec), "")
        raise type(error)(f"{error}{why}") from None
    scores = score(params, found)
    allowed: dict[str, Allowed] = {}
    for group in found.free:
        setting = _setting(group, settings)
        if setting is not None:
            least = setting.kept(group)
            allowed[group.name] = Allowed(_scores_of(group, scores), least, setting.round_to)
    if budget is not None:
        return within(budget, found, allowed)
    return Plan({name: best(a.scores, a.least) for name, a in allowed.items()}, found)


def _setting(group: Group, settings: Mapping[str, Prune]) -> Prune | None:
    """What the layers of a group agree on."""
    chosen = {site: settings.get(site) for site in group.sites}
    wanted = {setting for setting in chosen.values() if setting is not None}
    if not wanted or None in chosen.values():
        return None
    if len(wanted) > 1:
        raise PlanError(
            f"{', '.join(chosen)} make the same channels ({group.name!r}), so they need the same "
            "setting."
        )
    return wanted.pop()


def _scores_of(group: Group, scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """A group's scores, as numbers that can be put in order."""
    where = f"the channels of {group.name!r} (made by {', '.join(group.sites)})"
    if group.name not in scores:
        raise PlanError(
            f"the score says nothing about {where}; set None at these sites, or take another score."
        )
    found = np.asarray(scores[group.name], np.float64)
    if found.shape != (group.size,):
        raise PlanError(
            f"the score of {where} has shape {found.shape}; it has to have one number per channel, "
            f"{(group.size,)}."
        )
    if np.isnan(found).any():
        raise PlanError(f"the score of {where} has NaN; look at the parameters and the batch.")
    return found


__all__ = ["Prune", "prune_plan"]
