"""Tables and verdicts of the pages of results, from places in kept runs' JSON that they name.

`docs/results/tables/PAGE.toml` has the rows of the table of `docs/results/PAGE.md`: what is
compared, what the thesis has, and ours, in which each number stands in braces as
``{PATH FORMAT}``. The page has the table between two marks, and `python -m experiments.publish
--again` writes it there:

```toml
run = "hardening"                           # the kept run, unless a row names another

[[row]]
quantity = "peak accuracy without noise, with noisy training"
source = ".75; -"
ours = "{rows[method=none].peak .3f}; {max rows[method=noise].peak .3f}"
checks = ["lenet5: noisy training raises"]  # names of the checks that judge it, or their beginnings
claim = "noisy training helps"              # what the page says of them behind the table

[[why]]                                     # a reason of what isn't reproduced
tested = false
text = "the trainings are short"
```

A verdict is what the checks say, never what someone wrote: "reproduced" where all that a row names
passed, "not reproduced" where none did, "in part" between, "undecided" where the size of the run
decides none of them. Sentences behind the table list the claims by verdict, then the reasons, each
said to be tested or a guess. A page that isn't held against a source says other words (`words`).

A path leads through objects by names, and through lists by a position or by the columns that tell
an entry from all others: ``[net=vgg11; bits=4]``, ``name~`` for how a text begins, ``share<`` for
numbers up to one. In front of one that several entries fit stands what is made of them: max, min,
mean, count, or ``each`` with commas. ``/`` and ``*`` between two paths, or a path and a number,
divide and multiply them.
"""

import functools
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.harness import Table, mean

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TABLES = RESULTS / "tables"
_MARKED = r"(?s)(?<=<!-- table -->\n).*?(?=<!-- end of table -->)"
BRACES = r"\{([^}]*)\}"
_STEP = re.compile(r"([^.\[\]]+)(?:\[([^\]]*)\])?(?:\.|$)")
_REDUCED: dict[str, Callable[[list[Any]], Any]] = {
    "max": max, "min": min, "mean": mean, "count": len,
}  # fmt: skip


def markdown(table: Table) -> str:
    """Writes a table in Markdown."""

    def line(cells: Any) -> str:
        return "| " + " | ".join(map(escaped, cells)) + " |"

    def escaped(cell: Any) -> str:
        # Two lists one behind the other are no link with a reference.
        return re.sub(r"(?<=\])( ?)\[", r"\1\\[", str(cell).replace("|", "\\|"))

    heads = [column.removesuffix(">") for column in table.columns]
    rules = ["---:" if column.endswith(">") else "---" for column in table.columns]
    total = [table.total] if table.total else []
    return "\n".join(map(line, [heads, rules, *table.rows, *total]))


def compared(thesis: bool) -> str:
    """Heads the column of what ours is held against: the thesis, or what is asked of it."""
    return "thesis" if thesis else "asked"


def find(content: Any, path: str) -> list[Any]:
    """Finds all values that a path leads to.

    Raises:
        LookupError: There is none.
        ValueError: It is no path.
    """
    values = [content]
    if "".join(match[0] for match in _STEP.finditer(path)) != path:
        raise ValueError(f"{path!r} is no path")
    for name, chosen in _STEP.findall(path):
        values = [value[name] for value in values if isinstance(value, Mapping) and name in value]
        if chosen:
            values = [one for value in values for one in _entries(value, chosen)]
    if not (values := [value for value in values if value is not None]):
        raise LookupError(f"nothing is at {path!r}")
    return values


def _entries(value: Any, chosen: str) -> list[Any]:
    if re.fullmatch(r"-?\d+", chosen):
        return [value[int(chosen)]]
    wanted = [re.split("([=~<])", part, maxsplit=1) for part in chosen.split("; ")]

    def fits(one: Any, name: str, how: str, said: str) -> bool:
        if how == "<":
            return one.get(name) is not None and float(one[name]) <= float(said)
        there = str(one.get(name))
        return there == said if how == "=" else there.startswith(said)

    return [one for one in value if all(fits(one, *parts) for parts in wanted)]


def number(content: Any, said: str) -> str:
    """Writes what stands in braces: a path, or an expression of two, and a format.

    Raises:
        LookupError: A path leads nowhere, or to several values.
        ValueError: It is no path.
    """
    expression, _, form = said.rpartition(" ")
    first, *rest = re.split(r" ([/*]) ", expression)
    reduced, _, path = first.partition(" ")
    if reduced not in {*_REDUCED, "each"}:
        reduced, path = "", first
    values = find(content, path)
    if reduced in _REDUCED:
        values = [_REDUCED[reduced](values)]
    if reduced != "each" and len(values) > 1:
        raise LookupError(f"{path!r} leads to {len(values)} values: say which, or max, mean, each")
    if rest:
        sign, other = rest
        (by,) = [float(other)] if re.fullmatch(r"[\d.e+-]+", other) else find(content, other)
        values = [value / by if sign == "/" else value * by for value in values]
    return ", ".join(_written(value, form) for value in values)


