"""`Knapsack`: one option for every layer, of least predicted divergence within a budget.

What every option of every layer costs is looked up, one layer changed at a time, and which options
are taken is a multiple-choice knapsack, solved exactly (scipy's mixed-integer programs). Layers
that follow each other save more together than apart, so the first budget is too small: an episode
measures what was chosen, and the budget of the next one is corrected by it. What was chosen before
is cut off, so every episode is the next best policy near the budget.

```python
from jaxeff.search import Knapsack

Knapsack(levels=10)      # search(..., agent=Knapsack(), latency=table_latency(x[:1]))
```

Sharp edges:
    The solver isn't that of `jaxeff.compression.allocate_bits`, a dynamic program that drops states
    which cost more and damage more: here a solution may be excluded, or have to lie near the
    budget, and then a dropped state can be the best one. In return its optimum is one within the
    relative gap of the solver, 1e-4, which is far below the errors of predicted divergences.
    Without a latency that is looked up, options cost bit operations.
    The key is not used: seeds differ in how candidates train alone.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy  # its solvers are loaded when they are asked for
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.core import Count, Setting, register_setting, static
from jaxeff.search import _searcher as searcher

UNSPENT = 0.1
"""Share of the budget that solutions after the first one leave at most, where there are such."""
RETRIES = 20
"""Solutions of an episode at most, until one comes to a policy that is new."""


class Items(NamedTuple):
    """Options of the knapsack, with what was tried so far.

    Attributes:
        options: Actions of a layer.
        damages: Predicted divergence, by layer and option.
        costs: Change of the whole model's cost by an option, by layer and option.
        start_cost: Cost of the whole model.
        budget: Cost that the changed model may have.
        low: The largest budget that was too small.
        high: The smallest that was too large.
        duplicates: Numbers of options by layer, equal where options give the same policy.
        tried: Options of the layers that were chosen so far, as such numbers.
        seen: Policies that were proposed.
    """

    options: Float[np.ndarray, "options actions"]
    damages: Float[np.ndarray, "layers options"]
    costs: Float[np.ndarray, "layers options"]
    start_cost: float
    budget: float
    low: float
    high: float
    duplicates: Int[np.ndarray, "layers options"]
    tried: tuple[Int[np.ndarray, " layers"], ...] = ()
    seen: frozenset[str] = frozenset()


@register_setting
class Knapsack(Setting):
    """A multiple-choice knapsack of layers (Sinha and Zoltners, Operations Research 27, 1979).

    Attributes:
        levels: Strengths of every action that are options.
    """

    levels: Annotated[int, Count(2)] = static(6)

    def start(self, key: PRNGKeyArray, problem: searcher.SearchProblem) -> Items:
        """Implements `Searcher`.

        Raises:
            ValueError: There are no sensitivities.
        """
        sensitivities, actions = problem.known, problem.actions
        if sensitivities is None:
            raise ValueError("Knapsack goes by sensitivities: search(..., sensitivities=True)")
        options = self._options(problem)
        layers, _ = problem.shape
        start = np.zeros(problem.shape, np.float32)
        if actions.quantizes:
            start[:, -2:] = actions.eight_below
        changed = np.tile(start, (layers, len(options), 1, 1))
        for i in range(layers):
            changed[i, :, i] = options
        policies = [[searcher.as_policy(problem, a) for a in of_layer] for of_layer in changed]
        if problem.prepare is not None:
            problem.prepare([policy for of_layer in policies for policy in of_layer])
        duplicates = np.array(
            [_numbered([str(policy.plain()) for policy in of_layer]) for of_layer in policies]
        )
        start_cost = searcher.cost_of_policy(problem, start)
        damages, costs = np.zeros((2, layers, len(options)))
        for i, (k, option) in itertools.product(range(layers), enumerate(options)):
            # One layer alone: several save more together, which `learn` makes up for.
            costs[i, k] = searcher.cost_of_policy(problem, changed[i, k]) - start_cost
            damages[i, k] = sum(
                searcher.predicted_divergence(actions, sensitivities, float(action), i, j)
                for j, action in enumerate(option)
            )
        # Bit operations have no measured latency: that of no actions stands for it.
        unit = (
            problem.uncompressed_latency
            if problem.time is not None
            else searcher.cost_of_policy(problem, np.zeros_like(start))
        )
        return Items(
            options, damages, costs, start_cost, problem.target * unit, -np.inf, np.inf, duplicates
        )

    def _options(self, problem: searcher.SearchProblem) -> Float[np.ndarray, "options actions"]:
        """Combines strengths of a layer's actions."""
        actions = problem.actions
        channels = np.linspace(0, 1, self.levels, endpoint=False)
        # Eight bits, every number of few bits once, and none of both if actions can say so.
        few = actions.eight_below + (1 - actions.eight_below) * np.linspace(0, 0.999, self.levels)
        bits = [*itertools.product(few, few), *([(0.0, 0.0)] if actions.float_below > 0 else [])]
        pruned = [[(c,) for c in channels]] if actions.prunes else []
        axes = pruned + ([bits] if actions.quantizes else [])
        return np.array([sum(parts, ()) for parts in itertools.product(*axes)], np.float32)

    def propose(
        self, key: PRNGKeyArray, problem: searcher.SearchProblem, state: Items
    ) -> tuple[Float[Array, "layers actions"], Items]:
        """Implements `Searcher`: the best policy near the budget that wasn't proposed yet."""
        layers, tried, seen = np.arange(len(state.costs)), state.tried, state.seen
        # Choices that differ may come to one policy: few bits depend on other layers' channels.
        for _ in range(RETRIES):
            chosen = _solved(
                state.damages,
                state.costs,
                state.budget - state.start_cost,
                state.duplicates,
                tried,
                UNSPENT * state.budget,
            )
            policy = str(searcher.as_policy(problem, state.options[chosen]).plain())
            tried = (*tried, state.duplicates[layers, chosen])
            if policy not in seen:
                break
        state = state._replace(tried=tried, seen=seen | {policy})
        return jnp.asarray(state.options[chosen]), state

    def learn(
        self,
        key: PRNGKeyArray,
        problem: searcher.SearchProblem,
        state: Items,
        outcome: searcher.EpisodeResult,
    ) -> Items:
        """Implements `Searcher`: corrects the budget by what the episode measured."""
        least = state.start_cost + state.costs.min(1).sum()
        low, high = state.low, state.high
        if outcome.ratio > 1:
            high = min(high, state.budget)
        else:
            low = max(low, state.budget)
        if np.isfinite(low) and np.isfinite(high):
            # Bisection once the budget is bracketed, before that a step in proportion to
            # how far the measurement was off the target.
            budget = (low + high) / 2
        else:
            budget = least + (state.budget - least) / outcome.ratio
        most = state.start_cost + state.costs.max(1).sum()
        return state._replace(budget=min(max(budget, least), most), low=low, high=high)


