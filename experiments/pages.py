"""Tables of the pages of results, every number of which names its place in a kept run's JSON.

`docs/results/tables/PAGE.toml` has the rows of the table of `docs/results/PAGE.md`: what is
compared, what the source has, and ours, in which each number stands in braces as
``{PATH FORMAT}``. The page has the table between two marks, and `python -m experiments.publish
--again` writes it there:

```toml
run = "hardening-fast"                      # the kept run, unless a row names another

[[row]]
quantity = "peak accuracy without noise, with noisy training"
source = ".75; -"
ours = "{rows[method=none].peak .3f}; {max rows[method=noise].peak .3f}"
```

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
_BRACES = r"\{([^}]*)\}"
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
    kind, _, path = first.partition(" ")
    if kind not in {*_REDUCED, "each"}:
        kind, path = "", first
    values = find(content, path)
    if kind in _REDUCED:
        values = [_REDUCED[kind](values)]
    if kind != "each" and len(values) > 1:
        raise LookupError(f"{path!r} leads to {len(values)} values: say which, or max, mean, each")
    if rest:
        sign, other = rest
        (by,) = [float(other)] if re.fullmatch(r"[\d.e+-]+", other) else find(content, other)
        values = [value / by if sign == "/" else value * by for value in values]
    return ", ".join(_written(value, form) for value in values)


def _written(value: Any, form: str) -> str:
    text = format(value, form).replace("%", " %")
    return re.sub(r"^(-?)0(?=\.)", r"\1", text)  # as everywhere here: .95


def table(page: str) -> str:
    """Writes the table of a page.

    Raises:
        ValueError: A number isn't where its row says; the row is named.
    """
    said = tomllib.loads((TABLES / f"{page}.toml").read_text())
    rows = []
    for row in said["row"]:
        try:
            ours = re.sub(_BRACES, _writer(_content(row.get("run") or said["run"])), row["ours"])
        except (LookupError, ValueError, TypeError) as error:
            raise ValueError(f"{page}: {row['quantity']}: {error}") from error
        if re.search(r"\d", re.sub(_BRACES, "", row["ours"])):
            raise ValueError(f"{page}: {row['quantity']}: a number that names no place in a run")
        rows.append((row["quantity"], row.get("source", "-"), ours))
    return markdown(Table(("quantity", "source", "ours"), rows)) + "\n"


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
