"""`Refinement`: measures what a search returns and moves it until it meets the target.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.search import Actions, Refinement, RandomSearch, bit_operations, search

f, params, data = small_classifier()
slow = lambda candidate: 1.2 * bit_operations(candidate) + 1e5   # the search does not know it
found = search(
    jax.random.key(0), f, params, data, agent=RandomSearch(), latency=bit_operations, target=0.3,
    actions=Actions(round_to=4), episodes=4, steps=0, batch_size=32, refinement=Refinement(slow),
)
print(found.refined[-1]["ratio"])
```

A search goes by a latency that costs little: a table of kernels, or a model. What its candidates
take from end to end is another number. So after the episodes the best candidate is measured, every
prediction is corrected by what the most similar of those measured took over what was predicted of
it, and the best candidate by the corrected rewards is next, until that is one that was measured
already. Candidates are those of all episodes and, where the latency is looked up, what lies a
single step from the best: one group of channels, or the bits of one layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxeff.compression import FLOAT
from jaxeff.core import check_count
from jaxeff.search._objectives import Candidate, Latency, LatencyError, Reward
from jaxeff.search._space import FP32, INT8, MIX, Actions, Policy, SearchSpace

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Refinement:
    """Settings of how the best candidate is brought to the target latency.

    Sharp edge: predictions are off by other shares elsewhere, so a correction holds in the
    neighbourhood of what was measured.

    Attributes:
        latency: Function that measures a candidate from end to end, such as
            `jaxeff_export.measured_latency`.
        rounds: Candidates that are measured at most.
        steps: Single steps between two of them at most.
        tried: Candidates a step away whose accuracy is measured: those nearest to the target.
    """

    latency: Latency
    rounds: int = 5
    steps: int = 3
    tried: int = 8

    def __post_init__(self) -> None:
        """Checks the counts."""
        for name in ("rounds", "steps", "tried"):
            check_count(
                f"Refinement: {name}", getattr(self, name), low=1 if name == "rounds" else 0
            )

    def refine(self, course: Course) -> list[Row]:
        """Measures the best candidates in turn: policy, accuracy, predicted, ratio, reward."""
        refined: list[Row] = []
        for _ in range(self.rounds):
            best = self._nearest(course)
            # Measured already, so corrections don't change the choice any more; or not measurable.
            if "ratio" in best or "message" in best:
                break
            measured = course.remembered(
                ["refinement", best["policy"]], functools.partial(self._measured, course, best)
            )
            best |= measured
            refined.append(best)
        return refined

    def _nearest(self, course: Course) -> Row:
        """Finds the best candidate by corrected predictions, a few steps from the best known."""
        best = max(course.rows, key=course.expected)
        if course.predicted is None:
            return best
        for _ in range(self.steps):
            around = [course.predict(p) for p in neighbours(course, best["policy"])]
            # Accuracy costs an evaluation, predictions nothing: only those nearest to the
            # target are tried.
            around.sort(key=lambda row: abs(course.corrected(row) - 1))
            tried = [course.known(row) for row in around[: self.tried]]
            better = max([best, *tried], key=course.expected)
            if better is best:
                break
            best = better
        return best

    def _measured(self, course: Course, row: Row) -> Row:
        try:
            if course.uncompressed_latency is None:
                course.uncompressed_latency = float(
                    self.latency(course.candidate(course.space.uncompressed))
                )
            took = float(self.latency(course.candidate(Policy.from_plain(row["policy"]))))
        except LatencyError as error:
            return {"message": str(error)}
        # Both from end to end: over the predicted one of the whole model two clocks would mix.
        ratio = took / course.uncompressed_latency / course.target
        return {"ratio": ratio, "reward": course.reward(row["worth"], ratio, 1.0)}


@dataclass(eq=False)
class Course:
    """State of a refinement: the candidates known so far.

    Attributes:
        space: The model's layers.
        actions: Actions that may be taken.
        target: Share of the whole model's latency that is asked for.
        reward: Reward of what a candidate is worth and its latency.
        candidate: Function that makes the candidate of a policy.
        predicted: Share of the whole model's latency that is predicted; None where asking costs.
        judged: Function that measures a policy's metrics, accuracy among them, and its worth.
        remembered: Function that measures a task, or reads it from the journal.
        rows: Known candidates: policy, metrics, worth, predicted, and ratio once it was measured.
        uncompressed_latency: Latency of the whole model from end to end; None until measured.
    """

    space: SearchSpace
    actions: Actions
    target: float
    reward: Reward
    candidate: Callable[[Policy], Candidate]
    predicted: Callable[[Policy], float] | None
    judged: Callable[[Policy], Row]
    remembered: Callable[[Any, Callable[[], Row]], Row]
    rows: list[Row]
    uncompressed_latency: float | None = None
    _by_policy: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Indexes rows by policy."""
        self._by_policy = {str(row["policy"]): row for row in self.rows}

    def expected(self, row: Row) -> float:
        """Computes a row's reward, by its measured ratio or the corrected prediction."""
        if "message" in row:
            return -np.inf
        return self.reward(row["worth"], self.corrected(row), 1.0)

    def corrected(self, row: Row) -> float:
        """Returns the measured ratio, or the predicted one corrected by the most similar row."""
        if "ratio" in row:
            return float(row["ratio"])
        measured = [known for known in self.rows if "ratio" in known]
        if not measured:
            return float(row["predicted"])
        # Prediction errors of similar policies are similar: the same layers are
        # mispredicted. Of equally similar ones the last measured counts.
        similar = max(reversed(measured), key=lambda known: _shared(row["policy"], known["policy"]))
        return float(row["predicted"] * similar["ratio"] / similar["predicted"])

    def predict(self, policy: Policy) -> Row:
        """Looks a policy up, or predicts its latency; its accuracy may be missing."""
        plain = policy.plain()
        if str(plain) in self._by_policy:
            return self._by_policy[str(plain)]
        assert self.predicted is not None
        return {"policy": plain, "predicted": self.predicted(policy) / self.target}

    def known(self, row: Row) -> Row:
        """Adds the accuracy to a row."""
        if "worth" not in row and "message" not in row:
            plain = row["policy"]
            row |= self.remembered(
                ["accuracy", plain], lambda: self.judged(Policy.from_plain(plain))
            )
            self._by_policy[str(plain)] = row
            self.rows.append(row)
        return row


