"""One epoch of training as a pure function: a scan over shuffled mini-batches.

It holds no state and does no input or output, so a whole training can be vmapped over its start,
its key and anything its loss closes over:

```python
import jax
import jax.numpy as jnp
import optax
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy
from jaxeff.training import cross_entropy, init, make_epoch

(f, params, data), optimizer = small_classifier(), optax.adam(1e-2)

def train(key, level):                       # one replicate
    loss = cross_entropy(noisy(f, {"*": Additive(level)}), keyed=True)
    epoch = make_epoch(loss, optimizer, batch_size=32)
    step = lambda carry, key: epoch(carry, key, data)
    return jax.lax.scan(step, init(params, optimizer), jax.random.split(key, 2))

keys, levels = jax.random.split(jax.random.key(0), 3), jnp.array([0.1, 0.2, 0.4])
final, metrics = jax.jit(jax.vmap(train))(keys, levels)
```
"""

import functools
import inspect
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, Key

from jaxeff.core import (
    DataWarning,
    Shards,
    function_of_form,
    kept_program,
    to_host,
    validate,
)
from jaxeff.training._batches import Batches, prefetched
from jaxeff.training._canonical import canonical_in_loops

Metrics = dict[str, Any]
Epoch = Callable[["TrainState", Any, Any], tuple["TrainState", Metrics]]
# loss(key, params, state, batch, step) -> (loss, (metrics, new state))
Loss = Callable[[Any, Any, Any, Any, Any], tuple[Any, tuple[Metrics, Any]]]


class TrainState(NamedTuple):
    """State of a training, which an epoch takes and returns.

    Sharp edges:
        The data lie on the device as a whole and batches are gathered inside the scan; the last ``n
        mod batch_size`` examples of an epoch's permutation are left out of that epoch. Of data in
        parts on several devices (`jaxeff.core.Shards`) a batch has as many of each part.
        Convolutions vmapped over weights are grouped convolutions, which CPUs run slowly: there,
        three trainings of LeNet-5 one after the other took half the time of one vmapped program.

    Attributes:
      params: The trained pytree.
      state: The model's mutable state, such as batch statistics; ``None`` if it has none.
      opt_state: The optimizer's state.
      step: Updates made so far.
    """

    params: Any
    state: Any
    opt_state: Any
    step: Int[Array, ""]


@validate()
def init(params: Any, optimizer: optax.GradientTransformation, state: Any = None) -> TrainState:
    """Makes the state before the first update."""
    return TrainState(params, state, optimizer.init(params), jnp.zeros((), jnp.int32))


FORMS = "loss(params, batch), loss(key, params, batch) or loss(key, params, state, batch, step)"


