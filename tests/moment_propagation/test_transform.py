import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import LSQ, Int, LayerQuantization, PowersOfTwo, init
from jaxeff.core import functional
from jaxeff.moment_propagation import (
    Gaussian,
    MomentsError,
    assumptions,
    is_gaussian,
    moments,
)
from jaxeff.nn import MLP, LeNet5, TransformerEncoder

X = jax.random.normal(jax.random.key(1), (4, 16))


def posterior(params, relative=0.05, floor=0.01):
    return jax.tree.map(lambda p: Gaussian(p, (relative * jnp.abs(p) + floor) ** 2), params)


def random(*shape, var=0.3, seed=0):
    mean = jax.random.normal(jax.random.key(seed), shape)
    return Gaussian(mean, jnp.full(shape, var))


def deviations(ours, samples):
    """Largest error of the mean in standard deviations; ratios of standard deviations."""
    std = np.sqrt(samples.var)
    return np.abs(ours.mean - samples.mean) / std, np.sqrt(np.asarray(ours.var)) / std


# Whole networks ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 64])
def test_mlp_with_random_weights_is_as_close_as_documented(width, oracle):
    f, params = functional(MLP((16, width, width, 5), rngs=nnx.Rngs(0)))
    args = (posterior(params), X)
    samples = oracle.monte_carlo(f, args, 20_000, 5_000)
    _, ratio = deviations(jax.jit(moments(f, method="diagonal"))(*args), samples)
    # Diagonal covariance: a few per cent at width 64, more at 16.
    low, high = (0.9, 1.1) if width == 64 else (0.75, 1.25)
    assert low < ratio.min()
    assert ratio.max() < high
    error = 5 * samples.mean_error / np.sqrt(samples.var)
    assert (
        deviations(jax.jit(moments(f, method="diagonal"))(*args), samples)[0] <= 0.05 + error
    ).all()


@pytest.mark.slow
def test_noise_at_the_input_alone_is_off_by_the_documented_factor(oracle):
    """Hidden units that share their noise are correlated: the stated limit of the method."""
    f, params = functional(MLP((16, 64, 64, 5), rngs=nnx.Rngs(0)))
    args = (params, Gaussian(X, jnp.full_like(X, 0.1)))
    _, ratio = deviations(
        jax.jit(moments(f, method="diagonal"))(*args), oracle.monte_carlo(f, args, 20_000, 5_000)
    )
    assert ratio.min() > 0.2
    assert ratio.max() < 3.5


@pytest.mark.slow
def test_lenet_is_as_close_as_documented(oracle):
    f, params = functional(LeNet5(size=28, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(2), (1, 28, 28, 1))
    args = (posterior(params), x)
    mean, ratio = deviations(
        jax.jit(moments(f, method="diagonal"))(*args), oracle.monte_carlo(f, args, 2_000, 250)
    )
    # 2,000 samples leave 11 % in five standard errors of the mean, 8 % in those of a deviation.
    assert mean.max() < 0.15 + 0.11
    assert ratio.min() > 0.85 - 0.08
    assert ratio.max() < 1.12 + 0.08


@pytest.mark.slow
def test_transformer_with_residuals_and_attention(oracle):
    f, params = functional(
        TransformerEncoder(width=16, heads=2, hidden=32, depth=1, rngs=nnx.Rngs(0))
    )
    args = (posterior(params), jax.random.normal(jax.random.key(3), (2, 8, 8)))
    assert any(one.adds_up for one in assumptions(f, *args))
    ours = jax.jit(moments(f, method="diagonal"))(*args)
    mean, ratio = deviations(ours, oracle.monte_carlo(f, args, 4_000, 500))
    # Positions share the weights' noise, which their mean takes as independent: too certain.
    assert mean.max() < 0.2
    assert ratio.min() > 0.3
    assert ratio.max() < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "tanh", "hard_swish", "elu"])
def test_layer_by_layer_a_dense_layer_and_an_activation(name, oracle):
    activation = getattr(jax.nn, name)

    def f(params, x):
        return activation(x @ params)

    # Each output alone: with 40 independent inputs the sum is close to Gaussian.
    args = (random(40, 3, var=0.05), random(2, 40, var=0.2, seed=1))
    samples = oracle.monte_carlo(f, args)
    oracle.assert_matches(
        jax.jit(moments(f, method="diagonal"))(*args), samples, mean=0.02, var=0.06
    )


