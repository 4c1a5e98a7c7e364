"""`allocate_bits`: the bits of every site that do least damage within a budget.

```python
import numpy as np

import jaxeff
from jaxeff.compression import BitSensitivity, allocate_bits
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(4)
cost = jaxeff.cost(f, params, x[:1])
sites, widths = ("conv1", "fc1", "fc2"), (2, 4, 8)
damage = np.array([[9.0, 3.0, 0.0], [0.2, 0.1, 0.0], [0.2, 0.1, 0.0]])     # in nats, measured
sizes = {row.site: row.weights for row in cost.layers}
spec = allocate_bits(
    BitSensitivity(sites, widths, damage), cost, 4 * sum(sizes[site] for site in sites),
    weights={"fc2": (8,)},
)
assert [spec[site].weights.bits for site in sites] == [8, 2, 8]
```
"""

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from jaxeff import core
from jaxeff.compression._bit_sensitivity import BitSensitivity
from jaxeff.compression.numerics import LayerQuantization, Quantizer
from jaxeff.compression.quantizers import Uniform
from jaxeff.program import Cost, LayerCost, SpecError, Target, deciding_patterns

Allowed = Mapping[str, Collection[int]]
Pair = tuple[int | None, int | None]
"""Widths of a site's weights and of its activations; None for what is left as it is."""


class WidthChoices(TypedDict, total=False):
    """Which widths a site may have; `AllowedWidths` has their meaning and defaults."""

    weights: Allowed | None
    activations: Allowed | None
    together: bool


@dataclass(frozen=True, kw_only=True)
class AllowedWidths:
    """The widths that sites may have.

    Attributes:
        weights: Allowed widths of weights by pattern of sites; None for all that were measured.
        activations: Allowed widths of activations, in the same form.
        together: Whether the weights and the activations of a site have the same width.
    """

    weights: Allowed | None = None
    activations: Allowed | None = None
    together: bool = False


class _Option(NamedTuple):
    weights: int | None
    activations: int | None
    damage: float
    cost: float


@core.validate(
    sensitivity=core.instance_of(BitSensitivity),
    cost=core.instance_of(Cost),
    budget=core.positive,
    weights=core.string_mapping,
    activations=core.string_mapping,
    method=core.function_of_form("method(bits)"),
)
@core.forwards(AllowedWidths, WidthChoices)
def allocate_bits(
    sensitivity: BitSensitivity,
    cost: Cost,
    budget: float,
    *,
    unit: str = "weights",
    method: Callable[[int], Quantizer] = Uniform,
    **widths: Unpack[WidthChoices],
) -> dict[str, LayerQuantization | None]:
    """Chooses the widths of least damage within a budget.

    Sharp edges:
        Damages are taken to add up over sites, and over the weights and activations of one.
        A weight that several sites read is paid for at the first of them.
        Scales and codebooks aren't in the budget, but in `jaxeff.cost(quantized(f, spec), ...)`.

    Args:
        sensitivity: From `kl_sensitivity`, `hessian_sensitivity` or `noise_to_signal`; what it
            hasn't measured, weights or activations, is left as it is.
        cost: The model's, from `jaxeff.cost`.
        budget: Total cost that the sites of `sensitivity` may have, for the batch that `cost` was
            counted for. What "weights" doesn't count, activations, takes the width of least damage.
        unit: "weights": bits of their codes. "bops": bit operations.
        method: Function from a bit width to a quantizer.
        **widths: `weights`, the allowed widths of weights by pattern of sites, such as `{"conv1":
            (8,), "fc*": range(2, 5)}`; the most specific pattern decides, and elsewhere all that
            were measured are allowed. `activations`, those of activations, in the same form.
            `together`, whether the weights and the activations of a site have the same width.

    Returns:
        `LayerQuantization(method(weight bits), method(activation bits))` by site.

    Raises:
        ValueError: A damage that is NaN or infinite, a site that `cost` doesn't list or that
            multiplies nothing, a pattern that matches none, widths that weren't measured, or a
            budget below the least that the sites can cost.
    """
    core.check_choice("unit", unit, ("weights", "bops"))
    _check(sensitivity)
    rows = _rows(sensitivity, cost)
    allowed = AllowedWidths(**widths)
    pairs = _pairs(sensitivity, rows, allowed)
    options = [_options(sensitivity, i, row, unit, pairs[row.site]) for i, row in enumerate(rows)]
    least = sum(min(option.cost for option in site) for site in options)
    if least > budget:
        what = "bits of weights" if unit == "weights" else "bit operations"
        raise ValueError(
            f"a budget of {budget:,.15g} {what} is below the least that these widths can cost, "
            f"{least:,.15g}; allow fewer bits or raise it."
        )
    chosen = _solve(options, budget)
    spec: dict[str, LayerQuantization | None] = {}
    for row, option in zip(rows, chosen, strict=True):
        w, a = (None if b is None else method(b) for b in (option.weights, option.activations))
        spec[row.site] = None if w is None and a is None else LayerQuantization(w, a)
    return spec


