"""Gaussian noise models for analog hardware: additive, multiplicative, and both in either order.

Each model is a setting: a frozen dataclass and pytree whose noise level is a leaf, so that thirty
levels are one vmapped program and the level itself can be trained. `perturb(key, x)` draws a fresh
sample for every element, channel or image and is reparameterised: gradients reach `x` and the noise
levels. `jaxeff.noise.models` explains `per`, `along` and `relative`.

Sharp edges:
    A noise level is a standard deviation, not a variance.
    Only real floating-point arrays can be perturbed: `perturb` refuses others, while
    `jaxeff.noisy` leaves a layer's integer and boolean values alone.
    A negative traced level is not caught; it acts as its absolute value.

References:
    Borras et al., "Walking Noise: On Layer-Specific Robustness of Neural Architectures against
    Noisy Computations and Associated Characteristic Learning Dynamics", arXiv:2212.10430.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import Choice, NonNegative, register_setting, static
from jaxeff.noise.models._draws import Draw, DrawnNoise
from jaxeff.noise.models._model import Axis, Flag, Place, Sharing
from jaxeff.noise.models._protocol import Part

ORDERS = ("mul_add", "add_mul")


@dataclass(frozen=True)
class GaussianNoise(DrawnNoise):
    """Noise of one standard deviation; its subclasses say what it does to a value.

    Attributes:
        sigma: The standard deviation.
        at: Place where a layer is perturbed.
        per: Scope of one draw.
        along: Axis that an array of levels has one entry along.
    """

    sigma: NonNegative
    at: Place = static("output")
    per: Sharing = static("element")
    along: Axis = static(None)

    def draws(self, x: Any) -> Sequence[Draw]:
        """Returns one array of normal numbers."""
        return [self._normal(x)]

    def _variance(self, x: Any) -> Array:
        """Computes the variance of the draws for a value."""
        shape = self._draw_shape(jnp.shape(x))
        return self._fitting("sigma", self._level("sigma", x) ** 2, shape)


@register_setting
@dataclass(frozen=True)
class Additive(GaussianNoise):
    """Additive Gaussian noise, `x + N(0, sigma)`.

    Attributes:
        sigma: Standard deviation in the units of `x`; a scalar, or an array that broadcasts
            against `x`, such as one level per channel.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        per: Scope of one draw: "element" (nothing), "channel" or "sample".
        along: Axis that an array of levels has one entry along: "sample" or "channel".
        relative: Whether `sigma` is in units of the range of `x`.

    Raises:
        ValueError: `sigma` is negative, NaN or infinite, or a choice is unknown.
    """

    relative: Flag = static(False)

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Adds normal numbers."""
        # Reparameterised: the draw depends on neither x nor sigma, so gradients reach both.
        return x + self._amount("sigma", x) * numbers[0]

    def terms(self, x: Any) -> Sequence[Part]:
        """Returns the noise, of mean 0."""
        variance = self._variance(x)
        return [(jnp.zeros_like(variance), variance)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Adds the noise to the value."""
        return x + parts[0]


@register_setting
@dataclass(frozen=True)
class Multiplicative(GaussianNoise):
    """Multiplicative Gaussian noise, `x * N(1, sigma)`.

    Attributes:
        sigma: Standard deviation relative to `x`, without unit; a scalar or an array that
            broadcasts against `x`.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        per: Scope of one draw: "element" (nothing), "channel" or "sample".
        along: Axis that an array of levels has one entry along: "sample" or "channel".

    Raises:
        ValueError: `sigma` is negative, NaN or infinite, or a choice is unknown.
    """

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Multiplies `x` by noise that is normal around one."""
        return x * (1 + self._level("sigma", x) * numbers[0])

    def terms(self, x: Any) -> Sequence[Part]:
        """Returns the factor, of mean 1."""
        variance = self._variance(x)
        return [(jnp.ones_like(variance), variance)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Multiplies the value by its factor."""
        return x * parts[0]


@register_setting
@dataclass(frozen=True)
class Mixed(DrawnNoise):
    """Additive and multiplicative Gaussian noise, independent of each other, in either order.

    Attributes:
        add: Standard deviation of the additive part, in the units of `x`.
        mul: Standard deviation of the multiplicative part, without unit.
        order: "mul_add" for `x * N(1, mul) + N(0, add)`; "add_mul" for
            `(x + N(0, add)) * N(1, mul)`.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        per: Scope of one draw: "element" (nothing), "channel" or "sample".
        along: Axis that an array of levels has one entry along: "sample" or "channel".
        relative: Whether `add` is in units of the range of `x`.

    Raises:
        ValueError: A level is negative, NaN or infinite, or a choice is unknown.
    """

    add: NonNegative
    mul: NonNegative
    order: Annotated[str, Choice(*ORDERS)] = static("mul_add")
    at: Place = static("output")
    per: Sharing = static("element")
    along: Axis = static(None)
    relative: Flag = static(False)

    def draws(self, x: Any) -> Sequence[Draw]:
        """Returns normal numbers for the sum, and for the product."""
        return [self._normal(x), self._normal(x)]

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Perturbs `x` by both kinds of noise, in the given order."""
        offset = self._amount("add", x) * numbers[0]
        gain = 1 + self._level("mul", x) * numbers[1]
        # The same formula as for moments, so that samples and moments can't differ in the order.
        return self.combine(x, offset, gain)

    def terms(self, x: Any) -> Sequence[Part]:
        """Returns the offset, of mean 0, and the factor, of mean 1."""
        shape = self._draw_shape(jnp.shape(x))
        # Both factors are integrated as independent; `combine` is linear in each of them.
        add, mul = (self._fitting(n, self._level(n, x) ** 2, shape) for n in ("add", "mul"))
        return [(jnp.zeros_like(add), add), (jnp.ones_like(mul), mul)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Applies both to the value, in the given order."""
        offset, gain = parts
        return x * gain + offset if self.order == "mul_add" else (x + offset) * gain
