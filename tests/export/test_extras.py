"""Without packages of the extra, what needs them says in one line what to install."""

import subprocess
import sys

import pytest

WAY_OUT = "pip install 'jaxeff[export]'"


def without(module, code, *arguments):
    """What a program prints and how it ends where a module is not installed."""
    program = f"import sys; sys.modules[{module!r}] = None\n{code}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def command(module, *arguments):
    """A command line where a module is not installed."""
    return without(module, "from jaxeff_export.__main__ import main; main()", *arguments)


def one_line(run):
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.startswith("error: ")
    assert run.stderr.endswith(f"{WAY_OUT}\n")
    return run.stderr


@pytest.mark.process
def test_the_command_without_typer():
    assert "jaxeff-export needs typer" in one_line(command("typer", "--help"))


@pytest.mark.process
def test_a_bundle_without_tvm(deployed_mlp):
    assert "running a bundle needs TVM" in one_line(command("tvm", "check", deployed_mlp.folder))


@pytest.mark.process
def test_compiling_without_tvm(tmp_path):
    lines = command("tvm", "compile", "module:f", tmp_path / "b")
    assert "needs TVM" in one_line(lines)


@pytest.mark.process
def test_lists_without_tvm():
    for listed in (command("tvm", "targets"), command("tvm", "boards")):
        assert listed.returncode == 0, listed.stderr
        assert "needs TVM" in " ".join(listed.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "tvm",
            {
                "deploy(lambda p, x: p * x, (1.0, 2.0))": "deploying needs TVM",
                "deploy(lambda p, x: p * x, (1.0, 2.0), 'cortex-a72')": "deploying needs TVM",
                "import_stablehlo": "jaxeff_export.import_stablehlo needs TVM",
                "boards.emulated.prepare()": "the emulated board needs TVM",
            },
        ),
        (
            "flatbuffers",
            {"export(lambda p, x: p * x, (1.0, 2.0))": "export needs flatbuffers"},
        ),
    ],
)
def test_functions_name_the_way_out(module, said):
    code = (
        "import shutil, jaxeff_export\n"
        "shutil.which = lambda command: command\n"  # qemu, whether it is installed or not
    )
    for call in said:
        code += (
            f"try: jaxeff_export.{call}; print()\n"
            "except jaxeff_export.MissingExtraError as error: print(error)\n"
        )
    run = without(module, code)
    lines = run.stdout.splitlines()
    assert len(lines) == len(said), run.stderr
    for line, (call, what) in zip(lines, said.items(), strict=True):
        assert line.startswith(what), call
        assert line.endswith(WAY_OUT), call
