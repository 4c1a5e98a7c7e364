"""The ceilings of the roofline, measured: what one core computes and moves at best.

The peak is a large matrix product. Bandwidths are those of ``x = a x + y`` over arrays that fit a
level of the caches, in a compiled loop: two reads and a write per element.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

SIDE = 1024
USUAL = {2: 2**20, 3: 32 * 2**20}
"""Sizes of the caches where the system doesn't tell."""
ELEMENT = 12
"""Bytes that an element moves: two reads and a write of four."""


def ceilings(rounds: int) -> dict[str, Any]:
    """Peak arithmetic and bandwidths of this core, the best of so many rounds.

    Returns:
        `peak` in FLOP/s; `bandwidths` in bytes/s and `working_sets` in bytes, by level.
    """
    square = jax.random.normal(jax.random.key(0), (SIDE, SIDE))
    product = jax.jit(jnp.matmul)
    calls: dict[str, Callable[[], Any]] = {"peak": lambda: product(square, square)}
    sets = working_sets()
    work = {"peak": 2.0 * SIDE**3}
    for level, size in sets.items():
        n = size // 8  # two arrays of four-byte elements
        repeats = max(1, 2**27 // (n * ELEMENT))
        calls[level] = _triad(n, repeats)
        work[level] = float(n * ELEMENT * repeats)
    best = dict.fromkeys(calls, 0.0)
    for i in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            jax.block_until_ready(call())
            seconds = time.process_time() - start
            if i:  # the first compiles
                best[name] = max(best[name], work[name] / seconds)
    peak = best.pop("peak")
    return {"peak": peak, "bandwidths": best, "working_sets": sets}


def working_sets() -> dict[str, int]:
    """Bytes that live in each level: half of a cache, a quarter of a shared one, and far more."""
    sizes = {level: _cache(level) or usual for level, usual in USUAL.items()}
    return {"L2": sizes[2] // 2, "L3": sizes[3] // 4, "DRAM": 8 * sizes[3]}


def _triad(n: int, repeats: int) -> Callable[[], Any]:
    x, y = jnp.ones(n), jnp.ones(n)

    @jax.jit
    def loop(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, repeats, lambda _, x: 0.5 * x + y, x)

    return lambda: loop(x, y)


def _cache(level: int) -> int | None:
    """The size of a data cache, as Linux tells it."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            found = {
                name: (folder / name).read_text().strip() for name in ("level", "type", "size")
            }
        except OSError:
            continue
        if found["level"] == str(level) and found["type"] != "Instruction":
            return int(found["size"].removesuffix("K")) * 1024
    return None
