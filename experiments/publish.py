"""Pages of results, from the JSON of studies' runs.

    python -m experiments.publish results/quickstart.json [MORE.json ...]

Keeps each run's JSON and figures in docs/results/runs/ and writes a page of its tables and checks
beside them, the source's numbers next to ours. The pages are made from the JSON alone, and a test
makes them again: a number on them can't be anything but that run's.
"""

import argparse
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.__main__ import MODULES, load
from experiments.harness import Report, Study, Table
from experiments.harness.command import find_options
from experiments.harness.report import COMMIT, Row, verdict
from jaxeff.core import cell_text

RUNS = Path(__file__).parents[1] / "docs" / "results" / "runs"
_PARTS = {"experiment", "size", "config", "versions", "rows", "checks", "differences"}


def study_of(name: str) -> tuple[str, Study]:
    """Finds the module of a study, and the study, by the name in its results.

    Raises:
        KeyError: There is no such study.
    """
    for module in MODULES:
        study = load(module)
        if study.name == name:
            return module, study
    raise KeyError(f"no study is called {name!r}; `python -m experiments` lists them")


def page(content: Mapping[str, Any], name: str, figures: list[str]) -> str:
    """Writes the page of a run.

    Args:
        content: The run's JSON.
        name: File name of the JSON, without its ending.
        figures: File names of its figures.
    """
    module, study = study_of(content["experiment"])
    extra = {key: value for key, value in content.items() if key not in _PARTS}
    report = Report(study.name, content["size"], content["config"], content["rows"], extra)
    size = "" if content["size"] == "default" else f" --{content['size']}"
    versions = ", ".join(f"{key} {value}" for key, value in content["versions"].items())
    blocks = [
        f"# {name}",
        study.about.splitlines()[0],
        f"`python -m experiments.{module}{size}{_chosen(study, content)}`, "
        f"seed {content['config'].get('seed', 0)}. "
        f"{versions}.{_commits(content['rows'])} Written from [{name}.json]({name}.json).",
        *(f"![Figure of {name}: {Path(file).stem}]({file})" for file in figures),
        *(f"## {table.title}\n\n{markdown(table)}" for table in study.show(report)),
    ]
    if content["checks"]:
        rows = [
            (c["name"], cell_text(c["source"]), cell_text(c["ours"]), verdict(c))
            for c in content["checks"]
        ]
        blocks.append(f"## Checks\n\n{markdown(Table(('check', 'source', 'ours', ''), rows))}")
    if content["differences"]:
        told = "\n".join(f"- {line}" for line in content["differences"])
        blocks.append(f"## What differs from the source\n\n{told}")
    return "\n\n".join(blocks) + "\n"


def _commits(rows: list[Row]) -> str:
    """Tells how many rows other commits have made than the one that wrote the report."""
    made = Counter(row[COMMIT] for row in rows if COMMIT in row)
    told = ", ".join(f"{number} of {commit}" for commit, number in made.items())
    return f" Of {len(rows)} rows, {told}." if made else ""


def _chosen(study: Study, content: Mapping[str, Any]) -> str:
    """Writes the options of a run: settings that aren't those of its size."""
    own, told = study.sizes[content["size"]], ""
    for option in find_options(type(own)):
        taken: Any = content["config"]
        for name in option.path:
            taken = taken.get(name) if isinstance(taken, Mapping) else None
        # JSON has lists where settings have tuples. A run that is older than an option lacks it.
        if taken is not None and taken != json.loads(json.dumps(option.value(own), default=str)):
            values = taken if isinstance(taken, list) else [taken]
            told += f" --{option.name} {shlex.join(map(str, values))}"
    return told


def markdown(table: Table) -> str:
    """Writes a table in Markdown."""

    def line(cells: Any) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    heads = [column.removesuffix(">") for column in table.columns]
    rules = ["---:" if column.endswith(">") else "---" for column in table.columns]
    total = [table.total] if table.total else []
    return "\n".join(map(line, [heads, rules, *table.rows, *total]))


def publish(path: Path) -> Path:
    """Keeps a run's JSON and figures, and writes its page.

    Args:
        path: The JSON that a study left.

    Returns:
        The page.

    Raises:
        FileNotFoundError: The study draws figures, and there are none beside the JSON.
    """
    content = json.loads(path.read_text())
    RUNS.mkdir(parents=True, exist_ok=True)
    pictures = sorted(path.with_suffix("").glob("*.png"))
    # A study leaves them in its folder of results; a JSON that went elsewhere is without them.
    if not pictures and study_of(content["experiment"])[1].plots:
        raise FileNotFoundError(
            f"{path.with_suffix('')} has no figures; publish the JSON that lies beside the folder "
            "of the run's figures, or move that folder there"
        )
    figures = []
    for picture in pictures:
        figures.append(f"{path.stem}-{picture.name}")
        shutil.copyfile(picture, RUNS / figures[-1])
    (RUNS / f"{path.stem}.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    written = RUNS / f"{path.stem}.md"
    written.write_text(page(content, path.stem, figures))
    return written


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="JSON files that studies left")
    for path in parser.parse_args().runs:
        print(publish(path))


if __name__ == "__main__":
    main()
