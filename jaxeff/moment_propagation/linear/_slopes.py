"""Slopes of all results at once, kept apart by examples, and the variances they make.

A pass backward is started with one *seed* per entry of an example's result, for all examples
together: rows of an array that hold one example each get a slope of their own, since examples don't
mix. Two forms of slopes follow from that, of an array of any shape:

    Rows    `[seeds, *shape]`, of an array with an axis of examples: each row's are its example's
    Each    `[seeds, examples, *shape]`, of an array that examples share, such as a weight

Where examples can't be told apart, everything is one example: `Rows` without an axis.

A product of examples with a weight array that nothing else reads is taken apart, as a matrix
product x w of T rows of an example (positions, tokens, patches). With g the slope by its result,

    sum_io v_io (sum_t x_ti g_to)^2                                  in gradients, [in, out] a seed
  = sum_tu sum_o g_to g_uo q_tuo,  q_tuo = sum_i v_io x_ti x_ui      in pairs of rows, [T, T, out]

The second form makes no gradient of the weight, and its q serves all seeds; with one row it is
(x^2) v (g^2). What costs fewer operations is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array

GRADIENT_ENTRIES = 2**20
"""Entries of a weight's gradients that are held at once, 4 MiB in float32."""
_SMALL = 2**16
"""Entries of an array whose slopes are put beside those of others."""
_TOUCHED = 16
"""What an entry of a gradient costs, squared and weighted, in multiply-accumulates of a product."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Rows:
    """Slopes by an array whose rows along one axis belong to different examples.

    Attributes:
        slopes: `[seeds, *shape]`.
        axis: The axis of examples in `shape`; None if everything is one example.
    """

    slopes: Array
    axis: int | None = field(metadata={"static": True})

    def by_example(self) -> Array:
        """Returns `[seeds, examples, rest]`."""
        g = (
            self.slopes[:, None]
            if self.axis is None
            else jnp.moveaxis(self.slopes, self.axis + 1, 1)
        )
        return g.reshape(*g.shape[:2], -1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Each:
    """Slopes by an array that all examples share.

    Attributes:
        slopes: `[seeds, examples, *shape]`.
    """

    slopes: Array

    def by_example(self) -> Array:
        """Returns `[seeds, examples, rest]`."""
        return self.slopes.reshape(*self.slopes.shape[:2], -1)


Slopes = Rows | Each


def only_row(g: Array, axis: int, example: Array) -> Array:
    """Sets slopes `[seeds, *shape]` to zero in the rows of all other examples."""
    here = jnp.arange(g.shape[axis + 1]) == example
    return jnp.where(here.reshape(*[1] * (axis + 1), -1, *[1] * (g.ndim - axis - 2)), g, 0)


def each(slopes: Slopes) -> Each:
    """Brings slopes to the form of an array that examples share."""
    if isinstance(slopes, Each):
        return slopes
    assert slopes.axis is not None
    g, axis = slopes.slopes, slopes.axis
    examples = jnp.arange(g.shape[axis + 1])
    return Each(jax.vmap(lambda b: only_row(g, axis, b), out_axes=1)(examples))


def added(one: Slopes | None, other: Slopes) -> Slopes:
    """Adds slopes by one array that were found on two ways."""
    if one is None:
        return other
    if isinstance(one, Rows) and isinstance(other, Rows) and one.axis == other.axis:
        return Rows(one.slopes + other.slopes, one.axis)
    return Each(each(one).slopes + each(other).slopes)


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
            if isinstance(slopes, Rows) and slopes.axis is not None:
                v = jnp.moveaxis(var, slopes.axis, 0).reshape(g.shape[1], -1)
                total = total + self._summed(g, v)
            elif var.size > _SMALL:
                total = total + self._summed(g, var.reshape(1, -1))
            else:
                small.append((g, var.reshape(1, -1)))
        # Biases and scales are many: side by side they are one sum, which is compiled once.
        for dtype in dict.fromkeys(g.dtype for g, _ in small):
            parts = [(g, v) for g, v in small if g.dtype == dtype]
            g, v = (jnp.concatenate(one, axis=-1) for one in zip(*parts, strict=True))
            total = total + self._summed(g, v)
        return total

    def _summed(self, g: Array, v: Array) -> Array:
        """Sums over the last axis of `[seeds, examples, entries]`."""
        if self.full:
            return jnp.einsum("ken,len->kle", g * v[None], g)
        return (g * g * v[None]).sum(-1)

    def of_product(self, x: Array, g: Array, v: Array) -> Array:
        """Sums squared slopes by the matrices of a product, weighted by their variances.

        Args:
            x: Rows that are multiplied, `[groups, examples, rows, in]`.
            g: Slopes by the product, `[seeds, groups, examples, rows, out]`.
            v: Variances `[groups, in, out]`, or of size one along these axes.

        Returns:
            `[seeds, examples]`, or `[seeds, seeds, examples]` if `full`.
        """
        rows, into, out, seeds = *x.shape[2:], g.shape[-1], len(g)
        if rows == 1:
            return self._of_pairs(g, g, _by_rows(x * x, v))
        # A pair's q is a row of a product of its own, but where variances don't depend on the
        # inputs and outputs together.
        of_pair = into * (out if v.shape[1] > 1 and v.shape[2] > 1 else 1)
        by_pairs = rows * (rows + 1) // 2 * of_pair + 2 * seeds * rows * rows * out
        by_gradients = seeds * into * out * (rows + _TOUCHED)
        if by_gradients <= by_pairs:
            return self._by_gradients(x, g, v)
        return self._by_pairs(x, g, v)

    def _of_pairs(self, g: Array, h: Array, q: Array) -> Array:
        """Sums products of two rows' slopes, `[seeds, groups, examples, rows, out]`."""
        if self.full:
            return jnp.einsum("kheto,lheto->kle", g * q[None], h)
        return (g * h * q[None]).sum((1, 3, 4))

    def _by_pairs(self, x: Array, g: Array, v: Array) -> Array:
        rows = x.shape[2]
        if v.shape[2] == 1 or v.shape[1] == 1:
            # The same for all outputs, or for all inputs: what differs along the other axis scales
            # the rows.
            one = jnp.ones((1, 1, 1), v.dtype)
            by_in, by_out = (v, one) if v.shape[2] == 1 else (one, v)
            q = jnp.einsum("heti,heui->hetu", x * by_in[:, None, :, :].mT, x)
            h = jnp.einsum("hetu,kheuo->kheto", q, g * by_out[None, :, None])
            if self.full:
                return jnp.einsum("kheto,lheto->kle", g, h)
            return (g * h).sum((1, 3, 4))
        # Rows go around: a pair of rows that are so far apart, forwards or backwards, is met once.
        half = rows // 2 + 1
        more_x, more_g = (jnp.concatenate([a, a], axis=at) for a, at in ((x, 2), (g, 3)))

        def further(apart: Array) -> Array:
            others = jax.lax.dynamic_slice_in_dim(more_x, apart, rows, 2)
            h = jax.lax.dynamic_slice_in_dim(more_g, apart, rows, 3)
            times = jnp.where((apart == 0) | (2 * apart == rows), 1, 2).astype(v.dtype)
            part = self._of_pairs(g, h, _by_rows(x * others, v) * times)
            return (part + part.swapaxes(0, 1)) / 2 if self.full else part

        def add(total: Array, apart: Array) -> tuple[Array, None]:
            return total + further(apart), None

        shape = jax.eval_shape(further, jnp.int32(0))
        nothing = jnp.zeros(shape.shape, shape.dtype)
        return jax.lax.scan(add, nothing, jnp.arange(half, dtype=jnp.int32))[0]

    def _by_gradients(self, x: Array, g: Array, v: Array) -> Array:
        into, out, seeds = x.shape[3], g.shape[-1], len(g)
        groups, examples = x.shape[:2]
        v = jnp.broadcast_to(v, (groups, into, out))
        everything = groups * examples * into * out * seeds
        if everything <= GRADIENT_ENTRIES:
            gradients, of_all = jnp.einsum("heti,kheto->kheio", x, g), v[None, :, None]
            if self.full:
                return jnp.einsum("kheio,lheio->kle", gradients * of_all, gradients)
            return (gradients * gradients * of_all).sum((1, 3, 4))

        def example(both: tuple[Array, Array]) -> Array:
            x, g = both  # [groups, rows, in], [seeds, groups, rows, out]

            def inputs(part: tuple[Array, Array]) -> Array:
                x, v = part  # [groups, rows], [groups, out]: of one input
                gradients = jnp.einsum("ht,khto->kho", x, g)
                if self.full:
                    return jnp.einsum("kho,lho->kl", gradients * v[None], gradients)
                return (gradients * gradients * v[None]).sum((1, 2))

            held = max(GRADIENT_ENTRIES // max(groups * out * seeds, 1), 1)
            parts = jnp.moveaxis(x, 2, 0), jnp.moveaxis(v, 1, 0)
            return jax.lax.map(inputs, parts, batch_size=min(held, into)).sum(0)

        by_example = jax.lax.map(example, (x.swapaxes(0, 1), jnp.moveaxis(g, 2, 0)))
        return jnp.moveaxis(by_example, 0, -1)


def _by_rows(x: Array, v: Array) -> Array:
    """Multiplies rows `[groups, ..., in]` by variances `[groups, in, out]`."""
    if v.shape[1] == 1:
        return x.sum(-1, keepdims=True) * v.reshape(len(v), *[1] * (x.ndim - 2), -1)
    return jnp.einsum("h...i,hio->h...o", x, jnp.broadcast_to(v, (len(x), *v.shape[1:])))


def gathered(g: Array, indices: Array, rows: int) -> Array:
    """Sums the slopes of the places that look up one row: `[seeds, examples, rows, row]`.

    Args:
        g: Slopes by what was looked up, `[seeds, examples, places, row]`.
        indices: The numbers of these rows, `[examples, places]`; those past the end are none.
        rows: The number of rows of the table.
    """
    zeros = jnp.zeros((len(g), rows, g.shape[-1]), g.dtype)

    def example(g: Array, of: Array) -> Array:
        return zeros.at[:, of].add(g, mode="drop")

    return jax.vmap(example, in_axes=(1, 0), out_axes=1)(g, indices)
