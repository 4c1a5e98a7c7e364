"""Quantization errors of each site's arrays, and Lin's allocation of bits by these alone.

The signal-to-quantization-noise ratio of a site is E[x^2] / E[(Q(x) - x)^2], about `slope` decibels
per bit. Noise-to-signal ratios of the sites add up to that of the result (Lin et al., section 3),
so `noise_to_signal` is a sensitivity that `allocate_bits` takes.

Without measuring anything, the least storage with a given ratio at the result has a closed form.
With lambda_i = 1 / SQNR_i, a site of n_i values takes b_i = -(10 / slope) log10(lambda_i) bits, and
minimising sum_i n_i b_i subject to sum_i lambda_i <= 1 / SQNR gives, by its Lagrangian,
lambda_i = n_i / (SQNR sum_j n_j): a site with ten times as many values takes 10 / slope bits less.

```python
import jaxeff
from jaxeff.compression import Int, signal_to_noise_bits
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
sizes = {row.site: row.weights for row in jaxeff.cost(f, params, x[:1]).layers if row.weights}
spec = {site: Int(round(bits), 8) for site, bits in signal_to_noise_bits(sizes, 20.0).items()}
```

Measured, they tell which layers need their bits:

```python
from jaxeff.compression import allocate_bits, noise_to_signal, quantization_errors

errors = quantization_errors(f, params, x[:32], tuple(sizes), widths=(2, 4, 8))
ratios = noise_to_signal(errors)
assert (ratios.weights[:, 0] > ratios.weights[:, 2]).all()        # two bits, and eight
spec = allocate_bits(ratios, jaxeff.cost(f, params, x[:1]), 4 * sum(sizes.values()))
```

References:
    Lin, Talathi and Annapureddy, "Fixed Point Quantization of Deep Convolutional Networks",
    arXiv:1511.06393.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression._quantized import of_inputs, settings_of
from jaxeff.compression.allocation._policy import InWidths, Method
from jaxeff.compression.allocation._table import BitSensitivity, check_widths
from jaxeff.compression.numerics import LayerQuantization
from jaxeff.compression.quantizers import Uniform
from jaxeff.core import (
    check_number,
    function_of_form,
    input_batch,
    instance_of,
    non_negative,
    positive,
    string_mapping,
    validate,
)
from jaxeff.program import Layer, evaluate, plain_rule, trace

DECIBELS_PER_BIT = 20 * math.log10(2)


class QuantizationErrors(NamedTuple):
    """Mean squares of the arrays of each site and of their quantization's errors.

    Attributes:
        sites: The layers.
        widths: The bit widths.
        weights: Mean squared error of the weights in each width; 0 where there are none.
        activations: Mean squared error in the same form, of the layers' inputs.
        weights_signal: Mean square of the weights themselves.
        activations_signal: Mean square of the layers' inputs themselves.
    """

    sites: tuple[str, ...]
    widths: tuple[int, ...]
    weights: Float[np.ndarray, "sites widths"]
    activations: Float[np.ndarray, "sites widths"]
    weights_signal: Float[np.ndarray, " sites"]
    activations_signal: Float[np.ndarray, " sites"]


@validate(args=input_batch, method=function_of_form("method(bits)"))
def quantization_errors(
    f: Callable[..., Any],
    params: Any,
    args: Any,
    sites: Sequence[str],
    widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    *,
    method: Method = Uniform,
) -> QuantizationErrors:
    """Quantizes every array of every site in every width, in the model as it is.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        args: Further arguments of `f` as a tuple, or the only one of them.
        sites: The layers.
        widths: Bit widths, rising, 1 to 16.
        method: Function from a bit width to a quantizer.

    Raises:
        ValueError: A width that isn't one, a site that there isn't, that multiplies nothing, or
            lies inside a loop.
    """
    sites, widths = tuple(sites), check_widths(widths)
    args = args if isinstance(args, tuple) else (args,)
    found = np.asarray(_squares(InWidths(f, method, sites, widths), params, args), float)
    return QuantizationErrors(
        sites, widths, found[0, :, 1:], found[1, :, 1:], found[0, :, 0], found[1, :, 0]
    )


@validate(errors=instance_of(QuantizationErrors))
def noise_to_signal(errors: QuantizationErrors) -> BitSensitivity:
    """Computes the noise-to-signal ratio of every site in every width; 0 for an array of zeros.

    Args:
        errors: From `quantization_errors`.
    """

    def over(noise: np.ndarray, signal: np.ndarray) -> np.ndarray:
        signal = signal[:, None]
        return np.divide(noise, signal, out=np.zeros_like(noise), where=signal > 0)

    return BitSensitivity(
        errors.sites,
        errors.widths,
        over(errors.weights, errors.weights_signal),
        over(errors.activations, errors.activations_signal),
    )


@validate(sizes=string_mapping, decibels=non_negative, slope=positive)
def signal_to_noise_bits(
    sizes: Mapping[str, float], decibels: float, *, slope: float = DECIBELS_PER_BIT
) -> dict[str, float]:
    """Computes the bits of every site with the least storage for a given ratio at the result.

    Args:
        sizes: Values to store, by site; or their products, for the least work.
        decibels: The signal-to-quantization-noise ratio at the result.
        slope: Decibels that a bit adds at each site.

    Returns:
        Bits by site, not rounded; below 1 where a site could do without.

    Raises:
        ValueError: There are no sites, or a size or the slope isn't positive.
    """
    if not sizes:
        raise ValueError("signal_to_noise_bits needs at least one site.")
    for site, size in sizes.items():
        check_number(f"the size of {site!r}", size, above=0)
    check_number("decibels", decibels)
    check_number("slope", slope, above=0)
    # Minimal total size for given noise at the result (Lagrange): a site may add noise in
    # proportion to its share of the size, so SNR_i = target - 10 log10(share_i).
    total = sum(sizes.values())
    return {
        site: (decibels - 10 * math.log10(size / total)) / slope for site, size in sizes.items()
    }


@functools.partial(jax.jit, static_argnums=0)
def _squares(
    model: InWidths, params: Any, args: tuple[Any, ...]
) -> Float[Array, "two sites widths"]:
    """Computes mean squares and mean squared errors of weights and of activations, by site."""
    f, method, sites, widths = model
    program = trace(f, params, *args)
    settings = multiplying(sites, program)
    sums = {site: {"weight": [], "activation": []} for site in settings}  # type: ignore[var-annotated]

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        for _, tensor, i in (
            of_inputs(layer, settings[layer.site], values) if (layer.site in settings) else ()
        ):
            x = values[i]

            def square(bits: Any, x: Any = x, tensor: Any = tensor) -> Array:
                # Over traced widths by `lax.map`: one program, and one array at a time in
                # memory.
                error = method(bits).quantize(x, tensor) - x
                return jnp.sum(jnp.square(error.astype(jnp.float32)))

            errors = jax.lax.map(square, jnp.asarray(widths))
            signal = jnp.sum(jnp.square(x.astype(jnp.float32)))[None]
            sums[layer.site][tensor.role].append((jnp.concatenate([signal, errors]), x.size))
        return plain_rule(layer, key, *values)

    evaluate(program, rule, None, jax.tree.leaves(((params, *args), {})))

    # Over all elements of a site's arrays, which may have several sizes.
    def mean(parts: list[tuple[Array, int]]) -> Array:
        if not parts:
            return jnp.zeros(1 + len(widths))
        total: Array = sum(s for s, _ in parts) / sum(n for _, n in parts)  # type: ignore[assignment]
        return total

    return jnp.stack(
        [jnp.stack([mean(sums[site][role]) for site in sites]) for role in ("weight", "activation")]
    )


def multiplying(sites: Sequence[str], program: Any) -> dict[str, LayerQuantization]:
    """Makes a setting that quantizes weights and activations, for every site.

    Raises:
        ValueError: A site that there isn't, that multiplies nothing, or lies inside a loop.
    """
    settings = settings_of(
        {site: LayerQuantization(Uniform(8), Uniform(8)) for site in sites}, program
    )
    outside = {layer.site for layer in program.layers}
    for site in sites:
        if site not in settings or site not in outside:
            raise ValueError(
                f"{site!r} must be one layer outside loops and branches, where its arrays can be "
                "measured."
            )
    return {site: settings[site] for site in sites}
