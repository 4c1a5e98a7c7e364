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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
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

_ACCURACY = Worth(accuracy=1.0)
_Known = _candidates.CompressionSensitivity


class SearchOptions(TypedDict, total=False):
    """What is searched for and how; `SearchSettings` has their meaning and defaults."""

    latency: Required[Latency]
    target: Required[float]
    agent: Searcher
    actions: Actions
    episodes: int
    reward: Reward
    worth: Worth
    folder: str | os.PathLike[str] | None
    settings: Mapping[str, Any] | None
    refinement: Refinement | None
    progress: bool


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What is searched for and how.

    Attributes:
        latency: Function that measures a candidate; called once per episode, and for the whole
            model.
        target: Share of the whole model's latency that is asked for, above 0.
        agent: Searcher that proposes actions; of those that `python -m experiments.galen`
            compares, the default finds the best at a few dozen episodes.
        actions: Meaning of actions.
        episodes: Candidates; an agent that learns takes hundreds.
        reward: Reward of a candidate's accuracy and latency.
        worth: Weights of the metrics that candidates measure, in the place of accuracy in the
            reward; by default it is accuracy.
        folder: Folder that keeps the episodes; None keeps none.
        settings: Further facts that define the search, such as the latency's target, as JSON.
        refinement: Refinement of the result by measurements from end to end; None returns the best
            candidate by `latency`.
        progress: Whether to show how far it is.
    """

    latency: Latency
    target: float
    agent: Searcher = Knapsack()  # noqa: RUF009
    actions: Actions = Actions()  # noqa: RUF009
    episodes: int = 30
    reward: Reward = Absolute()  # noqa: RUF009
    worth: Worth = _ACCURACY
    folder: str | os.PathLike[str] | None = None
    settings: Mapping[str, Any] | None = None
    refinement: Refinement | None = None
    progress: bool = True

    def check(self) -> None:
        """Refuses numbers that are out of bounds."""
        core.check_number("search: target", self.target, above=0)
        core.check_count("search: episodes", self.episodes)

    def described(self) -> dict[str, Any]:
        """Lists what tells one search from another, as JSON."""
        return {
            **(self.settings or {}), "target": self.target, "agent": repr(self.agent),
            "actions": repr(self.actions), "reward": repr(self.reward),
            # Folders of searches by accuracy alone stay those that they were.
            **({} if self.worth == _ACCURACY else {"worth": repr(self.worth)}),
        }  # fmt: skip

    def told(self, episodes_done: int) -> str:
        """Says how far an interrupted search came, and how to go on."""
        goes_on = "the same call goes on where it stopped"
        kept = goes_on if self.folder is not None else f"with a folder {goes_on}"
        return f"stopped after {episodes_done} of {self.episodes} episodes; {kept}"


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
@core.forwards(SearchSettings, SearchOptions)
def search_among(
    key: PRNGKeyArray,
    candidates: _candidates.Candidates,
    *,
    known: _Known | Callable[[], _Known] | None = None,
    **options: Unpack[SearchOptions],
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
        known: Sensitivities, or what measures them; None to do without.
        **options: `latency`, a function that measures a candidate, called once per episode and for
            the whole model, and `target`, the share of the whole model's latency that is asked for.
            `agent`, a searcher that proposes actions: of those that `python -m experiments.galen`
            compares, the default, `Knapsack()`, finds the best at a few dozen episodes; `actions`,
            their meaning; `episodes`, the candidates, 30: an agent that learns takes hundreds.
            `reward` of a candidate's accuracy and latency, `Absolute()`; `worth`, weights of the
            metrics that `candidates` measure, in the place of accuracy in the reward. `folder`,
            where episodes are kept; `settings`, further facts that define the search, such as the
            latency's target, as JSON; `refinement` of the result by measurements from end to end,
            where None returns the best candidate by `latency`; `progress`, whether to show how far
            it is.

    Raises:
        ValueError: A number is out of bounds, the model has nothing to compress, or the target
            can't be reached: the message says what can.
        LatencyError: No candidate could be measured.
        CheckpointError: The folder holds another search, or is damaged.
        InterruptedRun: Ctrl-C; its ``result`` is the search so far, without refinement.
    """
    asked = SearchSettings(**options)
    asked.check()
    space = candidates.space
    _check_prunable(space, asked.actions)
    journal = None if asked.folder is None else _journal(key, candidates, asked)
    measurements = Measurements(candidates, asked.latency, journal)
    uncompressed = measurements.measured_once("whole", space.uncompressed)
    # Before the first episode: a target out of reach would cost all of them.
    _check_reachable(space, asked.actions, asked.target, uncompressed, measurements)
    if callable(known):
        known = known()
    problem = SearchProblem(
        space, asked.actions, known, asked.episodes, asked.target, uncompressed,
        measurements.predicted, measurements.prepare,
    )  # fmt: skip
    run = Episodes(key, asked.agent, problem, measurements, asked.reward, asked.worth)

    def result(measured: list[Row], refined: list[Row]) -> _candidates.Search:
        best = Policy.from_plain(max(measured, key=lambda row: row["reward"])["policy"])
        return _candidates.Search(
            best, candidates.smaller(best), run.rows, uncompressed, asked.target, known, space,
            refined,
        )  # fmt: skip

    def finished() -> tuple[str, Any]:
        measured = _rewarded(run.rows)
        return asked.told(len(run.rows)), result(measured, []) if measured else None

    with (
        core.keeps_finished(finished),
        core.progress_bar(asked.progress, "episodes", asked.episodes, 0) as advance,
    ):
        for _ in range(asked.episodes):
            row = run.run()
            ratio = row.get("ratio", 0) * asked.target
            advance(1, f"{row.get('accuracy', 0):.3f} at {ratio:.3f}")
    measured = _rewarded(run.rows)
    if not measured:
        raise LatencyError(
            f"no candidate could be measured; the last said: {run.rows[-1]['message']}"
        )
    refined: list[Row] = []
    if asked.refinement is not None:
        # A key that no episode has.
        after = jax.random.fold_in(key, 1 + asked.episodes)
        course = _course(after, problem, measurements, asked.reward, asked.worth, measured)
        refined = asked.refinement.refine(course)
        measured = _rewarded(refined)
        if not measured:
            raise LatencyError(
                "what was found couldn't be measured from end to end; the last said: "
                f"{refined[-1]['message']}"
            )
    return result(measured, refined)