def _check(sensitivity: BitSensitivity) -> None:
    tables = {"weights": sensitivity.weights, "activations": sensitivity.activations}
    shape = len(sensitivity.sites), len(sensitivity.widths)
    if all(table is None for table in tables.values()):
        raise ValueError("The sensitivity has damages neither of weights nor of activations.")
    for name, table in tables.items():
        if table is None:
            continue
        if np.shape(table) != shape:
            raise ValueError(f"the damages of {name} have shape {np.shape(table)}, not {shape}.")
        bad = np.argwhere(~np.isfinite(table))
        if len(bad):
            i, j = bad[0]
            raise ValueError(
                f"the damage of {name} of {sensitivity.sites[i]!r} in {sensitivity.widths[j]} bits "
                f"is {table[i, j]}; look at the inputs and parameters it was measured with."
            )


def _rows(sensitivity: BitSensitivity, cost: Cost) -> list[LayerCost]:
    known = {row.site: row for row in cost.layers if row.macs}
    unknown = [site for site in sensitivity.sites if site not in known]
    if unknown:
        raise SpecError(
            f"{unknown[0]!r} is no layer of the cost that multiplies; those are {', '.join(known)}."
        )
    return [known[site] for site in sensitivity.sites]


def _pairs(
    sensitivity: BitSensitivity, rows: list[LayerCost], allowed: AllowedWidths
) -> dict[str, list[Pair]]:
    """Returns the widths that the weights and the activations of each site may have."""
    targets = [Target(row.site, row.site.rpartition("#")[0], row.kind) for row in rows]
    by_site: dict[str, list[Pair]] = {}
    by_role = [dict(patterns or {}) for patterns in (allowed.weights, allowed.activations)]
    deciding = [
        deciding_patterns(patterns, targets, kinds=sorted({r.kind for r in rows}))
        for patterns in by_role
    ]
    for row in rows:
        of_both = []
        for patterns, decides in zip(by_role, deciding, strict=True):
            widths = patterns[decides[row.site]] if row.site in decides else sensitivity.widths
            missing = sorted(set(widths) - set(sensitivity.widths))
            if missing or not widths:
                raise ValueError(
                    f"{row.site!r} may have {sorted(widths)} bits, but the damage of "
                    f"{missing or 'none'} was measured; there are {list(sensitivity.widths)}."
                )
            of_both.append(sorted(set(widths)))
        by_site[row.site] = _combined(sensitivity, row, of_both[0], of_both[1], allowed.together)
    return by_site


def _combined(
    sensitivity: BitSensitivity,
    row: LayerCost,
    weights: list[int],
    activations: list[int],
    together: bool,
) -> list[Pair]:
    """Pairs the widths of a site's weights with those of its activations."""
    has_weights = sensitivity.weights is not None and row.kind != "matmul"
    has_activations = sensitivity.activations is not None
    first: list[int | None] = [*weights] if has_weights else [None]
    second: list[int | None] = [*activations] if has_activations else [None]
    pairs = list(itertools.product(first, second))
    if together and has_weights and has_activations:
        pairs = [(w, a) for w, a in pairs if w == a]
        if not pairs:
            raise ValueError(
                f"{row.site!r} can't have one width for both: weights may have {weights} bits, "
                f"activations {activations}."
            )
    return pairs


def _options(
    sensitivity: BitSensitivity, i: int, row: LayerCost, unit: str, pairs: list[Pair]
) -> list[_Option]:
    """Lists a site's options by rising cost, without those that another one dominates."""
    options = []
    for w, a in pairs:
        damage = _damage(sensitivity.weights, sensitivity, i, w)
        damage += _damage(sensitivity.activations, sensitivity, i, a)
        if unit == "weights":
            cost = row.weights * (w if w is not None else row.weight_bits or 32)
        else:
            second_bits = row.activation_bits or 32 if a is None else a
            first_bits = row.weight_bits or 32 if w is None else w
            # Both factors are activations, of the same width.
            if row.kind == "matmul" and a is not None:
                first_bits = a
            cost = row.macs * first_bits * second_bits
        options.append(_Option(w, a, damage, cost))
    # Keep the Pareto front of a site: an option that costs more must damage less.
    options.sort(key=lambda option: (option.cost, option.damage))
    kept = [options[0]]
    for option in options[1:]:
        if option.damage < kept[-1].damage:
            kept.append(option)
    return kept


