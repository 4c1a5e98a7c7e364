"""`BayesianBits`: bits are doubled through gates that are learnt; none at all is pruning.

With x clipped to [low, beta], low = -beta or 0, s_2 = (beta - low) / 3 and s_b = s_(b/2) /
(2^(b/2) + 1), the two-bit value is x_2 = s_2 round(x / s_2), every doubling adds what is left,
eps_b = s_b round((x - x_(b/2)) / s_b), and gates decide what counts (van Baalen et al., section
2.1):

    z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + z_16 (eps_16 + z_32 eps_32))))

Rounding passes gradients through. A gate is a hard concrete variable of location phi: with u
uniform, z = clip(1.2 sigmoid((log(u / (1 - u)) + phi) / tau) - .1, 0, 1), tau = 2/3, which isn't
zero with probability q = sigmoid(phi - tau log(.1 / 1.1)). The penalty is the chance of every gate
to be open, with those before it, weighted by its bits (section 2.2 and the experiments' weights):

    price * sum_b b prod_(c <= b) q_c

For bit operations give each layer a price in proportion to its multiply-accumulates. Where
`deterministic`, gates with 1 - q < .34 are open and the others closed, as at test time; the value
is then that of one grid of the width that follows: 0 (pruned), 2, 4, 8, 16 or 32 bits.

Sharp edges:
    A grid with a sign has an odd number of values, three at two bits.
    32 bits are those of the arithmetic: a float32 returns but for rounding.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    BaseQuantizer,
    Tensor,
    at_least_float32,
    infer_sign,
    keep_positive,
    kept_axes,
    round_through,
    start_scale,
    wide_dtype,
)
from jaxeff.compression.quantizers.uniform._hard_concrete import hard_concrete, open_probability
from jaxeff.core import Choice, Number, register_setting, static, static_number

WIDTHS = (2, 4, 8, 16, 32)
_CLOSED = 0.34


@register_setting
@dataclass(frozen=True)
class BayesianBits(BaseQuantizer):
    """Learned widths of 2, 4, 8, 16 or 32 bits: `BayesianBits(price=0.01)`; needs a key.

    Attributes:
        price: Price of a bit in the penalty. A plain number isn't learnt.
        pruned: Part of a weight that a gate z_2 removes: an output "channel", the whole "tensor",
            or "nothing". Activations have no such gate.
        maximum: beta, where values are clipped; positive. Open: the largest magnitude.
        gates: phi of the gates of 4, 8, 16 and 32 bits, ``[4]``. Open: 6, nearly always open.
        kept: phi of z_2, one for each channel. Open: 6.
        signed: Whether there are values below zero. Open: for weights there are, for activations if
            one is negative.
        deterministic: Whether gates are open or closed instead of drawn; needs no key.

    Raises:
        TypeError, ValueError: A number is out of bounds, a choice is unknown, or there are other
            than four gates.

    References:
        van Baalen et al., "Bayesian Bits: Unifying Quantization and Pruning", arXiv:2005.07093.
        Louizos et al., "Learning Sparse Neural Networks through L0 Regularization",
        arXiv:1712.01312 (hard concrete).
    """

    price: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(0.0)
    pruned: Annotated[str, Choice("nothing", "channel", "tensor")] = static("nothing")
    maximum: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    gates: Annotated[Float[Array, "4"] | None, Number()] = None
    kept: Annotated[Float[Array, "..."] | float | None, Number()] = None
    signed: bool | Array | None = static_number(None)
    hard: bool = static(False)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.gates is not None and np.shape(self.gates)[-1:] != (len(WIDTHS) - 1,):
            raise ValueError(
                f"BayesianBits.gates has shape {np.shape(self.gates)}, but there are four gates: "
                "of 4, 8, 16 and 32 bits."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Sums the two-bit value and the residuals whose gates are open."""
        own = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        beta = tensor.fitted("BayesianBits.maximum", own.maximum, value)
        # The smallest step, of 32 bits, is about 2^-32 beta: it has to be a normal number too.
        beta = keep_positive(beta, 2.0**40)
        signed = jnp.asarray(own.signed)
        low = jnp.where(signed, -beta, jnp.zeros_like(beta))
        # Short of the ends, which lie half a step beyond the outermost values (the paper's 1e-7).
        inner = 1 - 2 * jnp.finfo(beta.dtype).eps
        clipped = jnp.clip(value, low * inner, beta * inner)
        if self.hard:
            y = own._on_grid(clipped, beta - low) * own._mask(value, tensor)
        else:
            y = own._gated(clipped, beta - low, value, tensor)
        return y.astype(x.dtype)

    def deterministic(self) -> "BayesianBits":
        """Returns the same with gates that are open or closed."""
        return replace(self, hard=True)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "BayesianBits":
        """Computes open range, sign and gates from an array."""
        signed, maximum, gates, kept = self.signed, self.maximum, self.gates, self.kept
        prunes = self.pruned != "nothing" and tensor.role == "weight"
        known = signed is not None and maximum is not None and gates is not None
        if known and (kept is not None or not prunes):
            return self
        if signed is None:
            signed = infer_sign(x, tensor)
        if maximum is None:
            maximum = start_scale(x, tensor, "tensor")
        if gates is None:
            # q = sigmoid(6 + 1.6): open with a probability of 0.9995.
            gates = jnp.full(len(WIDTHS) - 1, 6.0, wide_dtype(x))
        if kept is None and prunes:
            shape = kept_axes(x, tensor.axes(self.pruned))[1]
            kept = jnp.full(shape, 6.0, wide_dtype(x))
        return replace(self, signed=signed, maximum=maximum, gates=gates, kept=kept)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes of what isn't pruned, the range, and a bit per channel that may be."""
        prunes = self.pruned != "nothing" and tensor.role == "weight"
        share: Any = _is_open(self.kept).mean() if prunes and self.kept is not None else 1
        masks = tensor.count(shape, self.pruned) if prunes else 0
        return math.prod(shape) * self.width * share + 32 + masks

    @property
    def width(self) -> Any:
        """Bits of a code once gates are open or closed; zero if all is pruned."""
        if self.gates is None:
            return WIDTHS[-1]
        doublings = jnp.cumprod(_is_open(self.gates), axis=-1).sum(-1)
        width = jnp.asarray(WIDTHS, doublings.dtype)[doublings.astype(jnp.int32)]
        if self.kept is not None and self.pruned != "nothing":
            width = width * _is_open(self.kept).max()
        return width

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Computes the price of the bits whose gates are expected to be open."""
        own = self.start(lax.stop_gradient(x), tensor)
        gates = jnp.asarray(own.gates)
        # A residual counts only if all gates before it are open: independent gates, so
        # probabilities multiply.
        open_ = jnp.cumprod(jnp.concatenate([jnp.ones(1, gates.dtype), open_probability(gates)]))
        bits = jnp.sum(open_ * jnp.asarray(WIDTHS, gates.dtype))
        if own.kept is not None and self.pruned != "nothing":
            bits = bits * jnp.mean(open_probability(jnp.asarray(own.kept, gates.dtype)))
        return jnp.asarray(self.price, gates.dtype) * bits

    def _gated(self, x: Array, span: Array, value: Array, tensor: Tensor) -> Array:
        key = tensor.random("BayesianBits")
        of_bits, of_channels = jax.random.split(key)
        z = hard_concrete(of_bits, jnp.asarray(self.gates, x.dtype))
        step = span * (1 / 3)
        parts = [round_through(x / step) * step]
        total = parts[0]
        for bits in WIDTHS[1:]:
            # s_b = s_(b/2) / (2^(b/2) + 1): each step halves exactly into the grid of twice
            # the bits.
            step = step * (1 / (2.0 ** (bits // 2) + 1))
            parts.append(round_through((x - total) / step) * step)
            total = total + parts[-1]
        y = parts[-1]
        # Nested from the inside: a closed gate of b bits closes all wider ones.
        for part, gate in zip(parts[-2::-1], z[::-1], strict=True):
            y = part + gate * y
        if self.kept is None or self.pruned == "nothing":
            return y
        kept = tensor.fitted("BayesianBits.kept", self.kept, value)
        return y * hard_concrete(of_channels, kept)

    def _on_grid(self, x: Array, span: Array) -> Array:
        """Rounds to the grid of the width that the gates open."""
        doublings = jnp.cumprod(_is_open(jnp.asarray(self.gates)), axis=-1).sum(-1)
        # 3 (2^2 + 1) (2^4 + 1) ... = 2^b - 1: residuals of open gates add up to one grid of b bits.
        shares = jnp.asarray([1 / (2.0**bits - 1) for bits in WIDTHS], x.dtype)
        step = span * shares[doublings.astype(jnp.int32)]
        return round_through(x / step) * step

    def _mask(self, x: Array, tensor: Tensor) -> Array:
        if self.kept is None or self.pruned == "nothing":
            return jnp.ones((), x.dtype)
        return _is_open(tensor.fitted("BayesianBits.kept", self.kept, x))


def _is_open(phi: Any) -> Any:
    """Marks gates that are open at test time by one, others by zero."""
    phi = jnp.asarray(phi)
    return (1 - open_probability(phi) < _CLOSED).astype(phi.dtype)
