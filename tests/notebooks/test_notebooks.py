"""Every notebook runs from its first cell to its last, in this interpreter, and keeps its outputs.

Numbers and figures differ from machine to machine, so what is kept is held to what a run shows by
kind: the same cells print, show tables and draw.

nbclient runs in a process of its own: it leaves sockets and event loops to the garbage collector,
which would warn in whatever test comes next.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
EXECUTE = "from nbclient.cli import NbClientApp; NbClientApp.launch_instance()"


LARGEST = 200_000
"""Bytes of a notebook, figures included."""


def code_cells(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def kinds(cell):
    """What a cell shows, without warnings; a stream in several pieces is one."""
    shown = {f"stream/{o.name}" for o in cell.outputs if o.output_type == "stream"}
    shown |= {kind for o in cell.outputs for kind in o.get("data", ())}
    return shown - {"stream/stderr"}


@pytest.fixture
def environment(tmp_path):
    """One in which the kernel python3 is the interpreter that runs the tests."""
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    return {
        **os.environ,
        "JUPYTER_PATH": str(tmp_path / "jupyter"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # no cell shows a time of XLA
    }


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_whole_small_and_clean(path):
    cells = code_cells(path)
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert not any(o.output_type == "error" or o.get("name") == "stderr" for o in outputs)
    assert not any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs)
    text = path.read_text()
    assert len(text) < LARGEST
    assert not re.search(r"/(tmp|home|root|work|Users)/|site-packages", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs_what_is_missing(path):
    first = code_cells(path)[0].source
    assert '%pip install -q -c clone/constraints.txt "./clone[all]"' in first
    # Where the package is, as here, nothing is installed.
    assert re.search(r'^if importlib.util.find_spec\("jaxeff"\) is None:', first, re.M)


@pytest.mark.document
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, environment):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import sys; print(sys.executable)"))
    copy = tmp_path / path.name
    nbformat.write(notebook, copy)
    command = [sys.executable, "-c", EXECUTE, str(copy), "--inplace", "--kernel_name=python3"]
    run = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stderr[-3000:]
    *cells, last = code_cells(copy)
    assert last.outputs[0]["text"].strip() == sys.executable
    assert [kinds(c) for c in cells] == [kinds(c) for c in code_cells(path)]
    assert any("image/png" in kinds(c) for c in cells)
