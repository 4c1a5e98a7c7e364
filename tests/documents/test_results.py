"""Pages of results say what the kept runs' JSON says."""

import json
import re
import tomllib

import pytest
from documents import ROOT

from experiments import first_numbers, pages
from experiments.harness import staleness
from experiments.harness.report import LEFT
from experiments.harness.sizes import shown_size
from experiments.harness.staleness import DATA, VERSION, stale
from experiments.publish import (
    LIST,
    NAVIGATION,
    RUNS,
    figures_of,
    judged,
    listing,
    navigation,
    page,
    study_of,
)

KEPT = sorted(RUNS.glob("*.json"))


def test_runs_are_kept():
    assert KEPT


def test_lists_of_runs_are_those_of_the_kept_runs():
    again = "`python -m experiments.publish --again` writes it"
    assert listing() in LIST.read_text(), again
    assert navigation() in NAVIGATION.read_text(), again


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_run(path):
    written = path.with_suffix(".md").read_text()
    assert written == page(json.loads(path.read_text()), path.stem, figures_of(path.stem))
    assert ROOT in path.parents


@pytest.mark.parametrize("name", first_numbers.PAGES)
def test_the_first_numbers_are_those_of_kept_runs(name):
    assert (ROOT / name).read_text() == first_numbers.page(name)


def test_the_first_sentences_are_those_of_kept_runs():
    assert first_numbers.opening() == LIST.read_text()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_checks_are_those_of_todays_claims(path):
    content = json.loads(path.read_text())
    again = judged(content)["checks"]
    # The last digits of fitted numbers are the machine's.
    assert [(c["name"], c["passed"]) for c in again] == [
        (c["name"], c["passed"]) for c in content["checks"]
    ], "`python -m experiments.publish --again` judges kept runs"


def test_stale_runs_are_reported(record_property):
    """Which runs are stale is a report: the list names them, and the queue makes them again."""
    contents = {path.stem: json.loads(path.read_text()) for path in KEPT}
    reasons = {name: stale(study_of(c["experiment"])[1], c) for name, c in contents.items()}
    record_property("stale", {name: why for name, why in reasons.items() if why})
    written = LIST.read_text().splitlines()
    for name, why in reasons.items():
        (line,) = [row for row in written if row.startswith(f"| [{name}](runs/")]
        assert line.endswith(f"| {'; '.join(why)} |")


def test_what_makes_a_run_stale_is_what_it_computes(monkeypatch):
    content = json.loads((RUNS / "quickstart.json").read_text())
    _, study = study_of("quickstart")
    fresh = {**content, VERSION: study.version, DATA: {}}
    assert not stale(study, fresh)
    before = {name: value for name, value in content.items() if name != VERSION}
    assert stale(study, before) == ["made before studies had versions"]
    (why,) = stale(study, {**fresh, VERSION: 0})
    assert f"of version 0 of the study, which is at {study.version}" in why
    monkeypatch.setattr(staleness.data, "available", lambda: ("mnist", "digits"))
    monkeypatch.setattr(staleness, "checksum", lambda name: "here")
    assert stale(study, {**fresh, DATA: {"mnist": "other"}}) == ["other data: mnist"]
    # A grey level of embedded digits may be the processor's.
    assert not stale(study, {**fresh, DATA: {"mnist": "here", "digits": "other"}})
    changed = {**content["config"], "no such setting": 1}
    (why,) = stale(study, {**fresh, "config": changed})
    assert "no such setting" in why


OTHERS = {"README", "accelerator", "quickstart", "sources", "zoo"}
"""Pages with other tables than of the thesis' numbers beside ours, tested on their own or old."""


def test_every_number_of_a_table_names_its_place():
    written = {path.stem for path in (ROOT / "docs" / "results").glob("*.md")}
    assert written == {*pages.pages()} | OTHERS
    for name in pages.pages():
        again = "`python -m experiments.publish --again` writes it"
        assert (pages.RESULTS / f"{name}.md").read_text() == pages.with_table(name), again


