"""Crossbars against a restated mock of hxtorch, digital layers and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.analog_hardware import (
    Correction,
    Crossbar,
    Linear,
    analog,
    calibrate_ranges,
    partition,
    read_out,
)
from jaxeff.nn import MLP

SHAPES = 1000  # in all
ROWS, COLUMNS = 400, 300
"""Largest matrices, which smaller ones are padded to, so that one program runs all of them."""


def dense(params, x):
    return x @ params["fc"]["kernel"]


def at_scale_one(**fields):
    return {"fc": Crossbar(input_step=1.0, weight_step=1.0, sum_bits=8, **fields)}


def mock(x, w, gain, sends):
    """hxtorch's: split by 128 rows, gain, floor, clamp, add up digitally, clamp."""
    x, w = np.round(x), np.round(w)
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for start in range(0, len(w), 128):
        part = x[:, start : start + 128] @ w[start : start + 128]
        part = np.floor(part * np.float32(np.float32(sends) * np.float32(gain)))
        total += np.clip(part, -128, 127)
    return np.clip(total, -128, 127)


def sizes(rng, tile, most):
    """At and around the limits of tiles, or anywhere."""
    near = tile * rng.integers(1, most // tile + 1) + rng.integers(-1, 2)
    return int(min(near if rng.random() < 0.6 else rng.integers(1, most + 1), most))


@pytest.mark.slow
@pytest.mark.parametrize("sends", [1, 3])
def test_it_equals_the_mock_bit_for_bit(sends):
    gain = 0.002

    @jax.jit
    def run(x, w):
        counts = analog(dense, at_scale_one(gain=gain, sends=sends))
        y = counts(jax.random.key(0), {"fc": {"kernel": w}}, x)
        return jnp.round(y * gain * sends)  # whole counts again

    rng = np.random.default_rng(sends)
    saturated = 0
    for _ in range(SHAPES // 2):
        k, n = sizes(rng, 128, ROWS), sizes(rng, 256, COLUMNS)
        x, w = np.zeros((2, ROWS), np.float32), np.zeros((ROWS, COLUMNS), np.float32)
        x[:, :k] = rng.uniform(0, 31, (2, k))
        w[:k, :n] = rng.uniform(-63, 63, (k, n)) + rng.uniform(-20, 20, n)
        w = w.clip(-63, 63)
        expected = mock(x[:, :k], w[:k, :n], gain, sends)
        output = np.asarray(run(x, w))[:, :n]
        np.testing.assert_array_equal(output, expected)
        saturated += (np.abs(expected) > 126).sum()
    assert saturated > 1000


@pytest.mark.slow
@pytest.mark.parametrize("k", [127, 129])
def test_unpadded_shapes_equal_the_mock(k):
    rng = np.random.default_rng(k)
    x = rng.uniform(0, 31, (3, k)).astype(np.float32)
    w = rng.uniform(-63, 63, (k, 5)).astype(np.float32)
    y = analog(dense, at_scale_one())(jax.random.key(0), {"fc": {"kernel": w}}, x)
    np.testing.assert_array_equal(np.round(y * 0.002), mock(x, w, 0.002, 1))


@pytest.mark.slow
def test_the_noise_has_the_moments_of_its_level():
    n, level = 20_000, 2.0
    x = jnp.full((n, 4), 10.0)
    w = jnp.full((4, 1), 30.0)
    array = Crossbar(input_step=1.0, weight_step=1.0, gain=0.01, model=Linear(level))
    y = analog(dense, {"fc": array})(jax.random.key(0), {"fc": {"kernel": w}}, x) * 0.01
    # floor takes half a count and adds the variance of a uniform number
    mean, var = 12.0 - 0.5, level**2 + 1 / 12
    assert abs(float(y.mean()) - mean) < 4 * np.sqrt(var / n)
    assert abs(float(y.var()) - var) < 4 * var * np.sqrt(2 / n)


FINE = {"input_bits": 12, "weight_bits": 11, "output_bits": 24, "gain": 0.01, "signed": True}


def conv(features, groups=1, **kwargs):
    model = nnx.Conv(4, features, (3, 3), feature_group_count=groups, rngs=nnx.Rngs(0), **kwargs)
    return jaxeff.functional(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        conv(6, strides=2, padding="VALID"),
        conv(6, kernel_dilation=2),
        conv(8, groups=2),
        conv(4, groups=4),
    ],
    ids=["strided", "dilated", "grouped", "depthwise"],
)
def test_fine_codes_give_the_digital_convolution(made):
    f, params = made
    x = jax.random.normal(jax.random.key(1), (2, 6, 6, 4))
    g = analog(f, {"*:linear": Crossbar(rows=32, columns=8, **FINE)})

    @jax.jit
    def both(params):
        def value(call):
            return jax.value_and_grad(
                lambda p: (lambda y: ((y**2).sum(), y))(call(p)), has_aux=True
            )

        return value(lambda p: g(jax.random.key(0), p, x))(params), value(lambda p: f(p, x))(params)

    ((_, found), gradient), ((_, wanted), digital) = both(params)
    np.testing.assert_allclose(found, wanted, atol=0.01 * float(wanted.std()))
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(digital), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 * float(jnp.abs(b).max()))


