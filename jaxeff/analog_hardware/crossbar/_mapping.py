"""Dot products and convolutions as products of matrices, which is what a crossbar computes.

A convolution is the product of its patches with its kernel; a grouped one is a product per group,
and groups that fit share a tile along its diagonal, as a depthwise convolution's do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.program.ir import Contraction, Node


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
    contraction, params = Contraction.of(node), node.params
    if contraction.is_convolution and not node.inputs[0].is_data:
        raise ValueError(
            f"analog: the convolution {site!r} has its weight on the left, as a gradient has; a "
            "crossbar takes a convolution of data with a kernel only."
        )
    if contraction.is_convolution and params["batch_group_count"] != 1:
        raise ValueError(
            f"analog: {site!r} is a convolution with batch_group_count="
            f"{params['batch_group_count']}, the form of a gradient; a crossbar takes none."
        )
    # The weight is what the tiles hold, on whichever side of the product it is.
    data, weight = (left, right) if contraction.side else (right, left)
    return MatrixProduct(contraction.rows(data), contraction.matrix(weight), contraction.restore)


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
