"""Candidates: the accuracy of a policy's model after training, sensitivities, the result.

Channels are masked and bits are numbers, so every policy is the same compiled program, whatever it
decides; shapes change for what is deployed alone (`smaller`).

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.search import Candidates, SearchSpace

f, params, data = small_classifier()
space = SearchSpace.read(f, params, data[0][:1])
candidates = Candidates(f, params, data, data, space, steps=2, batch_size=32)
candidates.accuracy(jax.random.key(0), space.uncompressed)
```

Sharp edges:
    Every candidate starts from the parameters that are given, not from the last one's, and where it
    trains it ends with running statistics of its own.
    Ranges of activations are those of each sample, so a batch is as accurate as its images are.
    at strength 0 of the weights or activations a layer has the most bits of MIX, not float.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import training
from jaxeff.compression import FLOAT, Int, calibrate, integer, integer_aware
from jaxeff.core import (
    Shards,
    Table,
    check_count,
    forwards,
    input_batch,
    instance_of,
    static_integer,
    validate,
)
from jaxeff.pruning import Plan, pruned
from jaxeff.search._space import INT8, MIX, Actions, Policy, SearchSpace
from jaxeff.store import describe_arrays, describe_computation

Metrics = Callable[[Callable[[Any], Array], Any], Mapping[str, Any]]
"""What measures a candidate beside its accuracy: of its logits' function and validation data."""
RANGES = 256
"""Inputs that ranges of activations are measured on before training, running statistics after."""


