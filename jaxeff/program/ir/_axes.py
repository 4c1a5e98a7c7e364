"""Axes: which axis of a tensor each axis of a value is, and which ones products sum over.

A value's *axes* are a tuple with one entry per axis: the axis of the tensor that it lies along, or
None where it lies along none (a broadcast one, one of size 1, another operand's).

A dot product pairs the `batch` axes of its operands, sums over the `summed` axes and keeps the
`free` ones:

    result[batch, free(0), free(1)] = sum over summed of left[batch, free(0), summed] * right[...]

A convolution is the dot product of its image's patches with its kernel: it sums over channels and
over the kernel's taps. Its kernel `[out, in, *taps]` slides along the `window` axes of the image
`[batch, channels, *places]`. Axes are numbers in the operand's own layout, whatever that is.

As matrices, both are `[g, rows, in] @ [g, in, out] -> [g, rows, out]`: a group for every entry of
the batch axes of a dot product, and for every feature group of a convolution.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jax import lax

from jaxeff.program.ir import _primitives as prim
from jaxeff.program.ir._graph import Node
from jaxeff.program.ir._signature import Relation, Signature

Axes: TypeAlias = tuple[int | None, ...]


def followed(of: Signature, known: Axes, operand: int = 0) -> Axes | None:
    """Returns the axes of an equation's result, given those of an operand.

    Axes that are summed over are gone; those that others have, or that repeat, lie along none.

    Returns None where one is no axis of the operand, such as a merged one, a window's, a part, or
    one of several results.
    """
    along = of.operands[operand].along[0] if len(of.operands[operand].along) == 1 else None
    if along is None or any(one.relation not in _FOLLOWED for one in along):
        return None
    return tuple(known[one.axes[0]] if one.relation is Relation.SAME else None for one in along)


_FOLLOWED = {Relation.SAME, Relation.BROADCAST}


def united(*operands: Axes) -> Axes:
    """Returns a pointwise result's axes: for each the first that an operand knows."""
    return tuple(
        next((a for a in along if a is not None), None) for along in zip(*operands, strict=True)
    )


def crosses(axes: Axes, result: Axes) -> bool:
    """Returns whether an operand lies along another axis than the pointwise result it goes into.

    An axis that the result has twice (`x[:, None] - x.max(1)[None, :]`) is crossed too.
    """
    known = [a for a in result if a is not None]
    twice = len(set(known)) < len(known)
    return twice or any(a not in (None, b) for a, b in zip(axes, result, strict=True))


def extent(shape: Sequence[int], dimensions: Sequence[int]) -> int:
    """Returns the number of entries along some dimensions."""
    return math.prod(shape[i] for i in dimensions)


_Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A dot product or convolution.

    Operands are numbered: 0 is the left one or the image, 1 the right one or the kernel.

    Attributes:
        params: The primitive's parameters.
        shapes: The shapes of both operands and of the result.
        is_convolution: Whether it is a convolution.
        side: The operand that `matrix` is for. `rows` is for the other one.
    """

    params: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    is_convolution: bool
    side: int = 1

    @classmethod
    def of(cls, node: Any) -> "Contraction":
        """Reads a node, or an equation of a jaxpr.

        The matrix is a dot product's first operand without data; the right one if all have data,
        or if nothing is known, as for an equation. Of a convolution it is always the kernel.

        Args:
            node: One whose primitive is in `primitives.LINEAR`.

        Raises:
            TypeError: The node is no dot product or convolution.
        """
        if node.primitive not in prim.LINEAR:
            raise TypeError(f"{node.primitive.name} is no dot product or convolution.")
        is_convolution = node.primitive is prim.p.conv_general_dilated_p
        if not isinstance(node, Node):
            (left, right), (result,) = node.invars, node.outvars
            side = 1
        else:
            (left, right), (result,) = node.inputs, node.outputs
            # A literal has no role: it depends on no data.
            side = 1 if is_convolution or getattr(left, "is_data", False) else 0
        shapes = (left.aval.shape, right.aval.shape, result.aval.shape)
        return cls(node.params, shapes, is_convolution, side)

    def batch(self, side: int) -> _Axes:
        """Returns an operand's axes that are the result's, too, each entry a product of its own."""
        return () if self.is_convolution else tuple(self.params["dimension_numbers"][1][side])

    def summed(self, side: int) -> _Axes:
        """Returns an operand's axes that are summed over, in pairs; the channels of a group."""
        if self.is_convolution:
            return (self.layouts[side][1],)
        return tuple(self.params["dimension_numbers"][0][side])

    def window(self, side: int) -> _Axes:
        """Returns a convolution's axes of places (0), taps (1) or the result's places (2).

        A dot product has none.
        """
        return self.layouts[side][2:] if self.is_convolution else ()

    def free(self, side: int) -> _Axes:
        """Returns an operand's axes that the result has and the other operand hasn't.

        Of a convolution: the image's batch, the kernel's output channels.
        """
        if self.is_convolution:
            return (self.layouts[side][0],)
        taken = {*self.summed(side), *self.batch(side)}
        return tuple(axis for axis in range(len(self.shapes[side])) if axis not in taken)

    @property
    def taps(self) -> int:
        """How many entries of a kernel each channel meets; one for a dot product."""
        return math.prod(self.shapes[1][axis] for axis in self.window(1))

    @property
    def layouts(self) -> tuple[_Axes, _Axes, _Axes]:
        """The axes of a convolution's image, kernel and result.

        Returns:
            `(batch, channels, *places)`, `(out, in, *taps)` and `(batch, channels, *places)`.
        """
        numbers = self.params["dimension_numbers"]
        return numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec

    @property
    def is_channels_last(self) -> bool:
        """Whether channels are last in all arrays, as Flax has them, and nothing is batched.

        For a dot product: `[..., in]` times `[in, out]`. For a convolution: `[batch, *places,
        channels]` with `[*taps, in, out]`.
        """
        last = len(self.shapes[0]) - 1
        if self.is_convolution:
            return self.layouts == tuple(channels_last_numbers(last + 1))
        plain = self.summed(0) == (last,) and self.summed(1) == (0,)
        return plain and not self.batch(0) and len(self.shapes[1]) == 2

    @property
    def groups(self) -> int:
        """The number of matrices."""
        if self.is_convolution:
            return int(self.params["feature_group_count"])
        return math.prod(self.shapes[0][axis] for axis in self.batch(0))

    @property
    def macs(self) -> int:
        """Multiply-accumulates, padding included; inserted zeros between inputs are not."""
        left, right, result = self.shapes
        if not self.is_convolution:
            return math.prod(result) * math.prod(left[axis] for axis in self.summed(0))
        image, kernel, out = self.layouts
        sizes = zip(
            *([shape[axis] for axis in layout[2:]]
              for shape, layout in zip(self.shapes, (image, kernel, out), strict=True)),
            *(self.params[name] for name in
              ("lhs_dilation", "rhs_dilation", "window_strides", "padding")),
            strict=True,
        )  # fmt: skip
        products = math.prod(_products(*of_axis) for of_axis in sizes)
        return result[out[0]] * result[out[1]] * right[kernel[1]] * products

    @property
    def fan_in(self) -> float:
        """The terms in each sum; the mean over outputs for a transposed convolution."""
        left, right, _ = self.shapes
        if not self.is_convolution:
            return float(math.prod(left[axis] for axis in self.summed(0)))
        # Of neighbouring outputs each meets other taps: only every `apart`-th input is no zero.
        window = zip(self.window(1), self.params["lhs_dilation"], strict=True)
        taps = math.prod(max(1.0, right[axis] / apart) for axis, apart in window)
        return taps * right[self.summed(1)[0]]

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the operand that `matrix` is for."""
        return self.shapes[self.side]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """The groups, inputs and outputs of `matrix`."""
        shape = self.shapes[self.side]
        inputs = math.prod(shape[axis] for axis in self._inputs)
        return self.groups, inputs, math.prod(shape) // (self.groups * inputs)

    @property
    def _inputs(self) -> _Axes:
        """The matrix operand's axes that are summed over."""
        return self.summed(self.side) + self.window(self.side)

    def matrix(self, w: Any) -> Any:
        """Brings the matrix operand to `[g, in, out]`; NumPy's array or JAX's.

        Inputs are in the order of `summed`, then of the taps.

        Args:
            w: The operand, or one with size one along all summed axes.
        """
        batch, free = self.batch(self.side), self.free(self.side)
        inputs = math.prod(w.shape[axis] for axis in self._inputs)
        if self.is_convolution:
            # A group's outputs lie beside each other: [g * out, in] splits into groups.
            flat = w.transpose(free + self._inputs).reshape(self.groups, -1, inputs)
            return flat.swapaxes(1, 2)
        return w.transpose(batch + self._inputs + free).reshape(self.groups, inputs, -1)

    def weight(self, matrix: Any) -> Any:
        """Brings `[g, in, out]` back to the layout of the matrix operand.

        Args:
            matrix: What `matrix` returned; one with a single input gets summed axes of size one. A
                convolution's may have any number of outputs.
        """
        batch, inputs, free = self.batch(self.side), self._inputs, self.free(self.side)
        order = free + inputs if self.is_convolution else batch + inputs + free
        shape = self.shapes[self.side]
        # A single input stands for any: where one is rounded at a time, or a scale shared by all.
        is_full = matrix.shape[1] > 1 or all(shape[axis] == 1 for axis in inputs)
        sizes = [shape[axis] if is_full or axis not in inputs else 1 for axis in order]
        if self.is_convolution:
            sizes[0] = matrix.shape[0] * matrix.shape[2]
        flat = matrix.swapaxes(1, 2) if self.is_convolution else matrix
        return flat.reshape(sizes).transpose(inverse(order))

    def single_taps(self, y: Any, matrix: Any) -> Any:
        """Multiplies the channels of a convolution's result by `[g, in, out]`, group by group."""
        kernel = matrix.swapaxes(1, 2).reshape(-1, matrix.shape[1], *(1,) * (y.ndim - 2))
        _, layout, out = self.layouts
        return lax.conv_general_dilated(
            y, kernel.transpose(inverse(layout)), (1,) * (y.ndim - 2), "VALID",
            dimension_numbers=lax.ConvDimensionNumbers(out, layout, out),
            feature_group_count=self.groups, precision=self.params["precision"],
        )  # fmt: skip

    def rows(self, x: Any, side: int | None = None) -> Any:
        """Brings the operand beside the matrix to `[g, rows, in]`; a convolution's to patches.

        Rows are in the order of the batch, then of the result's places; padding and inserted
        zeros are zeros.

        Args:
            x: The operand. Free axes may have other sizes than the node's.
            side: Position of the operand in a dot product; by default, the one beside the matrix.
        """
        side = 1 - self.side if side is None else side
        if self.is_convolution:
            return self._patches(x)
        batch, free, summed = self.batch(side), self.free(side), self.summed(side)
        sizes = (math.prod(x.shape[axis] for axis in axes) for axes in (batch, free, summed))
        return x.transpose(batch + free + summed).reshape(*sizes)

    def _patches(self, x: Any) -> Any:
        batch, channels, *places = self.layouts[0]
        last = len(x.shape) - 1
        # A kernel for each channel and tap, which copies this one entry; as channels, the taps are
        # grouped, too.
        taps = [self.shapes[1][axis] for axis in self.window(1)]
        one = np.eye(self.taps, dtype=x.dtype).reshape(-1, 1, *taps)
        kernel: Any = np.tile(one, (x.shape[channels], *(1,) * last))
        # Highest precision: patches are copies, which the default would round on a TPU.
        patches = lax.conv_general_dilated(
            x,
            kernel,
            self.params["window_strides"],
            self.params["padding"],
            self.params["lhs_dilation"],
            self.params["rhs_dilation"],
            lax.ConvDimensionNumbers(
                (batch, channels, *places), tuple(range(last + 1)), (0, last, *range(1, last))
            ),
            feature_group_count=x.shape[channels],
            precision=lax.Precision.HIGHEST,
        )  # [batch, *places, channels * taps]
        inputs = patches.shape[last] // self.groups
        if self.groups == 1:
            return patches.reshape(1, -1, inputs)
        return patches.reshape(-1, self.groups, inputs).transpose(1, 0, 2)

    def restore(self, y: Any) -> Any:
        """Brings products of matrices, `[g, rows, out]`, to the shape of the node's result."""
        result = self.shapes[2]
        if not self.is_convolution:
            # The result has the left operand's free axes first, which are the matrix's for side 0.
            return (y if self.side else y.mT).reshape(result)
        batch, channels, *places = self.layouts[2]
        sizes = [result[axis] for axis in places]
        if self.groups > 1:
            y = y.transpose(1, 0, 2)
        y = y.reshape(-1, *sizes, y.shape[-1] * self.groups)
        return y.transpose(inverse((batch, *places, channels)))


def inverse(order: Sequence[int]) -> list[int]:
    """Returns the order of axes that undoes an order."""
    return sorted(range(len(order)), key=order.__getitem__)


def channels_last_numbers(rank: int) -> lax.ConvDimensionNumbers:
    """Returns how convolutions of arrays of a rank lie with channels last."""
    last, places = rank - 1, range(1, rank - 1)
    image = (0, last, *places)
    return lax.ConvDimensionNumbers(image, (last, last - 1, *range(last - 1)), image)


def _products(
    size: int, taps: int, results: int, apart: int, between: int, stride: int, pad: tuple[int, int]
) -> int:
    """Counts products along one axis.

    `apart` is the distance of inputs (more than 1 in a transposed convolution), `between` that of
    taps, `stride` that of outputs.
    """
    if apart == 1:
        return results * taps
    if stride == 1:
        return size * taps
    # An input meets a tap where their offset is an output's, which are `stride` apart.
    starts = (pad[0] + apart * i - between * tap for i in range(size) for tap in range(taps))
    return sum(start % stride == 0 for start in starts)
