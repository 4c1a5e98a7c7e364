"""`photonic`: a model whose average pooling is carried by chaotic light, as a transform.

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.photonics import ChaoticLight, photonic

f, params, (x, y) = small_classifier()
g = photonic(f, {"avg_pool*": ChaoticLight(noise=0.5, slots=8)})
logits = g(jax.random.key(0), params, x)
```

Each matched pooling layer becomes quantized ReLU, average pooling and noise; see
`jaxeff.photonics.pooling` for the two models and their limits. To learn the noise, build the
setting from a trained parameter inside the loss: `ChaoticLight(noise=jax.nn.sigmoid(rho))`.

Sharp edges:
    Same key, same noise: split the key for another draw.
    What enters a matched layer passes a ReLU; negative values are lost, as light can't carry them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import PRNGKeyArray

from jaxeff.arguments import check_key
from jaxeff.photonics.chaotic_light import ChaoticLight
from jaxeff.photonics.pooling import probabilistic_pooling
from jaxeff.program import Layer, Program, interpret, plain
from jaxeff.program import primitives as prim
from jaxeff.program.evaluation import Rule
from jaxeff.program.spec import check_settings, resolve

_SUMS = {prim.p.reduce_window_sum_p, prim.p.reduce_sum_p}
_SCALES = {prim.p.div_p, prim.p.mul_p}


def photonic(f: Callable[..., Any], spec: Mapping[str, ChaoticLight | None]) -> Callable[..., Any]:
    """Carries average pooling layers of a model by chaotic light.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of average pooling sites to `ChaoticLight` settings; the most specific
            pattern decides, and None leaves a layer alone (`jaxeff.program.spec`).

    Returns:
        A pure function `g(key, params, *args)` with the result of `f` under chaotic light.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `ChaoticLight` settings.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, or one decides a site that isn't an average pooling or a mean.
    """
    check_settings(spec, ChaoticLight, "a ChaoticLight, such as ChaoticLight(0.5)")

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        check_key("the first argument, a key,", key)

        def make_rule(program: Program) -> Rule | None:
            lights = resolve(spec, program)
            for layer in program.sites:
                if layer.site in lights and not _is_average(layer):
                    raise ValueError(
                        f"Chaotic light can carry average pooling only, but {layer.site!r} is "
                        f"{layer.kind}; narrow the pattern, for example to 'avg_pool*'."
                    )
            return functools.partial(rule, lights) if lights else None

        def rule(
            lights: Mapping[str, ChaoticLight],
            layer: Layer,
            site_key: PRNGKeyArray,
            *values: Any,
        ) -> Sequence[Any]:
            light = lights.get(layer.site)
            if light is None:
                return plain(layer, site_key, *values)
            (i,) = (i for i in layer.data if not layer.inputs[i].spread)
            (carried,) = (i for i, v in enumerate(layer.outputs) if not v.spread)

            def pool(x: Any) -> Any:
                return layer.fn(*values[:i], x, *values[i + 1 :])[carried]

            outputs = list(layer.fn(*values))
            outputs[carried] = probabilistic_pooling(site_key, values[i], light, pool)
            return outputs

        return interpret(f, make_rule, key, args, kwargs)

    return g


def _is_average(layer: Layer) -> bool:
    found = {node.primitive for node in layer.nodes}
    averages = bool(found & _SUMS) and bool(found & _SCALES)
    carried = [i for i in layer.data if not layer.inputs[i].spread]
    results = [v for v in layer.outputs if not v.spread]
    single = len(carried) == len(results) == 1
    return layer.kind in {"pooling", "reduction"} and averages and single