# Regions -----------------------------------------------------------------------------------------

REGIONS = {
    "residual of one variable": lambda x: x + jnp.sin(x),
    "product of one variable": lambda x: x * jax.nn.sigmoid(x),
    "cube": lambda x: x**3 - x * x,
    "affine both ends": lambda x: 3 * jax.nn.relu(2 * x - 1) + 1,
    "shifted tanh": lambda x: jnp.tanh(5 * x - 4),
    "threshold": lambda x: jnp.where(x > 0.7, x, -0.2),
    "squared relu": lambda x: jax.nn.relu(x) ** 2,
    "maximum of lines": lambda x: jnp.maximum(jnp.maximum(x, -2 * x), 0.5),
    "softplus by hand": lambda x: jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0),
    "erfc": lambda x: 1 - jax.lax.erfc(x),
    "exp2 and expm1": lambda x: jnp.exp2(x / 4) - 1,
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_is_integrated_as_a_whole(name, oracle):
    f = REGIONS[name]
    x = Gaussian(jnp.linspace(-2, 2, 9), jnp.full(9, 0.5))
    mean, var = oracle.exact(f, np.linspace(-2, 2, 9), np.full(9, np.sqrt(0.5)))
    ours = jax.jit(moments(lambda _, x: f(x), method="diagonal"))({}, x)
    np.testing.assert_allclose(ours.mean, mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours.var, var, rtol=1e-3, atol=1e-4)


def test_silu_is_not_taken_primitive_by_primitive():
    """The known trap: independent factors give a mean of 0 and a variance of 0.293."""
    out = moments(lambda _, x: jax.nn.silu(x), method="diagonal")(
        {}, Gaussian(jnp.zeros(1), jnp.ones(1))
    )
    np.testing.assert_allclose(out.mean, 0.2066, atol=1e-4)
    np.testing.assert_allclose(out.var, 0.3131, atol=1e-4)


@pytest.mark.slow
def test_a_random_slope_is_integrated_with_its_input(oracle):
    f, params = functional(nnx.PReLU())
    args = (posterior(params, 0.5), random(20, var=1.0))
    oracle.assert_matches(
        jax.jit(moments(f, method="diagonal"))(*args), oracle.monte_carlo(f, args, 50_000)
    )


ARITHMETIC = {
    "sum": lambda p, x: p + x,
    "difference": lambda p, x: p - x,
    "product": lambda p, x: p * x,
    "maximum": lambda p, x: jnp.maximum(p, x),
    "chosen": lambda p, x: jnp.where(jnp.arange(20) % 2 == 0, p, x),
    "joined": lambda p, x: jnp.concatenate([p, jnp.ones(3), x]),
    "twice the same": lambda p, x: (x + x) * (p * p),
    "moved": lambda p, x: jnp.pad(x.reshape(4, 5).T[::-1, 1:], 1) + p[0],
    "gathered": lambda p, x: x[jnp.array([3, 3, 0])] * p[:3],
    "sliced": lambda p, x: jax.lax.dynamic_slice(x, (jnp.int32(4),), (6,)) + p[2:8],
    "written": lambda p, x: jax.lax.dynamic_update_slice(x, p[:3], (jnp.int32(2),)),
    "added at": lambda p, x: jnp.zeros(25).at[jnp.arange(20)].add(x),
    "running sum": lambda p, x: jnp.cumsum(x)[:2] + p[:2],
    "stacked": lambda p, x: jnp.stack([p, x], 1),
    "split": lambda p, x: sum(jnp.split(x, 2)) * p[:10],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARITHMETIC)
def test_independent_values_meet_exactly(name, oracle):
    f = ARITHMETIC[name]
    args = (random(20), random(20, seed=1, var=0.7))
    oracle.assert_matches(
        jax.jit(moments(f, method="diagonal"))(*args), oracle.monte_carlo(f, args, 50_000)
    )