def _numbered(texts: Sequence[str]) -> list[int]:
    """Numbers texts, the same ones alike."""
    return [texts.index(text) for text in texts]


def _solved(
    damages: Float[np.ndarray, "layers options"],
    costs: Float[np.ndarray, "layers options"],
    budget: float,
    duplicates: Int[np.ndarray, "layers options"],
    tried: Sequence[Int[np.ndarray, " layers"]] = (),
    unspent: float = np.inf,
) -> np.ndarray:
    """Chooses one option per layer: the least sum of `damages` whose `costs` keep a budget.

    After the first one it is another than those tried, in one layer at least, that leaves less than
    `unspent` of the budget; else any other within the budget; else the cheapest other one. Where
    there is no other, they count again.
    """
    layers, count = costs.shape
    # Binary variables x[layer, option], one option each: minimize damage within the budget.
    scale = max(np.abs(costs).max(), 1e-300)  # seconds are small numbers to a solver
    total, damage = costs.reshape(1, -1) / scale, damages.ravel() / max(damages.max(), 1e-300)
    # At least the cheapest choice: below it there is no solution.
    most = max(budget / scale, costs.min(1).sum() / scale + 1e-9)
    one_each = scipy.optimize.LinearConstraint(np.kron(np.eye(layers), np.ones(count)), 1, 1)
    within = scipy.optimize.LinearConstraint(total, -np.inf, most)
    goals = [(damage, [within])]
    if tried:
        # A cut per tried solution: at most layers - 1 options may agree with it. Options
        # that come to the same policy count as equal.
        same = np.stack([duplicates == solution[:, None] for solution in tried])
        same = same.reshape(len(tried), -1)
        another = scipy.optimize.LinearConstraint(same.astype(float), -np.inf, layers - 1)
        close = scipy.optimize.LinearConstraint(total, most - unspent / scale, most)
        goals = [
            (damage, [close, another]),
            (damage, [within, another]),
            (total[0], [another]),
            *goals,
        ]
    # The strictest first; each next one drops a wish, and the last one always has a solution.
    for goal, constraints in goals:
        solution = scipy.optimize.milp(
            goal, constraints=[one_each, *constraints], integrality=np.ones(layers * count),
            bounds=scipy.optimize.Bounds(0, 1), options={"time_limit": 5.0},
        )  # fmt: skip
        if solution.x is not None:
            return np.asarray(solution.x).reshape(layers, count).argmax(1)
    return costs.argmin(1)
