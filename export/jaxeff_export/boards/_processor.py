"""Features of a remote board's processor, from a file of its kernel: the CPU's modalias.

A library that uses an instruction the processor lacks does not fail, it kills the session, and
TVM's RPC server does not recover from that. So the kernel is asked beforehand. One of another
architecture than the library's (an emulator's host) is no evidence either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxeff_export.targets import kernel_features, target_machine

MODALIAS = "/sys/devices/system/cpu/modalias"

# Numbers of features as Linux counts them: bits of HWCAP on ARM, 32 × word + bit on x86.
_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "aarch64": {"asimd": 1, "atomics": 8, "asimdhp": 10, "asimddp": 20, "sve": 22},
    "x86_64": {
        "fma": 0x8C,
        "sse4_2": 0x94,
        "avx": 0x9C,
        "f16c": 0x9D,
        "bmi1": 0x123,
        "avx2": 0x125,
        "bmi2": 0x128,
        "avx512f": 0x130,
        "avx512dq": 0x131,
        "avx512ifma": 0x135,
        "avx512cd": 0x13C,
        "avx512bw": 0x13E,
        "avx512vl": 0x13F,
        "avx_vnni": 0x184,
        "avx512_bf16": 0x185,
        "avx512vbmi": 0x201,
        "avx512_vnni": 0x20B,
        "avx512_fp16": 0x257,
        "amx_tile": 0x258,
    },
}


def lacking(modalias: str, target: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the features, as the kernel names them, that `target` uses and a processor lacks.

    Args:
      modalias: the content of `MODALIAS` on the board, e.g.
        ``cpu:type:aarch64:feature:,0000,0001,0008``.
      target: a TVM target dict.

    Returns:
      Names; empty where the file says nothing about this target.
    """
    # Neither the end of the line nor padding is part of the last number.
    kind, _, features = modalias.rstrip("\0\n").partition(":feature:")
    machine = target_machine(target)
    spoken_of = {"x86": "x86_64"}.get(_type_of(kind), _type_of(kind))
    # Of another architecture (an emulator's host), or without a list: no evidence.
    if spoken_of != machine or not features:
        return ()
    present = {int(number, 16) for number in features.split(",") if number}
    numbers = _NUMBERS.get(machine, {})
    # A feature without a number here isn't judged, rather than refused by mistake.
    return tuple(
        name for name in kernel_features(target) if name in numbers and numbers[name] not in present
    )


def _type_of(kind: str) -> str:
    """Extracts ``aarch64`` of ``cpu:type:aarch64``, ``x86`` of ``cpu:type:x86,ven0002``."""
    return kind.removeprefix("cpu:type:").split(",")[0]
