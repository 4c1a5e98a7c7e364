"""A case as a C library: written, compiled and run on this machine."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm
from jaxeff_export.artifact import TensorSpec
from jaxeff_export.clib import ExampleProgram, LibraryParts, write_library
from jaxeff_export.targets import resolve_target


class CRun:
    """A program's C library, built with the arguments it is run on.

    Args:
        module: what was imported.
        arguments: what it takes.
        expected: results of the right shapes and dtypes.

    Raises:
        CLibraryError: if it can't be one.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        arguments: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
    ):
        order = LibraryParts(
            name="program",
            target_name="host",
            target=resolve_target("host"),
            module=module,
            operands=(),
            inputs=_specs("x", arguments),
            outputs=_specs("y", expected),
            arguments=arguments,
            expected=expected,
            tolerances=[0.0] * len(expected),
        )
        with tempfile.TemporaryDirectory(prefix="jaxeff-c-") as home:
            self._program = ExampleProgram(write_library(order, Path(home) / "program"), None)

    def results(self) -> list[np.ndarray]:
        """What a call fills."""
        return self._program.run()


def _specs(name: str, arrays: Sequence[np.ndarray]) -> list[TensorSpec]:
    return [TensorSpec(f"{name}{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
