from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.beyond.moment_variances import methods as m
from experiments.beyond.moment_variances.__main__ import STUDY
from experiments.beyond.moment_variances.networks import Sets, spread
from experiments.beyond.moment_variances.oracle import compared, mean_error, of_samples
from experiments.beyond.moment_variances.quality import quality
from experiments.harness import Report
from jaxeff.bayes import predict
from jaxeff.moment_propagation import Gaussian, is_gaussian
from jaxeff.nn import small_classifier

SAMPLES, SPREADS = 4000, np.array([[1.0, 4.0], [0.25, 9.0]])


def shifted(w, x):
    return w + x


@pytest.fixture(scope="module")
def outputs():
    random = Gaussian(jnp.zeros((2, 2)), jnp.asarray(SPREADS, jnp.float32))
    drawn = predict(jax.random.key(0), shifted, random, 3.0, samples=SAMPLES, chunk=50)
    return np.asarray(drawn, np.float64)


def test_true_variances_are_within_the_oracles_error(outputs):
    comparison = compared(SPREADS, outputs, 0)
    error = (2 / SAMPLES) ** 0.5  # of a variance of Gaussian samples, relative
    assert comparison["error"] < 3 * error
    assert 0.1 * error < comparison["standard_error"] < 2 * error


def test_wrong_variances_are_seen(outputs):
    comparison = compared(0.5 * SPREADS, outputs, 0)
    assert comparison["error"] == pytest.approx(0.5, abs=3 * (2 / SAMPLES) ** 0.5)
    assert comparison["ratio"] == pytest.approx(0.5, abs=3 * (2 / SAMPLES) ** 0.5)


def test_few_samples_are_as_wrong_as_chi_squares(outputs):
    n = 40
    chi = np.random.default_rng(0).chisquare(n - 1, (100_000, 4)) / (n - 1)
    expected = np.median(np.abs(chi - 1), axis=1).mean()
    found = of_samples(n, outputs)
    assert abs(found["error"] - expected) < 4 * found["standard_error"]


def test_means_are_compared_in_standard_deviations(outputs):
    # Means of 4,000 draws have a standard error of 1 / sqrt(4,000) standard deviations.
    assert mean_error(np.full((2, 2), 3.0), outputs) < 4 / SAMPLES**0.5
    off = 3.0 + 0.5 * np.sqrt(SPREADS)
    assert mean_error(off, outputs) == pytest.approx(0.5, abs=5 / SAMPLES**0.5)


def test_noise_is_a_share_of_the_spread_of_each_array():
    weights = {"w": jnp.array([1.0, 3.0]), "b": jnp.zeros(2)}
    found = spread(weights, 0.1)
    assert np.allclose(found["w"].var, 0.01)
    assert np.allclose(found["b"].var, 0)


def test_the_last_layer_alone_stays_random():
    f, params, (x, _) = small_classifier(4)
    last = m.last_layer_only(f, spread(params, 0.1), x)
    random = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(last, is_leaf=is_gaussian)
        if is_gaussian(leaf)
    ]
    assert sorted(random) == ["fc2/bias", "fc2/kernel"]


def test_what_is_surely_known_has_no_loss_and_what_varies_is_outside():
    labels = jnp.array([0, 1] * 5)
    sure = 50 * jax.nn.one_hot(labels, 2)
    unsure = jax.random.normal(jax.random.key(0), (20, 10, 2)) * 5

    def logits(x):
        return jnp.where(x[0], unsure, sure)

    scores = quality(logits, sets_of(labels), 10, 10)
    assert scores["nll"] < 1e-6
    assert scores["auroc"] == 1
    assert scores["auroc_error"] == 0


def sets_of(labels):
    inside, outside = jnp.zeros(10, bool), jnp.ones(10, bool)
    return Sets((inside, labels), (inside, labels), outside)


def row(method, error=0.04, **columns):
    place = {"network": "DS-CNN", "noise": "10 %", "method": method}
    return {**place, "ratio": 1.0, "low": 0.9, "high": 1.1, "error": error, **columns}


def report(
    error=0.04, low=0.9, linear=0.04, calibrated=0.1, price=1.0, ratio=1.0, agrees=True, cost=8.0
):
    said = {"warned": "", "agrees": agrees, "ratio": ratio, "low": low,
            "taken": m.LINEAR, "results": 10}  # fmt: skip
    rows = [
        row(m.DEFAULT, error, **said),
        row(m.LINEAR, linear),
        row(m.CALIBRATED, calibrated),
        row(m.DIAGONAL, cost=2.0, noise="SVI"),
        row(m.CALIBRATED, cost=2 * price, noise="SVI"),
        row(m.DEFAULT, cost=cost, noise="SVI", **said),
        row(m.DEFAULT, network="ViT", **said),
    ]
    return Report("moment_variances", "default", {"rounds": 1}, rows, {})


@pytest.mark.parametrize(
    ("given", "failing"),
    [({}, 0), ({"error": 0.11}, 1), ({"low": 0.7}, 1), ({"linear": 0.07}, 1),
     ({"calibrated": 0.16}, 1), ({"price": 1.1}, 1), ({"ratio": 0.7}, 3),
     ({"ratio": 0.7, "agrees": False}, 0), ({"ratio": 0.4, "agrees": False}, 1),
     ({"agrees": False}, 3), ({"cost": 27.9}, 0), ({"cost": 28.1}, 1)],
)  # fmt: skip
def test_each_target_can_fail(given, failing):
    one = report(**given)
    STUDY.judge(one)
    assert [check["passed"] for check in one.checks].count(False) == failing


def test_costs_are_over_the_network(monkeypatch):
    """A clock of given times: what a call takes on a busy machine decides nothing."""
    given = {m.DEFAULT: 6.0, "twice": 4.0, "alone": 2.0}
    called = []

    def rounds_of(meters, rounds):
        called.extend(name for name, meter in meters.items() if meter(1) > 0)
        return {name: [given[name]] * rounds for name in meters}

    monkeypatch.setattr(m, "measure_rounds", rounds_of)
    f, params, (x, _) = small_classifier(4)
    once = partial(jax.jit(f), params, x)
    calls = {m.DEFAULT: once, "twice": lambda: (once(), once())}
    found = m.costs_of(f, spread(params, 0.1), x, calls, 3)
    assert sorted(called) == sorted(given)
    assert found == {m.DEFAULT: {"cost": 3}, "twice": {"cost": 2}}
