"""A bundle for any batch: what it computes, what it refuses, where it runs."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import Bundle, SignatureError, TuningError, deploy, deploy_artifact, export, tune
from jaxeff_export.artifact import Artifact
from jaxeff_export.cli import app
from small_network import inputs, mlp, parameters
from typer.testing import CliRunner

SIZES = (1, 2, 5, 33)


def pair(params, x, y):
    """Two inputs with a batch, one without."""
    return {"sum": x @ params + y["shift"], "both": jnp.concatenate([x, x]), "n": y["n"] * 2}


PAIR = (jnp.eye(8), jnp.ones((3, 8)), {"shift": jnp.ones((3, 1)), "n": jnp.float32(4)})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("any") / "mlp"
    deploy(mlp, (parameters(), inputs()), path=path, any_batch=True)
    return Bundle.load(path)


@pytest.mark.slow
def test_any_number_of_examples(bundle: Bundle) -> None:
    assert bundle.manifest.inputs[0].shape == ("batch", 8)
    for size in SIZES:
        x = inputs(seed=size, batch=size)
        ours, theirs = bundle.run(x), jax.jit(mlp)(parameters(), x)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_the_self_check_replays_several_batches(bundle: Bundle) -> None:
    assert [pair.batch for pair in bundle.recorded] == [2, 1, 5]
    report = bundle.check()
    assert report.passed
    assert len(report.outputs) == 3 * len(bundle.manifest.outputs)
    assert report.outputs[-1].name.endswith(" of a batch of 5")


def test_inputs_that_do_not_fit_are_named(bundle: Bundle) -> None:
    with pytest.raises(SignatureError, match=r"x has shape \(0, 8\), an empty batch"):
        bundle.run(np.ones((0, 8), np.float32))
    with pytest.raises(SignatureError, match=r"x has shape \(4, 9\).*compiled for \(batch, 8\)"):
        bundle.run(np.ones((4, 9), np.float32))


@pytest.mark.slow
def test_several_inputs_share_their_batch() -> None:
    bundle = deploy(pair, PAIR, any_batch=True)
    shift = np.ones((7, 1), np.float32)
    output = bundle.run(np.ones((7, 8), np.float32), {"shift": shift, "n": np.float32(1)})
    assert output["sum"].shape == (7, 8)
    assert output["both"].shape == (14, 8)
    assert output["n"] == 2
    assert bundle.manifest.outputs[0].shape == ("2*batch", 8)
    with pytest.raises(SignatureError, match="has a batch of 7, input x of 6"):
        bundle.run(np.ones((6, 8), np.float32), {"shift": shift, "n": np.float32(1)})
    with pytest.raises(SignatureError, match=r"y\['shift'\] has a batch of 4, input x of 3"):
        export(pair, (*PAIR[:2], {**PAIR[2], "shift": jnp.ones((4, 1))}), any_batch=True)


@pytest.mark.slow
def test_one_argument_may_have_a_batch_alone() -> None:
    def f(params, x, table):
        return x @ params @ table

    bundle = deploy(f, (jnp.eye(8), jnp.ones((3, 8)), jnp.ones((8, 2))), any_batch=["x"])
    assert [spec.shape for spec in bundle.manifest.inputs] == [("batch", 8), (8, 2)]
    with pytest.raises(SignatureError, match=r"any_batch names params, but .* are x, table"):
        export(f, (jnp.eye(8), jnp.ones((3, 8)), jnp.ones((8, 2))), any_batch=["params"])


def test_a_function_that_needs_its_batch_is_told_so() -> None:
    def f(params, x):
        return x.reshape(3, -1) @ params

    with pytest.raises(SignatureError, match=r"without knowing the batch: .* leave any_batch out"):
        deploy(f, (jnp.eye(8), jnp.ones((3, 8))), any_batch=True)
    with pytest.raises(TypeError, match="dot_general"):  # wrong for every batch: JAX's own words
        deploy(f, (jnp.eye(9), jnp.ones((3, 8))), any_batch=True)


@pytest.mark.slow
def test_an_artifact_for_any_batch_makes_a_bundle_for_any_batch(tmp_path) -> None:
    path = export(mlp, (parameters(), inputs()), any_batch=True).save(tmp_path / "mlp.zip")
    artifact = Artifact.load(path)
    assert artifact.any_batch
    leaves = jax.tree.leaves((parameters(), inputs()))
    arrays = {s.name: np.asarray(v) for s, v in zip(artifact.inputs, leaves, strict=True)}
    bundle = deploy_artifact(artifact, arrays)
    assert bundle.run(inputs(batch=9))["hidden"][0].shape == (9, 16)


def test_it_is_timed_at_a_stated_batch(bundle: Bundle, deployed_mlp: Bundle) -> None:
    assert bundle.benchmark(number=1, repeat=2, batch=17).median_ms > 0
    assert bundle.profile(number=1, repeat=1, batch=17)
    with pytest.raises(SignatureError, match="cannot be set to 17: the shapes are fixed"):
        deployed_mlp.benchmark(number=1, repeat=1, batch=17)
    with pytest.raises(ValueError, match="positive, got 0"):
        bundle.benchmark(batch=0)


def test_tuning_refuses_it(bundle: Bundle, tmp_path) -> None:
    with pytest.raises(TuningError, match="any batch"):
        tune(bundle, tmp_path / "records")


def test_bundles_of_a_fixed_batch_are_written_as_before(deployed_mlp: Bundle) -> None:
    assert b'"format_version": 2' in (deployed_mlp.folder / "manifest.json").read_bytes()
    assert b"batches" not in (deployed_mlp.folder / "manifest.json").read_bytes()


@pytest.mark.process
def test_on_the_device_itself(bundle: Bundle, tmp_path) -> None:
    np.savez(tmp_path / "in.npz", x=np.asarray(inputs(batch=6)))
    program = [sys.executable, str(bundle.folder / "run.py")]
    process = subprocess.run(
        [*program, "in.npz", "out.npz", "--check", "--benchmark", "--batch", "4", "--number", "1"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "of a batch of 5: agrees with JAX" in process.stdout
    with np.load(tmp_path / "out.npz") as results:
        assert results["result['hidden'][0]"].shape == (6, 16)
    np.savez(tmp_path / "in.npz", x=np.ones((0, 8), np.float32))
    process = subprocess.run(
        [*program, "in.npz", "out.npz"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    assert "batches of 0" in process.stderr


@pytest.mark.slow
def test_on_the_emulated_board(emulated_board, tmp_path) -> None:
    deployed = deploy(mlp, (parameters(), inputs()), "cortex-a72", any_batch=True)
    assert deployed.check(emulated_board).passed
    assert deployed.run(inputs(batch=4), board=emulated_board)["hidden"][0].shape == (4, 16)


@pytest.mark.slow
def test_from_the_command_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_model.py").write_text(
        "import jax.numpy as jnp\n"
        "def make():\n    return lambda p, x: jnp.tanh(x @ p), (jnp.eye(4), jnp.ones((2, 4)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = CliRunner().invoke
    assert run(app, ["compile", "own_model:make", "made", "--any-batch"]).exit_code == 0
    assert "batch×4" in run(app, ["inspect", "made"]).output
    assert run(app, ["check", "made"]).exit_code == 0
    timed = run(app, ["benchmark", "made", "--batch", "9", "--number", "1", "--repeat", "1"])
    assert timed.exit_code == 0