def full_loss(loss: Callable[..., Any]) -> Loss:
    """Brings a loss to the form of five arguments, by the number of those that it takes.

    A loss is ``loss(params, batch)`` or ``loss(key, params, batch)``, which return a scalar or
    (scalar, metrics), or has the full form, which stays as it is.
    """
    try:
        parameters = list(inspect.signature(loss).parameters.values())
    except ValueError:  # of what C has written it is unknown
        return loss
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return loss
    positional = [e for e in parameters if e.kind in (e.POSITIONAL_ONLY, e.POSITIONAL_OR_KEYWORD)]
    # Arguments with a default belong to the loss's author, unless they are needed.
    count = sum(each.default is each.empty for each in positional)
    if count not in (2, 3):
        if not count <= 5 <= len(positional):
            names = ", ".join(each.name for each in positional)
            raise TypeError(f"loss must be {FORMS}; this one takes ({names})")
        return loss

    def full(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        result = loss(params, batch) if count == 2 else loss(key, params, batch)
        value, metrics = result if isinstance(result, tuple) else (result, {})
        return value, (metrics, state)

    return full


def _update(
    loss: Callable[..., Any], optimizer: optax.GradientTransformationExtraArgs
) -> Callable[[TrainState, Key[Array, ""], Any], tuple[TrainState, Metrics]]:
    """Makes one update by a batch, of a loss in its full form."""

    def update(carry: TrainState, key: Key[Array, ""], batch: Any) -> tuple[TrainState, Metrics]:
        def objective(params: Any) -> tuple[Any, tuple[Metrics, Any]]:
            return loss(key, params, carry.state, batch, carry.step)

        # Line searches (`optax.lbfgs`) ask for the value, and for the function itself.
        (value, (metrics, state)), grads = jax.value_and_grad(objective, has_aux=True)(carry.params)
        if "loss" in metrics:
            raise ValueError("a metric can't be called 'loss': the loss itself has that name.")
        updates, opt_state = optimizer.update(
            grads,
            carry.opt_state,
            carry.params,
            **accepted(
                optimizer,
                value=value,
                grad=grads,
                grad_fn=lambda params, _: jax.grad(objective, has_aux=True)(params)[0],
            ),
        )
        params = optax.apply_updates(carry.params, updates)
        return TrainState(params, state, opt_state, carry.step + 1), {"loss": value, **metrics}

    return update


@validate(loss=function_of_form(FORMS))
def make_epoch(
    loss: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    batch_size: int | None,
    shards: Shards | None = None,
) -> Epoch:
    """Makes ``epoch(train_state, key, data) -> (train_state, metrics)``.

    Args:
      loss: ``loss(key, params, state, batch, step) -> (loss, (metrics, new_state))``: a scalar, a
        dict of scalars and the model's new state. ``step`` counts updates from 0 over all epochs,
        for annealing. ``loss(params, batch)`` and ``loss(key, params, batch)`` return a scalar or
        (scalar, metrics). See `jaxeff.training.cross_entropy`.
      optimizer: Gets ``value``, ``grad`` and ``grad_fn`` as extra arguments where it takes them.
      batch_size: Examples per update; None where ``data`` are an iterable of batches. That epoch
        isn't traced: it compiles an update, and reads the next batches meanwhile.
      shards: Parts of the data on several devices; None for data in one part.

    Returns:
      The epoch. ``data`` is a pytree of arrays with a common first axis of examples; ``metrics``
      holds ``loss`` and the loss function's metrics, averaged over the epoch's updates.

    Raises:
      ValueError: ``batch_size`` is below 1. The epoch itself raises it for data whose leaves
        differ in length or hold less than one batch, and for metrics that have the name "loss".
    """
    loss = full_loss(loss)
    optimizer = optax.with_extra_args_support(optimizer)

    update = _update(loss, optimizer)
    if batch_size is None:
        return BatchedEpoch(
            update, kept_program(functools.partial(_numbered_update, update)), shards
        )

    def epoch(carry: TrainState, key: Key[Array, ""], data: Any) -> tuple[TrainState, Metrics]:
        n = count_examples(data)
        if n < batch_size:
            raise ValueError(f"the data hold {n} examples, less than one batch of {batch_size}.")
        steps = n // batch_size
        # The order of the examples doesn't depend on what the loss draws: losses can be compared.
        shuffle_key, loss_key = jax.random.split(key)
        # One permutation per epoch, and rows gathered in the scan: a shuffled copy of all
        # data would double their memory.
        order = _shuffled(shuffle_key, n, batch_size, shards)

        quick = canonical_in_loops(update)  # LeNet-5's scan is 4.5 times slower without

        def step(carry: TrainState, inputs: tuple) -> tuple[TrainState, Metrics]:
            key, rows = inputs
            return quick(carry, key, take_rows(data, rows, shards))

        carry, metrics = jax.lax.scan(step, carry, (jax.random.split(loss_key, steps), order))
        return carry, {name: jnp.mean(values, axis=0) for name, values in metrics.items()}

    return epoch


RUNNING = 2
"""Updates that the device may be given beyond the one that it computes."""


@dataclass(frozen=True)
class BatchedEpoch:
    """An epoch over an iterable of batches.

    Attributes:
      update: Makes one update by a batch.
      step: The same, compiled, of an epoch's key and the number of the update in it.
      shards: The devices that batches are cut over; None if they aren't.
    """

    update: Callable[[TrainState, Key[Array, ""], Any], tuple[TrainState, Metrics]]
    step: Callable[..., tuple[TrainState, Metrics]]
    shards: Shards | None = None

    def __call__(
        self, carry: TrainState, key: Key[Array, ""], data: Iterable[Any]
    ) -> tuple[TrainState, Metrics]:
        """Makes an update of each batch."""
        _, loss_key = jax.random.split(key)
        running: deque[Metrics] = deque()
        rows: list[Metrics] = []
        for index, batch in enumerate(prefetched(data, _placing(self.shards))):
            carry, metrics = self.step(carry, loss_key, np.uint32(index), batch)
            running.append(metrics)
            # Waits for an update before the last ones: batches would pile up on the device.
            if len(running) > RUNNING:
                rows.append(to_host(running.popleft()))
        rows.extend(map(to_host, running))
        if not rows:
            raise ValueError("an epoch needs a batch, but there is none.")
        return carry, {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}


def _placing(shards: Shards | None) -> Callable[[Any], Any]:
    return jax.device_put if shards is None else shards.spread


def _numbered_update(update: Any, carry: TrainState, key: Any, index: Any, batch: Any) -> Any:
    # The key that `split` gives in the scan over arrays, of any number of updates.
    return update(carry, jax.random.fold_in(key, index), batch)


def _shuffled(key: Any, count: int, batch_size: int, shards: Shards | None) -> Int[Array, "..."]:
    """Draws the rows of an epoch's batches, ``[steps, batch_size]``."""
    if shards is not None:
        return shards.shuffled(key, count, batch_size)
    steps = count // batch_size
    return jax.random.permutation(key, count)[: steps * batch_size].reshape(steps, batch_size)


def take_rows(data: Any, rows: Any, shards: Shards | None) -> Any:
    """Takes examples, where data lie in parts by their numbers within those."""
    if shards is not None:
        return shards.take(data, rows)
    return jax.tree.map(lambda leaf: leaf[rows], data)


def accepted(optimizer: optax.GradientTransformation, **extra: Any) -> dict[str, Any]:
    """Selects the extra arguments that an optimizer's update takes."""
    parameters = inspect.signature(optimizer.update).parameters.values()
    # An update without `**extra_args` refuses arguments that it doesn't know.
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return extra
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in extra.items() if name in names}


