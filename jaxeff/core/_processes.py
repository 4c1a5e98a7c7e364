"""Runs over several devices and processes: which one writes, sharing values, moving arrays.

A script lets the processes find each other by ``jax.distributed.initialize()``, before it imports
jaxeff: BlackJAX, which samplers import, computes as it is imported, and then JAX must know its
devices. Under SLURM, Open MPI, Kubernetes or on a TPU pod JAX finds the arguments itself; elsewhere
it is given the address of the first process, their number and its own. From then on `jax.devices()`
are those of all processes, and `sweep` and the samplers of `jaxeff.bayes` spread over them. Each
process makes the same calls with the same arguments, and each gets the whole result. The first one
reads and writes the files, and says what it found: the others need not see its disk, and all of
them go on from the same place.

Sharp edges:
    A process that skips a call which the others make leaves them waiting.
    Where the first process cannot write, its error ends it; JAX ends the others once it is missed.
    Data are given whole to every process. They must be the same, which is not checked.
"""

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

T = TypeVar("T")


def is_first() -> bool:
    """Tells whether this is the only process of its run, or the first one."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def span_processes(tree: Any) -> bool:
    """Tells whether arrays lie on devices of several processes, which then act together.

    Args:
        tree: Pytree of arrays.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return any(not leaf.is_fully_addressable for leaf in leaves)


def is_writer(together: bool) -> bool:
    """Tells whether this process writes a run's files.

    Args:
        together: Whether all processes make one run; otherwise each one is its own writer.
    """
    return not together or is_first()


def from_writer(read: Callable[[], T], together: bool) -> T:
    """Shares with all processes of the run what the writer reads.

    Args:
        read: Called in the writer alone; what it returns or raises is pickled on its way.
        together: Whether all processes make one run; otherwise each one reads for itself.

    Returns:
        What ``read`` returned.

    Raises:
        Exception: What ``read`` raised, in every process.
    """
    if not together:
        return read()
    content = b""
    if is_first():
        # An error goes to all: raised in the first process alone, it would leave the others waiting
        # in the broadcast.
        try:
            content = pickle.dumps((read(), None))
        except Exception as error:
            content = pickle.dumps((None, error))
    # A collective needs arrays of one shape everywhere, so the size is sent first.
    (size,) = np.frombuffer(_broadcast(np.int64(len(content)).tobytes(), 8), np.int64)
    # Pickle is safe here: the bytes come from the first process of this run, not from a file.
    value, raised = pickle.loads(_broadcast(content, int(size)))
    if raised is not None:
        raise raised
    return value


def _broadcast(content: bytes, size: int) -> bytes:
    """Sends that many bytes from the first process to all."""
    # Only the first process's array counts; the others must match its shape and dtype.
    buffer = np.frombuffer(content, np.uint8) if is_first() else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()