@pytest.mark.slow
def test_quotients_and_positive_functions_where_the_operand_is_positive(oracle):
    x = Gaussian(jnp.linspace(3, 6, 5), jnp.full(5, 0.1))
    for f in (
        lambda p, x: p / x,
        lambda p, x: jnp.log(x),
        lambda p, x: jnp.sqrt(x),
        lambda p, x: jax.lax.rsqrt(x),
        lambda p, x: x**-2,
    ):
        args = (random(5), x)
        samples = oracle.monte_carlo(f, args, 50_000)
        oracle.assert_matches(
            jax.jit(moments(f, method="diagonal"))(*args), samples, mean=0.02, var=0.05
        )


# Control flow, composition -----------------------------------------------------------------------


def test_a_scan_promotes_its_carry(oracle):
    def f(w, x):
        def body(state, row):
            state = jnp.tanh(state * 0.5 + row)
            return state, state * 2

        return jax.lax.scan(body, jnp.zeros(3), x * w)[1]

    args = (random(3, var=0.01), X[:, :3])
    ours = jax.jit(moments(f, method="diagonal"))(*args)
    assert is_gaussian(ours)
    # The state and the row share the weight's noise.
    first = oracle.monte_carlo(lambda w, x: f(w, x)[0], args)
    oracle.assert_matches(jax.tree.map(lambda a: a[0], ours), first)


def test_a_loop_and_a_branch_promote_their_values():
    def f(w, x):
        def body(state):
            i, _ = state
            return i + 1, 2 * w

        count, total = jax.lax.while_loop(lambda s: s[0] < 3, body, (0, jnp.zeros(2)))
        return count, jax.lax.cond(x > 0, lambda: total, lambda: jnp.ones(2))

    w = Gaussian(jnp.ones(2), jnp.full(2, 0.5))
    count, out = jax.jit(moments(f, method="diagonal"))(w, jnp.float32(1))
    assert count == 3
    np.testing.assert_allclose(out.mean, 2)
    np.testing.assert_allclose(out.var, 2)
    _, out = jax.jit(moments(f, method="diagonal"))(w, jnp.float32(-1))
    np.testing.assert_array_equal(out.var, 0)


@pytest.mark.slow
def test_a_rectifier_inside_a_scan_may_be_pooled_outside():
    def f(_, x):
        return jax.lax.scan(lambda c, row: (c, jax.nn.relu(row)), 0.0, x)[1].max(1)

    x = random(3, 4)
    ours, expected = (
        jax.jit(moments(f, method="diagonal"))({}, x),
        moments(lambda _, x: jax.nn.relu(x).max(1), method="diagonal")({}, x),
    )
    np.testing.assert_allclose(ours.mean, expected.mean, rtol=1e-6)


def test_moments_inside_a_sharded_function_are_those_outside():
    """There constants are made to vary over devices (`pvary`), and arrays change their layout."""
    auto, explicit = (
        jax.make_mesh((1,), ("i",), axis_types=(kind,))
        for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
    )
    spec = jax.sharding.PartitionSpec

    def f(w, x):
        return jnp.tanh(x @ w) + 1

    w, x = random(3, 3), X[:, :3]
    inside = jax.shard_map(
        moments(f, method="diagonal"), mesh=auto, in_specs=(spec(), spec("i")), out_specs=spec("i")
    )
    layout = jax.sharding.NamedSharding(explicit, spec(None, None))
    moved = jax.jit(moments(lambda w, x: jax.sharding.reshard(f(w, x), layout), method="diagonal"))
    expected = jax.jit(moments(f, method="diagonal"))(w, x)
    for ours in (jax.jit(inside)(w, x), moved(w, x)):
        np.testing.assert_allclose(ours.mean, expected.mean, rtol=1e-6)
        np.testing.assert_allclose(ours.var, expected.var, rtol=1e-6)


@pytest.mark.slow
def test_vmap_inside_and_outside_are_the_same():
    f, params = functional(MLP((16, 8, 3), rngs=nnx.Rngs(0)))
    gaussians = posterior(params)
    inside = moments(jax.vmap(f, (None, 0)), method="diagonal")(gaussians, X)
    outside = jax.vmap(moments(f, method="diagonal"), (None, 0))(gaussians, X)
    np.testing.assert_allclose(inside.mean, outside.mean, rtol=1e-5)
    np.testing.assert_allclose(inside.var, outside.var, rtol=1e-5)


