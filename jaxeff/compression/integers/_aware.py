"""`integer_aware`: simulates an integer network in floating point, with gradients.

```python
from jaxeff.compression import Int, calibrate, integer, integer_aware
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = calibrate(f, params, [x], {"*:linear": Int(4, symmetric="weights")})
g = integer_aware(f, spec)               # train this one ...
logits = integer(f, spec)(params, x)     # ... to deploy this one
```

`quantized` puts what a layer reads on its grid, and a residual sum reads what it was before. An
integer network has the codes alone, so that at few bits it computes something else. Here sums read
codes, too.

References:
    Jacob et al., arXiv:1712.05877, section 2.4 and appendix A.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxeff.compression._quantized import by_layer, of_inputs, quantized_layer
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._dataflow import programs_of
from jaxeff.compression.integers._kernels import kernel_of
from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.core import validate
from jaxeff.program import Layer, Program, Rule, at_sites

Reader = tuple[int, Layer]
"""Input of a sum that takes codes, and the layer that their grid belongs to."""


@validate()
def integer_aware(
    f: Callable[..., Any], spec: Mapping[str, Method | None], *, keyed: bool = False
) -> Callable[..., Any]:
    """Quantizes the layers of a model, and the shortcuts that `integer` reads as their codes.

    Args:
        f: A pure function `f(params, *args)`, in inference or in training.
        spec: Quantizers by site, as for `quantized`.
        keyed: Whether the result takes a random key first, as for `quantized`.

    Returns:
        A pure function `g(params, *args)`, or `g(key, params, *args)`, differentiable as that of
        `quantized`, and the same where no sum reads codes.

    Raises:
        TypeError: As for `quantized`.
        ValueError: As for `quantized`, on the first call.
    """

    def rule_of(program: Program, settings: Mapping[str, LayerQuantization]) -> Rule:
        bodies = programs_of(program)
        readers = {k: v for body in bodies for k, v in shortcuts(body, settings).items()}
        quantize = at_sites(settings, quantized_layer)

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            if layer in readers:
                values = _as_codes(settings, *readers[layer], key, values)
            return quantize(layer, key, *values)

        return rule

    return by_layer(f, spec, keyed, rule_of)


def shortcuts(program: Program, settings: Mapping[str, LayerQuantization]) -> dict[Layer, Reader]:
    """Finds the sums of a program that an integer network computes with codes.

    Args:
        program: The model.
        settings: Settings of the model's layers, by site.

    Returns:
        For each of them the input that is a shortcut, and the first layer that has its codes.
    """
    makers = {v: layer for layer in program.layers for v in layer.outputs}
    readers: dict[Any, Layer] = {}
    found = {}
    for layer in program.layers:
        if layer.site in settings and _is_product(layer, settings):
            # A value has codes from the first product on that reads it; later sums can take them.
            readers.setdefault(layer.inputs[layer.data[0]], layer)
        elif layer.site not in settings and read.is_sum(layer):
            # As in `integer`: a sum goes into the accumulator of the product with the longest sums,
            # and the other operand is the shortcut.
            depths = [_depth(v, makers, settings) for v in layer.inputs]
            main = depths.index(max(depths))
            other = layer.inputs[1 - main]
            whole = other.aval.shape == layer.inputs[main].aval.shape
            made = other in readers and other in makers and makers[other].kind != "input"
            if depths[main] and whole and made:
                found[layer] = 1 - main, readers[other]
    return found


def _is_product(layer: Layer, settings: Mapping[str, LayerQuantization]) -> bool:
    """Returns whether a layer multiplies codes."""
    return not isinstance(kernel_of(layer, settings[layer.site]), str)


def _depth(v: Any, makers: Mapping[Any, Layer], settings: Mapping[str, LayerQuantization]) -> int:
    """Counts the products per sum of the layer that a value is an affine map of; 0 for none."""
    layer = makers.get(v)
    if layer is None:
        return 0
    if layer.site in settings:
        kernel = kernel_of(layer, settings[layer.site])
        return 0 if isinstance(kernel, str) or not kernel.takes_lines else kernel.depth
    is_norm = layer.kind == "normalization" and v is layer.outputs[0]
    if len(layer.data) == 1 and (is_norm or read.is_line(layer)):
        return _depth(layer.inputs[layer.data[0]], makers, settings)
    return 0


def _as_codes(
    settings: Mapping[str, LayerQuantization],
    at: int,
    reader: Layer,
    key: Any,
    values: Sequence[Any],
) -> tuple[Any, ...]:
    """Quantizes a sum's shortcut on the grid of another reader."""
    i = reader.data[0]
    given = list(values)
    for quantizer, tensor, j in of_inputs(
        reader, settings[reader.site], read.arrays_like(reader), key
    ):
        if j == i:
            given[at] = quantizer.quantize(values[at], tensor)
    return tuple(given)
