"""Last-layer Laplace against its definition: the Hessian, the evidence, draws of weights."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from sklearn.datasets import load_digits

import jaxeff
from jaxeff import uncertainty as u
from jaxeff.bayes import LaplaceWarning, check_posterior, laplace, predict, sample, to_gaussians
from jaxeff.bayes._curvature import outputs_curvature
from jaxeff.moment_propagation import JointGaussian
from jaxeff.nn import MLP
from jaxeff.training import cross_entropy, fit

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (60, 4))
Y = (X[:, 0] > 0).astype(jnp.int32) + (X[:, 1] > 0.5).astype(jnp.int32)
F, START = jaxeff.functional(MLP((4, 6, 3), rngs=nnx.Rngs(0)))
DELTA = 0.7


@pytest.fixture(scope="module")
def params():
    """Trained with the prior, so that the gradient of the joint is zero."""

    def loss(p):
        nll = optax.softmax_cross_entropy_with_integer_labels(F(p, X), Y).sum()
        return nll + DELTA / 2 * sum((leaf**2).sum() for leaf in jax.tree.leaves(p))

    optimizer = optax.adam(3e-2)

    def step(carry, _):
        p, state = carry
        updates, state = optimizer.update(jax.grad(loss)(p), state)
        return (optax.apply_updates(p, updates), state), None

    run = jax.jit(lambda p: jax.lax.scan(step, (p, optimizer.init(p)), None, length=800)[0][0])
    return run(START)


def hessian(params):
    """Of the negative log-likelihood by the last layer's weights `[7, 3]`, by autograd."""
    hidden = jax.nn.relu(X @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    features = jnp.concatenate([hidden, jnp.ones((60, 1))], axis=1)
    matrix = jnp.concatenate([params["fc2"]["kernel"], params["fc2"]["bias"][None]])

    def nll(flat):
        logits = features @ flat.reshape(7, 3)
        return optax.softmax_cross_entropy_with_integer_labels(logits, Y).sum()

    return np.asarray(jax.jit(jax.hessian(nll))(matrix.ravel()), np.float64), features, matrix


@pytest.mark.slow
def test_full_is_the_hessian(params):
    h, features, matrix = hessian(params)
    posterior = laplace(
        jax.random.key(0), F, params, (X, Y), "fc2", "full", prior_precision=DELTA, batch_size=32
    )
    vectors = np.asarray(posterior.precision.vectors, np.float64).reshape(21, 21)
    ours = vectors @ np.diag(posterior.precision.values) @ vectors.T
    np.testing.assert_allclose(ours, h, atol=1e-4)
    covariance = np.linalg.inv(h + DELTA * np.eye(21))
    jacobian = np.einsum("nd,ck->ncdk", features, np.eye(3)).reshape(60, 3, 21)
    expected = jacobian @ covariance @ jacobian.swapaxes(1, 2)
    logits = posterior.logits(X)
    np.testing.assert_allclose(logits.cov, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(logits.mean, F(params, X), atol=1e-6)
    np.testing.assert_allclose(posterior.marginals(X).var, logits.var, rtol=1e-4)
    log_likelihood = -float(optax.softmax_cross_entropy_with_integer_labels(F(params, X), Y).sum())
    evidence = log_likelihood - 0.5 * (
        np.linalg.slogdet(h + DELTA * np.eye(21))[1] - 21 * np.log(DELTA)
        + DELTA * float((np.asarray(matrix, np.float64) ** 2).sum())
    )  # fmt: skip
    np.testing.assert_allclose(posterior.evidence(), evidence, rtol=1e-5)


@pytest.mark.slow
def test_kron_blocks_and_diag_are_their_definitions(params):
    h, features, _ = hessian(params)
    probs = jax.nn.softmax(F(params, X))
    each = np.asarray(outputs_curvature("categorical", F(params, X), Y), np.float64)
    left = np.asarray(features.T @ features, np.float64)
    kron = np.kron(left, each.sum(0)) / 60
    diagonal = np.diag(np.diag(h))
    jacobian = np.einsum("nd,ck->ncdk", features, np.eye(3)).reshape(60, 3, 21)
    blocks = np.einsum(
        "nd,ne,nc,ck->dcek", features, features, each[:, range(3), range(3)], np.eye(3)
    )
    blocks = blocks.reshape(21, 21)
    for structure, curvature in (("kron", kron), ("diag", diagonal), ("outputs", blocks)):
        posterior = laplace(
            jax.random.key(0), F, params, (X, Y), "fc2", structure, prior_precision=DELTA
        )
        covariance = np.linalg.inv(curvature + DELTA * np.eye(21))
        expected = jacobian @ covariance @ jacobian.swapaxes(1, 2)
        np.testing.assert_allclose(posterior.logits(X).cov, expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(posterior.marginals(X).var, posterior.logits(X).var, rtol=1e-4)
        variances = posterior.weights.unpack(
            params, posterior.precision.weights_variance(posterior.prior_precision)
        )
        np.testing.assert_allclose(
            variances["fc2"]["kernel"].ravel(), np.diag(covariance)[:18], rtol=1e-3
        )
        values = np.sort(np.asarray(posterior.precision.values).ravel())
        np.testing.assert_allclose(values, np.linalg.eigvalsh(curvature), rtol=1e-3, atol=1e-4)
        probit = posterior.probs(X)
        joint = JointGaussian(F(params, X), jnp.asarray(expected, jnp.float32))
        np.testing.assert_allclose(probit, jax.nn.softmax(u.probit_logits(joint)), atol=1e-4)
    assert probs.shape == (60, 3)


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["full", "outputs", "kron", "diag"])
def test_drawn_weights_have_the_linearised_predictive(params, structure):
    posterior = laplace(
        jax.random.key(0), F, params, (X, Y), "fc2", structure, prior_precision=DELTA
    )
    check_posterior(posterior, params)
    n = 20_000
    draws = np.asarray(predict(KEY, F, posterior, X[:5], samples=n, chunk=1000), np.float64)
    logits = posterior.logits(X[:5])
    se = draws.std(0) / np.sqrt(n)
    assert (np.abs(draws.mean(0) - logits.mean) < 4 * se).all()
    centred = draws - draws.mean(0)
    products = centred[:, :, :, None] * centred[:, :, None, :]
    se = products.std(0) / np.sqrt(n)
    assert (np.abs(products.mean(0) - logits.cov) < 4.5 * se + 1e-6).all()
    sampled = posterior.probs(X[:5], link="samples", key=KEY, samples=n)
    from_weights = np.asarray(jax.nn.softmax(draws), np.float64)
    se = from_weights.std(0) / np.sqrt(n)
    assert (np.abs(sampled - from_weights.mean(0)) < 4.5 * np.sqrt(2) * se).all()
    one = sample(KEY, posterior, 2)
    np.testing.assert_array_equal(one["fc1"]["kernel"][1], params["fc1"]["kernel"])


@pytest.mark.slow
def test_the_prior_is_that_of_the_highest_evidence(params):
    for structure in ("full", "kron", "diag"):
        tuned = laplace(jax.random.key(0), F, params, (X, Y), "fc2", structure)
        around = np.exp(np.linspace(-0.5, 0.5, 41)) * float(tuned.prior_precision)
        evidence = jax.vmap(tuned.evidence)(jnp.asarray(around, jnp.float32))
        assert abs(int(np.argmax(evidence)) - 20) <= 3
        assert tuned.evidence() >= evidence.max() - 1e-4
        # MacKay: at the optimum, prior * |W|^2 is the number of determined weights.
        square = sum(float((np.asarray(leaf) ** 2).sum()) for leaf in params["fc2"].values())
        values = np.asarray(tuned.precision.values, np.float64)
        prior = float(tuned.prior_precision)
        np.testing.assert_allclose(prior * square, (values / (values + prior)).sum(), rtol=1e-3)


def test_a_prior_without_a_best_one_is_told():
    posterior = laplace(jax.random.key(0), F, START, (X, Y), "fc2", "diag", prior_precision=DELTA)
    zero = replace(posterior, params=jax.tree.map(jnp.zeros_like, START))
    with pytest.warns(LaplaceWarning, match=r"stopped at a prior precision of 6\.57e\+07"):
        zero.tuned()
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), START)
    with pytest.raises(ValueError, match="curvature or weights are NaN or infinite"):
        replace(posterior, params=broken).tuned()


