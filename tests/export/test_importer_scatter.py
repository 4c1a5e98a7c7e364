"""scatter and select_and_scatter, over their attributes."""

from __future__ import annotations

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_oracle import assert_agrees
from jax import lax

FEW = settings(deadline=None, max_examples=12)
SIZE = st.integers(1, 4)
DTYPES = st.sampled_from(["float32", "int8", "uint32", "float16", "bfloat16", "bool"])


def _integers(shape, dtype, seed):
    """Small whole numbers: every order of summation gives the same float."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, 4, shape)).astype(dtype)


@pytest.mark.slow
@FEW
@given(data=st.data(), dtype=DTYPES, index_dtype=st.sampled_from(["int32", "uint8", "int8"]))
def test_scatter(data, dtype, index_dtype):
    # Dimensions of the operand: batching, inserted (one element of the window) and window ones.
    kinds = data.draw(st.lists(st.sampled_from("biw"), min_size=1, max_size=4))
    shape = [data.draw(st.integers(1, 5)) for _ in kinds]
    batching = [d for d, kind in enumerate(kinds) if kind == "b"]
    inserted = [d for d, kind in enumerate(kinds) if kind == "i"]
    window = [data.draw(st.integers(1, shape[d])) for d, kind in enumerate(kinds) if kind == "w"]
    mapped = data.draw(st.permutations([d for d, kind in enumerate(kinds) if kind != "b"]))
    mapped = mapped[: data.draw(st.integers(1, max(1, len(mapped))))]
    points = [shape[d] for d in batching] + data.draw(st.lists(SIZE, max_size=2))
    update_rank = len(points) + len(window)
    window_dims = sorted(data.draw(st.permutations(range(update_rank)))[: len(window)])
    update_shape = list(points)
    for d, n in zip(window_dims, window, strict=True):
        update_shape.insert(d, n)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(window_dims),
        inserted_window_dims=tuple(inserted),
        scatter_dims_to_operand_dims=tuple(mapped),
        operand_batching_dims=tuple(batching),
        scatter_indices_batching_dims=tuple(range(len(batching))),
    )
    wild = np.random.default_rng(3).integers(-2, 7, (*points, len(mapped)))
    indices = jnp.asarray(wild).astype(index_dtype)
    x, updates = _integers(shape, dtype, 1), _integers(update_shape, dtype, 2)

    def scatters(x, i, u):
        def ordered(f, u):
            return f(x, i, u, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)

        if dtype == "bool":
            return ordered(lax.scatter, u), ordered(lax.scatter_max, u)
        return (
            ordered(lax.scatter, u),
            ordered(lax.scatter_add, u),
            ordered(lax.scatter_mul, u),
            ordered(lax.scatter_min, jnp.ones_like(u)),
            ordered(lax.scatter_max, u),
        )

    assert_agrees(scatters, x, indices, updates)


@pytest.mark.slow
def test_indexed_updates_of_arrays():
    x, u = _integers((4, 3), "float32", 0), _integers((5, 3), "float32", 1)
    index = jnp.array([0, 3, -1, 9, 3])

    def updates(x, i, u):
        return (
            x.at[i].add(u),
            x.at[i, 0].max(5),
            x.at[1].set(7),
            x.at[i].apply(jnp.square),
            x.at[:0].set(1),
            jnp.zeros((2, 5)).at[:, i].add(u[:2, :1], mode="clip"),
            jax.grad(lambda x: (x[i] ** 2).sum())(x),
            jnp.bincount(jnp.abs(i), length=6),
            jax.ops.segment_sum(u, i, 4),
        )

    assert_agrees(updates, x, index, u)


@pytest.mark.slow
@FEW
@given(data=st.data(), shape=st.lists(st.integers(2, 7), min_size=1, max_size=3))
def test_select_and_scatter(data, shape):
    x = _integers(shape, data.draw(st.sampled_from(["float32", "float16", "bfloat16"])), 0)
    window = [data.draw(st.integers(1, 3)) for _ in shape]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]
    padding = data.draw(st.sampled_from(["SAME", "VALID"]))
    hypothesis.assume(padding == "SAME" or all(w <= n for w, n in zip(window, shape, strict=True)))

    def gradients(x):
        def pool(init, of):
            return lambda x: lax.reduce_window(x, init, of, window, strides, padding)

        top, back = jax.vjp(pool(-jnp.inf, lax.max), x)
        bottom, back_min = jax.vjp(pool(jnp.inf, lax.min), x)
        tangent = jax.jvp(pool(-jnp.inf, lax.max), (x,), (x + 1,))[1]
        return back(top + 1), back_min(bottom + 2), tangent

    assert_agrees(gradients, x)
