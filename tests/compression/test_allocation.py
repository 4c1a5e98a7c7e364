"""Sensitivities against closed forms and by hand, and bits against every possible choice."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff import compression as jc
from jaxeff.nn import ResNet18
from jaxeff.program import Cost, LayerCost
from tests.chains import chain, chain_parameters

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (16, 6))
SITES = ("fc1", "fc2", "fc3")


@pytest.fixture(scope="module")
def params():
    return chain_parameters(((6, 12), (12, 12), (12, 4)))


def kl(clean, other):
    clean, other = jax.nn.log_softmax(clean), jax.nn.log_softmax(other)
    return (jnp.exp(clean) * (clean - other)).sum(-1).mean()


# Policies.


@pytest.mark.slow
def test_policies_are_the_specs_they_stand_for(params):
    weights = np.array([[4, 32, 2], [32, 32, 32], [8, 1, 3]])
    activations = np.array([[8, 3, 32], [32, 32, 32], [1, 2, 32]])
    many = jc.each_policy(chain, params, X, SITES, weights, activations)
    for i in range(3):
        spec = {
            site: jc.LayerQuantization(*(None if b == 32 else jc.Uniform(int(b)) for b in (w, a)))
            for site, w, a in zip(SITES, weights[i], activations[i], strict=True)
            if not w == a == 32
        }
        one = jc.bit_policy(SITES, weights[i], activations[i])
        assert {s: v for s, v in one.items() if v is not None} == spec
        expected = jc.quantized(chain, spec)(params, X)
        np.testing.assert_allclose(many[i], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(many[1], chain(params, X), rtol=1e-5)
    together = jc.each_policy(chain, params, X, SITES, weights, activations, at_once=2)
    np.testing.assert_allclose(together, many, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.promotes("rank")
def test_what_policies_change_is_not_looked_up():
    """After a loop and at a second use of a weight, arrays depend on the policy."""
    keys = jax.random.split(KEY, 2)
    params = {n: {"w": jax.random.normal(k, (6, 6))} for n, k in zip("ab", keys, strict=True)}

    def f(p, x):
        y = jax.lax.scan(lambda c, _: (jnp.tanh(c @ p["a"]["w"]), None), x, length=2)[0]
        return jnp.tanh(y @ p["b"]["w"]) @ p["b"]["w"]

    rows = [row.site for row in jaxeff.cost(f, params, X).layers if row.macs]
    assert rows == ["a", "b", "b#1"]
    weights, activations = np.array([[3, 2], [2, 4]]), np.array([[2, 3], [4, 2]])
    many = jc.each_policy(f, params, X, ("a", "b"), weights, activations)
    for i in range(2):
        spec = jc.bit_policy(("a", "b"), weights[i], activations[i])
        expected = jc.quantized(f, spec)(params, X)
        np.testing.assert_allclose(many[i], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_policy_is_an_argument_and_vmaps(params):
    weights = jnp.array([[4, 32, 2], [8, 8, 8]])
    spec = jc.bit_policy(SITES, weights)
    found = jax.jit(jax.vmap(lambda s: jc.quantized(chain, s)(params, X)))(spec)
    expected = jc.each_policy(chain, params, X, SITES, weights, jnp.full((2, 3), 32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    other = jc.bit_policy(SITES, weights, method=lambda bits: jc.LSQ(bits, per="channel"))
    assert found.shape == jax.vmap(lambda s: jc.quantized(chain, s)(params, X))(other).shape


def test_other_bits_compile_nothing(params):
    def count(calls):
        # Every size of policies is a program of its own; a count of cached ones is JAX's.
        from jaxeff.compression._bit_policy import _each

        before = _each._cache_size()
        calls()
        return _each._cache_size() - before

    draw = np.random.default_rng(0).integers(1, 9, (4, 2, 5, 3))
    assert count(lambda: jc.each_policy(chain, params, X, SITES, *draw[0])) == 1
    assert count(lambda: [jc.each_policy(chain, params, X, SITES, *d) for d in draw]) == 0


@pytest.mark.slow
def test_a_switch_is_off_or_the_method(params):
    x = jnp.linspace(-1, 1, 7)
    q = {"fc1": jc.LayerQuantization(jc.Switched(jc.LSQ(3), jnp.zeros(())))}
    np.testing.assert_array_equal(jc.quantized(chain, q)(params, X), chain(params, X))
    on, off = (jc.Switched(jc.Uniform(2), jnp.asarray(v)) for v in (1.0, 0.0))
    layer = jc.quantized(lambda p, x: x @ p["w"], {"*:linear": jc.LayerQuantization(None, off)})
    grad = jax.grad(lambda x: layer({"w": jnp.ones((7,))}, x))(x)
    np.testing.assert_array_equal(grad, jnp.ones(7))
    assert (on.width, off.width) == (2, 32)
    always, never = jc.Switched(jc.Uniform(2)), jc.Switched(jc.Uniform(2), False)
    spec = {"fc1": jc.LayerQuantization(always), "fc2": jc.LayerQuantization(never)}
    expected = jc.quantized(chain, {"fc1": jc.LayerQuantization(jc.Uniform(2))})(params, X)
    np.testing.assert_array_equal(jc.quantized(chain, spec)(params, X), expected)


def test_bad_policies():
    with pytest.raises(ValueError, match="weights, of activations, or of both"):
        jc.bit_policy(SITES)
    with pytest.raises(ValueError, match="for each of 3 sites"):
        jc.bit_policy(SITES, np.array([8, 8]))
    with pytest.raises(ValueError, match=r"activations of 'fc2' has 17 bits"):
        jc.bit_policy(SITES, None, np.array([[8, 8, 8], [8, 17, 8]]))
    eight = np.full((2, 3), 8)
    with pytest.raises(ValueError, match="weights must be an array of 2 axes"):
        jc.each_policy(chain, {}, X, SITES, eight[0], eight[0])
    with pytest.raises(ValueError, match="weights have a width of 12"):
        jc.each_policy(chain, {}, X, SITES, eight + 4, eight)


# Sensitivities.


@pytest.mark.slow
def test_kl_is_that_of_each_array_alone(params):
    sensitivities = jc.kl_sensitivity(chain, params, X, SITES, (2, 5))
    clean = chain(params, X)
    for i, site in enumerate(SITES):
        for j, bits in enumerate((2, 5)):
            w = jc.quantized(chain, {site: jc.LayerQuantization(jc.Uniform(bits))})(params, X)
            a = jc.quantized(chain, {site: jc.LayerQuantization(None, jc.Uniform(bits))})(params, X)
            assert sensitivities.weights[i, j] == pytest.approx(
                float(kl(clean, w)), rel=1e-3, abs=1e-6
            )
            assert sensitivities.activations[i, j] == pytest.approx(
                float(kl(clean, a)), rel=1e-3, abs=1e-6
            )
    assert np.all(sensitivities.weights[:, 1] < sensitivities.weights[:, 0])
    assert np.all(sensitivities.weights_error > 0)
    together = jc.kl_sensitivity(chain, params, X, SITES, (2, 5), at_once=4)
    np.testing.assert_allclose(together.weights, sensitivities.weights, rtol=1e-3, atol=1e-6)


def quadratic(params, x):
    """A loss whose Hessian with respect to the weights of each site is known."""
    scaled = (x @ params["a"]["w"]) * jnp.asarray([[1.0, 2.0]])
    return 0.5 * jnp.sum(scaled**2) + 0.5 * jnp.sum((x @ params["b"]["w"]) ** 2)


def test_traces_are_those_of_the_hessian():
    # Over w[i, j] of the first: sum over the batch of x_i^2 scale_j^2; over x by (w D^2 w^T).
    x = jax.random.normal(KEY, (5, 3))
    params = {n: {"w": jax.random.normal(k, (3, 2))} for n, k in zip("ab", (KEY, KEY), strict=True)}
    trace = jc.hessian_trace(KEY, quadratic, params, x, ("a", "b"), probes=400, at_once=8)
    squares = np.asarray((x**2).sum())
    w = np.asarray(params["a"]["w"])
    exact = np.array([[squares * 5, squares * 2], [5 * (w**2 @ [1, 4]).sum(), 5 * (w**2).sum()]])
    found = np.stack([trace.weights, trace.activations])
    error = np.stack([trace.weights_error, trace.activations_error])
    assert np.all(error > 0)
    np.testing.assert_array_less(np.abs(found - exact), 4 * error)
    assert np.all(error < 0.2 * exact)


def test_a_single_probe_has_no_error():
    x = jnp.ones((2, 3))
    params = {"a": {"w": jnp.ones((3, 2))}, "b": {"w": jnp.ones((3, 2))}}
    trace = jc.hessian_trace(KEY, quadratic, params, x, ("b",), probes=1)
    assert np.isfinite(trace.weights[0])
    assert np.isnan(trace.weights_error[0])


@pytest.mark.slow
def test_the_second_order_damage_of_small_steps():
    # A quadratic loss: the mean over roundings of random weights is the trace term itself.
    x = jnp.eye(64)
    params = {"a": {"w": jax.random.uniform(KEY, (64, 64), minval=-1.0)}}

    def loss(params, x):
        return 0.5 * jnp.sum((x @ params["a"]["w"]) ** 2)

    errors = jc.quantization_errors(loss, params, x, ("a",), (4, 8))
    trace = jc.hessian_trace(KEY, loss, params, x, ("a",), probes=200)
    sensitivities = jc.hessian_sensitivity(trace, errors)
    delta = jc.quantized(lambda p, x: x @ p["a"]["w"], {"a": jc.LayerQuantization(jc.Uniform(4))})(
        params, x
    )
    expected = 0.5 * float(jnp.sum((delta - params["a"]["w"]) ** 2))
    assert (
        abs(sensitivities.weights[0, 0] - expected)
        < 4 * sensitivities.weights_error[0, 0] + 1e-3 * expected
    )
    with pytest.raises(ValueError, match="The traces are of"):
        jc.hessian_sensitivity(trace._replace(sites=("b",)), errors)


def test_errors_are_a_twelfth_of_the_step_squared(params):
    w = jax.random.uniform(KEY, (400, 50), minval=-1.0)
    f = lambda p, x: x @ p["w"]  # noqa: E731
    x = jax.random.uniform(jax.random.key(3), (50, 400), minval=-1.0)
    method = lambda bits: jc.Uniform(bits, per="tensor")  # noqa: E731
    errors = jc.quantization_errors(f, {"w": w}, x, ("w",), (3, 6, 8), method=method)
    steps = 2 / (2.0 ** np.array([3, 6, 8]) - 1)
    for measured in (errors.weights[0], errors.activations[0]):
        np.testing.assert_allclose(measured, steps**2 / 12, rtol=0.03)
    ratio = jc.noise_to_signal(errors)
    np.testing.assert_allclose(ratio.weights[0], 3 * steps**2 / 12, rtol=0.03)
    zero = jc.noise_to_signal(jc.quantization_errors(f, {"w": 0 * w}, x, ("w",), (3,)))
    assert zero.weights[0, 0] == 0


@pytest.mark.slow
def test_closed_form_is_the_constrained_optimum():
    sizes = {"a": 100.0, "b": 1000.0, "c": 50_000.0}
    bits = jc.signal_to_noise_bits(sizes, 30.0)
    slope = 20 * math.log10(2)
    assert bits["a"] - bits["b"] == pytest.approx(10 / slope)
    noise = {s: 10 ** (-slope * b / 10) for s, b in bits.items()}
    assert -10 * math.log10(sum(noise.values())) == pytest.approx(30)
    # Any other allocation of the same ratio is larger.
    best = sum(sizes[s] * b for s, b in bits.items())
    for seed in range(20):
        shares = np.random.default_rng(seed).dirichlet(np.ones(3)) * 1e-3
        other = {s: -10 * math.log10(v) / slope for s, v in zip(sizes, shares, strict=True)}
        assert sum(sizes[s] * b for s, b in other.items()) >= best


# The knapsack.


def rows(weights, macs, kinds=None):
    kinds = kinds or ["linear"] * len(weights)
    return Cost(
        tuple(
            LayerCost(f"l{i}", k, (1,), w, m, m * 1024, w, 32 * w, 32, 32)
            for i, (w, m, k) in enumerate(zip(weights, macs, kinds, strict=True))
        )
    )


def table(rng, sites, widths, both=True):
    """Damages that fall with the bits, over decades."""
    shape = (sites, len(widths))
    falls = [rng.exponential(1, shape) * 4.0 ** -np.array(widths) for _ in range(2)]
    falls = [np.sort(f, 1)[:, ::-1] * 10 ** rng.uniform(-3, 1, (sites, 1)) for f in falls]
    names = tuple(f"l{i}" for i in range(sites))
    return jc.BitSensitivity(names, tuple(widths), falls[0], falls[1] if both else None)


def bits_of(spec, part):
    found = [getattr(setting, part, None) for setting in spec.values()]
    return [None if q is None else q.bits for q in found]


@pytest.mark.parametrize("of", ["weights", "bops"])
@pytest.mark.parametrize("together", [False, True])
def test_no_choice_is_better(of, together):
    rng = np.random.default_rng(5)
    widths = (1, 2, 4, 8)
    for _ in range(20):
        cost = rows(rng.integers(10, 1000, 3), rng.integers(10, 1000, 3))
        found = table(rng, 3, widths)
        pairs = [(w, a) for w in widths for a in widths if w == a or not together]

        def of_choice(choice, cost=cost, found=found):
            spent = damage = 0.0
            for i, (w, a) in enumerate(choice):
                row = cost.layers[i]
                spent += row.weights * w if of == "weights" else row.macs * w * a
                damage += found.weights[i, widths.index(w)]
                damage += found.activations[i, widths.index(a)]
            return spent, damage

        every = [of_choice(c) for c in itertools.product(pairs, repeat=3)]
        spent = sorted(s for s, _ in every)
        budget = spent[rng.integers(len(spent))]
        spec = jc.allocate_bits(found, cost, budget, unit=of, together=together)
        chosen = of_choice(zip(bits_of(spec, "weights"), bits_of(spec, "activations"), strict=True))
        assert chosen[0] <= budget
        best = min(d for s, d in every if s <= budget)
        assert chosen[1] == pytest.approx(best, rel=1e-9)


def test_limits_and_what_was_not_measured():
    rng = np.random.default_rng(0)
    cost = rows([100, 200, 0], [10, 20, 30], ["linear", "linear", "matmul"])
    sensitivities = table(rng, 3, (2, 4, 8))
    spec = jc.allocate_bits(
        sensitivities, cost, 1e9, unit="bops", weights={"l0": (4,), "l*": (2, 8)}
    )
    assert bits_of(spec, "weights") == [4, 8, None]
    assert bits_of(spec, "activations") == [8, 8, 8]
    spec = jc.allocate_bits(sensitivities._replace(activations=None), cost, 300 * 4)
    assert bits_of(spec, "activations") == [None] * 3
    assert spec["l2"] is None
    # Products of two activations cost the square of their bits.
    least = 10 * 2 * 2 + 20 * 2 * 2 + 30 * 2 * 2
    jc.allocate_bits(sensitivities, cost, least, unit="bops")
    with pytest.raises(ValueError, match=rf"below the least that these widths can cost, {least}"):
        jc.allocate_bits(sensitivities, cost, least - 1, unit="bops")
    spec = jc.allocate_bits(
        sensitivities, cost, 1e9, method=lambda b: jc.Uniform(b, symmetric=True)
    )
    assert all(s.activations.symmetric for s in spec.values())


def test_bad_input():
    rng = np.random.default_rng(0)
    cost, sensitivities = rows([100, 200], [10, 20]), table(rng, 2, (2, 4))
    with pytest.raises(ValueError, match=r"600\.5 bits of weights|599"):
        jc.allocate_bits(sensitivities, cost, 599)
    with pytest.raises(ValueError, match="'l1' is no layer of the cost"):
        jc.allocate_bits(sensitivities, rows([100], [10]), 1e4)
    nan = sensitivities._replace(weights=sensitivities.weights * np.array([[1, 1], [1, np.nan]]))
    with pytest.raises(ValueError, match="weights of 'l1' in 4 bits is nan"):
        jc.allocate_bits(nan, cost, 1e4)
    with pytest.raises(ValueError, match=r"'l0' may have \[3\] bits, but the damage of \[3\]"):
        jc.allocate_bits(sensitivities, cost, 1e4, weights={"l0": (3,)})
    with pytest.raises(ValueError, match="matches no site"):
        jc.allocate_bits(sensitivities, cost, 1e4, weights={"conv*": (2,)})
    with pytest.raises(ValueError, match="can't have one width for both"):
        jc.allocate_bits(
            sensitivities, cost, 1e4, together=True, weights={"*": (2,)}, activations={"*": (4,)}
        )
    with pytest.raises(ValueError, match="neither of weights nor of activations"):
        jc.allocate_bits(jc.BitSensitivity(("l0",), (2,)), cost, 1e4)
    with pytest.raises(ValueError, match="widths must be rising"):
        jc.kl_sensitivity(chain, {}, X, ("fc1",), (4, 2))
    with pytest.raises(ValueError, match="layers that differ"):
        jc.kl_sensitivity(chain, {}, X, ("fc1", "fc1"))


def test_sites_that_cannot_be_measured(params):
    for site, message in (("fc9", "matches no site"), ("relu", "nothing for a quantizer")):
        with pytest.raises(ValueError, match=message):
            jc.kl_sensitivity(chain, params, X, (site,), (4,))
        with pytest.raises(ValueError, match=message):
            jc.quantization_errors(chain, params, X, (site,), (4,))
    with pytest.raises(ValueError, match="must be a scalar"):
        jc.hessian_trace(KEY, chain, params, X, ("fc1",))

    def looped(p, x):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, p["w"])[0]

    stack = {"w": jax.random.normal(KEY, (2, 6, 6))}
    (site,) = [row.site for row in jaxeff.cost(looped, stack, X).layers if row.macs]
    with pytest.raises(ValueError, match="outside loops and branches"):
        jc.quantization_errors(looped, stack, X, (site,))
    sensitivities = jc.kl_sensitivity(
        looped, stack, X, (site,), (1, 8)
    )  # a policy reaches into a loop
    assert sensitivities.weights[0, 0] > sensitivities.weights[0, 1] > 0


@pytest.mark.slow
def test_the_budget_holds_in_the_spec_itself(params):
    sensitivities = jc.kl_sensitivity(chain, params, X, SITES, (1, 2, 3, 4, 8))
    cost = jaxeff.cost(chain, params, X[:1])
    budget = 4 * 4 * cost.macs
    spec = jc.allocate_bits(sensitivities, cost, budget, unit="bops")
    assert jaxeff.cost(jc.quantized(chain, spec), params, X[:1]).bops <= budget
    even = {"*:linear": jc.Int(4, activations_per="tensor", symmetric=False)}
    assert jaxeff.cost(jc.quantized(chain, even), params, X[:1]).bops == budget

    def damage(w, a):
        return sum(
            sensitivities.weights[i, sensitivities.widths.index(w[i])]
            + sensitivities.activations[i, sensitivities.widths.index(a[i])]
            for i in range(3)
        )

    chosen = damage(bits_of(spec, "weights"), bits_of(spec, "activations"))
    assert chosen <= damage([4] * 3, [4] * 3)


def test_every_layer_of_resnet18_gets_bits_within_the_budget():
    model = nnx.eval_shape(lambda: ResNet18(stem="cifar", rngs=nnx.Rngs(0)))
    model.eval()
    graph, state = nnx.split(model)

    def f(params, x):
        return nnx.merge(graph, params)(x)

    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    cost = jaxeff.cost(f, state, x)
    sites = tuple(row.site for row in cost.layers if row.macs)
    assert len(sites) == 21
    rng = np.random.default_rng(0)
    for of, budget in (
        ("weights", 4 * sum(r.weights for r in cost.layers)),
        ("bops", 16 * cost.macs),
    ):
        sensitivities = table(rng, 21, range(1, 9))._replace(sites=sites)
        spec = jc.allocate_bits(sensitivities, cost, budget, unit=of)
        rows = [r for r in jaxeff.cost(jc.quantized(f, spec), state, x).layers if r.macs]
        spent = sum(r.weights * r.weight_bits if of == "weights" else r.bops for r in rows)
        assert 0.95 * budget < spent <= budget
