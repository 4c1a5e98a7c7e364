"""How many threads of this process share a kernel's parallel loops.

Left alone, TVM's pool has half as many threads as an x86 processor has cores (it counts on two
threads a core), whatever a library was compiled for, and keeps the thread that calls it, and all
that this one starts later, from the other half. The pool belongs to the thread that calls kernels,
and doesn't grow once it was used.
"""

from __future__ import annotations

import os
import warnings


def use_threads(count: int) -> int:
    """Has kernels that this thread calls from now on run on `count` threads.

    On as many as the cores that this thread may use, if these are fewer, or as ``TVM_NUM_THREADS``
    or ``OMP_NUM_THREADS`` allow. The calling thread stays where it was; the others get a core each,
    unless ``TVM_BIND_THREADS`` is 0, which is better where several processes share the cores.

    Args:
      count: how many; the library's ``num-cores``.

    Returns:
      How many there are.

    Warns:
      RuntimeWarning: if there are fewer: the pool was used before, and had no more.
    """
    import tvm

    if count == 1:  # no loop of such a library is parallel; a pool need not be started
        return 1
    cores = _cores()
    count = min(count, _allowed(len(cores)))
    a_core_each = -2
    tvm.get_global_func("runtime.config_threadpool")(a_core_each, count, cores)
    there = int(tvm.get_global_func("runtime.NumThreads")())
    if there < count:
        warnings.warn(
            f"kernels run on {there} of {count} threads: TVM's pool was started with no more "
            "before, in this thread; call the bundle in another thread, or before TVM is used",
            RuntimeWarning,
            stacklevel=2,
        )
    return there


def _cores() -> list[str]:
    """Numbers of the cores this thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return [str(core) for core in sorted(os.sched_getaffinity(0))]
    return [str(core) for core in range(os.cpu_count() or 1)]


def _allowed(cores: int) -> int:
    """What the environment allows, as TVM reads it."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        if (value := os.environ.get(name, "")).isdecimal():
            return min(cores, max(1, int(value)))
    return cores
