"""Named compilation targets: this machine and the cores the library is meant for.

A target is a plain dict, as TVM 0.27 takes it, so that it can be written into a manifest. Names
are a convenience; any dict that TVM accepts is a target too.

Sharp edges: a bare ``{"kind": "llvm"}`` names no CPU and compiles for the lowest common
denominator, so ``"host"`` always names the CPU it found. LLVM infers the CPU from its model
number, and virtual machines may mask instructions that the model has; instructions the kernel does
not report are switched off.

```python
from jaxeff_export import resolve_target, target_names

assert {"host", "cortex-a72", "cortex-m7"} <= set(target_names())
assert resolve_target("cortex-a72")["mcpu"] == "cortex-a72"
```

`require_extra` says which extra of pip a missing package belongs to: without TVM, targets can be
named but not checked.
"""

import copy
import dataclasses
import difflib
import importlib.util
import json
import platform
import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

_NAMES = {
    "ethosu": "ethos-u-vela", "flatbuffers": "flatbuffers", "litert_converter": "litert-converter",
    "onnx": "onnx", "serial": "pyserial", "tvm": "TVM", "typer": "typer",
}  # fmt: skip
_EXTRAS = {
    "ethosu": "vela",
    "litert_converter": "litert",
    "onnx": "weights",
    "serial": "serial",
}  # others are of `export`


class MissingExtraError(ModuleNotFoundError):
    """A package that is needed is not installed; the message says how to install it."""


def require_extra(module: str, what: str) -> None:
    """Raises `MissingExtraError` unless a module of the extra can be imported.

    Args:
      module: ``"tvm"``, ``"flatbuffers"``, ``"litert_converter"``, ``"ethosu"``, ``"onnx"``,
        ``"serial"`` or ``"typer"``; it is not imported.
      what: what needs it, the sentence's subject.
    """
    # Looked for, not imported: importing TVM takes seconds.
    if importlib.util.find_spec(module) is None:
        extra = _EXTRAS.get(module, "export")
        raise MissingExtraError(
            f"{what} needs {_NAMES[module]}, which is not installed: pip install 'jaxeff[{extra}]'",
            name=module,
        )


OPERATOR_BY_OPERATOR = "operator_by_operator"
"""The function of a compiled library that does the same as ``main``, interpreted, so that an
instrument sees every operator."""
Target = dict[str, Any]

_ARM = "aarch64-linux-gnu"

ARM_TARGETS: Mapping[str, Target] = {
    "cortex-a53": {
        "kind": "llvm",
        "mtriple": _ARM,
        "mcpu": "cortex-a53",
        "mattr": ["+neon"],
        "num-cores": 4,
    },
    "cortex-a72": {
        "kind": "llvm",
        "mtriple": _ARM,
        "mcpu": "cortex-a72",
        "mattr": ["+neon"],
        "num-cores": 4,
    },
    "cortex-a76": {
        "kind": "llvm",
        "mtriple": _ARM,
        "mcpu": "cortex-a76",
        "mattr": ["+neon", "+dotprod", "+fullfp16"],
        "num-cores": 4,
    },
}
"""Raspberry Pi 3 (A53), 4 (A72) and 5 (A76), four cores each."""


@dataclasses.dataclass(frozen=True)
class BoardMemory:
    """An emulated board's memories, where the example's linker script puts a program.

    Attributes:
      machine: qemu's name of it.
      flash: address and size in bytes of the memory that holds code and parameters.
      ram: the same of the memory for data.
    """

    machine: str
    flash: tuple[int, int]
    ram: tuple[int, int]


# A bundle's manifest has a processor's flags, and bundles come from strangers: what names
# instructions, an interface or a C library is all that a compiler is ever told.
_FLAG = re.compile(r"-m[\w.+=-]+|--specs=\w+\.specs")
_WORD = re.compile(r"[\w.+-]+")


