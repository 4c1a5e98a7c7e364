"""The programs outside Python that building and emulating need: compilers, linkers, emulators.

Compiling needs only TVM's own LLVM; *linking* the library needs a C compiler for the target's
architecture, and running an ARM library on another machine needs qemu's user-mode emulator. Each
one that is missing is an error that says what to install. C libraries are compiled by a
`CToolchain`: the command and the flags of a processor; `emulation` runs their programs here.
"""

import dataclasses
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxeff_export.targets import _target

_LINKERS = {
    "aarch64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    "x86_64": ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
    "armv7a": ("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf"),
    "riscv64": ("riscv64-linux-gnu-gcc", "gcc-riscv64-linux-gnu"),
    # The compiler of both widths; the C library beside it has 32 bits too.
    "riscv32": ("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"),
}
_ARM_COMPILER = ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
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
    machine = _target.target_machine(target)
    # Of this architecture any compiler will do: no cross compiler has to be installed.
    if machine == _target.normalized_machine(platform.machine()):
        for command in ("cc", "gcc", "clang", "g++", "clang++"):
            if path := shutil.which(command):
                return path
        raise ToolchainError(
            "no C compiler found to link a library for this machine; "
            "install one (Debian, Ubuntu: apt-get install gcc)"
        )
    command, package = _cross_compiler(machine)
    if path := shutil.which(command):
        return path
    raise ToolchainError(
        f"{command} not found, which links libraries for {machine}; "
        f"install it (Debian, Ubuntu: apt-get install {package})"
    )


