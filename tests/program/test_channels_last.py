"""The pass that turns images channels-last computes what a function computes, whatever its axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.program.ir import channels_last
from tests.images import FIRST, LAST, WIDTH, convolution_parameters, convolutions, places_of


def network(numbers):
    """Convolutions, a mean, a dense layer."""
    images, places = convolutions(numbers), places_of(numbers)
    return lambda params, x: images(params, x).mean(places) @ params["head"]


@pytest.fixture
def params():
    rng = np.random.default_rng(0)
    layers = convolution_parameters(rng)
    return {**layers, "head": rng.normal(size=(WIDTH, 3)).astype("float32")}


@pytest.fixture
def x():
    return np.random.default_rng(1).normal(size=(1, 2, 12, 10)).astype("float32")


ENDS = {
    "means": lambda y: y.mean((2, 3)),
    "a squeeze and its excitation": lambda y: y * jax.nn.sigmoid(y.mean((2, 3), keepdims=True)),
    "flattened": lambda y: y.reshape(len(y), -1),
    "a pool": lambda y: jax.lax.reduce_window(
        y, -jnp.inf, jax.lax.max, (1, 1, 2, 3), (1, 1, 2, 1), "VALID"
    ),
    "a slice of a padding": lambda y: jnp.pad(y, ((0, 0), (1, 0), (0, 2), (3, 0)))[:, 1:, ::2, 1:],
    "channels beside others": lambda y: jnp.concatenate([y, 2 * y[:, :3]], 1),
    "the largest channel": lambda y: y.max(1),
    "a sum of columns": lambda y: y.sum(3),
    "an image with its channels last": lambda y: y.transpose(0, 2, 3, 1),
    "sorted rows": lambda y: jnp.sort(y, 2),
    "chosen": lambda y: jnp.where(y > 0.1, y, jnp.broadcast_to(y[:, :, :1], y.shape)),
    "a loop": lambda y: jax.lax.scan(lambda c, _: (c + jnp.roll(y, 1, 1), None), y, None, 2)[0],
    "positions": lambda y: y + jnp.arange(5.0)[None, None, None],
    "a dense layer of all": lambda y: jax.nn.relu(y.reshape(len(y), -1)) @ MATRIX,
    "a dense layer as PyTorch has it": lambda y: jax.lax.dot_general(
        y.reshape(len(y), -1), MATRIX.T, (((1,), (1,)), ((), ()))
    ),
    "tokens": lambda y: y.reshape(*y.shape[:2], -1).swapaxes(1, 2) @ MATRIX[:WIDTH],
    "shuffled channels": lambda y: y.reshape(1, 4, 4, 6, 5).swapaxes(1, 2).reshape(1, WIDTH, 6, 5),
    "pixels of channels": lambda y: (
        y.reshape(1, 4, 2, 2, 6, 5).transpose(0, 1, 4, 2, 5, 3).reshape(1, 4, 12, 10)
    ),
    "rows reversed": lambda y: y[:, :, ::-1] + y[:, :1],
    "two halves": lambda y: jnp.subtract(*jnp.split(y, 2, 1)),
    "a batch of repeats": lambda y: jnp.broadcast_to(y, (3, *y.shape)),
    "groups": lambda y: y.reshape(1, 2, -1) - y.reshape(1, 2, -1).mean(2, keepdims=True),
}


MATRIX = np.random.default_rng(2).normal(size=(WIDTH * 30, 3)).astype("float32")


@pytest.mark.parametrize("name", ENDS)
def test_results_are_the_same(name, params, x):
    def f(params, x):
        y = jax.lax.conv_general_dilated(
            x, params["stem"]["kernel"], (2, 2), "SAME", dimension_numbers=FIRST
        )
        return ENDS[name](jax.nn.relu(y))

    g = channels_last(f)
    np.testing.assert_allclose(jax.jit(g)(params, x), jax.jit(f)(params, x), rtol=1e-5, atol=1e-5)
    kinds = [eqn.params["dimension_numbers"].lhs_spec for eqn in _convolutions(g, params, x)]
    assert kinds == [(0, 3, 1, 2)]


def test_an_image_is_turned_once(params, x):
    f = network(FIRST)
    g = channels_last(f)
    equations = jax.make_jaxpr(g)(params, x).jaxpr.eqns
    turned = [e.invars[0].aval.shape for e in equations if e.primitive is jax.lax.transpose_p]
    # Kernels and biases are turned too: they are parameters.
    assert [shape for shape in turned if shape[0] == 1 and shape[2:] != (1, 1)] == [x.shape]


@pytest.mark.parametrize("numbers", [("NCH", "OIH", "NCH"), ("NCHWD", "OIHWD", "NCHWD")])
def test_images_of_any_number_of_axes_are_turned(numbers):
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5, 6)[: len(numbers[0])]).astype("float32")
    w = np.random.default_rng(1).normal(size=(4, 3, *(2,) * (x.ndim - 2))).astype("float32")

    def f(w, x):
        y = jax.lax.conv_general_dilated(x, w, (1,) * (x.ndim - 2), "SAME", None, None, numbers)
        return jax.nn.relu(y).max(2)

    g = channels_last(f)
    np.testing.assert_allclose(g(w, x), f(w, x), rtol=1e-5, atol=1e-5)
    (eqn,) = _convolutions(g, w, x)
    assert eqn.params["dimension_numbers"].out_spec[:2] == (0, x.ndim - 1)


def test_rows_of_a_flattened_image_are_turned_with_its_weights(params, x):
    def f(params, x):
        y = jax.lax.conv_general_dilated(
            x, params["stem"]["kernel"], (2, 2), "SAME", None, None, FIRST
        )
        return y.reshape(len(y), -1) @ MATRIX

    equations = jax.make_jaxpr(channels_last(f))(params, x).jaxpr.eqns
    turned = [e.invars[0].aval.shape for e in equations if e.primitive is jax.lax.transpose_p]
    assert turned == [(WIDTH, 2, 3, 3), x.shape, (WIDTH, 6, 5, 3)] or turned == [
        x.shape,
        (WIDTH, 2, 3, 3),
        (WIDTH, 6, 5, 3),
    ]


def test_modes_go_through():
    w, x = np.ones((1, 1, 1, 1), "float32"), np.ones((1, 1, 2, 2), "float32")

    def f(w, x, *, twice=False):
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", None, None, FIRST)
        return 2 * y if twice else y

    assert channels_last(f)(w, x, twice=True).sum() == 8


def test_what_has_its_channels_last_is_left_alone(params, x):
    f = network(LAST)
    kernels = jax.tree.map(lambda w: w.transpose(2, 3, 1, 0) if w.ndim == 4 else w, params)
    args = kernels, x.transpose(0, 2, 3, 1)
    assert str(jax.make_jaxpr(channels_last(f))(*args)) == str(jax.make_jaxpr(f)(*args))


def _convolutions(f, *args):
    equations = jax.make_jaxpr(f)(*args).jaxpr.eqns
    return [e for e in equations if e.primitive is jax.lax.conv_general_dilated_p]
