"""`fit`: train a pytree of parameters on data in memory with any optax optimizer.

```python
import jax
import optax

from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

f, params, (x, y) = small_classifier()
result = fit(
    jax.random.key(0), cross_entropy(f), params, (x, y),
    optimizer=optax.adam(1e-2), epochs=10, batch_size=32, checkpoint="run.safetensors",
)
logits = f(result.params, x)
```

Each epoch is one compiled scan (`jaxeff.training`); progress, checkpoints, resuming and
divergence are handled around it (`jaxeff.training`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Unpack

import jax
import optax

from jaxeff.core import check_function, check_key, check_params, forwards, validate
from jaxeff.store import run_identity
from jaxeff.training._epoch import Loss, TrainState, count_examples, init, make_epoch
from jaxeff.training._identity import describe_training
from jaxeff.training._loop import LOOP_CHECKS, History, RunOptions, run_epochs
from jaxeff.training._losses import CheckedLoss


class FitResult(NamedTuple):
    """A trained model.

    Attributes:
      params: The trained parameters.
      state: The model's state after training, ``None`` if it has none.
      opt_state: The optimizer's state.
      history: One record per epoch: ``epoch``, ``loss`` and the metrics, as Python numbers.
    """

    params: Any
    state: Any
    opt_state: Any
    history: History


@validate(**LOOP_CHECKS)
@forwards(run_epochs, RunOptions)
def fit(
    key: jax.Array,
    loss: Loss,
    params: Any,
    data: Any,
    *,
    optimizer: optax.GradientTransformation,
    epochs: int,
    batch_size: int,
    state: Any = None,
    eval_fn: Callable[[TrainState], Mapping[str, Any]] | None = None,
    on_epoch: Callable[[int, TrainState, dict[str, Any]], bool | None] | None = None,
    settings: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> FitResult:
    """Minimizes a loss over mini-batches.

    Args:
      key: Random key; the run is a function of it and of the other arguments.
      loss: ``loss(key, params, state, batch, step) -> (loss, (metrics, new_state))``; see
        `stateless` and `cross_entropy` for shorter forms.
      params: Pytree of parameters to start from; it stays valid.
      data: Pytree of arrays with a common first axis of examples, e.g. ``(images, labels)``.
      optimizer: Any optax optimizer; schedules count updates, not epochs.
      epochs: Passes over the data, including those before a resume.
      batch_size: Examples per update; a last incomplete batch is left out of the epoch.
      state: The model's mutable state, from ``functional(model, mutable=True)``.
      eval_fn: ``eval_fn(train_state) -> metrics``, added to the epoch's record.
      on_epoch: Called with the epoch's index, state and record; returning True stops the run.
      settings: Further facts that define the run, as JSON. A checkpoint with other settings is
        refused.
      **run: ``eval_every``, the epochs between evaluations; ``checkpoint``, a file to keep the run
        in (safetensors), and ``checkpoint_every``, the epochs between writing it; ``resume``,
        whether to go on from it if it exists: one of a run with another key, loss, start,
        optimizer, batch size or other data is refused, unless this is ``"force"``; and
        ``progress``, whether to show a bar (`jaxeff.core`).

    Returns:
      The trained parameters, state, optimizer state and history.

    Raises:
      DivergedError: A loss or parameter isn't finite; it names the epoch and carries the last
        good state.
      CheckpointError: The checkpoint is damaged, of another model or of another run.
      TypeError: The loss doesn't return what it should, or an argument is of another kind: a key
        that is none, a Flax model for a loss or for parameters, labels that are no integers.
      ValueError: The data don't have a common first axis, or hold less than one batch; a label is
        no class of the network's.
    """
    check_key("fit: key", key)
    check_function("fit: loss", loss, "loss(key, params, state, batch, step)")
    check_params("fit: params", params)
    check_params("fit: data", data)
    epoch = make_epoch(loss, optimizer, batch_size)
    start = init(params, optimizer, state)
    _check_loss(loss, key, start, data, batch_size)
    identity = None
    # Hashing the data and tracing the loss cost: only for runs that are kept.
    if run.get("checkpoint") is not None:
        described = describe_training(key, loss, optimizer, start, data, batch_size)
        given = {**(settings or {}), "batch_size": batch_size}
        identity = run_identity(key, data, given, described)
    final, history = run_epochs(
        key,
        epoch,
        start,
        data,
        epochs=epochs,
        eval_fn=eval_fn,
        on_epoch=on_epoch,
        identity=identity,
        **run,
    )
    return FitResult(final.params, final.state, final.opt_state, history)


def _check_loss(loss: Loss, key: jax.Array, start: TrainState, data: Any, batch_size: int) -> None:
    """Checks the form of a loss on shapes alone, before anything is compiled."""
    if count_examples(data) < batch_size:
        return  # the epoch says so
    if isinstance(loss, CheckedLoss):
        loss.check(key, start.params, start.state, data, batch_size)
    batch = jax.tree.map(lambda leaf: leaf[:batch_size], data)
    result = jax.eval_shape(loss, key, start.params, start.state, batch, start.step)
    form = "loss(key, params, state, batch, step) must return (loss, (metrics, new_state))"
    try:
        value, (metrics, state) = result
    except (TypeError, ValueError):
        raise TypeError(
            f"{form}; wrap a loss(key, params, batch) in jaxeff.training.stateless."
        ) from None
    if getattr(value, "shape", None) != ():
        raise TypeError(f"{form} with a scalar loss, not one of shape {list(value.shape)}.")
    if not isinstance(metrics, dict):
        raise TypeError(f"{form} with a dict of metrics, not a {type(metrics).__name__}.")
    # The state is carried by a scan, whose carry has one structure.
    given: Any = jax.tree.structure(start.state)
    returned: Any = jax.tree.structure(state)
    if returned != given:
        raise TypeError(
            f"{form} with a state of the structure it was given: expected {given}, got {returned}."
        )
