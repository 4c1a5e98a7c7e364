"""Traces every transform of the laws under JAX's check for tracers that outlive their trace."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from tests.test_laws import KEY, PARAMS, TRANSFORMS, F, Transform, X, under_scan


def trace(transform: Transform) -> None:
    """Raises where a transform keeps a tracer: of a gradient, of vmap, of a scan."""

    def loss(key: jax.Array, params: Any, x: jax.Array) -> jax.Array:
        return sum(jnp.sum(v**2) for v in jax.tree.leaves(transform.eager(F, key, params, x)))

    with jax.checking_leaks():
        jax.jit(jax.grad(loss, 1))(KEY, PARAMS, X)
        jax.jit(jax.vmap(loss, (0, None, None)))(jax.random.split(KEY, 2), PARAMS, X)
        jax.jit(functools.partial(transform.eager, under_scan(F)))(KEY, PARAMS, X)


if __name__ == "__main__":
    for name, transform in TRANSFORMS.items():
        trace(transform)
        print(name)
