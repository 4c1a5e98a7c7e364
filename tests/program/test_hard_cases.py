"""Functions easily read wrongly: uses of uses, backward passes, unit axes, long chains."""

import cProfile
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.noise import Additive
from jaxeff.program import evaluate, plain_rule, trace

W = jax.random.normal(jax.random.key(0), (6, 6)) / 3
X = jax.random.normal(jax.random.key(1), (4, 6))
IMAGES = jax.random.normal(jax.random.key(2), (2, 8, 8, 3))
PARAMS = {"w": W, "b": jnp.ones(6)}


def interpreted(f):
    def g(*args):
        program = trace(f, *args)
        outputs = evaluate(program, plain_rule, None, jax.tree.leaves(args))
        return jax.tree.unflatten(program.out_tree, outputs)

    return g


def names(f, *args):
    found = [layer.site for layer in trace(f, *args).sites]
    assert len(set(found)) == len(found)
    return [layer.site for layer in trace(f, *args).sites if layer.is_matchable]


def kinds(f, *args):
    return {layer.site: layer.kind for layer in trace(f, *args).sites}


def dense(p, x):
    return jax.nn.relu(x @ p["w"] + p["b"])


def assert_reads(f, *args):
    expected, output = jax.jit(f)(*args), jax.jit(interpreted(f))(*args)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(output), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def chained(g):
    return lambda p, x: g(p, g(p, x))


def side_by_side(g):
    return lambda p, x: g(p, x) - g(p, 2 * x)


@pytest.mark.promotes("rank")
@pytest.mark.parametrize("wrap", [chained, side_by_side])
def test_a_transformed_function_may_be_used_twice(wrap):
    f = wrap(interpreted(dense))
    assert_reads(f, PARAMS, X)
    uses = ["w", "relu", "w#1", "relu_1"]
    assert [n for n in names(f, PARAMS, X) if n in uses] == uses
    assert names(f, PARAMS, X) == names(interpreted(f), PARAMS, X)
    out = jaxeff.noisy(f, {"w#1": Additive(0.5)})(jax.random.key(0), PARAMS, X)
    assert not np.allclose(out, f(PARAMS, X))


def scanned(p, x):
    return lax.scan(lambda h, row: (jnp.tanh(h @ p["w"] + row), None), jnp.zeros(6), x)[0]


BACKWARD = {
    "jit": jax.jit(interpreted(dense)),
    "remat": interpreted(jax.checkpoint(dense)),
    "remat with a loss": jax.checkpoint(lambda p, x: jnp.sin(interpreted(dense)(p, x))),
    "scan": interpreted(scanned),
}


@pytest.mark.promotes("rank")
@pytest.mark.parametrize("name", BACKWARD)
def test_the_backward_pass_of_a_transformed_function_is_read_apart(name):
    def step(p, x):
        return jax.value_and_grad(lambda q: (BACKWARD[name](q, x) ** 2).sum())(p)

    assert_reads(step, PARAMS, X)
    assert "w" in names(step, PARAMS, X)
    spec = {"w": Additive(0.1)}
    _, gradient = jaxeff.noisy(step, spec)(jax.random.key(0), PARAMS, X)
    assert np.isfinite(gradient["w"]).all()


@pytest.mark.promotes("rank")
def test_a_bias_added_by_a_transformed_function_is_its_own_layer():
    def f(p, x):
        return interpreted(lambda p, y: y + p["b"])(p, x @ p["w"])

    assert_reads(f, PARAMS, X)
    assert names(f, PARAMS, X) == ["input", "w", "b"]


@pytest.mark.promotes("rank")
def test_a_dot_product_split_in_three_has_no_bias():
    def f(p, x):
        q, k, v = jnp.split(x @ p["w"], 3, -1)
        return (q + p["b"]) @ k.T @ v

    (linear, *_) = (s for s in trace(f, {"w": W, "b": jnp.ones(2)}, X).sites if s.site == "w")
    assert len(linear.nodes) == 1


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_average_pooling_that_counts_its_elements(padding):
    def f(p, x):
        pool = functools.partial(nnx.avg_pool, window_shape=(3, 3), strides=(2, 2))
        return pool(x * p, padding=padding, count_include_pad=False)

    assert kinds(f, jnp.float32(2), IMAGES)["avg_pool"] == "pooling"
    assert_reads(f, jnp.float32(2), IMAGES)


def test_a_window_with_a_computation_of_its_own():
    def f(p, x):
        dims = (1, 2, 2, 1)
        start = jnp.zeros(()) + 1.0
        return lax.reduce_window(x, start, lambda a, b: a * b, dims, dims, "VALID") * p

    assert kinds(f, jnp.float32(2), IMAGES)["pool"] == "pooling"
    assert_reads(f, jnp.float32(2), IMAGES)


