"""The protocol between `jaxeff.quantized` and quantizers, and what these share.

A quantizer is a frozen dataclass with one method, `quantize`, that gives an array's value after
quantization, with the gradient its method has. Its numbers (a step, a threshold, a codebook) are
leaves, so they are learnt by the gradient with respect to the spec and swept by `vmap`. A number
that is None is computed from the array on every call; `jaxeff.compression.init` computes it once,
from the parameters and a batch, and makes it a leaf.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.compression.numerics._grid import Bits, Grid, kept_axes, power_of_two, wide_dtype

Role = Literal["weight", "activation"]
Axes = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """Description of an array for its quantizer.

    Attributes:
        site: The layer's name.
        name: The array's among those that the layer quantizes: "weights_1", "input_0", "output_0".
        role: A weight, or an activation.
        rank: Number of axes.
        key: A key of this array's own, where the caller of `quantized` gave one.
        find_channels: Function that finds a weight's axes of output channels.
        find_summed: Function that finds the axes that the layer's product sums over.
        samples: The axes that count samples, and draws of the parameters; of an activation. None if
            one axis counts draws and something else.
    """

    site: str
    name: str
    role: Role
    rank: int
    key: PRNGKeyArray | None = None
    find_channels: Callable[[], Axes] | None = None
    samples: Axes | None = (0,)
    find_summed: Callable[[], Axes] | None = None

    def axes(self, per: str) -> Axes:
        """Returns the axes along which every entry has numbers of its own.

        Args:
            per: "tensor": none. "channel": of a weight, the axes of its output channels. "sample":
                of an activation with more than one axis, `samples`. "token": of an activation, all
                axes but those that the layer sums over.

        Raises:
            ValueError: The output channels of a weight are unknown, because it reaches its product
                in another shape; or the samples of an activation are (`samples`).
        """
        # Looked for only here: a method per tensor works where channels are unknown.
        if per == "channel" and self.find_channels is not None:
            return self.find_channels()
        if per == "token" and self.role == "activation" and self.find_summed is not None:
            summed = self.find_summed()
            return tuple(axis for axis in range(self.rank) if axis not in summed)
        if per != "sample" or self.role != "activation" or self.rank < 2:
            return ()
        if self.samples is None:
            raise ValueError(
                f"quantized: {self.site!r} is a convolution under vmap with a kernel for each "
                "draw, whose draws and channels share an axis, so they would share ranges. Put "
                'quantized inside, vmap(quantized(f, spec)), or take activations_per="tensor" or a '
                "range."
            )
        return self.samples

    def count(self, shape: tuple[int, ...], per: str) -> int:
        """Counts the entries of an array of this shape that have numbers of their own."""
        return math.prod(shape[axis] for axis in self.axes(per))

    def fitted(self, name: str, value: Any, x: Float[Array, "*shape"]) -> Array:
        """Shapes a method's number to broadcast against what it acts on, in its dtype.

        Args:
            name: Name of the number in error messages, such as "Binary.scale".
            value: The number, or an array of them.
            x: Array that it acts on.

        Raises:
            ValueError: It doesn't broadcast against the array, or would enlarge it.
        """
        core.check_broadcasts(f"{name} at {self.site}/{self.name}", value, x.shape)
        return core.with_leading_axes(jnp.asarray(value, x.dtype), x.shape)

    def random(self, method: str) -> PRNGKeyArray:
        """Returns the key, for a method that draws.

        Raises:
            ValueError: The caller gave none.
        """
        if self.key is None:
            raise ValueError(
                f"{method} at {self.site!r} draws random numbers: call quantized(f, spec, "
                "keyed=True), whose result takes a key first."
            )
        return self.key


@runtime_checkable
class Quantizer(Protocol):
    """A quantization method; any object with `quantize` is one.

    `BaseQuantizer` has defaults for what else is asked, where it is there:

    - `start(x, tensor)` returns the quantizer with its open numbers computed from an array, which
      `init` gives as it is, not traced;
    - `storage(shape, tensor)` the bits that an array of a shape takes, all included;
    - `penalty(x, tensor)` what a loss adds to learn with this method;
    - `uniform_grid(x, tensor)` its evenly spaced values (`OnGrid`), by which `integer` deploys it
      and `adaround` learns roundings;
    - `weight_grid(w, tensor)` those of a weight where not the nearest is chosen (`WeightsOnGrid`);
    - `group`, how many neighbours along the axis that a product sums over share a step.
    """

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the quantized values of `x`, of the same shape and dtype."""
        ...


@runtime_checkable
class OnGrid(Protocol):
    """A quantizer that rounds to the nearest of evenly spaced values."""

    def uniform_grid(self, x: Float[Array, "*shape"] | None, tensor: Tensor) -> Grid | None:
        """Returns the grid whose nearest values `quantize` gives; it broadcasts against `x`.

        Args:
            x: The array, in float32; None asks for the grid of any array.
            tensor: Description of it.

        Returns:
            The grid, in float32; None where it isn't known: without an array that decides its
            range, or before `init` has started a method.
        """
        ...


