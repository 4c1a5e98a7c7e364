"""Candidates as libraries, timed in turns with the whole model.

A core is slower at times, so a candidate's time is its median ratio to the whole model's, measured
turn by turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxeff.search import Candidate, LatencyError, Policy
from jaxeff_export.boards import Board
from jaxeff_export.bundle import Bundle, deploy
from jaxeff_export.importer import UnsupportedOpError

ROUNDS = 9
"""Turns of the whole model and a candidate."""


class AlternatingTimer:
    """Candidates timed in turns with the whole model, on a board.

    Attributes:
        whole: The whole model; None before `start`.
        first: Seconds that it took at first.
    """

    def __init__(self, board: str | Board, number: int, repeat: int) -> None:
        self.board, self.first = board, 0.0
        self.whole: Bundle | None = None
        self._times = number, repeat

    def start(self, whole: Bundle, first: float | None = None) -> None:
        """Times the whole model, unless its time is known."""
        if first is None:
            # As often as in turns, so that the unit is no noisier than what is measured in it.
            times = [whole.benchmark(self.board, *self._times).median_ms for _ in range(ROUNDS)]
            first = statistics.median(times) / 1000
        self.whole, self.first = whole, first

    def seconds(self, bundle: Bundle, between: Callable[[], Any] = lambda: None) -> float:
        """Times a call, scaled to the moment at which the whole model was timed.

        Args:
            bundle: Library to time.
            between: Called after every turn.
        """
        assert self.whole is not None
        ratios = []
        for _ in range(ROUNDS):
            whole = self.whole.benchmark(self.board, *self._times).median_ms
            # Neighbours in time see the same clock and load, so these cancel in the ratio.
            ratios.append(bundle.benchmark(self.board, *self._times).median_ms / whole)
            between()
        return statistics.median(ratios) * self.first


def compiled(
    candidate: Candidate,
    policy: Policy,
    inputs: tuple[Any, ...],
    target: str | Mapping[str, Any],
    database: str | Path | None = None,
) -> Bundle:
    """Compiles the library of a policy, in integer codes.

    Raises:
        LatencyError: The compiler can't.
    """
    g, params = candidate.make(policy).integer(inputs[0])
    try:
        return deploy(g, (params, *inputs), target, database=database)
    except UnsupportedOpError as error:
        raise LatencyError(f"the candidate can't be compiled: {error}") from error


def leaves_of(params: Any) -> list[str]:
    """Lists the paths of parameters."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]
