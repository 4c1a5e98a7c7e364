"""`NofM`: of every M inputs of an output N are kept, the pattern that hardware multiplies faster.

Inputs are those that a product sums, in the order of the weight's axes; a block is M of them beside
each other. Sparse tensor cores take 2 of 4.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxeff.compression import Tensor
from jaxeff.core import Count, register_setting, static
from jaxeff.pruning.sparsity._protocol import Sparse


@register_setting
@dataclass(frozen=True)
class NofM(Sparse):
    """The n largest of every m inputs: `NofM(2, 4)`.

    Stored are the values that are kept, each with its place in its block, ceil(log2 m) bits, unless
    `stored` is "dense".

    Attributes:
        n: Number of weights of a block that are kept.
        m: The size of a block.

    Raises:
        TypeError, ValueError: They are no positive integers, or n is above m; when called, the
            inputs of a layer can't be divided into blocks.

    References:
        Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378.
    """

    n: Annotated[int, Count()] = static(2)
    m: Annotated[int, Count()] = static(4)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.n > self.m:
            raise ValueError(f"NofM keeps n of m, but n = {self.n} is above m = {self.m}.")

    @property
    def pattern(self) -> tuple[int, int]:
        """How many of how many neighbours are kept, by which `integer` stores 2 of 4 packed."""
        return self.n, self.m

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns the largest magnitudes of every block; of equals the first."""
        order = self._order(x.shape, tensor)
        moved = jnp.abs(x).transpose(order)
        blocks = moved.reshape(-1, self.m, self._outputs(x.shape, tensor))
        # The argsort of an argsort is the rank; stable, so that of equal weights exactly n stay.
        rank = jnp.argsort(jnp.argsort(-blocks, axis=1, stable=True), axis=1)
        back = np.argsort(order)
        return (rank < self.n).reshape(moved.shape).transpose(back)

    def blocks(self, shape: tuple[int, ...], tensor: Tensor) -> np.ndarray:
        """Returns the number of the block that each entry is in, of the weight's shape."""
        order = self._order(shape, tensor)
        moved = tuple(shape[axis] for axis in order)
        outputs = self._outputs(shape, tensor)
        inputs = np.arange(math.prod(shape) // outputs) // self.m
        number = inputs[:, None] * outputs + np.arange(outputs)
        return number.reshape(moved).transpose(np.argsort(order))

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many weights stay."""
        del tensor
        return math.prod(shape) * self.n // self.m

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the values, and of their places."""
        if self.stored == "dense":
            return super().storage(shape, tensor)
        # An index inside its block is all that has to be stored beside a value.
        place = math.ceil(math.log2(self.m))
        return self.kept(shape, tensor) * (self.width + place) + self._decoding(shape, tensor)

    def _outputs(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        return math.prod(shape[axis] for axis in tensor.axes("channel"))

    def _order(self, shape: tuple[int, ...], tensor: Tensor) -> tuple[int, ...]:
        """Returns the weight's axes, inputs before outputs."""
        outputs = tensor.axes("channel")
        # A block is what the hardware reads for one output: inputs beside each other, which is why
        # they come first.
        inputs = [axis for axis in range(len(shape)) if axis not in outputs]
        count = math.prod(shape[axis] for axis in inputs)
        if count % self.m:
            raise ValueError(
                f"NofM({self.n}, {self.m}): {tensor.site!r} sums {count} inputs, which are no "
                f"blocks of {self.m}; choose another m there, or None."
            )
        return (*inputs, *outputs)


__all__ = ["NofM"]
