"""Networks that know what they have seen: spectral norms, DDU against QDA, SNGP against a GP."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import nnx
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

import jaxeff
from jaxeff.bayes import laplace
from jaxeff.ensembles import Members, Spectral, feature_density, sngp, spectral
from jaxeff.nn import MLP
from jaxeff.program.costs import inputs_of

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (40, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 3), rngs=nnx.Rngs(0)))


def convolution(params, x):
    out = jax.lax.conv_general_dilated(
        x, params["conv"]["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return out + params["conv"]["bias"][None, None, None]


CONV = {"conv": {"kernel": jax.random.normal(KEY, (3, 3, 2, 4)), "bias": jnp.ones(4)}}
IMAGES = jax.random.normal(jax.random.key(2), (3, 6, 6, 2))


def largest(f, params, shape):
    """The largest singular value of a function's linear part."""
    jacobian = jax.jacobian(lambda x: f(params, x[None])[0])(jnp.zeros(shape))
    return np.linalg.norm(np.asarray(jacobian, np.float64).reshape(-1, np.prod(shape)), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "params", "x", "site"),
    [
        (lambda p, x: x @ p["fc1"]["kernel"], PARAMS, X, "fc1"),
        (convolution, CONV, IMAGES, "conv"),
    ],
    ids=["dense", "convolution"],
)
def test_the_norm_is_bounded(f, params, x, site):
    norm = largest(f, params, x.shape[1:])
    bound = 0.5 * norm
    g = spectral(f, {site: Spectral(bound, iterations=200)})
    np.testing.assert_allclose(largest(g, params, x.shape[1:]), bound, rtol=1e-3)
    loose = jax.jit(spectral(f, {site: Spectral(2.0 * norm)}))
    np.testing.assert_allclose(loose(params, x), jax.jit(f)(params, x), rtol=1e-5, atol=1e-6)
    few = spectral(f, {site: Spectral(bound)})
    assert bound * 0.999 < largest(few, params, x.shape[1:]) < 1.1 * bound


@pytest.mark.slow
def test_the_bound_has_a_gradient():
    w = jax.random.normal(KEY, (6, 5))
    g = spectral(lambda p, x: x @ p["w"], {"w": Spectral(1.0, iterations=300)})
    ours = jax.grad(lambda w: jnp.sin(g({"w": w}, X)).sum())(w)

    def exact(w):
        return jnp.sin(X @ (w / jnp.linalg.norm(w, 2))).sum()

    np.testing.assert_allclose(ours, jax.grad(exact)(w), atol=2e-3)


@pytest.mark.slow
def test_it_is_a_transform_like_others():
    np.testing.assert_array_equal(spectral(F, {})(PARAMS, X), F(PARAMS, X))
    np.testing.assert_array_equal(spectral(F, {"*": None})(PARAMS, X), F(PARAMS, X))
    g = spectral(F, {"fc*": Spectral(0.5)})
    out = jax.jit(g)(PARAMS, X)
    np.testing.assert_allclose(g(PARAMS, X), out, atol=1e-6)
    in_rows = jax.vmap(lambda row: g(PARAMS, row[None])[0])(X)
    np.testing.assert_allclose(in_rows, out, atol=1e-6)
    bounds = jnp.array([0.5, 1.0])
    swept = jax.vmap(lambda b: spectral(F, {"fc*": Spectral(b)})(PARAMS, X))(bounds)
    np.testing.assert_allclose(swept[0], out, atol=1e-6)

    def recurrent(params, x):
        step = lambda h, _: (jnp.tanh(h @ params["cell"]["kernel"]), None)  # noqa: E731
        return jax.lax.scan(step, x, length=3)[0]

    cell = {"cell": {"kernel": 3.0 * jnp.eye(6)}}
    bounded = spectral(recurrent, {"cell": Spectral(1.0, iterations=50)})
    one = {"cell": {"kernel": jnp.eye(6)}}
    np.testing.assert_allclose(bounded(cell, X), recurrent(one, X), atol=1e-5)


@pytest.mark.slow
def test_members_of_a_bounded_network():
    bounded = spectral(F, {"fc*": Spectral(0.5)})
    assert jaxeff.sites(bounded, PARAMS, X) == jaxeff.sites(F, PARAMS, X)
    g, params = jaxeff.ensemble(KEY, bounded, PARAMS, {"fc2": Members(3)})
    np.testing.assert_allclose(g(params, X)[1], bounded(g.member(params, 1), X), atol=1e-6)
    with pytest.raises(ValueError, match="has nothing for a norm"):
        spectral(F, {"relu": Spectral()})(PARAMS, X)
    with pytest.raises(TypeError, match="a bound such as"):
        spectral(F, {"fc1": 3.0})


