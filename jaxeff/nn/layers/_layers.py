"""Layers that Flax lacks: activations by name, splines, residual blocks, pooling.

```python
import jax.numpy as jnp

from jaxeff.nn import activation

assert activation("Hardshrink")(jnp.array([-2.0, 0.4, 1.0])).tolist() == [-2.0, 0.0, 1.0]
f = lambda params, x: activation("Softplus")(x @ params)     # chosen by a setting, for example
```
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen, nnx
from jaxtyping import Array, Float

from jaxeff.core import string, validate

Activation = Callable[[jax.Array], jax.Array]

PRELU_START = 0.25
RRELU_SLOPE = (1 / 8 + 1 / 3) / 2


def prelu(x: Float[Array, "*n"], slope: Float[Array, ""] | float = PRELU_START) -> Array:
    """Computes ReLU with a given slope below zero (He et al. 2015, arXiv 1502.01852)."""
    return jnp.where(x >= 0, x, slope * x)


def softshrink(x: Array, threshold: float = 0.5) -> Array:
    """Computes soft shrinkage, `sign(x) max(|x| - threshold, 0)`."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


def hardshrink(x: Array, threshold: float = 0.5) -> Array:
    """Computes hard shrinkage, x where |x| > threshold, else 0."""
    return jnp.where(jnp.abs(x) > threshold, x, 0)


def tanhshrink(x: Array) -> Array:
    """Computes tanh shrinkage, x - tanh(x)."""
    return x - jnp.tanh(x)


def gelu_exact(x: Array) -> Array:
    """Computes GELU without the tanh approximation, x Phi(x)."""
    # PyTorch's default; JAX's is the approximation.
    return jax.nn.gelu(x, approximate=False)


def softmin(x: Float[Array, "*n features"]) -> Array:
    """Computes the softmax of ``-x`` over the last axis."""
    return jax.nn.softmax(-x)


def _leaky(slope: float) -> Activation:
    return lambda x: jax.nn.leaky_relu(x, slope)


ACTIVATIONS: dict[str, Activation] = {
    "Cosine": jnp.cos,
    "Sine": jnp.sin,
    "Softshrink": softshrink,
    "Hardtanh": jax.nn.hard_tanh,
    "PReLU": prelu,
    "Tanh": jnp.tanh,
    "Hardswish": jax.nn.hard_swish,
    "Hardsigmoid": jax.nn.hard_sigmoid,
    "Softsign": jax.nn.soft_sign,
    "LeakyReLU": _leaky(0.01),
    "Mish": jax.nn.mish,
    "SELU": jax.nn.selu,
    "GELU": gelu_exact,
    "LogSigmoid": jax.nn.log_sigmoid,
    "LeakyReLU0.5": _leaky(0.5),
    "ReLU": jax.nn.relu,
    "Sigmoid": jax.nn.sigmoid,
    "Softplus": jax.nn.softplus,
    "ELU": jax.nn.elu,
    "CELU": jax.nn.celu,
    "SiLU": jax.nn.silu,
    "RReLU": _leaky(RRELU_SLOPE),
    "LogSoftmax": jax.nn.log_softmax,
    "Tanhshrink": tanhshrink,
    "Softmin": softmin,
    "Softmax": jax.nn.softmax,
    "Hardshrink": hardshrink,
}
"""In the order of Klein's thesis, table 7.1: by falling AUROC on the noisy sine."""


