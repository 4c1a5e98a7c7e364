"""Self-binarization: two peaks are told from one, and cutting them in two is nearly free."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans

from jaxeff.noise import Multiplicative
from jaxeff.robustness import UNIMODAL, Binarized, accuracy_curve, bimodality

KEYS = jax.random.split(jax.random.key(3), 6)
NORMAL = jax.random.normal(KEYS[0], (20_000,))
ON = jax.random.bernoulli(KEYS[1], 0.4, (20_000,))


@pytest.mark.slow
def test_separability_is_two_means_in_one_dimension():
    x = jnp.concatenate([NORMAL[:300], 3 + 2 * NORMAL[300:500]])
    two_peaks = bimodality(x)
    column = np.asarray(x, np.float64)[:, None]
    inertia = KMeans(2, n_init=10, random_state=0).fit(column).inertia_
    # Lloyd's iterations may stop a point short of the best cut, never beyond it.
    assert float(two_peaks.separability) == pytest.approx(
        1 - inertia / column.var() / 500, abs=1e-3
    )
    sides = x[x <= two_peaks.threshold], x[x > two_peaks.threshold]
    assert (float(two_peaks.low), float(two_peaks.high)) == pytest.approx(
        [float(side.mean()) for side in sides], rel=1e-4
    )
    assert float(two_peaks.share) == pytest.approx(len(sides[1]) / 500)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (NORMAL, 2 / np.pi),
        (jax.random.uniform(KEYS[2], (20_000,)), 3 / 4),
        (jnp.where(jax.random.bernoulli(KEYS[3], 0.9, NORMAL.shape), 0.0, jnp.abs(NORMAL)), None),
        (jax.nn.relu(NORMAL), None),
        (jax.random.exponential(KEYS[4], (20_000,)), None),
        (NORMAL.at[0].set(1e4), None),
    ],
)
def test_one_peak(values, expected):
    two_peaks = bimodality(values)
    assert float(two_peaks.separability) < UNIMODAL
    assert not two_peaks.two_peaks
    if expected:
        assert float(two_peaks.separability) == pytest.approx(expected, abs=0.01)


def test_a_peak_at_zero_and_one_at_the_noise_level():
    level = 1e6
    signal = jnp.where(ON, 1.0, 1e-4) * (1 + 0.1 * NORMAL)
    clean = bimodality(signal)
    assert clean.two_peaks
    assert float(clean.share) == pytest.approx(0.4, abs=0.02)
    noisy = signal * (1 + level * jax.random.normal(KEYS[5], signal.shape))
    two_peaks = bimodality(noisy, scale="log")
    assert two_peaks.two_peaks
    assert 1e-4 * level < two_peaks.threshold < level
    assert two_peaks.high == pytest.approx(level, rel=0.7)  # E log|n| of a normal n is -0.635
    # Without the two peaks, the same noise leaves one.
    assert not bimodality(NORMAL * level * NORMAL[::-1], scale="log").two_peaks


def test_jits_vmaps_and_flat_values():
    stacked = jnp.stack([NORMAL[:1000], ON[:1000].astype(float), jnp.ones(1000)])
    two_peaks = jax.jit(jax.vmap(bimodality))(stacked)
    assert float(two_peaks.separability[1]) == pytest.approx(1, abs=1e-5)
    assert np.isnan(two_peaks.separability[2])
    assert not two_peaks.two_peaks[2]


@pytest.mark.promotes("rank")
def test_threshold_check_costs_nothing_where_values_are_binary():
    def f(params, x):
        hidden = jax.nn.relu(x * params["w"])
        return jnp.stack([hidden[:, 0], jnp.full(len(x), 0.5)], -1)

    params = {"w": jnp.ones(1)}
    x = jnp.where(ON, 1.0, 0.01)[:1000, None]
    labels = jnp.where(ON, 0, 1)[:1000]
    curve = accuracy_curve(
        jax.random.key(0), f, params, (x, labels), lambda t: {"relu": Binarized(t)},
        jnp.array([-1.0, 0.5, 2.0]), repeats=1,
    )  # fmt: skip
    # A threshold beyond either peak leaves one value for all.
    assert curve.mean[1] == pytest.approx(1, abs=1e-6)
    assert max(curve.mean[0], curve.mean[2]) < 0.7


def test_binarized_values_by_hand_and_after_noise():
    x = jnp.array([[0.1, 0.3], [2.0, 4.0]])
    np.testing.assert_allclose(Binarized(1.0).perturb(KEYS[0], x), [[0.2, 0.2], [3, 3]], rtol=1e-6)
    np.testing.assert_allclose(Binarized(9.0).perturb(KEYS[0], x), jnp.full((2, 2), 1.6), rtol=1e-6)
    noise = Multiplicative(3.0)
    after = Binarized(1.0, after=noise).perturb(KEYS[0], x)
    noisy = noise.perturb(KEYS[0], x)
    np.testing.assert_array_equal(after, Binarized(1.0).perturb(KEYS[0], noisy))


def test_mistakes():
    with pytest.raises(ValueError, match="can't be cut"):
        bimodality(jnp.ones(1))
    with pytest.raises(ValueError, match="scale"):
        bimodality(NORMAL, scale="cubic")
    with pytest.raises(ValueError, match=r"Binarized\.threshold"):
        Binarized(float("nan"))
