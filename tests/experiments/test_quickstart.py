"""The main job runs end to end, reports what it promises, and goes on where it was stopped."""

import contextlib
import io
import json
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.harness import Refused, Report
from experiments.quickstart import models, recipe
from experiments.quickstart.__main__ import STUDY
from jaxeff.data import VARIABLE

pytestmark = pytest.mark.slow
ARM = all(map(shutil.which, ("aarch64-linux-gnu-gcc", "qemu-aarch64")))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    arm = "--arm" if ARM or os.environ.get("JAXEFF_REQUIRE_ARM") else "--no-arm"
    path, said = folder / "out.json", io.StringIO()
    arguments = ["--data", "digits", "--fast", arm, "--results", folder, "--json", path]
    with contextlib.redirect_stdout(said):
        STUDY.main([*map(str, arguments)])
    return folder, json.loads(path.read_text()), said.getvalue()


@pytest.fixture(scope="module")
def methods(run):
    return {row["method"]: row for row in run[1]["rows"]}


def test_the_report_is_complete(run, methods):
    _, report, output = run
    assert {"config", "versions", "rows", "checks", "dataset"} <= set(report)
    assert report["dataset"] == "digits"
    for method in ("deterministic", "svi30", "moments"):
        for name in (method, f"{method}_tvm"):
            assert {"accuracy", "nll", "ece", "auroc", "latency_ms"} <= set(methods[name])
            assert name in output
        assert methods[f"{method}_tvm"]["max_abs_error"] < 1e-4
    assert "FAILED" not in output


def test_compiled_methods_have_the_figures_of_jax(methods):
    for method in ("deterministic", "svi30", "moments"):
        for figure in ("accuracy", "nll", "auroc"):
            ours, compiled = methods[method][figure], methods[f"{method}_tvm"][figure]
            assert compiled == pytest.approx(ours, abs=3e-3)


@pytest.mark.arm
@pytest.mark.skipif(
    not (ARM or os.environ.get("JAXEFF_REQUIRE_ARM")),
    reason="needs gcc-aarch64-linux-gnu and qemu-user",
)
def test_arm_libraries_agree_with_jax(methods):
    for method in ("deterministic", "moments"):
        assert methods[f"{method}_cortex-a72"]["agrees"]


def test_a_figure_is_drawn(run):
    (picture,) = run[0].glob("quickstart-fast*/quickstart.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_training_goes_on_from_its_checkpoints(run):
    (folder,) = run[0].glob("quickstart-fast*")
    work = folder / "work"
    before = {p.name: p.read_bytes() for p in work.iterdir()}
    settings = replace(recipe.SIZES["fast"], data="digits")
    again = SimpleNamespace(key=jax.random.key(0), settings=settings, work=work, say=str)
    trained = models.train(again, recipe.load(settings))
    assert {p.name: p.read_bytes() for p in work.iterdir()} == before
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained.posterior))


def test_part_of_mnist_is_no_reason_for_digits(tmp_path, monkeypatch):
    settings = recipe.SIZES["default"]
    monkeypatch.delenv(VARIABLE, raising=False)
    assert recipe.settle(settings).data == "digits"
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(Refused, match=r"train-labels-idx1-ubyte.*--data digits"):
        recipe.settle(settings)
    assert recipe.settle(replace(settings, data="digits")).data == "digits"


@pytest.mark.parametrize(("auroc", "passed"), [(0.6, False), (0.981, False), (0.99, True)])
def test_detection_that_hardly_detects_is_no_success(auroc, passed):
    rows = [{"method": m, "accuracy": 0.99, "auroc": auroc} for m in ("svi30", "moments")]
    rows.append({"method": "deterministic", "accuracy": 0.99, "auroc": 0.98})
    report = Report("quickstart", "default", {"data": "mnist", "images": 10_000}, rows)
    STUDY.judge(report)
    found = [check["passed"] for check in report.checks if "AUROC" in check["name"]]
    assert found == [passed, passed]


@pytest.mark.parametrize("name", ["imagenet", "MNIST"])
def test_unknown_data_is_one_clear_error(name, capsys):
    with pytest.raises(SystemExit) as left:
        STUDY.main(["--data", name])
    assert left.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