@pytest.mark.parametrize("name", [*pages.pages(), "quickstart", "zoo"])
def test_a_page_opens_with_its_figure(name):
    title, blank, figure = (pages.RESULTS / f"{name}.md").read_text().splitlines()[:3]
    assert title.startswith("# ")
    assert not blank
    (file,) = re.findall(r"^!\[[^\]]+\]\((runs/.+\.png)\)$", figure)
    assert (pages.RESULTS / file).exists()


def claims_of(name):
    """A page's rows that have checks: each row, and what these checks say."""
    said = tomllib.loads((pages.TABLES / f"{name}.toml").read_text())
    for row in said["row"]:
        content = json.loads((RUNS / f"{row.get('run') or said['run']}.json").read_text())
        yield row, pages.results(content, row)


@pytest.mark.parametrize("name", pages.pages())
def test_verdicts_are_those_of_the_checks(name):
    said = tomllib.loads((pages.TABLES / f"{name}.toml").read_text())
    text = (pages.RESULTS / f"{name}.md").read_text()
    good, bad = said.get("words", pages.WORDS)
    claimed = [(row["claim"], passed) for row, passed in claims_of(name) if "claim" in row]
    assert claimed, "a page says what is reproduced"
    paragraphs = {
        kind: re.findall(rf"(?m)^\*\*{kind.capitalize()}:\*\* (.*)$", text)
        for kind in (good, bad, pages.IN_PART, pages.UNDECIDED)
    }
    for claim, passed in claimed:
        if None in passed:
            kind = pages.UNDECIDED
        else:
            kind = good if all(passed) else pages.IN_PART if any(passed) else bad
        (paragraph,) = paragraphs[kind]
        fixed = re.split(r"\{[^}]*\}", claim)  # what stands between numbers
        assert all(part in paragraph for part in fixed), (claim, kind)
    if any(False in passed for _, passed in claimed):
        assert "**Why, " in text, "what isn't reproduced has a reason, tested or said to be a guess"


def test_verdicts_stand_in_no_prose():
    """What is reproduced changes with the kept runs, so sentences that say it are made of them."""
    for name in pages.pages():
        text = (pages.RESULTS / f"{name}.md").read_text()
        before, _, rest = text.partition("<!-- table -->")
        prose = before + rest.partition("<!-- end of table -->")[2]
        assert not re.search(r"(?i)\breproduced\b|\bundecided\b", prose), name


def test_rows_without_a_check_are_few():
    """A number of the thesis that no check judges says so; there are no more than these."""
    lines = [line for name in pages.pages() for line in pages.table(name).splitlines()]
    assert sum(line.endswith(f"| {pages.UNJUDGED} |") for line in lines) <= 14


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        ((True, True), "reproduced"),
        ((False,), "not reproduced"),
        ((True, False, True), "in part: 2 of 3"),
        ((True, None), "undecided"),
        ((), "no check"),
    ],
)
def test_a_verdict_says_what_checks_say(passed, said):
    checks = [{"name": f"net: claim {i}", "passed": one} for i, one in enumerate(passed)]
    row = {"source": "9.1", "checks": ["net: claim"] if passed else []}
    assert pages.verdict({"checks": checks}, row, pages.WORDS) == said
    with pytest.raises(LookupError, match="no check is called 'other'"):
        pages.verdict({"checks": checks}, {"checks": ["other"]}, pages.WORDS)


def test_a_check_that_is_named_in_full_is_no_beginning():
    checks = [{"name": "the same", "passed": True}, {"name": "the same, longer", "passed": False}]
    assert pages.results({"checks": checks}, {"checks": ["the same"]}) == [True]


def test_fast_runs_that_decide_nothing_more_are_withdrawn():
    """Where a study has a kept run of the default size, one of minutes needs a reason to stay."""
    contents = {path.stem: json.loads(path.read_text()) for path in KEPT}
    places = [*pages.TABLES.glob("*.toml"), *(ROOT / "docs" / "guides").glob("*.md")]
    used = "".join(path.read_text() for path in places)

    def decided(name):
        return {c["name"] for c in contents[name]["checks"] if c["passed"] is not None}

    for name, content in contents.items():
        _, study = study_of(content["experiment"])
        if shown_size(content["config"], study.sizes) != "fast":
            continue
        same = [one for one, c in contents.items() if c["experiment"] == content["experiment"]]
        larger = [
            one for one in same
            if shown_size(contents[one]["config"], study.sizes) in ("default", "full")
        ]  # fmt: skip
        if larger and not decided(name) - set().union(*map(decided, larger)):
            shown = f'run = "{name}"' in used or f"runs/{name}.md" in used
            assert shown, f"{name} decides nothing more than {larger}"


