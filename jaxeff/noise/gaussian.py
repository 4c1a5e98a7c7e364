"""Gaussian noise models for analog hardware: additive, multiplicative, and both in either order.

Each model is a setting: a frozen dataclass and pytree whose noise level is a leaf, so that thirty
levels are one vmapped program and the level itself can be trained. `perturb(key, x)` draws a fresh
sample for every element, channel or image and is reparameterised: gradients reach `x` and the noise
levels. `jaxeff.noise.granularity` explains `per`, `along` and `relative`.

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

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.noise.granularity import amplitude, check_granularity, level, normal
from jaxeff.settings import check_choice, check_number, register_setting, static

ORDERS = ("mul_add", "add_mul")


@register_setting
@dataclass(frozen=True)
class Additive:
    """Additive Gaussian noise, `x + N(0, sigma)`.

    Attributes:
        sigma: Standard deviation in the units of `x`; a scalar, or an array that broadcasts
            against `x`, such as one level per channel.
        at: Where a layer is perturbed: "output", "weights" or "input".
        per: What shares one draw: "element" (nothing), "channel" or "sample".
        along: What an array of levels holds one entry for: "sample" or "channel".
        relative: Whether `sigma` is in units of the range of `x`.

    Raises:
        ValueError: `sigma` is negative, NaN or infinite, or a choice is unknown.
    """

    sigma: Float[Array, "..."] | float
    at: str = static("output")
    per: str = static("element")
    along: str | None = static(None)
    relative: bool = static(False)

    def __post_init__(self) -> None:
        check_number("Additive.sigma", self.sigma, low=0)
        check_granularity(self)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns `x` plus fresh normal noise."""
        return x + amplitude(self, "sigma", x) * normal(self, key, x)


@register_setting
@dataclass(frozen=True)
class Multiplicative:
    """Multiplicative Gaussian noise, `x * N(1, sigma)`.

    Attributes:
        sigma: Standard deviation relative to `x`, without unit; a scalar or an array that
            broadcasts against `x`.
        at: Where a layer is perturbed: "output", "weights" or "input".
        per: What shares one draw: "element" (nothing), "channel" or "sample".
        along: What an array of levels holds one entry for: "sample" or "channel".

    Raises:
        ValueError: `sigma` is negative, NaN or infinite, or a choice is unknown.
    """

    sigma: Float[Array, "..."] | float
    at: str = static("output")
    per: str = static("element")
    along: str | None = static(None)

    def __post_init__(self) -> None:
        check_number("Multiplicative.sigma", self.sigma, low=0)
        check_granularity(self)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns `x` times fresh noise, normal around one."""
        return x * (1 + level(self, "sigma", x) * normal(self, key, x))


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
        per: What shares one draw: "element" (nothing), "channel" or "sample".
        along: What an array of levels holds one entry for: "sample" or "channel".
        relative: Whether `add` is in units of the range of `x`.

    Raises:
        ValueError: A level is negative, NaN or infinite, or a choice is unknown.
    """

    add: Float[Array, "..."] | float
    mul: Float[Array, "..."] | float
    order: str = static("mul_add")
    at: str = static("output")
    per: str = static("element")
    along: str | None = static(None)
    relative: bool = static(False)

    def __post_init__(self) -> None:
        check_number("Mixed.add", self.add, low=0)
        check_number("Mixed.mul", self.mul, low=0)
        check_choice("Mixed.order", self.order, ORDERS)
        check_granularity(self)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns `x` under both kinds of noise, in the given order."""
        add_key, mul_key = jax.random.split(key)
        offset = amplitude(self, "add", x) * normal(self, add_key, x)
        gain = 1 + level(self, "mul", x) * normal(self, mul_key, x)
        return x * gain + offset if self.order == "mul_add" else (x + offset) * gain
