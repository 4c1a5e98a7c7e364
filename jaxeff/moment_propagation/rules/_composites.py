"""Named composites that an export keeps, for operator libraries that compute them as a whole.

A rule called through `composite` runs as it is, under any transform. Only where the function is
lowered for export (`jax.export`) does the call stay one, a `stablehlo.composite` whose
decomposition is the rule: a consumer that has an operator of its name calls that, any
other one inlines the rule.

Names, operands and attributes are a contract with `jaxeff_export.operators`:

    jaxeff.pfp_dense     x_mean [x_spread] w_mean [w_var] [b_mean [b_var]]
                         x (..., K), w (K, N), b (N,)
        input            "deterministic" | "variance" | "raw": x_spread is absent | Var[x] | E[x^2]
        weight           "deterministic" | "variance": w_var is absent or not
        bias             "none" | "deterministic" | "variance"
    jaxeff.pfp_conv2d    the same operands; x NHWC, w HWIO, b (C,)
        input, weight, bias; strides, dilation, groups; padding (low, high per axis, in one list)
    jaxeff.pfp_max_pool  mean var; any rank, padded with what is never a maximum
        size, strides; padding
    jaxeff.pfp_avg_pool  mean var; any rank, padded with zeros and divided by the window's size
        size, strides; padding
    jaxeff.pfp_relu (pfp_exp, pfp_sin, pfp_cos, pfp_erf, pfp_square)  mean var
    jaxeff.pfp_piecewise mean var; a polynomial between each two neighbouring breaks
        breaks; coefficients (constant, linear and quadratic of each piece, in one list)
    jaxeff.pfp_attention softmax(scores) v: `operands` names the arrays, of scores, slope, bias_var,
                         v, q, k and the variances v_var, q_var, k_var, those that there are
        operands; q_axes, k_axes, v_axes, scores_axes, result_axes (a letter for each axis),
        softmax_axes

Every result is (mean, variance); operands and results are of one dtype, float32 or float64.

Sharp edges
- A layer of another form, one with a rule of the user's own, and one that only its bias makes
  random are exported without a composite.
- Under `jax.grad`, `jax.vmap` and other transforms of the propagated function the rule is
  transformed, so there is no composite either; nor is there in a module of symbolic sizes.
- Max pooling is taken before a ReLU that precedes it (`Activated`), so it comes first in an
  export too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import jax_internals as _compat
from jaxeff.moment_propagation.values import Gaussian, Random, to_variance

Attribute = str | int | tuple[int, ...] | tuple[float, ...]

_DTYPES = ("float32", "float64")


def composite(
    name: str, rule: Callable[..., Gaussian], *operands: Array, **attributes: Attribute
) -> Gaussian:
    """Evaluates `rule(*operands)`, which an export keeps as the composite `jaxeff.<name>`.

    Args:
        name: The operator, such as "pfp_dense".
        rule: The moments of the result from arrays; closes over no traced value.
        *operands: Arrays. Unless all are of one dtype, float32 or float64, there is no composite.
        **attributes: Attributes of the operator beside the operands' shapes.
    """
    if not _is_uniform(operands):
        return rule(*operands)

    def moments(*values: Array) -> tuple[Array, Array]:
        result = rule(*values)
        return result.mean, result.var

    return Gaussian(*_compat.export_composite(moments, operands, f"jaxeff.{name}", attributes))


def activation(name: str) -> Callable[[Callable[[Gaussian], Gaussian]], Callable]:
    """Makes the moments of a function of one random array the composite `jaxeff.<name>`."""

    def decorate(rule: Callable[[Gaussian], Gaussian]) -> Callable[[Random], Gaussian]:
        # A network has many activations of few shapes: each shape is traced once.
        @functools.partial(jax.jit, inline=True)
        def traced(mean: Array, var: Array) -> Gaussian:
            return rule(Gaussian(mean, var))

        @functools.wraps(rule)
        def moments(x: Random) -> Gaussian:
            x = to_variance(x)
            return composite(name, traced, x.mean, x.var)

        return moments

    return decorate


def _is_uniform(operands: Sequence[Any]) -> bool:
    """Returns whether arrays are all of one dtype that operators are made for."""
    dtypes = {str(jnp.result_type(operand)) for operand in operands}
    return len(dtypes) == 1 and dtypes <= set(_DTYPES)
