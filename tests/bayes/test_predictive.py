import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.bayes import Draws, check_posterior, draw, predict, sample, to_gaussians
from jaxeff.bayes.posteriors import named_leaves
from jaxeff.core import functional
from jaxeff.moment_propagation import Gaussian, is_gaussian


class Net(nnx.Module):
    def __init__(self, width, rngs):
        self.first = nnx.Linear(3, width, rngs=rngs)
        self.last = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


def network(width=4):
    f, params = functional(Net(width, nnx.Rngs(0)))
    return f, params, jax.tree.map(lambda p: Gaussian(p, 0.1 + jnp.abs(p)), params)


X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)


@pytest.mark.slow
def test_each_sample_is_f_at_its_draw():
    f, _, posterior = network()
    logits = predict(jax.random.key(0), f, posterior, X, samples=7)
    weights = sample(jax.random.key(0), posterior, 7)
    assert logits.shape == (7, 5, 2)
    expected = jnp.stack([f(jax.tree.map(lambda w, i=i: w[i], weights), X) for i in range(7)])
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2, 7, 100])
def test_chunks_change_nothing(chunk):
    f, _, posterior = network()
    one = predict(jax.random.key(0), f, posterior, X, samples=7)
    chunked = predict(jax.random.key(0), f, posterior, X, samples=7, chunk=chunk)
    np.testing.assert_allclose(chunked, one, rtol=1e-5, atol=1e-6)


def test_moments_of_a_linear_function():
    """Logits of a linear function are Gaussian with known moments."""
    keys = jax.random.split(jax.random.key(1), 2)
    posterior = {
        "kernel": Gaussian(jax.random.normal(keys[0], (3, 2)), jnp.full((3, 2), 0.3)),
        "bias": Gaussian(jnp.array([1.0, -1.0]), jnp.array([0.2, 0.1])),
    }
    f = lambda p, x: x @ p["kernel"] + p["bias"]  # noqa: E731
    n = 10_000
    logits = predict(keys[1], f, posterior, X, samples=n, chunk=n)
    mean = f(jax.tree.map(lambda g: g.mean, posterior, is_leaf=is_gaussian), X)
    var = f({"kernel": posterior["kernel"].var, "bias": posterior["bias"].var}, X**2)
    assert (np.abs(logits.mean(0) - mean) <= 5 * np.sqrt(var / n)).all()
    assert (np.abs(logits.var(0) - var) <= 5 * var * np.sqrt(2 / n)).all()


def test_sites_draw_independent_noise():
    posterior = {name: Gaussian(jnp.zeros(1000), jnp.ones(1000)) for name in "ab"}
    drawn = draw(jax.random.key(2), posterior)
    assert abs(float(jnp.corrcoef(drawn["a"], drawn["b"])[0, 1])) < 5 / np.sqrt(1000)


def test_plain_arrays_stay():
    posterior = {"a": Gaussian(jnp.zeros(2), jnp.ones(2)), "b": jnp.arange(3.0)}
    drawn = sample(jax.random.key(3), posterior, 4)
    np.testing.assert_array_equal(drawn["b"], np.tile(np.arange(3.0), (4, 1)))
    assert (drawn["a"][0] != drawn["a"][1]).all()


@pytest.mark.slow
def test_jit_vmap_and_gradient():
    posterior = {"kernel": Gaussian(jnp.ones((3, 2)), jnp.full((3, 2), 0.5))}
    f = lambda p, x: jnp.tanh(x @ p["kernel"])  # noqa: E731
    run = lambda key, q, x: predict(key, f, q, x, samples=5, chunk=2)  # noqa: E731
    key = jax.random.key(4)
    expected = run(key, posterior, X)
    np.testing.assert_allclose(jax.jit(run)(key, posterior, X), expected, rtol=1e-6)
    mapped = jax.vmap(run, (None, None, 0), 1)(key, posterior, X[:, None])
    np.testing.assert_allclose(mapped[:, :, 0], expected, rtol=1e-5, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda q: run(key, q, X).sum()))(posterior)["kernel"]
    for leaf in (gradient.mean, gradient.var):
        assert (jnp.isfinite(leaf) & (leaf != 0)).all()


@pytest.mark.slow
def test_posterior_of_another_model():
    f, params, _ = network()
    _, _, other = network(width=6)
    with pytest.raises(ValueError, match=r"parameter 'first/bias' must be float32\[4\]"):
        predict(jax.random.key(0), f, other, X)
    with pytest.raises(ValueError, match=r"first/(kernel|bias) has shape .*6.*, the model's"):
        check_posterior(other, params)


def test_check_posterior():
    _, params, posterior = network()
    check_posterior(posterior, params)
    with pytest.raises(ValueError, match="it has no last/bias"):
        check_posterior({**posterior, "last": {"kernel": posterior["last"]["kernel"]}}, params)
    with pytest.raises(ValueError, match="the model has no extra"):
        check_posterior({**posterior, "extra": posterior["last"]["bias"]}, params)
    with pytest.raises(TypeError, match="holds no Gaussian"):
        check_posterior(params, params)


def test_bad_input():
    f, params, posterior = network()
    with pytest.raises(TypeError, match="holds no Gaussian: pass the `posterior` of a result"):
        predict(jax.random.key(0), f, params, X)
    with pytest.raises(ValueError, match="samples must be at least 1, but is 0"):
        predict(jax.random.key(0), f, posterior, X, samples=0)


@pytest.mark.slow
def test_draws():
    f, params, posterior = network()
    flat = named_leaves(sample(jax.random.key(5), posterior, 6))
    random = {path: a.reshape(2, 3, *a.shape[1:]) for path, a in flat.items() if "first" in path}
    draws = Draws(random, params)
    everything = predict(jax.random.key(0), f, draws, X, chunk=4)
    assert everything.shape == (6, 5, 2)
    np.testing.assert_allclose(everything[4], f(draws.at(4), X), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(draws.at(4)["first"]["bias"], random["first/bias"][1, 1])
    some = sample(jax.random.key(1), draws, 4)["first"]["bias"]
    assert len({tuple(row) for row in some.tolist()}) == 4
    gaussians = to_gaussians(draws)
    np.testing.assert_allclose(gaussians["first"]["bias"].var, flat["first/bias"].var(0), rtol=1e-5)
    assert gaussians["last"]["bias"] is params["last"]["bias"]
    check_posterior(draws, params)
    with pytest.raises(ValueError, match=r"holds 6 draws .* fewer than the 7 asked for"):
        predict(jax.random.key(0), f, draws, X, samples=7)
    with pytest.raises(ValueError, match="first/bias has shape"):
        check_posterior(draws, network(width=6)[1])
