"""`fit`: train a pytree of parameters, and `run_epochs`, the loop it is made of.

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
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxeff import core, store
from jaxeff.training._batches import Batches, identify, or_batches
from jaxeff.training._epoch import (
    FORMS,
    BatchedEpoch,
    Epoch,
    Loss,
    TrainState,
    count_examples,
    full_loss,
    init,
    make_epoch,
)
from jaxeff.training._losses import CheckedLoss, SettledLoss
from jaxeff.training._replicates import describe_training

History = list[dict[str, Any]]


class CheckpointOptions(TypedDict, total=False):
    """How a run is kept and shown; `LoopSettings` has their meaning and defaults."""

    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int
    resume: store.Resume
    progress: bool | None


class RunOptions(CheckpointOptions, total=False):
    """How a run is kept, shown and evaluated."""

    eval_every: int


class FitOptions(RunOptions, total=False):
    """How a run is kept, shown, evaluated and watched."""

    eval_fn: Callable[[TrainState], Mapping[str, Any]] | None
    on_epoch: Callable[[int, TrainState, dict[str, Any]], bool | None] | None
    settings: Mapping[str, Any] | None


class LoopOptions(FitOptions, total=False):
    """How a loop of epochs is kept, shown, evaluated and watched, and what stops it."""

    identity: Mapping[str, Any] | None
    on_nan: Literal["raise", "keep"]


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How a loop of epochs is kept, shown, evaluated and watched, and what stops it.

    Attributes:
      eval_fn: ``eval_fn(train_state) -> metrics``, added to the epoch's record.
      eval_every: Epochs between evaluations; the last epoch is always evaluated.
      on_epoch: Called with the epoch's index, state and record; returning True stops the run.
      checkpoint: File to keep the run in.
      checkpoint_every: Epochs between checkpoints; the last epoch is always kept.
      resume: Whether to go on from ``checkpoint`` if it exists; otherwise it is overwritten.
        ``"force"`` goes on although it is of another run, if only its shapes fit.
      settings: Further facts that define the run, as JSON; a checkpoint with other settings is
        refused.
      identity: Identity of the run (`jaxeff.store.run_identity`); made from the key, the
        data, the start, the epoch and the settings if None.
      progress: Whether to show a bar; see `jaxeff.core`.
      on_nan: Whether a loss or parameter that isn't finite stops the run. ``"keep"`` is for
        replicates, of which some may diverge; it also needs one copy of the state less.
    """

    eval_fn: Callable[[TrainState], Mapping[str, Any]] | None = None
    eval_every: int = 1
    on_epoch: Callable[[int, TrainState, dict[str, Any]], bool | None] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 1
    resume: store.Resume = True
    settings: Mapping[str, Any] | None = None
    identity: Mapping[str, Any] | None = None
    progress: bool | None = None
    on_nan: Literal["raise", "keep"] = "raise"

    def check(self) -> None:
        """Refuses counts below 1, and words that aren't known."""
        core.check_count("eval_every", self.eval_every)
        core.check_count("checkpoint_every", self.checkpoint_every)
        core.check_choice("on_nan", self.on_nan, ("raise", "keep"))
        core.check_choice("resume", self.resume, (True, False, "force"))

    def evaluated(self, train_state: TrainState, epochs_done: int, last: bool) -> dict[str, Any]:
        """Returns the metrics of an epoch that is evaluated, and nothing for others."""
        if self.eval_fn is None or not (last or epochs_done % self.eval_every == 0):
            return {}
        return _numbers(self.eval_fn(train_state))

    def stops(self, index: int, train_state: TrainState, record: dict[str, Any]) -> bool:
        """Tells whether who watches the run stops it after an epoch."""
        return self.on_epoch is not None and self.on_epoch(index, train_state, record) is True

    def keep(self, train_state: TrainState, run: Mapping[str, Any], last: bool) -> None:
        """Writes a checkpoint where one is due.

        All processes gather what lies on several, and one of them writes.
        """
        if self.checkpoint is None or not (
            last or len(run["history"]) % self.checkpoint_every == 0
        ):
            return
        kept = core.to_host(train_state)
        if core.is_writer(core.span_processes(train_state)):
            store.save_pytree(self.checkpoint, kept, run)

    def told(self, epochs_done: int, epochs: int) -> str:
        """Says how far an interrupted run came, and how to go on."""
        said = f"stopped after {epochs_done} of {epochs} epochs"
        if self.checkpoint is not None:
            return f"{said}; the same call goes on from {self.checkpoint}"
        return f"{said}; with a checkpoint the same call goes on where it stopped"


