"""The repulsive field against an own derivation by autograd."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.ensembles import RBF, repulsion

POINTS = jax.random.normal(jax.random.key(0), (5, 7))
KERNELS = [
    RBF(), RBF(0.7), RBF(power=1), RBF(2.0, power=1), RBF(norm=1), RBF(3.0, norm=1, power=1)
]  # fmt: skip


def width_of(points, kernel):
    """The median over pairs of different members, by hand."""
    if kernel.bandwidth is not None:
        return kernel.bandwidth
    n = len(points)
    distances = [
        np.linalg.norm(points[i] - points[j], kernel.norm) ** kernel.power
        for i in range(n) for j in range(i)
    ]  # fmt: skip
    return np.median(distances) / np.log(n)


def derived(points, kernel, method):
    """-sum_j grad_i k / sum_j k, with the gradient of each pair by autograd."""
    width = float(width_of(np.asarray(points), kernel))

    def k(a, b):
        difference = a - b
        if kernel.norm == 1:
            length = jnp.abs(difference).sum()
        else:
            length = jnp.sqrt((difference**2).sum())
        return jnp.exp(-(length**kernel.power) / width)

    field = []
    for i, mine in enumerate(points):
        others = [points[j] for j in range(len(points)) if j != i]  # its own gradient is zero
        gradient = sum(jax.grad(k)(mine, other) for other in others)
        total = 1 + sum(k(mine, other) for other in others)
        field.append(-gradient / (total if method == "wgd" else float(len(points))))
    return jnp.stack(field)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("method", ["wgd", "svgd"])
def test_the_field_is_that_of_autograd(kernel, method):
    force = repulsion(POINTS, kernel, method)
    np.testing.assert_allclose(force.field, derived(POINTS, kernel, method), atol=1e-5)
    far = repulsion(POINTS + 100.0, kernel, method)
    np.testing.assert_allclose(far.field, force.field, atol=1e-4)


@pytest.mark.parametrize("method", ["wgd", "svgd"])
def test_the_potential_falls_along_the_field(method):
    kernel = RBF(3.0)
    force = repulsion(POINTS, kernel, method)

    def potential(mine, i):
        difference = mine[None] - POINTS
        k = jnp.exp(-(difference**2).sum(1) / 3.0)
        return jnp.log(k.sum()) if method == "wgd" else k.sum() / 5

    total = sum(potential(POINTS[i], i) for i in range(5))
    np.testing.assert_allclose(force.potential, total, rtol=1e-5)
    for i in range(5):
        others = jax.grad(lambda mine, i=i: potential(mine, i))(POINTS[i])
        np.testing.assert_allclose(force.field[i], -others, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("method", ["wgd", "svgd"])
def test_identical_members_feel_nothing_and_stay_finite(kernel, method):
    same = repulsion(jnp.ones((4, 3)), kernel, method)
    np.testing.assert_array_equal(same.field, np.zeros((4, 3)))
    assert jnp.isfinite(same.potential)
    pair = jnp.concatenate([jnp.zeros((2, 3)), jnp.ones((2, 3))])
    force = repulsion(pair, kernel, method)
    assert np.isfinite(force.field).all()
    assert (force.field[0] < 0).all()
    assert (force.field[3] > 0).all()


def test_the_median_makes_the_field_follow_the_scale():
    force, large = repulsion(POINTS, RBF(), "wgd"), repulsion(10.0 * POINTS, RBF(), "wgd")
    np.testing.assert_allclose(large.kernel, force.kernel, rtol=1e-4)
    np.testing.assert_allclose(10.0 * large.field, force.field, rtol=1e-3)


def test_what_a_kernel_refuses():
    with pytest.raises(ValueError, match=r"RBF\.bandwidth must be positive"):
        RBF(0.0)
    with pytest.raises(ValueError, match=r"RBF\.norm must be one of 1, 2"):
        RBF(norm=3)
