"""The table of claims says what the checks of the kept runs say, and leaves none of them out."""

import json
import tomllib

import pytest

from experiments import pages, verdicts


def test_the_table_is_that_of_its_claims():
    page = (pages.RESULTS / "README.md").read_text()
    assert verdicts.write(page) == page, "`python -m experiments.publish --again` writes it"
    assert verdicts.FIGURE.exists()


def test_every_check_of_a_study_of_the_thesis_is_heard():
    assert verdicts.unheard() == []


def claims(monkeypatch, tmp_path, passed, **claim):
    (tmp_path / "runs").mkdir()
    checks = [{"name": f"check {i}", "passed": one, "ours": 0.5} for i, one in enumerate(passed)]
    content = {"experiment": "photonic", "config": {"size": "fast"}, "checks": checks}
    (tmp_path / "runs" / "a.json").write_text(json.dumps(content))
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    told = {"claim": "it holds", "chapter": "3.1", "source": "1", "run": "a",
            "ours": "{checks[name=check 0].ours .1f}", "checks": ["check"], **claim}  # fmt: skip
    monkeypatch.setattr(verdicts, "said", lambda: {"claim": [told]})
    return verdicts.verdicts


@pytest.mark.parametrize(
    ("passed", "word"),
    [([True, True], "reproduced"), ([True, False], "in part"), ([False], "not reproduced"),
     ([True, None], "undecided")],
)  # fmt: skip
def test_a_verdict_is_what_the_checks_say(monkeypatch, tmp_path, passed, word):
    (one,) = claims(monkeypatch, tmp_path, passed, why="so it is")()
    assert (one.word, one.ours) == (word, ".5")
    assert bool(one.why) == (word != "reproduced")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({}, "nothing says why"), ({"why": "so", "checks": ["none"]}, "no check is called 'none'"),
     ({"why": "so", "ours": "about 0.5"}, "names no place in a run")],
)  # fmt: skip
def test_a_claim_that_is_told_wrongly_is_named(monkeypatch, tmp_path, wrong, message):
    with pytest.raises(ValueError, match=f"it holds: .*{message}"):
        claims(monkeypatch, tmp_path, [False], **wrong)()


@pytest.mark.parametrize("name", ["noise", "outlook", "variances"])
def test_a_page_can_be_read(name):
    """Rows of a number or a pair, thirty at most, and 900 words; the rest is on runs' pages."""
    rows = tomllib.loads((pages.TABLES / f"{name}.toml").read_text())["row"]
    assert len(rows) <= 30
    assert max(row["ours"].count("{") for row in rows) <= 2
    words = (pages.RESULTS / f"{name}.md").read_text().split()
    assert sum(word not in ("|", "---", "---:") for word in words) <= 900
