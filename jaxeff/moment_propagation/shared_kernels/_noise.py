"""What the positions of arrays share: the covariances of channels' means, and where it acts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """

    amplitudes: dict[Value, Array] = field(default_factory=dict)
    variances: dict[Value, Array] = field(default_factory=dict)
    covariances: dict[tuple[Value, Value], Array] = field(default_factory=dict)

    def covariance(self, one: Value, other: Value) -> Array | None:
        """Returns the covariance of two values' means; None where they share nothing."""
        if (one, other) in self.covariances:
            return self.covariances[one, other]
        found = self.covariances.get((other, one))
        return None if found is None else jnp.swapaxes(found, 1, 2)

    def shared_variance(self, one: Value, other: Value) -> Array:
        """Returns the covariances of the same channels of two values, `[batch, channels]`."""
        if one is other:
            return self.variances[one]
        found = self.covariance(one, other)
        if found is None:
            return jnp.zeros_like(self.variances[one])
        return jnp.einsum("bcc->bc", found)

    def record(
        self,
        made: Value,
        amplitude: Array,
        variance: Array,
        own: Array,
        sources: Mapping[Value, Array | Columns],
        read_later: Collection[Value],
    ) -> None:
        """Adds a value that is made linearly of others.

        Args:
            made: The value.
            amplitude: The amplitude of the value.
            variance: The variances of its means, `[batch, channels]`.
            own: The covariance that it has beside its sources'; `[batch, channels]` for a
                diagonal one.
            sources: Slopes of the means by source, as `through` takes them.
            read_later: Other values whose covariance with it is needed.
        """
        total = own if own.ndim == 3 else own[:, :, None] * jnp.eye(own.shape[-1], dtype=own.dtype)
        for v, slopes in sources.items():
            for u, others in sources.items():
                found = self.covariance(v, u)
                if found is not None:
                    half = through(slopes, found)
                    total = total + jnp.swapaxes(through(others, jnp.swapaxes(half, 1, 2)), 1, 2)
        for other in read_later:
            parts = [
                through(slopes, found)
                for v, slopes in sources.items()
                if other in self.amplitudes and (found := self.covariance(v, other)) is not None
            ]
            if parts:
                self.covariances[made, other] = sum(parts[1:], start=parts[0])
        self.amplitudes[made], self.variances[made] = amplitude, variance
        self.covariances[made, made] = total

    def forget(self, dead: Iterable[Value]) -> None:
        """Drops values that nobody reads any more."""
        dead = set(dead)
        for value in dead:
            self.amplitudes.pop(value, None)
            self.variances.pop(value, None)
        gone = [pair for pair in self.covariances if not set(pair).isdisjoint(dead)]
        for pair in gone:
            del self.covariances[pair]


def through(slopes: Array | Columns, covariance: Array) -> Array:
    """Multiplies a covariance's first axis by slopes, `[batch, in, out]` or `[batch, channels]`."""
    if isinstance(slopes, Columns):
        after = slopes.size - slopes.start - covariance.shape[1]
        return jnp.pad(covariance, ((0, 0), (slopes.start, after), (0, 0)))
    if slopes.ndim == 2:
        return slopes[:, :, None] * covariance
    return jnp.einsum("bio,bij->boj", slopes, covariance)


def normalized(amplitude: Array) -> tuple[Array, Array]:
    """Divides an amplitude by its mean over positions, and returns that mean; one where it is 0."""
    mean = amplitude.mean(tuple(range(1, amplitude.ndim - 1)))
    return divided(amplitude, spread(mean, amplitude)), mean


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
