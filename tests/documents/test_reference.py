"""What the site is built of. The build itself, warnings as errors, is `.ci/run`'s."""

import ast
import functools
import hashlib
import importlib
import inspect
import pkgutil
import posixpath
import re
import runpy
import sys

import griffe
import pytest
import yaml
from documents import ROOT, markdown_files, modules
from markdown.extensions.toc import slugify, unique
from PIL import Image

import jaxeff
from tests.bad_arguments import faces

DOCS = ROOT / "docs"
HOOKS = runpy.run_path(str(DOCS / "hooks.py"))
SETTINGS = re.sub(r"!\S+", "", (ROOT / "mkdocs.yml").read_text())
FILES = [path.relative_to(ROOT).as_posix() for path in markdown_files()]


def pages(entries):
    """The files of a navigation, in order."""
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from [value] if isinstance(value, str) else pages(value)


PAGES = list(pages(yaml.safe_load(SETTINGS)["nav"]))


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(".github/")])
def test_every_markdown_file_is_a_page_of_it(name):
    page = name.removeprefix("docs/")
    assert page in PAGES
    assert (DOCS / page).resolve() == ROOT / name


def test_every_notebook_is_a_page_of_it():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert (DOCS / "notebooks" / path.name).resolve() == path
        assert f"notebooks/{path.name}" in PAGES


def test_a_page_is_in_the_navigation_once():
    assert sorted(set(PAGES)) == sorted(PAGES)


HEADINGS = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
TO_PAGES = re.compile(r"\]\(([^)\s:#]*)(#[^)\s]*)?\)")


@functools.cache
def anchors(page):
    """The anchors of a page's headings, as Markdown's table of contents makes them."""
    known = set()
    for heading in HEADINGS.findall(FENCED.sub("", (DOCS / page).read_text())):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        unique(slugify(plain, "-"), known)
    return known


def broken(page, text):
    """The links of a page that lead nowhere on the site, where files lie as they do in docs/."""
    text = HOOKS["with_links_of_the_site"](text)
    for to, anchor in TO_PAGES.findall(FENCED.sub("", text)):
        at = posixpath.normpath(posixpath.join(posixpath.dirname(page), to)) if to else page
        if at.startswith("reference/"):
            continue  # is made of docstrings
        at = re.sub(r"^(notebooks/\w+)\.md$", r"\1.ipynb", at)
        if at.startswith("..") or not (DOCS / at).exists():
            yield to
        elif anchor and at.endswith(".md") and anchor[1:] not in anchors(at):
            yield to + anchor


@pytest.mark.parametrize("page", [page for page in PAGES if page.endswith(".md")])
def test_links_lead_to_pages_and_headings(page):
    assert list(broken(page, (DOCS / page).read_text())) == []


@pytest.mark.parametrize(
    "link",
    ["../../MACHINES.md", "devices.md#no-such-heading", "no_such_guide.md", "#no-such-heading"],
)
def test_a_link_that_leads_nowhere_is_found(link):
    assert list(broken("guides/noise.md", f"See [this]({link}), [that](training.md).")) == [link]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", sorted((DOCS / "guides").glob("*.md")), ids=lambda path: path.stem)
def test_a_guide_is_read_in_a_few_minutes(path):
    """What is more than 900 words has more than one idea: the rest goes to concepts."""
    assert len(path.read_text().split()) <= 900


def drawn_by(picture):
    """The hash of the script that drew a picture, as the picture says."""
    return Image.open(picture).text.get("Source")


@pytest.mark.parametrize("picture", sorted((DOCS / "figures").glob("*.png")), ids=lambda p: p.stem)
def test_a_figure_is_of_the_script_that_stands_beside_it(picture):
    script = picture.with_name(picture.stem.partition("_")[0] + ".py")
    wanted = hashlib.sha256(script.read_bytes()).hexdigest()
    assert drawn_by(picture) == wanted, f"`python docs/figures/{script.name}` draws it again"


def examples(name, function):
    """The examples at a function: its own, those of its module (docs/examples.py) and of its face.

    `test_examples` runs them.
    """
    function = inspect.unwrap(function)
    face = sys.modules[name.rpartition(".")[0]]
    texts = (function.__doc__, sys.modules[function.__module__].__doc__, face.__doc__)
    return "".join(re.findall(r"```python\n(.*?)```", "\n".join(filter(None, texts)), re.DOTALL))


def test_every_function_has_an_example_that_calls_it():
    functions = faces.public("functions")
    without = [
        name
        for name, function in functions.items()
        if not re.search(rf"\b{inspect.unwrap(function).__name__}\(", examples(name, function))
    ]
    assert not without, "show it in its module's docstring, or take it off the face"


@pytest.mark.slow
def test_the_reference_shows_what_each_room_offers():
    """A face that loads its names when they are asked for has a page of them like any other."""
    library = griffe.load(
        "jaxeff", search_paths=[ROOT], extensions=griffe.load_extensions(str(DOCS / "examples.py"))
    )
    for room in (module.name for module in pkgutil.iter_modules(jaxeff.__path__)):
        offered = faces.offered(importlib.import_module(f"jaxeff.{room}"))
        missing = [name for name in offered if not library[room].members[name].is_public]
        assert not missing, f"no page of the reference shows these names of {room}"


@pytest.mark.slow
def test_an_example_is_shown_with_what_it_needs():
    shown = runpy.run_path(str(DOCS / "examples.py"))
    assert shown["with_definitions"](["a = 1\n", "b = 2\n", "print(a)\n"]) == "a = 1\n\nprint(a)\n"
    blocks = ["import os, re\n\nx = os.sep\ny = re.A\n", "import sys\n\nprint(x, sys)\n"]
    assert (
        shown["with_definitions"](blocks)
        == "import os\nimport sys\n\nx = os.sep\n\nprint(x, sys)\n"
    )
    missing = {}
    for path in modules():
        blocks = re.findall(
            r"```python\n(.*?)```", ast.get_docstring(ast.parse(path.read_text())) or "", re.DOTALL
        )
        for i in range(len(blocks)):
            if names := shown["undefined"](shown["with_definitions"](blocks[: i + 1])):
                missing[f"{path.relative_to(ROOT)} {i}"] = names
    assert not missing
