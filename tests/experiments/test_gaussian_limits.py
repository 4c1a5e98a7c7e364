"""The three regimes against what can be said of them exactly."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

from experiments import gaussian_limits
from experiments.gaussian_limits import CLASSES, GROUPS, compare
from experiments.harness.command import SIZES

PEAK = entropy(softmax(np.eye(CLASSES)[0]))
EXACT = {  # without the noise
    "low": (PEAK, PEAK),
    "high aleatoric": (np.log(CLASSES), np.log(CLASSES)),
    "high epistemic": (np.log(CLASSES), PEAK),
}


@pytest.mark.slow
@pytest.mark.parametrize("regime", EXACT)
def test_draws_have_the_exact_uncertainties(regime):
    found = compare(jax.random.key(1), regime, 40_000)["draws"]
    for values, expected in zip((found.total, found.aleatoric), EXACT[regime], strict=True):
        error = values.std(ddof=1) / GROUPS**0.5
        # A finite group underestimates the total: about (classes - 1) / (2 draws per group).
        assert abs(values.mean() - expected) < 5 * error + CLASSES / (2 * 2000)


@pytest.mark.slow
def test_a_full_run_outlives_a_fast_one(tmp_path):
    """Both had one name once."""
    small = {size: gaussian_limits.Settings(200 * n) for n, size in enumerate(SIZES, 1)}
    study = replace(gaussian_limits.STUDY, sizes=small, plots=())
    for option in ([], ["--fast"], ["--full"]):
        study.main([*option, "--results", str(tmp_path)])
    report = {path.name: json.loads(path.read_text())["config"] for path in tmp_path.glob("*.json")}
    assert {name: config["draws"] for name, config in report.items()} == {
        "gaussian_limits-fast.json": 200,
        "gaussian_limits.json": 400,
        "gaussian_limits-full.json": 600,
    }
