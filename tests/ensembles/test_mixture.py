"""Mixtures of moment passes: parts that sum to the total, against samples; averaging refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.bayes import MixturePosterior, check_posterior, predict, sample, to_gaussians
from jaxeff.ensembles import Members, Mixture, mixture_moments
from jaxeff.nn import MLP
from jaxeff.uncertainty import predictive_entropy

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (5, 4))
F, PARAMS = jaxeff.functional(MLP((4, 8, 6), rngs=nnx.Rngs(0)))


def around(params, var=0.01):
    return jax.tree.map(lambda w: jaxeff.Gaussian(w, jnp.full_like(w, var)), params)


MEMBERS = tuple(
    around(jaxeff.functional(MLP((4, 8, 6), rngs=nnx.Rngs(seed)))[1]) for seed in range(3)
)


@pytest.mark.slow
def test_one_pass_for_each_member():
    mixture = jax.jit(lambda x: mixture_moments(F, MixturePosterior(MEMBERS), x))(X)
    alone = jax.jit(jaxeff.moments(F))
    for i, member in enumerate(MEMBERS):
        out = alone(member, X)
        np.testing.assert_allclose(mixture.members.mean[i], out.mean, atol=1e-6)
        np.testing.assert_allclose(mixture.members.var[i], out.var, rtol=1e-5)
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"*": Members(3)})
    stacked = MixturePosterior(MEMBERS).gaussians()
    together = Mixture(jax.jit(jaxeff.moments(g))(stacked, X))
    np.testing.assert_allclose(together.var, mixture.var, rtol=1e-5)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda w: w.shape, params)


@pytest.mark.slow
def test_parts_sum_to_the_variance_of_draws():
    keys = jax.random.split(KEY, 3)
    members = jaxeff.Gaussian(
        2.0 * jax.random.normal(keys[0], (4, 7)), jax.random.uniform(keys[1], (4, 7))
    )
    mixture, n = Mixture(members), 20_000
    draws = np.asarray(mixture.sample(keys[2], n), np.float64).reshape(4 * n, 7)
    np.testing.assert_allclose(mixture.var, mixture.within + mixture.between, rtol=1e-6)
    centred = (draws - draws.mean(0)) ** 2
    se = centred.std(0) / np.sqrt(4 * n)
    assert (np.abs(centred.mean(0) - mixture.var) < 4 * se).all()
    x = np.linspace(-12, 12, 4001)
    density = np.exp(jax.vmap(mixture.log_prob)(jnp.broadcast_to(x[:, None], (4001, 7))))
    np.testing.assert_allclose(np.trapezoid(density, x, axis=0), np.ones(7), atol=1e-4)
    variance = np.trapezoid(density * (x[:, None] - np.asarray(mixture.mean)) ** 2, x, axis=0)
    np.testing.assert_allclose(variance, mixture.var, rtol=1e-3)


@pytest.mark.oracle
def test_regression_in_closed_form_is_that_of_samples():
    n = 20_000
    mixture = Mixture(jax.jit(jaxeff.moments(lambda p, x: x @ p["w"]))(
        {"w": jaxeff.Gaussian(0.3 * jax.random.normal(KEY, (4, 2)), jnp.full((4, 2), 0.02))}, X
    ))  # fmt: skip
    mixture = Mixture(jax.tree.map(lambda a: jnp.stack([a, 1.5 * a]), mixture.members))
    parts = mixture.regression()
    out = np.asarray(mixture.sample(KEY, n), np.float64)  # [members, samples, batch, 2]
    noise = np.exp(out[..., 1:])
    se = noise.reshape(2 * n, -1).std(0) / np.sqrt(2 * n)
    assert (np.abs(noise.mean((0, 1)) - parts.aleatoric).ravel() < 4 * se).all()
    np.testing.assert_allclose(parts.within[:, 0], mixture.within[:, 0], rtol=1e-6)
    np.testing.assert_allclose(parts.between[:, 0], mixture.between[:, 0], rtol=1e-6)
    np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic, rtol=1e-6)
    with pytest.raises(ValueError, match="even number of outputs"):
        Mixture(jaxeff.Gaussian(jnp.ones((2, 5, 3)), jnp.ones((2, 5, 3)))).regression()


@pytest.mark.slow
def test_entropies_of_classes_have_the_same_three_parts():
    mean = jnp.array([[[5.0, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 5.0, 0], [0, 0, 0], [0, 0, 0]]])
    var = jnp.zeros((2, 3, 3)).at[:, 2].set(9.0)
    parts = Mixture(jaxeff.Gaussian(mean, var)).decompose(KEY, 500)
    assert parts.between[0] > 0.5 > 10 * parts.within[0]  # members disagree
    np.testing.assert_allclose(parts.aleatoric[1], np.log(3), rtol=1e-5)  # all agree on a guess
    assert parts.within[2] > 0.3 > 10 * parts.between[2]  # each is unsure of itself
    np.testing.assert_allclose(parts.total, predictive_entropy(parts.mean[None]), atol=1e-5)


@pytest.mark.slow
def test_draws_take_turns():
    posterior = MixturePosterior(
        tuple(around(p, 0.0) for p in (PARAMS, jax.tree.map(jnp.negative, PARAMS)))
    )
    drawn = sample(KEY, posterior, 4)
    np.testing.assert_array_equal(drawn["fc1"]["kernel"][2], PARAMS["fc1"]["kernel"])
    np.testing.assert_array_equal(drawn["fc1"]["kernel"][3], -PARAMS["fc1"]["kernel"])
    logits = predict(KEY, F, posterior, X, samples=2)
    np.testing.assert_allclose(logits[0], F(PARAMS, X), atol=1e-6)
    check_posterior(posterior, PARAMS)
    plain = MixturePosterior((PARAMS, PARAMS))
    np.testing.assert_allclose(predict(KEY, F, plain, X, samples=2)[1], F(PARAMS, X), atol=1e-6)


def test_averaging_weights_is_refused():
    posterior = MixturePosterior(MEMBERS)
    with pytest.raises(ValueError, match=r"mixture of 3 members has no mean.*mixture_moments"):
        to_gaussians(posterior)
    with pytest.raises(TypeError, match="is a posterior"):
        jaxeff.moments(F)(posterior, X)
    with pytest.raises(ValueError, match="there are no members"):
        MixturePosterior(())
    with pytest.raises(ValueError, match="member 1 has another structure"):
        MixturePosterior((MEMBERS[0], PARAMS))
    with pytest.raises(TypeError, match="takes a MixturePosterior"):
        mixture_moments(F, MEMBERS[0], X)