@pytest.mark.slow
def test_training_through_the_moments_lowers_the_loss():
    f, params = functional(MLP((16, 8, 3), rngs=nnx.Rngs(0)))
    target = jax.random.normal(jax.random.key(5), (4, 3))

    def loss(gaussians):
        out = moments(f, method="diagonal")(gaussians, X)
        return jnp.mean((out.mean - target) ** 2 + out.var)

    step = jax.jit(jax.value_and_grad(loss))
    gaussians = posterior(params)
    first, _ = step(gaussians)
    for _ in range(30):
        _, grads = step(gaussians)
        gaussians = jax.tree.map(lambda p, g: p - 0.05 * g, gaussians, grads)
        gaussians = jax.tree.map(
            lambda g: Gaussian(g.mean, jnp.maximum(g.var, 0)), gaussians, is_leaf=is_gaussian
        )
    assert step(gaussians)[0] < 0.5 * first


def test_equal_blocks_are_one_function_of_the_program():
    def f(params, x):
        for layer, act in zip(params, (jnp.tanh, jax.nn.gelu, jnp.tanh, jnp.tanh), strict=True):
            x = act(x @ layer["w"] + layer["b"])
        return x

    params = [{"w": random(16, 16, seed=i), "b": random(16, seed=i)} for i in range(4)]
    g = jax.jit(moments(f, method="diagonal"))
    equations = jax.make_jaxpr(moments(f, method="diagonal"))(params, X).jaxpr.eqns
    calls = [eqn.params["jaxpr"] for eqn in equations if eqn.params.get("name") == "equal_layer"]
    # The products behind the first, which reads what is certain, and three of four activations.
    assert sorted(calls.count(one) for one in set(calls)) == [3, 3]
    means = jax.tree.map(lambda w: w.mean, params, is_leaf=is_gaussian)
    named = [layer.site for layer in jaxeff.trace(f, means, X).sites]
    assert {layer.site for layer in jaxeff.trace(g, params, X).sites} >= set(named)
    # Without `jit` each layer is evaluated by itself.
    ours, each = g(params, X), moments(f, method="diagonal")(params, X)
    np.testing.assert_allclose(ours.mean, each.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, each.var, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_both_forms_give_the_same_moments():
    f, params = functional(MLP((16, 32, 3), rngs=nnx.Rngs(0)))
    a = moments(f, method="diagonal")(posterior(params), X)
    b = moments(f, form="raw", method="diagonal")(posterior(params), X)
    np.testing.assert_allclose(a.var, b.var, rtol=1e-4)
    with pytest.raises(ValueError, match="form 'second' is unknown"):
        moments(f, form="second", method="diagonal")


@pytest.mark.slow
def test_fine_steps_keep_mean_and_variance():
    f, params = functional(MLP((16, 3), rngs=nnx.Rngs(0)))
    quantized = jaxeff.quantized(f, {"*:linear": Int(8)})
    ours = moments(quantized, method="diagonal")(posterior(params), X)
    plain = moments(f, method="diagonal")(posterior(params), X)
    np.testing.assert_allclose(ours.mean, quantized(params, X), atol=0.05)
    np.testing.assert_allclose(ours.var, plain.var, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.03, 0.3, 1.0])
