"""Draws random weights from trained distributions over discrete values.

```python
from jaxeff import moments
from jaxeff.compression import Discrete, LayerQuantization, init, random_weights
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(4)
spec = init(f, params, x, {"fc2": LayerQuantization(Discrete())})       # ternary weights
posterior = random_weights(f, spec, params, x)
assert posterior["fc2"]["kernel"].var.shape == params["fc2"]["kernel"].shape
logits = moments(f)(posterior, x)                        # their mean and variance, in one pass
```
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxeff.compression._quantized import check_spec, of_inputs, settings_of
from jaxeff.compression.numerics import Method
from jaxeff.compression.quantizers import Discrete
from jaxeff.core import validate
from jaxeff.program import trace


@validate()
def random_weights(
    f: Callable[..., Any], spec: Mapping[str, Method | None], params: Any, *args: Any
) -> Any:
    """Replaces discrete weights by the distributions that a spec has for them.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Quantizers by site, as for `quantized`; what isn't `Discrete` plays no part.
        params: The parameters of `f`.
        *args: Further arguments of `f`; shapes are enough.

    Returns:
        A pytree like `params` with a `Gaussian` for each of them, for `jaxeff.moments`,
        `jaxeff.moment_propagation.sampled` and whatever takes a mean-field posterior.

    Raises:
        ValueError: Two layers read one such weight, or it reaches its product changed.
    """
    check_spec(spec)
    program = trace(f, params, *args)
    settings = settings_of(spec, program)
    leaves, structure = jax.tree.flatten(params)
    position = {v: i for i, v in enumerate(program.inputs[: len(leaves)])}
    taken: dict[int, str] = {}
    for layer in program.walk():
        setting = settings.get(layer.site)
        if setting is None or not isinstance(setting.weights, Discrete):
            continue
        for quantizer, tensor, i in of_inputs(layer, setting, [v.aval for v in layer.inputs]):
            if not isinstance(quantizer, Discrete):
                continue
            # A leaf holds one distribution, and only a parameter itself is a leaf.
            at = position.get(layer.inputs[i])
            if at is None or at in taken:
                why = (
                    "reaches its product in another form"
                    if at is None
                    else (f"is read by {taken[at]!r}, too")
                )
                raise ValueError(
                    f"The weight of {layer.site!r} {why}, so it has no distribution of its own; "
                    "leave the layer out of the spec, or draw its weights: quantized(f, spec, "
                    "keyed=True)."
                )
            taken[at] = layer.site
            leaves[at] = quantizer.gaussian(leaves[at], tensor)
    return jax.tree.unflatten(structure, leaves)
