"""Functions whose operands share random entries: exact, or listed, never a silent wrong number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.moment_propagation import (
    Gaussian,
    MomentsError,
    assumptions,
    measure_assumptions,
    moments,
)
from jaxeff.nn import MLP
from tests.pruning.networks import NETWORKS

ATTENTION = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))


def random(*shape, var=0.25, seed=0, mean=0.0):
    values = jax.random.normal(jax.random.key(seed), shape)
    return Gaussian(mean + values, jnp.full(shape, var))


V, R, M, SQUARE = random(8), random(8, seed=3), random(4, 8), random(5, 5)
WEIGHTS = jax.random.normal(jax.random.key(4), (16, 3))


def window(x, start):
    return jax.lax.dynamic_slice(x, (start,), (3,))


def written(p):
    """A cache that is written to twice by one projection of the same rows."""
    x, w = p[0][:3, :5], p[1]
    start, next_one = jnp.int32(1), jnp.int32(4)
    cache = jax.lax.dynamic_update_slice(jnp.zeros((6, 5)), x @ w, (start, 0))
    return jax.lax.dynamic_update_slice(cache, x[:1] @ w, (next_one, 0))


FIVE = Gaussian(jnp.full(4, 5.0), jnp.ones(4))

# Of parameters alone: no layer of the network, but a region all the same.
OPERANDS = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "mish": jax.nn.mish,
    "hard_swish": jax.nn.hard_swish,
    "tanhshrink": lambda p: p - jnp.tanh(p),
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "hard_tanh": jax.nn.hard_tanh,
    "softplus": jax.nn.softplus,
    "glu": lambda p: jax.nn.glu(p, 0),
    "softplus by hand": lambda p: jnp.log(1 + jnp.exp(p)),
}

EXACT = {
    "Gram matrix": (lambda x: x @ x.T, M),
    "Gram matrix of columns": (lambda x: x.T @ x, M),
    "product with itself": (lambda x: x @ x, SQUARE),
    "squared distances": (lambda x: ((x[:, None] - x[None]) ** 2).sum(-1), M),
    "two arrays, one twice": (lambda p: (p[0] + p[1]) * p[0], (V, R)),
    "rolled": (lambda x: x * jnp.roll(x, 1), V),
    "flipped": (lambda x: x * x[::-1], V),
    "outer": (lambda x: jnp.outer(x, x), V),
    "differences": (lambda x: jnp.diff(x) ** 2, V),
    "centred": (lambda x: x - x.mean(), V),
    "variance": (jnp.var, Gaussian(jnp.array([0.5, 1, -1, 2]), jnp.array([0.3, 0.2, 0.5, 1]))),
    "covariance": (lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / 4, M),
    "running sum": (lambda x: jnp.cumsum(x) * x, V),
    "sum times entry": (lambda x: x.sum() * x, V),
    "quadratic form": (lambda x: x @ jnp.arange(64.0).reshape(8, 8) @ x / 64, V),
    "trace": (lambda x: jnp.trace(x @ x), SQUARE),
    "self-convolution": (lambda x: jnp.convolve(x, x), random(5)),
    "tiled": (lambda x: jnp.tile(x, 3).mean(), V),
    "gathered twice": (lambda x: x[jnp.array([0, 0, 1, 2, 2, 2])].mean(), V),
    "joined with itself": (lambda x: jnp.concatenate([x, x]).sum(), V),
    "joined with itself, weighted": (lambda x: jnp.concatenate([x, x], -1) @ WEIGHTS, M),
    "weights of itself twice": (lambda x: WEIGHTS.T @ jnp.concatenate([x.T, x.T]), M),
    "stacked with itself": (lambda x: jnp.stack([x, 2 * x]).sum(0), V),
    "two windows": (lambda x: window(x, jnp.int32(1)) * window(x, jnp.int32(4)), V),
    "written, and written over": (written, (M, SQUARE)),
    "rectified and summed up": (lambda x: jnp.cumsum(jax.nn.relu(x)), V),
    "gate of the other half": (lambda x: x[:4] * jax.nn.sigmoid(x[4:]), V),
    "less its positive part": (lambda x: x - jax.nn.relu(x), V),
    "of a scan": (lambda x: jax.lax.scan(lambda c, a: (c + a, c * a), 0.0, x)[1], V),
    "square root": (lambda x: jnp.sqrt(x) + x, FIVE),
    "logarithm": (lambda x: jnp.log(x + 5) * x, FIVE),
}

# Expansions about the mean, or a form of distribution that is only nearly right.
CLOSE = {
    "standard deviation of 4": (jnp.std, random(4), 0.1),
    "standard deviation of 16": (jnp.std, random(16), 0.05),
    "norm": (jnp.linalg.norm, V, 0.05),
    "standardized": (lambda x: (x - x.mean()) / (x.std() + 1e-3), random(16), 0.1),
    "normalized": (lambda x: x / jnp.linalg.norm(x), V, 0.1),
    "log-sum-exp": (jax.nn.logsumexp, V, 0.05),
}


def activations(p):
    h, w = p
    z = jnp.concatenate([h, jnp.abs(h), jax.nn.leaky_relu(h, 0.5)], -1) @ w
    z = z - z.mean(-1, keepdims=True)
    return z / jnp.sqrt((z * z).mean(-1, keepdims=True) + 1e-5)


LISTED = {
    "softmax times its operand": (lambda x: (jax.nn.softmax(x) * x).sum(), V),
    "total variation": (lambda x: jnp.abs(jnp.diff(x)).sum(), V),
    "cosine": (lambda p: p[0] @ p[1] / jnp.linalg.norm(p[0]) / jnp.linalg.norm(p[1]), (V, R)),
    "range": (lambda x: x.max() - x.min(), V),
    "rectified beside itself": (lambda x: jnp.concatenate([x, jax.nn.relu(x)], -1) @ WEIGHTS, M),
    "activations beside each other, normalized": (activations, (M, random(24, 6, seed=5))),
    "largest of what shares noise": (
        lambda x: jax.ops.segment_max(x[jnp.array([0, 0, 1])], jnp.array([0, 1, 1]), 2),
        M,
    ),
    "rectified messages summed": (
        lambda x: jax.ops.segment_sum(
            jax.nn.relu(x[jnp.array([0, 0, 1])]), jnp.array([0, 1, 1]), 2
        ),
        M,
    ),
    "clipped messages summed": (
        lambda x: jax.ops.segment_sum(
            jnp.clip(jax.nn.softplus(x[jnp.array([0, 0, 1])]), 0.1, 1), jnp.array([0, 1, 1]), 2
        ),
        M,
    ),
    "rows of softmax summed": (lambda x: jax.nn.softmax(x, -1).sum(-1), M),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_functions_of_parameters_are_regions(name, oracle):
    samples = oracle.monte_carlo(OPERANDS[name], (V,), 100_000, 20_000)
    oracle.assert_matches(
        jax.jit(moments(OPERANDS[name], method="diagonal"))(V), samples, mean=1e-3, var=0.01
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_what_meets_itself_is_exact(name, oracle):
    f, x = EXACT[name]
    samples = oracle.monte_carlo(f, (x,), 100_000, 20_000)
    oracle.assert_matches(jax.jit(moments(f, strict=True, method="diagonal"))(x), samples)


@pytest.mark.parametrize("name", CLOSE)
def test_statistics_are_close(name, oracle):
    f, x, var = CLOSE[name]
    samples = oracle.monte_carlo(f, (x,), 100_000, 20_000)
    oracle.assert_matches(jax.jit(moments(f, method="diagonal"))(x), samples, mean=0.02, var=var)


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED)
def test_what_is_not_exact_is_listed_and_refused_on_request(name):
    f, x = LISTED[name]
    assert assumptions(f, x)
    assert np.isfinite(jax.jit(moments(f, method="diagonal"))(x).var).all()
    with pytest.raises(MomentsError, match="strict=True"):
        moments(f, strict=True, method="diagonal")(x)


def test_differences_with_oneself_are_certain():
    """The diagonal of a distance matrix is zero, not twice the variance."""
    distances = jax.jit(moments(EXACT["squared distances"][0], method="diagonal"))(M)
    assert (jnp.diag(distances.mean) == 0).all()
    assert (jnp.diag(distances.var) == 0).all()


@pytest.mark.slow
def test_names_do_not_change_numbers():
    """A tag, a reader in between, another owner: layers are cut there, moments aren't."""
    tag = jax.ad_checkpoint.checkpoint_name

    def plain(_, x):
        return jnp.exp(jnp.sin(x))

    def tagged(_, x):
        return jnp.exp(tag(jnp.sin(x), "here"))

    def read(_, x):
        y = jnp.sin(x)
        return jnp.exp(y), y

    expected = moments(plain, method="diagonal")({}, V)
    for gaussian in (
        moments(tagged, method="diagonal")({}, V),
        moments(read, method="diagonal")({}, V)[0],
    ):
        np.testing.assert_allclose(gaussian.mean, expected.mean, rtol=1e-6)
        np.testing.assert_allclose(gaussian.var, expected.var, rtol=1e-5)


