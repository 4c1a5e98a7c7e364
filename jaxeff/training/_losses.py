"""Loss functions of the form that `jaxeff.training.make_epoch` takes, the evidential one too.

The full form is ``loss(key, params, state, batch, step) -> (loss, (metrics, new_state))``. Write it
out where a loss anneals or carries state of its own. A loss of (params, batch), or of (key, params,
batch), may return a scalar or (scalar, metrics), and is recognized by its arguments:

```python
import jax
import optax
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

f, params, (x, y) = small_classifier()
run = {"optimizer": optax.adam(1e-2), "epochs": 2, "batch_size": 32}
trained = fit(jax.random.key(0), cross_entropy(f), params, (x, y), **run).params

def smoothed(params, batch):                            # a loss of your own
    x, y = batch
    targets = optax.smooth_labels(jax.nn.one_hot(y, 10), 0.1)
    return optax.softmax_cross_entropy(f(params, x), targets).mean()

fit(jax.random.key(0), smoothed, params, (x, y), **run)
```
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import digamma, gammaln

from jaxeff import core
from jaxeff.training._epoch import Loss, full_loss, settled_batch_stats


@runtime_checkable
class CheckedLoss(Protocol):
    """A loss that checks its data before training; `fit` and `sweep` call that check."""

    def __call__(self, key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        """Computes the loss, as `jaxeff.training.make_epoch` calls it."""
        ...

    def check(self, key: Any, params: Any, state: Any, data: Any, batch_size: int) -> None:
        """Raises what is wrong with the data; trains nothing."""
        ...


@runtime_checkable
class SettledLoss(Protocol):
    """A loss whose state has statistics of batches; `fit` calls this once, after training."""

    def __call__(self, key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        """Computes the loss, as `jaxeff.training.make_epoch` calls it."""
        ...

    def settle(self, key: Any, params: Any, state: Any, data: Any, batch_size: int) -> Any:
        """Returns the state that belongs to the trained parameters."""
        ...


@dataclass(frozen=True, eq=False)
class LabelledLoss:
    """A loss whose batches are pairs of inputs and integer labels.

    It is a `CheckedLoss`: `fit` has it hold the labels to the number of classes before it trains,
    since a label out of range trains towards NaN, or as another class, silently.

    Attributes:
      loss: The loss itself.
      logits: ``logits(key, params, state, x)`` of shape ``[batch, ..., classes]``.
      ignored: A label that is no class, of what doesn't count.
    """

    loss: Loss
    logits: Callable[[Any, Any, Any, Any], Any]
    ignored: int | None = None

    def __call__(self, key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        """Computes the loss, as `jaxeff.training.make_epoch` calls it."""
        return self.loss(key, params, state, batch, step)

    def check(self, key: Any, params: Any, state: Any, data: Any, batch_size: int) -> None:
        """Checks that data fit the loss; runs nothing.

        Raises:
          TypeError: Data are no pair, or labels of another dtype or shape.
          ValueError: A label is out of range.
        """
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError(
                "fit: data of this loss must be a pair (inputs, labels), not a "
                f"{type(data).__name__}"
                + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
            )
        x, labels = data
        first = jax.tree.map(lambda leaf: leaf[:batch_size], x)
        # Classes are counted on shapes: no pass over the data.
        logits = jax.eval_shape(self.logits, key, params, state, first)
        if self.ignored is not None:
            labels = np.where(np.asarray(labels) == self.ignored, 0, labels)
        core.check_labels(
            "fit: data, the labels,", labels, logits.shape[-1], positions=logits.shape[1:-1]
        )
        core.warn_of_one_class("fit: data, the labels,", labels)

    def settle(self, key: Any, params: Any, state: Any, data: Any, batch_size: int) -> Any:
        """Returns the state with averages of batches' statistics under these parameters."""
        return settled_batch_stats(self.loss, key, params, state, data, batch_size)


def valid_labels(labels: Any, logits: Any) -> Any:
    """Marks labels: one where they are classes, else NaN, to multiply a loss by.

    An index below zero would count from the last class.

    ```python
    import jax.numpy as jnp
    from jaxeff.training import valid_labels

    print(valid_labels(jnp.array([2, 3]), jnp.zeros((2, 3))))      # [1, nan]: 3 is no class
    ```
    """
    return jnp.where((labels >= 0) & (labels < logits.shape[-1]), 1.0, jnp.nan)


