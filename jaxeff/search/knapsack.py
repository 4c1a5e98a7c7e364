"""`Knapsack`: one option for every layer, of least predicted divergence within a budget.

What every option of every layer costs is looked up, one layer changed at a time, and which options
are taken is a multiple-choice knapsack, solved exactly (scipy's mixed-integer programs). Layers
that follow each other save more together than apart, so the first budget is too small: an episode
measures what was chosen, and the budget of the next one is corrected by it.

```python
from jaxeff.search import Knapsack

Knapsack(levels=10)      # search(..., agent=Knapsack(), latency=table_latency(x[:1]))
```

Sharp edge: without a latency that is looked up, options cost bit operations.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.optimize import Bounds, LinearConstraint, milp

from jaxeff.search.greedy import cost, divergence, policy
from jaxeff.search.searcher import Outcome, Problem
from jaxeff.settings import Count, Setting, register_setting, static


class Items(NamedTuple):
    """What can be chosen.

    Attributes:
        options: Actions of a layer.
        hurts: Predicted divergence, by layer and option.
        costs: What the option leaves of the whole model, by layer and option, as its change.
        whole: Cost of the whole model.
        budget: What the changes may leave.
        low: The largest budget that was too small.
        high: The smallest that was too large.
    """

    options: Float[np.ndarray, "options actions"]
    hurts: Float[np.ndarray, "layers options"]
    costs: Float[np.ndarray, "layers options"]
    whole: float
    budget: float
    low: float
    high: float


@register_setting
@dataclass(frozen=True)
class Knapsack(Setting):
    """A multiple-choice knapsack of layers.

    Attributes:
        levels: Strengths of every action that are options.
    """

    levels: Annotated[int, Count(2)] = static(6)

    def start(self, key: PRNGKeyArray, problem: Problem) -> Items:
        """See `Searcher`.

        Raises:
            ValueError: There are no sensitivities.
        """
        known, of = problem.known, problem.actions
        if known is None:
            raise ValueError("Knapsack goes by sensitivities: search(..., sensitivities=True)")
        channels = np.linspace(0, 1, self.levels, endpoint=False)
        # Eight bits, every number of few bits once, and none of both if actions can say so.
        few = of.eight_below + (1 - of.eight_below) * np.linspace(0, 0.999, self.levels)
        bits = [*itertools.product(few, few), *([(0.0, 0.0)] if of.float_below > 0 else [])]
        axes = ([[(c,) for c in channels]] if of.prunes else []) + ([bits] if of.quantizes else [])
        options = np.array([sum(parts, ()) for parts in itertools.product(*axes)], np.float32)
        layers, _ = problem.shape
        start = np.zeros(problem.shape, np.float32)
        if of.quantizes:
            start[:, -2:] = of.eight_below
        changed = np.tile(start, (layers, len(options), 1, 1))
        for i in range(layers):
            changed[i, :, i] = options
        if problem.prepare is not None:
            problem.prepare([policy(problem, one) for own in changed for one in own])
        whole = cost(problem, start)
        hurts, costs = np.zeros((2, layers, len(options)))
        for i, (k, option) in itertools.product(range(layers), enumerate(options)):
            costs[i, k] = cost(problem, changed[i, k]) - whole
            hurts[i, k] = sum(divergence(of, known, float(a), i, j) for j, a in enumerate(option))
        unit = problem.whole if problem.time is not None else cost(problem, np.zeros_like(start))
        return Items(options, hurts, costs, whole, problem.target * unit, -np.inf, np.inf)

    def propose(
        self, key: PRNGKeyArray, problem: Problem, state: Items
    ) -> tuple[Float[Array, "layers actions"], Items]:
        """See `Searcher`."""
        chosen = _solved(state.hurts, state.costs, state.budget - state.whole)
        return jnp.asarray(state.options[chosen]), state

    def learn(self, key: PRNGKeyArray, problem: Problem, state: Items, outcome: Outcome) -> Items:
        """See `Searcher`."""
        least = state.whole + state.costs.min(1).sum()
        low, high = state.low, state.high
        if outcome.ratio > 1:
            high = min(high, state.budget)
        else:
            low = max(low, state.budget)
        if np.isfinite(low) and np.isfinite(high):
            budget = (low + high) / 2
        else:
            budget = least + (state.budget - least) / outcome.ratio
            budget = min(budget, state.whole) if outcome.ratio < 1 else budget
        return state._replace(budget=max(budget, least), low=low, high=high)


def _solved(
    hurts: Float[np.ndarray, "layers options"],
    costs: Float[np.ndarray, "layers options"],
    budget: float,
) -> np.ndarray:
    """The option of every layer with the least sum of `hurts` whose `costs` keep a budget."""
    layers, count = costs.shape
    scale = max(np.abs(costs).max(), 1e-300)  # seconds are small numbers to a solver
    one_each = LinearConstraint(np.kron(np.eye(layers), np.ones(count)), 1, 1)
    least = costs.min(1).sum() / scale
    within = LinearConstraint(costs.reshape(1, -1) / scale, -np.inf,
                              max(budget / scale, least + 1e-9))  # fmt: skip
    found = milp(
        hurts.ravel() / max(hurts.max(), 1e-300), constraints=[one_each, within],
        integrality=np.ones(layers * count), bounds=Bounds(0, 1), options={"time_limit": 5.0},
    )  # fmt: skip
    if found.x is None:
        return costs.argmin(1)
    return np.asarray(found.x).reshape(layers, count).argmax(1)
