"""The tiers of the tests, and the CPU seconds that decide them.

Tests without a marker of `MARKERS` are the default tier: ``addopts`` in ``pyproject.toml`` leaves
the others out, ``pytest -m ""`` runs everything. What takes more CPU time than its tier allows is
listed at the end of a run, and passes: on a busy machine the same test takes several times as long.
``--cpu-limit FACTOR`` makes it fail above that many times the limit, and lists the rooms at the
end: their tests, CPU seconds and compilations. `.ci/run` asks for it; `--cpu-times` lists them too.
``--minutes M`` begins no test outside the default tier once so many minutes are over, and says how
many that were: with an empty cache of compiled programs a machine may take twice as long as CI has.
``--at-most M`` begins none at all then.
"""

import contextlib
import json
import math
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, process_time

import jax
import pytest

MARKERS = frozenset({"slow", "process", "arm", "oracle", "document"})
"""Markers of tests outside the default tier."""

FIXTURES = {
    "arm_linker": "arm",
    "emulator": "arm",
    "fleet": "process",
    "installed": "process",
    "resumed": "process",
    "searched": "slow",
    "server": "process",
    "server_process": "process",
    "wheel": "process",
}
"""Markers that a test has because it uses a fixture."""

CASES = 3
"""Cases of a parametrized test in the default tier, evenly spread; the others are ``slow``."""

MORE_CASES = {"bad_arguments": 12, "documents": 200, "structure": 50}
"""Rooms that have another number of cases: these are cheap, or the cases are all there is."""

LIMIT = 5.0
"""CPU seconds above which a test of the default tier is listed; 1 s is what it should stay below.

How long XLA compiles varies, and the first test of a process imports and traces what later ones
share. A test of any tier has another limit by the marker ``seconds(limit)``.
"""

_PROPERTY = (
    "seconds_of_cpu_and_limit"  # of a test's reports, which pytest-xdist brings to the controller
)

_COSTS = "cpu_seconds_and_compilations"
_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event of a program that it asks XLA for, or finds compiled on disk."""

_setup = pytest.StashKey[tuple[float, int]]()


def mark(items: list[pytest.Item]) -> None:
    """Gives tests the markers that follow from their fixtures and their number of cases."""
    root = Path(__file__).parent
    tests = [(item.path, getattr(item, "originalname", item.name)) for item in items]
    total, seen = Counter(tests), Counter[tuple[Path, str]]()
    for item, test in zip(items, tests, strict=True):
        for name in FIXTURES.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(FIXTURES[name])
        count = MORE_CASES.get(test[0].relative_to(root).parts[0], CASES)
        index = seen[test]
        seen[test] += 1
        # Of n cases the first is in the default tier, and those where floor(i count / n) increases.
        if index and index * count // total[test] == (index - 1) * count // total[test]:
            item.add_marker("slow")


def _cpu_seconds() -> float:
    """Sums the CPU time of this process and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Bound at import: a test may put a clock of its own in the place of `time.process_time`.
    return process_time() + children.ru_utime + children.ru_stime


def _limit(item: pytest.Item) -> float:
    """CPU seconds that a test may take: its own, or those of its tier."""
    stated = item.get_closest_marker("seconds")
    if stated is not None:
        return float(stated.args[0])
    return math.inf if MARKERS & {mark.name for mark in item.iter_markers()} else LIMIT


