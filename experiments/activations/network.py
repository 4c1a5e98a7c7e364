"""One network for every activation function: which one it is, is an argument.

The index is traced, so `jax.lax.switch` picks the function when the program runs, and one compiled
sampler serves them all. Every network has the parameters of all: the slope of PReLU and the
coefficients of the learned spline, which the others ignore (their posterior is their prior).

Kernels are in units of their prior's standard deviation, so that the prior of all parameters is the
standard normal, and a sampler starts with the right scales.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

import jaxeff
from jaxeff.nn import ACTIVATIONS, MLP, SplineActivation
from jaxeff.nn.activations import prelu

LEARNED = "Spline"
"""The learned activation (ours): the source only says that it tried some (T3157-3160)."""
NAMES = (*ACTIVATIONS, LEARNED)
HIDDEN = 50
PRIOR = 1.0
"""Standard deviation of every parameter's prior."""
SCALES = {"fc1": 1.4, "fc2": 0.5, "fc3": 0.5}
"""Prior standard deviation of each layer's kernel; biases have 1. Scaled by fan-in it would be 0.2
for the later layers, and a network of sigmoids could not follow the noisy sine at all; with 1 the
posterior of the unbounded functions gets so narrow that chains hardly move."""

_spline, _spline_start = jaxeff.functional(SplineActivation(rngs=nnx.Rngs(0)))


def start(key: PRNGKeyArray, inputs: int, outputs: int, hidden: int = HIDDEN) -> dict[str, Any]:
    """Draw the parameters of an MLP with two hidden layers from the prior.

    Args:
        key: Random key.
        inputs: Features of the input.
        outputs: Outputs: logits, or a mean and a log-variance.
        hidden: Units of both hidden layers.
    """
    _, params = jaxeff.functional(MLP((inputs, hidden, hidden, outputs), rngs=nnx.Rngs(0)))
    vector, unravel = ravel_pytree({**params, "slope": jnp.ones(()), "spline": _spline_start})
    return unravel(PRIOR * jax.random.normal(key, vector.shape))


def network(
    params: dict[str, Any], x: Float[Array, "batch inputs"], index: Int[Array, ""]
) -> Float[Array, "batch outputs"]:
    """The MLP with the activation function number ``index`` of `NAMES`."""
    for layer in ("fc1", "fc2"):
        hidden = _dense(params, layer, x)
        x = jax.lax.switch(index, _BRANCHES, hidden, params["slope"], params["spline"])
    return _dense(params, "fc3", x)


def _dense(params: dict[str, Any], layer: str, x: Array) -> Array:
    return x @ (SCALES[layer] * params[layer]["kernel"]) + params[layer]["bias"]


def _branch(name: str) -> Callable[[Array, Array, Any], Array]:
    if name == LEARNED:
        return lambda x, slope, spline: _spline(spline, x)
    if name == "PReLU":
        return lambda x, slope, spline: prelu(x, slope)
    return lambda x, slope, spline: ACTIVATIONS[name](x)


_BRANCHES = [_branch(name) for name in NAMES]
