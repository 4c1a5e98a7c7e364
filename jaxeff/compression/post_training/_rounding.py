"""Rounding of weights: to what is nearest, or by the error of a layer's output."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from jaxeff import core
from jaxeff.compression.numerics import Grid, Method, OnGrid
from jaxeff.compression.post_training._layerwise import PostTrained, RoundingProblem, on_grids
from jaxeff.compression.post_training._multiplication import Matrix

_EXACT = lax.Precision.HIGHEST


@core.validate(batch=core.input_batch)
def round_weights(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> PostTrained:
    """Rounds weights to the nearest values of their grids, as `quantized` does in every call.

    A model of another library computes with them what `quantized` computes, but for activations:

    ```python
    import jaxeff
    from flax import nnx
    from jaxeff.compression import Int, round_weights
    from jaxeff.nn import SmallCNN, small_classifier

    model, (x, y) = SmallCNN(rngs=nnx.Rngs(0)), small_classifier()[2]
    f, params = jaxeff.functional(model)
    _, rounded, spec = round_weights(f, params, x[:1], {"*:linear": Int(4, activations=False)})
    model = jaxeff.restore(model, rounded)
    assert abs(model(x) - jaxeff.quantized(f, spec)(params, x)).max() < 1e-5
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: one example is enough.
        spec: Quantizers by site, as for `gptq`.

    Returns:
        `f`, parameters whose weights lie on the grid, and the spec that reproduces them.

    Raises:
        ValueError: As for `gptq`.
    """
    return on_grids(
        "round_weights", f, params, batch, spec, lambda problem: problem.round(problem.weights)
    )


@core.validate(batch=core.input_batch, damping=core.non_negative, block=core.static_integer())
def gptq(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    damping: float = 0.01,
    block: int = 128,
    sort: bool = False,
) -> PostTrained:
    """Rounds weights by the second-order statistics of what their layers read.

    For one layer, min over W' on the grid of sum |x W - x W'|^2 has the Hessian H = 2 E[x^T x], the
    same for every output. Inputs are quantized in order; the error of input i, divided by U_ii, is
    taken off the later ones along row i of U, the upper Cholesky factor of H^-1 (Frantar et al.,
    eqs. 2, 3 and section 3.3, step 3). Updates beyond a block of inputs are made once per block
    (step 2).

    ```python
    from jaxeff.compression import Int, gptq, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    f, params, spec = gptq(f, params, x, {"*:linear": Int(3, activations=False)})
    logits = quantized(f, spec)(params, x)     # the weights lie on the grid already
    ```

    Layers are taken in order; each reads what the layers before it, quantized, give it.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`; methods that quantize elementwise, with
            numbers per tensor, output channel or group. Open numbers of weights are those of the
            original weights.
        damping: Added to the diagonal of H, in units of its mean.
        block: Inputs between two updates of all later ones; changes rounding errors only.
        sort: Whether inputs are taken by decreasing diagonal of H instead of in their order.

    Returns:
        `f`, parameters whose weights lie on the grid, and the spec that reproduces them.

    Raises:
        ValueError: The batch is empty or not finite, nothing has weights to quantize, a weight
            isn't one parameter's entries, or H is singular.

    References:
        Frantar et al., "GPTQ", arXiv:2210.17323.
    """
    solve = partial(_by_hessian, damping=damping, block=block, sort=sort)
    return on_grids("gptq", f, params, batch, spec, solve)


def _by_hessian(problem: RoundingProblem, damping: float, block: int, sort: bool) -> Matrix:
    """Solves for a layer's weights by its Hessian, which must be regular."""
    hessian = problem.at.moment(problem.quantized, problem.quantized, problem.run)
    width = min(block, problem.weights.shape[1])

    # Weights, Hessian and the grid's numbers are arguments: one program for equal shapes.
    def solved(method: Any, w: Matrix, hessian: Any, numbers: tuple[Matrix, ...]) -> Matrix:
        nearest = partial(problem.nearest_of, method)
        return _solve(w, hessian, numbers, damping, width, sort, nearest)

    new: Matrix = problem.run(solved, problem.quantizer, problem.weights, hessian, problem.numbers)
    # A Cholesky decomposition that fails gives NaN instead of an error.
    if not np.isfinite(new).all():
        raise ValueError(
            f"gptq: the Hessian of {problem.tensor.site!r} is singular; raise damping or give "
            "more examples."
        )
    return new


