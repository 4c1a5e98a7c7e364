"""`Episodes`: one policy per episode, proposed, measured, rewarded and learnt from.

Every result goes through `Measurements`, which writes it to the search's journal before anything
depends on it. A search that was killed therefore reads the same numbers in the same order, and the
agent learns from them again.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.core import check_number
from jaxeff.search._candidates import Candidates
from jaxeff.search._objectives import Candidate, Latency, LatencyError, Reward, Worth
from jaxeff.search._searcher import EpisodeResult, Searcher, SearchProblem
from jaxeff.search._space import Policy
from jaxeff.store import Journal

Row = dict[str, Any]


class Measurements:
    """Latencies of a search's candidates, and a journal of all that was measured.

    Attributes:
        candidates: Prepared candidates of the model.
        latency: Function that measures a candidate.
        journal: File of finished results; None keeps none.
    """

    def __init__(self, candidates: Candidates, latency: Latency, journal: Journal | None) -> None:
        self.candidates, self.latency, self.journal = candidates, latency, journal

    def __contains__(self, task: Any) -> bool:
        """Returns whether the journal has a task's result."""
        return self.journal is not None and task in self.journal

    def candidate(self, policy: Policy) -> Candidate:
        """Prepares the model of a policy."""
        return Candidate(policy, self.candidates.space, self.candidates.smaller)

    def measure(self, policy: Policy) -> float:
        """Measures how long a policy's candidate takes."""
        return _checked(self.latency(self.candidate(policy)))

    def remembered(self, task: Any, make: Callable[[], Any]) -> Any:
        """Reads a task's result from the journal, or makes it and writes it down at once."""
        if self.journal is None:
            return make()
        if task not in self.journal:
            self.journal.add(task, make())
        return self.journal[task]

    def judged(self, key: PRNGKeyArray, policy: Policy, worth: Worth) -> Row:
        """Measures a candidate's accuracy, its other metrics, and what they are worth."""
        metrics = self.candidates.measured(key, policy)
        more = {} if len(metrics) == 1 else {"metrics": metrics}
        return {"accuracy": metrics["accuracy"], "worth": worth(metrics), **more}

    def measured_once(self, task: Any, policy: Policy) -> float:
        """Measures a policy outside the episodes, unless the journal has that task."""
        measured: float = self.remembered(task, lambda: self.measure(policy))
        return measured

    @property
    def predicted(self) -> Callable[[Policy], float] | None:
        """Looks up the latency of any policy; None where asking costs a measurement."""
        return self.measure if getattr(self.latency, "looked_up", False) else None

    @property
    def prepare(self) -> Callable[[Sequence[Policy]], None] | None:
        """Fills what is looked up for many policies at once; None where nothing is to be filled."""
        fill = getattr(self.latency, "prepare", None)
        if fill is None:
            return None
        return lambda policies: fill([self.candidate(policy) for policy in policies])


