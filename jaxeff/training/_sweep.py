"""`sweep`: one training per setting and seed, as few compiled programs as memory allows.

```python
import jax
import jax.numpy as jnp
import jaxeff
import optax
from flax import nnx
from jaxeff.nn import SmallCNN, small_classifier
from jaxeff.training import cross_entropy, sweep

f, _, (x, y) = small_classifier()
init = lambda key: (jaxeff.functional(SmallCNN(rngs=nnx.Rngs(key)))[1], None)    # and no state
loss_at = lambda spec: cross_entropy(jaxeff.noisy(f, spec), keyed=True)  # {site: Additive(level)}

def score(key, params, state, spec):
    return {"accuracy": jnp.mean(jaxeff.noisy(f, spec)(key, params, x).argmax(-1) == y)}

result = sweep(
    jax.random.key(0), loss_at, init, (x, y), {"*": jaxeff.Additive(jnp.logspace(-2, 1, 4))},
    score=score, seeds=2, optimizer=optax.adam(1e-2), epochs=2, batch_size=32,
)
result.scores["accuracy"]                             # [seeds, settings]
```
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float

from jaxeff import core, store
from jaxeff.training import _replicates as replicates
from jaxeff.training._epoch import TrainState, count_examples
from jaxeff.training._fit import run_epochs
from jaxeff.training._losses import CheckedLoss


def even_parts(total: int, most: int) -> list[list[int]]:
    """Splits a range into parts of at most ``most``, the last filled up to the others' length."""
    # Of one size, so that one compiled program trains them all.
    count = math.ceil(total / most)
    size = math.ceil(total / count)
    return [[min(k, total - 1) for k in range(i * size, (i + 1) * size)] for i in range(count)]


class ChunkFolder:
    """Folder of finished chunks, and of the checkpoint of the running one.

    Of processes that make one run `together`, the first alone reads and writes them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        identity: dict[str, Any],
        together: bool = False,
        resume: store.Resume = True,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.identity = identity
        self._resume = resume
        self._together = together

    def running(self, name: str, filled: tuple[int, int] | None = None) -> Path | None:
        """Names the checkpoint of a chunk while it trains.

        `filled` are the rows and columns if it was filled up for the devices; on another number of
        devices it starts anew.
        """
        size = "" if filled is None else "-{}x{}".format(*filled)
        return None if self.path is None else self.path / f"running-{name}{size}.safetensors"

    def load(self, name: str, like: Any) -> Any:
        """Reads the results of a finished chunk, or None; ``like`` has their structure.

        Raises:
            CheckpointError: The file is damaged, or of another sweep.
        """
        if self.path is None or not self._resume:
            return None
        return core.from_writer(lambda: self._read(name, like), self._together)

    def _read(self, name: str, like: Any) -> Any:
        if self.path is None or not (file := self.path / f"{name}.safetensors").exists():
            return None
        if self._resume != "force":
            metadata = store.load_metadata(file)
            with store.reading_errors(file):
                store.require_same_run(
                    f"{file} is", metadata, self.identity, run="sweep", place="folder"
                )
        return jax.device_get(store.load_pytree(file, like))

    def save(self, name: str, results: Any) -> None:
        """Writes the results of a finished chunk, and removes its checkpoints."""
        if self.path is not None and core.is_writer(self._together):
            store.save_pytree(self.path / f"{name}.safetensors", results, self.identity)
            # Once the result is written: a kill before that goes on from these checkpoints.
            for pattern in (f"running-{name}.*", f"running-{name}-*x*.*"):
                for file in self.path.glob(pattern):
                    file.unlink()


def join_chunks(results: Any, rows: Any, columns: Any, seeds: int, total: int) -> Any:
    """Joins chunks, without what filled up the last ones."""

    def concatenate(*leaves: Any) -> Any:
        # Chunks are in order of seeds, then settings.
        grid = [leaves[i * len(columns) : (i + 1) * len(columns)] for i in range(len(rows))]
        joined = np.concatenate([np.concatenate(row, axis=1) for row in grid], axis=0)
        return joined[:seeds, :total]

    return jax.tree.map(concatenate, *results.values())


class Spread(NamedTuple):
    """Placement of a chunk's replicates.

    Replicates are grouped in chunks, which are kept on disk and joined. `spread_replicates`
    distributes a chunk's replicates over the devices of all processes.

    Attributes:
        seeds: Rows of the chunk as it is trained.
        settings: The number of columns, one for each setting.
        sharding: Sharding of arrays whose leading axes are seeds and settings; None for one device.
    """

    seeds: int
    settings: int
    sharding: NamedSharding | None

    def replicated(self, tree: Any) -> Any:
        """Copies arrays to every device."""
        if self.sharding is None:
            return tree
        return core.to_devices(tree, NamedSharding(self.sharding.mesh, PartitionSpec()))


def spread_replicates(seeds: int, settings: int, devices: Sequence[Any] | None = None) -> Spread:
    """Spreads a chunk along its settings or its seeds, whichever fills the devices better.

    Where neither is a multiple of the devices, one of them is filled up to it; each device still
    has fewer replicates than the chunk. What fills up is to be cut away from the results.

    ```python
    import jax
    from jaxeff.training import spread_replicates

    spread = spread_replicates(seeds=3, settings=5, devices=jax.devices())
    data = spread.replicated({"x": jax.numpy.ones((4, 2))})           # on each of the devices
    assert spread.seeds * spread.settings >= 15                  # filled up to fit the devices
    if jax.device_count() == 1:
        assert spread == (3, 5, None)                            # nothing to spread over
    ```

    Args:
        seeds: Rows of the chunk.
        settings: The number of columns, one for each setting.
        devices: To spread it over; all that there are if None.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    if count == 1:
        return Spread(seeds, settings, None)
    mesh = Mesh(np.array(devices), ("replicates",))
    if seeds * settings == 1:  # nothing to spread, but other processes have to know the result
        replicated = NamedSharding(mesh, PartitionSpec())
        return Spread(seeds, settings, replicated if mesh.is_multi_process else None)
    # The axis whose padding wastes fewer replicates is spread.
    wide, long = (seeds, _filled(settings, count)), (_filled(seeds, count), settings)
    if math.prod(wide) <= math.prod(long):
        return Spread(*wide, NamedSharding(mesh, PartitionSpec(None, "replicates")))
    return Spread(*long, NamedSharding(mesh, PartitionSpec("replicates")))


