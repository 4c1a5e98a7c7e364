"""The engines that are timed: each module says what it runs a network's methods with.

A module has `contestants(net, methods, setup)`, which yields a `Contestant` per method it knows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.timing import Meter

ENGINES = ("xla", "tvm", "numpyro", "pyro", "onnxruntime", "litert", "iree")


@dataclass(frozen=True)
class Setup:
    """How engines are to run.

    Attributes:
        threads: Threads of each; the process is confined to as many cores.
        database: A folder for TVM's tuning records; without one nothing is tuned.
        trials: Candidates per kernel.
    """

    threads: int
    database: Path | None = None
    trials: int = 0


@dataclass(frozen=True)
class Contestant:
    """One way of predicting, ready to be timed.

    Attributes:
        method: One of `networks.METHODS`.
        engine: What runs it, as rows name it.
        meter: Times it.
        error: The largest deviation from JAX's float32 result, each output's relative to its own
            largest magnitude; None where results are random.
        form: Which of several forms of the same method and engine it is; the fastest counts.
    """

    method: str
    engine: str
    meter: Meter
    error: float | None = None
    form: str = ""

    @property
    def name(self) -> str:
        """Unique in a contest."""
        return "/".join(part for part in (self.method, self.engine, self.form) if part)


def deviation(found: Any, expected: Any) -> float:
    """The largest difference of two results, each leaf's relative to its largest magnitude."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(b))) for a, b in pairs
    )
