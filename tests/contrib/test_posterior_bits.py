"""`posterior_bits`: steps by the divergence that they cost, bits by the signal-to-noise ratio."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import quantized
from jaxeff.contrib import posterior_bits
from jaxeff.moment_propagation import Gaussian, moments

RNG = np.random.default_rng(0)
MEAN = RNG.normal(size=(400, 6)).astype(np.float32)
STD = np.array([0.1, 0.05, 0.02, 0.1, 0.3, 0.01], np.float32) * np.ones((400, 1), np.float32)


def net(params, x):
    return jnp.tanh(x @ params["fc"]["kernel"]) @ params["out"]["kernel"]


def posterior():
    out = Gaussian(jnp.asarray(MEAN[:6, :2]), jnp.full((6, 2), 0.04))
    return {
        "fc": {"kernel": Gaussian(jnp.asarray(MEAN), jnp.asarray(STD**2))},
        "out": {"kernel": out},
    }


@pytest.mark.parametrize("per", ["tensor", "channel", "weight"])
@pytest.mark.parametrize("nats", [1 / 24, 0.005])
def test_rounding_costs_what_is_allowed(per, nats):
    assigned = posterior_bits(posterior(), nats, per)
    after = assigned.posterior["fc"]["kernel"].mean
    divergence = (np.asarray(after, np.float64) - MEAN) ** 2 / (2 * STD.astype(np.float64) ** 2)
    # Errors are uniform in a step where it is small against the spread of the means.
    error = divergence.std() / np.sqrt(divergence.size)
    assert abs(divergence.mean() - nats) < 5 * error
    np.testing.assert_array_equal(assigned.posterior["fc"]["kernel"].var, STD**2)


def test_the_step_of_alike_weights_is_their_deviation():
    leaf = Gaussian(jnp.asarray(MEAN), jnp.full(MEAN.shape, 0.09))
    assigned = posterior_bits({"w": leaf})
    np.testing.assert_allclose(assigned.steps["w"], 0.3, rtol=1e-6)
    largest = np.rint(np.abs(MEAN).max() / 0.3)
    assert assigned.bits["w"] == np.ceil(np.log2(2 * largest + 2))
    assert assigned.size == 2400 * assigned.bits["w"] + 32
    # Half the deviation is a bit more.
    finer = posterior_bits({"w": Gaussian(leaf.mean, leaf.var / 4)})
    assert finer.bits["w"] == assigned.bits["w"] + 1


def test_channels_and_weights_have_bits_of_their_own():
    assigned = posterior_bits(posterior(), per="channel")
    steps = assigned.steps["fc/kernel"]
    np.testing.assert_allclose(steps, STD[:1], rtol=1e-5)
    codes = np.rint(np.abs(MEAN) / STD).max(0, keepdims=True)
    np.testing.assert_array_equal(assigned.bits["fc/kernel"], np.ceil(np.log2(codes + 1)) + 1)
    assert assigned.sizes["fc/kernel"] == 400 * assigned.bits["fc/kernel"].sum() + 6 * 32
    single = posterior_bits(posterior(), per="weight")
    assert single.bits["fc/kernel"].shape == MEAN.shape
    assert single.size < assigned.size < posterior_bits(posterior()).size


def test_noise_alone_has_no_bits():
    leaf = Gaussian(jnp.asarray(MEAN[:4] * 1e-3), jnp.ones((4, 6)))
    assigned = posterior_bits({"w": leaf})
    assert assigned.bits["w"] == 0
    assert assigned.size == 32
    assert (assigned.posterior["w"].mean == 0).all()
    spec_of = posterior_bits({"w": leaf}).spec(lambda p, x: x @ p["w"], jnp.ones((2, 4)))
    y = quantized(lambda p, x: x @ p["w"], spec_of)({"w": leaf.mean}, jnp.ones((2, 4)))
    assert (y == 0).all()


def test_weights_of_little_signal_are_removed():
    widths = posterior_bits(posterior(), threshold=3.0).posterior["fc"]["kernel"]
    low = np.abs(MEAN) < 3 * STD
    assert low.any()
    assert (np.asarray(widths.mean)[low] == 0).all()
    assert (np.asarray(widths.var)[low] == 0).all()
    assert (np.asarray(widths.var)[~low] > 0).all()


@pytest.mark.parametrize("per", ["tensor", "channel", "weight"])
@pytest.mark.parametrize("shape", [(), (1, 1)])
def test_an_array_may_share_one_variance(per, shape):
    mean = jax.random.normal(jax.random.key(0), (3, 5))

    def rounded(shape):
        posterior = {"w": Gaussian(mean, jnp.full(shape, 0.01))}
        widths = posterior_bits(posterior, per=per, threshold=2.0)
        return widths.posterior, widths.bits

    jax.tree.map(np.testing.assert_array_equal, rounded(shape), rounded(mean.shape))


@pytest.mark.slow
@pytest.mark.parametrize("per", ["tensor", "channel", "weight"])
def test_the_spec_says_the_same(per):
    x = jax.random.normal(jax.random.key(0), (3, 400))
    assigned = posterior_bits(posterior(), per=per)
    spec = assigned.spec(net, x)
    assert set(spec) == {"fc", "out"}
    plain = jax.tree.map(lambda g: g.mean, posterior(), is_leaf=lambda v: isinstance(v, Gaussian))
    rounded = {k: {"kernel": v["kernel"].mean} for k, v in assigned.posterior.items()}
    ours = jax.jit(quantized(net, spec))(plain, x)
    np.testing.assert_allclose(ours, net(rounded, x), rtol=1e-5, atol=1e-5)
    assert np.isfinite(moments(net)(assigned.posterior, x).var).all()
    assert "fc/kernel" in repr(assigned)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="no leaf is a Gaussian"):
        posterior_bits({"w": jnp.ones(3)})
    certain = {"a": {"w": Gaussian(jnp.ones(3), jnp.array([1.0, 0.0, 1.0]))}}
    with pytest.raises(ValueError, match="1 of 3 variances of a/w are zero"):
        posterior_bits(certain)
    with pytest.raises(ValueError, match="nats must be positive"):
        posterior_bits(posterior(), 0.0)
    with pytest.raises(ValueError, match="w needs 21 bits, but codes have 16 at most"):
        posterior_bits({"w": Gaussian(jnp.ones(2), jnp.full(2, 1e-12))})
    with pytest.raises(TypeError, match="fc/kernel is traced"):
        jax.jit(lambda p: posterior_bits(p).posterior)(posterior())
