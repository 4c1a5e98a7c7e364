"""The glossary is in order, and the names in it are those of the code."""

import importlib
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "GLOSSARY.md").read_text()
ENTRIES = [re.sub(r"\s+", " ", part) for part in re.split(r"^- ", TEXT, flags=re.MULTILINE)[1:]]
TERMS = [re.match(r"\*\*(.+?)\*\*", entry).group(1) for entry in ENTRIES]
NAMES = sorted({name for entry in ENTRIES for name in re.findall(r"`(jaxeff[\w.]*)`", entry)})


def find(name: str) -> None:
    """Fails unless a dotted name is that of an object, or of a field of a class."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        break
    for part in parts[end:]:
        if part in getattr(found, "__annotations__", {}):
            return  # a field without a default is no attribute of its class
        found = getattr(found, part)


def test_terms_are_in_alphabetical_order():
    assert sorted(TERMS, key=str.lower) == TERMS
    assert len(set(TERMS)) == len(TERMS)


@pytest.mark.parametrize("entry", ENTRIES, ids=TERMS)
def test_every_term_says_where_it_is_in_the_code(entry):
    assert re.search(r"In code: `jaxeff", entry)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name):
    find(name)


def test_a_missing_name_is_found():
    with pytest.raises(AttributeError):
        find("jaxeff.program.Layer.nothing")
