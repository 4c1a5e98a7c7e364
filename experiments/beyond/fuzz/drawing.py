"""What a random network is made of: a block, and the random choices that make one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")

Shape = tuple[int, ...]
"""Of one example: positions, then channels."""


class Block(NamedTuple):
    """A part of a network: what it is called, its parameters, and the function of them and x."""

    name: str
    params: dict[str, Any]
    apply: Callable[[Any, jax.Array], jax.Array]

    def shape(self, of: Shape) -> Shape:
        """The shape of an example of its results."""
        x = jax.ShapeDtypeStruct((2, *of), jnp.float32)
        return jax.eval_shape(self.apply, self.params, x).shape[1:]


Rule = Callable[["Draw", Shape], Block | None]
"""Makes a block for examples of a shape, or none where it has no place."""


class Draw:
    """Random choices from a seed."""

    def __init__(self, seed: int) -> None:
        """Starts the generator."""
        self._rng = np.random.default_rng(seed)

    def one(self, choices: Sequence[T]) -> T:
        """Chooses an entry."""
        return choices[int(self._rng.integers(len(choices)))]

    def often(self, share: float = 0.5) -> bool:
        """Says yes so often."""
        return bool(self._rng.random() < share)

    def width(self) -> int:
        """Chooses a number of channels."""
        return self.one((1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 12, 16))

    def divisor(self, of: int) -> int:
        """Chooses a divisor."""
        return self.one([n for n in range(1, of + 1) if of % n == 0])

    def order(self, items: Sequence[T]) -> list[T]:
        """Puts items into another order."""
        return [items[int(i)] for i in self._rng.permutation(len(items))]

    def normal(self, *shape: int, scale: float = 1.0, around: float = 0.0) -> jax.Array:
        """Draws normal values."""
        return jnp.asarray(around + scale * self._rng.standard_normal(shape), jnp.float32)

    def weight(self, *shape: int) -> jax.Array:
        """Draws a kernel whose last axis is its outputs, with a gain between 1 and 1.5."""
        gain = 1 + 0.5 * self._rng.random()
        return self.normal(*shape, scale=gain / max(1, int(np.prod(shape[:-1]))) ** 0.5)

    def tokens(self, words: int, *shape: int) -> jax.Array:
        """Draws indices of words."""
        return jnp.asarray(self._rng.integers(0, words, shape), jnp.int32)


def chain(blocks: Sequence[Block], name: str) -> Block:
    """One block after another, their parameters under the numbers and names of each."""
    places = [f"{i}_{block.name.split()[0]}" for i, block in enumerate(blocks)]

    def apply(p: Any, x: jax.Array) -> jax.Array:
        for place, block in zip(places, blocks, strict=True):
            x = block.apply(p.get(place, {}), x)
        return x

    params = {
        place: block.params for place, block in zip(places, blocks, strict=True) if block.params
    }
    return Block(name, params, apply)