class Small(NamedTuple):
    """A model compressed by a policy, with new shapes.

    Attributes:
        f: A function like the model's, quantized; without its bits it is `whole_bits`.
        params: The parameters of `f`.
        state: The state of `f`; None if it has none.
        plan: Channels that were kept.
        whole_bits: The smaller function in float32.
        spec: The bits of its layers.
        train: The smaller function in training form, quantized.
        whole_train: The training form in float32.
        kept_ranges: Whether ranges of activations are numbers in `spec`, as a library has them.
    """

    f: Callable[..., Any]
    params: Any
    state: Any
    plan: Plan
    whole_bits: Callable[..., Any]
    spec: Any
    train: Callable[..., Any]
    whole_train: Callable[..., Any]
    kept_ranges: bool = False

    def _evaluate(self, params: Any, x: Any) -> Any:
        f, state = self.whole_bits, self.state
        return f(params, x) if state is None else f(params, state, x)[0]

    def with_ranges(self, x: Any) -> Small:
        """Measures ranges of activations once, in the place of each sample's.

        It is what a library computes.

        Args:
            x: Inputs that they are measured on.
        """
        if self.kept_ranges:
            return self
        bits = {
            site: Int(int(setting.weights.width), int(setting.activations.width))
            for site, setting in self.spec.items()
            if int(setting.weights.width) != FLOAT
        }  # fmt: skip
        if not bits:
            return self
        # Integer kernels take fixed ranges: each sample's own would cost two passes in every call.
        spec = calibrate(self._evaluate, self.params, [x], bits).spec
        return self._replace(
            f=integer_aware(self.whole_bits, spec),
            train=integer_aware(self.whole_train, spec),
            spec=spec,
            kept_ranges=True,
        )  # fmt: skip

    def retrained(
        self,
        key: PRNGKeyArray,
        data: Any,
        *,
        epochs: int = 30,
        batch_size: int = 128,
        optimizer: optax.GradientTransformation | None = None,
        progress: bool = True,
    ) -> Small:
        """Continues training with its bits; gradients pass rounding straight through.

        Ranges of activations are measured on the first inputs, so that what is trained is what a
        library computes.

        Args:
            key: Random key of the order of examples.
            data: Pairs of inputs and labels.
            epochs: Passes over them.
            batch_size: Images per update.
            optimizer: None takes the thesis', momentum of .9 at a rate of .02 that a cosine
                brings to zero.
            progress: Whether to show how far it is.
        """
        kept = self.with_ranges(jax.tree.map(lambda leaf: leaf[:RANGES], data[0]))
        steps = epochs * (training.count_examples(data) // batch_size)
        rate = optax.cosine_decay_schedule(0.02, max(steps, 1))
        result = training.fit(
            key, training.cross_entropy(kept.train, mutable=self.state is not None),
            self.params, data, state=self.state,
            optimizer=optimizer or optax.sgd(rate, momentum=0.9), epochs=epochs,
            batch_size=batch_size, progress=progress,
        )  # fmt: skip
        return kept._replace(params=result.params, state=result.state)

    def integer(self, x: Any) -> tuple[Callable[..., Any], Any]:
        """Converts it to integer codes, for a library: a function and its parameters.

        Args:
            x: Inputs that ranges of activations are measured on, and kept.

        Returns:
            `g(params, x) -> logits` and its parameters; running statistics are folded. Without few
            bits anywhere it is the smaller function in float32.
        """
        kept = self.with_ranges(x)
        if not kept.kept_ranges:
            return self._evaluate, self.params
        g = integer(kept._evaluate, kept.spec)
        return g, g.convert(self.params, x)


def _steps(steps: int | None, batch_size: int, examples: int) -> int:
    """Returns the updates of a candidate's training, an epoch's if None, which is the most."""
    # An incomplete last batch is left out, as in any epoch.
    most = examples // batch_size
    if steps is None:
        return most
    check_count("Candidates: steps", steps, low=0)
    if steps > most:
        raise ValueError(
            f"Candidates: steps={steps} of {batch_size} are more than the {examples} examples "
            f"there are; an epoch has {most}"
        )
    return steps


class TrainingOptions(TypedDict, total=False):
    """How candidates are trained and judged; `CandidateSettings` has their meaning and defaults."""

    state: Any
    train: Callable[..., Any] | None
    batch_size: int
    optimizer: optax.GradientTransformation | None
    metrics: Metrics | None


class CandidateOptions(TrainingOptions, total=False):
    """How candidates are trained, for how long, and judged."""

    steps: int | None


@dataclass(frozen=True, kw_only=True)
class CandidateSettings:
    """How candidates are trained and judged.

    Attributes:
        state: The model's state; None if it has none.
        train: The model in training form; None takes the model.
        steps: Updates of every candidate's training; None takes an epoch, 0 none.
        batch_size: Images per update, and evaluated at once.
        optimizer: Optimizer of the training; None takes the thesis', momentum of .9 at a rate of
            .05.
        metrics: Function `metrics(predict, validation)` that measures a candidate beside its
            accuracy.
    """

    state: Any = None
    train: Callable[..., Any] | None = None
    steps: int | None = 100
    batch_size: int = 128
    optimizer: optax.GradientTransformation | None = None
    metrics: Metrics | None = None


class Candidates:
    """Policies of one model on one data set, in one compiled program."""

    @forwards(CandidateSettings, CandidateOptions)
    def __init__(
        self,
        f: Callable[..., Any],
        params: Any,
        data: Any,
        validation: Any,
        space: SearchSpace,
        **options: Unpack[CandidateOptions],
    ) -> None:
        """Takes the model and its data.

        Args:
            f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits,
                state)`.
            params: The trained parameters.
            data: Pairs of inputs and labels that candidates train on.
            validation: Pairs that their accuracy is measured on; none of the test data.
            space: Space of the policies.
            **options: `state`, the model's, None if it has none; `train`, the model in training
                form, where None takes `f`; `steps`, the updates of every candidate's training, 100,
                where None takes an epoch and 0 none; `batch_size`, the images per update, and
                evaluated at once, 128; `optimizer` of the training, where None takes the thesis',
                momentum of .9 at a rate of .05; and `metrics`, a function `metrics(predict,
                validation)` that measures a candidate beside its accuracy: `predict(x)` are its
                logits, and the result is a dictionary of scalars. It is traced. A search weighs
                them by `Worth`; None measures accuracy alone.

        Raises:
            ValueError: A count is out of bounds, or there are fewer examples than a batch.
        """
        asked = CandidateSettings(**options)
        state, batch_size = asked.state, asked.batch_size
        check_count("Candidates: batch_size", batch_size)
        for name, examples in (("data", data), ("validation", validation)):
            if (count := training.count_examples(examples)) < batch_size:
                raise ValueError(
                    f"Candidates: {name} has {count} examples, less than one batch of {batch_size}"
                )
        self.f, self.params, self.state, self.space = f, params, state, space
        self.data, self.validation = data, validation
        self._shards = Shards.of(data), Shards.of(validation)
        for shards in filter(None, self._shards):
            shards.share(batch_size)
        self.train, self.batch_size, self.metrics = asked.train or f, batch_size, asked.metrics
        loss = training.cross_entropy(f, mutable=state is not None)
        if isinstance(loss, training.CheckedLoss):
            for examples in (data, validation):
                loss.check(None, params, state, examples, batch_size)
        self.steps = _steps(asked.steps, batch_size, training.count_examples(data))
        self.optimizer = asked.optimizer or optax.sgd(0.05, momentum=0.9)
        # Parameters and data are arguments of it: as constants they would be compiled in.
        self._measured = jax.jit(self._measure)

    def described(self, key: PRNGKeyArray) -> dict[str, Any]:
        """Describes what tells candidates of this model from others', for `run_identity`.

        Args:
            key: Random key, of which only the kind matters.
        """
        start = training.init(self.params, self.optimizer, self.state)
        loss = training.cross_entropy(self.train, mutable=self.state is not None)
        size = self.batch_size
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), self.data[0]
        )
        args = (self.params, batch) if self.state is None else (self.params, self.state, batch)
        return {
            **training.describe_training(key, loss, self.optimizer, start, self.data, size),
            # Beside the loss, which is of the training form: accuracies are those of this one.
            "model": describe_computation(self.f, *args),
            **self._described_metrics(),
            **describe_arrays("ranks of channels", self.space.ranks),
        }

    def _described_metrics(self) -> dict[str, Any]:
        if self.metrics is None:
            return {}
        metrics = self.metrics

        # Of the model itself: arrays that metrics hold, such as inputs of another kind, are hashed.
        def computed(params: Any, state: Any, validation: Any) -> Any:
            return metrics(functools.partial(_logits, self.f, params, state), validation)

        return {"metrics": describe_computation(computed, self.params, self.state, self.validation)}

    def accuracy(self, key: PRNGKeyArray, policy: Policy) -> float:
        """Measures a candidate's accuracy on the validation data; 0 if it diverged.

        Args:
            key: Random key of the examples it trains on, and of their order.
            policy: Policy that compresses the model.
        """
        return self.measured(key, policy)["accuracy"]

    def measured(self, key: PRNGKeyArray, policy: Policy) -> dict[str, float]:
        """Measures a candidate by its accuracy and all other metrics.

        Args:
            key: Random key of the examples it trains on, and of their order.
            policy: Policy that compresses the model.

        Returns:
            Numbers by name: "accuracy", 0 if the candidate diverged, and those of `metrics`.

        Raises:
            ValueError: A metric is named "accuracy".
        """
        policy = jax.tree.map(jnp.asarray, policy)
        metrics = self._measured(key, policy, self.params, self.state, self.data, self.validation)
        return {name: float(value) for name, value in metrics.items()}

    def smaller(self, policy: Policy) -> Small:
        """Compresses the model by a policy to new shapes, without training it."""
        plan = self.space.plan(policy)
        g, train = pruned(self.f, plan), pruned(self.train, plan)
        spec = {site: setting for site, setting in self.space.spec(policy).items() if setting}
        # By numpy: every cut would be a program of its own.
        params, state = (
            jax.tree.map(jnp.asarray, plan.shrink(jax.tree.map(np.asarray, tree)))
            for tree in (self.params, self.state)
        )
        return Small(
            integer_aware(g, spec) if spec else g, params, state, plan, g, spec,
            integer_aware(train, spec) if spec else train, train,
        )  # fmt: skip

    def _measure(
        self, key: Any, policy: Policy, params: Any, state: Any, data: Any, validation: Any
    ) -> dict[str, Array]:
        if self.steps:
            train = self.space.compressed(self.train, policy)
            loss = training.cross_entropy(train, mutable=self.state is not None)
            epoch = training.make_epoch(loss, self.optimizer, self.batch_size, self._shards[0])
            rows_key, epoch_key = jax.random.split(key)
            few = self._few(rows_key, data)
            trained, _ = epoch(training.init(params, self.optimizer, state), epoch_key, few)
            params, state = trained.params, trained.state
            if state is not None:
                first = jax.tree.map(lambda leaf: leaf[:RANGES], few[0])
                # A few updates leave running statistics near those of the uncompressed model.
                state = training.converge_batch_stats(train, params, state, first)
        f = self.space.compressed(self.f, policy)
        batched = self._batched(validation)
        predict = functools.partial(_logits, f, params, state)

        def right(batch: Any) -> Array:
            x, labels = batch
            logits = predict(x)
            # The argmax of NaN is a class: what diverged must not be right by chance.
            sure = jnp.isfinite(logits).all(-1)
            return jnp.sum((logits.argmax(-1) == labels) & sure)

        accuracy = {
            "accuracy": jax.lax.map(right, batched).sum() / (len(batched[1]) * self.batch_size)
        }
        more = {} if self.metrics is None else dict(self.metrics(predict, validation))
        if "accuracy" in more:
            raise ValueError("Candidates: metrics returns 'accuracy', which is measured already")
        return accuracy | more

    def _few(self, key: Any, data: Any) -> Any:
        """Draws what a candidate trains on: an epoch passes over all that it is given."""
        size, (shards, _) = self.batch_size, self._shards
        count = training.count_examples(data)
        if shards is not None:
            return shards.take(data, shards.shuffled(key, count, size * self.steps)[0])
        rows = jax.random.permutation(key, count)[: self.steps * size]
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], data)

    def _batched(self, validation: Any) -> Any:
        """Cuts validation data into batches: shapes are static, so only whole ones count."""
        size, (_, shards) = self.batch_size, self._shards
        if shards is not None:
            return shards.batches(validation, size)
        count = training.count_examples(validation) // size * size
        return jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[:count].reshape(-1, size, *leaf.shape[1:]), validation
        )


