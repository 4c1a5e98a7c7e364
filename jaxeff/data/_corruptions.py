"""`corrupt`: the fifteen corruptions of CIFAR-C at five severities, drawn by code.

```python
import jax
from jaxeff import data

images = data.load("digits").test_images[:4] / 255.0
worse = data.corrupt(jax.random.key(0), images, "fog", severity=3)
every = {name: data.corrupt(jax.random.key(0), images, name, 5) for name in data.CORRUPTIONS}
```

Numbers are those of CIFAR-10-C, for images 32 pixels high; lengths grow and shrink with the height.
Beyond its border an image goes on as it ends there.

Sharp edges:
    Images aren't those of the published files: other random numbers, frost of ridged noise in the
    place of photographs, fog of noise at all scales instead of diamonds and squares, glass that
    copies neighbours instead of swapping them, and blurs whose borders go on as they end.
    Corrupt before normalizing.

References:
    Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", ICLR 2019, arXiv 1903.12261.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import is_concrete, one_of, real_array, static_integer, validate

Images = Float[Array, "batch height width channels"]


def _pixel_grid(height: int, width: int) -> tuple[Array, Array]:
    """Returns row and column of every pixel, `[height, width]` each."""
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return jnp.asarray(rows, float), jnp.asarray(columns, float)


def _interpolated(
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


def _convolved(images: Images, kernel: np.ndarray) -> Images:
    """Convolves every channel with a kernel of odd sizes."""
    up, left = (size // 2 for size in kernel.shape)
    padded = jnp.pad(images, ((0, 0), (up, up), (left, left), (0, 0)), mode="edge")
    planes = jnp.moveaxis(padded, -1, 1)[..., None]
    batch, channels, *rest = planes.shape
    weights = jnp.asarray(kernel, images.dtype)[:, :, None, None]
    convolved = jax.lax.conv_general_dilated(
        planes.reshape(batch * channels, *rest), weights, (1, 1), "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    return jnp.moveaxis(convolved.reshape(batch, channels, *images.shape[1:3]), 1, -1)


def _blurred(images: Images, sigma: float) -> Images:
    """Convolves with a Gaussian of so many pixels."""
    if sigma <= 0:
        return images
    at = np.arange(-max(1, round(3 * sigma)), max(1, round(3 * sigma)) + 1)
    kernel = np.exp(-(at**2) / (2 * sigma**2))
    kernel /= kernel.sum()
    return _convolved(_convolved(images, kernel[:, None]), kernel[None])


def _smeared(images: Images, angles: Float[Array, " batch"], radius: float, sigma: float) -> Images:
    """Averages each image with itself, moved along a line, under half a Gaussian."""
    steps = np.arange(float(max(2, round(2 * radius) + 1)))
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    rows, columns = _pixel_grid(*images.shape[1:3])

    def one(image: Array, angle: Array) -> Array:
        total = jnp.zeros_like(image)
        for step, weight in zip(steps, weights, strict=True):
            way = float(step) * jnp.stack([jnp.sin(angle), jnp.cos(angle)])
            total += float(weight) * _interpolated(image, rows + way[0], columns + way[1])
        return total

    return jax.vmap(one)(images, angles)


def _plasma(key: Array, images: Images, decay: float) -> Float[Array, "batch height width 1"]:
    """Draws clouds: noise of all scales, each half as large weaker by a factor, from 0 to 1."""
    batch, height, width, _ = images.shape
    rows, columns = _pixel_grid(height, width)
    total = jnp.zeros((batch, height, width, 1), images.dtype)
    cells, octave = 2, 0
    while cells < 2 * max(height, width):
        noise = jax.random.uniform(
            jax.random.fold_in(key, octave), (batch, cells + 1, cells + 1, 1)
        )
        at = rows * (cells / height), columns * (cells / width)
        total += jax.vmap(lambda n, at=at: _interpolated(n, *at))(noise) / decay**octave
        cells, octave = 2 * cells, octave + 1
    low, high = (end(total, (1, 2), keepdims=True) for end in (jnp.min, jnp.max))
    return (total - low) / (high - low + 1e-6)


REFERENCE_HEIGHT = 32
"""The height of images that lengths are given for; they grow with others'."""