def to_devices(tree: Any, sharding: Sharding) -> Any:
    """Puts arrays that every process has whole on the devices; each process fills its own.

    Args:
        tree: Pytree of arrays.
        sharding: Sharding of the arrays on the devices.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def place(leaf: Any) -> jax.Array:
        # NumPy has no typed keys: their words are placed, and wrapped again.
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = to_devices(jax.random.key_data(leaf), sharding)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(place, jax.tree.map(jnp.asarray, tree))


def to_host(tree: Any) -> Any:
    """Gathers complete NumPy arrays in every process, wherever their parts lie; keys stay JAX's.

    Args:
        tree: Pytree of arrays.
    """

    def fetch(leaf: Any) -> Any:
        if not span_processes(leaf):
            return jax.device_get(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = to_host(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(fetch, tree)


@dataclass(frozen=True)
class Shards:
    """The parts of data whose examples are cut over devices, of one process or of several.

    What takes rows names them within each part. So a device reads what it holds itself, and a
    batch lies on the devices as the data do: of rows by their numbers in all data, every device
    would get all, and compute the batch that all the others compute.

    Attributes:
        mesh: The devices.
        axes: Axes of the mesh that the examples are cut along.
    """

    mesh: Mesh
    axes: tuple[str, ...]

    @classmethod
    def of(cls, data: Any) -> Optional["Shards"]:
        """Reads how the first axis of data is cut; None if it lies in one part.

        Args:
            data: Pytree of arrays; the first that is cut counts.
        """
        for leaf in jax.tree.leaves(data):
            at = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
            if not isinstance(at, NamedSharding) or not at.spec or at.spec[0] is None:
                continue
            axes = (at.spec[0],) if isinstance(at.spec[0], str) else tuple(at.spec[0])
            # What is computed on the parts is the compiler's to lay out, whoever made the mesh.
            shards = cls(Mesh(at.mesh.devices, at.mesh.axis_names), axes)
            if shards.count > 1:
                return shards
        return None

    @property
    def count(self) -> int:
        """Number of parts."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    def spread(self, data: Any) -> Any:
        """Cuts what of data isn't cut yet, on the same devices."""
        sharding = NamedSharding(self.mesh, PartitionSpec(self.axes))

        def place(leaf: Any) -> Any:
            if type(self).of(leaf) is None:
                return to_devices(leaf, sharding)
            return jax.device_put(leaf, NamedSharding(self.mesh, leaf.sharding.spec))

        return jax.tree.map(place, data)

    def replicated(self, tree: Any) -> Any:
        """Copies to every device what of a pytree of arrays lies on others."""
        everywhere, devices = NamedSharding(self.mesh, PartitionSpec()), {*self.mesh.devices.flat}

        def place(leaf: Any) -> Any:
            is_there = isinstance(leaf, jax.Array) and leaf.sharding.device_set == devices
            return leaf if is_there else to_devices(leaf, everywhere)

        return jax.tree.map(place, tree)

    def share(self, batch_size: int) -> int:
        """Returns the examples of a batch that each part has.

        Raises:
            ValueError: The parts don't divide the batch.
        """
        if batch_size % self.count:
            raise ValueError(
                f"the data lie in {self.count} parts, which don't divide a batch of {batch_size}: "
                f"take {-(-batch_size // self.count) * self.count}, or other devices"
            )
        return batch_size // self.count

    def shuffled(self, key: jax.Array, count: int, batch_size: int) -> jax.Array:
        """Draws the order of examples: as many of every part in each batch.

        Args:
            key: Random key.
            count: Examples in all parts.
            batch_size: Examples of a batch.

        Returns:
            Rows within the parts, `[steps, batch_size]`.

        Raises:
            ValueError: The parts don't divide the batch.
        """
        each, steps = self.share(batch_size), count // batch_size

        def order(keys: jax.Array) -> jax.Array:
            rows = jax.random.permutation(keys[0], count // self.count)
            return rows[: steps * each].reshape(steps, each)

        keys = jax.random.split(key, self.count)
        return self._by_part(order, PartitionSpec(None, self.axes))(keys)

    def take(self, data: Any, rows: jax.Array) -> Any:
        """Takes rows of `shuffled`, of each part its own."""
        return self._by_part(lambda data, rows: jax.tree.map(lambda leaf: leaf[rows], data))(
            data, rows
        )

    def batches(self, data: Any, size: int) -> Any:
        """Cuts the parts into batches in their order, `[batches, size, ...]`, without the rest."""
        each = self.share(size)

        def cut(leaf: jax.Array) -> jax.Array:
            count = len(leaf) // each
            return leaf[: count * each].reshape(count, each, *leaf.shape[1:])

        of_part = self._by_part(
            lambda data: jax.tree.map(cut, data), PartitionSpec(None, self.axes)
        )
        return of_part(data)

    def _by_part(self, f: Callable[..., Any], result: PartitionSpec | None = None) -> Any:
        parts = PartitionSpec(self.axes)
        return jax.shard_map(
            f, mesh=self.mesh, in_specs=parts, out_specs=result or parts, axis_names={*self.axes}
        )
