"""What the methods' tests share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Tensor

WEIGHT = Tensor("fc", "weights_1", "weight", 2, jax.random.key(5), lambda: (1,))
DATA = Tensor("fc", "input_0", "activation", 2, jax.random.key(6))
EDGES = {"zeros": jnp.zeros((5, 3)), "constant": jnp.full((5, 3), -0.7), "one": jnp.ones((1, 1))}


@pytest.fixture
def check_method() -> Callable[..., None]:
    """Holds a method to what all of them keep: dtypes, compilation, vmap, edge cases, gradients."""

    def check(method: Any, tensor: Tensor = WEIGHT, exact: bool = True) -> None:
        x = jax.random.normal(jax.random.key(7), (5, 3))
        start = jax.jit(lambda x: method.start(x, tensor))
        started = method.start(x, tensor)
        jax.tree.map(close, start(x), started)
        same = np.testing.assert_array_equal if exact else close

        def value(q: Any, x: Any) -> Any:
            return q.quantize(x, tensor)

        @jax.jit
        def of_everything(q: Any, x: Any) -> Any:
            grads = jax.grad(lambda q, x: jnp.sum(jnp.sin(value(q, x))), (0, 1))(q, x)
            return value(q, x), grads

        stacked = jnp.stack([x, x / 2])
        for q in (method, started):
            eager = value(q, x)
            same(jax.jit(jax.vmap(value, (None, 0)))(q, stacked)[0], eager)
            same(jax.jit(value)(q, x), eager)
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_everything(q, x)))
        if jax.tree.leaves(started):
            specs = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), started)
            close(jax.jit(jax.vmap(value, (0, None)))(specs, x)[1], value(started, x))
        for dtype in (jnp.bfloat16, jnp.float16):
            assert jax.eval_shape(value, method, x.astype(dtype)).dtype == dtype
            assert jax.eval_shape(value, started, x.astype(dtype)).dtype == dtype
        with jax.enable_x64(True):
            wide = jax.ShapeDtypeStruct((5, 3), jnp.float64)
            assert jax.eval_shape(value, method, wide).dtype == jnp.float64
            again = jax.eval_shape(start, wide)
            assert jax.eval_shape(value, again, wide).dtype == jnp.float64
        for name, edge in EDGES.items():
            for q in (method, start(edge)):
                found = jax.tree.leaves(of_everything(q, edge))
                assert all(np.isfinite(leaf).all() for leaf in found), name
        assert method.storage((5, 3), tensor) == started.storage((5, 3), tensor)

    return check


def close(a: Any, b: Any) -> None:
    """Equal but for rounding."""
    np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)
