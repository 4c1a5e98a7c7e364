"""Rows: ours beside a peer's, or a number of ours beside what is asked."""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

from experiments.timing import interleaved

Row = dict[str, Any]
PACKAGES = {
    "ONNX Runtime": ("onnxruntime", "onnxruntime onnx"), "MAPIE": ("mapie", "mapie"),
    "torchmetrics": ("torchmetrics", "torchmetrics"), "laplace-torch": ("laplace", "laplace-torch"),
    "Torch-Pruning": ("torch_pruning", "torch-pruning"),
}  # fmt: skip
"""What is imported of a peer, and what is installed for it."""


def absent(what: str, peer: str, asked: float) -> list[Row]:
    """The row of a peer that can't be imported; none of one that can."""
    module, install = PACKAGES[peer]
    if find_spec(module):
        return []
    missing = f"pip install {install}"
    return [{"what": what, "peer": peer, "unit": "ratio", "asked": asked, "missing": missing}]


def beside(
    what: str, peer: str, asked: float, calls: tuple[Callable[[], Any], Callable[[], Any]],
    rounds: int, agrees: bool | None = None,
) -> Row:  # fmt: skip
    """The row of two functions that take turns, ours first: milliseconds of the process."""
    times = interleaved(
        {"ours": calls[0], "theirs": calls[1]}, rounds, 0.02, "theirs", time.process_time
    )
    row = {"what": what, "peer": peer, "unit": "ratio", "asked": asked}
    row |= {"ours": times["ours"]["ms"], "theirs": times["theirs"]["ms"]}
    row["value"] = times["ours"]["ratio"]
    return row if agrees is None else row | {"agrees": agrees}


def counted(what: str, unit: str, asked: float | None, value: float) -> Row:
    """The row of a number of ours."""
    return {"what": what, "peer": "", "unit": unit, "asked": asked, "value": value}


def ratio(pairs: Sequence[tuple[float, float]]) -> Row:
    """The medians of ours and theirs over rounds, and that of their ratios."""
    ours, theirs = (median(column) for column in zip(*pairs, strict=True))
    return {"ours": ours, "theirs": theirs, "value": median(a / b for a, b in pairs)}
