"""Weights with one variance in common: the moments of their broadcast variances, for less."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.moment_propagation import Gaussian, calibrate_moments, check_gaussian, sampled
from jaxeff.nn import small_classifier

KEYS = jax.random.split(jax.random.key(0), 3)


def conv(layout="NHWC", kernel="HWIO", **settings):
    def f(w, x):
        return jax.lax.conv_general_dilated(
            x, w, **{"window_strides": (1, 1), "padding": "SAME", **settings},
            dimension_numbers=(layout, kernel, layout),
        )  # fmt: skip

    return f


CONTRACTIONS = {
    "dense": (lambda w, x: x @ w, (4, 5), (3, 4), -1),
    "tokens": (lambda w, x: x @ w, (4, 5), (2, 3, 4), -1),
    "heads": (partial(jnp.einsum, "dhe,btd->bhte"), (4, 2, 3), (2, 3, 4), -1),
    "transposed weight": (lambda w, x: x @ w.T, (5, 4), (3, 4), None),
    "weight first": (lambda w, x: w @ x.T, (5, 4), (3, 4), None),
    "convolution": (conv(), (3, 3, 4, 5), (2, 6, 7, 4), -1),
    "strides": (conv(window_strides=(2, 1)), (3, 2, 4, 5), (2, 6, 7, 4), -1),
    "dilated": (conv(rhs_dilation=(2, 1), padding="VALID"), (3, 3, 4, 5), (2, 8, 7, 4), -1),
    "up": (conv(lhs_dilation=(2, 2), padding=((1, 1), (0, 1))), (2, 2, 4, 5), (2, 4, 4, 4), -1),
    "depthwise": (conv(feature_group_count=4), (3, 3, 1, 8), (2, 5, 5, 4), -1),
    "depthwise, one each": (conv(feature_group_count=4), (3, 3, 1, 4), (2, 5, 6, 4), -1),
    "pointwise": (conv(), (1, 1, 4, 5), (2, 3, 3, 4), -1),
    "every second pixel": (conv(window_strides=(2, 2)), (1, 1, 4, 5), (2, 5, 4, 4), -1),
    "groups": (conv(feature_group_count=2), (3, 3, 2, 6), (2, 5, 5, 4), -1),
    "channels first": (conv("NCHW", "OIHW"), (5, 4, 3, 3), (2, 4, 6, 7), 0),
}
CASES = [
    (name, axis) for name, (*_, axis) in CONTRACTIONS.items() for axis in {None, axis}
]  # a variance per array, and one per output channel


def drawn(name, axis):
    f, kernel, image, _ = CONTRACTIONS[name]
    common = [1] * len(kernel)
    if axis is not None:
        common[axis] = kernel[axis]
    w = Gaussian(
        jax.random.normal(KEYS[0], kernel),
        jax.random.uniform(KEYS[1], common if axis is not None else ()) + 0.1,
    )
    return f, w, jax.random.normal(KEYS[2], image)


def broadcast(w):
    return Gaussian(w.mean, jnp.broadcast_to(w.var, w.mean.shape))


@pytest.mark.parametrize("random_input", [False, True])
@pytest.mark.parametrize(("name", "axis"), CASES)
def test_moments_are_those_of_broadcast_variances(name, axis, random_input):
    f, w, x = drawn(name, axis)
    x = Gaussian(x, 0.2 * (1 + x**2)) if random_input else x
    g = jaxeff.moments(f, method="diagonal")
    ours, full = g(w, x), g(broadcast(w), x)
    assert ours.var.shape == ours.mean.shape
    # Terms of either sign cancel, in an order of their own.
    np.testing.assert_allclose(ours.mean, full.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.var, full.var, rtol=2e-6)


@pytest.mark.parametrize("name", ["tokens", "transposed weight", "convolution", "depthwise"])
def test_a_product_less_is_taken(name):
    f, w, x = drawn(name, None)

    def products(w):
        text = str(jax.make_jaxpr(jaxeff.moments(f, method="diagonal"))(w, Gaussian(x, x**2)))
        return text.count("dot_general[") + text.count("conv_general_dilated[")

    assert (products(w), products(broadcast(w))) == (2, 3)


def network():
    f, params, (x, _) = small_classifier(4)
    return f, jax.tree.map(lambda w: Gaussian(w, 0.01 * jnp.var(w)), params), x


def everywhere(posterior):
    return jax.tree.map(broadcast, posterior, is_leaf=jaxeff.moment_propagation.is_gaussian)


# A difference of raw moments loses the digits that they have in common, here some two.
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({"method": "linear"}, 1e-5), ({"method": "diagonal", "form": "raw"}, 1e-4)],
)
def test_every_method_takes_them(options, tolerance):
    f, posterior, x = network()
    g = jaxeff.moments(f, **options)
    ours, full = g(posterior, x), g(everywhere(posterior), x)
    np.testing.assert_allclose(ours.var, full.var, rtol=tolerance)


def test_draws_and_calibration_take_them():
    f, posterior, x = network()
    for g in (
        lambda q: sampled(f)(KEYS[0], q, x),
        lambda q: calibrate_moments(KEYS[0], f, q, x, samples=4, progress=False).factors,
    ):
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-5), g(posterior), g(everywhere(posterior))
        )


def test_a_loop_reads_slices_of_them():
    def f(w, x):
        return jax.lax.scan(lambda x, one: (jnp.tanh(x @ one), None), x, w)[0]

    w = Gaussian(jax.random.normal(KEYS[0], (3, 4, 4)), jnp.full((1, 1, 4), 0.1))
    x = jax.random.normal(KEYS[1], (2, 4))
    g = jaxeff.moments(f, method="diagonal")
    np.testing.assert_allclose(g(w, x).var, g(broadcast(w), x).var, rtol=1e-6)


def test_slopes_by_the_common_variance_are_sums():
    f, w, x = drawn("dense", None)

    def total(var):
        return jaxeff.moments(f, method="diagonal")(Gaussian(w.mean, var), x).var.sum()

    slope, each = jax.grad(total)(w.var), jax.grad(total)(broadcast(w).var)
    np.testing.assert_allclose(slope, each.sum(), rtol=1e-6)


def test_a_variance_of_another_shape_is_named():
    check_gaussian(Gaussian(jnp.zeros((2, 3)), jnp.ones(3)))
    for shape in ((2,), (2, 1, 3), (1, 2, 3), (4, 3)):
        with pytest.raises(ValueError, match="broadcasts to the mean's"):
            check_gaussian(Gaussian(jnp.zeros((2, 3)), jnp.ones(shape)))
