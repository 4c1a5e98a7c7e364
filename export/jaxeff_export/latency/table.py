"""`table_latency`: a candidate's time as the sum of its kernels' times, kept by layer.

```python
import jax.numpy as jnp
from jaxeff.nn import small_classifier
from jaxeff.search import Candidate, Candidates, Space
from jaxeff_export import table_latency

f, params, (x, y) = small_classifier(32)
space = Space.read(f, params, x[:1])
candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=32)
latency = table_latency(x[:1], number=2, repeat=3)
latency(Candidate(space.whole, space, candidates.smaller))      # compiled and measured
latency(Candidate(space.whole, space, candidates.smaller))      # looked up
```

A cell is a layer with the channels that it reads and makes and its bits, on a target; what it holds
is its kernels' time. A cell that isn't known is measured: a candidate that holds it is
compiled and timed, and every layer's share of the time goes into its cell. With `nodes` cells are
those at the nodes alone: channels between two nodes, and bits whose planes are counted, are
interpolated, so that a table is full after a few dozen measurements whatever a search tries.

Sharp edges:
    A cell holds a share of the time of the whole, launches too, so that sums are times end to end.
    In a table with nodes, layers in float are measured among layers in float, and layers of bits
    among layers of bits. Where both meet, arrays are written in both forms, which it doesn't know.
    Cores are slower at times: every measurement is taken in turns with the whole model's, and
    counted relative to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxeff.search import Candidate, LatencyError, Policy, Space
from jaxeff.store import Kept
from jaxeff_export.boards import Board
from jaxeff_export.boards.board import BoardError
from jaxeff_export.bundle.bundle import Bundle, BundleError
from jaxeff_export.bundle.timing import OperatorTime
from jaxeff_export.latency.attribution import kernel_calls
from jaxeff_export.latency.cells import Cell, Cells
from jaxeff_export.latency.turns import Turns, compiled, leaves_of
from jaxeff_export.targets.target import resolve_target


class TableLatency:
    """A latency that is looked up; made by `table_latency`.

    Attributes:
        fills: Measurements that this object made.
        looked_up: For searchers: asking costs no measurement where nothing is new.
    """

    looked_up = True

    def __init__(
        self,
        inputs: tuple[Any, ...],
        target: str | Mapping[str, Any],
        board: str | Board,
        folder: str | Path | None,
        nodes: Sequence[int] | None,
        number: int,
        repeat: int,
        database: str | Path | None,
    ) -> None:
        self.fills = 0
        self._inputs, self._target, self._board = inputs, target, board
        self._folder, self._database = folder, database
        self._nodes = None if nodes is None else tuple(sorted(nodes))
        self._times = {"number": number, "repeat": repeat}
        self._of: Cells | None = None
        self._known: dict[Cell, list[float]] = {}
        self._kept: Kept | None = None
        self._turns = Turns(board, number, repeat)

    def __call__(self, candidate: Candidate) -> float:
        """Seconds of a call.

        Raises:
            LatencyError: What is new can't be measured.
        """
        return sum(self.layers(candidate))

    def layers(self, candidate: Candidate) -> list[float]:
        """Seconds of every layer of a candidate; what is new is measured first."""
        cells = self._begin(candidate.space)
        shares = cells.shares(candidate.policy)
        wanted = [share.cell for own in shares for share in own]
        while missing := [cell for cell in wanted if cell not in self._known]:
            self._fill(candidate, cells, missing)
        return [
            sum(share.weight * statistics.median(self._known[share.cell]) for share in own)
            for own in shares
        ]

    def _begin(self, space: Space) -> Cells:
        if self._of is not None and self._of.space is space:
            return self._of
        self._of = Cells.of(space, self._nodes, self._target)
        if self._folder is not None and self._kept is None:
            sites = [
                [s.name, s.macs, s.weights, s.kernel, s.stride, s.places, s.blocks]
                for s in space.sites
            ]
            self._kept = Kept(Path(self._folder) / "kernels.jsonl", {
                "target": repr(dict(sorted(resolve_target(self._target).items()))),
                "board": str(getattr(self._board, "name", self._board)),
                "sites": sites, "nodes": list(self._nodes or ()),
            })  # fmt: skip
            for task in self._kept:
                for (layer, channels, *rest), seconds in self._kept[task]["cells"]:
                    cell = Cell(layer, tuple(channels), *rest)
                    self._known.setdefault(cell, []).append(seconds)
        return self._of

    def _fill(self, candidate: Candidate, cells: Cells, missing: list[Cell]) -> None:
        """Measures a candidate that holds as many of the missing cells as one can."""
        policy, held = cells.design(candidate.policy, missing)
        shares = self._measure(candidate, policy)
        self.fills += 1
        rows = [(cell, shares[cell.layer]) for cell in held]
        if self._kept is not None:
            self._kept.add([len(self._kept), "cells"], {"cells": rows})
        for cell, seconds in rows:
            self._known.setdefault(cell, []).append(seconds)

    def _measure(self, candidate: Candidate, policy: Policy) -> list[float]:
        """Seconds of every layer, in turns with the whole model."""
        space = candidate.space
        inputs, target, database = self._inputs, self._target, self._database
        profiles: list[Sequence[OperatorTime]] = []
        try:
            if self._turns.whole is None:
                self._start(compiled(candidate, space.whole, inputs, target, database))
            bundle = compiled(candidate, policy, inputs, target, database)
            calls = kernel_calls(bundle, space.names, leaves_of(candidate.make(policy).params))
            seconds = self._turns.seconds(
                bundle, lambda: profiles.append(bundle.profile(self._board, **self._times))
            )
        except (BoardError, BundleError) as error:
            raise LatencyError(f"{self._board}: {error}") from error
        return _split(profiles, calls, len(space.sites), seconds)

    def _start(self, whole: Bundle) -> None:
        """What the whole model took when the table was begun stays its unit."""
        kept = self._kept
        known = kept["whole"]["seconds"] if kept is not None and "whole" in kept else None
        self._turns.start(whole, known)
        if kept is not None and known is None:
            kept.add("whole", {"cells": [], "seconds": self._turns.first})


def table_latency(
    *inputs: Any,
    target: str | Mapping[str, Any] = "host",
    board: str | Board = "local",
    folder: str | Path | None = None,
    nodes: Sequence[int] | None = None,
    number: int = 5,
    repeat: int = 11,
    database: str | Path | None = None,
) -> TableLatency:
    """A latency for `jaxeff.search.search` that is looked up, and measured where it is new.

    Args:
        *inputs: An example of what the model reads.
        target: Whom to compile for, as for `deploy`.
        board: Where to measure.
        folder: Where the table is kept; None for as long as the object lives.
        nodes: Numbers of channels that are measured; others are interpolated, and fewer than the
            fewest count as these. None measures every cell.
        number: Calls per measurement.
        repeat: Measurements.
        database: Tuned schedules, as for `deploy`.

    Raises:
        CheckpointError: The folder holds the table of another model, target or board.
    """
    return TableLatency(inputs, target, board, folder, nodes, number, repeat, database)


def _split(
    profiles: Sequence[Sequence[OperatorTime]], calls: Sequence[Any], layers: int, seconds: float
) -> list[float]:
    """A time over layers, by their kernels' times."""
    kernels = {o.name: o for profile in profiles for o in profile}
    spent = {
        name: statistics.median(o.ms for p in profiles for o in p if o.name == name) / o.calls
        for name, o in kernels.items()
    }
    found = [0.0] * layers
    for call in calls:
        found[call.layer] += spent.get(call.kernel, 0.0)
    total = sum(found)
    return [seconds * each / total for each in found]
