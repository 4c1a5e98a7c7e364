"""`rotate`: outliers spread over all channels by Hadamard matrices, in weights where that goes.

A residual stream whose norms have no other part than a scale commutes with a rotation: what writes
it is turned, and what reads it turned back, once and for all (`_streams.py`). Other layers turn
what they read in the call, by `Rotated` methods for weights and activations.

```python
from jaxeff.compression import Int, quantized, rotate
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
turned, spec = rotate(f, params, x, {"fc2": Int(4)})
logits = quantized(f, spec)(turned, x)               # f(turned, x) is still f(params, x)
```

Sharp edges:
    Parameters are turned and not rounded: `gptq` or `quantized` round them; `gptq` takes inputs one
    by one, which `Rotated` mixes, so it is for what folds.
    `Rotated` is for `quantized`: `integer` has no kernel that turns its input.
    The matrix acts on blocks of the largest power of two that divides an axis: of 576 channels
    blocks of 64 are mixed.
    A tied table stays where a norm with a scale comes before the head, for the scale would have to
    go into the table: `jaxeff.adapters.untied` gives the head a weight of its own. Nor does a layer
    norm with a mean, or a bias, commute.

References:
    Ashkboos et al., "QuaRot", arXiv:2404.00456, sections 4.1 and 4.2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.compression.post_training._equalization import replace_weights, weights_of
from jaxeff.compression.post_training._layerwise import read_model, started_spec
from jaxeff.compression.post_training._smooth_quant import check_open
from jaxeff.compression.post_training._streams import Stream, rotation, streams
from jaxeff.compression.quantizers import Rotated
from jaxeff.core import input_batch, static_integer, validate
from jaxeff.program import Layer, Program, evaluate, plain_rule


@validate(batch=input_batch, seed=static_integer(0))
def rotate(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    seed: int = 0,
    fold: bool = True,
) -> tuple[Any, dict[str, LayerQuantization | None]]:
    """Turns what quantized layers read by a random Hadamard matrix.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them; their shapes count, not their values.
        spec: Quantizers by site, as for `quantized`, with open ranges.
        seed: Number that the signs of the matrix are drawn by.
        fold: Whether streams are turned in the parameters, where that is possible.

    Returns:
        Parameters with the same outputs, and the spec to quantize them by.

    Raises:
        ValueError: The batch is empty or not finite, nothing is quantized in a linear layer with a
            weight of its own, or a range is fixed already.
    """
    program, settings, found, _, leaves = read_model("rotate", f, params, batch, spec)
    ours = [site for site in settings if site in found]
    if not ours:
        raise ValueError(
            "rotate found nothing to turn: no setting of the spec quantizes a linear layer with a "
            "weight of its own."
        )
    _check_settings(program, settings, leaves)
    folded: set[str] = set()
    # Layers that aren't quantized turn with the others: the function stays the same.
    for stream in streams(program, leaves, found, seed) if fold else ():
        sites = {at.layer.site for at in stream.read}
        if sites.intersection(ours):
            _turn(stream, leaves, seed)
            folded |= sites
    kept = dict(settings)
    for site in ours:
        if site not in folded and not found[site].contraction.is_convolution:
            kept[site] = _in_the_call(settings[site], seed)
    count = len(jax.tree.leaves(params))
    new = jax.tree.unflatten(jax.tree.structure(params), leaves[:count])
    return new, started_spec(program, kept, {})


def _turn(stream: Stream, leaves: list[Any], seed: int) -> None:
    """Turns a stream in the parameters."""
    turn = rotation(stream.size, seed)
    # Scales go first: after that all norms commute.
    for gain in stream.norms:
        (vector,) = gain.vectors
        gain.divide(leaves, np.asarray(leaves[vector.leaf], np.float64))
    shared = {table.leaf for table in stream.tables}
    for leaf in shared | {bias.leaf for bias in stream.biases}:
        leaves[leaf] = turn(leaves[leaf]).astype(leaves[leaf].dtype)
    for at in stream.written:
        replace_weights(at, leaves, np.asarray(turn(weights_of(at, leaves)), np.float64))
    for at in stream.read:
        # Weights are matrices from inputs to outputs, and inputs are to be turned.
        # The head of a tied table is turned with it.
        if at.origin.leaf not in shared:
            w = np.swapaxes(weights_of(at, leaves), 1, 2)
            replace_weights(at, leaves, np.swapaxes(np.asarray(turn(w), np.float64), 1, 2))


def _in_the_call(setting: LayerQuantization, seed: int) -> LayerQuantization:
    methods = setting.activations
    if isinstance(methods, tuple):
        (methods,) = methods
    return replace(
        setting,
        weights=None if setting.weights is None else Rotated(setting.weights, seed=seed),
        activations=None if methods is None else Rotated(methods, seed=seed),
    )


def _check_settings(
    program: Program, settings: Mapping[str, LayerQuantization], leaves: Sequence[Any]
) -> None:
    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if layer.site in settings:
            check_open("rotate", layer, settings[layer.site], values)
        return plain_rule(layer, key, *values)

    jax.eval_shape(lambda leaves: evaluate(program, rule, None, leaves), list(leaves))
