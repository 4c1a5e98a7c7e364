"""The order of rooms in a package's document is the order of imports."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jaxeff_export
import pytest

import jaxeff


class Package(NamedTuple):
    """A package whose rooms are listed, lowest first, in a section of a document.

    `forbidden` are the packages, of this project or TVM, that it doesn't import anywhere.
    """

    folder: Path
    document: Path
    heading: str
    forbidden: tuple[str, ...]

    def listed(self) -> list[str]:
        """The rooms in the order of the document: of each line of the list, what is before ':'."""
        section = self.document.read_text().split(f"# {self.heading}\n")[1].split("\n# ")[0]
        section = section.split("\n## ")[0]
        heads = [line.split(":")[0] for line in section.splitlines() if line.startswith("- ")]
        return [name for head in heads for name in re.findall(r"`(\w+)`", head)]

    def rooms(self) -> set[str]:
        """The rooms there are."""
        there = {p.stem for p in self.folder.iterdir() if p.suffix == ".py" or p.is_dir()}
        return there - {"__init__", "__main__", "__pycache__"}

    def files(self, room: str) -> list[Path]:
        """The modules of a room."""
        folder = self.folder / room
        return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


LIBRARY, EXPORT = Path(jaxeff.__file__).parent, Path(jaxeff_export.__file__).parent
PACKAGES = {
    "jaxeff": Package(
        LIBRARY, LIBRARY / "README.md", "The rooms", ("tvm", "jaxeff_export", "experiments")
    ),
    "jaxeff_export": Package(EXPORT, EXPORT.parent / "README.md", "The rooms", ("experiments",)),
}
ROOMS = [(name, room) for name, package in PACKAGES.items() for room in package.listed()]


def imported(file: Path, folder: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in it; `folder` is its package's."""
    inside = (folder.name, *file.relative_to(folder).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = inside[: len(inside) + 1 - node.level] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=list(PACKAGES))
def test_every_room_is_listed_once(package):
    assert sorted(package.listed()) == sorted(package.rooms())


def test_every_file_and_folder_of_the_page_exists():
    package = PACKAGES["jaxeff"]
    named = re.findall(r"`([\w/]+(?:\.py|/))`", package.document.read_text())
    bases = (package.folder, *package.folder.iterdir(), package.document.parent, LIBRARY.parent)
    missing = [name for name in named if not any((base / name).exists() for base in bases)]
    assert named
    assert not missing


@pytest.mark.parametrize(("name", "room"), ROOMS)
def test_a_room_imports_only_rooms_before_it(name, room):
    package = PACKAGES[name]
    order = package.listed()
    allowed = set(order[: order.index(room) + 1])
    for file in package.files(room):
        for found in imported(file, package.folder):
            top, _, rest = found.partition(".")
            assert top not in package.forbidden, f"{file} imports {found}"
            if top == name:
                assert rest.split(".")[0] in allowed, f"{file} imports {found}"


def test_relative_imports_are_resolved(tmp_path):
    file = tmp_path / "package" / "room" / "inner" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text("from . import a\nfrom .b import c\nfrom ...other.d import e\nimport f.g\n")
    assert list(imported(file, tmp_path / "package")) == [
        "package.room.inner.a", "package.room.inner.b.c", "package.other.d.e", "f.g"
    ]  # fmt: skip
