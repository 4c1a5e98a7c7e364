"""`integer` of weights by group and of weights alone: against `quantized`, bytes, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import (
    Int,
    IntegerError,
    IntegerFallbackWarning,
    calibrate,
    gptq,
    integer,
    nf4,
    quantized,
)
from jaxeff.compression.integers._packed import packed_codes, unpacked_codes
from jaxeff.compression.numerics import LayerQuantization
from jaxeff.compression.quantizers import Uniform
from jaxeff.pruning.sparsity import NofM

X = jax.random.normal(jax.random.key(3), (2, 3, 64))


def f(params, x):
    hidden = jax.nn.relu(x @ params["up"]["w"] + params["up"]["b"][None, None])
    return jnp.einsum("bthk,hko->bto", hidden.reshape(*x.shape[:2], 3, 32), params["down"]["w"])


KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {
    "up": {"w": jax.random.normal(KEYS[0], (64, 96)), "b": jax.random.normal(KEYS[1], (96,))},
    "down": {"w": jax.random.normal(KEYS[2], (3, 32, 10))},
}
GROUPS = {"per": "group", "group": 16}


@pytest.mark.slow
def test_packing_is_undone():
    for depth in (6, 7):
        codes = jax.random.randint(jax.random.key(depth), (depth, 5), -8, 8).astype(jnp.int8)
        stored = packed_codes(codes)
        assert stored.shape == ((depth + 1) // 2, 5)
        assert stored.dtype == jnp.uint8
        np.testing.assert_array_equal(unpacked_codes(stored, depth), codes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        Int(8, activations=False),
        Int(3, activations=False, per="tensor"),
        Int(4, activations=False, **GROUPS),
        Int(4, activations=False, steps="float16", **GROUPS),
        Int(4, activations=False, steps="int8", **GROUPS),
    ],
)
def test_weights_alone_are_those_of_quantized(setting):
    spec = {"*:linear": setting}
    g = integer(f, spec)
    codes = g.convert(PARAMS, X)
    expected = quantized(f, spec)(PARAMS, X)
    np.testing.assert_allclose(g(codes, X), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(jax.jit(g)(codes, X), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bits", [1, 4])
@pytest.mark.parametrize("steps", ["float32", "float16", "int8"])
def test_a_group_of_zeros_stays_zero(bits, steps):
    def one(params, x):
        return x @ params["w"]

    spec = {"*": Int(bits, activations=False, steps=steps, **GROUPS)}
    params = {"w": (0.01 * PARAMS["up"]["w"]).at[:16].set(0).at[:, 3].set(0)}
    g = integer(one, spec)
    output = g(g.convert(params, X), X)
    np.testing.assert_allclose(output, quantized(one, spec)(params, X), rtol=1e-5, atol=1e-6)
    assert (output[..., 3] == 0).all()


def test_bytes():
    spec = {"*:linear": Int(4, activations=False, steps="int8", per="group")}
    arrays = integer(f, spec).convert(PARAMS, X).arrays
    assert arrays["up/codes"].nbytes == 64 * 96 / 2
    assert arrays["up/steps"].nbytes == 64 * 96 / 32
    assert arrays["down/codes"].shape == (48, 10)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_codes_of_activations(dynamic):
    setting = Int(4, 8, symmetric=True, steps="int8", activations_per="token", **GROUPS)
    spec = {"*:linear": setting}
    if not dynamic:
        spec = calibrate(f, PARAMS, [X], spec).spec
    g = integer(f, spec, dynamic=dynamic)
    codes = g.convert(PARAMS, X)
    expected = quantized(f, spec)(PARAMS, X)
    # A sum of floats near the middle of two codes of the second layer may end on either.
    np.testing.assert_allclose(g(codes, X), expected, rtol=1e-3, atol=0.3)
    first = {"up*": setting}
    h, only = integer(f, first, dynamic=True), {"up": PARAMS["up"], "down": PARAMS["down"]}
    np.testing.assert_allclose(
        h(h.convert(only, X), X), quantized(f, first)(only, X), rtol=1e-5, atol=1e-3
    )
    np.testing.assert_array_equal(jax.jit(g)(codes, X), g(codes, X))


def test_weights_of_gptq_stay_what_they_are():
    def one(params, x):
        return x @ params["up"]["w"]

    setting = Int(4, activations=False, steps="float16", **GROUPS)
    x = jax.random.normal(jax.random.key(1), (100, 64))
    _, params, spec = gptq(one, {"up": PARAMS["up"]}, x, {"up*": setting})
    g = integer(one, spec)
    np.testing.assert_allclose(g(g.convert(params, x), x), one(params, x), rtol=1e-5, atol=1e-4)


def test_what_cannot_be():
    def codes(setting, **options):
        return integer(f, {"up*": setting}, **options).convert(PARAMS, X)

    with pytest.raises(
        IntegerError, match=r"'up\S*': weights by group multiply activations on a gri"
    ):
        codes(Int(4, 8, steps="int8", **GROUPS), dynamic=True)
    with pytest.raises(IntegerError, match=r'groups need steps of 8 bits: take steps="int8"'):
        codes(Int(4, 8, symmetric=True, **GROUPS), dynamic=True)
    with pytest.raises(IntegerError, match=r"its activations have no range: calibrate"):
        codes(Int(4, 8, symmetric=True, steps="int8", **GROUPS))
    for setting in (Int(4, activations=False, symmetric=False), LayerQuantization(nf4(16))):
        with pytest.warns(IntegerFallbackWarning, match=r"which no integer kernel takes"):
            codes(setting)
    with pytest.raises(IntegerError, match=r"full grid is for weights by group or alone"):
        codes(LayerQuantization(Uniform(4, "full"), Uniform(8, per="token")), dynamic=True)
    deep = Int(8, 8, symmetric=True, steps="int8", **GROUPS)

    def one(params, x):
        return x @ params["w"]

    with pytest.raises(IntegerError, match=r"sums 2048 products of 8 and 8 bits with steps of"):
        integer(one, {"*": deep}, dynamic=True).convert(
            {"w": jnp.ones((2048, 2))}, jnp.ones((1, 2048))
        )


EIGHT = Uniform(8, symmetric=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        NofM(2, 4),
        NofM(2, 4, values=EIGHT),
        LayerQuantization(NofM(2, 4, values=EIGHT), Uniform(8, symmetric=True, per="token")),
    ],
)
def test_two_of_four_are_those_of_quantized(setting):
    g = integer(f, {"*:linear": setting}, dynamic=True)
    converted = g.convert(PARAMS, X)
    expected = quantized(f, {"*:linear": setting})(PARAMS, X)
    np.testing.assert_allclose(g(converted, X), expected, rtol=0, atol=2e-4)
    # Half of the values, and two bits for each.
    assert converted.arrays["up/codes"].shape == (32, 96)
    assert converted.arrays["up/places"].nbytes == 32 * 96 * 2 // 8


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (NofM(1, 4), "another pattern"),
        (NofM(2, 4, values=Uniform(8)), "centred on zero"),
        (NofM(2, 4, values=Uniform(16, symmetric=True)), "16 bits"),
    ],
)
def test_other_sparse_weights_stay_in_float(setting, reason):
    def one(params, x):
        return x @ params["up"]["w"]

    with pytest.warns(IntegerFallbackWarning, match=reason):
        y = integer(one, {"*": setting})(PARAMS, X)
    np.testing.assert_array_equal(y, quantized(one, {"*": setting})(PARAMS, X))
