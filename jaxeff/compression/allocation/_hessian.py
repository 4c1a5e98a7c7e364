"""Sensitivity of layers to fewer bits by the curvature of the loss: traces of its Hessian.

tr(H_l) = E[v^T H v] over random signs v (Hutchinson): one product of the Hessian with a vector per
draw, for all sites at once, the derivative of the gradient along v. A change Delta of n values
costs about (1/2) Delta^T H Delta, on average over directions (tr(H) / 2n) |Delta|^2; HAWQ-V2 ranks
policies by the sum of that over layers, without the half (eq. 2.11), for Delta = Q(W) - W.

```python
import jax

from jaxeff.compression import hessian_sensitivity, hessian_trace, quantization_errors
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy

f, params, (x, y) = small_classifier()
loss = cross_entropy(f)

def of_params(params, x, y):
    return loss(jax.random.key(0), params, None, (x, y), 0)[0]

sites = ("conv1", "fc2")
trace = hessian_trace(jax.random.key(1), of_params, params, (x[:64], y[:64]), sites, probes=8)
found = hessian_sensitivity(trace, quantization_errors(f, params, x[:64], sites))
```

Sharp edges:
    The signs of one draw cover all sites; what these have to do with each other adds to the
    standard error, not to the mean.
    A trace may be negative away from a minimum; then fewer bits look like a gain.
    The curvature by activations is that of the mean loss over the batch.

References:
    Dong et al., "HAWQ-V2: Hessian Aware trace-Weighted Quantization of Neural Networks",
    arXiv:1911.03852. Hutchinson, Communications in Statistics 18 (1989).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.compression._quantized import of_inputs
from jaxeff.compression.allocation._errors import QuantizationErrors, multiplying
from jaxeff.compression.allocation._table import BitSensitivity
from jaxeff.core import (
    check_count,
    function_of_form,
    input_batch,
    instance_of,
    static_integer,
    validate,
)
from jaxeff.program import Layer, Program, evaluate, plain_rule, trace

ROLES = ("weight", "activation")


class HessianTrace(NamedTuple):
    """Traces of the loss's Hessian with respect to what each site multiplies.

    Attributes:
        sites: The layers.
        weights: Trace over the weights of each.
        activations: Trace over what each reads.
        weights_error: Standard error of `weights` over the draws; NaN for a single one.
        activations_error: Standard error of `activations`.
    """

    sites: tuple[str, ...]
    weights: Float[np.ndarray, " sites"]
    activations: Float[np.ndarray, " sites"]
    weights_error: Float[np.ndarray, " sites"]
    activations_error: Float[np.ndarray, " sites"]


@validate(
    loss=function_of_form("loss(params, *args)"),
    args=input_batch,
    probes=static_integer(),
    at_once=static_integer(),
)
def hessian_trace(
    key: PRNGKeyArray,
    loss: Callable[..., Any],
    params: Any,
    args: Any,
    sites: Sequence[str],
    *,
    probes: int = 32,
    at_once: int = 1,
) -> HessianTrace:
    """Estimates the traces of every site.

    Args:
        key: Random key of the signs.
        loss: `loss(params, *args)`, a scalar that calls the model.
        params: The parameters.
        args: Further arguments, such as `(x, y)`, as a tuple, or the only one of them.
        sites: The model's layers, dot products and convolutions.
        probes: Random directions.
        at_once: Number of them evaluated side by side, by `vmap`.

    Raises:
        ValueError: The loss isn't a scalar, or a site isn't there, multiplies nothing, or lies
            inside a loop.
    """
    check_count("probes", probes)
    check_count("at_once", at_once)
    sites = tuple(sites)
    args = args if isinstance(args, tuple) else (args,)
    shape = jax.eval_shape(loss, params, *args)
    if getattr(shape, "shape", None) != ():
        raise ValueError(f"the loss must be a scalar, not {shape}.")
    # The sample's standard deviation over probes gives the standard error of the mean.
    keys = jax.random.split(key, probes)
    drawn = np.asarray(_products(loss, sites, at_once, keys, params, args), float)
    error = drawn.std(0, ddof=1) if probes > 1 else np.full(drawn.shape[1:], np.nan)
    return HessianTrace(sites, *drawn.mean(0), *(error / math.sqrt(probes)))


@validate(trace=instance_of(HessianTrace), errors=instance_of(QuantizationErrors))
def hessian_sensitivity(trace: HessianTrace, errors: QuantizationErrors) -> BitSensitivity:
    """Computes the second-order rise of the loss, (tr(H) / 2) times the mean squared errors.

    Args:
        trace: From `hessian_trace`.
        errors: From `quantization_errors`, of the same sites.

    Returns:
        In units of the loss, with the traces' standard errors.

    Raises:
        ValueError: They are of different sites.
    """
    if trace.sites != errors.sites:
        raise ValueError(
            f"The traces are of {list(trace.sites)}, the errors of {list(errors.sites)}."
        )

    def times(of: np.ndarray, squares: np.ndarray) -> np.ndarray:
        # The mean squared error already has the 1 / n of (tr(H) / 2n) |Delta|^2.
        return 0.5 * of[:, None] * squares

    return BitSensitivity(
        errors.sites,
        errors.widths,
        times(trace.weights, errors.weights),
        times(trace.activations, errors.activations),
        times(trace.weights_error, errors.weights),
        times(trace.activations_error, errors.activations),
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _products(
    loss: Any, sites: tuple[str, ...], at_once: int, keys: Any, params: Any, args: tuple[Any, ...]
) -> Float[Array, "probes two sites"]:
    """Computes v^T H v of every draw, by weights or activations and by site."""
    program = trace(loss, params, *args)
    leaves = jax.tree.leaves(((params, *args), {}))
    settings = multiplying(sites, program)
    zeros = _zeros(program, settings)

    def moved(by: dict[str, dict[str, Array]]) -> Array:
        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            inputs = list(values)
            if layer.site in settings:
                for _, tensor, i in of_inputs(layer, settings[layer.site], values):
                    # A zero added to each array: the derivative by it is that by the array,
                    # also for activations, which are no arguments of the loss.
                    inputs[i] = inputs[i] + by[layer.site][f"{tensor.role} {i}"]
            return plain_rule(layer, key, *inputs)

        (found,) = evaluate(program, rule, None, leaves)
        return found

    def product(key: PRNGKeyArray) -> Array:
        arrays, structure = jax.tree.flatten(zeros)
        signs = [
            jax.random.rademacher(k, a.shape, a.dtype)
            for k, a in zip(jax.random.split(key, len(arrays)), arrays, strict=True)
        ]
        v = jax.tree.unflatten(structure, signs)
        # Forward over reverse: H v costs about two gradients and never forms H.
        _, hv = jax.jvp(jax.grad(moved), (zeros,), (v,))
        dots = jax.tree.map(lambda a, b: jnp.sum((a * b).astype(jnp.float32)), v, hv)

        def of(site: str, role: str) -> Array:
            parts = [dot for name, dot in dots[site].items() if name.startswith(role)]
            return sum(parts, jnp.zeros(()))

        return jnp.stack([jnp.stack([of(site, role) for site in sites]) for role in ROLES])

    found: Array = jax.lax.map(product, keys, batch_size=at_once if at_once > 1 else None)
    return found


def _zeros(program: Program, settings: Any) -> dict[str, dict[str, Array]]:
    """Makes zeros like what each site multiplies: the point of no change."""
    zeros: dict[str, dict[str, Array]] = {}
    for layer in program.layers:
        if layer.site in settings:
            avals = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in layer.inputs]
            read = of_inputs(layer, settings[layer.site], avals)
            zeros[layer.site] = {f"{t.role} {i}": avals[i] for _, t, i in read}
    return zeros
