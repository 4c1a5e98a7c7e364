"""Two half moons: classification in the plane (scikit-learn's ``make_moons``)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

NOISE = 0.31
"""Standard deviation of the points around their moon: with this much, the best possible classifier
reaches 90 %, which is where the source's accuracies end (T3250-3259). The source does not say."""


def two_moons(
    key: PRNGKeyArray, samples: int = 200, noise: float = NOISE
) -> tuple[Float[np.ndarray, "samples 2"], Int[np.ndarray, " samples"]]:
    """Draw a balanced set; draw training and test sets with different keys.

    Args:
        key: Random key.
        samples: Number of points.
        noise: Standard deviation of Gaussian noise on both coordinates.

    Returns:
        Points and classes (0 the upper moon, 1 the lower).

    Raises:
        ValueError: Fewer than two samples, or negative noise.
    """
    from sklearn.datasets import make_moons

    if samples < 2 or noise < 0:
        raise ValueError(
            f"two moons need two samples or more and noise of zero or more, not {samples}, {noise}"
        )
    seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
    points, classes = make_moons(samples, noise=noise, random_state=seed)
    return points.astype(np.float32), classes.astype(np.int32)


def plane(
    points: Float[Array, "samples 2"], margin: float, side: int
) -> tuple[tuple[Float[Array, "side side"], ...], Float[Array, "cells 2"]]:
    """Points evenly spaced around some given ones, where to look at what a classifier says.

    Args:
        points: What they surround.
        margin: How far they reach beyond the extreme ones, in each coordinate.
        side: How many there are along each coordinate.

    Returns:
        Both coordinates as ``np.meshgrid`` gives them, and the same as a list, ``side**2`` long.
    """
    low, high = points.min(0) - margin, points.max(0) + margin
    first, second = jnp.meshgrid(*jnp.linspace(low, high, side).T)
    return (first, second), jnp.stack([first.ravel(), second.ravel()], 1)
