"""JAX's own cases: one primitive, one set of types and attributes each."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A program and its arguments.

    Attributes:
        group: What it belongs to: a primitive, or a kind of program.
        name: Unique among all cases.
        build: Returns the function and the arguments to call it with.
        wide: Whether JAX's 64-bit types are on.
        timed: Whether its run time is measured beside XLA's.
    """

    group: str
    name: str
    build: Callable[[], tuple[Callable, Sequence[Any]]]
    wide: bool = True
    timed: bool = False


@cache
def cases() -> dict[str, Case]:
    """Every case that JAX runs on a CPU and that isn't about complex numbers, by name."""
    arguments, sys.argv = sys.argv, sys.argv[:1]  # the module parses these as its own
    try:
        from jax._src.internal_test_util import test_harnesses
    finally:
        sys.argv = arguments
    return {
        harness.fullname: Case(harness.group_name, harness.fullname, partial(_build, harness))
        for harness in test_harnesses.all_harnesses
        if harness.filter("cpu") and np.dtype(harness.dtype).kind != "c"
    }


def _build(harness: Any) -> tuple[Callable, Sequence[Any]]:
    return harness.dyn_fun, harness.dyn_args_maker(np.random.RandomState(0))
