"""Levels over time and over images: schedules and VANT's two distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from jaxeff.hardening import VariableLevel, incremental_noise, scale_levels, vant, variance_aware
from jaxeff.noise import Additive, Drift, Mismatch, Mixed, Repeated, Telegraph

KEY = jax.random.key(3)


def report_setting(setting):
    """A loss that is the setting itself."""

    def loss(key, params, state, batch, step):
        return jnp.sum(setting), ({"levels": setting}, state)

    return loss


def test_scaled_multiplies_every_level_and_nothing_else():
    spec = {"conv*": Mixed(0.2, 3.0, "add_mul"), "fc": None, "*": Additive(jnp.array([1.0, 2.0]))}
    twice = scale_levels(spec, 2.0)
    assert twice["conv*"] == Mixed(0.4, 6.0, "add_mul")
    assert twice["fc"] is None
    np.testing.assert_array_equal(twice["*"].sigma, [2.0, 4.0])


def test_scaled_leaves_times_and_devices_alone():
    spec = [
        Repeated(Telegraph(0.5, 1.0, 2.0, time=3.0, device=4), 2),
        Drift(10.0, 0.05, 0.1, device=4),
        Mismatch(0.1, 0.2, 3.0, device=4),
    ]
    assert scale_levels(spec, 2.0) == [
        Repeated(Telegraph(1.0, 1.0, 2.0, time=3.0, device=4), 2),
        Drift(10.0, 0.1, 0.2, device=4),
        Mismatch(0.2, 0.4, 3.0, device=4),
    ]


def test_scaled_refuses_what_has_no_levels():
    class Own:
        def perturb(self, key, x):
            return x

    with pytest.raises(TypeError, match=r"spec\['fc'\].*must be a pytree"):
        scale_levels({"fc": Own()}, 0.5)


@pytest.mark.parametrize("factor", [-1, -0.5, np.nan])
def test_scaled_refuses_factors_that_make_no_level(factor):
    with pytest.raises(ValueError, match=r"factor must be at least 0, but is"):
        scale_levels({"fc": Additive(0.1)}, factor)
    assert scale_levels(Additive(0.1), 0.0) == Additive(0.0)


def test_incremental_follows_its_schedule():
    clean_start = optax.join_schedules(
        [optax.constant_schedule(0.0), optax.linear_schedule(0.0, 1.0, 4)], [2]
    )
    loss = incremental_noise(report_setting, clean_start)(jnp.array(0.8))
    values = [loss(KEY, None, None, None, step)[0] for step in range(8)]
    np.testing.assert_allclose(values, 0.8 * np.array([0, 0, 0, 0.25, 0.5, 0.75, 1, 1]), rtol=1e-6)


@pytest.mark.parametrize(
    ("form", "law"),
    [
        ("half_normal", stats.halfnorm(0.45 * 1.5, 0.6)),
        ("normal", stats.foldnorm(0.45 * 1.5 / 0.6, 0, 0.6)),  # negative draws folded over
    ],
)
def test_vant_levels_have_the_published_distribution(form, law):
    levels = vant(KEY, 1.5, 0.6, 20_000, form=form)
    assert stats.kstest(np.asarray(levels), law.cdf).pvalue > 1e-3
    other = stats.norm(0.45 * 1.5, 0.6)
    assert stats.kstest(np.asarray(levels), other.cdf).pvalue < 1e-6


@pytest.mark.slow
def test_variance_aware_draws_a_level_per_image_after_its_ramp():
    batch = (jnp.zeros((6, 2)), jnp.zeros(6))
    setting = VariableLevel(2.0, 0.5)
    loss = jax.jit(variance_aware(report_setting, ramp_steps=1312)(setting))
    for step in (0, 1, 656, 1311):
        levels = loss(KEY, None, None, batch, step)[1][0]["levels"]
        np.testing.assert_allclose(levels, 2 * step / 1312, rtol=1e-6)
    after = loss(KEY, None, None, batch, 1312)[1][0]["levels"]
    assert len(set(np.asarray(after).tolist())) == 6
    plain = variance_aware(report_setting)(setting)
    np.testing.assert_allclose(plain(KEY, None, None, batch, 0)[1][0]["levels"], after, rtol=1e-6)


@pytest.mark.slow
def test_no_variance_is_plain_noisy_training():
    batch = (jnp.zeros((3, 2)), jnp.zeros(3))
    loss = variance_aware(report_setting)(VariableLevel(0.7, 0.0, 1.0))
    np.testing.assert_array_equal(loss(KEY, None, None, batch, 0)[1][0]["levels"], np.float32(0.7))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="theta must be at least 0"):
        vant(KEY, 1.0, -0.1, 4)
    with pytest.raises(ValueError, match="form must be one of 'half_normal', 'normal'"):
        variance_aware(report_setting, form="uniform")
