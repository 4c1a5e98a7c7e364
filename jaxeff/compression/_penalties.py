"""Terms of a loss, summed over all sites, by which clipping levels, gates and widths are learnt.

```python
import jax
import optax
from jaxeff.compression import LayerQuantization, LearnedWidth, init, learned, memory, penalty
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = init(f, params, x, {"*:linear": LayerQuantization(LearnedWidth(8, price=1e-6))})
budget = 0.5 * memory(f, spec, params, x)

def loss(params, spec):
    logits = learned(f)((params, spec), x)
    fit = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    too_large = jax.nn.relu(memory(f, spec, params, x) / budget - 1)
    return fit + penalty(f, spec, params, x) + too_large**2

by_params, by_spec = jax.grad(loss, (0, 1))(params, spec)
```
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression._quantized import (
    Arrays,
    check_spec,
    of_inputs,
    of_outputs,
    settings_of,
    visiting,
)
from jaxeff.compression.numerics import BaseQuantizer, Method, Quantizer, Tensor
from jaxeff.core import check_choice, validate
from jaxeff.program import Layer, evaluate, trace
from jaxeff.program.reading import argument_leaves


@validate()
def penalty(
    f: Callable[..., Any], spec: Mapping[str, Method | None], params: Any, *args: Any
) -> Float[Array, ""]:
    """Sums the penalties of all quantizers of a spec.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Quantizers by site, as for `quantized`.
        params: The parameters of `f`.
        *args: Further arguments of `f`. Arrays are those of the model before quantization; of
            methods whose numbers are known only their shapes matter, and compiled nothing else is
            computed.

    Returns:
        A scalar, differentiable with respect to the spec.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: A pattern matches or decides no site, or a method with a penalty acts inside a
            loop or branch.
    """
    check_spec(spec)
    program = trace(f, params, *args)
    settings = settings_of(spec, program)
    outside = set(program.layers)
    terms: list[Any] = []

    def visit(layer: Layer, arrays: Arrays) -> None:
        for quantizer, tensor, x in arrays:
            if _has_penalty(quantizer):
                # Terms from a loop's body exist in its trace alone and can't be summed here.
                _check_outside(layer in outside, quantizer, tensor)
                terms.append(jnp.asarray(quantizer.penalty(x, tensor)))  # type: ignore[attr-defined]

    evaluate(program, visiting(settings, visit), None, argument_leaves((params, *args), {}))
    return sum((term.astype(jnp.float32) for term in terms), jnp.zeros((), jnp.float32))


@validate()
def memory(
    f: Callable[..., Any],
    spec: Mapping[str, Method | None],
    params: Any,
    *args: Any,
    arrays: str = "weights",
) -> Any:
    """Counts the bits of all arrays that a spec quantizes, with what decodes them.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Quantizers by site, as for `quantized`.
        params: The parameters of `f`; of these and the arguments shapes are enough.
        *args: Further arguments of `f`, with the batch that counts.
        arrays: "weights", each counted once; or "activations", together.

    Returns:
        Their sum, differentiable with respect to the spec where a method learns its width.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods, or a method can't tell.
        ValueError: A pattern matches or decides no site.
    """
    check_spec(spec)
    check_choice("memory: arrays", arrays, ("weights", "activations"))
    program = trace(f, params, *args)
    settings = settings_of(spec, program)
    counted: set[frozenset[str]] = set()
    total: Any = 0.0
    for layer in program.walk():
        setting = settings.get(layer.site)
        if setting is None:
            continue
        inputs = [v.aval for v in layer.inputs]
        outputs = [v.aval for v in layer.outputs]
        read = of_inputs(layer, setting, inputs)
        for quantizer, tensor, i in read if arrays == "weights" else ():
            # Stored once however many layers read it: known by the parameters it is made of.
            paths = layer.inputs[i].leaves
            if tensor.role == "weight" and paths not in counted:
                counted.add(paths)
                total = total + _storage(quantizer, tensor, inputs[i].shape)
        for quantizer, tensor, i in read if arrays == "activations" else ():
            if tensor.role == "activation":
                total = total + _storage(quantizer, tensor, inputs[i].shape)
        for quantizer, tensor, i in of_outputs(layer, setting, outputs):
            if arrays == "activations":
                total = total + _storage(quantizer, tensor, outputs[i].shape)
    return total


def _storage(quantizer: Quantizer, tensor: Tensor, shape: tuple[int, ...]) -> Any:
    if not hasattr(quantizer, "storage"):
        raise TypeError(
            f"{type(quantizer).__name__} at {tensor.site}/{tensor.name} doesn't say what it takes; "
            "give it a method storage(shape, tensor), as jaxeff.compression.BaseQuantizer has."
        )
    return quantizer.storage(shape, tensor)


def _has_penalty(quantizer: Quantizer) -> bool:
    default = BaseQuantizer.penalty
    return getattr(type(quantizer), "penalty", default) is not default


def _check_outside(outside: bool, quantizer: Quantizer, tensor: Tensor) -> None:
    if not outside:
        raise ValueError(
            f"{tensor.site!r} lies inside a loop or branch, where the penalty of "
            f"{type(quantizer).__name__} can't be summed; leave the layer out of the spec that "
            "penalty is given, or use a method without one there."
        )
