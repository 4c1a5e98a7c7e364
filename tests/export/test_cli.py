"""The command line: what it prints, and that a failure is one line and an exit status."""

import json
import platform
import shutil
import socket
import sys
from importlib import metadata

import jax
import numpy as np
import pytest
from command_line import call, refused
from jaxeff_export import BoardError, Bundle, export, target_names
from jaxeff_export.boards import emulated
from small_network import inputs, mlp, parameters


@pytest.fixture
def folder(deployed_mlp):
    return deployed_mlp.folder


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """A saved artifact, its arrays beside it."""
    path = tmp_path_factory.mktemp("cli") / "mlp.zip"
    exported = export(mlp, (parameters(), inputs()))
    exported.save(path)
    leaves = jax.tree.leaves((parameters(), inputs()))
    named = {spec.name: leaf for spec, leaf in zip(exported.inputs, leaves, strict=True)}
    np.savez(path.with_suffix(".npz"), **named)
    return path


def test_help_names_the_commands_and_their_arguments():
    listed = call("--help").stdout
    for command in (
        "compile", "inspect", "check", "run", "generate", "benchmark", "profile", "model", "report",
        "search", "spotter", "hear",
        "targets", "boards", "prepare", "c", "tune",
    ):  # fmt: skip
        assert command in listed
        assert "--help" in call(command, "--help").stdout
    assert "rpc://tracker:port/key" in listed
    assert "--install-completion" in listed


def test_version():
    assert call("--version").stdout == f"jaxeff {metadata.version('jaxeff')}\n"


def rows(result):
    """The lines of a table by their first column."""
    assert result.exit_code == 0, result.output
    lines = [line.split("│") for line in result.stdout.splitlines() if line.startswith("│")]
    return {line[1].strip(): " ".join(line[2:-1]) for line in lines}


def test_a_page_about_a_bundle(folder, deployed_mlp, tmp_path):
    page = tmp_path / "page.html"
    assert "page.html" in call("report", folder, page, "--title", "a <small> net").stdout
    text = page.read_text()
    assert "a &lt;small&gt; net" in text
    assert "local agrees with JAX" in text
    for name, facts in deployed_mlp.manifest.files.items():
        assert name in text
        assert facts["sha256"][:16] in text
    assert refused(call("report", folder, tmp_path / "page.pdf"), "as .pdf")


def test_accuracy_over_a_file(folder, tmp_path):
    x = np.concatenate([inputs(seed) for seed in range(3)])
    hidden = mlp(parameters(), x)["hidden"][0]  # the first result
    labels = np.asarray(hidden).argmax(1)
    labels[0] = (labels[0] + 1) % 16
    np.savez(tmp_path / "test.npz", x=x, labels=labels)
    said = " ".join(call("check", folder, "--data", tmp_path / "test.npz").stdout.split())
    assert "of 6 examples: accuracy 0.8333 (JAX: 0.8333), 6 decided as by JAX" in said
    call("report", folder, tmp_path / "page.md", "--data", tmp_path / "test.npz")
    assert "accuracy 0.8333" in (tmp_path / "page.md").read_text()
    np.savez(tmp_path / "wrong.npz", y=x)
    assert refused(call("check", folder, "--data", tmp_path / "wrong.npz"), "no array x")
    np.savez(tmp_path / "short.npz", x=x, labels=labels[:2])
    call("report", folder, tmp_path / "page.md", "--data", tmp_path / "short.npz")
    assert "Not checked over data" in (tmp_path / "page.md").read_text()


def test_targets_are_listed(monkeypatch):
    listed = rows(call("targets"))
    assert list(listed) == list(target_names())
    assert platform.machine() in listed["host"]
    monkeypatch.setenv("PATH", "")
    assert "no: no C compiler found" in rows(call("targets"))["host"]


def test_boards_are_listed(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXEFF_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda command: command)
    listed = rows(call("boards"))
    assert set(listed) >= {"local", "rpc://host:port", "rpc://tracker:port/key", "emulated[:core]"}
    assert listed["local"].split()[-1] == "yes"
    assert "no: the emulated board is not set up yet" in listed["emulated[:core]"]
    monkeypatch.setattr(shutil, "which", lambda command: None)
    assert "no: qemu-aarch64 not found" in rows(call("boards"))["emulated[:core]"]


def test_inspect(folder, artifact):
    result = call("inspect", folder)
    assert result.exit_code == 0
    for text in ("params['w1'].mean", "8×16", "result['logits'].var", "library.so", "intact"):
        assert text in result.stdout
    result = call("inspect", artifact)
    assert result.exit_code == 0
    assert [line.split()[1] for line in result.stdout.splitlines() if "params['b1']" in line] == [
        "parameter"
    ]


