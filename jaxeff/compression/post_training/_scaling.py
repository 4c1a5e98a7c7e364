"""Scales of input channels, between activations and weights: `awq` and `smooth_quant`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff.compression._quantized import of_inputs
from jaxeff.compression.numerics import LayerQuantization, Method, Quantizer, Tensor
from jaxeff.compression.post_training import _layerwise as layerwise
from jaxeff.compression.post_training._channels import LayerPair, gains, pairs, rescale, weights_of
from jaxeff.compression.post_training._multiplication import Multiplication
from jaxeff.compression.quantizers import Scaled
from jaxeff.core import input_batch, probability, static_integer, validate
from jaxeff.program import Layer, SharedPrograms, evaluate, plain_rule

_EXACT = jax.lax.Precision.HIGHEST


@validate(batch=input_batch, points=static_integer())
def awq(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    points: int = 20,
    fold: bool = True,
) -> layerwise.PostTrained:
    """Scales inputs of layers by how large they are, and rounds weights to the nearest values.

    For a layer x W the scale s of its inputs minimises E|x W - (x / s) Q(s W)|^2 among s =
    mean|x|^alpha, for alpha on a grid from 0 to 1 (Lin et al., eqs. 4, 5). Where one linear layer
    alone feeds the channels through a positively homogeneous function, its outputs are divided by
    s; else `Scaled` keeps the scale with the quantizer.

    ```python
    from jaxeff.compression import Int, awq, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    f, params, spec = awq(f, params, x, {"*:linear": Int(3, activations=False)})
    logits = quantized(f, spec)(params, x)
    ```

    Sharp edges:
        Statistics are those of the original network: layers don't make good each other's errors.
        Ranges aren't clipped after scaling; `calibrate(..., method="mse", weights=True)` clips them
        without scaling.
        Inputs of a convolution share a scale per channel. A layer norm before a layer isn't scaled.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`. Open numbers of weights are those of the
            scaled weights.
        points: Number of values of alpha above 0 to try.
        fold: Whether scales move into the layer before, where that is possible.

    Returns:
        `f`, parameters whose weights lie on the grid, and the spec that reproduces them.

    Raises:
        ValueError: The batch is empty or not finite, nothing has weights to quantize, or a weight
            isn't one parameter's entries.

    References:
        Lin et al., "AWQ: Activation-aware Weight Quantization", arXiv:2306.00978.
    """
    model, run = layerwise.read_model("awq", f, params, batch, spec), SharedPrograms()
    weighed = _weighed(model, run)
    scales = _scales(model, weighed, points, fold, run)
    # Rounded once all scales are found: folding one changes the weights of the layer before.
    started = _rounded_scaled(model, weighed, scales, run)
    spec = layerwise.started_spec(model.program, model.settings, started)
    return layerwise.PostTrained(f, layerwise.with_leaves(params, model.leaves), spec)


class _Weighed(NamedTuple):
    """A layer whose weights are quantized, and the statistics of its inputs that weigh errors.

    Attributes:
        at: The layer.
        quantizer: The method of its weights.
        tensor: Description of the weight for the method.
        second: The mean of products of two inputs.
        size: The mean magnitude of each input.
    """

    at: Multiplication
    quantizer: Quantizer
    tensor: Tensor
    second: Float[Array, "groups inputs inputs"]
    size: Float[Array, "groups inputs"]


def _weighed(model: layerwise.ModelReading, run: SharedPrograms) -> dict[str, _Weighed]:
    """Measures the inputs of all layers whose weights are quantized."""
    outside = {layer.site for layer in model.program.layers}
    sites: dict[str, _Weighed] = {}

    def measure(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        setting = model.settings.get(layer.site)
        operands = [] if setting is None else of_inputs(layer, setting, values)
        weights = [(q, t) for q, t, _ in operands if t.role == "weight"]
        if weights and layer.site in outside:
            if layer.site not in model.linear:
                raise ValueError(
                    f"awq can't replace the weight of {layer.site!r}: {model.refused[layer.site]}. "
                    "Set None there."
                )
            at = model.linear[layer.site]
            layerwise.check_users("awq", model.program, at, {layer.site: at})
            x = at.reads(values)
            layerwise.check_finite("awq", layer.site, weights=values[at.index], inputs=x)
            sizes = at.moment(x, x, run), at.magnitude(x, run)
            sites[layer.site] = _Weighed(at, *weights[0], *sizes)
        return plain_rule(layer, key, *values)

    evaluate(model.program, measure, None, model.leaves)
    if not sites:
        raise ValueError("awq found no weights to quantize: no setting of the spec has any.")
    return sites


def _scales(
    model: layerwise.ModelReading,
    weighed: Mapping[str, _Weighed],
    points: int,
    fold: bool,
    run: SharedPrograms,
) -> dict[str, Float[np.ndarray, "groups inputs"]]:
    """Finds the scales of all layers' inputs, and returns those that no layer before takes."""
    # Where a linear layer comes before, scales go into its outputs and cost nothing at run time.
    into: dict[str, LayerPair] = {}
    if fold:
        into = {pair.second.layer.site: pair for pair in pairs(model.program, model.leaves)}
    scales: dict[str, np.ndarray] = {}
    for site, layer in weighed.items():
        pair = into.get(site)
        # Of a pair the scales are those of the first layer's channels; several inputs may read one.
        channels = input_channels(layer.at) if pair is None else pair.channels
        scale = _search(layer, model.leaves, channels, points, run)
        if pair is not None:
            rescale(pair, model.leaves, scale)
        else:
            scales[site] = scale[channels]
    return scales


