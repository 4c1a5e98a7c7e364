"""Every Python example of the documentation runs as it is printed, and prints what it shows.

Sybil finds the examples: blocks fenced as ``python``, with or without ``>>>``. It is kept, has no
dependencies, reads Markdown and docstrings alike, and its errors name the line of the document. A
document is one test, its examples run in order and share what they define, but nothing comes from
the module around a docstring: what isn't imported or made there isn't known. All that is hidden
from the reader is the folder they run in.
"""

import ast
import contextlib
import re
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from unittest import SkipTest

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import shown
from documents import ROOT, Text, markdown_files, modules, texts
from sybil import Document, Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

FENCE = re.compile(r"^ *(```|~~~)[^\n]*\n.*?^ *\1 *$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^ *```(python|output)$", re.MULTILINE)
OF_EXAMPLES = ast.Call | ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom


class Docstrings(PythonDocStringDocument):
    """A module's docstrings, without the module's names."""

    def __init__(self, text: str, path: str) -> None:
        Document.__init__(self, text, path)


EXAMPLES = PythonCodeBlockParser()  # with prompts; without, what comments show is compared too
EXAMPLES.codeblock_parser = shown.PYTHON

SYBIL = Sybil(
    parsers=[EXAMPLES, shown.OUTPUT, SkipParser()],
    document_types={".py": Docstrings},
    path=str(ROOT),
)


def _with_examples():
    wrong = []
    for path in (*markdown_files(), *modules()):
        if FENCED.search(path.read_text()):  # parsed where it is run: collecting takes long enough
            wrong.append(pytest.param(path, id=str(path.relative_to(ROOT))))
    return wrong


@pytest.fixture
def no_emulator(request):
    """Why there is no emulated Cortex-A72; empty where there is one."""
    try:
        request.getfixturevalue("arm_linker")
        request.getfixturevalue("emulator")
    except pytest.skip.Exception as reason:
        return str(reason)
    return ""


@pytest.mark.document
@pytest.mark.promotes("dtype")  # optax does
@pytest.mark.filterwarnings("default::jaxeff.bayes.ConvergenceWarning")  # fifty draws of an example
@pytest.mark.filterwarnings("default::jaxeff.MomentsWarning")  # bundles of networks that pool
@pytest.mark.parametrize("path", _with_examples())
def test_examples_run_as_printed(path, request, tmp_path, monkeypatch):
    document = SYBIL.parse(path)
    assert list(document.examples())
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    if "no_emulator" in document.text:
        document.namespace["no_emulator"] = request.getfixturevalue("no_emulator")
    document.namespace["no_onnx"] = not all(map(find_spec, ("onnx", "onnxruntime")))
    found = all(map(find_spec, ("litert_converter", "ai_edge_litert")))
    document.namespace["no_litert"] = not found
    document.namespace["no_torch"] = not all(map(find_spec, ("torch", "torchax")))
    skipped = []
    try:
        for example in document.examples():
            try:
                example.evaluate()
            except SkipTest as reason:
                skipped.append(str(reason))
    finally:
        plt.close("all")
    if skipped:
        pytest.skip(f"all but {len(skipped)} ran: {'; '.join(skipped)}")


def unfenced_code(text: Text) -> list[str]:
    """Paragraphs outside of fences that are Python; no prose is."""
    wrong = []
    for paragraph in re.split(r"\n\s*\n", FENCE.sub("", text.markdown)):
        try:
            tree = ast.parse(textwrap.dedent(paragraph))
        except SyntaxError:
            continue
        if any(isinstance(node, OF_EXAMPLES) for node in ast.walk(tree)):
            wrong.append(paragraph)
    return wrong


@pytest.mark.slow
def test_no_example_escapes():
    found = {text.name: code for text in texts() if (code := unfenced_code(text))}
    assert not found, "fence these as ```python, or as ```text if they aren't examples"


def unfenced_output(text: Text) -> list[str]:
    """Blocks that are said to be printed and aren't fenced as ``output``."""
    block = r"\bprints?\b[^.\n]*\n\n((?:    |```(?!output))[^\n]*)"
    return re.findall(block, text.markdown)