@pytest.mark.parametrize("method", [LSQ(4), LSQ(2)])
def test_few_bits_have_the_moments_of_rounded_draws(method, noise):
    """By 20,000 draws of every weight in float64; steps are parameters, the same for all draws."""
    w = jax.random.normal(jax.random.key(3), (64, 1))
    start, spec = {"w": w}, {"*": LayerQuantization(weights=method)}
    f = lambda p, x: x @ p["w"]  # noqa: E731
    g = jaxeff.quantized(f, init(f, start, jnp.eye(64), spec))
    weights = Gaussian(w, jnp.full_like(w, noise**2).at[0].set(0))
    ours = moments(g, method="diagonal")({"w": weights}, jnp.eye(64))
    draws = weights.sample(jax.random.key(4), (20_000,))
    y = np.asarray(jax.vmap(lambda w: g({"w": w}, jnp.eye(64)))(draws), np.float64)
    # Five errors of a mean, and of a variance as its fourth moment gives it, over 64 entries; of
    # what 20,000 draws hardly ever have, twenty draws.
    spread, step = y - y.mean(0), np.diff(np.unique(y)).max()
    error = np.sqrt(np.maximum((spread**4).mean(0) - y.var(0) ** 2, 0) / 20_000)
    rare = 20 * step / 20_000
    assert (abs(ours.mean - y.mean(0)) <= 5 * y.std(0) / 20_000**0.5 + rare).all()
    assert (abs(ours.var - y.var(0)) <= 5 * error + step * rare).all()
    assert ours.var[0] == 0
    # Rounding moves more than noise does below a step.
    if noise < step / 2:
        assert ours.var.mean() > 1.2 * weights.var.mean()
    # Derivatives pass straight through.
    slope = jax.grad(
        lambda m: moments(g, method="diagonal")(
            {"w": Gaussian(m, weights.var)}, jnp.eye(64)
        ).mean.sum()
    )(w)
    assert ((slope == 0) | (slope == 1)).all()


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("noise", [0.02, 0.1, 1.0])
def test_few_bits_of_activations_have_the_moments_of_rounded_draws(bits, noise):
    """By 20,000 draws of every entry in float64; some means lie far outside the grid."""
    x = jax.random.normal(jax.random.key(3), (1, 64)).at[0, :2].set(jnp.array([4.0, -4.0]))
    spec = {"*": LayerQuantization(activations=LSQ(bits))}
    f = lambda p, x: x @ p["w"]  # noqa: E731
    start = {"w": jnp.eye(64)}
    g = jaxeff.quantized(f, init(f, start, x.at[0, :2].set(0), spec))
    given = Gaussian(x, jnp.full_like(x, noise**2))
    ours = moments(g, method="diagonal")(start, given)
    draws = given.sample(jax.random.key(4), (20_000,))
    y = np.asarray(jax.jit(lambda x: g(start, x))(draws[:, 0]), np.float64)
    spread, step = y - y.mean(0), np.diff(np.unique(y)).min()
    error = np.sqrt(np.maximum((spread**4).mean(0) - y.var(0) ** 2, 0) / 20_000)
    rare = 20 * step / 20_000
    assert (abs(ours.mean[0] - y.mean(0)) <= 5 * y.std(0) / 20_000**0.5 + rare).all()
    assert (abs(ours.var[0] - y.var(0)) <= 5 * error + step * rare).all()


@pytest.mark.parametrize("what", ["weights", "activations"])
def test_uneven_values_of_random_weights_and_activations_are_told(what):
    f, params = functional(MLP((16, 3, 3), rngs=nnx.Rngs(0)))
    g = jaxeff.quantized(f, {"*": LayerQuantization(**{what: PowersOfTwo(4)})})
    places = assumptions(g, posterior(params), X)
    assert any("aren't evenly spaced" in one.reason and one.adds_up for one in places)


# Bad input ---------------------------------------------------------------------------------------


def test_an_unknown_primitive_is_named_with_its_site_and_a_way_out():
    def f(params, x):
        return jax.lax.linalg.cholesky(x @ params, symmetrize_input=False)

    with pytest.raises(MomentsError, match=r"'cholesky'.*test_transform.py.*rules=\{primitive"):
        moments(f, method="diagonal")(random(3, 3), jnp.eye(3))


def test_a_rule_of_ones_own_fills_the_gap():
    from jax.extend.core.primitives import sort_p

    def rule(node, x):
        order = jnp.argsort(x.mean, axis=node.params["dimension"])
        return [Gaussian(x.mean[order], x.var[order])]

    x = Gaussian(jnp.array([2.0, 1.0]), jnp.array([0.1, 0.2]))

    def f(_, x):
        return jnp.sort(x)

    with pytest.raises(MomentsError, match="'sort'"):
        moments(f, method="diagonal")({}, x)
    np.testing.assert_allclose(
        moments(f, rules={sort_p: rule}, method="diagonal")({}, x).var, [0.2, 0.1]
    )


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda _, x: jnp.where(x > 0, 1.0, x[::-1]), "discrete function of a random value"),
        (lambda _, x: jnp.round(x), "'round'.*no moment rule"),
        (lambda _, x: jax.lax.cond(x[0] > 0, lambda: 1.0, lambda: 0.0), "decided by a random"),
        (
            lambda _, x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: 2 * c, x),
            "decided by a random",
        ),
        (lambda _, x: jax.nn.one_hot(jnp.argmax(x), 3), "discrete function"),
        (lambda _, x: jnp.fft.fft(x).real, "complex result.*take method='linear'"),
    ],
)
def test_a_random_decision_or_a_complex_number_is_an_error(f, message):
    with pytest.raises(MomentsError, match=message):
        moments(f, method="diagonal")({}, random(3))


