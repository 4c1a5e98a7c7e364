"""`posterior_bits`: the bits that a posterior's uncertainty justifies.

Moving the mean of a weight N(mu, sigma^2) by e changes its distribution by

    KL(N(mu + e, sigma^2) || N(mu, sigma^2)) = e^2 / (2 sigma^2)

and rounding to a grid of step d, which makes e uniform in +-d/2, by d^2 / (24 sigma^2) on average.
So an allowance in nats per weight gives the step,

    d = sqrt(24 nats / mean(1 / sigma^2)),

the mean over the weights that share it: d = sigma where all are alike and at the default of 1/24.
The largest |mu| / d then says how many codes there have to be: bits are the logarithm of the
signal-to-noise ratio. Weights that are as likely zero as anything need none.

```python
import jax
import jaxeff
from jaxeff.compression import posterior_bits, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 1e-4 + 0.01 * w**2), params)
found = posterior_bits(posterior, per="channel")
print(found)                                        # bits by parameter, and the size
logits = jaxeff.moments(f)(found.posterior, x)
logits = quantized(f, found.spec(f, x))(params, x)  # the weights of layers by LSQ with these steps
```

Sharp edges:
    Steps are those of means; the variances that go with a posterior aren't rounded or counted.
    With a prior that is too wide variances are too small, and bits too many.

References:
    Louizos et al., "Bayesian Compression for Deep Learning", arXiv:1705.08665: precision from the
    posterior's variances. Hinton and van Camp, "Keeping the neural networks simple by minimizing
    the description length of the weights" (1993): weights are as precise as their noise allows.
    Blundell et al., "Weight Uncertainty in Neural Networks", arXiv:1505.05424: weights of a low
    |mu| / sigma are removed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.compression.numerics import MAX_BITS, LayerQuantization, kept_axes
from jaxeff.compression.quantizers.uniform._lsq import LSQ
from jaxeff.core import (
    Table,
    check_choice,
    check_number,
    non_negative,
    positive,
    posterior_like,
    shown_as_table,
    validate,
)
from jaxeff.moment_propagation import Gaussian, check_gaussian, is_gaussian
from jaxeff.program import trace


@shown_as_table
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

    def spec(self, f: Callable[..., Any], *args: Any) -> dict[str, LayerQuantization]:
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
        found: dict[str, LayerQuantization] = {}
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
            given: Any = int(width) if np.ndim(bits) == 0 else jnp.asarray(width, step.dtype)
            # No bits: a step so large that all of the weight rounds to zero.
            step = jnp.where(jnp.asarray(bits) == 0, 1e3 * (step + 1), step)
            found[layer.site] = LayerQuantization(LSQ(given, step, signed=True, scaled=False))
        return found

    def _table(self) -> Table:
        rows = [
            (path, f"{bits.mean():.2f}", f"{self.sizes[path] / 8:,.0f}")
            for path, bits in self.bits.items()
        ]
        caption = f"posterior_bits: {self.size / 8:,.0f} bytes"
        return Table(("parameter", "bits", "bytes"), rows, caption=caption)


@validate(posterior=posterior_like, nats=positive, threshold=non_negative)
def posterior_bits(
    posterior: Any, nats: float = 1 / 24, per: str = "tensor", threshold: float = 0.0
) -> PosteriorBits:
    """Quantizes a Gaussian posterior as coarsely as its variances allow.

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
    """
    check_number("posterior_bits: nats", nats, above=0)
    check_number("posterior_bits: threshold", threshold, 0)
    check_choice("posterior_bits: per", per, ("tensor", "channel", "weight"))
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
    mean, var = np.asarray(leaf.mean, np.float64), np.asarray(leaf.var, np.float64)
    if not (var > 0).all():
        raise ValueError(
            f"posterior_bits: {int((var <= 0).sum())} of {var.size} variances of {path} are zero, "
            "so no rounding is allowed; make them parameters that aren't random, or quantize them "
            "by another method."
        )
    # Signal-to-noise pruning (Blundell et al.): even the sign of these weights is uncertain.
    removed = np.abs(mean) < threshold * np.sqrt(var)
    mean, var = np.where(removed, 0, mean), np.where(removed, 0, var)
    keep = {"tensor": (), "channel": (-1,), "weight": tuple(range(mean.ndim))}[per]
    # A vector has no channels: all of it shares a step.
    axes, shape = kept_axes(leaf.mean, keep if mean.ndim > 1 or per == "weight" else ())
    # Original variances: those of removed weights are zero by now.
    precision = np.asarray(leaf.var, np.float64) ** -1
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