class DivergedError(FloatingPointError):
    """Training produced a NaN or an infinity.

    Attributes:
      train_state: The state after the last good epoch.
      history: The metrics of the good epochs.
    """

    def __init__(self, message: str, train_state: TrainState, history: History):
        super().__init__(message)
        self.train_state = train_state
        self.history = history


LOOP_CHECKS: dict[str, core.Check] = {
    "data": or_batches(core.aligned_arrays),
    "epochs": core.static_integer(0),
    "eval_fn": core.function_of_form("eval_fn(train_state)"),
    "on_epoch": core.function_of_form("on_epoch(epoch, train_state, row)"),
}
"""The checks of the arguments that a training shares with its loop."""


@core.validate(
    key=core.check_key,
    epoch=core.function_of_form("epoch(train_state, key, data)"),
    start=core.instance_of(TrainState),
    **LOOP_CHECKS,
)
@core.forwards(LoopSettings, LoopOptions)
def run_epochs(
    key: jax.Array,
    epoch: Epoch,
    start: TrainState,
    data: Any,
    *,
    epochs: int,
    **run: Unpack[LoopOptions],
) -> tuple[TrainState, History]:
    """Runs ``epoch`` repeatedly, each time as one compiled call.

    Each epoch is one compiled scan (`make_epoch`). Around it `run_epochs`, the host's side of
    training, shows progress, keeps checkpoints, resumes and stops on NaN, for epochs of any form:

    ```python
    import jax
    import jax.numpy as jnp
    import optax

    from jaxeff.nn import small_classifier
    from jaxeff.training import cross_entropy, init, make_epoch, run_epochs

    f, params, (x, y) = small_classifier(64)
    optimizer = optax.adam(1e-2)
    epoch = make_epoch(cross_entropy(f), optimizer, batch_size=32)
    run = {
        "start": init(params, optimizer), "data": (x, y), "checkpoint": "loop.safetensors",
        "eval_fn": lambda state: {"largest": jnp.abs(f(state.params, x)).max()},
    }
    state, history = run_epochs(jax.random.key(0), epoch, epochs=1, **run)
    state, history = run_epochs(jax.random.key(0), epoch, epochs=3, **run)      # goes on from there
    assert [row["epoch"] for row in history] == [0, 1, 2] and state.step == 6
    ```

    Args:
      key: Random key of the run, or an array of them, one per replicate.
      epoch: ``epoch(train_state, key, data) -> (train_state, metrics)``, from `make_epoch`,
        vmapped over replicates or not (then ``start`` and the metrics have a leading axis).
      start: The state before the first epoch. It stays valid.
      data: Pytree of arrays with a common first axis; moved to the device once. Where it is cut
        over several devices (`jaxeff.core.Shards`), the state is copied to all of them. Or an
        iterable of batches (`Batches`), for the epoch of ``make_epoch`` without a
        batch size.
      epochs: Total number of epochs of the run, including those before a resume.
      **run: ``eval_fn``, a function from the state to metrics, and
        ``eval_every``, the epochs between evaluations; ``on_epoch``, called with the epoch's index,
        state and record, which stops the run by returning True; ``checkpoint``, a file to keep the
        run in, ``checkpoint_every``, the epochs between writing it, and ``resume``, whether to go
        on from it; ``settings``, further facts that define the run, or its whole ``identity``;
        ``progress``, whether to show a bar; and ``on_nan``, whether a loss or parameter that isn't
        finite stops the run, ``"raise"``, or not, ``"keep"``.

    Returns:
      The last state and the history: per epoch one record with ``epoch``, ``loss`` and the other
      metrics as Python numbers, or lists of them over replicates.

    Raises:
      DivergedError: A loss or parameter isn't finite; it carries the last good state, and the
        checkpoint, if any, is of a good epoch.
      CheckpointError: The checkpoint is damaged, of another model or of another run.
      ValueError: Data without a common first axis, or counts of epochs below 1.
      InterruptedRun: Ctrl-C; its ``result`` is what the finished epochs left.
    """
    loop = LoopSettings(**run)
    core.check_count("epochs", epochs)
    loop.check()
    source = Batches.of(data)
    key, start, data = _placed(key, start, source or data)
    # Without a way back to the last good state its memory can be reused, but not the caller's.
    donate = loop.on_nan == "keep" and source is None
    carry = jax.tree.map(jnp.copy if donate else jnp.asarray, start)
    compiled = epoch
    if source is None:
        compiled = core.kept_program(epoch, donate_argnums=0 if donate else ())
    identity = _identity(loop, key, epoch, carry, data)
    history: History = []
    if loop.checkpoint is not None and loop.resume:
        known = None if loop.resume == "force" else identity
        carry, history, stopped = _resumed(Path(loop.checkpoint), carry, known, epochs)
        if stopped:
            return carry, history

    good = carry

    def finished() -> tuple[str, Any]:
        # An update that was cut off may have taken the memory of the state before it.
        there = history and not any(leaf.is_deleted() for leaf in jax.tree.leaves(good))
        return loop.told(len(history), epochs), (good, history) if there else None

    with (
        core.keeps_finished(finished),
        core.progress_bar(loop.progress, *_units(source, epochs, len(history))) as advance,
    ):
        for index in range(len(history), epochs):
            inputs = data if source is None else _counted(source, index, advance, history)
            # Keys depend on the epoch's number alone: a resumed run draws what the
            # uninterrupted one would.
            after, metrics = compiled(carry, _fold_in(key, index), inputs)
            record = {"epoch": index, **_numbers(metrics)}
            # Parameters, too: a last update may overflow after a loss that was still finite.
            if loop.on_nan == "raise" and not _finite(metrics["loss"], after.params):
                raise DivergedError(_diverged(record, after.params, data), carry, history)
            carry = after
            last = index + 1 == epochs
            record |= loop.evaluated(carry, index + 1, last)
            history.append(record)
            good = carry
            advance(source is None, _shown(record))
            stop = loop.stops(index, carry, record)
            kept = {"identity": dict(identity), "history": history, "stopped": stop}
            loop.keep(carry, kept, last or stop)
            if stop:
                break
    return carry, history


