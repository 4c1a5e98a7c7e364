"""Guides held to Bayesian linear regression with correlated inputs, whose posterior is known."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from jaxeff import moments
from jaxeff.bayes import (
    CollapseWarning,
    Draws,
    Flow,
    FullRank,
    LowRank,
    MeanField,
    check_posterior,
    predict,
    prior_scales,
    sample,
    svi,
    to_gaussians,
)
from jaxeff.bayes.variational import make_loss, mean_nll, resolve_guide, start_from
from tests.bayes.linear_model import NOISE, PRIOR, N, gaussian, infer, linear, parameters

PARAMS = parameters(2)
SCALES = prior_scales(PRIOR, PARAMS)
GUIDES = ["mean_field", "low_rank", "full_rank", "flow"]


@pytest.fixture(scope="module")
def regression():
    """Inputs and targets, and the exact posterior mean and precision, in float64."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 5)) @ (np.eye(5) + 0.7 * rng.normal(size=(5, 5)))
    y = x @ [1.0, -0.5, 0.3, 0.0, 2.0] + NOISE * rng.normal(size=N)
    precision = np.eye(5) / PRIOR**2 + x.T @ x / NOISE**2
    mean = np.linalg.solve(precision, x.T @ y / NOISE**2)
    return (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)), mean, precision


def as_params(vector):
    vector = jnp.asarray(vector, jnp.float32)
    return {"a": vector[:3], "b": {"c": vector[3:, None]}}


def inverse_softplus(x):
    return jnp.asarray(np.log(np.expm1(x)), jnp.float32)


def exact_numbers(mean, precision):
    """The best member of the mean-field and of the full-rank family, which are known."""
    narrow = inverse_softplus(1 / np.sqrt(np.diag(precision)))
    cholesky = np.linalg.cholesky(np.linalg.inv(precision))
    stds = np.diag(cholesky)
    lower = jnp.asarray(cholesky / stds[:, None], jnp.float32)
    means = as_params(mean)
    mean_field = {"mean": means, "raw": {"a": narrow[:3], "b/c": narrow[3:, None]}}
    return {
        "mean_field": mean_field,
        "full_rank": {"mean": means, "raw": inverse_softplus(stds), "lower": lower},
    }


@pytest.mark.parametrize("guide", ["mean_field", "full_rank"])
def test_gradient_vanishes_at_the_best_member(regression, guide):
    data, mean, precision = regression
    loss = make_loss(
        linear, resolve_guide(guide), SCALES, mean_nll(gaussian), optax.constant_schedule(1.0), N
    )
    gradient = jax.grad(lambda q, key: loss(key, q, None, data, 0)[0])
    at_keys = jax.jit(jax.vmap(gradient, (None, 0)))
    keys = jax.random.split(jax.random.key(1), 4000)

    def standard_scores(numbers):
        leaves = jax.tree.leaves(at_keys(numbers, keys))
        flat = np.concatenate([np.asarray(leaf).reshape(len(keys), -1) for leaf in leaves], 1)
        flat = flat[:, flat.std(0) > 0]  # the upper half of `lower` plays no part
        return flat.mean(0) / (flat.std(0) / np.sqrt(len(keys)))

    assert (np.abs(standard_scores(exact_numbers(mean, precision)[guide])) < 5).all()
    wrong = exact_numbers(mean, 0.7 * precision)[guide]
    assert (np.abs(standard_scores(wrong)) > 5).any()