@core.validate(weights=core.real_array(1), ignored=core.static_integer(-(2**31)))
def label_loss(
    logits: Any, labels: Any, *, weights: Any = None, ignored: int | None = None
) -> jax.Array:
    """Computes the mean cross-entropy of logits with integer labels.

    Where labels are of pixels, some classes are rare and some pixels unlabelled:

    ```python
    import jax.numpy as jnp
    from jaxeff.training import label_loss

    pixels, truth = jnp.ones((2, 4, 4, 3)), jnp.zeros((2, 4, 4), int).at[0, 0, 0].set(-1)
    label_loss(pixels, truth, weights=jnp.array([0.1, 1.0, 1.0]), ignored=-1)
    ```

    Args:
      logits: ``[..., classes]``.
      labels: ``[...]``, such as one for each pixel.
      weights: How much each class counts, ``[classes]``: a rare one more than the background.
      ignored: A label of what doesn't count, such as pixels that nobody has labelled.

    Returns:
      The sum of weighted losses over the sum of weights; 0 where nothing counts. It is NaN where a
      label is no class.

    Raises:
      ValueError: There are other than one weight for each class.
    """
    if weights is not None and jnp.shape(weights) != jnp.shape(logits)[-1:]:
        raise ValueError(
            f"label_loss: weights must be one for each of {jnp.shape(logits)[-1]} classes, not of "
            f"shape {jnp.shape(weights)}"
        )
    known = labels if ignored is None else jnp.where(labels == ignored, 0, labels)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, known)
    # Out of range, an index would wrap or be clamped and train another class: NaN shows it.
    each = each * valid_labels(known, logits).astype(each.dtype)
    if weights is None and ignored is None:
        return each.mean()
    share = _countable(labels, ignored).astype(each.dtype)
    if weights is not None:
        share = share * jnp.asarray(weights, each.dtype)[known]
    return (each * share).sum() / jnp.maximum(share.sum(), jnp.finfo(each.dtype).tiny)


def _countable(labels: Any, ignored: int | None) -> jax.Array:
    return jnp.ones(jnp.shape(labels), bool) if ignored is None else labels != ignored


@core.validate(loss=core.function_of_form("loss(key, params, batch)"))
def stateless(loss: Callable[..., Any]) -> Loss:
    """Brings a loss without state to the full form, as `fit` does by itself.

    It is for a loss that calls another:

    ```python
    import jax
    from jaxeff.nn import small_classifier
    from jaxeff.training import label_loss, stateless

    f, params, data = small_classifier()
    loss = stateless(lambda params, batch: label_loss(f(params, batch[0]), batch[1]))
    value, (metrics, state) = loss(jax.random.key(0), params, None, data, 0)
    ```

    Args:
      loss: ``loss(key, params, batch)`` or ``loss(params, batch)``, which return a scalar or
        (scalar, metrics).
    """
    return full_loss(loss)


@core.validate(weights=core.real_array(1), ignored=core.static_integer(-(2**31)))
def cross_entropy(
    f: Callable[..., Any],
    *,
    weights: Any = None,
    ignored: int | None = None,
    keyed: bool = False,
    mutable: bool = False,
) -> Loss:
    """Makes the mean softmax cross entropy of a classifier, with its accuracy as a metric.

    ```python
    import jax.numpy as jnp
    from jaxeff.nn import small_classifier
    from jaxeff.training import cross_entropy

    f, params, data = small_classifier()
    loss = cross_entropy(f, weights=jnp.ones(10), ignored=-1)      # for `fit`
    ```

    Args:
      f: ``f(params, x) -> logits`` of shape ``[batch, classes]``, ``[batch, tokens, classes]`` or
        ``[batch, rows, columns, classes]``.
      weights: How much each class counts, ``[classes]``; all the same if None. The accuracy has no
        weights.
      ignored: A label of what doesn't count, in the loss as in the accuracy: padding, or pixels
        that nobody has labelled.
      keyed: Whether ``f`` takes a random key first, as the transforms with noise do.
      mutable: Whether ``f`` takes a state after its parameters and returns (logits, new state),
        as ``functional(model, mutable=True)`` does.

    Returns:
      The loss; its batches are pairs of inputs and integer labels, of the shape of logits without
      classes. It is the mean over all of them, as `label_loss` takes it.
    """
    core.check_function("cross_entropy: f", f, "f(params, x)")
    call = normalized_call(f, keyed=keyed, mutable=mutable)

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        x, labels = batch
        logits, state = call(key, params, state, x)
        value = label_loss(logits, labels, weights=weights, ignored=ignored)
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
        if ignored is not None:
            # What is ignored is never right; a batch of nothing else has an accuracy of zero.
            accuracy = accuracy / jnp.maximum(jnp.mean(_countable(labels, ignored)), 1e-9)
        return value, ({"accuracy": accuracy}, state)

    return LabelledLoss(loss, lambda *args: call(*args)[0], ignored)


