"""The parts of the Dirty-MNIST study that could be wrong unnoticed, on a few small images."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.dirty_mnist import __main__ as study
from experiments.dirty_mnist import evaluation, findings, recipe, training
from experiments.dirty_mnist.__main__ import STUDY
from experiments.dirty_mnist.training import build
from experiments.harness import Report
from experiments.harness.report import LEFT, plain
from experiments.harness.sizes import reached
from jaxeff.bayes import prior_scales
from jaxeff.data import Dataset
from jaxeff.dirty_mnist import DirtyMNIST, Recipe
from jaxeff.moment_propagation import Gaussian
from tests.experiments.canning import open_can

SETTINGS = recipe.Settings(
    data=Recipe(source="digits"),
    mcmc=recipe.MCMCSettings(images=8),
    samples=64,
    logit_samples=500,
    factors=(0.5, 1.0),
)


def test_epochs_of_lenet5_are_those_that_are_asked_for():
    default = recipe.SIZES["default"]
    assert recipe.settle(default) == default
    longer = recipe.settle(dataclasses.replace(default, lenet5_epochs=1000))
    assert longer.svi["lenet5"].epochs == 1000
    assert {**longer.svi, "lenet5": 0} == {**default.svi, "lenet5": 0}
    assert reached(plain(longer), recipe.SIZES) == "default"
    shorter = recipe.settle(dataclasses.replace(default, lenet5_epochs=1))
    assert reached(plain(shorter), recipe.SIZES) == "fast"


def test_a_kill_costs_one_posterior(monkeypatch, tmp_path):
    """What is finished stays, is reported alone, and is not made again."""
    can, calls = open_can("dirty_mnist"), []

    def posterior(run, name):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(name)
        yield {"of": "training", "network": name, **can.extra["trainings"][name]}
        for row in can.rows:
            if row["method"].split()[0] == name and not row["method"].endswith(study.CHAINS):
                yield {"of": "method", **row, "curves": {"clean/aleatoric": [0.5, 1.0]}}
        for kind in ("sweep", "draws"):
            of = (row for row in can.extra[kind] if row["network"] == name)
            yield from ({"of": kind, **row} for row in of)

    monkeypatch.setattr(study, "_posterior", posterior)
    monkeypatch.setattr(study, "_chains", lambda run, name: [
        {"of": "chains", **can.extra["chains"]},
        *({"of": "method", **row} for row in can.rows if row["method"] == f"{name} {study.CHAINS}"),
    ])  # fmt: skip
    quiet = dataclasses.replace(STUDY, plots=())
    arguments = ["--fast", "--results", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        quiet.main(arguments)
    quiet.main([*arguments, "--kept"])
    report = json.loads((tmp_path / "dirty_mnist-fast.json").read_text())
    assert [row["method"] for row in report["rows"]] == ["mlp svi", "mlp moments"]
    assert report[LEFT] == 3
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        quiet.main(arguments)
    assert calls == ["mlp-subset"]
    calls[:] = [None] * 9
    quiet.main(arguments)
    report = json.loads((tmp_path / "dirty_mnist-fast.json").read_text())
    assert report["rows"] == can.rows
    for name in ("sweep", "draws", "trainings", "chains"):
        assert report[name] == can.extra[name], name
    with np.load(tmp_path / "dirty_mnist-fast" / "arrays.npz") as arrays:
        assert "mlp moments/clean/aleatoric" in arrays


@pytest.fixture(scope="module")
def sets():
    rng = np.random.default_rng(0)

    def images(n):
        return rng.integers(0, 256, (n, 28, 28, 1), np.uint8)

    def labels(*shape):
        return rng.integers(0, 10, shape).astype(np.int32)

    digits = Dataset("digits", images(12), labels(12), images(8), labels(8), 10)
    probs = rng.dirichlet(np.ones(10), 8)
    dirty = DirtyMNIST(digits, images(8), labels(8, 3), probs, images(8), labels(8, 3), probs)
    test = {
        "clean": digits.test_images,
        "ambiguous": dirty.test_images,
        "ood": images(8),
    }  # of one shape: compiled once
    return recipe.Sets(dirty, *dirty.train(), test)


@pytest.fixture(scope="module")
def model():
    f, params = build("mlp", "digits", jax.random.key(0))
    return f, jax.tree.map(lambda p: Gaussian(p, jnp.full(p.shape, 1e-4)), params)


@pytest.fixture(scope="module")
def logits(sets, model):
    return evaluation.sampled_logits(jax.random.key(1), *model, sets, SETTINGS.samples)


@pytest.mark.slow
def test_ambiguous_images_count_once_per_label(sets, logits):
    log_probs = evaluation.evaluate(logits, sets).log_probs
    numbers = evaluation.evaluate(logits, sets).figures
    chosen = np.asarray(log_probs["ambiguous"]).argmax(1)
    expected = (chosen[:, None] == sets.dirty.test_labels).mean()
    assert numbers["accuracy_ambiguous"] == pytest.approx(expected)
    likelihood = np.take_along_axis(np.asarray(log_probs["ambiguous"]), sets.dirty.test_labels, 1)
    assert numbers["nll_ambiguous"] == pytest.approx(-likelihood.mean(), rel=1e-5)


@pytest.mark.slow
def test_the_sweep_scales_variances(sets, model, logits):
    rows = evaluation.sweep(jax.random.key(2), *model, logits, SETTINGS, sets)
    ratio = {(row["reading"], row["factor"]): row["variance_ratio"] for row in rows}
    # 64 samples know a variance to about 18 %; the median over 80 of them better.
    assert ratio["right", 1.0] == pytest.approx(1, abs=0.18)
    # One hidden layer: linear in the factor, up to its square in the last layer.
    assert ratio["right", 0.5] == pytest.approx(0.5 * ratio["right", 1.0], rel=0.02)
    assert ratio["misread", 1.0] > 50
    passed = evaluation.gaussian_logits(*model, sets)
    samples = evaluation.draw_logits(jax.random.key(2), passed, SETTINGS)
    alone = evaluation.evaluate(samples, sets).figures
    one = next(row for row in rows if (row["reading"], row["factor"]) == ("right", 1.0))
    assert {k: one[k] for k in alone} == pytest.approx(alone, rel=1e-4, abs=1e-5)


def test_misread_is_exp_of_what_softplus_makes_a_deviation():
    raw = np.array([-6.0, -1.0, 0.5])
    deviation = np.log1p(np.exp(raw))
    weights = {"w": Gaussian(np.zeros(3), jnp.asarray(deviation**2)), "b": np.ones(2)}
    found = evaluation.misread(weights)
    np.testing.assert_allclose(found["w"].var, np.exp(raw), rtol=1e-5)
    np.testing.assert_array_equal(found["b"], weights["b"])


@pytest.mark.slow
def test_the_subset_is_half_ambiguous_and_repeats_nothing(sets):
    images, labels = recipe.subset(jax.random.key(3), SETTINGS, sets)
    assert len(np.unique(images.reshape(8, -1), axis=0)) == 8
    clean = sets.dirty.digits
    for image, label in zip(images[:4], labels[:4], strict=True):
        row = np.flatnonzero((clean.train_images == image).all((1, 2, 3)))
        assert clean.train_labels[row] == label
    for image, label in zip(images[4:], labels[4:], strict=True):
        row = np.flatnonzero((sets.dirty.train_images == image).all((1, 2, 3)))
        assert sets.dirty.train_labels[row, 0] == label


@pytest.mark.slow
def test_the_coordinates_of_the_chains_are_those_of_the_network(sets, model):
    f, posterior = model
    params = jax.tree.map(lambda g: g.mean, posterior, is_leaf=lambda x: isinstance(x, Gaussian))
    units = training.prior_units("fan_in", params)
    assert units["fc1"]["kernel"] == pytest.approx(prior_scales("fan_in", params)["fc1/kernel"])
    assert units["fc2"]["bias"] == 1
    images = sets.test["clean"]
    axes = training.principal_axes(images, "digits")
    np.testing.assert_allclose(axes.T @ axes, np.eye(784), atol=2e-5)  # the prior stays as it is
    turned = training.to_axes(params, units, axes)
    back = training.from_axes(turned, units, axes)
    np.testing.assert_allclose(f(back, images), f(params, images), rtol=1e-3, atol=1e-3)
    assert not np.allclose(
        turned["fc1"]["kernel"] * units["fc1"]["kernel"], params["fc1"]["kernel"]
    )


@pytest.mark.slow
def test_checks_fail_where_they_should(sets, logits):
    figures = evaluation.evaluate(logits, sets).figures
    methods = [f"{n} {m}" for n in findings.PASSES for m in ("svi", "moments")]
    rows = [{"method": m, **figures} for m in (*methods, "mlp-subset svi", "mlp mcmc")]
    sweep = [
        {"network": network, "factor": 1.0, "variance_ratio": 3.0, "reading": reading}
        for network in findings.PASSES
        for reading in ("right", "misread")
    ]
    trainings = {name: {"epoch": 49} for name in ("mlp", "mlp-subset")}
    extra = {"sweep": sweep, "trainings": trainings, "chains": {"max_rhat": 1.2}}
    report = Report("dirty_mnist", "default", {"samples": 100}, rows, extra)
    STUDY.judge(report)
    passed = [check["name"] for check in report.checks if check["passed"]]
    assert all("within" in name for name in passed)  # the same figures throughout: no gap
    assert len(passed) == 6
    assert len(report.checks) == 21
