"""Interface of boards: places that take a compiled library and run it.

A board is a context manager. Entering it connects, and starts an emulator or server if need be;
leaving it ends both. Between the two, `load` returns the library as a TVM module that lives on the
board, whose functions run there.

A library that uses an instruction the processor lacks does not fail, it kills the session, and
TVM's RPC server does not recover from that. So a remote board's kernel is asked beforehand: a file
of it, the CPU's modalias, lists the features. One of another architecture than the library's (an
emulator's host) is no evidence either way.
"""

import abc
import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from jaxeff_export.targets import kernel_features, target_machine

_T = TypeVar("_T")


class BoardError(RuntimeError):
    """A board cannot be set up, refuses, hangs, is lost, or fails to run a library."""


class BoardLost(BoardError):
    """A board whose connection ended; another attempt may succeed."""


class Board(abc.ABC):
    """A place to run compiled libraries.

    Attributes:
      name: name that the board was requested by, for messages and results.
      machine: the processor architecture (``"x86_64"``, ``"aarch64"``), or None if unknown.
      untimed_because: why its timings mean nothing, or None if they mean something.
      takes_copies: whether a call works on copies of the arrays that it is given.
      attempts: number of tries of a call in all when the connection to the board is lost.
      turn: held during a call. By default calls of several threads take turns: they share a
        session, which one of them may have to open again.
      profiling: held while operators are timed.
    """

    name: str
    machine: str | None = None
    untimed_because: str | None = None
    takes_copies: bool = False
    attempts: int = 1

    def __init__(self) -> None:
        self.turn: contextlib.AbstractContextManager[Any] = threading.RLock()
        self.profiling: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    @abc.abstractmethod
    def __enter__(self) -> Self:
        """Connects; raises `BoardError` if that fails, leaving nothing behind."""

    @abc.abstractmethod
    def __exit__(self, *failure: Any) -> None:
        """Disconnects and removes whatever was put on the board."""

    @property
    @abc.abstractmethod
    def device(self) -> Any:
        """The TVM device that tensors are copied to."""

    @abc.abstractmethod
    def load(self, library: Path) -> Any:
        """Copies a library to the board and loads it there: a ``tvm.runtime.Module``."""

    def missing_features(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """Lists CPU features that code for `target` may use and the board is known not to have."""
        return ()

    def call(self, count: int, action: Callable[[], _T]) -> _T:
        """Runs an action that calls libraries, on `count` threads where this process decides.

        The threads of a remote board are chosen by its server.
        """
        return action()

    def reconnect(self) -> None:
        """Connects again after the connection was lost.

        Raises:
          BoardLost: if that fails; it may be tried again.
        """
        raise BoardLost(f"{self.name} does not reconnect")

    def failure(self, error: Exception, started: float) -> BoardError:
        """Interprets a failed call.

        Args:
          error: what the call raised.
          started: when it began, by ``time.monotonic``.

        Returns:
          `BoardLost` where another attempt on a new connection makes sense, else `BoardError`.
        """
        return BoardError(self.explain(error))

    def explain(self, error: Exception) -> str:
        """Explains in one sentence why a call on the board failed."""
        # TVM's messages may begin with a stack trace; the reason is the last line.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"


MODALIAS = "/sys/devices/system/cpu/modalias"

# Numbers of features as Linux counts them: bits of HWCAP on ARM, 32 × word + bit on x86.
_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "aarch64": {"asimd": 1, "atomics": 8, "asimdhp": 10, "asimddp": 20, "sve": 22},
    "x86_64": {
        "fma": 0x8C,
        "sse4_2": 0x94,
        "avx": 0x9C,
        "f16c": 0x9D,
        "bmi1": 0x123,
        "avx2": 0x125,
        "bmi2": 0x128,
        "avx512f": 0x130,
        "avx512dq": 0x131,
        "avx512ifma": 0x135,
        "avx512cd": 0x13C,
        "avx512bw": 0x13E,
        "avx512vl": 0x13F,
        "avx_vnni": 0x184,
        "avx512_bf16": 0x185,
        "avx512vbmi": 0x201,
        "avx512_vnni": 0x20B,
        "avx512_fp16": 0x257,
        "amx_tile": 0x258,
    },
}


def lacking(modalias: str, target: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the features, as the kernel names them, that `target` uses and a processor lacks.

    `modalias` is the content of `MODALIAS` on the board, such as
    ``cpu:type:aarch64:feature:,0000,0001``; the list is empty where it says nothing about this
    target.
    """
    # Neither the end of the line nor padding is part of the last number.
    kind, _, features = modalias.rstrip("\0\n").partition(":feature:")
    machine = target_machine(target)
    spoken_of = {"x86": "x86_64"}.get(_type_of(kind), _type_of(kind))
    # Of another architecture (an emulator's host), or without a list: no evidence.
    if spoken_of != machine or not features:
        return ()
    present = {int(number, 16) for number in features.split(",") if number}
    numbers = _NUMBERS.get(machine, {})
    # A feature without a number here isn't judged, rather than refused by mistake.
    return tuple(
        name for name in kernel_features(target) if name in numbers and numbers[name] not in present
    )


def _type_of(kind: str) -> str:
    """Extracts ``aarch64`` of ``cpu:type:aarch64``, ``x86`` of ``cpu:type:x86,ven0002``."""
    return kind.removeprefix("cpu:type:").split(",")[0]