@pytest.mark.slow
def test_a_function_that_is_often_undefined_has_no_moments():
    """Given that it is defined, where it nearly always is; NaN where it often isn't."""
    x = Gaussian(jnp.array([5.0, 1.0, -1.0]), jnp.ones(3))
    out = jax.jit(moments(lambda x: jnp.sqrt(x) + x, method="diagonal"))(x)
    assert list(np.isnan(out.mean)) == [False, True, True]
    slope = jax.grad(
        lambda m: moments(lambda x: jnp.sqrt(x) + x, method="diagonal")(Gaussian(m, x.var)).var[0]
    )
    assert np.isfinite(slope(x.mean)[0])


# Networks ----------------------------------------------------------------------------------------


def network(model, *shape, noisy=False):
    f, params = functional(model)
    x = jax.random.normal(jax.random.key(1), shape)
    if noisy:
        return f, params, Gaussian(x, jnp.full(shape, 0.1))
    return f, jax.tree.map(lambda p: Gaussian(p, (0.1 * jnp.abs(p) + 0.02) ** 2), params), x


@pytest.mark.slow
def test_two_layers_assume_nothing_and_the_third_is_listed():
    """Hidden units of the first layer have weights of their own; those of the second share them."""
    f, params, x = network(MLP((16, 8, 5), rngs=nnx.Rngs(0)), 4, 16)
    assert str(assumptions(f, params, x)) == "Nothing is assumed to be independent that may not be."
    f, params, x = network(MLP((16, 8, 8, 5), rngs=nnx.Rngs(0)), 4, 16)
    (assumption,) = assumptions(f, params, x)
    assert assumption.site == "fc3"
    assert {"fc1/kernel", "fc1/bias"} <= set(assumption.shares)
    assert "fc3: dot_general combines entries of one array" in str(assumption)


