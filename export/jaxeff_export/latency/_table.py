"""`table_latency`: a candidate's time as the sum of its kernels' times, kept by layer.

```python
import jax.numpy as jnp
from jaxeff.nn import small_classifier
from jaxeff.search import Candidate, Candidates, SearchSpace
from jaxeff_export import table_latency

f, params, (x, y) = small_classifier(32)
space = SearchSpace.read(f, params, x[:1])
candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=32)
latency = table_latency(x[:1], number=2, repeat=3)
latency(Candidate(space.whole, space, candidates.smaller))      # compiled and measured
latency(Candidate(space.whole, space, candidates.smaller))      # looked up
```

A cell is a layer with the channels that it reads and makes and its bits, on a target; what it holds
is its kernels' time. A cell that isn't known is measured: a candidate that holds it is
compiled and timed, and every layer's share of the time goes into its cell. With `nodes` cells are
those at the nodes alone (`_cells.py` has the rules), so that a table is full after a few dozen
measurements whatever a search tries. `prepare` fills it for many candidates at once, with far fewer
measurements than one after the other.

Sharp edges:
    A cell holds a share of the time of the whole, launches too, so that sums are times end to end.
    Where layers in float read layers of bits, or two of other widths read the same, every number
    that is written for it costs the same time (a conversion), measured once on the whole model with
    every second layer in float.
    Sums are predictions: `search(..., refinement=Refinement(measured_latency(x[:1])))` measures
    what it returns.
    Cores are slower at times: every measurement is taken in turns with the whole model's, and
    counted relative to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxeff.core import input_batch, instance_of, path_like, static_integer, validate
from jaxeff.search import Candidate, LatencyError, Policy, SearchSpace
from jaxeff.store import Journal
from jaxeff_export.boards import Board, BoardError
from jaxeff_export.bundle import Bundle
from jaxeff_export.bundle.files import BundleError
from jaxeff_export.bundle.running import OperatorTime
from jaxeff_export.latency._attribution import kernel_calls
from jaxeff_export.latency._cells import Cell, Cells
from jaxeff_export.latency._turns import AlternatingTimer, compiled, leaves_of
from jaxeff_export.targets import resolve_target


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
        self._conversion: float | None = None
        self._kept: Journal | None = None
        self._turns = AlternatingTimer(board, number, repeat)

    def __call__(self, candidate: Candidate) -> float:
        """Looks up the seconds of a call.

        Raises:
            LatencyError: A new cell can't be measured.
        """
        return sum(self.layers(candidate))

    def layers(self, candidate: Candidate) -> list[float]:
        """Looks up the seconds of every layer of a candidate; new cells are measured first."""
        apart = self._apart(candidate)
        cells = self._begin(candidate.space)
        conversions = cells.conversions(candidate.policy)
        per_number = self._per_number(candidate, cells) if any(conversions) else 0.0
        return [
            own + conversion * per_number
            for own, conversion in zip(apart, conversions, strict=True)
        ]

    def _apart(self, candidate: Candidate) -> list[float]:
        """Looks up the seconds of every layer without conversions."""
        self.prepare([candidate])
        return [
            # The median: a cell may be measured in several designs, some while the core was slow.
            sum(share.weight * statistics.median(self._known[share.cell]) for share in own)
            for own in self._begin(candidate.space).shares(candidate.policy)
        ]

    def prepare(self, candidates: Iterable[Candidate]) -> None:
        """Measures the new cells of several candidates of one space.

        Args:
            candidates: Candidates to look up later.

        Raises:
            LatencyError: It can't be measured.
        """
        for one in (candidates := list(candidates)):
            cells = self._begin(one.space)
            missing = self._missing(cells, one)
            if missing and cells.nodes is not None:  # of all of them: one design holds many
                found = (cell for each in candidates for cell in self._missing(cells, each))
                missing = list(dict.fromkeys(found))
            # Every design holds the first missing cell at least, so this ends.
            while missing:
                self._fill(one, cells, missing)
                missing = [cell for cell in missing if cell not in self._known]

    def _missing(self, cells: Cells, candidate: Candidate) -> list[Cell]:
        wanted = [share.cell for own in cells.shares(candidate.policy) for share in own]
        return [cell for cell in dict.fromkeys(wanted) if cell not in self._known]

    def _begin(self, space: SearchSpace) -> Cells:
        if self._of is not None and self._of.space is space:
            return self._of
        self._of = Cells.of(space, self._nodes, self._target)
        if self._folder is not None and self._kept is None:
            sites = [
                [s.name, s.macs, s.weights, s.kernel, s.stride, s.places, s.blocks]
                for s in space.sites
            ]
            # The journal refuses a folder whose model, target or board differs from this key.
            self._kept = Journal(Path(self._folder) / "kernels.jsonl", {
                "target": repr(dict(sorted(resolve_target(self._target).items()))),
                "board": str(getattr(self._board, "name", self._board)),
                "sites": sites, "nodes": list(self._nodes or ()),
            })  # fmt: skip
            for task in self._kept:
                for (layer, channels, *bits), seconds in self._kept[task]["cells"]:
                    cell = Cell(layer, tuple(channels), *bits)
                    self._known.setdefault(cell, []).append(seconds)
        return self._of

    def _fill(self, candidate: Candidate, cells: Cells, missing: list[Cell]) -> None:
        """Measures a candidate that holds as many of the missing cells as one can."""
        policy, held = cells.design(candidate.policy, missing)
        rows = list(zip(held, self._measure(candidate, policy), strict=True))
        # Written down before it counts, so that a table on disk never lacks what was used.
        if self._kept is not None:
            self._kept.add([len(self._kept), "cells"], {"cells": rows})
        for cell, seconds in rows:
            self._known.setdefault(cell, []).append(seconds)

    def _per_number(self, candidate: Candidate, cells: Cells) -> float:
        """Returns seconds per number converted: what a mixed model takes beyond its cells."""
        kept = self._kept
        if self._conversion is None and kept is not None and "conversion" in kept:
            self._conversion = kept["conversion"]["seconds"]
        if self._conversion is None:
            mixed = Candidate(cells.mixed(), candidate.space, candidate.make)
            apart = sum(self._apart(mixed))
            took = sum(self._measure(candidate, mixed.policy))
            # Noise may make the mixed model faster than its cells: no time is negative.
            self._conversion = max(took - apart, 0.0) / sum(cells.conversions(mixed.policy))
            if kept is not None:
                kept.add("conversion", {"cells": [], "seconds": self._conversion})
        return self._conversion

    def _measure(self, candidate: Candidate, policy: Policy) -> list[float]:
        """Measures the seconds of every layer, in turns with the whole model."""
        self.fills += 1
        space = candidate.space
        inputs, target, database = self._inputs, self._target, self._database
        profiles: list[Sequence[OperatorTime]] = []
        try:
            if self._turns.whole is None:
                self._start(compiled(candidate, space.whole, inputs, target, database))
            bundle = compiled(candidate, policy, inputs, target, database)
            calls = kernel_calls(bundle, space.names, leaves_of(candidate.make(policy).params))
            # A profile after every turn: shares and total are of the same moments.
            seconds = self._turns.seconds(
                bundle, lambda: profiles.append(bundle.profile(self._board, **self._times))
            )
        except (BoardError, BundleError) as error:
            raise LatencyError(f"{self._board}: {error}") from error
        return _split(profiles, calls, len(space.sites), seconds)

    def _start(self, whole: Bundle) -> None:
        """Times the whole model; what it took when the table was begun stays the unit."""
        kept = self._kept
        known = kept["whole"]["seconds"] if kept is not None and "whole" in kept else None
        self._turns.start(whole, known)
        if kept is not None and known is None:
            kept.add("whole", {"cells": [], "seconds": self._turns.first})


@validate(
    inputs=input_batch,
    number=static_integer(),
    repeat=static_integer(),
    database=path_like,
    board=instance_of(str, Board),
)
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
    """Makes a latency for `jaxeff.search.search`: looked up, and measured where it is new.

    Args:
        *inputs: An example of what the model reads.
        target: Target to compile for, as for `deploy`.
        board: Board to measure on.
        folder: Folder that keeps the table; None for as long as the object lives.
        nodes: Numbers of channels that are measured: a layer's time is that of making the next
            node's channels, interpolated by the channels it reads. None measures every cell.
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
    """Splits a time over layers, by their kernels' times."""
    kernels = {o.name: o for profile in profiles for o in profile}
    spent = {
        name: statistics.median(o.ms for p in profiles for o in p if o.name == name) / o.calls
        for name, o in kernels.items()
    }
    found = [0.0] * layers
    for call in calls:
        found[call.layer] += spent.get(call.kernel, 0.0)
    total = sum(found)
    # Profiles run kernels one by one, with overheads of their own: only their ratios count.
    return [seconds * each / total for each in found]