def _identity(
    loop: LoopSettings, key: jax.Array, epoch: Epoch, start: TrainState, data: Any
) -> Mapping[str, Any]:
    """Identifies a run; empty for one that isn't kept, as it costs a trace and a hash of data."""
    if loop.checkpoint is None:
        return {}
    if loop.identity is not None:
        return loop.identity
    parts = store.describe_arrays("start", core.to_host(start))
    read, sample = (_update_of(epoch), data.first) if isinstance(data, Batches) else (epoch, data)
    parts["epoch"] = store.describe_computation(read, start, _fold_in(key, 0), sample)
    return identify(key, data, loop.settings, parts)


def _placed(key: jax.Array, start: TrainState, data: Any) -> tuple[jax.Array, TrainState, Any]:
    """Moves data to the device, and a run's start to all that the examples are cut over."""
    batched = isinstance(data, Batches)
    if not batched:
        count_examples(data)
        data = jax.tree.map(jnp.asarray, data)
    shards = core.Shards.of(data.first if batched else data)
    if shards is not None:
        data = data if batched else shards.spread(data)
        key, start = shards.replicated((key, jax.tree.map(jnp.asarray, start)))
    return key, start, data


def _update_of(epoch: Epoch) -> Callable[..., Any]:
    if not isinstance(epoch, BatchedEpoch):
        raise TypeError(
            "run_epochs: epoch takes arrays, but data are an iterable of batches: give "
            "make_epoch(loss, optimizer, None)"
        )
    return epoch.update


def _units(source: Batches | None, epochs: int, done: int) -> tuple[str, float | None, float]:
    """Says what the bar counts: epochs, or batches, of which the number may be unknown."""
    if source is None:
        return "epoch", epochs, done
    length = source.length
    return ("batch", None, 0) if length is None else ("batch", epochs * length, done * length)


