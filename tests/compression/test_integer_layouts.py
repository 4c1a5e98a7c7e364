"""Integer networks of channels-first images are those of channels-last ones, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.compression import Int, calibrate

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "OIHW", "NHWC")


def network(numbers):
    """A stem, a pooling, a residual block with a batch norm, a mean over pixels, a dense layer."""
    channels = 1 if numbers is FIRST else 3
    pixels = (2, 3) if numbers is FIRST else (1, 2)

    def along(vector):
        return vector.reshape([-1 if axis == channels else 1 for axis in range(4)])

    def convolution(p, x, **kwargs):
        strides = kwargs.pop("window_strides", (1, 1))
        y = jax.lax.conv_general_dilated(
            x, p["kernel"], strides, "SAME", dimension_numbers=numbers, **kwargs
        )
        return y + along(p["bias"])

    def norm(p, x):
        return (x - along(p["mean"])) * along(p["gain"]) + along(p["offset"])

    def f(params, x):
        x = jax.nn.relu(convolution(params["stem"], x, window_strides=(1, 2)))
        window = [2 if axis in pixels else 1 for axis in range(4)]
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
        y = jax.nn.relu(convolution(params["depthwise"], x, feature_group_count=4))
        x = jax.nn.relu(x + norm(params["norm"], convolution(params["pointwise"], y)))
        return x.mean(pixels) @ params["head"]["kernel"] + params["head"]["bias"][None]

    return f


@pytest.fixture
def params():
    rng = np.random.default_rng(0)

    def layer(*shape):
        kernel = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        outputs = shape[0] if len(shape) == 4 else shape[1]
        return {"kernel": kernel, "bias": rng.normal(size=outputs) / 4}

    norm = {n: rng.uniform(0.5, 1.5, 4) for n in ("mean", "gain", "offset")}
    tree = {
        "stem": layer(4, 3, 3, 3), "depthwise": layer(4, 1, 3, 3), "pointwise": layer(4, 4, 1, 1),
        "norm": norm, "head": layer(4, 5),
    }  # fmt: skip
    return jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), tree)


@pytest.mark.parametrize("requantize", ["float", "fixed"])
def test_channels_first_computes_the_same_codes(params, requantize):
    x = jax.random.normal(jax.random.key(0), (4, 3, 8, 12))
    results, arrays = [], []
    for numbers, data in ((FIRST, x), (LAST, x.transpose(0, 2, 3, 1))):
        f = network(numbers)
        spec = calibrate(f, params, [data], {"*:linear": Int(8)}).spec
        g = jaxeff.integer(f, spec, requantize=requantize)
        codes = g.convert(params, data)
        # All of it is in the kernels: codes, biases, scales, and nothing in float.
        assert not codes.rest
        results.append(jax.jit(g)(codes, data))
        arrays.append(codes.named())
    np.testing.assert_array_equal(*results)
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)
    error = np.abs(results[0] - network(FIRST)(params, x)).max()
    assert 0 < error < 0.05 * np.abs(results[0]).max()


@pytest.mark.slow
def test_channels_first_trains_as_it_is_deployed(params):
    x = jax.random.normal(jax.random.key(0), (4, 3, 8, 12))
    f = network(FIRST)
    spec = calibrate(f, params, [x], {"*:linear": Int(4)}).spec
    aware, deployed = jaxeff.compression.integer_aware(f, spec), jaxeff.integer(f, spec)
    step = 1e-4 * np.abs(aware(params, x)).max()
    assert np.median(np.abs(aware(params, x) - deployed(params, x))) <= step


def test_a_layer_without_a_lower_end_is_no_clamp():
    params = {
        "fc": {"kernel": 400 * jnp.eye(3), "bias": jnp.zeros(3)},
        "out": {"kernel": jnp.eye(3)},
    }

    def f(params, x):
        return jnp.minimum(x @ params["fc"]["kernel"], 6.0) @ params["out"]["kernel"]

    x = jnp.linspace(-1, 1, 12).reshape(4, 3)
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    # Within a step of eight bits of what `out` reads, from -400 to 6.
    np.testing.assert_allclose(g(params, x), f(params, x), atol=4)


@pytest.mark.parametrize("per", ["channel", "group"])
def test_grids_are_those_of_weights_as_they_are(params, per):
    x = jax.random.normal(jax.random.key(0), (4, 3, 8, 12))
    params = {"stem": params["stem"], "flat": jax.random.normal(jax.random.key(1), (96, 5))}

    def f(params, x):
        kernel = params["stem"]["kernel"]
        x = jax.lax.conv_general_dilated(x, kernel, (1, 2), "SAME", None, None, FIRST)
        y = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *[(1, 1, 2, 1)] * 2, "VALID")
        return y.reshape(4, -1) @ params["flat"]

    # Groups are of inputs that lie together in the flattened image, channels first.
    groups = {"group": 8, "steps": "int8"} if per == "group" else {}
    spec = {"stem": Int(8), "flat": Int(4, per=per, symmetric=True, **groups)}
    measured = calibrate(f, params, [x], spec).spec
    g = jaxeff.integer(f, measured)
    y, want = g(g.convert(params, x), x), jaxeff.quantized(f, measured)(params, x)
    np.testing.assert_allclose(y, want, atol=1e-4 * np.abs(want).max())
