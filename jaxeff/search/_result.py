"""`Search`: the result of a search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxeff.core import Table
from jaxeff.search.evaluation import CompressionSensitivity, Small
from jaxeff.search.space import Policy, SearchSpace


@dataclass(frozen=True, eq=False, repr=False)
class Search:
    """The result of a search.

    Attributes:
        best: The policy of the highest reward.
        smaller: The model that it leaves, not trained any further.
        episodes: A record per episode: policy, accuracy, worth, metrics (all of them, if there are
            others than accuracy), latency, ratio, reward, or a message where it couldn't be
            measured.
        whole: Latency of the whole model.
        target: Share of it that was asked for.
        known: Sensitivities of the layers; None if they weren't measured.
        space: The model's layers.
        refined: A record per candidate that the refinement measured from end to end:
            policy, accuracy, worth, predicted (latency over the target's, by prediction), ratio (by
            measurement) and reward, or a message.
    """

    best: Policy
    smaller: Small
    episodes: list[dict[str, Any]]
    whole: float
    target: float
    known: CompressionSensitivity | None
    space: SearchSpace
    refined: list[dict[str, Any]] = field(default_factory=list)

    @property
    def top(self) -> dict[str, Any]:
        """The record of the best policy: what was measured from end to end, else its episode."""
        measured = [row for row in self.refined or self.episodes if "reward" in row]
        return max(measured, key=lambda row: row["reward"])

    @property
    def table(self) -> Table:
        """The best policy layer by layer."""
        space, best = self.space, jax.tree.map(np.asarray, self.best)
        outputs = np.asarray(space.outputs(best.kept))
        names = ("float", "int8", "mix")
        rows = [
            (
                site.name, f"{outputs[i]} of {site.made.size}", names[best.datatypes[i]],
                str(best.weights[i]), str(best.activations[i]),
            )
            for i, site in enumerate(space.sites)
        ]  # fmt: skip
        top = self.top
        where = "measured end to end" if self.refined else f"episode {top['episode']}"
        caption = (
            f"{where}: accuracy {top['accuracy']:.4g}, latency {top['ratio'] * self.target:.4g} "
            f"of the whole model's (asked {self.target:g})"
        )
        columns = ("layer", "channels>", "datatype", "weight bits>", "activation bits>")
        return Table(columns, rows, caption=caption)

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()
