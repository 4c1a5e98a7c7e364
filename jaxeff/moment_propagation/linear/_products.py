"""Products of examples with matrices, and rows of tables: their part of the variance, or gradients.

A dot product or a convolution is brought to `[groups, examples, rows, in] @ [groups, in, out]`
first; a convolution by the patches of its image.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.moment_propagation.linear._slopes import RowSlopes, SpreadSum, gathered
from jaxeff.program.ir import Contraction, Node


def of_product(
    spread: SpreadSum,
    node: Node,
    operand: int,
    other: Array,
    axis: int | None,
    slopes: RowSlopes,
    var: Array,
) -> Array:
    """Computes the part of the variance that the matrices of a product make, `[seeds, examples]`.

    Args:
        spread: How slopes are squared and summed.
        node: The dot product or convolution.
        operand: The position of the matrices among the operands.
        other: The other operand.
        axis: The axis of examples in `other`.
        slopes: The slopes by the result.
        var: Variances of the matrices' entries; of size one where they are the same.
    """
    contraction = replace(Contraction.of(node), side=operand)
    x, g = _rows(contraction, other, axis), _rows_of_result(contraction, slopes.slopes, axis)
    return spread.of_product(x, g, _matrices(contraction, var))


def by_matrix(node: Node, operand: int, other: Array, axis: int | None, slopes: RowSlopes) -> Array:
    """Computes every example's slopes by the matrices, `[seeds, examples, *shape]`."""
    contraction = replace(Contraction.of(node), side=operand)
    x, g = _rows(contraction, other, axis), _rows_of_result(contraction, slopes.slopes, axis)
    gradients = jnp.einsum("heti,kheto->kehio", x, g)
    if contraction.is_convolution and contraction.taps > 1:
        groups, into, out = gradients.shape[2:]
        apart = gradients.reshape(
            *gradients.shape[:2], groups, contraction.taps, into // contraction.taps, out
        )
        gradients = apart.swapaxes(3, 4).reshape(gradients.shape)
    return jax.vmap(jax.vmap(contraction.weight))(gradients)


def _matrices(contraction: Contraction, var: Array) -> Array:
    """Brings variances to `[groups, in, out]`, of size one where they don't depend on in or out."""
    side = contraction.side
    full = contraction.matrix(jnp.broadcast_to(var, contraction.weight_shape))
    into = contraction.summed(side) + contraction.window(side)
    if all(var.shape[a] == 1 for a in into):
        full = full[:, :1]
    elif contraction.taps > 1:
        # Patches hold all channels of a tap side by side.
        groups, rows, out = full.shape
        apart = full.reshape(groups, rows // contraction.taps, contraction.taps, out)
        full = apart.swapaxes(1, 2).reshape(full.shape)
    return full[:, :, :1] if all(var.shape[a] == 1 for a in contraction.free(side)) else full


def _rows(contraction: Contraction, x: Array, axis: int | None) -> Array:
    """Brings the other operand to `[groups, examples, rows, in]`."""
    side = 1 - contraction.side
    if contraction.is_convolution:
        patches = _patches(contraction, x)
        if axis is None:
            patches = patches.reshape(1, -1, *patches.shape[2:])
        groups = contraction.groups
        # [examples, places, taps, groups * in]
        apart = patches.reshape(*patches.shape[:3], groups, -1)
        return jnp.moveaxis(apart, 3, 0).reshape(groups, *patches.shape[:2], -1)
    free = contraction.free(side)
    rows = contraction.rows(x, side)
    return _by_example(
        rows, 1, [x.shape[a] for a in free], None if axis is None else free.index(axis)
    )


def _rows_of_result(contraction: Contraction, g: Array, axis: int | None) -> Array:
    """Brings slopes by the result to `[seeds, groups, examples, rows, out]`."""
    if contraction.is_convolution:
        batch, channels, *places = contraction.layouts[2]
        moved = g.transpose(0, *(a + 1 for a in (batch, *places, channels)))
        sizes = (len(g), moved.shape[1], -1) if axis is not None else (len(g), 1, -1)
        apart = moved.reshape(*sizes, contraction.groups, moved.shape[-1] // contraction.groups)
        return jnp.moveaxis(apart, 3, 1)
    side = 1 - contraction.side
    free, shape = contraction.free(side), contraction.shapes[side]
    outputs, groups = len(contraction.free(contraction.side)), len(contraction.batch(side))
    out = math.prod(g.shape[1 + groups :]) // math.prod(shape[a] for a in free)
    if not contraction.side:
        # The matrix is on the left: its outputs come first.
        first, last = 1 + groups, 1 + groups + outputs
        g = g.transpose(*range(first), *range(last, g.ndim), *range(first, last))
    g = g.reshape(len(g), contraction.groups, -1, out)
    return _by_example(g, 2, [shape[a] for a in free], None if axis is None else free.index(axis))


def _by_example(x: Array, at: int, sizes: Sequence[int], example: int | None) -> Array:
    """Splits an axis of rows, of given sizes, into examples and the rest."""
    if example is None:
        return jnp.expand_dims(x, at)
    apart = x.reshape(*x.shape[:at], *sizes, *x.shape[at + 1 :])
    moved = jnp.moveaxis(apart, at + example, at)
    return moved.reshape(*x.shape[:at], sizes[example], -1, *x.shape[at + 1 :])


def _patches(contraction: Contraction, x: Array) -> Array:
    """Reads what each tap reads at each place, `[batch, places, taps, channels]`."""
    q = contraction.params
    batch, channels, *places = contraction.layouts[0]
    x = x.transpose(batch, *places, channels)
    between = zip(q["padding"], q["lhs_dilation"], strict=True)
    within = [(low, high, apart - 1) for (low, high), apart in between]
    padded = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *within, (0, 0, 0)])
    taps = [contraction.shapes[1][a] for a in contraction.window(1)]
    sizes = [contraction.shapes[2][a] for a in contraction.window(2)]
    strides, apart = q["window_strides"], q["rhs_dilation"]
    windows = []
    for tap in itertools.product(*map(range, taps)):
        start = [t * d for t, d in zip(tap, apart, strict=True)]
        stop = [s + (n - 1) * d + 1 for s, n, d in zip(start, sizes, strides, strict=True)]
        part = jax.lax.slice(padded, (0, *start, 0), (len(x), *stop, x.shape[-1]), (1, *strides, 1))
        windows.append(part.reshape(len(x), -1, 1, x.shape[-1]))
    return jnp.concatenate(windows, axis=2)