@dataclasses.dataclass(frozen=True)
class Processor(Mapping[str, Any]):
    """A microcontroller as a value: it goes in wherever ``"cortex-m7"`` does.

    It is a mapping as TVM's targets are; a processor that isn't one of `PROCESSORS` is described in
    the mapping, too, and so in a bundle's manifest.

    ```python
    import dataclasses

    from jaxeff_export import PROCESSORS, resolve_target

    chip = dataclasses.replace(
        PROCESSORS["cortex-m4"], name="stm32f411", flash=512 << 10, ram=128 << 10, mhz=100
    )
    assert resolve_target(chip)["mcpu"] == "cortex-m4"
    ```

    Attributes:
      name: its name.
      core: LLVM's name of the core.
      triple: LLVM's triple.
      abi: TVM's names of the interface of calls, with their values.
      flags: what names it to GCC: ``-m...`` and ``--specs=...``.
      board: the emulated board that its programs run on.
      features: LLVM's features beside the core's own, such as ``"+c"``.
      flash: bytes that it has for code and parameters; None for the board's.
      ram: bytes that it has for data; None for the board's.
      mhz: its clock in megahertz, for milliseconds of a model of cycles; None if nothing is known.

    Raises:
      TargetError: A name, or a flag that is none of those.
    """

    name: str
    core: str
    triple: str
    abi: tuple[tuple[str, str], ...]
    flags: tuple[str, ...]
    board: BoardMemory
    features: tuple[str, ...] = ()
    flash: int | None = None
    ram: int | None = None
    mhz: float | None = None

    def __post_init__(self) -> None:
        """Checks what is handed to other programs."""
        for word in (self.name, self.core, self.triple, self.board.machine, *self.features):
            if not _WORD.fullmatch(word):
                raise TargetError(
                    f"Processor: {word!r} is no name of a processor, board or feature"
                )
        for flag in self.flags:
            if not _FLAG.fullmatch(flag):
                raise TargetError(f"Processor: flags are -m... and --specs=..., not {flag!r}")

    @property
    def limits(self) -> tuple[int, int]:
        """Bytes of its flash and of its RAM."""
        return self.flash or self.board.flash[1], self.ram or self.board.ram[1]

    def __getitem__(self, key: str) -> Any:
        """Returns an entry of the target."""
        return self._target[key]

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the target's entries."""
        return iter(self._target)

    def __len__(self) -> int:
        """Counts the target's entries."""
        return len(self._target)

    @property
    def _target(self) -> Target:
        target = {
            "kind": "llvm", "mtriple": self.triple, "mcpu": self.core, **dict(self.abi),
            "vector-width": 128, "num-cores": 1,
        }  # fmt: skip
        if self.features:
            target["mattr"] = list(self.features)
        if PROCESSORS.get(self.name) != self:
            # As JSON has it, so that a manifest's target is the same.
            target[_PROCESSOR] = json.loads(json.dumps(dataclasses.asdict(self)))
        return target

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Reads the description in a target, which a manifest may have kept as JSON.

        Raises:
          TargetError: It is none.
        """
        try:
            board = record["board"]
            places = (board["machine"], tuple(board["flash"]), tuple(board["ram"]))
            lists = {name: tuple(record[name]) for name in ("flags", "features")}
            abi = tuple((str(name), str(value)) for name, value in record["abi"])
            return cls(**{**record, **lists, "abi": abi, "board": BoardMemory(*places)})
        except (KeyError, TypeError, ValueError) as error:
            raise TargetError(f"this describes no processor: {error}") from error


_PROCESSOR = "processor"
_MPS2 = (0x00000000, 4 << 20), (0x20000000, 4 << 20)
# Arm's boards MPS2 and MPS3 as qemu has them: mostly far more memory than microcontrollers have. A
# processor without a board of its own runs on one whose instructions include all of its own: an M3
# has an M0+'s, and an M55 what compilers make for an M85.
_AN385 = BoardMemory("mps2-an385", *_MPS2)
_AN547 = BoardMemory("mps3-an547", (0x00000000, 512 << 10), (0x21000000, 4 << 20))


def _cortex_m(
    core: str, architecture: str, board: BoardMemory, unit: str = "", *, hard: bool = True,
    compiled_as: str = "",
) -> Processor:  # fmt: skip
    floats = "hard" if hard else "soft"
    flags = ("-mthumb", f"-mfloat-abi={floats}", f"-mcpu={compiled_as or core}")
    # Soft floats are functions whose names LLVM takes from the last of four parts.
    triple = f"{architecture}-none-eabihf" if hard else f"{architecture}-none-none-eabi"
    more = (f"-mfpu={unit}",) if unit else ()
    return Processor(core, core, triple, (("mfloat-abi", floats),), (*flags, *more), board)


PROCESSORS: Mapping[str, Processor] = {
    one.name: one
    for one in (
        _cortex_m("cortex-m0plus", "thumbv6m", _AN385, hard=False),
        _cortex_m("cortex-m3", "thumbv7m", _AN385, hard=False),
        _cortex_m("cortex-m4", "thumbv7em", BoardMemory("mps2-an386", *_MPS2), "fpv4-sp-d16"),
        _cortex_m("cortex-m7", "thumbv7em", BoardMemory("mps2-an500", *_MPS2), "fpv5-d16"),
        _cortex_m(
            "cortex-m33", "thumbv8m.main",
            # It starts in the secure half of its memories.
            BoardMemory("mps2-an505", (0x10000000, 4 << 20), (0x80000000, 16 << 20)),
            "fpv5-sp-d16",
        ),
        _cortex_m("cortex-m55", "thumbv8.1m.main", _AN547),
        # GCC 12 has no name for it: its instructions are those of an M55, as far as C uses them.
        _cortex_m("cortex-m85", "thumbv8.1m.main", _AN547, compiled_as="cortex-m55"),
        # RV32IMC, as of an ESP32-C3: no floating-point unit, no atomic instructions, no vectors.
        # Debian's compiler has no headers of a C library but those that the specs name. `zicsr`
        # would change nothing: kernels read no register of the system.
        Processor(
            "riscv32", "generic-rv32", "riscv32-unknown-none-elf", (("mabi", "ilp32"),),
            ("-march=rv32imc", "-mabi=ilp32", "--specs=picolibc.specs"),
            # All memory of qemu's board is RAM, and programs start at its beginning: the first part
            # is taken for flash.
            BoardMemory("virt", (0x80000000, 16 << 20), (0x81000000, 16 << 20)),
            features=("+m", "+c"),
        ),
    )
}  # fmt: skip
"""Microcontrollers without an operating system, of which M0+, M3 and RV32IMC (an ESP32-C3) compute
floats in software and M55 and M85 have vectors (Helium)."""

C_TARGETS: Mapping[str, Target] = {
    "cortex-a7": {
        "kind": "llvm",
        "mtriple": "armv7a-linux-gnueabihf",
        "mcpu": "cortex-a7",
        "mattr": ["+neon"],
        "mfloat-abi": "hard",
        "num-cores": 1,
    },
    **{name: dict(processor) for name, processor in PROCESSORS.items()},
    "riscv64": {
        "kind": "llvm",
        "mtriple": "riscv64-unknown-linux-gnu",
        "mcpu": "generic-rv64",
        "mattr": ["+m", "+a", "+f", "+d", "+c"],
        "mabi": "lp64d",
        "num-cores": 1,
    },
}
"""Processors that TVM's runtime isn't there for: their bundles hold a C library. A 32-bit ARM with
NEON (Raspberry Pi 2), `PROCESSORS`, and 64-bit RISC-V."""

_NAMED: Mapping[str, Target] = {**ARM_TARGETS, **C_TARGETS}

PLUGINS = "jaxeff.targets"
"""Group of entry points of targets from other packages."""

# LLVM's name of a feature -> the kernel's name of it in /proc/cpuinfo. Only features that change
# the code a compiler generates for dense arithmetic are listed.
_KERNEL_NAMES: Mapping[str, str] = {
    "sse4.2": "sse4_2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avxvnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "lse": "atomics",
    "sve": "sve",
    "sve2": "sve2",
}


_CHIPS: Mapping[tuple[str, ...], str] = {
    ("stm32l5", "stm32u5", "stm32h5", "stm32wba", "nrf53", "nrf54", "nrf91"): "cortex-m33",
    ("rp2350", "pico2"): "cortex-m33",
    ("stm32f0", "stm32g0", "stm32l0", "stm32c0", "stm32u0", "rp2040", "pico1"): "cortex-m0plus",
    ("stm32f1", "stm32f2", "stm32l1"): "cortex-m3",
    ("stm32f3", "stm32f4", "stm32g4", "stm32l4", "stm32wb", "nrf52"): "cortex-m4",
    ("stm32f7", "stm32h7", "teensy4", "imxrt10"): "cortex-m7",
    ("stm32n6", "alif"): "cortex-m55",
    ("esp32c", "esp32h", "gd32v", "ch32v3"): "riscv32",
    ("raspberrypi3", "rpi3"): "cortex-a53",
    ("raspberrypi4", "rpi4"): "cortex-a72",
    ("raspberrypi5", "rpi5"): "cortex-a76",
}
"""The core of chips and boards that people ask for, by how their names begin."""


class TargetError(ValueError):
    """An unknown target name, or a dict that TVM cannot compile for."""


def target_names() -> tuple[str, ...]:
    """Lists the names that `resolve_target` accepts."""
    return ("host", *_NAMED)


def resolve_target(target: str | Mapping[str, Any]) -> Target:
    """Resolves a name to a TVM target dict; a dict is checked and passed through.

    Args:
      target: ``"host"``, one of `ARM_TARGETS` or `C_TARGETS`, a TVM target dict, or the name of an
        entry point that an installed package has in the group `jaxeff.targets`: a `Processor` or
        such a dict.

    Returns:
      A fresh dict with at least ``kind`` and ``mcpu``; ``num-cores`` is filled in for the host: the
      physical cores that this process may use.

    Raises:
      TargetError: if the name is unknown, or TVM does not know the dict's kind or CPU.
      MissingExtraError: if TVM has to be asked and is not installed.
    """
    if isinstance(target, Mapping):
        return _checked(dict(copy.deepcopy(dict(target))))
    if target == "host":
        return _host()
    if target in _NAMED:
        # A copy, for callers that add settings of their own.
        return copy.deepcopy(dict(_NAMED[target]))
    # Loaded only for a name that isn't ours: the command line's help needs no JAX.
    from jaxeff.core import plugins

    installed = plugins(PLUGINS)
    if target in installed:
        return _checked(dict(installed[target].load()))
    names, asked = (
        (*target_names(), *sorted(installed)),
        str(target).lower().replace("-", "").replace("_", ""),
    )
    core = next((core for chips, core in _CHIPS.items() if asked.startswith(chips)), None)
    near = difflib.get_close_matches(str(target).lower(), names, 1)
    meant = f"did you mean {near[0]!r}? Else " if near else ""
    meant = f"such a chip is a {core!r}; else " if core else meant
    raise TargetError(
        f"unknown target {target!r}: {meant}use one of {', '.join(names)}, or a TVM target dict"
    )


def processor_of(target: Mapping[str, Any]) -> Processor | None:
    """Returns the microcontroller that a target describes or names; None for another target."""
    if (record := target.get(_PROCESSOR)) is not None:
        return Processor.of_record(record)
    core = target.get("mcpu")
    return next((one for one in PROCESSORS.values() if one.core == core), None)


def name_of(target: Mapping[str, Any]) -> str:
    """Names a target that was described: a microcontroller's own name, or LLVM's of the core."""
    described = target.get(_PROCESSOR)
    return str(described["name"] if described else target.get("mcpu", "custom"))


def tvm_target(target: Mapping[str, Any]) -> Any:
    """Makes TVM's object of a target, which knows nothing of boards."""
    import tvm

    return tvm.target.Target({k: v for k, v in target.items() if k != _PROCESSOR})