def _filled(size: int, count: int) -> int:
    return math.ceil(size / count) * count


@core.shown_as_table
class SweepResult(NamedTuple):
    """Results of a sweep, shown by setting; every array leads with the axes of seeds and settings.

    A setting is a pytree whose leaves have a common first axis; every replicate gets one slice of
    it and the initial parameters, mini-batches and random keys of its seed. All settings of one
    seed thus see the same random numbers (common random numbers): their differences are those of
    the settings, and what is random is drawn once for all of them.

    Sharp edges:
        Replicates of one seed are not independent of each other; those of several seeds are.
        A replicate that diverges is marked and keeps its scores, whatever they are; the others go
        on.
        All devices share a chunk, those of other processes too (`jaxeff.core`): let it be a
        multiple of their number. What doesn't divide is filled up with copies.
        Memory grows with the chunk, not with the sweep, also that of `score`: let it take large
        test sets in batches. Without `keep` only scores stay.
        Vmapped convolutions are slow on a CPU: there a chunk of 1 is the faster one for such nets.

    Attributes:
        scores: Result of `score`, as numpy arrays `[seeds, settings, ...]`.
        loss: The mean training loss of every epoch, `[seeds, settings, epochs]`.
        diverged: Replicates whose last loss or parameters aren't finite, `[seeds, settings]`.
        params: The trained parameters, with `keep`; else None.
        state: The models' states, with `keep`; else None.
    """

    scores: dict[str, Any]
    loss: Float[np.ndarray, "seeds settings epochs"]
    diverged: Bool[np.ndarray, "seeds settings"]
    params: Any
    state: Any

    def _table(self) -> core.Table:
        # Means over seeds, and over what a score measures of one network.
        means = {
            name: np.asarray(score).mean((0, *range(2, np.ndim(score))))
            for name, score in {**self.scores, "last loss": self.loss[..., -1]}.items()
        }
        rows = [
            (str(i), *(f"{mean[i]:.4g}" for mean in means.values()), str(bad))
            for i, bad in enumerate(self.diverged.sum(0))
        ]
        columns = ("setting>", *(f"{name}>" for name in means), "diverged>")
        return core.Table(columns, rows, caption=f"means over {len(self.loss)} seeds")