@runtime_checkable
class AlikeInAnyShape(Protocol):
    """A quantizer that says whether the codes of its grid are the same for any shape of weights."""

    def is_alike_in_any_shape(self) -> bool:
        """Tells whether the grid of ones has the same codes in any shape of as many axes."""
        ...


@runtime_checkable
class WeightsOnGrid(Protocol):
    """A quantizer whose values of a weight are evenly spaced, whichever rule chooses them."""

    def weight_grid(self, w: Float[Array, "..."], tensor: Tensor) -> Grid | None:
        """Returns the grid that `quantize(w, tensor)` is on; it broadcasts against `w`.

        Args:
            w: The weight, in float32.
            tensor: Description of it.

        Returns:
            The grid, in float32; None before `init` has started the method.
        """
        ...

    def quantize(self, x: Float[Array, "..."], tensor: Tensor) -> Float[Array, "..."]:
        """Returns the quantized values of `x`, of the same shape and dtype."""
        ...


class BaseQuantizer(core.Setting):
    """A quantizer with nothing to start from and nothing to penalise.

    A new method is a new class:

    ```python
    from dataclasses import dataclass

    import jax.numpy as jnp

    from jaxeff.compression import BaseQuantizer, quantized, round_through
    from jaxeff.nn import small_classifier
    from jaxeff.core import Positive, register_setting

    @register_setting
    class Fixed(BaseQuantizer):
        step: Positive

        def quantize(self, x, tensor):
            return round_through(x / self.step) * self.step

    f, params, (x, y) = small_classifier()
    logits = quantized(f, {"*:linear": Fixed(0.1)})(params, x)
    ```

    One of evenly spaced values says which in `uniform_grid`, and `integer` deploys what was
    trained.
    """

    group: ClassVar[int | None] = None
    """Neighbours that share a step, along the axis that a product sums over; None for all."""

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the quantized values of `x`, of the same shape and dtype."""
        raise NotImplementedError

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> Quantizer:
        """Computes the method's open numbers from an array."""
        return self

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits that an array of this shape takes: codes, and what decodes them."""
        return math.prod(shape) * self.width

    @property
    def width(self) -> Any:
        """Bits of one code: the field `bits`, for most methods."""
        return getattr(self, "bits", 32)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns what a loss adds for this array; zero for most methods."""
        return 0.0

    def by_entry(self, shape: tuple[int, ...], tensor: Tensor) -> list[Array]:
        """Repeats numbers that differ along the axis summed over for every entry of an array."""
        return []

    def require_entries(self, count: int, *names: str) -> None:
        """Checks that arrays of numbers, where there are any, have `count` along the last axis."""
        for name in names:
            value = getattr(self, name)
            if value is not None and jnp.shape(value)[-1:] != (count,):
                raise ValueError(
                    f"{type(self).__name__}.{name} has shape {jnp.shape(value)}; its last axis "
                    f"must have {count} entries."
                )

    def with_numbers(self, numbers: Sequence[Array]) -> Quantizer:
        """Returns the method for some entries of an array, with their numbers of `by_entry`."""
        return self


@core.register_setting
class LayerQuantization(core.Setting):
    """Quantizers for the weights and the activations of a layer.

    A quantizer alone, `{"conv*": LSQ(4)}`, stands for both; `Int` is written for both at once.

    Attributes:
        weights: The method for weights of a dot product or convolution; None leaves them alone.
        activations: The method for activations, or a tuple with one for each that the layer reads
            (or returns); None leaves them alone.
        at: Activations that are quantized: those that a multiply-accumulate reads ("input"), or the
            result of any layer ("output").

    Raises:
        TypeError: A method isn't a quantizer.
        ValueError: There is none, or `at` is neither of the two.
    """

    weights: Quantizer | None = None
    activations: Quantizer | tuple[Quantizer | None, ...] | None = None
    at: Annotated[str, core.Choice("input", "output")] = core.static("input")

    def __post_init__(self) -> None:
        super().__post_init__()
        several = self.activations if isinstance(self.activations, tuple) else (self.activations,)
        quantizers = [q for q in (self.weights, *several) if q is not None]
        if not quantizers:
            raise ValueError(
                "LayerQuantization quantizes neither weights nor activations; use None instead."
            )
        for quantizer in quantizers:
            if not isinstance(quantizer, Quantizer) or isinstance(quantizer, type):
                raise TypeError(
                    f"LayerQuantization takes quantizers, such as LSQ(4), not {quantizer!r}."
                )

    def of_activation(self, site: str, operand: int, count: int) -> Quantizer | None:
        """Returns the method for one of the activations.

        Raises:
            ValueError: There are methods for another number of them.
        """
        if not isinstance(self.activations, tuple):
            return self.activations
        if len(self.activations) != count:
            raise ValueError(
                f"{site!r} has {count} activation(s) to quantize, but its setting has methods for "
                f"{len(self.activations)}."
            )
        return self.activations[operand]


@runtime_checkable
class HasParts(Protocol):
    """A setting with separate methods for weights and activations, such as `Int`."""

    def parts(self) -> LayerQuantization:
        """Separates the methods of weights and of activations."""
        ...