def normalized_machine(name: str) -> str:
    """Spells a processor architecture: ``x86_64``, ``aarch64``, else as given."""
    name = name.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def target_machine(target: Mapping[str, Any]) -> str:
    """Returns the architecture a target compiles for, as ``platform.machine`` would name it."""
    triple = target.get("mtriple")
    return normalized_machine(triple.split("-")[0] if triple else platform.machine())


def is_microcontroller(machine: str) -> bool:
    """Tells whether processors of an architecture run without an operating system."""
    return machine.startswith("thumb") or machine == "riscv32"


def has_runtime(target: Mapping[str, Any]) -> bool:
    """Tells whether TVM's runtime, which bundles run on, is there for an architecture."""
    return target_machine(target) in ("x86_64", "aarch64")


def missing_features(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists CPU features that code for `target` may use and this machine does not report.

    Returns:
      LLVM feature names; empty where the kernel publishes no list to compare with.
    """
    reported = _reported_features()
    # A list of another architecture says nothing about this target.
    if not reported or target_machine(target) != normalized_machine(platform.machine()):
        return ()
    wanted = arithmetic_features(target)
    return tuple(sorted(name for name in wanted if _KERNEL_NAMES[name] not in reported))


def arithmetic_features(target: Mapping[str, Any]) -> frozenset[str]:
    """Lists the features of `target`, as LLVM names them, that matter for dense arithmetic."""
    from tvm.target import codegen

    features = codegen.llvm_get_cpu_features(tvm_target(target))
    return frozenset(_KERNEL_NAMES) & {str(name) for name in features}


def kernel_features(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the features that code for `target` may use, as /proc/cpuinfo names them."""
    return tuple(sorted(_KERNEL_NAMES[name] for name in arithmetic_features(target)))


def _host() -> Target:
    require_extra("tvm", "finding this machine's processor")
    from joblib import cpu_count
    from tvm.target import codegen

    target: Target = {
        "kind": "llvm",
        "mcpu": str(codegen.llvm_get_system_cpu()),
        # Two threads of one physical core would share its vector units.
        "num-cores": cpu_count(only_physical_cores=True),
    }
    masked = missing_features(target)
    if masked:
        # Virtual machines may mask what the model has: using it would be an illegal instruction.
        target["mattr"] = [f"-{name}" for name in masked]
    return target


def _reported_features() -> frozenset[str]:
    """Reads the feature flags of /proc/cpuinfo (``flags`` on x86, ``Features`` on ARM)."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def _checked(target: Target) -> Target:
    require_extra("tvm", "checking a target")
    from tvm.target import codegen

    if target.get("kind", "llvm") != "llvm":
        raise TargetError(f"targets are CPUs, of kind 'llvm', not {target['kind']!r}")
    # First, for TVM ends the process at a triple that LLVM doesn't know.
    _require_backend(target)
    # The CPU is left out at first: given one it does not know, LLVM writes to standard error.
    bare = _accepted({key: value for key, value in target.items() if key not in ("mcpu", "mattr")})
    if (cores := target.get("num-cores", 1)) < 1:
        raise TargetError(f"num-cores is {cores}; it must be positive")
    if "mcpu" in target:
        known = {str(name) for name in codegen.llvm_get_cpu_archlist(bare)}
        if target["mcpu"] not in known:
            raise TargetError(
                f"LLVM knows no CPU {target['mcpu']!r} for {target_machine(target)}; "
                f"it knows {', '.join(sorted(known)[:12])}, … ({len(known)} in all)"
            )
    checked = _accepted(target)
    # LLVM ignores an unknown feature with a warning at most: a typing error would be lost.
    features = {str(name) for name in codegen.llvm_get_cpu_features(checked)}
    for attribute in target.get("mattr", ()):
        if attribute.startswith("+") and attribute[1:] not in features:
            raise TargetError(
                f"LLVM knows no feature {attribute!r} of {target.get('mcpu', 'this CPU')}"
            )
    return target


def _require_backend(target: Target) -> None:
    """Raises `TargetError` for a triple LLVM has no backend for, which TVM would crash on."""
    from tvm.target import codegen

    machine = target_machine(target)
    backends = tuple(str(name) for name in codegen.llvm_get_targets())
    if not machine.startswith(backends):  # armv7l is arm
        raise TargetError(
            f"LLVM knows no processor {machine!r} (of mtriple {target.get('mtriple')!r}); "
            f"write a triple such as {_ARM!r}"
        )


def _accepted(target: Target) -> Any:
    """Makes TVM's object of a target dict."""
    try:
        return tvm_target(target)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise TargetError(f"TVM refuses the target {target}: {reason}") from error
