"""One table of what the thesis claims and what the kept runs say of it, claim by claim.

`docs/results/verdicts.toml` has the claims; the table, its counts and its figure are written from
it and from the runs' JSON by `python -m experiments.publish --again`. A verdict is what the checks
say that a claim names: all passed, some, or none. A claim without a run isn't run, or is impossible
here. Every check of a study of the thesis is in some claim's verdict, or in a list of those that
judge none, with the reason; a test sees to both.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from experiments import pages
from experiments.__main__ import MODULES, load
from experiments.harness import Table
from experiments.harness.sizes import shown_size

FILE = pages.RESULTS / "verdicts.toml"
FIGURE = pages.RESULTS / "verdicts.png"
GUIDE = "quickstart"
"""A study that shows how the library is used, and claims nothing of the thesis."""
NOT_RUN, IMPOSSIBLE = "not run", "impossible here"
COLOURS = {
    pages.WORDS[0]: "C2", pages.IN_PART: "C8", pages.WORDS[1]: "C3", pages.UNDECIDED: "C4",
    NOT_RUN: "0.7", IMPOSSIBLE: "0.9",
}  # fmt: skip
"""Of the figure, by verdict and in its order."""
MARKED = r"(?s)(?<=<!-- verdicts -->\n).*?(?=<!-- end of verdicts -->)"
_LABEL = r"(?:\b(?:at|of|LeNet|VGG|ResNet|A)[ -]?)[\d.,]*\d"
"""A number that names something, such as a level, and says nothing of a result."""


class Verdict(NamedTuple):
    """A claim, judged."""

    claim: Mapping[str, Any]  # as the file has it
    word: str  # one of `COLOURS`
    passed: list[bool | None]  # what its checks say
    ours: str  # what a run has found
    size: str  # of that run
    why: str  # it isn't reproduced


@cache
def said() -> dict[str, Any]:
    """The file of claims."""
    return tomllib.loads(FILE.read_text())


def verdicts() -> list[Verdict]:
    """Judges all claims.

    Raises:
        ValueError: A claim is told wrongly; it is named.
    """
    return [*map(_judged, said()["claim"])]


def _judged(claim: Mapping[str, Any]) -> Verdict:
    for word, reason in ((NOT_RUN, "not_run"), (IMPOSSIBLE, "impossible")):
        if reason in claim:
            return Verdict(claim, word, [], "-", "-", claim[reason])
    text = claim["claim"]
    try:
        content = _content(claim["run"])
        ours = re.sub(pages.BRACES, lambda m: pages.number(content, m[1]), claim["ours"])
        why = re.sub(pages.BRACES, lambda m: pages.number(content, m[1]), claim.get("why", ""))
        passed = pages.results(content, claim)
    except (LookupError, ValueError, TypeError) as error:
        raise ValueError(f"{text}: {error}") from error
    if re.search(r"\d", re.sub(_LABEL, "", re.sub(pages.BRACES, "", claim["ours"]))):
        raise ValueError(f"{text}: a number that names no place in a run")
    word = pages.kind(passed, pages.WORDS)
    if word != pages.WORDS[0] and not why:
        raise ValueError(f"{text}: it is {word}, and nothing says why")
    size = shown_size(content["config"], _study(content["experiment"]).sizes)
    return Verdict(claim, word, passed, ours, size, why if word != pages.WORDS[0] else "")


def unheard() -> list[str]:
    """Names the checks of the thesis' studies that no claim and no list of the file has."""
    covered: dict[str, list[str]] = {}
    for one in [*said()["claim"], *said().get("aside", ())]:
        covered.setdefault(one.get("run", ""), []).extend(one.get("checks", ()))
    thesis = (m for m in MODULES if not m.startswith("beyond.") and m != GUIDE)
    ours = {load(module).name for module in thesis}
    missing = []
    for path in sorted((pages.RESULTS / "runs").glob("*.json")):
        content = _content(path.stem)
        if content["experiment"] in ours:
            begins = tuple(covered.get(path.stem, ()))
            names = (check["name"] for check in content["checks"])
            missing += [f"{path.stem}: {name}" for name in names if not name.startswith(begins)]
    return missing


def text() -> str:
    """Writes the table, its counts, and why what isn't reproduced isn't."""
    judged = verdicts()
    rows = []
    for one in judged:
        share = f" ({one.passed.count(True)} of {len(one.passed)})"
        name = one.claim.get("run", "")
        rows.append((
            one.claim["claim"], one.claim["chapter"], one.claim["source"], one.ours, one.size,
            one.word + (share if one.word == pages.IN_PART else ""),
            f"[{name}](runs/{name}.md)" if name else "-",
        ))  # fmt: skip
    heads = ("claim", "chapter", "thesis", "ours", "size", "verdict", "run")
    counts = Counter(one.word for one in judged)
    good = counts[pages.WORDS[0]] + counts[pages.IN_PART]
    sums = ", ".join(f"{counts[word]} {word}" for word in COLOURS if counts[word])
    run = len(judged) - counts[NOT_RUN] - counts[IMPOSSIBLE]
    aside = _aside()
    lines = [
        f"**{len(judged)} claims: {sums}.** Reproduced or in part are {good / len(judged):.0%} of "
        f"all, and {good / max(1, run):.0%} of those that were run.",
        pages.markdown(Table(heads, rows)),
        "Why, claim by claim; what names no number of a run is a guess:",
        "\n".join(
            f"- {one.claim['claim']} ({one.claim['chapter']}), {one.word}: {one.why}."
            for one in judged if one.why
        ),
        f"Of the checks of the thesis' studies, {sum(len(one.passed) for one in judged)} are in "
        f"these verdicts. {sum(count for _, _, count in aside)} judge no claim of the thesis: "
        + "; ".join(f"{count} of `{name}` ({reason})" for name, reason, count in aside) + ".",
    ]  # fmt: skip
    return "\n\n".join(lines) + "\n"


def _aside() -> list[tuple[str, str, int]]:
    return [
        (one["run"], one["reason"], len(pages.results(_content(one["run"]), one)))
        for one in said().get("aside", ())
    ]


def draw() -> None:
    """Draws how many claims of each chapter have which verdict."""
    judged = verdicts()
    chapters = [*dict.fromkeys(map(_chapter, judged))]
    with mpl.rc_context({"font.size": 9}):
        figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
        left = [0] * len(chapters)
        for word, colour in COLOURS.items():
            counts = [
                sum((_chapter(one), one.word) == (chapter, word) for one in judged)
                for chapter in chapters
            ]
            axes.barh(chapters, counts, left=left, color=colour, label=word)
            left = [a + b for a, b in zip(left, counts, strict=True)]
        axes.invert_yaxis()
        axes.set(xlabel="claims")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower center", ncols=len(COLOURS), fontsize=8)
        figure.savefig(FIGURE, dpi=110, metadata={"Software": None})
        plt.close(figure)


TITLES = {
    "3": "3 few bits", "4": "4 search", "5": "5 analog chips", "6": "6 noise",
    "7": "7 Bayesian networks", "8": "8 moment passes", "9": "9 ensembles", "10": "10 light",
}  # fmt: skip


def _chapter(one: Verdict) -> str:
    return TITLES[one.claim["chapter"].lstrip("T").split(".")[0]]


def _content(run: str) -> Any:
    return json.loads((pages.RESULTS / "runs" / f"{run}.json").read_text())


def _study(name: str) -> Any:
    return next(study for study in map(load, MODULES) if study.name == name)


def write(page: str) -> str:
    """The text of a page with the table as it should be.

    Args:
        page: Its text as it is.
    """
    return re.sub(MARKED, lambda _: text(), page)
