"""Weather: snow, frost, fog and brightness."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.data.corruptions._blur import SIZE
from jaxeff.data.corruptions._resampling import places, plasma, sampled, smeared

Images = Float[Array, "batch height width channels"]


def snow(key: Array, images: Images, level: int) -> Images:
    """Whitens the scene, and lets flakes fall at an angle."""
    mean, spread, zoom, threshold, radius, sigma, kept = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[level]
    batch, height, width, _ = images.shape
    flakes_key, angle_key = jax.random.split(key)
    flakes = mean + spread * jax.random.normal(flakes_key, (batch, height, width, 1))
    rows, columns = places(height, width)
    middle = (height - 1) / 2, (width - 1) / 2
    at = middle[0] + (rows - middle[0]) / zoom, middle[1] + (columns - middle[1]) / zoom
    flakes = jax.vmap(lambda layer: sampled(layer, *at))(flakes)
    flakes = jnp.where(flakes < threshold, 0, jnp.clip(flakes, 0, 1))
    angles = jax.random.uniform(angle_key, (batch,), minval=-3 * np.pi / 4, maxval=-np.pi / 4)
    scale = height / SIZE
    flakes = smeared(flakes, angles, radius * scale, sigma * scale).astype(images.dtype)
    gray = images.mean(-1, keepdims=True) * 1.5 + 0.5
    images = kept * images + (1 - kept) * jnp.maximum(images, gray)
    return images + flakes + flakes[:, ::-1, ::-1]


def frost(key: Array, images: Images, level: int) -> Images:
    """Lays crystals over the scene: ridges of clouds, in the place of the source's photographs."""
    kept, strength = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    coarse, fine = jax.random.split(key)
    crystals = [
        (1 - jnp.abs(2 * plasma(k, images, decay) - 1)) ** 3
        for k, decay in ((coarse, 2.0), (fine, 1.3))
    ]
    return kept * images + strength * jnp.maximum(*crystals)


def fog(key: Array, images: Images, level: int) -> Images:
    """Adds clouds, and dims what is behind them."""
    strength, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[level]
    top = images.max((1, 2, 3), keepdims=True)
    return (images + strength * plasma(key, images, decay)) * top / (top + strength)


def brightness(key: Array, images: Images, level: int) -> Images:
    """Raises the value of hue, saturation and value."""
    del key
    more = (0.05, 0.1, 0.15, 0.2, 0.3)[level]
    value = images.max(-1, keepdims=True)
    raised = jnp.minimum(value + more, 1)
    # Hue and saturation are ratios of channels; black has none and becomes gray.
    return jnp.where(value > 0, images * (raised / jnp.where(value > 0, value, 1)), raised)
