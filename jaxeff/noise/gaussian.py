"""Gaussian noise models for analog hardware: additive, multiplicative, and both in either order.

Each model is a setting: a frozen dataclass and pytree whose noise level is a leaf, so that thirty
levels are one vmapped program and the level itself can be trained. `perturb(key, x)` draws a fresh
sample for every element and is reparameterised: gradients reach `x` and the noise levels.

Sharp edges:
    A noise level is a standard deviation, not a variance.
    Only real floating-point arrays can be perturbed: `perturb` refuses others, while
    `jaxeff.noisy` leaves a layer's integer and boolean values alone.
    A negative traced level is not caught; it acts as its absolute value.

References:
    Borras et al., "Walking Noise: On Layer-Specific Robustness of Neural Architectures against
    Noisy Computations and Associated Characteristic Learning Dynamics", arXiv:2212.10430.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.settings import check_broadcasts, check_choice, check_number, register_setting, static

PLACES = ("output", "weights", "input")
ORDERS = ("mul_add", "add_mul")


@runtime_checkable
class Noise(Protocol):
    """What `jaxeff.noisy` asks of a noise model; any object with this method will do.

    A model may also have an attribute `at`, one of "output" (the default), "weights" and "input".
    """

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns a perturbed copy of `x`, of the same shape and dtype."""
        ...


@register_setting
@dataclass(frozen=True)
class Additive:
    """Additive Gaussian noise, `x + N(0, sigma)`.

    Attributes:
        sigma: Standard deviation in the units of `x`; a scalar, or an array that broadcasts
            against `x`, such as one level per channel.
        at: Where a layer is perturbed: "output", "weights" or "input".

    Raises:
        ValueError: `sigma` is negative, NaN or infinite, or `at` is none of the three.
    """

    sigma: Float[Array, "..."] | float
    at: str = static("output")

    def __post_init__(self) -> None:
        check_number("Additive.sigma", self.sigma, low=0)
        check_choice("Additive.at", self.at, PLACES)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns `x` plus a fresh normal sample per element."""
        return x + _level("Additive.sigma", self.sigma, x) * _normal(key, x)


@register_setting
@dataclass(frozen=True)
class Multiplicative:
    """Multiplicative Gaussian noise, `x * N(1, sigma)`.

    Attributes:
        sigma: Standard deviation relative to `x`, without unit; a scalar or an array that
            broadcasts against `x`.
        at: Where a layer is perturbed: "output", "weights" or "input".

    Raises:
        ValueError: `sigma` is negative, NaN or infinite, or `at` is none of the three.
    """

    sigma: Float[Array, "..."] | float
    at: str = static("output")

    def __post_init__(self) -> None:
        check_number("Multiplicative.sigma", self.sigma, low=0)
        check_choice("Multiplicative.at", self.at, PLACES)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns `x` times a fresh sample per element, normal around one."""
        return x * (1 + _level("Multiplicative.sigma", self.sigma, x) * _normal(key, x))


@register_setting
@dataclass(frozen=True)
class Mixed:
    """Additive and multiplicative Gaussian noise, independent of each other, in either order.

    Attributes:
        add: Standard deviation of the additive part, in the units of `x`.
        mul: Standard deviation of the multiplicative part, without unit.
        order: "mul_add" for `x * N(1, mul) + N(0, add)`; "add_mul" for
            `(x + N(0, add)) * N(1, mul)`.
        at: Where a layer is perturbed: "output", "weights" or "input".

    Raises:
        ValueError: A level is negative, NaN or infinite, or `order` or `at` is unknown.
    """

    add: Float[Array, "..."] | float
    mul: Float[Array, "..."] | float
    order: str = static("mul_add")
    at: str = static("output")

    def __post_init__(self) -> None:
        check_number("Mixed.add", self.add, low=0)
        check_number("Mixed.mul", self.mul, low=0)
        check_choice("Mixed.order", self.order, ORDERS)
        check_choice("Mixed.at", self.at, PLACES)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns `x` under both kinds of noise, in the given order."""
        add_key, mul_key = jax.random.split(key)
        offset = _level("Mixed.add", self.add, x) * _normal(add_key, x)
        gain = 1 + _level("Mixed.mul", self.mul, x) * _normal(mul_key, x)
        return x * gain + offset if self.order == "mul_add" else (x + offset) * gain


def _normal(key: PRNGKeyArray, x: Any) -> Array:
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"Noise needs a real floating-point array, but this one has dtype {dtype}; convert it "
            "with .astype(jnp.float32) or leave it out of the spec."
        )
    return jax.random.normal(key, jnp.shape(x), dtype)


def _level(name: str, sigma: Any, x: Any) -> Array:
    """The noise level in the dtype of `x`, so that it never promotes the result."""
    check_broadcasts(name, sigma, jnp.shape(x))
    return jnp.asarray(sigma).astype(jnp.result_type(x))
