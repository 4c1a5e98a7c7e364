import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from jaxeff import Gaussian
from jaxeff import uncertainty as u
from jaxeff.moment_propagation import JointGaussian


def labelled(n=2000, sharpness=0.4):
    logits = 3 * jax.random.normal(jax.random.key(0), (n, 4))
    return logits, jax.random.categorical(jax.random.key(1), sharpness * logits)


def test_it_is_scipys_optimum():
    logits, labels = labelled(300)
    wide = np.asarray(logits, np.float64)

    def nll(t):
        return -log_softmax(wide / t, -1)[np.arange(300), labels].mean()

    expected = minimize_scalar(nll, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9})
    temperature = jax.jit(u.temperature_scale)(logits, labels)
    np.testing.assert_allclose(temperature.value, expected.x, rtol=1e-3)


@pytest.mark.slow
def test_it_recovers_the_temperature_that_labels_were_drawn_at():
    """Within four standard errors, by the Fisher information of the inverse temperature."""
    logits, labels = labelled()
    probs = jax.nn.softmax(0.4 * logits)
    information = ((probs * logits**2).sum(-1) - (probs * logits).sum(-1) ** 2).sum()
    temperature = 1 / u.temperature_scale(logits, labels).value
    assert abs(temperature - 0.4) < 4 / information**0.5
    before, after = (u.ece(jax.nn.softmax(z), labels) for z in (logits, temperature * logits))
    assert after < before / 3


@pytest.mark.slow
def test_gaussian_logits_are_divided_with_their_variances():
    logits, labels = labelled(200)
    gaussian = Gaussian(logits, jnp.full_like(logits, 2.0))
    temperature = u.temperature_scale(gaussian, labels)
    probabilities = u.tempered(lambda x: x, temperature)(gaussian)
    np.testing.assert_allclose(probabilities.mean, logits / temperature.value, rtol=1e-6)
    np.testing.assert_allclose(probabilities.var, 2 / temperature.value**2, rtol=1e-6)

    def nll(t):
        scaled = u.tempered(lambda x: x, u.Temperature(t))(gaussian)
        return u.nll(jax.nn.softmax(u.probit_logits(scaled)), labels)

    best = nll(temperature.value)
    assert best <= min(nll(temperature.value * 0.98), nll(temperature.value * 1.02))
    joint = JointGaussian(logits, 2 * jnp.broadcast_to(jnp.eye(4), (200, 4, 4)))
    np.testing.assert_allclose(
        u.tempered(lambda x: x, temperature)(joint).var, probabilities.var, rtol=1e-6
    )


@pytest.mark.parametrize("shared", [0.0, 6.0], ids=["", "all move together"])
@pytest.mark.parametrize("classes", [2, 10])
def test_the_probit_approximation_is_near_many_draws(classes, shared):
    """Beside the mean softmax of 20,000 draws in float64; what all logits share is no doubt."""
    rng = np.random.default_rng(classes)
    mean = 3 * rng.standard_normal((20, classes))
    root = rng.standard_normal((20, classes, 3))
    cov = root @ root.mT / 3 + 0.5 * np.eye(classes)
    noise = rng.standard_normal((20_000, 20, classes))
    draws = mean + np.einsum("nij,snj->sni", np.linalg.cholesky(cov), noise)
    exps = np.exp(draws - draws.max(-1, keepdims=True))
    drawn = (exps / exps.sum(-1, keepdims=True)).mean(0)
    logits = JointGaussian(*(jnp.asarray(a, jnp.float32) for a in (mean, cov + shared)))
    probabilities = np.asarray(jax.nn.softmax(u.probit_logits(logits)))
    # Its own error: .003 nats of two classes, .02 of ten.
    divergence = (drawn * np.log(drawn / probabilities)).sum(-1).mean()
    assert divergence < 0.02
    assert abs(probabilities.max(-1) - drawn.max(-1)).mean() < 0.025
    alone = JointGaussian(logits.mean, jnp.asarray(cov, jnp.float32))
    np.testing.assert_allclose(probabilities, jax.nn.softmax(u.probit_logits(alone)), atol=2e-5)


