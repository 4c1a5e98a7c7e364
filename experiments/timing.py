"""Times several callables against each other, so that their ratios hold on a noisy machine.

Each round calls every one of them in turn; a figure is the median over rounds. Never quote one
without another from the same run. Engines have threads that wait for the next call actively, for
up to a tenth of a second: a turn begins when those of the turn before have gone to sleep.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax

Name = TypeVar("Name", bound=Hashable)
Meter = Callable[[int], float]
"""`meter(n)`: seconds per call, measured over n calls in a row."""
SLOW, SLOW_ROUNDS = 1.0, 2
"""A call of more than so many seconds is measured in the first so many rounds only."""
GLANCE, BUSY, PATIENCE = 0.002, 0.2, 0.5
"""Threads are at rest once they ran for less than this share of so many seconds; they are waited
for this long at most."""
WARM = 0.01
"""Seconds of fast calls before a turn counts: its own threads wake, and find cores of their own."""


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int = 15,
    seconds: float = 0.02,
    relative_to: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """Median and spread of each call's time, in milliseconds.

    Args:
        calls: Functions of nothing; JAX results are waited for.
        rounds: How often each is measured.
        seconds: About how long one measurement takes: fast calls are repeated to fill it.
        relative_to: The name of the call that the others are compared with.
        clock: What is read before and after; `time.process_time` for calls of one thread, which
            other processes then don't slow.

    Returns:
        Per name, `ms` (the median) and `spread` (the interquartile range); with `relative_to` also
        `ratio`, the median over rounds of the time over that of the named call in the same round:
        whatever slows the machine for a while slows both.
    """
    meters = {name: metered(call, clock) for name, call in calls.items()}
    times = measure_rounds(meters, rounds, seconds)
    summaries = {name: summary(values) for name, values in times.items()}
    if relative_to is not None:
        for name, values in times.items():
            summaries[name]["ratio"] = ratio(values, times[relative_to])
    return summaries


@contextlib.contextmanager
def processor_seconds(into: list[float]) -> Iterator[None]:
    """Adds how many seconds of a processor a block takes."""
    start = time.process_time()
    yield
    into.append(time.process_time() - start)


def metered(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> Meter:
    """A meter of a function of nothing; JAX results are waited for."""

    def meter(repeats: int) -> float:
        start = clock()
        # Each result is waited for: calls that don't depend on each other would run side by side.
        for _ in range(repeats):
            jax.block_until_ready(call())
        return (clock() - start) / repeats

    return meter


def measure_rounds(
    meters: Mapping[Name, Meter], rounds: int, seconds: float = 0.02
) -> dict[Name, list[float]]:
    """The milliseconds of each, round by round.

    Args:
        meters: What is measured, by any name.
        rounds: How often.
        seconds: About how long one measurement takes.
    """
    repeats = {}
    for name, meter in meters.items():
        first = meter(1)
        again = first if first > 5 * SLOW else meter(1)  # the first call may compile
        repeats[name] = max(1, int(seconds / max(again, 1e-7)))
        if again > SLOW:
            repeats[name] = 0
    times: dict[Name, list[float]] = {name: [] for name in meters}
    for i in range(rounds):
        for name, meter in meters.items():
            if repeats[name] or i < SLOW_ROUNDS:
                _rest()
                if repeats[name] > 1:
                    meter(max(1, int(repeats[name] * WARM / seconds)))
                times[name].append(1e3 * meter(repeats[name] or 1))
    return times


def _rest() -> None:
    """Waits until this process's other threads are at rest."""
    until = time.perf_counter() + PATIENCE
    while time.perf_counter() < until:
        start = time.process_time()
        time.sleep(GLANCE)
        if time.process_time() - start < BUSY * GLANCE:
            return


def ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """The median of the quotients of the same rounds; a slow one has the first rounds only."""
    return statistics.median(a / b for a, b in zip(times, base, strict=False))


def summary(times: Sequence[float]) -> dict[str, float]:
    """The median and the interquartile range."""
    quarters = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return {"ms": statistics.median(times), "spread": quarters[2] - quarters[0]}