def _damage(table: Any, sensitivity: BitSensitivity, i: int, width: int | None) -> float:
    return 0.0 if width is None else float(table[i, sensitivity.widths.index(width)])


def _solve(options: list[list[_Option]], budget: float) -> list[_Option]:
    """Chooses one option per site: least total damage within the budget (exact).

    One choice per site, of a width for its weights and one for its activations, so that the damages
    add up to the least and the costs to at most the budget: a multiple-choice knapsack. It is
    solved by dynamic programming over the sites: of all choices for the sites so far, those are
    kept that no other beats in both cost and damage, and that could still beat the best rounding of
    the linear relaxation. (Integer programming solvers stop within absolute tolerances, and damages
    span many decades.)
    """
    # Dynamic program over sites; expensive ones first: the others' bound is tighter.
    order = sorted(range(len(options)), key=lambda i: -options[i][-1].cost)
    bounds = [_Relaxation([options[i] for i in order[k:]]) for k in range(len(order) + 1)]
    best = bounds[0].rounded(budget)
    # Slack above rounding errors: sums in another order mustn't drop the optimum itself.
    best += 1e-9 * (abs(best) + sum(abs(o.damage) for site in options for o in site))
    costs, damages = np.zeros(1), np.zeros(1)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for k, i in enumerate(order):
        all_costs = costs[:, None] + np.array([o.cost for o in options[i]])
        all_damages = damages[:, None] + np.array([o.damage for o in options[i]])
        came, took = np.indices(all_costs.shape)
        c, d, came, took = (x.ravel() for x in (all_costs, all_damages, came, took))
        # Drop states whose relaxed completion is worse than a known solution.
        hopeful = d + bounds[k + 1].least(budget - c) <= best
        c, d, came, took = (x[hopeful] for x in (c, d, came, took))
        # Keep the Pareto front: no other state is cheaper and less damaging.
        by_cost = np.lexsort((d, c))
        lowest = np.minimum.accumulate(d[by_cost])
        better = np.concatenate([[True], lowest[1:] < lowest[:-1]])
        kept = by_cost[better]
        costs, damages = c[kept], d[kept]
        steps.append((came[kept], took[kept]))
    # Every remaining state fits the budget; walk back from the best through its predecessors.
    at = int(np.argmin(damages))
    chosen: dict[int, _Option] = {}
    for i, (came, took) in zip(reversed(order), reversed(steps), strict=True):
        chosen[i] = options[i][took[at]]
        at = came[at]
    return [chosen[i] for i in range(len(options))]


class _Relaxation:
    """Lower bound on the damage of some sites within a budget: options may be mixed."""

    def __init__(self, options: list[list[_Option]]) -> None:
        self._cost = sum(site[0].cost for site in options)
        self._damage = sum(site[0].damage for site in options)
        # Linear relaxation of the multiple-choice knapsack: each site moves along the lower
        # convex hull of its options, so its steps come with falling gain per cost.
        steps = [(*step, i) for i, site in enumerate(options) for step in _hull_steps(site)]
        # The most damage saved per cost first; along each hull that is its own order.
        self._steps = sorted(steps, key=lambda step: step[1] / step[0])
        self._spent = np.cumsum([0.0, *(cost for cost, _, _ in self._steps)])
        self._saved = np.cumsum([0.0, *(damage for _, damage, _ in self._steps)])

    def least(self, budgets: np.ndarray) -> np.ndarray:
        """Computes the bound for each budget; infinite where nothing fits."""
        room = budgets - self._cost
        # Greedy by gain per cost is optimal where the last step may be taken in part:
        # piecewise linear in the budget, so one interpolation bounds all states at once.
        bound = self._damage + np.interp(room, self._spent, self._saved)
        return np.where(room >= 0, bound, np.inf)

    def rounded(self, budget: float) -> float:
        """Computes the damage of a greedy choice that fits the budget."""
        room, damage, ended = budget - self._cost, self._damage, set()
        for cost, saved, site in self._steps:
            # A site's steps build on each other: after one that doesn't fit its later ones are out.
            if site in ended or cost > room:
                ended.add(site)
                continue
            room, damage = room - cost, damage + saved
        return damage


def _hull_steps(site: list[_Option]) -> list[tuple[float, float]]:
    """Returns cost and (negative) damage of each step along the lower convex hull."""
    hull: list[_Option] = []
    for option in site:
        # Monotone chain: drop points above the line between their neighbours.
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return [(b.cost - a.cost, b.damage - a.damage) for a, b in itertools.pairwise(hull)]


def _slope(a: _Option, b: _Option) -> float:
    return (b.damage - a.damage) / (b.cost - a.cost)
