"""`Discrete`: exact moments, draws, where logits start, and the local reparametrization trick."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff import compression as jc
from jaxeff import contrib
from jaxeff.moment_propagation import Gaussian, moments, sampled
from jaxeff.nn import small_classifier

KEY = jax.random.key(2)
WEIGHT = jc.Tensor("fc", "weights_1", "weight", 2, KEY, lambda: (1,))
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def net(params, x):
    return jnp.tanh(x @ params["fc"]) @ params["out"]


@pytest.fixture(scope="module")
def small():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"fc": jax.random.normal(keys[0], (6, 5)), "out": jax.random.normal(keys[1], (5, 3))}
    x = jax.random.normal(keys[2], (4, 6))
    return (
        params,
        x,
        jc.init(net, params, x, {"*:linear": jc.LayerQuantization(contrib.Discrete())}),
    )


@pytest.mark.slow
@pytest.mark.parametrize("levels", [2, 3])
def test_every_method_keeps_the_rules(check_method, levels):
    check_method(contrib.Discrete(levels, draw="mode"), exact=False)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [2, 3])
def test_moments_draws_and_gradients(levels):
    n, values = 4000, np.linspace(-1, 1, levels)
    logits = np.random.default_rng(3).normal(size=(6, 4, levels)).astype(np.float32)
    scale = np.array([[0.5, 1.0, 2.0, 0.1]], np.float32)
    q = contrib.Discrete(levels, jnp.asarray(logits), jnp.asarray(scale))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mean = scale * (p * values).sum(-1)
    var = scale**2 * (p * values**2).sum(-1) - mean**2
    ours = q.gaussian(jnp.asarray(X), WEIGHT)
    np.testing.assert_allclose(ours.mean, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, var, rtol=1e-4, atol=1e-6)

    def draw(key):
        return q.quantize(jnp.asarray(X), dataclasses.replace(WEIGHT, key=key))

    drawn = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(0), n)))
    share = np.isclose(drawn[..., None], (scale[..., None] * values)).mean(0)
    assert (np.abs(share - p) <= 4 * np.sqrt(p * (1 - p) / n)).all()
    best = values[logits.argmax(-1)] * scale
    mode = q.deterministic().quantize(jnp.asarray(X), dataclasses.replace(WEIGHT, key=None))
    np.testing.assert_allclose(mode, best, rtol=1e-6)
    # The mean's gradient: d mean / d logit_k = scale p_k (v_k - sum_j p_j v_j).
    grads = jax.grad(lambda q: jnp.vdot(G, q.quantize(jnp.asarray(X), WEIGHT)))(q)
    slope = (G * scale)[..., None] * p * (values - (p * values).sum(-1, keepdims=True))
    np.testing.assert_allclose(grads.logits, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_where_logits_start():
    q = contrib.Discrete().start(jnp.asarray(X), WEIGHT)
    u = X / X.std(0, keepdims=True)
    zero = np.clip(0.95 - 0.9 * np.abs(u), 0.05, 0.95)
    up = np.clip((1 + u / (1 - zero)) / 2, 0.05, 0.95)
    p = jax.nn.softmax(q.logits)
    np.testing.assert_allclose(p[..., 1], zero, rtol=1e-5)
    np.testing.assert_allclose(p[..., 2], (1 - zero) * up, rtol=1e-5)
    # Where nothing is clipped the mean of a weight is the weight.
    free = (np.abs(u) < 0.95) & (np.abs(u / (1 - zero)) < 0.9)
    assert free.any()
    np.testing.assert_allclose(
        np.asarray(q.gaussian(jnp.asarray(X), WEIGHT).mean)[free], X[free], rtol=1e-4
    )


@pytest.mark.slow
def test_moments_of_a_layer_are_those_of_discrete_weights(small):
    params, x, spec = small
    f = lambda p, x: x @ p["fc"]  # noqa: E731
    spec = {"fc": spec["fc"]}
    n = 4000
    draws = jax.vmap(lambda key: jc.quantized(f, spec, keyed=True)(key, params, x))
    drawn = np.asarray(draws(jax.random.split(KEY, n)))
    exact = moments(f)(jc.random_weights(f, params, x, spec), x)
    assert (np.abs(drawn.mean(0) - exact.mean) <= 4.5 * exact.std / np.sqrt(n)).all()
    # The squared deviation's standard error, from the draws themselves.
    squares = (drawn - np.asarray(exact.mean)) ** 2
    assert (np.abs(squares.mean(0) - exact.var) <= 4.5 * squares.std(0) / np.sqrt(n)).all()
    # The trick draws with the same moments.
    tricked = jax.vmap(lambda key: sampled(f)(key, jc.random_weights(f, params, x, spec), x))
    tricks = np.asarray(tricked(jax.random.split(KEY, n)))
    assert (np.abs(tricks.mean(0) - exact.mean) <= 4.5 * exact.std / np.sqrt(n)).all()
    deviation = 4.5 * np.sqrt(2 / n) * exact.var
    assert (np.abs(tricks.var(0) - exact.var) <= deviation).all()


@pytest.mark.slow
def test_the_trick_has_gradients_of_less_variance(small):
    params, _, spec = small
    x = jax.random.normal(jax.random.key(9), (64, 6))
    keys = jax.random.split(KEY, 200)

    def total(g):
        def of(spec, key):
            return jnp.mean(g(key, jc.random_weights(net, params, x, spec), x) ** 2)

        grads = jax.vmap(jax.grad(of), (None, 0))(spec, keys)
        return grads["fc"].weights.logits

    def by_weights(key, gaussians, x):
        where = lambda v: isinstance(v, Gaussian)  # noqa: E731
        drawn = jax.tree.map(lambda g: g.sample(key), gaussians, is_leaf=where)
        return net(drawn, x)

    local, apart = total(sampled(net)), total(by_weights)
    assert local.var(0).sum() < 0.5 * apart.var(0).sum()


@pytest.mark.slow
@pytest.mark.promotes("dtype")  # Optax
def test_logits_are_learnt():
    # Targets of a ternary layer are found again from random weights.
    keys = jax.random.split(jax.random.key(5), 3)
    truth = jax.random.randint(keys[0], (8, 4), -1, 2).astype(jnp.float32)
    x = jax.random.normal(keys[1], (256, 8))
    f = lambda p, x: x @ p["fc"]  # noqa: E731
    params = {"fc": 0.5 * jax.random.normal(keys[2], (8, 4))}
    spec = {"fc": jc.LayerQuantization(contrib.Discrete(scale=1.0))}
    spec = jc.init(f, params, x, spec)
    optimizer = optax.adam(0.1)

    @jax.jit
    def step(carry, key):
        spec, state = carry

        def loss(spec):
            y = sampled(f)(key, jc.random_weights(f, params, x, spec), x)
            return jnp.mean((y - x @ truth) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(spec), state)
        return (optax.apply_updates(spec, updates), state), None

    (spec, _), _ = jax.lax.scan(step, (spec, optimizer.init(spec)), jax.random.split(KEY, 200))
    scale = spec["fc"].weights.scale
    ours = jc.quantized(f, jc.deterministic(spec))(params, jnp.eye(8)) / scale
    np.testing.assert_allclose(ours, truth, atol=1e-6)


@pytest.mark.slow
def test_in_a_flax_model():
    f, params, (x, _) = small_classifier()
    spec = jc.init(f, params, x, {"*:linear": jc.LayerQuantization(contrib.Discrete(2))})
    gaussians = jc.random_weights(f, params, x, spec)
    where = lambda v: isinstance(v, Gaussian)  # noqa: E731
    found = sum(where(leaf) for leaf in jax.tree.leaves(gaussians, is_leaf=where))
    assert found == len(spec)
    drawn = jax.jit(sampled(f))
    one, same, other = (drawn(jax.random.key(i), gaussians, x) for i in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert np.isfinite(jax.jit(jc.quantized(f, jc.deterministic(spec)))(params, x)).all()


@pytest.mark.slow
def test_settled_leaves_nothing_to_chance(small):
    params, x, _ = small
    for method in (
        contrib.Relaxed(4),
        contrib.BayesianBits(),
        jc.Stochastic(4),
        jc.DoReFa(4, gradient_bits=4),
        jc.Binary(stochastic=True),
        jc.Switched(jc.Stochastic(4)),
    ):
        with pytest.raises(ValueError, match="keyed=True"):
            jax.eval_shape(jc.quantized(net, {"*": method}), params, x)
        jax.eval_shape(jc.quantized(net, jc.deterministic({"*": method})), params, x)


@pytest.mark.slow
def test_what_cannot_be(small):
    params, x, _ = small
    with pytest.raises(ValueError, match="Discrete at fc/input_0 has an activation"):
        jc.quantized(net, {"*": jc.LayerQuantization(activations=contrib.Discrete())})(params, x)
    with pytest.raises(ValueError, match=r"Discrete.logits at fc/weights_1 has shape \(2, 3\)"):
        jc.quantized(net, {"fc": jc.LayerQuantization(contrib.Discrete(logits=jnp.zeros((2, 3))))})(
            params, x
        )
    twice = lambda p, x: jnp.tanh(x @ p["w"]) @ p["w"]  # noqa: E731
    with pytest.raises(ValueError, match="The weight of 'w#1' is read by 'w', too"):
        jc.random_weights(
            twice, {"w": jnp.eye(6)}, x, {"*:linear": jc.LayerQuantization(contrib.Discrete())}
        )
    turned = lambda p, x: x @ p["w"].T  # noqa: E731
    with pytest.raises(ValueError, match="'w' reaches its product in another form"):
        jc.random_weights(
            turned,
            {"w": jnp.ones((5, 6))},
            x,
            {"w": jc.LayerQuantization(contrib.Discrete(per="tensor"))},
        )
    with pytest.raises(ValueError, match="levels must be one of 2, 3"):
        contrib.Discrete(4)
    assert contrib.Discrete(2).storage((6, 4), WEIGHT) == 24 + 4 * 32
    assert contrib.Discrete().width == 2
