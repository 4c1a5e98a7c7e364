"""`calibrate`: ranges measured on data, as settings for `quantized`.

```python
from jaxeff.compression import Int, calibrate, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = calibrate(f, params, [x[:128], x[128:]], {"*": Int(8), "fc2": None})
logits = quantized(f, spec)(params, x)
spec = calibrate(f, params, [x], {"*:linear": Int(4)}, method="mse", weights=True)
```

Sharp edges:
    Ranges are those of the model before quantization.
    Only `Int` and `Uniform` without a range are measured; other methods start by `init`.
    This is host code: it runs over the batches once and can't be traced.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.compression._quantized import applies, of_inputs, of_outputs
from jaxeff.compression.numerics import LayerQuantization, Tensor
from jaxeff.compression.numerics import parts as parts_of
from jaxeff.compression.post_training.ranges._clipping import METHODS, clip_range
from jaxeff.compression.post_training.ranges._observer import Observer, known_width
from jaxeff.compression.quantizers import Int, Uniform
from jaxeff.core import check_choice, check_number, input_batches, number, spec_of, validate
from jaxeff.program import Layer, Program, check_settings, evaluate, plain_rule, resolve, trace

Measured = Int | Uniform | LayerQuantization
_Found = list[tuple[Uniform, Tensor, Any, int]]


@validate(percentile=number(above=0, high=100), batches=input_batches, spec=spec_of())
def calibrate(
    f: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    spec: Mapping[str, Measured | None],
    *,
    method: str | None = None,
    percentile: float | None = None,
    weights: bool = False,
) -> dict[str, Any]:
    """Measures the range of every activation that a spec quantizes on a uniform grid.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batches: Batches of one shape each: `args` as a tuple, or the only one of them.
        spec: Maps patterns of sites to `Int`, `Uniform` or `LayerQuantization` settings.
        method: "minmax" takes the smallest and largest value seen. "percentile" takes a percentile
            and its counterpart in every batch, averaged over batches, so that outliers are clamped.
            "mse" and "kl" clip where the squared error, or the divergence of the distributions, is
            least (`jaxeff.compression.clip_range`), on a histogram of all batches. None is
            "minmax", or "percentile" where one below 100 is given.
        percentile: Above 50, at most 100; 99.9 for "percentile" where none is given.
        weights: Whether ranges of weights are measured by the same method, those that
            `Uniform.per` says. They stay what they are then while parameters change.

    Returns:
        A spec with one setting per quantized site, those measured with a fixed range. An `Int`
        whose weights are measured becomes a `LayerQuantization`.

    Raises:
        TypeError: The spec isn't a mapping from patterns to such settings.
        ValueError: There are no batches or an empty one, `percentile` isn't above 50 and at most
            100 or belongs to another method, a pattern matches or decides no site, a layer was
            never reached or gave values that aren't finite, or a width has to be known and isn't.
    """
    kinds: Any = Measured
    check_settings(spec, kinds, "an Int, such as Int(8), a Uniform or a LayerQuantization of them")
    method, percentile = _method(method, percentile)
    observer = Observer(method, percentile)
    settings: dict[str, Any] = {}
    kept: dict[str, tuple[Uniform, tuple[int, ...]]] = {}

    @jax.jit
    def observe(*args: Any) -> dict[str, Any]:
        program = trace(f, *args)
        found = resolve(spec, program, applies, "an integer grid")
        settings.update(_by_site(program, found))
        # Weights inside loops have no single array here: they keep their own range.
        outside = {layer.site for layer in program.layers}
        arrays: dict[str, Any] = {}

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            setting = found.get(layer.site)
            outputs = plain_rule(layer, key, *values)
            if setting is None:
                return outputs
            for quantizer, tensor, x, operand in _open(layer, setting, values, outputs):
                if tensor.role == "activation":
                    observer.observe((layer.site, operand), quantizer, x)
                elif weights and layer.site in outside:
                    kept[layer.site] = quantizer, tensor.axes(quantizer.per)
                    arrays[layer.site] = x
            return outputs

        evaluate(program, rule, None, jax.tree.leaves((args, {})))
        return arrays

    arrays = _run(observe, params, batches)
    for site, found in observer.ranges().items():
        settings[site] = _with_ranges(settings[site], found)
    for site, (quantizer, axes) in kept.items():
        both = _weight_range(site, arrays[site], axes, quantizer, method, percentile)
        apart = parts_of(settings[site])
        fixed = dataclasses.replace(quantizer, range=both)
        settings[site] = dataclasses.replace(apart, weights=fixed)
    return settings


def _run(
    observe: Callable[..., dict[str, Any]], params: Any, batches: Iterable[Any]
) -> dict[str, Any]:
    """Runs the model on all batches, and gives the arrays of the last: weights are equal in all."""
    arrays: dict[str, Any] | None = None
    for batch in batches:
        args = batch if isinstance(batch, tuple) else (batch,)
        if any(np.size(leaf) == 0 for leaf in jax.tree.leaves(args)):
            raise ValueError("calibrate needs batches with at least one example, but one is empty.")
        arrays = observe(params, *args)
    # Callbacks run asynchronously: wait until all of them have recorded.
    jax.effects_barrier()
    if arrays is None:
        raise ValueError("calibrate needs at least one batch, but there is none.")
    return arrays


def _method(method: str | None, percentile: float | None) -> tuple[str, float]:
    """Returns the method, and the percentile that it takes."""
    if percentile is not None:
        check_number("percentile", percentile, high=100, above=50)
    if method is None:
        method = "minmax" if percentile in (None, 100) else "percentile"
    check_choice("method", method, METHODS)
    if percentile is not None and method != "percentile" and percentile != 100:
        raise ValueError(f'percentile={percentile} belongs to method="percentile", not {method!r}.')
    return method, 99.9 if percentile is None else percentile


def _open(layer: Layer, setting: Measured, values: Sequence[Any], outputs: Sequence[Any]) -> _Found:
    """Lists a layer's uniform grids without a range, with their arrays and operands' numbers."""
    apart = parts_of(setting)
    arrays = [(q, t, values[i]) for q, t, i in of_inputs(layer, apart, values)]
    arrays += [(q, t, outputs[i]) for q, t, i in of_outputs(layer, apart, outputs)]
    return [
        (q, t, x, int(t.name.rpartition("_")[2]))
        for q, t, x in arrays
        if isinstance(q, Uniform) and q.range is None
    ]


def _with_ranges(setting: Measured, found: Mapping[int, tuple[float, float]]) -> Measured:
    """Returns a setting with the ranges of its activations, by operand."""
    if isinstance(setting, Int):
        low, high = np.array([found[i] for i in sorted(found)], np.float32).T
        # A single activation has plain numbers, several have arrays with an entry for each.
        if len(low) == 1:
            low, high = low[0], high[0]
        return dataclasses.replace(setting, range=(jnp.asarray(low), jnp.asarray(high)))
    apart = parts_of(setting)
    count = max(found) + 1
    given = apart.activations
    if isinstance(given, tuple):
        count = len(given)
    methods = list(given) if isinstance(given, tuple) else [given] * count
    for i, (low, high) in found.items():
        both = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
        grid: Any = methods[i]
        methods[i] = dataclasses.replace(grid, range=both)
    one = not isinstance(given, tuple) and count == 1
    return dataclasses.replace(apart, activations=methods[0] if one else tuple(methods))


def _weight_range(
    site: str, w: Any, axes: Sequence[int], grid: Uniform, method: str, percentile: float
) -> tuple[Any, Any]:
    """Measures the range of a weight, or of each of its output channels."""
    values = np.asarray(w, np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"The weight of {site!r} holds NaN or infinity.")
    axes = [a % values.ndim for a in axes]
    rest = [a for a in range(values.ndim) if a not in axes]
    shape = tuple(n if a in axes else 1 for a, n in enumerate(values.shape)) if axes else ()
    # One row per range.
    flat = values.transpose(axes + rest).reshape(int(np.prod(shape)), -1)
    width = known_width(site, grid) if method in {"mse", "kl"} else 8
    ends = [
        clip_range(row, width, symmetric=grid.symmetric, method=method, percentile=percentile)
        for row in flat
    ]
    low, high = (jnp.asarray(np.array(e).reshape(shape), w.dtype) for e in zip(*ends, strict=True))
    return low, high


def _by_site(program: Program, found: Mapping[str, Measured]) -> dict[str, Measured | None]:
    """Returns the settings that quantize something, one pattern per site."""
    used = {
        layer.base
        for layer in program.sites
        if layer.site in found and applies(layer, found[layer.site])
    }
    # A first use is a pattern for later uses too, so those left alone say None for themselves.
    chosen = {layer.site: layer for layer in program.sites if layer.base in used}
    return {
        site: found[site] if site in found and applies(layer, found[site]) else None
        for site, layer in chosen.items()
    }