def _written(value: Any, form: str) -> str:
    if isinstance(value, str):
        return value
    text = format(value, form).replace("%", " %")
    return re.sub(r"^(-?)0(?=\.)", r"\1", text)  # as everywhere here: .95


def table(page: str) -> str:
    """Writes the table of a page.

    Raises:
        ValueError: A number isn't where its row says; the row is named.
    """
    said = tomllib.loads((TABLES / f"{page}.toml").read_text())
    rows, words = [], said.get("words", WORDS)
    for row in said["row"]:
        try:
            content = _content(row.get("run") or said["run"])
            ours = re.sub(BRACES, _writer(content), row["ours"])
            judged = verdict(content, row, words)
        except (LookupError, ValueError, TypeError) as error:
            raise ValueError(f"{page}: {row['quantity']}: {error}") from error
        if re.search(r"\d", re.sub(BRACES, "", row["ours"])):
            raise ValueError(f"{page}: {row['quantity']}: a number that names no place in a run")
        rows.append((row["quantity"], row.get("source", "-"), ours, judged))
    heads = ("quantity", compared(words == WORDS), "ours", "verdict")
    return markdown(Table(heads, rows)) + "\n\n" + sentences(said)


OWN = "holds", "does not hold"
"""Verdicts of rows for which the thesis has nothing that could be reproduced."""
WORDS = ("reproduced", "not reproduced")
"""Verdicts of claims of the thesis; a page of other claims has words of its own."""
IN_PART, UNDECIDED, UNJUDGED = "in part", "undecided", "no check"


def results(content: Any, row: Mapping[str, Any]) -> list[bool | None]:
    """What the checks say that judge a row: passed, failed, or None where the run can't decide.

    Raises:
        LookupError: No check's name begins as the row says.
    """
    verdicts = []
    for name in row.get("checks", ()):
        named = [one for one in content["checks"] if one["name"].startswith(name)]
        named = [one for one in named if one["name"] == name] or named
        passed = [one["passed"] for one in named]
        if not passed:
            raise LookupError(f"no check is called {name!r}")
        verdicts += passed
    return verdicts


def verdict(content: Any, row: Mapping[str, Any], words: tuple[str, str]) -> str:
    """Says what the checks of a row say."""
    passed = results(content, row)
    without = row.get("source", "-") in NO_SOURCE
    if not passed:
        return "-" if without else UNJUDGED
    word = kind(passed, OWN if without and words == WORDS else words)
    share = f"{passed.count(True)} of {len(passed)}"
    return f"{word}: {share}" if word == IN_PART else word


NO_SOURCE = ("-", "no number", "not tried")
"""What stands in the column of the thesis where it has nothing."""


def kind(passed: list[bool | None], words: tuple[str, str]) -> str:
    """Says in a word what checks say together."""
    if None in passed:
        return UNDECIDED
    return words[0] if all(passed) else IN_PART if any(passed) else words[1]


def sentences(said: Mapping[str, Any]) -> str:
    """Writes a page's claims by verdict, and the reasons of what isn't reproduced."""
    words = said.get("words", WORDS)
    by: dict[str, list[str]] = {word: [] for word in (words[0], IN_PART, words[1], UNDECIDED)}
    for row in said["row"]:
        if claim := row.get("claim"):
            content = _content(row.get("run") or said["run"])
            text = re.sub(BRACES, _writer(content), claim)
            by[kind(results(content, row), words)].append(text)
    lines = [
        f"**{word.capitalize()}:** {'; '.join(claims)}." for word, claims in by.items() if claims
    ]
    for tested, head in ((True, "Why, tested"), (False, "Why, a guess that nothing here tests")):
        reasons = [
            re.sub(BRACES, _writer(_content(why.get("run") or said.get("run"))), why["text"])
            for why in said.get("why", ())
            if why["tested"] == tested
        ]
        lines += [f"**{head}:** {'; '.join(reasons)}."] if reasons else []
    return "\n\n".join(lines) + "\n"


def _writer(content: Any) -> Callable[[re.Match[str]], str]:
    return lambda match: number(content, match[1])


@functools.cache
def _content(run: str) -> Any:
    return json.loads((RESULTS / "runs" / f"{run}.json").read_text())


def with_table(page: str) -> str:
    """The text of a page with its table as it should be."""
    text = (RESULTS / f"{page}.md").read_text()
    if not re.search(_MARKED, text):
        raise ValueError(f"docs/results/{page}.md has no marks between which its table goes")
    return re.sub(_MARKED, lambda _: table(page), text)


def pages() -> list[str]:
    """Names the pages whose tables are written."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))
