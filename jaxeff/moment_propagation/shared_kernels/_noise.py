"""What the positions of arrays share: the covariances of channels' means, and where it acts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.program.ir import Value


class Columns(NamedTuple):
    """Slopes of channels that are put beside others, in place of a matrix.

    Attributes:
        start: The place of the first one.
        size: The number of all.
    """

    start: int
    size: int


class ChosenChannels(NamedTuple):
    """Slopes of channels that are taken from others unchanged, in place of a matrix.

    Attributes:
        index: The numbers of those that they are.
    """

    index: Any


Slopes = Array | Columns | ChosenChannels


@dataclass
class SharedNoise:
    """The noise that is shared by the positions of the arrays of one pass.

    A random array is `y[p, c] = E y[p, c] + a[p, c] z_c + rest`, where z is the noise of the means
    over positions and a, whose mean over positions is one, says how much of it acts where.

    Attributes:
        amplitudes: a by value, `[batch, *positions, channels]`.
        variances: The variance of z by value, `[batch, channels]`.
        covariances: The covariance of z of two values, `[batch, channels, channels]`; the later
            value first.
        terms: What other values are made of (`NoiseTerm`), whose z isn't computed yet: it is the
            mean of what the functions that follow let through.
    """

    amplitudes: dict[Value, Array] = field(default_factory=dict)
    variances: dict[Value, Array] = field(default_factory=dict)
    covariances: dict[tuple[Value, Value], Array] = field(default_factory=dict)
    terms: dict[Value, Sequence[Any]] = field(default_factory=dict)

    def covariance(self, one: Value, other: Value) -> Array | None:
        """Returns the covariance of two values' means; None where they share nothing."""
        if (one, other) in self.covariances:
            return self.covariances[one, other]
        found = self.covariances.get((other, one))
        return None if found is None else jnp.swapaxes(found, 1, 2)

    @property
    def values(self) -> list[Value]:
        """The values whose noise is followed."""
        return [*self.amplitudes, *self.terms]

    def knows(self, value: Value) -> bool:
        """Returns whether the noise of a value is followed."""
        return value in self.amplitudes or value in self.terms

    def combined(
        self, parts: Sequence[tuple[Value, Slopes]], own: Array
    ) -> tuple[Array, dict[Value, Array]]:
        """Computes the covariances of noise that is made linearly of others.

        Args:
            parts: Sources and slopes, as `through` takes them.
            own: The covariance that it has beside its sources'; `[batch, channels]` for a
                diagonal one.

        Returns:
            Its covariance, and its covariances with all other values, itself first.
        """
        total = own if own.ndim == 3 else matrix(own)
        with_others = {}
        for other in self.amplitudes:
            halves = [
                through(slopes, found)
                for v, slopes in parts
                if (found := self.covariance(v, other)) is not None
            ]
            if halves:
                with_others[other] = sum(halves[1:], start=halves[0])
        for v, slopes in parts:
            total = total + jnp.swapaxes(through(slopes, jnp.swapaxes(with_others[v], 1, 2)), 1, 2)
        return total, with_others

    def record(
        self, made: Value, amplitude: Array, total: Array, with_others: Mapping[Value, Array]
    ) -> None:
        """Adds a value.

        Args:
            made: The value.
            amplitude: The amplitude a of the value, `[batch, *positions, channels]`.
            total: The covariance of its channels' means.
            with_others: Their covariance with those of other values, `made` first.
        """
        self.amplitudes[made] = amplitude
        self.variances[made] = jnp.maximum(diagonal(total), 0)
        self.covariances[made, made] = total
        self.covariances.update({(made, other): x for other, x in with_others.items()})

    def forget(self, dead: Iterable[Value]) -> None:
        """Drops values that nobody reads any more."""
        dead = set(dead)
        for value in dead:
            self.terms.pop(value, None)
        # What other values are made of is still needed.
        dead -= {term.source for terms in self.terms.values() for term in terms}
        for value in dead:
            self.amplitudes.pop(value, None)
            self.variances.pop(value, None)
        gone = [pair for pair in self.covariances if not set(pair).isdisjoint(dead)]
        for pair in gone:
            del self.covariances[pair]


def through(slopes: Slopes, covariance: Array) -> Array:
    """Multiplies a covariance's first axis by slopes, `[batch, in, out]` or `[batch, channels]`."""
    if isinstance(slopes, Columns):
        after = slopes.size - slopes.start - covariance.shape[1]
        return jnp.pad(covariance, ((0, 0), (slopes.start, after), (0, 0)))
    if isinstance(slopes, ChosenChannels):
        return covariance[:, slopes.index]
    if slopes.ndim == 2:
        return slopes[:, :, None] * covariance
    return jnp.einsum("bio,bij->boj", slopes, covariance)


def normalized(amplitude: Array) -> tuple[Array, Array]:
    """Divides an amplitude by its mean over positions, and returns that mean; one where it is 0."""
    mean = mean_over_positions(amplitude)
    return divided(amplitude, spread(mean, amplitude)), mean


def mean_over_positions(x: Array) -> Array:
    """Computes means over positions, `[batch, channels]`."""
    return x.mean(tuple(range(1, x.ndim - 1)))


def diagonal(matrices: Array) -> Array:
    """Takes the diagonals of matrices, `[batch, ..., channels]`."""
    return jnp.einsum("...cc->...c", matrices)


def matrix(diagonals: Array) -> Array:
    """Makes diagonal matrices, `[batch, channels, channels]`."""
    return diagonals[:, :, None] * jnp.eye(diagonals.shape[-1], dtype=diagonals.dtype)


def spread(x: Array, like: Array) -> Array:
    """Brings `[batch, channels]` to all positions of an array."""
    return x.reshape(x.shape[0], *(1,) * (like.ndim - 2), x.shape[-1])


def divided(x: Array, y: Array) -> Array:
    """Divides; one where the divisor is next to zero, with finite derivatives."""
    # The noise of a dead channel underflows: quotients of what is left of it may overflow.
    zero = jnp.abs(y) < 1e-30
    return jnp.where(zero, 1, x / jnp.where(zero, 1, y))


def root(x: Array) -> Array:
    """Computes the square root, whose derivative at zero is zero."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)
