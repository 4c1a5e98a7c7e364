"""`search`: a policy per episode, measured, rewarded and learnt from; a run that can be killed.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.search import Actions, FewBitLayers, RandomSearch, bit_operations, search

f, params, data = small_classifier()
found = search(
    jax.random.key(0), f, params, data, agent=RandomSearch(), latency=bit_operations, target=0.3,
    actions=Actions(round_to=4), episodes=4, steps=2, batch_size=32,
)
print(found)
g = found.smaller.f                                   # quantized, with new shapes
logits = g(found.smaller.params, data[0][:2])
```
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from jaxeff import core
from jaxeff.pruning.scores import Score, l1
from jaxeff.search import _candidates
from jaxeff.search._episodes import Episodes, Measurements, Row
from jaxeff.search._knapsack import Knapsack
from jaxeff.search._objectives import Absolute, Latency, LatencyError, Reward, Worth
from jaxeff.search._refinement import Course, Refinement
from jaxeff.search._searcher import Searcher, SearchProblem
from jaxeff.search._space import Actions, FewBitLayers, Policy, SearchSpace
from jaxeff.store import Journal, run_identity
from jaxeff.training import count_examples


class SearchOptions(TypedDict, total=False):
    """The options of `search_among`, which `search` takes too."""

    latency: Required[Latency]
    target: Required[float]
    agent: Searcher
    episodes: int
    reward: Reward
    worth: Worth
    folder: str | os.PathLike[str] | None
    settings: Mapping[str, Any] | None
    refinement: Refinement | None
    progress: bool


_ACCURACY = Worth(accuracy=1.0)
_CHECKS: dict[str, core.Check] = {
    "latency": core.function_of_form("latency(candidate)"),
    "target": core.number(above=0, high=1),
    "agent": core.instance_of(Searcher),
    "actions": core.instance_of(Actions),
    "episodes": core.static_integer(),
    "reward": core.function_of_form("reward(accuracy, ratio, target)"),
    "worth": core.instance_of(Worth),
    "refinement": core.instance_of(Refinement),
}
"""The checks of what both functions take."""


@core.validate(
    candidates=core.instance_of(_candidates.Candidates),
    known=core.any_of(
        core.function_of_form("known()"), core.instance_of(_candidates.CompressionSensitivity)
    ),
    **_CHECKS,
)
def search_among(
    key: PRNGKeyArray,
    candidates: _candidates.Candidates,
    *,
    latency: Latency,
    target: float,
    agent: Searcher = Knapsack(),  # noqa: B008
    actions: Actions = Actions(),  # noqa: B008
    episodes: int = 30,
    reward: Reward = Absolute(),  # noqa: B008
    worth: Worth = _ACCURACY,
    known: _candidates.CompressionSensitivity
    | Callable[[], _candidates.CompressionSensitivity]
    | None = None,
    folder: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    refinement: Refinement | None = None,
    progress: bool = True,
) -> _candidates.Search:
    """Searches among prepared candidates: several searches share what was compiled.

    Searches that share their candidates compile and train each of them once:

    ```python
    import jax
    from jaxeff.nn import small_classifier
    from jaxeff.search import (
        Actions, Candidates, RandomSearch, SearchSpace, UniformSearch, bit_operations, search_among
    )

    f, params, (x, y) = small_classifier()
    candidates = Candidates(
        f, params, (x[64:], y[64:]), (x[:64], y[:64]), SearchSpace.read(f, params, x[:1]),
        steps=2, batch_size=32,
    )
    for agent in (RandomSearch(), UniformSearch()):
        search_among(
            jax.random.key(0), candidates, agent=agent, latency=bit_operations, target=0.3,
            actions=Actions(round_to=4), episodes=1,
        )
    ```

    Args:
        key: Random key of everything.
        candidates: Prepared candidates of the model.
        latency: Function that measures a candidate; called once per episode, and for the whole
            model.
        target: Share of the whole model's latency that is asked for, above 0.
        agent: Searcher that proposes actions; of those that `python -m experiments.galen`
            compares, the default finds the best at a few dozen episodes.
        actions: Meaning of actions.
        episodes: Candidates; an agent that learns takes hundreds.
        reward: Reward of a candidate's accuracy and latency.
        worth: Weights of the metrics that `candidates` measure, in the place of accuracy in the
            reward; by default it is accuracy.
        known: Sensitivities, or what measures them; None to do without.
        folder: Folder that keeps the episodes; None keeps none.
        settings: Further facts that define the search, such as the latency's target, as JSON.
        refinement: Refinement of the result by measurements from end to end; None
            returns the best candidate by `latency`.
        progress: Whether to show how far it is.

    Raises:
        ValueError: A number is out of bounds, the model has nothing to compress, or the target
            can't be reached: the message says what can.
        LatencyError: No candidate could be measured.
        CheckpointError: The folder holds another search, or is damaged.
        InterruptedRun: Ctrl-C; its ``result`` is the search so far, without refinement.
    """
    core.check_number("search: target", target, above=0)
    core.check_count("search: episodes", episodes)
    space = candidates.space
    _check_prunable(space, actions)
    described = {
        **(settings or {}), "target": target, "agent": repr(agent), "actions": repr(actions),
        "reward": repr(reward),
        # Folders of searches by accuracy alone stay those that they were.
        **({} if worth == _ACCURACY else {"worth": repr(worth)}),
    }  # fmt: skip
    journal = None if folder is None else _journal(Path(folder), key, candidates, described)
    measurements = Measurements(candidates, latency, journal)
    uncompressed = measurements.measured_once("whole", space.uncompressed)
    # Before the first episode: a target out of reach would cost all of them.
    _check_reachable(space, actions, target, uncompressed, measurements)
    if callable(known):
        known = known()
    problem = SearchProblem(
        space, actions, known, episodes, target, uncompressed,
        measurements.predicted, measurements.prepare,
    )  # fmt: skip
    run = Episodes(key, agent, problem, measurements, reward, worth)

    def result(measured: list[Row], refined: list[Row]) -> _candidates.Search:
        best = Policy.from_plain(max(measured, key=lambda row: row["reward"])["policy"])
        return _candidates.Search(
            best, candidates.smaller(best), run.rows, uncompressed, target, known, space, refined
        )

    def finished() -> tuple[str, Any]:
        measured = [row for row in run.rows if "reward" in row]
        said = f"stopped after {len(run.rows)} of {episodes} episodes"
        kept = "with a folder the same call goes on" if journal is None else "the same call goes on"
        return f"{said}; {kept} where it stopped", result(measured, []) if measured else None

    with (
        core.keeps_finished(finished),
        core.progress_bar(progress, "episodes", episodes, 0) as advance,
    ):
        for _ in range(episodes):
            row = run.run()
            advance(1, f"{row.get('accuracy', 0):.3f} at {row.get('ratio', 0) * target:.3f}")
    measured = [row for row in run.rows if "reward" in row]
    if not measured:
        raise LatencyError(
            f"no candidate could be measured; the last said: {run.rows[-1]['message']}"
        )
    refined: list[Row] = []
    if refinement is not None:
        # A key that no episode has.
        after = jax.random.fold_in(key, 1 + episodes)
        refined = refinement.refine(_course(after, problem, measurements, reward, worth, measured))
        measured = [row for row in refined if "reward" in row]
        if not measured:
            raise LatencyError(
                "what was found couldn't be measured from end to end; the last said: "
                f"{refined[-1]['message']}"
            )
    return result(measured, refined)


@core.validate(
    data=core.labelled_data,
    validation=core.labelled_data,
    train=core.pure_function,
    steps=core.static_integer(0),
    images=core.static_integer(),
    metrics=core.any_of(core.function_of_form("metrics(predict, validation)")),
    score=core.function_of_form("score(params, channels)"),
    few_bit_layers=core.instance_of(FewBitLayers),
    **_CHECKS,
)
@core.forwards(search_among, SearchOptions)
def search(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    actions: Actions = Actions(),  # noqa: B008
    validation: Any = None,
    state: Any = None,
    train: Callable[..., Any] | None = None,
    steps: int | None = None,
    batch_size: int = 128,
    optimizer: optax.GradientTransformation | None = None,
    metrics: _candidates.Metrics | None = None,
    sensitivities: bool = True,
    images: int = 256,
    score: Score = l1,
    few_bit_layers: FewBitLayers = FewBitLayers(),
    **options: Unpack[SearchOptions],
) -> _candidates.Search:
    """Searches for the policy of the highest reward.

    Every episode starts from the model that is given. With a `folder` an episode is a line of
    `episodes.jsonl` as soon as it has been measured. A search that is started again reads what was
    measured, learns from it again in the same order, and goes on with the same numbers.

    Sharp edges:
        The latency of a candidate is asked for before it is trained; shapes and bits are all it
        knows.
        `bit_operations` is a count and no time: it is there to try a search without a compiler.

    Args:
        key: Random key of everything.
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits,
            state)`.
        params: The trained parameters.
        data: Pairs of inputs and labels.
        actions: Meaning of actions.
        validation: Pairs that accuracies are measured on; None shuffles the data by the key, since
            they may be in order of their classes, and takes the last fifth, which is then not
            trained on.
        state: The model's state; None if it has none.
        train: The model in training form; None takes `f`.
        steps: Updates of every candidate's training; None takes an epoch, 0 none.
        batch_size: Images per update.
        optimizer: Optimizer of that training; None takes momentum of .9 at a rate of .05.
        metrics: Further metrics of a candidate, as for `Candidates`; `worth` weighs them.
        sensitivities: Whether to measure how sensitive layers are, and tell the agent.
        images: Number of images on which sensitivities are measured.
        score: Score of channels: the highest stay longest.
        few_bit_layers: Rule of which layers may have few bits.
        **options: `latency`, `target`, `agent`, `episodes`, `reward`, `worth`, `folder`,
            `settings`, `refinement` and `progress`, as for `search_among`.

    Raises:
        ValueError: A number is out of bounds, the model has nothing to compress, or the target
            can't be reached: the message says what can.
        LatencyError: No candidate could be measured.
        CheckpointError: The folder holds another search, or is damaged.
        InterruptedRun: Ctrl-C; its ``result`` is the search so far, without refinement.
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
    space = SearchSpace.read(f, *before, one, score=score, few_bit_layers=few_bit_layers)
    _check_prunable(space, actions)
    candidates = _candidates.Candidates(
        f, params, data, validation, space, state=state, train=train, steps=steps,
        batch_size=batch_size, optimizer=optimizer, metrics=metrics,
    )  # fmt: skip
    known: Any = None
    if sensitivities:
        x = jax.tree.map(lambda leaf: leaf[:images], data[0])
        known = functools.partial(
            _candidates.sensitivity, f, params, x, space, actions, state=state
        )
    return search_among(key, candidates, actions=actions, known=known, **options)


def _journal(
    folder: Path,
    key: PRNGKeyArray,
    candidates: _candidates.Candidates,
    settings: Mapping[str, Any],
) -> Journal:
    """Opens the episodes' file; rows of another search, or of another traced model, are refused."""
    data = {"train": candidates.data, "validation": candidates.validation}
    described = {
        **settings, "steps": candidates.steps, "batch size": candidates.batch_size,
        "few-bit layers": repr(candidates.space.few_bit_layers),
    }  # fmt: skip
    identity = run_identity(key, data, described, candidates.described(key))
    return Journal(folder / "episodes.jsonl", identity)


def _course(
    key: PRNGKeyArray,
    problem: SearchProblem,
    measurements: Measurements,
    reward: Reward,
    worth: Worth,
    measured: Sequence[Row],
) -> Course:
    """Collects what a refinement starts from: the episodes' candidates, each policy once."""
    # A policy that was proposed twice keeps its first row.
    of_policy = {str(row["policy"]): row for row in reversed(measured)}
    predicted, unit = measurements.predicted, problem.uncompressed_latency
    return Course(
        problem.space, problem.actions, problem.target, reward, measurements.candidate,
        None if predicted is None else lambda policy: predicted(policy) / unit,
        lambda policy: measurements.judged(key, policy, worth), measurements.remembered,
        # Folders of before worth was kept have accuracy alone, which it was.
        [{"policy": row["policy"], "accuracy": row["accuracy"], "predicted": row["ratio"],
          "worth": row.get("worth", row["accuracy"])} for row in of_policy.values()],
    )  # fmt: skip


_SPLIT = 2**32 - 1
"""Number folded into the key that splits the data; episodes count from zero."""


def _check_prunable(space: SearchSpace, actions: Actions) -> None:
    if actions.methods == "pruning" and not space.groups:
        raise ValueError("search: no channel of the model can be pruned; see jaxeff.channels")


def _check_reachable(
    space: SearchSpace,
    actions: Actions,
    target: float,
    uncompressed: float,
    measurements: Measurements,
) -> None:
    """Refuses a target that even the strongest policies miss."""
    # Each width on its own: few bits needn't be faster than eight, or none.
    least = np.inf
    for bits in (1.0, actions.eight_below, 0.0) if actions.quantizes else (1.0,):
        strongest = jnp.ones((len(space.sites), actions.count))
        if actions.quantizes:
            strongest = strongest.at[:, -2:].set(bits)
        policy = jax.tree.map(np.asarray, actions.policy(space, strongest))
        took = measurements.measured_once(["least", policy.plain()], policy)
        least = min(least, took / uncompressed)
        if least <= target:
            return
    raise ValueError(
        f"search: a target of {target:g} can't be reached: the strongest policy of "
        f"{actions.methods!r} actions leaves {least:.4g} of the latency. Raise the target, or "
        "allow more (Actions.round_to, FewBitLayers)."
    )