def _rounded_scaled(
    model: layerwise.ModelReading,
    weighed: Mapping[str, _Weighed],
    scales: Mapping[str, Float[np.ndarray, "groups inputs"]],
    run: SharedPrograms,
) -> dict[str, Quantizer]:
    """Rounds all weights, and returns their methods with the scales that were not folded."""
    started: dict[str, Quantizer] = {}
    for site, (at, quantizer, tensor, *_) in weighed.items():
        leaf = model.leaves[at.origin.leaf]
        w = at.origin.to_input(leaf)
        if site in scales:
            quantizer = Scaled(quantizer, narrow(at, scales[site]))
        method = layerwise.start(quantizer, w, tensor)
        new = layerwise.rounded(run, method, tensor, w)
        layerwise.check_kept("awq", method, new, tensor, run)
        model.leaves[at.origin.leaf] = at.origin.to_leaf(new, leaf)
        started[site] = method
    return started


def _search(
    layer: _Weighed,
    leaves: Sequence[Any],
    channels: Int[np.ndarray, "groups inputs"],
    points: int,
    run: SharedPrograms,
) -> Float[np.ndarray, " channels"]:
    """Searches for the scale of each input channel with the smallest output error."""
    at, quantizer, tensor, second, size = layer
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
        values = layerwise.start(quantizer, scaled, tensor).quantize(scaled, tensor)
        # The error of Q(w s) / s against w, as the layer's inputs weigh it.
        difference = at.contraction.matrix(values).astype(jnp.float32) / rows - w
        # Not as the excess over weights of zero: XLA's CPU back end of jaxlib 0.10.2 returns
        # undefined numbers for a product with constant zeros beside another one.
        product = jnp.einsum("gij,gjm->gim", second, difference, precision=_EXACT)
        return jnp.sum(difference * product)

    best, lowest = np.ones(count, np.float32), np.inf
    for alpha in np.arange(points + 1) / points:
        scale = each**alpha
        # Centered geometrically, as the authors' code does: only ratios between channels matter.
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


_Channels = Int[np.ndarray, "groups inputs"]


