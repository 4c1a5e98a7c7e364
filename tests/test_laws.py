"""The five laws of DESIGN: what holds for every transform, whatever it does."""

import functools
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxeff
from jaxeff.analog_hardware import Crossbar, Linear
from jaxeff.compression import Int
from jaxeff.moment_propagation import MomentsError
from jaxeff.noise import Additive, Multiplicative
from jaxeff.photonics import ChaoticLight
from jaxeff.pruning import Plan, PlanError

ROOT = Path(__file__).parents[1]
KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (4, 8, 8, 1))


class Net(nnx.Module):
    """Convolution, ReLU, average pooling, dense: a site for every transform."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.fc = nnx.Linear(48, 5, rngs=rngs)

    def __call__(self, x):
        with jax.numpy_dtype_promotion("standard"):  # Flax divides by a NumPy integer
            x = nnx.avg_pool(nnx.relu(self.conv(x)), (2, 2), strides=(2, 2))
        return self.fc(x.reshape(x.shape[0], -1))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Conv(3, (3, 3), name="conv")(x))
        with jax.numpy_dtype_promotion("standard"):
            x = linen.avg_pool(x, (2, 2), strides=(2, 2))
        return linen.Dense(5, name="fc")(x.reshape(x.shape[0], -1))


F, PARAMS = jaxeff.functional(Net(nnx.Rngs(0)))
MATCHED = ["conv", "relu", "avg_pool", "fc"]


class Transform(NamedTuple):
    """A transform with a spec, in the form g(key, params, x) whether it takes a key or not."""

    apply: Callable[..., Any]
    empty: Callable[..., Any]
    keyed: bool

    def eager(self, f, key, params, x, form="apply"):
        g = getattr(self, form)(f)
        return g(key, params, x) if self.keyed else g(params, x)

    def call(self, f, key, params, x):
        """The same, compiled: one program instead of hundreds, each of one primitive."""
        return compiled(self, f)(key, params, x)


@functools.cache
def compiled(transform, f):
    return jax.jit(functools.partial(transform.eager, f))


def gaussian(params):
    return jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 + 0.1 * w**2), params)


def moments(f):
    """Moments of random weights, as a function of plain ones."""

    of_random = jaxeff.moments(f, method="diagonal")

    def g(*args):
        return of_random(*(gaussian(a) if isinstance(a, dict) else a for a in args))

    return g


GROUPS = jaxeff.channels(F, PARAMS, X)
KEEP = {"conv/kernel:3": jnp.array([True, False, True])}
GATES = {"conv/kernel:3": jnp.array([0.7, 1.2, 0.4])}


def pruned(plan):
    """The smaller model, as a function of the whole one's parameters."""

    def transform(f):
        return lambda *args: jaxeff.pruned(f, plan)(*map(plan.shrink, args))

    return transform


NOISE = {"conv": Additive(0.3), "relu": Multiplicative(0.1), "fc": Additive(0.2, at="weights")}
LIGHT = {"avg_pool*": ChaoticLight(noise=0.7, cap=4.0)}
# Several tiles, none of them full. Light in front of them can read less than zero.
ARRAY = Crossbar(
    rows=20, columns=3, output_bits=24, gain=10.0, input_step=0.05, weight_step=0.01, signed=True,
    model=Linear(200.0),
)  # fmt: skip

LOW_RANK = {"conv": jaxeff.LoRA(2), "fc": jaxeff.LoRA(3)}
FACTORS = jax.tree.map(
    lambda leaf: leaf + 0.1, jaxeff.adapters.init_lora(KEY, F, PARAMS, X, LOW_RANK)
)


def low_rank(spec, adapters):
    """A model with fixed adapters, as a function of its own parameters."""
    return lambda f: lambda *args: jaxeff.lora(f, spec)(*args[:-1], adapters, args[-1])


