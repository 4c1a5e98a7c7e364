"""Replicates of a training, vmapped over settings and seeds, and what identifies a training.

```python
import jax
import jax.numpy as jnp
import optax

from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy
from jaxeff.training import cross_entropy, epoch_function, start_function

f, params, data = small_classifier(64)
optimizer, levels = optax.sgd(0.1), jnp.array([0.1, 0.3, 0.5])
keys = jax.random.split(jax.random.key(0), 2)                          # of two seeds
start = start_function(lambda key: (params, None), optimizer)
epoch = epoch_function(
    lambda level: cross_entropy(noisy(f, {"fc*": Additive(level)}), keyed=True), optimizer,
    batch_size=32, seeds=2, settings=3,
)
carry, metrics = jax.jit(epoch)(start(keys, levels), keys, data)
assert metrics["loss"].shape == (2, 3)                                 # [seeds, settings]
```
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Sharding

from jaxeff.core import kept_program
from jaxeff.store import describe_arrays, describe_computation
from jaxeff.training._epoch import Epoch, Loss, TrainState, accepted, full_loss, make_epoch
from jaxeff.training._epoch import init as init_state

LossAt = Callable[[Any], Loss]
Init = Callable[[jax.Array], tuple[Any, Any]]
Score = Callable[[jax.Array, Any, Any, Any], Mapping[str, Any]]


class ReplicateKeys(NamedTuple):
    """The independent keys of one replicate's parts.

    Attributes:
        start: For its initial parameters and state.
        train: For its epochs, folded in by number (`jaxeff.training`).
        score: For its score.
    """

    start: jax.Array
    train: jax.Array
    score: jax.Array


def replicate_keys(key: jax.Array, seed: jax.Array | int) -> ReplicateKeys:
    """Derives the keys of a seed's replicates."""
    return ReplicateKeys(*jax.random.split(jax.random.fold_in(key, seed), 3))


class _ReplicateState(NamedTuple):
    """State of a replicate: its setting beside its model's state."""

    setting: Any
    model: Any


def start_function(
    init: Init, optimizer: optax.GradientTransformation, sharding: Sharding | None = None
) -> Callable[[jax.Array, Any], TrainState]:
    """Makes ``start(keys, settings) -> carry``, the state before the first epoch.

    Args:
        init: Initial parameters and state from a key.
        optimizer: Any optax optimizer.
        sharding: Devices of the replicates, as a sharding; each device makes its own.
    """

    def replicate(key: Any, setting: Any) -> TrainState:
        params, state = init(key)
        # As state the setting is an input of the epoch: one program for all chunks.
        return init_state(params, optimizer, _ReplicateState(setting, state))

    # Seeds outside: initial parameters depend on the seed's key alone, so settings share them.
    replicates = jax.vmap(jax.vmap(replicate, (None, 0)), (0, None))
    return kept_program(replicates, out_shardings=sharding)


def epoch_function(
    loss_at: LossAt,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    seeds: int,
    settings: int,
) -> Epoch:
    """Makes ``epoch(carry, keys, data) -> (carry, metrics)`` of so many seeds and settings.

    A setting rides in the place of the model's state, so that one compiled epoch serves every chunk
    of a sweep. Everything leads with the axes of seeds and settings; random keys belong to seeds,
    so all settings of a seed see the same numbers, and what is random is computed once for all of
    them. Start, epochs and score have keys of their own: `replicate_keys`.

    Args:
        loss_at: The training loss of a setting.
        optimizer: Any optax optimizer.
        batch_size: Examples per update.
        seeds: Number of seeds; one key for each.
        settings: Number of settings.
    """

    def loss(key: Any, params: Any, state: _ReplicateState, batch: Any, step: Any) -> Any:
        value, (metrics, model) = full_loss(loss_at(state.setting))(
            key, params, state.model, batch, step
        )
        return value, (metrics, state._replace(model=model))

    epoch = make_epoch(loss, optimizer, batch_size)
    # Keys have no axis of settings, so `vmap` draws once per seed what all settings see.
    return _over(_over(epoch, settings, (0, None, None)), seeds, (0, 0, None))


