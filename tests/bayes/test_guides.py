"""Posteriors of NumPyro and Pyro keep their means and variances on the way to the moment pass."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro import handlers
from numpyro.infer import autoguide

import jaxeff
from jaxeff.bayes import from_numpyro, from_pyro
from jaxeff.moment_propagation import Gaussian
from jaxeff.nn import MLP

X = jax.random.normal(jax.random.key(5), (4, 3))
SHAPES = {"fc1/kernel": (3, 3), "fc1/bias": (3,), "fc2/kernel": (3, 2), "fc2/bias": (2,)}


def network(params, x):
    hidden = x @ params["fc1"]["kernel"] + params["fc1"]["bias"]
    return jnp.tanh(hidden) @ params["fc2"]["kernel"] + params["fc2"]["bias"]


def model(x, noise=False):
    sites = {
        name: numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))
        for name, shape in SHAPES.items()
    }
    nested = {layer: {leaf: sites[f"{layer}/{leaf}"] for leaf in ("kernel", "bias")}
              for layer in ("fc1", "fc2")}  # fmt: skip
    scale = numpyro.sample("noise", dist.HalfNormal(1.0)) if noise else 1.0
    numpyro.sample("y", dist.Normal(network(nested, x), scale).to_event(2), obs=jnp.zeros((4, 2)))


def called(kind, **options):
    """A guide with random parameters, as a training would leave them."""
    guide = kind(lambda x: model(x, **options))
    with handlers.trace() as trace, handlers.seed(rng_seed=0):
        guide(X)
    shapes = {n: np.shape(s["value"]) for n, s in trace.items() if s["type"] == "param"}
    draws = {}
    for i, (name, shape) in enumerate(shapes.items()):
        value = jax.random.normal(jax.random.key(i), shape)
        if "tril" in name:
            value = jnp.tril(value, -1) * 0.3 + jnp.diag(0.5 + jnp.abs(jnp.diag(value)))
        elif "scale" in name:
            value = 0.1 + jnp.abs(value)
        draws[name] = value
    return guide, draws


KINDS = [
    (autoguide.AutoNormal, {}),
    (autoguide.AutoDiagonalNormal, {}),
    (autoguide.AutoMultivariateNormal, {"diagonal": True}),
    (autoguide.AutoLowRankMultivariateNormal, {"diagonal": True}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_means_and_variances_are_those_of_the_guides_draws(kind, options):
    guide, params = called(kind)
    posterior = from_numpyro(guide, params, **options)
    number = 20_000
    draws = guide.sample_posterior(jax.random.key(9), params, sample_shape=(number,))
    for name in SHAPES:
        layer, leaf = name.split("/")
        gaussian, samples = posterior[layer][leaf], np.asarray(draws[name])
        # Five standard errors of a mean and of a variance of so many draws.
        error = np.sqrt(gaussian.var / number)
        assert (np.abs(samples.mean(0) - gaussian.mean) < 5 * error).all()
        spread = samples.var(0) / np.asarray(gaussian.var)
        np.testing.assert_allclose(spread, 1, atol=5 * (2 / number) ** 0.5)


def test_a_point_stays_a_point():
    guide, params = called(autoguide.AutoDelta, noise=True)
    point = from_numpyro(guide, params, ignore=["noise"])
    np.testing.assert_array_equal(point["fc1"]["kernel"], params["fc1/kernel_auto_loc"])
    assert network(point, X).shape == (4, 2)


def test_the_moment_pass_takes_what_was_read():
    guide, params = called(autoguide.AutoNormal)
    small = {n: v * 0.1 if "scale" in n else v for n, v in params.items()}
    gaussian = jaxeff.moments(network)(from_numpyro(guide, small), X)
    draws = guide.sample_posterior(jax.random.key(2), small, sample_shape=(4000,))
    nested = {layer: {leaf: draws[f"{layer}/{leaf}"] for leaf in ("kernel", "bias")}
              for layer in ("fc1", "fc2")}  # fmt: skip
    logits = np.asarray(jax.vmap(network, (0, None))(nested, X))
    error = logits.std(0) / 4000**0.5
    # Six errors, and what the pass neglects at so small a spread.
    assert (np.abs(logits.mean(0) - gaussian.mean) < 6 * error + 0.01).all()


def test_structure_is_that_of_the_network_that_is_given():
    net, like = jaxeff.functional(MLP((3, 3, 2), rngs=nnx.Rngs(0)))
    guide, params = called(autoguide.AutoNormal)
    posterior = from_numpyro(guide, params, like)
    assert jax.tree.structure(posterior, is_leaf=lambda x: isinstance(x, Gaussian)) == (
        jax.tree.structure(like)
    )
    # A square kernel is not transposed: the site's name says that it is Flax's.
    np.testing.assert_array_equal(posterior["fc1"]["kernel"].mean, params["fc1/kernel_auto_loc"])
    np.testing.assert_allclose(
        posterior["fc1"]["kernel"].var, params["fc1/kernel_auto_scale"] ** 2, rtol=1e-6
    )
    assert jaxeff.moments(net)(posterior, X).mean.shape == (4, 2)


def test_pyros_layout_is_turned():
    _, like = jaxeff.functional(MLP((3, 3, 2), rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (3, 3), "fc1.bias": (3,), "fc2.weight": (2, 3), "fc2.bias": (2,)}
    store = {}
    for name, shape in shapes.items():
        store[f"AutoNormal.locs.{name}"] = rng.normal(size=shape).astype(np.float32)
        store[f"AutoNormal.scales.{name}"] = rng.uniform(0.1, 1, shape).astype(np.float32)
    posterior = from_pyro(store, like)
    for layer in ("fc1", "fc2"):
        kernel = posterior[layer]["kernel"]
        np.testing.assert_array_equal(kernel.mean, store[f"AutoNormal.locs.{layer}.weight"].T)
        expected = store[f"AutoNormal.scales.{layer}.weight"].T ** 2
        np.testing.assert_allclose(kernel.var, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="isn't positive"):
        from_pyro({**store, "AutoNormal.scales.fc1.bias": np.array([-3.0, 1, 1])}, like)
    with pytest.raises(ValueError, match=r"\['fc2.bias'\] have only one"):
        from_pyro({n: v for n, v in store.items() if n != "AutoNormal.scales.fc2.bias"}, like)


def test_what_is_no_gaussian_is_refused_with_a_way_out():
    guide, params = called(autoguide.AutoNormal, noise=True)
    with pytest.raises(ValueError, match=r"'noise' is constrained.*ignore=\['noise'\]"):
        from_numpyro(guide, params)
    assert set(from_numpyro(guide, params, ignore=["noise"])) == {"fc1", "fc2"}
    with pytest.raises(ValueError, match="diagonal=True"):
        from_numpyro(*called(autoguide.AutoMultivariateNormal))
    with pytest.raises(TypeError, match="AutoLaplaceApproximation isn't Gaussian or a point"):
        from_numpyro(*called(autoguide.AutoLaplaceApproximation))
    with pytest.raises(ValueError, match="wasn't called yet"):
        from_numpyro(autoguide.AutoNormal(model), params)
    with pytest.raises(ValueError, match="no 'fc1/bias_auto_loc'"):
        from_numpyro(guide, {}, ignore=["noise", "fc1/kernel"])
