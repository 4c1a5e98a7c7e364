"""Searchers: they propose actions and learn from outcomes, at random, by evolution or greedily.

A searcher is a setting and pure functions of a state, a pytree: `start` makes it, `propose` asks
for the actions of an episode, `learn` takes the reward. The same key gives the same result, which
is how a search that was killed goes on: what was measured is read, what was learnt is learnt again.

A searcher that knows the actions of several episodes before the outcome of the first also has
`propose_many(keys, problem, state)`: the actions of the next episodes, at most one per key, as
`propose` will give them. A latency with several boards measures them at once.

`Evolution` takes the actions of all layers as one vector, for an evolution strategy of `evosax`.

`Greedy` takes the step of least predicted damage per saving, again and again until the network is
fast enough: NetAdapt (Yang et al., arXiv 1804.03230) with sensitivities in the place of its trials.
An episode strengthens actions one after the other, by what is known of the latency until it is
halfway to the target or, where nothing is known of it, just one. The candidate is measured, and it
goes on until the target is met. A step that was too much is taken back, and the next best one is
tried.

What a step saves is seconds where a latency is looked up, and bit operations else.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxeff.core import Count, Number, Setting, optional, register_setting, static
from jaxeff.search._candidates import CompressionSensitivity
from jaxeff.search._space import Actions, Policy, SearchSpace


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """Description of a search for its searcher.

    Attributes:
        space: The model's layers.
        actions: Meaning of actions.
        known: Sensitivities of the layers, if they were measured.
        episodes: Number of episodes of the search.
        target: Share of the whole model's latency that is asked for.
        uncompressed_latency: Latency of the whole model.
        time: Latency of any policy, where it is looked up and costs no episode; else None.
        prepare: Fills what is looked up for many policies at once, which is cheaper than one by
            one; None where nothing is to be filled.
    """

    space: SearchSpace
    actions: Actions
    known: CompressionSensitivity | None
    episodes: int
    target: float
    uncompressed_latency: float = 1.0
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
        return Bracket(0.0, 1.0, 0.5)

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Bracket
    ) -> tuple[Float[Array, "layers actions"], Bracket]:
        return jnp.full(problem.shape, state.now), state

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Bracket, outcome: EpisodeResult
    ) -> Bracket:
        # Latency falls as the strength rises, so the target stays between both ends.
        low, high = (state.now, state.high) if outcome.ratio > 1 else (state.low, state.now)
        return Bracket(low, high, (low + high) / 2)


class Generation(NamedTuple):
    """State of an evolution.

    Attributes:
        strategy: The state of the strategy.
        population: Candidates of the generation.
        losses: Losses of the candidates that were tried.
        tried: Number of candidates tried.
    """

    strategy: Any
    population: Float[Array, "population numbers"]
    losses: Float[Array, " population"]
    tried: int


@register_setting
class Evolution(Setting):
    """Covariance matrix adaptation (Hansen, arXiv 1604.00772), or another strategy of evosax.

    Attributes:
        population: Candidates of a generation.
        deviation: Standard deviation with which the first generation is drawn.
        algorithm: Name of a strategy in `evosax.algorithms`.
    """

    population: Annotated[int, Count(2)] = static(10)
    deviation: Annotated[float, Number(above=0)] = static(0.3)
    algorithm: str = static("CMA_ES")

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> Generation:
        strategy, options = self._strategy(problem)
        first, second = jax.random.split(key)
        # Actions outside of [0, 1] count as its ends, so the middle is where most can be reached.
        state = strategy.init(first, jnp.full(_numbers(problem), 0.5), options)
        return self._asked(second, problem, state)

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Generation
    ) -> tuple[Float[Array, "layers actions"], Generation]:
        return jnp.clip(state.population[state.tried], 0, 1).reshape(problem.shape), state

    def propose_many(
        self, keys: Sequence[PRNGKeyArray], problem: SearchProblem, state: Generation
    ) -> list[Float[Array, "layers actions"]]:
        """Implements `_searcher.py`: what is left of the generation."""
        left = [state._replace(tried=i) for i in range(state.tried, self.population)]
        return [self.propose(k, problem, s)[0] for k, s in zip(keys, left, strict=False)]

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Generation, outcome: EpisodeResult
    ) -> Generation:
        # Strategies minimise, rewards are maximised.
        state = state._replace(
            losses=state.losses.at[state.tried].set(-outcome.reward), tried=state.tried + 1
        )
        # A strategy learns from whole generations.
        if state.tried < self.population:
            return state
        strategy, options = self._strategy(problem)
        first, second = jax.random.split(key)
        updated, _ = strategy.tell(first, state.population, state.losses, state.strategy, options)
        return self._asked(second, problem, updated)

    def _asked(self, key: PRNGKeyArray, problem: SearchProblem, state: Any) -> Generation:
        strategy, options = self._strategy(problem)
        population, state = strategy.ask(key, state, options)
        return Generation(state, population, jnp.zeros(self.population), 0)

    def _strategy(self, problem: SearchProblem) -> tuple[Any, Any]:
        algorithms = optional("evosax.algorithms", "Evolution", "search")
        make = getattr(algorithms, self.algorithm, None)
        if make is None:
            raise ValueError(f"evosax has no algorithm {self.algorithm!r}; CMA_ES is one")
        strategy = make(population_size=self.population, solution=jnp.zeros(_numbers(problem)))
        options = strategy.default_params
        # Not every strategy has a deviation to start from.
        if hasattr(options, "std_init"):
            options = options.replace(std_init=self.deviation)
        return strategy, options


def _numbers(problem: SearchProblem) -> int:
    layers, count = problem.shape
    return layers * count


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
            if cost_of_policy(problem, eight) > problem.target * cost_of_policy(problem, actions):
                actions = eight
        return self._advanced(problem, actions, np.zeros(problem.shape, bool))

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Progress
    ) -> tuple[Float[Array, "layers actions"], Progress]:
        return jnp.asarray(state.tried), state

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Progress, outcome: EpisodeResult
    ) -> Progress:
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
        before, stronger = actions, self._stronger(problem, actions, closed)
        if problem.time is not None:
            # Halfway in cost: the closer to the target, the smaller the steps between measurements.
            least = (
                cost_of_policy(problem, actions) + problem.target * problem.uncompressed_latency
            ) / 2
            while cost_of_policy(problem, stronger) > least:
                further = self._stronger(problem, stronger, closed)
                if (further == stronger).all():
                    break
                before, stronger = stronger, further
        return Progress(before, stronger, closed)

    def _stronger(
        self, problem: SearchProblem, actions: np.ndarray, closed: np.ndarray
    ) -> Float[np.ndarray, "layers actions"]:
        """Takes the best of all single steps that aren't closed."""
        of, known = problem.actions, problem.known
        assert known is not None
        before = cost_of_policy(problem, actions)
        best, chosen = np.inf, actions
        for i, j in np.ndindex(*problem.shape):
            if closed[i, j] or actions[i, j] >= self.most:
                continue
            more, saved = actions.copy(), 0.0
            while saved <= 0 and more[i, j] < self.most:  # a small step may round to nothing
                more[i, j] = self._next(problem, float(more[i, j]), j)
                saved = before - cost_of_policy(problem, more)
            if saved <= 0:
                continue
            now, then = (float(a[i, j]) for a in (actions, more))
            # Steps are compared by damage per cost saved; a step without damage still
            # competes by what it saves.
            hurt = predicted_divergence(of, known, then, i, j) - predicted_divergence(
                of, known, now, i, j
            )
            if (worth := max(hurt, 1e-12) / saved) < best:
                best, chosen = worth, more
        return chosen

    def _next(self, problem: SearchProblem, action: float, j: int) -> float:
        """Returns the next strength; skips those that do nothing, below the threshold of bits."""
        quantizes = problem.actions.quantizes and j >= problem.shape[1] - 2
        least = problem.actions.float_below + 1e-3 if quantizes and action == 0 else 0.0
        return float(min(max(action + self.step, least), self.most))


def cost_of_policy(problem: SearchProblem, actions: np.ndarray) -> float:
    """Computes the cost of actions: seconds where they can be looked up, else bit operations."""
    if problem.time is not None:
        return problem.time(as_policy(problem, actions))
    return float(_operations(problem.space, problem.actions, actions)[1])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _operations(space: SearchSpace, of: Actions, actions: Array) -> tuple[Policy, Array]:
    policy = of.policy(space, actions)
    return policy, space.bops(policy).sum()


def as_policy(problem: SearchProblem, actions: np.ndarray) -> Policy:
    """Converts actions to a policy."""
    policy, _ = _operations(problem.space, problem.actions, actions)
    return jax.tree.map(np.asarray, policy)


def predicted_divergence(
    of: Actions, known: CompressionSensitivity, action: float, i: int, j: int
) -> float:
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
