"""Identity of a training: its start, its loss and its optimizer, beside its data.

```python
import jax
import optax

from jaxeff.nn import small_classifier
from jaxeff.store import run_identity
from jaxeff.training import cross_entropy, describe_training, init

f, params, data = small_classifier(64)


def identity(rate):                                      # goes into a checkpoint of your own loop
    key, optimizer = jax.random.key(0), optax.sgd(rate)
    start, loss = init(params, optimizer), cross_entropy(f)
    return run_identity(key, data, {}, describe_training(key, loss, optimizer, start, data, 32))


assert identity(0.1) == identity(0.1)
assert identity(0.1)["optimizer"] != identity(0.2)["optimizer"]
```
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxeff.store import describe_arrays, describe_computation
from jaxeff.training._epoch import Loss, TrainState, accepted
from jaxeff.training._epoch import init as init_state
from jaxeff.training._replicates import Init, LossAt, Score


def describe_training(
    key: jax.Array,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    start: TrainState,
    data: Any,
    batch_size: int,
) -> dict[str, Any]:
    """Describes a training for `jaxeff.store.run_identity`; nothing of it is run.

    Args:
      key: Random key, of which only the kind matters.
      loss: Loss function, as for `make_epoch`.
      optimizer: Optimizer, as for `make_epoch`.
      start: The state before the first update.
      data: Pytree of arrays, of which only shapes and dtypes matter.
      batch_size: Examples per update.
    """
    return {
        **describe_arrays("start.params", start.params),
        **describe_arrays("start.state", start.state),
        "loss": _describe_loss(key, loss, start, data, batch_size),
        "optimizer": _describe_optimizer(optimizer, start),
        # After the optimizer, so that another one is named before what it holds.
        **describe_arrays("start.opt_state", start.opt_state),
    }


def describe_sweep(
    key: jax.Array,
    loss_at: LossAt,
    init: Init,
    settings: Any,
    data: Any,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    score: Score | None,
) -> dict[str, Any]:
    """Describes the trainings of a sweep, as `describe_training` does, from its arguments."""

    def begin(key: Any) -> TrainState:
        params, state = init(key)
        return init_state(params, optimizer, state)

    setting = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), settings
    )
    # Shapes of a start are enough: its values follow from the key and `init`, described below.
    start = jax.eval_shape(begin, key)
    # The setting is an input of the traced loss, not a constant: its values belong to the
    # settings.
    beside = start._replace(state=(setting, start.state))

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
        return loss_at(state[0])(key, params, state[1], batch, step)

    parts = {
        "init": describe_computation(begin, key),
        "loss": _describe_loss(key, loss, beside, data, batch_size),
        "optimizer": _describe_optimizer(optimizer, start),
    }
    if score is not None:
        parts["score"] = describe_computation(score, key, start.params, start.state, setting)
    return parts


def _describe_loss(
    key: jax.Array, loss: Loss, start: TrainState, data: Any, batch_size: int
) -> dict[str, Any]:
    batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (batch_size, *jnp.shape(leaf)[1:]), jnp.result_type(leaf)
        ),
        data,
    )

    # Its gradient, since a function with a derivative of its own doesn't contain it.
    def gradient(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
        return jax.value_and_grad(lambda p: loss(key, p, state, batch, step), has_aux=True)(params)

    return describe_computation(gradient, key, start.params, start.state, batch, start.step)


def _describe_optimizer(
    optimizer: optax.GradientTransformation, start: TrainState
) -> dict[str, Any]:
    optimizer = optax.with_extra_args_support(optimizer)

    def update(grads: Any, opt_state: Any, params: Any, value: Any) -> Any:
        # Any function of the parameters does for the gradient: the loss is described by itself.
        extra = accepted(optimizer, value=value, grad=grads, grad_fn=lambda params, _: params)
        return optimizer.update(grads, opt_state, params, **extra)

    value = jax.ShapeDtypeStruct((), jnp.float32)
    return describe_computation(update, start.params, start.opt_state, start.params, value)
