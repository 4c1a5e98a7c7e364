"""Held to Bayesian linear regression with orthogonal inputs, where mean-field is exact."""

import re
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from scipy.stats import multivariate_normal

from jaxeff.bayes import (
    Draws,
    MeanField,
    check_posterior,
    distill,
    predict,
    prior_scales,
    svi,
    to_gaussians,
)
from jaxeff.bayes.posteriors import named_leaves
from jaxeff.bayes.variational import make_loss, mean_nll, start_from
from jaxeff.core import InterruptedRun
from jaxeff.moment_propagation import Calibrated, Gaussian, is_gaussian, moments
from jaxeff.nn import small_classifier
from jaxeff.training import CheckpointError, DivergedError
from tests.bayes.linear_model import NOISE, PRIOR, N, gaussian, infer, linear, parameters

PARAMS = parameters(2)


@pytest.fixture(scope="module")
def regression():
    """Inputs with orthogonal columns, targets, and the exact posterior mean and variance."""
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.normal(size=(N, 5)))[0] * np.sqrt(N) * [0.2, 0.5, 1, 0.1, 0.7]
    y = x @ [1.0, -0.5, 0.3, 0.0, 2.0] + NOISE * rng.normal(size=N)
    precision = 1 / PRIOR**2 + (x**2).sum(0) / NOISE**2
    mean = x.T @ y / NOISE**2 / precision
    data = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    return data, np.float32(mean), np.float32(1 / precision)


def as_params(vector):
    return {"a": jnp.asarray(vector[:3]), "b": {"c": jnp.asarray(vector[3:, None])}}


def exact(mean, var):
    raw = np.log(np.expm1(np.sqrt(var)))
    return {"mean": as_params(mean), "raw": named_leaves(as_params(raw))}


def objective(regression, particles=1):
    """The objective of full batches at KL weight one and its parts, by key."""
    one = optax.constant_schedule(1.0)
    scales = prior_scales(PRIOR, PARAMS)
    loss = make_loss(linear, MeanField(), scales, mean_nll(gaussian), one, N, particles)

    def at(key, numbers):
        value, (parts, _) = loss(key, numbers, None, regression[0], 0)
        return value, parts

    return at


def test_loss_is_the_negative_evidence_at_the_exact_posterior(regression):
    (x, y), mean, var = regression
    keys = jax.random.split(jax.random.key(0), 4000)
    at_keys = jax.jit(jax.vmap(objective(regression), (0, None)))
    draws, parts = jax.tree.map(np.asarray, at_keys(keys, exact(mean, var)))
    covariance = PRIOR**2 * np.asarray(x) @ np.asarray(x).T + NOISE**2 * np.eye(N)
    expected = -multivariate_normal(np.zeros(N), covariance).logpdf(y) / N
    assert abs(draws.mean() - expected) <= 5 * draws.std() / np.sqrt(len(keys))
    ratio = var / PRIOR**2
    closed_form = 0.5 * np.sum(ratio + (mean / PRIOR) ** 2 - 1 - np.log(ratio))
    np.testing.assert_allclose(parts["kl"], closed_form, rtol=1e-5)


@pytest.mark.parametrize("particles", [1, 3])
def test_gradient_vanishes_at_the_exact_posterior_only(regression, particles):
    _, mean, var = regression
    of_keys = jax.vmap(jax.grad(objective(regression, particles), 1, has_aux=True), (0, None))
    gradient = jax.jit(of_keys)
    keys = jax.random.split(jax.random.key(1), 4000)

    def standard_scores(q):
        leaves = jax.tree.leaves(gradient(keys, q)[0])
        flat = np.concatenate([leaf.reshape(len(keys), -1) for leaf in leaves], 1)
        return flat.mean(0) / (flat.std(0) / np.sqrt(len(keys)))

    assert (np.abs(standard_scores(exact(mean, var))) < 5).all()
    wrong = exact(mean + 0.3 * np.sqrt(var), 1.5 * var)
    assert (np.abs(standard_scores(wrong)) > 5).all()


