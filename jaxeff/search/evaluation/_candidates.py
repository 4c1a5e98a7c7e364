"""`Candidates`: the accuracy of a policy's model, after some further training.

Channels are masked and bits are numbers, so every policy is the same compiled program, whatever it
decides; shapes change for what is deployed alone (`smaller`).

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.search import Candidates, SearchSpace

f, params, data = small_classifier()
space = SearchSpace.read(f, params, data[0][:1])
candidates = Candidates(f, params, data, data, space, steps=2, batch_size=32)
candidates.accuracy(jax.random.key(0), space.whole)
```

Sharp edges:
    Every candidate starts from the parameters that are given, not from the last one's, and where it
    trains it ends with running statistics of its own.
    Ranges of activations are those of each sample, so a batch is as accurate as its images are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxeff.compression import Int, calibrate, integer, integer_aware
from jaxeff.compression.allocation import FLOAT
from jaxeff.core import check_count
from jaxeff.pruning import Plan, pruned
from jaxeff.search.space import Policy, SearchSpace
from jaxeff.store import describe_arrays, describe_computation
from jaxeff.training import (
    CheckedLoss,
    converge_batch_stats,
    count_examples,
    cross_entropy,
    describe_training,
    fit,
    init,
    make_epoch,
)

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
            site: Int(int(setting.weights.width), int(setting.activations.width),
                      symmetric="weights")
            for site, setting in self.spec.items()
            if int(setting.weights.width) != FLOAT
        }  # fmt: skip
        if not bits:
            return self
        # Integer kernels take fixed ranges: each sample's own would cost two passes in every call.
        spec = calibrate(self._evaluate, self.params, [x], bits)
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
            optimizer: None takes the source's, momentum of .9 at a rate of .02 that a cosine
                brings to zero.
            progress: Whether to show how far it is.
        """
        kept = self.with_ranges(jax.tree.map(lambda leaf: leaf[:RANGES], data[0]))
        steps = epochs * (count_examples(data) // batch_size)
        rate = optax.cosine_decay_schedule(0.02, max(steps, 1))
        result = fit(
            key, cross_entropy(kept.train, mutable=self.state is not None), self.params, data,
            state=self.state, optimizer=optimizer or optax.sgd(rate, momentum=0.9),
            epochs=epochs, batch_size=batch_size, progress=progress,
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


class Candidates:
    """Policies of one model on one data set, in one compiled program."""

    def __init__(
        self,
        f: Callable[..., Any],
        params: Any,
        data: Any,
        validation: Any,
        space: SearchSpace,
        *,
        state: Any = None,
        train: Callable[..., Any] | None = None,
        steps: int | None = 100,
        batch_size: int = 128,
        optimizer: optax.GradientTransformation | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Takes the model and its data.

        Args:
            f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits,
                state)`.
            params: The trained parameters.
            data: Pairs of inputs and labels that candidates train on.
            validation: Pairs that their accuracy is measured on; none of the test data.
            space: Space of the policies.
            state: The model's state; None if it has none.
            train: The model in training form; None takes `f`.
            steps: Updates of every candidate's training; None takes an epoch, 0 none.
            batch_size: Images per update, and evaluated at once.
            optimizer: Optimizer of the training; None takes the source's, momentum of .9 at a rate
                of .05.
            metrics: Function `metrics(predict, validation)` that measures a candidate beside its
                accuracy: `predict(x)` are its logits, and the result is a dictionary of scalars. It
                is traced. A search weighs them by `Worth`; None measures accuracy alone.

        Raises:
            ValueError: A count is out of bounds, or there are fewer examples than a batch.
        """
        check_count("Candidates: batch_size", batch_size)
        if steps is not None:
            check_count("Candidates: steps", steps, low=0)
        for name, given in (("data", data), ("validation", validation)):
            if (found := count_examples(given)) < batch_size:
                raise ValueError(
                    f"Candidates: {name} has {found} examples, less than one batch of {batch_size}"
                )
        self.f, self.params, self.state, self.space = f, params, state, space
        self.data, self.validation = data, validation
        self.train, self.batch_size, self.metrics = train or f, batch_size, metrics
        loss = cross_entropy(f, mutable=state is not None)
        if isinstance(loss, CheckedLoss):
            for given in (data, validation):
                loss.check(None, params, state, given, batch_size)
        most = count_examples(data) // batch_size
        self.steps = most if steps is None else steps
        if self.steps > most:
            raise ValueError(
                f"Candidates: steps={self.steps} of {batch_size} are more than the "
                f"{count_examples(data)} examples there are; an epoch has {most}"
            )
        self.optimizer = optimizer or optax.sgd(0.05, momentum=0.9)
        # Parameters and data are arguments of it: as constants they would be compiled in.
        self._measured = jax.jit(self._measure)

    def described(self, key: PRNGKeyArray) -> dict[str, Any]:
        """Describes what tells candidates of this model from others', for `run_identity`.

        Args:
            key: Random key, of which only the kind matters.
        """
        start = init(self.params, self.optimizer, self.state)
        loss = cross_entropy(self.train, mutable=self.state is not None)
        size = self.batch_size
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), self.data[0]
        )
        args = (self.params, batch) if self.state is None else (self.params, self.state, batch)
        return {
            **describe_training(key, loss, self.optimizer, start, self.data, size),
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
        found = self._measured(key, policy, self.params, self.state, self.data, self.validation)
        return {name: float(value) for name, value in found.items()}

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
            loss = cross_entropy(train, mutable=self.state is not None)
            epoch = make_epoch(loss, self.optimizer, self.batch_size)
            rows_key, epoch_key = jax.random.split(key)
            count = count_examples(data)
            # An epoch passes over all that it is given: so it is given `steps` batches.
            rows = jax.random.permutation(rows_key, count)[: self.steps * self.batch_size]
            few = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], data)
            trained, _ = epoch(init(params, self.optimizer, state), epoch_key, few)
            params, state = trained.params, trained.state
            if state is not None:
                first = jax.tree.map(lambda leaf: leaf[:RANGES], few[0])
                # A few updates leave running statistics near those of the uncompressed model.
                state = converge_batch_stats(train, params, state, first)
        f = self.space.compressed(self.f, policy)
        size = self.batch_size
        # Shapes are static, so only whole batches count, in the sum and in what divides it.
        whole = count_examples(validation) // size * size
        batched = jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[:whole].reshape(-1, size, *leaf.shape[1:]), validation
        )

        predict = functools.partial(_logits, f, params, state)

        def right(batch: Any) -> Array:
            x, labels = batch
            logits = predict(x)
            # The argmax of NaN is a class: what diverged must not be right by chance.
            sure = jnp.isfinite(logits).all(-1)
            return jnp.sum((logits.argmax(-1) == labels) & sure)

        found = {"accuracy": jax.lax.map(right, batched).sum() / whole}
        more = {} if self.metrics is None else dict(self.metrics(predict, validation))
        if "accuracy" in more:
            raise ValueError("Candidates: metrics returns 'accuracy', which is measured already")
        return found | more


def _logits(f: Callable[..., Any], params: Any, state: Any, x: Any) -> Array:
    logits: Array = f(params, x) if state is None else f(params, state, x)[0]
    return logits
