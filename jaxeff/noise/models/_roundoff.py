"""Round-off: the error of a read-out with a finite step, as it is and as uniform noise.

An analog-to-digital converter rounds to multiples of its step. Where the signal covers many steps,
the error is close to uniform over one step, independent of the signal, and has the standard
deviation step / sqrt(12): `Quantization(step)` is the former, `UniformNoise(step)` the latter.

References:
    Widrow and Kollár, "Quantization Noise", Cambridge University Press, 2008, chapter 4.
    Esser et al., "Learned Step Size Quantization", arXiv:1902.08153: the gradient of the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import NonNegative, register_setting, static
from jaxeff.noise.models._draws import Draw, DrawnNoise
from jaxeff.noise.models._model import Axis, Flag, NoiseModel, Place, Sharing, real_dtype


@register_setting
@dataclass(frozen=True)
class UniformNoise(DrawnNoise):
    """Uniform noise, `x + U(-width / 2, width / 2)`, of standard deviation `width / sqrt(12)`.

    Attributes:
        width: Width of the distribution in the units of `x`; a scalar or an array.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        per: Scope of one draw: "element" (nothing), "channel" or "sample".
        along: Axis that an array of widths has one entry along: "sample" or "channel".
        relative: Whether `width` is in units of the range of `x`.

    Raises:
        ValueError: `width` is negative, NaN or infinite, or a choice is unknown.
    """

    width: NonNegative
    at: Place = static("output")
    per: Sharing = static("element")
    along: Axis = static(None)
    relative: Flag = static(False)

    def draws(self, x: Any) -> Sequence[Draw]:
        """Returns one array of uniform numbers."""
        return [self._uniform(x)]

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Adds uniform noise."""
        return x + self._amount("width", x) * (numbers[0] - 0.5)


@register_setting
@dataclass(frozen=True)
class Quantization(NoiseModel):
    """Rounding to the nearest multiple of a step, `step * round(x / step)`; nothing is random.

    The gradient passes straight through to `x`; that of `step` is the round-off error in steps. A
    step of zero changes nothing. There is no saturation: `jaxeff.quantized` models that.

    Attributes:
        step: The step in the units of `x`; a scalar or an array.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        along: Axis that an array of steps has one entry along: "sample" or "channel".
        relative: Whether `step` is in units of the range of `x`: 1 / (2**bits - 1) is a converter
            adjusted to its signal.

    Raises:
        ValueError: `step` is negative, NaN or infinite, or a choice is unknown.
    """

    step: NonNegative
    at: Place = static("output")
    along: Axis = static(None)
    relative: Flag = static(False)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Rounds `x`; the key isn't used."""
        del key
        real_dtype(x)
        # A step of zero multiplies what follows by zero, so any divisor serves there.
        step = self._amount("step", x)
        in_steps = jax.lax.stop_gradient(x / jnp.where(step > 0, step, 1))
        # With v = x / step held constant, the derivative by x is 1 (straight through) and that by
        # step is round(v) - v: Esser et al., eq. 3, inside the range.
        return x + step * (jnp.round(in_steps) - in_steps)
