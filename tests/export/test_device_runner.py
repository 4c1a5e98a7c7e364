"""The file in every bundle that runs it on a device: alone, and refusing what it should."""

import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from damaged import reseal
from jaxeff_export import Bundle
from jaxeff_export.boards._sysroot import Sysroot
from jaxeff_export.bundle.files import FILES, MANIFEST, PROGRAM
from jaxeff_export.runtime import _device_runner as device_runner
from small_network import inputs

# Neither JAX nor this library: what a device has.
BARE = """
import runpy, sys
for name in ("jax", "jaxlib", "jaxeff", "jaxeff_export", "flax", "typer", "rich"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def folder(deployed_mlp, tmp_path):
    """A copy to damage."""
    return shutil.copytree(deployed_mlp.folder, tmp_path / "copy")


def refusal(capsys, monkeypatch, folder, *arguments):
    """What the program says to a bundle or to arguments that it refuses."""
    monkeypatch.setattr(sys, "argv", ["run.py", "--bundle", str(folder), *map(str, arguments)])
    assert device_runner.main() == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.process
def test_it_runs_without_jax_and_without_this_library(deployed_mlp, tmp_path):
    x = np.asarray(inputs(seed=3))
    np.savez(tmp_path / "in.npz", x=x)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    program = str(deployed_mlp.folder / PROGRAM)
    what = ("in.npz", "out.npz", "--check", "--benchmark", "--profile", "--threads", "1")
    done = subprocess.run(
        [sys.executable, "-c", BARE, program, *what],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("agrees with JAX") == 4
    assert "over 10 x 10 calls" in done.stdout
    for operator in deployed_mlp.profile(number=1):
        assert operator.name in done.stdout
    ours = dict(np.load(tmp_path / "out.npz"))
    names = [spec.name for spec in deployed_mlp.manifest.outputs]
    assert list(ours) == names
    for name, theirs in zip(names, jax.tree.leaves(deployed_mlp.run(x)), strict=True):
        np.testing.assert_array_equal(ours[name], theirs)


@pytest.mark.arm
def test_it_runs_on_the_emulated_board(mlp_for_a72, emulator):
    sysroot = Sysroot.default()
    done = subprocess.run(
        sysroot.command("cortex-a72", [str(mlp_for_a72.folder / PROGRAM)]),
        env=sysroot.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees with JAX") == 4


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_damage_is_refused_and_the_file_named(folder, capsys, monkeypatch, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 0x01
    (folder / name).write_bytes(content)
    assert f"{name} is damaged" in refusal(capsys, monkeypatch, folder)
    (folder / name).unlink()
    assert name in refusal(capsys, monkeypatch, folder)


@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
def test_results_replace_files_alone(deployed_mlp, tmp_path, capsys, monkeypatch, kind):
    np.savez(tmp_path / "in.npz", x=np.asarray(inputs(seed=3)))
    place = tmp_path / "out.npz"
    os.mkfifo(place) if kind == "pipe" else place.symlink_to("/dev/null")
    arguments = (tmp_path / "in.npz", place)
    assert "is no regular file" in refusal(capsys, monkeypatch, deployed_mlp.folder, *arguments)
    assert place.is_fifo() if kind == "pipe" else place.is_symlink()


def test_a_manifest_that_is_no_object_is_refused(folder, capsys, monkeypatch):
    (folder / MANIFEST).write_text("[]")
    assert f"{MANIFEST} is damaged" in refusal(capsys, monkeypatch, folder)


def test_a_wrong_result_is_an_exit_status(folder, capsys, monkeypatch):
    monkeypatch.setenv("TVM_USE_RUNTIME_LIB", "1")  # so that what it sets is undone
    monkeypatch.setattr(sys, "argv", ["run.py", "--bundle", str(folder)])
    monkeypatch.setattr(device_runner, "deviation", lambda ours, theirs: (2.0, 1.0))
    assert device_runner.main() == 1
    assert "DISAGREES with JAX, max abs error 2" in capsys.readouterr().out


def test_nan_agrees_with_nan_alone():
    nan, one = np.float32([np.nan, 1]), np.float32([1, 1])
    assert device_runner.deviation(nan, nan)[0] == 0
    assert np.isnan(device_runner.deviation(one, nan)[0])
    assert not device_runner.deviation(nan, one)[0] <= 1


def test_a_foreign_bundle_is_refused(folder, capsys, monkeypatch):
    manifest = Bundle.load(folder).manifest
    reseal(folder, processor_features=(*manifest.processor_features, "telepathy"))
    assert "this processor lacks telepathy" in refusal(capsys, monkeypatch, folder)
    reseal(folder, processor_features=(), versions={**manifest.versions, "apache-tvm": "0.1"})
    assert "pip install apache-tvm==0.1" in refusal(capsys, monkeypatch, folder)
    reseal(folder, machine="riscv64", target_name="some-riscv")
    assert "is for riscv64 (some-riscv), this machine" in refusal(capsys, monkeypatch, folder)
    assert "is no bundle" in refusal(capsys, monkeypatch, folder.parent)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3)}, "has no array x; it needs x"),
        ({"x": np.zeros((2, 8))}, "input x is float64[2, 8], the library was compiled for float32"),
        ({"x": np.zeros(3, np.float32)}, "input x is float32[3]"),
        ({"x": np.array([None])}, "no readable npz file"),
        (None, "no readable npz file"),
    ],
)
def test_wrong_inputs_are_refused(deployed_mlp, capsys, monkeypatch, tmp_path, arrays, message):
    monkeypatch.setenv("TVM_USE_RUNTIME_LIB", "1")
    if arrays is None:
        (tmp_path / "in.npz").write_bytes(b"PK nonsense")
    else:
        np.savez(tmp_path / "in.npz", **arrays)
    asked = (deployed_mlp.folder, tmp_path / "in.npz", tmp_path / "out.npz")
    assert message in refusal(capsys, monkeypatch, *asked)
    assert not (tmp_path / "out.npz").exists()
