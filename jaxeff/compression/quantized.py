"""`quantized`: a model computed with fake-quantized weights and activations.

```python
from jaxeff.compression import Int, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
g = quantized(f, {"*": Int(8), "fc2": None})
logits = g(params, x)                              # straight-through gradients
```

Without a range, activations are quantized by their own smallest and largest value on every call;
`calibrate` measures ranges once.

Sharp edges:
    Values stay floating-point numbers on an integer grid; `quantize` makes true int8 codes.
    A straight-through gradient is one everywhere, also where a fixed range clamps.
    Integer arrays are left alone.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.compression.integer import Int
from jaxeff.compression.quantization import fake_quantize, value_range
from jaxeff.program import Layer, Program, interpret, plain
from jaxeff.program import primitives as prim
from jaxeff.program.evaluation import Rule
from jaxeff.program.grouping import mark
from jaxeff.program.spec import check_settings, resolve


def quantized(f: Callable[..., Any], spec: Mapping[str, Int | None]) -> Callable[..., Any]:
    """Fake-quantizes the layers of a model.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to `Int` settings; the most specific pattern decides, and None
            leaves a layer alone (`jaxeff.program.spec`).

    Returns:
        A pure function `g(params, *args)` like `f`, with straight-through gradients.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `Int` settings.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, or a setting has nothing to quantize in any of its layers.
    """
    check_spec(spec)

    def rule(settings: Mapping[str, Any], layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        setting = settings.get(layer.site)
        if setting is None:
            return plain(layer, key, *values)
        inputs = list(values)
        for i in _weights(layer, setting):
            inputs[i] = _weight(layer, i, inputs[i], setting)
        read = operands(layer, setting)
        for operand, i in enumerate(read):
            inputs[i] = _activation(layer.site, operand, len(read), inputs[i], setting)
        outputs = plain(layer, key, *inputs)
        if not (setting.activations and setting.at == "output"):
            return outputs
        count = len(outputs)
        return [
            y if layer.outputs[i].spread else _activation(layer.site, i, count, y, setting)
            for i, y in enumerate(outputs)
        ]

    def g(*args: Any, **kwargs: Any) -> Any:
        def make_rule(program: Program) -> Rule | None:
            settings = resolve(spec, program, applies, "an integer grid")
            return functools.partial(rule, settings) if settings else None

        return interpret(f, make_rule, None, args, kwargs)

    return g


def check_spec(spec: Any) -> None:
    """Checks that a spec maps patterns to `Int` settings or None.

    Raises:
        TypeError: It doesn't.
    """
    check_settings(spec, Int, "an Int, such as Int(8)")


def applies(layer: Layer, setting: Int) -> bool:
    """Whether a setting quantizes anything in a layer."""
    result = setting.activations and setting.at == "output"
    return result or bool(_weights(layer, setting)) or bool(operands(layer, setting))


def operands(layer: Layer, setting: Int) -> list[int]:
    """The inputs of a layer that a setting quantizes as activations."""
    reads = setting.activations and setting.at == "input" and _multiplies(layer)
    return list(layer.data) if reads else []


def _multiplies(layer: Layer) -> bool:
    return layer.kind in {"linear", "contraction"}


def _weights(layer: Layer, setting: Int) -> list[int]:
    """The weights of a multiply-accumulate; an operand of the operation, never a bias."""
    return list(layer.weights) if setting.weights and _multiplies(layer) else []


def _channels(layer: Layer, index: int) -> tuple[int, ...]:
    """The axes of a weight that make output channels: those not summed over."""
    node = layer.op
    assert node is not None
    shape = layer.inputs[index].aval.shape
    side = next(
        (
            side
            for side, v in enumerate(node.inputs)
            if not getattr(v, "is_data", False) and v.aval.shape == shape
        ),
        None,
    )
    if side is None:
        raise ValueError(
            f"The weight of {layer.site!r} has shape {shape} and reaches its "
            f"{node.primitive.name} in another, so its output channels are unknown; use "
            'per="tensor".'
        )
    if node.primitive is prim.p.dot_general_p:
        summed = node.params["dimension_numbers"][0][side]
        return tuple(axis for axis in range(len(shape)) if axis not in summed)
    numbers = node.params["dimension_numbers"]
    return (numbers.rhs_spec[0] if side == 1 else numbers.lhs_spec[0],)


def _weight(layer: Layer, index: int, x: Any, setting: Int) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    keep = _channels(layer, index) if setting.per == "channel" else ()
    with jax.named_scope(mark("quantize", f"{layer.site}/quantize_weights_{index}")):
        low, high = value_range(x, keep)
        symmetric = setting.is_symmetric("weights")
        return fake_quantize(x, setting.width("weights"), low, high, symmetric, covered=True)


def _activation(site: str, operand: int, count: int, x: Any, setting: Int) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    with jax.named_scope(mark("quantize", f"{site}/quantize_{setting.at}_{operand}")):
        bounds = setting.bounds(operand, count)
        covered = bounds is None
        if bounds is None:
            per_sample = setting.activations_per == "sample" and x.ndim > 1
            bounds = value_range(x, (0,) if per_sample else ())
        low, high = bounds
        symmetric = setting.is_symmetric("activations")
        return fake_quantize(x, setting.width("activations"), low, high, symmetric, covered)
