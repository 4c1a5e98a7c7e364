"""The symbol of a statistic of a tensor, such as the mean inside a normalization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jaxeff.program.ir import Axes


@dataclass(frozen=True)
class Statistic:
    """A symbol: `gain` times a named function of the tensor, with its axes followed.

    Attributes:
        name: Name of the function.
        labels: For each axis of the value, the axis of the tensor it is, None if it is neither.
        shape: The value's shape.
        axes: The axes of the tensor that were reduced, if any.
        gain: A known factor.
        eps: Number added under the root, relative to the gain.
        floor: Least value under the root, relative to the gain.
        shift: Number added to the root or the logarithm, relative to the gain.
        factors: Other operands it was multiplied by, of the value's shape.
    """

    name: str
    labels: Axes
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()
    gain: float = 1.0
    eps: float = 0.0
    floor: float = 0.0
    shift: float = 0.0
    factors: tuple[Any, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it has neither gain nor factors."""
        # A mean is a sum times 1/n: the gain returns to one up to the rounding of float32.
        return math.isclose(self.gain, 1.0, rel_tol=1e-5) and not self.factors