def _logits(f: Callable[..., Any], params: Any, state: Any, x: Any) -> Array:
    logits: Array = f(params, x) if state is None else f(params, state, x)[0]
    return logits


STRENGTHS = 10
"""Strengths of each method, from 0 to below 1."""


class CompressionSensitivity(NamedTuple):
    """Mean divergences in nats, of predictions from those of the whole model.

    Attributes:
        strengths: Strengths of compression, as in actions.
        pruning: Channels that the layer decides about; 0 where it decides about none.
        weights: Bits of its weights.
        activations: Bits of what it reads.
        eight: Eight bits of both, `[layers]`.
    """

    strengths: Float[np.ndarray, " strengths"]
    pruning: Float[np.ndarray, "layers strengths"]
    weights: Float[np.ndarray, "layers strengths"]
    activations: Float[np.ndarray, "layers strengths"]
    eight: Float[np.ndarray, " layers"]


@validate(
    x=input_batch,
    space=instance_of(SearchSpace),
    actions=instance_of(Actions),
    strengths=static_integer(2),
)
def sensitivity(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    space: SearchSpace,
    actions: Actions = Actions(),  # noqa: B008
    *,
    state: Any = None,
    strengths: int = STRENGTHS,
) -> CompressionSensitivity:
    """Measures every layer by every method.

    A sensitivity is what predictions lose by the compression of one layer alone, by method and
    strength: S(l, q) = mean over inputs of KL(f || f with layer l compressed by q), as Galen feeds
    it to its agents (Klein's thesis, eq. (4.6); after ZeroQ, arXiv 2001.00281). All layers, methods
    and strengths are policies of one compiled program.

    ```python
    from jaxeff.search import Actions, sensitivity

    f, params, (x, y) = small_classifier()
    space = SearchSpace.read(f, params, x[:1])
    found = sensitivity(f, params, x[:64], space, Actions(round_to=4))
    found.pruning.shape                                             # [layers, strengths]
    ```

    Args:
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits,
            state)`.
        params: The parameters of `f`.
        x: Inputs, a few hundred without augmentation; they are evaluated at once.
        space: The model's layers.
        actions: Meaning of a strength.
        state: The model's state, which stays as it is.
        strengths: Number of strengths of each method.
    """
    levels = np.linspace(0, 1, strengths, endpoint=False)
    policies = _one_at_a_time(space, actions, levels)
    divergences_of_inputs = np.asarray(_divergences(f, space, policies, params, state, x), float)
    # Rounding leaves a little less than nothing where nothing changed.
    of_layer = np.maximum(divergences_of_inputs.mean(-1), 0).reshape(
        len(space.sites), 3 * strengths + 1
    )
    # Pruning is a sensitivity of the layer that decides; those that follow have none.
    deciding = np.array([site.group >= 0 for site in space.sites])[:, None]
    pruning, weights, activations = np.split(of_layer[:, :-1], 3, axis=1)
    return CompressionSensitivity(levels, pruning * deciding, weights, activations, of_layer[:, -1])


