import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.data import REGIMES, sine
from jaxeff.data._noisy_sine import DENSE_NOISE, MID_NOISE, Regime, dense, mid


@pytest.mark.slow
def test_regimes_have_their_noise_and_density():
    regimes = (Regime(-3.0, -1.0, 4000, DENSE_NOISE), Regime(2.0, 4.0, 2000, MID_NOISE))
    x, y = sine.noisy_sine(jax.random.key(0), regimes)
    assert x.shape == (12_000, 1)
    assert y.shape == (12_000,)
    residual = np.asarray(y - sine.target(x[:, 0]))
    for regime in regimes:
        inside = np.asarray((x[:, 0] >= regime.start) & (x[:, 0] <= regime.stop))
        assert inside.sum() == regime.count
        # Standard error of a standard deviation of n Gaussian draws: sigma / sqrt(2 n).
        error = 5 * regime.noise / np.sqrt(2 * inside.sum())
        assert residual[inside].std() == pytest.approx(regime.noise, abs=error)
        # Uniform on the regime: its middle splits it in half (5 standard errors of a binomial).
        left = (x[inside, 0] < (regime.start + regime.stop) / 2).sum()
        assert left == pytest.approx(inside.sum() / 2, abs=2.5 * np.sqrt(inside.sum()))


@pytest.mark.slow
def test_the_default_layout_is_the_sources():
    assert dense(0, 1).count == 2 * mid(0, 1).count
    assert (dense(0, 1).noise, mid(0, 1).noise) == (0.05, 0.25)
    x, _ = sine.noisy_sine(jax.random.key(0))
    assert sine.in_regime(x[:, 0], REGIMES).all()
    middles, gaps = sine.midpoints(REGIMES)
    assert sine.in_regime(middles).all()
    assert len(gaps) >= 1
    assert not sine.in_regime(jnp.array([*gaps, *sine.span(REGIMES, 0.1)])).any()


def test_the_noise_profile_is_undefined_in_gaps():
    regimes = (mid(2.0, 4.0), dense(-1.0, 1.0))
    x = jnp.array([-1.5, -1.0, 0.0, 1.5, 3.0, 5.0])
    expected = [np.nan, 0.05, 0.05, np.nan, 0.25, np.nan]
    np.testing.assert_allclose(sine.noise_std(x, regimes), expected, rtol=1e-6)
    np.testing.assert_array_equal(sine.in_regime(x, regimes), np.isfinite(expected))
    assert sine.span(regimes, 0.5) == (-1.5, 4.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Regime(1.0, 1.0, 10, 0.1), "start < stop"),
        (lambda: Regime(0.0, 1.0, 0.1, 0.1), "at least one example"),
        (lambda: sine.noisy_sine(jax.random.key(0), ()), "at least one regime"),
        (lambda: sine.span((dense(0, 2), mid(1, 3))), "must not overlap"),
    ],
)
def test_impossible_regimes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