class Episodes:
    """The episodes of one search, run in order.

    Attributes:
        rows: Row of each episode so far, as in the journal.
    """

    def __init__(
        self,
        key: PRNGKeyArray,
        agent: Searcher,
        problem: SearchProblem,
        measurements: Measurements,
        reward: Reward,
        worth: Worth,
    ) -> None:
        self.rows: list[Row] = []
        self._key, self._agent, self._problem = key, agent, problem
        self._measurements, self._reward, self._worth = measurements, reward, worth
        self._target = problem.target * problem.uncompressed_latency
        self._policy = jax.jit(functools.partial(problem.actions.policy, problem.space))
        self._early = _Early(agent, problem, measurements)
        # A number of no episode: their keys are folded from 1 on.
        self._memory = agent.start(jax.random.fold_in(key, 0), problem)

    def run(self) -> Row:
        """Runs the next episode and adds its row."""
        episode = len(self.rows)
        # By the episode's number: a resumed search draws the same, however much it reads.
        to_propose, to_evaluate, to_learn = _keys(self._key, episode)
        task = ["episode", episode]
        if task not in self._measurements:
            # Not for an episode that the journal has: its result is read, nothing is measured.
            self._early.measure(self._key, episode, self._memory, self._policy_of)
        proposed, self._memory = self._agent.propose(to_propose, self._problem, self._memory)
        _check_finite(proposed, episode)
        row: Row = self._measurements.remembered(
            task, functools.partial(self._evaluate, to_evaluate, episode, self._policy_of(proposed))
        )
        self.rows.append(row)
        # What couldn't be measured has no reward to learn from.
        if "reward" in row:
            outcome = EpisodeResult(
                np.asarray(proposed), row["accuracy"], row["ratio"], row["reward"]
            )
            self._memory = self._agent.learn(to_learn, self._problem, self._memory, outcome)
        return row

    def _evaluate(self, key: PRNGKeyArray, episode: int, policy: Policy) -> Row:
        row: Row = {"episode": episode, "policy": policy.plain()}
        # Latency first: it needs no training, so that a candidate that can't be compiled or
        # measured costs none.
        try:
            time = self._early.taken(episode, policy)
        except LatencyError as error:
            return row | {"message": str(error)}
        judged = self._measurements.judged(key, policy, self._worth)
        return row | judged | {
            "latency": time, "ratio": time / self._target,
            "reward": self._reward(judged["worth"], time, self._target),
        }  # fmt: skip

    def _policy_of(self, proposed: Any) -> Policy:
        policy: Policy = jax.tree.map(np.asarray, self._policy(jnp.asarray(proposed)))
        return policy


class _Early:
    """Candidates of the next episodes, measured at once where there are several boards."""

    def __init__(self, agent: Searcher, problem: SearchProblem, measurements: Measurements) -> None:
        latency = measurements.latency
        self.measure_many, self.boards = (
            getattr(latency, "measure_many", None),
            getattr(latency, "boards", 1),
        )
        self.propose_many, self.problem = getattr(agent, "propose_many", None), problem
        self.measurements = measurements
        self.known: dict[int, float | LatencyError] = {}

    def measure(
        self, key: PRNGKeyArray, episode: int, memory: Any, policy_of: Callable[[Any], Policy]
    ) -> None:
        """Measures from an episode on, unless that is known already."""
        if (
            self.measure_many is None
            or self.propose_many is None
            or self.boards < 2
            or episode in self.known
        ):
            return
        # One candidate per board: what agents can propose without having learned from the others.
        last = min(episode + self.boards, self.problem.episodes)
        keys = [_keys(key, i)[0] for i in range(episode, last)]
        policies = [policy_of(one) for one in self.propose_many(keys, self.problem, memory)]
        # A single candidate gains nothing from several boards.
        if len(policies) > 1:
            latencies = self.measure_many(
                [self.measurements.candidate(policy) for policy in policies]
            )
            self.known |= dict(enumerate(latencies, episode))

    def taken(self, episode: int, policy: Policy) -> float:
        """Returns the latency of an episode's candidate."""
        latency = self.known.pop(episode, None)
        if isinstance(latency, LatencyError):
            raise latency
        return self.measurements.measure(policy) if latency is None else _checked(latency)


def _keys(key: PRNGKeyArray, episode: int) -> PRNGKeyArray:
    """Derives an episode's keys to propose, to evaluate and to learn with."""
    return jax.random.split(jax.random.fold_in(key, 1 + episode), 3)


def _checked(latency: float) -> float:
    check_number("search: latency(candidate)", float(latency), above=0)
    return float(latency)


def _check_finite(proposed: Any, episode: int) -> None:
    """Refuses what a diverged agent proposes."""
    if not np.isfinite(proposed).all():
        raise FloatingPointError(
            f"search: the agent diverged before episode {episode}; lower its rates. What was "
            "measured is kept, if there is a folder."
        )
