"""Powers of two with learnt ranges, and weights that are fixed to them step by step.

```python
import jax
import optax

from jaxeff.compression import LayerQuantization, quantized
from jaxeff.contrib import Incremental, incremental_quantization, share_schedule
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
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.compression.quantizers import nearest_power, nearest_powers, top_exponent
from jaxeff.pruning.sparsity import largest_mask


@core.register_setting
class LearnedPowers(numerics.LearnedBits):
    """Signed powers of two whose range, and so width, is learnt: `LearnedPowers()`.

    The magnitude of the value is the nearest power of two, 2^round(log2 |x|), between q_min and
    q_max (Uhlich et al., eq. 3 of its section 2), the sign that of x, and the width is that of as
    many codes:

    ```text
    bits = ceil(log2(log2(q_max / q_min) + 1) + 1)
    ```

    In this parametrization (P3 of the paper) the derivatives with respect to (q_min, q_max) are
    (sign(x), 0) for |x| < q_min, (0, sign(x)) for |x| > q_max and zero between, where that with
    respect to x is Q(x) / x, as rounding the logarithm passes gradients through; it is zero
    outside. Both ends count as the nearest powers of two, with a derivative of one.

    Sharp edge: there is no zero among the values, unless `zero` adds one for all magnitudes below
    q_min / sqrt(2); zeros become +q_min.

    Attributes:
        initial: Width to start from, 2 to 6.
        minimum: The smallest magnitude, q_min; positive. Open: what the initial width gives.
        maximum: The largest magnitude, q_max; positive. Open: that of the array, one if it is zero.
        zero: Whether zero is a value, for one code more.
        price: Price of a bit in the penalty. A plain number isn't learnt.
        per: Part with its own ends: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds.
    """

    initial: Annotated[int, core.Count(2, 6)] = core.static(4)
    minimum: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    maximum: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    zero: bool = core.static(False)
    price: Annotated[Float[Array, "..."] | float, core.Number(0)] = core.static_number(0.0)
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")

    beside: ClassVar[int] = 2 * 8  # the exponents of both ends

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest powers of two in range, with the gradients above."""
        started = self.start(jax.lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
        least = tensor.fitted("LearnedPowers.minimum", started.minimum, value)
        most = tensor.fitted("LearnedPowers.maximum", started.maximum, value)
        least, most = _ends(least, most)
        fixed = jax.lax.stop_gradient(value)
        size = jnp.abs(fixed)
        sign = jnp.where(fixed < 0, -jnp.ones_like(fixed), 1)
        low, high = jax.lax.stop_gradient(least), jax.lax.stop_gradient(most)
        # 2^e <= x < 2^(e+1); the logarithm's half lies at sqrt(2) 2^e.
        power = nearest_power(jnp.clip(size, low, high))
        # Derivative Q(x) / x: rounding the logarithm passes gradients through (P3).
        between = value * (power / jnp.clip(size, low, high))
        inside = (size >= low) & (size <= high)
        smooth = jnp.where(inside, between, sign * jnp.where(size < low, least, most))
        y = numerics.straight_through(smooth, sign * power)
        if self.zero:
            # The logarithm's half below q_min, from where the next smaller power would be nearest.
            y = jnp.where(size < low * 2**-0.5, jnp.zeros_like(y), y)
        return y.astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "LearnedPowers":
        """Computes open ends of the range from an array."""
        least, most = self.minimum, self.maximum
        if least is not None and most is not None:
            return self
        if most is None:
            top = numerics.start_scale(x, tensor, self.per)
            most = nearest_power(top.astype(numerics.wide_dtype(x)))
        if least is None:
            # Powers per sign that fit the width; zero takes one code of them.
            codes = 2 ** (self.initial - 1) - int(self.zero)
            least = jnp.asarray(most) * 2.0 ** (1 - codes)
        return replace(self, minimum=least, maximum=most)

    @property
    def width(self) -> Any:
        """Bits of a code, whole numbers with a gradient; before `init` those to start from."""
        if self.minimum is None or self.maximum is None:
            return self.initial
        least, most = _ends(jnp.asarray(self.minimum), jnp.asarray(self.maximum))
        powers = [jnp.frexp(jax.lax.stop_gradient(end))[1] for end in (least, most)]
        count = 2 * (powers[1] - powers[0] + 1) + int(self.zero)
        # ceil(log2(count)) exactly: the exponent that `frexp` has for count - 1.
        exponent = jnp.frexp((count - 1).astype(least.dtype))[1].astype(least.dtype)
        return numerics.straight_through(jnp.log2(jnp.log2(most / least) + 1) + 1, exponent)


def _ends(least: Array, most: Array) -> tuple[Array, Array]:
    """Makes both ends powers of two in order, wherever training has brought them."""
    # Twice the smallest normal number: `low * 2**-0.5` is no subnormal then, which is flushed.
    least, most = (
        numerics.straight_through(end, nearest_power(jax.lax.stop_gradient(end)))
        for end in numerics.keep_ordered(least, most, 2.0)
    )
    return least, most


SHARES = (0.5, 0.75, 0.875, 1.0)
"""The published schedule: how much of a layer is quantized, step by step."""


@core.register_setting
class Incremental(numerics.BaseQuantizer):
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

    bits: Annotated[numerics.Bits, core.Width(2, 8)] = core.static_number()
    fraction: Annotated[Float[Array, ""] | float, core.Number(0, 1)] = 1.0
    top: Annotated[Float[Array, ""] | float | None, core.Number()] = None

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the weights, the largest of them quantized.

        Raises:
            ValueError: It is an activation, whose gradient would vanish.
        """
        fixed = jax.lax.stop_gradient(x)
        started = self.start(fixed, tensor)
        tensor.fitted("Incremental.top", started.top, x)
        done = largest_mask(jnp.abs(fixed), started.fraction)
        # Values are constants: the other weights alone are trained on (eq. 8).
        return jnp.where(done, started.values(fixed), x)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Incremental":
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
        return jax.lax.stop_gradient(
            nearest_powers(x, top, numerics.power_of_two(self.bits, x.dtype) / 4)
        )

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts codes and 8 bits for the exponent, once all weights are quantized."""
        return super().storage(shape, tensor) + 8


@core.validate(every=core.static_integer())
def share_schedule(every: int, fractions: Sequence[float] = SHARES) -> optax.Schedule:
    """Makes a schedule with a constant number of updates between two shares.

    Args:
        every: Updates between two shares.
        fractions: Shares of the weights, the first from the start on.

    Raises:
        ValueError: `every` is no positive integer, or a share not in [0, 1].
    """
    for fraction in fractions:
        core.check_number("fractions", fraction, 0, 1)
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


@core.validate(
    method=core.instance_of(Incremental), schedule=core.function_of_form("schedule(step)")
)
def incremental_quantization(
    method: Incremental, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Moves weights to powers of two by a schedule, and holds them there.

    The weights of a layer are divided by magnitude: the largest are quantized and keep their
    values, the others stay floating-point and make up for the error; then more are quantized, until
    all are. With b bits the values are {0} and ±2^k for n2 <= k <= n1, n1 = floor(log2(4/3 max|w|))
    and n2 = n1 + 1 - 2^(b-2) (Zhou et al., eq. 1 to 4).

    `Incremental` quantizes the largest weights of an array as it is now; which these are may change
    as the others grow. `incremental_quantization` keeps them, as the paper does (eq. 8): it moves
    weights to their values as their turn comes and holds them there, whatever the optimizer.

    Sharp edges:
        `incremental_quantization` must come last, after the learning rate.
        Weights of equal magnitude become values together, so a part may be larger than asked for.
        A share is of the weights of one array.

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
