import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import softmax
from scipy.stats import entropy

from jaxeff import uncertainty as u

EPS = float(np.finfo(np.float32).eps)
LOGITS = hnp.arrays(
    np.float32,
    st.sampled_from([(1, 2, 2), (4, 3, 5)]),  # few shapes: each one compiles
    elements=st.floats(-200, 200, width=32),
)


def rounding(probs):
    """What float32 rounding of probabilities can do to an entropy: each moves by p eps |log p|."""
    return 20 * EPS * (1 + np.log(probs.shape[-1])) * probs.shape[-1]


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(LOGITS)
def test_entropies_agree_with_scipy(logits):
    """Large logits make probabilities of exactly 0 and 1, which must count as 0 nats."""
    probs = np.asarray(jax.nn.softmax(logits))
    exact = softmax(logits.astype(np.float64), axis=-1)
    total = entropy(exact.mean(0), axis=-1)
    aleatoric = entropy(exact, axis=-1).mean(0)
    for parts in (u.decompose(jnp.asarray(probs)), u.decompose_logits(jnp.asarray(logits))):
        atol = rounding(probs)
        np.testing.assert_allclose(parts.total, total, atol=atol)
        np.testing.assert_allclose(parts.aleatoric, aleatoric, atol=atol)
        np.testing.assert_allclose(parts.epistemic, total - aleatoric, atol=2 * atol)
        assert (np.asarray(parts.epistemic) >= 0).all()


@pytest.mark.slow
def test_single_functions_are_the_fields():
    probs = jax.nn.softmax(jax.random.normal(jax.random.key(0), (7, 5, 4)))
    parts = u.decompose(probs)
    np.testing.assert_array_equal(parts.total, u.predictive_entropy(probs))
    np.testing.assert_array_equal(parts.aleatoric, u.softmax_entropy(probs))
    np.testing.assert_array_equal(parts.epistemic, u.mutual_information(probs))


@pytest.mark.slow
def test_limits():
    agree = jnp.full((3, 1, 4), 0.25)
    disagree = jnp.eye(4)[:, None]
    np.testing.assert_allclose(u.decompose(agree), [[np.log(4)], [np.log(4)], [0]], atol=4 * EPS)
    np.testing.assert_allclose(u.decompose(disagree), [[np.log(4)], [0], [np.log(4)]], atol=4 * EPS)


@pytest.mark.slow
def test_gradient_through_logits_is_finite_with_zero_probabilities():
    logits = jnp.array([[[0.0, -jnp.inf, 1.0]], [[300.0, -300.0, 0.0]]])
    gradient = jax.grad(lambda x: u.decompose_logits(x).epistemic.sum())(logits)
    assert jnp.isfinite(gradient[..., ::2]).all()
    assert jnp.isfinite(u.decompose_logits(logits).total).all()


@pytest.mark.slow
def test_nan_is_not_swallowed():
    logits = jnp.zeros((2, 3, 4)).at[0, 1, 2].set(jnp.nan)
    for parts in (u.decompose_logits(logits), u.decompose(jax.nn.softmax(logits))):
        for part in parts:
            np.testing.assert_array_equal(jnp.isnan(part), [False, True, False])


@pytest.mark.slow
@pytest.mark.parametrize("function", [u.decompose_logits, u.decompose])
def test_jit_and_vmap(function):
    values = jax.random.normal(jax.random.key(1), (3, 7, 5, 4))
    values = jax.nn.softmax(values) if function is u.decompose else values
    looped = [function(v) for v in values]
    mapped = jax.jit(jax.vmap(function))(values)
    for field in u.Decomposition._fields:
        expected = jnp.stack([getattr(parts, field) for parts in looped])
        np.testing.assert_allclose(getattr(mapped, field), expected, atol=20 * EPS)


def test_predictive_log_probs():
    logits = jax.random.normal(jax.random.key(2), (9, 5, 4)) * 30
    exact = np.log(softmax(np.asarray(logits, np.float64), axis=-1).mean(0))
    np.testing.assert_allclose(
        u.predictive_log_probs(logits), exact, rtol=100 * EPS, atol=100 * EPS
    )
