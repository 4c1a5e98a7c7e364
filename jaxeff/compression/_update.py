"""`update_statistics`: updates the numbers that a method learns by a rule instead of a gradient.

```python
from jaxeff.compression import LearnedBasis, init, update_statistics
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = init(f, params, x, {"*:linear": LearnedBasis(2)})
spec = update_statistics(f, params, x, spec)  # inside a training step too: it can be compiled
```
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float

from jaxeff.compression._quantized import check_spec, of_inputs, of_outputs, settings_of
from jaxeff.compression.numerics import LayerQuantization, Method, Quantizer, Tensor
from jaxeff.core import input_batch, validate
from jaxeff.program import Layer, at_sites, evaluate, plain_rule, trace


@runtime_checkable
class Updates(Quantizer, Protocol):
    """A quantizer whose numbers follow the arrays that it sees in training."""

    def update_statistics(self, x: Float[Array, "*shape"], tensor: Tensor) -> Quantizer:
        """Returns the quantizer after one more array."""
        ...


@validate(batch=input_batch)
def update_statistics(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> dict[str, Method | None]:
    """Updates a spec by one more batch of the quantized model.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        spec: Result of `init`.

    Returns:
        The spec, of the same structure. Methods without a rule stay, and so do layers in a loop.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: A pattern matches no site, or a layer has no setting of its own.
    """
    check_spec(spec)
    args = batch if isinstance(batch, tuple) else (batch,)
    program = trace(f, params, *args)
    settings = settings_of(spec, program)
    outside = {layer.site for layer in program.layers}
    found: dict[str, dict[str, Quantizer]] = {}

    def rule(setting: LayerQuantization, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        of_layer: dict[str, Quantizer] = {}

        def quantized(arrays: Sequence[Any], read: Sequence[Any]) -> list[Any]:
            arrays = list(arrays)
            for quantizer, tensor, i in read:
                x = arrays[i]
                # Statistics are those of the quantized model: all layers still use the old numbers.
                rules = isinstance(quantizer, Updates)
                of_layer[tensor.name] = (
                    quantizer.update_statistics(x, tensor) if rules else quantizer
                )
                arrays[i] = quantizer.quantize(x, tensor)
            return arrays

        inputs = quantized(values, of_inputs(layer, setting, values, key))
        outputs = list(plain_rule(layer, key, *inputs))
        outputs = quantized(outputs, of_outputs(layer, setting, outputs, key))
        if layer.site in outside:
            found[layer.site] = of_layer
        return outputs

    evaluate(program, at_sites(settings, rule), None, jax.tree.leaves((params, args, {})))
    missing = sorted(set(found) - set(spec))
    if missing:
        raise ValueError(
            f"update_statistics needs a setting for {missing[0]!r} itself, as init returns it."
        )
    return {site: _with(setting, found.get(site)) for site, setting in spec.items()}


def _with(setting: Any, found: dict[str, Quantizer] | None) -> Any:
    if not found or not isinstance(setting, LayerQuantization):
        return setting
    weights = [q for name, q in found.items() if name.startswith("weights")]
    several = isinstance(setting.activations, tuple)
    place: Any = setting.activations if several else (setting.activations,)
    new: Any = tuple(found.get(f"{setting.at}_{i}", q) for i, q in enumerate(place))
    return replace(
        setting,
        weights=weights[0] if weights else setting.weights,
        activations=new if several else new[0],
    )
