"""`Evolution`: the actions of all layers as one vector, by an evolution strategy of `evosax`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Count, Number, Setting, register_setting, static
from jaxeff.search.searchers._searcher import EpisodeResult, SearchProblem


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
@dataclass(frozen=True)
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
        """Implements `Searcher`."""
        strategy, options = self._strategy(problem)
        first, second = jax.random.split(key)
        # Actions outside of [0, 1] count as its ends, so the middle is where most can be reached.
        state = strategy.init(first, jnp.full(_numbers(problem), 0.5), options)
        return self._asked(second, problem, state)

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Generation
    ) -> tuple[Float[Array, "layers actions"], Generation]:
        """Implements `Searcher`."""
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
        """Implements `Searcher`."""
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
        try:
            from evosax import algorithms
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "Evolution is that of evosax, which is optional: pip install 'jaxeff[search]'"
            ) from error

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