TRANSFORMS = {
    "noisy": Transform(lambda f: jaxeff.noisy(f, NOISE), lambda f: jaxeff.noisy(f, {}), keyed=True),
    "quantized": Transform(
        lambda f: jaxeff.quantized(f, {"conv": Int(4), "*:linear": Int(6)}),
        lambda f: jaxeff.quantized(f, {}),
        keyed=False,
    ),
    "moments": Transform(moments, lambda f: lambda p, x: jaxeff.moments(f)(p, x).mean, keyed=False),
    "masked": Transform(
        lambda f: jaxeff.masked(f, Plan(KEEP, GROUPS)),
        lambda f: jaxeff.masked(f, Plan({}, GROUPS)),
        keyed=False,
    ),
    "gated": Transform(
        lambda f: jaxeff.masked(f, Plan(GATES, GROUPS)),
        lambda f: jaxeff.masked(f, Plan({}, GROUPS)),
        keyed=False,
    ),
    "pruned": Transform(pruned(Plan(KEEP, GROUPS)), pruned(Plan({}, GROUPS)), keyed=False),
    "lora": Transform(low_rank(LOW_RANK, FACTORS), low_rank({}, {}), keyed=False),
    "photonic": Transform(
        lambda f: jaxeff.photonic(f, LIGHT), lambda f: jaxeff.photonic(f, {}), keyed=True
    ),
    "analog": Transform(
        lambda f: jaxeff.analog(f, {"fc": ARRAY}), lambda f: jaxeff.analog(f, {}), keyed=True
    ),
}
every = pytest.mark.parametrize("name", TRANSFORMS)


def leaves(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result)]


def assert_same(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for u, v in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_allclose(u, v, **tolerance)


# Law 1 -------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("compiled", [False, True])
def test_an_empty_spec_is_the_function_bit_for_bit(name, compiled):
    wrap = jax.jit if compiled else lambda f: f
    g = wrap(functools.partial(TRANSFORMS[name].eager, F, form="empty"))
    np.testing.assert_array_equal(g(KEY, PARAMS, X), wrap(F)(PARAMS, X))


@pytest.mark.parametrize("name", [name for name, at in TRANSFORMS.items() if at.keyed])
def test_several_keys_are_refused_where_one_is_meant(name):
    with pytest.raises(ValueError, match="must be one random key, not an array of them"):
        TRANSFORMS[name].apply(F)(jax.random.split(KEY, 3), PARAMS, X)


def test_moments_of_deterministic_inputs_have_zero_variance():
    out = jaxeff.moments(F)(PARAMS, X)
    np.testing.assert_array_equal(out.mean, F(PARAMS, X))
    np.testing.assert_array_equal(out.var, np.zeros_like(out.mean))


@every
def test_a_spec_that_leaves_everything_alone_changes_nothing(name):
    if name not in SPECS:
        pytest.skip(f"{name} has no spec")
    transform = getattr(jaxeff, name)
    g = transform(F, {"*": None})
    out = g(KEY, PARAMS, X) if TRANSFORMS[name].keyed else g(PARAMS, X)
    np.testing.assert_array_equal(out, F(PARAMS, X))


# Law 2 -------------------------------------------------------------------------------------------


def under_scan(f):
    def g(params, x):
        return jax.lax.scan(lambda c, row: (c, f(params, row[None])[0]), 0.0, x)[1]

    return g


WRAPPERS = {
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "nested": lambda f: jax.jit(jax.checkpoint(jax.jit(f))),
    "cond": lambda f: (
        lambda p, x: jax.lax.cond(x.sum() < 1e9, f, lambda p, x: jnp.zeros((4, 5)), p, x)
    ),
}


@every
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapping_the_function_changes_nothing(name, wrapper):
    transform = TRANSFORMS[name]
    plain = transform.call(F, KEY, PARAMS, X)
    wrapped = transform.call(WRAPPERS[wrapper](F), KEY, PARAMS, X)
    assert_same(plain, wrapped, rtol=1e-5, atol=1e-5)


@every
def test_a_scan_over_rows_runs_the_body_under_the_rule(name):
    transform = TRANSFORMS[name]
    rows = transform.call(under_scan(F), KEY, PARAMS, X)
    assert leaves(rows)[0].shape == (4, 5)
    if not transform.keyed:
        one_by_one = [transform.call(F, KEY, PARAMS, row[None]) for row in X]
        expected = jax.tree.map(lambda *r: jnp.concatenate(r), *one_by_one)
        assert_same(rows, expected, rtol=1e-5, atol=1e-5)
    else:
        same = jnp.broadcast_to(X[:1], X.shape)
        drawn = leaves(transform.call(under_scan(F), KEY, PARAMS, same))[0]
        assert len(np.unique(drawn[:, 0])) == 4  # a key per iteration


@every
def test_jit_equals_eager_and_traces_once(name):
    transform, calls = TRANSFORMS[name], []

    def counted(params, x):
        calls.append(1)
        return F(params, x)

    g = jax.jit(functools.partial(transform.eager, counted))
    out = g(KEY, PARAMS, X)
    for i in range(3):
        g(jax.random.key(i), PARAMS, X + i)
    assert len(calls) == 1
    assert_same(out, transform.eager(F, KEY, PARAMS, X), rtol=1e-5, atol=1e-5)


@pytest.mark.process
def test_no_tracer_outlives_its_trace():
    """In a process of its own: the check collects garbage after every trace, of all that it has."""
    command = [sys.executable, "-m", "tests.leaks"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == list(TRANSFORMS)


@every
def test_vmap_equals_a_loop(name):
    transform = TRANSFORMS[name]
    keys = jax.random.split(KEY, 3)
    params = jax.vmap(lambda s: jax.tree.map(lambda w: s * w, PARAMS))(jnp.arange(1.0, 4.0))
    vmapped = jax.jit(jax.vmap(functools.partial(transform.eager, F), in_axes=(0, 0, None)))
    out = vmapped(keys, params, X)
    each = [
        transform.call(F, keys[i], jax.tree.map(lambda w, i=i: w[i], params), X) for i in range(3)
    ]
    assert_same(out, jax.tree.map(lambda *r: jnp.stack(r), *each), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@every
def test_gradients_are_finite_jit_and_agree_with_the_forward_derivative(name):
    transform = TRANSFORMS[name]

    def loss(params):
        return sum(jnp.sum(v**2) for v in jax.tree.leaves(transform.call(F, KEY, params, X)))

    gradient = jax.grad(loss)(PARAMS)
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in leaves(gradient))
    assert_same(gradient, jax.jit(jax.grad(loss))(PARAMS), rtol=1e-4, atol=1e-4)
    direction = jax.tree.map(lambda w: jnp.cos(jnp.arange(w.size)).reshape(w.shape), PARAMS)
    forward = jax.jvp(loss, (PARAMS,), (direction,))[1]
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), gradient, direction)
    np.testing.assert_allclose(forward, sum(jax.tree.leaves(products)), rtol=1e-3)


