"""Activations through the diagonal pass itself, against quadrature in pieces in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.moment_propagation.rules import gelu_in_short, piecewise, silu_in_short
from jaxeff.nn import ACTIVATIONS as SOURCE_TABLE

MEANS, STDS = map(
    np.ravel, np.meshgrid([-4, -2, -1, -0.3, 0, 0.3, 1, 2, 4.0], [0.01, 0.1, 0.5, 1, 2, 5, 10.0])
)
# Integrated by quadrature, or sums of few exponentials; every other one is exact.
QUADRATURE = {
    "Tanh", "Softsign", "Mish", "SELU", "gelu", "GELU", "LogSigmoid", "Sigmoid", "Softplus", "ELU",
    "CELU", "SiLU", "Tanhshrink", "normal_cdf",
}  # fmt: skip

# The source's table of 27, and what networks use besides. Softmax, softmin and log-softmax are
# tested in test_softmax.
PLAIN = {
    name: function
    for name, function in SOURCE_TABLE.items()
    if name not in ("Softmax", "Softmin", "LogSoftmax")
} | {
    "gelu": jax.nn.gelu,
    "relu6": jax.nn.relu6,
    "abs": jnp.abs,
    "square": jnp.square,
    "exp": jnp.exp,
    "erf": jax.lax.erf,
    "erfc": jax.lax.erfc,
    "normal_cdf": jax.scipy.stats.norm.cdf,
    "normal_cdf by erfc": lambda x: 0.5 * jax.lax.erfc(-x / 2**0.5),
}


def propagated(plain):
    """The moments of an activation, as a function of one Gaussian."""
    return lambda x: moments(lambda _, x: plain(x), method="diagonal")({}, x)


def errors(ours, expected, scale):
    mean, var = expected
    off_mean = np.abs(np.asarray(ours.mean) - mean) / scale
    off_var = np.abs(np.asarray(ours.var) - var) / scale**2
    return off_mean.max(), off_var.max()


@pytest.mark.parametrize("name", PLAIN)
def test_closed_forms_are_exact_and_quadrature_within_its_stated_error(name, oracle):
    plain, rule = PLAIN[name], propagated(PLAIN[name])
    keep = STDS < 3 if name == "exp" else STDS > 0
    mean, std = MEANS[keep], STDS[keep]
    expected = oracle.exact(plain, mean, std)
    scale = np.sqrt(expected[1]) if name in {"exp", "square"} else std
    with jax.enable_x64():
        ours = jax.jit(rule)(Gaussian(jnp.asarray(mean), jnp.asarray(std**2)))
        assert ours.mean.dtype == jnp.float64
    # In units of the input's standard deviation (of the output's, for those that grow faster).
    assert max(errors(ours, expected, scale)) < (2e-5 if name in QUADRATURE else 1e-12)
    single = jax.jit(rule)(Gaussian(jnp.asarray(mean, "float32"), jnp.asarray(std**2, "float32")))
    assert single.mean.dtype == single.var.dtype == jnp.float32
    assert max(errors(single, expected, scale)) < 1e-4


VARIANCES = [0.0, 1e-38, 1e-30, 1e-12, 1e-4, 1.0, 1e6, 1e20]
EXTREMES = np.float32(np.meshgrid([0, 0.5, -0.5, 1e-20, 1, -1, 3, 6, 1e4, -1e4], VARIANCES))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_finite_and_non_negative_with_finite_gradients_at_extremes_in_float32(name):
    mean, var = EXTREMES.reshape(2, -1)
    if name in {"exp", "square"}:  # their moments overflow
        keep = np.abs(mean) + var < 50
        mean, var = mean[keep], var[keep]
    rule = propagated(PLAIN[name])

    def both(m, v):
        out = rule(Gaussian(m, v))
        return jnp.stack([out.mean, out.var])

    out = jax.jit(jax.vmap(both))(mean, var)
    grads = jax.jit(jax.vmap(jax.jacrev(both, (0, 1))))(mean, var)
    assert np.isfinite(out).all()
    assert (np.asarray(out[:, 1]) >= 0).all()
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_the_limit_of_zero_variance_is_the_delta_method_with_its_gradients(name):
    plain, rule = PLAIN[name], propagated(PLAIN[name])
    mean = jnp.array([0.7, -0.7, 2.2])
    zero = jnp.zeros(3)
    out = rule(Gaussian(mean, zero))
    np.testing.assert_allclose(out.mean, plain(mean), rtol=1e-6)
    np.testing.assert_array_equal(out.var, 0)
    slope = jax.vmap(jax.grad(plain))(mean)
    bend = jax.vmap(jax.grad(jax.grad(plain)))(mean)

    def total(part):
        gradient = jax.grad(lambda m, v: getattr(rule(Gaussian(m, v)), part).sum(), (0, 1))
        return jax.jit(gradient)(mean, zero)

    by_mean, by_var = total("mean")
    np.testing.assert_allclose(by_mean, slope, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(by_var, bend / 2, rtol=2e-2, atol=5e-3)
    np.testing.assert_allclose(total("var")[1], slope**2, rtol=2e-3, atol=1e-4)


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(
    low=st.floats(-3, 0),
    width=st.floats(0.1, 4),
    mean=st.floats(-5, 5),
    std=st.floats(0.05, 4),
)
def test_clip_is_exact_for_any_bounds(low, width, mean, std):
    from scipy.integrate import quad
    from scipy.stats import norm

    high = low + width
    edges = [low, high]
    with jax.enable_x64():
        x = Gaussian(jnp.array([mean]), jnp.array([std**2]))
        ours = propagated(lambda x: jnp.clip(x, low, high))(x)
        ours = jax.tree.map(np.asarray, ours)
    pdf = norm(mean, std).pdf

    def moment(power):
        inner = quad(lambda x: np.clip(x, low, high) ** power * pdf(x), low, high)[0]
        tails = low**power * norm.cdf(low, mean, std) + high**power * norm.sf(high, mean, std)
        return inner + tails

    first = moment(1)
    assert abs(ours.mean[0] - first) < 1e-8, edges
    assert abs(ours.var[0] - (moment(2) - first**2)) < 1e-8


WRITTEN = {
    "exact": (lambda x: jax.nn.gelu(x, approximate=False), 1, False),
    "by erf": (lambda x: x * 0.5 * (1 + jax.lax.erf(x / 2**0.5)), 1, False),
    "scaled": (lambda x: -3 * jax.nn.gelu(2 * x, approximate=False) + 1, 6, False),
    "approximate": (jax.nn.gelu, 1, True),
    "approximate, by a power": (
        lambda x: 0.5 * x * (1 + jnp.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * jnp.power(x, 3.0)))),
        1,
        True,
    ),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_gelu_is_recognised_by_its_values_however_it_is_written(form, oracle):
    plain, slope, tanh = WRITTEN[form]
    mean = jnp.array([-2.0, -0.3, 0.0, 0.8, 3.0])
    x = Gaussian(mean, jnp.full(5, 0.25))
    text = str(jax.make_jaxpr(propagated(plain))(x))
    # No axis of nodes: quadrature would have one of twenty.
    assert "[20" not in text
    # The approximation has a correction that the exact form hasn't.
    assert len(text.splitlines()) > 300 if tanh else len(text.splitlines()) < 300
    expected = oracle.exact(plain, np.asarray(mean), np.full(5, 0.5))
    assert max(errors(propagated(plain)(x), expected, 0.5 * slope)) < 2e-5


@pytest.mark.parametrize(
    "plain",
    [
        lambda x: x * jax.nn.sigmoid(1.702 * x),
        lambda x: jax.nn.gelu(x) + 1e-3 * x,
        lambda x: jax.nn.silu(x) + 1e-3 * x,
        lambda x: x * jnp.tanh(x),
        lambda x: jnp.tanh(x) + 1e-3 * x,
        lambda x: jax.nn.softplus(x) + 1e-3 * jnp.tanh(x),
        jax.nn.mish,
    ],
)
def test_what_is_like_a_gate_is_not_taken_for_it(plain, oracle):
    mean = jnp.array([-2.0, -0.3, 0.0, 0.8, 3.0])
    ours = propagated(plain)(Gaussian(mean, jnp.full(5, 0.25)))
    expected = oracle.exact(plain, np.asarray(mean), np.full(5, 0.5))
    assert max(errors(ours, expected, 0.5)) < 2e-5


SMOOTH = {
    "silu": (jax.nn.silu, 1),
    "silu, a product": (lambda x: x * jax.nn.sigmoid(x), 1),
    "silu, a quotient": (lambda x: x / (1 + jnp.exp(-x)), 1),
    "silu by tanh": (lambda x: 0.5 * x * (1 + jnp.tanh(x / 2)), 1),
    "silu, scaled": (lambda x: -3 * jax.nn.silu(2 * x) + 1, 6),
    "swish": (lambda x: x * jax.nn.sigmoid(1.702 * x), 1),
    "swish of a negative slope": (lambda x: x * jax.nn.sigmoid(-0.5 * x), 1),
    "sigmoid": (jax.nn.sigmoid, 1),
    "sigmoid, a quotient": (lambda x: 3 / (1 + jnp.exp(-x)), 3),
    "sigmoid by tanh": (lambda x: 0.5 * (1 + jnp.tanh(x / 2)), 1),
    "tanh": (jnp.tanh, 1),
    "tanh of exponentials": (lambda x: (1 - jnp.exp(-2 * x)) / (1 + jnp.exp(-2 * x)), 1),
    "softplus": (jax.nn.softplus, 1),
    "softplus, a logarithm": (lambda x: jnp.log(1 + jnp.exp(x)), 1),
    "softplus, steep": (lambda x: jax.nn.softplus(2 * x) / 2, 1),
    "log sigmoid": (jax.nn.log_sigmoid, 1),
}


@pytest.mark.parametrize("form", SMOOTH)
def test_smooth_activations_are_recognised_by_their_values_however_they_are_written(form, oracle):
    plain, slope = SMOOTH[form]
    mean = jnp.array([-2.0, -0.3, 0.0, 0.8, 3.0])
    x = Gaussian(mean, jnp.full(5, 0.25))
    # No axis of nodes: quadrature would have one of twenty.
    assert "[20" not in str(jax.make_jaxpr(propagated(plain))(x))
    expected = oracle.exact(plain, np.asarray(mean), np.full(5, 0.5))
    assert max(errors(propagated(plain)(x), expected, 0.5 * slope)) < 2e-5


# Each with the variance up to which it is a series, and what its mean is off by at most.
HELD = {
    "silu": (jax.nn.silu, (0.01, 0.15), 1e-5),
    "sigmoid": (jax.nn.sigmoid, (0.21,), 5e-6),
    "tanh": (jnp.tanh, (0.0525,), 5e-6),
    "softplus": (jax.nn.softplus, (0.21,), 5e-6),
}


@pytest.mark.parametrize("name", HELD)
def test_smooth_activations_hold_their_error_from_tiny_to_huge_deviations(name, oracle):
    plain, edges, least = HELD[name]
    # On both sides of the variances where the form changes, and far in both tails.
    stds = np.r_[
        np.geomspace(0.003, 30, 30), *(edge**0.5 * np.array([0.9999, 1.0001]) for edge in edges)
    ]
    mean, std = map(np.ravel, np.meshgrid(np.linspace(-24, 24, 49), stds))
    expected = oracle.exact(plain, mean, std)
    with jax.enable_x64():
        x = Gaussian(jnp.asarray(mean), jnp.asarray(std**2))
        off_mean, off_var = errors(jax.jit(propagated(plain))(x), expected, std)
    assert off_mean < least
    assert off_var < 2e-5


@pytest.mark.parametrize("tanh", [None, False, True])
def test_short_forms_hold_their_error(tanh, oracle):
    """Those that stand beside factors: SiLU's, GELU's, and GELU's by a hyperbolic tangent."""
    plain, rule = jax.nn.silu, silu_in_short
    if tanh is not None:
        plain = functools.partial(jax.nn.gelu, approximate=tanh)
        rule = functools.partial(gelu_in_short, tanh=tanh)
    for std, least in ((0.01, 1e-3), (0.3, 7e-3), (1, 5e-2), (5, 6e-2)):
        mean, stds = np.linspace(-6, 6, 49), np.full(49, float(std))
        exact = oracle.exact(plain, mean, stds)
        ours = jax.jit(rule)(Gaussian(jnp.float32(mean), jnp.float32(stds**2)))
        assert np.abs(np.asarray(ours.mean) - exact[0]).max() < least * std
        assert np.abs(np.sqrt(ours.var) - np.sqrt(exact[1])).max() < least * std
    certain = jax.jit(rule)(Gaussian(jnp.array([0.7, -jnp.inf, jnp.inf]), jnp.zeros(3)))
    np.testing.assert_allclose(certain.mean, [plain(0.7), 0, jnp.inf], rtol=1e-5)
    np.testing.assert_array_equal(certain.var, 0)