def _one_at_a_time(space: SearchSpace, actions: Actions, levels: np.ndarray) -> Policy:
    """Compresses every layer in turn: pruned, fewer bits of weights or activations, eight bits."""
    uncompressed = space.uncompressed
    # Strengths within MIX: weaker actions choose a datatype, not a number of bits.
    quantizing = np.asarray(actions.width(actions.eight_below + levels * (1 - actions.eight_below)))
    pruning = actions if actions.prunes else Actions("both", actions.round_to)
    rows: list[Policy] = []
    for i in range(len(space.sites)):
        for level in levels:
            chosen = np.zeros(len(space.sites), np.float32)
            chosen[i] = level
            kept = np.asarray(pruning.kept(space, jnp.asarray(chosen)))
            rows.append(
                Policy(kept, uncompressed.datatypes, uncompressed.weights, uncompressed.activations)
            )
        for name in ("weights", "activations"):
            rows += [_alone(uncompressed, i, MIX, **{name: bits}) for bits in quantizing]
        rows.append(_alone(uncompressed, i, INT8, weights=8, activations=8))
    return jax.tree.map(lambda *leaves: jnp.stack([*map(jnp.asarray, leaves)]), *rows)


def _alone(uncompressed: Policy, i: int, datatype: int, **bits: int) -> Policy:
    changed = {"datatypes": datatype, **bits}
    values = {name: np.array(value) for name, value in vars(uncompressed).items()}
    for name, value in changed.items():
        values[name][i] = value
    return Policy(**values)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _divergences(
    f: Any, space: SearchSpace, policies: Any, params: Any, state: Any, x: Any
) -> Array:
    changed = functools.partial(space.compressed, f)
    by_policy = training.divergences(f, changed, params, x, policies, state=state)
    return by_policy.reshape(len(by_policy), -1)


