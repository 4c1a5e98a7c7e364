"""Values of an integer network read in several forms: on several grids, or as floats too.

A product is computed where its result is written. In two forms that would be twice, with all the
multiplications, so such a result is written as floats once, and the codes of its readers are made
of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxeff.compression._quantized import of_inputs
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._grids import Codes
from jaxeff.compression.integers._kernels import kernel_of
from jaxeff.compression.numerics import LayerQuantization
from jaxeff.core import Literal
from jaxeff.program import Layer, Program


def in_several_forms(program: Program, settings: Mapping[str, LayerQuantization]) -> set[Any]:
    """Finds the values of a program that are read in more than one form.

    Args:
        program: The model.
        settings: Settings of the model's layers, by site.

    Raises:
        IntegerError: A grid is none that integer kernels take.
    """
    readers: dict[Any, list[Layer]] = {}
    for layer in program.layers:
        for i in layer.data:
            readers.setdefault(layer.inputs[i], []).append(layer)
    returned = {v for v in program.outputs if not isinstance(v, Literal)}
    found = set()
    for v, layers in readers.items():
        # With one reader the product is written in its form; None stands for floats.
        if len(layers) + (v in returned) > 1:
            forms = {form for layer in layers for form in _forms(layer, settings)}
            if len(forms | ({None} if v in returned else set())) > 1:
                found.add(v)
    return found


def _forms(layer: Layer, settings: Mapping[str, LayerQuantization]) -> tuple[Codes | None, ...]:
    """Lists the forms that a layer reads: codes, or floats (None); none if it is fused."""
    setting = settings.get(layer.site)
    if setting is None:
        taken = read.is_sum(layer) or read.is_line(layer) or read.is_move(layer)
        return () if taken or read.bounds_of(layer) or read.pool_of(layer) else (None,)
    if isinstance(kernel_of(layer, setting), str):
        return (None,)
    grids = [
        Codes.of(quantizer, tensor)
        for quantizer, tensor, i in of_inputs(layer, setting, read.arrays_like(layer))
        if i in layer.data and getattr(quantizer, "range", None) is not None
    ]
    return tuple(grids) or (None,)
