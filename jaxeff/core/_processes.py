"""Runs over several processes: the one that writes, sharing values, moving arrays.

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

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

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
