"""LiteRT's int8 on XNNPACK, with our ranges and weights; a call is `invoke` alone."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.contests.litert_graph import started
from experiments.integer.litert_graph import build
from experiments.integer.subjects import Subject


def calls(net: Subject, threads: int) -> dict[str, Callable[[], Any]]:
    """A call of the network.

    Raises:
        AssertionError: Its results are others than the network's.
    """
    call, found = started(build(net), net.x, threads)
    near = np.asarray(jax.jit(net.f)(net.params, net.x))
    assert np.abs(found - near).max() < 0.1 * np.abs(near).max()
    return {"int8": call}
