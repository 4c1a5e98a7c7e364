"""Products that XLA compiles wrongly on processors are warned of where a function is read."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.program import CompilerWarning

W, X = jnp.ones((64, 64)) + jnp.eye(64), jnp.linspace(0, 1, 64 * 64).reshape(64, 64)
IMAGES = jnp.linspace(0, 1, 2 * 16 * 16 * 16).reshape(2, 16, 16, 16)
ALL_ONE = jnp.ones((64, 64))


def convolution(kernel):
    return jax.lax.conv_general_dilated(
        IMAGES, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


FAULTY = {
    "zeros": lambda p, x: jnp.sum(p * (x @ jnp.zeros((64, 64)))),
    "a constant": lambda p, x: jnp.sum(p * (x @ ALL_ONE)),
    "a broadcast": lambda p, x: jnp.sum(x @ jnp.broadcast_to(p[0, 0], (64, 64))),
    "its square": lambda p, x: jnp.sum(x @ jnp.full((64, 64), 0.5).T ** 2),
    "a box filter": lambda p, x: p * convolution(jnp.ones((3, 3, 16, 64))).sum(),
    "in a call": lambda p, x: jax.jit(lambda v: jnp.sum(v @ jnp.ones((64, 64))))(p * x),
    "in a loop": lambda p, x: jax.lax.fori_loop(0, 2, lambda _, c: c @ jnp.ones((64, 64)), p * x),
    "512 x 8": lambda p, x: jnp.sum(x.reshape(512, 8) @ jnp.ones((8, 8))) * p,
}
RIGHT = {
    "weights": lambda p, x: jnp.sum(p * (x @ p)),
    "small": lambda p, x: jnp.sum(p[:56] * (x[:56] @ ALL_ONE)),
    "the first operand": lambda p, x: jnp.sum(p * (ALL_ONE @ x)),
    "a row repeated": lambda p, x: jnp.sum(p * (x @ jnp.broadcast_to(p[0], (64, 64)))),
    "the identity": lambda p, x: jnp.sum(p * (x @ jnp.eye(64))),
}


@pytest.mark.parametrize("case", FAULTY)
def test_a_product_with_one_number_is_warned_of(case):
    with pytest.warns(CompilerWarning, match=r"test_compiler_faults.py.*XLA_FLAGS"):
        jaxeff.trace(FAULTY[case], W, X)


@pytest.mark.parametrize("case", RIGHT)
def test_other_products_are_not(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompilerWarning)
        jaxeff.trace(RIGHT[case], W, X)


def cropped(padding, *, dilation=1, dtype=jnp.float32):
    """A convolution of the images with a kernel of four channels."""

    def f(p, x):
        kernel = jnp.broadcast_to(p[0, :4].astype(dtype), (3, 3, 16, 4))
        return jax.lax.conv_general_dilated(
            IMAGES.astype(dtype) * x[0, 0].astype(dtype), kernel, (1, 1), [padding, padding],
            lhs_dilation=(dilation, dilation), dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    return f


CROPPED = {
    "forward": cropped((-2, 1)),
    "transposed": cropped((-1, 3), dilation=2),
    "half": cropped((-2, 1), dtype=jnp.bfloat16),
    "in a loop": lambda p, x: jax.lax.fori_loop(
        0, 2, lambda _, c: c + cropped((-1, 1))(p, x).sum(), 0.0
    ),
    # Padded by more than its kernel reaches: the input's gradient crops and pads.
    "gradient": lambda p, x: jax.grad(lambda x: cropped((3, 0))(p, x).sum())(x),
}


@pytest.mark.parametrize("case", CROPPED)
def test_a_convolution_that_crops_and_pads_is_warned_of(case):
    with pytest.warns(CompilerWarning, match=r"crops an axis.*test_compiler_faults.py.*lax.pad"):
        jaxeff.trace(CROPPED[case], W, X)


@pytest.mark.parametrize(
    "padding", [(-2, 0), (-2, -1), (1, -2), (1, 2), (0, 0), "integers"], ids=str
)
def test_one_that_crops_alone_is_not(padding):
    f = cropped((-2, 1), dtype=jnp.int32) if padding == "integers" else cropped(padding)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompilerWarning)
        jaxeff.trace(f, W, X)


def test_what_the_warning_says_to_do_is_right():
    rng = np.random.default_rng(0)
    images, kernel = rng.normal(size=(2, 9, 9, 3)), rng.normal(size=(3, 3, 3, 4))

    @jax.jit
    def f(x, w):
        x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (-2, 1, 0), (-2, 1, 0), (0, 0, 0)])
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    y = f(images.astype(np.float32), kernel.astype(np.float32))
    np.testing.assert_allclose(y, by_numpy(images, kernel, (-2, 1)), rtol=1e-4, atol=1e-4)


def by_numpy(images, kernel, padding):
    """A convolution [batch, height, width, channels] of one padding, window by window."""
    low, high = padding
    x = np.pad(images, [(0, 0), *[(max(low, 0), max(high, 0))] * 2, (0, 0)])
    x = x[:, max(-low, 0) : x.shape[1] - max(-high, 0), max(-low, 0) : x.shape[2] - max(-high, 0)]
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], (1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows, kernel)


def test_nor_with_the_flag_that_mends_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompilerWarning)
        jaxeff.trace(FAULTY["zeros"], W, X)
