"""`vela_latency`: cycles of a candidate on Arm's Ethos-U, as their compiler Vela estimates them.

A candidate is converted to int8, written by `to_litert` and compiled by Vela, which isn't run on
anything: the cycles are of its own model of the accelerator and its memories.

In a search it is `search(..., latency=vela_latency(x[:64], accelerator="ethos-u55-128"))`.
"""

import csv
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from jaxeff.core import input_batch, one_of, validate
from jaxeff.search import INT8, Candidate, LatencyError, Policy
from jaxeff_export.litert_files import LitertError, to_litert
from jaxeff_export.targets import require_extra

Accelerator = Literal[
    "ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256",
    "ethos-u65-256", "ethos-u65-512",
]  # fmt: skip


@validate(inputs=input_batch, accelerator=one_of(*Accelerator.__args__))  # type: ignore[attr-defined]
def vela_latency(*inputs: Any, accelerator: Accelerator = "ethos-u55-128") -> "VelaLatency":
    """Makes a latency by Vela: cycles of a call on one input, on an Ethos-U55 or U65.

    The accelerator has products of 8 bits alone, so a policy's bits count as 8, and channels are
    what a search by it chooses. Candidates with the same channels are compiled once. Memories are
    those that Vela assumes where it is told none: weights in flash, activations in 4 MiB of SRAM.

    A searcher may ask it of any policy, as a knapsack does of every number of channels of every
    layer before its first episode. That takes a second or two each.

    ```python
    import importlib.util

    import jax.numpy as jnp
    from jaxeff.nn import small_classifier
    from jaxeff.search import Candidate, Candidates, SearchSpace
    from jaxeff_export import vela_latency

    f, params, (x, y) = small_classifier(32)
    space = SearchSpace.read(f, params, x[:1])
    candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=32)
    cycles = vela_latency(x, accelerator="ethos-u55-128")
    if all(map(importlib.util.find_spec, ("ethosu", "litert_converter"))):
        assert cycles(Candidate(space.uncompressed, space, candidates.smaller)) > 0
    ```

    Args:
        *inputs: Examples of what the model reads, over which ranges of codes are measured.
        accelerator: The accelerator and its multiply-adds in a cycle.

    Returns:
        The latency, in cycles. It raises `LatencyError` where a candidate can't be written for the
        accelerator, or Vela leaves operators to the processor beside it, and `MissingExtraError`
        where Vela or the converter isn't installed.
    """
    return VelaLatency(inputs, accelerator)


class VelaLatency:
    """Cycles by Vela of candidates, each number of channels compiled once; of `vela_latency`.

    Attributes:
        looked_up: For searchers: asking costs no measurement on a board.
    """

    looked_up: ClassVar[bool] = True

    def __init__(self, inputs: tuple[Any, ...], accelerator: Accelerator) -> None:
        self._inputs, self._accelerator = inputs, accelerator
        self._known: dict[tuple[int, ...], float] = {}

    def __call__(self, candidate: Candidate) -> float:
        """Counts the cycles of a call.

        Raises:
            LatencyError: The candidate can't be written for the accelerator, or Vela leaves
                operators to the processor beside it.
            MissingExtraError: Vela or the converter isn't installed.
        """
        require_extra("ethosu", "vela_latency")
        require_extra("litert_converter", "vela_latency")
        # Channels alone decide.
        kept = tuple(np.asarray(candidate.policy.kept).tolist())
        if kept not in self._known:
            with tempfile.TemporaryDirectory(prefix="jaxeff-vela-") as folder:
                file = _written(candidate, self._inputs, Path(folder) / "net.tflite")
                self._known[kept] = estimated_cycles(file, self._accelerator)
        return self._known[kept]


def _written(candidate: Candidate, inputs: tuple[Any, ...], path: Path) -> Path:
    """Writes a candidate in int8, for one input."""
    # All in codes of 8 bits, whatever a policy says: the accelerator has no others.
    layers = len(candidate.space.names)
    eight = np.full(layers, 8, np.int32)
    policy = Policy(candidate.policy.kept, np.full(layers, INT8, np.int32), eight, eight)
    g, params = candidate.make(policy).integer(inputs[0])
    # The batch of an estimate is one; the others say ranges of results.
    examples = [tuple(x[i : i + 1] for x in inputs) for i in range(len(inputs[0]))]
    try:
        to_litert(g, (params, *examples[0]), path, batches=examples)
    except (LitertError, ValueError) as error:
        raise LatencyError(f"the candidate can't be written in int8: {error}") from error
    return path


def estimated_cycles(file: Path, accelerator: str) -> float:
    """Compiles a file by Vela, and returns the cycles of a call.

    Raises:
        LatencyError: Vela refuses it, or leaves operators to the processor.
    """
    folder = file.parent / "vela"
    # In a process of its own: Vela keeps state, and prints.
    command = [sys.executable, "-m", "ethosu.vela", str(file), "--accelerator-config", accelerator]
    done = subprocess.run(
        [*command, "--output-dir", str(folder)], capture_output=True, text=True, check=False
    )
    tables = [*folder.glob("*_summary_*.csv")]
    if done.returncode or len(tables) != 1:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise LatencyError(f"Vela ended with status {done.returncode}: {lines[-1]}")
    # What the processor would compute has no cycles in Vela's sum.
    left = re.search(r"CPU operators = (\d+)", done.stdout)
    if left is None or int(left[1]):
        count = "some" if left is None else left[1]
        raise LatencyError(f"Vela leaves {count} operators to the processor beside {accelerator}")
    with tables[0].open(newline="") as table:
        return float(next(csv.DictReader(table))["cycles_total"])