@pytest.fixture(scope="module")
def start():
    """A member of each family, not its simplest, and the moments of its draws."""
    key = jax.random.key(2)
    means = as_params(np.linspace(-1, 1, 5))
    stds = {"a": jnp.full(3, 0.3), "b/c": jnp.full((2, 1), 0.3)}

    @jax.jit
    def moved(means, stds):
        """Away from where training starts: there every family is about a mean field."""
        found = {}
        for name in GUIDES:
            numbers = resolve_guide(name).start(key, means, stds)
            others = jax.tree.map(lambda a: a + 0.3 * jax.random.normal(key, a.shape), numbers)
            found[name] = others | {"mean": numbers["mean"], "raw": numbers["raw"]}
        return found

    return {name: (resolve_guide(name), n) for name, n in moved(means, stds).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_draws_moments_and_divergence_belong_together(start, name):
    guide, numbers = start[name]
    n = 20_000
    posterior = guide.posterior(numbers, SCALES)
    check_posterior(posterior, PARAMS)
    drawn = sample(jax.random.key(3), posterior, n)
    vectors = np.concatenate([drawn["a"], drawn["b"]["c"][:, :, 0]], 1)
    gaussians = to_gaussians(posterior)
    for leaf, part in ((gaussians["a"], vectors[:, :3]), (gaussians["b"]["c"], vectors[:, 3:])):
        mean, var = leaf.mean.reshape(-1), leaf.var.reshape(-1)
        # A flow's own moments are those of 2,000 draws.
        count = 1500 if name == "flow" else n
        assert (np.abs(part.mean(0) - mean) <= 5 * np.sqrt(var / count)).all()
        assert (np.abs(part.var(0) - var) <= 5 * var * np.sqrt(3 / count)).all()
    keys = jax.random.split(jax.random.key(4), 4000)
    divergences = jax.jit(jax.vmap(lambda k: guide.draw(k, numbers, SCALES)[1]))(keys)
    if name == "flow":
        # NumPyro's own way through the inverse of the flow, draw by draw.
        of_vector = posterior.distribution()
        prior = dist.Normal(0.0, PRIOR).expand([5]).to_event(1)
        by_inverse = jax.vmap(lambda z: of_vector.log_prob(z) - prior.log_prob(z))(vectors[:4000])
        error = np.hypot(np.std(divergences), np.std(by_inverse)) / np.sqrt(4000)
        assert abs(divergences.mean() - by_inverse.mean()) <= 5 * error
    else:
        covariance = np.cov(vectors.T)
        mean = np.linspace(-1, 1, 5)
        ratio = covariance / PRIOR**2
        closed_form = 0.5 * (
            np.trace(ratio) + (mean @ mean) / PRIOR**2 - 5 - np.linalg.slogdet(ratio)[1]
        )
        # The covariance of 20,000 draws: a log-determinant to sqrt(2 * 5 / n).
        assert abs(divergences[0] - closed_form) <= 5 * np.sqrt(2 * 5 / n)
        assert np.ptp(divergences) <= 1e-5 * abs(closed_form)


@pytest.mark.slow
def test_correlations_bring_guides_closer_than_mean_field_can_come(regression):
    data, mean, precision = regression

    def distance(guide):
        """KL of the trained posterior from the exact one, in nats."""
        steps = 400
        result = svi(
            jax.random.key(5), linear, as_params(mean), data, epochs=steps, batch_size=N,
            prior=PRIOR, guide=guide, likelihood=gaussian, kl=optax.constant_schedule(1.0),
            init_scale=0.03, particles=8,
            optimizer=optax.adam(optax.cosine_decay_schedule(0.05, steps)),
        )  # fmt: skip
        drawn = sample(jax.random.key(0), result.posterior, 4000)
        vectors = np.concatenate([drawn["a"], drawn["b"]["c"][:, :, 0]], 1)
        ratio = precision @ np.cov(vectors.T)
        shift = vectors.mean(0) - mean
        excess = np.trace(ratio) + shift @ precision @ shift - 5 - np.linalg.slogdet(ratio)[1]
        return 0.5 * excess

    # What mean field loses at best: half the log-determinant of the posterior's correlations.
    scale = np.sqrt(np.diag(precision))
    lost = -0.5 * np.linalg.slogdet(precision / np.outer(scale, scale))[1]
    assert lost > 1
    assert distance(LowRank(1)) < 0.8 * lost
    assert distance(Flow(1)) < 0.1


def affine(params, x):
    return x @ params["kernel"] + params["bias"]


AFFINE = {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}
X = np.linspace(-1, 1, 80, dtype=np.float32).reshape(40, 2)
LABELS = np.arange(40) % 3


@pytest.mark.slow
@pytest.mark.parametrize("guide", [LowRank(2), Flow(1)])
def test_resumed_run_equals_the_uninterrupted_one(tmp_path, guide):
    file, half = tmp_path / "run.safetensors", tmp_path / "half.safetensors"

    def run(file, **options):
        data = (X, LABELS)
        return svi(
            jax.random.key(6), affine, AFFINE, data, epochs=3, batch_size=20, guide=guide,
            checkpoint=file, **options,
        )  # fmt: skip

    def copy(posterior):
        if file.exists() and not half.exists():
            shutil.copy(file, half)
        return {}

    whole = run(file, eval_fn=copy)
    resumed = run(half)
    jax.tree.map(np.testing.assert_array_equal, whole.posterior, resumed.posterior)
    assert whole.history == resumed.history


@pytest.mark.slow
def test_partial_bayes(regression):
    """Fixed parameters reach the maximum of the evidence: generalised least squares."""
    (x, y), _, _ = regression
    result = infer(
        jax.random.key(7), PARAMS, (x, y), 400, 0.1, prior={"b/*": PRIOR, "a": None},
        guide="full_rank", init_scale=0.03, particles=4,
    )  # fmt: skip
    gaussians = to_gaussians(result.posterior)
    assert isinstance(gaussians["a"], jax.Array)
    x, y = np.asarray(x, float), np.asarray(y, float)
    of_rest = PRIOR**2 * x[:, 3:] @ x[:, 3:].T + NOISE**2 * np.eye(N)
    whitened = np.linalg.solve(of_rest, x[:, :3])
    precision = x[:, :3].T @ whitened
    shift = gaussians["a"] - np.linalg.solve(precision, whitened.T @ y)
    assert 0.5 * shift @ precision @ shift < 0.01  # nats
    out = moments(linear)(gaussians, x[:3].astype(np.float32))
    assert (out.var > 0).all()
    assert predict(jax.random.key(0), linear, result.posterior, x[:3], samples=2).shape == (2, 3)


@pytest.mark.slow
def test_starts_at_the_moments_of_a_posterior():
    random = {"kernel": jax.random.normal(jax.random.key(8), (2, 50, 2, 3))}
    draws = Draws(random, AFFINE)
    means, scales, stds = start_from(draws, 1.0, 1e-4)
    np.testing.assert_allclose(means["kernel"], random["kernel"].mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(stds["kernel"], random["kernel"].std((0, 1)), rtol=1e-5)
    np.testing.assert_array_equal(stds["bias"], np.full(3, 1e-4, np.float32))
    for guide in (MeanField(), FullRank()):
        posterior = guide.posterior(guide.start(jax.random.key(0), means, stds), scales)
        np.testing.assert_allclose(to_gaussians(posterior)["kernel"].std, stds["kernel"], rtol=1e-5)


@pytest.mark.slow
def test_a_run_that_knows_nothing_says_so():
    with pytest.warns(CollapseWarning, match=r"'I don't know' to everything: its NLL of .* nats"):
        svi(
            jax.random.key(9), affine, AFFINE, (X, LABELS), epochs=2, batch_size=40, prior=0.1,
            init_scale=0.1, kl=optax.constant_schedule(100.0),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        ("fullrank", "unknown guide 'fullrank': use one of 'mean_field', 'low_rank', "),
        (LowRank, "unknown guide <class"),
        ("full_rank", r"60,060 random parameters is a matrix of 14\.4 GB.* use guide='low_rank'"),
        ("flow", r"a flow of 60,060 random parameters is 8 matrices of 115\.\d GB"),
    ],
)
def test_guides_that_are_refused(guide, message):
    params = {"kernel": jnp.zeros((1000, 60)), "bias": jnp.zeros(60)}
    with pytest.raises(ValueError, match=message):
        svi(
            jax.random.key(0), affine, params, (np.zeros((4, 1000), np.float32), np.arange(4)),
            epochs=1, batch_size=2, guide=guide,
        )  # fmt: skip


def test_settings_of_guides():
    with pytest.raises(ValueError, match="rank must be at least 1, but is 0"):
        LowRank(0)
    with pytest.raises(ValueError, match="flows must be at least 1, but is 0"):
        Flow(0)
