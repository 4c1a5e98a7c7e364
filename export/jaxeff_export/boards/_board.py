"""Interface of boards: places that take a compiled library and run it.

A board is a context manager. Entering it connects, and starts an emulator or server if need be;
leaving it ends both. Between the two, `load` returns the library as a TVM module that lives on the
board, whose functions run there.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

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
