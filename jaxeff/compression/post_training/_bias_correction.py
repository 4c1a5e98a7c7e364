"""`correct_biases`: what quantization adds to a layer's mean output is taken off its bias.

The error of a layer's output has a mean that isn't zero: E[y'] = E[y] + E[e], with an entry of e
for each output channel; subtracting E[e] from the bias removes it (Nagel et al., section 4.2,
eqs. 16, 17). E[e] is measured on a batch, layer by layer, each on what the corrected, quantized
layers before it give (appendix D).

```python
from jaxeff.compression import Int, correct_biases, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = {"*:linear": Int(4)}
params = correct_biases(f, params, x, spec)
logits = quantized(f, spec)(params, x)
```

Sharp edges:
    A layer without a bias stays as it is: `fold_batch_norm` gives a bias to those that have a batch
    norm. So does a layer in a loop.
    The mean is that before the activation function.

References:
    Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
    arXiv:1906.04721.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.compression._quantized import check_spec, quantized_layer, settings_of
from jaxeff.compression.numerics import Method
from jaxeff.compression.post_training._layerwise import arguments, check_finite, side_by_side
from jaxeff.compression.post_training._origins import mean_per_entry, origin, producers, users
from jaxeff.core import input_batch, validate
from jaxeff.program import Layer, Program, trace


@validate(batch=input_batch)
def correct_biases(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> Any:
    """Corrects biases so that quantized layers keep the means of their outputs.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`, or those that `gptq` or `adaround` gave.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`.

    Returns:
        New parameters; only biases of layers with a setting are different.

    Raises:
        ValueError: The batch is empty or not finite, or no layer of the spec has a bias.
    """
    check_spec(spec)
    args = arguments("correct_biases", batch)
    program = trace(f, params, *args)
    settings = settings_of(spec, program)
    makers = producers(program)
    leaves = jax.tree.leaves((params, *args))
    corrected: dict[str, Array] = {}

    def at(
        layer: Layer, exact: Sequence[Any], outputs: Sequence[Any], given: Sequence[Any]
    ) -> Sequence[Any] | None:
        if layer.site not in settings or not layer.biases:
            return None
        index = layer.biases[0]
        bias = origin(program, layer.inputs[index], makers, grows=True)
        # A bias that is computed, or read elsewhere too, can't take this layer's error alone.
        if bias is None or users(program, bias.path) != [layer.site]:
            return None
        rule = jax.jit(partial(quantized_layer, settings[layer.site], layer, None))
        (result,) = rule(*given)
        check_finite("correct_biases", layer.site, outputs=result)
        leaf = leaves[bias.leaf]
        error = np.asarray(result) - np.asarray(outputs[0])
        # E[e] of eqs. 16 and 17, over all places that an entry of the bias adds to.
        mean = mean_per_entry(layer, bias, index, leaf, exact, error)
        corrected[layer.site] = mean
        leaves[bias.leaf] = jnp.asarray(np.asarray(leaf) - np.asarray(mean), leaf.dtype)
        inputs = list(given)
        inputs[index] = bias.to_input(leaves[bias.leaf])
        # Later layers measure their error on corrected inputs (appendix D).
        changed: Sequence[Any] = rule(*inputs)
        return changed

    side_by_side(program, settings, leaves, at)
    if not corrected:
        raise ValueError(
            "correct_biases found no bias of its own in any layer of the spec: "
            f"{_listed(program, settings)}. fold_batch_norm makes biases of batch norms."
        )
    count = len(jax.tree.leaves(params))
    return jax.tree.unflatten(jax.tree.structure(params), leaves[:count])


def _listed(program: Program, settings: Mapping[str, Any]) -> str:
    names = [layer.site for layer in program.sites if layer.site in settings]
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
