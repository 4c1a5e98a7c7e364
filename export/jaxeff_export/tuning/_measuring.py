"""Builds candidates and times them on a board, after checking their results.

Builders and the local runner are MetaSchedule's: processes of their own, so that a candidate that
crashes TVM or hangs takes nothing along; an interrupt waits until TVM has returned.

TVM miscompiles some vectorised forms silently, so every candidate is held against the plain loops
of the kernel, NaN included, before its time counts.
"""

import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule

from jaxeff_export.boards import Board, BoardLost
from jaxeff_export.bundle import NamedTarget
from jaxeff_export.compiler import UnscheduledKernel, compilation_target, ready_to_lower

_MILLISECONDS = 10  # one repetition lasts at least that
_REPEAT = 3

Draw = tuple[list[np.ndarray], dict[int, np.ndarray]]  # arguments, and the expected outputs


class CandidateError(RuntimeError):
    """Raised for a candidate that fails, or computes something else than the kernel."""


def timed(module: Any, device: Any, draws: Sequence[Draw]) -> float:
    """Checks a built kernel on every draw, and times it on the first."""
    put = [
        [tvm.runtime.tensor(array, device=device) for array in arguments] for arguments, _ in draws
    ]
    # Checked before it is timed: a wrong candidate must not enter the database as fast.
    for tensors, (_, expected) in zip(put, draws, strict=True):
        module["main"](*tensors)
        for index, value in expected.items():
            _require_close(tensors[index].numpy(), value)
    timer = module.time_evaluator(
        "main", device, number=1, repeat=_REPEAT, min_repeat_ms=_MILLISECONDS
    )
    return float(min(timer(*put[0]).results))  # of the repetition that was disturbed least


def _require_close(computed: np.ndarray, expected: np.ndarray) -> None:
    if not np.issubdtype(expected.dtype, np.bool_) and not _is_integer(expected.dtype):
        # Differences in double precision, so that the comparison adds no rounding of its own.
        wide = np.complex128 if np.iscomplexobj(expected) else np.float64
        epsilon = float(ml_dtypes.finfo(expected.dtype).eps)
        computed, expected = computed.astype(wide), expected.astype(wide)
        finite = np.abs(expected[np.isfinite(expected)])
        # A sum of a thousand terms, reordered; narrower types round at every store.
        tolerance = min(1000 * epsilon, 0.05) * float(finite.max(initial=0.0))
        close = np.allclose(computed, expected, rtol=0.0, atol=tolerance, equal_nan=True)
    else:
        close = np.array_equal(computed, expected)
    if not close:
        raise CandidateError("it computes something else than plain loops do")


def _is_integer(dtype: np.dtype) -> bool:
    return np.issubdtype(dtype, np.integer) or "int" in dtype.name


def entry_module(mod: tvm.IRModule) -> tvm.IRModule:
    """Makes a module to compile of a kernel, scheduled or not; its one function is ``main``."""
    function = mod["main"].with_attr("global_symbol", "main")
    return ready_to_lower(tvm.IRModule({"main": function}))


def draws_of(kernel: UnscheduledKernel) -> list[Draw]:
    """Draws arguments of two kinds, positive and of any sign, and computes expected outputs.

    Variances are positive; on numbers of any sign, roots and logarithms have to give NaN where the
    plain loops do.
    """
    # The plain loops, for TVM's generic CPU: neither schedules nor vectors that could be at fault.
    plain = tvm.compile(
        entry_module(kernel.module), target=tvm.target.Target({"kind": "llvm"})
    ).jit()
    # A fixed seed: candidates of all sessions are checked and timed on the same numbers.
    rng = np.random.default_rng(0)
    draws = []
    for any_sign in (False, True):
        arguments = [_array(rng, parameter.ty, any_sign) for parameter in kernel.function.params]
        tensors = [tvm.runtime.tensor(array) for array in arguments]
        plain["main"](*tensors)
        draws.append((arguments, {index: tensors[index].numpy() for index in kernel.outputs}))
    return draws


def _array(rng: np.random.Generator, kind: Any, any_sign: bool) -> np.ndarray:
    shape = [int(n) for n in kind.shape]
    dtype = np.dtype(getattr(ml_dtypes, str(kind.dtype), None) or str(kind.dtype))
    if dtype == np.bool_ or _is_integer(dtype):
        return rng.integers(0, 2, shape).astype(dtype)  # an index that fits everywhere
    values = rng.standard_normal(shape) if any_sign else rng.uniform(0.1, 1.0, shape)
    return values.astype(dtype)


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block.

    TVM's runners and builders come back to Python from C++, which turns a ``KeyboardInterrupt``
    into an error without a name. Their processes get the signal too, so the wait is short.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt


_TIMEOUT = 30.0  # seconds for one build, and for one measurement
ARGUMENTS = "arguments.pickle"


class Bench:
    """Builds and measures schedules of one kernel after another.

    Attributes:
      reason: why the last candidate that failed did so.

    Args:
      target: the target that kernels are compiled for.
      board: an open board; candidates run on it, those for ``local`` in a process of their own.
      workspace: a folder for libraries and arguments.
    """

    def __init__(self, target: NamedTarget, board: Board, workspace: Path) -> None:
        self._target = compilation_target(target.settings)
        self.reason = ""
        self._workspace = workspace
        self._builder = _builder(target.linker, workspace)
        cores = int(target.settings.get("num-cores", 1))
        self._time = (
            local_timer(workspace, cores)
            if board.name == "local"
            else remote_timer(board, workspace)
        )

    def take(self, kernel: UnscheduledKernel) -> None:
        """Prepares a kernel's measurements: draws arguments and computes the expected outputs."""
        draws = draws_of(kernel)
        # A file serves processes that are started anew, without sending arrays each time.
        (self._workspace / ARGUMENTS).write_bytes(pickle.dumps(draws))

    def build(self, schedules: Sequence[Schedule]) -> list[Path | None]:
        """Builds a library of each schedule, None where TVM fails."""
        inputs = [
            ms.builder.BuilderInput(entry_module(schedule.mod), self._target)
            for schedule in schedules
        ]
        with held_interrupts():
            results = self._builder.build(inputs)
        self._note([result.error_msg for result in results])
        return [Path(str(r.artifact_path)) if r.artifact_path else None for r in results]

    def seconds(self, library: Path | None) -> float | None:
        """Times one call; None if the library could not be built, fails, or computes wrongly."""
        if library is None:
            return None
        try:
            with held_interrupts():
                return self._time(library)
        except CandidateError as error:
            self._note([str(error)])
            return None

    def _note(self, reasons: Sequence[str | None]) -> None:
        for reason in filter(None, reasons):
            self.reason = reason.strip().splitlines()[-1]


def _builder(linker: str, workspace: Path) -> ms.builder.LocalBuilder:
    """Makes MetaSchedule's builder; the functions that its processes run are sent by value."""

    def build(mod: tvm.IRModule, target: tvm.target.Target, _: object) -> Any:
        with tvm.transform.PassContext(opt_level=3):
            return tvm.compile(mod, target=target)

    def export(built: Any) -> str:
        # A name of its own: a process does not read a library again that it has loaded.
        path = workspace / f"{uuid.uuid4().hex}.so"
        built.export_library(str(path), cc=linker)
        return str(path)

    # Building in parallel is safe: nothing is timed meanwhile.
    workers = os.cpu_count() or 1
    return ms.builder.LocalBuilder(
        max_workers=workers, timeout_sec=_TIMEOUT, f_build=build, f_export=export
    )


def local_timer(workspace: Path, cores: int) -> Callable[[Path], float]:
    """Makes a timer in a process, which TVM starts anew whenever a candidate takes it down."""

    def start() -> None:
        os.environ["TVM_NUM_THREADS"] = str(cores)  # read when the first kernel runs in parallel

    def arguments(device: Any, *_: object) -> list[Any]:
        return [pickle.loads((workspace / ARGUMENTS).read_bytes())]

    def run(module: Any, device: Any, _: object, repeated: list[Any]) -> list[float]:
        return [timed(module, device, repeated[0])]

    runner = ms.runner.LocalRunner(
        timeout_sec=_TIMEOUT, f_alloc_argument=arguments, f_run_evaluator=run, initializer=start
    )

    def seconds(library: Path) -> float:
        (future,) = runner.run([ms.runner.RunnerInput(str(library), "cpu", [])])
        result = future.result()
        if not result.run_secs:
            raise CandidateError(str(result.error_msg))
        return float(result.run_secs[0])

    return seconds


def remote_timer(board: Board, workspace: Path) -> Callable[[Path], float]:
    """Makes a timer on a board, where a crash ends the session and no more."""

    def attempt(library: Path) -> float:
        started = time.monotonic()
        draws = pickle.loads((workspace / ARGUMENTS).read_bytes())
        try:
            return timed(board.load(library), board.device, draws)
        except CandidateError:
            raise
        except Exception as error:
            failure = board.failure(error, started)
            if isinstance(failure, BoardLost):
                raise failure from error
            raise CandidateError(str(failure)) from error

    def seconds(library: Path) -> float:
        try:
            return attempt(library)
        except BoardLost:
            board.reconnect()  # a board that is gone for good ends the tuning here
        try:
            return attempt(library)
        except BoardLost as error:  # twice is the candidate's fault
            board.reconnect()
            raise CandidateError(str(error)) from error

    return seconds
