"""Loss functions of the form that `jaxeff.training.make_epoch` takes.

The full form is ``loss(key, params, state, batch, step) -> (loss, (metrics, new_state))``. Write
it out where a loss anneals or carries state of its own; the adapters here cover the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from jaxeff.training.epoch import Loss


def stateless(loss: Callable[[Any, Any, Any], Any]) -> Loss:
    """Adapt ``loss(key, params, batch)``, which returns a scalar or (scalar, metrics)."""

    def full(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        result = loss(key, params, batch)
        value, metrics = result if isinstance(result, tuple) else (result, {})
        return value, (metrics, state)

    return full


def cross_entropy(f: Callable[..., Any], *, keyed: bool = False, mutable: bool = False) -> Loss:
    """Return the mean softmax cross entropy of a classifier, with its accuracy as a metric.

    Args:
      f: ``f(params, x) -> logits`` of shape ``[batch, classes]``.
      keyed: Whether ``f`` takes a random key first, as the transforms with noise do.
      mutable: Whether ``f`` takes a state after its parameters and returns (logits, new state),
        as ``functional(model, mutable=True)`` does.

    Returns:
      The loss; its batches are pairs of inputs and integer labels of shape ``[batch]``.
    """

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        x, labels = batch
        args = (*((key,) if keyed else ()), params, *((state,) if mutable else ()), x)
        logits, state = f(*args) if mutable else (f(*args), state)
        value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
        return value, ({"accuracy": accuracy}, state)

    return loss
