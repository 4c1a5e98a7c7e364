"""Numbers of kept runs on the pages that come first; `experiments.publish` writes them."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from experiments.harness import Table
from experiments.pages import RESULTS, markdown, number

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": ("quickstart_digits", False),
    "docs/results/quickstart.md": ("quickstart", True),
}
"""The kept run of a page, and whether it shows latencies."""
METHODS = {
    "deterministic": "plain network",
    "svi30": "variational inference, 30 samples",
    "moments": "**moments, one pass**",
}
FOUND = (
    (
        "quickstart_digits",
        "**One pass that carries means and variances finds what a network has never seen as well "
        "as 30 sampled passes do**: AUROC {rows[method=moments].auroc .3f} and "
        "{rows[method=svi30].auroc .3f} for LeNet-5 on digits against patches of photographs, "
        "where the entropy of the plain network has {rows[method=deterministic].auroc .3f}.",
    ),
    (
        "hardening",
        "**Training with noise lets a network bear {checks[name~lenet5: noisy training raises "
        "the midpoint as often as in the thesis].ours .1f} times as much of it** (LeNet-5 on "
        "CIFAR-10; 9.1 times in the thesis).",
    ),
    (
        "microcontroller-full",
        "**What a microcontroller computes in eight bits are JAX's own bits**, in "
        "{min rows[table=networks; core=cortex-m7].ratio .2f} to "
        "{max rows[table=networks; core=cortex-m7].ratio .2f} of the instructions that "
        "CMSIS-NN, the library of the maker, takes for the same networks (Cortex-M7, counted).",
    ),
)
"""What the page of results opens with: a kept run, and a sentence with numbers of it in braces."""
_OPENING = r"(?s)(?<=<!-- found -->\n).*?(?=<!-- end of found -->)"
_MARKED = r"(?s)(?<=<!-- quickstart -->\n).*?(?=<!-- end of quickstart -->)"
_QUALITY = {"accuracy": ".2%", "NLL": ".3f", "ECE": ".4f", "AUROC": ".3f"}


def methods(content: Any, timed: bool) -> str:
    """Writes the table of a run: a line for each method, latencies relative to the moment pass."""

    def row(method: str) -> list[str]:
        cells = [
            number(content, f"rows[method={method}].{name.lower()} {form}")
            for name, form in _QUALITY.items()
        ]
        base = "rows[method=moments].latency_ms"
        for name in (method, f"{method}_tvm") if timed else ():
            cells.append(number(content, f"rows[method={name}].latency_ms / {base} .2f"))
        return [METHODS[method], *cells]

    times = ("latency, XLA>", "latency, TVM>") if timed else ()
    columns = ("method", *(f"{name}>" for name in _QUALITY), *times)
    return markdown(Table(columns, [row(method) for method in METHODS])) + "\n"


def page(name: str) -> str:
    """The text of a page with its table as it should be."""
    run, timed = PAGES[name]
    content = json.loads((RESULTS / "runs" / f"{run}.json").read_text())
    return re.sub(_MARKED, lambda _: methods(content, timed), (ROOT / name).read_text())


def _named(content: dict[str, Any], place: re.Match[str]) -> str:
    return number(content, place[1])


def opening() -> str:
    """The text of the page of results with its first sentences as they should be."""
    lines = []
    for run, sentence in FOUND:
        content = json.loads((RESULTS / "runs" / f"{run}.json").read_text())
        text = re.sub(r"\{([^}]*)\}", partial(_named, content), sentence)
        lines.append(f"- {text} [Run](runs/{run}.md).\n")
    return re.sub(_OPENING, lambda _: "".join(lines), (RESULTS / "README.md").read_text())


def write() -> None:
    """Writes the tables of all pages, and what the page of results opens with."""
    for name in PAGES:
        (ROOT / name).write_text(page(name))
    (RESULTS / "README.md").write_text(opening())
