"""`integer`: agreement with `quantized`, what goes into a product, and what is refused."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.compression import (
    LSQ,
    PACT,
    Int,
    IntegerError,
    IntegerFallbackWarning,
    PowersOfTwo,
    Tensor,
    Uniform,
    calibrate,
    init,
    integer,
    quantized,
)
from jaxeff.compression.integers import Codes
from jaxeff.compression.integers._operators import multiplied, multiplier_of
from jaxeff.nn import small_classifier

WEIGHTS = Int(8)
KEY = jax.random.key(0)


class Residual(nnx.Module):
    """Batch norm, a shortcut, max pooling, a mean: everything that goes into a product."""

    def __init__(self, rngs):
        self.conv1 = nnx.Conv(3, 8, (3, 3), use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.conv2 = nnx.Conv(8, 8, (3, 3), rngs=rngs)
        self.conv3 = nnx.Conv(8, 8, (3, 3), rngs=rngs)
        self.fc = nnx.Linear(8, 4, rngs=rngs)
        self.bn1.mean[...] = jax.random.normal(KEY, 8)
        self.bn1.var[...] = jax.random.uniform(KEY, 8, minval=0.2, maxval=3)
        self.bn1.scale[...] = jnp.array([1.0, -2, 0.5, 0, 3, -0.1, 1, 1])

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.bn1(self.conv1(x))), (2, 2), strides=(2, 2))
        x = nnx.relu(self.conv3(nnx.relu(self.conv2(x))) + x)
        return self.fc(jnp.mean(x, axis=(-3, -2)))


@pytest.fixture(scope="module")
def residual():
    f, params = jaxeff.functional(Residual(nnx.Rngs(0)))
    x = jax.random.normal(KEY, (4, 8, 8, 3))
    return f, params, x, calibrate(f, params, [x], {"*:linear": WEIGHTS}).spec


@pytest.fixture(scope="module")
def classifier():
    f, params, (x, _) = small_classifier(16)
    return f, params, x, calibrate(f, params, [x], {"*:linear": WEIGHTS}).spec


@pytest.mark.slow
@pytest.mark.parametrize("bits", [(8, 8), (4, 8), (2, 4), (1, 2)])
def test_codes_are_those_of_quantized_but_for_one(classifier, bits):
    f, params, x, _ = classifier
    spec = calibrate(f, params, [x], {"*:linear": Int(*bits)}).spec
    first = {"conv1": spec["conv1"]}
    exact = jax.jit(quantized(f, first))(params, x)
    np.testing.assert_allclose(jax.jit(integer(f, first))(params, x), exact, atol=1e-5)
    # One code of an activation of fc2 is at most its step times its largest weight.
    g = jax.jit(integer(f, spec))
    both = g(params, x), jax.jit(quantized(f, spec))(params, x)
    low, high = spec["fc2"].range
    step = (high - min(low, 0)) / (2 ** bits[1] - 1)
    most = 1.01 * step * np.abs(params["fc2"]["kernel"]).max() * 2
    assert np.abs(both[0] - both[1]).max() <= most


@pytest.mark.slow
def test_converted_parameters_give_the_same_bits_and_hold_no_float_weight(residual):
    f, params, x, spec = residual
    g = integer(f, spec)
    codes = g.convert(params, x)
    np.testing.assert_array_equal(jax.jit(g)(codes, x), jax.jit(g)(params, x))
    assert not codes.rest
    weights = [a for a in jax.tree.leaves(codes) if a.ndim > 1]
    assert {a.dtype for a in weights} == {jnp.dtype("int8")}
    assert max(int(jnp.abs(a.astype(jnp.int32)).max()) for a in weights) == 127


@pytest.mark.slow
def test_batch_norm_shortcut_and_mean_agree_with_floats(residual):
    f, params, x, spec = residual
    output, exact = jax.jit(integer(f, spec))(params, x), jax.jit(f)(params, x)
    near = jax.jit(quantized(f, spec))(params, x)
    scale = np.abs(exact).max()
    assert np.abs(output - near).max() < 0.03 * scale
    assert np.abs(output - exact).max() < 0.05 * scale


@pytest.mark.slow
def test_a_network_is_codes_from_end_to_end(residual):
    f, params, x, spec = residual
    g = integer(f, spec)
    codes = g.convert(params, x)
    text = jax.export.export(jax.jit(g))(codes, x).mlir_module()
    composites = [line for line in text.splitlines() if "stablehlo.composite" in line]
    calls = [line for line in composites if "jaxeff.q_codes" not in line]
    assert len(calls) == 4
    assert len(composites) - len(calls) == 2  # of the images and of the mean
    assert sum("pool = " in call for call in calls) == 1
    assert sum('result = "codes"' in call for call in calls) == 2
    assert sum('shortcut = "codes"' in call for call in calls) == 1
    # No sums leave a product, but those of a mean's steps over all pixels.
    assert ["total = " in call for call in calls if "xi32> loc" in call] == [True]


def test_summary_knows_the_bits_without_being_told(residual):
    f, params, x, spec = residual
    spec = {
        **spec,
        "conv2": Int(3, 5, range=spec["conv2"].range),
        "conv3": Int(4, 3, range=spec["conv3"].range),
    }
    g = integer(f, spec)
    for given in (params, g.convert(params, x)):
        rows = {row.site: row for row in jaxeff.cost(g, given, x).layers}
        assert (rows["conv1"].weight_bits, rows["conv1"].activation_bits) == (8, 8)
        assert (rows["conv2"].weight_bits, rows["conv2"].activation_bits) == (3, 5)
        # Not its shortcut's.
        assert (rows["conv3"].weight_bits, rows["conv3"].activation_bits) == (4, 3)
        assert rows["conv2"].macs == 4 * 16 * 9 * 64


class Looking(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(50, 16, rngs=rngs)
        self.fc = nnx.Linear(16, 5, rngs=rngs)

    def __call__(self, at):
        return self.fc(self.embed(at).mean(1))


@pytest.mark.parametrize("per", ["channel", "tensor"])
def test_tables_are_codes_of_which_rows_are_scaled(per):
    f, params = jaxeff.functional(Looking(nnx.Rngs(0)))
    at = jax.random.randint(KEY, (4, 7), 0, 50)
    spec = {"embed": Int(4, per=per)}
    g, near = integer(f, spec), quantized(f, spec)
    codes = g.convert(params, at)
    assert codes.arrays["embed/codes"].dtype == jnp.int8
    assert codes.arrays["embed/steps"].shape == ((50, 1) if per == "channel" else (1, 1))
    np.testing.assert_array_equal(jax.jit(g)(codes, at), jax.jit(near)(params, at))
    row = next(row for row in jaxeff.cost(near, params, at).layers if row.site == "embed")
    assert row.storage == 50 * 16 * 4 + 32 * (50 if per == "channel" else 1)
    text = jax.export.export(jax.jit(g))(codes, at).mlir_module()
    assert "tensor<50x16xf32>" not in text  # rows are scaled, not the table


@pytest.mark.slow
def test_dynamic_ranges_are_found_in_every_call(classifier):
    f, params, x, _ = classifier
    spec = {"*:linear": WEIGHTS}
    g = integer(f, spec, dynamic=True)
    near = jax.jit(quantized(f, spec))(params, x)
    output = jax.jit(g)(g.convert(params, x), x)
    np.testing.assert_allclose(output, near, atol=0.02 * np.abs(near).max())
    alone = jax.jit(g)(params, x[:1])
    np.testing.assert_allclose(alone, output[:1], atol=1e-6)  # a range per sample


def test_products_with_dynamic_ranges_are_transposed():
    def scores(params, x):
        q, k = ((x @ params[name]).reshape(2, 5, 2, 4) for name in ("q", "k"))
        return q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 3, 1)

    keys = jax.random.split(KEY, 3)
    params = {name: jax.random.normal(k, (8, 8)) for name, k in zip("qk", keys, strict=False)}
    x = jax.random.normal(keys[2], (2, 5, 8))
    g = integer(scores, {"*:linear": WEIGHTS}, dynamic=True)
    near = quantized(scores, {"*:linear": WEIGHTS})(params, x)
    np.testing.assert_allclose(g(g.convert(params, x), x), near, atol=0.02 * np.abs(near).max())


def test_fixed_point_is_float_but_for_one_code():
    scale = jax.random.uniform(KEY, (500,), minval=-1) * 2.0 ** -jnp.arange(0, 25, 0.05)
    most = jnp.minimum(300 / jnp.abs(scale), 2.0**30)[None]
    sums = (jax.random.uniform(jax.random.key(1), (200, 500), minval=-1) * most).astype(jnp.int32)
    output = jax.jit(multiplied)(sums, *(part[None] for part in multiplier_of(scale)))
    exact = np.asarray(sums, np.float64) * np.asarray(scale, np.float64)[None]
    codes, near = np.clip(np.asarray(output), -255, 255), np.clip(np.rint(exact), -255, 255)
    assert np.abs(codes - near).max() <= 1
    assert (codes != near).mean() < 0.02
    inside = np.abs(exact) < 250
    assert np.abs(np.asarray(output) - exact)[inside].max() < 0.52


@pytest.mark.slow
def test_fixed_point_networks_differ_by_little(residual):
    f, params, x, spec = residual
    near, output = (
        jax.jit(integer(f, spec, requantize=kind))(params, x) for kind in ("float", "fixed")
    )
    assert np.abs(output - near).max() < 0.02 * np.abs(near).max()
    codes = integer(f, spec, requantize="fixed").convert(params, x)
    floats = [name for name, a in codes.arrays.items() if a.dtype == jnp.float32]
    assert floats == ["conv3/scale", "fc/scale"]  # of what a mean and the user read
    with pytest.raises(ValueError, match="requantize"):
        integer(f, spec, requantize="shift")


@pytest.mark.slow
def test_sums_are_exact_at_extreme_codes():
    x = jnp.full((1, 60), 1.0)
    params = {"w": jnp.full((60, 3), -2.0)}
    f = lambda p, x: x @ p["w"]  # noqa: E731
    spec = {"*": Int(8, range=(0.0, 1.0))}
    np.testing.assert_allclose(integer(f, spec)(params, x), jnp.full((1, 3), -120.0), rtol=1e-6)


def dense(depth):
    return (lambda p, x: x @ p["w"]), {"w": jnp.ones((depth, 2))}, jnp.ones((1, depth))


def test_a_call_without_jit_is_one_program(classifier, caplog):
    f, params, x, spec = classifier
    g = integer(f, spec)
    codes, x = g.convert(params, x), np.asarray(x)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        first, again = g(codes, x), g(codes, x)
    assert sum("Finished XLA compilation" in r.getMessage() for r in caplog.records) == 1
    np.testing.assert_array_equal(first, jax.jit(g)(codes, x))
    np.testing.assert_array_equal(first, again)


def test_ranges_that_were_never_calibrated_are_refused(classifier):
    f, params, x, _ = classifier
    with pytest.raises(IntegerError, match=r"conv1/input_0 has no range: calibrate\("):
        integer(f, {"*:linear": WEIGHTS})(params, x)


def test_affine_weights_are_refused(classifier):
    f, params, x, _ = classifier
    with pytest.raises(IntegerError, match=r"symmetric grids.*take Int\(bits\)"):
        integer(f, calibrate(f, params, [x], {"fc1": Int(8, symmetric=False)}).spec)(params, x)


def test_sums_that_could_overflow_are_refused_with_the_depth():
    f, params, x = dense(40_000)
    spec = {"*": Int(8, range=1.0)}
    with pytest.raises(IntegerError, match=r"sums 40000 products .* from 33156 on"):
        integer(f, spec)(params, x)
    integer(f, {"*": Int(4, 8, range=1.0)}).convert(params, x)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Int(9, range=1.0), "has 9 bits, but integer kernels take 1 to 8"),
        (PowersOfTwo(4), "take uniform grids"),
        (LSQ(4), "has no step yet: init"),
        (LSQ(4, step=1.0, signed=True), r"of LSQ\(4\) narrow=True"),
        (LSQ(4, step=1.0, signed=True, narrow=True, offset=0.1), "no offset"),
        (Int(1, symmetric=True, range=1.0), "no code for zero"),
    ],
)
def test_codes_that_kernels_cannot_hold_are_refused(setting, words):
    f, params, x = dense(5)
    with pytest.raises(IntegerError, match=words):
        integer(f, {"*": setting})(params, x)


@pytest.mark.parametrize("per", ["channel", "tensor"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("method", [functools.partial(LSQ, narrow=True), PACT])
def test_learned_steps_become_codes(method, bits, per, classifier):
    f, params, x, _ = classifier
    spec = init(f, params, x, {"*:linear": method(bits, per=per)})
    g = integer(f, spec)
    codes = g.convert(params, x)
    wanted = quantized(f, spec)(params, x)
    # As far apart as codes of neighbouring activations, which a tie between them gives.
    near = jnp.abs(g(codes, x) - wanted) <= 0.05 * jnp.abs(wanted).max()
    assert near.mean() > 0.99
    weights = [a for name, a in codes.arrays.items() if name.endswith("codes")]
    assert weights
    assert all(int(jnp.abs(a).max()) <= 2 ** (bits - 1) - 1 for a in weights)


def test_zeros_have_no_sign():
    f, params, x = dense(5)
    params = jax.tree.map(lambda w: w.at[..., 0].set(0), params)
    for per in ("channel", "tensor"):
        spec = {"*": Int(1, 8, range=1.0, per=per)}
        for how in ({}, {"requantize": "fixed"}):
            zeros = jax.tree.map(jnp.zeros_like, params) if per == "tensor" else params
            with pytest.raises(ValueError, match="zeros alone in an output, which have no sign"):
                integer(f, spec, **how).convert(zeros, x)


@pytest.mark.slow
def test_a_layer_without_a_kernel_is_named_and_computed_as_quantized():
    f, params = jaxeff.functional(nnx.Conv(2, 3, (2, 2, 2), rngs=nnx.Rngs(0)))
    x = jax.random.normal(KEY, (1, 3, 3, 3, 2))
    spec = calibrate(f, params, [x], {"*": Int(8, per="tensor")}).spec
    with pytest.warns(IntegerFallbackWarning, match="no integer kernel takes; .* floating point"):
        output = integer(f, spec)(params, x)
    np.testing.assert_array_equal(output, quantized(f, spec)(params, x))


@pytest.mark.parametrize("width", [1, 8, 13, 14])
@pytest.mark.parametrize(
    "clamp",
    [jax.nn.relu, jax.nn.relu6, lambda x: jnp.clip(x, -0.5, 1.0)],
    ids=["relu", "6", "clip"],
)
def test_codes_of_a_batch_are_those_of_an_example(clamp, width):
    """A clamp of few values is the same thing as one of many."""

    def f(params, x):
        return clamp(x @ params["a"]) @ params["b"]

    rng = np.random.default_rng(width)
    params = {"a": rng.normal(size=(4, width)), "b": rng.normal(size=(width, 3))}
    params = jax.tree.map(jnp.float32, params)
    x = jnp.asarray(3 * rng.normal(size=(32, 4)), jnp.float32)
    spec = calibrate(f, params, [x], {"*": WEIGHTS}).spec
    g = integer(f, spec)
    codes = g.convert(params, x)
    assert codes.arrays.keys() == g.convert(params, x[:1]).arrays.keys()
    # The clamp goes into the codes that the first product writes, so there are no scales of floats.
    assert not [name for name in codes.arrays if name == "a/scale"]
    one_by_one = np.concatenate([g(codes, x[i : i + 1]) for i in range(4)])
    np.testing.assert_array_equal(one_by_one, g(codes, x)[:4])


def test_converted_for_another_spec_is_refused(residual):
    f, params, x, spec = residual
    codes = integer(f, {"fc": spec["fc"]}).convert(params, x)
    with pytest.raises(IntegerError, match="made by another spec"):
        integer(f, spec)(codes, x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_stay_between_codes(residual, dtype):
    _, params, x, _ = residual
    narrow, data = (jax.tree.map(lambda a: a.astype(dtype), tree) for tree in (params, x))

    def f(params, x):
        y = lax.conv_general_dilated(
            x, params["conv1"]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = nnx.max_pool(nnx.relu(y), (2, 2), strides=(2, 2)).mean((1, 2))
        return y @ params["fc"]["kernel"]

    spec = calibrate(f, narrow, [data], {"*:linear": WEIGHTS}).spec
    g = integer(f, spec)
    codes = g.convert(narrow, data)
    assert {"conv1/codes", "fc/codes"} <= set(codes.arrays)
    assert not codes.rest
    output, wanted = jax.jit(g)(codes, data), jax.jit(quantized(f, spec))(narrow, data)
    dynamic = integer(f, {"*:linear": WEIGHTS}, dynamic=True)
    assert output.dtype == wanted.dtype == jax.eval_shape(dynamic, narrow, data).dtype == dtype
    # Codes of activations differ by one at most, and `quantized` rounds sums to the dtype.
    output, wanted = (y.astype(jnp.float32) for y in (output, wanted))
    assert jnp.abs(output - wanted).max() <= (0.02 + 4 * float(jnp.finfo(dtype).eps)) * wanted.max()


def test_layers_in_loops_and_in_float_are_left_as_they_are():
    def f(params, x):
        x = jax.nn.gelu(x @ params["a"])
        x, _ = lax.scan(lambda c, _: (jnp.tanh(c @ params["b"]), None), x, None, length=2)
        return x @ params["c"]

    params = {n: jax.random.normal(KEY, (6, 6)) for n in "abc"}
    x = jax.random.normal(KEY, (3, 6))
    ranged = Int(8, range=(-4.0, 4.0))
    spec = {"a": ranged, "c": ranged}
    g = integer(f, spec)
    codes = g.convert(params, x)
    assert len(codes.rest) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = jax.jit(g)(codes, x)
    near = jax.jit(quantized(f, spec))(params, x)
    np.testing.assert_allclose(output, near, atol=0.2)


def test_no_number_is_the_smallest_code():
    grid = Codes.of(Uniform(8, False, (-1.0, 2.0)), Tensor("fc", "input_0", "activation", 1))
    output = jax.jit(grid.write)(jnp.array([jnp.nan, jnp.inf, -jnp.inf]))
    np.testing.assert_array_equal(output, [0, 255, 0])


def test_codes_of_a_grid_are_those_of_quantize():
    x = jnp.linspace(-2, 3, 41)
    tensor = Tensor("fc", "input_0", "activation", 1)
    for bits in (1, 2, 5, 8):
        grid = Codes.of(Uniform(bits, False, (-1.0, 2.0)), tensor)
        codes = grid.write(x)
        assert codes.min() >= 0
        assert codes.max() == 2**bits - 1
        ours, theirs = grid.read(codes), Uniform(bits, False, (-1.0, 2.0)).quantize(x, tensor)
        assert np.abs(ours - theirs).max() <= grid.step * 1.01
        assert float(grid.read(grid.write(jnp.zeros(())))) == 0.0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bias", [0.1, -0.81, 3.0, 1e4])
def test_weights_that_are_small_beside_a_bias_still_count(bias, dynamic):
    def f(params, x):
        return x @ params["w"] + params["b"]

    params = {"w": jnp.array([[0.0738]]), "b": jnp.array([[bias]])}
    x = jnp.linspace(-0.7, 0.4, 21).reshape(21, 1)
    spec = {"*:linear": Int(8)}
    if not dynamic:
        spec = calibrate(f, params, [x], spec).spec
    g = integer(f, spec, dynamic=dynamic)
    # What is lost to the bias is less than 2^-11 of it, and a float's last digit.
    error = jnp.abs(g(g.convert(params, x), x) - quantized(f, spec)(params, x)).max()
    assert error <= abs(bias) * (2**-24 if dynamic else 2**-11) + 1e-6


@pytest.mark.parametrize("how", ["calibrated", "dynamic", "groups", "sign"])
@pytest.mark.parametrize("zeros", ["data", "weights"])
def test_a_bias_beside_zeros_is_itself(zeros, how):
    def f(params, x):
        return x @ params["w"] + params["b"]

    # Zeros have no range, so that their grid's step is any number: here beside one that is large.
    x, w = jnp.full((3, 8), 3e4), jnp.full((8, 2), 3e4)
    x, w = (jnp.zeros_like(x), w) if zeros == "data" else (x, jnp.zeros_like(w))
    params = {"w": w, "b": jnp.array([[0.123, -4.5]])}
    methods = {
        "groups": Int(8, 8, symmetric=True, per="group", group=4, steps="int8"),
        "sign": Int(1, 8),
    }
    spec = {"*:linear": methods.get(how, Int(8))}
    if how in ("calibrated", "sign"):
        spec = calibrate(f, params, [x], spec).spec
    g = integer(f, spec, dynamic=how in ("dynamic", "groups"))
    near = jnp.broadcast_to(params["b"], (3, 2))
    np.testing.assert_allclose(g(g.convert(params, x), x), near, rtol=1e-6)


def _of_shapes(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def test_layout_and_size_are_read_from_shapes_alone():
    f, params, (x, _) = small_classifier(4)
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, x)
    shapes = g.convert(_of_shapes(params), _of_shapes(x))
    assert shapes == _of_shapes(codes)
    assert jax.eval_shape(g, shapes, _of_shapes(x)).shape == (4, 10)


def test_a_table_that_is_used_twice_is_there_once_by_its_shapes_too():
    def f(params, tokens):
        return jnp.tanh(params["table"][tokens] @ params["w"]) @ params["table"].T

    params = {"table": jax.random.normal(jax.random.key(0), (12, 8)), "w": jnp.eye(8)}
    tokens = jnp.arange(5)
    g = jaxeff.integer(f, {"*": Int(8)}, dynamic=True)
    codes = g.convert(params, tokens)
    assert codes.shared
    assert g.convert(_of_shapes(params), tokens) == _of_shapes(codes)


@pytest.mark.parametrize("steps", [4, 2**8, 2**14])
def test_a_rounding_behind_a_product_is_no_clamp(steps):
    def f(params, x):
        return jnp.clip(jnp.round(x @ params["w"] * steps), -100, 100) / steps

    rng = np.random.default_rng(0)
    params = {"w": (rng.normal(size=(8, 4)) / steps).astype(np.float32)}
    x = 10 * rng.normal(size=(32, 8)).astype(np.float32)
    g = integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    y = np.asarray(g(g.convert(params, x), x)) * steps
    np.testing.assert_array_equal(y, np.round(y))
    assert np.abs(y - f(params, x) * steps).max() <= 3


def test_a_product_over_samples_with_ranges_of_their_own_stays_in_float():
    """Each column of x has its own range and is summed over: no code has one step."""

    def f(params, x):
        return params["w"] @ x

    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(6, 2)).astype(np.float32)}
    x = (np.array([[1.0], [50.0]]) * rng.normal(size=(2, 8))).astype(np.float32)
    g = integer(f, {"*:linear": Int(8)}, dynamic=True)
    with pytest.warns(IntegerFallbackWarning, match="over its samples, each with a range"):
        y = g(g.convert(params, x), x)
    np.testing.assert_allclose(y, quantized(f, {"*:linear": Int(8)})(params, x), rtol=1e-5)
