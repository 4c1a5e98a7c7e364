"""Factorizations and solvers, against LAPACK as XLA calls it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import assert_agrees, export
from jax import lax
from jaxeff_export.importer import UnsupportedOpError, import_stablehlo


def _normal(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def _definite(*shape, dtype="float32"):
    x = _normal(*shape)
    return (x @ x.swapaxes(-1, -2) + jnp.eye(shape[-1])).astype(dtype)


@pytest.mark.slow
def test_cholesky():
    def factors(x, y):
        return jnp.linalg.cholesky(x), jnp.linalg.cholesky(y, upper=True)

    failing = jnp.stack([_definite(3, 3), -_definite(3, 3), jnp.nan * _definite(3, 3)])
    assert_agrees(factors, _definite(2, 5, 5), failing, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
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


@pytest.mark.slow
def test_lu_with_partial_pivoting():
    singular = jnp.array([[0.0, 1, 2], [0, 3, 4], [0, 5, 6]])

    def factors(x, wide, tall, singular):
        return [lax.linalg.lu(a) for a in (x, wide, tall, singular)], jnp.linalg.det(singular)

    assert_agrees(
        factors, _normal(2, 5, 5), _normal(3, 5), _normal(5, 3), singular, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_solvers():
    def solutions(a, b):
        return jnp.linalg.inv(a), jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)

    assert_agrees(solutions, _normal(2, 4, 4), _normal(2, 4, 3), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5), (1, 1)])
def test_qr(shape):
    def factors(x):
        return [jnp.linalg.qr(x, mode=mode) for mode in ("reduced", "complete", "r")]

    assert_agrees(factors, _normal(*shape), rtol=1e-4, atol=1e-5)


def test_reductions_to_hessenberg_and_tridiagonal_form():
    def reductions(x):
        tridiagonal = [lax.linalg.tridiagonal(x, lower=lower) for lower in (True, False)]
        return lax.linalg.hessenberg(x), tridiagonal

    assert_agrees(reductions, _normal(5, 5), rtol=1e-4, atol=1e-5)


def test_tridiagonal_solve():
    diagonals = [_normal(3, 6, seed=seed) for seed in range(3)]
    diagonals[1] = diagonals[1].at[2].set(0).at[:, 1].divide(8)  # rows change places; one singular
    assert_agrees(
        lax.linalg.tridiagonal_solve, *diagonals, _normal(3, 6, 2, seed=3), rtol=1e-3, atol=1e-4
    )


def test_matrices_without_elements():
    def factors(x, y):
        return jnp.linalg.cholesky(x), jnp.linalg.qr(y), jnp.linalg.inv(x), jnp.linalg.eigh(x[0])

    assert_agrees(factors, jnp.zeros((2, 0, 0)), jnp.zeros((0, 3)))


def test_factorizations_of_nothing_are_left_out():
    module = import_stablehlo(export(jnp.linalg.eigh, jnp.zeros((0, 0))))
    assert {name.name_hint.rstrip("1") for name in module.get_global_vars()} == {"main", "empty"}


def test_custom_calls_without_a_lowering_are_named():
    def function(x):
        return jnp.linalg.eigvals(x), lax.linalg.schur(x)

    with pytest.raises(UnsupportedOpError, match=r"lapack_sgeev_ffi.*: .*eigh") as caught:
        import_stablehlo(export(function, _normal(3, 3)))
    assert "lapack_sgees_ffi" in str(caught.value)


@pytest.mark.slow
def test_annotations_are_passed_over():
    mesh = jax.make_mesh((1,), ("x",), (jax.sharding.AxisType.Auto,))

    def constrained(x):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        return lax.with_sharding_constraint(x, sharding) + 1

    assert_agrees(constrained, _normal(2, 3))


@pytest.mark.slow
def test_symmetric_eigenvectors_have_the_signs_of_lapack():
    def decompositions(x, y):
        return jnp.linalg.eigh(x), jnp.linalg.eigh(y, UPLO="U"), jnp.linalg.eigvalsh(-x)

    x = _definite(2, 6, 6).at[1, 2:].set(0).at[1, :, 2:].set(0)  # eigenvalues of zero
    assert_agrees(decompositions, x, _normal(4, 4), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_symmetric_decompositions_of_larger_matrices():
    def rebuilt(x):
        values, vectors = jnp.linalg.eigh(x)
        return values, (vectors * values) @ vectors.T, vectors.T @ vectors

    failing = jnp.full((2, 2), jnp.nan)
    assert_agrees(lambda x, y: (rebuilt(x), jnp.linalg.eigh(y)), _definite(40, 40), failing,
                  rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5, 5), (2, 7, 3), (9, 12), (3, 8)])
def test_singular_vectors_have_the_signs_of_lapack(shape):
    def decompositions(x):
        thin = jnp.linalg.svd(x, full_matrices=False)
        return jnp.linalg.svd(x), thin, jnp.linalg.svd(x, compute_uv=False)

    assert_agrees(decompositions, _normal(*shape), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_singular_values_of_deficient_matrices():
    def values(*matrices):
        return [(jnp.linalg.svd(x, compute_uv=False), jnp.linalg.pinv(x)) for x in matrices]

    rank_one = jnp.outer(jnp.arange(1.0, 6), jnp.arange(1.0, 4))
    assert_agrees(
        values, rank_one, jnp.zeros((3, 3)), jnp.eye(4), jnp.full((2, 2), jnp.nan),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip
