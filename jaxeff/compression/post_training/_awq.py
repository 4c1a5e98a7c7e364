"""`awq`: the weights that meet large activations are scaled up before they are rounded.

For a layer x W the scale s of its inputs minimises E|x W - (x / s) Q(s W)|^2 among
s = mean|x|^alpha, for alpha on a grid from 0 to 1 (Lin et al., eqs. 4, 5). Where one linear layer
alone feeds the channels through a positively homogeneous function, its outputs are divided by s;
else `Scaled` keeps the scale with the quantizer.

```python
from jaxeff.compression import Int, awq, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
params, spec = awq(f, params, x, {"*:linear": Int(3, activations=False)})
logits = quantized(f, spec)(params, x)
```

Sharp edges:
    Statistics are those of the original network: layers don't make good each other's errors.
    Ranges aren't clipped after scaling; `calibrate(..., method="mse", weights=True)` clips them
    without scaling.
    Inputs of a convolution share a scale per channel. A layer norm before a layer isn't scaled.

References:
    Lin et al., "AWQ: Activation-aware Weight Quantization", arXiv:2306.00978.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxeff.compression._quantized import of_inputs
from jaxeff.compression.numerics import LayerQuantization, Method, Quantizer, Tensor
from jaxeff.compression.post_training._channels import LayerPair, pairs
from jaxeff.compression.post_training._equalization import rescale, weights_of
from jaxeff.compression.post_training._layerwise import (
    check_finite,
    check_kept,
    check_users,
    read_model,
    rounded,
    start,
    started_spec,
)
from jaxeff.compression.post_training._multiplication import Multiplication
from jaxeff.compression.quantizers import Scaled
from jaxeff.core import check_count, input_batch, static_integer, validate
from jaxeff.program import Layer, SharedPrograms, evaluate, plain_rule

_EXACT = lax.Precision.HIGHEST


@validate(batch=input_batch, points=static_integer())
def awq(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    points: int = 20,
    fold: bool = True,
) -> tuple[Any, dict[str, LayerQuantization | None]]:
    """Scales inputs of layers by how large they are, and rounds weights to the nearest values.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`. Open numbers of weights are those of the
            scaled weights.
        points: Number of values of alpha above 0 to try.
        fold: Whether scales move into the layer before, where that is possible.

    Returns:
        Parameters whose weights lie on the grid, and the spec that reproduces them.

    Raises:
        ValueError: The batch is empty or not finite, nothing has weights to quantize, or a weight
            isn't one parameter's entries.
    """
    check_count("awq: points", points)
    program, settings, found, refused, leaves = read_model("awq", f, params, batch, spec)
    run = SharedPrograms()
    sites: dict[str, tuple[Multiplication, Quantizer, Tensor, Array, Array]] = {}

    def measure(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        setting = settings.get(layer.site)
        operands = [] if setting is None else of_inputs(layer, setting, values)
        weights = [(q, t) for q, t, _ in operands if t.role == "weight"]
        if weights and layer.site in {la.site for la in program.layers}:
            if layer.site not in found:
                raise ValueError(
                    f"awq can't replace the weight of {layer.site!r}: {refused[layer.site]}. Set "
                    "None there."
                )
            at = found[layer.site]
            check_users("awq", program, at, {layer.site: at})
            x = at.reads(values)
            check_finite("awq", layer.site, weights=values[at.index], inputs=x)
            sites[layer.site] = (at, *weights[0], at.moment(x, x, run), at.magnitude(x, run))
        return plain_rule(layer, key, *values)

    evaluate(program, measure, None, leaves)
    if not sites:
        raise ValueError("awq found no weights to quantize: no setting of the spec has any.")
    # Where a linear layer comes before, scales go into its outputs and cost nothing at run
    # time.
    into: dict[str, LayerPair] = {}
    if fold:
        into = {pair.second.layer.site: pair for pair in pairs(program, leaves)}
    scales: dict[str, np.ndarray] = {}
    for site, (at, quantizer, tensor, second, size) in sites.items():
        pair = into.get(site)
        channels = input_channels(at) if pair is None else pair.channels
        scale = _search(at, leaves, quantizer, tensor, second, size, channels, points, run)
        if pair is not None:
            rescale(pair, leaves, scale)
        else:
            scales[site] = scale[channels]
    # Rounded once all scales are found: folding one changes the weights of the layer before.
    started: dict[str, Quantizer] = {}
    for site, (at, quantizer, tensor, *_) in sites.items():
        leaf = leaves[at.origin.leaf]
        w = at.origin.to_input(leaf)
        if site in scales:
            quantizer = Scaled(quantizer, narrow(at, scales[site]))
        method = start(quantizer, w, tensor)
        new = rounded(run, method, tensor, w)
        check_kept("awq", method, new, tensor, run)
        leaves[at.origin.leaf] = at.origin.to_leaf(new, leaf)
        started[site] = method
    count = len(jax.tree.leaves(params))
    fitted = jax.tree.unflatten(jax.tree.structure(params), leaves[:count])
    return fitted, started_spec(program, settings, started)


def _search(
    at: Multiplication,
    leaves: Sequence[Any],
    quantizer: Quantizer,
    tensor: Tensor,
    second: Array,
    size: Float[Array, "groups inputs"],
    channels: Int[np.ndarray, "groups inputs"],
    points: int,
    run: SharedPrograms,
) -> Float[np.ndarray, " channels"]:
    """Searches for the scale of each input channel with the smallest output error."""
    w = weights_of(at, leaves).astype(np.float32)
    dtype = at.layer.inputs[at.index].aval.dtype
    count = int(channels.max()) + 1
    # Inputs that share a scale, as a kernel's taps do, have the mean of their magnitudes.
    total = np.bincount(channels.reshape(-1), np.asarray(size, np.float64).reshape(-1), count)
    each = total / np.maximum(np.bincount(channels.reshape(-1), minlength=count), 1)
    # A channel that is always zero has no say; it gets the scale of the others' middle, one.
    each = np.where(each > 0, each, np.exp(np.log(each[each > 0]).mean()) if each.any() else 1.0)

    def error(scale: Array, w: Array, second: Array) -> Array:
        rows = scale[channels][:, :, None]
        scaled = at.contraction.weight(w * rows).astype(dtype)
        # The range follows the scaled weights, as it will in the result.
        found = start(quantizer, scaled, tensor).quantize(scaled, tensor)
        # The error of Q(w s) / s against w, as the layer's inputs weigh it.
        difference = at.contraction.matrix(found).astype(jnp.float32) / rows - w
        # Not as the excess over weights of zero: XLA's CPU back end of jaxlib 0.10.2 returns
        # undefined numbers for a product with constant zeros beside another one.
        product = jnp.einsum("gij,gjm->gim", second, difference, precision=_EXACT)
        return jnp.sum(difference * product)

    best, lowest = np.ones(count, np.float32), np.inf
    for alpha in np.arange(points + 1) / points:
        scale = each**alpha
        # Centered geometrically, as the authors' code does: only ratios between channels
        # matter.
        scale = (scale / np.sqrt(scale.max() * scale.min())).astype(np.float32)
        here = float(run(error, scale, w, second))
        if here < lowest:
            best, lowest = scale, here
    return best


def input_channels(at: Multiplication) -> Int[np.ndarray, "groups inputs"]:
    """Numbers the input channels; the places of a kernel share a number."""
    groups, inputs, _ = at.contraction.matrix_shape
    # The taps of a channel lie beside each other among the matrix's inputs.
    return (np.arange(groups * inputs) // at.contraction.taps).reshape(groups, inputs)


def narrow(at: Multiplication, scale: Float[np.ndarray, "groups inputs"]) -> Array:
    """Shapes a scale like the weight, with one entry along axes where it is constant."""
    return narrowed(
        at.contraction.weight(np.broadcast_to(scale[:, :, None], at.contraction.matrix_shape))
    )


def narrowed(wide: np.ndarray) -> Array:
    """Keeps one entry along axes where an array is constant."""
    for axis in range(wide.ndim):
        first = wide.take([0], axis)
        wide = first if (wide == first).all() else wide
    return jnp.asarray(wide, jnp.float32)
