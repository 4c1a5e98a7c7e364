"""Sizes, bit operations and activation memory, against what one counts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import (
    LSQ,
    BaseQuantizer,
    Int,
    LayerQuantization,
    Uniform,
    init,
    initial_ranges,
    quantized,
    running,
)
from jaxeff.core import register_setting
from jaxeff.nn import LeNet5
from jaxeff.program import SpecError, Widths, cost, summary

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (1, 28, 28, 1))
KERNELS = {"conv1": 150, "conv2": 2400, "fc1": 48_000, "fc2": 10_080, "fc3": 840}
CHANNELS = {"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 84, "fc3": 10}
MACS = {"conv1": 117_600, "conv2": 240_000, "fc1": 48_000, "fc2": 10_080, "fc3": 840}


@pytest.fixture(scope="module")
def lenet():
    return jaxeff.functional(LeNet5(rngs=nnx.Rngs(0)))


def rows(found):
    return {row.site: row for row in found.layers}


def test_a_quantized_function_knows_its_bits(lenet):
    f, params = lenet
    float_cost = cost(f, params, X)
    assert (float_cost.size, float_cost.bops) == (61_706 * 4, float_cost.macs * 32 * 32)
    quantized_cost = cost(quantized(f, {"*": Int(3, 8, symmetric=False)}), params, X)
    # Codes, and of every channel a step, a code for zero, and the bias.
    bits = {s: 3 * n + CHANNELS[s] * (32 + 3 + 32) for s, n in KERNELS.items()}
    assert {s: row.storage for s, row in rows(quantized_cost).items() if row.macs} == bits
    assert quantized_cost.size == -(-sum(bits.values()) // 8)
    assert quantized_cost.bops == float_cost.macs * 3 * 8
    assert (quantized_cost.params, quantized_cost.macs) == (float_cost.params, float_cost.macs)


@pytest.mark.slow
def test_bits_survive_other_transforms_and_methods_count_what_decodes(lenet):
    f, params = lenet
    spec = {
        "*:linear": LayerQuantization(LSQ(4), LSQ(2)),
        "fc3": LayerQuantization(LSQ(8, per="channel", asymmetric=True)),
    }
    started = init(f, params, X, spec)
    expected = cost(quantized(f, spec), params, X)
    assert cost(quantized(f, started), params, X).layers == expected.layers
    noisy = jaxeff.noisy(quantized(f, started), {"relu*": jaxeff.Additive(0.1)})
    assert cost(noisy, KEY, params, X).layers == expected.layers
    other = quantized(jaxeff.noisy(f, {"relu*": jaxeff.Additive(0.1)}), started)
    assert cost(other, KEY, params, X).layers == expected.layers
    sizes = rows(expected)
    assert sizes["conv2"].storage == 2400 * 4 + 32 + 16 * 32
    assert sizes["fc3"].storage == 840 * 8 + 10 * 64 + 10 * 32
    assert (sizes["fc3"].weight_bits, sizes["fc3"].activation_bits) == (8, 32)


def test_bits_can_be_given_instead(lenet):
    f, params = lenet
    quantized_cost = cost(f, params, X, bits={"conv1": (8, 4), "fc1": Widths(1.5, 2, storage=7777)})
    assert rows(quantized_cost)["conv1"].storage == 8 * 150 + 32 * 6
    assert rows(quantized_cost)["conv1"].bops == 117_600 * 8 * 4
    assert rows(quantized_cost)["fc1"].storage == 7777 + 32 * 120
    assert rows(quantized_cost)["fc1"].bops == 48_000 * 3
    with pytest.raises(SpecError, match=r"'conv9', which is no site; there are input, conv1"):
        cost(f, params, X, bits={"conv9": (8, 4)})


def test_results_that_are_quantized_reach_the_next_product(lenet):
    f, params = lenet
    spec = {
        "relu*": Int(4, weights=False, at="output"),
        "*:linear": Int(2, activations=False, symmetric=False),
    }
    sizes = rows(cost(quantized(f, spec), params, X))
    assert sizes["conv1"].bops == 117_600 * 2 * 32
    assert sizes["conv2"].bops == 240_000 * 2 * 4  # through the pooling, which takes codes
    assert sizes["fc1"].bops == 48_000 * 2 * 4  # through the pooling and a reshape
    ranges = initial_ranges(f, params, X, spec)
    followed = running(f, spec)
    assert rows(cost(followed, params, ranges, X))["conv2"].bops == 240_000 * 2 * 4


def test_a_width_that_is_traced_has_no_number(lenet):
    f, params = lenet
    counted = []

    @jax.jit
    def sweep(bits):
        g = quantized(f, {"conv2": Int(bits, symmetric=False)})
        counted.append(cost(g, params, X))
        return g(params, X)

    sweep(jnp.array(4))
    assert counted[0].layers == cost(f, params, X).layers
    assert rows(cost(quantized(f, {"conv2": Int(jnp.array(4), symmetric=False)}), params, X))[
        "conv2"
    ].bops == (240_000 * 4 * 4)


@pytest.mark.promotes("rank")
def test_what_is_shared_is_stored_once_in_the_same_bits():
    w = {"fc": {"w": jnp.ones((8, 8))}}

    def twice(p, x):
        return jnp.tanh(x @ p["fc"]["w"]) @ p["fc"]["w"]

    def size(**widths):
        return cost(quantized(twice, widths | {}), w, jnp.ones((1, 8))).size

    tensor = {bits: Uniform(bits, symmetric=True, per="tensor") for bits in (2, 4)}
    assert size(fc=tensor[4]) == 64 * 4 / 8 + 4
    assert size(**{"fc": tensor[4], "fc#1": tensor[2]}) == 64 * 6 / 8 + 8
    assert size(**{"fc": tensor[4], "fc#1": None}) == 64 * 4 / 8 + 4 + 64 * 4


def test_parts_and_stacks_of_a_leaf():
    def parts(p, x):
        a, b = jnp.split(p["w"], 2, 1)
        return jnp.tanh(x @ a) @ b

    tensor = Uniform(4, symmetric=True, per="tensor")
    quantized_cost = cost(
        quantized(parts, {"*:linear": tensor}), {"w": jnp.ones((8, 16))}, jnp.ones((1, 8))
    )
    assert quantized_cost.size == 128 * 4 / 8 + 8

    def stack(p, x):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, p["w"])[0]

    w = jnp.ones((5, 8, 8))
    quantized_cost = cost(quantized(stack, {"*:linear": tensor}), {"w": w}, jnp.ones((1, 8)))
    assert quantized_cost.size == 5 * (64 * 4 / 8 + 4)
    assert quantized_cost.bops == 5 * 64 * 16


@pytest.mark.promotes("rank")
def test_what_takes_the_place_of_a_weight_is_stored():
    @register_setting
    class Learnt(BaseQuantizer):
        values: jax.Array

        def quantize(self, x, tensor):
            return jnp.sign(self.values)

        @property
        def width(self):
            return 3

    g = quantized(
        lambda p, x: x @ p["w"], {"*:linear": LayerQuantization(Learnt(jnp.ones((8, 4))))}
    )
    quantized_cost = cost(g, {"w": jnp.ones((8, 4))}, jnp.ones((1, 8)))
    assert [row.storage for row in quantized_cost.layers if row.macs] == [32 * 3]
    assert quantized_cost.layers[-1].site == "(other)"  # the parameters, which nobody reads


def test_activation_memory_of_lenet(lenet):
    f, params = lenet
    # conv1 writes its rectified result; the pooling reads it and makes a quarter as many.
    assert cost(f, params, X).peak == 4 * (28 * 28 * 6 + 14 * 14 * 6)
    assert (
        cost(quantized(f, {"*": Int(4, 8, symmetric=False)}), params, X).peak
        == 28 * 28 * 6 + 14 * 14 * 6
    )
    # Where only fc1 reads codes, conv1 and its pooling still have float32.
    assert (
        cost(quantized(f, {"fc1": Int(4, symmetric=False)}), params, X).peak
        == cost(f, params, X).peak
    )
    four = jnp.concatenate([X] * 4)
    assert cost(f, params, four).peak == 4 * cost(f, params, X).peak


def test_activation_memory_of_a_residual_block():
    w = {f"fc{i}": {"w": jnp.ones((16, 16))} for i in range(3)}

    def f(p, x):
        x = jax.nn.relu(x @ p["fc0"]["w"])
        y = jax.nn.relu(x @ p["fc1"]["w"])
        return jax.nn.relu(x + y @ p["fc2"]["w"])

    x = jnp.ones((1, 16))
    # While fc2 runs: its input, its result and what will be added to it.
    assert cost(f, w, x).peak == 3 * 16 * 4
    # fc2's input is in codes; the skipped value is added as it is.
    assert cost(quantized(f, {"*:linear": Int(8, symmetric=False)}), w, x).peak == 2 * 16 * 4 + 16
    kept = quantized(
        f, {"*:linear": Int(8, symmetric=False), "relu": Int(8, weights=False, at="output")}
    )
    assert cost(kept, w, x).peak == 16 * 4 + 2 * 16


@pytest.mark.promotes("rank")
def test_activation_memory_in_a_loop():
    def f(p, x):
        def body(c, w):
            wide = jnp.tanh(c @ w)  # [1, 32]
            return wide @ w.T, None

        return jax.lax.scan(body, x, p["w"])[0]

    # The wide array of one iteration beside what goes in; then beside what comes out.
    quantized_cost = cost(f, {"w": jnp.ones((3, 8, 32))}, jnp.ones((1, 8)))
    assert quantized_cost.peak == 4 * (8 + 32)


def test_statistics_need_an_array_of_their_own():
    x = jnp.ones((1, 64))
    # The result of softmax is written beside what it sums up.
    assert cost(lambda p, x: jax.nn.softmax(p["a"] * x), {"a": jnp.ones(())}, x).peak == 2 * 64 * 4
    assert cost(lambda p, x: jax.nn.relu(p["a"] * x), {"a": jnp.ones(())}, x).peak == 64 * 4


@pytest.mark.slow
def test_the_summary_shows_bits_where_there_are_some(lenet):
    f, params = lenet
    plain = str(summary(f, params, X))
    assert "246,824 bytes of parameters, 23,520 of activations" in plain
    assert "bits" not in plain
    spec = {"*": Int(4, 8)}
    text = str(summary(quantized(f, spec), params, X, spec=spec))
    assert "4 x 8" in text
    assert "Int(bits=4, activation_bits=8)" in text
    np.testing.assert_array_equal(quantized(f, spec)(params, X).shape, (1, 10))