def test_the_prior_of_many_weights_is_found_by_a_histogram():
    posterior = laplace(jax.random.key(0), F, START, (X, Y), "fc2", "diag", prior_precision=DELTA)
    rng = np.random.default_rng(0)
    # Some that data determine, many that they hardly do, and some they say nothing of.
    values = np.concatenate(
        [rng.lognormal(3, 1, 4_000), rng.lognormal(-9, 2, 200_000), np.zeros(1_000)]
    )
    kernel = jnp.full((6, 3), 12.0)
    many = replace(
        posterior, params={**START, "fc2": {**START["fc2"], "kernel": kernel}},
        precision=replace(posterior.precision, values=jnp.asarray(values[None], jnp.float32)),
    )  # fmt: skip
    prior = float(many.tuned().prior_precision)
    square = 18 * 144.0 + float((np.asarray(START["fc2"]["bias"]) ** 2).sum())
    np.testing.assert_allclose(prior * square, (values / (values + prior)).sum(), rtol=1e-3)


@pytest.mark.parametrize("structure", ["kron", "full", "outputs", "lowrank"])
def test_independent_weights_raise_the_loss_by_as_much(params, structure):
    """Half the trace of curvature times covariance, by the curvature's definition in float64."""
    posterior = laplace(
        jax.random.key(0), F, params, (X, Y), "fc2", structure, prior_precision=DELTA, rank=21
    )
    hidden = jax.nn.relu(X @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    features = np.concatenate([hidden, np.ones((60, 1))], 1).astype(np.float64)
    probs = np.asarray(jax.nn.softmax(F(params, X)), np.float64)
    each = np.einsum("nc,ck->nck", probs, np.eye(3)) - probs[:, :, None] * probs[:, None]
    if structure == "kron":
        curvature = np.kron(features.T @ features, each.mean(0))
    else:
        curvature = np.einsum("nd,ne,nck->dcek", features, features, each)
        if structure == "outputs":
            curvature *= np.eye(3)[None, :, None]
        curvature = curvature.reshape(21, 21)
    determined = np.trace(curvature @ np.linalg.inv(curvature + DELTA * np.eye(21)))
    gaussians = to_gaussians(posterior)["fc2"]
    variance = np.concatenate(
        [gaussians["kernel"].var, gaussians["bias"].var[None]], dtype=np.float64
    )
    np.testing.assert_allclose((np.diag(curvature) * variance.ravel()).sum(), determined, rtol=1e-3)
    # One factor for all: in between, weights are those of the least divergence.
    ratio = variance.ravel() * (np.diag(curvature) + DELTA)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)
    # The variances as they are raise it by more: what features hardly have is spread over them.
    alone = to_gaussians(posterior, diagonal=True)["fc2"]["kernel"].var
    assert (alone > gaussians["kernel"].var).all()