def test_vmapped_layers_and_batched_products_run():
    def f(params, x):
        return jax.vmap(lambda a: a @ params["fc"]["kernel"])(x)

    params = {"fc": {"kernel": jax.random.normal(jax.random.key(0), (5, 3))}}
    x = jax.random.uniform(jax.random.key(1), (2, 4, 5))
    output = jax.jit(analog(f, {"fc": Crossbar(**FINE)}))(jax.random.key(0), params, x)
    np.testing.assert_allclose(output, f(params, x), atol=0.01)


def test_clamped_codes_have_no_gradient():
    spec = at_scale_one(gain=0.01)

    @jax.jit
    @jax.grad
    def gradient(w, x):
        return analog(dense, spec)(jax.random.key(0), {"fc": {"kernel": w}}, x).sum()

    w, x = jnp.array([[100.0], [5.0]]), jnp.array([[3.0, 3.0]])
    np.testing.assert_allclose(gradient(w, x), [[0.0], [3.0]])
    full = jnp.full((128, 1), 60.0)
    np.testing.assert_array_equal(gradient(full, jnp.full((1, 128), 30.0)), 0)


def network():
    f, params = jaxeff.functional(MLP((150, 20, 5), rngs=nnx.Rngs(0)))
    return f, params, jax.random.uniform(jax.random.key(2), (16, 150))


