"""Base of the noise models: place, sharing of draws, axes of levels.

`at` says where a layer is perturbed. `per` says which elements share one random draw: none
("element"), those of one channel of one sample ("channel"), or all of one sample ("sample").
`along` says what an array of levels holds one entry for: each sample or each channel; without it an
array is broadcast as numpy does. `relative` gives a level in units of the signal's range: the
maximum minus the minimum of the array that is perturbed, without a gradient of its own. A model
declares those that it has, with the types below.

Sharp edges:
    The first axis counts samples and the last one channels, as in Flax. In weights the last axis
    counts channels, which share a draw over all other axes; there are no samples.
    The range is that of the whole array, so a sample's noise depends on the others in its batch.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import Choice, Setting, check_broadcasts, with_leading_axes
from jaxeff.noise.models._protocol import PLACES

Place = Annotated[str, Choice(*PLACES)]
Sharing = Annotated[str, Choice("element", "channel", "sample")]
Axis = Annotated[str | None, Choice(None, "sample", "channel")]
Flag = Annotated[bool, Choice(False, True)]


class NoiseModel(Setting):
    """Base of the noise models; subclasses are frozen dataclasses with these fields.

    Attributes:
        at: Place where a layer is perturbed: "output", "weights" or "input".
        per: Scope of one draw, in models that draw per element, channel or sample.
        along: Axis that an array of levels has one entry along.
        relative: Whether an amount of signal is in units of the signal's range.
    """

    at: Place = "output"
    per: Sharing = "element"
    along: Axis = None
    relative: Flag = False

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
            TypeError: A number is none.
            ValueError: A number is out of bounds, a choice is unknown, or asks for the samples of
                weights.
        """
        super().__post_init__()
        for field in ("per", "along"):
            if self.at == "weights" and getattr(self, field) == "sample":
                raise ValueError(
                    f'{type(self).__name__}.{field}="sample" acts on samples, which weights don\'t '
                    'have; choose another, or at="output".'
                )

    def _aligned(self, field: str, x: Any) -> Array:
        """Reshapes a number or array of the model so that it broadcasts against `x`.

        Raises:
            ValueError: Its shape doesn't fit `x`.
        """
        name, value = f"{type(self).__name__}.{field}", getattr(self, field)
        shape = jnp.shape(x)
        if self.along is None or jnp.ndim(value) == 0:
            check_broadcasts(name, value, shape)
            # NumPy's rule, spelt out in the shape: leading axes of size one.
            return with_leading_axes(value, shape)
        wanted = shape[:1] if self.along == "sample" else shape[-1:]
        if jnp.shape(value) != wanted:
            raise ValueError(
                f"{name} holds one number per {self.along} and must be a number or of shape "
                f"{wanted} for the array of shape {shape} that it acts on, but has shape "
                f"{jnp.shape(value)}."
            )
        if self.along == "channel":
            return with_leading_axes(value, shape)
        return jnp.reshape(value, (-1, *(1,) * (len(shape) - 1)))

    def _level(self, field: str, x: Any) -> Array:
        """Converts a level to the dtype of `x`, so that it never promotes the result."""
        return self._aligned(field, x).astype(jnp.result_type(x))

    def _amount(self, field: str, x: Any) -> Array:
        """Converts a level to the units of `x`: times its range if relative."""
        value = self._level(field, x)
        # A measured range is no parameter: a gradient through it would reward a smaller signal.
        return value * jax.lax.stop_gradient(jnp.max(x) - jnp.min(x)) if self.relative else value

    def _draw_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Computes the shape of fresh draws for an array, which broadcasts against it."""
        if self.per == "element":
            return shape
        own = {0} if self.per == "sample" else {0, len(shape) - 1}
        if self.at == "weights":
            # The channels of weights are their outputs; samples don't exist there.
            own = {len(shape) - 1}
        return tuple(n if axis in own else 1 for axis, n in enumerate(shape))

    def _fitting(self, field: str, variance: Array, shape: tuple[int, ...]) -> Array:
        """Broadcasts a variance to the shape of the draws that it belongs to.

        Raises:
            ValueError: Elements that share a draw have different levels, or an amount is relative.
        """
        name = f"{type(self).__name__}.{field}"
        if self.relative:
            raise ValueError(
                f"{name} is in units of the signal's range, which is random itself: moments need "
                "an absolute amount, relative=False"
            )
        check_broadcasts(name, variance, shape)
        return jnp.broadcast_to(variance, shape)


def real_dtype(x: Any) -> Any:
    """Returns the dtype of an array that noise can act on.

    Raises:
        TypeError: `x` doesn't hold real floating-point numbers.
    """
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"Noise needs a real floating-point array, but this one has dtype {dtype}; convert it "
            "with .astype(jnp.float32) or leave it out of the spec."
        )
    return dtype
