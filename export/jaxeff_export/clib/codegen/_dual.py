"""The C of integer layers of Cortex-M4 and later: a function for each form of a layer in use.

The functions are macros of the template `dual.c`, filled in by what `DualFunction` describes: C for
every form, and assembler beside it for layers that end in bytes, as most do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxeff_export.clib.codegen._rendering import render

if TYPE_CHECKING:
    from jaxeff_export.operators.integer import DualFunction

_BYTE = 8
_LINES = {"windowed": "CLOSE", "striding": "APART"}
_PAIRS = {"sliding": "SLIDING", "sliding_down": "SLIDING", "skipping": "SKIPPING"}
_SHORTCUTS = {"none": "NO_SHORTCUT", "codes": "OF_CODES", "float": "OF_FLOATS"}
_RESULTS = {name: name.upper() for name in ("codes", "whole", "totals", "sums", "fixed")}
_RESULTS["float"] = "FLOATS"


def source(functions: Mapping[str, DualFunction]) -> str:
    """Writes the functions."""
    layers: list[str] = []
    assembler: dict[str, str] = {}  # by name: layers of several forms share one
    for name, function in functions.items():
        if function.kind == "quantized":
            layers.append(f"QUANTIZED({name}, {function.clamp.upper()})")
            continue
        loop = _assembler(function)
        if loop is not None:
            assembler[loop[0]] = loop[1]
        settings = (
            function.kind,
            function.finer,
            _RESULTS[function.result],
            _SHORTCUTS[function.shortcut],
            function.clamp.upper(),
            function.part,
            function.bits,
            f"(any_function *){loop[0]}" if loop else "0",
        )
        layers.append(f"LAYER({', '.join(map(str, (name, *settings)))})")
    widths = sorted({f.bits for f in functions.values() if f.bits < _BYTE})
    packed = [f"PACKED({bits})" for bits in widths]
    quick, kinds = list(assembler.values()), {function.kind for function in functions.values()}
    if kinds & {*_PAIRS}:
        quick.append("LINES_OF_PAIRS;")
    if kinds & {*_LINES}:
        quick.append("WINDOWS;")
    return render("dual.c", layers=layers, quick=quick, packed=packed)


def _assembler(function: DualFunction) -> tuple[str, str] | None:
    """Names and writes the assembler of a layer that ends in bytes; None if there is none.

    Units of its sums are 2^finer times smaller than a product's: what goes in is shifted up.
    """
    # Most layers: what they end in is in the assembler of their sums.
    if not function.ends_in_bytes:
        return None
    finer, bits = function.finer, function.bits
    up = f'"lsl #{finer}"'
    if function.kind == "convolution":
        # The second feature's sums are 256 times too large.
        down = f'"asr #{_BYTE - finer}"' if finer < _BYTE else f'"lsl #{finer - _BYTE}"'
        name = f"strip_{finer}" + (f"_of_{bits}" if bits < _BYTE else "")
        sums = f"FEW_BITS({bits})" if bits < _BYTE else "WHOLE_WORDS"
        return name, f"STRIP({name}, {up}, {down}, {sums});"
    if function.kind in _LINES:
        name = f"row_{function.kind}_{finer}"
        return name, f"ROW({name}, {_LINES[function.kind]}, {up});"
    if function.kind in _PAIRS:
        kind = _PAIRS[function.kind]
        name = f"pairs_{kind.lower()}_{finer}"
        # Weights are raised, as far as they have room, so that sums begin with a bias.
        return name, f"PAIRS({name}, {kind}, {'AT_ZERO' if finer else 'AT_BIAS'}, {up});"
    return None
