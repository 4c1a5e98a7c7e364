"""Integer networks of codes to codes: `Integer.coded`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import Int, IntegerError, Uniform, calibrate, integer

WEIGHTS = Int(8)
X = jax.random.normal(jax.random.key(1), (6, 8, 8, 2))


class Two(nnx.Module):
    """Moves its data before the first layer, and returns codes' own kinds of results."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(2, 4, (3, 3), rngs=rngs)
        self.fc = nnx.Linear(64 * 4, 3, rngs=rngs)

    def __call__(self, x):
        y = nnx.relu(self.conv(jnp.transpose(x, (0, 2, 1, 3))))
        logits = self.fc(y.reshape(y.shape[0], -1))
        return {"class": logits.argmax(-1), "logits": logits}


@pytest.fixture(scope="module")
def case():
    f, params = jaxeff.functional(Two(rngs=nnx.Rngs(0)))
    return f, params, integer(f, calibrate(f, params, [X], {"*:linear": WEIGHTS}).spec)


def test_codes_stand_for_what_the_integer_network_computes(case):
    _, params, g = case
    h = g.coded(params, X)
    (q,) = h.encode(X)
    out, wanted = h(params, q), g(params, X)
    assert q.dtype == out["logits"].dtype == jnp.uint8
    # The data are rounded once, by `encode` or by the first layer; then kernels end on the grid of
    # the results instead of in float, of which they round to the nearest code.
    assert jnp.array_equal(out["class"], wanted["class"])
    grid = h.results[1]
    assert h.results[0] is None
    floats = np.asarray(wanted["logits"])
    assert jnp.abs(h.decode(out)["logits"] - floats).max() <= 0.51 * grid.step
    assert floats.max() - floats.min() == pytest.approx(255 * grid.step, rel=0.02)


def test_converted_parameters_and_compiled_calls_are_the_same(case):
    _, params, g = case
    h = g.coded(params, X)
    (q,) = h.encode(X)
    codes = h.convert(params, q)
    for y in (h(codes, q), jax.jit(h)(codes, q)):
        assert jax.tree.all(jax.tree.map(jnp.array_equal, y, h(params, q)))


def test_grids_of_results_may_be_given(case):
    _, params, g = case
    h = g.coded(params, X, results=Uniform(4, range=(-1.0, 1.0)))
    (q,) = h.encode(X)
    out = h.decode(h(params, q))["logits"]
    assert len(np.unique(np.asarray(out))) <= 16
    inside = jnp.clip(g(params, X)["logits"], *(h.results[1].read(jnp.array(e)) for e in (0, 15)))
    assert jnp.abs(out - inside).max() <= 0.51 * h.results[1].step


def test_fixed_point_scales(case):
    f, params, _ = case
    g = integer(f, calibrate(f, params, [X], {"*:linear": WEIGHTS}).spec, requantize="fixed")
    h = g.coded(params, X)
    (q,) = h.encode(X)
    out = h.decode(h(h.convert(params, q), q))["logits"]
    assert jnp.abs(out - g(params, X)["logits"]).max() <= 1.51 * h.results[1].step


def test_whole_numbers_stay(case):
    def gathers(params, x, rows):
        return (x @ params["w"])[rows]

    params = {"w": jax.random.normal(jax.random.key(0), (8, 5))}
    x, rows = X.reshape(-1, 8), jnp.array([1, 3])
    g = integer(gathers, calibrate(gathers, params, [(x, rows)], {"*": WEIGHTS}).spec)
    h = g.coded(params, x, rows)
    q, same = h.encode(x, rows)
    assert h.arguments[1] is None
    assert same is rows
    wanted = g(params, x, rows)
    assert jnp.abs(h.decode(h(params, q, rows)) - wanted).max() <= 0.51 * h.results[0].step