@dataclass(frozen=True, eq=False, repr=False)
class Search:
    """The result of a search.

    Attributes:
        best: The policy of the highest reward.
        smaller: The model that it leaves, not trained any further.
        episodes: A record per episode: policy, accuracy, worth, metrics (all of them, if there are
            others than accuracy), latency, ratio, reward, or a message where it couldn't be
            measured.
        uncompressed_latency: Latency of the whole model.
        target: Share of it that was asked for.
        known: Sensitivities of the layers; None if they weren't measured.
        space: The model's layers.
        refined: A record per candidate that the refinement measured from end to end:
            policy, accuracy, worth, predicted (latency over the target's, by prediction), ratio (by
            measurement) and reward, or a message.
    """

    best: Policy
    smaller: Small
    episodes: list[dict[str, Any]]
    uncompressed_latency: float
    target: float
    known: CompressionSensitivity | None
    space: SearchSpace
    refined: list[dict[str, Any]] = field(default_factory=list)

    @property
    def top(self) -> dict[str, Any]:
        """The record of the best policy: what was measured from end to end, else its episode."""
        measured = [row for row in self.refined or self.episodes if "reward" in row]
        return max(measured, key=lambda row: row["reward"])

    @property
    def table(self) -> Table:
        """The best policy layer by layer."""
        space, best = self.space, jax.tree.map(np.asarray, self.best)
        outputs = np.asarray(space.outputs(best.kept))
        names = ("float", "int8", "mix")
        rows = [
            (
                site.name, f"{outputs[i]} of {site.written.size}", names[best.datatypes[i]],
                str(best.weights[i]), str(best.activations[i]),
            )
            for i, site in enumerate(space.sites)
        ]  # fmt: skip
        top = self.top
        where = "measured end to end" if self.refined else f"episode {top['episode']}"
        caption = (
            f"{where}: accuracy {top['accuracy']:.4g}, latency {top['ratio'] * self.target:.4g} "
            f"of the whole model's (asked {self.target:g})"
        )
        columns = ("layer", "channels>", "datatype", "weight bits>", "activation bits>")
        return Table(columns, rows, caption=caption)

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()
