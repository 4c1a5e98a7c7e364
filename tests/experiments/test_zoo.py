"""The zoo: what counts as a refusal, and processes that die or hang."""

import importlib.util
import json
import sys
import warnings

import jax
import numpy as np
import pytest
from flax import nnx

import jaxeff
from experiments.zoo import __main__ as zoo
from experiments.zoo import worker
from experiments.zoo.cells import COLUMNS, Cell, functional, tried
from experiments.zoo.models import MODELS, subject
from experiments.zoo.models.catalogue import ZOO
from experiments.zoo.models.packages import PACKAGES


def misspelt(s):
    return jaxeff.noisy(lambda p, x: x @ p["w"], {"nowhere": jaxeff.Additive(1.0)})(
        jax.random.key(0), {"w": np.eye(2, dtype=np.float32)}, np.ones((1, 2), np.float32)
    )


def broken(s):
    return {}["x"]


def test_errors_of_the_library_are_refusals_and_others_crashes(monkeypatch):
    monkeypatch.setitem(COLUMNS, "misspelt", misspelt)
    monkeypatch.setitem(COLUMNS, "broken", broken)
    monkeypatch.setitem(COLUMNS, "fine", lambda s: Cell("right", 1.0))
    refused = tried("misspelt", None)
    assert refused.status == "refused"
    assert "nowhere" in refused.words
    assert tried("broken", None) == Cell("crash", None, "KeyError: 'x'")
    assert tried("fine", None).number == 1.0


@pytest.mark.process
def test_a_process_that_dies_or_hangs_costs_one_cell(tmp_path, monkeypatch):
    worker = tmp_path / "worker"
    worker.write_text(
        '#!/bin/sh\nshift 3\nfor column in "$@"; do\n'
        "[ $column = dies ] && exit 7\n[ $column = hangs ] && exec sleep 60\n"
        'echo "{\\"column\\": \\"$column\\", \\"status\\": \\"right\\"}"\ndone\n'
    )
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    found = list(zoo._row("net", ["a", "dies", "b", "hangs", "c"], 5.0))
    assert [(column, cell["status"]) for column, cell in found] == [
        ("a", "right"), ("dies", "crash"), ("b", "right"), ("hangs", "slow"), ("c", "right"),
    ]  # fmt: skip
    assert "7" in found[1][1]["words"]


def test_a_package_that_is_absent_costs_no_model(monkeypatch, capsys):
    def build():
        return importlib.import_module("no_such_package_of_models")

    monkeypatch.setitem(PACKAGES, "absent", build)
    worker.main(["absent", "functional", "noisy"])
    cells = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(cell["column"], cell["status"]) for cell in cells] == [
        ("functional", "absent"), ("noisy", "absent"),
    ]  # fmt: skip
    assert "no_such_package_of_models" in cells[0]["words"]
    assert set(PACKAGES) - {"absent"} < set(MODELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18-real", 11_689_512), ("resnet50-real", 25_557_032),
        ("mobilenetv2-real", 3_504_872), ("efficientnet-b0-real", 5_288_548),
        ("densenet121-real", 7_978_856), ("vit-s16-real", 22_050_664),
    ],
)  # fmt: skip
def test_networks_of_published_sizes_have_the_published_parameters(name, published):
    model = nnx.eval_shape(lambda: ZOO[name][0](nnx.Rngs(0)))
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert sum(leaf.size for leaf in leaves) == published


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PACKAGES))
def test_models_of_packages_are_read_exactly(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that others write
        try:
            model = subject(name)
        except ImportError:
            pytest.skip("jaxeff[zoo] isn't installed")
        assert functional(model).status == "right"
