"""Rotations: Walsh's matrix, equal outputs in float, streams that fold, errors with outliers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from flax import nnx

import jaxeff
from jaxeff.compression import (
    Grouped,
    Int,
    LayerQuantization,
    Rotated,
    Tensor,
    Uniform,
    awq,
    calibrate,
    integer,
    quantized,
    rotate,
)
from jaxeff.compression.quantizers import turned
from jaxeff.contrib import Decoder, DecoderConfig

WEIGHT = Tensor("fc", "weights_1", "weight", 2, None, lambda: (1,), find_summed=lambda: (0,))
DATA = Tensor("fc", "input_0", "activation", 2, find_summed=lambda: (1,))
LARGE = jnp.where(jnp.arange(64) == 3, 20.0, 1.0)
SIZE = jnp.where(jnp.arange(16) % 7 == 3, 50.0, 1.0)


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_the_matrix_is_walshs_with_signs(size):
    matrix = np.asarray(turned(jnp.eye(16), size, 3))
    signs = np.diag(np.sign(matrix[:, ::size].sum(1)))
    walsh = scipy.linalg.block_diag(*[scipy.linalg.hadamard(size)] * (16 // size)) / np.sqrt(size)
    np.testing.assert_allclose(matrix, signs @ walsh, atol=1e-6)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(16), atol=1e-6)
    x = jax.random.normal(jax.random.key(0), (3, 16))
    np.testing.assert_allclose(turned(x, size, 3), x @ matrix, atol=1e-5)
    np.testing.assert_allclose(turned(turned(x, size, 3), size, 3, back=True), x, atol=1e-5)
    assert (np.diag(signs) < 0).any()


@pytest.mark.slow
def test_products_are_those_of_the_turned_basis():
    x = jax.random.normal(jax.random.key(0), (5, 16)) * SIZE[None]
    w = jax.random.normal(jax.random.key(1), (16, 4))
    both = Rotated(Uniform(4, per="sample")).quantize(x, DATA) @ Rotated(
        Grouped(Uniform(4), 8)
    ).quantize(w, WEIGHT)
    matrix = turned(jnp.eye(16), 16, 0)
    by_hand = Uniform(4, per="sample").quantize(x @ matrix, DATA) @ Grouped(Uniform(4), 8).quantize(
        matrix.T @ w, WEIGHT
    )
    np.testing.assert_allclose(both, by_hand, rtol=1e-4, atol=1e-3)
    started = Rotated(Uniform(4)).start(w, WEIGHT)
    rounded = started.quantize(w, WEIGHT)
    np.testing.assert_allclose(started.quantize(rounded, WEIGHT), rounded, rtol=1e-5, atol=1e-6)
    assert started.storage((16, 4), WEIGHT) == Uniform(4).storage((16, 4), WEIGHT)
    gradient = jax.grad(lambda w: started.quantize(w, WEIGHT).sum())(w)
    np.testing.assert_allclose(gradient, jnp.ones_like(w), atol=1e-5)


def _stream(params, x):
    """A residual stream: a table, norms with and without a scale, a gated block, a head."""

    def norm(h):
        return h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)

    h = params["table"][x]
    for name in ("first", "second"):
        p = params[name]
        y = norm(h)
        y = y * p["scale"][None, None] if "scale" in p else y
        gate = jax.nn.silu(y @ p["gate"]["kernel"]) * (y @ p["up"]["kernel"])
        h = h + (gate @ p["down"]["kernel"] + p["down"]["bias"][None, None])
    return norm(h) @ params["head"]["kernel"]


def _stream_params():
    keys = iter(jax.random.split(jax.random.key(0), 20))

    def normal(*shape):
        return 0.3 * jax.random.normal(next(keys), shape)

    def block(**more):
        kernels = {"gate": (64, 32), "up": (64, 32), "down": (32, 64)}
        made = {name: {"kernel": normal(*shape)} for name, shape in kernels.items()}
        # As in language models, what is large is read with small weights.
        for name in ("gate", "up"):
            made[name]["kernel"] /= LARGE[:, None]
        made["down"]["bias"] = normal(64) * LARGE
        return {**made, **more}

    return {
        "table": normal(20, 64) * LARGE[None],
        "first": block(scale=1 + 0.3 * normal(64)),
        "second": block(),
        "head": {"kernel": normal(64, 20) / LARGE[:, None]},
    }


TOKENS = jax.random.randint(jax.random.key(5), (8, 6), 0, 20)


@pytest.mark.slow
def test_a_residual_stream_folds():
    params = _stream_params()
    # Of four bits are activations alone, whose steps the large channel decides.
    spec = {"*:linear": Int(8, 4, activations_per="token", symmetric=False)}
    _, new, started = rotate(jax.random.key(0), _stream, params, TOKENS, spec)
    exact = _stream(params, TOKENS)
    np.testing.assert_allclose(_stream(new, TOKENS), exact, rtol=1e-3, atol=1e-3)
    # What the call turns is turned by the signs of the stream.
    (seed,) = {s.weights.seed for s in started.values() if isinstance(s.weights, Rotated)}
    matrix = turned(jnp.eye(64), 64, seed)
    np.testing.assert_allclose(new["table"], params["table"] @ matrix, atol=1e-4)
    np.testing.assert_array_equal(new["first"]["scale"], jnp.ones(64))
    scaled = params["first"]["scale"][:, None] * params["first"]["up"]["kernel"]
    np.testing.assert_allclose(new["first"]["up"]["kernel"], matrix.T @ scaled, atol=1e-4)
    np.testing.assert_allclose(
        new["second"]["down"]["bias"], params["second"]["down"]["bias"] @ matrix, atol=1e-4
    )
    for site in ("first/gate", "second/up", "head"):
        assert isinstance(started[site].activations, Uniform)
    assert isinstance(started["second/down"].activations, Rotated)  # reads a product of two

    def error(params, spec):
        return float(jnp.square(jax.jit(quantized(_stream, spec))(params, TOKENS) - exact).mean())

    plain, folded = error(params, spec), error(new, started)
    assert folded < 0.5 * plain
    _, kept, in_the_call = rotate(jax.random.key(0), _stream, params, TOKENS, spec, fold=False)
    np.testing.assert_array_equal(kept["table"], params["table"])
    assert error(kept, in_the_call) < 0.5 * plain


@pytest.mark.slow
def test_what_does_not_commute_stays():
    params = _stream_params()
    spec = {"*:linear": Int(4, symmetric=False)}

    def clipped(params, x):
        return _stream({**params, "table": jnp.clip(params["table"], -9, 9)}, x)

    def shown(params, x):  # the stream itself is read
        return _stream(params, x) + params["table"][x].sum(-1, keepdims=True)

    for f in (clipped, shown):
        _, new, started = rotate(jax.random.key(0), f, params, TOKENS, spec)
        np.testing.assert_allclose(f(new, TOKENS), f(params, TOKENS), rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(new["table"], params["table"])
        assert isinstance(started["head"].weights, Rotated)


@pytest.mark.slow
def test_a_tied_decoder_is_turned_in_the_call_and_an_untied_one_folds():
    config = DecoderConfig(vocabulary=30, width=16, hidden=24, depth=1, heads=4, key_heads=2)
    f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))
    params["norm"]["scale"] = 1 / SIZE
    x = jax.random.randint(jax.random.key(0), (4, 12), 0, 30)
    spec = {"blocks/*:linear": Int(4, symmetric=False)}
    exact = f(params, x)
    _, new, started = rotate(jax.random.key(0), f, params, x, spec)
    np.testing.assert_array_equal(new["embed"]["embedding"], params["embed"]["embedding"])
    assert isinstance(started["blocks/0/up"].weights, Rotated)
    assert jnp.isfinite(quantized(f, started)(new, x)).all()
    g, untied = jaxeff.adapters.untied(f, params, x, "embed#1")
    _, new, started = rotate(jax.random.key(0), g, untied, x, spec)
    np.testing.assert_allclose(g(new, x), exact, rtol=1e-3, atol=1e-3)
    assert (new["shared"]["norm"]["scale"] == 1).all()
    assert isinstance(started["blocks/0/up"].weights, Uniform)
    assert isinstance(started["blocks/0/down"].weights, Rotated)


@pytest.mark.slow
def test_the_rest_goes_on_and_mistakes_are_named():
    def f(params, x):
        return x @ params["fc"]["kernel"]

    params = {"fc": {"kernel": jax.random.normal(jax.random.key(0), (16, 4))}}
    x = jax.random.normal(jax.random.key(1), (6, 16)) * SIZE[None]
    four = {"fc": Int(4, activations=False)}
    _, new, spec = rotate(jax.random.key(0), f, params, x, four)
    _, scaled, fitted = awq(f, new, x, spec, points=4)
    np.testing.assert_array_equal(jax.jit(quantized(f, fitted))(scaled, x), f(scaled, x))
    with pytest.warns(jaxeff.compression.IntegerFallbackWarning, match="weights of Rotated"):
        integer(f, spec).convert(params, x)
    with pytest.raises(ValueError, match="rotate found nothing to turn"):
        rotate(jax.random.key(0), f, params, x, {})
    with pytest.raises(ValueError, match="rotate: input_0 of 'fc' has a range already"):
        rotate(
            jax.random.key(0),
            f,
            params,
            x,
            calibrate(f, params, [x], {"fc": Int(8, symmetric=False)}).spec,
        )
    with pytest.raises(ValueError, match=r"Rotated.size must be a power of two, not 6"):
        Rotated(Uniform(4), 6)
    with pytest.raises(TypeError, match=r"Rotated.method must be a quantizer"):
        Rotated(3)
    with pytest.raises(ValueError, match=r"sums over 16 entries, which blocks of 32"):
        quantized(f, {"fc": LayerQuantization(Rotated(Uniform(4), 32))})(params, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "act", "seed", "folds"),
    [
        (3, jax.nn.relu, 1, False),
        (8, lambda x: jnp.clip(x, -1e4, 1e4), 0, False),
        (8, lambda x: x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), 0, True),
    ],
)
def test_only_what_commutes_with_this_rotation_at_any_size_folds(size, act, seed, folds):
    a, b, c = jax.random.split(jax.random.key(3), 3)
    params = {"a": jax.random.normal(a, (5, size)), "b": jax.random.normal(b, (size, 4))}
    x = jax.random.normal(c, (6, 5)) * 1e5

    def f(p, x):
        return act(x @ p["a"]) @ p["b"]

    _, new, spec = rotate(jax.random.key(seed), f, params, x, {"*": Int(8, symmetric=False)})
    exact = f(params, x)
    assert float(jnp.abs(f(new, x) - exact).max() / jnp.abs(exact).max()) < 1e-5
    assert isinstance(spec["b"].weights, Rotated) != folds
    assert quantized(f, spec)(new, x).shape == (6, 4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_layers_of_narrow_floats_are_tried_in_these(dtype):
    a, b, c = jax.random.split(jax.random.key(4), 3)
    x = jax.random.normal(c, (6, 5)).astype(dtype)
    params = {
        "a": jax.random.normal(a, (5, 8)).astype(dtype),
        "b": jax.random.normal(b, (8, 4)).astype(dtype),
    }

    def f(p, x):
        return jax.nn.relu(x @ p["a"]) @ p["b"]

    _, new, spec = rotate(jax.random.key(0), f, params, x, {"b": Int(8, symmetric=False)})
    assert isinstance(spec["b"].weights, Rotated)
    assert jnp.array_equal(f(new, x), f(params, x))
    assert quantized(f, spec)(new, x).dtype == dtype
