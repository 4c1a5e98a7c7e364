"""`gptq`: weights rounded input by input, each error made good by the inputs still to come.

For one layer, min over W' on the grid of sum |x W - x W'|^2 has the Hessian H = 2 E[x^T x], the
same for every output. Inputs are quantized in order; the error of input i, divided by U_ii, is
taken off the later ones along row i of U, the upper Cholesky factor of H^-1 (Frantar et al., eqs.
2, 3 and section 3.3, step 3). Updates beyond a block of inputs are made once per block (step 2).

```python
from jaxeff.compression import Int, gptq, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
params, spec = gptq(f, params, x, {"*:linear": Int(3, activations=False)})
logits = quantized(f, spec)(params, x)     # the weights lie on the grid already
```

References:
    Frantar et al., "GPTQ", arXiv:2210.17323.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.compression.post_training._layerwise import RoundingProblem, on_grids
from jaxeff.compression.post_training._multiplication import Matrix
from jaxeff.core import (
    check_count,
    check_number,
    input_batch,
    non_negative,
    static_integer,
    validate,
)

_EXACT = lax.Precision.HIGHEST


@validate(batch=input_batch, damping=non_negative, block=static_integer())
def gptq(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    damping: float = 0.01,
    block: int = 128,
    sort: bool = False,
) -> tuple[Any, dict[str, LayerQuantization | None]]:
    """Rounds weights by the second-order statistics of what their layers read.

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
        Parameters whose weights lie on the grid, and the spec that reproduces them.

    Raises:
        ValueError: The batch is empty or not finite, nothing has weights to quantize, a weight
            isn't one parameter's entries, or H is singular.
    """
    check_number("gptq: damping", damping, 0)
    check_count("gptq: block", block)

    def solve(problem: RoundingProblem) -> Matrix:
        hessian = problem.at.moment(problem.given, problem.given, problem.run)
        width = min(block, problem.weights.shape[1])

        # Weights, Hessian and the grid's numbers are arguments: one program for equal shapes.
        def solved(method: Any, w: Matrix, hessian: Any, numbers: tuple[Matrix, ...]) -> Matrix:
            nearest = partial(problem.nearest_of, method)
            return _solve(w, hessian, numbers, damping, width, sort, nearest)

        new: Matrix = problem.run(
            solved, problem.quantizer, problem.weights, hessian, problem.numbers
        )
        # A Cholesky decomposition that fails gives NaN instead of an error.
        if not np.isfinite(new).all():
            raise ValueError(
                f"gptq: the Hessian of {problem.tensor.site!r} is singular; raise damping or give "
                "more examples."
            )
        return new

    return on_grids("gptq", f, params, batch, spec, solve)


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

    def whole(k: Int[Array, ""], w: Matrix) -> Matrix:
        here = lax.dynamic_slice_in_dim(w, k * block, block, 1)
        rows = lax.dynamic_slice_in_dim(factor, k * block, block, 1)
        square = lax.dynamic_slice_in_dim(rows, k * block, block, 2)

        def single(i: Int[Array, ""], state: tuple[Matrix, Matrix]) -> tuple[Matrix, Matrix]:
            here, errors = state
            value = lax.dynamic_slice_in_dim(here, i, 1, 1)
            row = lax.dynamic_slice_in_dim(square, i, 1, 1)
            pivot = lax.dynamic_slice_in_dim(row, i, 1, 2)
            own = (lax.dynamic_slice_in_dim(each, k * block + i, 1, 1) for each in numbers)
            rounded = nearest(value, *own)
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

    return lax.fori_loop(0, w.shape[1] // block, whole, w)[:, :inputs]


def inverse_factor(hessian: Float[Array, "groups n n"]) -> Float[Array, "groups n n"]:
    """Returns the upper U with H^-1 = U^T U, by one Cholesky decomposition of H.

    With J reversing the order, J H J = L L^T gives H = R R^T for the upper R = J L J; U is R^-1.
    """
    lower = jnp.linalg.cholesky(hessian[:, ::-1, ::-1])
    identity = jnp.broadcast_to(jnp.eye(hessian.shape[1], dtype=hessian.dtype), hessian.shape)
    upper = lower[:, ::-1, ::-1]
    # A triangular solve instead of H^-1 and its factor: two inversions would lose digits.
    return lax.linalg.triangular_solve(upper, identity, left_side=True, lower=False)
