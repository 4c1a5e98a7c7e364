"""What a program costs: parameters, multiply-accumulates and bit operations, layer by layer.

MACs count the products of dot products and convolutions, the measure of the source work; pointwise
functions, pooling and additions count nothing. Padding counts as work, as in the usual formula
(output size x kernel size x input channels / groups). Zeros between the inputs of a transposed
convolution don't count: there the formula is input size x kernel size x output channels / groups,
in which what falls beyond the borders counts: a strided convolution and its transpose cost the
same. A scan's body counts once per iteration, a cond counts its most expensive branch, and a while
loop (its trip count isn't known) one iteration.

BOPs = MACs x activation bits x weight bits (Galen, arXiv 2212.07818); a layer that no quantization
setting touches has the bits of its dtypes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxeff.program import primitives as prim
from jaxeff.program.graph import Node, Value
from jaxeff.program.layers import Layer, Program
from jaxeff.program.trace import trace


@dataclass(frozen=True)
class LayerCost:
    """One layer's row.

    Attributes:
        site: Its name.
        kind: Its kind.
        shape: Shape of its result.
        params: Scalars in the parameters it reads, each leaf counted where it is first read.
        macs: Multiply-accumulates for the traced batch.
        bops: Bit operations for the traced batch.
    """

    site: str
    kind: str
    shape: tuple[int, ...]
    params: int
    macs: int
    bops: int


@dataclass(frozen=True)
class Cost:
    """A program's rows and totals; `macs` and `bops` are for the traced batch."""

    layers: tuple[LayerCost, ...]

    @property
    def params(self) -> int:
        """Scalars in all parameters."""
        return sum(row.params for row in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return sum(row.macs for row in self.layers)

    @property
    def bops(self) -> int:
        """Bit operations."""
        return sum(row.bops for row in self.layers)


def cost(
    f: Callable[..., Any],
    params: Any,
    *args: Any,
    bits: Mapping[str, tuple[int, int]] | None = None,
    **kwargs: Any,
) -> Cost:
    """The cost of `f` at the given shapes; give a batch of one for the usual per-sample figures.

    Args:
        f: A pure function `f(params, *args)`.
        params: Arrays or `jax.ShapeDtypeStruct`s.
        *args: Further arguments.
        bits: `(weight bits, activation bits)` by site, for layers that will be quantized.
        **kwargs: As for `trace`.
    """
    return program_cost(trace(f, params, *args, **kwargs), bits or {})


def program_cost(program: Program, bits: Mapping[str, tuple[int, int]]) -> Cost:
    """The cost of a program that has been traced already."""
    leaves: dict[Value, tuple[str, int]] = {
        v: (v.path, v.aval.size) for v in program.inputs if v.is_weight
    }
    sizes: dict[str, int] = {}
    for path, size in leaves.values():
        sizes[path] = sizes.get(path, 0) + size
    rows = _rows(program, bits, sizes)
    if sizes:  # read by no layer
        rows.append(LayerCost("(other)", "other", (), sum(sizes.values()), 0, 0))
    return Cost(tuple(rows))


def _rows(
    program: Program, bits: Mapping[str, tuple[int, int]], sizes: dict[str, int], times: int = 1
) -> list[LayerCost]:
    rows: list[LayerCost] = []
    for layer in program.layers:
        if layer.kind == "control flow":
            rows += _control_rows(layer, bits, sizes, times)
        elif layer.site:
            rows.append(_row(layer, bits, sizes, times))
    return rows


def _control_rows(
    layer: Layer, bits: Mapping[str, tuple[int, int]], sizes: dict[str, int], times: int
) -> list[LayerCost]:
    (node,) = layer.nodes
    if node.primitive is prim.p.scan_p:
        times *= node.params["length"]
    bodies = [_rows(p, bits, sizes, times) for p in layer.programs]
    if node.primitive is prim.p.cond_p:
        dearest = max(bodies, key=lambda rows: sum(r.macs for r in rows))
        idle = [r for rows in bodies if rows is not dearest for r in rows]
        return dearest + [LayerCost(r.site, r.kind, r.shape, r.params, 0, 0) for r in idle]
    return [row for rows in bodies for row in rows]


def _row(
    layer: Layer, bits: Mapping[str, tuple[int, int]], sizes: dict[str, int], times: int
) -> LayerCost:
    read = [path for v in layer.inputs if v.is_weight for path in v.leaves]
    params = sum(sizes.pop(path, 0) for path in read)
    macs = times * sum(node_macs(n) for n in layer.nodes)
    weight_bits, activation_bits = bits.get(layer.site) or _dtype_bits(layer)
    shape = tuple(layer.outputs[0].aval.shape)
    return LayerCost(
        layer.site, layer.kind, shape, params, macs, macs * weight_bits * activation_bits
    )


def _dtype_bits(layer: Layer) -> tuple[int, int]:
    def width(indices: tuple[int, ...]) -> int:
        sizes = [layer.inputs[i].aval.dtype.itemsize * 8 for i in indices]
        return max(sizes, default=32)

    return width(layer.weights or layer.data), width(layer.data)


def node_macs(node: Node) -> int:
    """Multiply-accumulates of one dot product or convolution, zero for anything else."""
    if node.primitive is prim.p.dot_general_p:
        (contracted, _), _ = node.params["dimension_numbers"]
        shape = node.inputs[0].aval.shape
        return math.prod(node.outputs[0].aval.shape) * math.prod(shape[i] for i in contracted)
    if node.primitive is prim.p.conv_general_dilated_p:
        return _convolution_macs(node)
    return 0


def _convolution_macs(node: Node) -> int:
    numbers = node.params["dimension_numbers"]
    image, kernel, result = (v.aval.shape for v in (*node.inputs, *node.outputs))
    batch, channels = (result[axis] for axis in numbers.out_spec[:2])
    sizes = zip(
        (image[axis] for axis in numbers.lhs_spec[2:]),
        (kernel[axis] for axis in numbers.rhs_spec[2:]),
        (result[axis] for axis in numbers.out_spec[2:]),
        *(node.params[n] for n in ("lhs_dilation", "rhs_dilation", "window_strides", "padding")),
        strict=True,
    )
    pairs = math.prod(_pairs(*of_axis) for of_axis in sizes)
    return batch * channels * kernel[numbers.rhs_spec[1]] * pairs  # input channels per group


def _pairs(
    size: int, taps: int, results: int, apart: int, between: int, stride: int, pad: tuple[int, int]
) -> int:
    """Products along one axis, of inputs that are `apart` and taps `between` steps from another."""
    if apart == 1:
        return results * taps
    if stride == 1:
        return size * taps
    starts = (pad[0] + apart * i - between * tap for i in range(size) for tap in range(taps))
    return sum(start % stride == 0 for start in starts)
