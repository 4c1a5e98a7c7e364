"""`Policy`: what a search decides, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

FP32, INT8, MIX = 0, 1, 2
"""Datatypes of a layer: left alone, eight bits, or one to eight bits by bit planes."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Policy:
    """Channels and bits of every layer, as arrays: traced or not, with leading axes for many.

    Attributes:
        kept: Channels of every group.
        datatypes: `FP32`, `INT8` or `MIX`, by layer.
        weights: Bits of the weights by layer; 32 leaves them alone.
        activations: Bits of what layers read.
    """

    kept: Int[Array | np.ndarray, " groups"]
    datatypes: Int[Array | np.ndarray, " sites"]
    weights: Int[Array | np.ndarray, " sites"]
    activations: Int[Array | np.ndarray, " sites"]

    def plain(self) -> dict[str, list[Any]]:
        """Converts it to lists, for JSON."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items()}

    @classmethod
    def from_plain(cls, found: dict[str, Any]) -> Policy:
        """Makes a policy of what `plain` returned."""
        return cls(**{name: np.asarray(value, np.int32) for name, value in found.items()})
