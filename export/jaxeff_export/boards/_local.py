"""Board that is this process itself."""

import contextlib
import platform
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from jaxeff_export.boards._board import Board
from jaxeff_export.runtime import load_library, run_on_threads
from jaxeff_export.targets import missing_features, normalized_machine

_T = TypeVar("_T")

_PROFILING = threading.Lock()
"""Held while profiling: TVM knows an instrument by a name, one for all libraries of a process."""


class LocalBoard(Board):
    """Runs libraries in this process; there is nothing to connect to."""

    def __init__(self) -> None:
        super().__init__()
        # Nothing to share but cores, of which `run_on_threads` takes care.
        self.turn, self.profiling = contextlib.nullcontext(), _PROFILING
        self.name = "local"
        self.machine = normalized_machine(platform.machine())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        """Does nothing: there is nothing to tear down."""

    @property
    def device(self) -> Any:
        """This machine's CPU."""
        import tvm

        return tvm.cpu()

    def load(self, library: Path) -> Any:
        """Loads the library into this process."""
        return load_library(library)

    def missing_features(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """Lists what the kernel of this machine does not report."""
        return missing_features(target)

    def call(self, count: int, action: Callable[[], _T]) -> _T:
        """Runs an action on as many threads as are asked for, may be used, and are allowed."""
        return run_on_threads(count, action)
