"""Further representations of a random array inside the moments interpreter.

A `Gaussian` stores a variance and derives E[x^2]; `RawMoments` stores E[x^2] and derives the
variance. A rule names what it consumes by the attribute it reads (`var` or `second_moment`), so a
conversion happens only where producer and consumer disagree.

`Activated` is a Gaussian that remembers it is a nondecreasing function of another one. A maximum
commutes with such a function, so max pooling is taken before a ReLU instead of after it: the
operands of Clark's rule are then Gaussian (four rectified values pooled after the fact have
their standard deviation underestimated by up to 40 %, pooled before by 9 %), and the ReLU is
evaluated on a quarter of the entries.

Sharp edges
- Deriving a variance from E[x^2] cancels: in float32 nothing is left of a variance below about
  1e-7 mean^2. It is clamped at zero, never negative. jaxeff's own rules therefore return
  variances; this form exists for consumers and operator libraries that want E[x^2].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import TypeIs

from jaxeff.moment_propagation.values._gaussian import Gaussian, RandomArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RawMoments(RandomArray):
    """Independent random variables given by their first two raw moments.

    Attributes:
        mean: E[x], any shape, a floating-point dtype.
        second_moment: E[x^2], same shape and dtype.
    """

    mean: Float[Array, "*shape"]
    second_moment: Float[Array, "*shape"]

    @property
    def var(self) -> Float[Array, "*shape"]:
        """The variances, E[x^2] - E[x]^2, clamped at zero."""
        return jnp.maximum(self.second_moment - self.mean * self.mean, 0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Activated(Gaussian):
    """The moments of a nondecreasing function of a Gaussian, and where they came from.

    Attributes:
        before: The Gaussian it is a function of, of the same shape.
        apply: The moments of the function, for a Gaussian of any shape.
    """

    before: Gaussian
    apply: Callable[[Gaussian], Gaussian] = field(metadata={"static": True})


Random = Gaussian | RawMoments


def is_random(x: Any) -> TypeIs[Random]:
    """Returns whether `x` is a random array in either representation."""
    return isinstance(x, Gaussian | RawMoments)


def to_variance(x: Random) -> Gaussian:
    """Converts `x` to mean and variance; what an `Activated` came from is dropped."""
    # Not `isinstance`: an `Activated` is a Gaussian too, but of another pytree structure, which
    # loops and branches would refuse.
    return x if type(x) is Gaussian else Gaussian(x.mean, x.var)


def to_raw(x: Random) -> RawMoments:
    """Converts `x` to mean and second raw moment."""
    return x if isinstance(x, RawMoments) else RawMoments(x.mean, x.second_moment)
