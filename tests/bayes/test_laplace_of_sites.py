"""Laplace over any sites against exact posteriors and curvatures by automatic derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

import jaxeff
from jaxeff.bayes import check_posterior, laplace, predict
from jaxeff.nn import MLP
from tests.bayes.gauss_newton import gauss_newton

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (30, 4))
Y = (X[:, 0] > 0).astype(jnp.int32) + (X[:, 1] > 0.5).astype(jnp.int32)
F, PARAMS = jaxeff.functional(MLP((4, 5, 3), rngs=nnx.Rngs(0)))
PRIOR = 0.7
NOISE = 0.3
STRUCTURES = ("full", "kron", "diag", "lowrank")


class Conv(nnx.Module):
    """A convolution, a pooling, a dense layer."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 2, (3, 3), padding="VALID", rngs=rngs)
        self.fc = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.tanh(self.conv(x))
        return self.fc(x.reshape(x.shape[0], -1))


def weights_of(posterior, n=200_000):
    """The variances of all weights, as one vector."""
    var = jax.tree.map(
        lambda g: g.var, posterior.to_gaussians(diagonal=True), is_leaf=lambda g: hasattr(g, "var")
    )
    return np.asarray(ravel_pytree(var)[0], np.float64)


def linear(params, x):
    return x @ params["fc"]["kernel"] + params["fc"]["bias"]


