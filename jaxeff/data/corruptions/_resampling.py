"""Images at other places, and blurred: what most corruptions are made of.

Beyond its border an image goes on as it ends there.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float


def places(height: int, width: int) -> tuple[Array, Array]:
    """Returns row and column of every pixel, `[height, width]` each."""
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return jnp.asarray(rows, float), jnp.asarray(columns, float)


def sampled(
    image: Float[Array, "height width channels"],
    rows: Float[Array, "h w"],
    columns: Float[Array, "h w"],
) -> Float[Array, "h w channels"]:
    """Interpolates an image between its pixels, linearly in both directions."""

    def around(at: Array, size: int) -> tuple[Array, Array, Array]:
        at = jnp.clip(at, 0, size - 1)
        before = jnp.floor(at).astype(int)
        share = (at - before.astype(at.dtype))[..., None].astype(image.dtype)
        return before, jnp.minimum(before + 1, size - 1), share

    top, bottom, down = around(rows, image.shape[0])
    left, right, across = around(columns, image.shape[1])
    above = image[top, left] * (1 - across) + image[top, right] * across
    below = image[bottom, left] * (1 - across) + image[bottom, right] * across
    return above * (1 - down) + below * down


def filtered(
    images: Float[Array, "batch height width channels"], kernel: np.ndarray
) -> Float[Array, "batch height width channels"]:
    """Convolves every channel with a kernel of odd sizes."""
    up, left = (size // 2 for size in kernel.shape)
    padded = jnp.pad(images, ((0, 0), (up, up), (left, left), (0, 0)), mode="edge")
    planes = jnp.moveaxis(padded, -1, 1)[..., None]
    batch, channels, *rest = planes.shape
    weights = jnp.asarray(kernel, images.dtype)[:, :, None, None]
    made = lax.conv_general_dilated(
        planes.reshape(batch * channels, *rest), weights, (1, 1), "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    return jnp.moveaxis(made.reshape(batch, channels, *images.shape[1:3]), 1, -1)


def blurred(
    images: Float[Array, "batch height width channels"], sigma: float
) -> Float[Array, "batch height width channels"]:
    """Convolves with a Gaussian of so many pixels."""
    if sigma <= 0:
        return images
    at = np.arange(-max(1, round(3 * sigma)), max(1, round(3 * sigma)) + 1)
    kernel = np.exp(-(at**2) / (2 * sigma**2))
    kernel /= kernel.sum()
    return filtered(filtered(images, kernel[:, None]), kernel[None])


def smeared(
    images: Float[Array, "batch height width channels"],
    angles: Float[Array, " batch"],
    radius: float,
    sigma: float,
) -> Float[Array, "batch height width channels"]:
    """Averages each image with itself, moved along a line, under half a Gaussian."""
    steps = np.arange(float(max(2, round(2 * radius) + 1)))
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    rows, columns = places(*images.shape[1:3])

    def one(image: Array, angle: Array) -> Array:
        total = jnp.zeros_like(image)
        for step, weight in zip(steps, weights, strict=True):
            way = float(step) * jnp.stack([jnp.sin(angle), jnp.cos(angle)])
            total += float(weight) * sampled(image, rows + way[0], columns + way[1])
        return total

    return jax.vmap(one)(images, angles)


def plasma(
    key: Array, images: Float[Array, "batch height width channels"], decay: float
) -> Float[Array, "batch height width 1"]:
    """Draws clouds: noise of all scales, each half as large weaker by a factor, from 0 to 1."""
    batch, height, width, _ = images.shape
    rows, columns = places(height, width)
    total = jnp.zeros((batch, height, width, 1), images.dtype)
    cells, octave = 2, 0
    while cells < 2 * max(height, width):
        noise = jax.random.uniform(
            jax.random.fold_in(key, octave), (batch, cells + 1, cells + 1, 1)
        )
        at = rows * (cells / height), columns * (cells / width)
        total += jax.vmap(lambda n, at=at: sampled(n, *at))(noise) / decay**octave
        cells, octave = 2 * cells, octave + 1
    low, high = (end(total, (1, 2), keepdims=True) for end in (jnp.min, jnp.max))
    return (total - low) / (high - low + 1e-6)
