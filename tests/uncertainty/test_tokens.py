"""Uncertainty of tokens and texts against loops over them, and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

import jaxeff
from jaxeff import uncertainty as u
from jaxeff.moment_propagation import JointGaussian

KEY = jax.random.key(0)
LOGITS = 2 * jax.random.normal(KEY, (5, 2, 7, 11))
SCORES = jax.random.uniform(jax.random.key(1), (3, 6))
MASK = jnp.arange(6)[None] < jnp.array([6, 4, 1])[:, None]


@pytest.mark.slow
def test_samples_are_taken_token_by_token():
    uncertainty = jax.jit(u.token_uncertainty)(LOGITS)
    probs = softmax(np.asarray(LOGITS, np.float64), -1)
    for n in range(2):
        for t in range(7):
            each, mean = probs[:, n, t], probs[:, n, t].mean(0)
            expected = entropy(mean), entropy(each, axis=-1).mean()
            np.testing.assert_allclose(uncertainty.total[n, t], expected[0], rtol=1e-5)
            np.testing.assert_allclose(uncertainty.aleatoric[n, t], expected[1], rtol=1e-5)
            np.testing.assert_allclose(
                uncertainty.epistemic[n, t], expected[0] - expected[1], rtol=1e-4, atol=1e-5
            )
            np.testing.assert_allclose(
                uncertainty.variance[n, t], each[:, mean.argmax()].var(), rtol=1e-4, atol=1e-7
            )
    apart = jax.vmap(u.token_uncertainty, in_axes=1)(LOGITS)
    for a, b in zip(apart, uncertainty, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.oracle
def test_moments_are_those_of_samples_where_variances_are_small():
    mean = 2 * jax.random.normal(KEY, (2, 3, 6))
    root = 0.03 * jax.random.normal(jax.random.key(1), (2, 3, 6, 6))
    cov = root @ root.mT
    alone = jaxeff.Gaussian(mean, jnp.diagonal(cov, axis1=-2, axis2=-1))
    for logits in (alone, JointGaussian(mean, cov)):
        with jax.numpy_rank_promotion("allow"):  # a sample of a joint distribution adds its mean
            drawn = u.token_uncertainty(logits.sample(jax.random.key(2), (40_000,)))
        uncertainty = jax.jit(u.token_uncertainty)(logits)
        # Five standard errors of a variance of n samples, 5 sqrt(2 / n) = 3.5 %, and 2.5 % for the
        # next order of variances of .005.
        np.testing.assert_allclose(uncertainty.variance, drawn.variance, rtol=0.06)
        np.testing.assert_allclose(uncertainty.epistemic, drawn.epistemic, rtol=0.06)
        np.testing.assert_allclose(uncertainty.total, drawn.total, rtol=0.01)
        np.testing.assert_allclose(
            uncertainty.aleatoric, uncertainty.total - uncertainty.epistemic, rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_a_model_with_random_weights_says_it_of_every_token():
    params = {"embed": {"table": jax.random.normal(KEY, (11, 4))},
              "fc": {"kernel": jax.random.normal(KEY, (4, 11))}}  # fmt: skip
    posterior = params | {
        "fc": {"kernel": jaxeff.Gaussian(params["fc"]["kernel"], jnp.ones((4, 11)))}
    }

    def f(params, tokens):
        return params["embed"]["table"][tokens] @ params["fc"]["kernel"]

    tokens = jnp.arange(6).reshape(2, 3)
    gaussian = u.token_uncertainty(jaxeff.moments(f)(posterior, tokens))
    assert gaussian.epistemic.shape == (2, 3)
    assert (gaussian.epistemic > 0).all()
    assert (gaussian.aleatoric >= 0).all()


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
def test_texts_are_what_a_loop_makes_of_their_tokens(reduce):
    score = jax.jit(lambda s, m: u.sequence_score(s, m, reduce=reduce))(SCORES, MASK)
    lengths = (6, 4, 1)
    for n, length in enumerate(lengths):
        expected = getattr(np, reduce)(np.asarray(SCORES[n, :length]))
        np.testing.assert_allclose(score[n], expected, rtol=1e-6)
    unmasked = u.sequence_score(SCORES, reduce=reduce)
    np.testing.assert_allclose(
        unmasked, getattr(np, reduce)(np.asarray(SCORES), axis=-1), rtol=1e-6
    )


@pytest.mark.oracle
def test_the_entropy_of_drawn_texts_is_that_of_the_model():
    probs = np.array([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]])  # of two tokens, independent
    drawn = jax.random.categorical(KEY, jnp.log(jnp.asarray(probs)), shape=(20_000, 2))
    log_probs = np.log(probs)[np.arange(2)[None], np.asarray(drawn)]
    score = u.sequence_entropy(jnp.asarray(log_probs)[:, None])
    error = log_probs.mean(1).std() / np.sqrt(20_000)
    assert abs(score[0] - entropy(probs, axis=1).mean()) < 5 * error


def test_a_text_ends_before_its_first_uncertain_token():
    scores = jnp.array([[0.1, 0.2, 0.9, 0.1], [0.9, 0.1, 0.1, 0.1], [0.1, jnp.nan, 0.1, 0.1]])
    expected = [[True, True, False, False], [False] * 4, [True, False, False, False]]
    np.testing.assert_array_equal(jax.jit(u.accepted_prefix)(scores, 0.5), expected)
    mask = jnp.array([[True, False, False, False]] * 3)
    expected = [[True, False, False, False], [False] * 4, [True, False, False, False]]
    np.testing.assert_array_equal(u.accepted_prefix(scores, 0.5, mask), expected)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"logits\[None\] is one member"):
        u.token_uncertainty(LOGITS[0, 0])
    with pytest.raises(ValueError, match="of the scores' shape"):
        u.sequence_score(SCORES, MASK[:, :3])
