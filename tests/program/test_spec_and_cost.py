"""Patterns select sites, errors list them; counts are the published ones."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxeff.compression import Int, calibrate, quantized, running
from jaxeff.core import functional
from jaxeff.nn import VGG11, LeNet5, ResNet18
from jaxeff.noise import Additive, Repeated, noisy
from jaxeff.photonics import ChaoticLight, photonic
from jaxeff.program import SpecError, cost, resolve, sites, summary, trace
from jaxeff.robustness import accuracy_curve

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def program():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    return trace(f, params, jnp.ones((1, 28, 28, 1)))


def test_the_most_specific_pattern_decides_and_none_leaves_alone(program):
    spec = {"fc3": None, "fc*": 1, "*:linear": 2}
    for order in itertools.permutations(spec):
        found = resolve({pattern: spec[pattern] for pattern in order}, program)
        assert found == {"fc1": 1, "fc2": 1, "conv1": 2, "conv2": 2}


@pytest.mark.slow
def test_the_first_spec_of_the_readme_leaves_its_last_layer_alone():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    x = jax.random.uniform(jax.random.key(0), (2, 28, 28, 1))
    spec = {"*:linear": Int(2), "fc3": None}
    rest = {"conv*": Int(2), "fc1": Int(2), "fc2": Int(2)}
    expected = quantized(f, rest)(params, x)
    np.testing.assert_array_equal(quantized(f, spec)(params, x), expected)
    run = jax.jit(lambda spec, p, x: quantized(f, spec)(p, x))
    np.testing.assert_allclose(run(spec, params, x), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(quantized(f, {"*:linear": Int(2)})(params, x), expected)


def test_a_star_means_computation_not_plumbing(program):
    assert "reshape" not in resolve({"*": 1}, program)
    assert resolve({"*:shape": 1}, program) == {"reshape": 1}
    assert resolve({"reshape": 1}, program) == {"reshape": 1}


def test_a_name_matches_every_use_of_a_shared_layer():
    w = {"fc": {"w": jnp.eye(3)}}
    shared = trace(lambda p, x: jnp.tanh(x @ p["fc"]["w"]) @ p["fc"]["w"], w, jnp.ones((2, 3)))
    assert resolve({"fc": 1}, shared) == {"fc": 1, "fc#1": 1}
    assert resolve({"fc#1": 1}, shared) == {"fc#1": 1}
    assert resolve({"fc": 1, "fc#1": 2}, shared) == {"fc": 1, "fc#1": 2}
    assert resolve({"fc": 1, "fc#*": None}, shared) == {"fc": 1}


def test_a_name_is_one_of_several_unnamed_layers(program):
    assert resolve({"relu": 1, "max_pool_1": 2}, program) == {"relu": 1, "max_pool_1": 2}
    each = {"relu": 0, "relu_1": 1, "relu_2": 2, "relu_3": 3}
    assert resolve(each, program) == each
    assert resolve({"relu*": 1}, program) == dict.fromkeys(each, 1)


@pytest.mark.parametrize("pattern", ["convolution*", "conv1:pooling", "CONV1", ""])
def test_a_pattern_without_a_match_lists_the_sites(program, pattern):
    with pytest.raises(SpecError, match=r"matches no site.*conv1:linear"):
        resolve({pattern: 1}, program)


NOT_NOISE = r"must be a noise model with a method perturb.*such as Additive\(0\.3\), or None"


@pytest.mark.parametrize("apply", [noisy, lambda f, s: accuracy_curve(KEY, f, {}, (), s, [1.0])])
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Additive(0.3), "maps patterns of sites to settings.*not a Additive"),
        ("conv1", "maps patterns of sites to settings.*not 'conv1'"),
        ({"conv1": 0.3}, f"setting of 'conv1' {NOT_NOISE}; not 0.3"),
        ({"conv1": Additive}, f"setting of 'conv1' {NOT_NOISE}.*write Additive\\(...\\)"),
        ({"conv1": Int(8)}, f"setting of 'conv1' {NOT_NOISE}"),
        ({3: Additive(0.3)}, r"keys are patterns of sites \(strings\), not 3"),
    ],
)
def test_what_is_no_spec_of_noise_is_a_type_error(apply, spec, message):
    with pytest.raises(TypeError, match=message):
        apply(lambda p, x: x, spec)


@pytest.mark.parametrize(
    ("apply", "wanted"),
    [
        (quantized, r"a method of compression, such as Int\(8\)"),
        (running, r"an Int, such as Int\(8\)"),
        (
            lambda f, s: calibrate(f, {}, [], s).spec,
            r"an Int, such as Int\(8\), a Uniform or a LayerQuantization of them",
        ),
        (
            photonic,
            r"a ChaoticLight, such as ChaoticLight\(0\.5\), a PhotonicWeights or a PhotonicProduct",
        ),
    ],
)
def test_what_is_no_spec_is_a_type_error(apply, wanted):
    for setting in (Additive(0.3), 8, Int if "Chaotic" in wanted else ChaoticLight):
        refused = f"setting of 'fc' must be {wanted}, or None; not"
        if apply is not quantized and setting is ChaoticLight:
            refused += "|spec has the class ChaoticLight for 'fc': write ChaoticLight"
        with pytest.raises(TypeError, match=refused):
            apply(lambda p, x: x, {"fc": setting})
    for spec in (Int(8), ChaoticLight(), None, ["fc"]):
        with pytest.raises(
            TypeError, match=r"maps patterns of sites to settings|spec must be a mapping"
        ):
            apply(lambda p, x: x, spec)


def test_a_class_is_no_noise_model_to_repeat():
    with pytest.raises(TypeError, match=r"Repeated\.model must have a method perturb"):
        Repeated(Additive, 2)


def test_a_setting_that_acts_nowhere_is_the_same_error_in_jit():
    """One object under two patterns: JAX makes two of it."""
    weights = Additive(0.3, at="weights")
    spec = {"conv1": weights, "relu": weights}
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    run = lambda s: noisy(f, s)(KEY, params, jnp.ones((1, 28, 28, 1)))  # noqa: E731
    for call in (run, jax.jit(run)):
        with pytest.raises(ValueError, match=r"nothing for noise to perturb.*'relu'"):
            call(spec)


@pytest.mark.parametrize("pattern", ["conv1:convolution", 3])
def test_nonsense_patterns_are_errors(program, pattern):
    with pytest.raises(SpecError, match=r"kind|strings"):
        resolve({pattern: 1}, program)


def counts(make, shape):
    model = nnx.eval_shape(make)
    graph, state = nnx.split(model)
    params = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype), state, is_leaf=lambda s: hasattr(s, "shape")
    )
    model = nnx.merge(graph, params)
    model.eval()
    f, values = functional(model)
    total = cost(f, values, jnp.zeros(shape))
    return total.params, total.macs


def test_lenet5_counts_are_the_published_ones():
    make = lambda: LeNet5(in_channels=3, size=32, padding="VALID", rngs=nnx.Rngs(0))  # noqa: E731
    assert counts(make, (1, 32, 32, 3)) == (62_006, 651_720)


@pytest.mark.parametrize(("stem", "millions"), [("imagenet", 37.0), ("cifar", 555.4)])
def test_resnet18_macs_are_the_published_ones(stem, millions):
    macs = counts(lambda: ResNet18(stem=stem, rngs=nnx.Rngs(0)), (1, 32, 32, 3))[1]
    assert macs / 1e6 == pytest.approx(millions, abs=0.05)


def test_macs_scale_with_the_batch_and_bops_with_the_bits():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    one, four = (cost(f, params, jnp.ones((n, 28, 28, 1))) for n in (1, 4))
    assert four.macs == 4 * one.macs
    assert one.bops == one.macs * 32 * 32
    eight = cost(f, params, jnp.ones((1, 28, 28, 1)), bits={"conv1": (8, 4)})
    conv1 = next(row for row in one.layers if row.site == "conv1").macs
    assert one.bops - eight.bops == conv1 * (32 * 32 - 8 * 4)


def test_a_scan_counts_every_iteration():
    def f(p, x):
        return jax.lax.scan(lambda c, _: (c @ p["w"], None), x, length=5)[0]

    total = cost(f, {"w": jnp.eye(3)}, jnp.ones((2, 3)))
    assert (total.params, total.macs) == (9, 5 * 2 * 3 * 3)


@pytest.mark.promotes("rank")
def test_every_parameter_is_counted_once():
    w = jnp.ones((3, 3))

    def f(p, x):
        return (x @ p["a"]["w"]) @ p["a"]["w"] + p["loose"]

    params = {"a": {"w": w}, "loose": jnp.ones(3), "unused": jnp.ones(7)}
    assert cost(f, params, jnp.ones((1, 3))).params == 9 + 3 + 7


BLOCK = {"block": {"w1": jnp.ones((3, 5)), "b1": jnp.ones(5), "w2": jnp.ones((5, 2))}}


@pytest.mark.promotes("rank")  # a bias is a vector
def test_parameters_are_booked_where_they_are_used():
    def f(p, x):
        block = p["block"]
        return jnp.tanh(x @ block["w1"] + block["b1"]) @ block["w2"]

    rows = {row.site: row.params for row in cost(f, BLOCK, jnp.ones((1, 3))).layers if row.params}
    assert rows == {"block/w1": 15 + 5, "block/w2": 10}


def test_what_only_prepares_a_weight_is_booked_where_it_is_used():
    def f(p, x):
        low_rank = p["lora"]["a"] @ p["lora"]["b"]
        return x @ (p["fc"]["w"] + low_rank)

    lora = {"a": jnp.ones((3, 1)), "b": jnp.ones((1, 4))}
    params = {"fc": {"w": jnp.ones((3, 4))}, "lora": lora}
    rows = {row.site: row.params for row in cost(f, params, jnp.ones((1, 3))).layers}
    assert rows == {"input": 0, "fc": 12 + 3 + 4}


def convolution(kernel, x, **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **options)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_inserted_zeros_are_no_work(padding):
    x = jnp.ones((1, 4, 4, 4))
    up = linen.ConvTranspose(8, (3, 3), strides=(2, 2), padding=padding, use_bias=False)
    f, params = functional(up, up.init(KEY, x))
    assert cost(f, params, x).macs == 16 * 9 * 4 * 8  # every input meets every tap
    again, params = functional(
        nnx.ConvTranspose(4, 8, (3, 3), strides=(2, 2), padding=padding, rngs=nnx.Rngs(0))
    )
    assert cost(again, params, x).macs == 16 * 9 * 4 * 8


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_a_strided_convolution_and_its_transpose_cost_the_same(padding, stride, dilation):
    options = {"window_strides": (stride,) * 2, "rhs_dilation": (dilation,) * 2}
    x, kernel = jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 2, 6))

    def forward(k, x):
        return convolution(k, x, padding=padding, feature_group_count=2, **options)

    def back(k, y):
        return jax.linear_transpose(lambda x: forward(k, x), x)(y)[0]

    y = forward(kernel, x)
    expected = y.size * 9 * 2
    assert cost(forward, kernel, x).macs == cost(back, kernel, y).macs == expected


def test_strides_over_inserted_zeros():
    """Products counted one by one, where nothing falls beyond a border."""
    x, kernel = jnp.ones((1, 5, 1, 1)), jnp.ones((2, 1, 1, 1))
    options = {"lhs_dilation": (3, 1), "window_strides": (2, 1), "padding": [(0, 0)] * 2}
    f = lambda k, x: convolution(k, x, **options)  # noqa: E731
    # 13 places, inputs at 0, 3, 6, 9, 12; windows from 0, 2, ... 10 and the next place each.
    counted = sum(place % 3 == 0 for start in range(0, 12, 2) for place in (start, start + 1))
    assert int(f(kernel, x).sum()) == counted == 4
    # An input at the last place begins a window that is cut off, and counts.
    assert cost(f, kernel, x).macs == counted + 1


def test_summary_is_a_table_people_can_read():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    x = jnp.ones((1, 28, 28, 1))
    text = str(summary(f, params, x))
    assert all(site in text for site in sites(f, params, x))
    assert "61,706" in text
    assert "total" in text


@pytest.mark.slow
def test_vgg11_macs_are_the_published_ones_with_its_thousand_class_head():
    macs = counts(lambda: VGG11(num_classes=1000, rngs=nnx.Rngs(0)), (1, 32, 32, 3))[1]
    assert macs / 1e6 == pytest.approx(276.4, abs=0.05)
