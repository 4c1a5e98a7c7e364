"""What the study of bridges asks of a posterior, on outputs with known answers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from experiments.beyond.bridges import problems
from experiments.beyond.bridges.__main__ import SIZES, STUDY
from experiments.harness import Report

SETTINGS = dataclasses.replace(SIZES["fast"], width=3)


@pytest.fixture(scope="module")
def both():
    return [problems.moons(SETTINGS, 0), problems.sine(SETTINGS, 0)]


@pytest.mark.slow
def test_predictive_scores(both):
    rng = np.random.default_rng(0)
    moons, sine = both
    outputs = rng.normal(size=(4, problems.TEST, 2)).astype(np.float32)
    labels = np.asarray(moons.test[1])
    expected = -np.log(softmax(outputs, -1).mean(0)[np.arange(len(labels)), labels]).mean()
    assert float(moons.nll(outputs)) == pytest.approx(expected, rel=1e-5)

    targets = np.asarray(sine.test[1])
    outputs = rng.normal(size=(4, len(targets), 2)).astype(np.float32)
    density = stats.norm(outputs[..., 0], np.exp(outputs[..., 1] / 2)).pdf(targets)
    assert float(sine.nll(outputs)) == pytest.approx(-np.log(density.mean(0)).mean(), rel=1e-4)
    np.testing.assert_allclose(sine.epistemic(outputs), outputs[..., 0].std(0), rtol=1e-4)


@pytest.mark.slow
def test_regions(both):
    for problem in both:
        assert 0.1 < float(problem.outside.mean()) < 0.9
        assert problem.auroc(problem.outside.astype(jnp.float32)) == pytest.approx(1)
        low, high = problem.points.min(0), problem.points.max(0)
        assert ((problem.unlabelled >= low) & (problem.unlabelled <= high)).all()


def test_judging():
    methods = ("mcmc", "svi", "distilled: mean", "distilled: draws", "mcmc from svi")
    rows = [
        {
            "problem": problem,
            "method": method,
            "epistemic_outside": 1.0,
            "distance_to_mcmc": i,
            "max_rhat": 1.1 + i if problem == "moons" else 1.1 - i / 100,
        }
        for problem in ("moons", "sine")
        for i, method in enumerate(methods)
    ]
    report = Report("bridges", "default", {}, rows)
    STUDY.judge(report)
    # Nothing was lost by distilling the mean, and distilled draws lie farther away than SVI; of the
    # moons, chains that start at variational draws agree less than the teacher's.
    expected = [True] * 2 + [False] * 4 + [False, True] + [True] * 2
    assert [check["passed"] for check in report.checks] == expected
