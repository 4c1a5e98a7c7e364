"""`photonic`: a model whose layers are carried by chaotic light, as a transform.

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.photonics import ChaoticLight, PhotonicWeights, photonic

f, params, (x, y) = small_classifier()
g = photonic(f, {"avg_pool*": ChaoticLight(noise=0.5, slots=8), "fc2": PhotonicWeights()})
logits = g(jax.random.key(0), params, x)
```

Each matched pooling layer becomes quantized ReLU, average pooling and noise; see
`jaxeff.photonics.elements` for the two models and their limits. A matched dense or convolution
layer becomes a crossbar (same package), and so does a product of two activations. A noise level
per activation is learnt with `jaxeff.photonics.replace_levels`.

Sharp edges:
    Same key, same noise: split the key for another draw.
    What enters a matched layer passes a ReLU; negative values are lost, as light can't carry them,
    but where an element measures them separately (`inputs="signed"`).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import PRNGKeyArray

from jaxeff.core import single_key, validate
from jaxeff.photonics.elements import PhotonicElement
from jaxeff.program import check_settings, interpret_sites, read_out_by, resolve
from jaxeff.program.ir import Layer, Program

WANTED = "a ChaoticLight, such as ChaoticLight(0.5), a PhotonicWeights or a PhotonicProduct"


@validate()
def photonic(
    f: Callable[..., Any], spec: Mapping[str, PhotonicElement | None]
) -> Callable[..., Any]:
    """Carries layers of a model by chaotic light.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to `ChaoticLight` for average poolings, `PhotonicWeights`
            for dense and convolution layers, and `PhotonicProduct` for products of activations; the
            most specific pattern decides, and None leaves a layer alone (`jaxeff.program`).

    Returns:
        A pure function `g(key, params, *args)` with the result of `f` under chaotic light.

    Raises:
        TypeError: The spec isn't a mapping from patterns to such settings.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, or one decides a site that its setting can't carry.
    """
    check_settings(spec, PhotonicElement, WANTED)

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        single_key("the first argument, a key,", key)
        elements = functools.partial(carried, spec)
        return interpret_sites(f, elements, carry, key, args, kwargs, "photonic")

    return g


def carried(
    spec: Mapping[str, PhotonicElement | None], program: Program
) -> dict[str, PhotonicElement]:
    """Returns the element at every site that has one.

    Raises:
        ValueError: One can't carry its layer.
    """
    elements: dict[str, PhotonicElement] = resolve(spec, program)
    for layer in program.sites:
        if layer.site in elements and (transform := read_out_by(layer.nodes)):
            raise ValueError(
                f"photonic can't act on {layer.site!r}, which {transform} reads out already; leave "
                "it out with None, here or there."
            )
        reason = elements[layer.site].refuses(layer) if layer.site in elements else ""
        if reason:
            raise ValueError(f"{reason}, but {layer.site!r} is {layer.kind}; narrow the pattern.")
    return elements


def carry(element: PhotonicElement, layer: Layer, key: PRNGKeyArray, *values: Any) -> Sequence[Any]:
    """Evaluates a layer by its element: the rule of `photonic`, at its sites."""
    return element.carry(key, layer, values)