@validate(name=string)
def activation(name: str) -> Activation:
    """Finds an activation function.

    `activation(name)` has the functions that Klein's thesis compares in Bayesian networks (table
    7.1). Names and default parameters are PyTorch's, so that rows of tables match. Sharp edges:

    - ``Softmax``, ``Softmin`` and ``LogSoftmax`` act over the last axis, so a unit's output depends
      on the other units of its layer. All others are elementwise.
    - ``PReLU`` has a slope to be learned or inferred: call `prelu` with it. Without one, it is
      where PyTorch starts (0.25).
    - ``RReLU`` here is its evaluation form: the mean slope of PyTorch's U(1/8, 1/3). In training,
      PyTorch draws a slope per element and call, which is not a function of its input, and a
      likelihood made of it is not a fixed density.

    Raises:
        ValueError: There is none of this name; the message lists them.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def avg_pool(
    x: Float[Array, "... height width channels"], window: tuple[int, ...], strides: tuple[int, ...]
) -> Float[Array, "... rows columns channels"]:
    """Averages each window, without padding; as `flax.nnx.avg_pool`.

    `avg_pool` promotes no dtypes: Flax's divides by a NumPy integer, which
    `jax_numpy_dtype_promotion="strict"` refuses.

    Args:
      x: Images, channels last.
      window: The height and width.
      strides: Steps between windows.
    """
    # A Python integer is weakly typed: the quotient keeps the dtype of the images.
    return linen.pool(x, 0.0, jax.lax.add, window, strides, "VALID") / math.prod(window)


class Block(nnx.Module):
    """Two 3×3 convolutions and the shortcut around them (``shortcut`` where shapes change)."""

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        batch_norm: bool = True,
        *,
        blocks: int = 8,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          channels: Channels of the input.
          width: Channels of the output.
          stride: Stride of the first convolution and of the shortcut.
          batch_norm: Whether every convolution is normalized; if so, it has no bias.
          blocks: Blocks of the network that this is one of.
          rngs: Keys for the initial parameters.
        """
        self.batch_norm = batch_norm
        self.conv1 = conv(channels, width, 3, stride, batch_norm, rngs=rngs)
        # Unnormalized residual branches add up over the blocks: they start smaller.
        gain = 2.0 if batch_norm else 2.0 / blocks
        self.conv2 = conv(width, width, 3, 1, batch_norm, gain=gain, rngs=rngs)
        self.project = stride != 1 or channels != width
        # Strides and widths change the shape of the sum, so the shortcut has to follow it. No ReLU
        # comes after it alone, hence the gain of 1.
        if self.project:
            self.shortcut = conv(channels, width, 1, stride, batch_norm, gain=1.0, rngs=rngs)
        if batch_norm:
            self.bn1 = bn(width, rngs=rngs)
            self.bn2 = bn(width, rngs=rngs)
            if self.project:
                self.bn_shortcut = bn(width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output, after its last ReLU."""
        y = self.conv1(x)
        y = jax.nn.relu(self.bn1(y) if self.batch_norm else y)
        y = self.conv2(y)
        y = self.bn2(y) if self.batch_norm else y
        if self.project:
            x = self.shortcut(x)
            x = self.bn_shortcut(x) if self.batch_norm else x
        return jax.nn.relu(x + y)


def conv(
    channels: int,
    width: int,
    kernel: int,
    stride: int,
    batch_norm: bool,
    *,
    gain: float = 2.0,
    rngs: nnx.Rngs,
) -> nnx.Conv:
    """Makes a convolution initialized as by He et al. (arXiv 1502.01852) with ``gain`` 2."""
    return nnx.Conv(
        channels,
        width,
        (kernel, kernel),
        strides=stride,
        # Symmetric, as the original pads: "SAME" pads strided convolutions more at the end.
        padding=kernel // 2,
        # Batch norm subtracts the mean, so a bias before it has no effect.
        use_bias=not batch_norm,
        # Keeps the variance under ReLU: n Var(w) / 2 = 1, He et al., eq. 10.
        kernel_init=nnx.initializers.variance_scaling(gain, "fan_in", "truncated_normal"),
        rngs=rngs,
    )


def bn(width: int, *, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Makes a batch norm with the momentum that ResNets have for running statistics."""
    return nnx.BatchNorm(width, momentum=0.9, epsilon=1e-5, rngs=rngs)


def cubic_basis(
    x: Float[Array, "*n"], intervals: int, limits: tuple[float, float]
) -> Float[Array, "*n basis"]:
    """Evaluates the cubic B-splines on evenly spaced knots, at ``x``.

    Args:
        x: Points at which to evaluate the splines.
        intervals: Number of knot intervals between the limits.
        limits: First and last knot.

    Returns:
        ``intervals + 3`` values per input, centred at the knots and one spacing beyond both ends.
        Between the limits they are at least 0 and add up to 1.
    """
    low, high = limits
    spacing = (high - low) / intervals
    centres = jnp.arange(-1, intervals + 2, dtype=x.dtype)
    centres = centres.reshape((1,) * x.ndim + (-1,))
    distance = jnp.abs((x[..., None] - low) / spacing - centres)
    # The cardinal cubic B-spline by truncated powers of the distance from its centre. Only four of
    # them are not zero at a point, but all are evaluated: no gather, and gradients throughout.
    return (jax.nn.relu(2 - distance) ** 3 - 4 * jax.nn.relu(1 - distance) ** 3) / 6


class SplineActivation(nnx.Module):
    """A learned function of one variable, the same for all units or one for each.

    A residual `Block` has two 3×3 convolutions (arXiv 1512.03385), as ResNet-8 and ResNet-18 have
    them. `SplineActivation` is a learned activation function, a cubic B-spline on top of SiLU: the
    edge function of Kolmogorov-Arnold networks (Liu et al. 2024, arXiv 2404.19756), used as an
    activation of a dense layer: ``base * silu(x) + sum_i coefficients_i B_i(x)``. Base and
    coefficients are plain parameters, so they are trained, inferred by SVI or MCMC, or held, as any
    weights are.

    Sharp edges:
        A spline covers ``limits`` only. Three knot spacings beyond them the last one has ended, and
        the function is ``base * silu(x)``.
    """

    def __init__(
        self,
        features: int | None = None,
        intervals: int = 8,
        limits: tuple[float, float] = (-4.0, 4.0),
        scale: float = 0.1,
        *,
        rngs: nnx.Rngs,
    ):
        """Initializes the function near SiLU.

        Args:
          features: Number of units of the layer for a function each; None for one that all share.
          intervals: Knot intervals between the limits.
          limits: Range of inputs that the spline covers.
          scale: Standard deviation of the initial coefficients.
          rngs: Keys for the initial coefficients.

        Raises:
          ValueError: Limits out of order, or no interval.
        """
        if not limits[0] < limits[1] or intervals < 1:
            raise ValueError(
                "SplineActivation needs rising limits and an interval or more, not "
                f"{limits} and {intervals}."
            )
        self.intervals, self.limits = intervals, limits
        units = () if features is None else (features,)
        # Splines of order 3 on n intervals: n + 3 of them are not zero somewhere in between.
        draw = jax.random.normal(rngs.params(), (intervals + 3, *units))
        self.base = nnx.Param(jnp.ones(units))
        self.coefficients = nnx.Param(scale * draw)

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """Applies the function to every element."""
        basis = cubic_basis(x, self.intervals, self.limits)
        coefficients = jnp.moveaxis(self.coefficients[...], 0, -1)
        # The last axis counts splines, the one before it units, if each has a function of its own.
        coefficients = jax.lax.broadcast_to_rank(coefficients, basis.ndim)
        base = jax.lax.broadcast_to_rank(self.base[...], x.ndim)
        return base * jax.nn.silu(x) + (basis * coefficients).sum(-1)
