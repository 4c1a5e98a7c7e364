"""`Gaussian`: an array whose entries are independent normal random variables.

Every room that speaks about uncertain arrays speaks this type: a posterior over parameters is a
pytree of `Gaussian`, a moment-propagating function takes and returns them.

Sharp edges
- The covariance is diagonal by definition: entries are independent of one another, and two
  `Gaussian` leaves are independent of each other.
- The constructor validates nothing, because JAX also builds pytrees out of tracers and
  placeholders; `check_gaussian` is the explicit check for concrete input.

```python
import jax.numpy as jnp

from jaxeff.moment_propagation import Gaussian, check_gaussian, is_gaussian

weights = Gaussian(jnp.zeros(3), jnp.ones(3))
check_gaussian(weights, "weights")
assert is_gaussian(weights) and not is_gaussian(jnp.zeros(3))
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import TypeIs

from jaxeff.core import instance_of, string, validate


class RandomArray:
    """What all random arrays have: the shape and the dtype of their mean."""

    mean: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the random array."""
        return tuple(np.shape(self.mean))

    @property
    def ndim(self) -> int:
        """The number of axes of the random array."""
        return np.ndim(self.mean)

    @property
    def dtype(self) -> Any:
        """The floating-point dtype of the random array."""
        return jnp.result_type(self.mean)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Gaussian(RandomArray):
    """Independent normal variables given by their means and variances.

    Attributes:
        mean: Means, any shape, a floating-point dtype.
        var: Variances (squared units of `mean`), the same shape and dtype, never negative.
    """

    mean: Float[Array, "*shape"]
    var: Float[Array, "*shape"]

    @property
    def std(self) -> Float[Array, "*shape"]:
        """The standard deviations. Its gradient with respect to a variance of zero is infinite."""
        return jnp.sqrt(self.var)

    @property
    def second_moment(self) -> Float[Array, "*shape"]:
        """The second raw moments, E[x^2] = mean^2 + var."""
        return self.mean * self.mean + self.var

    def __repr__(self) -> str:
        """Returns the shape and the ranges: a posterior of many leaves stays readable."""
        if isinstance(self.mean, jax.core.Tracer) or not np.size(self.mean):
            return f"Gaussian(mean={self.mean!r}, var={self.var!r})"
        try:
            mean, std = np.asarray(self.mean, float), np.sqrt(np.asarray(self.var, float))
            kind = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        except (TypeError, ValueError):  # a placeholder of JAX's in a pytree
            return f"Gaussian(mean={self.mean!r}, var={self.var!r})"
        return f"Gaussian({kind}, mean {_range(mean)}, std {_range(std)})"

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Array:
        """Draws independent samples.

        Args:
            key: A PRNG key.
            shape: Leading sample axes.

        Returns:
            An array of shape `shape + self.shape`. Draws are differentiable with respect to mean
            and variance (reparameterised); where the variance is zero they equal the mean and the
            gradient to the variance is zero.
        """
        return self._drawn(jax.random.normal(key, (*shape, *self.shape), self.dtype))

    def _drawn(self, noise: Array) -> Array:
        """Scales and moves standard normal numbers."""
        # Two selections: the root has an infinite slope at zero, and zero times that is NaN, so the
        # branch that is not taken must be finite as well.
        positive = self.var > 0
        std = jnp.where(positive, jnp.sqrt(jnp.where(positive, self.var, 1)), 0)
        mean, std = (jnp.broadcast_to(a, noise.shape) for a in (self.mean, std))
        return mean + std * noise


def _range(values: np.ndarray) -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"


def is_gaussian(x: Any) -> TypeIs[Gaussian]:
    """Returns whether `x` is a `Gaussian`; the `is_leaf` of `jax.tree` calls that keep them."""
    return isinstance(x, Gaussian)


def sample_all(key: PRNGKeyArray, values: Sequence[Any]) -> list[Any]:
    """Draws the Gaussians among values, all from one array of random numbers.

    Numbers per value would take as long to compile as the network: a random function is hundreds of
    operations, which are compiled for every shape anew.
    """
    given = [v for v in values if is_gaussian(v)]
    dtype = jnp.result_type(*(v.dtype for v in given)) if given else jnp.float32
    flat = jax.random.normal(key, (sum(np.size(v.mean) for v in given),), dtype)
    ends = np.cumsum([np.size(v.mean) for v in given])
    parts = iter(jnp.split(flat, ends[:-1]))
    return [
        v._drawn(next(parts).reshape(v.shape).astype(v.dtype)) if is_gaussian(v) else v
        for v in values
    ]


@validate(x=instance_of(Gaussian), name=string)
def check_gaussian(x: Gaussian, name: str = "Gaussian") -> None:
    """Checks shapes and dtypes of `x`, and its values where they are concrete.

    Args:
        x: The value to check. Traced arrays are checked for shape and dtype only.
        name: Name in error messages, such as a parameter path.

    Raises:
        TypeError: The mean or variance isn't a floating-point array.
        ValueError: Shapes or dtypes differ, an entry is NaN, or a variance is negative.
    """
    mean, var = x.mean, x.var
    for part, value in (("mean", mean), ("variance", var)):
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise TypeError(
                f"{name}: the {part} has dtype {jnp.result_type(value)}; a Gaussian needs a "
                "floating-point dtype, so convert it with .astype(jnp.float32)."
            )
    if np.shape(mean) != np.shape(var):
        raise ValueError(
            f"{name}: the mean has shape {np.shape(mean)} but the variance {np.shape(var)}; give "
            "both the same shape, for example with jnp.broadcast_to."
        )
    if jnp.result_type(mean) != jnp.result_type(var):
        raise ValueError(
            f"{name}: the mean has dtype {jnp.result_type(mean)} but the variance "
            f"{jnp.result_type(var)}; give both the same dtype."
        )
    # A tracer has a shape and a dtype but no values: under jit these pass unchecked.
    for part, value in (("mean", mean), ("variance", var)):
        if isinstance(value, jax.core.Tracer):
            continue
        concrete = np.asarray(value)
        if bad := int(np.isnan(concrete).sum()):
            raise ValueError(
                f"{name}: {bad} of {concrete.size} entries of the {part} are NaN; find where they "
                "arise (jax.config jax_debug_nans) before propagating moments."
            )
        if part == "variance" and (bad := int((concrete < 0).sum())):
            raise ValueError(
                f"{name}: {bad} of {concrete.size} variances are negative (smallest "
                f"{concrete.min():.3g}); pass variances, for example jax.nn.softplus(rho) ** 2."
            )