@pytest.mark.slow
def test_it_composes():
    f, params, x = network()
    key = jax.random.key(3)
    spec = {"fc*:linear": Crossbar(gain=0.02)}
    g = analog(f, spec)
    wanted = jax.jit(g)(key, params, x)
    np.testing.assert_allclose(g(key, params, x), wanted, rtol=1e-5, atol=1e-5)
    assert jaxeff.sites(lambda p, x: g(key, p, x), params, x) == jaxeff.sites(f, params, x)
    noisy = jaxeff.noisy(lambda p, x: g(key, p, x), {"fc1": jaxeff.Additive(0.1)})
    coarse = analog(jaxeff.quantized(f, {"*:linear": jaxeff.Int(4)}), spec)
    levels = jnp.array([0.01, 0.02])
    many = jax.vmap(lambda gain: analog(f, {"fc*:linear": Crossbar(gain=gain)})(key, params, x))
    perturbed, rounded, both = jax.jit(
        lambda p: (noisy(key, p, x), coarse(key, p, x), many(levels))
    )(params)
    for other in (perturbed, rounded, both[0]):
        assert 0 < float(jnp.abs(other - wanted).max()) < 1
    np.testing.assert_allclose(both[1], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_partition_counts_tiles_and_calls():
    f, params, x = network()
    spec = {"fc*:linear": Crossbar(gain=0.004, rows=64, columns=16)}
    first, second = partition(f, params, x, spec)
    assert (first.site, first.tiles, first.calls) == ("fc1", 3 * 2, 3 * 2)
    assert first.utilisation == pytest.approx(150 * 20 / (6 * 64 * 16))
    assert (second.rows, second.columns, second.tiles) == (20, 5, 1)
    assert first.clipped_inputs == first.clipped_weights == 0
    with pytest.warns(UserWarning, match="read-outs of 'fc1' are clamped"):
        partition(f, params, x, {"fc1": Crossbar(gain=1.0)})


def test_groups_share_tiles_along_the_diagonal():
    f, params = conv(4, groups=4)
    x = jnp.ones((1, 4, 4, 4))
    (found,) = partition(f, params, x, {"*:linear": Crossbar(rows=18, columns=8)})
    assert (found.rows, found.columns, found.groups, found.tiles) == (9, 1, 4, 2)


def test_ranges_are_those_of_the_batches():
    f, params, x = network()
    spec = calibrate_ranges(f, params, [x], {"fc*:linear": Crossbar()}, inputs=100)
    np.testing.assert_allclose(spec["fc1"].input_step, x.max() / 31, rtol=1e-5)
    kernel = jnp.abs(params["fc2"]["kernel"]).max()
    np.testing.assert_allclose(spec["fc2"].weight_step, kernel / 63, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")
def test_moments_have_the_variance_of_read_outs():
    f, params, x = network()
    spec = calibrate_ranges(
        f, params, [x], {"fc*:linear": Crossbar(gain=0.01, output_bits=16, model=Linear(8.0))}
    )
    noise = read_out(f, params, x, spec)
    gaussian = jaxeff.moments(f, noise=noise, method="diagonal")(params, x)
    keys = jax.random.split(jax.random.key(5), 2000)
    draws = jax.jit(jax.vmap(lambda k: analog(f, spec)(k, params, x)))(keys)
    error = draws.std(0) / np.sqrt(len(keys))
    scale = float(draws.std(0).mean())
    # first order: hidden ReLUs make means differ by a share of the noise
    assert float(jnp.abs(gaussian.mean - draws.mean(0)).mean()) < 0.1 * scale + 4 * error.mean()
    ratio = gaussian.var / draws.var(0)
    assert 0.85 < float(ratio.mean()) < 1.15


@pytest.mark.slow
def test_a_correction_changes_columns():
    f, params, x = network()
    scale, shift = jnp.ones(256).at[2].set(0.5), jnp.zeros(256)
    arrays = [Crossbar(gain=0.004, correction=c) for c in (None, Correction(scale, shift))]
    bare = {"fc2": {**params["fc2"], "bias": jnp.zeros(5)}}
    a, b = (analog(f, {"fc2": array})(jax.random.key(0), {**params, **bare}, x) for array in arrays)
    np.testing.assert_allclose(b[:, 2], 0.5 * a[:, 2], rtol=1e-5)
    np.testing.assert_array_equal(b[:, 3], a[:, 3])


def test_bad_input_is_refused():
    f, params, x = network()
    key = jax.random.key(0)
    spec = {"fc*:linear": Crossbar()}
    with pytest.raises(ValueError, match=r"'fc1' reads negative activations \(minimum -1"):
        analog(f, spec)(key, params, -x.at[0, 0].set(1.0))
    assert jnp.isnan(jax.jit(analog(f, spec))(key, params, -x)).all()
    with pytest.raises(ValueError, match="'input' is input; narrow"):
        analog(f, {"*": Crossbar()})(key, params, x)
    with pytest.raises(
        ValueError, match=r"by a constant .* leave it out with \{\.\.\., 'linear': None"
    ):
        analog(lambda p, x: x @ jnp.ones((2, 3)), {"*:linear": Crossbar()})(
            key, params, jnp.ones((1, 2))
        )
    with pytest.raises(TypeError, match="must be a Crossbar"):
        analog(f, {"fc1": 3})
    with pytest.raises(TypeError, match="methods counts"):
        Crossbar(model=Linear)
    with pytest.raises(ValueError, match="multiplies an empty array"):
        analog(dense, at_scale_one())(key, {"fc": {"kernel": jnp.zeros((0, 3))}}, jnp.ones((2, 0)))
    with pytest.raises(ValueError, match=r"holds NaN, in 1 of 2400"):
        calibrate_ranges(f, params, [x.at[0, 0].set(jnp.nan)], spec)
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate_ranges(f, params, [], spec)
    with pytest.raises(ValueError, match="no positive input"):
        calibrate_ranges(f, params, [jnp.zeros_like(x)], {"fc1": Crossbar()})
