"""Axes, counts and matrices of dot products and convolutions against `jax.lax`, in any layout."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxeff.program import trace
from jaxeff.program.ir import Contraction, convolved_channels_last

FEW = settings(max_examples=5, deadline=None)


def whole_numbers(shape, seed):
    """Small whole numbers: sums are exact, in whatever order they are taken."""
    return jnp.asarray(np.random.default_rng(seed).integers(-4, 5, shape), jnp.float32)


def equation(f, *shapes):
    (eqn,) = jax.make_jaxpr(f)(*(jnp.zeros(s) for s in shapes)).eqns
    return Contraction.of(eqn)


@st.composite
def dots(draw):
    """Dimension numbers of two operands, and their shapes: several axes of each kind, in any order.

    Returns:
        The numbers and two shapes.
    """
    counts = [draw(st.integers(0, 2)) for _ in range(4)]  # batch, summed, free, free
    sizes = iter(draw(st.permutations([1, 2, 3, 2, 3, 4, 1, 2])))
    batch, summed, left, right = ([next(sizes) for _ in range(n)] for n in counts)

    def operand(free):
        order = draw(st.permutations(range(len(batch) + len(summed) + len(free))))
        shape = dict(zip(order, [*batch, *summed, *free], strict=True))
        at = tuple(order)
        axes = at[len(batch) : len(batch) + len(summed)], at[: len(batch)]
        return axes, tuple(shape[i] for i in range(len(shape)))

    (ls, lb), left_shape = operand(left)
    (rs, rb), right_shape = operand(right)
    return ((ls, rs), (lb, rb)), left_shape, right_shape


@pytest.mark.slow
@FEW
@given(dots())
def test_a_dot_product_is_a_product_of_matrices(drawn):
    numbers, *shapes = drawn
    f = functools.partial(lax.dot_general, dimension_numbers=numbers)
    x, w = (whole_numbers(s, i) for i, s in enumerate(shapes))
    c = equation(f, *shapes)
    expected = f(x, w)
    np.testing.assert_array_equal(c.restore(c.rows(x) @ c.matrix(w)), expected)
    np.testing.assert_array_equal(c.weight(c.matrix(w)), w)
    np.testing.assert_array_equal(c.weight(c.matrix(np.asarray(w))), w)
    assert c.matrix(w).shape == c.matrix_shape
    for side in (0, 1):
        axes = (*c.batch(side), *c.summed(side), *c.free(side))
        assert sorted(axes) == list(range(len(shapes[side])))
    assert c.fan_in == math.prod(x.shape[a] for a in c.summed(0))
    assert c.macs == expected.size * c.fan_in
    assert c.groups == math.prod(w.shape[a] for a in c.batch(1))
    assert not c.is_convolution
    assert c.window(0) == c.window(2) == ()
    assert c.taps == 1


@pytest.mark.parametrize("sums", ["bi,oi->bo", "oi,bi->ob", "gio,bgi->gob", "ogij,jgbi->gob"])
def test_the_matrix_is_the_operand_without_data(sums):
    """A weight on the left is the matrix, too, and the result is still in the node's order."""
    shapes = [tuple({"b": 4, "i": 3, "o": 5, "g": 2, "j": 6}[k] for k in s)
              for s in sums.split("->")[0].split(",")]  # fmt: skip
    weight = next(i for i, s in enumerate(sums.split("->")[0].split(",")) if "o" in s)
    w, x = whole_numbers(shapes[weight], 0), whole_numbers(shapes[1 - weight], 1)

    def f(p, x):
        return jnp.einsum(sums, *((p["w"], x) if weight == 0 else (x, p["w"])))

    program = trace(f, {"w": w}, x)
    (node,) = [layer.op for layer in program.layers if layer.kind == "linear"]
    c = Contraction.of(node)
    # The result may be transposed behind the product; the product's own order is compared.
    left, right = (w, x) if c.side == 0 else (x, w)
    expected = node.primitive.bind(left, right, **node.params)
    assert bool(node.inputs[1 - c.side].is_data)
    np.testing.assert_array_equal(c.restore(c.rows(x) @ c.matrix(w)), expected)
    np.testing.assert_array_equal(c.weight(c.matrix(w)), w)
    np.testing.assert_array_equal(c.rows(w, c.side).mT, c.matrix(w))


LAYOUTS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HNCW", "IHOW", "WCNH")]


@st.composite
def convolutions(draw):
    """Two shapes in some layout, and the other arguments of `conv_general_dilated`."""
    groups, inner, outer = draw(st.sampled_from([(1, 3, 4), (2, 2, 3), (3, 1, 2), (4, 1, 1)]))
    layout = draw(st.sampled_from(LAYOUTS))
    pair = st.tuples(st.integers(1, 2), st.integers(1, 2))
    taps = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    sizes = dict(N=2, C=groups * inner, H=draw(st.integers(5, 6)), W=6)
    kernel = dict(I=inner, O=groups * outer, H=taps[0], W=taps[1])
    borders = st.tuples(st.integers(0, 2), st.integers(0, 1))
    options = dict(
        window_strides=draw(pair),
        padding=(draw(borders), draw(borders)),
        lhs_dilation=draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 3)])),
        rhs_dilation=draw(pair),
        dimension_numbers=layout,
        feature_group_count=groups,
    )
    shapes = [
        tuple(of[k] for k in order) for of, order in zip((sizes, kernel), layout, strict=False)
    ]
    return *shapes, options


