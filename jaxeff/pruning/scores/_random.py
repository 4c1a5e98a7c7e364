"""Random scores: what any other has to be better than (Klein's thesis, section 3.3.1)."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.pruning.dependencies import Channels
from jaxeff.pruning.scores._summing import Score


def random(key: PRNGKeyArray) -> Score:
    """Returns a score that is uniform noise; a group's depends on the key and its name alone."""

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        del params
        return {
            group.name: np.asarray(
                jax.random.uniform(
                    jax.random.fold_in(key, zlib.crc32(group.name.encode())), (group.size,)
                )
            )
            for group in channels
        }

    return score