def neighbours(course: Course, plain: dict[str, Any]) -> Iterator[Policy]:
    """Yields the policies a single step from one."""
    space, actions, policy = course.space, course.actions, Policy.from_plain(plain)
    if actions.prunes and space.groups:
        for g, counts in enumerate(_counts(space, actions)):
            at = int(np.searchsorted(counts, policy.kept[g]))
            for i in {max(at - 1, 0), min(at + 1, len(counts) - 1)} - {at}:
                yield _legal(space, policy, g, int(counts[i]))
    if actions.quantizes:
        # Whether a kernel takes few bits depends on the number of channels that are left.
        few = np.asarray(space.few_bits(policy.kept))
        for i in range(len(space.sites)):
            now = int(policy.weights[i]), int(policy.activations[i])
            for datatype, bits in _widths(actions, int(policy.datatypes[i]), now, bool(few[i])):
                if bits != now:
                    yield _with_bits(policy, i, datatype, bits)


def _shared(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Counts the entries that two policies share."""
    return sum(int(np.sum(np.equal(one[key], other[key]))) for key in one)


def _counts(space: SearchSpace, actions: Actions) -> list[np.ndarray]:
    """Lists the numbers of channels that actions can leave of every group."""
    # Steps finer than a channel meet every number that rounding allows.
    levels = np.linspace(0, 1, 1 + int(space.sizes.max()))
    sites = len(space.sites)
    kept = np.stack([actions.kept(space, jnp.full(sites, level)) for level in levels])
    return [np.unique(column) for column in kept.T]


def _widths(
    actions: Actions, datatype: int, now: tuple[int, int], few: bool
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields datatypes and bits a step from those of a layer."""
    if actions.float_below > 0:
        yield FP32, (FLOAT, FLOAT)
    yield INT8, (8, 8)
    if few:
        yield MIX, (1, 1)
        if datatype == MIX:
            for weights, activations in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                bits = now[0] + weights, now[1] + activations
                if all(1 <= width <= actions.bits for width in bits):
                    yield MIX, bits


def _legal(space: SearchSpace, policy: Policy, group: int, count: int) -> Policy:
    """Changes a number of channels, and keeps few bits where a kernel takes them."""
    kept = np.array(policy.kept)
    kept[group] = count
    # Layers that lose their kernel of few bits take eight, as `Actions.policy` has it.
    lost = (np.asarray(policy.datatypes) == MIX) & ~np.asarray(space.few_bits(kept))
    return Policy(
        kept, np.where(lost, INT8, policy.datatypes), np.where(lost, 8, policy.weights),
        np.where(lost, 8, policy.activations),
    )  # fmt: skip


def _with_bits(policy: Policy, i: int, datatype: int, bits: tuple[int, int]) -> Policy:
    datatypes, weights, activations = (
        np.array(one) for one in (policy.datatypes, policy.weights, policy.activations)
    )
    datatypes[i], (weights[i], activations[i]) = datatype, bits
    return Policy(policy.kept, datatypes, weights, activations)
