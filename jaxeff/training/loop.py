"""The host's side of training: run epochs, show progress, keep checkpoints, stop on NaN.

Sharp edges:

- Epoch ``i`` always gets ``fold_in(key, i)``, so a run that was killed and resumed equals the
  uninterrupted one bit for bit (on the same machine and versions).
- A checkpoint knows the key, the shapes of everything, a sample of the data and the caller's
  ``settings``. It can't see inside an optimizer or a loss: what sets those (a learning rate, the
  length of a schedule) belongs in ``settings``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jaxeff.training.checkpoint import CheckpointError, load_metadata, load_pytree, save_pytree
from jaxeff.training.epoch import Epoch, TrainState, count_examples

History = list[dict[str, Any]]


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


def run_epochs(
    key: jax.Array,
    epoch: Epoch,
    start: TrainState,
    data: Any,
    *,
    epochs: int,
    eval_fn: Callable[[TrainState], Mapping[str, Any]] | None = None,
    eval_every: int = 1,
    on_epoch: Callable[[int, TrainState, dict[str, Any]], bool | None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    on_nan: Literal["raise", "keep"] = "raise",
) -> tuple[TrainState, History]:
    """Run ``epoch`` repeatedly, each time as one compiled call.

    Args:
      key: Random key of the run.
      epoch: ``epoch(train_state, key, data) -> (train_state, metrics)``, from `make_epoch`,
        vmapped over replicates or not (then ``start`` and the metrics have a leading axis).
      start: The state before the first epoch. It stays valid.
      data: Pytree of arrays with a common first axis; moved to the device once.
      epochs: How many epochs the run has in total, including those before a resume.
      eval_fn: ``eval_fn(train_state) -> metrics``, added to the epoch's record.
      eval_every: Epochs between evaluations; the last epoch is always evaluated.
      on_epoch: Called with the epoch's index, state and record; returning True stops the run.
      checkpoint: File to keep the run in.
      checkpoint_every: Epochs between checkpoints; the last epoch is always kept.
      resume: Whether to go on from ``checkpoint`` if it exists; otherwise it is overwritten.
      settings: What else defines the run, as JSON; a checkpoint with other settings is refused.
      progress: Whether to show a progress bar; only on a terminal.
      on_nan: Whether a loss or parameter that isn't finite stops the run. ``"keep"`` is for
        replicates, of which some may diverge; it also needs one copy of the state less.

    Returns:
      The last state and the history: per epoch one record with ``epoch``, ``loss`` and the other
      metrics as Python numbers, or lists of them over replicates.

    Raises:
      DivergedError: A loss or parameter isn't finite; it carries the last good state, and the
        checkpoint, if any, is of a good epoch.
      CheckpointError: The checkpoint is damaged, of another model or of another run.
      ValueError: Data without a common first axis, or counts of epochs below 1.
    """
    for name, value in (
        ("epochs", epochs), ("eval_every", eval_every), ("checkpoint_every", checkpoint_every)
    ):  # fmt: skip
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if on_nan not in ("raise", "keep"):
        raise ValueError(f"on_nan must be 'raise' or 'keep', not {on_nan!r}.")
    count_examples(data)
    data = jax.tree.map(jnp.asarray, data)
    # Without a way back to the last good state its memory can be reused, but not the caller's.
    donate = on_nan == "keep"
    carry = jax.tree.map(jnp.copy if donate else jnp.asarray, start)
    compiled = jax.jit(epoch, donate_argnums=0 if donate else ())
    identity = _identity(key, data, settings) if checkpoint is not None else {}
    history: History = []
    if checkpoint is not None and resume and Path(checkpoint).exists():
        carry, history, stopped = _resume(Path(checkpoint), carry, identity, epochs)
        if stopped:
            return carry, history

    with _bar(progress, epochs, len(history)) as advance:
        for index in range(len(history), epochs):
            after, metrics = compiled(carry, jax.random.fold_in(key, index), data)
            record = {"epoch": index, **_numbers(metrics)}
            if on_nan == "raise" and not _finite(metrics["loss"], after.params):
                raise DivergedError(
                    f"training diverged in epoch {index}: its loss is {record['loss']} and "
                    f"{_not_finite(after.params)}; the error's train_state holds the state after "
                    f"{index} good epochs. Lower the learning rate or clip the gradients.",
                    carry,
                    history,
                )
            carry = after
            last = index + 1 == epochs
            if eval_fn is not None and (last or (index + 1) % eval_every == 0):
                record |= _numbers(eval_fn(carry))
            history.append(record)
            advance(record)
            stop = on_epoch is not None and on_epoch(index, carry, record) is True
            if checkpoint is not None and (last or stop or (index + 1) % checkpoint_every == 0):
                run = {"identity": identity, "history": history, "stopped": stop}
                save_pytree(checkpoint, carry, run)
            if stop:
                break
    return carry, history


def _resume(
    path: Path, like: TrainState, identity: dict[str, Any], epochs: int
) -> tuple[TrainState, History, bool]:
    metadata = load_metadata(path)
    if not {"identity", "history", "stopped"} <= metadata.keys():
        raise CheckpointError(f"{path} is a checkpoint, but not one of a training run.")
    carry = load_pytree(path, like)
    difference = _difference(metadata["identity"], identity)
    if difference:
        raise CheckpointError(
            f"the checkpoint {path} is of another run: {difference}. Continue that run, choose "
            "another file, or pass resume=False to overwrite it."
        )
    history = metadata["history"]
    if len(history) > epochs:
        raise CheckpointError(
            f"the checkpoint {path} already holds {len(history)} epochs, more than the "
            f"{epochs} asked for: ask for more, or pass resume=False to overwrite it."
        )
    return carry, history, metadata["stopped"]


def _identity(key: jax.Array, data: Any, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe a run by what must not change between its parts, in JSON's types."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = jax.random.key_data(key) if typed else key
    described: dict[str, Any] = {"key": np.asarray(raw).tolist()}
    for name, value in (settings or {}).items():
        described[f"setting {name!r}"] = value
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        # A few values tell other data from these without reading all of them again; six digits
        # survive another processor's rounding in their preparation.
        flat = leaf.reshape(-1)
        rows = np.linspace(0, max(flat.size - 1, 0), min(flat.size, 64)).astype(int)
        described[f"data{jax.tree_util.keystr(path)}"] = {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "sample": [f"{v:.6g}" for v in np.asarray(flat[rows], np.float64)],
        }
    return described


def _difference(stored: Any, given: Any) -> str:
    """Return the first difference between two runs, or nothing."""
    # Through JSON first, so that tuples and lists compare equal.
    for name in [*stored, *(name for name in given if name not in stored)]:
        old, new = stored.get(name), _plain(given.get(name))
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            part = next(k for k in {**old, **new} if old.get(k) != new.get(k))
            if part == "sample":
                return f"{name} has other values"
            return f"{name} has {part} {old.get(part)} there and {new.get(part)} here"
        return f"{name} is {old!r} there and {new!r} here"
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


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


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in metrics.items()}


@contextmanager
def _bar(show: bool, total: int, done: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a progress bar on a terminal; yields a function that takes an epoch's record."""
    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield lambda record: None
        return
    columns = (
        TextColumn("epoch"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, completed=done)

        def advance(record: dict[str, Any]) -> None:
            shown = [
                f"{name} {np.mean(value):.4g}" for name, value in record.items() if name != "epoch"
            ]
            bar.update(task, advance=1, description="  ".join(shown))

        yield advance
