import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from jaxeff.bayes import (
    NUTS,
    Draws,
    distill,
    load_posterior,
    mcmc,
    predict,
    prediction_mixing,
    save_posterior,
    svi,
    to_gaussians,
)
from jaxeff.bayes._distillation import energy_score
from jaxeff.moment_propagation import Gaussian


def affine(params, x):
    return x @ params["kernel"] + params["bias"]


@pytest.mark.slow
def test_score_against_all_pairs():
    """A student of five draws and a teacher of three, on two examples of three classes."""
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(5, 2, 3)), rng.normal(size=(2, 3, 3))
    softmax = lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True)  # noqa: E731
    s, t = softmax(student), softmax(teacher)
    expected = []
    for example in range(2):
        one = s[:, example]
        across = np.mean([np.linalg.norm(a - b) for a in one for b in t[example]])
        pairs = [np.linalg.norm(one[i] - one[j]) for i in range(5) for j in range(5) if i != j]
        expected.append(across - np.mean(pairs) / 2)
    score = energy_score("categorical")(jnp.float32(student), jnp.float32(teacher))
    assert float(score) == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.slow
def test_gradient_between_equal_predictions():
    score = energy_score("categorical")
    gradient = jax.grad(lambda a: score(a, jnp.zeros((2, 3, 3))))(jnp.zeros((4, 2, 3)))
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.slow
def test_spread_of_the_teacher_is_learned():
    """Both are linear in their Gaussian weights, so predictive moments are known."""
    x = jnp.linspace(-1, 1, 40)[:, None]
    like = lambda mean: dist.Normal(mean[..., 0], 0.1)  # noqa: E731
    teacher = {
        "kernel": Gaussian(jnp.array([[2.0]]), jnp.array([[0.5]])),
        "bias": Gaussian(jnp.array([-1.0]), jnp.array([0.2])),
    }
    start = {"kernel": jnp.zeros((1, 1)), "bias": jnp.zeros(1)}
    epochs = 300
    result = distill(
        jax.random.key(0), affine, start, (x,), predict(jax.random.key(1), affine, teacher, x,
        samples=200), epochs=epochs, batch_size=40, likelihood=like, prior=1.0, init_scale=0.1,
        optimizer=optax.adam(optax.cosine_decay_schedule(0.1, epochs)),
    )  # fmt: skip
    gaussians = to_gaussians(result.posterior)
    for path, truth in teacher.items():
        # The teacher is known by 200 draws: its means to std / 14, its variances to a tenth.
        error = np.abs(gaussians[path].mean - truth.mean).item()
        assert error < 5 * float(truth.std.item()) / np.sqrt(200)
        assert abs(np.log(gaussians[path].var / truth.var)).item() < 5 * np.sqrt(2 / 200)


CHAINS = {"warmup": 20, "samples": 10, "chains": 2, "monitor": (), "progress": False}


def regression():
    """Mean and log-variance of a line with noise."""
    x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
    y = 2 * x[:, 0] + np.random.default_rng(0).normal(size=16).astype(np.float32) / 10
    return {"kernel": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}, x, y


def inferred(**options):
    params, x, y = regression()
    return svi(
        jax.random.key(0), affine, params, (x, y), likelihood="gaussian", epochs=1, batch_size=16,
        progress=False, **options,
    )  # fmt: skip


def taught(teacher, **options):
    params, x, _ = regression()
    return distill(
        jax.random.key(0), affine, params, (x,), teacher, epochs=1, batch_size=16, progress=False,
        **options,
    )  # fmt: skip


def knows(teacher):
    student, named = taught(teacher), taught(teacher, likelihood="gaussian")
    assert student.likelihood == "gaussian"
    np.testing.assert_array_equal(student.losses, named.losses)
    with pytest.raises(ValueError, match=r"'categorical' was given, but .* 'gaussian' l"):
        taught(teacher, likelihood="categorical")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxeff.bayes.ConvergenceWarning")
def test_the_likelihood_travels_with_the_draws_of_a_sampler(tmp_path):
    params, x, y = regression()
    result = mcmc(
        jax.random.key(0), affine, params, (x, y), NUTS(), likelihood="gaussian", **CHAINS
    )  # fmt: skip
    save_posterior(tmp_path / "draws", result.posterior)
    for teacher in (result, result.posterior, load_posterior(tmp_path / "draws", params)):
        knows(teacher)
    assert prediction_mixing(affine, result.posterior, x).rhat.shape == (16,)


@pytest.mark.slow
def test_the_likelihood_travels_with_results_and_guides(tmp_path):
    joint = inferred(guide="low_rank")
    save_posterior(tmp_path / "joint", joint.posterior)
    loaded = load_posterior(tmp_path / "joint", regression()[0])
    for teacher in (inferred(), joint, joint.posterior, loaded):
        knows(teacher)


@pytest.mark.slow
def test_where_nobody_knows_the_likelihood_it_has_to_be_named():
    posterior, (_, x, _) = inferred().posterior, regression()
    outputs = predict(jax.random.key(1), affine, posterior, x)
    for teacher in (outputs, posterior):
        with pytest.raises(ValueError, match=r"distill: .*'categorical' \(logits\) or 'gaussian'"):
            taught(teacher)
        assert taught(teacher, likelihood="gaussian").likelihood == "gaussian"
    draws = Draws({"bias": jnp.zeros((2, 5, 2))}, regression()[0])
    with pytest.raises(ValueError, match="prediction_mixing: say what f's outputs mean"):
        prediction_mixing(affine, draws, x)


def test_bad_input():
    params = {"kernel": jnp.zeros((1, 3)), "bias": jnp.zeros(3)}
    x = np.zeros((8, 1), np.float32)

    def run(teacher, **options):
        distill(jax.random.key(0), affine, params, (x,), teacher, epochs=1, batch_size=8, **options)

    for shape in ((5, 7, 3), (5, 8, 2), (1, 8, 3)):
        with pytest.raises(
            ValueError, match=r"must be \[draws, \*\[8, 3\]\], of two draws or more"
        ):
            run(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="particles must be at least 2, but is 1"):
        run(np.zeros((5, 8, 3), np.float32), particles=1)
    with pytest.raises(ValueError, match="holds values that are NaN"):
        run(np.full((5, 8, 3), np.nan, np.float32))
