"""Primitives that some supported versions of JAX lack are written out where programs are read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.core import EXPANSIONS, jax_internals, make_jaxpr

# What JAX writes with them where it has them: `log2`, slopes of tanh, polynomials of few terms and
# of many, which are scans on JAX without the primitive.
CASES = {
    "log2": lambda x: jnp.log2(2 + x),
    "tanh's slope": jax.grad(lambda x: jnp.tanh(x).sum()),
    "polynomial": lambda x: jnp.polyval(jnp.array([0.5, -1.0, 0.25], x.dtype), x),
    "rows": lambda x: sum(jnp.sin(row) for row in jnp.unstack(x.reshape(7, 1))),
    "in a loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, c: jnp.log2(3 + c), x),
    "in a branch": lambda x: jax.lax.cond(x[0] > 0, lambda c: jnp.log2(3 + c), jnp.sin, x),
    "under remat": jax.grad(lambda x: jax.checkpoint(lambda c: jnp.tanh(jnp.tanh(c)))(x).sum()),
}


@pytest.mark.parametrize("case", CASES)
def test_expanded_programs_compute_the_same(case):
    x = jnp.linspace(-0.9, 0.9, 7)
    closed, _ = make_jaxpr(CASES[case])(x)
    left = {p for p in jax_internals.primitives_in(closed.jaxpr) if p in EXPANSIONS}
    assert not left
    (expanded,) = jax.jit(jax_internals.jaxpr_as_fun(closed))(x)
    np.testing.assert_allclose(expanded, jax.jit(CASES[case])(x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_expansion_keeps_the_type(dtype):
    x = jnp.linspace(0.1, 0.9, 5, dtype=dtype)
    for case in ("log2", "tanh's slope", "polynomial"):
        expected = jax.eval_shape(CASES[case], x)
        closed, _ = make_jaxpr(CASES[case])(x)
        (out,) = closed.out_avals
        assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