def parts(setting: Any) -> LayerQuantization:
    """Separates a setting into the methods of weights and of activations."""
    if isinstance(setting, LayerQuantization):
        return setting
    if isinstance(setting, HasParts):
        return setting.parts()
    return LayerQuantization(setting, setting)


Method = LayerQuantization | Quantizer | HasParts
"""Values that a spec may map a pattern to."""


class LearnedBits(BaseQuantizer):
    """A quantizer with a width for each part of an array, and a price for each bit.

    Subclasses are frozen dataclasses with `per` and `price` among their fields, and a `width` that
    has a gradient.

    References:
        Uhlich et al., "Mixed Precision DNNs: All you need is a good parametrization",
        arXiv:1905.11452.
    """

    per: str
    price: Any

    beside: ClassVar[int]
    """Bits of the numbers that decode the codes of one part."""

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedBits":
        """Computes the open numbers from an array."""
        raise NotImplementedError

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, each channel's of its own width, and the numbers that decode them."""
        width = self.width
        mean = width if np.ndim(width) == 0 else width.mean()
        return math.prod(shape) * mean + self.beside * tensor.count(shape, self.per)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the price of its bits."""
        started = self.start(lax.stop_gradient(x), tensor)
        bits = jnp.asarray(started.storage(x.shape, tensor), wide_dtype(x))
        return jnp.asarray(self.price, bits.dtype) * bits


def infer_sign(x: Float[Array, "*shape"], tensor: Tensor) -> bool | Bool[Array, ""]:
    """Decides whether codes reach below zero: for weights, and if an activation is negative.

    Args:
        x: Values to quantize.
        tensor: Description of the array; its role decides.

    Returns:
        A Python bool, or an array of shape () where `x` is traced.
    """
    # Weights have a sign even if none is negative yet: training may change that.
    signed = True if tensor.role == "weight" else jnp.any(x < 0)
    return bool(signed) if core.is_concrete(signed) else signed


def magnitude(x: Float[Array, "*shape"], tensor: Tensor, per: str) -> Float[Array, "..."]:
    """Computes the largest magnitude of the values that share a number.

    Args:
        x: Values to quantize.
        tensor: Description of the array, which has its channels.
        per: Part with a magnitude of its own: "channel" or "tensor".

    Returns:
        An array that broadcasts against `x`: of shape () for the tensor, else of size one along
        the axes that share a number.
    """
    return largest_magnitude(x, tensor.axes(per))


def start_scale(x: Float[Array, "*shape"], tensor: Tensor, per: str) -> Float[Array, "..."]:
    """Computes a positive scale to start from: the largest magnitude, one if that is zero.

    The arguments and the shape of the result are those of `magnitude`.
    """
    return safe_scale(magnitude(x, tensor, per))


def largest_magnitude(x: Float[Array, "*shape"], keep: Sequence[int] = ()) -> Float[Array, "..."]:
    """Computes the largest magnitude along all axes but those kept.

    Args:
        x: Values.
        keep: Axes whose entries have a magnitude each.

    Returns:
        An array that broadcasts against `x`, as of `magnitude`.
    """
    axes, shape = kept_axes(x, keep)
    return jnp.max(jnp.abs(x), axes).reshape(shape)


def safe_scale(scale: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Replaces scales that aren't positive by one.

    An array of zeros has no scale, and any is right for it.
    """
    return jnp.where(scale > 0, scale, jnp.ones_like(scale))


def keep_positive(value: Float[Array, "*shape"], factor: float = 1.0) -> Float[Array, "*shape"]:
    """Keeps a learnt number positive that training may have brought to zero or below.

    Args:
        value: Step, scale or clipping level.
        factor: Smallest result, in the dtype's smallest normal numbers.
    """
    return jnp.maximum(value, jnp.asarray(jnp.finfo(value.dtype).tiny * factor, value.dtype))


def keep_ordered(
    low: Float[Array, "..."], high: Float[Array, "..."], factor: float = 1.0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Keeps two learnt numbers positive and in order, wherever training has brought them.

    Args:
        low: The smaller number, such as a step.
        high: The larger number, such as a maximum; it gives way.
        factor: Smallest result, in the dtype's smallest normal numbers.

    Returns:
        Both, of one shape and of the first one's dtype.
    """
    low = keep_positive(low, factor)
    low, high = jnp.broadcast_arrays(low, jnp.asarray(high, low.dtype))
    return low, jnp.where(high >= low, high, low)


def code_range(
    bits: Bits, signed: bool | Bool[Array, "..."] | None, dtype: Any
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns the smallest and largest code of a width.

    Args:
        bits: Bit width, 1 to 16; an array may be traced.
        signed: Whether codes reach below zero; an array may be traced.
        dtype: Dtype of the codes.

    Returns:
        -2^(b-1) and 2^(b-1) - 1 with a sign, else 0 and 2^b - 1.
    """
    half = power_of_two(bits, dtype) / 2
    zero = jnp.zeros_like(half)
    if signed is None or isinstance(signed, bool):
        return (-half, half - 1) if signed else (zero, 2 * half - 1)
    return jnp.where(signed, -half, zero), jnp.where(signed, half, 2 * half) - 1