class CpuTimes:
    """Times every test by CPU, so that waiting for other processes counts for nothing.

    All threads of the worker count, and the processes that a test started and waited for. Programs
    count where the worker compiles them, those that it reads from disk like others, so that the
    number is the same whatever is kept there.

    Args:
        path: file that gets a line of JSON per test, with the seconds of its fixtures (``setup``),
            its own (``call``) and the compilations of both; none where ``None``
        factor: times the limit of a test above which it fails; none does where ``None``.
    """

    def __init__(self, path: Path | None, factor: float | None = None) -> None:
        self.path, self.factor = path, math.inf if factor is None else factor
        self.unwritten = ""
        self.compiled = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, duration_secs: float, **_: str | int) -> None:
        """Counts a compilation: a listener of JAX's events."""
        del duration_secs
        self.compiled += event == _COMPILED

    def _write(self, line: str) -> None:
        """Writes a line, or keeps it for the next time: a test may have made files impossible."""
        assert self.path is not None
        self.unwritten += line
        with contextlib.suppress(OSError), self.path.open("a") as file:
            file.write(self.unwritten)  # lines are short: workers share the file
            file.flush()
            self.unwritten = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Times the fixtures; the limit leaves them out, since later tests may share them."""
        start, compiled = _cpu_seconds(), self.compiled
        yield
        item.stash[_setup] = _cpu_seconds() - start, self.compiled - compiled

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Times the test itself, and fails it where that was asked for."""
        start, compiled = _cpu_seconds(), self.compiled
        try:
            yield
        finally:
            spent = _cpu_seconds() - start
            setup, programs = item.stash[_setup]
            programs += self.compiled - compiled
            item.user_properties.append((_COSTS, (setup + spent, programs)))
            if self.path is not None:
                times = {"setup": round(setup, 3), "call": round(spent, 3)}
                line = {"test": item.nodeid, **times, "compilations": programs}
                self._write(json.dumps(line) + "\n")
            limit = _limit(item)
            if spent > limit:
                item.user_properties.append((_PROPERTY, (spent, limit)))
        if spent > self.factor * limit:
            pytest.fail(
                f"took {spent:.1f} s of CPU, more than {self.factor:g} times its limit of "
                f"{limit:g} s: make it smaller, or mark it slow (CONTRIBUTING.md, Tests)",
                pytrace=False,
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Lists the tests above their limits, the slowest first, and the rooms where asked for."""
        reports = [
            report
            for reports in terminalreporter.stats.values()
            for report in reports
            if getattr(report, "when", None) == "call"
        ]
        properties = [(report.nodeid, dict(report.user_properties)) for report in reports]
        above = [(*known[_PROPERTY], test) for test, known in properties if _PROPERTY in known]
        if above:
            terminalreporter.section("above their limits of CPU time")
            for spent, limit, test in sorted(above, reverse=True):
                terminalreporter.line(f"{spent:.1f} s (limit {limit:g} s) {test}")
        rooms = defaultdict[str, list[tuple[float, int]]](list)
        for test, known in properties:
            if _COSTS in known:
                rooms["/".join(test.partition("::")[0].split("/")[:2])].append(known[_COSTS])
        if rooms and not (self.path is None and math.isinf(self.factor)):
            terminalreporter.section("CPU seconds and compilations by room")
            every = [cost for costs in rooms.values() for cost in costs]
            for room, costs in [*sorted(rooms.items()), ("all", every)]:
                seconds, programs = (sum(column) for column in zip(*costs, strict=True))
                terminalreporter.line(
                    f"{room}: {len(costs)} tests, {seconds:.1f} s, {programs} compilations, "
                    f"{programs / len(costs):.1f} a test"
                )


class TimeLimit:
    """Skips what isn't in the default tier once a run's time is over, and says so.

    Args:
        minutes: Minutes from now.
        every: Whether the default tier is skipped, too.
    """

    def __init__(self, minutes: float, every: bool = False) -> None:
        self.end = monotonic() + 60 * minutes
        self.every = every
        self.reason = f"not run: the {minutes:g} minutes of this run are over"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skips a test that is too late."""
        outside = MARKERS & {mark.name for mark in item.iter_markers()}
        if monotonic() > self.end and (self.every or outside):
            pytest.skip(self.reason)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Counts what wasn't run."""
        skipped = terminalreporter.stats.get("skipped", [])
        late = sum(self.reason in str(report.longrepr) for report in skipped)
        if late:
            which = "tests" if self.every else "tests outside the default tier"
            terminalreporter.section(f"{late} {which} were {self.reason}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offers the record of CPU times, and their limit."""
    parser.addoption("--cpu-times", type=Path, metavar="FILE", help="gets CPU seconds")
    parser.addoption(
        "--cpu-limit", type=float, metavar="FACTOR",
        help="fail tests that take more CPU time than this many times their limit",
    )  # fmt: skip
    parser.addoption(
        "--minutes", type=float, metavar="MINUTES",
        help="begin no test outside the default tier once so many minutes are over",
    )  # fmt: skip
    parser.addoption(
        "--at-most", type=float, metavar="MINUTES",
        help="begin no test at all once so many minutes are over",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Times every test, by CPU."""
    times = CpuTimes(config.getoption("cpu_times"), config.getoption("cpu_limit"))
    config.pluginmanager.register(times, "cpu_times")
    if (minutes := config.getoption("minutes")) is not None:
        config.pluginmanager.register(TimeLimit(minutes), "time_limit")
    if (minutes := config.getoption("at_most")) is not None:
        config.pluginmanager.register(TimeLimit(minutes, every=True), "time_limit_of_all")