def test_small_variances_keep_their_digits_in_the_tails_of_a_sigmoid():
    # A saturated gate: 1e-9 of the input's variance, of which a fit of the function says nothing.
    mean, var = np.array([-10.0, 10.0]), 0.01
    ours = jax.jit(propagated(jax.nn.sigmoid))(Gaussian(jnp.float32(mean), jnp.full(2, var)))
    # Far from zero it is exp(-|x|), log-normal.
    expected = np.exp(-2 * np.abs(mean) + var) * np.expm1(var)
    np.testing.assert_allclose(ours.var, expected, rtol=3e-4)


@pytest.mark.parametrize(
    ("plain", "limits"),
    [
        (jax.nn.silu, (jnp.inf, 0)),
        (jax.nn.softplus, (jnp.inf, 0)),
        (jax.nn.sigmoid, (1, 0)),
        (jnp.tanh, (1, -1)),
    ],
)
def test_smooth_activations_of_what_is_infinite_are_certain(plain, limits):
    x = Gaussian(jnp.array([jnp.inf, -jnp.inf]), jnp.ones(2))
    ours = propagated(plain)(x)
    np.testing.assert_array_equal(ours.mean, limits)
    np.testing.assert_array_equal(ours.var, 0)


def test_variance_of_a_relu_keeps_its_digits_where_the_textbook_form_loses_all():
    mean, var = jnp.float32(1000.0), jnp.float32(1e-3)
    ours = propagated(jax.nn.relu)(Gaussian(mean, var))
    np.testing.assert_allclose(ours.var, 1e-3, rtol=1e-6)
    textbook = jnp.float32(mean**2 + var) - mean**2
    assert abs(float(textbook) - 1e-3) > 5e-4


