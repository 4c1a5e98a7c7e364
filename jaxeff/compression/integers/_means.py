"""Means and sums over positions or windows, in integers: their order changes no bit.

Float32 rounds every partial sum, so XLA and a compiled library, which add in other orders, differ
in the last bits. A mean whose reader takes codes adds fractions of the reader's step. One that is
read in float32 adds whole numbers of a power of two, about the largest value of one in the
accumulators that it reads. They fill int32, so they are added in two parts, whose sums fit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32

from jaxeff.compression.integers._grids import HALF_TO_EVEN
from jaxeff.compression.integers._layers import bind_at_size, evaluated, shape_of
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer
from jaxeff.program.ir import run_nodes

_SUMS = {"reduce_sum", "reduce_window_sum"}
_FACTORS = {"div", "mul", "convert_element_type"}
_TAKEN = _SUMS | _FACTORS | {"reshape", "broadcast_in_dim"}
_BITS = 31
"""Of whole numbers and of their sums, the sign not counted."""
_MOST = float(2**31 - 2**7)
"""The largest float32 that int32 holds."""


@dataclass(frozen=True, eq=False)
class Addition:
    """A layer that adds elements with equal weights.

    Attributes:
        layer: The layer.
        count: Elements in a sum.
        divisor: Divisor of the sums: `count` for a mean, 1 for a sum.
        over_pixels: Whether each sum is that of a channel of an image NHWC.
    """

    layer: Layer
    count: int
    divisor: int
    over_pixels: bool = False

    @classmethod
    def of(cls, layer: Layer) -> Addition | None:
        """Recognises a layer that adds; None if it does anything else."""
        if layer.kind not in {"pooling", "reduction"}:
            return None
        if len(layer.inputs) != 1 or len(layer.outputs) != 1:
            return None
        names = {node.primitive.name for node in layer.nodes}
        aval = layer.inputs[0].aval
        if not names <= _TAKEN or not names & _SUMS or aval.dtype != jnp.float32:
            return None
        ones = np.ones(shape_of(aval), np.int32)
        counts, means = evaluated(layer, ones, _whole), evaluated(layer, ones.astype(np.float32))
        # Windows that are cut at the border have several counts, so no one divisor.
        if counts.size == 0 or counts.min() < 1 or counts.min() != counts.max():
            return None
        count = int(counts.max())
        divisor = count if np.allclose(means, 1, atol=1e-5) else 1
        # Weights are equal if numbers that differ have the sums of the rule on whole numbers.
        probe = (np.arange(ones.size, dtype=np.int32) % 97 + 1).reshape(ones.shape)
        whole = evaluated(layer, probe, _whole)
        if not np.allclose(evaluated(layer, probe.astype(np.float32)), whole / divisor, rtol=1e-4):
            return None
        # Tried, not read: a mean, a sum and a pooling over all there is are one function.
        channels = probe.sum((1, 2)) if probe.ndim == 4 else np.zeros(0)
        over_pixels = whole.size == channels.size and np.array_equal(
            whole.ravel(), channels.ravel()
        )
        return cls(layer, count, divisor, bool(over_pixels))

    def total(self, x: Int32[Array, "*shape"]) -> Int32[Array, "*result"]:
        """Sums whole numbers, exactly where the sums fit int32."""
        layer = self.layer
        (y,) = run_nodes(layer.nodes, layer.inputs, [x], layer.outputs, _bound)
        return y

    def exact(self, x: Float[Array, "*shape"], unit: Float[Array, ""]) -> Float[Array, "*result"]:
        """Computes means or sums in float32, of values on a grid of powers of two.

        Args:
            x: Values below 2^31 units.
            unit: A power of two.
        """
        # whole = high 2^split + low: with length <= split the sums of both parts fit int32.
        length = (self.count - 1).bit_length()
        split = min(_BITS // 2 + 1, _BITS - length)
        dropped = max(0, length - split)  # of more elements than two parts of int32 can add
        unit = unit * np.float32(2**dropped)
        # A product with a power of two is exact, as is every step up to the sum of the parts.
        nearest = lax.round(x * (1 / unit), HALF_TO_EVEN)
        whole = jnp.clip(nearest, -_MOST, _MOST).astype(jnp.int32)
        high = lax.shift_right_arithmetic(whole, jnp.full_like(whole, split))
        low = whole & (2**split - 1)
        parts = [self.total(part).astype(jnp.float32) for part in (high, low)]
        # One rounding each, fused or not: both factors are powers of two.
        sums = (parts[0] * np.float32(2**split) + parts[1]) * unit
        return self.divided(sums)

    def divided(self, sums: Float[Array, "*result"]) -> Float[Array, "*result"]:
        """Divides sums to means."""
        # Not a quotient, which XLA computes as this product and other compilers don't.
        return sums if self.divisor == 1 else sums * np.float32(1 / self.divisor)


def _bound(eqn: Any, *values: Any) -> list[Any]:
    """Evaluates an equation on whole numbers, which are added and not divided."""
    return _undivided(eqn, values) or _compat.bind(eqn, *values)


def _whole(eqn: Any, size: int, *values: Any) -> list[Any]:
    """Evaluates an equation likewise, at a batch of that size."""
    return _undivided(eqn, values) or bind_at_size(eqn, size, *values)


def _undivided(eqn: Any, values: Sequence[Any]) -> list[Any]:
    if eqn.primitive.name not in _FACTORS:
        return []
    return [v for v in values if jnp.issubdtype(jnp.result_type(v), jnp.integer)][:1]
