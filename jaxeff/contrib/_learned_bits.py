"""Bit widths that follow from probabilities: `BayesianBits` and `PosteriorBits`.

The gates of `BayesianBits` are hard concrete variables, as those of pruning (`pruning.gates`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.compression.numerics import MAX_BITS
from jaxeff.compression.quantizers import LSQ
from jaxeff.moment_propagation import Gaussian, check_gaussian, is_gaussian
from jaxeff.program import trace
from jaxeff.pruning.gates import hard_concrete, open_probability

WIDTHS = (2, 4, 8, 16, 32)
_CLOSED = 0.34


@core.register_setting
class BayesianBits(numerics.BaseQuantizer):
    """Learned widths of 2, 4, 8, 16 or 32 bits: `BayesianBits(price=0.01)`; needs a key.

    With x clipped to [low, beta], low = -beta or 0, s_2 = (beta - low) / 3 and s_b = s_(b/2) /
    (2^(b/2) + 1), the two-bit value is x_2 = s_2 round(x / s_2), every doubling adds what is left,
    eps_b = s_b round((x - x_(b/2)) / s_b), and gates decide what counts (van Baalen et al., section
    2.1):

        z_2 (x_2 + z_4 (eps_4 + z_8 (eps_8 + z_16 (eps_16 + z_32 eps_32))))

    Rounding passes gradients through. A gate is a hard concrete variable of location phi: with u
    uniform, z = clip(1.2 sigmoid((log(u / (1 - u)) + phi) / tau) - .1, 0, 1), tau = 2/3, which
    isn't zero with probability q = sigmoid(phi - tau log(.1 / 1.1)). The penalty is the chance of
    every gate to be open, with those before it, weighted by its bits (section 2.2 and the
    experiments' weights):

        price * sum_b b prod_(c <= b) q_c

    For bit operations give each layer a price in proportion to its multiply-accumulates. Where
    `hard`, gates with 1 - q < .34 are open and the others closed, as at test time; the
    value is then that of one grid of the width that follows: 0 (pruned), 2, 4, 8, 16 or 32 bits.

    Sharp edges:
        A grid with a sign has an odd number of values, three at two bits.
        32 bits are those of the arithmetic: a float32 returns but for rounding.

    Attributes:
        price: Price of a bit in the penalty. A plain number isn't learnt.
        pruned: Part of a weight that a gate z_2 removes: an output "channel", the whole "tensor",
            or "nothing". Activations have no such gate.
        maximum: beta, where values are clipped; positive. Open: the largest magnitude.
        gates: phi of the gates of 4, 8, 16 and 32 bits, ``[4]``. Open: 6, nearly always open.
        kept: phi of z_2, one for each channel. Open: 6.
        signed: Whether there are values below zero. Open: for weights there are, for activations if
            one is negative.
        hard: Whether gates are open or closed instead of drawn; needs no key.

    Raises:
        TypeError, ValueError: A number is out of bounds, a choice is unknown, or there are other
            than four gates.

    References:
        van Baalen et al., "Bayesian Bits: Unifying Quantization and Pruning", arXiv:2005.07093.
        Louizos et al., "Learning Sparse Neural Networks through L0 Regularization",
        arXiv:1712.01312 (hard concrete).
    """

    price: Annotated[Float[Array, "..."] | float, core.Number(0)] = core.static_number(0.0)
    pruned: Annotated[str, core.Choice("nothing", "channel", "tensor")] = core.static("nothing")
    maximum: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    gates: Annotated[Float[Array, "4"] | None, core.Number()] = None
    kept: Annotated[Float[Array, "..."] | float | None, core.Number()] = None
    signed: bool | Array | None = core.static_number(None)
    hard: bool = core.static(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gates is not None and np.shape(self.gates)[-1:] != (len(WIDTHS) - 1,):
            raise ValueError(
                f"BayesianBits.gates has shape {np.shape(self.gates)}, but there are four gates: "
                "of 4, 8, 16 and 32 bits."
            )

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Sums the two-bit value and the residuals whose gates are open."""
        started = self.start(jax.lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
        beta = tensor.fitted("BayesianBits.maximum", started.maximum, value)
        # The smallest step, of 32 bits, is about 2^-32 beta: it has to be a normal number too.
        beta = numerics.keep_positive(beta, 2.0**40)
        signed = jnp.asarray(started.signed)
        low = jnp.where(signed, -beta, jnp.zeros_like(beta))
        # Short of the ends, which lie half a step beyond the outermost values (the paper's 1e-7).
        inner = 1 - 2 * jnp.finfo(beta.dtype).eps
        clipped = jnp.clip(value, low * inner, beta * inner)
        if self.hard:
            y = started._on_grid(clipped, beta - low) * started._mask(value, tensor)
        else:
            y = started._gated(clipped, beta - low, value, tensor)
        return y.astype(x.dtype)

    def deterministic(self) -> "BayesianBits":
        """Returns the same with gates that are open or closed."""
        return replace(self, hard=True)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "BayesianBits":
        """Computes open range, sign and gates from an array."""
        signed, maximum, gates, kept = self.signed, self.maximum, self.gates, self.kept
        prunes = self.pruned != "nothing" and tensor.role == "weight"
        known = signed is not None and maximum is not None and gates is not None
        if known and (kept is not None or not prunes):
            return self
        if signed is None:
            signed = numerics.infer_sign(x, tensor)
        if maximum is None:
            maximum = numerics.start_scale(x, tensor, "tensor")
        if gates is None:
            # q = sigmoid(6 + 1.6): open with a probability of 0.9995.
            gates = jnp.full(len(WIDTHS) - 1, 6.0, numerics.wide_dtype(x))
        if kept is None and prunes:
            shape = numerics.kept_axes(x, tensor.axes(self.pruned))[1]
            kept = jnp.full(shape, 6.0, numerics.wide_dtype(x))
        return replace(self, signed=signed, maximum=maximum, gates=gates, kept=kept)

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
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

    def penalty(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> Any:
        """Computes the price of the bits whose gates are expected to be open."""
        started = self.start(jax.lax.stop_gradient(x), tensor)
        gates = jnp.asarray(started.gates)
        # A residual counts only if all gates before it are open: independent gates, so
        # probabilities multiply.
        open_ = jnp.cumprod(jnp.concatenate([jnp.ones(1, gates.dtype), open_probability(gates)]))
        bits = jnp.sum(open_ * jnp.asarray(WIDTHS, gates.dtype))
        if started.kept is not None and self.pruned != "nothing":
            bits = bits * jnp.mean(open_probability(jnp.asarray(started.kept, gates.dtype)))
        return jnp.asarray(self.price, gates.dtype) * bits

    def _gated(self, x: Array, span: Array, value: Array, tensor: numerics.Tensor) -> Array:
        key = tensor.random("BayesianBits")
        of_bits, of_channels = jax.random.split(key)
        z = hard_concrete(of_bits, jnp.asarray(self.gates, x.dtype))
        step = span * (1 / 3)
        parts = [numerics.round_through(x / step) * step]
        total = parts[0]
        for bits in WIDTHS[1:]:
            # s_b = s_(b/2) / (2^(b/2) + 1): each step halves exactly into the grid of twice
            # the bits.
            step = step * (1 / (2.0 ** (bits // 2) + 1))
            parts.append(numerics.round_through((x - total) / step) * step)
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
        return numerics.round_through(x / step) * step

    def _mask(self, x: Array, tensor: numerics.Tensor) -> Array:
        if self.kept is None or self.pruned == "nothing":
            return jnp.ones((), x.dtype)
        return _is_open(tensor.fitted("BayesianBits.kept", self.kept, x))


def _is_open(phi: Any) -> Any:
    """Marks gates that are open at test time by one, others by zero."""
    phi = jnp.asarray(phi)
    return (1 - open_probability(phi) < _CLOSED).astype(phi.dtype)


@core.shown_as_table
@dataclass(frozen=True)
class PosteriorBits:
    """A posterior whose means lie on grids.

    Attributes:
        posterior: The posterior with its means rounded, leaf by leaf `Gaussian` as it was.
        bits: Mapping from path of a random parameter to the bits of its codes: an array that
            broadcasts against it, of whole numbers; zero where nothing is left.
        steps: Mapping from path to the steps of its grid, likewise.
        sizes: Mapping from path to the bits that its codes and steps take.
    """

    posterior: Any
    bits: Mapping[str, np.ndarray]
    steps: Mapping[str, np.ndarray]
    sizes: Mapping[str, float]

    @property
    def size(self) -> float:
        """Bits of all random parameters together."""
        return sum(self.sizes.values())

    def spec(self, f: Callable[..., Any], *args: Any) -> dict[str, numerics.LayerQuantization]:
        """Converts these grids to methods for `jaxeff.quantized`.

        Args:
            f: A pure function `f(params, *args)` of the posterior's parameters.
            *args: Further arguments of `f`; shapes are enough.

        Returns:
            `LSQ` for the weights of each layer that multiplies by a random parameter. A parameter
            of no bits gets one bit and a step at which all of it is zero.

        Raises:
            ValueError: A parameter with several steps reaches its layer in another shape.
        """
        means = jax.tree.map(
            lambda v: v.mean if is_gaussian(v) else v, self.posterior, is_leaf=is_gaussian
        )
        program = trace(f, means, *args)
        settings: dict[str, numerics.LayerQuantization] = {}
        for layer in program.sites:
            read = [layer.inputs[i] for i in layer.weights if layer.inputs[i].path in self.bits]
            if not read or layer.kind not in {"linear", "matmul"}:
                continue
            (path, shape) = read[0].path, read[0].aval.shape
            bits, step = self.bits[path], jnp.asarray(self.steps[path])
            if bits.ndim and jnp.broadcast_shapes(bits.shape, shape) != shape:
                raise ValueError(
                    f"posterior_bits: {path} reaches {layer.site!r} in another shape, so its steps "
                    'have no place there; take per="tensor".'
                )
            width = np.maximum(bits, 1)
            bits_of_site: Any = int(width) if np.ndim(bits) == 0 else jnp.asarray(width, step.dtype)
            # No bits: a step so large that all of the weight rounds to zero.
            step = jnp.where(jnp.asarray(bits) == 0, 1e3 * (step + 1), step)
            settings[layer.site] = numerics.LayerQuantization(
                LSQ(bits_of_site, step, signed=True, scaled=False)
            )
        return settings

    def _table(self) -> core.Table:
        rows = [
            (path, f"{bits.mean():.2f}", f"{self.sizes[path] / 8:,.0f}")
            for path, bits in self.bits.items()
        ]
        caption = f"posterior_bits: {self.size / 8:,.0f} bytes"
        return core.Table(("parameter", "bits", "bytes"), rows, caption=caption)


@core.validate(posterior=core.posterior_like, nats=core.positive, threshold=core.non_negative)
def posterior_bits(
    posterior: Any, nats: float = 1 / 24, per: str = "tensor", threshold: float = 0.0
) -> PosteriorBits:
    """Quantizes a Gaussian posterior as coarsely as its variances allow.

    Moving the mean of a weight N(mu, sigma^2) by e changes its distribution by

        KL(N(mu + e, sigma^2) || N(mu, sigma^2)) = e^2 / (2 sigma^2)

    and rounding to a grid of step d, which makes e uniform in +-d/2, by d^2 / (24 sigma^2) on
    average. So an allowance in nats per weight gives the step,

        d = sqrt(24 nats / mean(1 / sigma^2)),

    the mean over the weights that share it: d = sigma where all are alike and at the default of
    1/24. The largest |mu| / d then says how many codes there have to be: bits are the logarithm of
    the signal-to-noise ratio. Weights that are as likely zero as anything need none.

    ```python
    import jax
    import jaxeff
    from jaxeff.compression import quantized
    from jaxeff.contrib import posterior_bits
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 1e-4 + 0.01 * w**2), params)
    found = posterior_bits(posterior, per="channel")
    print(found)                                        # bits by parameter, and the size
    logits = jaxeff.moments(f)(found.posterior, x)
    logits = quantized(f, found.spec(f, x))(params, x)  # weights of layers by LSQ with these steps
    ```

    Sharp edges:
        Steps are those of means; the variances that go with a posterior aren't rounded or counted.
        With a prior that is too wide variances are too small, and bits too many.

    Args:
        posterior: A pytree of parameters with `Gaussian` leaves, which may not be traced; of other
            posteriors `jaxeff.bayes.to_gaussians`.
        nats: Allowed change of a weight's distribution by rounding, on average.
        per: Part with its own step: the "tensor"; the "channel", its last axis, in which Flax
            keeps the outputs of a kernel; or the "weight", whose step then follows from its own
            variance and isn't counted.
        threshold: Weights with |mean| / std below are removed: zero for sure.

    Returns:
        The quantized posterior, its bits, steps and size.

    Raises:
        TypeError: A number is of another kind, or a leaf is traced.
        ValueError: Nothing is random, a variance is zero or NaN, a number is out of bounds, or a
            mean needs more than 16 bits.

    References:
        Louizos et al., "Bayesian Compression for Deep Learning", arXiv:1705.08665: precision from
        the posterior's variances. Hinton and van Camp, "Keeping the neural networks simple by
        minimizing the description length of the weights" (1993): weights are as precise as their
        noise allows. Blundell et al., "Weight Uncertainty in Neural Networks", arXiv:1505.05424:
        weights of a low |mu| / sigma are removed.
    """
    core.check_choice("posterior_bits: per", per, ("tensor", "channel", "weight"))
    leaves, structure = jax.tree_util.tree_flatten_with_path(posterior, is_leaf=is_gaussian)
    bits: dict[str, np.ndarray] = {}
    steps: dict[str, np.ndarray] = {}
    sizes: dict[str, float] = {}
    rounded: list[Any] = []
    for keys, leaf in leaves:
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        if is_gaussian(leaf):
            check_gaussian(leaf, path)
            leaf, bits[path], steps[path] = _rounded(leaf, path, nats, per, threshold)
            shared = leaf.mean.size // bits[path].size
            stored = 0 if per == "weight" else 32 * bits[path].size
            sizes[path] = float(shared * bits[path].sum() + stored)
        rounded.append(leaf)
    if not bits:
        raise ValueError("posterior_bits: no leaf is a Gaussian, so nothing says what may be lost.")
    return PosteriorBits(jax.tree.unflatten(structure, rounded), bits, steps, sizes)


def _rounded(
    leaf: Gaussian, path: str, nats: float, per: str, threshold: float
) -> tuple[Gaussian, np.ndarray, np.ndarray]:
    if isinstance(leaf.mean, jax.core.Tracer) or isinstance(leaf.var, jax.core.Tracer):
        raise TypeError(
            f"posterior_bits: {path} is traced, but how many bits there are has to be known; call "
            "it outside of jit and vmap."
        )
    mean = np.asarray(leaf.mean, np.float64)
    var = np.broadcast_to(np.asarray(leaf.var, np.float64), mean.shape)
    if not (var > 0).all():
        raise ValueError(
            f"posterior_bits: {int((var <= 0).sum())} of {var.size} variances of {path} are zero, "
            "so no rounding is allowed; make them parameters that aren't random, or quantize them "
            "by another method."
        )
    # Of the original variances: those of removed weights are zero below.
    precision = var**-1
    # Signal-to-noise pruning (Blundell et al.): even the sign of these weights is uncertain.
    removed = np.abs(mean) < threshold * np.sqrt(var)
    mean, var = np.where(removed, 0, mean), np.where(removed, 0, var)
    keep = {"tensor": (), "channel": (-1,), "weight": tuple(range(mean.ndim))}[per]
    # A vector has no channels: all of it shares a step.
    axes, shape = numerics.kept_axes(leaf.mean, keep if mean.ndim > 1 or per == "weight" else ())
    # The mean KL of rounding, d^2 mean(1 / sigma^2) / 24, solved for d.
    step = np.sqrt(24 * nats / precision.mean(axes).reshape(shape))
    # Rounded before codes are made: means then lie on the very grid that is returned.
    step = step.astype(np.dtype(leaf.dtype) if np.dtype(leaf.dtype).itemsize > 3 else np.float32)
    codes = np.rint(mean / step)
    largest = np.abs(codes).max(axes).reshape(shape)
    # Codes from -largest to largest: log2(largest + 1) bits, and one for the sign.
    bits = np.where(largest > 0, np.ceil(np.log2(largest + 1)) + 1, 0)
    if (bits > MAX_BITS).any():
        raise ValueError(
            f"posterior_bits: {path} needs {int(bits.max())} bits, but codes have {MAX_BITS} at "
            f'most; allow more nats than {nats:g}, or take per="channel".'
        )
    dtype = leaf.dtype
    grid = Gaussian(jnp.asarray(codes * step, dtype), jnp.asarray(var, dtype))
    return grid, bits, step
