"""`Sequential`: one method after the other, the first halfway to the target.

The comparison in Klein's thesis, section 4.3: half of the episodes search for channels, at the
square root of the latency that is asked for; the best of them is kept, and the other half searches
for bits on top of it, or the other way around.

```python
from jaxeff.search import DDPG, Sequential

Sequential(first="pruning")
Sequential(first="quantization", agent=DDPG(warm_up=5))
```
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Choice, Setting, register_setting, static
from jaxeff.search.evaluation import Absolute, Reward
from jaxeff.search.searchers._ddpg import DDPG
from jaxeff.search.searchers._searcher import EpisodeResult, Searcher, SearchProblem


class Stage(NamedTuple):
    """State of the search.

    Attributes:
        memory: The agent's.
        episode: Number of episodes so far.
        best: Actions of the first stage with its highest reward.
        reward: Highest reward of the first stage.
    """

    memory: Any
    episode: int
    best: Float[np.ndarray, "layers actions"]
    reward: float


@register_setting
@dataclass(frozen=True)
class Sequential(Setting):
    """Two searches on one budget of episodes.

    Attributes:
        first: "pruning" or "quantization".
        agent: Searcher of both stages.
        reward: Reward that judges the first stage, at its own target.
    """

    first: Annotated[str, Choice("pruning", "quantization")] = static("pruning")
    agent: Searcher = static(DDPG())
    reward: Reward = static(Absolute())

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> Stage:
        """Implements `Searcher`.

        Raises:
            ValueError: The actions are not `methods="both"`.
        """
        if problem.actions.methods != "both":
            raise ValueError(
                f"Sequential searches for channels and bits: its actions are methods='both', not "
                f"{problem.actions.methods!r}"
            )
        none = np.zeros(problem.shape, np.float32)
        return Stage(self.agent.start(key, self._inner(problem, 0)), 0, none, -np.inf)

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Stage
    ) -> tuple[Float[Array, "layers actions"], Stage]:
        """Implements `Searcher`."""
        if state.episode == problem.episodes // 2:  # the second agent starts
            inner = self._inner(problem, state.episode)
            memory = self.agent.start(jax.random.fold_in(key, 1), inner)
            state = state._replace(memory=memory)
        inner = self._inner(problem, state.episode)
        proposed, memory = self.agent.propose(key, inner, state.memory)
        columns = self._columns(problem, state.episode)
        # The second method acts on top of the best that the first one found.
        base = state.best if self._is_second(problem, state.episode) else np.zeros(problem.shape)
        actions = jnp.asarray(base, jnp.float32).at[:, columns].set(proposed)
        return actions, state._replace(memory=memory)

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Stage, outcome: EpisodeResult
    ) -> Stage:
        """Implements `Searcher`."""
        inner, columns = self._inner(problem, state.episode), self._columns(problem, state.episode)
        best, reward = state.best, state.reward
        given = outcome._replace(actions=outcome.actions[:, columns])
        if not self._is_second(problem, state.episode):
            # The first stage has a milder target, the root of the whole one: both stages
            # save the same factor.
            ratio = outcome.ratio * problem.target / inner.target
            found = self.reward(outcome.accuracy, ratio, 1.0)
            given = given._replace(ratio=ratio, reward=found)
            if found > reward:
                best, reward = np.asarray(outcome.actions, np.float32), found
        memory = self.agent.learn(key, inner, state.memory, given)
        return Stage(memory, state.episode + 1, best, reward)

    def _is_second(self, problem: SearchProblem, episode: int) -> bool:
        return episode >= problem.episodes // 2

    def _columns(self, problem: SearchProblem, episode: int) -> slice:
        prunes = (self.first == "pruning") != self._is_second(problem, episode)
        return slice(0, 1) if prunes else slice(1, 3)

    def _inner(self, problem: SearchProblem, episode: int) -> SearchProblem:
        """Makes the problem of one stage's agent."""
        second = self._is_second(problem, episode)
        prunes = (self.first == "pruning") != second
        of = problem.actions
        actions = dataclasses.replace(
            of, methods="pruning" if prunes else "quantization", round_to=of.round_to or 32
        )
        half = problem.episodes // 2
        return dataclasses.replace(
            problem, actions=actions, episodes=problem.episodes - half if second else half,
            # A looked-up latency would be that of one method, without what the other stage decides.
            target=problem.target if second else problem.target**0.5, time=None,
        )  # fmt: skip
