"""What shares a draw, and what a noise level is given for: common to the models of this room.

`per` says which elements share one random draw: none ("element"), those of one channel of one
sample ("channel"), or all of one sample ("sample"). `along` says what an array of levels holds one
entry for: each sample or each channel; without it an array is broadcast as numpy does. `relative`
gives a level in units of the signal's range: the maximum minus the minimum of the array that is
perturbed, without a gradient of its own.

Sharp edges:
    The first axis counts samples and the last one channels, as in Flax. In weights the last axis
    counts channels, which share a draw over all other axes; there are no samples.
    The range is that of the whole array, so a sample's noise depends on the others in its batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.noise.protocol import PLACES
from jaxeff.settings import check_broadcasts, check_choice

PER = ("element", "channel", "sample")
ALONG = (None, "sample", "channel")


def check_granularity(model: Any) -> None:
    """Checks the choices `at`, `per`, `along` and `relative` of a model, those that it has.

    Raises:
        ValueError: A choice is unknown, or asks for the samples of weights.
    """
    name = type(model).__name__
    options = {"at": PLACES, "per": PER, "along": ALONG, "relative": (False, True)}
    for field, choices in options.items():
        if hasattr(model, field):
            check_choice(f"{name}.{field}", getattr(model, field), choices)
    for field in ("per", "along"):
        if model.at == "weights" and getattr(model, field, None) == "sample":
            raise ValueError(
                f'{name}.{field}="sample" acts on samples, which weights don\'t have; choose '
                'another, or at="output".'
            )


def level(model: Any, field: str, x: Any) -> Array:
    """A level of a model, aligned with `x` and in its dtype, so that it never promotes the result.

    Raises:
        ValueError: Its shape doesn't fit `x`.
    """
    name, value = f"{type(model).__name__}.{field}", getattr(model, field)
    along = getattr(model, "along", None)
    shape = jnp.shape(x)
    if along is None or jnp.ndim(value) == 0:
        check_broadcasts(name, value, shape)
    else:
        wanted = shape[:1] if along == "sample" else shape[-1:]
        if jnp.shape(value) != wanted:
            raise ValueError(
                f"{name} holds one number per {along} and must be a number or of shape {wanted} "
                f"for the array of shape {shape} that it acts on, but has shape "
                f"{jnp.shape(value)}."
            )
    value = jnp.asarray(value).astype(jnp.result_type(x))
    if along == "sample" and value.ndim:
        return value.reshape(-1, *(1,) * (len(shape) - 1))
    return value


def amplitude(model: Any, field: str, x: Any) -> Array:
    """A level that is an amount of signal: in the units of `x`, or of its range if relative."""
    value = level(model, field, x)
    return value * jax.lax.stop_gradient(jnp.max(x) - jnp.min(x)) if model.relative else value


def draw_shape(model: Any, x: Any) -> tuple[int, ...]:
    """The shape of a model's random draws, which broadcasts against `x`.

    Raises:
        TypeError: `x` doesn't hold real floating-point numbers.
    """
    dtype, shape = jnp.result_type(x), jnp.shape(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"Noise needs a real floating-point array, but this one has dtype {dtype}; convert it "
            "with .astype(jnp.float32) or leave it out of the spec."
        )
    if model.per == "element":
        return shape
    own = {0} if model.per == "sample" else {0, len(shape) - 1}
    own -= {0} if model.at == "weights" and len(shape) > 1 else set()
    return tuple(n if axis in own else 1 for axis, n in enumerate(shape))


def normal(model: Any, key: Any, x: Any) -> Array:
    """Standard normal draws for `x`."""
    return jax.random.normal(key, draw_shape(model, x), jnp.result_type(x))
