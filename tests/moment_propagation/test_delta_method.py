"""`moments(f, method="linear")` against Monte Carlo over the function itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.moment_propagation import Gaussian, JointGaussian, is_gaussian, moments
from jaxeff.moment_propagation.linear import _linear as linear_method
from jaxeff.nn import MLP

KEY = jax.random.key(0)
SAMPLES = 4_000


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape) / max(shape[-2], 1) ** 0.5


def conv(p, x):
    for kernel in p["kernels"]:
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
    return x.mean((1, 2)) @ p["head"]


def attention(p, x):
    q, k, v = (x @ p[name] for name in "qkv")
    x = x + jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v
    x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
    return x.mean(1) @ p["head"]


def lstm(p, x):
    def step(carry, x_t):
        h, c = carry
        i, g, f, o = jnp.split(x_t @ p["input"] + h @ p["hidden"] + p["bias"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), None

    start = jnp.zeros((len(x), p["hidden"].shape[0]))
    (h, _), _ = jax.lax.scan(step, (start, start), x.swapaxes(0, 1))
    return h @ p["head"]


MLP_F, MLP_PARAMS = jaxeff.functional(MLP((16, 32, 32, 5), rngs=nnx.Rngs(0)))
NETS = {
    "mlp": (MLP_F, MLP_PARAMS, jax.random.normal(KEY, (4, 16))),
    "conv and mean": (
        conv,
        {"kernels": [normal(1, 3, 3, 2, 8), normal(2, 3, 3, 8, 8) / 2], "head": normal(3, 8, 4)},
        jax.random.normal(KEY, (3, 8, 8, 2)),
    ),
    "attention": (
        attention,
        {name: normal(i, 16, 16) for i, name in enumerate("qkv")}
        | {"up": normal(4, 16, 32), "down": normal(5, 32, 16), "head": normal(6, 16, 4)},
        jax.random.normal(KEY, (3, 6, 16)),
    ),
    "lstm": (
        lstm,
        {"input": normal(1, 4, 32), "hidden": normal(2, 8, 32), "head": normal(3, 8, 3)}
        | {"bias": jax.random.normal(KEY, (32,)) / 4},
        jax.random.normal(KEY, (3, 7, 4)),
    ),
}


def noisy(params, noise):
    """Every array's noise relative to its own spread."""
    return jax.tree.map(
        lambda w: Gaussian(w, jnp.full_like(w, noise**2 * (jnp.var(w) + 1e-6))), params
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_variances_are_those_of_samples_at_small_noise(name, oracle):
    f, params, x = NETS[name]
    args = (noisy(params, 0.03), x)
    ours = jax.jit(moments(f, method="linear"))(*args)
    samples = oracle.monte_carlo(f, args, SAMPLES, 500)
    ratio = np.asarray(ours.var) / samples.var
    # One entry's sampled variance has a standard error of sqrt(2 / 4000) = 2.2 %.
    assert np.median(np.abs(ratio - 1)) <= 0.06
    # A ReLU near its bend is worth more than its slope says.
    low, high = np.quantile(ratio, (0.05, 0.95))
    assert low > 0.85
    assert high < 1.15
    np.testing.assert_allclose(ours.mean, f(params, x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_noise_at_the_input_and_what_layers_share(oracle):
    f, params, x = NETS["mlp"]
    twice = lambda p, x: f(p, x) * f(p, x)[:, ::-1]  # noqa: E731
    args = (noisy(params, 0.02), Gaussian(x, jnp.full_like(x, 4e-4)))
    ours = jax.jit(moments(twice, method="linear"))(*args)
    samples = oracle.monte_carlo(twice, args, SAMPLES, 500)
    assert np.median(np.abs(ours.var / samples.var - 1)) <= 0.06


@pytest.mark.slow
def test_a_function_without_rules():
    weights = Gaussian(jnp.array([0.3, -0.2]), jnp.array([1e-4, 4e-4]))
    f = lambda w, x: jnp.linalg.det(x * jnp.outer(w, w) + jnp.eye(2))  # noqa: E731
    gaussian = moments(f, method="linear")(weights, 2.0)
    slope = jax.grad(f)(weights.mean, 2.0)
    np.testing.assert_allclose(gaussian.var, (weights.var * slope**2).sum(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 1_000])
def test_chunks_change_nothing(chunk, monkeypatch):
    f, params, x = NETS["conv and mean"]
    args = (noisy(params, 0.03), x)
    all_at_once = moments(f, method="linear")(*args)
    monkeypatch.setattr("jaxeff.moment_propagation.linear._linear.CHUNK_ENTRIES", chunk * 3)
    gaussian = moments(f, method="linear")(*args)
    np.testing.assert_allclose(gaussian.var, all_at_once.var, rtol=1e-5)


TOKENS = jax.random.randint(KEY, (2, 5), 0, 20)


def language_model(p, tokens):
    x = p["embedding"][tokens]
    x = x + jnp.tanh(x.mean(1, keepdims=True) @ p["mix"]) + jnp.tanh(x @ p["up"])
    return x @ p["head"] + p["bias"] if "head" in p else x @ p["embedding"].T


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("positions", [1, 5])
def test_a_vocabulary_is_derived_through_the_hidden_state(tied, positions, monkeypatch):
    shapes = {"embedding": (20, 6), "mix": (6, 6), "up": (6, 6)}
    if not tied:
        shapes |= {"head": (6, 20), "bias": (1, 20)}
    params = {n: normal(i, *s) for i, (n, s) in enumerate(shapes.items())}
    args = noisy(params, 0.1), TOKENS[:, :positions]
    passes = []
    through = linear_method.variance_through
    monkeypatch.setattr(
        linear_method, "variance_through", lambda *a: passes.append(a[0].units) or through(*a)
    )
    gaussian = moments(language_model, method="linear")(*args)
    assert passes == [6]
    monkeypatch.setattr(linear_method, "HIDDEN_ENTRIES", 0)
    each = moments(language_model, method="linear")(*args)
    assert passes == [6]
    np.testing.assert_allclose(gaussian.var, each.var, rtol=2e-4)


@pytest.mark.slow
def test_transforms_of_jax():
    f, params, x = NETS["mlp"]
    args = noisy(params, 0.03), x
    g = moments(f, method="linear")
    plain = g(*args)
    np.testing.assert_allclose(jax.jit(g)(*args).var, plain.var, rtol=1e-5)
    apart = jax.vmap(g, in_axes=(None, 0))(args[0], x[:, None])
    np.testing.assert_allclose(apart.var[:, 0], plain.var, rtol=1e-5)

    def total(scale):
        scaled = jax.tree.map(
            lambda v: Gaussian(v.mean, v.var * scale), args[0], is_leaf=is_gaussian
        )
        return g(scaled, x).var.sum()

    # Linear in the variances.
    np.testing.assert_allclose(jax.grad(total)(1.0), plain.var.sum(), rtol=1e-5)


@pytest.mark.slow
def test_results_that_do_not_vary():
    f, params, x = NETS["mlp"]

    def several(p, x):
        y = f(p, x)
        return {"class": y.argmax(-1), "above": y > 0, "fixed": jnp.ones(3), "y": y}

    gaussian = jax.jit(moments(several, method="linear"))(noisy(params, 0.03), x)
    expected = several(params, x)
    np.testing.assert_array_equal(gaussian["class"], expected["class"])
    np.testing.assert_array_equal(gaussian["above"], expected["above"])
    np.testing.assert_array_equal(gaussian["fixed"].var, 0)
    np.testing.assert_array_equal(moments(f, method="linear")(params, x).mean, f(params, x))
    keyed = lambda p, x: f(p["w"], x) + jax.random.normal(p["key"], (4, 5))  # noqa: E731
    weights = {"w": noisy(params, 0.03), "key": KEY}
    var = moments(keyed, method="linear")(weights, x).var
    np.testing.assert_allclose(var, gaussian["y"].var, rtol=1e-5)


@pytest.mark.slow
def test_covariances_have_the_same_diagonal():
    f, params, x = NETS["mlp"]
    args = (noisy(params, 0.03), x)
    joint = moments(f, covariance=True)(*args)
    assert isinstance(joint, JointGaussian)
    np.testing.assert_allclose(joint.var, moments(f, method="linear")(*args).var, rtol=1e-5)


@pytest.mark.slow
def test_factors_are_those_of_the_linear_method():
    f, params, x = NETS["mlp"]
    weights = noisy(params, 0.3)
    calibrated = jaxeff.calibrate_moments(KEY, f, weights, x, samples=400, method="linear")
    linear = moments(f, method="linear")
    factor = np.asarray(calibrated.factors["linear result 0"])
    np.testing.assert_allclose(
        linear(calibrated, x).var, linear(weights, x).var * factor, rtol=1e-5
    )


def test_mistakes_are_named():
    f, params, x = NETS["mlp"]
    with pytest.raises(ValueError, match="method 'delta' is unknown"):
        moments(f, method="delta")
    with pytest.raises(ValueError, match="takes no rules and no form"):
        moments(f, method="linear", form="raw")
    with pytest.raises(ValueError, match="method 'delta' is unknown"):
        jaxeff.calibrate_moments(KEY, f, noisy(params, 0.1), x, method="delta")


CONVOLUTIONS = {
    "plain": {},
    "strided": {"window_strides": (2, 2)},
    "dilated": {"rhs_dilation": (2, 2)},
    "transposed": {"lhs_dilation": (2, 2), "padding": ((2, 2), (2, 2))},
    "groups": {"feature_group_count": 2},
    "depthwise": {"feature_group_count": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*CONVOLUTIONS, "used twice"])
def test_slopes_by_kernels_of_convolutions_are_those_of_the_function(kind):
    """Made of patches where a kernel is read once, and of whole passes backward elsewhere."""
    settings = {"window_strides": (1, 1), "padding": "SAME", **CONVOLUTIONS.get(kind, {})}
    groups = settings.get("feature_group_count", 1)

    def f(p, x):
        for name in ("first", "second", "first" if kind == "used twice" else "third"):
            y = jax.lax.conv_general_dilated(
                x, p[name], dimension_numbers=("NHWC", "HWIO", "NHWC"), **settings
            )
            x = jnp.tanh(y + p["bias"])
        return x.sum((1, 2))

    keys = jax.random.split(jax.random.key(3), 4)
    means = {
        name: jax.random.normal(k, (3, 3, 4 // groups, 4)) / 4
        for name, k in zip(("first", "second", "third"), keys, strict=False)
    } | {"bias": jnp.ones(4) / 8}
    x = jax.random.normal(keys[3], (3, 5, 5, 4))
    posterior = jax.tree.map(lambda w: Gaussian(w, 1e-6 * (1 + w**2)), means)
    slopes = jax.jit(jax.jacobian(f))(means, x)
    parts = jax.tree.map(
        lambda s, g: (s**2 * g.var).reshape(*s.shape[:2], -1).sum(-1), slopes, posterior
    )
    ours = jax.jit(moments(f, method="linear"))(posterior, x).var
    np.testing.assert_allclose(ours, sum(jax.tree.leaves(parts)), rtol=1e-3)
    if kind == "plain":
        full = jax.jit(moments(f, covariance=True))
        joint = full(posterior, x[:1])
        np.testing.assert_allclose(jnp.diagonal(joint.cov, axis1=-2, axis2=-1), ours[:1], rtol=1e-4)


@pytest.mark.slow
def test_groups_of_examples_give_what_all_together_give(monkeypatch):
    """Where memory is meant for a few only: unrolled groups, then a loop over them."""
    f = lambda p, x: jnp.tanh(x @ p) @ p.T  # noqa: E731
    p = Gaussian(jax.random.normal(jax.random.key(1), (6, 5)) / 3, jnp.full((6, 5), 1e-3))
    x = jax.random.normal(jax.random.key(2), (7, 6))
    all_at_once = jax.jit(moments(f, method="linear"))(p, x).var
    for entries in (2000, 600, 1):
        monkeypatch.setattr(linear_method, "CHUNK_ENTRIES", entries)
        again = jax.jit(moments(f, method="linear"))(p, x).var
        np.testing.assert_allclose(again, all_at_once, rtol=1e-5)
