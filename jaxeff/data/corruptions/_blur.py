"""Blur of a lens, of frosted glass, of motion and of zooming."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.data.corruptions._resampling import blurred, filtered, places, sampled, smeared

Images = Float[Array, "batch height width channels"]
SIZE = 32
"""The height of images that lengths are given for; they grow with others'."""


def defocus_blur(key: Array, images: Images, level: int) -> Images:
    """Spreads every pixel over a disk."""
    del key
    radius, edge = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[level]
    radius = max(radius, radius * images.shape[1] / SIZE)
    reach = int(np.ceil(radius))
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (rows**2 + columns**2 <= radius**2).astype(float)
    return blurred(filtered(images, disk / disk.sum()), edge)


def glass_blur(key: Array, images: Images, level: int) -> Images:
    """Gives every pixel a neighbour's value, between two slight blurs."""
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    rows, columns = (jnp.asarray(at, int) for at in places(*images.shape[1:3]))
    images = blurred(images, sigma)
    top, right = images.shape[1] - 1, images.shape[2] - 1

    def moved(image: Array, by: Array) -> Array:
        return image[jnp.clip(rows + by[0], 0, top), jnp.clip(columns + by[1], 0, right)]

    for i in range(rounds):
        # As in the source, neighbours lie above and to the left.
        shape = (len(images), 2, *images.shape[1:3])
        by = jax.random.randint(jax.random.fold_in(key, i), shape, -1, 1)
        images = jax.vmap(moved)(images, by)
    return blurred(images, sigma)


def motion_blur(key: Array, images: Images, level: int) -> Images:
    """Moves the camera along a line of a random direction."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[level]
    angles = jax.random.uniform(key, (len(images),), minval=-np.pi / 4, maxval=np.pi / 4)
    scale = images.shape[1] / SIZE
    return smeared(images, angles, radius * scale, sigma * scale)


def zoom_blur(key: Array, images: Images, level: int) -> Images:
    """Averages over enlargements."""
    del key
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[level], 0.01)
    rows, columns = places(*images.shape[1:3])
    middle = (images.shape[1] - 1) / 2, (images.shape[2] - 1) / 2
    total = images
    for factor in factors:
        at = (middle[0] + (rows - middle[0]) / factor, middle[1] + (columns - middle[1]) / factor)
        total = total + jax.vmap(lambda image, at=at: sampled(image, *at))(images)
    return total / (len(factors) + 1)
