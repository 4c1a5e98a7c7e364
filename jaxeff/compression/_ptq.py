"""Quantization after training in one call: what nine in ten want."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxeff.compression.integers import integer
from jaxeff.compression.post_training import PostTrained, as_batches, calibrate
from jaxeff.compression.quantizers import Int
from jaxeff.core import as_arguments, spec_of, static_integer, validate


@validate(bits=static_integer(1, 8), spec=spec_of())
def ptq(
    f: Callable[..., Any],
    params: Any,
    batches: Any,
    *,
    bits: int = 8,
    spec: Mapping[str, Any] | None = None,
    method: str | None = None,
) -> PostTrained:
    """Makes a trained network one of integers: measures ranges, and converts its weights to codes.

    ```python
    from jaxeff.compression import ptq
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    g, codes, spec = ptq(f, params, x)
    logits = g(codes, x)
    ```

    `jaxeff_export.deploy(g, (codes, x[:1]), target="cortex-m7")` takes both. What it does is
    `calibrate`, `integer` and `convert`, which have more settings.

    Args:
        f: A pure function `f(params, *args)` in inference.
        params: The parameters of `f`.
        batches: Examples that ranges are measured on, as for `calibrate`.
        bits: Bit width of the weights of all dense and convolution layers, 1 to 8; their
            activations have 8.
        spec: Settings by site in place of those of `bits`.
        method: How ranges are measured, as `calibrate` has it.

    Returns:
        The function `g(codes, *args)`, the codes, and the spec with the measured ranges.

    Raises:
        ValueError: There are no batches, or as for `calibrate`.
        IntegerError: A layer has no integer kernel for its setting, as for `integer`.
    """
    batches = list(as_batches("ptq: batches", batches))
    if not batches:
        raise ValueError("ptq: there are no batches; give an array of examples, or a list of them.")
    measured = calibrate(f, params, batches, spec or {"*:linear": Int(bits, 8)}, method=method).spec
    g = integer(f, measured)
    return PostTrained(g, g.convert(params, *as_arguments(batches[0])), measured)