METHODS = {
    "one network": ("one network", ""),
    "Laplace of all layers, linear": ("Laplace, Kronecker", "linear"),
    "variational inference, moments": ("SVI", "moments"),
    "the same, 30 draws": ("SVI", "draws"),
    "IVON, 30 draws": ("IVON", "draws"),
    "SWAG, 30 draws": ("SWAG", "draws"),
    "cyclical SGLD, 4 draws": ("cyclical SGLD", "draws"),
    "MCLMC, 30 draws": ("MCLMC", "draws"),
    "deep ensemble of 4": ("deep ensemble", ""),
    "BatchEnsemble": ("BatchEnsemble", ""),
    "Packed": ("Packed-Ensemble", ""),
    "MIMO": ("MIMO", ""),
    "evidential, softplus": ("evidential", "softplus"),
    "evidential, exponential": ("evidential", "exp"),
}
"""Methods of the page's table of newer methods, as the study calls them."""


def test_the_table_of_methods_is_that_of_its_kept_run():
    rows = json.loads((RUNS / "certainty.json").read_text())["rows"]
    lines = (ROOT / "docs" / "concepts" / "posteriors.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    shown = {row[0]: row[2:] for row in cells if len(row) == 7 and row[0] in METHODS}
    assert shown.keys() == METHODS.keys()
    for label, (method, by) in METHODS.items():
        rows_of_method = [row for row in rows if row["method"] == method and row["by"] == by]
        names = ("accuracy", "nll", "auroc", "gradients_over_one", "time_over_one")
        for name, text in zip(names, shown[label], strict=True):
            if text == "a Jacobian per input":
                continue
            value = sum(row[name] for row in rows_of_method) / len(rows_of_method)
            # Half of the last digit that is written.
            digits = len(text.partition(".")[2])
            assert abs(value - float(text)) <= 0.5001 * 10**-digits, (label, name, value)


CONTENT = {
    "rows": [
        {"net": "a", "bits": 4, "sigma": 0.1, "score": 0.25, "none": None},
        {"net": "a", "bits": 8, "sigma": 0.1, "score": 0.5},
        {"net": "b, wide", "bits": 8, "score": 12.3},
    ],
    "tables": {"all": [{"n": 3}]},
}


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("rows[net=a; bits=4].score .2f", ".25"),
        ("rows[net=b, wide].score .1f", "12.3"),
        ("rows[net~b; bits=8].score .1f", "12.3"),
        ("rows[0].score .3f", ".250"),
        ("max rows[net=a].score .1f", ".5"),
        ("mean rows[sigma=0.1].score .3f", ".375"),
        ("max rows[sigma<0.1; bits<7].score .2f", ".25"),
        ("count rows[bits<8].score d", "3"),
        ("rows[0].score .1%", "25.0 %"),
        ("each rows[net=a].score .2f", ".25, .50"),
        ("count rows[bits=8].score d", "2"),
        ("rows[2].score / rows[1].score .1f", "24.6"),
        ("rows[1].score * 100 .0f", "50"),
        ("tables.all[0].n d", "3"),
    ],
)
def test_a_number_is_found_at_its_place(said, written):
    assert pages.number(CONTENT, said) == written


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("rows[net=a].score .2f", "leads to 2 values"),
        ("rows[net=c].score .2f", "nothing is at"),
        ("rows[0].none .2f", "nothing is at"),
        ("rows[0.score .2f", "no path"),
    ],
)
def test_a_number_without_a_place_is_refused(said, message):
    with pytest.raises((LookupError, ValueError), match=message):
        pages.number(CONTENT, said)