def test_check_benchmark_and_profile(folder, deployed_mlp):
    result = call("check", folder)
    assert result.exit_code == 0
    assert "local agrees with JAX" in result.stdout
    result = call("benchmark", folder, "--number", 2, "--repeat", 3)
    assert result.exit_code == 0
    assert "over 3 × 2 calls" in result.stdout
    result = call("profile", folder)
    assert result.exit_code == 0
    for operator in deployed_mlp.profile(number=1):
        assert operator.name in result.stdout


def test_a_board_that_fails_does_not_cost_the_others(folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"rpc://127.0.0.1:{free.getsockname()[1]}"
    boards = ("--board", gone, "--board", "local", "--board", "local")
    result = call("check", folder, *boards)
    assert refused(result, f"{gone}: nothing answers at")
    assert result.stdout.count("local agrees with JAX") == 2
    result = call("benchmark", folder, *boards)
    assert refused(result, f"{gone}: nothing answers at")
    assert result.stdout.count("local: median") == 2
    table = [line for line in result.stdout.splitlines() if line.startswith("│")]
    assert ["failed" in row for row in table] == [True, False, False]


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


@pytest.mark.slow
def test_a_c_library_is_written_and_what_it_takes_is_printed(deployed_mlp, tmp_path):
    direct = deployed_mlp.export_c(tmp_path / "direct", name="net")
    result = call("c", deployed_mlp.folder, tmp_path / "net", "--steps")
    assert result.exit_code == 0, result.output
    for what, size in direct.sizes.to_json().items():
        assert f"{what}: {size:,} bytes\n" in result.stdout
    calls = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[:3]] for row in calls] == [
        [step.kernel, f"{step.parameters:,}", f"{step.reads:,}"] for step in direct.steps
    ]
    header = (tmp_path / "net" / "net.h").read_text()  # named as the folder is
    assert header == (tmp_path / "direct" / "net.h").read_text()
    # Parameters in a file of their own, and the code as one file of C.
    result = call("c", deployed_mlp.folder, tmp_path / "other", "--blob", "--source", "--name", "n")
    assert result.exit_code == 0, result.output
    files = {path.name for path in (tmp_path / "other").iterdir()}
    assert files >= {"n.c", "n.h"}
    assert not any(name.endswith(".a") for name in files)
    # What doesn't fit leaves nothing behind.
    assert refused(call("c", deployed_mlp.folder, tmp_path / "b", "--flash", "100"), "flash: ")
    assert not (tmp_path / "b").exists()


def test_preparing_says_each_step_and_its_failure(monkeypatch):
    def prepared(progress):
        progress("fetching one of two")
        raise BoardError("apt-get failed:\nno network")

    monkeypatch.setattr(emulated, "prepare", prepared)
    result = call("prepare")
    assert result.stdout == "fetching one of two\n"
    assert refused(result, "error: apt-get failed: no network")


def test_a_defect_keeps_its_traceback(monkeypatch):
    def broken(progress):
        raise ZeroDivisionError("no error of this package")

    monkeypatch.setattr(emulated, "prepare", broken)
    result = call("prepare")
    assert isinstance(result.exception, ZeroDivisionError)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        (("--folder", "kept"), "what was measured is in kept"),
        ((), "nothing was kept (--folder)"),
    ],
)
def test_a_search_that_is_stopped_says_what_is_kept(monkeypatch, more, kept):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxeff_export.cli._searching._require_searchable", stopped)
    result = call("search", "module:function", "bundle", *more)
    assert result.exit_code == 130
    assert result.stderr == f"error: stopped; {kept}\n"


