"""`RawMoments`: the second representation of a random array inside the moments interpreter.

A `Gaussian` stores a variance and derives E[x^2]; `RawMoments` stores E[x^2] and derives the
variance. A rule names what it consumes by the attribute it reads (`var` or `second_moment`), so a
conversion happens only where producer and consumer disagree.

Sharp edges
- Deriving a variance from E[x^2] cancels: in float32 nothing is left of a variance below about
  1e-7 mean^2. It is clamped at zero, never negative. jaxeff's own rules therefore return
  variances; this form exists for consumers and operator libraries that want E[x^2].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.moments.gaussian import Gaussian


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RawMoments:
    """Independent random variables given by their first two raw moments.

    Attributes:
        mean: E[x], any shape, a floating-point dtype.
        second_moment: E[x^2], same shape and dtype.
    """

    mean: Float[Array, "*shape"]
    second_moment: Float[Array, "*shape"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the random array."""
        return tuple(self.mean.shape)

    @property
    def ndim(self) -> int:
        """The number of axes of the random array."""
        return self.mean.ndim

    @property
    def dtype(self) -> Any:
        """The floating-point dtype of the random array."""
        return self.mean.dtype

    @property
    def var(self) -> Float[Array, "*shape"]:
        """The variances, E[x^2] - E[x]^2, clamped at zero."""
        return jnp.maximum(self.second_moment - self.mean * self.mean, 0)


Random = Gaussian | RawMoments


def is_random(x: Any) -> bool:
    """Whether `x` is a random array in either representation."""
    return isinstance(x, Gaussian | RawMoments)


def to_variance(x: Random) -> Gaussian:
    """`x` as mean and variance, unchanged where it already is."""
    return x if isinstance(x, Gaussian) else Gaussian(x.mean, x.var)


def to_raw(x: Random) -> RawMoments:
    """`x` as mean and second raw moment, unchanged where it already is."""
    return x if isinstance(x, RawMoments) else RawMoments(x.mean, x.second_moment)
