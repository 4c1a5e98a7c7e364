"""`equalize`: neighbouring layers share their ranges channel by channel, and compute the same.

Where f(s x) = s f(x) between two linear layers, channel i of the first can be divided by s_i and
its weights in the second multiplied by it (Nagel et al., eqs. 4 to 7). With
s_i = sqrt(r1_i r2_i) / r2_i both ranges become sqrt(r1_i r2_i), which is best for a range per
tensor (eq. 11); it is repeated over all pairs until nothing changes.

```python
from jaxeff.compression import Int, equalize, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
params = equalize(f, params, x)
logits = quantized(f, {"*:linear": Int(8, per="tensor")})(params, x)
```

Sharp edges:
    A batch norm between two layers stands in the way: `fold_batch_norm` first.
    A result that several layers read, as before a residual sum, isn't scaled.
    Large biases aren't absorbed (section 4.1.3).

References:
    Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
    arXiv:1906.04721.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxeff.compression.post_training._channels import LayerPair, pairs
from jaxeff.compression.post_training._multiplication import Multiplication
from jaxeff.core import check_count, input_batch, static_integer, validate
from jaxeff.program import trace

# Pairs whose scales all have logarithms below this count as equal.
_SETTLED = 1e-4


@validate(batch=input_batch, sweeps=static_integer())
def equalize(f: Callable[..., Any], params: Any, batch: Any, *, sweeps: int = 50) -> Any:
    """Equalizes the ranges of linear layers without changing the function.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them; their shapes count, not their values.
        sweeps: Largest number of rounds over all pairs.

    Returns:
        New parameters; where there are no pairs, the same.

    Raises:
        ValueError: A weight isn't finite.
    """
    check_count("equalize: sweeps", sweeps)
    args = batch if isinstance(batch, tuple) else (batch,)
    program = trace(f, params, *args)
    leaves = jax.tree.leaves((params, *args))
    found = pairs(program, leaves)
    # Scaling one pair changes the ranges of its neighbours, so all are gone through again.
    for _ in range(sweeps):
        changes = [_equalized(pair, leaves) for pair in found]
        if max(changes, default=0.0) < _SETTLED:
            break
    count = len(jax.tree.leaves(params))
    return jax.tree.unflatten(jax.tree.structure(params), leaves[:count])


def rescale(pair: LayerPair, leaves: list[Any], scale: Float[np.ndarray, " channels"]) -> None:
    """Divides the first layer's channels by a scale and multiplies it into the second's weights."""
    first, second = pair.first, pair.second
    w1, w2 = (weights_of(at, leaves) for at in (first.at, second))
    replace_weights(first.at, leaves, w1 / scale.reshape(w1.shape[0], 1, w1.shape[2]))
    replace_weights(second, leaves, w2 * scale[pair.channels][:, :, None])
    if first.bias is not None:
        bias = np.asarray(leaves[first.bias.leaf])
        new = bias.astype(np.float64) / scale[first.bias_channels]
        leaves[first.bias.leaf] = jnp.asarray(new.astype(bias.dtype))


def weights_of(
    at: Multiplication, leaves: Sequence[Any]
) -> Float[np.ndarray, "groups inputs outputs"]:
    """Returns the weights of a layer as matrices."""
    w = np.asarray(at.origin.to_input(leaves[at.origin.leaf]))
    return np.asarray(at.contraction.matrix(w)).astype(np.float64)


def replace_weights(
    at: Multiplication, leaves: list[Any], matrix: Float[np.ndarray, "groups inputs outputs"]
) -> None:
    """Puts matrices in the place of a layer's weights, among the flattened arguments."""
    leaf = leaves[at.origin.leaf]
    dtype = at.layer.inputs[at.index].aval.dtype
    new = jnp.asarray(np.asarray(at.contraction.weight(matrix)).astype(dtype))
    leaves[at.origin.leaf] = at.origin.to_leaf(new, leaf)


def _equalized(pair: LayerPair, leaves: list[Any]) -> float:
    """Equalizes one pair and returns how far from equal it was, as a logarithm."""
    first = np.abs(weights_of(pair.first.at, leaves)).max(1).reshape(-1)
    inputs = np.abs(weights_of(pair.second, leaves)).max(2)
    for at, x in ((pair.first.at, first), (pair.second, inputs)):
        if not np.isfinite(x).all():
            raise ValueError(f"equalize: the weight of {at.layer.site!r} isn't finite.")
    second = np.zeros_like(first)
    np.maximum.at(second, pair.channels.reshape(-1), inputs.reshape(-1))
    # A channel that is zero on one side has no range to share.
    both = (first > 0) & (second > 0)
    # Eq. 11: sqrt(r1 r2) / r2 = sqrt(r1 / r2).
    scale = np.where(both, np.sqrt(first / np.where(both, second, 1)), 1.0)
    rescale(pair, leaves, scale)
    return float(np.abs(np.log(scale)).max())