def two_factors(params, x):
    """Linear in one site, whose weights meet a fixed layer after it."""
    return (x @ params["a"]["kernel"] + params["a"]["bias"]) @ params["b"]["kernel"]


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_linear_gaussian_model_has_its_exact_posterior(structure):
    rng = np.random.default_rng(0)
    params = {
        "a": {"kernel": jnp.asarray(rng.normal(size=(4, 2)), jnp.float32), "bias": jnp.zeros(2)},
        "b": {"kernel": jnp.asarray(rng.normal(size=(2, 1)), jnp.float32)},
    }
    x, features = np.asarray(X, np.float64), np.ones((30, 5))
    features[:, :4] = x
    column = np.asarray(params["b"]["kernel"], np.float64)
    # Weights in the order of the leaves, bias first.
    order = np.concatenate([features[:, 4:], features[:, :4]], 1)
    jacobian = np.einsum("nd,c->ndc", order, column[:, 0]).reshape(30, 10)
    curvature = jacobian.T @ jacobian / NOISE**2
    if structure == "diag":
        curvature = np.diag(np.diag(curvature))
    covariance = np.linalg.inv(curvature + PRIOR * np.eye(10))
    posterior = laplace(
        jax.random.key(0), two_factors, params, (X, X[:, :1]), "a", structure,
        prior_precision=PRIOR, rank=5,
        likelihood=lambda mean: dist.Normal(mean, NOISE).to_event(1),
    )  # fmt: skip
    expected = np.einsum("nd,de,ne->n", jacobian, covariance, jacobian)
    np.testing.assert_allclose(posterior.marginals(X).var[:, 0], expected, rtol=2e-3)
    np.testing.assert_allclose(posterior.logits(X).cov[:, 0, 0], expected, rtol=2e-3)
    np.testing.assert_allclose(
        ravel_pytree(jax.tree.map(lambda g: g.var, posterior.to_gaussians(diagonal=True)["a"],
                                  is_leaf=lambda g: hasattr(g, "var")))[0],
        np.diag(covariance), rtol=2e-3,
    )  # fmt: skip
    evidence = posterior.log_likelihood - 0.5 * (
        np.linalg.slogdet(curvature / PRIOR + np.eye(10))[1]
        + PRIOR * float((np.asarray(params["a"]["kernel"], np.float64) ** 2).sum())
    )
    np.testing.assert_allclose(posterior.evidence(), evidence, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", ["full", "diag", "lowrank"])
def test_curvature_is_that_of_automatic_derivatives(structure):
    h, jacobians = gauss_newton(F, PARAMS, X, Y)
    size = len(h)
    values, vectors = np.linalg.eigh(h)
    if structure == "diag":
        h = np.diag(np.diag(h))
    if structure == "lowrank":
        values[:-8] = 0
        h = vectors @ np.diag(values) @ vectors.T
    covariance = np.linalg.inv(h + PRIOR * np.eye(size))
    posterior = laplace(
        jax.random.key(0), F, PARAMS, (X, Y), "*", structure, prior_precision=PRIOR, rank=8
    )
    check_posterior(posterior, PARAMS)
    expected = np.einsum("ncp,pq,nkq->nck", jacobians, covariance, jacobians)
    logits = posterior.logits(X)
    np.testing.assert_allclose(logits.cov, expected, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(posterior.marginals(X).var, logits.var, rtol=1e-4)
    np.testing.assert_allclose(weights_of(posterior), np.diag(covariance), rtol=2e-3)
    np.testing.assert_allclose(posterior.probs(X).sum(-1), 1, atol=1e-5)
    prior = 2.0 * PRIOR
    square = float((np.asarray(ravel_pytree(PARAMS)[0], np.float64) ** 2).sum())
    evidence = float(posterior.log_likelihood) - 0.5 * (
        np.linalg.slogdet(h / prior + np.eye(size))[1] + prior * square
    )
    np.testing.assert_allclose(posterior.evidence(prior), evidence, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize(
    ("sites", "structure"),
    [("*", "full"), ("*", "diag"), ("*", "lowrank"), ("fc2", "full"), ("fc2", "diag")],
)
def test_means_and_log_variances_have_the_fisher_information(sites, structure):
    """`J^T diag(1/v, 1/2) J` in float64, whatever the targets; some residuals are far out."""
    f, params = jaxeff.functional(MLP((4, 5, 4), rngs=nnx.Rngs(0)))
    targets = 3 * jax.random.normal(KEY, (30, 2))
    chosen = params if sites == "*" else params[sites]
    flat, unravel = ravel_pytree(chosen)

    def outputs(vector, example):
        named = unravel(vector) if sites == "*" else {**params, sites: unravel(vector)}
        return f(named, example[None])[0]

    jacobian = np.asarray(jax.vmap(jax.jacrev(outputs), (None, 0))(flat, X), np.float64)
    log_var = np.asarray(f(params, X), np.float64)[:, 2:]
    inside = np.concatenate([np.exp(-log_var), np.full((30, 2), 0.5)], 1)
    h = np.einsum("nop,no,noq->pq", jacobian, inside, jacobian)
    if structure == "diag":
        h = np.diag(np.diag(h))
    covariance = np.linalg.inv(h + PRIOR * np.eye(len(h)))
    posterior = laplace(
        jax.random.key(0), f, params, (X, targets), sites, structure, likelihood="gaussian",
        prior_precision=PRIOR, rank=len(h) - 1,
    )  # fmt: skip
    expected = np.einsum("nop,pq,noq->no", jacobian, covariance, jacobian)
    np.testing.assert_allclose(posterior.marginals(X).var, expected, rtol=2e-3)


@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_negative_curvature_is_told():
    """A Student's t has it beyond its scale: at these targets all of it is set to zero."""
    with pytest.warns(jaxeff.bayes.LaplaceWarning, match="negative curvature at these targets"):
        laplace(
            jax.random.key(0), linear, {"fc": {"kernel": jnp.zeros((4, 1)), "bias": jnp.zeros(1)}},
            (X, jnp.full((30, 1), 9.0)), "*", "diag", prior_precision=PRIOR,
            likelihood=lambda mean: dist.StudentT(3.0, mean, 1.0).to_event(1),
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", STRUCTURES)
def test_models_in_float32_stay_so_where_float64_is_on(structure):
    with jax.enable_x64(True):
        posterior = laplace(
            jax.random.key(0), F, PARAMS, (X, Y), "*", structure, prior_precision=PRIOR, rank=5
        )
        gaussians = (
            posterior.logits(X),
            posterior.marginals(X),
            posterior.to_gaussians(diagonal=True),
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(gaussians)} == {jnp.dtype(jnp.float32)}
        with_one = laplace(
            jax.random.key(0), F, PARAMS, (X, Y), "fc2", structure, prior_precision=PRIOR, rank=5
        )
        assert with_one.marginals(X).var.dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_kronecker_factors_are_their_definition():
    f, params = jaxeff.functional(Conv(nnx.Rngs(0)))
    x = jax.random.normal(KEY, (20, 4, 4, 1))
    labels = jnp.arange(20, dtype=jnp.int32) % 3
    posterior = laplace(
        jax.random.key(0), f, params, (x, labels), "*", "kron", prior_precision=PRIOR
    )
    kernel, bias = params["conv"]["kernel"], params["conv"]["bias"]
    patches = np.stack([  # 3 x 3 of 4 x 4: four places
        np.asarray(x[:, i : i + 3, j : j + 3, 0]).reshape(20, 9)
        for i in range(2) for j in range(2)
    ], 1)  # fmt: skip
    rows = np.concatenate([patches, np.ones((20, 4, 1))], 2).astype(np.float64)
    matrix = np.concatenate([np.asarray(kernel).reshape(9, 2), np.asarray(bias)[None]])
    hidden = np.tanh(rows @ matrix)
    flat = hidden.reshape(20, 8)
    fc = np.asarray(params["fc"]["kernel"], np.float64)
    probs = np.asarray(jax.nn.softmax(f(params, x)), np.float64)
    inside = np.einsum("nc,ck->nck", probs, np.eye(3)) - probs[:, :, None] * probs[:, None]
    slopes = (1 - hidden**2).reshape(20, 4, 2)
    g = slopes[:, :, :, None] * fc.reshape(4, 2, 3)[None]  # by each place's result
    conv = np.kron(
        np.einsum("nsd,nse->de", rows, rows) / 80, np.einsum("nsok,nkl,nspl->op", g, inside, g)
    )
    last = np.concatenate([flat, np.ones((20, 1))], 1)
    dense = np.kron(last.T @ last / 20, inside.sum(0))
    variances = [np.diag(np.linalg.inv(h + PRIOR * np.eye(len(h)))) for h in (conv, dense)]
    gaussians = posterior.to_gaussians(diagonal=True)
    for name, expected in zip(("conv", "fc"), variances, strict=True):
        columns = gaussians[name]["bias"].var.size
        ours = np.concatenate(
            [np.asarray(gaussians[name]["kernel"].var).reshape(-1, columns),
             np.asarray(gaussians[name]["bias"].var)[None]]
        )  # fmt: skip
        np.testing.assert_allclose(ours.ravel(), expected, rtol=1e-3)
    values = np.sort(np.concatenate([np.linalg.eigvalsh(h) for h in (conv, dense)]))
    np.testing.assert_allclose(np.sort(posterior.precision.values), values, atol=1e-3)
    # The last layer alone is what its features say.
    alone = laplace(jax.random.key(0), f, params, (x, labels), "fc", "kron", prior_precision=PRIOR)
    np.testing.assert_allclose(
        alone.to_gaussians(diagonal=True)["fc"]["kernel"].var,
        gaussians["fc"]["kernel"].var,
        rtol=1e-3,
    )


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_outputs_may_have_positions():
    def tokens(params, x):
        return jnp.tanh(x @ params["a"]["kernel"]) @ params["b"]["kernel"]

    params = {
        "a": {"kernel": 0.5 * jax.random.normal(KEY, (4, 3))},
        "b": {"kernel": 0.5 * jax.random.normal(jax.random.key(5), (3, 2))},
    }
    x = X.reshape(6, 5, 4)
    labels = (x[..., 0] > 0).astype(jnp.int32)
    h, jacobians = gauss_newton(tokens, params, x, labels)
    covariance = np.linalg.inv(h + PRIOR * np.eye(len(h)))
    posterior = laplace(
        jax.random.key(0), tokens, params, (x, labels), "*", "full", prior_precision=PRIOR
    )
    logits = posterior.logits(x)
    assert logits.mean.shape == (6, 5, 2)
    expected = np.einsum("btcp,pq,btkq->btck", jacobians, covariance, jacobians)
    np.testing.assert_allclose(logits.cov, expected, rtol=2e-3, atol=1e-5)
    assert posterior.probs(x).shape == (6, 5, 2)
    # All rows count as examples, so that of independent positions the product is as of a batch.
    kron = laplace(
        jax.random.key(0), tokens, params, (x, labels), "b", "kron", prior_precision=PRIOR
    )
    flat = laplace(
        jax.random.key(0),
        tokens,
        params,
        (x.reshape(30, 4), labels.ravel()),
        "b",
        "kron",
        prior_precision=PRIOR,
    )
    np.testing.assert_allclose(
        kron.marginals(x).var.reshape(30, 2), flat.marginals(x.reshape(30, 4)).var, rtol=1e-3
    )


@pytest.mark.oracle
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", STRUCTURES)
def test_draws_have_the_covariance_of_the_weights(structure):
    posterior = laplace(
        jax.random.key(0), F, PARAMS, (X, Y), "*", structure, prior_precision=PRIOR, rank=8
    )
    n = 20_000
    entries, at = posterior.draws(KEY, n)
    vectors = np.asarray(jax.vmap(lambda e: ravel_pytree(at(e))[0])(entries), np.float64)
    mean = np.asarray(ravel_pytree(PARAMS)[0], np.float64)
    expected = weights_of(posterior)
    assert (np.abs(vectors.mean(0) - mean) < 5 * np.sqrt(expected / n)).all()
    # A variance's standard error is sqrt(2 / n) of it.
    assert (np.abs(vectors.var(0) / expected - 1) < 5 * np.sqrt(2 / n)).all()
    # Along a row of the Jacobian, where weights meet.
    row = np.asarray(ravel_pytree(jax.grad(lambda p: F(p, X[:1])[0, 0])(PARAMS))[0], np.float64)
    along = (vectors - mean) @ row
    ratio = along.var() / float(posterior.marginals(X[:1]).var[0, 0])
    assert abs(ratio - 1) < 5 * np.sqrt(2 / n)
    outputs = predict(KEY, F, posterior, X[:2], samples=3)
    assert outputs.shape == (3, 2, 3)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_some_sites_and_the_laws():
    posterior = laplace(jax.random.key(0), F, PARAMS, (X, Y), "fc1", "diag")
    gaussians = posterior.to_gaussians(diagonal=True)
    np.testing.assert_array_equal(gaussians["fc2"]["kernel"], PARAMS["fc2"]["kernel"])
    assert gaussians["fc1"]["kernel"].var.shape == (4, 5)
    # The evidence chose the prior.
    around = jnp.asarray([0.9, 1.0, 1.1]) * posterior.prior_precision
    evidence = jax.vmap(posterior.evidence)(around)
    assert int(jnp.argmax(evidence)) == 1
    eager = posterior.marginals(X).var
    np.testing.assert_allclose(jax.jit(lambda p, x: p.marginals(x).var)(posterior, X), eager,
                               rtol=1e-5)  # fmt: skip
    each = jax.vmap(lambda x: posterior.marginals(x[None]).var[0])(X)
    np.testing.assert_allclose(each, eager, rtol=1e-4)
    draws = jax.tree.leaves(posterior.draws(KEY, 2)[0])
    again = jax.tree.leaves(posterior.draws(KEY, 2)[0])
    for one, other in zip(draws, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(
        draws[0], jax.tree.leaves(posterior.draws(jax.random.key(1), 2)[0])[0]
    )


@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_the_last_layer_is_found():
    found = laplace(
        jax.random.key(0), F, PARAMS, (X, Y), structure="last_layer", prior_precision=PRIOR
    )
    named = laplace(jax.random.key(0), F, PARAMS, (X, Y), "fc2", "full", prior_precision=PRIOR)
    np.testing.assert_array_equal(found.marginals(X).var, named.marginals(X).var)


def test_what_has_no_weights_is_refused():
    data = (X, Y)
    with pytest.raises(ValueError, match=r"relu have no parameters"):
        laplace(jax.random.key(0), F, PARAMS, data, "relu", "kron")
    with pytest.raises(ValueError, match=r"'outputs' is one of a single layer.*fc1, .*fc2"):
        laplace(jax.random.key(0), F, PARAMS, data, "*", "outputs")
    wide = {"a": {"kernel": jnp.ones((200, 200))}, "b": {"kernel": jnp.ones((200, 3))}}

    def f(params, x):
        return jnp.tanh(x @ params["a"]["kernel"]) @ params["b"]["kernel"]

    with pytest.raises(ValueError, match=r"full curvature of 40600 x 1 weights.*'lowrank'"):
        laplace(jax.random.key(0), f, wide, (jnp.ones((3, 200)), Y[:3]), "*", "full")


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_each_part_is_compiled_once(structure):
    """A fit in batches of 7 of 20 examples is one program, and so are answers asked for again."""
    traces = []

    def f(params, x):
        traces.append(x.shape)
        return jnp.tanh(x @ params["a"]) @ params["b"]

    key = jax.random.key(0)
    params = {"a": jax.random.normal(key, (3, 4)), "b": jax.random.normal(key, (4, 2))}
    x, y = jax.random.normal(key, (20, 3)), jnp.arange(20) % 2
    data, sites = (x, y), ("*", structure)
    at_once = laplace(key, f, params, data, *sites, prior_precision=1.0)
    in_batches = laplace(key, f, params, data, *sites, prior_precision=1.0, batch_size=7)
    np.testing.assert_allclose(in_batches.evidence(), at_once.evidence(), rtol=1e-4)
    expected = at_once.logits(x).cov
    np.testing.assert_allclose(in_batches.logits(x).cov, expected, rtol=2e-3, atol=1e-5)
    in_batches.marginals(x), in_batches.linear_draws(key, x, 3)
    other = laplace(key, f, params, data, *sites, prior_precision=2.0, batch_size=7)
    traces.clear()
    for posterior in (in_batches, other):
        posterior.logits(x), posterior.probs(x), posterior.linear_draws(key, x, 3)
    assert not traces