def _solve(
    w: Matrix,
    hessian: Float[Array, "groups inputs inputs"],
    numbers: tuple[Matrix, ...],
    damping: float,
    block: int,
    sort: bool,
    nearest: Callable[..., Matrix],
) -> Matrix:
    """Returns the new weights; not finite where the Hessian has no Cholesky factor."""
    diagonal = jnp.diagonal(hessian, axis1=1, axis2=2)
    # An input that is always zero has no say: any value is right, and it makes good nothing.
    dead = diagonal == 0
    mean = diagonal.mean(1, keepdims=True)
    # Damping keeps H regular with fewer examples than inputs (section 3.3, step 3).
    added = jnp.where(dead, jnp.where(mean > 0, mean, 1), damping * mean)
    hessian = hessian + jax.vmap(jnp.diag)(added)
    # Inputs with the largest H_ii first: their errors weigh most, and most inputs remain to
    # compensate them.
    order = jnp.argsort(-diagonal, axis=1) if sort else None
    if order is not None:
        w, *rest = (jnp.take_along_axis(rows, order[:, :, None], 1) for rows in (w, *numbers))
        numbers = tuple(rest)
        hessian = jnp.take_along_axis(hessian, order[:, :, None], 1)
        hessian = jnp.take_along_axis(hessian, order[:, None, :], 2)
    new = _rounded(w, hessian, numbers, block, nearest)
    if order is not None:
        new = jnp.take_along_axis(new, jnp.argsort(order, axis=1)[:, :, None], 1)
    return new


