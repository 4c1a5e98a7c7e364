import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives

from jaxeff.core._jax_internals import sub_jaxprs
from jaxeff.training import canonical_convolutions

NHWC = ("NHWC", "HWIO", "NHWC")


def convolutions(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive is primitives.conv_general_dilated_p:
            yield eqn
        for inner in sub_jaxprs(eqn):
            yield from convolutions(inner.jaxpr)


def is_canonical(eqn):
    numbers = eqn.params["dimension_numbers"]
    last = eqn.invars[0].aval.ndim - 1
    inputs = (0, last, *range(1, last))
    kernel = (last, last - 1, *range(last - 1))
    return (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec) == (inputs, kernel, inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "shape", "kernel", "options"),
    [
        (NHWC, (4, 9, 8, 3), (3, 2, 3, 5), {}),
        (("NCHW", "OIHW", "NCHW"), (4, 3, 9, 8), (5, 3, 3, 2), {"padding": "SAME"}),
        (("NCHW", "IOHW", "NHWC"), (4, 3, 9, 8), (3, 5, 3, 2), {"window_strides": (2, 1)}),
        (NHWC, (4, 9, 8, 4), (3, 3, 2, 6), {"feature_group_count": 2, "rhs_dilation": (2, 1)}),
        (("NCW", "OIW", "NCW"), (4, 3, 9), (5, 3, 4), {"lhs_dilation": (2,), "padding": [(1, 2)]}),
        (("CNH", "HOI", "HNC"), (3, 4, 9), (4, 5, 3), {}),
    ],
)
def test_values_and_gradients_are_the_same(names, shape, kernel, options):
    options = {"window_strides": (1,) * (len(shape) - 2), "padding": "VALID"} | options
    keys = jax.random.split(jax.random.key(0), 3)
    x, k = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], kernel)

    def value_and_gradients(x, k):
        loss = lambda x, k: jnp.sum(  # noqa: E731
            jnp.sin(lax.conv_general_dilated(x, k, dimension_numbers=names, **options))
        )
        return jax.value_and_grad(loss, argnums=(0, 1))(x, k)

    ours = canonical_convolutions(value_and_gradients)
    assert all(map(is_canonical, convolutions(jax.make_jaxpr(ours)(x, k).jaxpr)))
    expected, output = value_and_gradients(x, k), jax.jit(ours)(x, k)
    # Sums of some hundred products, in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), output, expected
    )


@pytest.mark.parametrize(
    ("names", "shape", "kernel", "options"),
    [
        (NHWC, (4, 9, 8, 1), (3, 2, 1, 5), {}),
        (("NCHW", "OIHW", "NCHW"), (4, 1, 9, 8), (5, 1, 3, 2), {"padding": "SAME"}),
        (("NCHW", "IOHW", "NHWC"), (4, 1, 9, 8), (1, 5, 3, 2), {"window_strides": (2, 3)}),
        (("CNH", "HOI", "HNC"), (1, 4, 9), (4, 5, 1), {"padding": [(2, 1)]}),
    ],
)
def test_one_channel_is_a_product_with_patches(names, shape, kernel, options):
    options = {"window_strides": (1,) * (len(shape) - 2), "padding": "VALID"} | options
    keys = jax.random.split(jax.random.key(0), 2)
    x, k = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], kernel)

    def convolve(x, k):
        return lax.conv_general_dilated(x, k, dimension_numbers=names, **options)

    ours = canonical_convolutions(convolve, products=True)
    assert not list(convolutions(jax.make_jaxpr(ours)(x, k).jaxpr))
    np.testing.assert_allclose(jax.jit(ours)(x, k), convolve(x, k), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"rhs_dilation": (2, 1)}, {"lhs_dilation": (2, 1)}, {"feature_group_count": 2}],
)
def test_other_convolutions_stay_canonical(options):
    grouped = options.get("feature_group_count", 1)
    x, k = jnp.ones((2, 9, 8, grouped)), jnp.ones((3, 2, 1, 4))

    def convolve(x, k):
        padding = ((0, 0), (1, 0))
        return lax.conv_general_dilated(x, k, (1, 1), padding, dimension_numbers=NHWC, **options)

    ours = canonical_convolutions(convolve, products=True)
    assert all(map(is_canonical, convolutions(jax.make_jaxpr(ours)(x, k).jaxpr)))
    np.testing.assert_allclose(jax.jit(ours)(x, k), convolve(x, k), rtol=1e-4)


def train(params, xs):
    """Gradient steps in a scan, with a cond and a custom derivative on the way."""

    def loss(params, x):
        y = lax.conv_general_dilated(x, params["kernel"], (1, 1), "SAME", dimension_numbers=NHWC)
        y = jax.nn.relu(y + jnp.broadcast_to(params["bias"], y.shape))
        return lax.cond(y.sum() > 0, jnp.mean, jnp.max, y**2)

    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return lax.scan(step, params, xs)


@pytest.mark.slow
def test_inside_a_scan():
    keys = jax.random.split(jax.random.key(1), 2)
    params = {"kernel": jax.random.normal(keys[0], (3, 3, 2, 4)), "bias": jnp.zeros(4)}
    xs = jax.random.normal(keys[1], (5, 6, 8, 8, 2))
    ours = canonical_convolutions(train)
    before = list(convolutions(jax.make_jaxpr(train)(params, xs).jaxpr))
    after = list(convolutions(jax.make_jaxpr(ours)(params, xs).jaxpr))
    assert len(before) == len(after) > 1
    assert not all(map(is_canonical, before))
    assert all(map(is_canonical, after))
    expected, output = jax.jit(train)(params, xs), jax.jit(ours)(params, xs)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), output, expected
    )


@pytest.mark.slow
def test_vmap_over_replicates():
    keys = jax.random.split(jax.random.key(2), 2)
    params = {"kernel": jax.random.normal(keys[0], (3, 3, 3, 2, 4)), "bias": jnp.zeros((3, 4))}
    xs = jax.random.normal(keys[1], (5, 6, 8, 8, 2))
    expected = jax.vmap(train, (0, None))(params, xs)
    for ours in (
        canonical_convolutions(jax.vmap(train, (0, None))),
        jax.vmap(canonical_convolutions(train), (0, None)),
    ):
        output = jax.jit(ours)(params, xs)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), output, expected
        )


def test_without_convolutions_nothing_changes():
    fn = lambda x, y: {"sum": x["a"] + y, "literal": 1.0}  # noqa: E731
    ours = canonical_convolutions(fn)({"a": jnp.ones(3)}, jnp.arange(3.0))
    np.testing.assert_array_equal(ours["sum"], jnp.ones(3) + jnp.arange(3.0))
    assert ours["literal"] == 1
