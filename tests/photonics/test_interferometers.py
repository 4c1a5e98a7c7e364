"""Meshes of interferometers: any unitary matrix, their errors' first-order law, weights of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import unitary_group

from jaxeff.nn import small_classifier
from jaxeff.noise import noisy
from jaxeff.photonics import InterferometerMesh, mesh_matrix, mesh_phases
from jaxeff.photonics._interferometers import _plan

N = 6
KEY = jax.random.key(0)


@pytest.mark.parametrize("n", [1, 2, N])
def test_a_mesh_of_as_many_columns_as_waveguides_is_any_unitary_matrix(n):
    unitary = unitary_group.rvs(n, random_state=n) if n > 1 else np.exp([[0.3j]])
    phases = mesh_phases(jnp.asarray(unitary))
    assert phases.between.shape == phases.front.shape == (n * (n - 1) // 2,)
    np.testing.assert_allclose(mesh_matrix(phases), unitary, atol=3e-6)
    assert len(_plan(n).at) == (n if n > 1 else 0) - (n == 2)  # two waveguides need one


def by_hand(phases, splitters, uppers):
    """The product of matrices of all waveguides, one for each part that light passes."""
    n = len(phases.output)
    total = np.eye(n, dtype=complex)

    def passed(part, upper):
        embedded = np.eye(n, dtype=complex)
        embedded[upper : upper + 2, upper : upper + 2] = part
        return embedded @ total

    for between, front, (first, second), upper in zip(
        phases.between, phases.front, splitters, uppers, strict=True
    ):
        for part in (
            np.diag([np.exp(1j * front), 1]),
            *(
                p
                for angle, shift in ((first, between), (second, 0.0))
                for p in (
                    [
                        [np.cos(np.pi / 4 + angle), 1j * np.sin(np.pi / 4 + angle)],
                        [1j * np.sin(np.pi / 4 + angle), np.cos(np.pi / 4 + angle)],
                    ],
                    np.diag([np.exp(1j * shift), 1]),
                )
            ),
        ):
            total = passed(part, upper)
    return np.exp(1j * np.asarray(phases.output))[:, None] * total


def test_splitters_that_are_off_are_those_of_the_product_of_all_parts():
    phases = mesh_phases(jnp.asarray(unitary_group.rvs(N, random_state=1)))
    splitters = 0.1 * jax.random.normal(KEY, (N * (N - 1) // 2, 2))
    plan = _plan(N)
    known = jax.tree.map(np.asarray, phases)
    expected = by_hand(known, np.asarray(splitters), plan.nulled.upper[plan.order])
    ours = mesh_matrix(phases, splitters)
    np.testing.assert_allclose(ours, expected, atol=3e-6)
    np.testing.assert_allclose(ours @ ours.conj().T, np.eye(N), atol=3e-6)


def test_small_errors_add_up_over_all_phases_and_splitters():
    """|dU|^2 is s^2 for a phase, in whose waveguide one unit of power is, 2 s^2 for a splitter."""
    unitary = jnp.asarray(unitary_group.rvs(N, random_state=2))
    phases, size = mesh_phases(unitary), 1e-2

    def off(key):
        a, b, c, d = jax.random.split(key, 4)
        drawn = [
            one + size * jax.random.normal(k, one.shape)
            for one, k in zip(phases, (a, b, c), strict=True)
        ]
        splitters = size * jax.random.normal(d, (N * (N - 1) // 2, 2))
        both = (
            mesh_matrix(type(phases)(*drawn)), mesh_matrix(phases, splitters),
        )  # fmt: skip
        return jnp.stack([jnp.sum(jnp.abs(one - unitary) ** 2) for one in both])

    squares = np.asarray(jax.jit(jax.vmap(off))(jax.random.split(KEY, 200))) / size**2
    expected = [N**2, 2 * N * (N - 1)]
    error = 4 * squares.std(0, ddof=1) / np.sqrt(len(squares))
    # Of second order are terms of the size of the squared errors themselves.
    assert (np.abs(squares.mean(0) - expected) < error + 1e-2 * np.array(expected)).all()


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 2, 2, 3), (4,)])
def test_weights_without_errors_keep_their_bits_and_their_gradient(shape):
    w = jax.random.normal(KEY, shape)
    np.testing.assert_array_equal(InterferometerMesh().perturb(KEY, w), w)
    model = InterferometerMesh(phase=0.1, splitter=0.1, device=3)
    assert 0.01 < float(jnp.linalg.norm(model.perturb(KEY, w) - w) / jnp.linalg.norm(w)) < 1
    gradient = jax.grad(lambda w: model.perturb(KEY, w).sum())(w)
    np.testing.assert_array_equal(gradient, jnp.ones_like(w))


@pytest.mark.slow
def test_a_device_is_the_same_in_every_call():
    f, params, (x, _) = small_classifier(4)
    mesh = jax.jit(noisy(f, {"fc*": InterferometerMesh(phase=0.05)}))
    first, again = (mesh(jax.random.key(i), params, x) for i in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != f(params, x)).any()


def test_what_is_no_square_matrix_is_refused():
    with pytest.raises(ValueError, match="square"):
        mesh_phases(jnp.ones((2, 3)))