def finish_function(
    score: Score | None, keep: bool, seeds: int, settings: int
) -> Callable[[jax.Array, TrainState], dict[str, Any]]:
    """Makes ``finish(keys, carry) -> {"diverged", "scores", "params", "state"}``, if they exist.

    `score(key, params, state, setting)` is of one replicate; `keep` says whether to return the
    models.
    """

    def replicate(key: Any, carry: TrainState) -> dict[str, Any]:
        params, (setting, model) = carry.params, carry.state
        inexact = [x for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.inexact)]
        finite = jnp.stack([jnp.all(jnp.isfinite(x)) for x in inexact]).all()
        outcome: dict[str, Any] = {"diverged": ~finite}
        if score is not None:
            outcome["scores"] = dict(score(key, params, model, setting))
        # Trees without leaves, such as the state None, have nothing to keep.
        models = {"params": params, "state": model} if keep else {}
        return outcome | {name: tree for name, tree in models.items() if jax.tree.leaves(tree)}

    return _over(_over(replicate, settings, (None, 0)), seeds, (0, 0))


def _over(fn: Any, size: int, in_axes: tuple[int | None, ...]) -> Any:
    """Vmaps, or takes an axis of one away: a vmapped convolution is another, slower one."""
    if size > 1:
        return jax.vmap(fn, in_axes)

    def single(*args: Any) -> Any:
        inside = [
            arg if axis is None else jax.tree.map(lambda leaf: leaf[0], arg)
            for arg, axis in zip(args, in_axes, strict=True)
        ]
        return jax.tree.map(lambda leaf: leaf[None], fn(*inside))

    return single


def describe_training(
    key: jax.Array,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    start: TrainState,
    data: Any,
    batch_size: int,
) -> dict[str, Any]:
    """Describes a training for `jaxeff.store.run_identity`; nothing of it is run.

    `describe_training` identifies a training by its start, loss and optimizer, beside its data:

    ```python
    import jax
    import optax

    from jaxeff.nn import small_classifier
    from jaxeff.store import run_identity
    from jaxeff.training import cross_entropy, describe_training, init

    f, params, data = small_classifier(64)

    def identity(rate):                                  # goes into a checkpoint of your own loop
        key, optimizer = jax.random.key(0), optax.sgd(rate)
        start, loss = init(params, optimizer), cross_entropy(f)
        return run_identity(key, data, {}, describe_training(key, loss, optimizer, start, data, 32))


    assert identity(0.1) == identity(0.1)
    assert identity(0.1)["optimizer"] != identity(0.2)["optimizer"]
    ```

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
        "loss": _describe_loss(key, full_loss(loss), start, data, batch_size),
        "optimizer": _describe_optimizer(optimizer, start),
        # After the optimizer, so that another one is named before what it holds.
        **describe_arrays("start.opt_state", start.opt_state),
    }


class ReplicatedTraining(NamedTuple):
    """The training that a sweep repeats.

    Attributes:
        loss_at: The training loss of a setting.
        init: Initial parameters and state from a key.
        optimizer: Any optax optimizer.
        batch_size: Examples per update.
        score: `score(key, params, state, setting)`, after training.
    """

    loss_at: LossAt
    init: Init
    optimizer: optax.GradientTransformation
    batch_size: int
    score: Score | None


def describe_sweep(
    key: jax.Array, training: ReplicatedTraining, settings: Any, data: Any
) -> dict[str, Any]:
    """Describes the trainings of a sweep, as `describe_training` does."""
    loss_at, init, optimizer, batch_size, score = training

    def begin(key: Any) -> TrainState:
        params, state = init(key)
        return init_state(params, optimizer, state)

    setting = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), settings
    )
    # Shapes of a start are enough: its values follow from the key and `init`, described below.
    start = jax.eval_shape(begin, key)
    # The setting is an input of the traced loss, not a constant: its values belong to the settings.
    beside = start._replace(state=(setting, start.state))

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
        return loss_at(state[0])(key, params, state[1], batch, step)

    parts = {
        "init": describe_computation(begin, key),
        "loss": _describe_loss(key, full_loss(loss), beside, data, batch_size),
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