def test_discrete_results_are_those_of_the_means():
    x = random(2, 5)
    out = moments(
        lambda _, x: {"class": jnp.argmax(x, 1), "logits": x, "sure": x > 0}, method="diagonal"
    )({}, x)
    np.testing.assert_array_equal(out["class"], jnp.argmax(x.mean, 1))
    np.testing.assert_array_equal(out["sure"], x.mean > 0)
    assert is_gaussian(out["logits"])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Gaussian(jnp.ones(3), -jnp.ones(3)), "argument 0 fc/kernel: 3 of 3 variances are neg"),
        (Gaussian(jnp.ones(3), jnp.full(3, jnp.nan)), "argument 0 fc/kernel: 3 of 3 .* are NaN"),
        (Gaussian(jnp.ones(3), jnp.ones(2)), r"argument 0 fc/kernel.*shape \(3,\)"),
    ],
)
def test_bad_gaussians_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        moments(lambda p, x: p["fc"]["kernel"] * x, method="diagonal")({"fc": {"kernel": bad}}, 1.0)


@pytest.mark.parametrize("loop", ["scan", "fori_loop", "while_loop"])
def test_what_a_loop_carries_and_nothing_reads_needs_no_rule(loop):
    """The vector of the likeliest entry: a discrete function of what is random."""
    random = Gaussian(jnp.ones((4, 4)), 0.1 * jnp.ones((4, 4)))

    def step(carry, reads):
        token, s = carry
        return jax.nn.one_hot(jnp.argmax(s, -1), 4), s * 1.1 + token if reads else s * 1.1

    def carried(reads):
        def f(params, s, count):
            start = (jnp.zeros((4, 4)), s)
            if loop == "scan":
                end = jax.lax.scan(lambda c, _: (step(c, reads), None), start, length=2)[0]
            else:
                times = 2 if loop == "fori_loop" else count
                end = jax.lax.fori_loop(0, times, lambda i, c: step(c, reads), start)
            return end[1]

        return f

    args = {}, random, jnp.int32(2)
    np.testing.assert_allclose(
        moments(carried(False), method="diagonal")(*args).var, 0.1 * 1.1**4, rtol=1e-5
    )
    if loop != "while_loop":  # which has no derivative in reverse
        linear = moments(carried(False), method="linear")(*args)
        np.testing.assert_allclose(linear.var, 0.1 * 1.1**4, rtol=1e-5)
    else:
        with pytest.raises(MomentsError, match=r"loops until.*lax\.scan.*bayes\.predict"):
            moments(carried(False), method="linear")(*args)
    with pytest.raises(MomentsError, match="discrete function of a random value"):
        moments(carried(True), method="diagonal")(*args)


def test_numbers_may_be_reshaped_and_broadcast():
    # What an ONNX file's Clip or Constant becomes: an equation without any array.
    def f(w, x):
        h = x @ w
        top = jax.lax.broadcast_in_dim(jnp.float32(6.0), h.shape, ())
        return jnp.minimum(top, h) + jax.lax.reshape(jnp.float32(1.0), (1, 1))

    w = Gaussian(jnp.full((3, 2), 0.5), jnp.full((3, 2), 0.01))
    x = jnp.ones((4, 3))
    ours = jaxeff.moments(f, method="diagonal")(w, x)
    plain = jaxeff.moments(lambda w, x: jnp.minimum(6.0, x @ w) + 1.0, method="diagonal")(w, x)
    np.testing.assert_array_equal(ours.mean, plain.mean)
    np.testing.assert_array_equal(ours.var, plain.var)