@pytest.mark.slow
def test_slopes_may_be_arrays():
    x = Gaussian(jnp.zeros((4, 3)), jnp.ones((4, 3)))
    slopes = jnp.array([0.0, 0.25, 1.0])
    ours = moments(lambda slopes, x: jnp.where(x > 0, x, slopes * x), method="diagonal")(slopes, x)
    for i, slope in enumerate(slopes):
        alone = propagated(lambda x, slope=float(slope): jax.nn.leaky_relu(x, slope))
        expected = alone(Gaussian(x.mean[:, i], x.var[:, i]))
        np.testing.assert_allclose(ours.var[:, i], expected.var, rtol=1e-6)


@pytest.mark.slow
def test_a_stopped_gradient_stays_one_in_a_piecewise_polynomial():
    """The straight-through clip: its values are the clip's, its gradient the identity's."""

    def through(x):
        return x + jax.lax.stop_gradient(jnp.clip(x, -1, 1) - x)

    mean, var = jnp.array([0.5, 3.0]), jnp.array([0.5, 0.5])
    ours, clipped = propagated(through), propagated(lambda x: jnp.clip(x, -1, 1))
    np.testing.assert_allclose(
        ours(Gaussian(mean, var)).mean, clipped(Gaussian(mean, var)).mean, atol=1e-5
    )
    slope = jax.grad(lambda m: ours(Gaussian(m, var)).mean.sum())(mean)
    np.testing.assert_allclose(slope, 1, atol=1e-5)


def test_a_malformed_piecewise_polynomial_is_refused():
    with pytest.raises(ValueError, match="2 breakpoints need 3 polynomials"):
        piecewise(Gaussian(jnp.zeros(1), jnp.ones(1)), (0.0, 1.0), ((0.0,), (1.0,)))