@every
def test_nnx_and_linen_give_the_same(name):
    module = LinenNet()
    f, params = jaxeff.functional(module, module.init(KEY, X))
    transform = TRANSFORMS[name]
    assert jax.tree.structure(params) == jax.tree.structure(PARAMS)
    assert_same(
        transform.call(f, KEY, PARAMS, X),
        transform.call(F, KEY, PARAMS, X),
        rtol=1e-5,
        atol=1e-5,
    )


# Law 3 -------------------------------------------------------------------------------------------


@every
def test_same_key_same_result(name):
    transform = TRANSFORMS[name]
    assert_same(transform.call(F, KEY, PARAMS, X), transform.call(F, KEY, PARAMS, X), rtol=0)
    if transform.keyed:
        other = transform.call(F, jax.random.key(7), PARAMS, X)
        assert not np.allclose(leaves(other)[0], leaves(transform.call(F, KEY, PARAMS, X))[0])


def test_a_sites_noise_does_not_depend_on_the_others():
    clean = F(PARAMS, X)
    fc = {"fc": Additive(0.2)}
    alone = jaxeff.noisy(F, fc)(KEY, PARAMS, X) - clean
    conv = {"conv": Additive(0.3)}
    with_conv = jaxeff.noisy(F, conv)(KEY, PARAMS, X)
    both = jaxeff.noisy(F, conv | fc)(KEY, PARAMS, X)
    np.testing.assert_allclose(both - with_conv, alone, atol=1e-5)


SPECS = {
    "noisy": {"*": Additive(0.1), "conv": None, "*:linear": Additive(0.2), "re*": Additive(0.3)},
    "quantized": {"*:linear": Int(4, range=2.0), "*": None, "c*": Int(3, range=1.0)},
    "photonic": {"avg_pool*": ChaoticLight(noise=0.7, cap=4.0), "*:linear": None, "conv": None},
    "analog": {"*:linear": ARRAY, "conv": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_a_spec_means_the_same_in_any_order_and_as_an_argument(name):
    def run(spec):
        g = getattr(jaxeff, name)(F, spec)
        return g(KEY, PARAMS, X) if TRANSFORMS[name].keyed else g(PARAMS, X)

    spec = SPECS[name]
    expected = run(spec)
    for order in itertools.permutations(spec):
        np.testing.assert_array_equal(run({pattern: spec[pattern] for pattern in order}), expected)
    assert_same(jax.jit(run)(spec), expected, rtol=1e-5, atol=1e-5)
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), jax.tree.map(jnp.asarray, spec))
    assert_same(jax.vmap(run)(twice)[1], expected, rtol=1e-5, atol=1e-5)