def test_noise_at_the_input_is_listed_from_the_second_layer_on():
    f, params, x = network(MLP((16, 8, 5), rngs=nnx.Rngs(0)), 4, 16, noisy=True)
    assert [one.site for one in assumptions(f, params, x)] == ["fc2"]


@pytest.mark.oracle
def test_ratios_are_those_of_monte_carlo_layer_by_layer(oracle):
    """A kernel shared over positions and pooled: .0019 of the true variance, and it says so."""

    def f(w, x):
        return jax.nn.relu(jax.lax.conv(x, w, (1, 1), "SAME")).mean((2, 3))

    w = Gaussian(jnp.full((2, 1, 3, 3), 0.5), jnp.full((2, 1, 3, 3), 0.01))
    x = jnp.ones((3, 1, 24, 24)) + 0.1 * jax.random.normal(jax.random.key(0), (3, 1, 24, 24))
    (assumption,) = measure_assumptions(jax.random.key(1), f, w, x, samples=4000)
    samples = oracle.monte_carlo(f, (w, x), 20_000, 1_000)
    ratio = np.median(jax.jit(moments(f, method="diagonal"))(w, x).var / samples.var)
    assert ratio < 0.003
    assert assumption.ratio.median == pytest.approx(ratio, rel=5 * assumption.ratio.error)


def test_a_loop_that_reads_its_weights_at_every_step_is_listed():
    def f(w, x):
        return jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), jnp.zeros(4), x)[0]

    places = assumptions(f, random(4, 4), jnp.ones((3, 4)))
    assert any("values that share noise" in one.reason and one.adds_up for one in places)


def test_attention_is_listed_where_its_values_meet_its_weights():
    f, params, x = network(ATTENTION, 2, 4, 8)
    sites = [one.site for one in assumptions(f, params, x)]
    assert "matmul" not in sites  # queries and keys share an input that is certain
    assert "matmul_1" in sites  # a row of attention sums to one


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="samples must be at least 2"):
        measure_assumptions(jax.random.key(0), jnp.sin, V, samples=1)


class Gated(nnx.Module):
    def __init__(self):
        self.cell = nnx.GRUCell(3, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        h = jnp.zeros((len(x), 3))
        for _ in range(3):
            h, _ = self.cell(h, x)
        return h


@pytest.mark.slow
def test_gates_that_read_what_a_whole_made():
    # A part of a whole reads what an earlier whole made: the equations have to be put in order.
    f, params = functional(Gated())
    x = jax.random.normal(jax.random.key(9), (2, 3))
    spread = 1e-6  # so small that the function is a line
    posterior = jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, spread)), params)
    y = moments(f, method="linear")(posterior, x)
    slopes = jax.tree.leaves(jax.jacobian(f)(params, x))
    expected = spread * sum((s**2).sum(tuple(range(2, s.ndim))) for s in slopes)
    np.testing.assert_allclose(y.mean, f(params, x), atol=1e-4)
    np.testing.assert_allclose(y.var, expected, rtol=1e-3)


