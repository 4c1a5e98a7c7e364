"""`noisy`: a model with analog noise at chosen layers, as a transform of its function.

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, Multiplicative, noisy

f, params, (x, y) = small_classifier()
g = noisy(f, {"conv*": Additive(0.3), "relu*": Multiplicative(0.1)})
logits = g(jax.random.key(0), params, x)
```

Sharp edges:
    Same key, same noise: split the key for another draw. A layer's noise depends only on the key
    and the layer's name, so making another layer noisy doesn't change it. What belongs to a device
    (drift, mismatch) depends on the device and the layer's name alone.
    `at="weights"` acts on the weights of dense and convolution layers, never on biases or on a
    normalization's scale. It draws noise for every use of a weight, as an analog read-out would,
    and in every iteration of a scan.
    Integer and boolean values (an argmax, an index) are left alone.
    An outer transform acts first on what enters a layer and last on what leaves it; around
    `moments`, noise shifts means and leaves variances alone.
"""

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.arguments import check_key
from jaxeff.noise.protocol import Noise, check_noise, perturb_at, place
from jaxeff.program import Layer, Program, interpret, plain
from jaxeff.program.evaluation import Rule
from jaxeff.program.spec import resolve


def noisy(f: Callable[..., Any], spec: Mapping[str, Noise | None]) -> Callable[..., Any]:
    """Perturbs the layers of a model.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to noise models; the most specific pattern decides, and None
            leaves a layer alone (`jaxeff.program.spec`).

    Returns:
        A pure function `g(key, params, *args)` with the result of `f` under noise.

    Raises:
        TypeError: The spec isn't a mapping from patterns to noise models.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, or a noise model names weights where none of its layers has any.
    """
    check_noise(spec)

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        check_key("the first argument, a key,", key)

        def make_rule(program: Program) -> Rule | None:
            models = resolve(spec, program, applies, "noise to perturb")
            return functools.partial(rule, models) if models else None

        def rule(
            models: Mapping[str, Noise], layer: Layer, site_key: PRNGKeyArray, *values: Any
        ) -> Sequence[Any]:
            model = models.get(layer.site)
            if model is None:
                return plain(layer, site_key, *values)
            inputs = list(values)
            for i in places(layer, model):
                inputs[i] = _perturb(model, site_key, layer, i, inputs[i])
            outputs = plain(layer, site_key, *inputs)
            if place(model) != "output":
                return outputs
            return [
                y if layer.outputs[i].spread else _perturb(model, site_key, layer, i, y)
                for i, y in enumerate(outputs)
            ]

        return interpret(f, make_rule, key, args, kwargs)

    return g


def places(layer: Layer, model: Noise) -> list[int]:
    """The inputs of a layer that a model perturbs, as indices."""
    if place(model) == "input":
        return list(layer.data) if layer.kind != "input" else [0]
    if place(model) == "weights":
        return list(layer.weights) if layer.kind == "linear" else []
    return []


def applies(layer: Layer, model: Noise) -> bool:
    """Whether a model has something to perturb at a layer."""
    return bool(layer.outputs if place(model) == "output" else places(layer, model))


def _perturb(model: Noise, site_key: PRNGKeyArray, layer: Layer, i: int, x: Any) -> Any:
    """Perturbs the i-th value of a layer, unless it holds no real numbers."""
    if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        return x
    site = zlib.crc32(f"{layer.site}/{i}".encode())
    return perturb_at(model, jax.random.fold_in(site_key, i), site, x)
