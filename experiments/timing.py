"""Times several callables against each other, so that their ratios hold on a noisy machine.

Each round calls every one of them in turn; a figure is the median over rounds. Never quote one
without another from the same run.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int = 15,
    seconds: float = 0.02,
    relative_to: str | None = None,
) -> dict[str, dict[str, float]]:
    """Median and spread of each call's time, in milliseconds.

    Args:
        calls: Functions of nothing; JAX results are waited for.
        rounds: How often each is measured.
        seconds: About how long one measurement takes: fast calls are repeated to fill it.
        relative_to: The name of the call that the others are compared with.

    Returns:
        Per name, `ms` (the median) and `spread` (the interquartile range); with `relative_to` also
        `ratio`, the median over rounds of the time over that of the named call in the same round:
        whatever slows the machine for a while slows both.
    """
    repeats = {}
    for name, call in calls.items():
        _once(call, 1)
        repeats[name] = max(1, int(seconds / max(_once(call, 1), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(1e3 * _once(call, repeats[name]))
    summaries = {name: _summary(values) for name, values in times.items()}
    if relative_to is not None:
        for name, values in times.items():
            ratios = [v / base for v, base in zip(values, times[relative_to], strict=True)]
            summaries[name]["ratio"] = statistics.median(ratios)
    return summaries


def _once(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def _summary(values: list[float]) -> dict[str, float]:
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"ms": statistics.median(values), "spread": quarters[2] - quarters[0]}