@pytest.mark.slow
def test_moments_of_correlated_weights_decide_as_draws_do():
    """ECE of moments within .02 of the draws'; with variances as they are it is .2 above."""
    x, y = (jnp.asarray(a) for a in load_digits(return_X_y=True))
    x = x / 16 + 0.3 * jax.random.normal(KEY, x.shape)
    f, start = jaxeff.functional(MLP((64, 32, 10), rngs=nnx.Rngs(0)))
    trained = fit(
        KEY, cross_entropy(f), start, (x[:400], y[:400]), optimizer=optax.adamw(1e-2), epochs=15,
        batch_size=50, progress=False,
    ).params  # fmt: skip
    x_test, y_test = x[400:], y[400:]
    posterior = laplace(KEY, f, trained, (x[:400], y[:400]), "fc2", "kron")
    drawn = jax.nn.softmax(predict(KEY, f, posterior, x_test, samples=200)).mean(0)

    def error(probs):
        return float(u.ece(probs, y_test))

    def of(gaussians):
        return error(u.predict_probs(KEY, jaxeff.moments(f)(gaussians, x_test), 200))

    assert abs(of(to_gaussians(posterior)) - error(drawn)) < 0.02
    assert of(to_gaussians(posterior, diagonal=True)) > error(drawn) + 0.2
    # Joint logits without draws: what they have in common is no doubt about the class.
    assert abs(error(posterior.probs(x_test)) - error(drawn)) < 0.02
    check = jaxeff.moments_check(
        KEY, f, to_gaussians(posterior, diagonal=True), x_test[:50], logits=True
    )
    # Beside draws of weights that are as independent.
    assert check.agrees
    assert check.decides


