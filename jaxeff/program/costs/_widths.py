"""Bit widths of the arrays of a layer: given by site, or read from a quantized function.

A transform that quantizes an array does so under a name scope with its width, `bits_scope`. So the
program of a quantized function holds its bits, also inside other transforms, and they are counted
without a spec.

Sharp edge: a width that is traced, as that of a policy swept by `vmap`, has no number to write
down; such arrays count in their dtypes.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxeff.core import is_concrete
from jaxeff.program.ir import Layer, Node, Program, Value

_SCOPE = re.compile(r"jaxeff\[bits\]\((?P<name>\w+), (?P<width>[^,]+), (?P<storage>[^,]+)\)")


class Widths(NamedTuple):
    """Bits per number in one layer; None is what the dtype has.

    Attributes:
        weights: Bits of its weights; of the first operand where both are data.
        activations: Bits of what its dot product or convolution reads; the wider where these are
            two.
        results: Bits of what it returns.
        storage: Bits of all its weights together, with the scales or codebooks that decode them;
            None: as many as the codes.
    """

    weights: float | None = None
    activations: float | None = None
    results: float | None = None
    storage: float | None = None


Bits = Mapping[str, Widths | tuple[float, float]]
"""By site, widths or a pair of them, of weights and activations."""


def bits_scope(name: str, width: Any, storage: Any) -> str | None:
    """Returns the name scope under which an array is quantized; None if its width isn't known.

    Args:
        name: The array's among those of its layer: "weights_1", "input_0", "output_0".
        width: Bits of one number.
        storage: Bits of the array with what decodes it.
    """
    if not (is_scalar(width) and is_scalar(storage)):
        return None
    return f"jaxeff[bits]({name}, {float(width)!r}, {float(storage)!r})"


def is_scalar(value: Any) -> bool:
    """Returns whether a value is one number that can be looked at now."""
    return is_concrete(value) and getattr(value, "ndim", 0) == 0


def widths_of(program: Program, bits: Bits) -> dict[Layer, Widths]:
    """Returns the widths of every layer: those given for its site, else those its scopes say."""
    return {
        layer: Widths(*bits[layer.site]) if layer.site in bits else read(layer)
        for layer in program.walk()
    }


def read(layer: Layer) -> Widths:
    """Returns the widths that a layer was quantized to, by the name scopes of its equations."""
    found: dict[str, tuple[float, float]] = {}
    for scope in dict.fromkeys(scope for node in layer.nodes for scope in node.scopes):
        if match := _SCOPE.fullmatch(scope):
            found.setdefault(match["name"], (float(match["width"]), float(match["storage"])))
    weights = [of for name, of in found.items() if name.startswith("weights")]
    results = [width for name, (width, _) in found.items() if name.startswith("output")]
    inputs: list[float] = []
    if any(name.startswith("input") for name in found):
        inputs = [
            found[f"input_{i}"][0] if f"input_{i}" in found else dtype_bits(layer.inputs[at])
            for i, at in enumerate(layer.data)  # a linear layer adds what isn't named: a shortcut
            if layer.kind != "linear" or f"input_{i}" in found
        ]
    first = max((width for width, _ in weights), default=None)
    return Widths(
        min(inputs, default=None) if layer.kind == "matmul" else first,
        max(inputs, default=None),
        max(results, default=None),
        sum(storage for _, storage in weights) if weights else None,
    )


def is_quantizing(node: Node) -> bool:
    """Returns whether an equation is a quantizer's, not the layer's own."""
    return any(scope.startswith("jaxeff[quantize#") for scope in node.scopes)


def dtype_bits(value: Value) -> int:
    """Returns the bits of one number of an array as it is: of int4 and 4-bit floats four."""
    dtype = value.aval.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits)
    return int(jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.floating) else dtype.itemsize * 8)
