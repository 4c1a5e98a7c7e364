"""Ranges by four methods: against a search by hand, and through `calibrate`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import (
    LSQ,
    Int,
    LayerQuantization,
    Uniform,
    calibrate,
    clip_range,
    fake_quantize,
    quantized,
)
from jaxeff.compression.post_training._clipping import BINS, Histogram, clip_histogram, count


def net(params, x):
    return jax.nn.relu(x @ params["fc1"]["kernel"]) @ params["fc2"]["kernel"]


PARAMS = {
    "fc1": {"kernel": np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)},
    "fc2": {"kernel": np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)},
}
BATCHES = [
    np.random.default_rng(i).standard_t(3, size=(64, 5)).astype(np.float32) for i in range(3)
]


@pytest.mark.slow
def test_mse_is_the_best_of_a_hundred_factors():
    x = jnp.asarray(BATCHES[0]).reshape(-1)
    for symmetric in (False, True):
        low, high = clip_range(x, 3, symmetric=symmetric, method="mse")
        errors = [
            float(jnp.square(x - fake_quantize(x, 3, x.min() * a, x.max() * a, symmetric)).mean())
            for a in np.arange(1, 101) / 100
        ]
        ours = jnp.square(x - fake_quantize(x, 3, low, high, symmetric)).mean()
        np.testing.assert_allclose(ours, min(errors), rtol=1e-4)
        assert ours < 0.8 * errors[-1]


def test_gaussian_clipping_is_the_known_optimum():
    """At 4 bits, the mid-rise uniform quantizer of a Gaussian clips at 8 steps of .3352 (Max)."""
    p = (np.arange(20000) + 0.5) / 20000
    x = np.asarray(jax.scipy.stats.norm.ppf(jnp.asarray(p, jnp.float32)))
    _, high = clip_range(x, 4, symmetric=False, method="mse")
    # Ours has a value at zero and one less on one side: within a step of the optimum.
    assert abs(high - 8 * 0.3352) < 0.3352


@pytest.mark.slow
def test_divergence_clips_a_long_tail():
    """The threshold minimises KL over all thresholds; computed here bin by bin."""
    rng = np.random.default_rng(0)
    x = np.abs(np.concatenate([rng.normal(size=4000), [8.0, 12.0]]))
    low, high = clip_range(x, 4, method="kl")
    assert low == x.min()
    assert 2 < high < 6
    bins = BINS // 2
    counts, edges = np.histogram(x, bins, (0, x.max()))
    filled = np.sort(counts[counts > 0])
    counts = np.minimum(counts, filled[int(0.95 * (len(filled) - 1))])
    chosen = round(high / (x.max() / bins))
    divergences = {i: _divergence(counts.astype(float), i, 16) for i in range(16, bins + 1, 8)}
    assert _divergence(counts.astype(float), chosen, 16) <= min(divergences.values()) + 1e-12
    np.testing.assert_allclose(edges[chosen], high, rtol=1e-6)


def _divergence(counts, kept, levels):
    p = counts[:kept].copy()
    p[-1] += counts[kept:].sum()
    q = np.zeros(kept)
    for level in range(levels):
        inside = [i for i in range(kept) if i * levels // kept == level]
        filled = [i for i in inside if counts[i] > 0]
        for i in filled:
            q[i] = counts[inside].sum() / len(filled)
    if ((p > 0) & (q == 0)).any():
        return np.inf
    p, q = p[p > 0] / p.sum(), q[p > 0] / p.sum()
    return (p * np.log(p / q)).sum()


@pytest.mark.parametrize("bits", [4, 8])
def test_divergence_keeps_what_is_beside_a_peak(bits):
    """Images with one background: the peak is no reason to clip everything else."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 17, 20_000) * 0.2 - 0.42
    for rest in (values, rng.uniform(-0.42, 2.8, 20_000)):
        images = np.where(rng.random(20_000) < 0.8, -0.42, rest)
        low, high = clip_range(images, bits, method="kl")
        assert low == images.min()
        assert high > 2.7


@pytest.mark.slow
def test_histograms_of_batches_add_up():
    pieces = [BATCHES[0].reshape(-1), 50 * BATCHES[1].reshape(-1), 0 * BATCHES[2].reshape(-1)]
    histograms = []
    for x in pieces:
        counts, exponent = count(jnp.asarray(x))
        low, high = float(x.min()), float(x.max())
        histograms.append(Histogram(np.asarray(counts, float), int(exponent), low, high))
    both = histograms[0] + histograms[1] + histograms[2]
    whole = np.concatenate(pieces)
    counts, exponent = count(jnp.asarray(whole))
    assert both.exponent == exponent
    np.testing.assert_array_equal(both.counts, counts)
    assert both.counts.sum() == (whole != 0).sum()
    ours = clip_histogram(both, 4, False, "mse")
    np.testing.assert_allclose(ours, clip_range(whole, 4, method="mse"), rtol=0.05)


def test_degenerate_values():
    for method in ("minmax", "percentile", "mse", "kl"):
        assert clip_range(np.zeros(5), 4, method=method) == (0, 0)
        assert clip_range(np.full(5, 0.7), 4, method=method) == (0.7, 0.7)
        assert clip_range(np.array([0.3]), 4, method=method) == (0.3, 0.3)
        tiny = clip_range(np.array([0.0, 1e-30, -2e-30]), 4, method=method)
        assert all(np.isfinite(tiny))
        with pytest.raises(ValueError, match="values is empty"):
            clip_range(np.zeros(0), 4, method=method)
        with pytest.raises(ValueError, match="values holds NaN"):
            clip_range(np.array([1.0, np.nan]), 4, method=method)
    with pytest.raises(ValueError, match="method must be one of"):
        clip_range(np.ones(3), 4, method="best")
    with pytest.raises(ValueError, match="bits"):
        clip_range(np.ones(3), 17)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "kl"])
