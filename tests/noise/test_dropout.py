"""Dropout by sampling and in one moment pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.nn import MLP
from jaxeff.noise import Additive, Dropout, Mixed, Multiplicative, UniformNoise, monte_carlo

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (5, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 3), jax.nn.silu, rngs=nnx.Rngs(0)))
N = 20_000


def sampled(f, spec, params, x, n=N):
    g = jaxeff.noisy(f, spec)
    draws = jax.jit(jax.vmap(lambda k: g(k, params, x)))(jax.random.split(KEY, n))
    return np.asarray(draws, np.float64)


def agrees(moments, draws):
    """Means and variances within four standard errors."""
    n = len(draws)
    centred = (draws - draws.mean(0)) ** 2
    assert (np.abs(draws.mean(0) - moments.mean) < 4 * draws.std(0) / np.sqrt(n) + 1e-6).all()
    assert (np.abs(centred.mean(0) - moments.var) < 4 * centred.std(0) / np.sqrt(n) + 1e-6).all()


def test_values_are_kept_or_zero():
    x = jnp.arange(1.0, 10_001.0)
    y = np.asarray(Dropout(0.3).perturb(KEY, x))
    kept = y != 0
    np.testing.assert_allclose(y[kept], np.asarray(x)[kept] / 0.7, rtol=1e-6)
    assert abs(kept.mean() - 0.7) < 4 * np.sqrt(0.3 * 0.7 / 10_000)
    np.testing.assert_array_equal(Dropout(0.0).perturb(KEY, x), x)


def test_is_made_inside_of_a_program():
    dropped = jax.jit(lambda x: Dropout(0.3).perturb(KEY, x))(X)
    np.testing.assert_array_equal(dropped, Dropout(0.3).perturb(KEY, X))
    with pytest.raises(ValueError, match=r"Dropout\.rate must be at least 0 and below 1"):
        jax.jit(lambda x: Dropout(1.0).perturb(KEY, x))(X)


def test_channels_are_dropped_as_a_whole():
    y = np.asarray(Dropout(0.5, per="channel").perturb(KEY, jnp.ones((4, 3, 3, 16))))
    assert ((y == 0).all((1, 2)) | (y == 2).all((1, 2))).all()
    assert 0 < (y == 0).mean() < 1


@pytest.mark.oracle
@pytest.mark.parametrize(
    "spec",
    [
        {"silu": Dropout(0.15)},
        {"input": Dropout(0.3)},
        {"fc2": Dropout(0.4, per="sample")},
        {"fc2": Dropout(0.2, at="weights")},
        {"fc2": Dropout(0.2, at="input"), "fc1": None},
        {"fc2": Mixed(0.1, 0.2, "add_mul")},
        {"silu": Multiplicative(0.3), "fc2": Additive(jnp.array([0.1, 0.2, 0.3]))},
    ],
    ids=str,
)
def test_moments_are_those_of_samples(spec):
    # Linear in what is random; a SiLU of dropped inputs is integrated under a normal instead.
    f = F
    if "input" in spec:
        f = lambda params, x: x @ params["fc1"]["kernel"]  # noqa: E731
    agrees(
        jax.jit(jaxeff.moments(f, noise=spec, method="diagonal"))(PARAMS, X),
        sampled(f, spec, PARAMS, X),
    )


def convolutional(params, x):
    hidden = jax.nn.relu(jax.lax.conv_general_dilated(
        x, params["conv"]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ))  # fmt: skip
    return hidden.reshape(len(x), -1) @ params["fc"]["kernel"]


@pytest.mark.slow
def test_moments_of_whole_channels_need_their_correlations():
    keys = jax.random.split(KEY, 3)
    params = {
        "conv": {"kernel": jax.random.normal(keys[0], (3, 3, 1, 4))},
        "fc": {"kernel": jax.random.normal(keys[1], (64, 3)) / 8},
    }
    x = jax.random.normal(keys[2], (2, 4, 4, 1))
    spec = {"relu": Dropout(0.25, per="channel")}
    draws = sampled(convolutional, spec, params, x)
    agrees(jax.jit(jaxeff.moments(convolutional, noise=spec, method="linear"))(params, x), draws)
    apart = jaxeff.moments(convolutional, noise=spec, method="diagonal")(params, x)
    with pytest.raises(AssertionError):
        agrees(apart, draws)
    with pytest.raises(jaxeff.moment_propagation.MomentsError, match="independence"):
        jaxeff.moments(convolutional, noise=spec, strict=True, method="diagonal")(params, x)


@pytest.mark.slow
def test_dropout_and_random_weights_in_one_pass():
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, jnp.full_like(w, 0.02)), PARAMS)
    spec = {"fc1": Dropout(0.2)}

    def linear(params, x):
        hidden = x @ params["fc1"]["kernel"]
        return hidden @ params["fc2"]["kernel"]

    moments = jax.jit(jaxeff.moments(linear, noise=spec, method="diagonal"))(posterior, X)
    g = jaxeff.noisy(linear, spec)

    def draw(key):
        leaves, tree = jax.tree.flatten(posterior, is_leaf=lambda v: hasattr(v, "sample"))
        keys = jax.random.split(key, len(leaves) + 1)
        drawn = [leaf.sample(k) for leaf, k in zip(leaves, keys[1:], strict=True)]
        return g(keys[0], jax.tree.unflatten(tree, drawn), X)

    agrees(moments, np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(KEY, N)), np.float64))


def test_rates_are_swept_as_one_program():
    rates = jnp.array([0.0, 0.1, 0.5])
    run = jax.jit(
        jax.vmap(
            lambda r: (
                jaxeff.moments(F, noise={"silu": Dropout(r)}, method="diagonal")(PARAMS, X).var
            )
        )
    )
    variances = run(rates)
    np.testing.assert_array_equal(variances[0], np.zeros((5, 3)))
    np.testing.assert_allclose(variances[2], 9 * variances[1], rtol=1e-5)  # p / (1 - p)


@pytest.mark.oracle
def test_monte_carlo_dropout_in_chunks():
    g = jaxeff.noisy(F, {"silu": Dropout(0.15)})
    together = jax.jit(monte_carlo(g, 6))(KEY, PARAMS, X)
    assert together.shape == (6, 5, 3)
    in_chunks = jax.jit(monte_carlo(g, 6, chunk=4))(KEY, PARAMS, X)
    np.testing.assert_allclose(together, in_chunks, atol=1e-6)
    third = g(jax.random.split(KEY, 6)[3], PARAMS, X)
    np.testing.assert_allclose(together[3], third, atol=1e-6)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        monte_carlo(g, 0)


def test_an_empty_spec_changes_nothing():
    np.testing.assert_array_equal(
        jaxeff.moments(F, noise={}, method="diagonal")(PARAMS, X).mean, F(PARAMS, X)
    )


@pytest.mark.parametrize("rate", [1, 1.0, 1.5, -0.1, float("nan"), jnp.array([0.1, 1.0])])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match=r"Dropout\.rate must be at least 0"):
        Dropout(rate)


def test_what_has_no_moments_is_named():
    with pytest.raises(ValueError, match=r"UniformNoise at silu has no moments.*jaxeff\.noisy"):
        jaxeff.moments(F, noise={"silu": UniformNoise(0.1)}, method="diagonal")(PARAMS, X)
    with pytest.raises(ValueError, match="units of the signal's range"):
        jaxeff.moments(F, noise={"silu": Additive(0.1, relative=True)}, method="diagonal")(
            PARAMS, X
        )

    def recurrent(params, x):
        return jax.lax.scan(lambda h, _: (h @ params["cell"]["kernel"], None), x, length=3)[0]

    with pytest.raises(ValueError, match="cell lies inside a loop"):
        jaxeff.moments(recurrent, noise={"cell": Dropout(0.1)}, method="diagonal")(
            {"cell": {"kernel": jnp.eye(6)}}, X
        )
