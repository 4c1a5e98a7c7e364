"""A quantizer that the library doesn't know trains, becomes integer codes and is deployed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxeff_export import deploy

from jaxeff.compression import (
    BaseQuantizer,
    Grid,
    Grouped,
    LayerQuantization,
    adaround,
    init,
    integer,
    learned,
    quantized,
    round_through,
)
from jaxeff.core import register_setting, static
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit


@register_setting
class Dyadic(BaseQuantizer):
    """Steps that are powers of two, whose exponent is learnt."""

    bits: int = static(8)
    exponent: Any = None
    per: str = static("tensor")

    def start(self, x, tensor):
        if self.exponent is not None:
            return self
        keep = tensor.axes(self.per)
        over = tuple(axis for axis in range(x.ndim) if axis not in keep)
        top = jnp.abs(x).max(over, keepdims=bool(keep))
        return replace(self, exponent=jnp.log2(jnp.maximum(top, 1e-3) / (2 ** (self.bits - 1) - 1)))

    def quantize(self, x, tensor):
        to = self.start(jax.lax.stop_gradient(x), tensor).uniform_grid(None, tensor)
        return round_through(jnp.clip(x / to.step, to.lower, to.upper)) * to.step

    def uniform_grid(self, x, tensor):
        if self.exponent is None:
            return None
        step = 2.0 ** round_through(jnp.asarray(self.exponent))
        most = jnp.full_like(step, 2 ** (self.bits - 1) - 1)
        return Grid(step, jnp.zeros_like(step), -most, most)


@register_setting
class Alike(Dyadic):
    """One that says that its grid hangs on no shape."""

    def is_alike_in_any_shape(self):
        return True


F, PARAMS, (X, Y) = small_classifier()
BOTH = LayerQuantization(Dyadic(6, per="channel"), Dyadic(8))
SETTINGS = {
    "by channel": BOTH,
    "weights alone": LayerQuantization(Dyadic(4, per="channel")),
    "by group": LayerQuantization(Grouped(Dyadic(4), 4)),
}


def trained(setting):
    """Parameters and settings after an epoch."""
    layers = "*:linear" if setting is BOTH else "fc*"
    spec = init(F, PARAMS, X[:64], {layers: setting})
    loss = cross_entropy(learned(F))
    run = fit(
        jax.random.key(0), loss, (PARAMS, spec), (X, Y),
        optimizer=optax.adam(3e-2), epochs=1, batch_size=32,
    )  # fmt: skip
    before, after = (jax.tree.leaves(s["fc1"]) for s in (spec, run.params[1]))
    assert any(not jnp.array_equal(a, b) for a, b in zip(before, after, strict=True))
    return run.params


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_trains_is_deployed(name, tmp_path):
    params, spec = trained(SETTINGS[name])
    g = integer(F, spec)
    codes = g.convert(params, X[:4])
    kernels = [a for n, a in codes.arrays.items() if n.endswith("/codes")]
    assert kernels
    assert {a.dtype for a in kernels} <= {np.dtype(np.int8), np.dtype(np.uint8)}
    y, wanted = g(codes, X), quantized(F, spec)(params, X)
    # As far apart as codes of neighbouring activations, which a tie between them gives.
    assert jnp.abs(y - wanted).max() <= 0.02 * jnp.abs(wanted).max()
    bundle = deploy(g, (codes, X[:4]), path=tmp_path / "own")
    deployed, here = np.asarray(bundle.run(X[:4])), jax.jit(g)(codes, X[:4])
    if name == "by channel":
        np.testing.assert_array_equal(deployed, here)  # integers: the same bits
    else:
        np.testing.assert_allclose(deployed, here, rtol=1e-4, atol=1e-5)


def test_its_roundings_are_learnt():
    spec = {"fc1": LayerQuantization(Dyadic(3, per="channel"))}
    _, fitted, fixed = adaround(F, PARAMS, X[:64], spec, steps=20)
    kernel, to = fitted["fc1"]["kernel"], fixed["fc1"].weights
    step = 2.0 ** jnp.round(to.exponent)
    assert (jnp.abs(kernel / step - jnp.round(kernel / step)) == 0).all()
    assert jnp.abs(kernel / step).max() <= 3


@pytest.mark.parametrize("kind", [Dyadic, Alike])
def test_a_grid_that_is_alike_in_any_shape_is_asked_for_one_entry(kind, monkeypatch):
    """Networks of many shapes then compile the grid of ones once."""
    shapes = []

    def grid_of(self, x, tensor, plain=Dyadic.uniform_grid):
        shapes.append(None if x is None else x.shape)
        return plain(self, x, tensor)

    monkeypatch.setattr(Dyadic, "uniform_grid", grid_of)
    setting = LayerQuantization(kind(4, exponent=jnp.float32(-4)), kind(8, jnp.float32(-4)))
    integer(F, {"fc1": setting}).convert(PARAMS, X[:4])
    assert PARAMS["fc1"]["kernel"].shape in shapes
    assert ((1, 1) in shapes) == (kind is Alike)