def count_examples(data: Any) -> int:
    """Counts the examples, the common length of the data's first axes.

    `count_examples` tells how many examples data of any structure hold:

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.training import count_examples

    f, params, data = small_classifier()
    assert count_examples(data) == 256                       # of images and of labels
    try:
        count_examples((data[0], data[1][:-1]))
    except ValueError as error:
        assert "255" in str(error)
    ```

    Raises:
      ValueError: There are no arrays, their first axes differ, or they hold no examples.
    """
    leaves = jax.tree_util.tree_leaves_with_path(data)
    lengths = {jax.tree_util.keystr(path): jnp.shape(leaf)[:1] for path, leaf in leaves}
    if not lengths or len(set(lengths.values())) != 1 or () in lengths.values():
        raise ValueError(
            "the data must be arrays with the same number of examples on their first axes, got "
            f"{ {name: shape[0] if shape else 'no axis' for name, shape in lengths.items()} }."
        )
    count = next(iter(lengths.values()))[0]
    if not count:
        raise ValueError("the data hold no examples; give one or more.")
    return count


def converge_batch_stats(
    train: Callable[..., Any], params: Any, state: Any, x: Any, *, key: Any = None
) -> Any:
    """Computes the limit of the state under training on one batch with fixed parameters.

    `converge_batch_stats` gives running statistics at their limit, without the steps that lead
    there. A network that was changed, by pruning or by bits, has running statistics of another one.
    Training on moves them a little with every step; a few steps leave them behind, and its accuracy
    is that of wrong statistics. Estimating them anew is what tells candidates apart (Li et al.,
    EagleEye, arXiv 2007.02491).

    A running mean moves as s' = m s + (1 - m) b for the batch's statistic b. Its fixed point is b,
    which two evaluations tell: of zeros, (1 - m) b, and of ones, m + (1 - m) b.

    ```python
    import jax.numpy as jnp

    from jaxeff.training import converge_batch_stats

    def train(params, state, x):                             # a batch norm's mean, with momentum
        mean = 0.9 * state["mean"] + 0.1 * x.mean(0)
        return x - x.mean(0), {"mean": mean, "steps": state["steps"] + 1}


    x = jnp.array([[1.0, 4.0], [3.0, 6.0]])
    state = {"mean": jnp.zeros(2), "steps": jnp.array(7)}
    found = converge_batch_stats(train, {}, state, x)        # instead of hundreds of steps
    assert jnp.allclose(found["mean"], x.mean(0)) and found["steps"] == 7
    ```

    Args:
        train: The network in training form, `train(params, state, x) -> (logits, state)`; its
            result for `x` may not depend on the state. With a key `train(key, params, state, x)`.
        params: The parameters.
        state: State of the model; a running mean in it is replaced: elementwise s' = m s + (1 - m)
            b with m below 1. Anything else, such as a counter, stays as it is.
        x: A batch.
        key: Random key of a function that takes one first, for dropout.
    """
    keys = () if key is None else (key,)
    means, filled = _floating(state)

    def after(value: float) -> list[Any]:
        constant = filled([jnp.full_like(leaf, value) for leaf in means])
        return _floating(train(*keys, params, constant, x)[1])[0]

    zeros, ones = after(0), after(1)
    return filled(_replaced(means, zeros, ones, map(_limit, zeros, ones)))


