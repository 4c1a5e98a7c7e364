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


def aligned(model: Any, field: str, x: Any) -> Array:
    """A number or array of a model, in a shape that broadcasts against `x`.

    Raises:
        ValueError: Its shape doesn't fit `x`.
    """
    name, value = f"{type(model).__name__}.{field}", getattr(model, field)
    shape = jnp.shape(x)
    if model.along is None or jnp.ndim(value) == 0:
        check_broadcasts(name, value, shape)
        return jnp.asarray(value)
    wanted = shape[:1] if model.along == "sample" else shape[-1:]
    if jnp.shape(value) != wanted:
        raise ValueError(
            f"{name} holds one number per {model.along} and must be a number or of shape {wanted} "
            f"for the array of shape {shape} that it acts on, but has shape {jnp.shape(value)}."
        )
    if model.along == "channel":
        return jnp.asarray(value)
    return jnp.reshape(value, (-1, *(1,) * (len(shape) - 1)))


def level(model: Any, field: str, x: Any) -> Array:
    """A level of a model in the dtype of `x`, so that it never promotes the result."""
    return aligned(model, field, x).astype(jnp.result_type(x))


def amplitude(model: Any, field: str, x: Any) -> Array:
    """A level that is an amount of signal: in the units of `x`, or of its range if relative."""
    value = level(model, field, x)
    return value * jax.lax.stop_gradient(jnp.max(x) - jnp.min(x)) if model.relative else value


def real_dtype(x: Any) -> Any:
    """The dtype of an array that noise can act on.

    Raises:
        TypeError: `x` doesn't hold real floating-point numbers.
    """
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"Noise needs a real floating-point array, but this one has dtype {dtype}; convert it "
            "with .astype(jnp.float32) or leave it out of the spec."
        )
    return dtype


def draw_shape(model: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a model's fresh draws for an array, which broadcasts against it."""
    if model.per == "element":
        return shape
    own = {0} if model.per == "sample" else {0, len(shape) - 1}
    if model.at == "weights":
        own = {len(shape) - 1}
    return tuple(n if axis in own else 1 for axis, n in enumerate(shape))


def normal(model: Any, key: Any, x: Any) -> Array:
    """Fresh standard normal draws for `x`."""
    return jax.random.normal(key, draw_shape(model, jnp.shape(x)), real_dtype(x))


def uniform(model: Any, key: Any, x: Any) -> Array:
    """Fresh draws for `x`, uniform between -1/2 and 1/2."""
    shape = draw_shape(model, jnp.shape(x))
    return jax.random.uniform(key, shape, real_dtype(x), -0.5, 0.5)
