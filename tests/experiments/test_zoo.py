"""The zoo: what counts as a refusal, and processes that die or hang."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest
from flax import nnx

import jaxeff
from experiments.beyond import trials
from experiments.beyond.trials import Cell, without_folders
from experiments.beyond.zoo import __main__ as zoo
from experiments.beyond.zoo import worker
from experiments.beyond.zoo.cells import COLUMNS, CORES, functional, tried
from experiments.beyond.zoo.models import LOOPS, MODELS, subject
from experiments.beyond.zoo.models.catalogue import ZOO
from experiments.beyond.zoo.models.packages import PACKAGES


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


def test_a_variance_that_is_off_says_whether_it_was_warned_of(monkeypatch):
    def off(s):
        warnings.warn("moments: shared noise", jaxeff.MomentsWarning, stacklevel=1)
        warnings.warn("old package", DeprecationWarning, stacklevel=1)
        return Cell("off", 0.3)

    monkeypatch.setitem(COLUMNS, "off", off)
    assert tried("off", None).words == "moments: shared noise"


@pytest.mark.process
def test_a_process_that_dies_or_hangs_costs_one_cell(tmp_path, monkeypatch):
    worker = tmp_path / "worker"
    worker.write_text(
        '#!/bin/sh\nshift 4\nfor column in "$@"; do\n'
        "[ $column = dies ] && exit 7\n[ $column = hangs ] && exec sleep 60\n"
        "[ $column = computes ] && kill -XCPU $$\n"
        'echo "{\\"task\\": \\"$column\\", \\"status\\": \\"right\\"}"\ndone\n'
    )
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    monkeypatch.setattr(trials, "PATIENCE", 1)
    columns = ["a", "dies", "b", "hangs", "c", "computes", "d"]
    found = list(trials.in_processes("module", ["net"], columns, 5.0))
    assert [(column, cell["status"]) for column, cell in found] == [
        ("a", "right"), ("dies", "crash"), ("b", "right"), ("hangs", "slow"), ("c", "right"),
        ("computes", "slow"), ("d", "right"),
    ]  # fmt: skip
    assert [cell.get("limit") for _, cell in found] == [None, None, None, 5.0, None, 5.0, None]
    assert "7" in found[1][1]["words"]
    assert "5 s of a processor" in found[5][1]["words"]


@pytest.mark.process
def test_a_worker_ends_a_cell_by_what_it_computes_not_by_the_clock():
    code = (
        "import threading, time\nfrom experiments.beyond.trials import allow, watch\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "allow(1)\ntime.sleep(1.5)\nallow(1)\nprint('slept', flush=True)\n"
        "while True: pass"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True
    )
    assert (ended.stdout, ended.returncode) == ("slept\n", -signal.SIGXCPU)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("OSError: no '/tmp/a b/x' and /opt/my-lib.d/lib/libLLVM.so: gone",
         "OSError: no 'a b/x' and libLLVM.so: gone"),
        ("blocks/1/down, */conv and {w}/2 of https://jax.dev/a/b: 1/2 a/b",) * 2,
        ("~/models/net.onnx", "net.onnx"),
    ],
)  # fmt: skip
def test_words_of_a_cell_hold_no_folders_of_the_machine(words, kept):
    assert without_folders(words) == kept


def test_a_package_that_is_absent_costs_no_model(monkeypatch, capsys):
    def build():
        return importlib.import_module("no_such_package_of_models")

    monkeypatch.setitem(PACKAGES, "absent", build)
    # The limit would be that of these tests' process.
    monkeypatch.setattr(trials, "allow", lambda seconds: None)
    worker.main(["60", "absent", "functional", "noisy"])
    cells = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(cell["task"], cell["status"]) for cell in cells] == [
        ("functional", "absent"), ("noisy", "absent"),
    ]  # fmt: skip
    assert "no_such_package_of_models" in cells[0]["words"]
    assert set(PACKAGES) - {"absent"} < set(MODELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18-real", 11_689_512), ("resnet50-real", 25_557_032),
        ("mobilenetv2-real", 3_504_872), ("mobilenetv3-real", 2_542_856),
        ("efficientnet-b0-real", 5_288_548),
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


def test_models_with_loops_are_tried_on_every_core(monkeypatch):
    tried = {}

    def in_processes(module, arguments, columns, limit):
        tried[arguments[0]] = columns
        yield from ()

    monkeypatch.setattr(zoo, "in_processes", in_processes)

    class Everything:
        settings = zoo.Settings()

        def stream(self, tasks, make, again):
            return [row for _, rows in make(tasks) for row in rows]

    zoo.cells(Everything())
    assert set(LOOPS) < set(tried)
    for model, columns in tried.items():
        assert set(CORES) & set(columns) == (set(CORES) if model in LOOPS else set())
        assert set(COLUMNS) - set(CORES) <= set(columns)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_models_with_loops_are_loops_and_right_on_a_core(name):
    model = subject(name)
    equations = jax.make_jaxpr(model.f)(model.params, *model.args).eqns
    # Shorter ones are written out step by step.
    (steps,) = [e.params["length"] for e in equations if e.primitive.name == "scan"]
    assert steps > 8
    status = COLUMNS["cortex-m4"](model).status
    assert status == ("right" if shutil.which("arm-none-eabi-gcc") else "absent")
