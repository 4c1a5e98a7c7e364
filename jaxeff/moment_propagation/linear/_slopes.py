"""Slopes of all results (rows of the Jacobian), kept apart by examples, and their variances.

The backward pass (`_backward`) is started with one *seed* per entry of an example's result, for all
examples together: rows of an array that hold one example each get a slope of their own, since
examples don't mix. Two forms of slopes follow from that, of an array of any shape:

    RowSlopes     `[seeds, *shape]`, of an array with an axis of examples: a row's are its example's
    SharedSlopes  `[seeds, examples, *shape]`, of an array that examples share, such as a weight

Where examples can't be told apart, everything is one example: `RowSlopes` without an axis.

`SpreadSum` squares slopes, weighs them by variances and sums them: a variance by each array.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array

GRADIENT_ENTRIES = 2**20
"""Entries of a weight's gradients that are held at once, 4 MiB in float32."""
_SMALL = 2**16
"""Entries, at most, of an array whose slopes are put beside those of others."""
_GRADIENT_COST = 16
"""What an entry of a gradient costs, squared and weighted, in multiply-accumulates of a product."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RowSlopes:
    """Slopes by an array whose rows along one axis belong to different examples.

    Attributes:
        slopes: `[seeds, *shape]`.
        axis: The axis of examples in `shape`; None if everything is one example.
    """

    slopes: Array
    axis: int | None = field(metadata={"static": True})

    def by_example(self) -> Array:
        """Returns `[seeds, examples, entries]`."""
        if self.axis is None:
            g = self.slopes[:, None]
        else:
            g = jnp.moveaxis(self.slopes, self.axis + 1, 1)
        return g.reshape(*g.shape[:2], -1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SharedSlopes:
    """Slopes by an array that all examples share, `[seeds, examples, *shape]`."""

    slopes: Array

    def by_example(self) -> Array:
        """Returns `[seeds, examples, entries]`."""
        return self.slopes.reshape(*self.slopes.shape[:2], -1)


Slopes = RowSlopes | SharedSlopes


def only_row(g: Array, axis: int, example: Array) -> Array:
    """Sets slopes `[seeds, *shape]` to zero in the rows of all other examples."""
    is_example = jnp.arange(g.shape[axis + 1]) == example
    return jnp.where(is_example.reshape(*[1] * (axis + 1), -1, *[1] * (g.ndim - axis - 2)), g, 0)


def to_shared(slopes: Slopes) -> SharedSlopes:
    """Brings slopes to the form of an array that examples share."""
    if isinstance(slopes, SharedSlopes):
        return slopes
    # An example's slopes by the rows of others are zero.
    assert slopes.axis is not None
    g, axis = slopes.slopes, slopes.axis
    examples = jnp.arange(g.shape[axis + 1])
    return SharedSlopes(jax.vmap(lambda b: only_row(g, axis, b), out_axes=1)(examples))


def add_slopes(first: Slopes | None, second: Slopes) -> Slopes:
    """Adds slopes by one array that were found on two ways; None is nothing yet."""
    if first is None:
        return second
    if isinstance(first, RowSlopes) and isinstance(second, RowSlopes) and first.axis == second.axis:
        return RowSlopes(first.slopes + second.slopes, first.axis)
    return SharedSlopes(to_shared(first).slopes + to_shared(second).slopes)


@dataclass(frozen=True)
class SpreadSum:
    """How slopes are squared and summed.

    Attributes:
        examples: The number of examples.
        full: Whether the products of any two seeds' slopes are asked for, rather than squares.
    """

    examples: int
    full: bool

    def of_arrays(self, arrays: Sequence[tuple[Slopes, Array, Sequence[int]]]) -> Array | float:
        """Sums squared slopes by arrays, weighted by their variances.

        Args:
            arrays: Slopes, variances that broadcast, and shape of each.

        Returns:
            `[seeds, examples]`, or `[seeds, seeds, examples]` if `full`; zero if there are none.
        """
        total: Array | float = 0.0
        small: list[tuple[Array, Array]] = []
        for slopes, var, shape in arrays:
            g, var = slopes.by_example(), jnp.broadcast_to(var, shape)
            if isinstance(slopes, RowSlopes) and slopes.axis is not None:
                v = jnp.moveaxis(var, slopes.axis, 0).reshape(g.shape[1], -1)
                total = total + self._summed(g, v)
            elif var.size > _SMALL:
                total = total + self._summed(g, var.reshape(1, -1))
            else:
                small.append((g, var.reshape(1, -1)))
        # Biases and scales are many: side by side they are one sum, which is compiled once.
        for dtype in dict.fromkeys(g.dtype for g, _ in small):
            parts = [(g, v) for g, v in small if g.dtype == dtype]
            g, v = (jnp.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True))
            total = total + self._summed(g, v)
        return total

    def _summed(self, g: Array, v: Array) -> Array:
        """Sums over the last axis of `[seeds, examples, entries]`."""
        if self.full:
            return jnp.einsum("ken,len->kle", g * v[None], g)
        return (g * g * v[None]).sum(-1)

    def of_product(self, x: Array, g: Array, v: Array) -> Array:
        """Sums squared slopes by the matrices of a product, weighted by their variances.

        A product of examples with a weight array that nothing else reads is a matrix product x w of
        T rows of an example (positions, tokens, patches). With g the slope by its result,

            sum_io v_io (sum_t x_ti g_to)^2                                  by gradients
          = sum_tu sum_o g_to g_uo q_tuo,  q_tuo = sum_i v_io x_ti x_ui      by pairs of rows

        The first makes a gradient `[in, out]` a seed; the second makes none, only q, `[T, T, out]`,
        which serves all seeds: with one row it is (x^2) v (g^2). What costs fewer operations is
        taken.

        Args:
            x: Rows that are multiplied, `[groups, examples, rows, in]`.
            g: Slopes by the product, `[seeds, groups, examples, rows, out]`.
            v: Variances `[groups, in, out]`, or of size one along these axes.

        Returns:
            `[seeds, examples]`, or `[seeds, seeds, examples]` if `full`.
        """
        rows, inputs, outputs, seeds = *x.shape[2:], g.shape[-1], len(g)
        if rows == 1:
            return self._of_pairs(g, g, _by_rows(x * x, v))
        # A pair's q is a row of a product of its own, but where variances don't depend on the
        # inputs and outputs together.
        pair_cost = inputs * (outputs if v.shape[1] > 1 and v.shape[2] > 1 else 1)
        pairs_cost = rows * (rows + 1) // 2 * pair_cost + 2 * seeds * rows * rows * outputs
        gradients_cost = seeds * inputs * outputs * (rows + _GRADIENT_COST)
        if gradients_cost <= pairs_cost:
            return self._by_gradients(x, g, v)
        return self._by_pairs(x, g, v)

    def _of_pairs(self, g: Array, h: Array, q: Array) -> Array:
        """Sums products of two rows' slopes, `[seeds, groups, examples, rows, out]`."""
        if self.full:
            return jnp.einsum("kheto,lheto->kle", g * q[None], h)
        return (g * h * q[None]).sum((1, 3, 4))

    def _by_pairs(self, x: Array, g: Array, v: Array) -> Array:
        """Sums over pairs of rows, as `of_product` says; its arguments."""
        rows = x.shape[2]
        if v.shape[2] == 1 or v.shape[1] == 1:
            # The same for all outputs, or for all inputs: what differs along the other axis scales
            # the rows.
            ones = jnp.ones((1, 1, 1), v.dtype)
            v_in, v_out = (v, ones) if v.shape[2] == 1 else (ones, v)
            q = jnp.einsum("heti,heui->hetu", x * v_in[:, None, :, :].mT, x)
            weighted = jnp.einsum("hetu,kheuo->kheto", q, g * v_out[None, :, None])
            if self.full:
                return jnp.einsum("kheto,lheto->kle", g, weighted)
            return (g * weighted).sum((1, 3, 4))
        # Rows go around: a pair of rows that are so far apart, forwards or backwards, is met once.
        distances = rows // 2 + 1
        x_twice, g_twice = jnp.concatenate([x, x], axis=2), jnp.concatenate([g, g], axis=3)

        def at_distance(distance: Array) -> Array:
            x_other = jax.lax.dynamic_slice_in_dim(x_twice, distance, rows, 2)
            g_other = jax.lax.dynamic_slice_in_dim(g_twice, distance, rows, 3)
            # A row with itself counts once, and so do rows half way around, which meet both ways.
            is_once = (distance == 0) | (2 * distance == rows)
            count = jnp.where(is_once, 1, 2).astype(v.dtype)
            part = self._of_pairs(g, g_other, _by_rows(x * x_other, v) * count)
            return (part + part.swapaxes(0, 1)) / 2 if self.full else part

        def add(total: Array, distance: Array) -> tuple[Array, None]:
            return total + at_distance(distance), None

        shape = jax.eval_shape(at_distance, jnp.int32(0))
        zeros = jnp.zeros(shape.shape, shape.dtype)
        return jax.lax.scan(add, zeros, jnp.arange(distances, dtype=jnp.int32))[0]

    def _by_gradients(self, x: Array, g: Array, v: Array) -> Array:
        """Sums over the weight's gradients, as `of_product` says; its arguments."""
        inputs, outputs, seeds = x.shape[3], g.shape[-1], len(g)
        groups, examples = x.shape[:2]
        v = jnp.broadcast_to(v, (groups, inputs, outputs))
        if groups * examples * inputs * outputs * seeds <= GRADIENT_ENTRIES:
            gradients, variances = jnp.einsum("heti,kheto->kheio", x, g), v[None, :, None]
            if self.full:
                return jnp.einsum("kheio,lheio->kle", gradients * variances, gradients)
            return (gradients * gradients * variances).sum((1, 3, 4))

        # Too many at once: example by example, and of each as many inputs as fit.
        def of_example(x_and_g: tuple[Array, Array]) -> Array:
            x, g = x_and_g  # [groups, rows, in], [seeds, groups, rows, out]

            def of_input(x_and_v: tuple[Array, Array]) -> Array:
                x, v = x_and_v  # [groups, rows], [groups, out]
                gradients = jnp.einsum("ht,khto->kho", x, g)
                if self.full:
                    return jnp.einsum("kho,lho->kl", gradients * v[None], gradients)
                return (gradients * gradients * v[None]).sum((1, 2))

            inputs_at_once = max(GRADIENT_ENTRIES // max(groups * outputs * seeds, 1), 1)
            by_input = jnp.moveaxis(x, 2, 0), jnp.moveaxis(v, 1, 0)
            return jax.lax.map(of_input, by_input, batch_size=min(inputs_at_once, inputs)).sum(0)

        by_example = jax.lax.map(of_example, (x.swapaxes(0, 1), jnp.moveaxis(g, 2, 0)))
        return jnp.moveaxis(by_example, 0, -1)


def _by_rows(x: Array, v: Array) -> Array:
    """Multiplies rows `[groups, ..., in]` by variances `[groups, in, out]`."""
    if v.shape[1] == 1:
        return x.sum(-1, keepdims=True) * v.reshape(len(v), *[1] * (x.ndim - 2), -1)
    return jnp.einsum("h...i,hio->h...o", x, jnp.broadcast_to(v, (len(x), *v.shape[1:])))


def gathered(g: Array, indices: Array, rows: int) -> Array:
    """Sums the slopes of the places that look up one row of a table.

    Args:
        g: Slopes by what was looked up, `[seeds, examples, places, entries]`.
        indices: The numbers of these rows, `[examples, places]`; those past the end are none.
        rows: The number of rows of the table.

    Returns:
        Slopes by the table, `[seeds, examples, rows, entries]`.
    """
    zeros = jnp.zeros((len(g), rows, g.shape[-1]), g.dtype)

    def of_example(g: Array, indices: Array) -> Array:
        return zeros.at[:, indices].add(g, mode="drop")

    return jax.vmap(of_example, in_axes=(1, 0), out_axes=1)(g, indices)
