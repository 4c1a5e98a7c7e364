"""`search`: a policy per episode, measured, rewarded and learnt from; a run that can be killed.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.search import Actions, Legal, Random, bit_operations, search

f, params, data = small_classifier()
found = search(
    jax.random.key(0), f, params, data, agent=Random(), latency=bit_operations, target=0.3,
    actions=Actions(round_to=4), episodes=4, steps=2, batch_size=32,
)
print(found)
g = found.smaller.f                                   # quantized, with new shapes
logits = g(found.smaller.params, data[0][:2])
```

Every episode starts from the model that is given. With a `folder` an episode is a line of
`episodes.jsonl` as soon as it has been measured. A search that is started again reads what was
measured, learns from it again in the same order, and goes on with the same numbers.

Sharp edges:
    The latency of a candidate is asked for before it is trained; shapes and bits are all it knows.
    `bit_operations` is a count and no time: it is there to try a search without a compiler.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from jaxeff.core import (
    a_path,
    an,
    check_count,
    check_number,
    either,
    function,
    labelled,
    mapping,
    number,
    of_form,
    one_key,
    optimizer,
    progress_bar,
    takes,
    tree,
    whole,
)
from jaxeff.pruning.scores import Score, l1
from jaxeff.search._refinement import Course, Refinement
from jaxeff.search._result import Search
from jaxeff.search.evaluation import (
    Absolute,
    Candidate,
    Candidates,
    Latency,
    LatencyError,
    Reward,
    Sensitivity,
    sensitivity,
)
from jaxeff.search.searchers import Knapsack, Outcome, Problem, Searcher
from jaxeff.search.space import Actions, Legal, Policy, Space
from jaxeff.store import Journal, run_identity
from jaxeff.training import count_examples


@takes(
    key=one_key,
    f=function,
    params=tree,
    data=labelled,
    latency=of_form("latency(candidate)"),
    target=number(above=0, high=1),
    agent=an(Searcher),
    actions=an(Actions),
    episodes=whole(),
    reward=of_form("reward(accuracy, ratio, target)"),
    validation=labelled,
    train=function,
    steps=whole(0),
    batch_size=whole(),
    optimizer=optimizer,
    images=whole(),
    score=of_form("score(params, channels)"),
    legal=an(Legal),
    folder=a_path,
    settings=mapping,
    refinement=an(Refinement),
)
def search(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    latency: Latency,
    target: float,
    agent: Searcher = Knapsack(),  # noqa: B008
    actions: Actions = Actions(),  # noqa: B008
    episodes: int = 30,
    reward: Reward = Absolute(),  # noqa: B008
    validation: Any = None,
    state: Any = None,
    train: Callable[..., Any] | None = None,
    steps: int | None = None,
    batch_size: int = 128,
    optimizer: optax.GradientTransformation | None = None,
    sensitivities: bool = True,
    images: int = 256,
    score: Score = l1,
    legal: Legal = Legal(),  # noqa: B008
    folder: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    refinement: Refinement | None = None,
    progress: bool = True,
) -> Search:
    """Searches for the policy of the highest reward.

    Args:
        key: Random key of everything.
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits,
            state)`.
        params: Its trained parameters.
        data: Pairs of inputs and labels.
        latency: How long a candidate takes; called once per episode, and for the whole model.
        target: Share of the whole model's latency that is asked for, above 0.
        agent: What proposes actions; of those that `python -m experiments.galen`
            compares, the default finds the best at a few dozen episodes.
        actions: What they mean.
        episodes: Candidates; an agent that learns takes hundreds.
        reward: Reward of a candidate's accuracy and latency.
        validation: Pairs that accuracies are measured on; None shuffles the data by the key, since
            they may be in order of their classes, and takes the last fifth, which is then not
            trained on.
        state: The model's state; None if it has none.
        train: The model in training form; None takes `f`.
        steps: Updates of every candidate's training; None takes an epoch, 0 none.
        batch_size: Images per update.
        optimizer: Optimizer of that training; None takes momentum of .9 at a rate of .05.
        sensitivities: Whether to measure how sensitive layers are, and tell the agent.
        images: Number of images on which sensitivities are measured.
        score: Which channels stay longest.
        legal: Which layers may have few bits.
        folder: Folder that keeps the episodes; None keeps none.
        settings: What else makes it the same search, such as the latency's target, as JSON.
        refinement: How what is found is measured from end to end, and moved to the target; None
            returns the best candidate by `latency`.
        progress: Whether to show how far it is.

    Raises:
        ValueError: A number is out of bounds, the model has nothing to compress, or the target
            can't be reached: the message says what can.
        LatencyError: No candidate could be measured.
        CheckpointError: The folder holds another search, or is damaged.
    """
    if validation is None:
        count = count_examples(data)
        # A fifth of the training data is held out: rewards on data that the candidates are
        # trained on would favour what fits, not what generalizes.
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, _SPLIT), count))
        data, validation = (
            jax.tree.map(lambda leaf, rows=rows: leaf[rows], data)  # type: ignore[misc]
            for rows in np.split(order, [count * 4 // 5])
        )
    one = jax.tree.map(lambda leaf: leaf[:1], data[0])
    before = (params,) if state is None else (params, state)
    space = Space.read(f, *before, one, score=score, legal=legal)
    _check_prunable(space, actions)
    candidates = Candidates(
        f, params, data, validation, space, state=state, train=train, steps=steps,
        batch_size=batch_size, optimizer=optimizer,
    )  # fmt: skip
    known: Any = None
    if sensitivities:
        x = jax.tree.map(lambda leaf: leaf[:images], data[0])
        known = functools.partial(sensitivity, f, params, x, space, actions, state=state)
    return search_among(
        key, candidates, latency=latency, target=target, agent=agent, actions=actions,
        episodes=episodes, reward=reward, known=known, folder=folder, settings=settings,
        refinement=refinement, progress=progress,
    )  # fmt: skip


@takes(
    key=one_key,
    candidates=an(Candidates),
    latency=of_form("latency(candidate)"),
    target=number(above=0, high=1),
    agent=an(Searcher),
    actions=an(Actions),
    episodes=whole(),
    reward=of_form("reward(accuracy, ratio, target)"),
    known=either(of_form("known()"), an(Sensitivity)),
    folder=a_path,
    settings=mapping,
    refinement=an(Refinement),
)
def search_among(
    key: PRNGKeyArray,
    candidates: Candidates,
    *,
    latency: Latency,
    target: float,
    agent: Searcher = Knapsack(),  # noqa: B008
    actions: Actions = Actions(),  # noqa: B008
    episodes: int = 30,
    reward: Reward = Absolute(),  # noqa: B008
    known: Sensitivity | Callable[[], Sensitivity] | None = None,
    folder: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    refinement: Refinement | None = None,
    progress: bool = True,
) -> Search:
    """Searches among prepared candidates: several searches share what was compiled.

    Args:
        key: Random key of everything.
        candidates: Prepared candidates of the model.
        latency: How long a candidate takes, as for `search`.
        target: Share of the whole model's latency, as for `search`.
        agent: What proposes actions, as for `search`.
        actions: What actions mean, as for `search`.
        episodes: Number of candidates, as for `search`.
        reward: Reward of accuracy and latency, as for `search`.
        known: Sensitivities, or what measures them; None to do without.
        folder: Folder that keeps the episodes, as for `search`.
        settings: What else makes it the same search, as for `search`.
        refinement: How the best candidate is moved to the target, as for `search`.
        progress: Whether to show how far it is.

    Raises:
        ValueError: As for `search`.
        LatencyError: No candidate could be measured.
        CheckpointError: The folder holds another search, or is damaged.
    """
    check_number("search: target", target, above=0)
    check_count("search: episodes", episodes)
    space = candidates.space
    _check_prunable(space, actions)
    kept = None
    if folder is not None:
        data = {"train": candidates.data, "validation": candidates.validation}
        identity = run_identity(key, data, {
            **(settings or {}), "target": target, "agent": repr(agent), "actions": repr(actions),
            "reward": repr(reward), "steps": candidates.steps,
            "batch size": candidates.batch_size, "legal": repr(space.legal),
        }, candidates.described(key))  # fmt: skip
        kept = Journal(Path(folder) / "episodes.jsonl", identity)

    def remembered(task: Any, make: Callable[[], Any]) -> Any:
        if kept is None:
            return make()
        if task not in kept:
            kept.add(task, make())
        return kept[task]

    def measure(policy: Policy) -> float:
        return _checked(latency(Candidate(policy, space, candidates.smaller)))

    # Everything measured is written down at once: a killed search goes on with the same
    # numbers.
    whole = remembered("whole", lambda: measure(space.whole))
    # Before the first episode: a target out of reach would cost all of them.
    _check_reachable(
        space, actions, target, whole,
        lambda p: remembered(["least", p.plain()], lambda: measure(p)),
    )  # fmt: skip
    if callable(known):
        known = known()
    # A latency that is looked up costs nothing, so searchers may ask for any policy.
    time = measure if getattr(latency, "looked_up", False) else None
    fill, prepare = getattr(latency, "prepare", None), None
    if fill is not None:

        def prepare(policies: Sequence[Policy]) -> None:
            fill([Candidate(policy, space, candidates.smaller) for policy in policies])

    problem = Problem(space, actions, known, episodes, target, whole, time, prepare)
    jitted = jax.jit(functools.partial(actions.policy, space))

    def policy_of(proposed: Any) -> Policy:
        found: Policy = jax.tree.map(np.asarray, jitted(jnp.asarray(proposed)))
        return found

    early = _Early(latency, agent, problem, lambda p: Candidate(p, space, candidates.smaller))
    memory = agent.start(jax.random.fold_in(key, 0), problem)
    rows: list[dict[str, Any]] = []
    with progress_bar(progress, "episodes", episodes, 0) as advance:
        for episode in range(episodes):
            # By the episode's number: a resumed search draws the same, however much it reads.
            keys = _keys(key, episode)
            if kept is None or ["episode", episode] not in kept:
                # Not for an episode that the journal has: its result is read, nothing is
                # measured.
                early.measure(key, episode, memory, policy_of)
            proposed, memory = agent.propose(keys[0], problem, memory)
            _check_finite(proposed, episode)
            policy = policy_of(proposed)

            def evaluate(
                policy: Policy = policy, key: Any = keys[1], episode: int = episode
            ) -> dict[str, Any]:
                row: dict[str, Any] = {"episode": episode, "policy": policy.plain()}
                try:
                    time = early.taken(episode, policy, measure)
                except LatencyError as error:
                    return row | {"message": str(error)}
                accuracy = candidates.accuracy(key, policy)
                ratio = time / (target * whole)
                return row | {
                    "accuracy": accuracy, "latency": time, "ratio": ratio,
                    "reward": reward(accuracy, time, target * whole),
                }  # fmt: skip

            row = remembered(["episode", episode], evaluate)
            rows.append(row)
            # What couldn't be measured has no reward to learn from.
            if "reward" in row:
                outcome = Outcome(
                    np.asarray(proposed), row["accuracy"], row["ratio"], row["reward"]
                )
                memory = agent.learn(keys[2], problem, memory, outcome)
            advance(1, f"{row.get('accuracy', 0):.3f} at {row.get('ratio', 0) * target:.3f}")
    measured = [row for row in rows if "reward" in row]
    if not measured:
        raise LatencyError(f"no candidate could be measured; the last said: {rows[-1]['message']}")
    refined: list[dict[str, Any]] = []
    if refinement is not None:
        # A key that no episode has.
        after = jax.random.fold_in(key, 1 + episodes)
        # A policy that was proposed twice keeps its first row.
        of_policy = {str(row["policy"]): row for row in reversed(measured)}
        refined = refinement.refine(Course(
            space, actions, target, reward,
            lambda policy: Candidate(policy, space, candidates.smaller),
            None if time is None else lambda policy: measure(policy) / whole,
            lambda policy: candidates.accuracy(after, policy), remembered,
            [{"policy": row["policy"], "accuracy": row["accuracy"], "predicted": row["ratio"]}
             for row in of_policy.values()],
        ))  # fmt: skip
        measured = [row for row in refined if "reward" in row]
        if not measured:
            raise LatencyError(
                "what was found couldn't be measured from end to end; the last said: "
                f"{refined[-1]['message']}"
            )
    best = Policy.from_plain(max(measured, key=lambda row: row["reward"])["policy"])
    return Search(best, candidates.smaller(best), rows, whole, target, known, space, refined)


_SPLIT = 2**32 - 1
"""What is folded into the key to split the data; episodes count from zero."""


def _keys(key: PRNGKeyArray, episode: int) -> PRNGKeyArray:
    """Derives an episode's keys to propose, to evaluate and to learn with."""
    return jax.random.split(jax.random.fold_in(key, 1 + episode), 3)


class _Early:
    """Candidates of the next episodes, measured at once where there are several boards."""

    def __init__(
        self,
        latency: Latency,
        agent: Searcher,
        problem: Problem,
        candidate: Callable[[Policy], Candidate],
    ) -> None:
        self.many, self.boards = getattr(latency, "many", None), getattr(latency, "boards", 1)
        self.ahead, self.problem = getattr(agent, "ahead", None), problem
        self.candidate = candidate
        self.known: dict[int, float | LatencyError] = {}

    def measure(
        self, key: PRNGKeyArray, episode: int, memory: Any, policy_of: Callable[[Any], Policy]
    ) -> None:
        """Measures from an episode on, unless that is known already."""
        if self.many is None or self.ahead is None or self.boards < 2 or episode in self.known:
            return
        # One candidate per board: what agents can propose without having learned from the
        # others.
        last = min(episode + self.boards, self.problem.episodes)
        keys = [_keys(key, i)[0] for i in range(episode, last)]
        policies = [policy_of(one) for one in self.ahead(keys, self.problem, memory)]
        if len(policies) > 1:
            found = self.many([self.candidate(policy) for policy in policies])
            self.known |= dict(enumerate(found, episode))

    def taken(self, episode: int, policy: Policy, measure: Callable[[Policy], float]) -> float:
        """Returns the latency of an episode's candidate."""
        found = self.known.pop(episode, None)
        if isinstance(found, LatencyError):
            raise found
        return measure(policy) if found is None else _checked(found)


def _checked(found: float) -> float:
    check_number("search: latency(candidate)", float(found), above=0)
    return float(found)


def _check_prunable(space: Space, actions: Actions) -> None:
    if actions.of == "pruning" and not space.groups:
        raise ValueError("search: no channel of the model can be pruned; see jaxeff.channels")


def _check_reachable(
    space: Space, actions: Actions, target: float, whole: float, measure: Callable[[Policy], float]
) -> None:
    """Checks that a strongest policy meets the target; few bits needn't be the fastest."""
    least = np.inf
    for bits in (1.0, actions.eight_below, 0.0) if actions.quantizes else (1.0,):
        strongest = jnp.ones((len(space.sites), actions.count))
        if actions.quantizes:
            strongest = strongest.at[:, -2:].set(bits)
        found = measure(jax.tree.map(np.asarray, actions.policy(space, strongest))) / whole
        least = min(least, found)
        if least <= target:
            return
    raise ValueError(
        f"search: a target of {target:g} can't be reached: the strongest policy of "
        f"{actions.of!r} actions leaves {least:.4g} of the latency. Raise the target, or allow "
        "more (Actions.round_to, Legal)."
    )


def _check_finite(proposed: Any, episode: int) -> None:
    """Refuses what a diverged agent proposes."""
    if not np.isfinite(proposed).all():
        raise FloatingPointError(
            f"search: the agent diverged before episode {episode}; lower its rates. What was "
            "measured is kept, if there is a folder."
        )


__all__ = ["search", "search_among"]
