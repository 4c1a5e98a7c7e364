"""Moments of sums, products, quotients and selections of independent arrays.

Every function takes random or deterministic operands of equal shape and returns a plain array
where none is random.

Sharp edges
- Operands are taken as independent. `x * x` is not a product of independents: it is
  `activations.square`. The interpreter tells the two apart; a caller of these functions must.
- 1/x of a Gaussian has no moments. The quotient and the functions of a positive argument (`log`,
  `sqrt`, `rsqrt`, `reciprocal`, powers) treat the operand as log-normal with the same mean and
  variance, which is close where the mean is several standard deviations from zero and finite
  whenever it isn't zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.moment_propagation.gaussian import Gaussian
from jaxeff.moment_propagation.raw import Random, is_random, to_variance

Value = Array | Random


def mean_of(x: Value) -> Array:
    """The mean of a random array; a deterministic one is its own mean."""
    return x.mean if is_random(x) else x


@overload
def map_linear(op: Callable[[Array], Array], x: Random) -> Gaussian: ...
@overload
def map_linear(op: Callable[[Array], Array], x: Array) -> Array: ...
def map_linear(op: Callable[[Array], Array], x: Value) -> Array | Gaussian:
    """Apply `op`, which only moves, copies or drops entries, to mean and variance alike."""
    return Gaussian(op(x.mean), op(x.var)) if is_random(x) else op(x)


@overload
def negate(x: Random) -> Gaussian: ...
@overload
def negate(x: Array) -> Array: ...
def negate(x: Value) -> Array | Gaussian:
    """Moments of -x."""
    return Gaussian(-x.mean, x.var) if is_random(x) else -x


def add(x: Value, y: Value) -> Array | Gaussian:
    """Moments of x + y for independent operands."""
    total = mean_of(x) + mean_of(y)
    variances = [jnp.broadcast_to(v.var, total.shape) for v in (x, y) if is_random(v)]
    return Gaussian(total, sum(variances[1:], variances[0])) if variances else total


def subtract(x: Value, y: Value) -> Array | Gaussian:
    """Moments of x - y for independent operands."""
    return add(x, negate(y))


@overload
def multiply(x: Random, y: Value) -> Gaussian: ...
@overload
def multiply(x: Value, y: Random) -> Gaussian: ...
@overload
def multiply(x: Array, y: Array) -> Array: ...
def multiply(x: Value, y: Value) -> Array | Gaussian:
    """Moments of x * y for independent operands."""
    if not is_random(x):
        if not is_random(y):
            return x * y
        return Gaussian(x * y.mean, (x * x) * y.var)
    if not is_random(y):
        return Gaussian(x.mean * y, x.var * (y * y))
    return Gaussian(x.mean * y.mean, x.second_moment * y.var + x.var * (y.mean * y.mean))


def divide(x: Value, y: Value) -> Array | Gaussian:
    """Moments of x / y for independent operands; a random `y` is taken as log-normal."""
    if is_random(y):
        return multiply(x, power(y, -1.0))
    return Gaussian(x.mean / y, x.var / (y * y)) if is_random(x) else x / y


def select(mask: Array, *cases: Value) -> Array | Gaussian:
    """Moments of `lax.select_n(mask, *cases)` under a deterministic mask."""
    mean = lax.select_n(mask, *(mean_of(case) for case in cases))
    if not any(is_random(case) for case in cases):
        return mean
    zero = jnp.zeros(mean.shape, mean.dtype)
    return Gaussian(mean, lax.select_n(mask, *(c.var if is_random(c) else zero for c in cases)))


def concatenate(values: list[Value], axis: int) -> Array | Gaussian:
    """Moments of the concatenation of random and deterministic arrays along `axis`."""
    mean = jnp.concatenate([mean_of(v) for v in values], axis)
    if not any(is_random(v) for v in values):
        return mean
    parts = [v.var if is_random(v) else jnp.zeros_like(v) for v in values]
    return Gaussian(mean, jnp.concatenate(parts, axis))


def log_normal_parameters(
    x: Random,
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Mean and variance of log|x| for the log-normal with the mean and variance of `x`."""
    x = to_variance(x)
    safe = jnp.where(x.mean == 0, 1, x.mean)
    log_var = jnp.log1p(x.var / (safe * safe))
    return jnp.log(jnp.abs(x.mean)) - 0.5 * log_var, log_var


def log(x: Random) -> Gaussian:
    """The logarithm's moments, `x` taken as log-normal; NaN where its mean is negative."""
    mu, var = log_normal_parameters(x)
    return Gaussian(jnp.where(x.mean < 0, jnp.nan, mu), var)


def power(x: Random, exponent: float | Array) -> Gaussian:
    """Moments of `x ** exponent`, `x` taken as log-normal; the sign of a negative mean is kept.

    Args:
        x: Base. Powers that aren't whole numbers of a negative mean are NaN, as in `jnp.power`.
        exponent: Deterministic exponent.
    """
    mu, var = log_normal_parameters(x)
    exponent = jnp.asarray(exponent, x.mean.dtype)
    magnitude = jnp.exp(exponent * mu + 0.5 * exponent * exponent * var)
    sign = jnp.power(jnp.sign(x.mean), exponent)
    return Gaussian(sign * magnitude, magnitude * magnitude * jnp.expm1(exponent * exponent * var))
