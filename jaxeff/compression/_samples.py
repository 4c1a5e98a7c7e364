"""Axes of an activation that count samples: each sample has a range under per="sample".

In most programs it is the first. A `vmap` over draws of the parameters (an ensemble, a posterior's
samples) puts an axis of draws in front of it or behind it, and a transposed array has it elsewhere.
So the first axis of the data arguments is followed through the program; and every draw has ranges
of its own, as in `vmap(quantized(f, spec))`.

Sharp edges:
    Inside loops and branches, and where the axis is lost (a reshape that joins it with others),
    the first axis is taken.
    Draws are known by products that multiply each with weights of its own, or by an axis in front
    of the samples. Where neither is there, draws behind the samples share a range.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxeff.moment_propagation.dependence import SHARED, Labels, Lineage, identity, walk
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Contraction, Value
from jaxeff.program.ir import primitives as prim


def find_samples(program: Program) -> None:
    """Notes for every activation of a program which axes of the data arguments its axes are."""
    data = [v for v in program.inputs if v.is_data and v.aval.ndim]
    # Arguments of several first sizes have no axis of samples in common.
    if not data or len({v.aval.shape[0] for v in data}) > 1:
        return
    lineages: dict[Value, Lineage] = {v: {v: identity(v.aval.shape)} for v in data}
    for layer in program.layers:
        if layer.kind == "control flow" or lineages.keys().isdisjoint(layer.inputs):
            continue
        if not layer.nodes:
            pairs = zip(layer.inputs, layer.outputs, strict=True)
            lineages.update((to, lineages[v]) for v, to in pairs if v in lineages)
            continue
        found, _ = walk(layer.nodes, {v: lineages[v] for v in layer.inputs if v in lineages})
        lineages.update((v, found[v]) for v in layer.outputs if v in found)
    leaves = {v.path: v.aval.ndim for v in program.inputs if v.path}
    for value, lineage in lineages.items():
        value.along = _merged(lineage)
    for layer in program.layers:
        _check_merged(layer, leaves)


def sample_axes(layer: Layer, value: Value, read: bool) -> tuple[int, ...] | None:
    """Returns the axes of an activation along which every entry has a range of its own.

    Args:
        layer: The layer that reads it, or makes it.
        value: The activation.
        read: Whether the layer reads it.

    Returns:
        The axes; None where draws and channels are joined in one axis.
    """
    if read and layer.merges_draws:
        return None
    labels, rank = value.along, value.aval.ndim
    if rank < 2:
        return ()
    if 0 not in labels:
        return (0,)
    samples = labels.index(0)
    summed, batched = _product_axes(layer, value) if read else ((), ())
    spare = rank - 1 - len(summed) if read else rank - 2  # an axis at least is covered by a range
    # `vmap` puts draws in front of the samples, where no axis comes from the data.
    draws = [i for i in range(samples) if labels[i] == SHARED and i not in summed]
    draws = draws[: max(spare, 0)]
    return tuple(sorted({samples, *draws, *batched}))


def _product_axes(layer: Layer, value: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Finds the axes that a layer's product sums over, and those with weights of their own."""
    op = layer.op
    if op is None or op.primitive is not prim.p.dot_general_p or value not in op.inputs:
        return (), ()
    side = op.inputs.index(value)
    product = Contraction.of(op)
    return product.summed(side), product.batch(side) if layer.kind == "linear" else ()


def _merged(lineage: Lineage) -> Labels:
    """Returns the labels that all data arguments agree on."""
    first, *others = lineage.values()
    return tuple(
        label if all(labels[i] == label for labels in others) else SHARED
        for i, label in enumerate(first)
    )


def _check_merged(layer: Layer, leaves: Mapping[str, int]) -> None:
    """Notes whether a convolution has a kernel for each draw, all in one axis of channels."""
    op = layer.op if layer.kind == "linear" else None
    if op is None or op.primitive is not prim.p.conv_general_dilated_p:
        return
    kernel = op.inputs[1]
    grouped = op.params["feature_group_count"] > 1
    draws = isinstance(kernel, Value) and leaves.get(kernel.path, 0) > kernel.aval.ndim
    layer.merges_draws = grouped and draws
