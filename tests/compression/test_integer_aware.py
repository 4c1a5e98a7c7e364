"""`integer_aware`: what `integer` computes at few bits, where `quantized` differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import (
    Int,
    calibrate,
    fold_batch_norm,
    integer,
    integer_aware,
    quantized,
)
from jaxeff.compression._quantized import settings_of
from jaxeff.compression.integers._dataflow import shortcuts_of
from jaxeff.nn import ResNet8, WideResNet
from jaxeff.program import trace

KEY = jax.random.key(0)


class Block(nnx.Module):
    """A shortcut over two convolutions, and one that is a convolution itself."""

    def __init__(self, rngs):
        self.conv1 = nnx.Conv(3, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 16, (3, 3), rngs=rngs)
        self.conv3 = nnx.Conv(16, 16, (3, 3), rngs=rngs)
        self.bn3 = nnx.BatchNorm(16, use_running_average=True, rngs=rngs)
        self.conv4 = nnx.Conv(16, 8, (3, 3), rngs=rngs)
        self.beside = nnx.Conv(16, 8, (1, 1), rngs=rngs)
        self.fc = nnx.Linear(8, 4, rngs=rngs)
        self.bn3.bias[...] = jax.random.normal(KEY, 16)

    def __call__(self, x):
        x = nnx.relu(self.conv1(x))
        x = nnx.relu(self.bn3(self.conv3(nnx.relu(self.conv2(x)))) + x)
        x = nnx.relu(self.beside(x) + self.conv4(x))
        return self.fc(x.mean((-3, -2)))


@pytest.fixture(scope="module")
def block():
    f, params = jaxeff.functional(Block(nnx.Rngs(0)))
    return f, params, jax.random.normal(KEY, (16, 8, 8, 3))


def error(f, g, params, x):
    """The mean distance of two functions, in standard deviations of the first."""
    y, z = jax.jit(f)(params, x), jax.jit(g)(params, x)
    return float(jnp.abs(y - z).mean() / y.std())


@pytest.mark.slow
@pytest.mark.parametrize("bits", [(8, 8), (4, 4), (3, 2), (1, 2), (2, 3)])
def test_it_is_what_codes_compute(block, bits):
    f, params, x = block
    spec = calibrate(f, params, [x], {"*:linear": Int(*bits)}).spec
    aware = integer_aware(f, spec)
    g, fixed = (integer(f, spec, requantize=how) for how in ("float", "fixed"))
    found, other = error(aware, g, params, x), error(quantized(f, spec), g, params, x)
    assert found < 0.01
    if bits[1] < 4:
        assert other > 4 * found
        assert error(aware, fixed, params, x) < other


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 2])
def test_so_it_is_where_batch_norms_precede_activations(bits):
    module = WideResNet(10, 1, depth=10, factor=1, rngs=nnx.Rngs(0))
    module.eval()
    network, params, state = jaxeff.functional(module, mutable=True)
    # As of a trained network: no statistics and no scale that do nothing.
    state = jax.tree.map(lambda a: a + 0.3 * jax.random.uniform(KEY, a.shape), state)
    params = jax.tree.map(
        lambda a: a + 0.1 * jax.random.normal(KEY, a.shape) if a.ndim == 1 else a, params
    )
    x = jax.random.normal(KEY, (4, 8, 8, 1))
    f, params, _ = fold_batch_norm(lambda params, x: network(params, state, x)[0], params, x)
    # Those behind a convolution alone are part of it, those of a sum or of a shared input aren't.
    left = [one.site for one in trace(f, params, x).layers if one.kind == "normalization"]
    assert left == ["stage1/0/bn1", "stage2/0/bn1", "stage3/0/bn1", "bn"]
    spec = calibrate(f, params, [x], {"*:linear": Int(bits, bits)}).spec
    assert error(integer_aware(f, spec), integer(f, spec), params, x) < 1e-5


def test_a_bias_between_the_units_of_few_bits_is_kept():
    f, params = jaxeff.functional(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    x = jax.random.uniform(KEY, (50, 4))
    spec = calibrate(f, params, [x], {"*:linear": Int(2, 2)}).spec
    (setting,) = spec.values()
    unit = float(setting.range[1]) / 3 * np.abs(params["kernel"]).max(0)  # of a channel's products
    params["bias"] = 0.3 * unit
    output, near = (jax.jit(h(f, spec))(params, x) for h in (integer, quantized))
    np.testing.assert_allclose(output, near, atol=1e-4 * unit.min())


def test_biases_of_long_sums_are_rounded_no_more_than_float32():
    keys = jax.random.split(KEY, 3)
    f = lambda p, x: jax.nn.relu(x @ p["w"] + p["b"][None])  # noqa: E731
    params = {
        # The largest weights make the steps, and read next to nothing.
        "w": (0.05 * jax.random.normal(keys[0], (480, 1280))).at[0].set(1),
        "b": 0.05 * jax.random.normal(keys[1], (1280,)),
    }
    x = jax.random.uniform(keys[2], (64, 480)).at[:, 0].set(0)
    g = integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec).coded(params, x)
    data = g.encode(x)
    converted = g.convert(params, *data)
    codes = g(converted, *data)
    # The same in float64, of what the layer reads.
    (of_x,), (of_y,) = g.arguments, g.results
    b, steps = (np.asarray(v, np.float64) for v in (params["b"], abs(params["w"]).max(0) / 127))
    inputs = (np.asarray(*data, np.float64) - of_x.zero) * np.float32(of_x.step)
    (weights,) = (a for name, a in converted.named().items() if name.endswith("/codes"))
    exact = np.maximum(inputs @ np.asarray(weights, np.float64) * steps + b, 0)
    exact = exact / np.float32(of_y.step)
    near = np.clip(np.rint(exact) + of_y.zero, 0, 255)
    # The two differ where a value is as near to the half between two codes as float32 can tell.
    from_half = np.abs(exact - np.floor(exact) - 0.5)
    assert from_half[np.asarray(codes) != near].max(initial=0) < 255 * 2**-23


def _read_as_codes(program, spec):
    found = shortcuts_of(program, settings_of(spec, program))
    return [shortcut.reader.site for shortcut in found.values() if shortcut.reader]


@pytest.mark.slow
def test_only_shortcuts_whose_codes_there_are_become_codes(block):
    f, params, x = block
    spec = calibrate(f, params, [x], {"*:linear": Int(2)}).spec
    program = trace(f, params, x)
    assert _read_as_codes(program, spec) == ["conv2"]
    spec["conv2"] = None
    assert not _read_as_codes(program, spec)
    np.testing.assert_array_equal(
        jax.jit(integer_aware(f, spec))(params, x), jax.jit(quantized(f, spec))(params, x)
    )


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_the_training_form_has_the_same_shortcuts(training):
    module = ResNet8(10, 3, rngs=nnx.Rngs(0))
    if not training:
        module.eval()
    f, params, state = jaxeff.functional(module, mutable=True)
    x = jnp.zeros((2, 32, 32, 3))
    program = trace(f, params, state, x)
    assert _read_as_codes(program, {"*:linear": Int(4, symmetric=False)}) == ["stage1/conv1"]


@pytest.mark.slow
@pytest.mark.parametrize("of_beside", [Int(8, 4), None])
def test_what_is_read_in_several_forms_is_multiplied_once(block, of_beside):
    f, params, x = block
    spec = {"*:linear": Int(8), "beside": of_beside}
    spec = calibrate(f, params, [x], spec).spec
    g = integer(f, spec)
    assert error(integer_aware(f, spec), g, params, x) < 0.01
    text = jax.export.export(jax.jit(g))(g.convert(params, x), x).mlir_module()
    calls = [line for line in text.splitlines() if 'stablehlo.composite "jaxeff.q_conv2d' in line]
    assert len(calls) == 5 - (of_beside is None)


def test_results_may_be_read_inside_too_and_may_be_constants():
    def f(params, x):
        y = jax.nn.relu(x @ params["a"])
        return y @ params["b"], y, 3.0

    params = {name: jax.random.normal(KEY, (4, 4)) for name in "ab"}
    x = jax.random.normal(KEY, (9, 4))
    spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
    g = integer(f, spec)
    output, near = jax.jit(g)(params, x), jax.jit(integer_aware(f, spec))(params, x)
    for one, other in zip(output, near, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    text = jax.export.export(jax.jit(g))(g.convert(params, x), x).mlir_module()
    assert text.count('stablehlo.composite "jaxeff.q_dense"') == 2


@pytest.mark.slow
def test_gradients_pass_through_shortcuts(block):
    f, params, x = block
    spec = calibrate(f, params, [x], {"*:linear": Int(8, 4)}).spec
    g = jax.grad(lambda p: (integer_aware(f, spec)(p, x) ** 2).sum())(params)
    near = jax.grad(lambda p: (f(p, x) ** 2).sum())(params)
    cosine = jnp.vdot(g["conv1"]["kernel"], near["conv1"]["kernel"]) / (
        jnp.linalg.norm(g["conv1"]["kernel"]) * jnp.linalg.norm(near["conv1"]["kernel"])
    )
    assert cosine > 0.9


def _residual(after):
    """A sum of an array that has codes, and of what is made of a product of them."""

    def f(p, x):
        h = jnp.tanh(x @ p["a"])
        return jax.nn.relu(after(p, h @ p["b"]) + h) @ p["c"]

    return f


def _rms(p, y):
    return y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)


def _batch_norm(p, y):
    return (y - p["bias"]) * p["gain"]


def _of_a_loop(p, x):
    def step(c, v):
        return jnp.tanh(v @ p["d"] + c @ p["a"]), None

    h, _ = jax.lax.scan(step, jnp.zeros((len(x), 6)), jnp.swapaxes(x, 0, 1))
    return jax.nn.relu(h @ p["b"] + h) @ p["c"]


def _by_changing_weights(p, x):
    def step(carry, _):
        h, w = carry
        z = jnp.tanh(h @ p["b"])
        return (jax.nn.relu(z @ w + z), 0.9 * w), None

    (h, _), _ = jax.lax.scan(step, (jnp.tanh(x @ p["a"]), p["d"]), None, length=2)
    return h @ p["c"]


def _of_products_of_data(p, x):
    h = jnp.tanh(x @ p["a"])
    y = h @ jnp.swapaxes(h, 1, 2) @ h
    return jax.nn.relu(y @ p["b"] + y) @ p["c"]


def _late(nonlinear):
    def f(p, x):
        h = jnp.tanh(x @ p["a"])
        o = nonlinear(h @ p["d"])
        z = h @ p["b"] + o
        r = jnp.tanh(o @ p["e"])
        return jax.nn.relu(z) @ p["c"] + r

    return f


def _of_a_table(p, x):
    h = p["a"][jnp.int32(3 * jnp.abs(x[..., 0])) % 6]
    return jax.nn.relu(h @ p["b"] + h) @ p["c"]


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(_residual(_batch_norm), id="batch norm"),
        pytest.param(_residual(_rms), id="RMS norm"),
        pytest.param(_residual(lambda p, y: jax.nn.softmax(y)), id="softmax"),
        pytest.param(_residual(lambda p, y: jax.nn.standardize(y, 1)), id="instance norm"),
        pytest.param(_residual(lambda p, y: y + p["at"]), id="positions"),
        pytest.param(_of_a_loop, id="result of a loop"),
        pytest.param(_by_changing_weights, id="weights that a loop changes"),
        pytest.param(_of_products_of_data, id="products that no kernel takes"),
        pytest.param(_of_a_table, id="rows of a table"),
        pytest.param(_late(lambda y: y), id="codes that are made behind the sum"),
        pytest.param(_late(jax.nn.relu), id="codes of a ReLU made behind the sum"),
    ],
)
@pytest.mark.filterwarnings("ignore::jaxeff.compression.integers._rule.IntegerFallbackWarning")
def test_sums_read_codes_where_codes_there_are(f):
    p = {name: jax.random.normal(jax.random.fold_in(KEY, i), (6, 6)) / 2
         for i, name in enumerate("abcde")}  # fmt: skip
    p |= {
        name: jax.random.normal(jax.random.fold_in(KEY, 9), (1, 1, 6)) for name in ("gain", "bias")
    }
    p["at"] = jax.random.normal(KEY, (1, 4, 6))
    x = jax.random.normal(KEY, (8, 4, 6))
    spec = calibrate(f, p, [x], {"*": Int(4)}).spec
    g = integer(f, spec)
    codes = g.convert(p, x)
    output, near = jax.jit(g)(codes, x), jax.jit(integer_aware(f, spec))(p, x)
    np.testing.assert_allclose(output, near, atol=1e-5)
    # However its result is read, a product is computed once.
    text = jax.export.export(jax.jit(g))(codes, x).mlir_module()
    products = {site for site, _, name in (n.rpartition("/") for n in codes.named())
                if name.startswith("bias")}  # fmt: skip
    assert text.count('stablehlo.composite "jaxeff.q_dense"') == len(products)
