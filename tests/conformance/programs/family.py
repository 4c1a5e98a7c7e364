"""How programs are written down: functions, decorated with the arguments they are called with."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tests.conformance.harnesses import Case

Draw = Callable[[np.random.RandomState], np.ndarray]
Build = Callable[[], tuple[Callable, Sequence[Any]]]
KEY = np.array([0, 42], np.uint32)


class Family:
    """Collects the programs of one kind.

    Attributes:
        name: The kind.
        cases: What was collected. A case is called by the name of its function.
    """

    def __init__(self, name: str):
        self.name = name
        self.cases: list[Case] = []

    def program(self, *arguments: Any, wide: bool = False) -> Callable[[Callable], Callable]:
        """Adds the decorated function.

        Args:
            *arguments: What it is called with; leaves are arrays, or draw them.
            wide: Whether JAX's 64-bit types are on.
        """

        def add(function: Callable) -> Callable:
            name = _name(function)

            def build() -> tuple[Callable, Sequence[Any]]:
                rng = np.random.RandomState(zlib.crc32(name.encode()))
                drawn = jax.tree.map(lambda leaf: leaf(rng) if callable(leaf) else leaf, arguments)
                return function, drawn

            self.cases.append(Case(self.name, name, build, wide=wide, timed=True))
            return function

        return add

    def built(self, build: Build) -> Build:
        """Adds the program that the decorated function returns together with its arguments."""
        self.cases.append(Case(self.name, _name(build), build, wide=False, timed=True))
        return build


def normal(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> Draw:
    """Draws normal variates."""
    return lambda rng: (scale * rng.standard_normal(shape)).astype(dtype)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, dtype: Any = np.float32) -> Draw:
    """Draws uniform variates."""
    return lambda rng: rng.uniform(low, high, shape).astype(dtype)


def integers(*shape: int, low: int = 0, high: int = 10, dtype: Any = np.int32) -> Draw:
    """Draws integers below `high`."""
    return lambda rng: rng.randint(low, high, shape).astype(dtype)


def _name(function: Callable) -> str:
    return function.__name__.strip("_").replace("_", " ")
