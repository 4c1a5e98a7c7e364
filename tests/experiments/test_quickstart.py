"""The main job runs end to end, reports what it promises, and goes on where it was stopped."""

import json
import os
import shutil

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.quickstart import recipe, training
from experiments.quickstart.__main__ import app
from experiments.report import make_console

ARM = all(map(shutil.which, ("aarch64-linux-gnu-gcc", "qemu-aarch64")))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    arm = "--arm" if ARM or os.environ.get("JAXEFF_REQUIRE_ARM") else "--no-arm"
    path = folder / "out.json"
    arguments = ["--data", "digits", "--fast", arm, "--results", folder, "--json", path]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder, json.loads(path.read_text()), result.output


def test_the_report_is_complete(run):
    _, report, output = run
    assert {"config", "versions", "rows", "checks", "dataset", "methods"} <= set(report)
    assert report["dataset"] == "digits"
    for method in ("deterministic", "svi30", "moments"):
        for name in (method, f"{method}_tvm"):
            figures = report["methods"][name]
            assert {"accuracy", "nll", "ece", "auroc", "latency_ms"} <= set(figures)
            assert name in output
        assert report["methods"][f"{method}_tvm"]["max_abs_error"] < 1e-4
    assert [row["method"] for row in report["rows"]] == list(report["methods"])
    assert "FAILED" not in output


def test_compiled_methods_have_the_figures_of_jax(run):
    methods = run[1]["methods"]
    for method in ("deterministic", "svi30", "moments"):
        for figure in ("accuracy", "nll", "auroc"):
            ours, compiled = methods[method][figure], methods[f"{method}_tvm"][figure]
            assert compiled == pytest.approx(ours, abs=3e-3)


@pytest.mark.arm
@pytest.mark.skipif(
    not (ARM or os.environ.get("JAXEFF_REQUIRE_ARM")),
    reason="needs gcc-aarch64-linux-gnu and qemu-user",
)
def test_arm_libraries_agree_with_jax(run):
    methods = run[1]["methods"]
    for method in ("deterministic", "moments"):
        assert methods[f"{method}_cortex-a72"]["agrees"]


def test_a_figure_is_drawn(run):
    picture = run[0] / "quickstart-digits-fast.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_training_goes_on_from_its_checkpoints(run):
    folder = run[0] / "quickstart-digits-fast"
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    settings = recipe.choose("digits", fast=True)
    models = training.train(
        jax.random.key(0), settings, recipe.load(settings), folder, True, make_console()
    )
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(models.posterior))


@pytest.mark.parametrize("name", ["imagenet", "MNIST"])
def test_unknown_data_is_one_clear_error(name):
    result = CliRunner().invoke(app, ["--data", name])
    assert result.exit_code == 2
    assert "choose auto, mnist or digits" in result.output