@dataclass(frozen=True, eq=False)
class _Read:
    """A layer whose input is scaled.

    Attributes:
        at: The layer.
        largest: The largest |x| of each input.
        exact: What the layer reads, for its shape.
    """

    at: Multiplication
    largest: Float[np.ndarray, "groups inputs"]
    exact: Array


@validate(batch=input_batch, alpha=probability)
def smooth_quant(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    alpha: float = 0.5,
    fold: bool = True,
) -> layerwise.PostTrained:
    """Moves the sizes of activations' channels into weights.

    With a scale of each input channel j (Xiao et al., eq. 4),

        s_j = max |x_j|^alpha / max |w_j|^(1 - alpha),        x W = (x / s) (s W)

    both sides have ranges of about the same size. Where a norm's scale and bias, or a linear layer
    alone through a positively homogeneous function, makes the channels, the division goes into its
    parameters; else `Scaled` keeps it with both quantizers.

    ```python
    from jaxeff.compression import Int, calibrate, quantized, smooth_quant
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    _, smooth, spec = smooth_quant(f, params, x, {"*:linear": Int(8, per="tensor")})
    logits = quantized(f, spec)(smooth, x)              # f(smooth, x) is still f(params, x)
    ```

    Sharp edges:
        Parameters are scaled and not rounded: `gptq` or `quantized` round them. Ranges of
        activations are measured afterwards: `calibrate(f, smooth, batches, spec)`.
        `Scaled` is for `quantized`: `integer` has no kernel that divides a channel of its input,
        and `calibrate` measures no range inside of it.
        Layers that read one value share its scale only where that folds.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`, with open ranges.
        alpha: How much of the difficulty moves: at 0 weights' channels become equally large, at 1
            those of activations do.
        fold: Whether scales move into the layer before, where that is possible.

    Returns:
        `f`, parameters with the same outputs, and the spec to quantize them by.

    Raises:
        ValueError: The batch is empty or not finite, nothing is quantized in a linear layer with a
            weight of its own, or a range is fixed already.

    References:
        Xiao et al., "SmoothQuant", arXiv:2211.10438.
    """
    model = layerwise.read_model("smooth_quant", f, params, batch, spec)
    reads = _reads(model)
    # What isn't folded into the layer before stays with the quantizers.
    folded = _fold(model, reads, alpha) if fold else set()
    spec = layerwise.started_spec(model.program, _with_kept(model, reads, folded, alpha), {})
    return layerwise.PostTrained(f, layerwise.with_leaves(params, model.leaves), spec)


