"""`Discrete`: weights that are distributions over two or three values, learnt as such.

A weight is scale * v with v in {-1, 1} or {-1, 0, 1} and probabilities softmax(logits), so

    mean = scale * sum_k p_k v_k        var = scale^2 * sum_k p_k (v_k - sum_j p_j v_j)^2

(Shayer et al., section 3). Sums of many such weights are normal by the central limit theorem, so
training needs no draw of a weight: the local reparametrization trick draws what a layer returns.

```python
import jax
import optax
from jaxeff.compression import (
    Discrete, LayerQuantization, deterministic, init, quantized, random_weights,
)
from jaxeff.moment_propagation import moments, sampled
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = init(f, params, x, {"*:linear": LayerQuantization(Discrete())})

def loss(spec, key):
    logits = sampled(f)(key, random_weights(f, spec, params, x), x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

grads = jax.grad(loss)(spec, jax.random.key(0))
logits = moments(f)(random_weights(f, spec, params, x), x)       # mean and variance in one pass
logits = quantized(f, spec, keyed=True)(jax.random.key(0), params, x)       # weights drawn
logits = quantized(f, deterministic(spec))(params, x)            # the most probable ones
```

Logits start as in the paper, at w / scale = u: P(0) = clip(.95 - .9 |u|, .05, .95) and P(1 | not 0)
= clip((1 + u / (1 - P(0))) / 2, .05, .95), the scale being the standard deviation of the weights.
`quantized` gives values their mean's gradient.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    BaseQuantizer,
    Tensor,
    at_least_float32,
    kept_axes,
    safe_scale,
    straight_through,
)
from jaxeff.core import Choice, Number, register_setting, static, static_number, with_leading_axes
from jaxeff.moment_propagation import Gaussian

_LEAST = 0.05
"""The smallest probability to start from."""


@register_setting
@dataclass(frozen=True)
class Discrete(BaseQuantizer):
    """A distribution over discrete weights: `Discrete()` is ternary, `Discrete(2)` binary.

    Attributes:
        levels: 2 for -1 and 1, or 3 with zero between.
        logits: Log-probabilities of the values but for a constant, ``[*shape, levels]``. Open: see
            above.
        scale: Factor of the values, positive. Open: the standard deviation of what
            shares it, or its mean magnitude where that is zero.
        draw: "sample" needs a key; "mode" takes the most probable value.
        decay: The penalty's factor, of the sum of squared logits (the paper's probability decay).
            A plain number isn't learnt.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds, or a choice is unknown.

    References:
        Shayer et al., "Learning Discrete Weights Using the Local Reparameterization Trick",
        arXiv:1710.07739. Roth and Pernkopf, "Discrete-Valued Neural Networks Using Variational
        Inference" (2019).
    """

    levels: Annotated[int, Choice(2, 3)] = static(3)
    logits: Annotated[Float[Array, "*shape levels"] | None, Number()] = None
    scale: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    draw: Annotated[str, Choice("sample", "mode")] = static("sample")
    decay: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(0.0)
    per: Annotated[str, Choice("channel", "tensor")] = static("channel")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Draws values or takes the most probable ones, with the gradient of their mean."""
        own, scale = self._fitted(x, tensor)
        logits = jnp.asarray(own.logits, scale.dtype)
        values = self._values(logits)
        mean = scale * jnp.sum(jax.nn.softmax(logits) * values, -1)
        if self.draw == "sample":
            key = tensor.random("Discrete")
            # Gumbel-max: the argmax of logits plus Gumbel noise is a draw from their softmax.
            logits = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
        chosen = jnp.argmax(logits, -1)
        # Index k stands for k step - 1: -1 and 1, or -1, 0 and 1.
        step = 2 / (self.levels - 1)
        y = lax.stop_gradient(scale) * (step * chosen.astype(scale.dtype) - 1)
        return straight_through(mean, y).astype(x.dtype)

    def gaussian(self, x: Float[Array, "*shape"], tensor: Tensor) -> Gaussian:
        """Computes the mean and variance of every weight, exactly."""
        own, scale = self._fitted(x, tensor)
        p = jax.nn.softmax(jnp.asarray(own.logits, scale.dtype))
        values = self._values(p)
        mean = jnp.sum(p * values, -1)
        # About the mean: E[v^2] - E[v]^2 would cancel for weights that are nearly sure.
        var = jnp.sum(p * (values - mean[..., None]) ** 2, -1)
        return Gaussian((scale * mean).astype(x.dtype), (scale**2 * var).astype(x.dtype))

    def deterministic(self) -> "Discrete":
        """Returns the same with its most probable values."""
        return replace(self, draw="mode")

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Discrete":
        """Computes open scales and logits from weights."""
        self._check_role(tensor)
        if self.logits is not None and self.scale is not None:
            return self
        value = at_least_float32(x)
        scale = self.scale
        if scale is None:
            axes, shape = kept_axes(value, tensor.axes(self.per))
            fixed = lax.stop_gradient(value)
            std = jnp.std(fixed, axes).reshape(shape)
            size = jnp.mean(jnp.abs(fixed), axes).reshape(shape)
            # A constant has no deviation but rounding errors; its magnitude serves.
            scale = jnp.where(std > 1e-6 * size, std, size)
            scale = safe_scale(scale)
        if self.logits is not None:
            return replace(self, scale=scale)
        unit = value / tensor.fitted("Discrete.scale", scale, value)
        if self.levels == 2:
            up = jnp.clip((1 + unit) / 2, _LEAST, 1 - _LEAST)
            logits = jnp.log(jnp.stack([1 - up, up], -1))
        else:
            # Off 0 and 1, where the softmax has no gradient and a weight would never change.
            most = 1 - _LEAST
            zero = jnp.clip(most - (most - _LEAST) * jnp.abs(unit), _LEAST, most)
            up = jnp.clip((1 + unit / (1 - zero)) / 2, _LEAST, most)
            logits = jnp.log(jnp.stack([(1 - zero) * (1 - up), zero, (1 - zero) * up], -1))
        return replace(self, logits=logits, scale=scale)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the codes of the chosen values, and a float for each scale."""
        return math.prod(shape) * self.width + 32 * tensor.count(shape, self.per)

    @property
    def width(self) -> int:
        """One bit for two values, two for three."""
        return self.levels - 1

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the squares of the logits."""
        logits = jnp.asarray(self.start(lax.stop_gradient(x), tensor).logits)
        return jnp.asarray(self.decay, logits.dtype) * jnp.sum(logits * logits)

    def _fitted(self, x: Array, tensor: Tensor) -> tuple["Discrete", Array]:
        own = self.start(x, tensor)
        shape = jnp.asarray(own.logits).shape
        if shape != (*x.shape, self.levels):
            raise ValueError(
                f"Discrete.logits at {tensor.site}/{tensor.name} has shape {shape}, but there is a "
                f"weight of shape {x.shape} with {self.levels} values; give it "
                f"{(*x.shape, self.levels)}, or leave it to init."
            )
        value = at_least_float32(x)
        return own, tensor.fitted("Discrete.scale", own.scale, value)

    def _values(self, like: Array) -> Array:
        return with_leading_axes(jnp.linspace(-1, 1, self.levels, dtype=like.dtype), like.shape)

    def _check_role(self, tensor: Tensor) -> None:
        if tensor.role != "weight":
            raise ValueError(
                f"Discrete at {tensor.site}/{tensor.name} has an activation to quantize, but is a "
                "distribution over weights: use LayerQuantization(weights=Discrete())."
            )
