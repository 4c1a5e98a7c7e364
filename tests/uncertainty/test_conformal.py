"""Coverage of conformal sets against its distribution, a second formula, and MAPIE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxeff
from jaxeff import Gaussian
from jaxeff import uncertainty as u
from jaxeff.nn import small_classifier

CLASSES = [u.LAC(), u.APS(), u.RAPS(0.05, 1)]


def drawn(key, n, classes=5):
    """Logits, and labels that a sharper softmax draws: the model is wrong about its confidence."""
    first, second = jax.random.split(key)
    logits = 2 * jax.random.normal(first, (n, classes))
    return logits, jax.random.categorical(second, 0.4 * logits)


def regression(key, n):
    """Gaussian predictions, and targets of another spread."""
    keys = jax.random.split(key, 3)
    mean = jax.random.normal(keys[0], (n,))
    var = 0.1 + jax.random.uniform(keys[1], (n,))
    return Gaussian(mean, var), mean + 2 * jnp.sqrt(var) * jax.random.t(keys[2], 4, (n,))


def quantiles(key, n):
    predicted, targets = regression(key, n)
    return jnp.stack([predicted.mean - 0.3, predicted.mean + 0.5], -1), targets


CASES = [
    *((method, drawn) for method in CLASSES),
    (u.AbsoluteResidual(), regression),
    (u.NormalizedResidual(), regression),
    (u.CQR(), quantiles),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("method", "draw"), CASES, ids=lambda c: type(c).__name__)
def test_coverage_over_many_splits_is_beta_binomial(method, draw):
    """Mean and variance over 2,000 splits lie within four standard errors of the theory's."""
    n, fresh, splits, level = 49, 100, 2000, 0.8

    @jax.jit
    @jax.vmap
    def hits(key):
        first, second = jax.random.split(key)
        calibration = u.conformalize(*draw(first, n), method, level)
        outputs, targets = draw(second, fresh)
        return u.covered(calibration, method.region(outputs, calibration.threshold), targets).sum()

    found = np.asarray(hits(jax.random.split(jax.random.key(3), splits)))
    k = 40  # ceil(50 * 0.8)
    theory = stats.betabinom(fresh, k, n + 1 - k)
    assert abs(found.mean() - theory.mean()) < 4 * theory.std() / splits**0.5
    kurtosis = theory.stats("k") + 3
    error = theory.var() * np.sqrt((kurtosis - 1) / splits)
    assert abs(found.var() - theory.var()) < 4 * error


@pytest.mark.parametrize("sharpness", [1, 60])
@pytest.mark.parametrize("method", CLASSES, ids=lambda m: type(m).__name__)
def test_sets_are_those_of_a_second_formula(method, sharpness):
    """In float64, class by class, with what is left; probabilities of sharp logits round to 1."""
    logits, labels = drawn(jax.random.key(0), 60)

    def probabilities(logits):
        shifted = np.asarray(logits, np.float64) - np.asarray(logits).max(-1, keepdims=True)
        return np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)

    def score(row, label):
        if not isinstance(method, u.RAPS | u.APS):
            return np.log(np.delete(row, label).sum() / row[label])
        place = int((row > row[label]).sum()) + 1
        penalty = method.penalty * max(0, place - method.free) if hasattr(method, "free") else 0
        return penalty - row[row < row[label]].sum()

    rows = probabilities(sharpness * logits)
    scores = sorted(score(row, label) for row, label in zip(rows, labels, strict=True))
    threshold = scores[int(np.ceil(61 * 0.7)) - 1]
    calibration = u.conformalize(sharpness * logits, labels, method, 0.7)
    on_scale = threshold
    if isinstance(method, u.RAPS | u.APS) and threshold < 0:
        on_scale = -1 / (1 - np.log(-threshold))
    np.testing.assert_allclose(calibration.threshold, on_scale, rtol=1e-5)
    fresh = sharpness * drawn(jax.random.key(1), 60)[0]
    expected = [[score(row, c) <= threshold for c in range(5)] for row in probabilities(fresh)]
    sets = jax.jit(u.conformal(lambda x: x, calibration))(fresh)
    np.testing.assert_array_equal(sets, expected)
    assert 0 < sets.mean() < 1


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # The third of four scores is of odds 200: the second input is less sure.
        (u.LAC(), [[True, False, False], [False, False, False]]),
        # exp(-300) is left over: behind the second class there is more, behind the third nothing.
        (u.APS(), [[True, True, False], [True, True, False]]),
        # The penalty of the second class is more than any probability that is left.
        (u.RAPS(0.05, 1), [[True, False, False], [True, False, False]]),
    ],
    ids=["LAC", "APS", "RAPS"],
)
def test_classes_of_sure_networks_are_told_apart(method, expected):
    """Probabilities are beyond any float here: the classes are told apart by logits."""
    logits = jnp.array([[300.0, 0, -1], [200, 0, -1], [400, 0, -1], [100, 0, -1]])
    calibration = u.conformalize(logits, jnp.zeros(4, int), method, 0.6)
    fresh = jnp.array([[250.0, 0, -1], [150, 0, -1]])
    np.testing.assert_array_equal(u.conformal(lambda x: x, calibration)(fresh), expected)


