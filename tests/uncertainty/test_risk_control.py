"""Risk control: promises over many draws, the papers' formulas in float64, and MAPIE's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxeff import uncertainty as u

GRID = jnp.linspace(-6, 6, 61)


def identity(x):
    return x


def missed(region, targets):
    return (~u.LAC().contains(region, targets)).astype(float)


def drawn(key, n, classes=4):
    first, second = jax.random.split(key)
    logits = 2 * jax.random.normal(first, (n, classes))
    return logits, jax.random.categorical(second, 0.5 * logits)


def labelled(key, n):
    """Logits of six labels, of which several are true."""
    first, second = jax.random.split(key)
    logits = 2 * jax.random.normal(first, (n, 6))
    truth = jax.random.bernoulli(second, jax.nn.sigmoid(logits - 0.5))
    return logits, truth.astype(jnp.int32)


def test_crc_of_misses_is_the_method_itself():
    """With its own scores as thresholds to choose from, a rounding higher, at every level."""
    logits, labels = drawn(jax.random.key(0), 60)
    scores = u.LAC().scores(logits, labels)
    method = u.CRC(u.LAC(), missed, scores + 1e-4)

    def same(level, **options):
        ours = u.conformalize(logits, labels, method, level, **options)
        theirs = u.conformalize(logits, labels, u.LAC(), level, **options)
        np.testing.assert_allclose(ours.threshold, theirs.threshold, atol=2e-4)
        return ours

    for level in (0.5, 0.7, 0.95, 0.99):
        same(level)
    same(0.8, groups=labels % 2)
    calibration = same(0.7)
    region = jax.jit(u.conformal(identity, calibration))(logits)
    np.testing.assert_array_equal(region, u.LAC().region(logits, calibration.threshold))


@pytest.mark.oracle
@pytest.mark.parametrize("n", [30, 200])
def test_the_mean_loss_of_crc_is_at_most_as_asked(n):
    method, risk, splits = u.CRC(u.MultiLabel(), u.false_negative_rate, GRID), 0.2, 2000

    def one(key):
        first, second = jax.random.split(key)
        calibration = u.conformalize(*labelled(first, n), method, 1 - risk)
        logits, truth = labelled(second, 50)
        return u.false_negative_rate(method.region(logits, calibration.threshold), truth).mean()

    missed = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), splits)))
    error = missed.std() / splits**0.5
    assert missed.mean() <= risk + 3 * error
    # At most 2 / (n + 1), and a step of thresholds, below (theorem 2 of the paper).
    assert missed.mean() >= risk - 2 / (n + 1) - 0.02 - 3 * error


@pytest.mark.oracle
@pytest.mark.parametrize(
    "control",
    [
        lambda: u.RCPS(u.MultiLabel(), u.false_negative_rate, GRID, delta=0.2),
        lambda: u.RCPS(u.MultiLabel(), u.false_negative_rate, GRID, 0.2, "hoeffding_bentkus"),
        lambda: u.LTT(u.MultiLabel(), u.false_negative_rate, GRID, 0.2, "wsr", "bonferroni"),
    ],
    ids=["wsr", "hoeffding-bentkus", "bonferroni"],
)
def test_the_risk_is_large_for_few_calibrations(control):
    """The true risk at each threshold is that of 40,000 examples."""
    method, risk, splits = control(), 0.2, 1000
    logits, truth = labelled(jax.random.key(7), 40_000)
    rates = np.array([u.false_negative_rate(method.region(logits, t), truth).mean() for t in GRID])

    @jax.jit
    @jax.vmap
    def threshold(key):
        return u.conformalize(*labelled(key, 150), method, 1 - risk).threshold

    chosen = np.asarray(threshold(jax.random.split(jax.random.key(2), splits)))
    place = np.abs(chosen[:, None] - np.asarray(GRID)).argmin(1)
    is_large = np.where(np.isinf(chosen), 0, rates[place]) > risk
    assert is_large.mean() <= 0.2 + 3 * (0.2 * 0.8 / splits) ** 0.5
    assert np.isfinite(chosen).mean() > 0.9


def losses_of(method, outputs, targets, thresholds):
    each = [method.loss(method.region(outputs, t), targets) for t in thresholds]
    return np.asarray(jnp.stack(each), np.float64)


def wsr(losses, risk, level):
    """The capital of Waudby-Smith and Ramdas, one bet after another."""
    n, capital, most = len(losses), 1.0, 1.0
    total, squares, variance = 0.5, 0.25, 0.25
    for i, loss in enumerate(losses):
        capital *= 1 - min(1, np.sqrt(2 * np.log(1 / level) / (n * variance))) * (loss - risk)
        most, total = max(most, capital), total + loss
        squares += (loss - total / (i + 2)) ** 2
        variance = squares / (i + 2)
    return 1 / most


def hoeffding_bentkus(losses, risk, level):
    n, mean = len(losses), min(losses.mean(), risk)
    entropy = stats.entropy([mean, 1 - mean], [risk, 1 - risk])
    tail = stats.binom.cdf(np.ceil(losses.sum() - 1e-6), n, risk)
    return min(np.exp(-n * entropy), np.e * tail, 1)


@pytest.mark.parametrize("bound", [wsr, hoeffding_bentkus], ids=lambda b: b.__name__)
def test_thresholds_are_those_of_the_papers_formulas(bound):
    outputs, targets = labelled(jax.random.key(3), 120)
    rcps = u.RCPS(u.MultiLabel(), u.false_negative_rate, GRID, 0.1, bound.__name__)
    losses = losses_of(rcps, outputs, targets, GRID)
    for risk in (0.1, 0.3):
        p = np.array([bound(row, risk, 0.1) for row in losses])
        last_unsafe = np.flatnonzero(p > 0.1)[-1]
        ours = u.conformalize(outputs, targets, rcps, 1 - risk).threshold
        np.testing.assert_array_equal(ours, GRID[last_unsafe + 1])
        level = 0.1 / len(GRID)
        safe = [i for i, row in enumerate(losses) if bound(row, risk, level) <= level]
        several = u.LTT(rcps.method, rcps.loss, GRID, bound=bound.__name__, correction="bonferroni")
        ours = u.conformalize(outputs, targets, several, 1 - risk).threshold
        np.testing.assert_array_equal(ours, GRID[safe[0]])


def test_p_values_are_those_of_mapie():
    """Of Hoeffding and Bentkus; its bound of WSR takes candidates of risks from the thresholds."""
    methods = pytest.importorskip("mapie.risk_control.methods")
    outputs, targets = labelled(jax.random.key(3), 120)
    rcps = u.RCPS(u.MultiLabel(), u.false_negative_rate, GRID, 0.1, "hoeffding_bentkus")
    losses, risks = losses_of(rcps, outputs, targets, GRID), np.array([0.1, 0.3])
    theirs = methods.compute_hoeffding_bentkus_p_value(losses.mean(1), 120, risks)
    for column, risk in enumerate(risks):
        ours = rcps._p_values(jnp.asarray(losses), jnp.ones(120, bool), jnp.asarray(risk))
        np.testing.assert_allclose(ours, theirs[:, column], rtol=2e-3, atol=1e-6)


def test_each_class_is_covered_by_mondrian_sets():
    """Thresholds are those of the class alone; each class is inside up to its own."""
    logits, labels = drawn(jax.random.key(0), 300)
    labels = jnp.where(labels == 3, 0, labels)  # none of the last class
    for method in (u.LAC(), u.APS()):
        calibration = u.conformalize(logits, labels, u.Mondrian(method), 0.8)
        for c in range(3):
            of = labels == c
            alone = u.conformalize(logits[of], labels[of], method, 0.8)
            np.testing.assert_array_equal(calibration.threshold[c], alone.threshold)
        assert calibration.threshold[3] == jnp.inf
        sets = jax.jit(u.conformal(identity, calibration))(logits)
        assert sets[:, 3].all()
        inside = u.covered(calibration, sets, labels)
        for c in range(3):
            n = int((labels == c).sum())
            # The last class of `APS` has all behind it: its scores are equal.
            count, needed = int(inside[labels == c].sum()), np.ceil((n + 1) * 0.8 - 1e-3)
            assert count >= needed if method == u.APS() else count == needed
    grouped = u.conformalize(logits, labels, u.Mondrian(u.LAC()), 0.8, groups=labels % 2)
    assert grouped.threshold.shape == (2, 4)
    sets = u.conformal(identity, grouped, lambda x: jnp.arange(len(x)) % 3)(logits)
    assert sets[2::3].all()  # a group that calibration never saw
    with pytest.raises(ValueError, match="one for each group or class"):
        u.online_conformal(lambda p, x: x, calibration)


@pytest.mark.oracle
def test_early_exits_add_no_more_error_than_asked():
    """The loss isn't monotone: an early exit may be right where the last one is wrong."""
    rule = u.LTT(u.EarlyExit(), u.extra_error, jnp.linspace(0, 1, 26), 0.2)

    def exits(key, n):
        logits, labels = drawn(key, n)
        noise = jax.random.normal(jax.random.fold_in(key, 3), (2, n, 4))
        return jnp.stack([logits + 2 * noise[0], logits + noise[1], 2 * logits]), labels

    outputs, labels = exits(jax.random.key(9), 20_000)

    @jax.jit
    @jax.vmap
    def one(key):
        calibration = u.conformalize(*exits(key, 300), rule, 0.9)
        decision = rule.region(outputs[:, :5000], calibration.threshold)
        return u.extra_error(decision, labels[:5000]).mean(), (decision.place < 2).mean()

    risks, early = one(jax.random.split(jax.random.key(4), 300))
    assert (risks > 0.1).mean() <= 0.2 + 3 * (0.16 / 300) ** 0.5
    assert early.mean() > 0.05
    never = rule.region(outputs, jnp.inf)
    np.testing.assert_array_equal(never.logits, outputs[-1])
    assert not u.extra_error(never, labels).any()


def test_what_does_not_fit_is_named():
    logits, labels = drawn(jax.random.key(0), 20)
    with pytest.raises(ValueError, match="CRC: losses must lie between 0 and 1"):
        u.conformalize(logits, labels, u.CRC(u.LAC(), lambda r, t: 2 * missed(r, t), GRID))
    with pytest.raises(ValueError, match=r"CRC: loss\(region, targets\) must be \[batch\]"):
        u.conformalize(logits, labels, u.CRC(u.LAC(), lambda r, t: missed(r, t).mean(), GRID))
    with pytest.raises(TypeError, match=r"EarlyExit has no score .* LTT\(EarlyExit\(\)"):
        u.conformalize(logits, labels, u.EarlyExit())
    with pytest.raises(TypeError, match="Mondrian: method must be a LAC"):
        u.Mondrian(u.AbsoluteResidual())
    with pytest.raises(TypeError, match="MultiLabel: outputs and targets"):
        u.conformalize(logits, labels, u.MultiLabel())
    # Too few examples for any threshold: everything is inside.
    few = u.conformalize(logits[:3], labels[:3], u.RCPS(u.LAC(), missed, GRID), 0.9)
    assert few.threshold == jnp.inf