def normalized_call(
    f: Callable[..., Any], *, keyed: bool, mutable: bool
) -> Callable[..., tuple[Any, Any]]:
    """Wraps ``f`` as a function of (key, params, state, x) that returns (logits, new state).

    A loss factory of your own takes functions of any form so:

    ```python
    import jax
    import jax.numpy as jnp
    import optax
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Additive, noisy
    from jaxeff.training import normalized_call, valid_labels

    def hinge(f, *, keyed=False, mutable=False):
        call = normalized_call(f, keyed=keyed, mutable=mutable)

        def loss(key, params, state, batch, step):
            x, labels = batch
            logits, state = call(key, params, state, x)
            each = optax.losses.multiclass_hinge_loss(logits, labels) * valid_labels(labels, logits)
            return each.mean(), ({}, state)

        return loss

    f, params, (x, y) = small_classifier()
    g, key = noisy(f, {"fc*": Additive(0.1)}), jax.random.key(0)
    for loss in (hinge(f), hinge(g, keyed=True)):
        assert jnp.isfinite(loss(key, params, None, (x, y), 0)[0])
        assert jnp.isnan(loss(key, params, None, (x, y.at[0].set(10)), 0)[0])
    ```
    """

    def call(key: Any, params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        args = (*((key,) if keyed else ()), params, *((state,) if mutable else ()), x)
        return f(*args) if mutable else (f(*args), state)

    return call


@core.validate(
    ramp=core.static_integer(),
    weight=core.non_negative,
    activation=core.function_of_form("f(outputs) -> evidence"),
)
def evidential(
    f: Callable[..., Any],
    *,
    ramp: int = 1000,
    weight: float = 1.0,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.softplus,
    keyed: bool = False,
    mutable: bool = False,
) -> Loss:
    """Makes the loss of a classifier whose outputs are evidence.

    `softplus` of the outputs is evidence for each class; with one more it is the concentration of a
    Dirichlet distribution over class probabilities. The loss is the squared error expected under
    it, plus the divergence of what it says of wrong classes from knowing nothing (Sensoy et al.
    2018, equations (5) to (7), arXiv:1806.01768).

    ```python
    import jax, optax
    from jaxeff.nn import small_classifier
    from jaxeff.training import evidential, fit

    f, params, data = small_classifier()
    result = fit(jax.random.key(0), evidential(f, ramp=40), params, data, epochs=10, batch_size=32,
                 optimizer=optax.adam(1e-2))             # for `jaxeff.uncertainty.evidence`
    ```

    Args:
        f: ``f(params, x) -> outputs`` of shape ``[batch, classes]``, or
            ``[batch, tokens, classes]``.
        ramp: Updates over which the weight of the divergence grows to its own, as those of ten
            epochs.
        weight: Weight of the divergence.
        activation: What makes evidence of outputs, never below zero; `jaxeff.uncertainty.evidence`
            takes the same.
        keyed: Whether ``f`` takes a random key first.
        mutable: Whether ``f`` takes a state after its parameters and returns (outputs, new state).

    Returns:
        The loss; its batches are pairs of inputs and integer labels.
    """
    call = normalized_call(f, keyed=keyed, mutable=mutable)

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        x, labels = batch
        outputs, state = call(key, params, state, x)
        concentration = activation(outputs) + 1
        target = jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
        total = concentration.sum(-1, keepdims=True)
        probs = concentration / total
        error = ((target - probs) ** 2 + probs * (1 - probs) / (total + 1)).sum(-1)
        # Evidence for the right class is taken away: the divergence is of the others' alone.
        divergence = _from_uniform(target + (1 - target) * concentration)
        share = weight * jnp.minimum(1.0, (step / ramp).astype(outputs.dtype))
        each = (error + share * divergence) * valid_labels(labels, outputs).astype(error.dtype)
        accuracy = jnp.mean(outputs.argmax(-1) == labels)
        return each.mean(), ({"accuracy": accuracy}, state)

    return LabelledLoss(loss, lambda *args: call(*args)[0])


def _from_uniform(concentration: jax.Array) -> jax.Array:
    """Computes the divergence of a Dirichlet distribution from that of all ones, in nats."""
    total = concentration.sum(-1, keepdims=True)
    classes = jnp.asarray(concentration.shape[-1], concentration.dtype)
    normalizer = gammaln(total[..., 0]) - gammaln(classes) - gammaln(concentration).sum(-1)
    return normalizer + ((concentration - 1) * (digamma(concentration) - digamma(total))).sum(-1)
