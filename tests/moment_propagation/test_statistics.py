"""Statistics read from whole functions, calls included, however they are written."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.moment_propagation import _statistics as st
from jaxeff.moment_propagation.rules._normalization import normalize
from jaxeff.program.reading import UNKNOWN

rms_norm = functools.partial(normalize, centre=False)


def random(*shape, var=0.3):
    a, b = jax.random.split(jax.random.key(len(shape)))
    return Gaussian(
        0.3 + jax.random.normal(a, shape),
        var * jax.random.uniform(b, shape, minval=0.5, maxval=1.5),
    )


def symbol(f, x):
    """What a function of one tensor is read as."""
    (found,) = st.StatisticReader().body(jax.make_jaxpr(f)(x.mean), [st.tensor(x)])
    return found


def read(f, x):
    return st.moments(symbol(f, x), x, {})


def norm(x):
    return jnp.linalg.norm(x, axis=-1, keepdims=True)


def centred(x):
    return x - x.mean(-1, keepdims=True)


def std(x):
    return x.std(-1, keepdims=True)


def custom(f):
    """The same with a derivative of its own, which keeps it one equation."""
    wrapped = jax.custom_jvp(lambda x: f(x))
    wrapped.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return wrapped


# Allowed bias at width 16: of the mean in standard deviations, and of the variance.
FUNCTIONS = {
    "variance": (lambda x: jnp.var(x, -1), {}),
    "standard deviation": (lambda x: jnp.std(x, -1), {"var": 0.06}),
    "with a correction": (lambda x: jnp.std(x, -1, ddof=1), {"var": 0.06}),
    "its inverse": (lambda x: 1 / jnp.std(x, -1), {"mean": 0.03, "var": 0.16}),
    "norm": (lambda x: jnp.linalg.norm(x, axis=-1), {"var": 0.06}),
    "norm of the whole": (jnp.linalg.norm, {"var": 0.03}),
    "raised norm": (lambda x: jnp.maximum(norm(x), 3.0), {"mean": 0.02, "var": 0.06}),
    "over the deviation and more": (lambda x: centred(x) / (std(x) + 0.2), {"var": 0.06}),
    "times the inverse of it": (lambda x: centred(x) * (1 / (std(x) + 0.2)), {"var": 0.06}),
    "over the norm": (lambda x: x / norm(x), {"mean": 0.02, "var": 0.07}),
    "over the norm and more": (lambda x: x / (norm(x) + 0.5), {"mean": 0.02, "var": 0.06}),
    "over a raised norm": (lambda x: x / jnp.maximum(norm(x), 1e-6), {"mean": 0.02, "var": 0.07}),
    "over PyTorch's norm": (
        lambda x: x / jnp.maximum(jnp.sqrt((abs(x) ** 2).sum(-1, keepdims=True)), 1e-12),
        {"mean": 0.02, "var": 0.07},
    ),
    "over a raised square": (
        lambda x: x * jax.lax.rsqrt(jnp.maximum((x * x).sum(-1, keepdims=True), 1e-12)),
        {"mean": 0.02, "var": 0.07},
    ),
    # Some of the norms are below 3, some above: a mixture of two cases.
    "over a norm raised by chance": (
        lambda x: x / jnp.maximum(norm(x), 3.0),
        {"mean": 0.13, "var": 0.12},
    ),
    "softmax unshifted": (lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True), {"var": 0.05}),
    "log of softmax": (lambda x: jnp.log(jax.nn.softmax(x)), {"mean": 0.02, "var": 0.06}),
    "logsumexp unshifted": (
        lambda x: jnp.log(jnp.exp(x).sum(-1)),
        {"mean": 0.02, "var": 0.13},
    ),
    "sum of exponentials": (lambda x: jnp.exp(x).sum(-1), {}),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_moments_of_what_is_read_match_monte_carlo(name, oracle):
    f, bias = FUNCTIONS[name]
    x = random(4, 16)
    samples = oracle.monte_carlo(f, (x,), 20_000, 5_000)
    oracle.assert_matches(read(f, x), samples, **bias)


def test_a_norm_of_absolute_values_is_read_as_any_other():
    x = random(4, 16)
    ours, plain = (read(FUNCTIONS[f"over {n}"][0], x) for n in ("PyTorch's norm", "a raised norm"))
    np.testing.assert_allclose(ours.var, plain.var, rtol=1e-4)
    variances = read(lambda x: (abs(centred(x)) ** 2).mean(-1), x).var
    np.testing.assert_allclose(variances, read(FUNCTIONS["variance"][0], x).var, rtol=1e-4)


def test_a_root_of_what_reaches_below_zero_as_a_gaussian_is_finite():
    x = Gaussian(jnp.array([0.012, 1.0]), jnp.array([2.0e-6, 0.01]))  # eight and ten deviations
    ours = moments(lambda x: jnp.maximum(jnp.sqrt(x), 1e-12), method="diagonal")(x)
    alone = moments(jnp.sqrt, method="diagonal")(x)
    np.testing.assert_allclose(ours.mean, alone.mean, rtol=1e-3)
    np.testing.assert_allclose(ours.var, alone.var, rtol=0.05)


@pytest.mark.slow
def test_small_widths_are_finite_where_quadrature_met_negative_variances(oracle):
    x = random(6, 4)
    for f in (lambda x: jnp.std(x, -1), lambda x: 1 / jnp.std(x, -1)):
        ours = read(f, x)
        assert np.isfinite(ours.mean).all()
        assert (np.asarray(ours.var) > 0).all()
    f = FUNCTIONS["standard deviation"][0]
    samples = oracle.monte_carlo(f, (x,), 20_000, 5_000)
    oracle.assert_matches(read(f, x), samples, mean=0.05, var=0.2)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.std(x, -1),
        lambda x: jnp.linalg.norm(x, axis=-1),
        lambda x: jax.nn.logsumexp(x, -1),
        jax.nn.softmax,
        jax.nn.log_softmax,
        jax.nn.standardize,
    ],
)
def test_calls_and_functions_with_derivatives_of_their_own_are_read_through(f):
    x = random(3, 8)
    expected = symbol(f, x)
    assert isinstance(expected, st.Statistic)
    assert symbol(jax.jit(f), x) == expected
    assert symbol(custom(f), x) == expected
    assert symbol(custom(jax.jit(custom(f))), x) == expected


@pytest.mark.slow
@pytest.mark.parametrize("f", [jax.nn.softmax, jax.nn.log_softmax, lambda x: centred(x) / std(x)])
def test_a_custom_derivative_is_read_by_the_transform(f):
    x = random(3, 8)
    ours = moments(lambda _, x: custom(f)(x), method="diagonal")({}, x)
    expected = moments(lambda _, x: f(x), method="diagonal")({}, x)
    np.testing.assert_allclose(ours.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, expected.var, rtol=1e-5, atol=1e-7)


WRITTEN = {
    "deviation and more": (
        lambda x: centred(x) / (std(x) + 0.2),
        lambda x: normalize(x, eps=0.0, shift=0.2),
    ),
    "over the norm": (
        lambda x: x / jnp.maximum(norm(x), 1e-6),
        lambda x: Gaussian(rms_norm(x, eps=0.0).mean / 8**0.5, rms_norm(x, eps=0.0).var / 8),
    ),
    "linen": (
        lambda x: nn.RMSNorm(epsilon=1e-3, use_scale=False).apply({}, x),
        lambda x: rms_norm(x, eps=1e-3),
    ),
    "vmapped": (
        jax.vmap(lambda x: (x - x.mean()) / (x.std() + 0.2)),
        lambda x: normalize(x, eps=0.0, shift=0.2),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_quotients_are_recognised_by_the_transform(name):
    f, rule = WRITTEN[name]
    x = random(3, 8)
    ours, expected = jax.jit(moments(lambda _, x: f(x), method="diagonal"))({}, x), rule(x)
    np.testing.assert_allclose(ours.mean, expected.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.var, expected.var, rtol=1e-4)


@pytest.mark.slow
def test_a_scalar_statistic_of_a_vector_meets_it(oracle):
    x = random(16)
    for f in (lambda x: x - x.mean(), lambda x: (x - x.mean()) / (x.std() + 0.1)):
        samples = oracle.monte_carlo(f, (x,), 20_000, 5_000)
        oracle.assert_matches(read(f, x), samples, var=0.06)


UNREADABLE = {
    "each row less another's maximum": lambda x: x[:, None] - x.max(1)[None, :, None],
    "a raised square less the squared mean": lambda x: (
        jnp.maximum((x * x).mean(-1), 1.0) - x.mean(-1) ** 2
    ),
    "two axes": lambda x: x - x.mean(0, keepdims=True) + x.mean(1, keepdims=True),
    "a softmax over other axes": lambda x: jnp.exp(x - x.max(0)) / jnp.exp(x - x.max(0)).sum(),
    "nothing left": lambda x: 1 / (0 * x.std(-1)),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_only_looks_like_a_known_function_is_not_read(name):
    assert symbol(UNREADABLE[name], random(8, 8)) is UNKNOWN


@pytest.mark.slow
@pytest.mark.parametrize("floor", [1e-4, 1e-12, 1e-24])
def test_a_quotient_over_a_floor_of_a_zero_vector_is_finite_with_finite_gradients(floor):
    x = Gaussian(jnp.zeros((2, 4)), jnp.zeros((2, 4)))

    def total(x):
        out = rms_norm(x, eps=0.0, floor=floor)
        return out.mean.sum() + out.var.sum()

    value, grads = jax.value_and_grad(total)(x)
    assert value == 0
    assert np.isfinite(grads.mean).all()
    assert np.isfinite(grads.var).all()
