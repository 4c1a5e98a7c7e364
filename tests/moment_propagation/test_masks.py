"""Masked scores, whichever number masks them, against Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxeff.moment_propagation import Gaussian, measure_assumptions, moments

CAUSAL = jnp.tril(jnp.ones((5, 5), bool))
X = Gaussian(jax.random.normal(jax.random.key(0), (5, 5)), jnp.full((5, 5), 0.4))
LOWEST = {"-inf": -jnp.inf, "-1e9": -1e9, "finfo.min": jnp.finfo(jnp.float32).min}


def scores(x, low):
    return jnp.where(CAUSAL, x, low)


def everything(x, low):
    """What masked scores go into, in one array."""
    s = scores(x, low)
    shifted = jnp.exp(s - s.max(-1, keepdims=True))
    results = (
        s.max(-1),
        jnp.max(x, -1, where=CAUSAL, initial=low),
        -jnp.where(CAUSAL, x, -low).min(-1),
        jax.nn.softmax(s),
        jax.nn.softmax(s / 2),
        jax.nn.softmax(x + jnp.where(CAUSAL, 0, low)),
        shifted / shifted.sum(-1, keepdims=True),
        jax.nn.logsumexp(s, -1),
        jnp.where(CAUSAL, jax.nn.log_softmax(s), 0),
        jax.nn.relu(s + 3),
        jnp.exp(s),
        jax.nn.sigmoid(s),
        jnp.tanh(s),
        jnp.where(CAUSAL, jax.nn.leaky_relu(s), 0),
        jax.nn.logsumexp(x, -1, where=CAUSAL),
        jax.nn.logsumexp(x[None], -1, where=CAUSAL),
    )
    return jnp.concatenate([r.ravel() for r in results])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOWEST)
def test_masked_scores_have_the_moments_of_the_others(name, oracle):
    """Within 5 standard errors of 20,000 draws and 2 % (3 % of a deviation in the mean)."""
    low = LOWEST[name]
    ours = jax.jit(moments(lambda x: everything(x, low), method="diagonal"))(X)
    true = oracle.monte_carlo(lambda x: everything(x, low), (X,))
    oracle.assert_matches(ours, true, mean=0.03, var=0.02)
    assert all(np.isfinite(a).all() for a in (ours.mean, ours.var))


@pytest.mark.slow
def test_derivatives_and_vmap_of_masked_scores():
    def total(x):
        y = moments(lambda x: everything(x, -jnp.inf), method="diagonal")(x)
        return y.mean.sum() + y.var.sum()

    slopes = jax.jit(jax.grad(total))(X)
    assert all(np.isfinite(a).all() for a in (slopes.mean, slopes.var))
    assert (slopes.mean[0, 1:] == 0).all()
    rows = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), X)
    mapped = jax.jit(jax.vmap(moments(lambda x: everything(x, -jnp.inf), method="diagonal")))(rows)
    alone = jax.jit(moments(lambda x: everything(x, -jnp.inf), method="diagonal"))(X)
    np.testing.assert_allclose(mapped.var[0], alone.var, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_a_row_without_scores_has_a_certain_log_sum():
    rows = jnp.arange(5)[:, None] > 0
    for f in (lambda s: jax.nn.logsumexp(s, -1), lambda s: s.max(-1)):
        y = jax.jit(moments(lambda x, f=f: f(jnp.where(rows, x, -jnp.inf)), method="diagonal"))(X)
        assert (y.mean[0], y.var[0]) == (-jnp.inf, 0)
        assert np.isfinite(y.mean[1:]).all()


@pytest.mark.slow
def test_kinked_functions_of_an_infinity_are_their_limits():
    x = Gaussian(jnp.array([-jnp.inf, jnp.inf, 1.0]), jnp.array([0.0, 0.0, 0.5]))
    for f in (jnp.abs, jax.nn.relu, jax.nn.leaky_relu, jax.nn.hard_tanh, jax.nn.relu6):
        y = jax.jit(moments(f, method="diagonal"))(x)
        np.testing.assert_allclose(y.mean[:2], f(x.mean[:2]))
        np.testing.assert_array_equal(y.var[:2], 0)


def by_hand(low):
    def attend(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        p = jax.nn.softmax(jnp.where(CAUSAL, s, low))
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return attend


ATTENTION = {
    "by hand, -inf": by_hand(-jnp.inf),
    "by hand, -1e9": by_hand(-1e9),
    "jax, mask": lambda *qkv: jax.nn.dot_product_attention(*qkv, mask=CAUSAL[None, None]),
    "jax, causal": lambda *qkv: jax.nn.dot_product_attention(*qkv, is_causal=True),
    "linen": lambda *qkv: linen.dot_product_attention(*qkv, mask=CAUSAL[None, None]),
    "nnx": lambda *qkv: nnx.dot_product_attention(*qkv, mask=CAUSAL[None, None]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize(("noise", "bias"), [(0.2, 0.02), (2.0, 0.3)])
def test_masked_attention(name, noise, bias, oracle):
    """Attention is expanded about its means: 2 % at small noise, 30 % where scores vary by 1.3."""
    pick = jnp.eye(5)[None, :, None]
    q = Gaussian(X.mean[None, :, None] * 2, X.var[None, :, None] * noise**2)
    f = ATTENTION[name]
    ours = jax.jit(lambda q: moments(f, method="diagonal")(q, pick, pick))(q)
    true = oracle.monte_carlo(lambda q: f(q, pick, pick), (q,))
    oracle.assert_matches(ours, true, mean=0.1 if noise > 1 else 0.03, var=bias)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:moments. what 5 channels share")
def test_the_cost_of_assumptions_is_measured_with_masked_scores():
    """Sampled moments of what is minus infinity in every draw are certain."""

    def attended(q, k):
        """How much each key is attended to: rows of scores share the noise of keys."""
        s = jnp.where(CAUSAL, q @ k.T, -jnp.inf)
        return jax.nn.softmax(s).sum(0)

    assumption = measure_assumptions(jax.random.key(0), attended, X, X, samples=100, chunk=100)
    assert assumption
    assert all(np.isfinite([one.ratio.median, one.ratio.low, one.ratio.high]).all()
               for one in assumption if one.ratio is not None)  # fmt: skip