@pytest.mark.parametrize("shape", [(4, 6), (4, 1), (1, 6), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_sites_do_not_depend_on_an_axis_of_one(shape, axis):
    def softmax(p, x):
        return jax.nn.softmax(x * p, axis)

    def standardize(p, x):
        return jax.nn.standardize(x * p, axis)

    x = jnp.ones(shape)
    assert "softmax" in names(softmax, jnp.float32(2), x)
    layer_kinds = kinds(standardize, jnp.float32(2), x)
    assert list(layer_kinds.values()) == ["input", "elementwise", "normalization"]


def test_a_value_read_by_two_pointwise_functions_is_a_layer():
    def f(p, x):
        y = jnp.tanh(x @ p["w"])
        return jnp.cos(y), jnp.exp(y)

    assert names(f, PARAMS, X) == ["input", "w", "tanh", "cos", "exp"]


def test_a_module_may_be_called_what_an_occurrence_would_be():
    def f(p, x):
        for name in ("Dense_1", "relu_1", "relu"):
            x = jax.nn.relu(x @ p[name]["kernel"])
        return x

    params = {name: {"kernel": W} for name in ("Dense_1", "relu_1", "relu")}
    first = trace(f, params, X).sites
    second = trace(interpreted(f), params, X).sites
    assert len({layer.site for layer in first}) == len(first) == 7
    assert {layer.site for layer in first if layer.kind == "linear"} >= {"Dense_1", "relu_1"}
    # Noise is drawn by base and occurrence: they must survive too.
    for a, b in zip(first, second, strict=True):
        assert (a.site, a.base, a.occurrence) == (b.site, b.base, b.occurrence)


def test_a_custom_derivative_that_mixes_elements_is_not_pointwise():
    @jax.custom_jvp
    def running(x):
        return jnp.cumsum(x, 0)

    running.defjvp(lambda p, t: (running(*p), running(*t)))
    layer_kinds = kinds(lambda p, x: running(x @ p["w"]), PARAMS, X)
    assert list(layer_kinds.values()) == ["input", "linear", "other"]


def test_a_custom_derivative_with_statistics_inside_is_a_normalization():
    @jax.custom_jvp
    def centered(x):
        return x - x.mean(-1, keepdims=True)

    centered.defjvp(lambda p, t: (centered(*p), centered(*t)))
    layer_kinds = kinds(lambda p, x: centered(x @ p["w"]), PARAMS, X)
    assert list(layer_kinds.values()) == ["input", "linear", "normalization"]


def calls(f, *args):
    """How many function calls reading takes."""
    profile = cProfile.Profile()
    with profile:
        trace(f, *args)
    return sum(entry.callcount for entry in profile.getstats())


def grown(step, count):
    return lambda p, x: functools.reduce(lambda h, _: step(p, h), range(count), x)


CHAINS = {
    "pointwise": lambda p, h: jnp.sin(h),
    "residual": lambda p, h: h + jnp.sin(h),
    "dense": lambda p, h: jnp.tanh(h @ p["w"]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_reading_work_grows_with_the_function_and_no_faster(name):
    short, long = (calls(grown(CHAINS[name], n), PARAMS, X) for n in (100, 800))
    # Eight times as long: a quadratic reader makes 64 times as many calls.
    assert long < 12 * short


@pytest.mark.promotes("rank")
def test_long_and_branching_constants_are_read():
    def f(p, x):
        constant = functools.reduce(lambda c, _: jnp.cos(c) + c * 0.1, range(1500), jnp.ones(6))
        return x * p + constant

    # Read by recursion this overflows the stack, and by following every path it never ends.
    assert len(trace(f, jnp.float32(2), X).sites) == 3


@pytest.mark.slow
@pytest.mark.promotes("rank")
def test_a_shard_map_is_one_layer_that_runs_as_it_is():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
    spec = jax.sharding.PartitionSpec
    specs = {"in_specs": (spec(), spec("batch")), "out_specs": spec("batch")}
    sharded = jax.shard_map(dense, mesh=mesh, **specs)
    assert list(kinds(sharded, PARAMS, X).values()) == ["input", "other"]
    assert_reads(sharded, PARAMS, X)
    # The way to transform what is inside.
    noisy = jaxeff.noisy(dense, {"w": Additive(0.1)})
    whole = functools.partial(noisy, jax.random.key(0))
    outside = jax.shard_map(whole, mesh=mesh, **specs)(PARAMS, X)
    np.testing.assert_allclose(outside, whole(PARAMS, X), rtol=1e-6)


@pytest.mark.promotes("rank")
@pytest.mark.parametrize("f", [dense, scanned])
def test_double_precision(f):
    with jax.enable_x64(True):
        params = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), PARAMS)
        x = jnp.asarray(X, jnp.float64)
        assert jax.eval_shape(f, params, x) == jax.eval_shape(interpreted(f), params, x)
        assert_reads(f, params, x)
        assert names(f, params, x) == names(interpreted(f), params, x)
