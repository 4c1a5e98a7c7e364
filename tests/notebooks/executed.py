"""Executes notebooks and keeps what they show: `python -m tests.notebooks.executed [NAME ...]`.

What is executed is written back with the hash of its code, so that outputs of other code are seen
without running anything. A kernel runs as the tests do: on a processor, compiled quickly.

Numbers are held to those that are kept. They differ from machine to machine, since trainings
amplify how sums are rounded, so a cell says how far they may be off: its metadata has
``"error": {"points": 3, "share": 0.1}``, points for percentages and a share of the value for all
others; without it `POINTS` and `SHARE` hold. Where an agent chooses what a line says, as in a
search, ``"words": false`` holds the number of lines alone. Times differ in any case, and so do the
numbers of a line that names a unit of them.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import Any

import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
POINTS, SHARE = 3.0, 0.1
CODE = "code_of_outputs"
"""Where a notebook's metadata has the hash of the code that its outputs are of."""

_EXECUTE = "from nbclient.cli import NbClientApp; NbClientApp.launch_instance()"
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?(?:\s?%)?(?![\w.]*\w)")
_TIMES = re.compile(r"\b(ns|µs|ms|s|seconds|microseconds|milliseconds)\b")
_ROUNDED = 1e-3
"""Below it a number is one of rounding errors: of their size nothing is said."""


def environment(folder: Path) -> dict[str, str]:
    """One in which the kernel python3 is this interpreter."""
    kernel = folder / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    return {
        **{name: value for name, value in os.environ.items() if name != "JAXEFF_DATA"},
        "JUPYTER_PATH": str(folder / "jupyter"),
        "IPYTHONDIR": str(folder / "ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # no cell shows a time of XLA
    }


def execute(path: Path, folder: Path) -> Path:
    """Executes a copy of a notebook in a folder, and returns the copy."""
    copy = folder / path.name
    nbformat.write(nbformat.read(path, as_version=4), copy)
    command = [sys.executable, "-c", _EXECUTE, str(copy), "--inplace", "--kernel_name=python3"]
    run = subprocess.run(
        command, env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=900
    )
    if run.returncode:
        raise AssertionError(run.stderr[-3000:])
    return copy


def code_cells(path: Path) -> list[Any]:
    """Its cells of code."""
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def code_hash(path: Path) -> str:
    """The hash of a notebook's code."""
    code = "\n".join(cell.source for cell in code_cells(path))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def shown(cell: Any) -> str:
    """The text that a cell shows, without warnings."""
    parts = [o.text for o in cell.outputs if o.get("name") == "stdout"]
    parts += [o.data["text/plain"] for o in cell.outputs if "text/plain" in o.get("data", {})]
    return "\n".join(parts)


def differences(kept: Any, again: Any) -> list[str]:
    """What a cell shows otherwise than it is kept: words, or numbers beyond the error."""
    allowed = {"points": POINTS, "share": SHARE, **kept.metadata.get("error", {})}
    lines = []
    for one, other in zip_longest(_lines(kept), _lines(again), fillvalue=""):
        if _TIMES.search(one) or _TIMES.search(other) or one.startswith("<Figure"):
            continue
        if not allowed.get("words", True):
            if bool(one) != bool(other):
                lines.append(f"kept: {one}\n here: {other}")
            continue
        same = _NUMBER.sub("#", one).split() == _NUMBER.sub("#", other).split()
        pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=False)
        if not (same and all(_agree(a, b, allowed) for a, b in pairs)):
            lines.append(f"kept: {one}\n here: {other}")
    return lines


def _lines(cell: Any) -> list[str]:
    """Lines of what a cell shows; rules of tables are as wide as what they are around."""
    text = re.sub(r"[─━┃│┏┓┗┛┡┩┠┨├┤┬┴┼╇╈┳┻┌┐└┘]", " ", shown(cell))
    return [line for line in map(str.strip, text.splitlines()) if line]


def _agree(kept: str, here: str, allowed: dict[str, float]) -> bool:
    one, other = (float(each.rstrip("% ").replace(",", "")) for each in (kept, here))
    if kept.endswith("%"):
        return abs(one - other) <= allowed["points"]
    if max(abs(one), abs(other)) < _ROUNDED:
        return True
    last = 10.0 ** -len(kept.partition(".")[2])  # what is shown is rounded itself
    return abs(one - other) <= allowed["share"] * max(abs(one), abs(other)) + last


def main() -> None:
    """Executes notebooks and writes them back."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="without ending [all]")
    names = parser.parse_args().names or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            done = nbformat.read(execute(path, Path(folder)), as_version=4)
        for cell in done.cells:
            cell.metadata.pop("execution", None)  # when it was executed
            if cell.cell_type == "code":
                cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        done.metadata[CODE] = code_hash(path)
        nbformat.write(done, path)
        print(f"executed {name}", flush=True)


if __name__ == "__main__":
    main()
