"""Uniform grids over a range: `Uniform`, `Stochastic`, `Grouped` steps, `Int` for a whole layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.compression.numerics import ranges


@dataclass(frozen=True)
class Ranged(numerics.BaseQuantizer):
    """A method whose grid is uniform over a range, with the fields that `Uniform` lists."""

    bits: Annotated[numerics.Bits, core.Width(1, numerics.MAX_BITS)] = core.static_number()
    symmetric: Annotated[numerics.Symmetry, core.Choice(False, True, numerics.FULL)] = core.static(
        False
    )
    range: tuple[Any, Any] | None = None
    per: Annotated[str, core.Choice("channel", "sample", "tensor", "token")] = core.static(
        "channel"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.range is not None:
            for i, end in enumerate(self.range):
                core.check_number(f"{type(self).__name__}.range[{i}]", end)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> Self:
        """Fixes an open range by an array; for an activation that of the whole tensor."""
        if self.range is not None:
            return self
        keep = tensor.axes("channel") if tensor.role == "weight" and self.per == "channel" else ()
        low, high = numerics.value_range(x, keep)
        if not keep:
            low, high = jnp.reshape(low, ()), jnp.reshape(high, ())
        return replace(self, range=(low, high))

    def _ends(self, x: Any, tensor: numerics.Tensor) -> tuple[Any, Any]:
        if self.range is not None:
            return self.range
        axes = tensor.axes(self.per)
        # Such a grid depends on the further end alone, which stands for both: one reduction.
        if self.symmetric is True:
            end = jnp.max(jnp.abs(x), numerics.kept_axes(x, axes)[0], keepdims=True)
            return end, end
        return numerics.value_range(x, axes)


@core.register_setting
class Uniform(Ranged):
    """A uniform grid: `(q + zero) * step`, with a straight-through gradient.

    This is what `Int` does to each of a layer's arrays.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced.
        symmetric: Whether the grid is centred on zero; "full": with all 2^b values, of which one
            more is on the side of the largest magnitude, as in llama.cpp's Q4_0.
        range: Smallest and largest value; None takes those of the array on every call.
        per: Part with its own range: the output "channel" of a weight, the "sample" of an
            activation, its "token" (what one product reads), or the "tensor". What an array hasn't
            counts as "tensor".

    Raises:
        TypeError: `bits` is neither a whole number nor an array.
        ValueError: `bits` is out of bounds or not whole, or the range holds NaN.

    References:
        Krieger et al., arXiv:2212.07818; `jaxeff.compression.numerics` has the formulas.
    """

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid."""
        low, high = self._ends(x, tensor)
        covered = self.range is None
        if covered and self.symmetric is True and isinstance(self.bits, int) and self.bits > 1:
            return numerics.rounded_around_zero(x, high, self.bits)
        return numerics.fake_quantize(x, self.bits, low, high, self.symmetric, covered)

    def uniform_grid(
        self, x: Float[Array, "*shape"] | None, tensor: numerics.Tensor
    ) -> numerics.Grid | None:
        """Returns the grid; None of an open range without an array."""
        if x is None and self.range is None:
            return None
        low: Any
        high: Any
        low, high = (
            np.asarray(end, np.float32) if core.is_concrete(end) else jnp.asarray(end, jnp.float32)
            for end in self._ends(x, tensor)
        )
        return numerics.grid(self.bits, low, high, self.symmetric)

    def is_alike_in_any_shape(self) -> bool:
        """Tells whether the range is that of the array: every range of ones is the same."""
        return self.range is None

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts codes, and for each range a step in float32 and, if affine, a code for zero."""
        zero = 0 if self.symmetric else self.bits
        return math.prod(shape) * self.bits + ranges(shape, tensor.axes(self.per)) * (32 + zero)


@core.register_setting
class Stochastic(Ranged):
    """Stochastic rounding on a uniform grid: `Stochastic(8)`, in `quantized(..., keyed=True)`.

    With v = x / step - zero the code is floor(v), or one more with probability v - floor(v) (Gupta
    et al., section 3), clipped to the grid's ends; the gradient passes straight through. Within the
    grid the mean of the value is x; its variance is step^2 p (1 - p) with p = v - floor(v), on
    average over p step^2 / 6, twice the squared error of rounding to the nearest.

    Sharp edge: a grid that isn't symmetric has its ends moved by up to half a step to hold zero
    (`jaxeff.compression.numerics`), and there values beyond an end are rounded to it, always.

    Its fields are those of `Uniform`.

    References:
        Gupta et al., "Deep Learning with Limited Numerical Precision", arXiv:1502.02551. Höhfeld
        and Fahlman, "Probabilistic rounding in neural network learning with limited precision",
        Neurocomputing 4 (1992).
    """

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Draws one of the two neighbours of every value."""
        key = tensor.random("Stochastic")
        low, high = self._ends(x, tensor)
        to = numerics.grid(
            self.bits, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype), self.symmetric
        )
        at = jax.lax.stop_gradient(x).astype(numerics.wide_dtype(x)) / to.step - to.zero
        down = jnp.floor(at)
        # Not floor(at + uniform), whose sum is rounded: that of a value on the grid stays itself.
        up = jax.random.uniform(key, at.shape, at.dtype) < at - down
        codes = jnp.clip(down + up.astype(at.dtype), to.lower, to.upper)
        return numerics.straight_through(x, ((codes + to.zero) * to.step).astype(x.dtype))

    def deterministic(self) -> Uniform:
        """Returns the nearest values of the same grid."""
        return Uniform(self.bits, self.symmetric, self.range, self.per)

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts codes, and step and zero of each range."""
        return super().storage(shape, tensor) + 64 * tensor.count(shape, self.per)


MOST = 127
"""The largest multiple that an 8-bit step is."""
_BITS = {"float32": 32, "float16": 16, "int8": 8}
_SLACK = 1e-3
"""Part of a multiple that steps may exceed one by: steps read back are off by roundings."""


@core.register_setting
class Grouped(numerics.BaseQuantizer):
    """A method by group: `Grouped(LSQ(4), 32)`.

    Weights of one output then share a step in groups of 32 to 128, which is what keeps four bits
    accurate. An array is viewed with that axis split in two, and the method is asked for numbers
    per channel, where each group of an output is a channel of its own. So it works for every method
    that has numbers per channel: steps, codebooks, scales of floating-point formats.

    Steps in float32 cost a bit a weight in groups of 32. `steps="float16"` halves that, "int8" has
    multiples, 1 to 127, of a step of the whole output, which integer kernels sum without a float.

    Sharp edges:
        The axis is that of input channels: of several axes that a product sums over the last one.
        Of a table that rows are looked up in it is a row.
        Groups of activations are measured anew in every call: they have no numbers to start from.
        Narrow steps need a grid around zero with a range, `Uniform(bits, symmetric=True)`. Those of
        float16 end at 6e-8: a group that would need finer ones becomes zero.

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

    method: numerics.Quantizer
    size: Annotated[int, core.Count(1)] = core.static(32)
    steps: Annotated[str, core.Choice(*_BITS)] = core.static("float32")

    def __post_init__(self) -> None:
        super().__post_init__()
        method: Any = self.method
        if (
            not isinstance(method, numerics.Quantizer)
            or isinstance(method, type)
            or not hasattr(method, "per")
        ):
            raise TypeError(
                f"Grouped.method must be a quantizer with numbers per channel, not {method!r}."
            )
        if self.steps != "float32" and not getattr(method, "symmetric", False):
            raise ValueError(
                f"Grouped.steps={self.steps!r} needs a grid around zero, such as "
                f"Uniform(4, symmetric=True), not {method!r}."
            )

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the method's values, group by group.

        Raises:
            ValueError: The size doesn't divide the axis.
        """
        inner, split = self.split(x, tensor)
        narrowed = self._narrowed(split, inner, self.outputs(tensor))
        return narrowed.quantize(split, inner).reshape(x.shape)  # type: ignore[no-any-return]

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Grouped":
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

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
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

    def penalty(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> Any:
        """Returns the penalty of the method."""
        inner, split = self.split(x, tensor)
        method: Any = self._by_channel()
        return method.penalty(split, inner)

    def split(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> tuple[numerics.Tensor, Array]:
        """Views an array with its groups as an axis, and describes it for the method.

        Raises:
            ValueError: The size doesn't divide the axis.
        """
        inner, sizes = self._parts(x.shape, tensor)
        return inner, x.reshape(sizes)

    @property
    def group(self) -> int:  # type: ignore[override]
        """Entries of a group."""
        return self.size

    def uniform_grid(
        self, x: Float[Array, "*shape"] | None, tensor: numerics.Tensor
    ) -> numerics.Grid | None:
        """Returns the grid of every group, its numbers for every entry; None without an array."""
        if x is None or not isinstance(self.method, numerics.OnGrid):
            return None
        inner, split = self.split(x, tensor)
        method = self._narrowed(split, inner, self.outputs(tensor))
        of_groups = method.uniform_grid(split, inner)

        def by_entry(number: Array) -> Array:
            return jnp.broadcast_to(number, split.shape).reshape(x.shape)

        return jax.tree.map(by_entry, of_groups)  # type: ignore[no-any-return]

    def outputs(self, tensor: numerics.Tensor) -> tuple[int, ...]:
        """Returns the axes of the split view that are a weight's output channels."""
        axis = self._axis(tensor)
        return tuple(a + (a > axis) for a in tensor.axes("channel") if a != axis)

    def by_entry(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> list[Array]:
        """Repeats the method's numbers for every entry of an array, each in the array's shape."""
        _, sizes = self._parts(shape, tensor)
        leaves = jax.tree.leaves(self._by_channel())
        return [jnp.broadcast_to(leaf, sizes).reshape(shape) for leaf in leaves]

    def with_numbers(self, numbers: Sequence[Array]) -> Any:
        """Returns the method with a number for each of some entries, of those of `by_entry`."""
        return jax.tree.unflatten(jax.tree.structure(self._by_channel()), numbers)

    def _narrowed(self, x: Array, tensor: numerics.Tensor, outputs: tuple[int, ...]) -> Any:
        """Returns the method per channel, an open range such that narrow steps can hold it."""
        method: Any = self._by_channel()
        # A range that is there was made here, or is taken as it is.
        if self.steps == "float32" or method.range is not None:
            return method
        keep = tensor.axes("channel")
        top = numerics.largest_magnitude(x, keep)
        unit = numerics.grid(
            method.bits,
            *numerics.value_range(x.astype(numerics.wide_dtype(x)), keep),
            method.symmetric,
        )
        step = jnp.where(top > 0, unit.step, 0.0)
        if self.steps == "float16":
            step = step.astype(jnp.float16).astype(step.dtype)
        else:
            multiples, of_output = multiples_of(step, outputs)
            step = multiples.astype(step.dtype) * of_output
        # The largest value is a whole number of steps; with one bit it is half of one twice.
        step = jax.lax.stop_gradient(step)
        ends = (step * unit.lower, step * jnp.maximum(unit.upper, 1.0))
        return replace(method, range=ends)

    def _by_channel(self) -> Any:
        return replace(self.method, per="channel")  # type: ignore[type-var]

    def _axis(self, tensor: numerics.Tensor) -> int:
        if tensor.find_summed is None:
            raise ValueError(
                f"{tensor.site}/{tensor.name} has no axis that a product sums over, so it has no "
                "groups; take a method per channel or per tensor there."
            )
        return tensor.find_summed()[-1]

    def _parts(
        self, shape: tuple[int, ...], tensor: numerics.Tensor
    ) -> tuple[numerics.Tensor, tuple[int, ...]]:
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
    multiples = jnp.clip(jnp.ceil(ratio - _SLACK), 1, MOST)
    return multiples.astype(jnp.int8), unit


DEFAULT_GROUP = 32
Bound = Float[Array, "..."] | float


@core.register_setting
class Int(core.Setting):
    """Integer quantization of a layer: `Int(8)`, or `Int(4, 8)` for 4-bit weights.

    Sharp edges:
        Activations are quantized where multiply-accumulates read them: `at="input"` acts on linear
        layers and matrix products. `at="output"` acts on the result of any layer, such as a ReLU.
        Weights always use their own smallest and largest value; `range` is for activations.
        A range per sample takes the first axis of an array as the batch; an array of one axis is
        one sample. Biases stay as they are.

    Attributes:
        bits: Bit width of the weights, 1 to 16. An array is a leaf and may be traced: a `vmap` over
            it evaluates many policies in one program.
        activation_bits: Bit width of the activations; None for that of the weights.
        symmetric: Whether grids are centred on zero: True, False, "weights" or "activations". By
            default those of weights are, as `jaxeff.integer` multiplies them.
        per: Weights share one range per output "channel", per "tensor", or per "group" of
            neighbours along the axis that the layer sums over (`Grouped`). Symmetric grids of
            groups are "full" (`Uniform`): of four bits a group has 16 values instead of 15.
        group: Entries of a group; None for 32.
        steps: Numbers that steps of groups are stored as, as `Grouped` has them.
        activations_per: Activations share one range per "sample", per "token" (all that one product
            reads: the axis that is summed over) or per "tensor".
        range: Range of the activations. None: their own smallest and largest value, on every call.
            A number c: [0, c], or [-c, c] where symmetric. A pair: smallest and largest value,
            extended to zero where they don't enclose it (see `jaxeff.compression.grid`); each may
            be an array with one entry per activation the layer reads.
        weights: Whether weights are quantized.
        activations: Whether activations are quantized.
        at: Activations of a layer that are quantized: those it reads ("input") or its result
            ("output").

    Raises:
        TypeError: A bit width is neither an integer nor an array.
        ValueError: A bit width isn't whole or not between 1 and 16, a choice is unknown, the range
            is empty, or `group`, `steps` or "token" don't go with the rest.
    """

    bits: Annotated[numerics.Bits, core.Width(1, numerics.MAX_BITS)] = core.static_number()
    activation_bits: Annotated[numerics.Bits | None, core.Width(1, numerics.MAX_BITS)] = (
        core.static_number(None)
    )
    symmetric: Annotated[bool | str, core.Choice(False, True, "weights", "activations")] = (
        core.static("weights")
    )
    per: Annotated[str, core.Choice("channel", "tensor", "group")] = core.static("channel")
    activations_per: Annotated[str, core.Choice("sample", "tensor", "token")] = core.static(
        "sample"
    )
    range: tuple[Bound, Bound] | Bound | None = None
    weights: bool = core.static(True)
    activations: bool = core.static(True)
    at: Annotated[str, core.Choice("input", "output")] = core.static("input")
    group: int | None = core.static(None)
    steps: Annotated[str, core.Choice("float32", "float16", "int8")] = core.static("float32")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per == "group":
            self._weights()  # has the checks of groups
        elif self.group is not None or self.steps != "float32":
            raise ValueError('Int.group and Int.steps are for per="group".')
        if self.activations_per == "token" and self.at == "output":
            raise ValueError('Int.activations_per="token" is for what layers read, at="input".')
        if not (self.weights or self.activations):
            raise ValueError("Int quantizes neither weights nor activations; use None instead.")
        _check_range(self.range)

    def width(self, what: str) -> numerics.Bits:
        """Returns the bit width of "weights" or "activations"."""
        if what == "weights" or self.activation_bits is None:
            return self.bits
        return self.activation_bits

    def is_symmetric(self, what: str) -> bool:
        """Returns whether the grids of "weights" or "activations" are centred on zero."""
        return self.symmetric is True or self.symmetric == what

    def parts(self) -> numerics.LayerQuantization:
        """Returns the grids of weights and of activations.

        Raises:
            ValueError: The ends of the range are arrays of different lengths, or of several axes.
        """
        bits, symmetric = self.width("activations"), self.is_symmetric("activations")
        ranges: list[Any] = [None]
        if self.range is not None:
            if isinstance(self.range, tuple):
                low, high = (jnp.asarray(end) for end in self.range)
            else:
                high = jnp.asarray(self.range)
                low = -high if symmetric else jnp.zeros_like(high)
            counts = {end.shape[0] for end in (low, high) if end.ndim}
            if len(counts) > 1 or max(low.ndim, high.ndim) > 1:
                raise ValueError(
                    f"Int.range has ends of shapes {low.shape} and {high.shape}; each must be a "
                    "scalar, or an array with one entry per activation."
                )
            ranges = [
                tuple(end[i] if end.ndim else end for end in (low, high))
                for i in range(max(counts, default=1))
            ]
        grids = tuple(Uniform(bits, symmetric, r, self.activations_per) for r in ranges)
        # A tuple has a grid for each activation, a single grid serves any number of them.
        activations: Any = grids if _is_array(self.range) else grids[0]
        return numerics.LayerQuantization(
            self._weights() if self.weights else None,
            activations if self.activations else None,
            self.at,
        )

    def _weights(self) -> numerics.Quantizer:
        """Returns the grid of weights."""
        symmetric = self.is_symmetric("weights")
        if self.per != "group":
            return Uniform(self.bits, symmetric, None, self.per)
        size = DEFAULT_GROUP if self.group is None else self.group
        # Few values are worth one more most where a range is narrow: a group reaches its largest
        # value with codes that an integer kernel has anyway.
        return Grouped(Uniform(self.bits, numerics.FULL if symmetric else False), size, self.steps)


def _is_array(bounds: Any) -> bool:
    """Returns whether an end of a range has an entry per activation."""
    ends = bounds if isinstance(bounds, tuple) else (bounds,)
    return any(end is not None and jnp.ndim(end) > 0 for end in ends)


def _check_range(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, tuple):
        core.check_number("Int.range", value, float(np.finfo(np.float32).tiny))
        return
    if len(value) != 2:
        raise ValueError(f"Int.range must be a pair (low, high), not {value!r}.")
    core.check_number("Int.range[0]", value[0])
    core.check_number("Int.range[1]", value[1])
    if all(core.is_concrete(b) for b in value) and np.any(
        np.asarray(value[0]) > np.asarray(value[1])
    ):
        raise ValueError(f"Int.range must be a pair (low, high) with low <= high, not {value!r}.")