class SweepOptions(TypedDict, total=False):
    """How a sweep trains, and how it is kept and shown; `SweepSettings` has their meaning."""

    optimizer: Required[optax.GradientTransformation]
    epochs: Required[int]
    batch_size: Required[int]
    seeds: int
    chunk: int
    keep: bool
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int
    resume: store.Resume
    identity: Mapping[str, Any] | None
    progress: bool | None


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """How a sweep trains, and how it is kept and shown.

    Attributes:
        optimizer: Any optax optimizer; schedules count updates, not epochs.
        epochs: Passes over the data.
        batch_size: Examples per update.
        seeds: Replicates of each setting.
        chunk: Replicates trained at once, over all devices.
        keep: Whether to return the trained models.
        checkpoint: Folder to keep finished chunks and the running one in.
        checkpoint_every: Epochs between checkpoints of the running chunk.
        resume: Whether to go on from what the folder holds; ``"force"`` takes that of another run.
        identity: Further facts that define the run, as JSON.
        progress: Whether to show a bar of replicates; see `jaxeff.core`.
    """

    optimizer: optax.GradientTransformation
    epochs: int
    batch_size: int
    seeds: int = 1
    chunk: int = 64
    keep: bool = False
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 10
    resume: store.Resume = True
    identity: Mapping[str, Any] | None = None
    progress: bool | None = None

    def sizes(self) -> dict[str, Any]:
        """Lists the numbers that tell one run from another."""
        return {name: getattr(self, name) for name in _SIZES}

    def told(self, chunks_done: int, chunks: int) -> str:
        """Says how far an interrupted sweep came, and how to go on."""
        kept = "" if self.checkpoint is not None else "with a checkpoint "
        said = f"stopped after {chunks_done} of {chunks} chunks of replicates"
        return f"{said}; {kept}the same call goes on where it stopped"


_SIZES = ("epochs", "batch_size", "seeds", "chunk", "keep")


@core.validate(
    init=core.function_of_form("init(key)"),
    data=core.aligned_arrays,
    score=core.function_of_form("score(params)"),
    seeds=core.static_integer(),
    identity=core.string_mapping,
    settings=None,
)
@core.forwards(SweepSettings, SweepOptions)
def sweep(
    key: jax.Array,
    loss_at: replicates.LossAt,
    init: replicates.Init,
    data: Any,
    settings: Any,
    *,
    score: replicates.Score | None = None,
    **run: Unpack[SweepOptions],
) -> SweepResult:
    """Trains and scores one replicate per setting and seed.

    Args:
        key: Random key; a replicate's numbers depend on it, its setting and its seed alone, up to
            float rounding not on the chunks.
        loss_at: The training loss of a setting, in the form that `make_epoch` takes.
        init: Initial parameters and state (None if there is none) from a key.
        data: Pytree of arrays with a common first axis of examples.
        settings: Pytree of arrays with a common first axis, one entry per setting.
        score: `score(key, params, state, setting) -> dict` of arrays, after training.
        **run: `optimizer`, any of optax, whose schedules count updates, not epochs; `epochs`, the
            passes over the data; `batch_size`, the examples per update; `seeds`, the replicates of
            each setting; `chunk`, the replicates trained at once, over all devices; `keep`, whether
            to return the trained models; `checkpoint`, a folder to keep finished chunks and the
            running one in, and `checkpoint_every`, the epochs between checkpoints of the running
            one; `resume`, whether to go on from what the folder holds: one of another run is
            refused (another key, init, loss, score, optimizer, other settings, data or sizes),
            unless this is ``"force"``; `identity`, further facts that define the run, as JSON; and
            `progress`, whether to show a bar of replicates (`jaxeff.core`).

    Returns:
        Scores, losses and marks of diverged replicates, and the models on request.

    Raises:
        CheckpointError: The folder holds another run, or a damaged file.
        ValueError: Settings or data without a common first axis, counts below 1, or labels that are
            no classes of the network's.
        TypeError: An argument is of another kind.
    """
    core.check_function("sweep: loss_at", loss_at, "loss_at(setting)")
    asked = SweepSettings(**run)
    for name in ("seeds", "chunk", "epochs"):
        core.check_count(name, getattr(asked, name))
    total = _count_settings(settings)
    settings = jax.tree.map(jnp.asarray, settings)
    data = jax.tree.map(jnp.asarray, data)
    _check_labels(key, loss_at, init, settings, data, asked.batch_size)
    plan = _Chunks.of(asked.seeds, total, asked.chunk)
    trained = replicates.ReplicatedTraining(loss_at, init, asked.optimizer, asked.batch_size, score)
    identity = _identity(key, trained, settings, data, asked)
    # Once: all chunks read the same data on every device.
    data = plan.spread.replicated(data)
    folder = ChunkFolder(asked.checkpoint, identity, core.span_processes(data), asked.resume)
    programs = _Programs.of(trained, plan, asked.keep)
    results: dict[tuple[int, int], Any] = {}

    with (
        core.keeps_finished(lambda: (asked.told(len(results), len(plan.places)), None)),
        core.progress_bar(asked.progress, "replicate", asked.seeds * total, 0) as advance,
    ):
        for place in plan.places:
            name, number = plan.name(place), plan.number(place)
            keys, part = plan.replicates(place, key, settings)
            kept = folder.load(name, programs.results_like(keys, part, asked.epochs))
            if kept is None:
                carry, history = run_epochs(
                    keys.train,
                    programs.train,
                    programs.start(keys.start, part),
                    data,
                    epochs=asked.epochs,
                    # One replicate that diverges mustn't stop the others of its chunk.
                    on_nan="keep",
                    on_epoch=_progress(advance, number, asked.epochs, plan.shape),
                    checkpoint=folder.running(name, plan.filled if plan.is_filled else None),
                    checkpoint_every=asked.checkpoint_every,
                    resume=asked.resume,
                    identity=folder.identity,
                    progress=False,
                )
                kept = programs.results(keys, carry, history)
                folder.save(name, kept)
            else:
                advance(number, "kept from an earlier run")
            results[place] = kept
    return _joined(join_chunks(results, plan.rows, plan.columns, asked.seeds, total))


