"""Slopes of a result by convolution kernels, from what their taps read and the slopes behind them.

The derivative of a result by a kernel's entry w_tic is a sum over positions,

    dy / dw_tic = sum_p x[p + t, i] g[p, c],    g = dy / d(convolution's result).

A pass backward for each of K results would take it as K convolutions, each with an image of its own
for a kernel. What taps read is the same for all K, so their g stand side by side in one matrix
product instead, which processors have fast code for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import identity, walk
from jaxeff.moment_propagation.shared_kernels.layouts import PositionContraction, canonical, split
from jaxeff.moment_propagation.values import Gaussian, is_gaussian, is_random, to_variance
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Value

# What may follow a convolution in its layer: a step of its result is one of the layer's.
_ADDING = {p.add_p, p.broadcast_in_dim_p, p.reshape_p, p.convert_element_type_p}


@dataclass(frozen=True)
class ConvolvedKernel:
    """A random kernel that one convolution reads, and nobody else.

    Attributes:
        kernel: The random input.
        image: What it is applied to, an input of the layer.
        read: The convolution.
        layouts: The layouts of image and result.
    """

    kernel: Value
    image: Value
    read: PositionContraction
    layouts: tuple[Axes, Axes]

    def windows(self, layer: Layer, operands: Sequence[Any]) -> Array:
        """Reads what each tap reads at each position, of the mean image."""
        image = operands[layer.inputs.index(self.image)]
        mean = to_variance(image).mean if is_random(image) else image
        return self.read.windows(canonical(mean, self.layouts[0]))

    def slopes(self, windows: Array, steps: Array) -> Array:
        """Computes slopes by the kernel, `[taps, in, groups, out of a group]`.

        Args:
            windows: What `windows` returns.
            steps: Slopes by the convolution's result.
        """
        gate = canonical(steps, self.layouts[1])
        # Means over positions times their number; examples that share the kernel add up.
        return self.read.let_through(windows, gate).sum(0) * windows.shape[1]

    def variances(self, given: Gaussian) -> Array:
        """Brings the kernel's variances to the form of its slopes."""
        return self.read.by_group(self.read.kernel(given.var))


def _convolved_kernels(
    program: Program, random: Collection[Value], owned: Collection[Layer]
) -> Mapping[Layer, ConvolvedKernel]:
    """Finds the convolutions whose random kernel no other layer reads.

    Args:
        program: A program.
        random: Inputs of it that are random and whose slopes are asked for.
        owned: Layers that are taken in another way.
    """
    readers: dict[Value, int] = {}
    for layer in program.layers:
        for value in layer.inputs:
            readers[value] = readers.get(value, 0) + 1
    found = {}
    for layer in program.layers:
        one = None if layer in owned else _convolved(layer)
        if one is None or one.kernel not in random or one.kernel in program.outputs:
            continue
        if readers[one.kernel] == 1 and layer.inputs.count(one.kernel) == 1:
            found[layer] = one
    return found


def _convolved(layer: Layer) -> ConvolvedKernel | None:
    """Reads a layer; None where it is more than a convolution and what is added to it."""
    if layer.kind != "linear" or layer.mark or len(layer.outputs) != 1:
        return None
    _, op, after = split(layer)
    read = None if op is None else PositionContraction.of(op)
    if op is None or read is None or read.layouts is None:
        return None
    image, kernel = op.inputs
    if image is kernel or not all(any(v is one for one in layer.inputs) for v in op.inputs):
        return None
    # A kernel that is added to the result as well would have a second path.
    inside = [v for node in layer.nodes if node is not op for v in node.values]
    if kernel in inside or any(node.primitive not in _ADDING for node in after):
        return None
    if op.outputs[0].aval.shape != layer.outputs[0].aval.shape:
        return None
    return ConvolvedKernel(kernel, image, read, read.layouts)


def _owned_layers(program: Program, random: Sequence[Value]) -> dict[Layer, list[Value]]:
    """Finds linear layers with random inputs whose noise is new in each entry of their result.

    No other layer reads such an input, and no two entries of the result share one of its entries (a
    kernel of a dense layer, for one example). It adds to a result's variance its own part of the
    layer's variance times the squared slope after the layer: no derivative is taken by the entries
    of the kernel.
    """
    readers: dict[Value, list[Layer]] = {}
    for layer in program.layers:
        for value in layer.inputs:
            readers.setdefault(value, []).append(layer)
    found: dict[Layer, list[Value]] = {}
    for value in random:
        if len(readers.get(value, ())) != 1 or value in program.outputs:
            continue
        (layer,) = readers[value]
        if layer.kind != "linear" or len(layer.outputs) != 1 or layer.inputs.count(value) != 1:
            continue
        (result,) = layer.outputs
        lineages, meetings = walk(layer.nodes, {value: {value: identity(value.aval.shape)}})
        labels = lineages.get(result, {}).get(value, ())
        sizes = result.aval.shape
        # Each entry of the result depends on entries of its own, and the layer combines no
        # dependent ones.
        fresh = all(isinstance(x, int) or n == 1 for x, n in zip(labels, sizes, strict=True))
        if labels and fresh and not meetings:
            found.setdefault(layer, []).append(value)
    return found


@dataclass(frozen=True)
class RandomEntries:
    """The random inputs of a program, by how the slopes of results by them are found.

    Attributes:
        known: Values of all inputs.
        owned: Layers whose kernel's noise is new in each entry of one result, with these inputs: a
            step added to that result stands for all of their noise.
        convolved: Layers whose kernel's slopes are made of those by their result.
        followed: The others, which are differentiated.
    """

    known: Mapping[Value, Any]
    owned: Mapping[Layer, Sequence[Value]]
    convolved: Mapping[Layer, ConvolvedKernel]
    followed: Sequence[Value]

    @classmethod
    def of(cls, program: Program, values: Sequence[Any]) -> RandomEntries:
        """Divides a program's inputs."""
        known = dict(zip(program.inputs, values, strict=True))
        random = [v for v in program.inputs if is_gaussian(known[v])]
        owned = _owned_layers(program, random)
        apart = {v for inputs in owned.values() for v in inputs}
        rest = [v for v in random if v not in apart]
        convolved = _convolved_kernels(program, rest, owned)
        kernels = {one.kernel for one in convolved.values()}
        return cls(known, owned, convolved, [v for v in rest if v not in kernels])

    @property
    def kernels(self) -> list[Value]:
        """The kernels of convolutions."""
        return [one.kernel for one in self.convolved.values()]

    @property
    def apart(self) -> set[Value]:
        """The inputs that steps of owned layers stand for."""
        return {v for inputs in self.owned.values() for v in inputs}
