"""Padded operands: the same results, from contractions over whole vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import rewritten, run
from jaxeff_export.compiler.passes import lift_parameters, widen_contractions
from tvm import relax, te, tirx

LANES = 8  # whatever machine the tests run on


def array(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def widened(function, parameter, *inputs):
    """The widened module in two parts, checked together against XLA; the derived arrays."""
    return rewritten(
        lambda kernels: widen_contractions(kernels, 1, LANES), function, parameter, *inputs
    )


def derived_shapes(function, parameter, *inputs):
    return [a.shape for a in widened(function, parameter, *inputs)[1]]


def dense(w, x):
    return jax.nn.relu(x @ w)


def convolution(w, x, groups=1):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, w, (1, 2), "SAME", dimension_numbers=dims, feature_group_count=groups
    )


@pytest.mark.parametrize(("columns", "padded"), [(9, 16), (13, 16), (20, 24), (33, 40)])
def test_odd_widths_are_padded_to_whole_vectors(columns, padded):
    assert derived_shapes(dense, array(12, columns), array(5, 12)) == [(12, padded)]


@pytest.mark.parametrize("columns", [1, 5, 8, 16, 24])
def test_whole_vectors_and_single_ones_stay(columns):
    assert derived_shapes(dense, array(12, columns), array(5, 12)) == []


def test_convolutions_and_transposed_weights():
    w, x = array(3, 3, 2, 10), array(2, 6, 7, 2)
    assert derived_shapes(convolution, w, x) == [(3, 3, 2, 16)]
    assert derived_shapes(lambda w, x: x @ w.T + 1.0, array(10, 12), array(5, 12)) == [(12, 16)]


def test_weights_used_twice_are_padded_once():
    def both(w, x):
        return x @ w, (x * 2) @ w, jnp.square(x) @ jnp.square(w)

    assert derived_shapes(both, array(12, 10), array(5, 12)) == [(12, 16), (12, 16)]


@pytest.mark.parametrize(
    ("rows", "columns", "padded"),
    [(8, 13, True), (9, 34, True), (7, 13, False), (8, 20, False), (8, 10, False)],
)
def test_data_is_padded_where_it_is_used_much_and_equal_vectors_are_short(rows, columns, padded):
    def scores(queries, keys):
        return queries @ jnp.swapaxes(keys, 1, 2)

    parts, derived = widened(scores, array(2, rows, 12), array(2, columns, 12))
    assert derived == []
    operands = {
        tuple(int(n) for n in parameter.ty.shape)
        for function in parts.main.functions.values()
        if isinstance(function, tirx.PrimFunc)
        for parameter in function.params
    }
    whole = -(-columns // LANES) * LANES
    assert ((2, 12, whole) in operands) == padded


def test_groups_of_channels_stay():
    grouped = jax.tree_util.Partial(convolution, groups=2)
    assert derived_shapes(grouped, array(3, 3, 2, 10), array(2, 6, 7, 4)) == []


def test_a_kernel_may_read_its_own_result():
    def product_and_double(w, x):
        k = te.reduce_axis((0, 12), name="k")
        product = te.compute((5, 10), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))
        return [product, te.compute((5, 10), lambda i, j: product[i, j] * 2.0)]

    w, x = array(12, 10), array(5, 12)
    arguments = [relax.Var("array", relax.TensorType(a.shape, "float32")) for a in (w, x)]
    bb = relax.BlockBuilder()
    with bb.function("main", arguments):
        with bb.dataflow():
            output = bb.emit_output(bb.emit_te(product_and_double, *arguments))
        bb.emit_func_output(output)
    parts = lift_parameters(widen_contractions(bb.get(), 1, LANES), 1)
    (wide,) = run(parts.derive, w)
    assert wide.shape == (12, 16)
    product, double = run(parts.main, wide, x)
    np.testing.assert_allclose(product, x @ w, rtol=0, atol=1e-5)
    np.testing.assert_allclose(double, 2 * (x @ w), rtol=0, atol=1e-5)
