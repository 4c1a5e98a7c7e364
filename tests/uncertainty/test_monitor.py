"""Monitors: rates of false alarms over thousands of streams, coverage with late labels, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxeff import uncertainty as u

RESIDUAL = u.ConformalCalibration(jnp.float32(1.0), u.AbsoluteResidual())
KEY = jax.random.key(9)
UNKNOWN = jnp.full(1, jnp.nan)


def same(params, x):
    return x


def scored(x):
    return x


def squared(x):
    """Two scores, of which one follows from the other."""
    return jnp.stack([x, x**2], -1)


def followed(held, stream, spec, targets=None, key=KEY, score=scored):
    """Readings of a stream of numbers, that are the scores as well."""
    step, state = u.monitor(key, same, {}, held, RESIDUAL, score, spec)
    targets = jnp.full(len(stream), jnp.nan) if targets is None else targets

    def one(state, at):
        reading, state = step({}, at[0][None], at[1][None], state)
        return state, reading

    return jax.lax.scan(one, state, (stream, targets))[1]


def streams(count, held, length, draw=jax.random.normal, spec=None, score=scored):
    """Readings of many streams, each with held-out scores of its own."""

    def one(key):
        scores = draw(key, (held + length,))
        return followed(
            scores[:held], scores[held:], spec or u.Monitoring(), key=jax.random.fold_in(key, 0),
            score=score,
        )  # fmt: skip

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), count))


def rounded(key, shape):
    """Scores of a few values: most are ties."""
    return jnp.round(jax.random.normal(key, shape))


@pytest.mark.oracle
@pytest.mark.parametrize("draw", [jax.random.cauchy, rounded], ids=["cauchy", "ties"])
@pytest.mark.parametrize("held", [2, 40])
def test_false_alarms_are_as_stated(draw, held):
    """Over 4,000 streams; the bound is of streams of any length, and of any few held-out scores."""
    level, count = 0.1, 4000
    reading = streams(count, held, 500, draw, u.Monitoring(false_alarms=level))
    share = float(reading.alarm[:, -1].mean())
    assert share <= level + 3 * (level * (1 - level) / count) ** 0.5
    assert share > 0  # the bets are some
    # A martingale: its mean is 1. So early its spread is small.
    early = np.asarray(reading.evidence[:, 9], np.float64)
    assert abs(early.mean() - 1) < 4 * early.std() / count**0.5
    assert early.std() > 0.01


@pytest.mark.oracle
def test_several_scores_alarm_no_more_often_and_any_of_them_finds_drift():
    level, count = 0.1, 4000
    spec = u.Monitoring(false_alarms=level, unknown=0.2)
    reading = streams(count, 40, 100, jax.random.normal, spec, squared)
    share = float(reading.alarm[:, -1].mean())
    assert 0 < share <= level + 3 * (level * (1 - level) / count) ** 0.5
    # Bonferroni: an input is unknown where either score is among its tenth.
    assert 0.1 < float(reading.unknown.mean()) < 0.2
    # Either sign of a larger value is in the square, neither in the mean of the values.
    wide = 3 * jax.random.normal(jax.random.key(1), (60,))
    held = jax.random.normal(jax.random.key(0), (100,))
    run = jax.jit(followed, static_argnums=(2, 5))
    both = run(held, wide, u.Monitoring(), None, KEY, squared)
    alone = run(held, wide, u.Monitoring(), None, KEY, lambda x: x**2)
    assert both.alarm[-1]
    assert alone.alarm[-1]
    assert not run(held, wide, u.Monitoring(), None, KEY, scored).alarm[-1]


@pytest.mark.oracle
def test_inputs_between_false_alarms_are_as_stated():
    """The mean of what is cut off at the stream's end is below that of the whole."""
    level, count, length = 0.02, 2000, 1500
    spec = u.Monitoring(false_alarms=level, procedure="shiryaev_roberts")
    alarm = np.asarray(streams(count, 20, length, spec=spec).alarm)
    first = np.where(alarm.any(1), alarm.argmax(1) + 1, length)
    assert first.mean() >= 1 / level - 3 * first.std() / count**0.5
    assert first.mean() < 20 / level
    # Behind an alarm it begins anew: none follows in the next steps, and others come later.
    assert alarm.sum(1).max() > 1
    assert alarm.mean() <= level


def test_drift_is_found_and_the_alarm_stays():
    shifted = jnp.concatenate([jax.random.normal(jax.random.key(1), (60,)), jnp.full(60, 3.0)])
    held = jax.random.normal(jax.random.key(0), (100,))
    reading = jax.jit(followed, static_argnums=2)(held, shifted, u.Monitoring(window=20))
    assert not reading.alarm[:60].any()
    assert reading.alarm[85:].all()
    assert reading.unknown_rate[59] < 0.2
    assert reading.unknown_rate[-1] > 0.9
    # Scores that aren't numbers, as of a broken sensor, are unknown, and the highest.
    broken = jax.jit(followed, static_argnums=2)(held, UNKNOWN.repeat(40), u.Monitoring())
    assert broken.unknown.all()
    assert broken.alarm[-1]
    assert jnp.isfinite(broken.evidence).all()
    # Drift to sure outputs is drift as well.
    sure = jax.jit(followed, static_argnums=2)(held, jnp.full(40, -3.0), u.Monitoring())
    assert not sure.unknown.any()
    assert sure.alarm[-1]