def _identity(
    key: jax.Array,
    trained: replicates.ReplicatedTraining,
    settings: Any,
    data: Any,
    asked: SweepSettings,
) -> dict[str, Any]:
    """Identifies a sweep; empty for one that isn't kept, as it costs a trace and a hash of data."""
    if asked.checkpoint is None:
        return {}
    parts = replicates.describe_sweep(key, trained, settings, data)
    return store.run_identity(
        key, (settings, data), {**(asked.identity or {}), **asked.sizes()}, parts
    )


class _Programs(NamedTuple):
    """What is compiled once for all chunks.

    Attributes:
        shape: Seeds and settings of a chunk, without what fills it up.
        start: Makes the states before training from keys and settings.
        train: An epoch of all replicates.
        finish: Scores what was trained.
    """

    shape: tuple[int, int]
    start: Any
    train: Any
    finish: Any

    @classmethod
    def of(cls, trained: replicates.ReplicatedTraining, plan: "_Chunks", keep: bool) -> "_Programs":
        """Makes the programs; nothing is compiled before it is called."""
        loss_at, init, optimizer, batch_size, score = trained
        return cls(
            plan.shape,
            replicates.start_function(init, optimizer, plan.spread.sharding),
            replicates.epoch_function(loss_at, optimizer, batch_size, *plan.filled),
            core.kept_program(replicates.finish_function(score, keep, *plan.filled)),
        )

    def results_like(self, keys: Any, settings: Any, epochs: int) -> dict[str, Any]:
        """Describes the results of a chunk without training one: files are checked against it."""
        like: dict[str, Any] = jax.eval_shape(
            lambda k, s: _cut(self.finish(k, self.start(k, s)), *self.shape), keys.start, settings
        )
        return {**like, "loss": jax.ShapeDtypeStruct((*self.shape, epochs), jnp.float32)}

    def results(self, keys: Any, carry: TrainState, history: Sequence[Mapping[str, Any]]) -> Any:
        """Scores a chunk that was trained."""
        loss = np.stack([record["loss"] for record in history], axis=-1, dtype=np.float32)
        scored = {**core.to_host(self.finish(keys.score, carry)), "loss": loss}
        return _cut(scored, *self.shape)


