"""`adaround`: whether each weight is rounded up or down is learnt, layer by layer.

A weight becomes step * clip(floor(W / step) + h(V), n, p) with the rectified sigmoid
h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1) (Nagel et al., eqs. 22, 23). V minimises
E|x W - x' W'|^2 + penalty * sum(1 - |2 h(V) - 1|^beta) (eqs. 21, 24, 25), where beta falls from 20
to 2, so that h ends at 0 or 1; the penalty is in units of the error that nearest values add. The
squared error is a quadratic form of E[x'^T x'], so every step uses the whole batch and needs no
random numbers.

```python
from jaxeff.compression import Int, adaround, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
params, spec = adaround(f, params, x, {"fc*": Int(3, activations=False)}, steps=100)
logits = quantized(f, spec)(params, x)
```

Sharp edges:
    Methods have evenly spaced values: `Int`, `Uniform`, `LSQ`.
    The error is that before the activation function (eq. 21), which eq. 25 includes.
    An output whose learnt weights do no better on the batch than the nearest ones keeps those.

References:
    Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", arXiv:2004.10568.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import Grid, LayerQuantization, Method, grid
from jaxeff.compression.post_training._layerwise import RoundingProblem, on_grids
from jaxeff.compression.post_training._multiplication import Matrix
from jaxeff.compression.quantizers import LSQ, Uniform
from jaxeff.core import (
    check_count,
    check_number,
    input_batch,
    non_negative,
    positive,
    probability,
    static_integer,
    validate,
)

ZETA, GAMMA = 1.1, -0.1
"""Bounds of the stretched sigmoid (section 3.2)."""


@validate(
    batch=input_batch,
    steps=static_integer(),
    rate=positive,
    penalty=non_negative,
    warmup=probability,
)
def adaround(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    steps: int = 1000,
    rate: float = 0.01,
    penalty: float = 5.0,
    beta: tuple[float, float] = (20.0, 2.0),
    warmup: float = 0.2,
    asymmetric: bool = True,
) -> tuple[Any, dict[str, LayerQuantization | None]]:
    """Learns the rounding of weights from what their layers read.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`. Open numbers of weights are those of the
            original weights.
        steps: Steps of Adam per layer.
        rate: The learning rate.
        penalty: Weight of the term that makes decisions, in units of the error that rounding to
            the nearest values adds per weight: so it means the same whatever the scale.
        beta: The first and the last exponent of that term.
        warmup: The part of the steps without it.
        asymmetric: Whether outputs are held to those of the original network on its own values
            (eq. 25), so that errors of the layers before are made good; else to those of the
            original weights on the quantized network's values (eq. 21).

    Returns:
        Parameters whose weights lie on the grid, and the spec that reproduces them.

    Raises:
        TypeError: A method's values aren't evenly spaced.
        ValueError: An argument is out of bounds, the batch is empty or not finite, nothing has
            weights to quantize, or a weight isn't one parameter's entries.
    """
    check_count("adaround: steps", steps)
    check_number("adaround: rate", rate, above=0)
    check_number("adaround: penalty", penalty, 0)
    check_number("adaround: warmup", warmup, 0, below=1)
    for i, end in enumerate(beta):
        check_number(f"adaround: beta[{i}]", end, 1)

    def solve(problem: RoundingProblem) -> Matrix:
        to = _grid(problem)
        # E|x W - x' W'|^2 = W'^T E[x'^T x'] W' - 2 W'^T E[x'^T x] W + const: two moments
        # replace the batch, whatever its size.
        second = problem.at.moment(problem.given, problem.given)
        cross = problem.at.moment(problem.given, problem.exact) if asymmetric else second
        learnt = _learn(
            problem.weights, second, cross, to, steps, rate, penalty, tuple(beta), warmup
        )
        # Through the method's own rounding, so that values are exactly those it gives back.
        learnt, nearest = problem.round(learnt), problem.round(problem.weights)
        return _better(learnt, nearest, problem.weights, second, cross)

    return on_grids("adaround", f, params, batch, spec, solve)


def excess(new: Matrix, w: Matrix, second: Array, cross: Array) -> Float[Array, "groups outputs"]:
    """Computes the squared error of each output, E|x w - x' new|^2, less what no weight changes."""
    target = jnp.einsum("gij,gjm->gim", cross, w, precision=lax.Precision.HIGHEST)
    product = jnp.einsum("gij,gjm->gim", second, new, precision=lax.Precision.HIGHEST)
    return jnp.sum(new * (product - 2 * target), 1)


@jax.jit
def _better(learnt: Matrix, nearest: Matrix, w: Matrix, second: Array, cross: Array) -> Matrix:
    """Takes for each output the weights whose error is smaller."""
    worse = excess(learnt, w, second, cross) > excess(nearest, w, second, cross)
    return jnp.where(worse[:, None, :], nearest, learnt)


def rectified_sigmoid(v: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes h(V), 0 to 1 (eq. 23)."""
    return jnp.clip(jax.nn.sigmoid(v) * (ZETA - GAMMA) + GAMMA, 0, 1)


@partial(jax.jit, static_argnums=(4, 7, 8))
def _learn(
    w: Matrix,
    second: Array,
    cross: Array,
    to: Grid,
    steps: int,
    rate: float,
    penalty: float,
    beta: tuple[float, float],
    warmup: float,
) -> Matrix:
    # Eq. 22: every weight takes one of its two neighbours; V decides which.
    codes = w / to.step - to.zero
    floor = jnp.floor(codes)

    def value(h: Array) -> Matrix:
        return (jnp.clip(floor + h, to.lower, to.upper) + to.zero) * to.step

    # The unit of error: what nearest rounding adds per weight. It makes `penalty`
    # independent of the scale of inputs and weights.
    nearest = value(jnp.round(codes) - floor)
    added = (excess(nearest, w, second, cross) - excess(w, w, second, cross)).sum()
    unit = jnp.maximum(added, jnp.finfo(w.dtype).tiny) / w.size

    def loss(v: Array, step: Array) -> Array:
        h = rectified_sigmoid(v)
        error = excess(value(h), w, second, cross).sum()
        # In the warm-up the error alone moves V: early decisions would be final.
        done = jnp.maximum(step / steps - warmup, 0) / (1 - warmup)
        # From the first exponent to the last along half a cosine, as the authors' code does.
        exponent = beta[1] + 0.5 * (beta[0] - beta[1]) * (1 + jnp.cos(jnp.pi * done))
        # |2h-1|^beta has no derivative at 0 by itself.
        distance = jnp.maximum(jnp.abs(2 * h - 1), 1e-6)
        decided = jnp.sum(1 - distance**exponent)
        return error / unit + jnp.where(step < warmup * steps, 0.0, penalty) * decided

    optimizer = optax.adam(rate)

    def update(state: tuple[Array, Any], step: Array) -> tuple[tuple[Array, Any], None]:
        v, moments = state
        gradient = jax.grad(loss)(v, step)
        with jax.numpy_dtype_promotion("standard"):  # Adam's count of steps is an integer
            change, moments = optimizer.update(gradient, moments)
        return (v + change, moments), None

    # Within the sigmoid's slope: at 0 or 1 exactly the gradient of h vanishes.
    fraction = jnp.clip(codes - floor, 0.01, 0.99)
    v = -jnp.log((ZETA - GAMMA) / (fraction - GAMMA) - 1)  # h(v) is the fraction
    (v, _), _ = lax.scan(update, (v, optimizer.init(v)), jnp.arange(steps, dtype=w.dtype))
    # h(V) is symmetric about V = 0, h(0) = 1/2: the sign decides, also where training has
    # not.
    return value((v > 0).astype(w.dtype))


def _grid(problem: RoundingProblem) -> Grid:
    """Finds the evenly spaced values of a method, for the matrices."""
    method, at = problem.quantizer, problem.at
    if isinstance(method, Uniform) and method.range is not None:
        low, high = (np.asarray(end, np.float32) for end in method.range)
        to = jax.jit(lambda low, high: grid(method.bits, low, high, method.symmetric))(low, high)
    elif isinstance(method, LSQ):
        to = jax.jit(lambda: method.grid(jnp.float32))()
    else:
        raise TypeError(
            f"adaround needs evenly spaced values, but {problem.tensor.site!r} has "
            f"{type(method).__name__}; take Uniform, or gptq."
        )
    # Numbers per tensor or output channel become one per column of the matrices.
    contraction = at.contraction
    shape = contraction.weight(np.zeros((contraction.groups, 1, problem.weights.shape[2]))).shape

    def spread(number: Array) -> np.ndarray:
        return contraction.matrix(np.broadcast_to(np.asarray(number), shape))

    return jax.tree.map(spread, to)