def test_moments_take_it(params):
    posterior = laplace(jax.random.key(0), F, params, (X, Y), "fc2", "diag", prior_precision=DELTA)
    out = jaxeff.moments(F)(to_gaussians(posterior), X)
    np.testing.assert_allclose(out.var, posterior.marginals(X).var, rtol=1e-4)


@pytest.mark.slow
def test_a_regression_with_a_likelihood_of_ones_own():
    f, params = jaxeff.functional(MLP((4, 6, 1), rngs=nnx.Rngs(0)))
    targets = X[:, :1] * 2
    noise = 0.3
    posterior = laplace(
        jax.random.key(0), f, params, (X, targets), "fc2", "full", prior_precision=1.0,
        likelihood=lambda out: dist.Normal(out, noise).to_event(1),
    )  # fmt: skip
    hidden = jax.nn.relu(X @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    features = np.concatenate([hidden, np.ones((60, 1))], 1).astype(np.float64)
    covariance = np.linalg.inv(features.T @ features / noise**2 + np.eye(7))
    expected = np.einsum("nd,de,ne->n", features, covariance, features)
    np.testing.assert_allclose(posterior.marginals(X).var[:, 0], expected, rtol=1e-3)
    with pytest.raises(ValueError, match="no logits of classes"):
        posterior.probs(X)


@pytest.mark.slow
def test_a_thousand_classes_fit():
    f, params = jaxeff.functional(MLP((4, 128, 1000), rngs=nnx.Rngs(0)))
    labels = jnp.arange(60, dtype=jnp.int32)
    posterior = laplace(
        jax.random.key(0), f, params, (X, labels), "fc2", "kron", prior_precision=1.0
    )
    run = jax.jit(posterior.marginals).lower(X).compile()
    memory = run.memory_analysis()
    used = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert used < 2**26
    with pytest.raises(ValueError, match=r"129 x 1000 weights takes 62 GiB; choose 'kron'"):
        laplace(jax.random.key(0), f, params, (X, labels), "fc2", "full")


def test_what_is_no_linear_last_layer_is_refused(params):
    data = (X, Y)
    with pytest.raises(ValueError, match=r"fc1 is no linear last layer: its result goes to relu"):
        laplace(jax.random.key(0), F, params, data, "fc1", "outputs")
    with pytest.raises(ValueError, match=r"its result goes to .*logits instead of probabilities"):
        laplace(
            jax.random.key(0),
            lambda p, x: jax.nn.log_softmax(F(p, x)),
            params,
            data,
            "fc2",
            "outputs",
        )
    with pytest.raises(ValueError, match=r"structure must be one of"):
        laplace(jax.random.key(0), F, params, data, "fc2", "low_rank")
    with pytest.raises(ValueError, match=r"prior_precision must be positive"):
        laplace(jax.random.key(0), F, params, data, "fc2", "kron", prior_precision=0.0)
    with pytest.raises(ValueError, match=r"labels must be 0 to 2"):
        laplace(jax.random.key(0), F, params, (X, Y + 1), "fc2", "kron")

    def tied(p, x):
        return jnp.tanh(x @ p["w"]["kernel"]) @ p["w"]["kernel"]

    square = {"w": {"kernel": jnp.eye(4)}}
    with pytest.raises(ValueError, match=r"w#1 is no linear last layer: w reads its kernel"):
        laplace(jax.random.key(0), tied, square, data, "w#1", "outputs")
