"""Noise of a sensor: Gaussian, shot and impulse noise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Images = Float[Array, "batch height width channels"]


def gaussian_noise(key: Array, images: Images, level: int) -> Images:
    """Adds normal noise."""
    sigma = (0.04, 0.06, 0.08, 0.09, 0.10)[level]
    return images + sigma * jax.random.normal(key, images.shape, images.dtype)


def shot_noise(key: Array, images: Images, level: int) -> Images:
    """Counts photons, the fewer the noisier."""
    photons = (500, 250, 100, 75, 50)[level]
    counts = jax.random.poisson(key, images * photons)
    return counts.astype(images.dtype) / photons


def impulse_noise(key: Array, images: Images, level: int) -> Images:
    """Sets some values to black or white."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    drawn = jax.random.uniform(key, images.shape)
    return jnp.where(drawn < share / 2, 0.0, jnp.where(drawn > 1 - share / 2, 1.0, images)).astype(
        images.dtype
    )
