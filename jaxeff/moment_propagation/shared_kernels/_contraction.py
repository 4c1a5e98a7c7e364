"""A convolution or dense layer as it acts on the means of channels over positions.

The mean over the result's positions of `y[p] = sum_t w_t x[s p + t]` is `sum_t w_t x_t`, where x_t
is the mean of what a tap t reads. So the noise of the mean of a result is a matrix times the noise
of the means of the channels, plus what the kernel's own noise adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.shared_kernels._layout import BATCH, CHANNEL, FIRST_PLACE
from jaxeff.program.ir import Axes, Contraction, Node


@dataclass(frozen=True)
class PositionContraction:
    """A contraction of channels that is the same at all positions, in the canonical layout.

    Attributes:
        node: The equation.
        contraction: The same, read.
    """

    node: Node
    contraction: Contraction

    @classmethod
    def of(cls, node: Node) -> PositionContraction | None:
        """Reads an equation; None where it is of no form that is known here."""
        c, q = Contraction.of(node), node.params
        if not c.is_convolution:
            return cls(node, c) if c.is_channels_last else None
        return cls(node, c) if q["batch_group_count"] == 1 else None

    @property
    def layouts(self) -> tuple[Axes, Axes] | None:
        """The layouts of a convolution's image and result; None for a dense layer."""
        if not self.contraction.is_convolution:
            return None
        image, _, result = self.contraction.layouts
        return _layout(image), _layout(result)

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return self.contraction.groups if self.contraction.is_convolution else 1

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel of the result is made of one channel of its own."""
        shape = self.contraction.shapes[1]
        if not self.contraction.is_convolution:
            return False
        out, inputs, *_ = self.contraction.layouts[1]
        return shape[inputs] == 1 and shape[out] == self.groups

    def kernel(self, w: Array) -> Array:
        """Brings a kernel to `[*taps, in, out]`."""
        if not self.contraction.is_convolution:
            return w
        out, inputs, *taps = self.contraction.layouts[1]
        return lax.transpose(w, (*taps, inputs, out))

    def apply(self, x: Array, kernel: Array) -> Array:
        """Computes the contraction of canonical operands."""
        q, last = dict(self.node.params), x.ndim - 1
        if not self.contraction.is_convolution:
            q["dimension_numbers"] = (((last,), (0,)), ((), ()))
            q["out_sharding"] = None
            return p.dot_general_p.bind(x, kernel, **q)
        image = (0, last, *range(1, last))
        numbers = lax.ConvDimensionNumbers(image, (last, last - 1, *range(last - 1)), image)
        return p.conv_general_dilated_p.bind(x, kernel, **{**q, "dimension_numbers": numbers})

    def by_tap(self, x: Array) -> Array:
        """Computes the mean over the result's positions of what each tap reads.

        Args:
            x: `[batch, *positions, channels]`.

        Returns:
            `[batch, groups, channels of a group, taps]`.
        """
        if not self.contraction.is_convolution:
            means = x.mean(tuple(range(1, x.ndim - 1)))[..., None]
        else:
            means = x
            for reads in self._reads(x.shape[1:-1]):
                # The next axis of positions is always the first that is left.
                means = jnp.tensordot(means, reads.astype(x.dtype), axes=((1,), (1,)))
            means = means.reshape(x.shape[0], x.shape[-1], -1)
        return means.reshape(x.shape[0], self.groups, -1, means.shape[-1])

    def _reads(self, sizes: tuple[int, ...]) -> list[Any]:
        """Makes a matrix per axis: the share of the result's positions at which a tap reads one."""
        q, c = self.node.params, self.contraction
        found = []
        for axis, size in enumerate(sizes):
            taps = c.shapes[1][c.window(1)[axis]]
            results = c.shapes[2][c.window(2)[axis]]
            stride, apart = q["window_strides"][axis], q["rhs_dilation"][axis]
            first = np.arange(results) * stride - q["padding"][axis][0]
            read = first[None, :, None] + apart * np.arange(taps)[:, None, None]
            # A transposed convolution reads zeros between the entries of its image.
            found.append((read == q["lhs_dilation"][axis] * np.arange(size)).mean(1))
        return found

    def by_group(self, kernel: Array) -> Array:
        """Brings a kernel `[*taps, in, out]` to `[taps, in, groups, out of a group]`."""
        return kernel.reshape(-1, kernel.shape[-2], self.groups, kernel.shape[-1] // self.groups)

    def slopes(self, kernel: Array, by_tap: Array) -> Array:
        """Computes the matrix that acts on the channels' means.

        Returns:
            `[batch, in, out]`; its diagonal `[batch, channels]` if it is depthwise.
        """
        blocks = jnp.einsum("bgit,tigo->bgio", by_tap, self.by_group(kernel))
        batch, groups, inputs, outputs = blocks.shape
        if self.is_depthwise:
            return blocks.reshape(batch, groups)
        if groups == 1:
            return blocks.reshape(batch, inputs, outputs)
        unit = jnp.eye(groups, dtype=blocks.dtype)
        full = blocks[:, :, :, None, :] * unit[:, None, :, None]
        return full.reshape(batch, groups * inputs, groups * outputs)

    def own(self, var: Array, squares: Array) -> Array:
        """Computes the variance of the means that the kernel's own noise makes, `[batch, out]`.

        Args:
            var: The kernel's variances, `[*taps, in, out]`.
            squares: The mean square of what each tap reads on average, as `by_tap` returns it.
        """
        made = jnp.einsum("bgit,tigo->bgo", squares, self.by_group(var))
        return made.reshape(made.shape[0], -1)


def convolved_layout(op: Node) -> Axes | None:
    """Returns the layout of a convolution's result; None for a dense layer."""
    contraction = Contraction.of(op)
    return _layout(contraction.layouts[2]) if contraction.is_convolution else None


def _layout(numbers: tuple[int, ...]) -> Axes:
    layout = [0] * len(numbers)
    for role, axis in enumerate(numbers):
        layout[axis] = {0: BATCH, 1: CHANNEL}.get(role, FIRST_PLACE + role - 2)
    return tuple(layout)
