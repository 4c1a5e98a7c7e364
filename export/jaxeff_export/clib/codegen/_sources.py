"""Data that a library's C text is written from: kernels, buffers and types."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxeff_export.clib.codegen._interface import Field

if TYPE_CHECKING:
    import numpy as np

    from jaxeff_export.clib.codegen._parameters import Parameters
    from jaxeff_export.clib.kernels import CKernel, KernelProgram, Memory


CODES = {"OK": 0, "WORKSPACE_TOO_SMALL": 1, "MISALIGNED": 2, "NULL_POINTER": 3}
"""Codes that each call may return; others have numbers of their own, the same in all libraries."""


@dataclasses.dataclass(frozen=True)
class Library:
    """All that a library's C is written from.

    Attributes:
        name: prefix of the names in C.
        made_for: the processor, in words.
        inputs: what a call takes.
        outputs: what it fills.
        program: what it does.
        kernels: kernels that it calls.
        memory: plan of the workspace.
        parameters: what is bound, and the constants.
        embedded: whether these are part of the archive.
        threads: the most threads that may share a loop.
        rounds_inputs: whether arguments are rounded to codes, and looked through for NaN before.
        initial: what each array of state begins with.
    """

    name: str
    made_for: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    program: KernelProgram
    kernels: Mapping[str, CKernel]
    memory: Memory
    parameters: Parameters
    embedded: bool = True
    threads: int = 1
    rounds_inputs: bool = False
    initial: Sequence[np.ndarray] = ()

    @property
    def given(self) -> tuple[Field, ...]:
        """The arguments that a call is given: those that are no state."""
        return tuple(field for field in self.inputs if not field.kept)

    @property
    def returned(self) -> tuple[Field, ...]:
        """The results that a call returns: those that are no state."""
        return tuple(field for field in self.outputs if not field.kept)

    @property
    def state(self) -> tuple[Field, ...]:
        """The arrays that calls update."""
        return tuple(field for field in self.inputs if field.kept)

    @property
    def upper(self) -> str:
        """The name as macros have it."""
        return self.name.upper()

    @property
    def stack(self) -> int:
        """Bytes of arrays that the kernel with most of them keeps on the stack."""
        return max((k.stack for k in self.kernels.values()), default=0)

    @property
    def refuses_nan(self) -> bool:
        """Whether arguments are rounded to codes, and some of them may be NaN."""
        whole = ("bool", "int", "uint")  # these have no NaN
        return self.rounds_inputs and any(
            f.count and not f.spec.dtype.startswith(whole) for f in self.given
        )

    @property
    def codes(self) -> Mapping[str, int]:
        """Codes that a call may return."""
        # Numbers are the same in all libraries, also where some of them can't occur.
        threads = {"NO_THREADS": 4} if self.threads > 1 else {}
        numbers = {"NOT_A_NUMBER": 5} if self.refuses_nan else {}
        return CODES | threads | numbers
