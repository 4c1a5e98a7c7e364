"""Random numbers that noise models state beforehand, drawn for all sites at once.

A random function is hundreds of operations, which are compiled for every call and shape anew: a
model with noise at a hundred sites would compile for most of a minute. A counter-based generator
(Salmon et al.) makes a number of a key and its place alone, so the numbers of all sites are one
array with a key per entry, and the very numbers that each site would have drawn by itself.

References:
    Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import jax_internals
from jaxeff.noise.models._model import NoiseModel, real_dtype

LARGEST = 2**16
"""Entries of a draw up to which it is drawn with others: a larger one runs longer than it compiles,
and all that is drawn at once is held at once."""
_ROW = 256
"""Entries of a row of numbers of one key."""


class Draw(NamedTuple):
    """Random numbers that a model needs.

    Attributes:
        shape: Their shape.
        dtype: Their dtype.
        normal: Whether they are standard normal, or uniform between 0 and 1.
    """

    shape: tuple[int, ...]
    dtype: Any
    normal: bool = True

    def numbers(self, key: PRNGKeyArray) -> Array:
        """Draws them."""
        draw = jax.random.normal if self.normal else jax.random.uniform
        return draw(key, self.shape, self.dtype)


@dataclass(frozen=True)
class DrawnNoise(NoiseModel):
    """Base of the models that state what they draw."""

    def _normal(self, x: Any) -> Draw:
        """Returns a draw of standard normal numbers for `x`."""
        return Draw(self._draw_shape(x.shape), real_dtype(x))

    def _uniform(self, x: Any) -> Draw:
        """Returns a draw of numbers for `x`, uniform between 0 and 1."""
        return Draw(self._draw_shape(x.shape), real_dtype(x), normal=False)

    def draws(self, x: Any) -> Sequence[Draw]:
        """Returns what is drawn for a value, of which the shape and dtype are enough."""
        raise NotImplementedError

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Perturbs a value by numbers that were drawn, one array per draw."""
        raise NotImplementedError

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Perturbs `x` by fresh numbers."""
        draws = self.draws(jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)))
        numbers = [one.numbers(k) for one, k in zip(draws, draw_keys(key, draws), strict=True)]
        return self.apply(x, *numbers)


def draw_keys(key: PRNGKeyArray, draws: Sequence[Draw]) -> Sequence[PRNGKeyArray]:
    """Returns a key for each of a model's draws."""
    # Independent parts: from one key all would be the same numbers.
    return [key] if len(draws) == 1 else list(jax.random.split(key, len(draws)))


def fits(draw: Draw) -> bool:
    """Returns whether a draw can be, and is better, drawn with others."""
    return (
        jnp.dtype(draw.dtype) == jnp.float32
        and all(isinstance(n, int) for n in draw.shape)
        and 0 < np.prod(draw.shape, dtype=int) <= LARGEST
    )


def is_counted(key: PRNGKeyArray) -> bool:
    """Returns whether a key's numbers are a function of the key and their place."""
    # Without partitions, places share blocks of numbers.
    split = jax_internals.numbers_by_place()
    return split and str(jax.random.key_impl(key)) == "threefry2x32"


def drawn_together(draws: Sequence[Draw], keys: PRNGKeyArray) -> list[Array]:
    """Draws numbers for all, as `Draw.numbers` would one by one.

    Args:
        draws: Draws that fit.
        keys: One counted key per draw, `[draws]`.
    """
    # Normal ones first, so that they are one array.
    order = sorted(range(len(draws)), key=lambda i: not draws[i].normal)
    sizes = [int(np.prod(draws[i].shape)) for i in order]
    # Every draw fills rows of its own: the key of a row is then one entry of a short table, where
    # one array put together of hundreds would compile for as long as what it replaces.
    rows = [-(-n // _ROW) for n in sizes]
    starts = np.cumsum([0, *rows])
    words = jax.random.key_data(keys)[np.repeat(order, rows)]
    row = np.concatenate([np.arange(n, dtype=np.uint32) for n in rows])
    places = jnp.asarray(row * np.uint32(_ROW))[:, None] + np.arange(_ROW, dtype=np.uint32)[None]
    first, second = (jnp.broadcast_to(words[:, i, None], places.shape) for i in range(2))
    bits = jax_internals.counter_bits(first, second, places).reshape(-1)
    # The mantissa of a number between 1 and 2 is random, as in `jax.random.uniform`.
    bits = (bits >> np.uint32(9)) | np.float32(1).view(np.uint32)
    uniform = jax.lax.bitcast_convert_type(bits, jnp.float32) - np.float32(1)
    normal = uniform[: _ROW * starts[sum(draw.normal for draw in draws)]]
    least = np.nextafter(np.float32(-1), np.float32(0))
    inner = jnp.maximum(least, normal * (np.float32(1) - least) + least)
    normal = np.float32(np.sqrt(2)) * jax.lax.erf_inv(inner)
    found: list[Any] = [None] * len(draws)
    for i, n, start in zip(order, sizes, _ROW * starts, strict=False):
        flat = (normal if draws[i].normal else uniform)[start : start + n]
        found[i] = flat.reshape(draws[i].shape)
    return found
