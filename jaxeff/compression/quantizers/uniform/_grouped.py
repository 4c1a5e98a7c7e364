"""`Grouped`: a method whose numbers belong to groups of neighbours along the axis summed over.

Weights of one output then share a step in groups of 32 to 128, which is what keeps four bits
accurate. An array is viewed with that axis split in two, and the method is asked for numbers per
channel, where each group of an output is a channel of its own. So it works for every method that
has numbers per channel: steps, codebooks, scales of floating-point formats.

Steps in float32 cost a bit a weight in groups of 32. `steps="float16"` halves that, "int8" has
multiples, 1 to 127, of a step of the whole output, which integer kernels sum without a float.

Sharp edges:
    The axis is that of input channels: of several axes that a product sums over the last one. Of a
    table that rows are looked up in it is a row.
    Groups of activations are measured anew in every call: they have no numbers to start from.
    Narrow steps need a grid around zero with a range, `Uniform(bits, symmetric=True)`. Those of
    float16 end at 6e-8: a group that would need finer ones becomes zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int8

from jaxeff.compression.numerics import (
    BaseQuantizer,
    Quantizer,
    Tensor,
    grid,
    largest_magnitude,
    ranges,
    value_range,
    wide_dtype,
)
from jaxeff.compression.quantizers.uniform._uniform import Uniform
from jaxeff.core import Choice, Count, register_setting, static

MOST = 127
"""The largest multiple that an 8-bit step is."""
_BITS = {"float32": 32, "float16": 16, "int8": 8}
_SLACK = 1e-3
"""Part of a multiple that steps may exceed one by: steps read back are off by roundings."""


@register_setting
@dataclass(frozen=True)
class Grouped(BaseQuantizer):
    """A method by group: `Grouped(LSQ(4), 32)`.

    Attributes:
        method: The method; its own `per` counts as "channel".
        size: Entries of a group; divides the axis that the layer sums over.
        steps: Numbers that the steps of a symmetric `Uniform` are stored as.

    Raises:
        TypeError: `method` is no quantizer with numbers per channel.
        ValueError: `size` is below one, `steps` is unknown or needs a symmetric `Uniform`; or, at
            its first use, `size` doesn't divide the axis.

    References:
        Shen et al., "Q-BERT", arXiv:1909.05840, section 3.3. Dettmers et al., arXiv:2305.14314
        (steps of fewer bits).
    """

    method: Quantizer
    size: Annotated[int, Count(1)] = static(32)
    steps: Annotated[str, Choice(*_BITS)] = static("float32")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        given: Any = self.method
        if not isinstance(given, Quantizer) or isinstance(given, type) or not hasattr(given, "per"):
            raise TypeError(
                f"Grouped.method must be a quantizer with numbers per channel, not {given!r}."
            )
        if self.steps != "float32" and not (isinstance(given, Uniform) and given.symmetric):
            raise ValueError(
                f"Grouped.steps={self.steps!r} needs a grid around zero, such as "
                f"Uniform(4, symmetric=True), not {given!r}."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the method's values, group by group.

        Raises:
            ValueError: The size doesn't divide the axis.
        """
        inner, split = self.split(x, tensor)
        own = self._narrowed(split, inner, self.outputs(tensor))
        return own.quantize(split, inner).reshape(x.shape)  # type: ignore[no-any-return]

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Grouped":
        """Computes the method's open numbers of each group of a weight."""
        if tensor.role == "activation" or not hasattr(self.method, "start"):
            return self
        inner, split = self.split(x, tensor)
        method = self._narrowed(split, inner, self.outputs(tensor))
        return replace(self, method=method.start(split, inner))

    def deterministic(self) -> "Grouped":
        """Returns the same with its method's form that draws nothing."""
        form = getattr(self.method, "deterministic", None)
        return self if form is None else replace(self, method=form())

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the method, with steps of fewer bits where it has such."""
        inner, sizes = self._parts(shape, tensor)
        saved = (32 - _BITS[self.steps]) * ranges(sizes, inner.axes("channel"))
        units = ranges(sizes, self.outputs(tensor)) if self.steps == "int8" else 0
        method: Any = self._by_channel()
        return method.storage(sizes, inner) - saved + 32 * units

    @property
    def width(self) -> Any:
        """Bits of one code of the method."""
        return getattr(self.method, "width", 32)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the penalty of the method."""
        inner, split = self.split(x, tensor)
        method: Any = self._by_channel()
        return method.penalty(split, inner)

    def split(self, x: Float[Array, "*shape"], tensor: Tensor) -> tuple[Tensor, Array]:
        """Views an array with its groups as an axis, and describes it for the method.

        Raises:
            ValueError: The size doesn't divide the axis.
        """
        inner, sizes = self._parts(x.shape, tensor)
        return inner, x.reshape(sizes)

    def outputs(self, tensor: Tensor) -> tuple[int, ...]:
        """Returns the axes of the split view that are a weight's output channels."""
        axis = self._axis(tensor)
        return tuple(a + (a > axis) for a in tensor.axes("channel") if a != axis)

    def by_entry(self, shape: tuple[int, ...], tensor: Tensor) -> list[Array]:
        """Repeats the method's numbers for every entry of an array, each in the array's shape."""
        _, sizes = self._parts(shape, tensor)
        leaves = jax.tree.leaves(self._by_channel())
        return [jnp.broadcast_to(leaf, sizes).reshape(shape) for leaf in leaves]

    def with_numbers(self, numbers: Sequence[Array]) -> Any:
        """Returns the method with a number for each of some entries, of those of `by_entry`."""
        return jax.tree.unflatten(jax.tree.structure(self._by_channel()), numbers)

    def grid_of(self, x: Float[Array, "*shape"], tensor: Tensor) -> Uniform:
        """Returns the uniform grid of every group of a weight, with its range."""
        inner, split = self.split(x, tensor)
        grid: Uniform = self._narrowed(split, inner, self.outputs(tensor)).start(split, inner)
        return grid

    def _narrowed(self, x: Array, tensor: Tensor, outputs: tuple[int, ...]) -> Any:
        """Returns the method per channel, an open range such that narrow steps can hold it."""
        own: Any = self._by_channel()
        # A range that is there was made here, or is taken as it is.
        if self.steps == "float32" or own.range is not None:
            return own
        keep = tensor.axes("channel")
        top = largest_magnitude(x, keep)
        unit = grid(own.bits, *value_range(x.astype(wide_dtype(x)), keep), own.symmetric)
        step = jnp.where(top > 0, unit.step, 0.0)
        if self.steps == "float16":
            step = step.astype(jnp.float16).astype(step.dtype)
        else:
            multiples, of_output = multiples_of(step, outputs)
            step = multiples.astype(step.dtype) * of_output
        # The largest value is a whole number of steps; with one bit it is half of one twice.
        step = lax.stop_gradient(step)
        ends = (step * unit.lower, step * jnp.maximum(unit.upper, 1.0))
        return replace(own, range=ends)

    def _by_channel(self) -> Any:
        return replace(self.method, per="channel")  # type: ignore[type-var]

    def _axis(self, tensor: Tensor) -> int:
        if tensor.find_summed is None:
            raise ValueError(
                f"{tensor.site}/{tensor.name} has no axis that a product sums over, so it has no "
                "groups; take a method per channel or per tensor there."
            )
        return tensor.find_summed()[-1]

    def _parts(self, shape: tuple[int, ...], tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        axis = self._axis(tensor)
        if shape[axis] % self.size:
            raise ValueError(
                f"{tensor.site}/{tensor.name} sums over {shape[axis]} entries, which groups of "
                f"{self.size} don't divide: take another size there, or a method per channel."
            )
        sizes = (*shape[:axis], shape[axis] // self.size, self.size, *shape[axis + 1 :])

        def kept() -> tuple[int, ...]:
            # Taps of a kernel, and heads that are summed over, have numbers of their own, too.
            return tuple(a for a in range(tensor.rank + 1) if a != axis + 1)

        inner = replace(
            tensor, rank=tensor.rank + 1, find_channels=kept, find_summed=lambda: (axis + 1,)
        )
        return inner, sizes


def multiples_of(
    step: Float[Array, "*groups"], outputs: tuple[int, ...]
) -> tuple[Int8[Array, "*groups"], Float[Array, "*outputs"]]:
    """Writes steps of groups as multiples of a step of their output.

    Args:
        step: Steps, not below zero.
        outputs: The axes that count outputs.

    Returns:
        Whole numbers from 1 to 127, none of them below the step's own; and their unit, of size one
        along the other axes.
    """
    over = tuple(axis for axis in range(step.ndim) if axis not in outputs)
    unit = jnp.max(step, over, keepdims=True) * (1 / MOST)
    ratio = step / jnp.where(unit > 0, unit, jnp.ones_like(unit))
    # Rounded up: a step below its own would clip the group's largest value.
    whole = jnp.clip(jnp.ceil(ratio - _SLACK), 1, MOST)
    return whole.astype(jnp.int8), unit
