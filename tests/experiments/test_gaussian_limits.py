"""The three regimes against what can be said of them exactly."""

import json

import jax
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy
from typer.testing import CliRunner

from experiments import gaussian_limits
from experiments.gaussian_limits import CLASSES, GROUPS, compare

PEAK = entropy(softmax(np.eye(CLASSES)[0]))
EXACT = {  # without the noise
    "low": (PEAK, PEAK),
    "high aleatoric": (np.log(CLASSES), np.log(CLASSES)),
    "high epistemic": (np.log(CLASSES), PEAK),
}


@pytest.mark.parametrize("regime", EXACT)
def test_draws_have_the_exact_uncertainties(regime):
    found = compare(jax.random.key(1), regime, 40_000)["draws"]
    for values, expected in zip((found.total, found.aleatoric), EXACT[regime], strict=True):
        error = values.std(ddof=1) / GROUPS**0.5
        # A finite group underestimates the total: about (classes - 1) / (2 draws per group).
        assert abs(values.mean() - expected) < 5 * error + CLASSES / (2 * 2000)


def test_the_command(tmp_path):
    done = CliRunner().invoke(gaussian_limits.app, ["--fast", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "gaussian_limits.json").read_text())
    assert len(report["rows"]) == 9
    assert all(check["passed"] for check in report["checks"])
    assert 0 < report["lost_with_correlation"] < 0.44
    assert (tmp_path / "gaussian_limits.png").stat().st_size > 10_000
