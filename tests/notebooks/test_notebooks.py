"""Every notebook runs from its first cell to its last, and shows what is kept of it.

The same cells print, show tables and draw; words are the same, and numbers within the errors that
cells state (`executed.py`). Outputs that are of other code than the notebook has are found without
running it.

nbclient runs in a process of its own: it leaves sockets and event loops to the garbage collector,
which would warn in whatever test comes next.
"""

import re

import nbformat
import pytest

from tests.notebooks.executed import (
    CODE,
    NOTEBOOKS,
    code_cells,
    code_hash,
    differences,
    execute,
    shown,
)

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
LARGEST = 200_000
"""Bytes of a notebook, figures included."""


def kinds(cell):
    """What a cell shows, without warnings; a stream in several pieces is one."""
    shown = {f"stream/{o.name}" for o in cell.outputs if o.output_type == "stream"}
    shown |= {kind for o in cell.outputs for kind in o.get("data", ())}
    return shown - {"stream/stderr"}


def test_there_are_notebooks():
    assert PATHS


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_outputs_are_kept_whole_small_and_clean(path):
    cells = code_cells(path)
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert not any(o.output_type == "error" or o.get("name") == "stderr" for o in outputs)
    assert not any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs)
    text = path.read_text()
    assert len(text) < LARGEST
    assert not re.search(r"/(tmp|home|root|work|Users)/|site-packages", text)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_first_cell_installs_what_is_missing(path):
    first = code_cells(path)[0].source
    assert '%pip install -q -c clone/constraints.txt "./clone[all]"' in first
    # Where the package is, as here, nothing is installed.
    assert re.search(r'^if importlib.util.find_spec\("jaxeff"\) is None:', first, re.M)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_outputs_are_of_the_code_that_is_shown(path):
    again = f"`python -m tests.notebooks.executed {path.stem}` executes it again"
    assert nbformat.read(path, as_version=4).metadata.get(CODE) == code_hash(path), again


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_no_object_is_shown_as_its_fields(path):
    """A `Timing(board='local', number=10, ...)` is for programs; a reader is told in words."""
    for cell in code_cells(path):
        assert not re.search(r"(?m)^[A-Z]\w+\(\w+=", shown(cell)), shown(cell)


def cell(text, error=None):
    """A cell that prints a text."""
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    metadata = {"error": error} if error else {}
    return nbformat.v4.new_code_cell("print()", outputs=outputs, metadata=metadata)


@pytest.mark.parametrize(
    ("kept", "here", "error", "same"),
    [
        ("2 bits: 85.0 %", "2 bits: 47.8 %", None, False),
        ("2 bits: 85.0 %", "2 bits: 83.1 %", None, True),
        ("2 bits: 85.0 %", "2 bits: 47.8 %", {"points": 40}, True),
        ("'2': '85.0%'", "'2': '47.8%'", None, False),
        ("midpoint 2.19 ± 0.01", "midpoint 2.20 ± 0.02", None, True),
        ("midpoint 2.19 ± 0.01", "midpoint 2.90 ± 0.01", None, False),
        ("error 4.77e-06", "error 1.2e-07", None, True),
        ("39 µs for 10 images", "80 µs for 10 images", None, True),
        ("conv1 4", "conv2 4", None, False),
        ("│ fc1  │ 100 │", "│ fc1 │ 100 │", None, True),
        ("one\ntwo", "one", None, False),
        ("fc1 64 of 256 int8", "fc1 256 of 256 float", {"words": False}, True),
        ("fc1 64\nfc2 32", "fc1 64", {"words": False}, False),
    ],
)
def test_what_is_shown_is_compared(kept, here, error, same):
    assert (not differences(cell(kept, error), cell(here))) == same


@pytest.mark.document
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_shows_what_is_kept(path, tmp_path):
    cells, kept = code_cells(execute(path, tmp_path)), code_cells(path)
    assert [kinds(c) for c in cells] == [kinds(c) for c in kept]
    assert any("image/png" in kinds(c) for c in cells)
    wrong = [
        line for one, other in zip(kept, cells, strict=True) for line in differences(one, other)
    ]
    assert not wrong, "\n".join(wrong)
