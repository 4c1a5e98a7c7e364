"""What every experiment leaves behind: one JSON, one table, and checks against the source.

The JSON has `config`, `versions`, `rows` (a flat record per measured thing) and `checks` (name, the
source's value, ours, passed), and whatever else an experiment adds. It is written whole or not at
all.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

_PACKAGES = ("jaxeff", "jax", "jaxlib", "flax", "optax", "numpyro", "apache-tvm", "numpy")


def make_console() -> Console:
    """A console that is wide enough for a table where the output isn't a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=130)


@dataclass
class Report:
    """Collects what an experiment finds.

    Attributes:
        name: The experiment's.
        config: Every setting that the figures depend on.
        rows: Flat records, one per measured thing.
        checks: Claims, each with the source's value, ours, and whether it holds.
        extra: Further top-level entries of the JSON.
    """

    name: str
    config: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, source: Any, ours: Any, passed: Any) -> None:
        """Records a claim; `source` is None where the source reports no number."""
        self.checks.append({"name": name, "source": source, "ours": ours, "passed": bool(passed)})

    def save(self, path: Path) -> Path:
        """Writes the JSON, atomically."""
        content = {
            "experiment": self.name,
            "config": self.config,
            "versions": versions(),
            "rows": self.rows,
            "checks": self.checks,
            **self.extra,
        }
        text = json.dumps(content, indent=1, default=_plain, allow_nan=False)
        write_atomically(path, text.encode())
        return path

    def show_checks(self, console: Console) -> None:
        """Prints the claims beside the source's numbers."""
        table = Table(title="Checks")
        for column in ("check", "source", "ours", ""):
            table.add_column(column)
        for check in self.checks:
            cells = (_cell(check["source"]), _cell(check["ours"]))
            table.add_row(check["name"], *cells, "ok" if check["passed"] else "FAILED")
        console.print(table)


def show_rows(
    console: Console,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
) -> None:
    """Prints flat records as a table.

    Args:
        console: Where to.
        title: Above the table.
        rows: The records; a missing entry is an empty cell.
        columns: The keys to show; all of them if None.
    """
    table = Table(title=title)
    columns = columns or list(dict.fromkeys(key for row in rows for key in row))
    for i, column in enumerate(columns):
        table.add_column(
            column.replace("_", " "),
            justify="right" if i else "left",
            no_wrap=True,
        )
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(table)


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array.tolist()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return f"{value:,}" if not isinstance(value, bool) else str(value)
    number = float(value)
    return f"{number:.2e}" if number and abs(number) < 1e-3 else f"{number:.4g}"
