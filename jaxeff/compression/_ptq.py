"""Quantization after training in one call: what nine in ten want."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxeff.compression.integers import Converted, Integer, integer
from jaxeff.compression.post_training import calibrate
from jaxeff.compression.quantizers import Int
from jaxeff.core import input_batches, spec_of, static_integer, validate


@validate(bits=static_integer(1, 8), spec=spec_of())
def ptq(
    f: Callable[..., Any],
    params: Any,
    batches: Any,
    *,
    bits: int = 8,
    spec: Mapping[str, Any] | None = None,
    method: str | None = None,
) -> tuple[Integer, Converted]:
    """Makes a trained network one of integers: measures ranges, and converts its weights to codes.

    ```python
    from jaxeff.compression import ptq
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    g, codes = ptq(f, params, x)
    logits = g(codes, x)
    ```

    `jaxeff_export.deploy(g, (codes, x[:1]), target="cortex-m7")` takes both. What it does is
    `calibrate`, `integer` and `convert`, which have more settings.

    Args:
        f: A pure function `f(params, *args)` in inference.
        params: The parameters of `f`.
        batches: Examples that ranges are measured on: an array, or a list of batches of one shape
            each, `args` as a tuple or the only one of them.
        bits: Bit width of the weights of all dense and convolution layers, 1 to 8; their
            activations have 8.
        spec: Settings by site in place of those of `bits`.
        method: How ranges are measured, as `calibrate` has it.

    Returns:
        The function `g(codes, *args)` and the codes.

    Raises:
        ValueError: There are no batches, or as for `calibrate`.
        IntegerError: A layer has no integer kernel for its setting, as for `integer`.
    """
    batches = [batches] if isinstance(batches, jax.Array | np.ndarray) else batches
    input_batches("ptq: batches", batches)
    batches = list(batches)
    if not batches:
        raise ValueError("ptq: there are no batches; give an array of examples, or a list of them.")
    chosen = calibrate(f, params, batches, spec or {"*:linear": Int(bits, 8)}, method=method)
    first = batches[0] if isinstance(batches[0], tuple) else (batches[0],)
    g = integer(f, chosen)
    return g, g.convert(params, *first)