@pytest.mark.slow
def test_probit_logits_of_independent_ones_are_those_of_a_diagonal():
    rng = np.random.default_rng(0)
    mean, var = rng.standard_normal((5, 4)) * 3, rng.gamma(2, 1, (5, 4))
    logits = Gaussian(*(jnp.asarray(a, jnp.float32) for a in (mean, var)))
    joint = JointGaussian(logits.mean, jax.vmap(jnp.diag)(logits.var))
    np.testing.assert_allclose(u.probit_logits(logits), u.probit_logits(joint), rtol=1e-4)
    # Two classes are MacKay's sigmoid of the difference; without variance it is the softmax.
    two = jax.nn.softmax(u.probit_logits(Gaussian(logits.mean[:, :2], logits.var[:, :2])))
    difference = (mean[:, 0] - mean[:, 1]) / np.sqrt(1 + np.pi / 8 * var[:, :2].sum(-1))
    np.testing.assert_allclose(two[:, 0], 1 / (1 + np.exp(-difference)), rtol=1e-4)
    sure = u.probit_logits(Gaussian(10 * logits.mean, jnp.zeros_like(logits.var)))
    np.testing.assert_allclose(sure, jax.nn.log_softmax(10 * logits.mean), rtol=1e-5, atol=1e-4)
    slopes = jax.grad(lambda one: u.probit_logits(one).sum())(Gaussian(50 * mean, 0 * var))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.slow
def test_it_sweeps_and_stays_within_its_bounds():
    logits, labels = labelled(100)
    many = jax.vmap(u.temperature_scale, in_axes=(0, None))(jnp.stack([logits, 2 * logits]), labels)
    np.testing.assert_allclose(many.value[1], 2 * many.value[0], rtol=1e-3)
    with pytest.raises(ValueError, match="classes"):
        u.temperature_scale(logits, labels + 4)


@pytest.mark.parametrize(
    ("logits", "labels", "value", "words"),
    [
        (10 * np.eye(4), np.arange(4), 1e-3, "the labels are those of the largest logits"),
        (10 * np.eye(4), (np.arange(4) + 1) % 4, 1e3, "the logits say less than nothing"),
        (np.full((3, 4), 2.0), np.arange(3), 1, "all classes have the same logit"),
        # All that is left of three classes is the same.
        (np.array([[2.0, 2.0, -np.inf]] * 2), np.arange(2), 1, "all classes have the same logit"),
    ],
    ids=["separated", "worse than chance", "constant", "constant and masked"],
)
def test_what_has_no_best_temperature_is_told(logits, labels, value, words):
    logits, labels = jnp.asarray(logits, jnp.float32), jnp.asarray(labels)
    with pytest.warns(u.CalibrationWarning, match=words):
        np.testing.assert_allclose(u.temperature_scale(logits, labels).value, value, rtol=1e-6)
    # Where values are unknown nothing can be said, but the number is the same.
    np.testing.assert_allclose(jax.jit(u.temperature_scale)(logits, labels).value, value, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gaussian", [False, True])
def test_masked_classes_stay_out_of_it(gaussian):
    """SciPy's optimum over the classes that each example has left, in float64."""
    logits, labels = labelled(300)
    # Every third example lacks a class that isn't its label.
    masked = (jnp.arange(300) % 3 == 0)[:, None] & (
        jnp.arange(4)[None] == (labels[:, None] + 1) % 4
    )
    logits = jnp.where(masked, -jnp.inf, logits)
    variance = 2.0 if gaussian else 0.0
    wide = np.asarray(logits, np.float64)

    # Examples by themselves, with the classes they have left and no others.
    order = np.argsort(np.isneginf(wide), -1, kind="stable")
    packed = np.take_along_axis(wide, order, -1)
    label = (order == np.asarray(labels)[:, None]).argmax(-1)

    def losses(t):
        for rows, classes in ((~masked.any(-1), 4), (masked.any(-1), 3)):
            mean = jnp.asarray(packed[rows][:, :classes], jnp.float32) / t
            left = Gaussian(mean, jnp.full_like(mean, variance) / t**2)
            log_probs = jax.nn.log_softmax(u.probit_logits(left))
            yield -jnp.take_along_axis(log_probs, label[rows][:, None], -1)

    def nll(t):
        if gaussian:
            return float(np.concatenate([*losses(t)]).mean())
        return -log_softmax(wide / t, -1)[np.arange(300), labels].mean()

    expected = minimize_scalar(nll, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9})
    outputs = Gaussian(logits, jnp.full_like(logits, variance)) if gaussian else logits
    temperature = jax.jit(u.temperature_scale)(outputs, labels)
    # The likelihood is flat to float32's rounding nearer to its optimum, where it isn't float64's.
    np.testing.assert_allclose(temperature.value, expected.x, rtol=1e-2 if gaussian else 1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_likelihood_that_is_no_number_is_refused(bad):
    logits, labels = labelled(20)
    logits = logits.at[3, labels[3]].set(bad)
    with pytest.raises(ValueError, match="the likelihood of 1 examples is no number"):
        u.temperature_scale(logits, labels)
    assert jnp.isnan(jax.jit(u.temperature_scale)(logits, labels).value)