def test_uses_of_a_shared_layer_have_noise_of_their_own():
    def f(params, x):
        return jnp.stack([x @ params["fc"]["w"], x @ params["fc"]["w"]])

    out = jaxeff.noisy(f, {"fc": Additive(1.0)})(KEY, {"fc": {"w": jnp.eye(3)}}, jnp.ones((2, 3)))
    assert not np.allclose(out[0], out[1])


# Law 4 -------------------------------------------------------------------------------------------


REFUSED = {  # what cuts weights into tiles of integer codes is the last to touch them
    ("quantized", "analog"): (ValueError, 'cut it into tiles.*or per="tensor"'),
    ("moments", "analog"): (MomentsError, r"analog\(moments\(f\), spec\)"),
    ("analog", "analog"): (ValueError, "reads out already"),
    ("pruned", "analog"): (PlanError, "take pruned"),
    # Shrunk or cut inside, channels are summed nowhere that gates could act on.
    ("gated", "pruned"): (PlanError, r"take masked\(f, plan\)"),
    ("gated", "analog"): (PlanError, r"take masked\(f, plan\)"),
    ("lora", "moments"): (ValueError, r"Take moments\(lora"),
    ("lora", "pruned"): (ValueError, "whose weight is a part of conv/kernel"),
    ("lora", "analog"): (ValueError, r"Take analog\(lora"),
    ("moments", "moments"): (MomentsError, "Take moments once"),
}


@pytest.mark.parametrize(("outer", "inner"), list(itertools.product(TRANSFORMS, repeat=2)))
def test_transforms_compose_and_names_survive(outer, inner):
    first, second = TRANSFORMS[inner], TRANSFORMS[outer]
    g = first.apply(F)
    arguments = (KEY, PARAMS, X) if first.keyed else (PARAMS, X)
    names = [layer.site for layer in jaxeff.trace(g, *arguments).sites if layer.is_matchable]
    assert [n for n in names if n in MATCHED] == MATCHED
    h = second.apply(g)
    if outer == inner == "pruned":
        # Here the inner one shrinks the parameters, which looks single channels up.
        with pytest.raises(PlanError, match=r"gather .*take pruned"):
            h(*arguments)
        return
    h = jax.jit(h)
    if second.keyed:
        arguments = (jax.random.key(3), *arguments)
    if refused := REFUSED.get((outer, inner)):
        with pytest.raises(refused[0], match=refused[1]):
            h(*arguments)
        return
    out = h(*arguments)
    assert all(np.isfinite(leaf).all() for leaf in leaves(out))
    assert leaves(out)[0].shape == (4, 5)
    kind = jaxeff.Gaussian if "moments" in (outer, inner) else jax.Array
    assert isinstance(out, kind)
    if kind is jaxeff.Gaussian:
        assert (np.asarray(out.var) >= 0).all()


def matchable(f, *arguments):
    return [layer.site for layer in jaxeff.trace(f, *arguments).sites if layer.is_matchable]


EVERYWHERE = {
    "noisy": lambda f: functools.partial(jaxeff.noisy(f, {"*": Additive(0.3)}), KEY),
    "noisy at inputs": lambda f: functools.partial(
        jaxeff.noisy(f, {"*": Multiplicative(0.3, at="input")}), KEY
    ),
    "quantized": lambda f: jaxeff.quantized(f, {"*": Int(6, at="output")}),
    # The linear method differentiates: the way back has sites of its own, as under `jax.grad`.
    "moments": lambda f: (
        lambda *a: jaxeff.moments(f, noise={"*": Additive(0.3)}, method="diagonal")(*a)
    ),
    "draws": lambda f: functools.partial(
        jaxeff.noise.monte_carlo(jaxeff.noisy(f, {"*": Additive(0.3)}), 2), KEY
    ),
}


