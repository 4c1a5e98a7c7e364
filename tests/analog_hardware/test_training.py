"""Training with a chip: twins and callables in the loop, the recipe, and what goes wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff.analog_hardware import (
    Chip,
    Correction,
    Crossbar,
    Design,
    Linear,
    analog,
    in_the_loop,
    train_for_chip,
)
from jaxeff.nn import MLP
from jaxeff.training import cross_entropy, fit, sweep

ARRAY = {"rows": 16, "columns": 8, "gain": 0.004}
CHIP = Chip(3, rows=16, columns=8)
pytestmark = pytest.mark.promotes("dtype")


def network():
    f, params = jaxeff.functional(MLP((20, 12, 3), rngs=nnx.Rngs(0)))
    x = jax.random.uniform(jax.random.key(1), (64, 20))
    return f, params, (x, jnp.argmax(x[:, :3], 1))


def ideal(seed, weights, inputs):
    assert seed.dtype == np.uint32
    assert weights.dtype == inputs.dtype == np.int32
    return np.floor(inputs @ weights * np.float32(0.004)).clip(-128, 127).astype(int)


@pytest.mark.slow
def test_an_ideal_chip_is_the_ideal_array():
    f, params, (x, _) = network()
    spec = {"fc*:linear": Crossbar(**ARRAY)}
    wanted = jax.jit(analog(f, spec))(jax.random.key(0), params, x)
    output = jax.jit(in_the_loop(f, spec, ideal))(jax.random.key(0), params, x)
    np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_value_is_the_chips_and_the_gradient_the_models():
    _, params, (x, _) = network()
    key = jax.random.key(0)

    def linear(params, x):
        return x @ params["fc"]["kernel"]

    w = {"fc": {"kernel": params["fc1"]["kernel"]}}
    spec = {"fc": Crossbar(**ARRAY)}
    (chip, of_chip), (model, of_model) = (
        jax.jit(jax.value_and_grad(lambda w, g=g: g(key, w, x).sum()))(w)
        for g in (in_the_loop(linear, spec, CHIP), analog(linear, spec))
    )
    assert chip != model
    np.testing.assert_allclose(of_chip["fc"]["kernel"], of_model["fc"]["kernel"], rtol=1e-5)


@pytest.mark.slow
def test_chips_are_a_vmap():
    f, params, (x, _) = network()
    spec = {"fc*:linear": Crossbar(**ARRAY)}

    @jax.jit
    def run(device):
        chip = Chip(device, rows=16, columns=8)
        return in_the_loop(f, spec, chip)(jax.random.key(0), params, x)

    logits = jax.jit(jax.vmap(run))(jnp.arange(3))
    assert logits.shape == (3, 64, 3)
    assert float(jnp.abs(logits[0] - logits[1]).max()) > 0
    for device in range(3):
        np.testing.assert_allclose(run(device), logits[device], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_sweep_over_chips_trains_for_each():
    """Devices are settings of a sweep; each has the training that it would have alone."""
    f, params, data = network()
    spec = {"fc*:linear": Crossbar(**ARRAY)}

    def on(device):
        return in_the_loop(f, spec, Chip(device, rows=16, columns=8))

    def score(key, params, state, device):
        return {"logits": on(device)(key, params, data[0])}

    def swept(devices):
        return sweep(
            jax.random.key(0), lambda d: cross_entropy(on(d), keyed=True),
            lambda key: (params, None), data, devices, score=score, optimizer=optax.sgd(0.1),
            epochs=2, batch_size=16, keep=True, progress=False,
        )  # fmt: skip

    both, alone = swept(jnp.arange(2)), swept(jnp.arange(1, 2))
    assert not both.diverged.any()
    kernels = both.params["fc1"]["kernel"][0]
    assert np.abs(kernels[0] - kernels[1]).max() > 0
    np.testing.assert_allclose(kernels[1], alone.params["fc1"]["kernel"][0, 0], atol=1e-5)
    np.testing.assert_allclose(
        both.scores["logits"][0, 1], alone.scores["logits"][0, 0], rtol=1e-3, atol=1e-3
    )


@pytest.mark.slow
def test_a_chip_that_fails_in_training_leaves_the_checkpoint(tmp_path):
    f, params, data = network()
    calls = []

    def failing(seed, weights, inputs):
        calls.append(1)
        if len(calls) == 40:
            raise OSError("the link is down")
        return ideal(seed, weights, inputs)

    def train(query, epochs=4):
        loss = cross_entropy(in_the_loop(f, {"fc1": Crossbar(**ARRAY)}, query), keyed=True)
        return fit(
            jax.random.key(0), loss, params, data, optimizer=optax.sgd(0.1), epochs=epochs,
            batch_size=16, checkpoint=tmp_path / "run.safetensors", progress=False,
        )  # fmt: skip

    with pytest.raises(Exception, match=r"'fc1'.*failed \(OSError: the link is down\)"):
        train(failing)
    assert (tmp_path / "run.safetensors").exists()
    result = train(ideal)
    assert [record["epoch"] for record in result.history] == [0, 1, 2, 3]
    assert len(calls) < 4 * 4 * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda s, w, a: (a @ w)[:, :1], "must return counts"),
        (lambda s, w, a: (a @ w) * 0.5, "integer counts, but returned float64"),
    ],
)
def test_answers_of_another_form_are_refused(answer, message):
    f, params, (x, _) = network()
    g = in_the_loop(f, {"fc1": Crossbar(**ARRAY)}, answer)
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(g(jax.random.key(0), params, x))


def test_what_is_no_chip_is_refused():
    f, _, _ = network()
    with pytest.raises(TypeError, match="query must be a chip"):
        in_the_loop(f, {"fc1": Crossbar(**ARRAY)}, 3)
    with pytest.raises(TypeError, match="query must be a chip"):
        in_the_loop(f, {"fc1": Crossbar(**ARRAY)}, Chip)


@pytest.mark.slow
def test_the_recipe_runs_and_goes_on(tmp_path):
    f, params, data = network()
    design = Design(rows=16, columns=8, programs=4, drives=4, vectors=32, active=(1, 8), repeats=8)

    def train(epochs):
        return train_for_chip(
            jax.random.key(0), f, params, data, CHIP, array=Crossbar(**ARRAY),
            optimizer=optax.adam(1e-2), epochs=epochs, batch_size=16, design=design,
            checkpoints=tmp_path, progress=False,
        )  # fmt: skip

    result = train((1, 2, 1))
    assert {name: len(h) for name, h in result.history.items()} == {
        "quantized": 1, "white_box": 2, "in_the_loop": 1,
    }  # fmt: skip
    again = train((1, 2, 1))
    for a, b in zip(jax.tree.leaves(result.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(a, b)
    corrected = {
        site: dataclasses.replace(
            array, correction=Correction(jnp.ones(8), jnp.zeros(8)), model=Linear()
        )
        for site, array in result.spec.items()
    }
    g = jax.jit(in_the_loop(f, corrected, CHIP))
    assert g(jax.random.key(0), result.params, data[0]).shape == (64, 3)
