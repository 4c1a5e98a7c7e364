"""Moments of activation functions of one Gaussian: a closed form each, or quadrature.

`ACTIVATIONS` covers the 27 activations of the source's table and what neural networks use besides,
as pairs of the plain function (how `jax.nn` or a one-line definition gives it) and its moments.

How each is computed
- closed form: relu, relu6, clip, hard tanh, hard sigmoid, hard swish, abs, leaky ReLU, PReLU,
  RReLU at inference, soft and hard shrinkage (`piecewise`); erf, the normal CDF, sine, cosine,
  exponential, square (here); exact up to rounding.
- Gauss-Legendre in two pieces, 40 nodes: tanh, sigmoid, SiLU, GELU (both), softplus, log-sigmoid,
  mish, ELU, CELU, SELU, softsign, tanhshrink; within 1e-5 of a standard deviation at every mean
  and any standard deviation from 0.01 to 10.
- softmax, softmin and log-softmax mix several variables and are in `softmax`.

Sharp edges
- RReLU draws its slope when training; here it is the inference form, the mean slope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.moments.composites import activation
from jaxeff.moments.gaussian import Gaussian
from jaxeff.moments.normal import cdf
from jaxeff.moments.piecewise import piecewise, relu
from jaxeff.moments.quadrature import gauss_legendre
from jaxeff.moments.raw import Random, to_variance


def clip(x: Random, low: float | Array, high: float | Array) -> Gaussian:
    """Moments of `jnp.clip(x, low, high)`: relu6, hard tanh, saturation."""
    return piecewise(x, (low, high), ((low,), (0.0, 1.0), (high,)))


def leaky_relu(x: Random, slope: float | Array = 0.01) -> Gaussian:
    """Moments of x where positive, `slope * x` elsewhere: leaky ReLU, PReLU, RReLU at inference."""
    return piecewise(x, (0.0,), ((0.0, slope), (0.0, 1.0)))


def random_prelu(x: Random, slope: Random) -> Gaussian:
    """Moments of PReLU with a random slope, independent of `x`, shaped to broadcast against it."""
    known = leaky_relu(x, slope.mean)
    negative = piecewise(x, (0.0,), ((0.0, 1.0), (0.0,)))
    return Gaussian(known.mean, known.var + slope.var * negative.second_moment)


def absolute(x: Random) -> Gaussian:
    """Moments of |x|."""
    return piecewise(x, (0.0,), ((0.0, -1.0), (0.0, 1.0)))


def soft_shrink(x: Random, threshold: float = 0.5) -> Gaussian:
    """Moments of soft shrinkage: x moved towards zero by `threshold`, zero within it."""
    return piecewise(x, (-threshold, threshold), ((threshold, 1.0), (0.0,), (-threshold, 1.0)))


def hard_shrink(x: Random, threshold: float = 0.5) -> Gaussian:
    """Moments of hard shrinkage: x, but zero within `threshold` of zero; discontinuous."""
    return piecewise(x, (-threshold, threshold), ((0.0, 1.0), (0.0,), (0.0, 1.0)))


def hard_sigmoid(x: Random) -> Gaussian:
    """Moments of relu6(x + 3) / 6."""
    return piecewise(x, (-3.0, 3.0), ((0.0,), (0.5, 1 / 6), (1.0,)))


def hard_swish(x: Random) -> Gaussian:
    """Moments of x relu6(x + 3) / 6."""
    return piecewise(x, (-3.0, 3.0), ((0.0,), (0.0, 0.5, 1 / 6), (0.0, 1.0)))


def step(x: Random) -> Gaussian:
    """Moments of the unit step, 1 where x > 0."""
    return piecewise(x, (0.0,), ((0.0,), (1.0,)))


@activation("pfp_square")
def square(x: Gaussian) -> Gaussian:
    """Moments of x^2."""
    power = x.mean * x.mean
    return Gaussian(power + x.var, x.var * (2 * x.var + 4 * power))


@activation("pfp_exp")
def exponential(x: Gaussian) -> Gaussian:
    """Moments of exp(x), log-normal."""
    mean = jnp.exp(x.mean + 0.5 * x.var)
    return Gaussian(mean, mean * mean * jnp.expm1(x.var))


@activation("pfp_sin")
def sine(x: Gaussian) -> Gaussian:
    """Moments of sin(x)."""
    return _wave(x, jnp.sin(x.mean), jnp.cos(x.mean))


@activation("pfp_cos")
def cosine(x: Gaussian) -> Gaussian:
    """Moments of cos(x)."""
    return _wave(x, jnp.cos(x.mean), jnp.sin(x.mean))


def _wave(x: Gaussian, value: Array, slope: Array) -> Gaussian:
    """Mean exp(-v/2) f(m), variance (1 - q) ((1 - q) / 2 + q f'(m)^2) with q = exp(-v)."""
    lost = -jnp.expm1(-x.var)
    return Gaussian(
        jnp.exp(-0.5 * x.var) * value, lost * (0.5 * lost + jnp.exp(-x.var) * slope * slope)
    )


def normal_cdf(x: Random, nodes: int = 16) -> Gaussian:
    """Moments of the standard normal CDF Phi(x).

    With a = m / sqrt(1 + v) the mean is Phi(a). The variance is the bivariate normal probability
    at (a, a) less that of independence, by Plackett's identity an integral over the correlation,

        Var = 1/(2 pi) int_0^asin(v / (1 + v)) exp(-a^2 / (1 + sin t)) dt,

    whose integrand is positive, so a small variance keeps its digits.

    Args:
        x: Random input.
        nodes: Gauss-Legendre nodes for the integral.
    """
    x = to_variance(x)
    spread = lax.rsqrt(1 + x.var)
    a = x.mean * spread
    # asin(v / (1 + v)) through its tangent, whose gradient is finite where v / (1 + v) rounds to 1
    angle = jnp.arctan2(x.var, _safe_sqrt(1 + 2 * x.var))
    roots, masses = np.polynomial.legendre.leggauss(nodes)
    t = jnp.asarray(0.5 * (roots + 1), x.dtype).reshape((-1,) + (1,) * x.ndim)
    weight = jnp.asarray(0.5 * masses, x.dtype).reshape(t.shape)
    density = jnp.exp(-a * a / (1 + jnp.sin(angle * t)))
    return Gaussian(cdf(a), angle / (2 * np.pi) * jnp.sum(weight * density, 0))


def _safe_sqrt(x: Array) -> Array:
    return jnp.sqrt(jnp.maximum(x, 0))


@activation("pfp_erf")
def error_function(x: Gaussian) -> Gaussian:
    """Moments of erf(x) = 2 Phi(sqrt(2) x) - 1; the mean is erf(m / sqrt(1 + 2 v))."""
    phi = normal_cdf(Gaussian(2**0.5 * x.mean, 2 * x.var))
    return Gaussian(lax.erf(x.mean * lax.rsqrt(1 + 2 * x.var)), 4 * phi.var)


def smooth(fn: Callable[[Array], Array], kinks: tuple[float, ...] = (0.0,)) -> Callable:
    """The moments of a smooth activation with its centre, or one kink, at zero: quadrature."""

    @functools.wraps(fn)
    def moments(x: Random) -> Gaussian:
        return gauss_legendre(fn, x, kinks)

    return moments


def softshrink_plain(x: Array, threshold: float = 0.5) -> Array:
    """Soft shrinkage, `sign(x) max(|x| - threshold, 0)`."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


def hardshrink_plain(x: Array, threshold: float = 0.5) -> Array:
    """Hard shrinkage, x where |x| > threshold, else 0."""
    return jnp.where(jnp.abs(x) > threshold, x, 0)


def tanhshrink_plain(x: Array) -> Array:
    """Tanh shrinkage, x - tanh(x)."""
    return x - jnp.tanh(x)


def gelu_exact(x: Array) -> Array:
    """GELU without the tanh approximation, x Phi(x)."""
    return jax.nn.gelu(x, approximate=False)


Pair = tuple[Callable[..., Array], Callable[..., Gaussian]]

ACTIVATIONS: dict[str, Pair] = {
    "cosine": (jnp.cos, cosine),
    "sine": (jnp.sin, sine),
    "softshrink": (softshrink_plain, soft_shrink),
    "hardtanh": (jax.nn.hard_tanh, functools.partial(clip, low=-1.0, high=1.0)),
    "tanh": (jnp.tanh, smooth(jnp.tanh)),
    "hardswish": (jax.nn.hard_swish, hard_swish),
    "hardsigmoid": (jax.nn.hard_sigmoid, hard_sigmoid),
    "softsign": (jax.nn.soft_sign, smooth(jax.nn.soft_sign)),
    "leaky_relu": (jax.nn.leaky_relu, leaky_relu),
    "mish": (jax.nn.mish, smooth(jax.nn.mish)),
    "selu": (jax.nn.selu, smooth(jax.nn.selu)),
    "gelu": (jax.nn.gelu, smooth(jax.nn.gelu)),
    "gelu_exact": (gelu_exact, smooth(gelu_exact)),
    "logsigmoid": (jax.nn.log_sigmoid, smooth(jax.nn.log_sigmoid)),
    "relu": (jax.nn.relu, relu),
    "sigmoid": (jax.nn.sigmoid, smooth(jax.nn.sigmoid)),
    "softplus": (jax.nn.softplus, smooth(jax.nn.softplus)),
    "elu": (jax.nn.elu, smooth(jax.nn.elu)),
    "celu": (jax.nn.celu, smooth(jax.nn.celu)),
    "silu": (jax.nn.silu, smooth(jax.nn.silu)),
    "tanhshrink": (tanhshrink_plain, smooth(tanhshrink_plain)),
    "hardshrink": (hardshrink_plain, hard_shrink),
    "relu6": (jax.nn.relu6, functools.partial(clip, low=0.0, high=6.0)),
    "abs": (jnp.abs, absolute),
    "square": (jnp.square, square),
    "exp": (jnp.exp, exponential),
    "erf": (lax.erf, error_function),
    "normal_cdf": (jax.scipy.stats.norm.cdf, normal_cdf),
}
