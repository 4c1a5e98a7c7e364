"""Processors that TVM's runtime isn't there for, in software: whole programs run on them.

A call builds a program around a C library and runs it under qemu: a user's program on 32-bit ARM
and RISC-V, all that runs on a microcontroller. It is for correctness only: the time an emulator
takes says nothing about a processor, and timing on it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from jaxeff_export.boards._board import Board, BoardError
from jaxeff_export.boards._emulated import EmulatedBoard
from jaxeff_export.targets import (
    C_TARGETS,
    ToolchainError,
    emulation,
    find_c_toolchain,
    target_machine,
)

PROGRAM_CORES = tuple(C_TARGETS)

_UNITS = frozenset({"fp64", "neon", "d", "f", "c"})
"""LLVM's names of what code for one core may use and another of its kind may lack."""


class ProgramBoard(Board):
    """An emulated processor that runs whole programs.

    Args:
      core: one of `PROGRAM_CORES`.
    """

    untimed_because = EmulatedBoard.untimed_because

    def __init__(self, core: str) -> None:
        super().__init__()
        if core not in C_TARGETS:
            raise BoardError(f"no emulated core {core!r}; there are {', '.join(PROGRAM_CORES)}")
        self.core = core
        self.name = f"emulated:{core}"
        self.machine = target_machine(C_TARGETS[core])

    def __enter__(self) -> Self:
        # What running needs is looked for here, not only when a program was compiled.
        try:
            find_c_toolchain(C_TARGETS[self.core])
            emulation(self.core, C_TARGETS[self.core], Path("program"))
        except ToolchainError as error:
            raise BoardError(f"{self.name}: {error}") from error
        return self

    def __exit__(self, *failure: Any) -> None:
        """Does nothing: a program ends with its call."""

    @property
    def device(self) -> Any:
        """None of TVM's."""
        raise BoardError(f"{self.name} runs whole programs; TVM knows no device there")

    def load(self, library: Path) -> Any:
        """Refuses: there is nothing that a library could be loaded into."""
        raise BoardError(f"{self.name} runs whole programs and loads no library")

    def missing_features(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """Lists what code for another core of this architecture needs and this core lacks."""
        import tvm
        from tvm.target import codegen

        # Asked of LLVM: what a core has follows from its name as well as from attributes.
        def units(of: Mapping[str, Any]) -> frozenset[str]:
            features = codegen.llvm_get_cpu_features(tvm.target.Target(dict(of)))
            return _UNITS & {str(feature) for feature in features}

        return tuple(sorted(units(target) - units(C_TARGETS[self.core])))


def core_of(cpu: str | None) -> str | None:
    """Finds the core that LLVM's name of a processor stands for."""
    return next((name for name, target in C_TARGETS.items() if target["mcpu"] == cpu), None)
