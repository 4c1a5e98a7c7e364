"""Products that XLA compiles wrongly on processors are warned of where a function is read."""

import warnings

import jax
import jax.numpy as jnp
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


def test_nor_with_the_flag_that_mends_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompilerWarning)
        jaxeff.trace(FAULTY["zeros"], W, X)