@pytest.mark.slow
def test_finds_the_exact_posterior_and_the_best_fixed_parameters(regression):
    (x, y), mean, var = regression
    result = infer(
        jax.random.key(3), PARAMS, (x, y), 1000, 0.05, prior={"a": PRIOR, "b/*": None},
        init_scale=1e-2, particles=8,
    )  # fmt: skip
    posterior = result.posterior
    assert jax.tree.structure(posterior, is_leaf=is_gaussian) == jax.tree.structure(PARAMS)
    random, fixed = posterior["a"], posterior["b"]["c"][:, 0]
    assert isinstance(random, Gaussian)
    q, exact = dist.Normal(random.mean, random.std), dist.Normal(mean[:3], np.sqrt(var[:3]))
    # A hundredth of a nat: a mean off by 0.14 standard deviations, or a variance by 20 %.
    assert (dist.kl_divergence(q, exact) < 0.01).all()
    precision = np.square(x[:, 3:]).sum(0) / NOISE**2  # the columns are orthogonal
    assert (0.5 * precision * (fixed - x[:, 3:].T @ y / NOISE**2 / precision) ** 2 < 0.01).all()


def classification(n=60):
    key = jax.random.key(4)
    labels = jnp.arange(n) % 3
    centres = jnp.array([[2.0, 0.0], [-2.0, 1.0], [0.0, -3.0]])
    return centres[labels] + jax.random.normal(key, (n, 2)), labels


def affine(params, x):
    return x @ params["kernel"] + params["bias"]


AFFINE = {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}


def run(**options):
    arguments = {"epochs": 4, "batch_size": 20} | options
    return svi(jax.random.key(5), affine, AFFINE, classification(), **arguments)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a.posterior, b.posterior)
    assert a.history == b.history


@pytest.mark.slow
def test_minibatch_classification_learns_and_anneals():
    result = run(epochs=60, optimizer=optax.adam(0.05))
    x, labels = classification()
    logits = affine(jax.tree.map(lambda g: g.mean, result.posterior, is_leaf=is_gaussian), x)
    assert (logits.argmax(-1) == labels).mean() > 0.9
    assert result.losses.shape == (60,)
    # The mean weight of an epoch of three steps, on a line from 0 to 0.25 over 180 steps.
    weights = [record["kl_weight"] for record in result.history]
    np.testing.assert_allclose(weights, 0.25 * (3 * np.arange(60) + 1) / 180, rtol=1e-4)
    first = result.history[0]
    assert first["loss"] == pytest.approx(
        first["nll"] + first["kl_weight"] * first["kl"] / 60, 0.02
    )


