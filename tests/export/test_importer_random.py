"""Random bits: the same as XLA's, bit for bit, and the same state afterwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from importer_oracle import assert_agrees, export
from jax import lax
from jaxeff_export.importer import UnsupportedOpError, import_stablehlo

SHAPES = [((), "uint32"), ((3, 5, 7), "uint32"), ((4, 3), "uint32"), ((3, 4), "uint64"),
          ((), "uint64"), ((5, 2), "uint8"), ((3, 3), "uint16"), ((1,), "uint8")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm))
def test_bits_of_every_dtype_and_layout(algorithm):
    def generate(key):
        return [
            lax.rng_bit_generator(key, shape, dtype, algorithm=algorithm) for shape, dtype in SHAPES
        ]

    with jax.enable_x64(True):
        for words in ([12345678901234, 7], [2**64 - 1, 2**64 - 2]):  # the counter overflows
            assert_agrees(generate, jnp.array(words, "uint64"))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys(implementation):
    def draw(data):
        key = jax.random.wrap_key_data(data, impl=implementation)
        first, second = jax.random.split(key)
        return (
            jax.random.uniform(first, (5, 3)),
            jax.random.normal(second, (7,)),
            jax.random.randint(jax.random.fold_in(first, 3), (4,), -5, 5),
            jax.random.bernoulli(second, 0.3, (6,)),
        )

    data = jax.random.key_data(jax.random.key(3, impl=implementation))
    assert_agrees(draw, data, atol=1e-6)


def test_hidden_states_are_refused():
    def draw():
        return lax.rng_uniform(jnp.float32(0), jnp.float32(1), (3,))

    with pytest.raises(UnsupportedOpError, match=r"jax\.random with a key"):
        import_stablehlo(export(draw))
