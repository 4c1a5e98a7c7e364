"""The package as others get it: a wheel, installed into a folder, with the checkout out of reach.

What it depends on comes from the environment of the tests, so nothing is downloaded.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import jaxeff

ROOT = Path(__file__).parents[1]
PACKAGES = {"jaxeff": ROOT / "jaxeff", "jaxeff_export": ROOT / "export/jaxeff_export"}

USE = """
import jax, jaxeff, jaxeff_export
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(2)
noisy = jaxeff.noisy(f, {"*": jaxeff.Additive(0.1)})(jax.random.key(0), params, x)
random = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
print(noisy.shape, bool((noisy != f(params, x)).all()))
print(bool((jaxeff.moments(f)(random, x).var > 0).all()))
print(*{m.__file__ for n, m in sys.modules.items() if n.split(".")[0] in PACKAGES}, sep="\\n")
"""


def execute(*command, cwd, **environment):
    """What a command prints."""
    run = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the packages alone, in a folder that is called as a clone is."""
    folder = tmp_path_factory.mktemp("beside") / "jaxeff"
    ignored = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES.values():
        shutil.copytree(package, folder / package.relative_to(ROOT), ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    """A wheel of it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    build = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    execute(*pip, *build, "--wheel-dir", folder, source, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def archive(source, tmp_path_factory):
    """A source archive of it."""
    folder = tmp_path_factory.mktemp("archive")
    build = f"from hatchling.build import build_sdist; build_sdist({str(folder)!r})"
    execute(sys.executable, "-c", build, cwd=source)
    (path,) = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def installed(wheel):
    """A folder that holds the wheel's packages and commands, and nothing else."""
    folder = wheel.parent / "installed"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    execute(sys.executable, "-m", "pip", *install, cwd=wheel.parent)
    return folder


def test_every_file_of_the_packages_is_in_it(wheel):
    there = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md")
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == there
    assert {"jaxeff/py.typed", "jaxeff_export/py.typed"} < held
    assert any(name.endswith("/instrument.c") for name in held)


@pytest.mark.process
def test_the_source_archive_makes_the_same_wheel(archive, wheel, tmp_path):
    with tarfile.open(archive) as members:
        members.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert {each.name for each in source.iterdir()} == {
        "jaxeff", "export", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md",
        "CITATION.cff", "PKG-INFO",
    }  # fmt: skip
    build = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    execute(sys.executable, "-c", build, cwd=source)
    (again,) = tmp_path.glob("*.whl")
    names, others = (set(zipfile.ZipFile(path).namelist()) for path in (again, wheel))
    assert names == others


def test_it_says_who_made_it_and_where_the_methods_are(installed):
    (information,) = installed.glob("*.dist-info")
    said = metadata.PathDistribution(information).metadata
    assert said["Author"] == "The jaxeff authors"
    assert said["Author"] in (ROOT / "CITATION.cff").read_text()
    urls = [each.partition(", ")[2] for each in said.get_all("Project-URL")]
    sources = (ROOT / "docs" / "results" / "sources.md").read_text()
    assert urls
    assert all(f"({url})" in sources for url in urls)


@pytest.mark.process
def test_it_works_without_any_extra(installed, tmp_path):
    """What `package` in the Makefile tries in an environment that has no extra."""
    extras = {
        requirement.partition(">")[0].partition("=")[0].partition("[")[0].replace("-", "_")
        for requirement in metadata.requires("jaxeff")
        if "extra ==" in requirement
    }
    modules = {"apache_tvm": "tvm", "scikit_learn": "sklearn", "apache_tvm_ffi": "tvm_ffi"}
    blocked = {modules.get(name, name) for name in extras}
    needed = {"jaxeff", "numpy", "psutil"}  # psutil comes with Flax's checkpoints too
    script = f"import sys; sys.modules.update(dict.fromkeys({sorted(blocked - needed)!r}))\n" + (
        ROOT / ".ci" / "try.py"
    ).read_text().replace('== "site-packages"', "is not None")
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(installed)}
    execute(sys.executable, "-c", script, cwd=tmp_path, **quick)


def test_the_version_is_said_in_one_place(wheel, installed):
    (information,) = installed.glob("*.dist-info")
    version = metadata.PathDistribution(information).version
    assert version == jaxeff.__version__ == metadata.version("jaxeff")
    assert wheel.name.startswith(f"jaxeff-{version}-py3-")
    assert not re.search(r'^version = "', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_it_works_without_the_checkout(installed, tmp_path):
    use = f"import sys; PACKAGES = {set(PACKAGES)!r}\n{USE}"
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(installed)}
    printed = execute(sys.executable, "-c", use, cwd=tmp_path, **quick)
    noise, moments, *files = printed.splitlines()
    assert noise == "(2, 10) True"
    assert moments == "True"
    assert {Path(file).relative_to(installed).parts[0] for file in files} == set(PACKAGES)


def test_its_command_runs(installed, tmp_path):
    command = installed / "bin" / "jaxeff-export"
    printed = execute(command, "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert all(word in printed for word in ("compile", "check", "benchmark", "inspect"))


def test_a_script_beside_an_editable_clone_imports_the_packages(source, tmp_path):
    """The clone's folder bears the package's name and is on the path of a script beside it."""
    build = f"from hatchling.build import build_editable; build_editable({str(tmp_path)!r})"
    execute(sys.executable, "-c", build, cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = source.parent / "script.py"
    script.write_text(
        "import site\nfrom importlib.util import find_spec\n"
        f"site.addsitedir({str(tmp_path / 'site')!r})\n"
        f"for name in {sorted(PACKAGES)!r}:\n    print(find_spec(name).origin)\n"
    )
    # -S: without what else is installed, of which this package is one.
    places = execute(sys.executable, "-S", script, cwd=source.parent, PYTHONPATH="").split()
    copies = [source / PACKAGES[name].relative_to(ROOT) for name in sorted(PACKAGES)]
    assert places == [str(copy / "__init__.py") for copy in copies]