def _rewarded(rows: list[Row]) -> list[Row]:
    """Selects the candidates that could be measured."""
    return [row for row in rows if "reward" in row]


class ModelSearchOptions(SearchOptions, _candidates.TrainingOptions, total=False):
    """What is searched for and how, and how candidates are trained and judged."""

    sensitivities: bool
    images: int
    score: Score
    few_bit_layers: FewBitLayers


@dataclass(frozen=True, kw_only=True)
class SpaceSettings:
    """What is known of a model before it is searched.

    Attributes:
        sensitivities: Whether to measure how sensitive layers are, and tell the agent.
        images: Number of images on which sensitivities are measured.
        score: Score of channels: the highest stay longest.
        few_bit_layers: Rule of which layers may have few bits.
    """

    sensitivities: bool = True
    images: int = 256
    score: Score = l1
    few_bit_layers: FewBitLayers = FewBitLayers()


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
@core.forwards((SearchSettings, SpaceSettings, _candidates.CandidateSettings), ModelSearchOptions)
def search(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    validation: Any = None,
    steps: int | None = None,
    **options: Unpack[ModelSearchOptions],
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
        validation: Pairs that accuracies are measured on; None shuffles the data by the key, since
            they may be in order of their classes, and takes the last fifth, which is then not
            trained on.
        steps: Updates of every candidate's training; None takes an epoch, 0 none.
        **options: `latency`, `target`, `agent`, `actions`, `episodes`, `reward`, `worth`, `folder`,
            `settings`, `refinement` and `progress`, as for `search_among`; `state`, `train`,
            `batch_size`, `optimizer` and `metrics`, as for `Candidates`; `sensitivities`, whether
            to measure how sensitive layers are, and tell the agent, and on how many `images`, 256;
            `score` of channels, of which the highest stay longest; and `few_bit_layers`, the rule
            of which layers may have few bits.

    Raises:
        ValueError: A number is out of bounds, the model has nothing to compress, or the target
            can't be reached: the message says what can.
        LatencyError: No candidate could be measured.
        CheckpointError: The folder holds another search, or is damaged.
        InterruptedRun: Ctrl-C; its ``result`` is the search so far, without refinement.
    """
    if validation is None:
        data, validation = _held_out(key, data)
    settings = SpaceSettings(**core.options_for(SpaceSettings, options))
    searching = core.options_for(SearchSettings, options)
    actions = SearchSettings(**searching).actions
    state = options.get("state")
    one = jax.tree.map(lambda leaf: leaf[:1], data[0])
    before = (params,) if state is None else (params, state)
    space = SearchSpace.read(
        f, *before, one, score=settings.score, few_bit_layers=settings.few_bit_layers
    )
    _check_prunable(space, actions)
    training = core.options_for(_candidates.CandidateSettings, options)
    candidates = _candidates.Candidates(f, params, data, validation, space, steps=steps, **training)
    known: Any = None
    if settings.sensitivities:
        x = jax.tree.map(lambda leaf: leaf[: settings.images], data[0])
        known = functools.partial(
            _candidates.sensitivity, f, params, x, space, actions, state=state
        )
    return search_among(key, candidates, known=known, **searching)


def _held_out(key: PRNGKeyArray, data: Any) -> tuple[Any, Any]:
    """Holds a fifth of the training data out, at random.

    Rewards on data that candidates are trained on would favour what fits, not what generalizes.
    """
    count = count_examples(data)
    order = np.asarray(jax.random.permutation(jax.random.fold_in(key, _SPLIT), count))
    kept, held = np.split(order, [count * 4 // 5])
    return tuple(jax.tree.map(lambda leaf, rows=rows: leaf[rows], data) for rows in (kept, held))


def _journal(
    key: PRNGKeyArray, candidates: _candidates.Candidates, asked: SearchSettings
) -> Journal:
    """Opens the episodes' file; rows of another search, or of another traced model, are refused."""
    assert asked.folder is not None
    data = {"train": candidates.data, "validation": candidates.validation}
    described = {
        **asked.described(), "steps": candidates.steps, "batch size": candidates.batch_size,
        "few-bit layers": repr(candidates.space.few_bit_layers),
    }  # fmt: skip
    identity = run_identity(key, data, described, candidates.described(key))
    return Journal(Path(asked.folder) / "episodes.jsonl", identity)


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
