import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.interpolate import BSpline

import jaxeff
from jaxeff.bayes import prior_scales
from jaxeff.nn import SplineActivation
from jaxeff.nn.layers._layers import cubic_basis


@pytest.mark.slow
def test_the_basis_is_scipys():
    intervals, (low, high) = 5, (-1.0, 2.0)
    spacing = (high - low) / intervals
    knots = low + spacing * np.arange(-3, intervals + 4)
    x = np.linspace(low, high, 41)[:-1]  # SciPy's last interval is closed on one side only
    expected = BSpline.design_matrix(x, knots, 3).toarray()
    np.testing.assert_allclose(
        cubic_basis(jnp.asarray(x), intervals, (low, high)), expected, atol=2e-6
    )


@pytest.mark.slow
def test_beyond_its_limits_it_is_silu():
    phi = SplineActivation(limits=(-1.0, 1.0), intervals=4, scale=3.0, rngs=nnx.Rngs(0))
    far, near = jnp.array([[-9.0, -2.6, 2.6, 9.0]]), jnp.array([[0.3]])
    np.testing.assert_allclose(phi(far), jax.nn.silu(far), atol=1e-5)
    assert abs(phi(near) - jax.nn.silu(near)).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("features", [None, 3])
def test_it_learns_a_function_and_can_be_one_for_each_unit(features):
    phi = SplineActivation(features, intervals=16, scale=0.0, rngs=nnx.Rngs(0))
    f, params = jaxeff.functional(phi)
    x = jnp.tile(jnp.linspace(-3, 3, 60)[:, None], (1, 3))
    shifts = jnp.zeros(3) if features is None else jnp.array([0.0, 0.5, 1.0])
    wanted = jnp.sin(2 * x + jax.lax.broadcast_to_rank(shifts, x.ndim))
    # Linear in its parameters, so least squares finds them.
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    design = jax.jacobian(lambda p: f(unravel(p), x).ravel())(flat)
    solution = jnp.linalg.lstsq(design, wanted.ravel() - f(unravel(0 * flat), x).ravel())[0]
    # A cubic spline's error is about h^4 / 384 of the fourth derivative: 0.0026 here.
    assert jnp.abs(f(unravel(solution), x) - wanted).max() < 0.01
    assert params["coefficients"].shape == ((19,) if features is None else (19, 3))


@pytest.mark.slow
def test_its_coefficients_are_parameters_of_the_network():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.fc = nnx.Linear(2, 4, rngs=rngs)
            self.phi = SplineActivation(rngs=rngs)

        def __call__(self, x):
            return self.phi(self.fc(x))

    f, params = jaxeff.functional(Net(nnx.Rngs(0)))
    assert set(prior_scales(1.0, params)) == {
        "fc/bias",
        "fc/kernel",
        "phi/base",
        "phi/coefficients",
    }
    x = jax.random.normal(jax.random.key(0), (20, 2))
    gradient = jax.grad(lambda p: jnp.square(f(p, x)).sum())(params)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_impossible_splines_are_named():
    with pytest.raises(ValueError, match="rising limits"):
        SplineActivation(limits=(1.0, 1.0), rngs=nnx.Rngs(0))