def _counted(source: Batches, index: int, advance: core.Advance, history: History) -> Iterator[Any]:
    """Gives the batches of an epoch, and counts them on the bar."""
    line = f"epoch {index}  {_shown(history[-1]) if history else ''}"
    left = source.length
    for batch in source.epoch(index):
        yield batch
        advance(1, line)
        left = left and left - 1
    # A shorter batch, which is left out, is part of the length.
    advance(left or 0, line)


def _resumed(
    path: Path, start: TrainState, identity: Mapping[str, Any] | None, epochs: int
) -> tuple[TrainState, History, bool]:
    """Reads the state, the history, and whether the run was stopped; the start if there is none."""
    # One process reads; the others get what it read, so that all continue from the same epoch.
    together = core.span_processes(start)
    stored = core.from_writer(lambda: _read_run(path, start, identity, epochs), together)
    if stored is None:
        return start, [], False
    state, history, stopped = stored
    # Where the started arrays lie, so that the epoch is compiled for the same layout.
    state = jax.tree.map(lambda x, at: core.to_devices(x, at.sharding), state, start)
    return state, history, stopped


def _diverged(record: Mapping[str, Any], params: Any, data: Any) -> str:
    """Says what of an epoch isn't finite, and what to do."""
    return (
        f"training diverged in epoch {record['epoch']}: its loss is {record['loss']} and "
        f"{_not_finite(params)}; the error's train_state holds the state after "
        f"{record['epoch']} good epochs. {_cause(data)}"
    )


def _read_run(
    path: Path, like: TrainState, identity: Mapping[str, Any] | None, epochs: int
) -> tuple[TrainState, History, bool] | None:
    if not path.exists():
        return None
    with store.reading_errors(path):
        metadata = store.load_metadata(path)
        if not {"identity", "history", "stopped"} <= metadata.keys():
            raise store.CheckpointError(f"{path} is a checkpoint, but not one of a training run.")
        if identity is not None:
            store.require_same_run(f"the checkpoint {path} is", metadata["identity"], identity)
        carry = store.load_pytree(path, like)
        history = metadata["history"]
        if len(history) > epochs:
            raise store.CheckpointError(
                f"the checkpoint {path} already holds {len(history)} epochs, more than the "
                f"{epochs} asked for: ask for more, or pass resume=False to overwrite it."
            )
        return carry, history, metadata["stopped"]


def _fold_in(key: jax.Array, index: int) -> jax.Array:
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    fold = jax.random.fold_in
    # One key per replicate: a legacy key's last axis is its data.
    for _ in range(key.ndim if typed else key.ndim - 1):
        fold = jax.vmap(fold, (0, None))
    return fold(key, index)


# One program that returns one number: parameters stay on the device.
@jax.jit
def _finite(loss: jax.Array, params: Any) -> jax.Array:
    leaves = [leaf for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in (loss, *leaves)]
    return jnp.all(jnp.stack(checks))


def _not_finite(params: Any) -> str:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not jnp.all(jnp.isfinite(leaf)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return f"parameter {name!r} has values that aren't finite"
    return "all parameters are finite"


def _cause(data: Any) -> str:
    """Suggests a remedy: for data that aren't finite, then for integers that may be labels."""
    if isinstance(data, Batches):
        return (
            "Lower the learning rate or clip the gradients, and look for batches that hold NaN or "
            "labels out of range."
        )
    integers = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        name = "data" + jax.tree_util.keystr(path)
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and (bad := int((~jnp.isfinite(leaf)).sum())):
            return f"{bad} of {leaf.size} values of {name} are NaN or infinite: mend the data."
        if jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.size:
            integers.append(f"{name} holds integers from {leaf.min()} to {leaf.max()}")
    way_out = "Lower the learning rate or clip the gradients"
    if not integers:
        return f"{way_out}."
    return f"{way_out}; if they are labels, look at their range: {', '.join(integers)}."


def _shown(record: Mapping[str, Any]) -> str:
    means = (f"{name} {np.mean(value):.4g}" for name, value in record.items() if name != "epoch")
    return "  ".join(means)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in core.to_host(dict(metrics)).items()}


