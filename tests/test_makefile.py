"""`make demo` and `make test` in a clone beside nothing else: the two commands of the README.

Nothing is downloaded: the environment is an empty one that finds the packages of the one that runs
the tests, and pip is without an index, so that what the clone asks for must be there.
"""

import os
import re
import shutil
import site
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = {
    "demo", "docs", "env", "golden", "help", "lint", "nightly", "package", "test"
}  # fmt: skip

OURS = {
    "ARGS", "JAXEFF_DATA", "JAXEFF_VENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON",
    "PYTHONPATH",
}  # fmt: skip
"""Variables that a newcomer has not set; tests may run under `make test` themselves."""


def make(clone, *words, **environment):
    """What `make` prints, which must succeed unless `fails` is what it has to say."""
    fails = environment.pop("fails", None)
    inherited = {name: value for name, value in os.environ.items() if name not in OURS}
    run = subprocess.run(
        ["make", *words], cwd=clone, env=inherited | environment, capture_output=True, text=True
    )
    printed = run.stdout + run.stderr
    if fails is None:
        assert run.returncode == 0, printed
    else:
        assert run.returncode
        assert fails in printed
    return printed


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What is tracked, or about to be, alone in a folder."""
    folder = tmp_path_factory.mktemp("empty") / "jaxeff"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, path, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def offline(clone):
    """Variables under which pip downloads nothing, and an environment that has what it needs."""
    folder = clone / ".venv"
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    # An old one, which Python brings along before 3.12.
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "setuptools"], check=True)
    # Behind the environment's own, so that the clone wins where this checkout is installed too.
    (packages / "zz_tested.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return {
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say "without"
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }


@pytest.mark.process
def test_help_lists_every_target(clone):
    listed = {line.split()[0] for line in make(clone).splitlines()}
    assert listed == TARGETS
    assert make(clone, "help") == make(clone)


@pytest.mark.process
def test_what_is_missing_is_named(clone, tmp_path):
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    elsewhere = {"JAXEFF_VENV": str(tmp_path / "new")}
    make(clone, "env", f"PYTHON={old}", **elsewhere, fails="Python 3.9.2 is none of 3.11 to 3.14")
    make(clone, "env", "PYTHON=no-such-python", **elsewhere, fails="there is no no-such-python")


@pytest.mark.document
def test_both_commands_of_the_readme_run_in_an_empty_folder(clone, offline, tmp_path):
    commands = re.findall(r"^    make (\w+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["demo", "test"]
    printed = make(clone, "demo", "ARGS=--fast --no-arm", **offline)
    assert "installing into .venv" in printed
    # Where the picture lies is said last.
    picture = clone / printed.split()[-1]
    assert picture.name == "quickstart.png"
    assert picture.stat().st_size > 10_000
    # What is made stays, and needs neither pip nor an index.
    tested = make(clone, "test", "ARGS=tests/test_settings.py", PATH=os.environ["PATH"])
    assert "installing" not in tested
    assert " passed" in tested.splitlines()[-1]
    where = "import jaxeff, jaxeff_export as e; print(jaxeff.__file__, e.__file__)"
    inside = subprocess.run(
        [clone / ".venv/bin/python", "-c", where], cwd=tmp_path, capture_output=True, text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    assert [Path(each).is_relative_to(clone) for each in inside.stdout.split()] == [True, True]


@pytest.mark.process
def test_an_environment_is_made_again_where_what_it_is_made_of_changes(clone, tmp_path):
    """With a python that writes down what it is told, in the place of one that installs."""
    folder, said = tmp_path / "env", tmp_path / "said"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{said}\n')
    python.chmod(0o755)
    constraints = clone / "constraints.txt"
    before = constraints.read_text()
    for content, count in ((before, 1), (before, 1), (before + "\n# changed\n", 2)):
        constraints.write_text(content)
        make(clone, "env", JAXEFF_VENV=str(folder))
        assert said.read_text().count("-m pip install") == count
    constraints.write_text(before)