@pytest.mark.parametrize("n", [4, 9, 19])
def test_every_level_has_the_right_rank(n):
    """Tenths of n + 1 that are whole numbers stay so in float32."""
    scores, levels = jnp.arange(1.0, n + 1), jnp.linspace(0.1, 0.9, 9)

    @jax.jit
    @jax.vmap
    def threshold(level):
        return u.conformalize(jnp.zeros(n), scores, u.AbsoluteResidual(), level).threshold

    sets = threshold(levels)
    ranks = [-(-(n + 1) * tenth // 10) for tenth in range(1, 10)]
    np.testing.assert_array_equal(sets, [k if k <= n else np.inf for k in ranks])


@pytest.mark.parametrize("scores", [[3.0, 1, 2, 1, 1], [0, -0.0, np.inf, 5, 5], [np.inf] * 3, [4]])
def test_a_threshold_is_the_score_of_an_example(scores):
    """With ties, zeros of both signs and infinities too, and with that example's gradient."""
    values, n = jnp.asarray(scores, float), len(scores)
    targets = jnp.zeros(n)

    def threshold(outputs, coverage):
        return u.conformalize(outputs, targets, u.AbsoluteResidual(), coverage).threshold

    for k in range(1, n + 1):
        coverage = (k - 0.5) / (n + 1)
        assert float(threshold(values, coverage)) == np.sort(np.abs(scores))[k - 1]
        gradient = jax.grad(threshold)(values, coverage)
        assert np.count_nonzero(gradient) <= 1


@pytest.mark.slow
def test_groups_have_thresholds_of_their_own():
    """Each is that of the group alone; one for all leaves the hard group out too often."""
    key = jax.random.key(5)
    groups = jnp.arange(400) % 2
    targets = jax.random.normal(key, (400,)) * (1.0 + 9.0 * groups.astype(float))
    calibration = u.conformalize(jnp.zeros(400), targets, u.AbsoluteResidual(), groups=groups)
    for g in (0, 1):
        alone = u.conformalize(jnp.zeros(200), targets[groups == g], u.AbsoluteResidual())
        assert calibration.threshold[g] == alone.threshold
    sets = u.conformal(lambda x, g: jnp.zeros(len(x)), calibration, lambda x, g: g)(targets, groups)
    inside = u.covered(calibration, sets, targets)
    assert all(0.9 <= inside[groups == g].mean() <= 0.92 for g in (0, 1))
    missing = u.conformalize(
        jnp.zeros(400), targets, u.AbsoluteResidual(), groups=groups, group_count=3
    )
    assert missing.threshold[2] == jnp.inf
    # No example of theirs was held out: there, nothing can be left outside.
    unseen = jax.jit(u.conformal(lambda x: x, calibration, lambda x: jnp.array([0, 1, 2, 7, -1])))
    low, high = unseen(jnp.zeros(5))
    np.testing.assert_array_equal(high[:2], calibration.threshold)
    assert jnp.isneginf(low[2:]).all()
    assert jnp.isposinf(high[2:]).all()
    with pytest.raises(TypeError, match=r"group\(\*args\) must be an array of integers"):
        u.conformal(lambda x: x, calibration, lambda x: x)(jnp.zeros(5))
    with pytest.raises(ValueError, match="group"):
        u.conformal(lambda x: x, calibration)


def test_a_set_keeps_the_most_probable_class_where_asked():
    assert u.RAPS(0.05, 1) == u.RAPS(penalty=0.05, free=1, allow_empty=True)
    with pytest.raises(TypeError, match=r"LAC.allow_empty must be True or False, not 'no'"):
        u.LAC(allow_empty="no")
    logits = jnp.array([[0.0, 0.1, 0.0]])
    against = jnp.log(0.1 / 0.9)  # classes of at least .9
    calibration = u.ConformalCalibration(against, u.LAC())
    assert not u.conformal(lambda x: x, calibration)(logits).any()
    kept = u.ConformalCalibration(against, u.LAC(allow_empty=False))
    np.testing.assert_array_equal(u.conformal(lambda x: x, kept)(logits), [[False, True, False]])


@pytest.mark.slow
def test_it_jits_vmaps_and_takes_moments():
    f, params, (x, y) = small_classifier()
    posterior = jax.tree.map(lambda w: Gaussian(w, 0.05 * w**2), params)
    moments = jaxeff.moments(f)
    levels = jnp.array([0.5, 0.9])
    outputs = moments(posterior, x)
    swept = jax.jit(jax.vmap(lambda c: u.conformalize(outputs, y, u.LAC(), c)))(levels)
    for i, level in enumerate((0.5, 0.9)):
        one = u.conformalize(outputs, y, u.LAC(), level)
        np.testing.assert_allclose(swept.threshold[i], one.threshold, rtol=1e-6)
    sets = jax.jit(lambda c, p, x: u.conformal(moments, c)(p, x))(one, posterior, x)
    # Those that it was calibrated on: the rank's share, up to rounding on the threshold itself.
    assert abs(u.covered(one, sets, y).mean() - 0.9) < 2 / len(y) + 0.005


def test_not_a_number_is_seen():
    bad = jnp.array([0.0, jnp.nan, 1.0])
    assert jnp.isnan(u.conformalize(bad, jnp.zeros(3), u.AbsoluteResidual(), 0.5).threshold)


def test_sets_are_those_of_mapie():
    """On the same probabilities, at several levels; MAPIE is not among the tested versions.

    Its APS takes a random share off the scores, so that it can't be compared set by set.
    """
    mapie = pytest.importorskip("mapie.classification")
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """A fitted classifier whose inputs are logits."""

        def __init__(self):
            self.classes_ = np.arange(5)

        def fit(self, x, y):
            return self

        def __sklearn_is_fitted__(self):
            return True

        def predict_proba(self, x):
            return np.asarray(jax.nn.softmax(jnp.asarray(x)))

        def predict(self, x):
            return self.predict_proba(x).argmax(-1)

    logits, labels = (np.asarray(a) for a in drawn(jax.random.key(7), 300))
    fresh, _ = drawn(jax.random.key(8), 200)
    for level in (0.6, 0.8, 0.9):
        theirs = mapie.SplitConformalClassifier(
            Given(), confidence_level=level, conformity_score="lac", prefit=True
        )
        theirs.conformalize(logits, labels)
        _, expected = theirs.predict_set(np.asarray(fresh))
        calibration = u.conformalize(logits, labels, u.LAC(), level)
        sets = u.conformal(lambda x: x, calibration)(fresh)
        np.testing.assert_array_equal(sets, expected[:, :, 0])


def test_intervals_are_those_of_mapie():
    mapie = pytest.importorskip("mapie.regression")
    from sklearn.base import BaseEstimator, RegressorMixin

    class Given(RegressorMixin, BaseEstimator):
        """A fitted regression that returns its only input."""

        n_features_in_ = 1

        def fit(self, x, y):
            return self

        def __sklearn_is_fitted__(self):
            return True

        def predict(self, x):
            return x[:, 0]

    predicted, targets = regression(jax.random.key(2), 157)
    x = np.asarray(predicted.mean)[:, None]
    theirs = mapie.SplitConformalRegressor(Given(), confidence_level=0.85, prefit=True)
    theirs.conformalize(x, np.asarray(targets))
    _, expected = theirs.predict_interval(x)
    calibration = u.conformalize(predicted, targets, u.AbsoluteResidual(), 0.85)
    sets = u.conformal(lambda x: x[:, 0], calibration)(jnp.asarray(x))
    np.testing.assert_allclose(jnp.stack(sets, -1), expected[:, :, 0], rtol=1e-5, atol=1e-5)


def drifting(key, n):
    """Logits that are ever more wrong: after half of the time labels are drawn at random."""
    logits, labels = drawn(key, n)
    other = jax.random.randint(jax.random.fold_in(key, 1), (n,), 0, 5)
    return logits, jnp.where(jnp.arange(n) < n // 2, labels, other)


def followed(method, logits, labels, threshold, rate):
    calibration = u.ConformalCalibration(threshold, method)
    step = u.online_conformal(lambda params, x: params * x, calibration, 0.9, rate=rate)

    def one(threshold, pair):
        region, after = step(1.0, pair[0][None], pair[1][None], threshold)
        return after, (method.contains(region, jnp.maximum(pair[1][None], 0))[0], after)

    return jax.jit(lambda start: jax.lax.scan(one, start, (logits, labels))[1])(threshold)


@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_coverage_holds_over_time_while_inputs_drift(rate):
    """The bound is deterministic, for scores from -1 to 0; a fixed threshold breaks it."""
    logits, labels = drifting(jax.random.key(0), 1000)
    held = drawn(jax.random.key(1), 500)
    start = u.conformalize(*held, u.APS(), 0.9).threshold
    inside, thresholds = followed(u.APS(), logits, labels, start, rate)
    bound = (1 + rate) / (rate * 1000)
    assert abs(inside.mean() - 0.9) <= bound
    # By hand: where the truth was outside the threshold rises by .9 of the rate.
    moves = np.diff(np.concatenate([[start], thresholds]))
    np.testing.assert_allclose(moves, rate * np.where(inside, -0.1, 0.9), atol=1e-6)
    fixed = u.APS().contains(u.APS().region(logits, start), labels)
    assert fixed[500:].mean() < 0.85
    if rate == 0.2:
        assert inside[600:].mean() == pytest.approx(0.9, abs=1.2 / (rate * 400))


def test_what_is_not_known_moves_nothing():
    logits = jnp.array([[2.0, 0.0, 1.0]] * 3)
    _, thresholds = followed(u.LAC(), logits, jnp.array([-1, 1, -1]), jnp.float32(0.5), 0.1)
    np.testing.assert_allclose(thresholds, [0.5, 0.59, 0.59], atol=1e-6)
    calibration = u.ConformalCalibration(jnp.float32(1.0), u.AbsoluteResidual())
    step = u.online_conformal(lambda params, x: x, calibration, rate=0.1)
    region, after = step(None, jnp.zeros(2), jnp.array([jnp.nan, 3.0]), jnp.float32(1.0))
    assert region.high.tolist() == [1.0, 1.0]
    assert float(after) == pytest.approx(1.09)
    with pytest.raises(ValueError, match="one threshold is followed"):
        u.online_conformal(lambda p, x: x, u.ConformalCalibration(jnp.ones(2), u.LAC()))
