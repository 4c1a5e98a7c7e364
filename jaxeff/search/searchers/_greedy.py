"""`Greedy`: the step of least predicted damage per saving, again and again until fast enough.

After NetAdapt (Yang et al., arXiv 1804.03230), with sensitivities in the place of its trials: an
episode strengthens actions one after the other, by what is known of the latency until it is halfway
to the target or, where nothing is known of it, just one. The candidate is measured, and it goes on
until the target is met. A step that was too much is taken back, and the next best one is tried.

What a step saves is seconds where a latency is looked up, and bit operations else.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxeff.core import Number, Setting, register_setting, static
from jaxeff.search.evaluation import CompressionSensitivity
from jaxeff.search.searchers._searcher import EpisodeResult, SearchProblem
from jaxeff.search.space import Actions, Policy, SearchSpace


class Progress(NamedTuple):
    """State of the search.

    Attributes:
        actions: Actions before the last step.
        tried: Actions of the episode.
        closed: Mask of actions whose next step was too much.
    """

    actions: Float[np.ndarray, "layers actions"]
    tried: Float[np.ndarray, "layers actions"]
    closed: Bool[np.ndarray, "layers actions"]


@register_setting
@dataclass(frozen=True)
class Greedy(Setting):
    """Steps by least predicted divergence per operation saved.

    Attributes:
        step: Growth of an action in an episode.
        most: Largest value of an action.
    """

    step: Annotated[float, Number(above=0, high=1)] = static(0.1)
    most: Annotated[float, Number(above=0, high=1)] = static(0.95)

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> Progress:
        """Implements `Searcher`.

        Raises:
            ValueError: There are no sensitivities.
        """
        if problem.known is None:
            raise ValueError("Greedy goes by sensitivities: search(..., sensitivities=True)")
        actions = np.zeros(problem.shape, np.float32)
        if problem.actions.quantizes:
            eight = actions.copy()
            eight[:, -2:] = problem.actions.eight_below
            # They hurt next to nothing; where they are fast enough, some layers may stay in float.
            if cost(problem, eight) > problem.target * cost(problem, actions):
                actions = eight
        return self._advanced(problem, actions, np.zeros(problem.shape, bool))

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Progress
    ) -> tuple[Float[Array, "layers actions"], Progress]:
        """Implements `Searcher`."""
        return jnp.asarray(state.tried), state

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Progress, outcome: EpisodeResult
    ) -> Progress:
        """Implements `Searcher`."""
        if outcome.ratio > 1:
            return self._advanced(problem, state.tried, state.closed)
        # Fast enough: the last step is taken back, and another one may do with less damage.
        closed = state.closed | (state.tried != state.actions)
        return self._advanced(problem, state.actions, closed)

    def _advanced(
        self,
        problem: SearchProblem,
        actions: Float[np.ndarray, "layers actions"],
        closed: Bool[np.ndarray, "layers actions"],
    ) -> Progress:
        """Takes steps until half of the excess cost is saved, at least one, without measuring."""
        before, found = actions, self._stronger(problem, actions, closed)
        if problem.time is not None:
            # Halfway in cost: the closer to the target, the smaller the steps between
            # measurements.
            least = (cost(problem, actions) + problem.target * problem.whole) / 2
            while cost(problem, found) > least:
                further = self._stronger(problem, found, closed)
                if (further == found).all():
                    break
                before, found = found, further
        return Progress(before, found, closed)

    def _stronger(
        self, problem: SearchProblem, actions: np.ndarray, closed: np.ndarray
    ) -> Float[np.ndarray, "layers actions"]:
        """Takes the best of all single steps that aren't closed."""
        of, known = problem.actions, problem.known
        assert known is not None
        before = cost(problem, actions)
        best, chosen = np.inf, actions
        for i, j in np.ndindex(*problem.shape):
            if closed[i, j] or actions[i, j] >= self.most:
                continue
            more, saved = actions.copy(), 0.0
            while saved <= 0 and more[i, j] < self.most:  # a small step may round to nothing
                more[i, j] = self._next(problem, float(more[i, j]), j)
                saved = before - cost(problem, more)
            if saved <= 0:
                continue
            now, then = (float(a[i, j]) for a in (actions, more))
            # Steps are compared by damage per cost saved; a step without damage still
            # competes by what it saves.
            hurt = divergence(of, known, then, i, j) - divergence(of, known, now, i, j)
            if (worth := max(hurt, 1e-12) / saved) < best:
                best, chosen = worth, more
        return chosen

    def _next(self, problem: SearchProblem, action: float, j: int) -> float:
        """Returns the next strength; skips those that do nothing, below the threshold of bits."""
        quantizes = problem.actions.quantizes and j >= problem.shape[1] - 2
        least = problem.actions.float_below + 1e-3 if quantizes and action == 0 else 0.0
        return float(min(max(action + self.step, least), self.most))


def cost(problem: SearchProblem, actions: np.ndarray) -> float:
    """Computes the cost of actions: seconds where they can be looked up, else bit operations."""
    if problem.time is not None:
        return problem.time(policy(problem, actions))
    return float(_operations(problem.space, problem.actions, actions)[1])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _operations(space: SearchSpace, of: Actions, actions: Array) -> tuple[Policy, Array]:
    policy = of.policy(space, actions)
    return policy, space.bops(policy).sum()


def policy(problem: SearchProblem, actions: np.ndarray) -> Policy:
    """Converts actions to a policy."""
    found, _ = _operations(problem.space, problem.actions, actions)
    return jax.tree.map(np.asarray, found)


def divergence(of: Actions, known: CompressionSensitivity, action: float, i: int, j: int) -> float:
    """Looks up the divergence that action `j` of layer `i` alone causes, in nats."""
    if of.prunes and j == 0:
        return float(np.interp(action, known.strengths, known.pruning[i]))
    if action <= of.float_below:
        return 0.0
    if action <= of.eight_below:
        # Measured for both together, and asked for weights and activations one by one.
        return float(known.eight[i]) / 2
    table = known.weights if j == of.count - 2 else known.activations
    # The part of an action that chooses bits, as in `Actions.width`: so it was measured.
    strength = (action - of.eight_below) / (1 - of.eight_below)
    return float(np.interp(strength, known.strengths, table[i]))