def defocus_blur(key: Array, images: Images, level: int) -> Images:
    """Spreads every pixel over a disk."""
    del key
    radius, edge = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[level]
    radius = max(radius, radius * images.shape[1] / REFERENCE_HEIGHT)
    reach = int(np.ceil(radius))
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (rows**2 + columns**2 <= radius**2).astype(float)
    return _blurred(_convolved(images, disk / disk.sum()), edge)


def glass_blur(key: Array, images: Images, level: int) -> Images:
    """Gives every pixel a neighbour's value, between two slight blurs."""
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    rows, columns = (jnp.asarray(at, int) for at in _pixel_grid(*images.shape[1:3]))
    images = _blurred(images, sigma)
    top, right = images.shape[1] - 1, images.shape[2] - 1

    def moved(image: Array, by: Array) -> Array:
        return image[jnp.clip(rows + by[0], 0, top), jnp.clip(columns + by[1], 0, right)]

    for i in range(rounds):
        # As in the source, neighbours lie above and to the left.
        shape = (len(images), 2, *images.shape[1:3])
        by = jax.random.randint(jax.random.fold_in(key, i), shape, -1, 1)
        images = jax.vmap(moved)(images, by)
    return _blurred(images, sigma)


def motion_blur(key: Array, images: Images, level: int) -> Images:
    """Moves the camera along a line of a random direction."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[level]
    angles = jax.random.uniform(key, (len(images),), minval=-np.pi / 4, maxval=np.pi / 4)
    scale = images.shape[1] / REFERENCE_HEIGHT
    return _smeared(images, angles, radius * scale, sigma * scale)


def zoom_blur(key: Array, images: Images, level: int) -> Images:
    """Averages over enlargements."""
    del key
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[level], 0.01)
    rows, columns = _pixel_grid(*images.shape[1:3])
    middle = (images.shape[1] - 1) / 2, (images.shape[2] - 1) / 2
    total = images
    for factor in factors:
        at = (middle[0] + (rows - middle[0]) / factor, middle[1] + (columns - middle[1]) / factor)
        total = total + jax.vmap(lambda image, at=at: _interpolated(image, *at))(images)
    return total / (len(factors) + 1)


# The tables of ITU-T T.81, annex K, for luminance and colours.
LUMINANCE = np.array([
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55],
    [14, 13, 16, 24, 40, 57, 69, 56], [14, 17, 22, 29, 51, 87, 80, 62],
    [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
])  # fmt: skip
COLOURS = np.full((8, 8), 99)
COLOURS[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]
# Rec. 601: brightness, and what blue and red have above it.
TO_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])


def contrast(key: Array, images: Images, level: int) -> Images:
    """Moves pixels towards their mean, in every channel."""
    del key
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[level]
    mean = images.mean((1, 2), keepdims=True)
    return (images - mean) * kept + mean


def elastic_transform(key: Array, images: Images, level: int) -> Images:
    """Moves three corners of a square, and every pixel a little with its neighbours."""
    strength, smooth, corner = (
        (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    )[level]  # fmt: skip
    batch, height, width, _ = images.shape
    size = min(height, width)
    corner_key, field_key = jax.random.split(key)
    middle, third = np.array([height // 2, width // 2], float), max(1, size // 3)
    square = middle + third * np.array([[1, 1], [1, -1], [-1, -1]])
    by = jax.random.uniform(corner_key, (batch, 3, 2), minval=-corner, maxval=corner) * size
    field = jax.random.uniform(field_key, (batch, height, width, 2), minval=-1, maxval=1)
    field = _blurred(field, smooth * size) * (strength * size)
    rows, columns = _pixel_grid(height, width)
    ends = jnp.asarray(np.concatenate([square, np.ones((3, 1))], 1), float)
    ones = jnp.ones((3, 1))

    def one(image: Array, by: Array, field: Array) -> Array:
        # From where a pixel comes: the affine map that brings the moved corners back.
        moved = jnp.concatenate([ends[:, :2] + by, ones], 1)
        back = jnp.linalg.solve(moved, ends[:, :2])
        at = jnp.stack([rows, columns, jnp.ones_like(rows)], -1) @ back + field
        return _interpolated(image, at[..., 0], at[..., 1])

    return jax.vmap(one)(images, by, field)


def pixelate(key: Array, images: Images, level: int) -> Images:
    """Averages into fewer pixels."""
    del key
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    for axis in (1, 2):
        size = images.shape[axis]
        weights = _box(size, max(1, int(size * share)))
        images = jnp.moveaxis(jnp.moveaxis(images, axis, -1) @ jnp.asarray(weights.T, images.dtype),
                              -1, axis)  # fmt: skip
    return images


def _box(size: int, fewer: int) -> np.ndarray:
    """Computes the matrix that averages a line into fewer pixels, and repeats these."""
    edges = np.linspace(0, size, fewer + 1)
    low, high = edges[:-1, None], edges[1:, None]
    at = np.arange(size)[None]
    shares = np.clip(np.minimum(high, at + 1) - np.maximum(low, at), 0, None)
    shares /= shares.sum(1, keepdims=True)
    nearest = np.minimum(((np.arange(size) + 0.5) * fewer / size).astype(int), fewer - 1)
    repeated: np.ndarray = shares[nearest]
    return repeated


def jpeg_compression(key: Array, images: Images, level: int) -> Images:
    """Rounds the cosine transforms of blocks, as a JPEG file of low quality does."""
    del key
    quality = (80, 65, 58, 50, 40)[level]
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    tables = [
        np.clip(np.floor((table * scale + 50) / 100), 1, 255) for table in (LUMINANCE, COLOURS)
    ]
    levels = jnp.round(images * 255)
    if images.shape[-1] != 3:
        planes = [_rounded_blocks(levels[..., c], tables[0]) for c in range(images.shape[-1])]
        return jnp.round(jnp.stack(planes, -1)).clip(0, 255) / 255
    luma, *colours = jnp.moveaxis(levels @ jnp.asarray(TO_YCC.T, images.dtype), -1, 0)
    planes = [_rounded_blocks(luma, tables[0])]
    # Colours have half the pixels in both directions.
    planes += [_halved(plane + 128, tables[1]) - 128 for plane in colours]
    back = jnp.asarray(np.linalg.inv(TO_YCC).T, images.dtype)
    return jnp.round(jnp.stack(planes, -1) @ back).clip(0, 255) / 255


def _halved(plane: Array, table: np.ndarray) -> Array:
    _, height, width = plane.shape
    even = jnp.pad(plane, ((0, 0), (0, height % 2), (0, width % 2)), mode="edge")
    blocks = even.reshape(len(plane), -(-height // 2), 2, -(-width // 2), 2)
    small = _rounded_blocks(blocks.mean((2, 4)), table)
    return small.repeat(2, 1).repeat(2, 2)[:, :height, :width]


def _rounded_blocks(plane: Array, table: np.ndarray) -> Array:
    """Rounds the cosine transform of blocks of eight by eight to multiples of a table."""
    batch, height, width = plane.shape
    padded = jnp.pad(plane, ((0, 0), (0, -height % 8), (0, -width % 8)), mode="edge")
    rows, columns = padded.shape[1] // 8, padded.shape[2] // 8
    blocks = padded.reshape(batch, rows, 8, columns, 8).transpose(0, 1, 3, 2, 4) - 128
    at = np.arange(8)
    cosine = np.cos(np.pi * at[:, None] * (2 * at[None] + 1) / 16) / 2
    cosine[0] /= np.sqrt(2)
    matrix = jnp.asarray(cosine, plane.dtype)
    steps = jnp.asarray(table, plane.dtype)[None, None, None]
    codes = jnp.round(matrix @ blocks @ matrix.T / steps)
    pixels = matrix.T @ (codes * steps) @ matrix + 128
    pixels = pixels.transpose(0, 1, 3, 2, 4).reshape(batch, rows * 8, columns * 8)
    return pixels[:, :height, :width].clip(0, 255)


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
    rows, columns = _pixel_grid(height, width)
    middle = (height - 1) / 2, (width - 1) / 2
    at = middle[0] + (rows - middle[0]) / zoom, middle[1] + (columns - middle[1]) / zoom
    flakes = jax.vmap(lambda layer: _interpolated(layer, *at))(flakes)
    flakes = jnp.where(flakes < threshold, 0, jnp.clip(flakes, 0, 1))
    angles = jax.random.uniform(angle_key, (batch,), minval=-3 * np.pi / 4, maxval=-np.pi / 4)
    scale = height / REFERENCE_HEIGHT
    flakes = _smeared(flakes, angles, radius * scale, sigma * scale).astype(images.dtype)
    gray = images.mean(-1, keepdims=True) * 1.5 + 0.5
    images = kept * images + (1 - kept) * jnp.maximum(images, gray)
    return images + flakes + flakes[:, ::-1, ::-1]


def frost(key: Array, images: Images, level: int) -> Images:
    """Lays crystals over the scene: ridges of clouds, in the place of the source's photographs."""
    kept, strength = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    coarse, fine = jax.random.split(key)
    crystals = [
        (1 - jnp.abs(2 * _plasma(k, images, decay) - 1)) ** 3
        for k, decay in ((coarse, 2.0), (fine, 1.3))
    ]
    return kept * images + strength * jnp.maximum(*crystals)


