"""Noise that is drawn anew in every call: Gaussian, round-off and dropout.

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

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Choice, NonNegative, Number, is_concrete, register_setting, static
from jaxeff.noise.models import _protocol as protocol

ORDERS = ("mul_add", "add_mul")


@dataclass(frozen=True)
class GaussianNoise(protocol.DrawnNoise):
    """Noise of one standard deviation; its subclasses say what it does to a value.

    Attributes:
        sigma: The standard deviation.
        at: Place where a layer is perturbed.
        per: Scope of one draw.
        along: Axis that an array of levels has one entry along.
    """

    sigma: NonNegative
    at: protocol.Place = static("output")
    per: protocol.Sharing = static("element")
    along: protocol.Axis = static(None)

    def draws(self, x: Any) -> Sequence[protocol.Draw]:
        """Returns one array of normal numbers."""
        return [self._normal(x)]

    def _variance(self, x: Any) -> Array:
        """Computes the variance of the draws for a value."""
        shape = self._draw_shape(jnp.shape(x))
        return self._fitting("sigma", self._level("sigma", x) ** 2, shape)


@register_setting
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

    relative: protocol.Flag = static(False)

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Adds normal numbers."""
        # Reparameterised: the draw depends on neither x nor sigma, so gradients reach both.
        return x + self._amount("sigma", x) * numbers[0]

    def terms(self, x: Any) -> Sequence[protocol.Part]:
        """Returns the noise, of mean 0."""
        variance = self._variance(x)
        return [(jnp.zeros_like(variance), variance)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Adds the noise to the value."""
        return x + parts[0]


@register_setting
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

    def terms(self, x: Any) -> Sequence[protocol.Part]:
        """Returns the factor, of mean 1."""
        variance = self._variance(x)
        return [(jnp.ones_like(variance), variance)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Multiplies the value by its factor."""
        return x * parts[0]


@register_setting
class Mixed(protocol.DrawnNoise):
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
    at: protocol.Place = static("output")
    per: protocol.Sharing = static("element")
    along: protocol.Axis = static(None)
    relative: protocol.Flag = static(False)

    def draws(self, x: Any) -> Sequence[protocol.Draw]:
        """Returns normal numbers for the sum, and for the product."""
        return [self._normal(x), self._normal(x)]

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Perturbs `x` by both kinds of noise, in the given order."""
        offset = self._amount("add", x) * numbers[0]
        gain = 1 + self._level("mul", x) * numbers[1]
        # The same formula as for moments, so that samples and moments can't differ in the order.
        return self.combine(x, offset, gain)

    def terms(self, x: Any) -> Sequence[protocol.Part]:
        """Returns the offset, of mean 0, and the factor, of mean 1."""
        shape = self._draw_shape(jnp.shape(x))
        # Both factors are integrated as independent; `combine` is linear in each of them.
        add, mul = (self._fitting(n, self._level(n, x) ** 2, shape) for n in ("add", "mul"))
        return [(jnp.zeros_like(add), add), (jnp.ones_like(mul), mul)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Applies both to the value, in the given order."""
        offset, gain = parts
        return x * gain + offset if self.order == "mul_add" else (x + offset) * gain


@register_setting
class UniformNoise(protocol.DrawnNoise):
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
    at: protocol.Place = static("output")
    per: protocol.Sharing = static("element")
    along: protocol.Axis = static(None)
    relative: protocol.Flag = static(False)

    def draws(self, x: Any) -> Sequence[protocol.Draw]:
        """Returns one array of uniform numbers."""
        return [self._uniform(x)]

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Adds uniform noise."""
        return x + self._amount("width", x) * (numbers[0] - 0.5)


@register_setting
class Quantization(protocol.NoiseModel):
    """Rounding to the nearest multiple of a step, `step * round(x / step)`; nothing is random.

    The gradient passes straight through to `x`; that of `step` is the round-off error in steps. A
    step of zero changes nothing. There is no saturation: `jaxeff.quantized` models that.

    An analog-to-digital converter rounds to multiples of its step. Where the signal covers many
    steps, the error is close to uniform over one step, independent of the signal, and has the
    standard deviation step / sqrt(12): `Quantization(step)` is the former, `UniformNoise(step)` the
    latter.

    Attributes:
        step: The step in the units of `x`; a scalar or an array.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        along: Axis that an array of steps has one entry along: "sample" or "channel".
        relative: Whether `step` is in units of the range of `x`: 1 / (2**bits - 1) is a converter
            adjusted to its signal.

    Raises:
        ValueError: `step` is negative, NaN or infinite, or a choice is unknown.

    References:
        Widrow and Kollár, "Quantization Noise", Cambridge University Press, 2008, chapter 4.
        Esser et al., "Learned Step Size Quantization", arXiv:1902.08153: the gradient of the step.
    """

    step: NonNegative
    at: protocol.Place = static("output")
    along: protocol.Axis = static(None)
    relative: protocol.Flag = static(False)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Rounds `x`; the key isn't used."""
        del key
        protocol.real_dtype(x)
        # A step of zero multiplies what follows by zero, so any divisor serves there.
        step = self._amount("step", x)
        in_steps = jax.lax.stop_gradient(x / jnp.where(step > 0, step, 1))
        # With v = x / step held constant, the derivative by x is 1 (straight through) and that by
        # step is round(v) - v: Esser et al., eq. 3, inside the range.
        return x + step * (jnp.round(in_steps) - in_steps)


@register_setting
class Dropout(protocol.DrawnNoise):
    """Dropout, `x * B / (1 - rate)` with B of 0 (probability `rate`) or 1.

    The mean is `x`. The rate may be traced, for a sweep; it has no gradient.

    Dropout sampled at inference is Monte Carlo dropout; `moments` does without samples:

    ```python
    import jax

    import jaxeff
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Dropout

    f, params, (x, y) = small_classifier()
    drop = {"relu*": Dropout(0.15)}
    logits = jaxeff.noisy(f, drop)(jax.random.key(0), params, x)    # one draw: training, a sample
    jaxeff.moments(f, noise=drop)(params, x)                        # mean and variance of all draws
    ```

    Attributes:
        rate: Probability of zero, at least 0 and below 1; a scalar or an array.
        at: Place where a layer is perturbed: "output", "weights" (DropConnect) or "input".
        per: What is dropped together: "element" (nothing), "channel" (a channel of one sample, over
            all positions) or "sample" (all of one sample).
        along: Axis that an array of rates has one entry along: "sample" or "channel".

    Raises:
        ValueError: The rate is out of range, or a choice is unknown.

    References:
        Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR
        15 (2014). Gal and Ghahramani, "Dropout as a Bayesian Approximation", arXiv:1506.02142.
        Tompson et al., "Efficient Object Localization Using Convolutional Networks",
        arXiv:1411.4280: whole channels.
    """

    rate: Annotated[Float[Array, "..."] | float, Number(0)]
    at: protocol.Place = static("output")
    per: protocol.Sharing = static("element")
    along: protocol.Axis = static(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_concrete(self.rate) and np.any(np.asarray(self.rate) >= 1):
            raise ValueError(
                f"Dropout.rate must be at least 0 and below 1, not {self.rate}: at 1 nothing is "
                "left of the site; give a lower rate, or remove the layer"
            )

    def draws(self, x: Any) -> Sequence[protocol.Draw]:
        """Returns one array of uniform numbers."""
        return [self._uniform(x)]

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Sets random entries to zero and scales the others."""
        kept = 1 - self._level("rate", x)
        # Numbers lie in [0, 1), so a rate of zero keeps every value exactly.
        return x * jnp.where(numbers[0] < kept, 1 / kept, 0)

    def terms(self, x: Any) -> Sequence[protocol.Part]:
        """Returns the random factor, of mean 1."""
        rate = self._level("rate", x)
        shape = self._draw_shape(jnp.shape(x))
        one = jnp.ones(shape, protocol.real_dtype(x))
        # B / (1 - p) has the variance p (1 - p) / (1 - p)**2 = p / (1 - p).
        return [(one, self._fitting("rate", rate / (1 - rate), shape))]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Multiplies the value by its factor."""
        return x * parts[0]
