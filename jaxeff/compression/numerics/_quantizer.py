"""The protocol between `jaxeff.quantized` and quantizers.

A quantizer is a frozen dataclass with one method, `quantize`, that gives an array's value after
quantization, with the gradient its method has. Its numbers (a step, a threshold, a codebook) are
leaves, so they are learnt by the gradient with respect to the spec and swept by `vmap`. A number
that is None is computed from the array on every call; `jaxeff.compression.init` computes it once,
from the parameters and a batch, and makes it a leaf.

A new method is a new file:

```python
from dataclasses import dataclass

import jax.numpy as jnp

from jaxeff.compression import BaseQuantizer, quantized, round_through
from jaxeff.nn import small_classifier
from jaxeff.core import Positive, register_setting

@register_setting
@dataclass(frozen=True)
class Fixed(BaseQuantizer):
    step: Positive

    def quantize(self, x, tensor):
        return round_through(x / self.step) * self.step

f, params, (x, y) = small_classifier()
logits = quantized(f, {"*:linear": Fixed(0.1)})(params, x)
```
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Setting, check_broadcasts, with_leading_axes

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
        check_broadcasts(f"{name} at {self.site}/{self.name}", value, x.shape)
        return with_leading_axes(jnp.asarray(value, x.dtype), x.shape)

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
    - `penalty(x, tensor)` what a loss adds to learn with this method.
    """

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the quantized values of `x`, of the same shape and dtype."""
        ...


class BaseQuantizer(Setting):
    """A quantizer with nothing to start from and nothing to penalise."""

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