class _Chunks(NamedTuple):
    """The chunks of a sweep: which seeds and settings each trains, and where.

    Attributes:
        rows: Seeds of each row of chunks, all of one number.
        columns: Settings of each column of chunks, all of one number.
        spread: Placement of a chunk's replicates, filled up to fit the devices.
    """

    rows: list[list[int]]
    columns: list[list[int]]
    spread: Spread

    @classmethod
    def of(cls, seeds: int, settings: int, most: int) -> "_Chunks":
        """Cuts a sweep into chunks of at most ``most`` replicates."""
        # Chunks of one size: a single compiled program trains all of them.
        columns = even_parts(settings, most)
        # All settings of a seed together, as they share its draws; then as many seeds as fit.
        rows = even_parts(seeds, max(1, most // settings))
        return cls(rows, columns, spread_replicates(len(rows[0]), len(columns[0])))

    @property
    def shape(self) -> tuple[int, int]:
        """Seeds and settings of a chunk."""
        return len(self.rows[0]), len(self.columns[0])

    @property
    def filled(self) -> tuple[int, int]:
        """Seeds and settings of a chunk as it is trained."""
        return self.spread.seeds, self.spread.settings

    @property
    def is_filled(self) -> bool:
        """Whether a chunk was filled up for the devices."""
        return self.filled != self.shape

    @property
    def places(self) -> list[tuple[int, int]]:
        """Row and column of every chunk, in the order of training."""
        return [(i, j) for i in range(len(self.rows)) for j in range(len(self.columns))]

    def name(self, place: tuple[int, int]) -> str:
        """Names a chunk's files, by its first seed and setting."""
        return f"{self.rows[place[0]][0]}-{self.columns[place[1]][0]}"

    def number(self, place: tuple[int, int]) -> int:
        """Counts a chunk's replicates, without what fills it up."""
        return len(set(self.rows[place[0]])) * len(set(self.columns[place[1]]))

    def replicates(self, place: tuple[int, int], key: jax.Array, settings: Any) -> tuple[Any, Any]:
        """Makes the keys of a chunk's seeds and selects its settings, on the devices."""
        row = _fill(self.rows[place[0]], self.filled[0])
        column = _fill(self.columns[place[1]], self.filled[1])
        # Keys by seed, not by position in the chunk: chunks of another size give the same
        # replicates.
        keys = jax.vmap(lambda seed: replicates.replicate_keys(key, seed))(row)
        part = jax.tree.map(lambda leaf: leaf[column], settings)
        return self.spread.replicated(keys), self.spread.replicated(part)


def _joined(joined: dict[str, Any]) -> SweepResult:
    """Marks what diverged: by a loss of the last epoch, too, where parameters still are finite."""
    joined["diverged"] |= ~np.isfinite(joined["loss"][..., -1])
    return SweepResult(
        joined.get("scores", {}), joined["loss"], joined["diverged"],
        joined.get("params"), joined.get("state"),
    )  # fmt: skip


def _check_labels(
    key: jax.Array,
    loss_at: replicates.LossAt,
    init: replicates.Init,
    settings: Any,
    data: Any,
    batch_size: int,
) -> None:
    """Lets a loss check its data before training, at the first setting."""

    def check(key: Any, setting: Any) -> None:
        loss = loss_at(setting)
        if isinstance(loss, CheckedLoss):
            params, state = init(key)
            try:
                loss.check(key, params, state, data, batch_size)
            except Exception as error:
                told = _explained(loss, key, params, state, data, error)
                if told is None:
                    raise
                raise told from error

    if count_examples(data) >= batch_size:  # otherwise the epoch says what is wrong
        jax.eval_shape(check, key, jax.tree.map(lambda leaf: leaf[0], settings))


def _explained(
    loss: CheckedLoss, key: Any, params: Any, state: Any, data: Any, error: Exception
) -> Exception | None:
    """Explains what the network of a loss says of data."""
    logits = getattr(loss, "logits", None)
    if logits is None or not isinstance(data, tuple | list) or len(data) < 2:
        return None

    def call(params: Any, *inputs: Any) -> Any:
        return logits(key, params, state, *inputs)

    return core.misfit("sweep: data", call, params, tuple(data[:-1]), error, data[-1])


def _count_settings(settings: Any) -> int:
    try:
        return count_examples(settings)
    except ValueError:
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(settings)]
        raise ValueError(
            "the settings must be arrays with a common first axis, one entry per setting, not of "
            f"the shapes {shapes}."
        ) from None


def _fill(numbers: list[int], size: int) -> jax.Array:
    """Fills up a chunk's seeds or settings by repeating the last one."""
    return jnp.array([*numbers, *numbers[-1:] * (size - len(numbers))])


def _cut(results: Any, seeds: int, settings: int) -> Any:
    """Cuts away what filled up a chunk."""
    return jax.tree.map(lambda leaf: leaf[:seeds, :settings], results)


def _progress(advance: Any, number: int, epochs: int, shape: tuple[int, int]) -> Any:
    shown = 0

    def on_epoch(index: int, carry: TrainState, record: dict[str, Any]) -> None:
        nonlocal shown
        losses = _cut(np.asarray(record["loss"]), *shape)
        bad = np.count_nonzero(~np.isfinite(losses))
        line = (
            f"epoch {index + 1} of {epochs}, {bad} diverged"
            if bad
            else f"epoch {index + 1} of {epochs}"
        )
        advance(number * (index + 1 - shown) / epochs, line)  # with what a checkpoint had
        shown = index + 1

    return on_epoch