@core.shown_as_table
class FitResult(NamedTuple):
    """A trained model; prints as a table of its metrics.

    Attributes:
      params: The trained parameters.
      state: The model's state after training, ``None`` if it has none. The losses of this library
        (`cross_entropy`) give statistics of batches under the trained parameters here, not the
        running ones, which lag behind.
      opt_state: The optimizer's state.
      history: One record per epoch: ``epoch``, ``loss`` and the metrics, as Python numbers.
      seen: The range of each input. Where a result stands for parameters, as in
        ``ptq(f, result, x)``, inputs of another scale than these are warned of.
    """

    params: Any
    state: Any
    opt_state: Any
    history: History
    seen: tuple[core.Extent | None, ...] = ()

    def _table(self) -> core.Table:
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(self.params))
        caption = f"{len(self.history)} epochs, {size:,} parameters"
        first, last = (self.history[i] if self.history else {} for i in (0, -1))
        rows = [
            (name, f"{np.mean(first[name]):.4g}", f"{np.mean(last[name]):.4g}")
            for name in last
            if name != "epoch" and name in first
        ]
        return core.Table(("metric", "first epoch>", "last epoch>"), rows, caption=caption)


# 8 parameters: what a training is made of, beside how its run is kept.
@core.validate(**LOOP_CHECKS)
@core.forwards(LoopSettings, FitOptions)
def fit(
    key: jax.Array,
    loss: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    optimizer: optax.GradientTransformation,
    epochs: int,
    batch_size: int | None = None,
    state: Any = None,
    **run: Unpack[FitOptions],
) -> FitResult:
    """Minimizes a loss over mini-batches.

    Sharp edges:
        Epoch ``i`` always gets ``fold_in(key, i)``, so a run that was killed and resumed equals the
        uninterrupted one bit for bit (on the same machine and versions).
        A checkpoint knows the key, the data, the start, what an epoch computes (a learning rate
        too) and the caller's ``settings``, and is refused where one of them differs. What a host
        callback computes can't be seen: it belongs in ``settings``.
        A second call with data of the same shapes compiles nothing where the loss is the same
        function, or one of this library of the same ``f``. An optimizer of optax may be made anew;
        a ``lambda`` or ``noisy(f, spec)`` that is made anew is another function
        (`jaxeff.core.kept_program`).
        Programs that different versions of JAX trace can't be compared: after an update of JAX a
        checkpoint is refused, and ``resume="force"`` goes on from it.
        Data that are cut along their examples over several devices, of one process or of several,
        are trained on by all of them together: each computes its share of every batch
        (`jaxeff.core`).
        Batches are others then than those of the same data in one part. One process writes.

    Args:
      key: Random key; the run is a function of it and of the other arguments.
      loss: ``loss(params, batch)`` or ``loss(key, params, batch)``, which return a scalar or
        (scalar, dict of scalars); or ``loss(key, params, state, batch, step)``, which returns
        ``(loss, (metrics, new_state))``; see `cross_entropy`.
      params: Pytree of parameters to start from; it stays valid.
      data: Pytree of arrays with a common first axis of examples, e.g. ``(images, labels)``; those
        that are cut over devices are trained on by all of these. Or batches: a loader, an iterator,
        or `Batches` of any iterable.
      optimizer: Any optax optimizer; schedules count updates, not epochs.
      epochs: Passes over the data, including those before a resume.
      batch_size: Examples per update; a last incomplete batch is left out of the epoch. None where
        ``data`` are batches.
      state: The model's mutable state, from ``functional(model, mutable=True)``.
      **run: ``eval_fn``, a function from the train state to metrics, which are added to the
        epoch's record, and ``eval_every``, the epochs between evaluations; ``on_epoch``, called
        with the epoch's index, state and record, which stops the run by returning True;
        ``checkpoint``, a file to keep the run in (safetensors), and ``checkpoint_every``, the
        epochs between writing it; ``resume``, whether to go on from it if it exists: one of a run
        with another key, loss, start, optimizer, batch size, ``settings`` or other data is refused,
        unless this is ``"force"``; ``settings``, further facts that define the run, as JSON; and
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
        no class of the network's; the parts of the data don't divide a batch.
      InterruptedRun: Ctrl-C; its ``result`` is that of the finished epochs, if there are any.
    """
    core.check_function("fit: loss", loss, FORMS)
    asked, loss = loss, full_loss(loss)
    source = Batches.of(data)
    sample = data if source is None else source.first
    core.check_params("fit: data", sample)
    size = _batch_size(batch_size, source)
    shards = core.Shards.of(sample)
    start = init(params, optimizer, state)
    if shards is not None:
        sample, (key, start) = shards.spread(sample), shards.replicated((key, start))
    data = source or sample
    epoch = make_epoch(loss, optimizer, size if source is None else None, shards)
    try:
        _check_loss(loss, key, start, sample, size)
    except Exception as error:
        if (told := _explained(asked, loss, key, start, sample, error)) is None:
            raise
        raise told from error
    identity = None
    # Hashing the data and tracing the loss cost: only for runs that are kept.
    if run.get("checkpoint") is not None:
        described = describe_training(key, loss, optimizer, start, sample, size)
        identified = {**(run.get("settings") or {}), "batch_size": size}
        if shards is not None:  # batches depend on them
            identified["parts of the data"] = shards.count
        identity = identify(key, data, identified, described)
    try:
        last, history = run_epochs(key, epoch, start, data, epochs=epochs, identity=identity, **run)
    except core.InterruptedRun as error:
        if error.result:
            last, history = error.result
            error.result = _result(last, history, sample)
        raise
    if isinstance(loss, SettledLoss):
        # No epoch has this key.
        at = jax.random.fold_in(key, 2**32 - 1)
        settled = loss.settle(at, last.params, last.state, data, size)
        last = last._replace(state=settled)
    return _result(last, history, sample)


