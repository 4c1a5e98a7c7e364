"""What this project shows a reader: its Markdown files, and the docstrings of its packages."""

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("jaxeff", "export/jaxeff_export", "experiments")


class Text(NamedTuple):
    """A piece of Markdown: a whole file, or one docstring."""

    name: str
    markdown: str


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, or about to be; links to them (docs/) are not shown twice."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in sorted(run.stdout.splitlines())]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def markdown_files() -> list[Path]:
    return tracked("*.md")


def modules() -> list[Path]:
    return tracked(*(f"{package}/*.py" for package in PACKAGES))


def texts(word: str = "") -> Iterator[Text]:
    """All of it, docstrings without their indentation; files without a word are not parsed."""
    for path in markdown_files():
        yield Text(str(path.relative_to(ROOT)), path.read_text())
    for path in modules():
        source = path.read_text()
        if not re.search(word, source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    name = "" if isinstance(node, ast.Module) else f":{node.name}"
                    yield Text(f"{path.relative_to(ROOT)}{name}", inspect.cleandoc(docstring))
