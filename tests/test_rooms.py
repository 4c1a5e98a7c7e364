"""The order of rooms in `jaxeff/README.md` is the order of imports."""

import ast
import re
from pathlib import Path

import pytest

import jaxeff

LIBRARY = Path(jaxeff.__file__).parent


def listed():
    """The rooms in the order of the document."""
    section = (LIBRARY / "README.md").read_text().split("\n# ")[0]
    heads = [line.split(":")[0] for line in section.splitlines() if line.startswith("- ")]
    return [name for head in heads for name in re.findall(r"`(\w+)`", head)]


def imported(file):
    """The dotted names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} imports by a relative path"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_every_room_is_listed_once():
    there = {path.stem for path in LIBRARY.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert sorted(listed()) == sorted(there - {"__init__", "__pycache__", "README"})


@pytest.mark.parametrize("room", listed())
def test_a_room_imports_only_rooms_before_it(room):
    order = listed()
    allowed = set(order[: order.index(room) + 1])
    folder = LIBRARY / room
    for file in folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]:
        for name in imported(file):
            top, _, rest = name.partition(".")
            assert top not in ("tvm", "jaxeff_export", "experiments"), f"{file} imports {name}"
            if top == "jaxeff":
                assert rest.split(".")[0] in allowed, f"{file} imports {name}"
