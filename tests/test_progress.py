"""A bar where somebody looks, lines in a log that asks for them, silence elsewhere."""

import io

import nbformat
import pytest
from nbclient import NotebookClient
from rich.console import Console

from jaxeff.core import _progress as progress
from jaxeff.core import progress_bar


def shown(show, **console):
    out = io.StringIO()
    target = Console(file=out, width=200, force_jupyter=False, **console)
    with progress_bar(show, "epoch", 4, 1, console=target) as advance:
        for i in range(3):
            advance(1, f"loss [{i}]")
    return out.getvalue()


@pytest.mark.parametrize("show", [None, False])
def test_a_log_file_is_left_alone(show):
    assert shown(show, force_terminal=False) == ""


def test_a_terminal_shows_a_bar_unless_told_not_to():
    assert "4/4" in shown(None, force_terminal=True)
    assert "loss [2]" in shown(True, force_terminal=True)
    assert shown(False, force_terminal=True) == ""


def test_a_log_file_that_is_asked_for_gets_a_line_now_and_then(monkeypatch):
    assert shown(True, force_terminal=False) == "epoch 4/4  loss [2]\n"
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    first, *_, last = shown(True, force_terminal=False).splitlines()
    assert first.startswith("epoch 2/4")
    assert first.endswith("loss [0]")
    assert last == "epoch 4/4  loss [2]"


def test_an_error_passes_through_and_says_how_far_it_came():
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, force_jupyter=False)
    with pytest.raises(RuntimeError), progress_bar(True, "step", 9, console=console) as advance:  # noqa: PT012
        advance(2, "here")
        raise RuntimeError
    assert out.getvalue().startswith("step 2/9")


def test_pytest_and_pipes_stay_silent(capfd):
    with progress_bar(None, "epoch", 2) as advance:
        advance(2, "loss")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_notebook_shows_a_bar_that_needs_no_widgets():
    cell = """
        from jaxeff.core import progress_bar
        with progress_bar(None, "epoch", 4) as advance:
            for i in range(4):
                advance(1, "loss < 1")
    """
    code = "\n".join(line[8:] for line in cell.splitlines())
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert 'value="1.0000"' in output.data["text/html"]
    assert "loss &lt; 1" in output.data["text/html"]
    assert output.data["text/plain"].startswith("epoch 4/4")