@pytest.mark.slow
def test_a_scaled_tensor_is_rectified_and_averaged():
    """Batch norm with a random scale, ReLU, global pooling: positions share the scale."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (2, 3, 3, 4))
    kernel = Gaussian(jax.random.normal(keys[1], (4, 5)), jnp.full((4, 5), 0.1))
    scale = 1 + jax.random.uniform(keys[2], (5,))

    def pooled(scale, kernel):
        return jnp.mean(jax.nn.relu(x @ kernel * scale), (1, 2))

    gaussian = jax.jit(moments(pooled, method="diagonal"))(Gaussian(scale, jnp.zeros(5)), kernel)
    expected = jax.jit(moments(lambda kernel: pooled(scale, kernel), method="diagonal"))(kernel)
    np.testing.assert_allclose(gaussian.mean, expected.mean, rtol=1e-5)
    np.testing.assert_allclose(gaussian.var, expected.var, rtol=1e-5)
    with pytest.raises(MomentsError, match="reduce_sum combines entries of one array that share"):
        moments(pooled, strict=True, method="diagonal")(Gaussian(scale, 0.1 * scale), kernel)


def test_assumptions_are_listed_in_one_order():
    network = NETWORKS["shufflenet1"]()
    params = jax.tree.map(lambda w: Gaussian(w, 0.01 * jnp.ones_like(w)), network.params)
    # Reading anew puts its values at other addresses, by which sets of them are ordered.
    first, *others = (str(assumptions(network.f, params, *network.args)) for _ in range(4))
    assert all(other == first for other in others)


def decays(c):
    return c[:, :, None] - c[:, None, :]


@pytest.mark.parametrize("axis", [1, 2])
def test_entries_of_a_running_sum_cancel_where_they_are_subtracted(axis):
    """c_i - c_j is the sum of what lies between: Gaussian, and its exponential log-normal."""
    a = random(2, 40, 3, var=0.04, mean=-1.0)
    given = a if axis == 1 else jax.tree.map(lambda v: jnp.swapaxes(v, 1, 2), a)
    known = jnp.tri(40, dtype=bool)[..., None]

    def f(a):
        c = jnp.cumsum(a, axis)
        c = c if axis == 1 else jnp.swapaxes(c, 1, 2)
        return jnp.exp(jnp.where(known, decays(c), -jnp.inf))

    gaussian = jax.jit(moments(f, method="diagonal"))(given)
    mean, var = (jnp.where(known, decays(jnp.cumsum(v, 1)), 0) for v in (a.mean, a.var))
    expected = jnp.where(known, jnp.exp(mean + var / 2), 0)
    np.testing.assert_allclose(gaussian.mean, expected, rtol=1e-4)
    np.testing.assert_allclose(gaussian.var, expected**2 * jnp.expm1(var), rtol=1e-3, atol=1e-9)


def test_a_slice_of_a_running_sum_cancels_too():
    a = random(2, 40, 3, var=0.04)
    gaussian = jax.jit(
        moments(lambda a: jnp.cumsum(a, 1)[:, -1:] - jnp.cumsum(a, 1), method="diagonal")
    )(a)
    expected = a.var.sum(1, keepdims=True) - jnp.cumsum(a.var, 1)
    np.testing.assert_allclose(gaussian.var, expected, rtol=1e-4, atol=1e-6)


def twice_summed(a):
    c = jnp.cumsum(jnp.cumsum(a, 1), 1)
    return jnp.exp(decays(c)).sum((1, 2))


def test_differences_of_other_running_sums_are_named():
    assert assumptions(twice_summed, random(2, 80, 3, var=1e-4))


ROWS = jnp.array([[0, 1, 0, 2], [3, 3, 3, 1]])


@pytest.mark.parametrize("g", [lambda x: x, lambda x: jax.nn.relu(2 * x - 0.1)])
def test_rows_that_are_looked_up_twice_are_the_same_twice(g):
    """By indices known at run time only; n times a row has n^2 times its variance."""
    table = random(4, 3)
    gaussian = jax.jit(
        lambda rows: moments(lambda w: g(w[rows]).mean(1), method="diagonal")(table)
    )(ROWS)
    counts = jax.nn.one_hot(ROWS, 4).sum(1) / 4
    each = moments(g, method="diagonal")(table)
    np.testing.assert_allclose(gaussian.mean, counts @ each.mean, rtol=1e-5)
    np.testing.assert_allclose(gaussian.var, counts**2 @ each.var, rtol=1e-5)


def test_rows_that_differ_by_their_place_are_listed():
    def f(w, rows):
        return jax.nn.relu(w[rows] + jnp.arange(12.0).reshape(4, 3)).sum(1)

    (assumption,) = assumptions(f, random(4, 3), ROWS)
    assert "reduce_sum combines entries" in assumption.reason
