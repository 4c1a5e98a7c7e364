"""`quantized` as a transform: by hand, granularity, places, gradients, composition, mistakes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import Int, calibrate, fake_quantize, quantized, value_range
from jaxeff.core import functional
from jaxeff.nn import LeNet5, LinenLeNet5, TransformerEncoder
from jaxeff.noise import Additive, noisy
from jaxeff.program import trace
from tests.chains import two_layers as net

X = jax.random.normal(jax.random.key(2), (4, 5)) * jnp.array([[1.0], [10.0], [0.1], [3.0]])


@pytest.fixture(scope="module")
def params():
    keys = jax.random.split(jax.random.key(7), 2)
    return {
        "fc1": {"kernel": jax.random.normal(keys[0], (5, 8)), "bias": jnp.ones(8) / 3},
        "fc2": {"kernel": jax.random.normal(keys[1], (8, 3)), "bias": jnp.ones(3) / 7},
    }


@pytest.fixture(scope="module")
def lenet():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    return f, params, jax.random.normal(jax.random.key(1), (3, 28, 28, 1))


def hand(x, bits, keep, symmetric=False):
    return fake_quantize(x, bits, *value_range(x, keep), symmetric)


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [False, True, "weights", "activations"])
@pytest.mark.parametrize(("per", "channels"), [("channel", (1,)), ("tensor", ())])
@pytest.mark.parametrize(("each", "samples"), [("sample", (0,)), ("tensor", ())])
def test_dense_layers_by_hand(params, symmetric, per, channels, each, samples):
    setting = Int(4, 3, symmetric, per, each)
    of_weights, of_data = symmetric in (True, "weights"), symmetric in (True, "activations")
    ours = quantized(net, {"*": setting})(params, X)

    def dense(x, layer):
        kernel = hand(layer["kernel"], 4, channels, of_weights)
        return hand(x, 3, samples, of_data) @ kernel + layer["bias"][None]

    by_hand = dense(jax.nn.relu(dense(X, params["fc1"])), params["fc2"])
    np.testing.assert_allclose(ours, by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.promotes("rank")
def test_weights_and_activations_apart(params):
    def one(params, x):
        with jax.numpy_rank_promotion("allow"):
            return x @ params["fc1"]["kernel"] + params["fc1"]["bias"]

    w, b = params["fc1"]["kernel"], params["fc1"]["bias"]
    for setting, by_hand in (
        (Int(2, activations=False, symmetric=False), X @ hand(w, 2, (1,)) + b),
        (Int(2, weights=False), hand(X, 2, (0,)) @ w + b),
        (Int(2, at="output", weights=False), hand(X @ w + b, 2, (0,))),
    ):
        ours = quantized(one, {"fc1": setting})(params, X)
        np.testing.assert_allclose(ours, by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_kernels_have_few_levels_per_output_channel(lenet):
    _, params, _ = lenet

    # The convolution is linear: feeding unit impulses through it reads the quantized kernel back.
    def conv(params, x):
        return jax.lax.conv_general_dilated(
            x, params["conv1"]["kernel"], (1, 1), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    impulse = jnp.zeros((1, 9, 9, 1)).at[0, 4, 4, 0].set(1.0)
    kernel = quantized(conv, {"conv1": Int(2, activations=False, symmetric=False)})(
        params, impulse
    )[0, 2:7, 2:7]
    for channel in range(6):
        assert len(np.unique(kernel[..., channel])) <= 4
    expected = hand(params["conv1"]["kernel"], 2, (3,))[::-1, ::-1, 0]
    np.testing.assert_allclose(kernel, expected, rtol=1e-6, atol=1e-7)
    assert len(np.unique(kernel)) > 4  # channels have grids of their own


def test_relu_outputs_with_a_constant_range(params):
    k = 0.1
    spec = {"relu": Int(4, range=(0.0, 15 * k), at="output", symmetric=False)}
    ours = quantized(net, spec)(params, X)
    hidden = jax.nn.relu(X @ params["fc1"]["kernel"] + params["fc1"]["bias"][None])
    levels = jnp.clip(jnp.round(hidden / k), 0, 15) * k
    by_hand = levels @ params["fc2"]["kernel"] + params["fc2"]["bias"][None]
    np.testing.assert_allclose(ours, by_hand, rtol=1e-4, atol=1e-4)
    short = quantized(net, {"relu": Int(4, range=15 * k, at="output", symmetric=False)})(params, X)
    np.testing.assert_array_equal(ours, short)


@pytest.mark.slow
def test_none_leaves_a_layer_alone_and_more_bits_are_closer(lenet):
    f, params, x = lenet
    clean = jax.jit(f)(params, x)
    everything_but = {
        "conv*": None,
        "fc*": None,
        "*": Int(1, at="output", activations=False, symmetric=False),
    }
    with pytest.raises(ValueError, match="nothing for a quantizer"):
        quantized(f, everything_but)(params, x)
    errors = [
        float(jnp.abs(jax.jit(quantized(f, spec))(params, x) - clean).max())
        for spec in ({"fc3": None, "*": Int(bits, symmetric=False)} for bits in (2, 5, 8))
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02 * float(jnp.abs(clean).max())


@pytest.mark.slow
def test_gradients_are_those_at_the_quantized_point(params):
    # One layer: the straight-through gradient of the weights is the quantized input's, and so on.
    def one(params, x):
        with jax.numpy_rank_promotion("allow"):
            return x @ params["fc1"]["kernel"] + params["fc1"]["bias"]

    g = quantized(one, {"fc1": Int(3, symmetric=False)})
    grads, dx = jax.grad(lambda p, x: g(p, x).sum(), (0, 1))(params, X)
    ones = jnp.ones((4, 8))
    expected = hand(X, 3, (0,)).T @ ones
    np.testing.assert_allclose(grads["fc1"]["kernel"], expected, rtol=1e-5)
    np.testing.assert_allclose(dx, ones @ hand(params["fc1"]["kernel"], 3, (1,)).T, rtol=1e-5)
    np.testing.assert_array_equal(grads["fc1"]["bias"], 4)


@pytest.mark.slow
def test_sites_and_composition(lenet):
    f, params, x = lenet
    g = quantized(f, {"*": Int(4, symmetric=False)})
    names = [s.site for s in trace(f, params, x).sites]
    assert [s.site for s in trace(g, params, x).sites] == names
    both = jax.jit(noisy(g, {"conv1": Additive(0.0)}))(jax.random.key(0), params, x)
    np.testing.assert_allclose(both, jax.jit(g)(params, x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_quantizing_twice_finds_the_same_grids(params):
    def one(params, x):
        with jax.numpy_rank_promotion("allow"):
            return x @ params["fc1"]["kernel"] + params["fc1"]["bias"]

    once = quantized(one, {"fc1": Int(4, symmetric=False)})
    twice = quantized(once, {"fc1": Int(4, symmetric=False)})
    np.testing.assert_allclose(twice(params, X), once(params, X), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_linen_and_ranges_of_an_ensemble():
    model = LinenLeNet5()
    x = jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
    (f, first), (_, second) = (
        functional(model, model.init(jax.random.key(i), x)) for i in range(2)
    )
    members = [first, second]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    # Weights only: an activation that rounding noise moves across a tie would move the result.
    spec = {"*": Int(3, activations=False, symmetric=False)}
    g = jax.jit(quantized(f, spec))
    outside = jax.jit(jax.vmap(g, (0, None)))(stacked, x)
    inside = jax.jit(quantized(jax.vmap(f, (0, None)), spec))(stacked, x)
    for i, member in enumerate(members):
        np.testing.assert_allclose(outside[i], g(member, x), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(inside[i], g(member, x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_attention_contractions_are_quantized():
    module = TransformerEncoder(rngs=nnx.Rngs(0))
    f, params = functional(module)
    x = jax.random.normal(jax.random.key(0), (2, 8, 8))
    sites = [s.site for s in trace(f, params, x).sites if s.kind == "matmul"]
    assert sites
    clean = jax.jit(f)(params, x)
    for bits in (2, 8):
        out = jax.jit(quantized(f, {"*:matmul": Int(bits, symmetric=False)}))(params, x)
        assert (out != clean).any()
    np.testing.assert_allclose(out, clean, atol=0.1 * float(jnp.abs(clean).max()))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Int(0, symmetric=False),
            ValueError,
            r"Int\.bits must be between 1 and 16, but is 0",
        ),
        (lambda: Int(4.0, symmetric=False), TypeError, r"Int\.bits must be an integer, not 4\.0"),
        (
            lambda: Int(8, 17, symmetric=False),
            ValueError,
            r"Int\.activation_bits must be between 1 and 16",
        ),
        (
            lambda: Int(8, per="row", symmetric=False),
            ValueError,
            r"Int\.per must be one of 'channel', 'tensor'",
        ),
        (lambda: Int(8, symmetric="no"), ValueError, r"Int\.symmetric must be one of"),
        (lambda: Int(8, range=(1.0, 0.0), symmetric=False), ValueError, "with low <= high"),
        (
            lambda: Int(8, range=(1.0,), symmetric=False),
            ValueError,
            r"must be a pair \(low, high\)",
        ),
        (lambda: Int(8, range=-1.0, symmetric=False), ValueError, r"Int\.range must be at least"),
        (lambda: Int(8, range=float("nan"), symmetric=False), ValueError, r"Int\.range"),
        (lambda: Int(8, weights=False, activations=False), ValueError, "use None instead"),
    ],
)
def test_bad_settings_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_mistakes_are_named(params):
    with pytest.raises(TypeError, match="'fc1' must be a method of compression, such as Int"):
        quantized(net, {"fc1": 8})
    with pytest.raises(ValueError, match="'conv' matches no site"):
        quantized(net, {"conv": Int(8, symmetric=False)})(params, X)
    with pytest.raises(ValueError, match=r"relu \(elementwise\), which has nothing"):
        quantized(net, {"relu": Int(8, symmetric=False)})(params, X)
    two = (np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match="its setting has methods for 2"):
        quantized(net, {"fc1": Int(8, range=two, symmetric=False)})(params, X)


@pytest.mark.slow
def test_a_constant_range_can_be_swept_and_calibrated_settings_pass_jit(params):
    tops = jnp.array([0.5, 1.0, 2.0])

    def run(setting):
        return quantized(net, {"relu": setting})(params, X)

    settings = jax.vmap(lambda top: Int(4, range=top, at="output", symmetric=False))(tops)
    swept = jax.jit(jax.vmap(run))(settings)
    for i, top in enumerate(tops):
        np.testing.assert_allclose(
            swept[i], run(Int(4, range=top, at="output", symmetric=False)), rtol=1e-5
        )
    spec = calibrate(net, params, [X], {"*": Int(8, symmetric=False)}).spec
    jitted = jax.jit(lambda s: quantized(net, s)(params, X))(spec)
    np.testing.assert_allclose(jitted, quantized(net, spec)(params, X), rtol=1e-5, atol=1e-5)


def _two_layers(params, x):
    return jax.nn.relu(x @ params["fc1"]["w"] + params["fc1"]["b"][None]) @ params["fc2"]["w"]


@pytest.mark.slow
@pytest.mark.parametrize("own", [("fc1", "fc2"), ("fc2",), ("fc1",)])
def test_draws_of_parameters_have_ranges_of_their_own(own):
    # Wherever the axis of draws stands, no draw's range is another's.
    def drawn(key, *shape):
        return jax.random.normal(jax.random.key(key), shape) * 3.0 ** jnp.arange(3.0).reshape(
            3, *(1,) * (len(shape) - 1)
        )

    params = {"fc1": {"w": drawn(0, 3, 4, 6), "b": drawn(1, 3, 6)}, "fc2": {"w": drawn(2, 3, 6, 2)}}
    axes = ({name: 0 if name in own else None for name in params}, None)
    params = {n: p if n in own else jax.tree.map(lambda a: a[0], p) for n, p in params.items()}
    x = jax.random.normal(jax.random.key(3), (5, 4)) * jnp.arange(1.0, 6)[:, None]
    spec = {"*:linear": Int(3, symmetric=False)}
    inside = jax.jit(jax.vmap(quantized(_two_layers, spec), axes))(params, x)
    around = jax.jit(quantized(jax.vmap(_two_layers, axes), spec))(params, x)
    np.testing.assert_allclose(around, inside, atol=1e-4)


def test_convolutions_of_several_draws_are_refused():
    def f(params, x):
        return jax.lax.conv_general_dilated(
            x * params["scale"][None, None, None], params["conv"], (1, 1), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    params = {"conv": jnp.ones((3, 2, 2, 2, 2)), "scale": jnp.ones((3, 2))}
    g = quantized(jax.vmap(f, (0, None)), {"conv": Int(4, symmetric=False)})
    with pytest.raises(ValueError, match=r"'conv'.*share an axis.*vmap\(quantized"):
        jax.eval_shape(g, params, jnp.ones((2, 4, 4, 1)))