def blobs(examples=400, size=5):
    keys = jax.random.split(KEY, 3)
    labels = jax.random.choice(keys[0], 3, (examples,), p=jnp.array([0.5, 0.3, 0.2]))
    mix = jax.random.normal(keys[1], (3, size, size))
    normal = jax.random.normal(keys[2], (examples, size))
    points = jnp.einsum("nd,nde->ne", normal, mix[labels])
    return points + 2.0 * labels[:, None].astype(jnp.float32), labels


@pytest.mark.slow
def test_density_is_that_of_quadratic_discriminant_analysis():
    points, labels = blobs()
    density = feature_density(points, labels, 3)
    x = np.concatenate([points[:50], 3 * points[50:60]])
    oracle = QuadraticDiscriminantAnalysis(store_covariance=True).fit(points, labels)
    # scikit-learn leaves out the constant of the normal density.
    joint = oracle._decision_function(np.asarray(x, np.float64)) - 2.5 * np.log(2 * np.pi)
    ours = jax.jit(type(density).log_joint)(density, x)
    np.testing.assert_allclose(ours, joint, atol=1e-3)
    total = np.log(np.exp(joint - joint.max(1, keepdims=True)).sum(1)) + joint.max(1)
    np.testing.assert_allclose(density.log_density(x), total, atol=1e-3)
    np.testing.assert_allclose(density.log_probs(x), oracle.predict_log_proba(x), atol=1e-3)


@pytest.mark.slow
def test_what_a_density_refuses():
    points, labels = blobs(60)
    with pytest.raises(ValueError, match="class 3 has no examples among 60"):
        feature_density(points, labels, 4)
    few = jnp.concatenate([points, points[:1]]), jnp.concatenate([labels, jnp.array([3])])
    with pytest.raises(ValueError, match="class 3 has 1 example among 61"):
        feature_density(*few, 4)
    dead = points.at[:, 2].set(0.0)
    with pytest.raises(ValueError, match=r"class 0 is singular, of rank 4 in 5.*shrinkage=0\.01"):
        feature_density(dead, labels, 3)
    assert np.isfinite(feature_density(dead, labels, 3, shrinkage=0.01).log_density(points)).all()
    with pytest.raises(ValueError, match="labels must be 0 to 1"):
        feature_density(points, labels, 2)
    with pytest.raises(TypeError, match=r"features must be \[examples, features\]"):
        feature_density(points[:, :, None], labels, 3)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_variance_is_that_of_an_exact_gaussian_process():
    f = lambda params, x: x @ params["last"]["kernel"]  # noqa: E731
    g, params = sngp(
        KEY, f, {"last": {"kernel": jnp.zeros((6, 1))}}, X, "last", features=1024, length_scale=2.0
    )
    assert jaxeff.sites(g, params, X)[-1] == "head"
    noise = 0.3
    posterior = laplace(
        jax.random.key(0), g, params, (X, X[:, :1]), "head", "outputs", prior_precision=1.0,
        likelihood=lambda out: dist.Normal(out, noise).to_event(1),
    )  # fmt: skip
    at = np.concatenate([np.asarray(X), 3 * np.asarray(X), 0.5 * np.asarray(X)]).astype(np.float64)
    seen = np.asarray(X, np.float64)

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * 2.0**2))

    cross = kernel(at, seen)
    inverse = np.linalg.inv(kernel(seen, seen) + noise**2 * np.eye(40))
    exact = 1 - np.einsum("ni,ij,nj->n", cross, inverse, cross)
    ours = posterior.marginals(jnp.asarray(at, jnp.float32)).var[:, 0]
    assert np.corrcoef(ours, exact)[0, 1] > 0.99
    assert np.abs(ours - exact).max() < 0.15


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_a_classifier_with_random_features():
    g, params = sngp(KEY, F, PARAMS, X, "fc2", features=64)
    labels = (X[:, 0] > 0).astype(jnp.int32)
    np.testing.assert_array_equal(g(params, X), np.zeros((40, 3)))
    hidden = inputs_of(F, "fc2")(PARAMS, X)
    np.testing.assert_allclose(
        hidden, jax.nn.relu(X @ PARAMS["fc1"]["kernel"] + PARAMS["fc1"]["bias"][None]), atol=1e-6
    )
    posterior = laplace(
        jax.random.key(0), g, params, (X, labels), "head", "outputs", prior_precision=1.0
    )
    phi = np.asarray(g.features(params, X), np.float64)
    covariance = np.linalg.inv(np.eye(64) + 2 / 9 * phi.T @ phi)  # of a guess, p (1 - p) = 2 / 9
    expected = np.einsum("nd,de,ne->n", phi, covariance, phi)
    np.testing.assert_allclose(posterior.marginals(X).var[:, 1], expected, rtol=1e-4)
    with pytest.raises(ValueError, match="fc1 is no linear last layer"):
        sngp(KEY, F, PARAMS, X, "fc1")
    with pytest.raises(ValueError, match="no site 'fc9'"):
        sngp(KEY, F, PARAMS, X, "fc9")
    with pytest.raises(ValueError, match="the same features"):
        sngp(KEY, F, PARAMS, jnp.ones((3, 6)), "fc2")
