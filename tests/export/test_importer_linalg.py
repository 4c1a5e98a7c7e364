"""Factorizations and solvers, against LAPACK as XLA calls it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import assert_agrees
from jax import lax


def _normal(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def _definite(*shape, dtype="float32"):
    x = _normal(*shape)
    return (x @ x.swapaxes(-1, -2) + jnp.eye(shape[-1])).astype(dtype)


def test_cholesky():
    def factors(x, y):
        return jnp.linalg.cholesky(x), jnp.linalg.cholesky(y, upper=True)

    failing = jnp.stack([_definite(3, 3), -_definite(3, 3), jnp.nan * _definite(3, 3)])
    assert_agrees(factors, _definite(2, 5, 5), failing, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 5e-2)])
def test_triangular_solve(dtype, tolerance):
    a = _normal(2, 4, 4, dtype=dtype) / 2 + 2 * jnp.eye(4, dtype=dtype)
    b, c = _normal(2, 4, 3, dtype=dtype), _normal(2, 3, 4, dtype=dtype)

    def solutions(a, b, c):
        return [
            lax.linalg.triangular_solve(
                a, side, left_side=side is b, lower=lower, transpose_a=transpose, unit_diagonal=unit
            )
            for side in (b, c)
            for lower in (True, False)
            for transpose in (True, False)
            for unit in (True, False)
        ]

    assert_agrees(solutions, a, b, c, rtol=tolerance, atol=tolerance)


def test_double_precision():
    with jax.enable_x64(True):
        x, y = _definite(4, 4, dtype="float64"), _normal(4, 2, dtype="float64")
        assert_agrees(
            lambda x, y: (jnp.linalg.cholesky(x), jax.scipy.linalg.solve_triangular(x, y)),
            x, y, rtol=1e-12,
        )  # fmt: skip