@pytest.mark.slow
def test_compile_an_artifact(artifact, folder, tmp_path):
    arrays = ("--arrays", artifact.with_suffix(".npz"))
    result = call("compile", artifact, tmp_path / "mlp", *arrays)
    assert result.exit_code == 0, result.output
    for step in ("importing StableHLO", "compiling for host", "linking"):
        assert step in result.stdout
    made, direct = Bundle.load(tmp_path / "mlp"), Bundle.load(folder)
    assert made.check().passed
    assert made.manifest.parameters == direct.manifest.parameters
    ours, theirs = made.run(inputs(seed=5)), direct.run(inputs(seed=5))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_compile_a_function_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import jax.numpy as jnp\n"
        "def double():\n"
        "    return lambda p, x: p * x, (jnp.float32(2), jnp.arange(3.0))\n"
        "def nothing():\n"
        "    return 1\n"
        "def unequal():\n"
        "    return lambda p, x: p + x, (jnp.ones(2), jnp.ones(3))\n"
        "def broken():\n"
        "    return {}['weights']\n"
        "def swapped():\n"
        "    return (jnp.float32(2),), lambda p: p\n"
        "def alone():\n"
        "    return lambda x: 2 * x, (jnp.arange(3.0),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = call("compile", "my_models:double", "double")
    assert result.exit_code == 0, result.output
    doubled = Bundle.load("double").run(np.float32([1, 2, 3]))
    np.testing.assert_array_equal(doubled, np.float32([2, 4, 6]))
    assert refused(call("compile", "my_models:alone", "alone"), "x is the only argument")
    result = call("compile", "my_models:alone", "alone", "--parameters", 0)
    assert result.exit_code == 0, result.output
    assert Bundle.load("alone").manifest.arguments == ("x",)
    for source in ("my_models:nothing", "my_models:missing", "no_such_module:f"):
        assert refused(
            call("compile", source, "b"), f"{source} gives no (f, (parameters, *inputs))"
        )
    for source, place in (("unequal", "line 7, in <lambda>"), ("broken", "line 9, in broken")):
        failed = call("compile", f"my_models:{source}", "b")
        assert refused(failed, f"my_models.py, {place}: ")
    # What it returned is named, in place of an error from wherever it goes next.
    swapped = call("compile", "my_models:swapped", "b")
    assert refused(swapped, "gives no (f, (parameters, *inputs)), but <class 'tuple'>")
    monkeypatch.delitem(sys.modules, "my_models")
    (tmp_path / "unfinished.py").write_text("def f(:\n")
    assert refused(call("compile", "unfinished:f", "b"), "(unfinished.py, line 1)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "nothing"), "nothing is no bundle"),
        (("inspect", "BAD"), "bad.npz is damaged or no artifact"),
        (("check", "BUNDLE", "--board", "pi"), "unknown board 'pi'"),
        (("check", "DAMAGED"), "library.so is damaged"),
        (("benchmark", "BUNDLE", "--board", "emulated"), "is not timed"),
        (("profile", "BUNDLE", "--board", "emulated"), "is not timed"),
        (("profile", "BUNDLE", "--board", "rpc://127.0.0.1:1"), "nothing answers at 127.0.0.1:1"),
        (("run", "BUNDLE", "BAD", "out.npz"), "has no array x"),
        (("run", "BUNDLE", "WRONG", "out.npz"), "input x has shape (3,)"),
        (("run", "BUNDLE", "nothing.npz", "out.npz"), "nothing.npz is no readable npz"),
        (("run", "BUNDLE", "WRONG", "nowhere/out.npz"), "there is no folder nowhere"),
        (("run", "BUNDLE", "WRONG", "."), "is a folder; name a file"),
        (("compile", "nothing.zip", "b"), "nothing.zip cannot be read"),
        (("compile", "ARTIFACT", "b"), "no npz file was given, so there is no array params['b1']"),
        (("compile", "ARTIFACT", "b", "--arrays", "BAD"), "bad.npz has no array params['b1']"),
        (("compile", "ARTIFACT", "b", "--target", "pi"), "unknown target 'pi'"),
        (("compile", "ARTIFACT", "b", "--target", "cortexm4"), "did you mean 'cortex-m4'?"),
        (("compile", "ARTIFACT", "b", "--target", "{llvm"), "--target is no JSON"),
        (("compile", "ARTIFACT", "b", "--arrays", "ARRAYS", "--target", "NOCPU"), "LLVM knows no"),
        (("compile", "ARTIFACT", "b", "--database", "nowhere"), "there is no folder nowhere"),
        (("compile", "ARTIFACT", ".", "--arrays", "ARRAYS"), "holds other files"),
        (("compile", "ARTIFACT", "b", "--any-batch"), "is an artifact of fixed shapes"),
        (("c", "BUNDLE", "b", "--ram", "1 GiB"), "'1 GiB' is no number of bytes"),
        (("c", "BUNDLE", "b", "--style", "make"), "style"),
    ],
)
def test_failures_are_one_line(folder, artifact, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    np.savez("bad.npz", y=np.zeros(3))
    np.savez("wrong.npz", x=np.zeros(3))
    if "DAMAGED" in arguments:
        shutil.copytree(folder, "damaged")
        (tmp_path / "damaged" / "library.so").write_bytes(b"\x7fELF")
    names = {
        "BUNDLE": folder,
        "DAMAGED": "damaged",
        "BAD": "bad.npz",
        "WRONG": "wrong.npz",
        "ARTIFACT": artifact,
        "ARRAYS": artifact.with_suffix(".npz"),
        "NOCPU": json.dumps({"kind": "llvm", "mcpu": "abacus"}),
    }
    before = sorted(tmp_path.iterdir())
    assert refused(call(*(names.get(argument, argument) for argument in arguments)), message)
    assert sorted(tmp_path.iterdir()) == before
