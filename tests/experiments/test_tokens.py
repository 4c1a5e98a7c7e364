"""Ways to be unsure of tokens that train nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from experiments.beyond.tokens import one_pass
from jaxeff import Gaussian


@pytest.mark.parametrize("rank", [2, 3])
def test_noise_moves_an_update_alike_in_all_its_directions(rank):
    """The mean update stays; its noise is that of the projection on the rows of `b`."""
    rng = np.random.default_rng(rank)
    a, b = rng.normal(size=(1, 7, 3)), rng.normal(size=(1, 3, 5))
    b[:, rank:] = 0  # a direction that training has left at zero moves nothing
    adapters = {"w": {"a": jnp.float32(a), "b": jnp.float32(b)}}
    random = one_pass.with_noise(adapters, 0.3)["w"]
    mean, var = (np.asarray(part, np.float64)[0] for part in (random["a"].mean, random["a"].var))
    factor = np.asarray(random["b"], np.float64)[0]
    np.testing.assert_allclose(mean @ factor, (a @ b)[0], atol=1e-5)
    # Entries of a row of the update: b' diag(var) b', for independent entries of the first factor.
    covariance = np.einsum("ik,kj,kl->ijl", var, factor, factor)
    expected = 0.3**2 * np.linalg.pinv(b[0]) @ b[0]
    np.testing.assert_allclose(covariance, np.broadcast_to(expected, covariance.shape), atol=1e-5)


def test_the_largest_noise_raises_the_loss_by_the_tolerance():
    std = one_pass.largest_noise(lambda s: jnp.where(s < 3, 2 * (1 + s**2), jnp.nan), 0.04)
    assert std == pytest.approx(0.2, rel=1e-3)
    assert std <= 0.2 * (1 + 1e-6)


def test_norms_of_gradients_are_the_delta_method_with_variances_of_one():
    params = {"embed": jax.random.normal(jax.random.key(0), (6, 4)), "out": jnp.eye(4, 6)}
    x = jnp.array([[1, 4, 2]])

    def f(params, x):
        return jnp.cumsum(params["embed"][x], 1) @ params["out"]

    said = jax.jit(one_pass.gradient_norms(f))(params, x)
    logs = jax.nn.log_softmax(f(params, x))
    np.testing.assert_allclose(said.logs, logs, atol=1e-6)

    def likeliest(params):
        probs = jax.nn.softmax(f(params, x))
        return jnp.take_along_axis(probs, logs.argmax(-1)[..., None], -1)[0, :, 0]

    posterior = jax.tree.map(lambda w: Gaussian(w, jnp.ones_like(w)), params)
    expected = jaxeff.moments(likeliest, method="linear")(posterior)
    np.testing.assert_allclose(said.epistemic[0], expected.var, rtol=1e-4)
    p = expected.mean
    np.testing.assert_allclose(said.total[0], p * (1 - p) + expected.var, rtol=1e-4)
