"""What a program does with the values of an integer network: biases, and readers of several forms.

A linear layer adds to its product a number for each output, or one for each position too. A bias is
the former and goes into the accumulator of its output. An embedding of positions that stands right
after a product is read as its bias as well, and is added as a shortcut is.

A product is computed where its result is written. For readers on several grids, or of floats too,
that would be twice, with all the multiplications, so such a result is written as floats once, and
the codes of its readers are made of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.compression._quantized import of_inputs
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._grids import Codes
from jaxeff.compression.integers._kernels import Kernel, kernel_of
from jaxeff.compression.numerics import LayerQuantization
from jaxeff.core import Literal
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Node, axes
from jaxeff.program.ir import primitives as prim

Makers = Mapping[Any, Node]


def makers_of(program: Program) -> Makers:
    """Returns the node that makes each value of a program."""
    nodes = (node for layer in program.layers for node in layer.nodes)
    return {v: node for node in nodes for v in node.outputs}


def is_by_output(layer: Layer, kernel: Kernel, makers: Makers) -> bool:
    """Returns whether a layer adds one number to each output of its kernel, or nothing."""
    if not layer.biases:
        return True
    positions = len(layer.outputs[0].aval.shape) - kernel.columns
    found = [_varies(_spread(layer, layer.inputs[i]), makers) for i in layer.biases]
    return kernel.takes_lines and all(axis >= positions for moving in found for axis in moving)


def _spread(layer: Layer, v: Any) -> Any:
    """Follows what a layer adds to where it has as many axes as the layer's result."""
    rank = len(layer.outputs[0].aval.shape)
    for node in layer.nodes:
        if len(v.aval.shape) < rank and list(node.values) == [v] and len(node.outputs) == 1:
            (v,) = node.outputs
    return v


def _varies(v: Any, makers: Makers) -> set[int]:
    """Finds the axes along which the entries of a value may differ."""
    all_axes = {axis for axis, n in enumerate(v.aval.shape) if n != 1}
    node = makers.get(v)
    if node is None or len(node.outputs) != 1:
        return all_axes
    if node.primitive in prim.ELEMENTWISE and all(
        len(operand.aval.shape) in (0, len(v.aval.shape)) for operand in node.inputs
    ):
        return set().union(*(_varies(operand, makers) for operand in node.values))
    if len(node.inputs) == 1 and len(node.values) == 1:
        (operand,) = node.values
        shape, moving = operand.aval.shape, _varies(operand, makers)
        known = tuple(axis if axis in moving else None for axis in range(len(shape)))
        after = axes.moved(node.eqn, known, shape)
        if after is not None:
            return {axis for axis, of in enumerate(after) if of is not None}
    return all_axes


def added_by(layer: Layer, values: Sequence[Any]) -> Array:
    """Computes what a linear layer adds to its product, in the shape of its result."""
    shape, given = layer.outputs[0].aval.shape, list(values)
    first = layer.biases[0]
    if len(layer.biases) == 1 and jnp.ndim(given[first]) == len(shape):
        return jnp.broadcast_to(given[first].astype(jnp.float32), shape)
    for i in (*layer.data, *layer.weights):
        # Without data and weights what is left is the bias.
        given[i] = jnp.zeros(layer.inputs[i].aval.shape, layer.inputs[i].aval.dtype)
    return layer.fn(*given)[0].astype(jnp.float32)


def bias_of(layer: Layer, kernel: Kernel, values: Sequence[Any]) -> Array:
    """Computes what a linear layer adds, a number for each output of its kernel."""
    return kernel.column_of(added_by(layer, values))


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
