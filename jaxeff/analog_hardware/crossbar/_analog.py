"""`analog`: a model whose dense and convolution layers run on analog crossbars, as a transform.

```python
import jax

from jaxeff.analog_hardware import Crossbar, Linear, analog, partition
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
x = x - x.min()                                           # pulses have no sign
spec = {"fc*:linear": Crossbar(gain=0.02, model=Linear(noise=1.0))}
g = analog(f, spec)
logits = g(jax.random.key(0), params, x)
print(partition(f, params, x, spec))                      # tiles, calls, utilisation, clipping
```

A layer's product is cut into tiles of `rows` by `columns`; every tile is read out and converted on
its own, and the tiles of a column are added digitally. Biases, activations and everything else stay
digital. A convolution sends one patch per position; its groups share tiles along the diagonal.

Sharp edges:
    Inputs are unsigned. Eager calls refuse a negative activation; under `jit`, where values can't
    be looked at, the layer's result is NaN, which `fit` reports, instead of a silent wrong number.
    Gradients are straight-through with those of clamping: none where a code or a column is clamped.
    A step that is None follows the largest value of every call, so that an example's result
    depends on its batch; `calibrate_ranges` fixes steps.
    Every tile is the same piece of hardware, written anew: a fixed pattern repeats over tiles.
    `analog` around `quantized` or `pruned` takes what these leave. Around `analog`, they find tiles
    in the place of a matrix: `quantized` has scales per tensor only, `pruned` refuses. Noise around
    it comes after the read-out. `jaxeff.moments` takes what a crossbar changes from `read_out`.

Source: Klein's thesis, section 5.2; Klein et al., "Towards addressing noise and static variations
of analog computations using efficient retraining" (2021).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.analog_hardware.crossbar._crossbar import Crossbar
from jaxeff.analog_hardware.crossbar._multiply import Counts, on_crossbar
from jaxeff.core import check_function, single_key, validate
from jaxeff.program import (
    check_settings,
    interpret_sites,
    read_out,
    read_out_by,
    resolve,
)
from jaxeff.program.ir import Layer, Program

ChipAt = Callable[[str], Counts]
"""Function that computes the counts of a site in place of the model."""


@validate()
def analog(f: Callable[..., Any], spec: Mapping[str, Crossbar | None]) -> Callable[..., Any]:
    """Runs dense and convolution layers of a model on analog crossbars.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of linear sites to `Crossbar` settings; the most specific pattern
            decides, and None leaves a layer alone (`jaxeff.program`).

    Returns:
        A pure function `g(key, params, *args)` with the result of `f` on such hardware.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `Crossbar` settings.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, one decides a site that isn't linear, or a layer reads negative
            activations or nothing.
    """
    return with_chip(f, spec, None)


def with_chip(
    f: Callable[..., Any], spec: Mapping[str, Crossbar | None], chip: ChipAt | None
) -> Callable[..., Any]:
    """Computes `analog` with the counts of a chip, if there is one, and the models' gradients."""
    check_function("analog: f", f)
    check_crossbars(spec)

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        single_key("the first argument, a key,", key)

        def rule(
            array: Crossbar, layer: Layer, site_key: PRNGKeyArray, *values: Any
        ) -> Sequence[Any]:
            counts = None if chip is None else chip(layer.site)
            outputs = on_crossbar(array, layer, site_key, values, counts)
            return [
                # Marked, so that a transform around this one knows where products are read out.
                y if v.spread else read_out(y, "analog")
                for v, y in zip(layer.outputs, outputs, strict=True)
            ]

        arrays = functools.partial(crossbars, spec)
        return interpret_sites(f, arrays, rule, key, args, kwargs, "analog")

    return g


def check_crossbars(spec: Any) -> None:
    """Checks that a spec maps patterns to crossbars or None.

    Raises:
        TypeError: It doesn't.
    """
    check_settings(spec, Crossbar, "a Crossbar, such as Crossbar(gain=0.004)")


def crossbars(spec: Mapping[str, Crossbar | None], program: Program) -> dict[str, Crossbar]:
    """Resolves a spec to one crossbar per site.

    Raises:
        SpecError: As `jaxeff.program.resolve`.
        ValueError: A site isn't linear, or has no weights.
    """
    found = resolve(spec, program)
    for layer in program.sites:
        # A product with a constant of the program is linear too, but there is nothing to program.
        if layer.site in found and layer.kind == "linear" and not layer.weights:
            raise ValueError(
                f"A crossbar holds weights, but {layer.site!r} multiplies by a constant that the "
                f"function computes; leave it out with {{..., {layer.site!r}: None}}."
            )
        if layer.site in found and layer.kind != "linear":
            raise ValueError(
                f"A crossbar holds weights and multiplies, but {layer.site!r} is {layer.kind}; "
                "narrow the pattern, for example to '*:linear'."
            )
        # A tile has one current for a number: complex products are several real ones.
        if layer.site in found and jnp.issubdtype(layer.outputs[0].aval.dtype, jnp.complexfloating):
            raise ValueError(
                f"A crossbar multiplies real numbers, but {layer.site!r} multiplies complex ones; "
                f"multiply their parts, or leave it out with {{..., {layer.site!r}: None}}."
            )
        if layer.site in found and (transform := read_out_by(layer.nodes)):
            raise ValueError(
                f"analog can't act on {layer.site!r}, which {transform} reads out already; leave "
                "it out with None, here or there."
            )
    return found
