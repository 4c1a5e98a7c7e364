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


LABELS = {
    "deterministic": "deterministic",
    "variational inference, 30 samples": "svi30",
    "**moments, one pass**": "moments",
}
"""Methods of the quickstart as its tables call them."""


@pytest.mark.parametrize("page", ["README.md", "docs/results/quickstart.md"])
def test_tables_of_the_quickstart_are_those_of_its_kept_run(page):
    rows = {
        row["method"]: row for row in json.loads((RUNS / "quickstart.json").read_text())["rows"]
    }
    unit = rows["moments"]["latency_ms"]
    lines = [line.strip("| ").split(" | ") for line in (ROOT / page).read_text().splitlines()]
    shown = {cells[0]: cells[1:] for cells in lines if cells[0] in LABELS}
    assert shown.keys() == LABELS.keys()
    for label, method in LABELS.items():
        row, compiled = rows[method], rows[f"{method}_tvm"]
        numbers = [
            f"{100 * row['accuracy']:.2f} %",
            *(f"{row[name]:.{digits}f}" for name, digits in (("nll", 3), ("ece", 4), ("auroc", 3))),
            *(f"{one['latency_ms'] / unit:.2f}" for one in (row, compiled)),
        ]
        assert shown[label] == [text.removeprefix("0") for text in numbers]


def test_the_table_of_scores_is_that_of_its_kept_run():
    rows = json.loads((RUNS / "out_of_domain-fast.json").read_text())["rows"]
    found = {
        (row["score"], row["outside"], row["posterior"]): row["auroc"]
        for row in rows if row["part"] == "detection"
    }  # fmt: skip
    names = {score: score for score, *_ in found} | {"epistemic": "epistemic part"}
    lines = (ROOT / "docs" / "guides" / "certainty.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    shown = {row[0]: row[3:] for row in cells if len(row) == 5 and row[0] in names.values()}
    posteriors = ("deterministic", "moments", "ensemble")
    for score, name in names.items():
        numbers = [
            [found.get((score, outside, posterior)) for posterior in posteriors]
            for outside in ("classes left out", "digits-ood")
        ]
        texts = [
            " ".join("–" if n is None else f"{n:.3f}".removeprefix("0") for n in three)
            for three in numbers
        ]
        assert shown[name] == texts


def test_a_changed_number_is_found():
    content = json.loads(KEPT[0].read_text())
    content["checks"][0]["ours"] = -12345.0
    written = (RUNS / f"{KEPT[0].stem}.md").read_text()
    assert written != page(content, KEPT[0].stem, [])
