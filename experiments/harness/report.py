"""What a study leaves behind: one JSON, tables, and checks against the thesis.

The JSON has `config`, `versions`, `rows` (a flat record per measured thing), `checks` and
`differences`, and whatever else a study adds. Tables, checks and figures are made from what the
JSON holds, so they can be made again from it.
"""

import contextlib
import dataclasses
import datetime
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from experiments.harness.command import SIZES
from jaxeff.core import Table, cell_text
from jaxeff.store import write_atomically

Row = dict[str, Any]
COMMIT = "commit"
"""In `versions` the commit that wrote the report; in a row the one that made it, if another."""
COMMIT_VARIABLE = "JAXEFF_COMMIT"
"""Names the commit where the repository's history isn't at hand, as on a lent machine."""
ENTRIES = {
    "experiment", "size", "config", "versions", "rows", "checks", "differences", "date",
}  # fmt: skip
"""Entries of the JSON that every report has; a study's own are others."""
LEFT, MADE = "tasks_left", "made"
"""Further entries: tasks without rows, if there are any; and who made the others."""
REST = "the rest of the run"
"""What a check needs for which rows are missing."""
_PACKAGES = ("jaxeff", "jax", "jaxlib", "flax", "optax", "numpyro", "apache-tvm", "numpy")


@dataclass
class Report:
    """What a study has found, as its JSON has it."""

    name: str  # the study's
    size: str  # at which it ran
    config: dict[str, Any]  # every setting that the figures depend on
    rows: list[Row] = field(default_factory=list)  # flat records, one per measured thing
    extra: dict[str, Any] = field(default_factory=dict)  # further top-level entries of the JSON
    # what figures need and JSON is no place for, by name
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    # claims, each with the thesis' value, ours, and whether it holds: None where the size can't
    # decide it
    checks: list[dict[str, Any]] = field(default_factory=list)
    decides: str = ""  # the largest size that its settings cover; `size` if not said
    left: int = 0  # tasks that have no rows yet

    def __post_init__(self) -> None:
        self.decides = self.decides or self.size

    def check(
        self,
        name: str,
        source: Any,
        ours: Any,
        passed: Any,
        needs: str = "fast",
        complete: bool = False,
    ) -> None:
        """Records a claim.

        Args:
            name: What is claimed.
            source: Its value there; None where it reports none.
            ours: The value here.
            passed: Whether the claim holds.
            needs: The smallest size that can decide it.
            complete: Whether it is of single rows, so that it holds whatever is left to be made.
        """
        if self.left and not complete:
            needs, decided = REST, False
        else:
            decided = SIZES.index(self.decides) >= SIZES.index(needs)
        verdict = {"passed": bool(passed)} if decided else {"passed": None, "needs": needs}
        self.checks.append(plain({"name": name, "source": source, "ours": ours} | verdict))

    def save(self, path: Path, differences: Sequence[str] = ()) -> Path:
        """Writes the JSON, atomically."""
        content = {
            "experiment": self.name,
            "size": self.size,
            "config": self.config,
            "versions": versions(),
            "rows": self.rows,
            "checks": self.checks,
            "differences": list(differences),
            "date": datetime.date.today().isoformat(),
            **self.extra,
        }
        write_atomically(path, json.dumps(_finite(content), indent=1, allow_nan=False))
        return path


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON doesn't have, so that a run's end loses nothing."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(value: Any) -> Any:
    """What JSON makes of a value: dataclasses are objects, arrays and tuples lists, paths text."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    array = np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"JSON has no place for {value!r}")
    return array.item() if array.ndim == 0 else array.tolist()


def show_checks(console: Console, checks: Sequence[Mapping[str, Any]]) -> None:
    """Prints the claims beside the thesis' numbers."""
    cells = [
        (check["name"], cell_text(check["source"]), cell_text(check["ours"]), verdict(check))
        for check in checks
    ]
    console.print(Table(("check", "expected", "ours", ""), cells, title="Checks"))


def verdict(check: Mapping[str, Any]) -> str:
    """What a check says: that it holds, that it failed, or that this size can't decide it."""
    if check["passed"] is None:
        return f"undecided (needs {check['needs']})"
    return "ok" if check["passed"] else "FAILED"


def versions() -> dict[str, str]:
    """Versions of what the figures depend on, the processor, and the commit that ran."""
    versions_there = {"python": platform.python_version(), "machine": platform.machine()}
    versions_there |= machine() | commit()
    for package in _PACKAGES:
        try:
            versions_there[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions_there


def machine() -> dict[str, str]:
    """The processor, and the accelerator where JAX computes on one."""
    return _processor() | _accelerator()


def _processor() -> dict[str, str]:
    """The processor's name, where Linux tells it."""
    with contextlib.suppress(OSError):
        names = re.findall(
            r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
        if names:
            return {"processor": f"{len(names)} x {names[0]}"}
    return {}


def _accelerator() -> dict[str, str]:
    """What JAX computes on, where that isn't the processor."""
    device = jax.devices()[0]
    return {} if device.platform == "cpu" else {"accelerator": device.device_kind}


def commit() -> dict[str, str]:
    """The repository's commit as `versions` has it, with a plus sign where files were changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        folder = Path(__file__).parent
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return {COMMIT: run.stdout.strip()}
    told = os.environ.get(COMMIT_VARIABLE)
    return {COMMIT: told} if told else {}