def test_batches_are_streams():
    """Eight at once count as eight in a row; only ties' draws differ, and here are none."""
    held = jax.random.normal(jax.random.key(0), (64,))
    x = jax.random.normal(jax.random.key(1), (8,))
    spec = u.Monitoring(window=4)
    step, state = u.monitor(KEY, same, {}, held, RESIDUAL, scored, spec)
    at_once, after = step({}, x, x + 0.5, state)
    for one in x[:, None]:
        reading, state = step({}, one, one + 0.5, state)
    np.testing.assert_array_equal(state.counts, after.counts)
    np.testing.assert_allclose(reading.unknown_rate, at_once.unknown_rate)
    np.testing.assert_allclose(reading.coverage, at_once.coverage)
    assert state.capital.seen.tolist() == after.capital.seen.tolist() == [8]


@pytest.mark.parametrize("delay", [0, 3])
def test_coverage_holds_with_late_and_missing_labels(delay):
    """The bound is deterministic: residuals lie between 0 and 2."""
    rate, n = 0.1, 600
    keys = jax.random.split(jax.random.key(2))
    spread = jnp.where(jnp.arange(n) < 300, 0.5, 2.0)
    x = jax.random.normal(keys[0], (n,))
    truth = x + spread * jax.random.uniform(keys[1], (n,), minval=-1)
    told = jnp.where(jnp.arange(n) % 3 == 0, jnp.nan, truth)
    late = jnp.concatenate([jnp.full(delay, jnp.nan), told])[:n]
    spec = u.Monitoring(rate=rate, delay=delay, window=10_000)
    run = jax.jit(followed, static_argnums=2)
    reading = run(x[:50], x, spec, late)
    inside = (reading.region.low[:, 0] <= truth) & (truth <= reading.region.high[:, 0])
    known = ~jnp.isnan(told) & (jnp.arange(n) < n - delay)
    share = inside[known].mean()
    bound = (2 + (delay + 1) * rate) / (rate * int(known.sum()))
    assert abs(share - 0.9) <= bound
    np.testing.assert_allclose(reading.coverage[-1], share, rtol=1e-4)
    fixed = run(x[:50], x, u.Monitoring(delay=delay), late)
    assert fixed.coverage[-1] < 0.7
    np.testing.assert_array_equal(fixed.region.high[:, 0], x + 1)


def test_bets_are_those_of_the_simple_jumper():
    """By hand in float64, one bet beginning at each score; NumPy's p-values."""
    scores = np.round(np.random.default_rng(0).normal(size=80), 1)
    key = jax.random.key(5)
    draws = np.asarray(jax.random.uniform(key, (80,)), np.float64)
    result = jax.jit(u.exchangeability)(key, scores)
    capital, started = np.zeros((80, 3)), []
    for n in range(80):
        before = scores[: n + 1]
        p = ((before > scores[n]).sum() + draws[n] * (before == scores[n]).sum()) / (n + 1)
        np.testing.assert_allclose(result.p_values[n], p, rtol=1e-5)
        # All that begin later bet as one that began first does: they take over its shares.
        shares = np.full(3, 1 / 3) if n == 0 else capital[n - 1] / capital[n - 1].sum()
        capital[n] = (0.99 * shares + 0.01 / 3) * (1 + np.array([-1, 0, 1]) * (p - 0.5))
        started = [s * capital[n].sum() for s in [*started, 1 / ((n + 1) * (n + 2))]]
        np.testing.assert_allclose(result.evidence[n], sum(started) + 1 / (n + 2), rtol=1e-4)


@pytest.mark.oracle
def test_p_values_are_uniform_and_independent():
    """Of scores with ties; Kolmogorov and Smirnov at each place, and pairs of neighbours."""

    def one(key):
        return u.exchangeability(key, rounded(jax.random.fold_in(key, 1), (30,)))

    result = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 3000))
    p = np.asarray(result.p_values)
    assert min(stats.kstest(p[:, i], "uniform").pvalue for i in range(30)) > 0.01 / 30
    r = np.corrcoef(p, rowvar=False)[np.triu_indices(30, 1)]
    assert np.abs(r).max() < 4.5 / 3000**0.5
    assert (result.p_value <= 0.1).mean() <= 0.1 + 3 * (0.09 / 3000) ** 0.5


def test_what_does_not_fit_is_named():
    held = jnp.zeros(4)
    grouped = u.ConformalCalibration(jnp.ones(2), u.AbsoluteResidual())
    with pytest.raises(ValueError, match="monitor: calibration must have one threshold"):
        u.monitor(KEY, same, {}, held, grouped, scored)
    with pytest.raises(
        ValueError, match=r"monitor: score\(outputs\) must be a vector .* \(4, 1, 1\)"
    ):
        u.monitor(KEY, same, {}, held, RESIDUAL, lambda y: y[:, None, None])
    with pytest.raises(ValueError, match="procedure"):
        u.Monitoring(procedure="cusum")