def test_data_that_are_read_in_float_are_named(case):
    def scaled(params, x):
        return (x / 255) @ params["w"]

    params = {"w": jax.random.normal(jax.random.key(0), (8, 5))}
    x = X.reshape(-1, 8)
    g = integer(scaled, calibrate(scaled, params, [x], {"*:linear": WEIGHTS}).spec)
    with pytest.raises(IntegerError, match=r"args\[0\] are read in floating point"):
        g.coded(params, x)
    with pytest.raises(IntegerError, match="1 results in float, and 2 grids"):
        case[2].coded(case[1], X, results=[Uniform(8, range=(0.0, 1.0))] * 2)


@pytest.mark.parametrize("ends", [(-4.0, 4.0), (-1.0, 7.0)])
def test_data_and_results_of_sixteen_bits_are_on_grids_of_their_own(ends):
    def scaled(params, x):
        return (x / 2) @ params["w"]  # arithmetic, which no codes of a layer can stand for

    params = {"w": jax.random.normal(jax.random.key(0), (8, 5))}
    x = jnp.clip(X.reshape(-1, 8), *ends)
    g = integer(scaled, calibrate(scaled, params, [x], {"*:linear": WEIGHTS}).spec)
    wide = Uniform(16, range=ends), Uniform(12, range=(-30.0, 30.0))
    h = g.coded(params, x, arguments=wide[0], results=wide[1])
    (q,) = h.encode(x)
    codes = h.convert(params, q)
    out = jax.jit(h)(codes, q)
    assert q.dtype == out.dtype == jnp.int16
    (of_x,), (of_y,) = h.arguments, h.results
    assert jnp.abs(of_x.read(q) - x).max() <= 0.51 * of_x.step < 8.0 / 2**16
    assert of_y.step == pytest.approx(60 / 2**12, rel=1e-3)
    # The network is `g` of what the codes stand for: nothing but the ends is rounded anew.
    wanted = g(params, of_x.read(q))
    assert jnp.abs(of_y.read(out) - wanted).max() <= 0.51 * of_y.step
    ends_of = of_y.write(jnp.array([1e9, -1e9, jnp.nan]))
    assert ends_of.tolist() == [of_y.upper, of_y.lower, of_y.lower]
    with pytest.raises(TypeError, match="codes are int16"):
        h(codes, q.astype(jnp.uint8))
    with pytest.raises(IntegerError, match="of 9 to 16"):
        g.coded(params, x, arguments=Uniform(8, range=ends))
    with pytest.raises(IntegerError, match="range of known numbers"):
        g.coded(params, x, arguments=Uniform(16))


def test_data_that_are_no_codes_are_refused(case):
    _, params, g = case
    h = g.coded(params, X)
    (q,) = h.encode(X)
    for wrong in (X, q.astype(jnp.int8)):
        with pytest.raises(TypeError, match="codes are uint8"):
            h(params, wrong)
        with pytest.raises(TypeError, match="codes are uint8"):
            h.convert(params, wrong)
    with pytest.raises(TypeError, match="are 1 arrays, but 0"):
        h(params)
    with pytest.raises(TypeError, match="1 arrays to map, but 2"):
        h.encode(X, X)


def test_parameters_of_other_results_are_told_apart():
    f, params = (
        lambda params, x: x @ params["w"],
        {"w": jax.random.normal(jax.random.key(2), (6, 3))},
    )
    x = jax.random.normal(jax.random.key(2), (4, 6))
    g = integer(f, calibrate(f, params, [x], {"w": WEIGHTS}).spec)
    h = g.coded(params, x)
    (q,) = h.encode(x)
    of_floats, of_codes = g.convert(params, x), h.convert(params, q)
    for call, args in ((h, (of_floats, q)), (g, (of_codes, x))):
        with pytest.raises(IntegerError, match=r"made by g\.convert.*by h\.convert"):
            call(*args)
    with pytest.raises(TypeError, match="these are converted"):
        g.convert(of_floats, x)
