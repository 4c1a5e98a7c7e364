"""Layers of arrays, and of means and variances as two published passes have them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

import jaxeff
from jaxeff import Gaussian


class Plain:
    """What layers compute of arrays."""

    def dense(self, x: Any, w: Any, b: Any) -> Any:
        """A product with a matrix, and a bias."""
        return x @ w + b

    def conv(self, x: Any, w: Any, b: Any, stride: int = 1, groups: int = 1) -> Any:
        """A convolution of images, channels last."""
        return _conv(x, w, stride, groups) + b

    def act(self, g: Callable[[Any], Any], x: Any) -> Any:
        """A function of every entry."""
        return g(x)

    def norm(self, x: Any) -> Any:
        """A layer norm of the last axis."""
        c = x - x.mean(-1, keepdims=True)
        return c * jax.lax.rsqrt(jnp.mean(c * c, -1, keepdims=True) + 1e-5)

    def attend(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        """Attention, `[batch, heads, tokens, features]`."""
        return _weights(q, k, causal) @ v

    def add(self, x: Any, y: Any) -> Any:
        """A sum."""
        return x + y

    def mean(self, x: Any, axes: tuple[int, ...]) -> Any:
        """A mean over axes."""
        return x.mean(axes)

    def move(self, g: Callable[[Any], Any], x: Any) -> Any:
        """A new arrangement of entries."""
        return g(x)


def _conv(x: Any, w: Any, stride: int, groups: int) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def _weights(q: Any, k: Any, causal: bool) -> Any:
    scores = q @ jnp.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if causal else True
    return jax.nn.softmax(jnp.where(mask, scores, -1e9))


class Streamlined(Plain):
    """The same of means and variances, as streamlined prediction has them."""

    def scaled(self, mean: Any, var: Any) -> Gaussian:
        """Returns a layer's result; a calibrated pass multiplies its variance."""
        return Gaussian(mean, var)

    def _linear(self, product: Callable[[Any, Any], Any], x: Any, w: Any, b: Any) -> Gaussian:
        if not isinstance(x, Gaussian):
            return self.scaled(product(x, w.mean) + b.mean, product(x * x, w.var) + b.var)
        var = product(x.mean**2 + x.var, w.var) + product(x.var, w.mean**2) + b.var
        return self.scaled(product(x.mean, w.mean) + b.mean, var)

    @override
    def dense(self, x: Any, w: Any, b: Any) -> Gaussian:
        return self._linear(lambda x, w: x @ w, x, w, b)

    @override
    def conv(self, x: Any, w: Any, b: Any, stride: int = 1, groups: int = 1) -> Gaussian:
        return self._linear(lambda x, w: _conv(x, w, stride, groups), x, w, b)

    @override
    def act(self, g: Callable[[Any], Any], x: Any) -> Gaussian:
        y, slope = jax.jvp(g, (x.mean,), (jnp.ones_like(x.mean),))
        return Gaussian(y, slope**2 * x.var)

    @override
    def norm(self, x: Any) -> Gaussian:
        c = x.mean - x.mean.mean(-1, keepdims=True)
        power = jnp.mean(c * c, -1, keepdims=True) + 1e-5
        return Gaussian(c * jax.lax.rsqrt(power), x.var / power)

    @override
    def attend(self, q: Any, k: Any, v: Any, causal: bool) -> Gaussian:
        p = _weights(q.mean, k.mean, causal)
        return self.scaled(p @ v.mean, p**2 @ v.var)

    @override
    def add(self, x: Any, y: Any) -> Any:
        if not isinstance(y, Gaussian):
            return Gaussian(x.mean + y, x.var)
        return Gaussian(x.mean + y.mean, x.var + y.var)

    @override
    def mean(self, x: Any, axes: tuple[int, ...]) -> Gaussian:
        count = np.prod([x.mean.shape[axis] for axis in axes])
        return Gaussian(x.mean.mean(axes), x.var.mean(axes) / count)

    @override
    def move(self, g: Callable[[Any], Any], x: Any) -> Any:
        return Gaussian(g(x.mean), g(x.var))


@dataclass
class Calibrating(Streamlined):
    """The same as Calibrated Variance Propagation has them.

    Attributes:
        factors: One scalar a layer in the order of layers; or, while they are measured, the
            sampled variances of each layer.
        measuring: Whether they are measured.
        measured: The scalars that a pass has measured.
    """

    factors: Sequence[Any]
    measuring: bool = False
    measured: list[Any] = field(default_factory=list)

    @override
    def scaled(self, mean: Any, var: Any) -> Gaussian:
        factor = self.factors[len(self.measured)]
        if self.measuring:
            factor = factor.sum() / var.sum()
        self.measured.append(factor)
        return Gaussian(mean, var * factor)

    @override
    def act(self, g: Callable[[Any], Any], x: Any) -> Gaussian:
        result: Gaussian = jaxeff.moments(g)(x)
        return result

    @override
    def norm(self, x: Any) -> Gaussian:
        # The squared entries of the tangent (1 - 1/n - h h' / n) / sqrt(power), times variances.
        y, n = super().norm(x), x.mean.shape[-1]
        v, h = y.var, y.mean

        def total(a: Any) -> Any:
            return a.sum(-1, keepdims=True) / n**2

        var = v * (1 - 2 / n - 2 * h**2 / n) + total(v) + 2 * h * total(h * v)
        return self.scaled(h, jnp.maximum(var + h**2 * total(h**2 * v), 0))


@dataclass
class Recording(Plain):
    """Layers of arrays whose results are kept, in the order of a calibrated pass's scalars."""

    results: list[Any] = field(default_factory=list)

    def _kept(self, y: Any) -> Any:
        self.results.append(y)
        return y

    @override
    def dense(self, x: Any, w: Any, b: Any) -> Any:
        return self._kept(super().dense(x, w, b))

    @override
    def conv(self, x: Any, w: Any, b: Any, stride: int = 1, groups: int = 1) -> Any:
        return self._kept(super().conv(x, w, b, stride, groups))

    @override
    def norm(self, x: Any) -> Any:
        return self._kept(super().norm(x))

    @override
    def attend(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        return self._kept(super().attend(q, k, v, causal))
