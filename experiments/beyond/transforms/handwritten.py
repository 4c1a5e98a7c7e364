"""The transforms' layers as one would write them by hand, for one network at a time, in `jax.lax`.

The yardstick of `experiments.beyond.transforms`: no tracing and no rules, only what has to be
computed. `Moments` calls the special functions of `jaxeff.moment_propagation.rules` as it would
call `lax.erf`, and has the formulas that are safe in float32.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxeff.moment_propagation.rules import inverse_std, tail

Pair = tuple[jax.Array, jax.Array]  # mean and variance
_EPSILON = 1e-5  # of batch norm


def _conv(x: jax.Array, kernel: jax.Array, stride: int, padding: Any) -> jax.Array:
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


class Plain:
    """The network itself."""

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Any:
        """Convolution, and its bias if there is one."""
        y = _conv(x, params["kernel"], stride, padding)
        return y + params["bias"] if "bias" in params else y

    def dense(self, params: Any, x: Any) -> Any:
        """Matrix product and bias."""
        return x @ params["kernel"] + params["bias"]

    def batch_norm(self, params: Any, state: Any, x: Any) -> Any:
        """The affine map of inference."""
        gain = lax.rsqrt(state["var"] + _EPSILON) * params["scale"]
        return (x - state["mean"]) * gain + params["bias"]

    def relu(self, x: Any) -> Any:
        """Maximum with zero."""
        return jnp.maximum(x, 0)

    def max_pool(self, x: Any, size: int, stride: int, padding: int) -> Any:
        """Maximum over square windows."""
        pads = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
        window, strides = (1, size, size, 1), (1, stride, stride, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, pads)

    def relu_max_pool(self, x: Any, size: int, stride: int, padding: int) -> Any:
        """One after the other."""
        return self.max_pool(self.relu(x), size, stride, padding)

    def add(self, x: Any, y: Any) -> Any:
        """Sum."""
        return x + y

    def mean(self, x: Any) -> Any:
        """Mean over height and width."""
        return x.mean((1, 2))

    def flatten(self, x: Any) -> Any:
        """Everything but the batch axis in one."""
        return x.reshape(x.shape[0], -1)


class Noisy(Plain):
    """Additive noise on what linear layers give, multiplicative on what rectifiers give."""

    def __init__(self, keys: Iterator[jax.Array], add: float, mul: float):
        self.keys, self.add_std, self.mul_std = keys, add, mul

    def _noise(self, x: jax.Array) -> jax.Array:
        return jax.random.normal(next(self.keys), x.shape, x.dtype)

    def _added(self, y: jax.Array) -> jax.Array:
        return y + self.add_std * self._noise(y)

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Any:
        """Convolution and noise."""
        return self._added(super().conv(params, x, stride, padding))

    def dense(self, params: Any, x: Any) -> Any:
        """Matrix product, bias and noise."""
        return self._added(super().dense(params, x))

    def relu(self, x: Any) -> Any:
        """Maximum with zero, times noise around one."""
        y = jnp.maximum(x, 0)
        return y * (1 + self.mul_std * self._noise(y))


class Quantized(Plain):
    """Affine fake quantization: weights per output channel, activations per sample."""

    def __init__(self, bits: int):
        self.levels = 2**bits - 1

    def _round(self, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        low, high = x.min(axes, keepdims=True), x.max(axes, keepdims=True)
        step = (high - low) / self.levels
        step = jnp.where(step > 0, step, 1)
        half = (self.levels + 1) // 2
        zero = jnp.round(low / step) + half
        codes = jnp.clip(jnp.round(x / step - zero), -half, half - 1)
        return x + lax.stop_gradient((codes + zero) * step - x)

    def _both(self, params: Any, x: Any) -> tuple[Any, Any]:
        kernel = params["kernel"]
        return (
            {**params, "kernel": self._round(kernel, tuple(range(kernel.ndim - 1)))},
            self._round(x, tuple(range(1, x.ndim))),
        )

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Any:
        """Convolution of quantized values."""
        return super().conv(*self._both(params, x), stride, padding)

    def dense(self, params: Any, x: Any) -> Any:
        """Matrix product of quantized values."""
        return super().dense(*self._both(params, x))


class Moments:
    """Means and variances; every parameter random, the network's input not."""

    def _linear(self, op: Any, params: Any, x: Any) -> Pair:
        """Three contractions, two for the deterministic input."""
        kernel = params["kernel"]
        if isinstance(x, tuple):
            mean, var = x
            y = op(mean, kernel.mean)
            y_var = op(mean**2 + var, kernel.var) + op(var, kernel.mean**2)
        else:
            y, y_var = op(x, kernel.mean), op(x**2, kernel.var)
        if "bias" in params:
            y, y_var = y + params["bias"].mean, y_var + params["bias"].var
        return y, y_var

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Pair:
        """Convolution."""
        return self._linear(functools.partial(_conv, stride=stride, padding=padding), params, x)

    def dense(self, params: Any, x: Any) -> Pair:
        """Matrix product."""
        return self._linear(jnp.matmul, params, x)

    def batch_norm(self, params: Any, state: Any, x: Pair) -> Pair:
        """The affine map of inference, its gain and offset random."""
        mean, var = x
        inverse = lax.rsqrt(state["var"] + _EPSILON)
        gain, gain_var = inverse * params["scale"].mean, inverse**2 * params["scale"].var
        centred = mean - state["mean"]
        return (
            centred * gain + params["bias"].mean,
            (centred**2 + var) * gain_var + var * gain**2 + params["bias"].var,
        )

    def relu(self, x: Pair) -> Pair:
        """The rectified Gaussian, from the tail beyond its mean so that nothing cancels."""
        mean, var = x
        inverse, t, beyond, excess = _standardised(mean, var)
        share = jnp.where(mean > 0, 1 - beyond, beyond) - excess * (t + excess)
        return (jnp.maximum(mean, 0) + var * inverse * excess, var * jnp.maximum(share, 0))

    def maximum(self, x: Pair, y: Pair) -> Pair:
        """Clark's maximum of two independent Gaussians, arranged the same way.

        Means may be infinite, as of masked entries; neither value nor gradient is NaN then.
        """
        distance, total = jnp.where(x[0] == y[0], 0, x[0] - y[0]), x[1] + y[1]
        finite = jnp.minimum(jnp.abs(distance), jnp.finfo(distance.dtype).max)
        inverse, t, beyond, excess = _standardised(finite, total)
        high = jnp.where(distance >= 0, x[1], y[1])
        var = high - (2 * high - total) * beyond - total * excess * (t + excess)
        return jnp.maximum(x[0], y[0]) + total * inverse * excess, jnp.maximum(var, 0)

    def max_pool(self, x: Pair, size: int, stride: int, padding: int) -> Pair:
        """A tree of maxima of two, along the height, then along the width."""
        mean, var = x
        if padding:
            pads = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
            mean, var = jnp.pad(mean, pads, constant_values=-1e18), jnp.pad(var, pads)
        for axis in (1, 2):
            stop = mean.shape[axis] - size + 1
            parts: list[Any] = [
                tuple(lax.slice_in_dim(m, i, stop + i, stride, axis) for m in (mean, var))
                for i in range(size)
            ]
            mean, var = functools.reduce(self.maximum, parts)
        return mean, var

    def relu_max_pool(self, x: Pair, size: int, stride: int, padding: int) -> Pair:
        """Pools first: the result is the same, its inputs are Gaussian still, the rest is less."""
        return self.relu(self.max_pool(x, size, stride, padding))

    def add(self, x: Pair, y: Pair) -> Pair:
        """Sum of independents."""
        return x[0] + y[0], x[1] + y[1]

    def mean(self, x: Pair) -> Pair:
        """Mean over height and width of independents."""
        count = x[0].shape[1] * x[0].shape[2]
        return x[0].sum((1, 2)) / count, x[1].sum((1, 2)) / count**2

    def flatten(self, x: Any) -> Any:
        """Everything but the batch axis in one."""
        return jax.tree.map(lambda m: m.reshape(m.shape[0], -1), x)


def _standardised(mean: jax.Array, var: jax.Array) -> tuple[jax.Array, ...]:
    """1 / std, t = |mean| / std up to 40, the normal tail beyond t, and its mean excess over t."""
    inverse = inverse_std(var)
    t = jnp.minimum(jnp.abs(mean) * inverse, 40)
    _, beyond, excess = tail(t)
    return inverse, t, beyond, excess
