"""What all rooms share: how JAX computes in tests, drawn examples, the ARM tools.

*Strictly.* Tests of the rooms in `STRICT` run with strict dtype promotion and without rank
promotion, so that the library's own code says what it means; a function of a test, or of a third
party, that promotes says so: ``pytest.mark.promotes("dtype")``, ``("rank")`` or both.

*Compiled quickly.* In the rooms in `QUICK` XLA leaves most optimizations out: most tests compile
far longer than they compute. A module is marked ``optimized`` where it computes longer than it
compiles, or holds bits, or XLA's own results, against something else. The flag is no part of the
keys that JAX keeps programs under in a process (it is part of those on disk), so it changes between
modules only, and drops all of them where it does. They are dropped too where a worker has grown
past `MEMORY`, and kept otherwise: hundreds of small ones are the same in every module.

*Compiled once.* Compiled programs, the smallest too, are kept on disk for the other workers and the
next run: reading one takes a fifth of the time. ``JAX_COMPILATION_CACHE_DIR`` chooses the folder.

*In tiers*, by the markers and the CPU time of ``tests/tiers.py``.

*On one thread a worker*, of XLA and TVM, where pytest-xdist runs several.

*Repeatably.* Hypothesis draws the same examples in every run, unless JAXEFF_RANDOM_TESTS is set. A
landing must not depend on luck; searching for new examples is a run of its own:
`JAXEFF_RANDOM_TESTS=1 pytest tests/export`.

Where the ARM tools are missing, tests marked ``arm`` are skipped with the reason; with
``JAXEFF_REQUIRE_ARM=1`` (set where the tools ought to be installed) they fail instead, so that
nobody mistakes a skipped check for a passed one.
"""

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

# Before JAX and TVM start, and for processes that tests start: programs of any size are kept.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = os.environ.get("JAXEFF_CACHE") or Path(cache, "jaxeff")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(cache, "xla"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Of a flag said twice the last holds.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}"
    )
    os.environ.setdefault("TVM_NUM_THREADS", "1")

import jax
import psutil
import pytest
from hypothesis import settings

from tests.tiers import mark, pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]  # hooks

STRICT = {
    "analog_hardware",
    "compression",
    "data",
    "ensembles",
    "from_flax",
    "hardening",
    "nn",
    "noise",
    "photonics",
    "program",
    "pruning",
    "robustness",
    "search",
    "store",
    "test_keys.py",
    "test_laws.py",
    "training",
    "uncertainty",
    "weights",
}
"""Rooms that run strictly; a room is added once its tests say what they promote. Left out: `bayes`,
since NumPyro and BlackJAX promote nearly everywhere, `moment_propagation`, whose tests don't say so
yet, and what runs whole programs of a user (`documents`, `experiments`, `export`)."""

QUICK = STRICT | {"bayes", "documents", "experiments", "moment_propagation", "processes"}
"""Rooms whose tests compile far longer than they compute."""

MEMORY = 4_500_000_000
"""Bytes of a worker above which it forgets its programs before the next module."""

# No deadline: a busy machine fails no test.
settings.register_profile(
    "ours", derandomize=not os.environ.get("JAXEFF_RANDOM_TESTS"), deadline=None
)
settings.load_profile("ours")

# Collecting makes hundreds of thousands of objects that stay, and JAX is told of every collection:
# a quarter of its time, until `pytest_collection_finish` freezes them.
gc.disable()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their fixtures and their number of cases."""
    mark(items)


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def _room(request: pytest.FixtureRequest) -> str:
    """The folder of tests that a test is in."""
    return request.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture(autouse=True, scope="module")
def _compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """XLA's effort for this module, and the memory that compiled programs take."""
    quick = _room(request) in QUICK and not request.node.get_closest_marker("optimized")
    grown = psutil.Process().memory_info().rss > MEMORY
    if grown or quick != jax.config.read("jax_disable_most_optimizations"):
        jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", quick)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", str(int(quick)))  # of processes it starts
        yield


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """The environment as it was, whatever a test sets: processes of later tests inherit it.

    A bundle's device script asks for TVM's runtime alone, for one; with that left behind, every
    later process of the same worker would have no compiler.
    """
    before = dict(os.environ)
    yield
    kept_by_pytest = {"PYTEST_CURRENT_TEST"}
    for name in os.environ.keys() - before.keys() - kept_by_pytest:
        del os.environ[name]
    for name in before.keys() - kept_by_pytest:
        if os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(autouse=True)
def _strictness(request: pytest.FixtureRequest) -> Iterator[None]:
    """No promotion but that which a test is marked to do."""
    if _room(request) not in STRICT:
        yield
        return
    promoted = {what for mark in request.node.iter_markers("promotes") for what in mark.args}
    if promoted - {"dtype", "rank"}:
        raise ValueError(f"a test promotes 'dtype' or 'rank', not {sorted(promoted)}")
    with contextlib.ExitStack() as stack:
        if "dtype" not in promoted:
            stack.enter_context(jax.numpy_dtype_promotion("strict"))
        if "rank" not in promoted:
            stack.enter_context(jax.numpy_rank_promotion("raise"))
        yield


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("JAXEFF_REQUIRE_ARM") == "1":
        pytest.fail(f"JAXEFF_REQUIRE_ARM=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def arm_linker() -> str:
    """The aarch64 cross linker, or a skip."""
    from jaxeff_export.targets import ToolchainError, find_linker, resolve_target

    try:
        return find_linker(resolve_target("cortex-a72"))
    except ToolchainError as error:
        _unavailable(str(error))


@pytest.fixture(scope="session")
def emulator() -> None:
    """A prepared emulated board, or a skip."""
    from jaxeff_export.boards import BoardError, emulated
    from jaxeff_export.targets import ToolchainError, find_emulator

    try:
        find_emulator()
        emulated.prepare(progress=None)
    except (ToolchainError, BoardError) as error:
        _unavailable(str(error))
