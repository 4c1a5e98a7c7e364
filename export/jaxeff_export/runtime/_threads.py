"""The threads that share a kernel's parallel loops.

By default TVM's pool has half as many threads as an x86 processor has cores (it assumes two threads
per core), regardless of what a library was compiled for. It keeps the calling thread, and all that
this one starts later, from the other half of the cores. The pool belongs to the thread that calls
kernels, and doesn't grow once it was used. It doesn't end with that thread either: its own threads
stay, and spin. So kernels with parallel loops are called by two threads at most; calls of all other
threads are passed to one of these.

```python
import jax.numpy as jnp
import numpy as np

from jaxeff_export import deploy
from jaxeff_export.runtime import run_on_threads

bundle = deploy(lambda w, x: x @ w, (jnp.eye(3), jnp.ones((2, 3))))
with bundle.on("local") as runner:                       # each of its calls does this by itself
    result = run_on_threads(1, lambda: runner.run(np.ones((2, 3), np.float32)))
assert result.shape == (2, 3)
```
"""

import contextlib
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from jaxeff_export.runtime._device_runner import runtime_function

SHARED, A_CORE_EACH = -3, -2
"""TVM's ways of placing threads: the system does it, or each has a core."""

_T = TypeVar("_T")

_TURN = threading.Lock()
"""Held by calls on several threads: two that share the same cores would wait for each other's."""

_CALLER = ThreadPoolExecutor(1, thread_name_prefix="jaxeff-kernels")
"""The thread that calls kernels for all threads but the main one; started when it is needed."""


def run_on_threads(count: int, action: Callable[[], _T]) -> _T:
    """Runs an action that calls kernels on several threads, from whatever thread it is asked for.

    On one thread calls run side by side. On several they take turns, in the main thread or in the
    one that calls for all others.

    Args:
      count: number of threads; the library's ``num-cores``.
      action: function that calls kernels; it must not call `run_on_threads` again.

    Returns:
      The result of the action.

    Warns:
      RuntimeWarning: as `threads` does.
    """
    if count == 1:  # no loop of such a library is parallel, so there is no pool
        return action()

    def called() -> _T:
        with threads(count):
            return action()

    with _TURN:
        # Two threads at most ever own a pool of TVM's, whose threads never end.
        if threading.current_thread() is threading.main_thread():
            return called()
        return _CALLER.submit(called).result()


@contextlib.contextmanager
def threads(count: int) -> Iterator[int]:
    """Runs kernels that this thread calls meanwhile on several threads.

    There are at most as many as this thread may use cores, and as ``TVM_NUM_THREADS`` or
    ``OMP_NUM_THREADS`` allow. If they take all these cores, each thread, the calling one included,
    is bound to one until the end: threads wait for each other, and two that the system puts on one
    core stay there for many milliseconds. ``TVM_BIND_THREADS=0`` binds none, which is better where
    other processes are busy too.

    Args:
      count: number of threads; the library's ``num-cores``.

    Returns:
      How many there are.

    Warns:
      RuntimeWarning: if there are fewer than that and the environment allows.
    """
    if count == 1:  # no loop of such a library is parallel; a pool need not be started
        yield 1
        return
    cores, wanted = _cores(), int(min(count, _allowed()))
    count = min(wanted, len(cores))
    # Bound only if all cores are taken: fewer threads are better placed by the system.
    bound = 1 < count == len(cores) and _binds()
    names = [str(core) for core in cores]
    configure = runtime_function("runtime.config_threadpool")
    configure(A_CORE_EACH if bound else SHARED, count, names)
    # What there is: a pool that was started before doesn't grow.
    there = int(runtime_function("runtime.NumThreads")())
    if there < wanted:
        warnings.warn(
            f"kernels run on {there} of {wanted} threads: this thread may use no more cores, or "
            "something else used TVM in it before, which then keeps to half of an x86's; deploy "
            "for as many as there are (num-cores), or call bundles first, or in another thread",
            RuntimeWarning,
            stacklevel=3,
        )
    if not bound or there < count:
        yield there
        return
    # The calling thread works as well: left to the system, it would meet another on a core.
    os.sched_setaffinity(0, cores[:1])
    try:
        yield there
    finally:
        os.sched_setaffinity(0, cores)


def _cores() -> list[int]:
    """Lists the cores this thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _binds() -> bool:
    """Tells whether threads may be bound to cores, as TVM reads it."""
    return hasattr(os, "sched_setaffinity") and os.environ.get("TVM_BIND_THREADS", "1") == "1"


def _allowed() -> float:
    """Reads how many threads the environment allows, as TVM reads it."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        if (value := os.environ.get(name, "")).isdecimal():
            return max(1, int(value))
    return math.inf
