"""Fast runs of the studies, made small enough to be kept: `python -m tests.experiments.canning`.

    python -m tests.experiments.canning [--results FOLDER] [<name>...]

takes the results of `--fast` and writes them to `canned/`; arrays are thinned out.
"""

import argparse
import gzip
import json
from pathlib import Path

import numpy as np

from experiments.__main__ import MODULES, load
from experiments.harness import Report

FOLDER = Path(__file__).parent / "canned"
VALUES = 400
"""Entries along the first axis of an array of samples."""


def can(name: str, results: Path) -> None:
    """Keeps the fast run of a study."""
    study = load(name).name
    report = json.loads((results / f"{study}-fast.json").read_text())
    del report["versions"]
    with gzip.GzipFile(FOLDER / f"{study}.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(report).encode())
    if (arrays := results / f"{study}-fast" / "arrays.npz").exists():
        with np.load(arrays) as loaded:
            kept = {name: _thin(name, loaded[name]) for name in loaded}
        np.savez_compressed(FOLDER / f"{study}.npz", **kept)


def open_can(name: str, size: str = "fast") -> Report:
    """The report of a kept run, as if it had been made at a size, without its checks."""
    report = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    known = ("experiment", "size", "config", "rows", "checks", "differences")
    extra = {key: value for key, value in report.items() if key not in known}
    arrays = {}
    if (path := FOLDER / f"{name}.npz").exists():
        with np.load(path) as loaded:
            arrays = {key: loaded[key] for key in loaded}
    return Report(name, size, report["config"], report["rows"], extra, arrays)


def _thin(name: str, array: np.ndarray) -> np.ndarray:
    """Fewer samples; what belongs to a grid or a curve stays whole."""
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    samples = name.split("/")[-1] in ("inside", "training", "test", "noisy", "before", "least")
    samples |= name.endswith("/outside") and array.dtype != bool
    return array.ravel()[:VALUES] if samples else array


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=MODULES)
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args()
    for each in given.names:
        can(each, given.results)
