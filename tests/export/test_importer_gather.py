"""gather over its dimension numbers and index dtypes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_oracle import assert_agrees, run
from jax import lax
from jaxeff_export.importer import import_stablehlo

FEW = settings(deadline=None, max_examples=12)


@pytest.mark.slow
@FEW
@given(
    data=st.data(),
    dtype=st.sampled_from(["float32", "bfloat16", "bool", "int8"]),
    index_dtype=st.sampled_from(["int32", "uint8", "int8", "uint32"]),
)
def test_gather(data, dtype, index_dtype):
    # Dimensions of the operand: batching, collapsed (one element of the slice) and kept ones.
    kinds = data.draw(st.lists(st.sampled_from("bck"), min_size=1, max_size=4))
    shape = [data.draw(st.integers(1, 5)) for _ in kinds]
    sizes = [
        data.draw(st.integers(0, n)) if kind == "k" else 1
        for n, kind in zip(shape, kinds, strict=True)
    ]
    batching = [d for d, kind in enumerate(kinds) if kind == "b"]
    mapped = data.draw(st.permutations([d for d, kind in enumerate(kinds) if kind != "b"]))
    mapped = mapped[: data.draw(st.integers(0, len(mapped)))]
    points = [shape[d] for d in batching] + data.draw(st.lists(st.integers(0, 4), max_size=2))
    kept = kinds.count("k")
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(sorted(data.draw(st.permutations(range(len(points) + kept)))[:kept])),
        collapsed_slice_dims=tuple(d for d, kind in enumerate(kinds) if kind == "c"),
        start_index_map=tuple(mapped),
        operand_batching_dims=tuple(batching),
        start_indices_batching_dims=tuple(range(len(batching))),
    )
    wild = np.random.default_rng(0).integers(-2, 7, (*points, len(mapped)))
    x = jnp.asarray(np.random.default_rng(1).integers(0, 4, shape)).astype(dtype)

    def gathers(x, start):
        return [
            lax.gather(x, start, numbers, sizes, mode=mode)
            for mode in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP)
        ]

    assert_agrees(gathers, x, jnp.asarray(wild).astype(index_dtype))


def test_gather_of_scalar_indices_and_starts_beyond_int64():
    """The indices' last dimension need not hold the index vector, nor need they be signed."""
    module = """
    func.func public @main(%x: tensor<5x2xf32>, %i: tensor<3xui64>) -> tensor<3x2x2xf32> {
      %0 = "stablehlo.gather"(%x, %i) <{
        dimension_numbers = #stablehlo.gather<
          offset_dims = [1, 2], start_index_map = [0], index_vector_dim = 1>,
        indices_are_sorted = false, slice_sizes = array<i64: 2, 2>
      }> : (tensor<5x2xf32>, tensor<3xui64>) -> tensor<3x2x2xf32>
      return %0 : tensor<3x2x2xf32>
    }"""
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    index = np.array([1, 4, 2**64 - 1], np.uint64)
    (got,) = run(import_stablehlo(module), x, index)
    np.testing.assert_array_equal(got, np.stack([x[1:3], x[3:5], x[3:5]]))