@pytest.fixture(scope="module")
def whole():
    """A run of four epochs, and the checkpoint it left behind, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.safetensors"
        result = run(checkpoint=file)
        yield result, file.read_bytes()


@pytest.mark.slow
def test_another_key_another_result(whole):
    other = svi(
        jax.random.key(6), affine, AFFINE, classification(), epochs=4, batch_size=20
    ).posterior
    assert (other["kernel"].mean != whole[0].posterior["kernel"].mean).any()


@pytest.mark.slow
def test_resumed_run_equals_the_uninterrupted_one(tmp_path, whole):
    file = tmp_path / "run.safetensors"
    seen = []

    def killed(posterior):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(posterior)
        return {}

    with pytest.raises(InterruptedRun, match=r"2 of \d epochs") as error:
        run(checkpoint=file, eval_fn=killed)
    assert len(seen) == 2
    assert len(error.value.result.history) == 2
    jax.tree.map(np.testing.assert_array_equal, error.value.result.posterior, seen[1])
    assert_same(run(checkpoint=file), whole[0])


@pytest.mark.slow
def test_evaluation_joins_the_record_and_nothing_is_printed(capfd):
    result = run(
        epochs=3, eval_every=2, eval_fn=lambda posterior: {"bias": posterior["bias"].mean[0]}
    )
    assert ["bias" in record for record in result.history] == [False, True, True]
    assert result.history[-1]["bias"] == float(result.posterior["bias"].mean[0])
    captured = capfd.readouterr()  # not a terminal, so without a progress bar
    assert captured.out == captured.err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl": 0.5}, "'kl'"),
        ({"epochs": 5}, "'kl'"),  # the default schedule spans the run
        ({"prior": 0.5}, "'prior'"),
        ({"batch_size": 10}, "'batch_size'"),
        ({"settings": {"learning_rate": 1e-2}}, "'learning_rate'"),
    ],
)
def test_checkpoint_of_another_run_is_refused(tmp_path, whole, change, message):
    file = tmp_path / "run.safetensors"
    file.write_bytes(whole[1])
    with pytest.raises(CheckpointError, match=message):
        run(checkpoint=file, **change)


@pytest.mark.slow
def test_checkpoint_of_other_functions_is_refused(tmp_path):
    def run(epochs=2, scale=1.0, spread=0.1, start=AFFINE, **changes):
        return svi(
            jax.random.key(0), lambda p, x: scale * affine(p, x), start, classification(),
            likelihood=lambda logits: dist.Normal(logits.sum(-1), spread), kl=lambda step: 1.0,
            epochs=epochs, batch_size=20, checkpoint=tmp_path / "run", **changes,
        ).history  # fmt: skip

    first = run(1)
    cases = [
        (dict(scale=2.5), "the loss differs: it computes with 2.5 only here"),
        (dict(spread=0.3), "the loss differs: it computes"),
        (dict(optimizer=optax.adam(3e-3)), "the optimizer differs: it computes with -0.001 only"),
        (dict(start=jax.tree.map(lambda p: p + 1, AFFINE)), "start.params"),
    ]
    for changes, message in cases:
        with pytest.raises(CheckpointError) as error:
            run(**changes)
        assert message in str(error.value)
    assert run(start=jax.tree.map(lambda p: p + 1, AFFINE), resume="force")[:1] == first


@pytest.mark.slow
def test_one_trace_whatever_the_number_of_epochs():
    def traces(epochs):
        calls = []

        def counted(params, x):
            calls.append(1)
            return affine(params, x)

        svi(jax.random.key(0), counted, AFFINE, classification(), epochs=epochs, batch_size=20)
        return len(calls)

    assert traces(2) == traces(6)


@pytest.mark.slow
def test_several_inputs(whole):
    x, labels = classification()
    result = svi(
        jax.random.key(5), lambda p, x, shift: affine(p, x) + shift, AFFINE,
        (x, jnp.zeros((60, 1)), labels), epochs=4, batch_size=20,
    )  # fmt: skip
    assert_same(result, whole[0])


@pytest.mark.slow
def test_starts_at_a_samplers_draws():
    random = {name: jnp.stack([w + 1, w + 3])[None] for name, w in AFFINE.items()}
    draws, options = Draws(random, AFFINE), {"epochs": 1, "batch_size": 20, "progress": False}
    start = svi(
        jax.random.key(0), affine, draws, classification(), optimizer=optax.sgd(0.0), **options
    ).posterior
    np.testing.assert_allclose(start["kernel"].mean, 2.0)
    np.testing.assert_allclose(start["kernel"].std, 1.0, rtol=1e-5)
    student = distill(
        jax.random.key(0), affine, draws, (jnp.ones((20, 2)),), draws, likelihood="categorical",
        optimizer=optax.sgd(0.0), **options,
    ).posterior  # fmt: skip
    np.testing.assert_allclose(student["kernel"].mean, 2.0)


@pytest.mark.parametrize("one_each", [lambda w: (), lambda w: (1,) * w.ndim])
def test_a_start_may_share_one_variance_an_array(one_each):
    """As `calibrate_moments(pool_variances=True)` makes them."""

    def started(shape):
        start = {name: Gaussian(w, jnp.full(shape(w), 0.25)) for name, w in AFFINE.items()}
        return start_from(start, "fan_in", 0.1, affine, (jnp.ones((20, 2)),))

    jax.tree.map(np.testing.assert_array_equal, started(one_each), started(jnp.shape))


X, LABELS = np.ones((40, 2), np.float32), np.zeros(40, np.int32)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ((X * np.nan, LABELS), {}, ValueError, r"data\[0\] holds NaN"),
        ((X, LABELS + 3), {}, ValueError, "labels must be 0 to 2; found 3 to 3"),
        ((X, LABELS - 1), {}, ValueError, "labels must be 0 to 2; found -1 to -1"),
        ((X, LABELS.astype(float)), {}, TypeError, "integer class labels"),
        ((X, LABELS[:-1]), {}, ValueError, "the same number of examples"),
        ((X,), {}, ValueError, r"data must be \(\*inputs, targets\)"),
        ((X, LABELS), {"batch_size": 41}, ValueError, "40 examples, less than one batch of 41"),
        ((X, LABELS), {"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ((X, LABELS), {"epochs": 0}, ValueError, "epochs must be at least 1"),
        ((X, LABELS), {"init_scale": 0.0}, ValueError, "init_scale must be positive"),
        ((X, LABELS), {"particles": 0}, ValueError, "particles must be at least 1"),
        ((X, LABELS), {"likelihood": "poisson"}, ValueError, "unknown likelihood 'poisson'"),
        ((X, LABELS), {"prior": {"dense": 1.0}}, ValueError, "'dense' matches no parameter"),
        (
            (X, X[:, 0]),
            {"likelihood": lambda out: dist.Normal(out[:, 0], out[:, 0] - 9)},
            ValueError,
            "likelihood of 20 of the first 20 targets is NaN or zero",
        ),
        (
            (X, X[:, 0]),
            {"likelihood": lambda out: dist.Normal(out.T, 1.0)},
            ValueError,
            r"one of targets \[3, 40\], but \[40\] came",
        ),
    ],
)
def test_bad_input(data, options, error, message):
    arguments = {"epochs": 1, "batch_size": 20} | options
    with pytest.raises(error, match=message):
        svi(jax.random.key(0), affine, AFFINE, data, **arguments)


def test_bad_parameters():
    nan = AFFINE | {"bias": jnp.full(3, jnp.nan)}
    with pytest.raises(ValueError, match="parameter bias holds values that are NaN"):
        svi(jax.random.key(0), affine, nan, (X, LABELS), epochs=1, batch_size=20)
    integers = AFFINE | {"bias": jnp.zeros(3, int)}
    with pytest.raises(TypeError, match="parameter bias has dtype int32, not a float"):
        svi(jax.random.key(0), affine, integers, (X, LABELS), epochs=1, batch_size=20)


@pytest.mark.slow
def test_function_that_gives_nan():
    with pytest.raises(ValueError, match=r"f gives 60 of 60 values .* NaN or infinite"):
        svi(
            jax.random.key(0), lambda p, x: affine(p, x) / 0, AFFINE, (X, np.arange(40) % 3),
            epochs=1, batch_size=20,
        )  # fmt: skip


@pytest.mark.slow
def test_divergence_names_the_epoch(tmp_path):
    file = tmp_path / "run.safetensors"
    with pytest.raises(DivergedError, match=re.compile("epoch [0-9]+")):
        run(epochs=50, optimizer=optax.sgd(1e30), checkpoint=file)


@pytest.mark.slow
def test_svi_calibrates_its_posterior():
    """Noise that positions share of a kernel, flattened: moments alone have .7 of the variance."""
    f, params, (x, y) = small_classifier()
    key = jax.random.key(0)
    run = {"epochs": 3, "batch_size": 32, "init_scale": 0.05, "progress": False}
    plain = svi(key, f, params, (x, y), **run).posterior
    calibrated = svi(key, f, params, (x, y), calibrate=x[:128], **run).posterior
    assert isinstance(calibrated, Calibrated)
    jax.tree.map(np.testing.assert_array_equal, calibrated.posterior, plain)
    exact = predict(key, f, plain, x[128:160], samples=4_000, chunk=100).var(0)
    passes = moments(f, method="diagonal"), moments(f)
    own, ours = (
        np.median(np.abs(jax.jit(g)(p, x[128:160]).var / exact - 1))
        for g, p in zip(passes, (plain, calibrated), strict=True)
    )
    # The draws' own error is 2.2 %.
    assert ours < 0.1 < own
    # It is a posterior like others.
    draws = predict(key, f, calibrated, x[:4], samples=3)
    assert draws.shape == (3, 4, 10)
    check_posterior(calibrated, params)
    assert to_gaussians(calibrated) is calibrated
    assert "svi" in repr(svi(key, f, calibrated, (x, y), **run)).lower()


def test_svi_calibrates_the_mean_field_guide_alone(regression):
    data = regression[0]
    with pytest.raises(ValueError, match="calibrate needs the mean-field guide"):
        infer(jax.random.key(0), PARAMS, data, 1, 0.1, guide="low_rank", calibrate=data[0])
