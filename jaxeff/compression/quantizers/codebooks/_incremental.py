"""`Incremental`: weights become powers of two in parts, while the rest is trained on (INQ).

The weights of a layer are divided by magnitude: the largest are quantized and keep their values,
the others stay floating-point and make up for the error; then more are quantized, until all are.
With b bits the values are {0} and ±2^k for n2 <= k <= n1, n1 = floor(log2(4/3 max|w|)) and
n2 = n1 + 1 - 2^(b-2) (Zhou et al., eq. 1 to 4).

`Incremental` quantizes the largest weights of an array as it is now; which these are may change as
the others grow. `incremental_quantization` keeps them, as the paper does (eq. 8): it moves weights
to their values as their turn comes and holds them there, whatever the optimizer.

```python
import jax
import optax

from jaxeff.compression import Incremental, LayerQuantization, quantized
from jaxeff.compression import incremental_quantization, share_schedule
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()

def kernels(params):
    return jax.tree_util.tree_map_with_path(lambda path, w: "kernel" in str(path[-1]), params)

inq = incremental_quantization(Incremental(5), share_schedule(every=4))
optimizer = optax.chain(optax.adam(1e-3), optax.masked(inq, kernels))
run = fit(jax.random.key(0), cross_entropy(f), params, data,
          optimizer=optimizer, epochs=4, batch_size=32)
g = quantized(f, {"*:linear": LayerQuantization(Incremental(5))})  # all weights are values
```

Sharp edges:
    `incremental_quantization` must come last, after the learning rate.
    Weights of equal magnitude become values together, so that a part may be larger than asked for.
    A share is of the weights of one array.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxeff.compression.numerics import BaseQuantizer, Bits, Tensor, power_of_two
from jaxeff.compression.quantizers.codebooks._powers_of_two import nearest_powers, top_exponent
from jaxeff.core import (
    Number,
    Width,
    check_count,
    check_number,
    function_of_form,
    instance_of,
    register_setting,
    static_integer,
    static_number,
    validate,
)

SHARES = (0.5, 0.75, 0.875, 1.0)
"""The published schedule: how much of a layer is quantized, step by step."""


@register_setting
@dataclass(frozen=True)
class Incremental(BaseQuantizer):
    """A part of the weights as powers of two: `Incremental(5)`, of all weights.

    Attributes:
        bits: Bit width, 2 to 8; an array may be traced.
        fraction: The share that is quantized, the largest magnitudes first; a leaf, so that a
            schedule needs no second trace. Quantized weights have no gradient, the others one.
        top: The exponent n1, which has no gradient. Open: by the largest magnitude.

    Raises:
        TypeError, ValueError: `bits` is out of bounds or not whole, or `fraction` not in [0, 1].

    References:
        Zhou et al., "Incremental Network Quantization", arXiv:1702.03044.
    """

    bits: Annotated[Bits, Width(2, 8)] = static_number()
    fraction: Annotated[Float[Array, ""] | float, Number(0, 1)] = 1.0
    top: Annotated[Float[Array, ""] | float | None, Number()] = None

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the weights, the largest of them quantized.

        Raises:
            ValueError: It is an activation, whose gradient would vanish.
        """
        fixed = lax.stop_gradient(x)
        own = self.start(fixed, tensor)
        tensor.fitted("Incremental.top", own.top, x)
        done = largest_mask(jnp.abs(fixed), own.fraction)
        # Values are constants: the other weights alone are trained on (eq. 8).
        return jnp.where(done, own.values(fixed), x)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Incremental":
        """Computes an open largest exponent from an array."""
        if tensor.role == "activation":
            raise ValueError(
                f"Incremental quantizes weights, and {tensor.site}/{tensor.name} is an activation: "
                "write LayerQuantization(weights=Incremental(5)), with PowersOfTwo for activations."
            )
        top = top_exponent(x) if self.top is None else self.top
        return replace(self, top=top, fraction=jnp.asarray(self.fraction, jnp.float32))

    def values(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Rounds all of an array to powers of two."""
        top = jnp.asarray(top_exponent(x) if self.top is None else self.top, x.dtype)
        return lax.stop_gradient(nearest_powers(x, top, power_of_two(self.bits, x.dtype) / 4))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes and 8 bits for the exponent, once all weights are quantized."""
        return super().storage(shape, tensor) + 8


@validate(every=static_integer())
def share_schedule(every: int, fractions: Sequence[float] = SHARES) -> optax.Schedule:
    """Makes a schedule with a constant number of updates between two shares.

    Args:
        every: Updates between two shares.
        fractions: Shares of the weights, the first from the start on.

    Raises:
        ValueError: `every` is no positive integer, or a share not in [0, 1].
    """
    check_count("every", every)
    for fraction in fractions:
        check_number("fractions", fraction, 0, 1)
    steps = [optax.constant_schedule(fraction) for fraction in fractions]
    return optax.join_schedules(steps, [every * (i + 1) for i in range(len(steps) - 1)])


class IncrementalState(NamedTuple):
    """State of `incremental_quantization`.

    Attributes:
        steps: Updates so far.
        top: The exponent n1 of each array.
        done: Mask of its weights that are quantized.
    """

    steps: Array
    top: Any
    done: Any


@validate(method=instance_of(Incremental), schedule=function_of_form("schedule(step)"))
def incremental_quantization(
    method: Incremental, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Moves weights to powers of two by a schedule, and holds them there.

    Args:
        method: The bit width, and the largest exponent if that isn't to be measured; its own
            fraction isn't used.
        schedule: The share that is quantized after so many updates, such as `share_schedule(1000)`.

    Returns:
        A transformation of updates, for weights alone (`optax.masked`); its `update` needs the
        parameters.
    """

    def init(params: Any) -> IncrementalState:
        def top(w: Array) -> Array:
            return top_exponent(w) if method.top is None else jnp.asarray(method.top, w.dtype)

        done = jax.tree.map(lambda w: jnp.zeros(w.shape, bool), params)
        return IncrementalState(jnp.zeros((), jnp.int32), jax.tree.map(top, params), done)

    def update(
        updates: Any, state: IncrementalState, params: Any = None
    ) -> tuple[Any, IncrementalState]:
        if params is None:
            raise ValueError(
                "incremental_quantization moves weights: pass update the parameters too."
            )
        share = schedule(state.steps)

        def partition(w: Array, done: Array) -> Array:
            # What is quantized stays so: its magnitude counts as infinite, so the share
            # includes it.
            return done | largest_mask(jnp.where(done, jnp.inf, jnp.abs(w)), share)

        done = jax.tree.map(partition, params, state.done)

        def move(u: Array, w: Array, done: Array, top: Array) -> Array:
            # Exact at the second time at the latest: a value's own is itself.
            return jnp.where(done, replace(method, top=top).values(w) - w, u)

        moved = jax.tree.map(move, updates, params, done, state.top)
        return moved, IncrementalState(state.steps + 1, state.top, done)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def largest_mask(x: Float[Array, "*shape"], fraction: Any) -> Bool[Array, "*shape"]:
    """Marks the largest values, a share of all, rounded to a whole number of them."""
    count = jnp.round(jnp.asarray(fraction, jnp.float32) * x.size).astype(jnp.int32)
    # A threshold instead of indices: the fraction may be traced, a shape may not.
    ordered = jnp.sort(x.ravel())
    least = ordered[jnp.clip(x.size - count, 0, x.size - 1)]
    return (x >= least) & (count > 0)
