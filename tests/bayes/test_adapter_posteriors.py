"""Posteriors and members of adapters alone, of tied heads, and of outputs with positions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree

import jaxeff
from jaxeff.adapters import LoRA, init_lora, lora, untied
from jaxeff.bayes import laplace, predict, svi
from jaxeff.ensembles import Members, member_loss
from jaxeff.training import fit
from tests.bayes.gauss_newton import gauss_newton

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (30, 4))
Y = (X[:, 0] > 0).astype(jnp.int32) + (X[:, 1] > 0.5).astype(jnp.int32)
SPEC = {"*:linear": LoRA(2, alpha=3.0)}
PRIOR = 0.7
WEIGHTS = jax.random.normal(jax.random.key(2), (9, 5)) / 2
PARAMS = {
    "one": {"kernel": WEIGHTS[:4], "bias": WEIGHTS[8]},
    "two": {"kernel": WEIGHTS[4:8].T[:, :3]},
}


def f(params, x):
    hidden = jnp.tanh(x @ params["one"]["kernel"] + params["one"]["bias"].reshape(1, -1))
    return hidden @ params["two"]["kernel"]


G = lora(f, SPEC)
ADAPTERS = jax.tree.map(
    lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape),
    init_lora(KEY, f, PARAMS, X, SPEC),
)


def h(adapters, x):
    """A function of adapters; the frozen parameters are its constants."""
    return G(PARAMS, adapters, x)


def variances(posterior):
    var = jax.tree.map(
        lambda g: g.var, posterior.to_gaussians(diagonal=True), is_leaf=lambda g: hasattr(g, "var")
    )
    return np.asarray(ravel_pytree(var)[0], np.float64)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_adapters_have_the_curvature_of_automatic_derivatives(structure):
    curvature, jacobians = gauss_newton(h, ADAPTERS, X, Y)
    if structure == "diag":
        curvature = np.diag(np.diag(curvature))
    covariance = np.linalg.inv(curvature + PRIOR * np.eye(len(curvature)))
    posterior = laplace(
        jax.random.key(0), h, ADAPTERS, (X, Y), "*", structure, prior_precision=PRIOR
    )
    expected = np.einsum("ncp,pq,nkq->nck", jacobians, covariance, jacobians)
    np.testing.assert_allclose(posterior.logits(X).cov, expected, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(variances(posterior), np.diag(covariance), rtol=2e-3)
    # Moments of first order are those of independent weights.
    linear = jaxeff.moments(h, method="linear")(posterior.to_gaussians(diagonal=True), X)
    alone = (jacobians**2 * np.diag(covariance)).sum(-1)
    np.testing.assert_allclose(linear.var, alone, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_frozen_weights_that_are_parameters_stay_certain(structure):
    g = lambda p, x: G(p["frozen"], p["adapters"], x)  # noqa: E731
    together = {"frozen": PARAMS, "adapters": ADAPTERS}
    alone = laplace(jax.random.key(0), h, ADAPTERS, (X, Y), "*", structure, prior_precision=PRIOR)
    posterior = laplace(
        jax.random.key(0), g, together, (X, Y), "*", structure, prior_precision=PRIOR,
        only="adapters/*",
    )  # fmt: skip
    np.testing.assert_allclose(posterior.logits(X).cov, alone.logits(X).cov, rtol=1e-4, atol=1e-6)
    jax.tree.map(
        np.testing.assert_array_equal, posterior.to_gaussians(diagonal=True)["frozen"], PARAMS
    )
    with pytest.raises(ValueError, match="matches none of the sites' parameters"):
        laplace(jax.random.key(0), g, together, (X, Y), "*", structure, only="adapter/*")
    with pytest.raises(ValueError, match="of a whole layer"):
        laplace(jax.random.key(0), g, together, (X, Y), "*", "last_layer", only="adapters/*")


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_each_factor_of_an_adapter_has_a_kronecker_product():
    posterior = laplace(jax.random.key(0), h, ADAPTERS, (X, Y), "*", "kron", prior_precision=PRIOR)
    x = np.asarray(X, np.float64)
    one = {k: np.asarray(v[0], np.float64) for k, v in ADAPTERS["one/kernel"].items()}
    two = {k: np.asarray(v[0], np.float64) for k, v in ADAPTERS["two/kernel"].items()}
    first, second = (np.asarray(PARAMS[k]["kernel"], np.float64) for k in ("one", "two"))
    scale = 1.5
    hidden = np.tanh(
        x @ (first + scale * one["a"] @ one["b"]) + np.asarray(PARAMS["one"]["bias"], np.float64)
    )
    probs = np.asarray(jax.nn.softmax(h(ADAPTERS, X)), np.float64)
    inside = np.einsum("nc,ck->nck", probs, np.eye(3)) - probs[:, :, None] * probs[:, None]
    back = (1 - hidden**2)[:, :, None] * (second + scale * two["a"] @ two["b"])[None]
    factors = {  # what each factor multiplies, and how outputs depend on its result
        ("one/kernel", "a"): (x, scale * one["b"] @ back),
        ("one/kernel", "b"): (x @ one["a"], scale * back),
        ("two/kernel", "a"): (hidden, np.broadcast_to(scale * two["b"], (30, 2, 3))),
        ("two/kernel", "b"): (hidden @ two["a"], np.broadcast_to(scale * np.eye(3), (30, 3, 3))),
    }
    gaussians = posterior.to_gaussians(diagonal=True)
    for (path, name), (rows, slopes) in factors.items():
        product = np.kron(rows.T @ rows / 30, np.einsum("nok,nkl,npl->op", slopes, inside, slopes))
        expected = np.diag(np.linalg.inv(product + PRIOR * np.eye(len(product))))
        np.testing.assert_allclose(np.ravel(gaussians[path][name].var), expected, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_a_factor_of_rank_one_alone_is_no_bias():
    spec = {"two": LoRA(1, alpha=3.0)}
    adapters = init_lora(KEY, f, PARAMS, X, spec)
    g = lora(f, spec)

    def of_b(b, x):
        return g(PARAMS, {"two/kernel": adapters["two/kernel"] | b}, x)

    b = {"b": adapters["two/kernel"]["b"] + 0.5}
    posterior = laplace(jax.random.key(0), of_b, b, (X, Y), "*", "kron", prior_precision=PRIOR)
    # One row of inputs: the product of factors is their mean square times the curvature.
    hidden = np.tanh(X @ PARAMS["one"]["kernel"] + PARAMS["one"]["bias"])
    rows = np.asarray(hidden @ adapters["two/kernel"]["a"][0], np.float64)
    probs = np.asarray(jax.nn.softmax(of_b(b, X)), np.float64)
    inside = np.einsum("nc,ck->nck", probs, np.eye(3)) - probs[:, :, None] * probs[:, None]
    precision = (rows**2).mean() * 9 * inside.sum(0) + PRIOR * np.eye(3)
    expected = np.diag(np.linalg.inv(precision))
    np.testing.assert_allclose(
        np.ravel(posterior.to_gaussians(diagonal=True)["b"].var), expected, rtol=2e-3
    )


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_a_bias_that_is_scaled_is_no_weight_whose_input_is_one(structure):
    def scaled(params, x):
        return x @ params["fc"]["kernel"] + 3 * params["fc"]["bias"].reshape(1, -1)

    params = {"fc": {"kernel": WEIGHTS[:4, :3], "bias": WEIGHTS[8, :3]}}
    curvature, _ = gauss_newton(scaled, params, X, Y)
    posterior = laplace(
        jax.random.key(0), scaled, params, (X, Y), "fc", structure, prior_precision=PRIOR
    )
    gaussians = posterior.to_gaussians(diagonal=True)["fc"]["bias"].var
    if structure == "full":
        expected = np.diag(np.linalg.inv(curvature + PRIOR * np.eye(15)))[:3]
    else:
        expected = 1 / (np.diag(curvature)[:3] + PRIOR)
    np.testing.assert_allclose(gaussians, expected, rtol=2e-3)


@pytest.mark.oracle
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_drawn_labels_estimate_the_curvature_without_bias():
    curvature, _ = gauss_newton(h, ADAPTERS, X, Y)

    def values(structure, key):
        posterior = laplace(
            key, h, ADAPTERS, (X, Y), "*", structure, prior_precision=PRIOR, draws=20
        )
        return np.asarray(posterior.precision.values, np.float64)

    keys = jax.random.split(KEY, 30)
    diagonal = np.stack([values("diag", key) for key in keys])
    error = diagonal.std(0, ddof=1) / np.sqrt(30)
    assert (np.abs(diagonal.mean(0) - np.diag(curvature)) < 5 * error).all()
    assert (5 * error < 0.5 * np.diag(curvature)).all()
    # The sum of eigenvalues is linear in the factor that is estimated.
    exact = laplace(
        jax.random.key(0), h, ADAPTERS, (X, Y), "*", "kron", prior_precision=PRIOR
    ).precision.values.sum()
    sums = np.stack([values("kron", key).sum() for key in keys])
    assert abs(sums.mean() - float(exact)) < 5 * sums.std(ddof=1) / np.sqrt(30)
    one = values("diag", KEY)
    np.testing.assert_array_equal(one, values("diag", KEY))
    # Labels belong to examples, not to batches of them.
    parts = laplace(
        KEY, h, ADAPTERS, (X, Y), "*", "diag", prior_precision=PRIOR, draws=20, batch_size=7,
    )  # fmt: skip
    np.testing.assert_allclose(parts.precision.values, one, rtol=1e-4)


def tokens(params, x):
    return jnp.tanh(x @ params["a"]["kernel"]) @ params["b"]["kernel"]


TOKENS = {
    "a": {"kernel": 0.5 * jax.random.normal(KEY, (4, 3))},
    "b": {"kernel": 0.5 * jax.random.normal(jax.random.key(5), (3, 2))},
}


@pytest.mark.oracle
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("sites", ["*", "b"])
def test_linear_draws_have_the_covariance_of_outputs(sites):
    x = X.reshape(6, 5, 4)
    labels = (x[..., 0] > 0).astype(jnp.int32)
    posterior = laplace(
        jax.random.key(0), tokens, TOKENS, (x, labels), sites, "kron", prior_precision=PRIOR
    )
    n, logits = 20_000, posterior.logits(x)
    draws = np.asarray(jax.jit(lambda p: p.linear_draws(KEY, x, n))(posterior), np.float64)
    assert draws.shape == (n, 6, 5, 2)
    centred = draws - np.asarray(logits.mean)
    error = centred.std(0) / np.sqrt(n)
    assert (np.abs(centred.mean(0)) < 5 * error).all()
    products = centred[..., :, None] * centred[..., None, :]
    error = products.std(0) / np.sqrt(n)
    assert (np.abs(products.mean(0) - np.asarray(logits.cov)) < 5 * error).all()


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("structure", ["full", "diag", "outputs"])
def test_a_last_layer_of_positions_is_that_of_automatic_derivatives(structure):
    x = X.reshape(6, 5, 4)
    labels = (x[..., 0] > 0).astype(jnp.int32)
    of_last = lambda last, x: tokens(TOKENS | {"b": last}, x)  # noqa: E731
    curvature, jacobians = gauss_newton(of_last, TOKENS["b"], x, labels)
    if structure == "diag":
        curvature = np.diag(np.diag(curvature))
    if structure == "outputs":
        curvature = curvature * np.kron(np.ones((3, 3)), np.eye(2))
    covariance = np.linalg.inv(curvature + PRIOR * np.eye(6))
    posterior = laplace(
        jax.random.key(0), tokens, TOKENS, (x, labels), "b", structure, prior_precision=PRIOR
    )
    expected = np.einsum("btcp,pq,btkq->btck", jacobians, covariance, jacobians)
    np.testing.assert_allclose(posterior.logits(x).cov, expected, rtol=2e-3, atol=1e-5)
    diagonal = np.diagonal(expected, axis1=-2, axis2=-1)
    np.testing.assert_allclose(posterior.marginals(x).var, diagonal, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_one_factor_alone_may_be_random():
    # With the first factors fixed, outputs of one layer are linear: SVI finds the best independent
    # Gaussian, whose precision is the diagonal.
    def line(params, x):
        return x @ params["fc"]["kernel"]

    spec, params = {"fc": LoRA(2, alpha=2.0)}, {"fc": {"kernel": WEIGHTS[:4, :1]}}
    g = lora(line, spec)
    adapters = init_lora(KEY, line, params, X, spec)
    steps, noise = 1500, 0.5
    result = svi(
        KEY, lambda a, x: g(params, a, x), adapters, (X, X[:, 1]), epochs=steps, batch_size=30,
        likelihood=lambda out: dist.Normal(out[:, 0], noise), prior={"*/a": None, "*/b": 0.8},
        optimizer=optax.multi_transform(
            {"a": optax.set_to_zero(), "b": optax.adam(optax.cosine_decay_schedule(0.1, steps))},
            lambda numbers: jax.tree_util.tree_map_with_path(
                lambda path, _: "b" if "'b'" in str(path) or "/b" in str(path) else "a", numbers
            ),
        ),
        kl=optax.constant_schedule(1.0), progress=False,
    )  # fmt: skip
    posterior = result.posterior["fc/kernel"]
    np.testing.assert_array_equal(posterior["a"], adapters["fc/kernel"]["a"])
    rows = np.asarray(X @ adapters["fc/kernel"]["a"][0], np.float64)
    precision = rows.T @ rows / noise**2 + np.eye(2) / 0.8**2
    residual = np.asarray(X[:, 1] - (X @ params["fc"]["kernel"])[:, 0], np.float64)
    mean = np.linalg.solve(precision, rows.T @ residual / noise**2)
    std = 1 / np.sqrt(np.diag(precision))
    np.testing.assert_allclose(np.sqrt(posterior["b"].var)[0, :, 0], std, rtol=0.1)
    assert (np.abs(np.asarray(posterior["b"].mean)[0, :, 0] - mean) < 0.3 * std).all()


def test_moments_of_a_function_that_holds_frozen_parameters():
    posterior = jax.tree.map(
        lambda leaf: jaxeff.Gaussian(leaf, 1e-4 * jnp.ones_like(leaf)), ADAPTERS
    )
    gaussian = jaxeff.moments(h, method="linear")(posterior, X)
    given = jaxeff.moments(G, method="linear")(PARAMS, posterior, X)
    np.testing.assert_allclose(gaussian.var, given.var, rtol=1e-4)
    np.testing.assert_allclose(gaussian.mean, h(ADAPTERS, X), atol=1e-2)
    drawn = predict(KEY, h, posterior, X, samples=3)
    assert drawn.shape == (3, 30, 3)


TABLE = {"embed": jax.random.normal(KEY, (7, 4)), "fc": {"kernel": WEIGHTS[:4, :4]}}
WORDS = jnp.arange(20).reshape(4, 5) * 3 % 7


def decoder(params, words):
    return jnp.tanh(params["embed"][words] @ params["fc"]["kernel"]) @ params["embed"].T


def test_an_untied_head_is_random_alone():
    g, own = untied(decoder, TABLE, WORDS, "embed#1")
    np.testing.assert_array_equal(g(own, WORDS), decoder(TABLE, WORDS))
    assert own["own"]["kernel"].shape == (4, 7)
    slopes = jax.grad(lambda own: (g(own, WORDS) ** 2).sum())(own)
    tied = jax.grad(lambda params: (decoder(params, WORDS) ** 2).sum())(TABLE)
    both = slopes["shared"]["embed"] + slopes["own"]["kernel"].T
    np.testing.assert_allclose(both, tied["embed"], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="linear here: fc, embed#1"):
        untied(decoder, TABLE, WORDS, "embed")
    posterior = laplace(
        jax.random.key(0), g, own, (WORDS, WORDS), "embed#1", "full", prior_precision=PRIOR
    )
    of_head = lambda head, words: g(own | {"own": head}, words)  # noqa: E731
    curvature, jacobians = gauss_newton(of_head, own["own"], WORDS, WORDS)
    covariance = np.linalg.inv(curvature + PRIOR * np.eye(28))
    expected = np.einsum("btcp,pq,btcq->btc", jacobians, covariance, jacobians)
    np.testing.assert_allclose(posterior.marginals(WORDS).var, expected, rtol=2e-3)


def wide(members, params, *args):
    """The products of a function that have an axis of members, of all."""
    jaxpr = jax.make_jaxpr(members)(params, *args).jaxpr
    products = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    return [3 in eqn.outvars[0].aval.shape for eqn in products]


def test_members_share_what_comes_before_the_first_that_is_theirs():
    g, untied_params = untied(decoder, TABLE, WORDS, "embed#1")
    heads, params = jaxeff.ensemble(KEY, g, untied_params, {"own": Members(3)})
    assert heads(params, WORDS).shape == (3, 4, 5, 7)
    assert wide(heads, params, WORDS) == [False, True]
    # Of adapters at the head, the frozen product with the shared table isn't repeated, either.
    spec = {"embed#1": LoRA(2)}
    adapted = lora(decoder, spec)
    of_adapters = lambda a, words: adapted(TABLE, a, words)  # noqa: E731
    start = init_lora(KEY, decoder, TABLE, WORDS, spec)
    several, members = jaxeff.ensemble(
        KEY, of_adapters, start, {"*": Members(3)},
        init=lambda key: init_lora(key, decoder, TABLE, WORDS, spec),
    )  # fmt: skip
    assert wide(several, members, WORDS) == [False, False, True, True]
    trained = fit(
        KEY, member_loss(several), members, (WORDS, WORDS), optimizer=optax.adam(0.1), epochs=2,
        batch_size=4, progress=False,
    ).params  # fmt: skip
    one = several.member(trained, 1)
    np.testing.assert_allclose(several(trained, WORDS)[1], of_adapters(one, WORDS), atol=1e-5)
