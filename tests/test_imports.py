"""What importing must not load: each would be paid by all who never use it."""

import subprocess
import sys

import jax
import pytest

from jaxeff.core import optional
from jaxeff.data import _formats, two_moons
from jaxeff.reporting import _page

JAX = {"flax", "jax", "jaxeff", "numpy", "tvm"}
HELP = (
    "from typer.testing import CliRunner; from jaxeff_export.cli import app; "
    "call = CliRunner().invoke; assert not any(call(app, line).exit_code for line in "
    "(['--help'], ['--version'], ['compile', '--help'], ['tune', '--help']))"
)
HEAVY = {
    "arviz", "blackjax", "distrax", "matplotlib", "numpyro", "pandas", "scipy.optimize",
    "scipy.stats", "sklearn", "tensorflow_probability", "tvm",
}  # fmt: skip


def loaded(statement: str, names: set[str]) -> set[str]:
    """Those of some modules that are loaded after a statement, in a fresh interpreter."""
    check = f"import sys; {statement}; print(*({names!r} & sys.modules.keys()))"
    command = [sys.executable, "-c", check]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.process
@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("import jaxeff", HEAVY),
        ("import jaxeff.nn, jaxeff.training, jaxeff.hardening", HEAVY),
        ("import jaxeff.photonics", HEAVY),
        ("import jaxeff_export", HEAVY | JAX),
        (HELP, HEAVY | JAX),
        ("import jaxeff_export; jaxeff_export.Bundle, jaxeff_export.tune", HEAVY),
    ],
)
def test_importing_loads_nothing_heavy(statement, names):
    assert loaded(statement, names) == set()


def test_what_is_loaded_is_seen():
    assert loaded("from jaxeff.photonics import BoseEinstein", HEAVY) >= {"distrax"}


@pytest.mark.process
def test_without_distrax_the_rest_works_and_the_way_out_is_named():
    statement = (
        "import sys; sys.modules['distrax'] = None\n"
        "import jax\n"
        "from jaxeff.photonics import photon_counts\n"
        "photon_counts(jax.random.key(0), jax.numpy.ones(3), 2.0, (3,))\n"
        "try: from jaxeff.photonics import BoseEinstein\n"
        "except ModuleNotFoundError as error: print(error)\n"
        "try: from jaxeff.photonics import Nothing\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True)
    assert "pip install 'jaxeff[distrax]'" in run.stdout, run.stderr
    assert "cannot import name 'Nothing' from 'jaxeff.photonics'" in run.stdout


@pytest.mark.parametrize(
    ("module", "needs", "extra"),
    [
        ("sklearn.datasets", lambda: two_moons(jax.random.key(0), 20), "data"),
        ("sklearn.datasets", _formats.digits, "data"),
        ("sklearn.datasets", _formats.digits_ood, "data"),
        ("jinja2", lambda: _page._rendered("page.html", None), "report"),
        ("matplotlib", lambda: _page._figure(lambda axes: None, ""), "report"),
    ],
)
def test_an_extra_that_is_missing_is_named(monkeypatch, module, needs, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"optional: pip install 'jaxeff\[{extra}\]'"):
        needs()


def test_what_an_optional_module_lacks_itself_is_said_as_it_is(monkeypatch, tmp_path):
    (tmp_path / "half_installed.py").write_text("import gone_with_the_wind\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'gone_with_the_wind'"):
        optional("half_installed", "a test", "none")