@pytest.mark.parametrize("inside", ["plain", "vmap", "scan"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_what_a_transform_adds_at_any_site_is_no_site(name, inside):
    if (name, inside) == ("moments", "scan"):
        pytest.skip("noise is drawn anew in every step, which moments don't follow")
    f = {
        "plain": F,
        "vmap": lambda p, x: jax.vmap(lambda row: F(p, row[None]))(x),
        "scan": under_scan(F),
    }[inside]
    once = EVERYWHERE[name](f)
    assert matchable(once, PARAMS, X) == matchable(f, PARAMS, X)
    if name != "moments":
        assert matchable(EVERYWHERE[name](once), PARAMS, X) == matchable(f, PARAMS, X)
        assert matchable(EVERYWHERE["noisy"](once), PARAMS, X) == matchable(f, PARAMS, X)


def test_noise_of_noise_everywhere_has_the_sum_of_their_variances():
    def f(params, x):
        return x @ params["w"]

    def star(deviation):
        return {"*": Additive(deviation)}

    inner = functools.partial(jaxeff.noisy(f, star(0.3)), KEY)
    outer = jaxeff.noisy(inner, star(0.4))
    arguments = {"w": jnp.eye(3)}, jnp.ones((20_000, 3))
    y = outer(jax.random.key(1), *arguments)
    var, count = 2 * (0.3**2 + 0.4**2), y.size
    assert abs(y.var() - var) < 5 * var * np.sqrt(2 / count)  # at the input and the product


def test_an_input_that_is_read_besides_keeps_a_site():
    def both(params, x):
        return jaxeff.noisy(F, {"input": Additive(0.3)})(KEY, params, x) + x.sum()

    assert [s for s in jaxeff.sites(both, PARAMS, X) if "input" in s] == ["input_1", "input"]


BLOCK = {"block": {"w1": jnp.eye(8), "b1": jnp.ones(8), "w2": jnp.ones((8, 8))}}


def feed_forward(params, x):
    w = params["block"]
    x = jax.nn.relu(x[:, 0, :, 0] @ w["w1"] + w["b1"][None])
    return x.reshape(4, 4, 2).mean(-1) @ w["w2"][:4]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noisy", "quantized", "moments"])
def test_two_weights_of_a_module_keep_their_names(name):
    transforms = {
        "noisy": lambda f: functools.partial(jaxeff.noisy(f, {"block/w1": Additive(0.1)}), KEY),
        "quantized": lambda f: jaxeff.quantized(f, {"block/w2": Int(4)}),
        "moments": moments,
    }
    g = transforms[name](feed_forward)
    names = [layer.site for layer in jaxeff.trace(g, BLOCK, X).sites]
    assert [n for n in names if n.startswith("block")][:2] == ["block/w1", "block/w2"]
    if name != "moments":
        only = jaxeff.noisy(g, {"block/w2": Additive(0.5)})(jax.random.key(3), BLOCK, X)
        assert not np.allclose(only, g(BLOCK, X))


@pytest.mark.slow
def test_composition_is_the_sum_of_its_parts():
    both = jaxeff.noisy(
        jaxeff.quantized(F, {"fc": Int(3, activations=False)}), {"fc": Additive(0.2)}
    )
    only = jaxeff.quantized(F, {"fc": Int(3, activations=False)})
    noise = jaxeff.noisy(F, {"fc": Additive(0.2)})(KEY, PARAMS, X) - F(PARAMS, X)
    np.testing.assert_allclose(both(KEY, PARAMS, X) - only(PARAMS, X), noise, atol=1e-5)


# Law 5 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("primitive", "function"),
    [
        ("sort", jnp.sort),
        ("cholesky", lambda y: jax.lax.linalg.cholesky(y + jnp.eye(4), symmetrize_input=False)),
        ("fft", lambda y: jnp.abs(jnp.fft.rfft(y))),
        # Real numbers are made complex first, which is where the transform begins.
        ("convert_element_type.*a Fourier transform", lambda y: jnp.abs(jnp.fft.fft(y))),
    ],
)
def test_an_unknown_primitive_meeting_a_random_value_is_named(primitive, function):
    def f(params, x):
        return function(x @ params["fc"]["w"])

    params = {"fc": {"w": jnp.eye(4)}}
    x = jnp.ones((4, 4))
    diagonal = jaxeff.moments(f, method="diagonal")
    np.testing.assert_array_equal(diagonal(params, x).mean, f(params, x))
    with pytest.raises(NotImplementedError, match=primitive):
        diagonal(gaussian(params), x)
