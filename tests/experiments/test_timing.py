"""Turns of a timing: each begins when the threads of the one before are at rest."""

import time

from experiments import timing


def test_a_turn_waits_for_threads_that_wait_actively(monkeypatch):
    spent = iter([0.0, 0.002, 0.002, 0.004, 0.004, 0.00401])  # two glances at busy threads, a third
    slept: list[float] = []
    monkeypatch.setattr(time, "process_time", lambda: next(spent))
    monkeypatch.setattr(time, "sleep", slept.append)
    timing._rest()
    assert slept == [timing.GLANCE] * 3


def test_threads_that_never_rest_are_not_waited_for_forever(monkeypatch):
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    timing._rest()
    assert timing.PATIENCE <= clock[0] < 2 * timing.PATIENCE


def test_a_turn_wakes_its_own_threads_before_it_counts():
    calls: list[tuple[str, int]] = []

    def meter(name: str, seconds: float):
        def run(repeats: int) -> float:
            calls.append((name, repeats))
            return seconds

        return run

    times = timing.measure_rounds(
        {"fast": meter("fast", 0.01), "slow": meter("slow", 0.1)}, 2, 0.03
    )
    assert times == {"fast": [10.0, 10.0], "slow": [100.0, 100.0]}
    turns = [("fast", 1), ("fast", 3), ("slow", 1)]
    assert calls[4:] == turns * 2
