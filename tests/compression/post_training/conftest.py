"""A classifier trained for a moment, on which errors of rounding show; strict promotion."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxeff.compression import quantized
from jaxeff.nn import small_classifier


@pytest.fixture(scope="session")
def trained():
    f, params, (x, y) = small_classifier()
    optimizer = optax.adam(3e-3)

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

    @jax.jit
    def train(params):
        def step(state, _):
            params, moments = state
            change, moments = optimizer.update(jax.grad(loss)(params), moments)
            return (optax.apply_updates(params, change), moments), None

        return jax.lax.scan(step, (params, optimizer.init(params)), None, length=200)[0][0]

    with jax.numpy_dtype_promotion("standard"):
        return f, train(params), x


@pytest.fixture(scope="session")
def divergence(trained):
    """The mean KL divergence of the quantized from the original classifier."""
    f, original, x = trained
    before = jax.nn.log_softmax(f(original, x))

    def measure(params, spec):
        after = jax.nn.log_softmax(quantized(f, spec)(params, x))
        return float(jnp.mean(jnp.sum(jnp.exp(before) * (before - after), 1)))

    return measure


@pytest.fixture(autouse=True, scope="module")
def _quick(_compiler):
    """Compiled quickly, for these tests evaluate layers one by one; reset with the module."""
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def _strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
