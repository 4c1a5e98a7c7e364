"""The C of integer layers of Cortex-M4 and M7: a function for each form of a layer that is called.

A name says the form, as `operators/integer/_dual.py` writes it: the kind, bits of finer units, the
result, the shortcut, how results are clamped, turns that sums have room for.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxeff_export.clib.codegen._rendering import render

PREFIX = "jaxeff_dual_"
_SHORTCUTS = {"none": "NO_SHORTCUT", "codes": "OF_CODES", "float": "OF_FLOATS"}
_RESULTS = {"codes": "CODES", "steps": "STEPS", "float": "FLOATS", "sums": "SUMS"}


def source(names: Mapping[str, str]) -> str:
    """Writes the functions.

    Args:
        names: forms, and the name of each function.
    """
    layers = []
    for form, name in names.items():
        kind, finer, result, shortcut, clamp, part = form.removeprefix(PREFIX).split("_")
        given = ", ".join(
            (kind, finer, _RESULTS[result], _SHORTCUTS[shortcut], clamp.upper(), part)
        )
        layers.append(f"LAYER({name}, {given})")
    return render("dual.c", layers=layers)
