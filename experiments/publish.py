"""Pages of results, from the JSON of studies' runs.

    python -m experiments.publish results/quickstart.json [MORE.json ...]
    python -m experiments.publish --again          # judges all kept runs, writes all their pages

Keeps each run's JSON and figures in docs/results/runs/ and writes a page of its tables and checks
beside them, the thesis' numbers next to ours. The pages are made from the JSON alone, and a test
makes them again: a number on them can't be anything but that run's. So are the list of kept runs at
the end of docs/results/README.md, their entries in mkdocs.yml, and the tables of pages
(`experiments.pages`). Claims are judged from the rows when a run is published, and ``--again`` does
so after they were changed.
"""

import argparse
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image  # matplotlib's own

from experiments import first_numbers, verdicts
from experiments.__main__ import MODULES, load
from experiments.harness import Study, Table
from experiments.harness.command import find_options
from experiments.harness.report import COMMIT, LEFT, MADE, verdict
from experiments.harness.sizes import NARROWED, reached, shortfalls, shown_size
from experiments.harness.staleness import stale
from experiments.pages import RESULTS, compared, markdown, pages, with_table
from jaxeff.core import cell_text

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "docs" / "results" / "runs"
LIST = ROOT / "docs" / "results" / "README.md"
NAVIGATION = ROOT / "mkdocs.yml"
_MARKED = r"(?s)(?<=<!-- kept runs -->\n).*?(?=<!-- end of kept runs -->)"
_LISTED = r"(?m)(^ +- Kept runs:\n)((?: +- .*results/runs/.*\n)*)"


def study_of(name: str) -> tuple[str, Study[Any]]:
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
    thesis, report = not module.startswith("beyond."), study.report(content)
    size = "" if content["size"] == "default" else f" --{content['size']}"
    versions = ", ".join(f"{key} {value}" for key, value in content["versions"].items())
    blocks = [
        f"# {name}",
        study.about.splitlines()[0],
        f"`python -m experiments.{module}{size}{_chosen(study, content)}`, "
        f"seed {content['config'].get('seed', 0)}. {_sized(study, content)}"
        f"{versions}. Written from [{name}.json]({name}.json).",
        *filter(None, [_left(content), _makers(content)]),
        *(f"![Figure of {name}: {Path(file).stem}]({file})" for file in figures),
        *(f"## {table.title}\n\n{markdown(table)}" for table in study.show(report)),
    ]
    if content["checks"]:
        rows = [
            (c["name"], cell_text(c["source"]), cell_text(c["ours"]), verdict(c))
            for c in content["checks"]
        ]
        heads = ("check", compared(thesis), "ours", "")
        blocks.append(f"## Checks\n\n{markdown(Table(heads, rows))}")
    if content["differences"]:
        told = "\n".join(f"- {line}" for line in content["differences"])
        blocks.append(f"## {'What differs from the thesis' if thesis else 'To know'}\n\n{told}")
    if any(re.search(r"\bthesis\b", block) for block in blocks):
        blocks[1] += " *The thesis* is [B. Klein's](../sources.md)."
    return "\n\n".join(blocks) + "\n"


def _sized(study: Study[Any], content: Mapping[str, Any]) -> str:
    """Says that a run covers less than the size whose name it bears."""
    if shown_size(content["config"], study.sizes) != NARROWED:
        return ""
    less = ", ".join(shortfalls(content["config"], study.sizes, content["size"]))
    decides = reached(content["config"], study.sizes)
    return f"Narrowed: less than the size {content['size']} in {less}; judged as {decides}. "


def _left(content: Mapping[str, Any]) -> str:
    """Says that rows are missing."""
    left = content.get(LEFT, 0)
    done = sum(entry["tasks"] for entry in content.get(MADE, ()))
    return f"**Unfinished: {done:g} of {done + left:g} tasks are done.**" if left else ""


def _makers(content: Mapping[str, Any]) -> str:
    """Says who made the rows, where that isn't the commit alone that wrote the report."""
    version = content["versions"].get(COMMIT)
    if makers := content.get(MADE):
        hours = sum(entry["cpu_seconds"] for entry in makers) / 3600
        took = f"{_duration(hours)} of CPU time. " if hours else ""
        if {entry["commit"] for entry in makers} <= {version} and len(makers) == 1:
            return took.strip()
        parts = [
            f"{entry['rows']} by {entry['commit'] or 'a commit that is not known'}"
            + (f" on {entry['machine']}" if entry["machine"] else "")
            for entry in makers
        ]
        return f"{took}Rows: {'; '.join(parts)}."
    others = Counter(row[COMMIT] for row in content["rows"] if COMMIT in row)
    told = ", ".join(f"{number} by {commit}" for commit, number in others.items())
    return f"Of {len(content['rows'])} rows, {told}." if others else ""