def test_calibrate_uniform_and_apart_like_int(method):
    spec = calibrate(
        net, PARAMS, BATCHES, {"*:linear": Int(4, symmetric=False)}, method=method
    ).spec
    alone = calibrate(net, PARAMS, BATCHES, {"*:linear": Uniform(4)}, method=method).spec
    apart = {"*:linear": LayerQuantization(LSQ(4), Uniform(4))}
    both = calibrate(net, PARAMS, BATCHES, apart, method=method).spec
    for site in ("fc1", "fc2"):
        np.testing.assert_array_equal(spec[site].range, alone[site].activations.range)
        np.testing.assert_array_equal(spec[site].range, both[site].activations.range)
        assert alone[site].weights == Uniform(4)
        assert both[site].weights == LSQ(4)
    low, high = clip_range(np.concatenate(BATCHES), 4, method=method)
    if method in ("minmax", "mse"):
        np.testing.assert_allclose(spec["fc1"].range, (low, high), rtol=0.03)
    x = jnp.asarray(BATCHES[0])
    np.testing.assert_array_equal(
        jax.jit(quantized(net, spec))(PARAMS, x), jax.jit(quantized(net, alone))(PARAMS, x)
    )


@pytest.mark.slow
def test_clipping_helps_at_few_bits():
    x = jnp.asarray(np.concatenate(BATCHES))
    exact = net(PARAMS, x)
    errors = {}
    for method in ("minmax", "mse"):
        spec = calibrate(net, PARAMS, BATCHES, {"fc1": Int(3, weights=False)}, method=method).spec
        errors[method] = float(jnp.square(jax.jit(quantized(net, spec))(PARAMS, x) - exact).mean())
    assert errors["mse"] < errors["minmax"]


@pytest.mark.parametrize("per", ["channel", "tensor"])
def test_ranges_of_weights(per):
    kernel = PARAMS["fc1"]["kernel"].copy()
    kernel[0, 0] = 9.0
    params = {**PARAMS, "fc1": {"kernel": kernel}}
    spec = calibrate(
        net, params, BATCHES, {"fc1": Int(3, symmetric=False, per=per)}, method="mse", weights=True
    ).spec
    low, high = spec["fc1"].weights.range
    if per == "channel":
        assert low.shape == (1, 8)
        ends = [clip_range(c, 3, method="mse") for c in kernel.T]
        np.testing.assert_allclose(np.stack([low[0], high[0]], 1), ends, rtol=1e-6)
    else:
        np.testing.assert_allclose((low, high), clip_range(kernel, 3, method="mse"), rtol=1e-6)
    assert spec["fc1"].activations.range is not None


def test_operands_and_outputs_of_apart():
    def f(params, x):
        q = x @ params["q"]
        return jax.nn.relu(q @ (10 * x).T)

    params = {"q": np.eye(5, dtype=np.float32)}
    spec = calibrate(
        f,
        params,
        BATCHES,
        {
            "*:matmul": LayerQuantization(None, Uniform(8)),
            "relu": LayerQuantization(None, Uniform(8), at="output"),
        },
    ).spec
    (contraction,) = [s for n, s in spec.items() if n != "relu"]
    tops = sorted(float(q.range[1]) for q in contraction.activations)
    data = np.concatenate(BATCHES)
    np.testing.assert_allclose(tops, [data.max(), 10 * data.max()], rtol=1e-5)
    assert spec["relu"].activations.range[0] == 0
    assert jax.jit(quantized(f, spec))(params, jnp.asarray(BATCHES[0])).shape == (64, 64)


@pytest.mark.slow
def test_mistakes_are_named():
    spec = {"*:linear": Int(4, symmetric=False)}
    for method in ("minmax", "percentile", "mse", "kl"):
        with pytest.raises(ValueError, match=r"batches\[0\] is empty"):
            calibrate(net, PARAMS, [BATCHES[0][:0]], spec, method=method)
        broken = BATCHES[0].copy()
        broken[0, 0] = np.nan
        with pytest.raises(ValueError, match=r"batches\[0\] holds NaN"):
            calibrate(net, PARAMS, [broken], spec, method=method)
        zero = calibrate(net, PARAMS, [0 * BATCHES[0]], spec, method=method).spec
        np.testing.assert_array_equal(zero["fc1"].range, (0, 0))
        assert jnp.isfinite(jax.jit(quantized(net, zero))(PARAMS, jnp.asarray(BATCHES[0]))).all()
    with pytest.raises(ValueError, match="method must be one of"):
        calibrate(net, PARAMS, BATCHES, spec, method="best")
    with pytest.raises(ValueError, match=r'percentile=99.0 belongs to method="percentile"'):
        calibrate(net, PARAMS, BATCHES, spec, method="mse", percentile=99.0)
    bad = {**PARAMS, "fc1": {"kernel": np.full((5, 8), np.nan, np.float32)}}
    with pytest.raises(ValueError, match="The weight of 'fc1' holds NaN"):
        calibrate(
            net, bad, BATCHES, {"fc1": Int(4, activations=False, symmetric=False)}, weights=True
        )
    with pytest.raises(TypeError, match="must be an Int"):
        calibrate(net, PARAMS, BATCHES, {"fc1": LSQ(4)})
    with pytest.raises(ValueError, match="'fc1' depends on its bit width"):
        calibrate(
            net, PARAMS, BATCHES, {"fc1": Int(jnp.array([3, 4]), symmetric=False)}, method="mse"
        )