def read(drawn):
    """The function of a drawn convolution, its axes and both operands."""
    image, kernel, options = drawn
    f = functools.partial(lax.conv_general_dilated, **options)
    return f, equation(f, image, kernel), whole_numbers(image, 0), whole_numbers(kernel, 1)


@pytest.mark.slow
@FEW
@given(convolutions())
def test_a_convolution_is_a_product_of_matrices(drawn):
    f, c, x, w = read(drawn)
    options, expected = f.keywords, f(x, w)
    y = jnp.matmul(c.rows(x), c.matrix(w), precision="highest")
    np.testing.assert_array_equal(c.restore(y), expected)
    np.testing.assert_array_equal(c.weight(c.matrix(w)), w)
    np.testing.assert_array_equal(c.weight(c.matrix(np.asarray(w))), w)
    assert c.matrix(w).shape == c.matrix_shape
    assert c.groups == options["feature_group_count"]
    assert c.taps == w.size // (w.shape[c.free(1)[0]] * w.shape[c.summed(1)[0]])
    names = options["dimension_numbers"]
    assert "".join(names[2][a] for a in c.window(2)) == "HW"
    assert "".join(names[0][a] for a in c.free(0) + c.summed(0) + c.window(0)) == "NCHW"
    assert "".join(names[1][a] for a in c.free(1) + c.summed(1) + c.window(1)) == "OIHW"
    assert "".join(names[2].replace("C", "O")[a] for a in c.layouts[2]) in {"NOHW", "COHW"}
    assert c.is_channels_last == (names == LAYOUTS[0])
    assert c.batch(0) == c.batch(1) == ()
    if options["lhs_dilation"] == (1, 1):
        assert c.fan_in == c.matrix_shape[1]
        assert c.macs == expected.size * c.fan_in


@pytest.mark.slow
@FEW
@given(convolutions())
def test_a_batch_of_another_size_and_a_kernel_without_inputs(drawn):
    f, c, image, w = read(drawn)
    x = image.repeat(2, c.free(0)[0])
    np.testing.assert_array_equal(c.restore(c.rows(x) @ c.matrix(w)), f(x, w))
    summed = (*c.summed(1), *c.window(1))
    narrow = w.max(summed, keepdims=True)
    assert c.matrix(narrow).shape == (c.groups, 1, c.matrix_shape[2])
    np.testing.assert_array_equal(c.weight(c.matrix(narrow)), narrow)


@pytest.mark.slow
@FEW
@given(convolutions())
def test_a_narrow_kernel_and_single_taps_are_two_products(drawn):
    f, c, x, _ = read(drawn)
    groups, inputs, outputs = c.matrix_shape
    a, b = whole_numbers((groups, inputs, 2), 2), whole_numbers((groups, 2, outputs), 3)
    expected = c.restore(jnp.matmul(c.rows(x), a, precision="highest") @ b)
    np.testing.assert_array_equal(c.single_taps(f(x, c.weight(a)), b), expected)


@pytest.mark.slow
@FEW
@given(convolutions())
def test_channels_last_is_the_same_convolution(drawn):
    f, _, x, w = read(drawn)
    (eqn,) = jax.make_jaxpr(f)(x, w).eqns
    turned = functools.partial(convolved_channels_last, eqn)
    np.testing.assert_array_equal(turned(x, w), f(x, w))
    (inside,) = [
        eqn for eqn in jax.make_jaxpr(turned)(x, w).eqns
        if eqn.primitive is lax.conv_general_dilated_p
    ]  # fmt: skip
    assert Contraction.of(inside).is_channels_last


@pytest.mark.parametrize("stride", [2, 3])
def test_a_transposed_convolution_costs_what_its_inverse_does(stride):
    """The gradient of a strided convolution has the same products in it."""
    x, w = (2, 3 * stride, 6), (3, 6, 4)
    forward = equation(lambda x, w: lax.conv_general_dilated(
        x, w, (stride,), "VALID", dimension_numbers=("NHC", "HIO", "NHC")), x, w)  # fmt: skip
    y, turned = forward.shapes[2], (3, 4, 6)
    back = equation(
        lambda y, w: lax.conv_transpose(
            y, w, (stride,), "VALID", dimension_numbers=("NHC", "HIO", "NHC")
        ),
        y,
        turned,
    )
    assert back.macs == forward.macs
    assert back.fan_in == max(1.0, 3 / stride) * 4


@pytest.mark.parametrize(
    ("f", "shapes", "plain"),
    [
        (jnp.matmul, [(5, 3), (3, 4)], True),
        (lambda x, w: jnp.tensordot(x, w, 1), [(2, 5, 3), (3, 4)], True),
        (lambda x, w: lax.dot_general(x, w, (((1,), (1,)), ((), ()))), [(5, 3), (4, 3)], False),
        (lambda x, w: lax.dot_general(x, w, (((0,), (0,)), ((), ()))), [(3, 5), (3, 4)], False),
        (lambda x, w: jnp.tensordot(x, w, 1), [(5, 3), (3, 2, 4)], False),
        (lambda x, w: lax.dot_general(x, w, (((2,), (1,)), ((0,), (0,)))),
         [(2, 5, 3), (2, 3, 4)], False),
    ],
)  # fmt: skip
def test_channels_of_a_dense_layer_are_last(f, shapes, plain):
    assert equation(f, *shapes).is_channels_last == plain


def test_other_primitives_are_none():
    (eqn,) = jax.make_jaxpr(jnp.sin)(1.0).eqns
    with pytest.raises(TypeError, match="sin is no dot product or convolution"):
        Contraction.of(eqn)
