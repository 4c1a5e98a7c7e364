"""Dot products and convolutions as products of matrices, which is what a crossbar computes.

A convolution is the product of its patches with its kernel; a grouped one is a product per group,
and groups that fit share a tile along its diagonal, as a depthwise convolution's do.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.program.ir import Node
from jaxeff.program.ir import primitives as prim


class MatrixProduct(NamedTuple):
    """A layer's operation as products of matrices.

    Attributes:
        inputs: `[groups, vectors, rows]`.
        weights: `[groups, rows, columns]`.
        restore: Brings `[groups, vectors, columns]` to the shape that the operation returns.
    """

    inputs: Float[Array, "g p k"]
    weights: Float[Array, "g k n"]
    restore: Callable[[Any], Any]


def as_product(site: str, node: Node, left: Any, right: Any) -> MatrixProduct:
    """Converts an operation with one data operand to products of matrices.

    Raises:
        ValueError: The operation has no such form, or an operand is empty.
    """
    if not (left.size and right.size):
        raise ValueError(
            f"analog: {site!r} multiplies an empty array ({left.shape} by {right.shape}), so there "
            "is no tile to fill; leave the site out with None."
        )
    data_first = bool(node.inputs[0].is_data)
    if node.primitive is prim.p.dot_general_p:
        return _dot(node, left, right, data_first)
    if not data_first:
        raise ValueError(
            f"analog: the convolution {site!r} has its weight on the left, as a gradient has; a "
            "crossbar takes a convolution of data with a kernel only."
        )
    return _convolution(site, node, left, right)


def _dot(node: Node, left: Any, right: Any, data_first: bool) -> MatrixProduct:
    (left_summed, right_summed), (left_batch, right_batch) = node.params["dimension_numbers"]

    def free(x: Any, *taken: Any) -> list[int]:
        return [axis for axis in range(x.ndim) if axis not in {a for t in taken for a in t}]

    left_free, right_free = (
        free(left, left_summed, left_batch),
        free(right, right_summed, right_batch),
    )
    groups = [left.shape[a] for a in left_batch]
    rows = [left.shape[a] for a in left_summed]
    heights, widths = [left.shape[a] for a in left_free], [right.shape[a] for a in right_free]
    a = left.transpose(*left_batch, *left_free, *left_summed)
    a = a.reshape(math.prod(groups), math.prod(heights), math.prod(rows))
    b = right.transpose(*right_batch, *right_summed, *right_free)
    b = b.reshape(math.prod(groups), math.prod(rows), math.prod(widths))

    def restore(y: Any) -> Any:
        # JAX puts the left operand's free axes first: with the weight on the left the
        # product is transposed.
        y = y if data_first else y.mT
        return y.reshape(*groups, *heights, *widths)

    return MatrixProduct(a, b, restore) if data_first else MatrixProduct(b.mT, a.mT, restore)


def _convolution(site: str, node: Node, x: Any, kernel: Any) -> MatrixProduct:
    told = node.params
    if told["batch_group_count"] != 1:
        raise ValueError(
            f"analog: {site!r} is a convolution with batch_group_count="
            f"{told['batch_group_count']}, the form of a gradient; a crossbar takes none."
        )
    numbers, groups = told["dimension_numbers"], told["feature_group_count"]
    x = x.transpose(numbers.lhs_spec)
    kernel = kernel.transpose(numbers.rhs_spec)
    window = kernel.shape[2:]
    # Patches are copies: at the default precision an accelerator would round them.
    patches = lax.conv_general_dilated_patches(
        x, window, told["window_strides"], told["padding"], told["lhs_dilation"],
        told["rhs_dilation"], precision=lax.Precision.HIGHEST,
    )  # fmt: skip
    batch, _, *spatial = patches.shape
    rows = kernel.shape[1] * math.prod(window)
    a = patches.reshape(batch, groups, rows, math.prod(spatial))
    a = a.transpose(1, 0, 3, 2).reshape(groups, batch * math.prod(spatial), rows)
    b = kernel.reshape(groups, kernel.shape[0] // groups, rows).mT

    def restore(y: Any) -> Any:
        y = y.reshape(groups, batch, math.prod(spatial), b.shape[-1]).transpose(1, 0, 3, 2)
        y = y.reshape(batch, groups * b.shape[-1], *spatial)
        inverse = [numbers.out_spec.index(axis) for axis in range(y.ndim)]
        return y.transpose(inverse)

    return MatrixProduct(a, b, restore)


def packed(product: MatrixProduct, rows: int, columns: int) -> MatrixProduct:
    """Packs as many groups into a tile as fit along its diagonal."""
    groups, vectors, k = product.inputs.shape
    n = product.weights.shape[-1]
    # Grouped convolutions have small matrices: a block diagonal of them fills a tile, and
    # one vector of inputs serves them all. Off-diagonal zeros add nothing.
    together = min(groups, rows // k, columns // n)
    if together < 2:
        return product
    packs = -(-groups // together)
    missing = packs * together - groups
    a = jnp.pad(product.inputs, ((0, missing), (0, 0), (0, 0)))
    a = a.reshape(packs, together, vectors, k).transpose(0, 2, 1, 3)
    a = a.reshape(packs, vectors, together * k)
    b = jnp.pad(product.weights, ((0, missing), (0, 0), (0, 0))).reshape(packs, together, k, n)
    diagonal = jnp.eye(together, dtype=b.dtype)
    b = (b[:, :, :, None, :] * diagonal[None, :, None, :, None]).reshape(
        packs, together * k, together * n
    )

    def restore(y: Any) -> Any:
        y = y.reshape(packs, vectors, together, n).transpose(0, 2, 1, 3)
        return product.restore(y.reshape(packs * together, vectors, n)[:groups])

    return MatrixProduct(a, b, restore)


def tiled(a: jax.Array, rows: int, axis: int) -> jax.Array:
    """Splits an axis into tiles of so many entries; one that fits is a single tile."""
    axis %= a.ndim
    length = a.shape[axis]
    size = min(length, rows)
    count = -(-length // size)
    # Codes of zero fill up the last tile: they send no pulse and hold no weight.
    widths = [(0, count * size - length if i == axis else 0) for i in range(a.ndim)]
    return jnp.pad(a, widths).reshape(*a.shape[:axis], count, size, *a.shape[axis + 1 :])
