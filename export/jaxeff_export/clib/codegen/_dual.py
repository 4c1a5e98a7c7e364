"""The C of integer layers of Cortex-M4 and M7: a function for each form of a layer that is called.

A name says the form, as `operators/integer/_dual.py` writes it: the kind, bits of finer units, the
result, the shortcut, how results are clamped, turns that sums have room for, bits of a weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxeff_export.clib.codegen._rendering import render

PREFIX = "jaxeff_dual_"
QUANTIZED = f"{PREFIX}quantized_"
_BYTE = 8
_PACKED = ("2", "4")
_LINES = {"windowed": "CLOSE", "striding": "APART"}
_SHORTCUTS = {"none": "NO_SHORTCUT", "codes": "OF_CODES", "float": "OF_FLOATS"}
_RESULTS = {name: name.upper() for name in ("codes", "whole", "totals", "sums", "fixed")}
_RESULTS["float"] = "FLOATS"


def source(names: Mapping[str, str]) -> str:
    """Writes the functions.

    Args:
        names: forms, and the name of each function.
    """
    layers, quick = [], {}
    for form, name in names.items():
        if form.startswith(QUANTIZED):
            layers.append(f"QUANTIZED({name}, {form.removeprefix(QUANTIZED).upper()})")
            continue
        kind, finer, result, shortcut, clamp, part, bits = form.removeprefix(PREFIX).split("_")
        given = (kind, finer, _RESULTS[result], _SHORTCUTS[shortcut], clamp.upper(), part, bits)
        # Most layers: what they end in is in the assembler of their sums.
        usual = (result, shortcut, clamp, part) == ("codes", "none", "byte", "0")
        found = _quick(kind, int(finer), int(bits)) if usual else None
        if found is not None:
            quick[found[0]] = found[1]
        last = f"(any_function *){found[0]}" if found else "0"
        layers.append(f"LAYER({', '.join((name, *given, last))})")
    packed = sorted({form[-1] for form in names if form[-1] in _PACKED})
    few = [f"PACKED({bits})" for bits in packed]
    return render("dual.c", layers=layers, quick=list(quick.values()), packed=few)


def _quick(kind: str, finer: int, bits: int) -> tuple[str, str] | None:
    """Writes the assembler of a kind of layer that ends in bytes; None if there is none."""
    up = f'"lsl #{finer}"'
    if kind == "convolution":
        # The second feature's sums are 256 times too large.
        down = f'"asr #{_BYTE - finer}"' if finer < _BYTE else f'"lsl #{finer - _BYTE}"'
        name = f"strip_{finer}" + (f"_of_{bits}" if bits < _BYTE else "")
        sums = f"BEGUN, TURN3_OF_{bits}" if bits < _BYTE else "ZEROS, TURN3 TURN3"
        return name, f"STRIP({name}, {up}, {down}, {sums});"
    if kind in _LINES:
        return f"row_{kind}_{finer}", f"ROW(row_{kind}_{finer}, {_LINES[kind]}, {up});"
    return None
