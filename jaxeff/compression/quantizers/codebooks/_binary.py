"""`Binary`: the sign of an array, or a random sign, with a scale or without.

The value is scale * b with b in {-1, +1}, where b = +1 for x >= 0 (Hubara et al., eq. 1), or drawn:
P(b = +1) = clip((u + 1) / 2, 0, 1) with u = x / scale (Courbariaux et al., eq. 2 and 3), so that
its mean is x within the scale. The sign has no gradient, so it gets that of

- clip(u, -1, 1): one for |u| <= 1, zero elsewhere (Hubara et al., eq. 4); or of
- the polynomial u (2 - |u|) there: 2 - 2|u| (ApproxSign, Liu et al., section 3.2),

with u = x where nothing is drawn. The scale that is nearest to x is its mean magnitude (Rastegari
et al., eq. 6). While it follows the array, its own share of the gradient is 1/n for n values under
one scale, so that in total dy/dx = 1/n + scale * db/dx (section 3.1, "Training XNOR-Networks"); as
there, the terms between different values are left out.

Sharp edges:
    Gradients vanish where |x| > 1. The authors also keep float weights in [-1, 1]
    (`jaxeff.hardening.clamped`).
    Zeros get the sign +1; an array of zeros alone has scale zero, and stays one of zeros.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import BaseQuantizer, Tensor, kept_axes, straight_through
from jaxeff.core import Choice, Number, register_setting, static


@register_setting
@dataclass(frozen=True)
class Binary(BaseQuantizer):
    """One bit: `Binary()` is XNOR-Net's, `Binary(per="none")` the plain sign.

    Attributes:
        scale: Factor of the signs. Open: the mean magnitude.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor"; "none":
            there are no scales.
        gradient: "clipped", or "polynomial" (Bi-Real Net, of activations).
        stochastic: Whether signs are drawn; needs `quantized(..., keyed=True)`.
        follow: Whether the scales of weights stay open in `init`, and so follow the weights as in
            XNOR-Net; else they are learnt by their own gradient.

    Raises:
        TypeError, ValueError: The scale is no finite number, or a choice is unknown.

    References:
        Courbariaux et al., "BinaryConnect", arXiv:1511.00363. Hubara et al., "Binarized Neural
        Networks", arXiv:1602.02830. Rastegari et al., "XNOR-Net", arXiv:1603.05279. Liu et al.,
        "Bi-Real Net", arXiv:1808.00278.
    """

    scale: Annotated[Float[Array, "..."] | float | None, Number()] = None
    per: Annotated[str, Choice("channel", "tensor", "none")] = static("channel")
    gradient: Annotated[str, Choice("clipped", "polynomial")] = static("clipped")
    stochastic: bool = static(False)
    follow: bool = static(False)

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the signs times their scale, with the gradients above."""
        fixed = lax.stop_gradient(x)
        scale = self._mean(fixed, tensor) if self.scale is None else self.scale
        scale = tensor.fitted("Binary.scale", scale, x)
        unit = x
        if self.stochastic:
            # A subnormal scale has no finite reciprocal; such values are drawn as zeros are.
            small = jnp.abs(scale) < jnp.finfo(x.dtype).tiny
            unit = x / jnp.where(small, jnp.ones_like(scale), scale)
        signs = self._signs(lax.stop_gradient(unit), tensor)
        # Hubara et al., eq. 4: no gradient beyond one, where a step would change no sign.
        inside = jnp.where(jnp.abs(unit) <= 1, unit, 0)
        smooth = inside if self.gradient == "clipped" else inside * (2 - jnp.abs(inside))
        y = straight_through(smooth, signs) * scale
        if self.scale is None and self.per != "none":
            # The scale's own share: dy/dscale dscale/dx = b sign(x) / n, 1/n where b is the sign.
            shared = x.size // max(scale.size, 1)
            follows = x * (signs * _sign(fixed) / shared)
            y = y + (follows - lax.stop_gradient(follows))
        return y

    def deterministic(self) -> "Binary":
        """Returns the same with the signs themselves."""
        return replace(self, stochastic=False)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Binary":
        """Measures an open scale, the mean magnitude, unless it stays open."""
        stays = self.per == "none" or (self.follow and tensor.role == "weight")
        if self.scale is not None or stays:
            return self
        return replace(self, scale=self._mean(x, tensor))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        """Counts a bit for each value and a float for each scale."""
        scales = 0 if self.per == "none" else tensor.count(shape, self.per)
        return super().storage(shape, tensor) + 32 * scales

    @property
    def width(self) -> int:
        """One bit."""
        return 1

    def _mean(self, x: Array, tensor: Tensor) -> Array:
        if self.per == "none":
            return jnp.ones((), x.dtype)
        axes, shape = kept_axes(x, tensor.axes(self.per))
        return jnp.mean(jnp.abs(x), axes).reshape(shape)

    def _signs(self, x: Array, tensor: Tensor) -> Array:
        if not self.stochastic:
            return _sign(x)
        # The hard sigmoid (Courbariaux et al., eq. 3), in float32: narrow dtypes are coarse.
        chance = jnp.clip((x + 1) / 2, 0, 1).astype(jnp.float32)
        up = jax.random.bernoulli(tensor.random("Binary(stochastic=True)"), chance)
        return jnp.where(jnp.isnan(x), x, jnp.where(up, jnp.ones_like(x), -1))


def _sign(x: Array) -> Array:
    """Returns the sign, that of zero being +1; of NaN it is NaN."""
    return jnp.where(x >= 0, jnp.ones_like(x), jnp.where(x < 0, -jnp.ones_like(x), x))