def _batch_size(batch_size: int | None, source: Batches | None) -> int:
    """Returns the examples of a batch, which batches of an iterable have by themselves."""
    if source is None:
        if batch_size is None:
            raise TypeError("fit: batch_size is missing, the examples of an update")
        return batch_size
    if batch_size not in (None, source.size):
        raise ValueError(
            f"fit: batches of the data have {source.size} examples, not batch_size={batch_size}: "
            "leave it out"
        )
    return source.size


def _result(last: TrainState, history: History, data: Any) -> FitResult:
    inputs = data[:-1] if isinstance(data, tuple | list) and len(data) > 1 else data
    return FitResult(last.params, last.state, last.opt_state, history, core.extents(inputs))


def _explained(
    asked: Callable[..., Any],
    loss: Loss,
    key: jax.Array,
    start: TrainState,
    data: Any,
    error: Exception,
) -> Exception | None:
    """Explains what a loss says of data: it is a network, or they aren't what its network takes."""
    if not isinstance(data, tuple | list) or len(data) < 2:
        return None
    *inputs, targets = data
    if not isinstance(asked, CheckedLoss) and _predicts(asked, start.params, inputs):
        return TypeError(
            "fit: loss is a network f(params, x), whose outputs are no loss: give one of it, such "
            "as jaxeff.training.cross_entropy(f)"
        )
    logits = getattr(loss, "logits", None)

    def call(params: Any, *inputs: Any) -> Any:
        if logits is not None:
            return logits(key, params, start.state, *inputs)
        return loss(key, params, start.state, (*inputs, targets), start.step)

    return core.misfit("fit: data", call, start.params, tuple(inputs), error, targets)


def _predicts(f: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> bool:
    """Tells whether a function gives outputs for inputs alone, a row for each."""
    try:
        outputs = jax.eval_shape(f, params, *inputs)
    except Exception:  # whatever a loss says of inputs without targets
        return False
    shape = getattr(outputs, "shape", ())
    return bool(shape) and shape[:1] == np.shape(jax.tree.leaves(inputs)[0])[:1]


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
        raise TypeError(f"{form}; or take (params, batch), and return the loss alone.") from None
    if getattr(value, "shape", None) != ():
        raise TypeError(f"{form} with a scalar loss, not one of shape {list(value.shape)}.")
    if not isinstance(metrics, dict):
        raise TypeError(f"{form} with a dict of metrics, not a {type(metrics).__name__}.")
    # The state is carried by a scan, whose carry has one structure.
    expected: Any = jax.tree.structure(start.state)
    returned: Any = jax.tree.structure(state)
    if returned != expected:
        raise TypeError(
            f"{form} with a state of the structure it took: expected {expected}, got {returned}."
        )
