"""Pages of results say what the kept runs' JSON says."""

import json

import pytest
from documents import ROOT

from experiments.publish import RUNS, page

KEPT = sorted(RUNS.glob("*.json"))


def test_runs_are_kept():
    assert KEPT


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_run(path):
    figures = sorted(picture.name for picture in RUNS.glob(f"{path.stem}-*.png"))
    written = (RUNS / f"{path.stem}.md").read_text()
    assert written == page(json.loads(path.read_text()), path.stem, figures)
    assert ROOT in path.parents


def test_a_changed_number_is_found():
    content = json.loads(KEPT[0].read_text())
    content["checks"][0]["ours"] = -12345.0
    written = (RUNS / f"{KEPT[0].stem}.md").read_text()
    assert written != page(content, KEPT[0].stem, [])
