"""`calibrate`: activation ranges measured on data, as settings for `quantized`.

```python
from jaxeff.compression import Int, calibrate, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = calibrate(f, params, [x[:128], x[128:]], {"*": Int(8), "fc2": None})
logits = quantized(f, spec)(params, x)
```

Sharp edges:
    Ranges are those of the model before quantization.
    Only settings without a range are measured; a constant range stays.
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

from jaxeff.compression.integer import Int
from jaxeff.compression.quantized import applies, operands
from jaxeff.program import Layer, Program, evaluate, plain, trace
from jaxeff.program.spec import check_settings, resolve
from jaxeff.settings import check_number


def calibrate(
    f: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    spec: Mapping[str, Int | None],
    *,
    percentile: float = 100.0,
) -> dict[str, Int | None]:
    """Measures the range of every activation that a spec quantizes.

    Args:
        f: A pure function `f(params, *args)`.
        params: Its parameters.
        batches: Batches of one shape each: `args` as a tuple, or the only one of them.
        spec: Maps patterns of sites to `Int` settings.
        percentile: 100 takes the smallest and largest value seen. Less takes this percentile and
            its counterpart in every batch, averaged over batches, so that outliers are clamped.

    Returns:
        A spec with one setting per quantized site, those measured with a fixed range.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `Int` settings.
        ValueError: There are no batches, `percentile` isn't above 50 and at most 100, a pattern
            matches or decides no site, or a layer was never reached or gave values that aren't
            finite.
    """
    check_settings(spec, Int, "an Int, such as Int(8)")
    check_number("percentile", percentile, high=100, above=50)
    seen: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    settings: dict[str, Int | None] = {}
    measured: dict[str, None] = {}  # in order

    def record(site: str, operand: int, low: Any, high: Any) -> None:
        seen[site, operand].append((float(low), float(high)))

    @jax.jit
    def observe(*args: Any) -> Any:
        program = trace(f, *args)
        found = resolve(spec, program, applies, "an integer grid")
        settings.update(_by_site(program, found))

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            setting = found.get(layer.site)
            outputs = plain(layer, key, *values)
            if setting is None or setting.range is not None or not setting.activations:
                return outputs
            read = [values[i] for i in operands(layer, setting)]
            for operand, x in enumerate(outputs if setting.at == "output" else read):
                measured[layer.site] = None
                if jnp.issubdtype(x.dtype, jnp.floating):
                    ends = jnp.percentile(x, jnp.array([100 - percentile, percentile]))
                    io_callback(
                        functools.partial(record, layer.site, operand), None, ends[0], ends[1]
                    )
            return outputs

        return evaluate(program, rule, None, jax.tree.leaves((args, {})))

    empty = True
    for batch in batches:
        observe(params, *(batch if isinstance(batch, tuple) else (batch,)))
        empty = False
    jax.effects_barrier()
    if empty:
        raise ValueError("calibrate needs at least one batch, but there is none.")
    for site in measured:
        setting = settings[site]
        assert setting is not None
        settings[site] = dataclasses.replace(setting, range=_range(site, seen, percentile))
    return settings


def _by_site(program: Program, found: Mapping[str, Int]) -> dict[str, Int | None]:
    """The settings that quantize something, one pattern per site."""
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


def _range(
    site: str, seen: Mapping[tuple[str, int], Sequence[tuple[float, float]]], percentile: float
) -> tuple[Any, Any]:
    """The range of a site: scalars, or one entry per operand where it has several."""
    pairs = [np.array(ends) for (name, _), ends in sorted(seen.items()) if name == site]
    if not pairs:
        raise ValueError(f"The layer {site!r} was never reached while calibrating.")
    whole = percentile == 100
    low = np.array([p[:, 0].min() if whole else p[:, 0].mean() for p in pairs], np.float32)
    high = np.array([p[:, 1].max() if whole else p[:, 1].mean() for p in pairs], np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"The layer {site!r} has activations that aren't finite numbers.")
    if len(pairs) == 1:
        low, high = low[0], high[0]
    return jnp.asarray(low), jnp.asarray(high)