def fog(key: Array, images: Images, level: int) -> Images:
    """Adds clouds, and dims what is behind them."""
    strength, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[level]
    top = images.max((1, 2, 3), keepdims=True)
    return (images + strength * _plasma(key, images, decay)) * top / (top + strength)


def brightness(key: Array, images: Images, level: int) -> Images:
    """Raises the value of hue, saturation and value."""
    del key
    more = (0.05, 0.1, 0.15, 0.2, 0.3)[level]
    value = images.max(-1, keepdims=True)
    raised = jnp.minimum(value + more, 1)
    # Hue and saturation are ratios of channels; black has none and becomes gray.
    return jnp.where(value > 0, images * (raised / jnp.where(value > 0, value, 1)), raised)


_FUNCTIONS: dict[str, Callable[[Array, Array, int], Array]] = {
    function.__name__: function
    for function in (
        gaussian_noise, shot_noise, impulse_noise,
        defocus_blur, glass_blur, motion_blur, zoom_blur,
        snow, frost, fog, brightness,
        contrast, elastic_transform, pixelate, jpeg_compression,
    )
}  # fmt: skip

CORRUPTIONS = tuple(_FUNCTIONS)
"""Names of the corruptions, in the order of the paper."""


@validate(images=real_array(4), name=one_of(*CORRUPTIONS), severity=static_integer(1, 5))
def corrupt(key: PRNGKeyArray, images: Images, name: str, severity: int = 1) -> Images:
    """Corrupts images; jits, with name and severity static.

    Args:
        key: Random key.
        images: Values of 0 to 1; one channel or three.
        name: One of `CORRUPTIONS`.
        severity: 1, hardly to be seen, to 5.

    Returns:
        Images of the same shape and dtype, of values from 0 to 1.

    Raises:
        ValueError: Values lie outside of 0 to 1, or the name or severity is none there is.
        TypeError: Images are no floating-point numbers.
    """
    images = _checked(images)
    corrupted = _FUNCTIONS[name](key, images, severity - 1)
    return jnp.clip(corrupted, 0, 1).astype(images.dtype)


def _checked(images: Any) -> jax.Array:
    if not jnp.issubdtype(jnp.result_type(images), jnp.floating):
        raise TypeError(
            f"corrupt: images must be floating-point numbers from 0 to 1, not "
            f"{jnp.result_type(images)}; divide bytes by 255"
        )
    if is_concrete(images) and (np.min(images) < 0 or np.max(images) > 1):
        raise ValueError(
            "corrupt: images must be numbers from 0 to 1; corrupt them before they are normalized"
        )
    return jnp.asarray(images)
