"""A bundle on a processor that runs whole programs: exported to C, built, run under an emulator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxeff_export.boards import BoardError, ProgramBoard
from jaxeff_export.bundle.files import BundleError, Manifest, RecordedPair
from jaxeff_export.bundle.running._runner import Runner
from jaxeff_export.bundle.running._session import Session
from jaxeff_export.bundle.running._state_memory import HostMemory, StateMemory
from jaxeff_export.clib import CLibrary, CLibraryError, ExampleProgram
from jaxeff_export.targets import ToolchainError


class ProgramRunner(Runner):
    """Calls a C library, each call in a process of its own.

    Args:
      manifest: the bundle's.
      library: the bundle's C library; its folder is not needed any more afterwards.
      recorded: pairs that the self-check replays.
      board: what it runs on.
      treedef: the exact structure of results, where this process knows it.

    """

    def __init__(
        self,
        manifest: Manifest,
        library: CLibrary,
        recorded: Sequence[RecordedPair],
        board: ProgramBoard,
        treedef: Any = None,
    ) -> None:
        self._keep(manifest, recorded, board, treedef)
        self._program = ExampleProgram(library, board.core)
        self._turn = threading.Lock()

    def close(self) -> None:
        """Removes the program."""
        self._program.close()

    def _memory(self, shared: Session | None) -> StateMemory:
        if shared is not None:
            raise BundleError(f"{self._board.name} shares no state between bundles")
        return HostMemory(self._call, self._recorded[0].inputs, self._manifest)

    def _call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        try:
            with self._turn:  # arguments are written into the program's one folder
                return self._program.run(leaves)
        except (CLibraryError, ToolchainError) as error:
            raise BoardError(f"{self._board.name} could not run the library: {error}") from error
