"""Layers of complex numbers, as Fourier layers have: transforms leave them alone or name them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.analog_hardware import Crossbar, analog
from jaxeff.compression import calibrate
from jaxeff.pruning import Prune, masked

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 6))
TILE = Crossbar(gain=0.01, signed=True)


def fourier(params, x):
    # The weights of a Fourier neural operator: real and imaginary parts of one complex kernel.
    spectrum = jnp.einsum("bk,kd->bd", jnp.fft.rfft(x), params["real"] + 1j * params["imaginary"])
    return jnp.tanh(spectrum.real @ params["middle"]) @ params["head"]


SHAPES = {"real": (4, 5), "imaginary": (4, 5), "middle": (5, 5), "head": (5, 3)}
PARAMS = {name: jax.random.normal(KEY, shape) for name, shape in SHAPES.items()}
LINEAR = {"*:linear": jaxeff.Int(8)}


def complex_site():
    products = [s for s in jaxeff.trace(fourier, PARAMS, X).sites if s.kind == "linear"]
    (site,) = [s.site for s in products if s.outputs[0].aval.dtype == jnp.complex64]
    return site


def test_what_has_complex_numbers_alone_is_named():
    for transformed, args in (
        (jaxeff.quantized(fourier, {complex_site(): jaxeff.Int(8)}), ()),
        (jaxeff.noisy(fourier, {complex_site(): jaxeff.Additive(0.1)}), (KEY,)),
    ):
        with pytest.raises(ValueError, match=f"given to {complex_site()} .*has nothing for"):
            transformed(*args, PARAMS, X)
    with pytest.raises(ValueError, match=f"'{complex_site()}' multiplies complex ones"):
        analog(fourier, {"*:linear": TILE})(KEY, PARAMS, X)
    left_out = {"*:linear": TILE, complex_site(): None}
    assert np.isfinite(analog(fourier, left_out)(KEY, PARAMS, X)).all()


def test_complex_products_stay_in_float_beside_codes():
    spec = calibrate(fourier, PARAMS, [X], LINEAR).spec
    assert sorted(spec) == ["head", "middle"]
    g = jaxeff.integer(fourier, spec)
    assert g.convert(PARAMS, X).arrays["head/codes"].dtype == jnp.int8
    near = jax.jit(jaxeff.quantized(fourier, spec))(PARAMS, X)
    np.testing.assert_allclose(jax.jit(g)(PARAMS, X), near, rtol=0, atol=1e-5)


def test_channels_around_complex_numbers_can_go():
    plan = jaxeff.prune_plan(fourier, PARAMS, (X,), {"middle": Prune(0.4)})
    small = plan.shrink(PARAMS)
    found = jaxeff.pruned(fourier, plan)(small, X)
    np.testing.assert_allclose(found, masked(fourier, plan)(PARAMS, X), rtol=0, atol=1e-5)
