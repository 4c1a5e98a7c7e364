"""One network for every activation function: which one it is, is an argument.

The index is traced, so `jax.lax.switch` picks the function when the program runs, and one compiled
sampler serves them all. Every network has the parameters of all: the slope of PReLU and the
coefficients of the learned spline, which the others ignore (their posterior is their prior).

Kernels are in units of their prior's standard deviation, so that the prior of all parameters is the
standard normal, and a sampler starts with the right scales.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

import jaxeff
from jaxeff.nn import ACTIVATIONS, MLP, SplineActivation
from jaxeff.nn.layers import prelu

LEARNED = "Spline"
"""The learned activation (ours): Klein's thesis, section 7.5.1, only says that it tried some."""
NAMES = (*ACTIVATIONS, LEARNED)
HIDDEN = 50
LAYERS = ("fc1", "fc2", "fc3")
PRIOR = 1.0
"""Standard deviation of every parameter's prior."""
Scales = tuple[float, float, float]
"""Prior standard deviation of each layer's kernel; biases have `PRIOR`."""

_spline, _spline_start = jaxeff.functional(SplineActivation(rngs=nnx.Rngs(0)))


def start(key: PRNGKeyArray, inputs: int, outputs: int, hidden: int = HIDDEN) -> dict[str, Any]:
    """Draw the parameters of an MLP with two hidden layers from the prior."""
    _, params = jaxeff.functional(MLP((inputs, hidden, hidden, outputs), rngs=nnx.Rngs(0)))
    vector, unravel = ravel_pytree({**params, "slope": jnp.ones(()), "spline": _spline_start})
    return unravel(PRIOR * jax.random.normal(key, vector.shape))


Network = Callable[[dict[str, Any], Float[Array, "batch inputs"], Int[Array, ""]], Array]


@cache
def network(scales: Scales) -> Network:
    """The MLP as a function of parameters, inputs, and the number of its activation in `NAMES`.

    It is the same function for the same scales, so that it is compiled once.
    """

    def of_index(params: dict[str, Any], x: Array, index: Array) -> Array:
        return _apply(params, x, scales, lambda *a: jax.lax.switch(index, _BRANCHES, *a))

    return of_index


def single(name: str, scales: Scales) -> Callable[[dict[str, Any], Array], Array]:
    """The MLP with one activation function alone, for what is compiled for it anyway."""
    return lambda params, x: _apply(params, x, scales, _branch(name))


def _apply(
    params: dict[str, Any], x: Array, scales: Scales, activate: Callable[..., Array]
) -> Array:
    for layer, scale in zip(LAYERS, scales, strict=True):
        x = x @ (scale * params[layer]["kernel"]) + params[layer]["bias"]
        if layer != LAYERS[-1]:
            x = activate(x, params["slope"], params["spline"])
    return x


def _branch(name: str) -> Callable[[Array, Array, Any], Array]:
    if name == LEARNED:
        return lambda x, slope, spline: _spline(spline, x)
    if name == "PReLU":
        return lambda x, slope, spline: prelu(x, slope)
    return lambda x, slope, spline: ACTIVATIONS[name](x)


_BRANCHES = [_branch(name) for name in NAMES]
