"""Data that come batch by batch, from any iterable, in the place of arrays: `Batches`.

```python
import jax
import numpy as np

from jaxeff import core
from jaxeff.training import Batches, identify, or_batches, prefetched

check = or_batches(core.aligned_arrays)                  # of the data of a function of yours
check("train: data", iter([]))                           # an iterator passes
key, data = jax.random.key(0), Batches([np.ones(3)] * 2, name="ones")
assert identify(key, data, {}, {})["data's name"] == "ones"  # as run_identity says it of arrays
sums = [x.sum() for x in prefetched(data.epoch(0))]      # on the device
assert sums == [3, 3]
```

Sharp edges:
    Batches have one shape, that of the first: an update is compiled once. A last batch of fewer
    examples is left out of an epoch of training, as that of arrays is.
    A checkpoint knows the data by their name alone; NaN and labels are looked for in the first
    batch.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import jax
import numpy as np

from jaxeff import core, store
from jaxeff.core import library_of

AHEAD = 2
"""Batches that are put on the device before they are needed."""


class Batches:
    """Batches of an iterable, epoch by epoch.

    ```python
    import jax
    import numpy as np
    import optax

    from jaxeff import training
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()

    def shuffled(epoch):                                 # called with the number of each epoch
        for rows in np.random.default_rng(epoch).permutation(len(x)).reshape(-1, 32):
            yield x[rows], y[rows]

    data = training.Batches(shuffled, name="shapes, shuffled by epoch", length=8)
    loss, run = training.cross_entropy(f), {"optimizer": optax.adam(1e-2), "epochs": 2}
    result = training.fit(jax.random.key(0), loss, params, data, checkpoint="b.safetensors", **run)
    ```

    A batch is a pytree of arrays with its examples on the first axis: of NumPy, JAX, or what gives
    NumPy an array, such as tensors of PyTorch. They are copied, so an iterator may use its memory
    again. A list, as PyTorch's loaders give it, becomes a tuple.

    Attributes:
        source: The iterable.
        name: What a checkpoint calls the data.
        length: Batches of an epoch, None if it isn't known. The last, shorter one is counted.
    """

    def __init__(
        self,
        source: Iterable[Any] | Callable[[int], Iterable[Any]],
        name: str | None = None,
        length: int | None = None,
    ) -> None:
        """Takes an iterable, or a function that makes one for each epoch.

        Args:
            source: ``source(epoch)`` gives the batches of an epoch, by its number from 0: a run
                that goes on from a checkpoint asks for those that it needs. Of an iterable, such as
                a loader or a list of batches, each epoch is a new iteration. An iterator, such as a
                generator, is read once: an epoch takes ``length`` batches, and a run that goes on
                skips those of the epochs before.
            name: What a checkpoint calls the data, such as ``"MNIST, shuffled by seed 3"``: a run
                goes on where it is the same. Needed with a checkpoint.
            length: Batches of an epoch: where there are more, the next epoch begins; fewer are an
                error. If None, as many as there are, and for the bar what ``len`` says.
        """
        if not callable(source) and not hasattr(source, "__iter__"):
            raise TypeError(
                "Batches: source must be an iterable of batches, or a function that makes one for "
                f"an epoch, not {core.describe_value(source)}"
            )
        for label, value, kind in (("name", name, str), ("length", length, int)):
            if value is not None and (not isinstance(value, kind) or not value or value is True):
                wanted = "text" if kind is str else "a whole number, 1 or more"
                raise TypeError(f"Batches: {label} must be {wanted}, not {value!r}")
        self.source: Any = source
        self.name = name
        self.length = _length(source) if length is None else length
        self._fixed = length is not None
        self._first: Any = None
        self._opened: Iterator[Any] | None = None  # epoch 0, where it was looked into
        self._epoch = 0  # the next one of an iterator

    @classmethod
    def of(cls, data: Any) -> Optional["Batches"]:
        """Returns what gives batches as such; None of arrays, and of pytrees of them."""
        if isinstance(data, cls):
            return data
        return cls(data) if gives_batches(data) else None

    @property
    def once(self) -> bool:
        """Whether the batches can be read once only."""
        return isinstance(self.source, Iterator)

    @property
    def first(self) -> Any:
        """The first batch, which is looked at before a run, and isn't lost for it.

        Raises:
            ValueError: There is none.
            TypeError: It holds no arrays.
        """
        if self._first is None:
            batches = self._open(0)
            try:
                batch = next(batches)
            except StopIteration:
                raise self._ended(0) from None
            self._first = self.arrays(batch)
            core.aligned_arrays("Batches: a batch", self._first)
            self._opened = itertools.chain([batch], batches)
        return self._first

    @property
    def size(self) -> int:
        """Examples of a batch."""
        return len(jax.tree.leaves(self.first)[0])

    def gathered(self) -> Any:
        """Reads an epoch into arrays of the host, for what goes over its data many times."""
        batches = list(self.epoch(0, rest=True))
        return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)

    def epoch(self, index: int, *, rest: bool = False) -> Iterator[Any]:
        """Gives the batches of an epoch, in memory of the host.

        Args:
            index: Number of the epoch, from 0.
            rest: Whether a last batch of fewer examples is given, too.

        Raises:
            ValueError: There are none, or fewer than ``length``; one has another shape.
        """
        expected = _described(self.first)
        if self.once:
            self._skip(index)
        # The iteration that the first batch was looked at in is epoch 0's: a second one would start
        # a loader's workers once more, and move its random numbers on.
        batches = self._opened if index == 0 or self.once else None
        batches, self._opened = batches or self._open(index), None
        count, shorter = 0, False
        # One batch is read beyond a shorter one, to tell the last from one in the middle.
        for batch in batches if self.length is None else itertools.islice(batches, self.length):
            if shorter:
                raise ValueError(
                    f"Batches: batch {count - 1} of epoch {index} has fewer examples than the "
                    f"first one's {self.size}, which only the last may: leave it out"
                )
            batch = self.arrays(batch)
            shorter = self._is_shorter(batch)
            if not shorter and _described(batch) != expected:
                raise ValueError(
                    f"Batches: batch {count} of epoch {index} has other arrays ({_text(batch)}) "
                    f"than the first one ({_text(self.first)}): all must have one shape"
                )
            count += 1
            if rest or not shorter:
                yield batch
        if count - (shorter and not rest) < 1 or (self._fixed and count < (self.length or 0)):
            raise self._ended(index, count)
        if self.once:
            self._opened, self._epoch = batches, index + 1

    @staticmethod
    def arrays(batch: Any) -> Any:
        """Copies a batch into arrays of NumPy; what is JAX's stays where it lies."""
        return jax.tree.map(_host_array, tuple(batch) if type(batch) is list else batch)

    def identity(self) -> dict[str, Any]:
        """Describes the data for `jaxeff.store.run_identity`, as one of its ``parts``.

        Raises:
            ValueError: They have no name.
        """
        if self.name is None:
            raise ValueError(
                "a checkpoint knows the batches of an iterable by a name: give "
                'training.Batches(data, name="MNIST, shuffled by seed 3")'
            )
        shapes = [[*np.shape(leaf), str(leaf.dtype)] for leaf in jax.tree.leaves(self.first)]
        return {"data's name": self.name, "a batch": shapes}

    def _open(self, index: int) -> Iterator[Any]:
        if self._opened is not None and self.once:
            return self._opened
        if hasattr(self.source, "__iter__"):
            return iter(self.source)
        return iter(self.source(index))

    def _skip(self, index: int) -> None:
        """Reads what an iterator gave to epochs before, in a run that goes on."""
        if index <= self._epoch:
            return
        if self.length is None:
            raise ValueError(
                f"Batches: epoch {index} of an iterator, which is read once, is unknown without "
                "its length: give Batches(iterator, length=...), or a function of the epoch"
            )
        self._opened = self._open(0)
        for _ in itertools.islice(self._opened, (index - self._epoch) * self.length):
            pass

    def _is_shorter(self, batch: Any) -> bool:
        """Tells whether a batch is like the first one, but for fewer examples."""
        counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
        if len(counts) != 1 or not (0,) < (count := counts.pop()) < (self.size,):
            return False
        # The first batch, cut to as many examples, has its structure, shapes and dtypes.
        cut = jax.tree.map(lambda leaf: leaf[: count[0]], self.first)
        return _described(cut) == _described(batch)

    def _ended(self, index: int, count: int = 0) -> ValueError:
        """Says that an epoch has too few batches, and the way out."""
        wanted = f", fewer than its length of {self.length}" if self._fixed else ""
        of_iterator = (
            "an iterator is read once, so give Batches a function of the epoch, or an iterable"
            if self.once
            else "look at what the source gives"
        )
        return ValueError(
            f"Batches: epoch {index} has {count or 'no'} batches of the first one's size{wanted}: "
            + of_iterator
        )


