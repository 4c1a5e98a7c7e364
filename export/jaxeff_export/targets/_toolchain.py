"""The programs outside Python that building and emulating need: linkers and the emulator.

Compiling needs only TVM's own LLVM; *linking* the library needs a C compiler for the target's
architecture, and running an ARM library on another machine needs qemu's user-mode emulator. Each
one that is missing is an error that says what to install.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from typing import Any

from jaxeff_export.targets._target import (
    is_microcontroller,
    normalized_machine,
    target_machine,
)

_LINKERS = {
    "aarch64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    "x86_64": ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
    "armv7a": ("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf"),
    "riscv64": ("riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu"),
    # The compiler of both widths; the C library beside it has 32 bits too.
    "riscv32": (
        "riscv64-unknown-elf-gcc",
        "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
    ),
}
_MICROCONTROLLERS = ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
"""Of every architecture whose name begins with thumb."""
SYSTEM_EMULATORS = {
    "thumb": ("qemu-system-arm", "qemu-system-arm"),
    "riscv": ("qemu-system-riscv32", "qemu-system-misc"),
}
"""Emulators of whole boards and Debian's packages of them, by the first letters of an architecture
that has no operating system."""


class ToolchainError(RuntimeError):
    """A compiler, linker or emulator that the work needs is not installed."""


def find_linker(target: Mapping[str, Any]) -> str:
    """Finds the command that links a shared library for `target`.

    Args:
      target: a TVM target dict.

    Returns:
      A C compiler for this machine where the architectures agree, else the cross compiler.

    Raises:
      ToolchainError: if there is none, naming the Debian package that holds it.
    """
    machine = target_machine(target)
    # Of this architecture any compiler will do: no cross compiler has to be installed.
    if machine == normalized_machine(platform.machine()):
        for command in ("cc", "gcc", "clang", "g++", "clang++"):
            if found := shutil.which(command):
                return found
        raise ToolchainError(
            "no C compiler found to link a library for this machine; "
            "install one (Debian, Ubuntu: apt-get install gcc)"
        )
    command, package = _cross_compiler(machine)
    if found := shutil.which(command):
        return found
    raise ToolchainError(
        f"{command} not found, which links libraries for {machine}; "
        f"install it (Debian, Ubuntu: apt-get install {package})"
    )


def packages(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the Debian packages with a C compiler for `target` and what emulates it.

    Args:
      target: a TVM target dict.
    """
    machine = target_machine(target)
    if machine == normalized_machine(platform.machine()):
        return ("gcc",)
    # User-mode emulation passes system calls on, which a microcontroller's programs don't make.
    emulator = SYSTEM_EMULATORS[machine[:5]][1] if is_microcontroller(machine) else "qemu-user"
    return (*_cross_compiler(machine)[1].split(), emulator)


def _cross_compiler(machine: str) -> tuple[str, str]:
    """Names the C compiler of another architecture, and the packages that it is in."""
    if machine.startswith("thumb"):
        return _MICROCONTROLLERS
    if machine not in _LINKERS:
        raise ToolchainError(f"no linker is known for {machine}; known: {', '.join(_LINKERS)}")
    return _LINKERS[machine]


def find_emulator(machine: str = "aarch64") -> str:
    """Finds qemu's user-mode emulator for `machine`.

    Raises:
      ToolchainError: if it is not installed, naming the Debian package that holds it.
    """
    # Of Debian's packages qemu-user has the first, qemu-user-static the second.
    for command in (f"qemu-{machine}", f"qemu-{machine}-static"):
        if found := shutil.which(command):
            return found
    raise ToolchainError(
        f"qemu-{machine} not found, which runs {machine} programs on this machine; "
        "install it (Debian, Ubuntu: apt-get install qemu-user)"
    )


def find_modeller(name: str, package: str) -> str:
    """Finds a program that models kernels.

    Raises:
      ToolchainError: if it isn't installed.
    """
    if found := shutil.which(name):
        return found
    raise ToolchainError(
        f"{name} not found, which models kernels; install it (Debian, Ubuntu: apt-get install "
        f"{package})"
    )