def _rounded(
    w: Matrix,
    hessian: Array,
    numbers: tuple[Matrix, ...],
    block: int,
    nearest: Callable[..., Matrix],
) -> Matrix:
    inputs = w.shape[1]
    factor = inverse_factor(hessian)
    # Padded inputs have a zero row in the factor: they change nothing.
    missing = -inputs % block
    w = jnp.pad(w, ((0, 0), (0, missing), (0, 0)))
    factor = jnp.pad(factor, ((0, 0), (0, missing), (0, missing)))

    def round_block(k: Int[Array, ""], w: Matrix) -> Matrix:
        here = lax.dynamic_slice_in_dim(w, k * block, block, 1)
        rows = lax.dynamic_slice_in_dim(factor, k * block, block, 1)
        square = lax.dynamic_slice_in_dim(rows, k * block, block, 2)

        def single(i: Int[Array, ""], state: tuple[Matrix, Matrix]) -> tuple[Matrix, Matrix]:
            here, errors = state
            value = lax.dynamic_slice_in_dim(here, i, 1, 1)
            row = lax.dynamic_slice_in_dim(square, i, 1, 1)
            pivot = lax.dynamic_slice_in_dim(row, i, 1, 2)
            of_input = (lax.dynamic_slice_in_dim(each, k * block + i, 1, 1) for each in numbers)
            rounded = nearest(value, *of_input)
            error = (value - rounded) / jnp.where(pivot == 0, 1.0, pivot)  # zero: only padded
            later = jnp.arange(block)[None, None, :] > i
            # Equation 3: later inputs take over the error along the row of the factor.
            here = here - jnp.where(later, row, 0.0).swapaxes(1, 2) * error
            here = lax.dynamic_update_slice_in_dim(here, rounded, i, 1)
            return here, lax.dynamic_update_slice_in_dim(errors, error, i, 1)

        here, errors = lax.fori_loop(0, block, single, (here, jnp.zeros_like(here)))
        # One matrix product per block instead of a rank-one update per input: the same
        # sums, but limited by arithmetic rather than by memory traffic.
        beyond = jnp.arange(w.shape[1])[None, None, :] >= (k + 1) * block
        rest = jnp.where(beyond, rows, 0.0)
        w = w - jnp.einsum("gbk,gbm->gkm", rest, errors, precision=_EXACT)
        return lax.dynamic_update_slice_in_dim(w, here, k * block, 1)

    return lax.fori_loop(0, w.shape[1] // block, round_block, w)[:, :inputs]


def inverse_factor(hessian: Float[Array, "groups n n"]) -> Float[Array, "groups n n"]:
    """Returns the upper U with H^-1 = U^T U, by one Cholesky decomposition of H.

    With J reversing the order, J H J = L L^T gives H = R R^T for the upper R = J L J; U is R^-1.
    """
    lower = jnp.linalg.cholesky(hessian[:, ::-1, ::-1])
    identity = jnp.broadcast_to(jnp.eye(hessian.shape[1], dtype=hessian.dtype), hessian.shape)
    upper = lower[:, ::-1, ::-1]
    # A triangular solve instead of H^-1 and its factor: two inversions would lose digits.
    return lax.linalg.triangular_solve(upper, identity, left_side=True, lower=False)


ZETA, GAMMA = 1.1, -0.1
"""Bounds of the stretched sigmoid (section 3.2)."""


class RoundingOptions(TypedDict, total=False):
    """How `adaround` learns; `RoundingSchedule` has their meaning and defaults."""

    steps: int
    rate: float
    penalty: float
    beta: tuple[float, float]
    warmup: float


# A program is compiled for the meta fields; the others are numbers of any call.
@partial(
    jax.tree_util.register_dataclass,
    data_fields=["rate", "penalty"],
    meta_fields=["steps", "beta", "warmup"],
)
@dataclass(frozen=True, kw_only=True)
class RoundingSchedule:
    """How `adaround` learns, with the paper's defaults.

    Attributes:
        steps: Steps of Adam per layer.
        rate: The learning rate.
        penalty: Weight of the term that makes decisions.
        beta: The first and the last exponent of that term.
        warmup: The part of the steps without it.
    """

    steps: int = 1000
    rate: float = 0.01
    penalty: float = 5.0
    beta: tuple[float, float] = (20.0, 2.0)
    warmup: float = 0.2


@core.validate(
    batch=core.input_batch,
    steps=core.static_integer(),
    rate=core.positive,
    penalty=core.non_negative,
    warmup=core.probability,
)
@core.forwards(RoundingSchedule, RoundingOptions)
def adaround(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    asymmetric: bool = True,
    **schedule: Unpack[RoundingOptions],
) -> PostTrained:
    """Learns the rounding of weights from what their layers read.

    A weight becomes step * clip(floor(W / step) + h(V), n, p) with the rectified sigmoid h(V) =
    clip(1.2 sigmoid(V) - 0.1, 0, 1) (Nagel et al., eqs. 22, 23). V minimises E|x W - x' W'|^2 +
    penalty * sum(1 - |2 h(V) - 1|^beta) (eqs. 21, 24, 25), where beta falls from 20 to 2, so that h
    ends at 0 or 1; the penalty is in units of the error that nearest values add. The squared error
    is a quadratic form of E[x'^T x'], so every step uses the whole batch and needs no random
    numbers.

    ```python
    from jaxeff.compression import Int, adaround, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    few = {"fc*": Int(3, activations=False)}
    f, params, spec = adaround(f, params, x, few, steps=100)
    logits = quantized(f, spec)(params, x)
    ```

    Sharp edges:
        Methods have evenly spaced values: `Int`, `Uniform`, `LSQ`.
        The error is that before the activation function (eq. 21), which eq. 25 includes.
        An output whose learnt weights do no better on the batch than the nearest ones keeps those.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`. Open numbers of weights are those of the
            original weights.
        asymmetric: Whether outputs are held to those of the original network on its own values
            (eq. 25), so that errors of the layers before are made good; else to those of the
            original weights on the quantized network's values (eq. 21).
        **schedule: `steps` of Adam per layer, 1000; its learning `rate`, 0.01; `penalty`, the
            weight of the term that makes decisions, in units of the error that rounding to the
            nearest values adds per weight, so that it means the same whatever the scale, 5; `beta`,
            the first and the last exponent of that term; `warmup`, the part of the steps without
            it, 0.2.

    Returns:
        `f`, parameters whose weights lie on the grid, and the spec that reproduces them.

    Raises:
        TypeError: A method's values aren't evenly spaced.
        ValueError: An argument is out of bounds, the batch is empty or not finite, nothing has
            weights to quantize, or a weight isn't one parameter's entries.

    References:
        Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization",
        arXiv:2004.10568.
    """
    learning = RoundingSchedule(**schedule)
    core.check_number("adaround: warmup", learning.warmup, 0, below=1)
    for i, end in enumerate(learning.beta):
        core.check_number(f"adaround: beta[{i}]", end, 1)
    first, last = learning.beta
    learning = replace(learning, beta=(first, last))  # no list, for a program is compiled for it

    def solve(problem: RoundingProblem) -> Matrix:
        to = _grid(problem)
        # E|x W - x' W'|^2 = W'^T E[x'^T x'] W' - 2 W'^T E[x'^T x] W + const: two moments
        # replace the batch, whatever its size.
        second = problem.at.moment(problem.quantized, problem.quantized)
        cross = problem.at.moment(problem.quantized, problem.exact) if asymmetric else second
        learnt = _learn(problem.weights, second, cross, to, learning)
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


@jax.jit
def _learn(w: Matrix, second: Array, cross: Array, to: Grid, schedule: RoundingSchedule) -> Matrix:
    steps, beta, warmup = schedule.steps, schedule.beta, schedule.warmup
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
        return error / unit + jnp.where(step < warmup * steps, 0.0, schedule.penalty) * decided

    optimizer = optax.adam(schedule.rate)

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
    # h(V) is symmetric about V = 0, h(0) = 1/2: the sign decides, also where training has not.
    return value((v > 0).astype(w.dtype))


def _grid(problem: RoundingProblem) -> Grid:
    """Finds the evenly spaced values of a method, for the matrices."""
    method, at = problem.quantizer, problem.at
    if not isinstance(method, OnGrid) or (to := method.uniform_grid(None, problem.tensor)) is None:
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
