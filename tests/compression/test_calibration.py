"""Calibration: the ranges it finds, in plain layers, loops and contractions, and its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Int, calibrate, fake_quantize, quantized
from jaxeff.training import Batches

BATCHES = [jax.random.normal(jax.random.key(i), (6, 5)) * (i + 1) for i in range(3)]


def net(params, x):
    hidden = jax.nn.relu(x @ params["fc1"]["kernel"])
    return hidden @ params["fc2"]["kernel"]


PARAMS = {
    "fc1": {"kernel": jax.random.normal(jax.random.key(8), (5, 8))},
    "fc2": {"kernel": jax.random.normal(jax.random.key(9), (8, 3))},
}


@pytest.mark.slow
def test_ranges_are_those_of_all_batches():
    spec = calibrate(net, PARAMS, BATCHES, {"*": Int(8, symmetric=False)}).spec
    data = jnp.concatenate(BATCHES)
    hidden = jax.nn.relu(data @ PARAMS["fc1"]["kernel"])
    assert list(spec) == ["fc1", "fc2"]
    for site, x in (("fc1", data), ("fc2", hidden)):
        np.testing.assert_allclose(spec[site].range, (x.min(), x.max()), rtol=1e-6)
    ours = quantized(net, spec)(PARAMS, BATCHES[0])
    weights_only = quantized(net, {"*": Int(8, activations=False, symmetric=False)})

    def by_hand(x):
        x = fake_quantize(x, 8, data.min(), data.max())
        w1, w2 = (_weight(PARAMS[n]["kernel"]) for n in ("fc1", "fc2"))
        return fake_quantize(jax.nn.relu(x @ w1), 8, hidden.min(), hidden.max()) @ w2

    np.testing.assert_allclose(ours, by_hand(BATCHES[0]), rtol=1e-4, atol=1e-4)
    assert (ours != weights_only(PARAMS, BATCHES[0])).any()


def _weight(w):
    return fake_quantize(w, 8, w.min(0, keepdims=True), w.max(0, keepdims=True))


def test_a_percentile_is_averaged_over_batches():
    spec = calibrate(net, PARAMS, BATCHES, {"fc1": Int(8, symmetric=False)}, percentile=90.0).spec
    low = np.mean([np.percentile(b, 10) for b in BATCHES])
    high = np.mean([np.percentile(b, 90) for b in BATCHES])
    np.testing.assert_allclose(spec["fc1"].range, (low, high), rtol=1e-5)


def test_constant_ranges_and_other_layers_stay():
    spec = calibrate(
        net, PARAMS, BATCHES, {"fc1": None, "fc2": Int(4, range=2.0, symmetric=False)}
    ).spec
    assert spec == {"fc2": Int(4, range=2.0, symmetric=False)}
    spec = calibrate(net, PARAMS, BATCHES, {"relu": Int(4, at="output", symmetric=False)}).spec
    assert list(spec) == ["relu"]
    assert spec["relu"].range[0] == 0


@pytest.mark.slow
def test_loops_and_shared_layers():
    def f(params, x):
        def step(h, _):
            return jnp.tanh(h @ params["cell"]["kernel"]) * 2, None

        h = jax.lax.scan(step, x, None, length=4)[0]
        h = h @ params["head"]["kernel"]
        return h @ params["head"]["kernel"]

    params = {
        "cell": {"kernel": jax.random.normal(jax.random.key(0), (5, 5))},
        "head": {"kernel": jnp.eye(5) * 3},
    }
    spec = calibrate(
        f, params, BATCHES, {"head": Int(8, symmetric=False), "cell": Int(8, symmetric=False)}
    ).spec
    assert set(spec) == {"head", "head#1", "cell"}
    data = h = jnp.concatenate(BATCHES)
    reached = [h]
    for _ in range(4):
        h = jnp.tanh(h @ params["cell"]["kernel"]) * 2
        reached.append(h)
    inside = jnp.concatenate(reached[:-1])
    np.testing.assert_allclose(spec["cell"].range, (inside.min(), inside.max()), rtol=1e-5)
    # One range for the uses of a layer, as for the iterations of a loop, so that none is clamped.
    for use in ("head", "head#1"):
        np.testing.assert_allclose(spec[use].range, (3 * h.min(), 3 * h.max()), rtol=1e-5)
    sites_of_head = {"head": Int(8, symmetric=False), "head#1": Int(8, symmetric=False)}
    apart = calibrate(f, params, BATCHES, sites_of_head).spec
    np.testing.assert_allclose(apart["head"].range, (h.min(), h.max()), rtol=1e-5)
    np.testing.assert_allclose(apart["head#1"].range, (3 * h.min(), 3 * h.max()), rtol=1e-5)
    out = quantized(f, spec)(params, data)
    largest = jnp.abs(f(params, data)).max()
    np.testing.assert_allclose(jnp.abs(out).max(), largest, rtol=0.02)


def test_the_first_use_alone():
    def f(params, x):
        return (x @ params["fc"]["kernel"]) @ params["fc"]["kernel"]

    params = {"fc": {"kernel": jnp.eye(5)}}
    spec = calibrate(f, params, BATCHES, {"fc#1": None, "fc": Int(8, symmetric=False)}).spec
    assert spec["fc#1"] is None
    assert spec["fc"].range is not None


@pytest.mark.slow
def test_contractions_have_a_range_per_operand():
    def f(params, x):
        q = x @ params["q"]["kernel"]
        return q @ (10 * x).T

    params = {"q": {"kernel": jnp.eye(5)}}
    spec = calibrate(f, params, BATCHES, {"*:matmul": Int(8, symmetric=False)}).spec
    (setting,) = spec.values()
    data = jnp.concatenate(BATCHES)
    ends = np.sort(np.abs(np.asarray(setting.range[1])))
    np.testing.assert_allclose(ends, [data.max(), 10 * data.max()], rtol=1e-5)
    out = quantized(f, spec)(params, BATCHES[2])
    np.testing.assert_allclose(out, f(params, BATCHES[2]), atol=0.02 * float(jnp.abs(out).max()))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate(net, PARAMS, [], {"*": Int(8, symmetric=False)})
    with pytest.raises(ValueError, match="percentile must be above 50"):
        calibrate(net, PARAMS, BATCHES, {"*": Int(8, symmetric=False)}, percentile=1.0)
    with pytest.raises(TypeError, match="must be an Int"):
        calibrate(net, PARAMS, BATCHES, {"*": 8})
    with pytest.raises(ValueError, match=r"batches\[0\] holds NaN"):
        calibrate(net, PARAMS, [BATCHES[0].at[0, 0].set(jnp.nan)], {"*": Int(8, symmetric=False)})

    def never(params, x):
        return jax.lax.cond(False, lambda: net(params, x), lambda: x[:, :3])

    with pytest.raises(ValueError, match="never reached"):
        calibrate(never, PARAMS, BATCHES, {"fc1": Int(8, symmetric=False)})


def test_loaders_and_batches_are_taken_as_lists_are():
    listed = calibrate(net, PARAMS, BATCHES, {"*": Int(8)}).spec
    of_loader = ([np.asarray(batch)] for batch in BATCHES)  # as PyTorch's give arguments
    for batches in (of_loader, Batches(BATCHES)):
        spec = calibrate(net, PARAMS, batches, {"*": Int(8)}).spec
        assert [s.range for s in spec.values()] == [s.range for s in listed.values()]
