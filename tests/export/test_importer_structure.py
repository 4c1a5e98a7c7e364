"""Operations with structure (shapes, windows, contractions, indices) over their attributes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_oracle import assert_agrees, export, run
from jax import lax
from jaxeff_export import deploy, import_stablehlo

FEW = settings(deadline=None, max_examples=10)
SMALL = st.integers(1, 5)
DTYPES = st.sampled_from(["float32", "int32", "float16", "bfloat16", "uint8"])


def _integers(shape, dtype="float32", seed=0):
    """Small whole numbers: every order of summation gives the same float."""
    values = np.random.default_rng(seed).integers(-4 if dtype != "uint8" else 0, 5, shape)
    return jnp.asarray(values).astype(dtype)


@pytest.mark.slow
@FEW
@given(data=st.data(), shape=st.lists(SMALL, min_size=1, max_size=4), dtype=DTYPES)
def test_movement(data, shape, dtype):
    x = _integers(shape, dtype)
    axes = data.draw(st.permutations(range(len(shape))))
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    limits = [data.draw(st.integers(s + 1, n)) for s, n in zip(starts, shape, strict=True)]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]
    flipped = data.draw(st.sets(st.sampled_from(range(len(shape)))))
    padding = [
        (data.draw(st.integers(-1, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)))
        for _ in shape
    ]
    axis = data.draw(st.sampled_from(range(len(shape))))

    def moves(x):
        return (
            lax.transpose(x, axes),
            lax.slice(x, starts, limits, strides),
            lax.rev(x, sorted(flipped)),
            lax.pad(x, jnp.asarray(3, x.dtype), padding),
            lax.concatenate([x, x[::-1], x], axis),
            lax.broadcast_in_dim(x, (2, *x.shape, 3), range(1, x.ndim + 1)) + 1,
            jnp.broadcast_to(x[..., :1], x.shape) + x,
            x.reshape(-1),
            lax.broadcasted_iota(x.dtype, x.shape, axis) + x,
            x,
        )

    assert_agrees(moves, x)


@pytest.mark.slow
@FEW
@given(data=st.data(), dtype=DTYPES)
def test_dot_general(data, dtype):
    batch = data.draw(st.lists(SMALL, max_size=2))
    contracted = data.draw(st.lists(SMALL, max_size=2))
    free = [data.draw(st.lists(SMALL, max_size=2)) for _ in "lr"]

    def operand(free, seed):
        dims = [("b", i, n) for i, n in enumerate(batch)]
        dims += [("c", i, n) for i, n in enumerate(contracted)]
        dims += [("f", i, n) for i, n in enumerate(free)]
        dims = data.draw(st.permutations(dims))
        place = {(kind, i): d for d, (kind, i, _) in enumerate(dims)}
        return (
            _integers([n for _, _, n in dims], dtype, seed),
            [place["c", i] for i in range(len(contracted))],
            [place["b", i] for i in range(len(batch))],
        )

    (x, x_contract, x_batch), (y, y_contract, y_batch) = operand(free[0], 1), operand(free[1], 2)
    numbers = ((x_contract, y_contract), (x_batch, y_batch))
    wide = jnp.float32 if "float" in dtype else jnp.int32

    def dots(x, y):
        return (
            lax.dot_general(x, y, numbers),
            lax.dot_general(x, y, numbers, preferred_element_type=wide),
        )

    assert_agrees(dots, x, y)


@pytest.mark.parametrize(
    ("equation", "one", "other"),
    [
        ("bqhd,bkhd->bhqk", (2, 97, 3, 4), (2, 101, 3, 4)),
        ("bhqk,bkhd->bqhd", (2, 3, 96, 5), (2, 5, 3, 100)),
        ("bhqk,bkhd->bqhd", (2, 3, 97, 5), (2, 5, 3, 32)),
        ("qbrd,dkb->bqrk", (12, 2, 8, 3), (3, 96, 2)),
        ("bqcd,dbkc->bkq", (2, 96, 2, 3), (3, 2, 97, 2)),
    ],
)
def test_long_products_of_batches_are_matmuls(equation, one, other):
    """As in attention, where batches follow rows; of fewer rows a loop nest is faster."""

    def product(x, y):
        return jnp.einsum(equation, x, y)

    x, y = _integers(one, seed=1), _integers(other, seed=2)
    assert_agrees(product, x, y)
    text = str(import_stablehlo(export(product, x, y)))
    assert "R.matmul" in text
    assert "contraction" not in text


@pytest.mark.parametrize("product", [
    lambda w, x: x @ w.T,
    lambda w, x: lax.dot_general(x, w, (((1,), (1,)), ((), ()))),
])  # fmt: skip
def test_a_weight_with_outputs_first_is_transposed_once(product):
    """As PyTorch has it. Data, and a table that is looked up too, are read as they lie."""
    w, x = _integers((6, 64), seed=1), _integers((1, 64), seed=2)

    def tied(w, x):
        return product(w, x) + w[:, 0]

    assert_agrees(product, w, x)
    texts = [
        str(import_stablehlo(export(f, w, x), parameters=count))
        for f, count in ((product, 1), (product, 0), (tied, 1))
    ]
    assert ["R.matmul" in text for text in texts] == [True, False, False]
    (kernel, *_) = deploy(product, (w, x)).profile(number=1, repeat=1)
    assert "matmul" in kernel.name


@pytest.mark.slow
@FEW
@given(data=st.data(), rank=st.integers(1, 3), dtype=st.sampled_from(["float32", "float16"]))
def test_convolution(data, rank, dtype):
    groups, batch_groups = data.draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
    spatial = [data.draw(st.integers(3, 7)) for _ in range(rank)]
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    in_features = groups * data.draw(st.integers(1, 3))
    out_features = 2 * data.draw(st.integers(1, 2))
    options = {
        "window_strides": [data.draw(st.integers(1, 2)) for _ in range(rank)],
        "padding": data.draw(st.sampled_from(["SAME", "VALID", [(2, -1), *[(1, 0)] * (rank - 1)]])),
        "rhs_dilation": [data.draw(st.sampled_from([1, 1, 2])) for _ in range(rank)],
        "feature_group_count": groups,
        "batch_group_count": batch_groups,
    }
    if not isinstance(options["padding"], str):
        options["lhs_dilation"] = [data.draw(st.sampled_from([1, 2])) for _ in range(rank)]
    letters = "HWD"[:rank]
    numbers = tuple(
        "".join(data.draw(st.permutations(pair + letters))) for pair in ("NC", "OI", "NC")
    )
    if data.draw(st.booleans()):
        numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    sizes = dict(zip(letters, spatial, strict=True)) | {"N": 2, "C": in_features}
    kernel_sizes = dict(zip(letters, kernel, strict=True))
    kernel_sizes |= {"O": out_features, "I": in_features // groups}
    x = _integers([sizes[c] for c in numbers[0]], dtype, 1)
    w = _integers([kernel_sizes[c] for c in numbers[1]], dtype, 2)

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=numbers, **options)

    assert_agrees(convolve, x, w)


@pytest.mark.parametrize("padding", [(-2, 1), (-1, 2), (1, -2), (-2, -1)], ids=str)
def test_a_convolution_that_crops(padding):
    """Against NumPy: where one end is cropped and the other padded, XLA reads beyond the array."""
    low, high = padding
    x, w = _integers((2, 9, 9, 3), seed=1), _integers((3, 3, 3, 4), seed=2)

    def convolve(x, w, ends=((low, high), (0, 0))):
        return lax.conv_general_dilated(
            x, w, (1, 1), ends, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    around = [(0, 0), (max(low, 0), max(high, 0)), (0, 0), (0, 0)]
    padded = np.pad(np.asarray(x), around)
    padded = padded[:, max(-low, 0) : padded.shape[1] - max(-high, 0)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    (ours,) = run(import_stablehlo(export(convolve, x, w)), x, w)
    np.testing.assert_array_equal(ours, np.einsum("nhwcij,ijco->nhwo", windows, np.asarray(w)))

    def gradients(x, w, cropped):
        return jax.grad(lambda x, w: (cropped(x, w) ** 2).sum(), (0, 1))(x, w)

    def apart(x, w):  # what XLA has right
        edges = [(0, 0, 0), (low, high, 0), (0, 0, 0), (0, 0, 0)]
        return convolve(lax.pad(x, jnp.zeros((), x.dtype), edges), w, ((0, 0), (0, 0)))

    (*ours,) = run(import_stablehlo(export(lambda x, w: gradients(x, w, convolve), x, w)), x, w)
    for got, wanted in zip(ours, gradients(x, w, apart), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.slow
@FEW
@given(data=st.data(), shape=st.lists(SMALL, min_size=1, max_size=4), dtype=DTYPES)
def test_reduce(data, shape, dtype):
    x = _integers(shape, dtype)
    dims = data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))
    dims = tuple(sorted(dims))
    alone = all(shape[d] == 1 for d in dims)  # XLA ignores the start when it reduces one element

    def pair(a, b):  # a reducer of two operands that is not a known one
        (x1, y1), (x2, y2) = a, b
        return x1 + x2, jnp.maximum(y1, y2)

    def reductions(x, start):
        zero = jnp.zeros((), x.dtype)
        lowest = (-jnp.inf if "float" in dtype else jnp.iinfo(dtype).min,)
        return (
            x.sum(dims, dtype=x.dtype),
            x.max(dims),
            x.min(dims),
            jnp.argmax(x, dims[0]),
            jnp.argmin(x, dims[-1]),
            (x > 0).any(dims),
            (x > 0).all(dims),
            lax.reduce(x, start, lax.mul, dims),
            lax.reduce(x, jnp.asarray(9 if alone else 3, x.dtype), lax.min, dims),
            lax.reduce(x, jnp.min(x), lax.max, dims),
            lax.reduce((x, x), (zero, jnp.asarray(lowest[0], x.dtype)), pair, dims),
        )

    assert_agrees(reductions, x, jnp.asarray(1, dtype))


@pytest.mark.slow
@FEW
@given(data=st.data(), shape=st.lists(st.integers(2, 6), min_size=1, max_size=4))
def test_reduce_window(data, shape):
    x = _integers(shape, "float32")
    window = [data.draw(st.integers(1, 3)) for _ in shape]
    strides = [data.draw(st.integers(1, 2)) for _ in shape]
    padding = data.draw(st.sampled_from(["SAME", "VALID", [(1, 1)] * len(shape)]))
    dilation = [data.draw(st.integers(1, 2)) for _ in shape]
    base = [data.draw(st.integers(1, 2)) for _ in shape]

    def windows(x):
        return (
            lax.reduce_window(x, 0.0, lax.add, window, strides, padding),
            lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding),
            lax.reduce_window(x, 1.0, lax.mul, window, strides, "SAME", base, dilation),
            lax.reduce_window(x, jnp.inf, lax.min, window, strides, "SAME", base, dilation),
            jnp.cumsum(x, 0),
            jnp.cumprod(x[..., :3], -1),
        )

    assert_agrees(windows, x)


def test_extrema_keep_nan():
    x = jnp.array([[1.0, jnp.nan, 3.0, -jnp.inf], [2.0, -0.0, 0.0, jnp.inf]])

    def extrema(x):
        return (
            x.max(1), x.min(0), x.max(), jnp.argmax(x, 1), jnp.argmin(x, 0),
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID"),
            lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"),
            jnp.maximum(x, 1.0), jnp.clip(x, -1.0, 1.0),
        )  # fmt: skip

    assert_agrees(extrema, x)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_extrema_of_windows_that_cross_an_edge(dtype):
    """What stands outside is in no window, wherever the edge is and however far they move."""
    x = _integers((2, 3, 7, 6), dtype) - 40  # below zero, so that padding of zeros would be seen
    lowest, highest = (-jnp.inf, jnp.inf) if dtype != "int32" else (-(2**31), 2**31 - 1)
    lowest, highest = (np.asarray(value, dtype) for value in (lowest, highest))
    wide, uneven = (1, 1, 3, 3), ((0, 0), (0, 0), (2, 0), (1, 2))

    def extrema(x):
        return (
            lax.reduce_window(x, lowest, lax.max, wide, (1, 1, 2, 2), uneven),
            lax.reduce_window(x, highest, lax.min, wide, (1, 1, 2, 2), uneven),
            lax.reduce_window(x, lowest, lax.max, (1, 2, 3, 2), (1, 1, 1, 2), "SAME"),
            lax.reduce_window(x, lowest, lax.max, (2, 3, 3, 4), (1, 2, 3, 1), "VALID"),
            lax.reduce_window(x, lowest, lax.max, (1, 1, 2, 2), (2, 2, 1, 1), "SAME"),
            lax.reduce_window(x, highest, lax.min, (1, 3, 1, 1), (1, 1, 2, 2), "SAME"),
            # Not by rows: gaps, and edges that are cut.
            lax.reduce_window(x, lowest, lax.max, wide, (1, 1, 1, 1), "SAME", None, (1, 1, 2, 2)),
            lax.reduce_window(
                x, lowest, lax.max, wide, (1, 1, 1, 1), ((0, 0), (0, 0), (-1, 1), (1, -2))
            ),
        )

    assert_agrees(extrema, x)


def test_long_reductions():
    x = _integers((3, 128), "float32").at[1, 70].set(jnp.nan)
    assert_agrees(
        lambda x: (x.sum(), x.sum(-1), x.max(1), x.min(), jnp.prod(x, -1), x.astype(int).max(1)), x
    )


@pytest.mark.slow
@FEW
@given(data=st.data(), shape=st.lists(SMALL, min_size=1, max_size=3))
def test_indexing(data, shape):
    x = _integers(shape, "float32")
    count = data.draw(SMALL)
    wild = st.integers(-9, 9)  # in and out of bounds
    index = jnp.array([data.draw(wild) for _ in range(count)])
    starts = [jnp.asarray(data.draw(wild)) for _ in shape]
    sizes = [data.draw(st.integers(1, n)) for n in shape]
    axis = data.draw(st.sampled_from(range(len(shape))))

    def indexing(x, index, starts):
        window = lax.dynamic_slice(x, starts, sizes)
        return (
            jnp.take(x, index, axis=axis, mode="clip"),
            jnp.take(x, index, axis=axis, mode="fill"),
            jnp.take_along_axis(x, jnp.zeros_like(x, int), axis),
            x[index],
            window,
            lax.dynamic_update_slice(x, window + 1, starts),
            lax.dynamic_index_in_dim(x, starts[0], axis),
        )

    assert_agrees(indexing, x, index, starts)


def test_batched_gather():
    x, index = _integers((3, 5, 4)), jnp.array([[0, 4], [2, 2], [1, 9]])
    assert_agrees(jax.vmap(lambda x, i: x[i]), x, index)
    assert_agrees(lambda x, i: x[i[:, 0], :, i[:, 1]], x, index)


def test_zero_sized_tensors():
    x = jnp.zeros((0, 3))

    def empty(x, y):
        return x + 1, x.sum(0), x.T @ x, jnp.concatenate([x, y]), y[:0], x.max(1)

    assert_agrees(empty, x, jnp.ones((2, 3)))
    assert_agrees(lambda: (jnp.sin(x), x.T, jnp.arange(3)))


def test_scalars_and_bit_casts():
    def scalars(a, i):
        x = lax.bitcast_convert_type(a, jnp.int32)
        y = lax.bitcast_convert_type(i, jnp.uint8)
        return a * 2, a > 1, x, y, lax.bitcast_convert_type(y, jnp.int32), jnp.float32(3), i

    assert_agrees(scalars, jnp.float32(1.5), jnp.array([-(2**31), 77]))


@pytest.mark.slow
def test_cumulative_reductions():
    x = jax.random.normal(jax.random.key(0), (3, 40, 2))

    def cumulative(x):
        low = x.astype(jnp.bfloat16)
        return (
            jnp.cumsum(x, 1),
            lax.cumsum(x, 1, reverse=True),
            lax.cumlogsumexp(x, 1),
            lax.cummax(low, 0),
            lax.cummin(low, 2, reverse=True),
            jnp.cumprod((x > 0).astype("int8") * 3, 1),
        )

    assert_agrees(cumulative, x, rtol=1e-5, atol=1e-5)


def test_arithmetic_is_not_done_out_of_bounds():
    x = jnp.arange(20.0)  # two million numbers before the argument is no memory of this process
    assert_agrees(lambda x: jnp.pad(jnp.tanh(x) * jnp.exp(-x), (2_000_000, 3))[5:] * 2, x)
