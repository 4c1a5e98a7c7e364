"""`read_out`: what light adds to each layer on a batch, as noise that `jaxeff.moments` integrates.

```python
import jax

import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.photonics import ChaoticLight, read_out

f, params, (x, y) = small_classifier()
noise = read_out(f, params, x, {"avg_pool*": ChaoticLight(noise=0.5)})
logits = jaxeff.moments(f, noise=noise)(params, x)      # one pass in the place of many readings
```

Sharp edges:
    Shifts (what a quantized ReLU, transmissions and the light's positivity change) are those of a
    pass without noise, and variances pass later layers as those of the layer without light: both
    are right to first order in the noise.
    Readings are taken as independent: of carriers that fan out to several outputs, and of
    wavelength channels that are alike, only variances are known, not covariances.
    Levels of amplitude and saturation are the physical model's, and aren't in it.
    It belongs to this batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxeff.core import check_function, check_params, input_batch, validate
from jaxeff.noise import ReadOut
from jaxeff.photonics._photonic import WANTED, carried
from jaxeff.photonics.elements import PhotonicElement, ReadElement
from jaxeff.program import Layer, check_settings, evaluate, plain_rule, trace
from jaxeff.program.reading import argument_leaves


@validate(x=input_batch)
def read_out(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    spec: Mapping[str, PhotonicElement | None],
    *args: Any,
) -> dict[str, ReadOut]:
    """Measures the noise that light adds to each layer: a noise spec for `jaxeff.moments`.

    Args:
        f: A pure function `f(params, x, *args)`.
        params: The parameters of `f`.
        x: A batch.
        spec: Same as for `jaxeff.photonic`.
        *args: Further arguments of `f`.

    Returns:
        By site, the shift of the layer's result and the variance of its reading.

    Raises:
        TypeError: The spec isn't a mapping from patterns to such settings.
        ValueError: As `jaxeff.photonic`; or an element doesn't know its variance, or a site lies in
            a loop or branch.
    """
    check_function("read_out: f", f)
    check_params("read_out: params", params)
    check_settings(spec, PhotonicElement, WANTED)
    program = trace(f, params, x, *args)
    elements = carried(spec, program)
    if inside := sorted(set(elements) - {layer.site for layer in program.layers}):
        raise ValueError(
            f"read_out: {inside[0]!r} lies inside a loop or branch, where values can't be looked "
            "at; leave it out with None."
        )
    found: dict[str, ReadOut] = {}

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
        mean, variance = jax.jit(lambda *given: element.read(layer, given))(*values)
        found[layer.site] = ReadOut(mean - outputs[at], variance)
        # Later layers see what light makes of this one: shifts add up along the network.
        outputs[at] = mean
        return outputs

    evaluate(program, rule, None, argument_leaves((params, x, *args), {}))
    return found
