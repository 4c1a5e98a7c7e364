"""The command line: what it prints, and that a failure is one line and an exit status."""

import numpy as np
import pytest
from jaxeff_export.cli import app
from small_network import inputs, mlp, parameters
from typer.testing import CliRunner


@pytest.fixture
def folder(deployed_mlp):
    return deployed_mlp.folder


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_inspect(folder):
    result = call("inspect", folder)
    assert result.exit_code == 0
    for text in (
        "params['w1'].mean",
        "8×16",
        "derived[0]",
        "result['logits'].var",
        "library.so",
        "intact",
    ):
        assert text in result.stdout


def test_check_and_benchmark(folder):
    result = call("check", folder)
    assert result.exit_code == 0
    assert "local agrees with JAX" in result.stdout
    result = call("benchmark", folder, "--number", 2, "--repeat", 3)
    assert result.exit_code == 0
    assert "over 3 × 2 calls" in result.stdout


def test_run(folder, tmp_path):
    x = np.asarray(inputs(seed=4))
    np.savez(tmp_path / "in.npz", x=x)
    result = call("run", folder, tmp_path / "in.npz", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    expected = np.asarray(mlp(parameters(), x)["logits"].mean)
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(
            out["result['logits'].mean"], expected, atol=1e-5 * np.abs(expected).max()
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "nothing"), "nothing is no bundle"),
        (("check", "BUNDLE", "--board", "pi"), "unknown board 'pi'"),
        (("benchmark", "BUNDLE", "--board", "emulated"), "is not timed"),
        (("benchmark", "BUNDLE", "--number", "0"), "must be positive"),
        (("run", "BUNDLE", "BAD", "out.npz"), "has no array x"),
        (("run", "BUNDLE", "WRONG", "out.npz"), "input x has shape (3,)"),
        (("run", "BUNDLE", "nothing.npz", "out.npz"), "nothing.npz is no readable npz"),
    ],
)
def test_failures_are_one_line(folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    np.savez("bad.npz", y=np.zeros(3))
    np.savez("wrong.npz", x=np.zeros(3))
    names = {"BUNDLE": folder, "BAD": "bad.npz", "WRONG": "wrong.npz"}
    result = call(*(names.get(argument, argument) for argument in arguments))
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out.npz").exists()
