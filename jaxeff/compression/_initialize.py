"""`init`: fills in a method's open numbers from a model's parameters and a batch.

```python
import optax
import jax
from jaxeff.compression import LSQ, init, learned
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

f, params, (x, y) = small_classifier()
spec = init(f, params, x[:64], {"*:linear": LSQ(4)})
loss = cross_entropy(learned(f))                         # a function of (params, spec)
run = fit(jax.random.key(0), loss, (params, spec), (x, y),
          optimizer=optax.adam(1e-3), epochs=1, batch_size=32)
params, spec = run.params
```

Sharp edges:
    Numbers are those of the model before quantization.
    A layer in a loop is one layer to a spec: its numbers can be given, but not measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxeff.compression._quantized import (
    Arrays,
    check_spec,
    operands,
    quantized,
    settings_of,
    visiting,
)
from jaxeff.compression.numerics import BaseQuantizer, LayerQuantization, Method, Quantizer, Tensor
from jaxeff.core import input_batch, validate
from jaxeff.program import Layer, evaluate, trace

Found = dict[str, Quantizer]


@validate(batch=input_batch)
def init(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> dict[str, LayerQuantization | None]:
    """Fills in the open numbers of every method of a spec.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        spec: Quantizers by site, as for `quantized`.

    Returns:
        One setting per quantized site, in which every array has a method of its own: numbers that
        were given stay, the others are those of the parameters and of the batch's activations.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: A pattern matches or decides no site, the batch is empty, an array to start from
            isn't finite, or a method would have to measure inside a loop.
    """
    check_spec(spec)
    args = batch if isinstance(batch, tuple) else (batch,)
    if any(np.size(leaf) == 0 for leaf in jax.tree.leaves(args)):
        raise ValueError("init needs a batch with at least one example, but it is empty.")
    program = trace(f, params, *args)
    settings = settings_of(spec, program)
    methods: dict[str, dict[str, tuple[Quantizer, Tensor]]] = {}

    # `methods` is filled while this is traced: it is static, and only arrays leave the program.
    @jax.jit
    def arrays_of(*args: Any) -> dict[str, dict[str, Any]]:
        arrays: dict[str, dict[str, Any]] = {}

        def visit(layer: Layer, found: Arrays) -> None:
            methods[layer.site] = {t.name: (q, t) for q, t, _ in found}
            arrays[layer.site] = {t.name: x for _, t, x in found}

        evaluate(program, visiting(settings, visit), None, jax.tree.leaves((args, {})))
        # What is read inside a loop's body exists in that loop's trace alone.
        outside = {layer.site for layer in program.layers}
        return {site: found for site, found in arrays.items() if site in outside}

    arrays = arrays_of(params, *args)
    started = {
        site: {
            name: _started(quantizer, tensor, arrays.get(site, {}).get(name))
            for name, (quantizer, tensor) in found.items()
        }
        for site, found in methods.items()
    }
    return _spec(program.sites, settings, started)


@validate()
def learned(f: Callable[..., Any], *, keyed: bool = False) -> Callable[..., Any]:
    """Makes the spec a parameter of the quantized function, for a training loop.

    Args:
        f: A pure function `f(params, *args)`.
        keyed: Whether it takes a random key first, as for `quantized`.

    Returns:
        A pure function `g((params, spec), *args)`, or `g(key, (params, spec), *args)`.
    """

    def g(*args: Any, **kwargs: Any) -> Any:
        key = args[:1] if keyed else ()
        (params, spec), *rest = args[len(key) :]
        return quantized(f, spec, keyed=keyed)(*key, params, *rest, **kwargs)

    return g


def _spec(
    layers: Sequence[Layer], settings: Mapping[str, LayerQuantization], started: Mapping[str, Found]
) -> dict[str, LayerQuantization | None]:
    """Builds a spec of one pattern per site; later uses of a layer that stay alone get None."""
    # The pattern of a layer's first use matches later ones, too: None leaves these alone.
    used = {layer.base for layer in layers if started.get(layer.site)}
    spec: dict[str, LayerQuantization | None] = {}
    for layer in layers:
        if layer.base not in used:
            continue
        found = started.get(layer.site)
        spec[layer.site] = None
        if found:
            setting = settings[layer.site]
            weights = [q for name, q in found.items() if name.startswith("weights")]
            count = len(operands(layer, setting) if setting.at == "input" else layer.outputs)
            place = [found.get(f"{setting.at}_{i}") for i in range(count)]
            activations: Any = place[0] if count == 1 else tuple(place)
            spec[layer.site] = replace(
                setting,
                weights=weights[0] if weights else setting.weights,
                activations=None if setting.activations is None else activations,
            )
    return spec


def _started(quantizer: Quantizer, tensor: Tensor, x: Any) -> Quantizer:
    if getattr(type(quantizer), "start", BaseQuantizer.start) is BaseQuantizer.start:
        return quantizer  # has nothing to start from
    if x is None:
        raise ValueError(
            f"{tensor.site!r} lies inside a loop or branch, where {type(quantizer).__name__} can't "
            "be measured; give its numbers."
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"{tensor.site}/{tensor.name} holds NaN or infinity, so {type(quantizer).__name__} has "
            "nothing to start from; look at the parameters and the batch."
        )
    started: Quantizer = quantizer.start(x, tensor)  # type: ignore[attr-defined]
    return started
