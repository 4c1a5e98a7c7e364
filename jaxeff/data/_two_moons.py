"""Two half moons: classification in the plane (scikit-learn's ``make_moons``).

```python
import jax

from jaxeff.data import plane, two_moons

x, y = two_moons(jax.random.key(0), samples=100)
assert x.shape == (100, 2) and y.shape == (100,)
axes, cells = plane(x, margin=1.0, side=20)             # a grid around them, to predict on
assert cells.shape == (400, 2)
```
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.core import non_negative, optional, real_array, static_integer, validate

NOISE = 0.31
"""Standard deviation of the points around their moon: with this much, the best possible classifier
reaches 90 %, which is where the accuracies in Klein's thesis, table 7.2, end. It does not state the
noise."""


@validate(samples=static_integer(2), noise=non_negative)
def two_moons(
    key: PRNGKeyArray, samples: int = 200, noise: float = NOISE
) -> tuple[Float[np.ndarray, "samples 2"], Int[np.ndarray, " samples"]]:
    """Draws a balanced set; draw training and test sets with different keys.

    Args:
        key: Random key.
        samples: Number of points.
        noise: Standard deviation of Gaussian noise on both coordinates.

    Returns:
        Points and classes (0 the upper moon, 1 the lower).

    Raises:
        ValueError: Fewer than two samples, or negative noise.
    """
    # Start-up time: scikit-learn takes longer to import than all else.
    datasets = optional("sklearn.datasets", "two_moons", "data")
    # scikit-learn takes an integer seed: drawn from the key, so that keys decide here too.
    seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
    points, classes = datasets.make_moons(samples, noise=noise, random_state=seed)
    return points.astype(np.float32), classes.astype(np.int32)


@validate(points=real_array(2), margin=non_negative, side=static_integer(2))
def plane(
    points: Float[Array, "samples 2"], margin: float, side: int
) -> tuple[tuple[Float[Array, "side side"], ...], Float[Array, "cells 2"]]:
    """Spaces points evenly around some given ones, to look at what a classifier says there.

    Args:
        points: What they surround.
        margin: Distance that they reach beyond the extreme ones, in each coordinate.
        side: Number of points along each coordinate.

    Returns:
        Both coordinates as ``np.meshgrid`` gives them, and the same as a list, ``side**2`` long.
    """
    low, high = points.min(0) - margin, points.max(0) + margin
    first, second = jnp.meshgrid(*jnp.linspace(low, high, side).T)
    return (first, second), jnp.stack([first.ravel(), second.ravel()], 1)
