"""`photonic`: a model whose layers are carried by chaotic light, and what light adds to them.

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.photonics import ChaoticLight, PhotonicWeights, photonic

f, params, (x, y) = small_classifier()
g = photonic(f, {"avg_pool*": ChaoticLight(noise=0.5, slots=8), "fc2": PhotonicWeights()})
logits = g(jax.random.key(0), params, x)
```

`read_out` gives what light adds to each layer on a batch, as noise that `jaxeff.moments`
integrates.

```python
import jaxeff
from jaxeff.photonics import read_out

noise = read_out(f, params, x, {"avg_pool*": ChaoticLight(noise=0.5)})
logits = jaxeff.moments(f, noise=noise)(params, x)      # one pass in the place of many readings
```
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxeff import core
from jaxeff.noise import ReadOut
from jaxeff.photonics._pooling import PhotonicElement, ReadElement
from jaxeff.program import (
    Layer,
    Program,
    check_settings,
    evaluate,
    interpret_sites,
    plain_rule,
    read_out_by,
    resolve,
    trace,
)
from jaxeff.program.reading import argument_leaves

WANTED = "a ChaoticLight, such as ChaoticLight(0.5), a PhotonicWeights or a PhotonicProduct"


@core.validate()
def photonic(
    f: Callable[..., Any], spec: Mapping[str, PhotonicElement | None]
) -> Callable[..., Any]:
    """Carries layers of a model by chaotic light.

    Each matched pooling layer becomes quantized ReLU, average pooling and noise; see `ChaoticLight`
    for the two models and their limits. A matched dense or convolution layer becomes a crossbar
    (`PhotonicWeights`), and so does a product of two activations (`PhotonicProduct`). A noise level
    per activation is learnt with `jaxeff.photonics.replace_levels`.

    Sharp edges:
        Same key, same noise: split the key for another draw.
        What enters a matched layer passes a ReLU; negative values are lost, as light can't carry
        them, but where an element measures them separately (`inputs="signed"`).
        Shifts (what a quantized ReLU, transmissions and the light's positivity change) are those of
        a pass without noise, and variances pass later layers as those of the layer without light:
        both are right to first order in the noise.
        Readings are taken as independent: of carriers that fan out to several outputs, and of
        wavelength channels that are alike, only variances are known, not covariances.
        Levels of amplitude and saturation are the physical model's, and aren't in it.
        What `read_out` gives belongs to its batch.

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
    f = core.read_once(f)

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        core.single_key("the first argument, a key,", key)
        elements = functools.partial(carried, spec)
        return interpret_sites(f, elements, carry, key, args, kwargs, "photonic")

    return g


def carried(
    spec: Mapping[str, PhotonicElement | None], program: Program
) -> dict[str, PhotonicElement]:
    """Returns the element at every site that has one."""
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


@core.validate(batch=core.input_batch)
def read_out(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, PhotonicElement | None]
) -> dict[str, ReadOut]:
    """Measures the noise that light adds to each layer: a noise spec for `jaxeff.moments`.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        spec: Same as for `jaxeff.photonic`.

    Returns:
        By site, the shift of the layer's result and the variance of its reading.

    Raises:
        TypeError: The spec isn't a mapping from patterns to such settings.
        ValueError: As `jaxeff.photonic`; or an element doesn't know its variance, or a site lies in
            a loop or branch.
    """
    check_settings(spec, PhotonicElement, WANTED)
    args = core.as_arguments(batch)
    program = trace(f, params, *args)
    elements = carried(spec, program)
    if inside := sorted(set(elements) - {layer.site for layer in program.layers}):
        raise ValueError(
            f"read_out: {inside[0]!r} lies inside a loop or branch, where values can't be looked "
            "at; leave it out with None."
        )
    read_outs: dict[str, ReadOut] = {}

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        outputs = list(plain_rule(layer, key, *values))
        element = elements.get(layer.site)
        if element is None:
            return outputs
        if not isinstance(element, ReadElement):
            raise ValueError(
                f"read_out: {type(element).__name__} at {layer.site!r} doesn't know its variance "
                "(no method read); draw samples of jaxeff.photonic instead."
            )
        (at,) = (i for i, v in enumerate(layer.outputs) if not v.spread)
        # The element's own pass at the noiseless values: shifts and variances to first order.
        mean, variance = jax.jit(lambda *operands: element.read(layer, operands))(*values)
        read_outs[layer.site] = ReadOut(mean - outputs[at], variance)
        # Later layers see what light makes of this one: shifts add up along the network.
        outputs[at] = mean
        return outputs

    evaluate(program, rule, None, argument_leaves((params, *args), {}))
    return read_outs
