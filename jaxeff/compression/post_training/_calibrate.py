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
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxeff.compression._quantized import applies, of_inputs, of_outputs
from jaxeff.compression.numerics import LayerQuantization, Tensor
from jaxeff.compression.numerics import parts as parts_of
from jaxeff.compression.post_training._ranges import (
    METHODS,
    Histogram,
    clip_histogram,
    clip_range,
    count,
)
from jaxeff.compression.quantizers.uniform import Int, Uniform
from jaxeff.core import (
    batches,
    check_choice,
    check_number,
    function,
    is_concrete,
    number,
    settings,
    takes,
    tree,
)
from jaxeff.program import Layer, Program, check_settings, evaluate, plain, resolve, trace

Measured = Int | Uniform | LayerQuantization
_Place = tuple[str, int]
_Found = list[tuple[Uniform, Tensor, Any, int]]


@takes(
    f=function, params=tree, percentile=number(above=0, high=100), batches=batches, spec=settings()
)
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
        params: Its parameters.
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
    ends: dict[_Place, list[tuple[float, float]]] = defaultdict(list)
    histograms: dict[_Place, Histogram] = {}
    settings: dict[str, Any] = {}
    measured: dict[_Place, Uniform] = {}  # in order

    def record(place: _Place, low: Any, high: Any) -> None:
        ends[place].append((float(low), float(high)))

    def record_counts(place: _Place, low: Any, high: Any, counts: Any, exponent: Any) -> None:
        record(place, low, high)
        here = Histogram(np.asarray(counts, np.float64), int(exponent), float(low), float(high))
        # Borders are powers of two, so histograms of batches add exactly, whatever their ranges.
        histograms[place] = histograms[place] + here if place in histograms else here

    def measure(place: _Place, x: Any) -> None:
        if not x.size:
            raise ValueError(f"The layer {place[0]!r} reads an empty array while calibrating.")
        if method == "percentile":
            # On the device: only two numbers per batch and site leave it.
            both = jnp.percentile(x, jnp.array([100 - percentile, percentile], x.dtype))
            io_callback(functools.partial(record, place), None, both[0], both[1])
            return
        low, high = x.min(), x.max()
        if method == "minmax":
            # A callback, for layers inside loops are measured in every iteration.
            io_callback(functools.partial(record, place), None, low, high)
        else:
            io_callback(functools.partial(record_counts, place), None, low, high, *count(x))

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
            outputs = plain(layer, key, *values)
            if setting is None:
                return outputs
            for quantizer, tensor, x, operand in _open(layer, setting, values, outputs):
                if tensor.role == "activation":
                    measured[layer.site, operand] = quantizer
                    measure((layer.site, operand), x)
                elif weights and layer.site in outside:
                    kept[layer.site] = quantizer, tensor.axes(quantizer.per)
                    arrays[layer.site] = x
            return outputs

        evaluate(program, rule, None, jax.tree.leaves((args, {})))
        return arrays

    kept: dict[str, tuple[Uniform, tuple[int, ...]]] = {}
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
    ranges: dict[str, dict[int, Any]] = defaultdict(dict)
    for place, quantizer in measured.items():
        low, high = _ends(place[0], ends[place], method)
        if place in histograms:
            width = _width(place[0], quantizer)
            low, high = clip_histogram(histograms[place], width, quantizer.symmetric, method)
        ranges[place[0]][place[1]] = low, high
    for site, found in ranges.items():
        settings[site] = _with_ranges(settings[site], found)
    for site, (quantizer, axes) in kept.items():
        both = _weight_range(site, arrays[site], axes, quantizer, method, percentile)
        apart = parts_of(settings[site])
        fixed = dataclasses.replace(quantizer, range=both)
        settings[site] = dataclasses.replace(apart, weights=fixed)
    return settings


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
    told = [(q, t, values[i]) for q, t, i in of_inputs(layer, apart, values)]
    told += [(q, t, outputs[i]) for q, t, i in of_outputs(layer, apart, outputs)]
    return [
        (q, t, x, int(t.name.rpartition("_")[2]))
        for q, t, x in told
        if isinstance(q, Uniform) and q.range is None
    ]


def _with_ranges(setting: Measured, found: Mapping[int, tuple[float, float]]) -> Measured:
    """Returns a setting with the ranges of its activations, by operand."""
    if isinstance(setting, Int):
        low, high = np.array([found[i] for i in sorted(found)], np.float32).T
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
    """Returns the range of a weight, or of each of its output channels."""
    values = np.asarray(w, np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"The weight of {site!r} holds NaN or infinity.")
    axes = [a % values.ndim for a in axes]
    rest = [a for a in range(values.ndim) if a not in axes]
    shape = tuple(n if a in axes else 1 for a, n in enumerate(values.shape)) if axes else ()
    # One row per range.
    flat = values.transpose(axes + rest).reshape(int(np.prod(shape)), -1)
    width = _width(site, grid) if method in {"mse", "kl"} else 8
    ends = [
        clip_range(row, width, symmetric=grid.symmetric, method=method, percentile=percentile)
        for row in flat
    ]
    low, high = (jnp.asarray(np.array(e).reshape(shape), w.dtype) for e in zip(*ends, strict=True))
    return low, high


def _width(site: str, grid: Uniform) -> int:
    """Returns the width of a grid as a Python number."""
    if isinstance(grid.bits, int):
        return grid.bits
    if not is_concrete(grid.bits) or np.size(grid.bits) != 1:
        raise ValueError(
            f"The range of {site!r} depends on its bit width, which must be one known number; use "
            'method="minmax" for widths that vary.'
        )
    return int(np.asarray(grid.bits).item())


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


def _ends(site: str, seen: Sequence[tuple[float, float]], method: str) -> tuple[float, float]:
    """Returns the smallest and largest value of all batches, or the mean of their percentiles."""
    if not seen:
        raise ValueError(f"The layer {site!r} was never reached while calibrating.")
    both = np.array(seen)
    if not np.isfinite(both).all():
        raise ValueError(f"The layer {site!r} has activations that aren't finite numbers.")
    # Of batches, not of all values: those would have to be kept.
    if method == "percentile":
        return float(both[:, 0].mean()), float(both[:, 1].mean())
    return float(both[:, 0].min()), float(both[:, 1].max())