def gives_batches(data: Any) -> bool:
    """Tells whether data come batch by batch: an iterable that is neither an array nor a pytree."""
    if isinstance(data, Batches):
        return True
    if isinstance(data, str | bytes | Mapping | set | frozenset | range | type):
        return False
    # Tables of examples have a shape: they are arrays of another library, or rows one by one.
    is_table = hasattr(data, "shape") or hasattr(data, "dtype")
    return (
        hasattr(data, "__iter__")
        and not is_table
        and library_of(data) is None
        and jax.tree_util.all_leaves([data])
    )


def or_batches(check: core.Check) -> core.Check:
    """Makes a check that lets pass what gives batches, and holds everything else to another."""
    return core.unless(gives_batches, check)


def identify(
    key: jax.Array, data: Any, settings: Mapping[str, Any] | None, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """Describes a run as `jaxeff.store.run_identity` does, one on batches by their name."""
    if isinstance(data, Batches):
        return store.run_identity(key, (), settings, {**data.identity(), **parts})
    return store.run_identity(key, data, settings, parts)


def prefetched(
    batches: Iterable[Any], place: Callable[[Any], Any] = jax.device_put
) -> Iterator[Any]:
    """Puts batches on the device ahead of their use, so that it needn't wait for the host.

    Args:
        batches: Pytrees of arrays.
        place: What puts one on the device or the devices.
    """
    waiting: deque[Any] = deque()
    # Placing is asynchronous: it returns before the copy is there.
    for batch in batches:
        waiting.append(place(batch))
        if len(waiting) == AHEAD:
            yield waiting.popleft()
    yield from waiting


def _length(source: Any) -> int | None:
    # Loaders of streams have the method, and raise.
    try:
        return len(source)
    except TypeError:
        return None


def _host_array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf
    if hasattr(leaf, "detach"):  # of PyTorch
        leaf = leaf.detach().cpu()
    # Copied, for placing reads the memory later, and on a CPU shares it.
    try:
        return np.array(np.asarray(leaf))
    except TypeError:  # a dtype that NumPy hasn't, such as PyTorch's bfloat16
        if not hasattr(leaf, "__dlpack__"):
            raise
        return jax.dlpack.from_dlpack(leaf, copy=True)


def _described(batch: Any) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    leaves, structure = jax.tree.flatten(batch)
    return structure, [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in leaves]


def _text(batch: Any) -> str:
    return ", ".join(map(core.describe_value, jax.tree.leaves(batch)[:6]))
