"""The C of integer layers of Cortex-M4 and later: a function for each form of a layer in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxeff_export.clib.codegen._rendering import render

if TYPE_CHECKING:
    from jaxeff_export.operators.integer import DualFunction

_BYTE = 8
_LINES = {"windowed": "CLOSE", "striding": "APART"}
_SHORTCUTS = {"none": "NO_SHORTCUT", "codes": "OF_CODES", "float": "OF_FLOATS"}
_RESULTS = {name: name.upper() for name in ("codes", "whole", "totals", "sums", "fixed")}
_RESULTS["float"] = "FLOATS"


def source(functions: Mapping[str, DualFunction]) -> str:
    """Writes the functions."""
    layers, quick = [], {}
    for name, function in functions.items():
        if function.kind == "quantized":
            layers.append(f"QUANTIZED({name}, {function.clamp.upper()})")
            continue
        block = _quick(function)
        if block is not None:
            quick[block[0]] = block[1]
        settings = (
            function.kind,
            function.finer,
            _RESULTS[function.result],
            _SHORTCUTS[function.shortcut],
            function.clamp.upper(),
            function.part,
            function.bits,
            f"(any_function *){block[0]}" if block else "0",
        )
        layers.append(f"LAYER({', '.join(map(str, (name, *settings)))})")
    widths = sorted({f.bits for f in functions.values() if f.bits < _BYTE})
    packed = [f"PACKED({bits})" for bits in widths]
    return render("dual.c", layers=layers, quick=list(quick.values()), packed=packed)


def _quick(function: DualFunction) -> tuple[str, str] | None:
    """Names and writes the assembler of a layer that ends in bytes; None if there is none."""
    ends = function.result, function.shortcut, function.clamp, function.part
    # Most layers: what they end in is in the assembler of their sums.
    if ends != ("codes", "none", "byte", 0):
        return None
    finer, bits = function.finer, function.bits
    up = f'"lsl #{finer}"'
    if function.kind == "convolution":
        # The second feature's sums are 256 times too large.
        down = f'"asr #{_BYTE - finer}"' if finer < _BYTE else f'"lsl #{finer - _BYTE}"'
        name = f"strip_{finer}" + (f"_of_{bits}" if bits < _BYTE else "")
        sums = f"BEGUN, TURN3_OF_{bits}" if bits < _BYTE else "ZEROS, TURN3 TURN3"
        return name, f"STRIP({name}, {up}, {down}, {sums});"
    if function.kind in _LINES:
        name = f"row_{function.kind}_{finer}"
        return name, f"ROW({name}, {_LINES[function.kind]}, {up});"
    return None
