"""A small function with a posterior in, a pytree out, and squares of weights to be lifted."""

import jax
import jax.numpy as jnp

from jaxeff.moment_propagation import Gaussian


def mlp(params, x):
    hidden = jax.nn.relu(x @ params["w1"].mean + params["b1"])
    out = hidden @ params["w2"]
    spread = jnp.square(hidden) @ jnp.square(params["w2"])
    return {
        "logits": Gaussian(out, jnp.exp(0.1 * out) + spread),
        "hidden": (hidden, [hidden.sum()]),
    }


def parameters(seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    return {
        "w1": Gaussian(jax.random.normal(keys[0], (8, 16)), jnp.ones((8, 16))),
        "b1": jax.random.normal(keys[1], (16,)),
        "w2": jax.random.normal(keys[2], (16, 4)),
        "unused": jnp.zeros(3),
    }


def inputs(seed=1, batch=2):
    return jax.random.normal(jax.random.key(seed), (batch, 8))
