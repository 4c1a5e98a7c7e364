"""Noise slots of a network: the computations after which the source injects noise.

In a network that is a chain, every computation is a slot: the input, dense and convolution layers,
normalizations, activations, poolings. In a residual network the accounting is that of folded
hardware: convolutions (those of shortcuts included), poolings and dense layers have slots, but
normalization belongs to its convolution, an addition to the activation after it, and an activation
inside a branch has none.

| network | slots |
|---|---|
| MLP of three hidden layers | 8, with batch norm 11 |
| LeNet-5 | 12, with batch norm 16 |
| VGG-11 | 27 |
| ResNet-18 | 33: input, 20 convolutions, 9 ReLUs, 2 poolings, dense |

`noisy(f, {site: model for site in slots(f, params, x)})` is the source's global noise; for a chain
it is that of `{"*": model}`.

References:
    Borras et al., "Walking Noise", arXiv:2212.10430; Wang et al., arXiv:2501.14531.

```python
import jax

from jaxeff import Additive, noisy
from jaxeff.nn import small_classifier
from jaxeff.noise import slots

f, params, (x, y) = small_classifier(10)
everywhere = {site: Additive(0.1) for site in slots(f, params, x)}
noisy(f, everywhere)(jax.random.key(0), params, x)
```
"""

from collections.abc import Callable
from typing import Any

from jaxeff.core import validate
from jaxeff.program import Layer, Program, trace


@validate()
def slots(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> list[str]:
    """Lists the sites of a network's noise slots, in order of execution.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        *args: Further arguments of `f`; shapes are enough.
        **kwargs: Keyword arguments of `f`.

    Returns:
        Names of sites.
    """
    program = trace(f, params, *args, **kwargs)
    # Asked of the whole network: a loop body without branches follows the accounting around it.
    is_residual = any(_joins(layer) for layer in program.walk() if layer.is_matchable)
    return _slots(program, is_residual)


def _slots(program: Program, is_residual: bool) -> list[str]:
    trunk = _trunk(program) if is_residual else set()
    sites: list[str] = []
    for layer in program.layers:
        if layer.kind == "control flow":
            sites += [site for body in layer.programs for site in _slots(body, is_residual)]
        elif layer.is_matchable and (not is_residual or _is_residual_slot(layer, trunk)):
            sites.append(layer.site)
    return sites


def _joins(layer: Layer) -> bool:
    """Tells whether branches meet at a layer."""
    return layer.kind == "elementwise" and len(layer.data) > 1


def _is_residual_slot(layer: Layer, trunk: set[str]) -> bool:
    if layer.kind == "elementwise":
        return layer.site in trunk and not _joins(layer)
    return layer.kind != "normalization"


def _trunk(program: Program) -> set[str]:
    """Finds the sites outside all branches: all that is read later depends on their result."""
    layers = [layer for layer in program.layers if not layer.auxiliary]
    # Later readers overwrite earlier ones, so the last one stays; results are read at the end.
    last_reader = {v: i for i, layer in enumerate(layers) for v in layer.inputs if v.is_data}
    last_reader |= {v: len(layers) for v in program.outputs if v in last_reader}
    live = {v for v in program.inputs if v.is_data}
    trunk: set[str] = set()
    for i, layer in enumerate(layers):
        # A value is live while a later layer or the result still reads it.
        live = {v for v in (*live, *layer.outputs) if last_reader.get(v, -1) > i}
        # Nothing older is live: every path to the result leads through this layer.
        if live <= set(layer.outputs):
            trunk.add(layer.site)
    return trunk
