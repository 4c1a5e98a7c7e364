"""A transform reads its function once for each shape."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import (
    Additive,
    Crossbar,
    Gaussian,
    Int,
    analog,
    ensemble,
    integer,
    moments,
    noisy,
    quantized,
    trace,
)
from jaxeff.analog_hardware import Linear
from jaxeff.compression import calibrate
from jaxeff.core import jax_internals, read_once
from jaxeff.ensembles import Members
from jaxeff.moment_propagation import _regions
from jaxeff.moment_propagation.rules import gauss_legendre

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)}
X = jnp.linspace(0.0, 1.0, 8).reshape(2, 4)
KEY = jax.random.key(0)


@pytest.fixture
def counted():
    calls = []

    def f(params, x, scale=1.0):
        calls.append(x.shape)
        return jax.nn.relu(x @ params["w"]) * scale

    return f, calls


@pytest.mark.parametrize(
    ("transform", "args"),
    [
        (lambda f: noisy(f, {"*:linear": Additive(0.1)}), (KEY, PARAMS, X)),
        (lambda f: quantized(f, {"*:linear": Int(8)}), (PARAMS, X)),
        (lambda f: analog(f, {"*:linear": Crossbar(gain=0.01)}), (KEY, PARAMS, X)),
        (
            lambda f: moments(f, method="diagonal"),
            (jax.tree.map(lambda w: Gaussian(w, w**2), PARAMS), X),
        ),
    ],
    ids=["noisy", "quantized", "analog", "moments"],
)
def test_a_function_is_read_once_for_each_shape(counted, transform, args):
    f, calls = counted
    g = transform(f)
    first = g(*args)
    reads = len(calls)
    again = g(*args)
    assert len(calls) == reads > 0
    jax.tree.map(np.testing.assert_array_equal, first, again)
    g(*args[:-1], jnp.concatenate([X, X]))
    assert len(calls) == 2 * reads
    g(*args, scale=2.0)  # what is no array decides what is read, too
    assert len(calls) == 3 * reads


def test_an_ensemble_looks_for_ties_once(counted):
    f, calls = counted
    g, members = ensemble(KEY, f, {**PARAMS, "shared": X}, {"w": Members(2)})
    first = g(members, X)
    reads = len(calls)
    np.testing.assert_array_equal(g(members, X), first)
    assert len(calls) - reads == 1 < reads  # `vmap`'s own call


def test_integer_reads_once_for_conversion_and_calls(counted):
    f, calls = counted
    g = integer(f, calibrate(f, PARAMS, [X], {"*:linear": Int(8)}).spec)
    calls.clear()
    codes = g.convert(PARAMS, X)
    assert len(calls) == 1
    first, again = g(codes, X), g(codes, X)
    assert len(calls) == 1
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, g(PARAMS, X))


def test_values_of_a_trace_around_it_are_not_kept():
    """A function may close over what `jax.jit` or `vmap` traces: the next call has another one."""
    factor = {}

    def f(params, x):
        return x @ params["w"] * factor["now"]

    g = quantized(f, {"*:linear": Int(8)})

    @jax.jit
    def scaled(value):
        factor["now"] = value
        return g(PARAMS, X)

    one = scaled(jnp.float32(1.0))
    np.testing.assert_allclose(jax.vmap(scaled)(jnp.arange(1.0, 3.0))[1], 2 * one, rtol=1e-6)
    factor["now"] = 3.0
    np.testing.assert_allclose(g(PARAMS, X), 3 * one, rtol=1e-6)


def test_settings_of_jax_are_part_of_what_is_kept(counted):
    f, calls = counted
    g = quantized(f, {"*:linear": Int(8)})
    g(PARAMS, X)
    with jax.default_matmul_precision("highest"):
        g(PARAMS, X)
    assert len(calls) == 2


def test_threads_share_readings(counted):
    f, calls = counted
    g = quantized(f, {"*:linear": Int(8)})
    expected = g(PARAMS, X)

    def in_threads(count):
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(g(PARAMS, X))) for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            np.testing.assert_array_equal(result, expected)
        return len(results)

    # Threads that start together may read at once; one after them doesn't.
    assert in_threads(4) == 4
    reads = len(calls)
    assert in_threads(1) == 1
    assert len(calls) == reads


def test_few_readings_are_kept(counted):
    f, calls = counted
    g = read_once(f)

    def read(n):
        trace(g, PARAMS, jax.ShapeDtypeStruct((n, 4), jnp.float32))
        return len(calls)

    assert [read(n) for n in range(1, 20)] == [*range(1, 20)]
    assert read(19) == 19
    assert read(1) == 20  # was forgotten


def _primitives(g, *args):
    return {p.name for p in jax_internals.primitives_in(jax.make_jaxpr(g)(*args).jaxpr)}


def test_layers_without_a_setting_have_no_key(counted):
    f, _ = counted

    def deep(params, x):
        return f(params, x) @ jnp.eye(3)

    noisy = Crossbar(gain=0.01, model=Linear(0.1))  # of one that draws nothing nobody makes a key
    folded = [
        sum(
            eqn.primitive.name == "random_fold_in" for eqn in jax.make_jaxpr(g)(KEY, PARAMS, X).eqns
        )
        for g in (analog(h, {"w": noisy}) for h in (f, deep))
    ]
    assert folded == [2, 2]


def test_both_passes_of_a_crossbar_are_on_the_same_codes():
    def coded(signed):
        g = analog(lambda w, x: x @ w, {"*:linear": Crossbar(gain=0.01, signed=signed)})
        return str(jax.make_jaxpr(g)(KEY, PARAMS["w"], X)).count(" round[")

    assert coded(signed=True) == coded(signed=False) == 2


def test_crossbars_without_noise_draw_nothing(counted):
    f, _ = counted
    quiet, noise = ({"*:linear": Crossbar(gain=0.01, model=Linear(level))} for level in (0.0, 2.0))
    assert "random_bits" not in _primitives(analog(f, quiet), KEY, PARAMS, X)
    assert "random_bits" in _primitives(analog(f, noise), KEY, PARAMS, X)
    # A level that is traced may be anything.
    swept = jax.vmap(
        lambda s: analog(f, {"*:linear": Crossbar(gain=0.01, model=Linear(s))})(KEY, PARAMS, X)
    )
    np.testing.assert_array_equal(swept(jnp.array([0.0, 2.0]))[0], analog(f, quiet)(KEY, PARAMS, X))


def _equations(jaxpr, seen):
    if id(jaxpr) in seen:
        return 0
    seen.add(id(jaxpr))
    inner = (sub.jaxpr for eqn in jaxpr.eqns for sub in jax_internals.sub_jaxprs(eqn))
    return len(jaxpr.eqns) + sum(_equations(sub, seen) for sub in inner)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: quantized(f, {"*:linear": Int(8)}),
        lambda f: lambda params, x: analog(f, {"*:linear": Crossbar(signed=True)})(KEY, params, x),
    ],
    ids=["quantized", "analog"],
)
def test_equal_layers_share_what_is_traced(transform):
    def f(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return x

    def traced(depth):
        params = [jnp.eye(4)] * depth
        return _equations(jax.make_jaxpr(transform(f))(params, X).jaxpr, set())

    # A layer more costs its own equations, ranges, calls and keys: grids and tiles are there.
    assert traced(4) - traced(3) < 0.3 * traced(1)


def _block(name):
    def of(w, x):
        with jax.named_scope(name):
            x = jax.nn.standardize(x)
            scores = jax.nn.softmax(x @ w @ jnp.swapaxes(x @ w, -1, -2))
            return jax.nn.elu(scores @ x)  # one that is integrated

    return of


def _every(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax_internals.sub_jaxprs(eqn):
            yield from _every(inner.jaxpr)


def _scopes(jaxpr):
    return [str(eqn.source_info.name_stack) for eqn in _every(jaxpr)]


def test_equal_layers_have_one_body_of_moments(monkeypatch):
    calls = []

    def counting(*args, **kwargs):
        calls.append(args)
        return gauss_legendre(*args, **kwargs)

    monkeypatch.setattr(_regions, "gauss_legendre", counting)
    _regions._integral.clear_cache()
    w, x = jnp.eye(4) / 2, jnp.linspace(-1.0, 1.0, 24).reshape(2, 3, 4)
    random = Gaussian(x, jnp.full_like(x, 0.01))

    def traced(*names):
        def f(w, x):
            for name in names:
                x = _block(name)(w, x)
            return x

        return jax.make_jaxpr(moments(f, method="diagonal"))(w, random).jaxpr

    bodies = [
        eqn.params["jaxpr"]
        for eqn in _every(traced("block", "block", "block"))
        if eqn.params.get("operator") == "jaxeff.pfp_attention"
    ]
    assert len(bodies) == 3
    assert len({id(body) for body in bodies}) == 1
    assert len(calls) == 1
    marks = {s.split("/")[0] for s in _scopes(traced("first", "second")) if "elu" in s}
    assert len(calls) == 1
    assert marks == {
        "jaxeff[elementwise#0](elu)",
        "jaxeff[elementwise#1](elu_1)",
    }  # as they were


def test_functions_that_differ_in_a_number_are_traced_apart():
    x = Gaussian(jnp.linspace(-1.0, 1.0, 5), jnp.full(5, 0.04))

    def f(x, by):
        return jnp.tanh(by * jnp.sin(x))

    both = jax.jit(moments(lambda x: (f(x, 1.0), f(x, 3.0))))(x)
    for by, result in zip((1.0, 3.0), both, strict=True):
        alone = jax.jit(moments(lambda x, by=by: f(x, by)))(x)
        np.testing.assert_array_equal(result.mean, alone.mean)
        np.testing.assert_array_equal(result.var, alone.var)
    assert not np.allclose(both[0].mean, both[1].mean)
