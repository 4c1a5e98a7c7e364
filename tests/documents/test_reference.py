"""What the reference is built of. The build itself, warnings as errors, is `.ci/run`'s."""

import re

import pytest
from documents import ROOT, markdown_files

FILES = [path.relative_to(ROOT).as_posix() for path in markdown_files()]


@pytest.mark.parametrize("name", FILES)
def test_every_markdown_file_is_a_page_of_it(name):
    assert (ROOT / "docs" / name).resolve() == ROOT / name
    pages = re.findall(r"^  - .+: (.+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert name in pages


def test_nothing_is_written_for_it_alone():
    assert all(path.is_symlink() for path in (ROOT / "docs").rglob("*") if not path.is_dir())