def test_no_output_escapes():
    found = {text.name: lines for text in texts() if (lines := unfenced_output(text))}
    assert not found, "fence these as ```output, which is compared"


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ("print(1 / 3)\n```\n\nIt prints\n\n```output\n0.3333333333333333\n```", None),
        ("print(2)\n```\n\n```output\n3\n```", "it prints:\n2"),
        ("print(2 / 3)  # 0.67, of all\n```", None),
        ("print(2 / 3)  # 0.66\n```", "shown: 0.66"),
        ("if True:\n    print(8_232)  # 7,440 bytes\n```", "it is: 8232"),
        ("print('a', (2, 3))  # (2, 4)\n```", "it is: a .2, 3."),
        ("[0.5, 0.26]  # 0.5 and 0.25\n```", "it is: .0.5, 0.26."),
        ("{'a': 0.5}  # {'a': 0.5, ...}: a dictionary\n```", None),
        ("import numpy as np\nx = np.ones((2, 3))  # float64 [rows, 3]\n```", None),
        ("import numpy as np\nx = np.ones((2, 3))  # [rows, 4]\n```", "it is: float64 .2, 3."),
        ("import numpy as np\nx = np.ones((2, 3))  # float32\n```", "it is: float64"),
        ("import numpy as np\n(x,) = [np.ones(2)]  # [1, 2]\n```", "it is: float64"),
        ("import numpy as np\nnp.zeros((2, 3))  # [2, 3]: zero\n```", None),
    ],
)
def test_what_is_shown_is_compared(tmp_path, block, wrong):
    path = tmp_path / "document.md"
    path.write_text(f"```python\n{block}\n")
    examples = list(SYBIL.parse(path).examples())
    with pytest.raises(shown.ShownError, match=wrong) if wrong else contextlib.nullcontext():
        for example in examples:
            example.evaluate()


def test_output_that_is_not_fenced_is_recognised():
    text = "It prints\n\n    4\n\nIt prints each group:\n\n```text\na\n```\n\n"
    assert len(unfenced_output(Text("text", text + "It prints\n\n```output\n4\n```\n"))) == 2


@pytest.mark.parametrize(
    ("markdown", "count"),
    [
        ("Prose, with a `call(x)` in it.\n\n    y = f(x)\n", 1),
        ("Dedented by mistake.\n\ny = f(x)  # like this\n", 1),
        ("```python\ny = f(x)\n```\n\n```text\nmean = op(E[x])\n```\n", 0),
        ("A formula\n\n    E|s - t| - E|s - s'| / 2\n", 0),
    ],
)
def test_code_outside_of_fences_is_recognised(markdown, count):
    assert len(unfenced_code(Text("text", markdown))) == count


def test_an_example_knows_nothing_of_the_module_around_it(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('"""Shown.\n\n```python\nhidden\n```\n"""\n\nhidden = 1\n')
    (example,) = Document.examples(Docstrings.parse(str(path), PythonCodeBlockParser()))
    with pytest.raises(NameError, match="hidden"):
        example.evaluate()


@pytest.mark.document
def test_the_figure_of_the_first_screen_is_drawn(tmp_path):
    """The script runs, and its three panels have as much in them as those that are kept."""
    if not shutil.which("arm-none-eabi-gcc"):
        pytest.skip("arm-none-eabi-gcc not found")
    script, drawn = ROOT / "docs" / "figures" / "hero.py", tmp_path / "hero.png"
    command = [sys.executable, str(script), "--epochs", "1", "--output", str(drawn)]
    subprocess.run(command, check=True, cwd=tmp_path)
    ours, kept = plt.imread(drawn), plt.imread(script.with_suffix(".png"))
    assert ours.shape[0] == kept.shape[0]
    for one, other in zip(
        *(np.array_split(image, 3, axis=1) for image in (ours, kept)), strict=True
    ):
        ink, expected = ((panel[..., :3] < 0.9).any(-1).mean() for panel in (one, other))
        assert ink > expected / 4


@pytest.mark.document
def test_the_figures_of_moments_are_drawn(tmp_path):
    """The script runs, and draws as much as is kept."""
    script = ROOT / "docs" / "figures" / "moments.py"
    command = [sys.executable, str(script), "--draws", "200", "--output", str(tmp_path)]
    subprocess.run(command, check=True, cwd=tmp_path)
    for name in ("exact", "followed"):
        ours, kept = (
            plt.imread(folder / f"moments_{name}.png") for folder in (tmp_path, script.parent)
        )
        ink, expected = ((image[..., :3] < 0.9).any(-1).mean() for image in (ours, kept))
        assert ours.shape == kept.shape
        assert ink > expected / 2, name