def _reads(model: layerwise.ModelReading) -> dict[str, _Read]:
    """Measures the inputs of all layers that have a setting, and a weight of their own."""
    reads: dict[str, _Read] = {}

    def measure(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        setting = model.settings.get(layer.site)
        # Products of two activations have no weight that could take a scale.
        if setting is not None and layer.site in model.linear:
            at = model.linear[layer.site]
            check_open("smooth_quant", layer, setting, values)
            x = at.reads(values)
            layerwise.check_finite("smooth_quant", layer.site, weights=values[at.index], inputs=x)
            reads[layer.site] = _Read(at, np.asarray(at.largest(x), np.float64), x)
        return plain_rule(layer, key, *values)

    evaluate(model.program, measure, None, model.leaves)
    if not reads:
        raise ValueError(
            "smooth_quant found nothing to scale: no setting of the spec quantizes a linear layer "
            "with a weight of its own."
        )
    return reads


def _with_kept(
    model: layerwise.ModelReading, reads: Mapping[str, _Read], folded: set[str], alpha: float
) -> dict[str, LayerQuantization]:
    """Returns the settings, which keep the scales that no layer before took."""
    kept = dict(model.settings)
    for site, read in reads.items():
        if site not in folded:
            kept[site] = _kept(read, kept[site], model.leaves, alpha)
    return kept


def _fold(model: layerwise.ModelReading, reads: Mapping[str, _Read], alpha: float) -> set[str]:
    """Moves scales into the parameters of the layers before, and returns the sites done."""
    leaves, folded = model.leaves, set[str]()
    for pair in pairs(model.program, leaves):
        site = pair.second.layer.site
        # A layer's statistics don't change by what its own outputs are divided by.
        if site in reads:
            rescale(pair, leaves, _scale([reads[site]], [pair.channels], leaves, alpha))
            folded.add(site)
    # A norm that several layers read has one scale for all of them.
    for gain in gains(model.program, leaves, model.linear):
        named = [(at.layer.site, channels) for at, channels in gain.readers]
        # Layers that aren't quantized are scaled, too, but have no say.
        ours = [(site, channels) for site, channels in named if site in reads]
        if ours and not folded.intersection(site for site, _ in ours):
            several = [reads[site] for site, _ in ours]
            gain.divide(leaves, _scale(several, [channels for _, channels in ours], leaves, alpha))
            folded.update(site for site, _ in ours)
    return folded


def _scale(
    reads: Sequence[_Read], channels: Sequence[_Channels], leaves: Sequence[Any], alpha: float
) -> Float[np.ndarray, " channels"]:
    """Computes the scale of each channel, of the largest values of all that read it (eq. 4)."""
    count = max(int(of_read.max()) for of_read in channels) + 1
    x, w = np.zeros(count), np.zeros(count)
    for read, labels in zip(reads, channels, strict=True):
        weights = np.abs(weights_of(read.at, leaves)).max(2)
        np.maximum.at(x, labels.reshape(-1), read.largest.reshape(-1))
        np.maximum.at(w, labels.reshape(-1), weights.reshape(-1))
    # A channel that is always zero on one side is as easy as it can be.
    both = (x > 0) & (w > 0)
    one = np.ones(count)
    scale: np.ndarray = np.where(both, x, one) ** alpha / np.where(both, w, one) ** (1 - alpha)
    return np.where(both, scale, one)


def _kept(
    read: _Read, setting: LayerQuantization, leaves: Sequence[Any], alpha: float
) -> LayerQuantization:
    """Returns a setting whose quantizers divide and multiply by the scale themselves."""
    at, channels = read.at, input_channels(read.at)
    if at.node.inputs[1 - at.contraction.side] not in at.layer.inputs:
        return setting  # the layer itself changes what it reads
    scale = _scale([read], [channels], leaves, alpha).astype(np.float32)

    def rows(x: Array) -> Array:
        matrices: Array = at.contraction.rows(x)
        return matrices

    # Transposed, rows become entries: in the mean over the windows that read it, its channel.
    wide, back = jax.vjp(rows, jnp.zeros(read.exact.shape, jnp.float32))
    numbers = channels[:, None].astype(np.float32)
    total, times = (
        np.asarray(back(jnp.broadcast_to(n, wide.shape))[0]) for n in (numbers, np.float32(1))
    )
    of_entry = np.rint(total / np.maximum(times, 1)).astype(int)
    of_x = np.where(times > 0, scale[of_entry], np.float32(1))
    methods = setting.activations
    (method,) = methods if isinstance(methods, tuple) else (methods,)
    return LayerQuantization(
        None if setting.weights is None else Scaled(setting.weights, narrow(at, scale[channels])),
        None if method is None else Scaled(method, 1 / narrowed(of_x)),
        setting.at,
    )


def check_open(where: str, layer: Layer, setting: LayerQuantization, values: Sequence[Any]) -> None:
    """Checks that no range was measured before parameters changed.

    Raises:
        ValueError: One was.
    """
    for quantizer, tensor, _ in of_inputs(layer, setting, values):
        if getattr(quantizer, "range", None) is not None:
            raise ValueError(
                f"{where}: {tensor.name} of {layer.site!r} has a range already, which changes: "
                "take the spec without it, and calibrate afterwards."
            )
