"""Of processing: contrast, elastic deformation, coarse pixels and JPEG."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.data.corruptions._resampling import blurred, places, sampled

Images = Float[Array, "batch height width channels"]

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
    field = blurred(field, smooth * size) * (strength * size)
    rows, columns = places(height, width)
    ends = jnp.asarray(np.concatenate([square, np.ones((3, 1))], 1), float)
    ones = jnp.ones((3, 1))

    def one(image: Array, by: Array, field: Array) -> Array:
        # From where a pixel comes: the affine map that brings the moved corners back.
        moved = jnp.concatenate([ends[:, :2] + by, ones], 1)
        back = jnp.linalg.solve(moved, ends[:, :2])
        at = jnp.stack([rows, columns, jnp.ones_like(rows)], -1) @ back + field
        return sampled(image, at[..., 0], at[..., 1])

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
    made = matrix.T @ (codes * steps) @ matrix + 128
    made = made.transpose(0, 1, 3, 2, 4).reshape(batch, rows * 8, columns * 8)
    return made[:, :height, :width].clip(0, 255)
