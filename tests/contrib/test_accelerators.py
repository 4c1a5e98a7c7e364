"""Cycles of accelerators against numbers that were computed by hand from the published formulas."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.contrib import DataflowPipeline, SystolicArray
from jaxeff.search import INT8, Candidate, FewBitLayers, LatencyError, SearchSpace

pytestmark = pytest.mark.promotes("dtype", "rank")


@functools.cache
def space():
    """A convolution of 5 x 5 over 3 channels (75 products, 20 outputs, 100 rows), then 20 to 6."""

    def f(params, x):
        y = jax.lax.conv_general_dilated(
            x, params["conv"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(y).max((1, 2)) @ params["fc"]

    key = jax.random.key(0)
    shapes = {"conv": (5, 5, 3, 20), "fc": (20, 6)}
    params = {name: jax.random.normal(key, shape) for name, shape in shapes.items()}
    anything = FewBitLayers(1, 1, 1, last=True)
    return SearchSpace.read(f, params, jnp.ones((1, 14, 14, 3)), few_bit_layers=anything)


def candidate(weights=None, activations=None, kept=20):
    of = space()
    policy = of.uncompressed
    if weights:
        two = np.ones(2, np.int32)
        bits = {"weights": weights * two, "activations": (activations or weights) * two}
        policy = dataclasses.replace(policy, datatypes=INT8 * two, **bits)
    return Candidate(
        dataclasses.replace(policy, kept=np.array([kept], np.int32)), of, lambda policy: None
    )


@pytest.mark.parametrize(
    ("dataflow", "conv", "fc"),
    [
        # (2 R + C + T - 2) folds with R = C = 16: 46 + T. The convolution is 100 x 75 x 20, the
        # dense layer 1 x 20 x 6.
        ("output", (46 + 75) * 7 * 2, 46 + 20),
        ("weight", (46 + 100) * 5 * 2, (46 + 1) * 2),
        ("input", (46 + 20) * 5 * 7, (46 + 6) * 2),
    ],
)
def test_systolic_cycles_of_eight_bits(dataflow, conv, fc):
    array = SystolicArray(dataflow=dataflow)
    np.testing.assert_array_equal(array.cycles(candidate(8)), [conv, fc])
    assert array(candidate(8)) == conv + fc


def test_systolic_bits_pruning_and_memory():
    """Bricks of 2 x 2 shorten the sum, channels that go are outputs, and memory may be slower."""
    array = SystolicArray(dataflow="output")
    # Weights of 4 bits by activations of 8: half of 75 products; of 3 bits as of 4.
    assert array.cycles(candidate(4, 8))[0] == (46 + 38) * 14 == array.cycles(candidate(3, 8))[0]
    assert array.cycles(candidate())[0] == (46 + 300) * 14  # float counts as 16 x 16 bits
    assert array.cycles(candidate(8, kept=16))[0] == (46 + 75) * 7
    plain = dataclasses.replace(array, fused=False)
    np.testing.assert_array_equal(plain.cycles(candidate(4)), plain.cycles(candidate(8)))
    # 75 x 20 weights of 8 bits at one bit a cycle.
    assert dataclasses.replace(array, bandwidth=1.0).cycles(candidate(8))[0] == 12_000


def test_pipeline_folds_to_what_fits():
    """With all LUTs every unit takes `rows` cycles; with few, the shortest interval that fits."""
    assert DataflowPipeline(luts=10**9)(candidate(8)) == 100
    # One lane of simd = pe = 1 with 16 bits of both: 5 x 16 to multiply, 16 in the tree, 16 and
    # ceil(log2 75) = 7 (20: 5) to accumulate.
    least = 2 * 300 + 1.1 * ((80 + 16 + 23) + (80 + 16 + 21))
    assert DataflowPipeline(luts=int(least) + 1)(candidate(8)) == 100 * 75 * 20
    with pytest.raises(LatencyError, match="smallest units take"):
        DataflowPipeline(luts=int(least))(candidate(8))
    # A second lane of the convolution alone, whichever of its two kinds is the smaller.
    lane = min(2 * (80 + 16 + 23), 3 * 80 + 16 * 5 + 23)
    twice = 2 * 300 + 1.1 * (lane + (80 + 16 + 21))
    assert DataflowPipeline(luts=int(twice) + 1)(candidate(8)) == 100 * 75 * 20 / 2


def test_pipeline_gains_by_bits_and_loses_by_primes():
    """Fewer bits leave room for lanes; 19 channels have no divisor, so fewer can be slower."""
    pipeline = DataflowPipeline(luts=20_000)
    assert pipeline(candidate(2)) < pipeline(candidate(4)) < pipeline(candidate(8))
    assert pipeline(candidate(8, kept=19)) > pipeline(candidate(8))
