"""Quantization-aware training: the grids of both scales, and noise around them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.compression import initial_ranges, quantized, running
from jaxeff.hardening import VariableLevel, incremental_noise, relu_quantization, variance_aware
from jaxeff.noise import Additive, noisy
from jaxeff.program import trace
from jaxeff.training import cross_entropy, fit

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (32, 6))
LABELS = (X[:, 0] > 0).astype(jnp.int32)
KEYS = jax.random.split(jax.random.key(2), 2)
PARAMS = {
    "fc1": {"kernel": jax.random.normal(KEYS[0], (6, 5))},
    "fc2": {"kernel": jax.random.normal(KEYS[1], (5, 2))},
}


def f(params, x):
    return jax.nn.relu(x @ params["fc1"]["kernel"]) @ params["fc2"]["kernel"]


def hidden(params, x):
    """The network without its last layer's weights: what its ReLU returns."""
    return jax.nn.relu(x @ params["fc1"]["kernel"]) @ jnp.eye(5)


@pytest.mark.parametrize(("bits", "largest"), [(4, 15.0), (8, 256.0)])
def test_a_constant_scale_is_the_step_of_the_activations(bits, largest):
    scale = 0.05
    spec = relu_quantization(bits, last="fc1", scale=scale)
    values = quantized(hidden, {"relu": spec["relu*"]})(
        PARAMS, jnp.linspace(-1, 400, 64 * 6).reshape(64, 6)
    )
    step = scale * largest / (2**bits - 1)
    codes = np.asarray(values) / step
    np.testing.assert_allclose(codes, np.round(codes), atol=1e-3)
    np.testing.assert_allclose(values.max(), scale * largest, rtol=1e-6)
    assert values.min() == 0


def test_weights_have_channels_but_in_the_last_layer():
    spec = relu_quantization(4, last="fc2", scale=1.0)
    assert (spec["fc2"].per, spec["*:linear"].per) == ("tensor", "channel")
    with pytest.raises(ValueError, match=r"defined for \[4, 8\] bits, not for 5"):
        relu_quantization(5, last="fc2", scale=1.0)


@pytest.mark.slow
def test_running_ranges_are_the_corrected_moving_average():
    spec = relu_quantization(4, last="fc2")
    ranges = initial_ranges(f, PARAMS, X, spec)
    assert list(ranges) == ["relu"]
    g = jax.jit(running(f, spec, decay=0.8))
    weighted = quantized(hidden, {"fc1": spec["*:linear"]})
    average, weight = 0.0, 0.0
    for scale in (1.0, 3.0, 2.0):
        y, ranges = g(PARAMS, ranges, scale * X)
        average = 0.8 * average + 0.2 * float(weighted(PARAMS, scale * X).max())
        weight = 0.8 * weight + 0.2
        low, high = ranges["relu"].bounds
        np.testing.assert_allclose(high, average / weight, rtol=1e-5)
        assert low == 0
        fixed = {**spec, "relu*": relu_quantization(4, last="fc2", scale=float(high) / 15)["relu*"]}
        np.testing.assert_allclose(y, quantized(f, fixed)(PARAMS, scale * X), rtol=1e-4, atol=1e-5)

    frozen = running(f, spec, training=False)
    _, after = frozen(PARAMS, ranges, 100 * X)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, after, ranges)))


@pytest.mark.slow
def test_noise_goes_around_quantization_and_its_ranges():
    spec = relu_quantization(4, last="fc2")
    ranges = initial_ranges(f, PARAMS, X, spec)
    sites = [s.site for s in trace(f, PARAMS, X).sites if s.is_matchable]
    g = running(f, spec)
    program = trace(g, PARAMS, ranges, X)
    assert [s.site for s in program.sites if s.is_matchable] == sites
    # Noise behind the ReLU acts on its rounded result, never on the range that goes beside it.
    at_relu = noisy(g, {"relu": Additive(0.5)})
    _, quiet = g(PARAMS, ranges, X)
    _, after = at_relu(KEY, PARAMS, ranges, X)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, after, quiet)))
    silent = noisy(g, {"*": Additive(0.0)})(KEY, PARAMS, ranges, X)
    np.testing.assert_array_equal(silent[0], g(PARAMS, ranges, X)[0])


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_quantization_noise_ramp_and_vant_train_together():
    spec = relu_quantization(4, last="fc2")

    def loss_at(levels):
        model = noisy(running(f, spec), {"*": Additive(levels, along="sample")})
        return cross_entropy(model, keyed=True, mutable=True)

    ramp = optax.linear_schedule(0.0, 1.0, 20)
    loss = variance_aware(incremental_noise(loss_at, ramp))(VariableLevel(0.3, 0.1))
    result = fit(
        KEY, loss, PARAMS, (X, LABELS), state=initial_ranges(f, PARAMS, X, spec),
        optimizer=optax.adam(0.03), epochs=60, batch_size=32,
    )  # fmt: skip
    logits, _ = running(f, spec, training=False)(result.params, result.state, X)
    assert (logits.argmax(-1) == LABELS).mean() > 0.9


def test_mistakes_are_named():
    spec = relu_quantization(4, last="fc2")
    with pytest.raises(ValueError, match="leaves no range open"):
        initial_ranges(f, PARAMS, X, relu_quantization(4, last="fc2", scale=1.0))
    with pytest.raises(ValueError, match=r"ranges are of \[\].*follows \['relu'\]"):
        running(f, spec)(PARAMS, {}, X)

    def looped(params, x):
        return jax.lax.fori_loop(0, 2, lambda _, h: jax.nn.relu(h @ params["w"]), x)

    with pytest.raises(ValueError, match="inside a loop"):
        initial_ranges(looped, {"w": jnp.eye(6)}, X, {"relu*": spec["relu*"]})