def packages(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the Debian packages with a C compiler for `target` and what emulates it.

    Args:
      target: a TVM target dict.
    """
    machine = _target.target_machine(target)
    if machine == _target.normalized_machine(platform.machine()):
        return ("gcc",)
    # User-mode emulation passes system calls on, which a microcontroller's programs don't make.
    emulator = (
        SYSTEM_EMULATORS[machine[:5]][1] if _target.is_microcontroller(machine) else "qemu-user"
    )
    return (*_cross_compiler(machine)[1].split(), emulator)


def _cross_compiler(machine: str) -> tuple[str, str]:
    """Names the C compiler of another architecture, and the packages that it is in."""
    if machine.startswith("thumb"):
        return _ARM_COMPILER
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
        if path := shutil.which(command):
            return path
    raise ToolchainError(
        f"qemu-{machine} not found, which runs {machine} programs on this machine; "
        "install it (Debian, Ubuntu: apt-get install qemu-user)"
    )


def find_modeller(name: str, package: str) -> str:
    """Finds a program that models kernels.

    Raises:
      ToolchainError: if it isn't installed.
    """
    if path := shutil.which(name):
        return path
    raise ToolchainError(
        f"{name} not found, which models kernels; install it (Debian, Ubuntu: apt-get install "
        f"{package})"
    )


@dataclasses.dataclass(frozen=True)
class CToolchain:
    """Compiler, flags and tools that build C for a target.

    Attributes:
      compiler: the command.
      flags: what names the processor to it.
      board: board of a microcontroller; None where there is an operating system.
    """

    compiler: str
    flags: tuple[str, ...]
    board: _target.BoardMemory | None = None

    def tool(self, name: str) -> str:
        """Finds one of the compiler's companions: ``ar``, ``nm``, ``size``, ``objcopy``.

        Raises:
          ToolchainError: if it is missing.
        """
        # `arm-none-eabi-gcc` has `arm-none-eabi-ar`; plain `cc` has `ar`.
        prefix, dash, _ = Path(self.compiler).name.rpartition("-")
        path = shutil.which(f"{prefix}{dash}{name}") or shutil.which(name)
        if path is None:
            raise ToolchainError(f"{prefix}{dash}{name} not found; install binutils")
        return path


_FLAGS = {
    "armv7a": ("-march=armv7-a", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
    "riscv64": ("-march=rv64gc", "-mabi=lp64d"),
}


def has_double_precision(target: Mapping[str, Any]) -> bool:
    """Tells whether a processor computes in float64 itself; else each operation is a call."""
    processor = _target.processor_of(target)
    flags = processor.flags if processor is not None else ()
    return not any("soft" in flag or "-sp-" in flag or flag == "-mabi=ilp32" for flag in flags)


def find_c_toolchain(target: Mapping[str, Any]) -> CToolchain:
    """Finds what compiles a C library for a target.

    Args:
      target: a TVM target dict.

    Raises:
      TargetError: if no flags are known for the processor, or it is no microcontroller and has no
        floating-point unit.
      ToolchainError: if no compiler is installed for it.
    """
    machine, processor = _target.target_machine(target), _target.processor_of(target)
    if processor is None:
        require_hard_float(target)
    # What links for a target is a C compiler: one search, and one error, for both.
    compiler = find_linker(target)
    if processor is not None:
        return CToolchain(compiler, processor.flags, processor.board)
    if _target.is_microcontroller(machine):
        raise _target.TargetError(
            f"no flags are known for the microcontroller {target.get('mcpu')!r}; known: "
            f"{', '.join(_target.PROCESSORS)}. Describe it: target=jaxeff_export.Processor(...)"
        )
    return CToolchain(compiler, _FLAGS.get(machine, ()))


def require_hard_float(target: Mapping[str, Any]) -> None:
    """Refuses a processor that computes floating-point numbers in software."""
    from tvm.target import codegen

    machine = _target.target_machine(target)
    if not machine.startswith(("arm", "thumb", "riscv")):
        return  # part of every other architecture there are kernels for
    features = {str(f) for f in codegen.llvm_get_cpu_features(_target.tvm_target(target))}
    # A unit of any precision will do; LLVM names those of ARM by version and registers.
    units = ("f",) if machine.startswith("riscv") else ("vfp2sp", "fp-armv8d16sp", "vfp4d16sp")
    soft = (
        # The last letter of a RISC-V interface (lp64d) says which registers pass numbers.
        target.get("mfloat-abi", "hard") != "hard" or str(target.get("mabi", "d"))[-1] not in "fd"
    )
    if soft or features.isdisjoint(units):
        raise _target.TargetError(
            f"{target.get('mcpu', machine)} has no floating-point unit as it is described "
            f"({'its interface is soft-float' if soft else 'LLVM knows no feature of one'}); "
            "C libraries are for processors with hard float, such as cortex-m4 and cortex-m7; "
            "of those without it for cortex-m0plus, cortex-m3 and riscv32"
        )


def emulation(core: str, target: Mapping[str, Any], program: Path) -> list[str]:
    """Makes the command that runs a program of another processor on this machine.

    Args:
      core: a core's name.
      target: the TVM target dict.
      program: a statically linked executable.

    Raises:
      ToolchainError: if the emulator is not installed.
    """
    machine = _target.target_machine(target)
    # The core comes first: what was compiled for one ARM may run on another.
    processor = _target.PROCESSORS.get(core) or _target.processor_of(target)
    if processor is not None:
        command, package = SYSTEM_EMULATORS[machine[:5]]
        path = shutil.which(command)
        if path is None:
            raise ToolchainError(
                f"{command} not found, which emulates microcontrollers; "
                f"install it (Debian, Ubuntu: apt-get install {package})"
            )
        quiet = ["-display", "none", "-monitor", "none", "-serial", "none"]
        # Semihosting: what the program prints, and its exit status, go through the emulator.
        host = ["-semihosting-config", "enable=on,target=native"]
        # A RISC-V board would begin with firmware of its own.
        bare = ["-bios", "none"] if machine == "riscv32" else []
        return [path, "-M", processor.board.machine, *bare, *quiet, *host, "-kernel", str(program)]
    name = {"armv7a": "arm"}.get(machine, machine)
    # LLVM's name of a general RISC-V core is none of qemu's, whose default has all of rv64gc.
    named = [] if machine == "riscv64" else ["-cpu", core]
    return [find_emulator(name), *named, str(program)]