def _floating(tree: Any) -> tuple[list[Any], Callable[[Iterable[Any]], Any]]:
    """Returns the leaves of floats, and a function that puts others in their place."""
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    def filled(values: Iterable[Any]) -> Any:
        new = dict(zip(places, values, strict=True))
        return jax.tree.unflatten(structure, [new.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [leaves[i] for i in places], filled


def _limit(zero: Array, one: Array) -> Array:
    """Returns the fixed point of s' = m s + (1 - m) b, which is affine: two values give m."""
    return zero / jnp.where(_moves(zero, one), 1 - (one - zero), 1)


def _moves(zero: Array, one: Array) -> Array:
    # With m = 1 nothing moves: it is no running mean, and stays as it is.
    return one - zero < 1 - 1e-4


def _replaced(
    leaves: Sequence[Array], zeros: Sequence[Array], ones: Sequence[Array], limits: Iterable[Array]
) -> list[Array]:
    """Puts limits in the place of what moves."""
    return [
        jnp.where(_moves(zero, one), limit, leaf).astype(leaf.dtype)
        for leaf, zero, one, limit in zip(leaves, zeros, ones, limits, strict=True)
    ]


MOST_EXAMPLES = 4096
"""Examples whose batches are averaged: a few thousand are enough (Wu and Johnson, section 3)."""


def settled_batch_stats(
    loss: Loss, key: Any, params: Any, state: Any, data: Any, batch_size: int
) -> Any:
    """Averages the statistics of batches under the last parameters, in the place of running ones.

    A running mean with momentum .99 has a third of its weight on what it was 100 updates ago: in a
    short training on the start, in any on networks that were different (Wu and Johnson,
    "Rethinking Batch in BatchNorm", arXiv:2105.07576, section 3).

    Args:
        loss: The loss, in its full form.
        key: Random key, of the order of the examples and of what the loss draws.
        params: The trained parameters.
        state: The state after training.
        data: The examples, or the iterable of batches.
        batch_size: Examples of a batch.

    Returns:
        The state with its running means replaced; as it is where the loss depends on them, or
        there are none.
    """
    means, filled = _floating(state)
    if not means:
        return state
    if (batches := _batches_to_average(key, data, batch_size)) is None:
        return state
    updated = kept_program(functools.partial(_updated_stats, loss))
    low, high = [*map(jnp.zeros_like, means)], [*map(jnp.ones_like, means)]
    limits: list[list[Array]] = []
    for batch, at in batches:
        if not limits:
            # What a frozen layer reads stays what it is, for the loss may depend on it.
            _, zeros, ones = updated(params, state, low, high, at, batch)
            low, high = _replaced(means, zeros, ones, low), _replaced(means, zeros, ones, high)
        values, zeros, ones = updated(params, state, low, high, at, batch)
        if values[0] != values[1]:
            return state
        limits.append(list(map(_limit, zeros, ones)))
    averages = [sum(of) / len(limits) for of in zip(*limits, strict=True)]
    return filled(_replaced(means, zeros, ones, averages))


def _batches_to_average(key: Any, data: Any, batch_size: int) -> Iterable[tuple[Any, Any]] | None:
    """Gives batches of up to `MOST_EXAMPLES`, with a key for each; None where they are used up."""
    order_key, loss_key = jax.random.split(key)
    most = max(1, MOST_EXAMPLES // batch_size)
    if isinstance(data, Batches):
        if data.once:
            warnings.warn(
                "fit: data are an iterator, which is read once: the state has the running "
                "statistics of the updates; give training.Batches a function of the epoch for "
                "those of the trained network",
                DataWarning,
                stacklevel=4,
            )
            return None
        placing = _placing(Shards.of(data.first))
        batches = itertools.islice(prefetched(data.epoch(0), placing), most)
        return zip(batches, jax.random.split(loss_key, most), strict=False)
    count = count_examples(data)
    steps = min(count // batch_size, most)
    shards = Shards.of(data)
    order: Any = _shuffled(order_key, count, batch_size, shards)
    if shards is None:
        order = np.asarray(order)
    keys = jax.random.split(loss_key, steps)
    return ((take_rows(data, rows, shards), at) for rows, at in zip(order, keys, strict=False))


def _updated_stats(
    loss: Loss, params: Any, state: Any, low: Any, high: Any, key: Any, batch: Any
) -> tuple[Any, list[Any], list[Any]]:
    """Computes a batch's loss and new statistics from two old ones."""
    _, filled = _floating(state)

    def one(means: Any) -> tuple[Any, list[Any]]:
        value, (_, after) = loss(key, params, filled(means), batch, jnp.zeros((), jnp.int32))
        return value, _floating(after)[0]

    # What doesn't depend on the state, nearly all, isn't computed twice.
    values, after = jax.vmap(one)(jax.tree.map(lambda *pair: jnp.stack(pair), low, high))
    return values, [leaf[0] for leaf in after], [leaf[1] for leaf in after]
