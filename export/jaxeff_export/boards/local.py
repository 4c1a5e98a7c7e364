"""The board that is this very process."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jaxeff_export.boards.board import Board
from jaxeff_export.boards.threads import threads
from jaxeff_export.targets.target import missing_features, normalized_machine


class LocalBoard(Board):
    """Runs libraries in this process; there is nothing to connect to."""

    def __init__(self) -> None:
        self.name = "local"
        self.machine = normalized_machine(platform.machine())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to tear down."""

    @property
    def device(self) -> Any:
        """This machine's CPU."""
        import tvm

        return tvm.cpu()

    def load(self, library: Path) -> Any:
        """Loads the library into this process."""
        import tvm

        return tvm.runtime.load_module(str(library))

    def lacks(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """What the kernel of this machine does not report."""
        return missing_features(target)

    def threads(self, count: int) -> AbstractContextManager[int]:
        """As many of this process's, if it may use as many cores, and the environment allows."""
        return threads(count)
