"""`Searcher`: proposes actions, and learns from their outcomes.

A searcher is a setting and pure functions of a state, a pytree: `start` makes it, `propose` asks
for the actions of an episode, `learn` takes the reward. The same key gives the same result, which
is how a search that was killed goes on: what was measured is read, what was learnt is learnt again.

A searcher that knows the actions of several episodes before the outcome of the first also has
`propose_many(keys, problem, state)`: the actions of the next episodes, at most one per key, as
`propose` will give them. A latency with several boards measures them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.search.evaluation import CompressionSensitivity
from jaxeff.search.space import Actions, Policy, SearchSpace


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """Description of a search for its searcher.

    Attributes:
        space: The model's layers.
        actions: Meaning of actions.
        known: Sensitivities of the layers, if they were measured.
        episodes: Number of episodes of the search.
        target: Share of the whole model's latency that is asked for.
        whole: Latency of the whole model.
        time: Latency of any policy, where it is looked up and costs no episode; else None.
        prepare: Fills what is looked up for many policies at once, which is cheaper than one by
            one; None where nothing is to be filled.
    """

    space: SearchSpace
    actions: Actions
    known: CompressionSensitivity | None
    episodes: int
    target: float
    whole: float = 1.0
    time: Callable[[Policy], float] | None = None
    prepare: Callable[[Sequence[Policy]], None] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Of an episode's actions."""
        return len(self.space.sites), self.actions.count


class EpisodeResult(NamedTuple):
    """Outcome of an episode.

    Attributes:
        actions: `[layers, actions]`.
        accuracy: From 0 to 1.
        ratio: Latency over the target latency.
        reward: Reward of the accuracy and the latency.
    """

    actions: Float[np.ndarray, "layers actions"]
    accuracy: float
    ratio: float
    reward: float


@runtime_checkable
class Searcher(Protocol):
    """Proposes the actions of every episode."""

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> Any:
        """Makes the state before the first episode."""
        ...

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Any
    ) -> tuple[Float[Array, "layers actions"], Any]:
        """Proposes the actions of the next episode, and updates the state."""
        ...

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Any, outcome: EpisodeResult
    ) -> Any:
        """Updates the state after an episode."""
        ...


@dataclass(frozen=True)
class RandomSearch:
    """Actions that are uniform between 0 and 1: what a search has to beat."""

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> None:
        """Implements `Searcher`."""

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: None
    ) -> tuple[Float[Array, "layers actions"], None]:
        """Implements `Searcher`."""
        return jax.random.uniform(key, problem.shape), None

    def propose_many(
        self, keys: Sequence[PRNGKeyArray], problem: SearchProblem, state: None
    ) -> list[Float[Array, "layers actions"]]:
        """Proposes all of them, as nothing is learnt from an outcome."""
        return [self.propose(key, problem, state)[0] for key in keys]

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: None, outcome: EpisodeResult
    ) -> None:
        """Implements `Searcher`."""


class Bracket(NamedTuple):
    """Bracket of the strength that meets the target.

    Attributes:
        low: A strength that is too slow.
        high: One that is fast enough.
        now: Strength of the current episode.
    """

    low: float
    high: float
    now: float


@dataclass(frozen=True)
class UniformSearch:
    """The same action everywhere, bisected until the latency is the target's."""

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> Bracket:
        """Implements `Searcher`."""
        return Bracket(0.0, 1.0, 0.5)

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Bracket
    ) -> tuple[Float[Array, "layers actions"], Bracket]:
        """Implements `Searcher`."""
        return jnp.full(problem.shape, state.now), state

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Bracket, outcome: EpisodeResult
    ) -> Bracket:
        """Implements `Searcher`."""
        # Latency falls as the strength rises, so the target stays between both ends.
        low, high = (state.now, state.high) if outcome.ratio > 1 else (state.low, state.now)
        return Bracket(low, high, (low + high) / 2)