def test_a_row_with_a_number_of_its_own_is_refused(tmp_path, monkeypatch):
    row = '[[row]]\nquantity = "accuracy"\nours = "%s"\n'
    monkeypatch.setattr(pages, "TABLES", tmp_path)
    path = tmp_path / "new.toml"
    path.write_text('run = "quickstart"\n' + row % "{max rows[method=moments].accuracy .2f} of 7")
    with pytest.raises(ValueError, match="accuracy: a number that names no place"):
        pages.table("new")
    path.write_text('run = "quickstart"\n' + row % "{rows[method=none].accuracy .2f}")
    with pytest.raises(ValueError, match="new: accuracy: nothing is at"):
        pages.table("new")


def test_the_table_of_scores_is_that_of_its_kept_run():
    rows = json.loads((RUNS / "out_of_domain.json").read_text())["rows"]
    found = {
        (row["score"], row["outside"], row["posterior"]): row["auroc"]
        for row in rows if row["part"] == "detection"
    }  # fmt: skip
    names = {score: score for score, *_ in found} | {"epistemic": "epistemic part"}
    lines = (ROOT / "docs" / "guides" / "scores.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    shown = {row[0]: row[3:] for row in cells if len(row) == 6 and row[0] in names.values()}
    posteriors = ("deterministic", "moments", "ensemble")
    for score, name in names.items():
        numbers = [
            [found.get((score, outside, posterior)) for posterior in posteriors]
            for outside in ("classes left out", "fashion-mnist", "noise")
        ]
        texts = [
            " ".join("–" if n is None else f"{n:.3f}".removeprefix("0") for n in three)
            for three in numbers
        ]
        assert shown[name] == texts


def test_the_page_of_the_zoo_counts_the_cells_of_its_kept_runs():
    runs = [json.loads((RUNS / f"{name}.json").read_text()) for name in ("zoo", "zoo_real")]
    cells = {(row["model"], row["column"]): row["status"] for run in runs for row in run["rows"]}
    text = (ROOT / "docs" / "results" / "zoo.md").read_text()
    (counted,) = re.findall(r"\*\*(\d+) of (\d+) cells of (\d+) models", text)
    right = [*cells.values()].count("right")
    assert tuple(map(int, counted)) == (right, len(cells), len({model for model, _ in cells}))
    front = (ROOT / "README.md").read_text()
    assert f"[{right} of {len(cells)}](docs/results/zoo.md)" in front
    # Each that isn't right is told with its reason.
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    told = {
        (model, column): status.split(",")[0]
        for models, columns, status, _ in table[1:]
        for model in models.split(", ")
        for column in columns.split(", ")
    }
    assert told == {cell: status for cell, status in cells.items() if status != "right"}


def test_rows_of_other_commits_are_counted():
    content = json.loads((RUNS / "quickstart.json").read_text())
    del content["made"]  # as runs are that were kept before these were listed
    content["rows"][0]["commit"] = "abc1234"
    assert f"Of {len(content['rows'])} rows, 1 by abc1234." in page(content, "quickstart", [])


def test_a_page_says_who_made_the_rows_and_what_is_missing():
    content = json.loads((RUNS / "quickstart.json").read_text())
    own = content["versions"]["commit"]
    made = [
        {"commit": own, "machine": "2 x A", "tasks": 3, "rows": 6, "cpu_seconds": 7200.0},
        {"commit": "abc1234", "machine": "B", "tasks": 1, "rows": 2, "cpu_seconds": 0.0},
    ]
    alone = page(content | {"made": made[:1]}, "quickstart", [])
    assert "2.0 hours of CPU time." in alone
    assert "abc1234" not in alone
    both = page(content | {"made": made, LEFT: 2}, "quickstart", [])
    assert f"Rows: 6 by {own} on 2 x A; 2 by abc1234 on B." in both
    assert "**Unfinished: 4 of 6 tasks are done.**" in both


def test_a_changed_number_is_found():
    content = json.loads(KEPT[0].read_text())
    content["checks"][0]["ours"] = -12345.0
    written = (RUNS / f"{KEPT[0].stem}.md").read_text()
    assert written != page(content, KEPT[0].stem, [])
