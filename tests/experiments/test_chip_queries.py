"""The budgets of `chip_queries` against a chip that counts what it is asked."""

import jax
import numpy as np
import pytest

from experiments.beyond.chip_queries import design, queries_of
from jaxeff.analog_hardware import characterize


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1])
def test_budgets_are_the_vectors_that_a_chip_is_asked(size):
    asked = []

    def counting(key, weights, inputs):
        # Answers don't matter here: the design alone decides what is asked.
        asked.append(len(inputs))
        return np.zeros((len(inputs), weights.shape[1]), np.int32)

    characterize(jax.random.key(0), counting, design(size))
    assert sum(asked) == queries_of(design(size))