def _duration(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def _chosen(study: Study[Any], content: Mapping[str, Any]) -> str:
    """Writes the options of a run: settings that aren't those of its size."""
    size, told = study.sizes[content["size"]], ""
    for option in find_options(type(size)):
        taken: Any = content["config"]
        for name in option.path:
            taken = taken.get(name) if isinstance(taken, Mapping) else None
        # JSON has lists where settings have tuples. A run that is older than an option lacks it.
        if taken is not None and taken != json.loads(json.dumps(option.value(size), default=str)):
            values = taken if isinstance(taken, list) else [taken]
            told += f" --{option.name} {shlex.join(map(str, values))}"
    return told


def judged(content: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a run with the checks of today's claims."""
    _, study = study_of(content["experiment"])
    report = study.report(content)
    study.judge(report)
    return {**content, "checks": report.checks}


def publish(path: Path, name: str = "") -> Path:
    """Keeps a run's JSON and figures, and writes its page and its entries in the lists.

    Args:
        path: The JSON that a study left.
        name: Of the kept run; that of the file if empty.

    Returns:
        The page.

    Raises:
        FileNotFoundError: The study draws figures, and their folder isn't beside the JSON.
    """
    content, name = json.loads(path.read_text()), name or path.stem
    RUNS.mkdir(parents=True, exist_ok=True)
    pictures = sorted(path.with_suffix("").glob("*.png"))
    # A study leaves them in its folder of results, some parts none; a JSON that went elsewhere is
    # without the folder.
    if not path.with_suffix("").is_dir() and study_of(content["experiment"])[1].plots:
        raise FileNotFoundError(
            f"there is no folder {path.with_suffix('')} of figures; publish the JSON that lies "
            "beside the folder of the run's figures, or move that folder there"
        )
    for old in figures_of(name):
        (RUNS / old).unlink()
    for picture in pictures:
        keep_figure(picture, RUNS / f"{name}-{picture.name}")
    _write(name, content)
    write_lists()
    return RUNS / f"{name}.md"


def keep_figure(picture: Path, kept: Path) -> None:
    """Writes a figure with a palette: a third of the bytes, which a repository keeps for ever."""
    with Image.open(picture) as image:
        palette = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    palette.save(kept, optimize=True)


def _write(name: str, content: Mapping[str, Any]) -> None:
    content = judged(content)
    path = RUNS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    path.with_suffix(".md").write_text(page(content, name, figures_of(name)))


def figures_of(name: str) -> list[str]:
    """File names of a kept run's figures."""
    longer = [path.stem for path in RUNS.glob("*.json") if path.stem.startswith(f"{name}-")]
    pictures = sorted(picture.name for picture in RUNS.glob(f"{name}-*.png"))
    return [file for file in pictures if not any(file.startswith(f"{one}-") for one in longer)]


def listing() -> str:
    """Writes the list of kept runs: their size, date, commit and checks."""
    rows = []
    for path in sorted(RUNS.glob("*.json")):
        content = json.loads(path.read_text())
        _, study = study_of(content["experiment"])
        verdicts = Counter(check["passed"] for check in content["checks"])
        commits = {entry["commit"] or "" for entry in content.get(MADE, ())}
        commits |= {row[COMMIT] for row in content["rows"] if COMMIT in row}
        commits |= {content["versions"].get(COMMIT, "")} if not content.get(MADE) else set()
        left = content.get(LEFT, 0)
        reasons = stale(study, content)
        rows.append((
            f"[{path.stem}](runs/{path.stem}.md)",
            shown_size(content["config"], study.sizes) + (f", {left} tasks left" if left else ""),
            content.get("date", ""), ", ".join(sorted(commits - {""})),
            *(str(verdicts[one]) for one in (True, False, None)), "; ".join(reasons),
        ))  # fmt: skip
    heads = ("run", "size", "date", "commit", "ok>", "failed>", "undecided>", "stale")
    return markdown(Table(heads, rows)) + "\n"


def write_lists() -> None:
    """Writes the list of kept runs, their entries in the navigation, and the tables of pages."""
    kept = re.sub(_MARKED, lambda _: listing(), LIST.read_text())
    LIST.write_text(verdicts.write(kept))
    verdicts.draw()
    NAVIGATION.write_text(re.sub(_LISTED, lambda m: m[1] + navigation(), NAVIGATION.read_text()))
    for name in pages():
        (RESULTS / f"{name}.md").write_text(with_table(name))
    first_numbers.write()


def navigation() -> str:
    """Writes the entries of kept runs in the navigation of the reference."""
    names = sorted(path.stem for path in RUNS.glob("*.json"))
    return "".join(f"          - {in_words(name)}: results/runs/{name}.md\n" for name in names)


def in_words(name: str) -> str:
    """Writes the name of a run as a title.

    Args:
        name: File name of its JSON, without its ending, such as `walking_noise-fast`.
    """
    study, _, size = name.replace("_", " ").partition("-")
    return f"{study[0].upper()}{study[1:]}{f' ({size})' if size else ''}"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, help="JSON files that studies left")
    parser.add_argument("--name", default="", help="of the kept run, where one JSON is given")
    parser.add_argument("--again", action="store_true", help="judge all kept runs again")
    arguments = parser.parse_args()
    if arguments.name and len(arguments.runs) != 1:
        parser.error("--name is for one run")
    for path in arguments.runs:
        print(publish(path, arguments.name))
    if arguments.again:
        for path in sorted(RUNS.glob("*.json")):
            _write(path.stem, json.loads(path.read_text()))
        write_lists()


if __name__ == "__main__":
    main()