def _looked_up(node: Node, indices: Array, slopes: RowSlopes) -> tuple[Array, Array]:
    """Returns slopes `[seeds, examples, places, row]` and rows' numbers `[examples, places]`.

    The number of what is outside of the table is its length.
    """
    table = node.inputs[0].aval.shape
    places = indices.shape[:-1]
    g = slopes.slopes.reshape(len(slopes.slopes), math.prod(places), -1)
    g = _by_example(g, 1, places, slopes.axis)
    numbers = _by_example(indices[..., 0].reshape(-1), 0, places, slopes.axis)
    if node.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        return g, jnp.clip(numbers, 0, table[0] - 1)
    # What is filled in for a row that isn't there has no slope.
    return g, jnp.where((numbers >= 0) & (numbers < table[0]), numbers, table[0])


def of_look_up(
    spread: SpreadSum, node: Node, indices: Array, slopes: RowSlopes, var: Array
) -> Array:
    """Computes the part of the variance that a table makes whose rows are looked up.

    A row that is looked up at several places is the same random value there:
    sum over places p, q with one row r of v_r g_p g_q.
    """
    g, numbers = _looked_up(node, indices, slopes)
    rows = node.inputs[0].aval.shape[0]
    same = (numbers[:, :, None] == numbers[:, None, :]) & (numbers < rows)[:, None, :]
    shape = (var.shape[0], *node.inputs[0].aval.shape[1:])
    table = jnp.broadcast_to(var, shape).reshape(shape[0], -1)
    of_rows = table if shape[0] == 1 else table[jnp.minimum(numbers, rows - 1)]
    # All places of a row, at each of them.
    summed = jnp.einsum("epq,keqd->kepd", same.astype(g.dtype), g)
    # `[1, row]` where all rows have the same.
    weighted = g * (of_rows[None] if of_rows.ndim == 3 else of_rows[None, None])
    if spread.full:
        return jnp.einsum("kepd,lepd->kle", weighted, summed)
    return (weighted * summed).sum((2, 3))


def by_table(node: Node, indices: Array, slopes: RowSlopes) -> Array:
    """Computes every example's slopes by a table whose rows are looked up."""
    g, numbers = _looked_up(node, indices, slopes)
    shape = node.inputs[0].aval.shape
    return gathered(g, numbers, shape[0]).reshape(*g.shape[:2], *shape)


def repeated(shape: Sequence[int], along: Sequence[int], slopes: RowSlopes) -> Array:
    """Computes every example's slopes by what is repeated along the examples' axis.

    Args:
        shape: The shape of what is repeated.
        along: The axis of the result that each of its axes lies along.
        slopes: The slopes by the result.
    """
    assert slopes.axis is not None
    out = slopes.slopes.shape[1:]
    sizes = dict(zip(along, shape, strict=True))
    g = jnp.moveaxis(slopes.slopes, slopes.axis + 1, 1)
    others = [a for a in range(len(out)) if a != slopes.axis]
    summed = [i + 2 for i, a in enumerate(others) if sizes.get(a) != out[a]]
    return g.sum(summed).reshape(*g.shape[:2], *shape)
