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
codes, too. `integer(dynamic=True)` computes ranges in each call and reads no codes in sums: it is
simulated by `quantized`.

References:
    Jacob et al., arXiv:1712.05877, section 2.4 and appendix A.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxeff.compression._quantized import by_layer, of_inputs, quantized_layer
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._dataflow import shortcuts_of
from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.core import validate
from jaxeff.program import Layer, Program, Rule, at_sites


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
        readers = {
            layer: (shortcut.at, shortcut.reader)
            for layer, shortcut in shortcuts_of(program, settings).items()
            if shortcut.reader is not None
        }
        quantize = at_sites(settings, quantized_layer)

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            if layer in readers:
                values = _as_codes(settings, *readers[layer], key, values)
            return quantize(layer, key, *values)

        return rule

    return by_layer(f, spec, keyed, rule_of)


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
