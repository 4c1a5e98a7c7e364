"""Runs a library's example, on this machine or on another processor in software."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxeff_export.artifact import TensorSpec, dtype_of
from jaxeff_export.clib._library import CLibrary
from jaxeff_export.clib.codegen import record
from jaxeff_export.clib.objects import CLibraryError, call
from jaxeff_export.targets import emulation

RESULTS = "results.bin"
TIMEOUT = 600.0  # seconds; an emulator takes long for large networks


class ExampleProgram:
    """A library's example, built once, to be run on any arguments; `close` removes it.

    Args:
        library: library that the example belongs to.
        core: the processor that is emulated; None to run here.

    Raises:
        ToolchainError: if it can't be built, or the emulator is missing.
    """

    def __init__(self, library: CLibrary, core: str | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="jaxeff-replay-"))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        # A copy: the library may be gone later, and its recorded call is replaced here.
        # What packages add in folders has no part in the example.
        for entry in filter(Path.is_file, library.folder.iterdir()):
            (self._folder / entry.name).write_bytes(entry.read_bytes())
        # The example prints whether results agree; with this it also writes them out.
        self._build = [*library.build, f'-DREPLAY_FILE="{RESULTS}"', "-o", "program"]
        program = self._folder / "program"
        self._command = [str(program)]
        if core is not None:
            self._command = emulation(core, library.target, program)
        self._outputs = library.outputs
        self._recorded = (self._folder / "recorded.bin").read_bytes()
        self._built: bytes | None = None

    def run(self, inputs: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Calls the function once.

        Args:
            inputs: the arguments, flattened; by default the recorded ones.

        Returns:
            The results, flattened.

        Raises:
            CLibraryError: if the program fails, or hangs.
        """
        recorded = self._recorded
        # Inputs are first in the block, at the same places: the results after them stay.
        if inputs is not None:
            given = record(inputs, ()).blob
            recorded = given + recorded[len(given) :]
        # Arguments are linked into the program (`.incbin`): others take another build.
        if recorded != self._built:
            (self._folder / "recorded.bin").write_bytes(recorded)
            call(self._build, self._folder)
            self._built = recorded
        results = self._folder / RESULTS
        # Results of an earlier call must not pass for those of this one.
        results.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CLibraryError(f"the program did not end within {TIMEOUT:g} s") from error
        # The status says whether results are the recorded ones, which those of other arguments are
        # not: what counts is that they were written.
        if not results.exists():
            said = (done.stderr + done.stdout).strip().splitlines() or ["it said nothing"]
            raise CLibraryError(f"the program failed with status {done.returncode}: {said[-1]}")
        return _split(results.read_bytes(), self._outputs)


def _split(data: bytes, outputs: Sequence[TensorSpec]) -> list[np.ndarray]:
    arrays, at = [], 0
    for spec in outputs:
        shape, dtype = tuple(int(n) for n in spec.shape), dtype_of(spec.dtype)
        count = int(np.prod(shape, dtype=int))
        # Copied, so that a result doesn't keep all of the file, and can be written to.
        arrays.append(np.frombuffer(data, dtype, count, at).reshape(shape).copy())
        at += count * dtype.itemsize
    return arrays
