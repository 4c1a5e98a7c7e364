import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import Report
from experiments.moment_variances.__main__ import STUDY
from experiments.moment_variances.methods import BOTH, CALIBRATED, CORRELATED, DIAGONAL
from experiments.moment_variances.oracle import compared, draws, of_samples
from experiments.moment_variances.recipe import NETWORKS
from jaxeff.moment_propagation import Gaussian

SAMPLES, SPREADS = 4000, np.array([[1.0, 4.0], [0.25, 9.0]])


@pytest.fixture(scope="module")
def outputs():
    random = Gaussian(jnp.zeros((2, 2)), jnp.asarray(SPREADS, jnp.float32))
    return draws(jax.random.key(0), lambda w, x: w + x, (random, 3.0), SAMPLES, 50)


def test_true_variances_are_within_the_oracles_error(outputs):
    found = compared(SPREADS, outputs, 0)
    error = (2 / SAMPLES) ** 0.5  # of a variance of Gaussian samples, relative
    assert found["error"] < 3 * error
    assert 0.1 * error < found["standard_error"] < 2 * error


def test_wrong_variances_are_seen(outputs):
    found = compared(0.5 * SPREADS, outputs, 0)
    assert found["error"] == pytest.approx(0.5, abs=3 * (2 / SAMPLES) ** 0.5)
    assert found["ratio"] == pytest.approx(0.5, abs=3 * (2 / SAMPLES) ** 0.5)


def test_few_samples_are_as_wrong_as_chi_squares(outputs):
    n = 40
    chi = np.random.default_rng(0).chisquare(n - 1, (100_000, 4)) / (n - 1)
    expected = np.median(np.abs(chi - 1), axis=1).mean()
    found = of_samples(n, outputs)
    assert abs(found["error"] - expected) < 4 * found["standard_error"]


def report(error, extra, over, auroc):
    costs = {
        f"over {base}, batch {batch}": cost
        for base, cost in (("diagonal", extra), ("30 samples", over))
        for batch in (1, 10)
    }
    rows = [
        {"network": "MLP", "method": method, "error": error, **costs}
        for method in (DIAGONAL, CALIBRATED, CORRELATED, BOTH)
    ]
    detection = [
        {"network": "MLP", "in domain": "mnist", "method": method, "auroc": auroc, "base": 0.9}
        for method in (DIAGONAL, "30 samples, draw 0")
    ]
    return Report("moment_variances", "default", {"rounds": 1}, rows, {"detection": detection})


@pytest.mark.parametrize(
    ("given", "failing"),
    [((0.04, 1.04, 0.9, 0.9), 0), ((0.06, 1.0, 0.9, 0.9), 1), ((0.04, 1.06, 0.9, 0.9), 2),
     ((0.04, 1.0, 1.1, 0.9), 2), ((0.04, 1.0, 0.9, 0.89), 1)],
)  # fmt: skip
def test_each_target_can_fail(given, failing):
    one = report(*given)
    STUDY.judge(one)
    assert [check["passed"] for check in one.checks].count(False) == failing


def test_the_table_has_every_network():
    assert len(NETWORKS) == 18
    assert STUDY.sizes["default"].names == NETWORKS
