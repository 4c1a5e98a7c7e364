"""`quantized`: a model computed with quantized weights and activations.

```python
from jaxeff.compression import LSQ, Int, init, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
g = quantized(f, {"*": Int(8), "fc2": None})
logits = g(params, x)                                # straight-through gradients
spec = init(f, params, x, {"*:linear": LSQ(4)})      # with the numbers that LSQ starts from
logits = quantized(f, spec)(params, x)               # learnt with respect to (params, spec)
```

`Int` without a range quantizes activations by their own smallest and largest value on every call;
`calibrate` measures ranges once. Methods are in `quantizers` and follow
`jaxeff.compression.numerics`.

Sharp edges:
    Values stay floating-point numbers on a grid; `quantize` makes true integer codes.
    The straight-through gradient of `Int` is one everywhere, also where a fixed range clamps.
    Integer arrays are left alone. Around `jaxeff.moments`, means are rounded and variances kept, as
    inside of it; around `moments(f, method="linear")` and `integer` it is refused.
    An embedding is a look-up, which `"*"` doesn't match: name its site.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.compression import numerics
from jaxeff.core import read_once, single_key, validate
from jaxeff.moment_propagation.dependence import (
    SHARED,
    Labels,
    Lineage,
    follow_lineages,
    identity,
    is_common,
)
from jaxeff.program import (
    Rule,
    at_sites,
    check_settings,
    interpret,
    plain_rule,
    read_out_by,
    resolve,
)
from jaxeff.program.costs import bits_scope, is_scalar
from jaxeff.program.ir import Contraction, Layer, Program, Value, row_axes
from jaxeff.program.reading import mark

Arrays = list[tuple[numerics.Quantizer, numerics.Tensor, Any]]
"""Quantized arrays of a layer, each with its method and description."""


@validate()
def quantized(
    f: Callable[..., Any], spec: Mapping[str, numerics.Method | None], *, keyed: bool = False
) -> Callable[..., Any]:
    """Quantizes the layers of a model.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to a method for weights and activations alike (`Int(8)`,
            `LSQ(4)`) or to `LayerQuantization(weights, activations)`; the most specific pattern
            decides, and None leaves a layer alone (`jaxeff.program`).
        keyed: Whether the result takes a random key first, for methods that draw.

    Returns:
        A pure function `g(params, *args)` like `f`, or `g(key, params, *args)`. It is
        differentiable with respect to parameters and spec, as each method says.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, a setting has nothing to quantize in any of its layers, or a method
            draws and there is no key.
    """
    return by_layer(f, spec, keyed, lambda _, settings: at_sites(settings, quantized_layer))


def by_layer(
    f: Callable[..., Any],
    spec: Mapping[str, numerics.Method | None],
    keyed: bool,
    rule_of: Callable[[Program, dict[str, numerics.LayerQuantization]], Rule],
) -> Callable[..., Any]:
    """Makes a model whose layers are computed by a rule, if the spec has settings for any.

    `rule_of` makes the rule of a program and its settings; all else is as for `quantized`.
    """
    check_spec(spec)
    f = read_once(f)

    def g(*args: Any, **kwargs: Any) -> Any:
        key = None
        if keyed:
            key, *rest = args
            single_key("the first argument, a key,", key)
            args = tuple(rest)

        def make_rule(program: Program) -> Rule | None:
            settings = settings_of(spec, program)
            # None leaves the function as it is, bit for bit.
            return rule_of(program, settings) if settings else None

        return interpret(f, make_rule, key, args, kwargs, "quantized")

    return g


def quantized_layer(
    setting: numerics.LayerQuantization, layer: Layer, key: Any, *values: Any
) -> Sequence[Any]:
    """Computes one layer as its setting says: the rule of `quantized`, at its sites."""
    inputs = list(values)
    for quantizer, tensor, i in of_inputs(layer, setting, values, key):
        inputs[i] = _quantize(quantizer, inputs[i], tensor)
    outputs = list(plain_rule(layer, key, *inputs))
    for quantizer, tensor, i in of_outputs(layer, setting, outputs, key):
        outputs[i] = _quantize(quantizer, outputs[i], tensor)
    return outputs


def visiting(
    settings: Mapping[str, numerics.LayerQuantization], visit: Callable[[Layer, Arrays], None]
) -> Rule:
    """Makes the rule of the plain model that shows a function what each layer would quantize."""

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        outputs = plain_rule(layer, key, *values)
        setting = settings.get(layer.site)
        if setting is not None:
            read = [(q, t, values[i]) for q, t, i in of_inputs(layer, setting, values)]
            written = [(q, t, outputs[i]) for q, t, i in of_outputs(layer, setting, outputs)]
            visit(layer, read + written)
        return outputs

    return rule


def check_spec(spec: Any) -> None:
    """Checks that a spec maps patterns to methods or None.

    Raises:
        TypeError: It doesn't.
    """
    kinds: Any = numerics.LayerQuantization | numerics.Quantizer | numerics.HasParts
    check_settings(spec, kinds, "a method of compression, such as Int(8)")


def settings_of(
    spec: Mapping[str, numerics.Method | None], program: Program
) -> dict[str, numerics.LayerQuantization]:
    """Resolves a spec to one setting per site, with weights and activations separate."""
    resolved = resolve(spec, program, applies, "a quantizer")
    if resolved:
        find_samples(program)
    return {site: numerics.parts(setting) for site, setting in resolved.items()}


def applies(layer: Layer, setting: numerics.Method) -> bool:
    """Returns whether a setting quantizes anything in a layer."""
    apart = numerics.parts(setting)
    result = apart.activations is not None and apart.at == "output"
    return result or bool(_weights(layer, apart)) or bool(operands(layer, apart))


def operands(layer: Layer, setting: numerics.Method) -> list[int]:
    """Returns the inputs of a layer that a setting quantizes as activations."""
    apart = numerics.parts(setting)
    reads = apart.activations is not None and apart.at == "input" and _multiplies(layer)
    return _signals(layer, layer.data) if reads else []


def of_inputs(
    layer: Layer, setting: numerics.LayerQuantization, values: Sequence[Any], key: Any = None
) -> list[tuple[numerics.Quantizer, numerics.Tensor, int]]:
    """Returns the method, the description and the number of every input that is quantized."""
    arrays: list[tuple[numerics.Quantizer, numerics.Tensor, int]] = []
    # A key per array: folding its number in keeps draws independent of what else is quantized.
    for i in _weights(layer, setting):
        if setting.weights is not None and _is_real(values[i]):
            channels = functools.partial(_channels, layer, i)
            summed = functools.partial(_summed, layer, i)
            rank = jnp.ndim(values[i])
            name = f"weights_{i}"
            tensor = numerics.Tensor(
                layer.site, name, "weight", rank, _folded(key, i), channels, find_summed=summed
            )
            arrays.append((setting.weights, tensor, i))
    read = operands(layer, setting)
    for operand, i in enumerate(read):
        quantizer = setting.of_activation(layer.site, operand, len(read))
        if quantizer is not None and _is_real(values[i]):
            rank, name = jnp.ndim(values[i]), f"input_{operand}"
            tensor = numerics.Tensor(
                layer.site, name, "activation", rank, _folded(key, i),
                samples=sample_axes(layer, layer.inputs[i], read=True),
                find_summed=functools.partial(_summed, layer, i),
            )  # fmt: skip
            arrays.append((quantizer, tensor, i))
    return arrays


def of_outputs(
    layer: Layer, setting: numerics.LayerQuantization, values: Sequence[Any], key: Any = None
) -> list[tuple[numerics.Quantizer, numerics.Tensor, int]]:
    """Returns the method, the description and the number of every result that is quantized."""
    arrays: list[tuple[numerics.Quantizer, numerics.Tensor, int]] = []
    for i, y in enumerate(values if setting.at == "output" else ()):
        quantizer = setting.of_activation(layer.site, i, len(values))
        if quantizer is not None and _is_real(y) and not layer.outputs[i].spread:
            # Numbered after the inputs: no two arrays of a layer draw with the same key.
            at = _folded(key, len(layer.inputs) + i)
            rank, name = jnp.ndim(y), f"output_{i}"
            samples = sample_axes(layer, layer.outputs[i], read=False)
            tensor = numerics.Tensor(layer.site, name, "activation", rank, at, samples=samples)
            arrays.append((quantizer, tensor, i))
    return arrays


def _quantize(quantizer: numerics.Quantizer, x: Any, tensor: numerics.Tensor) -> Any:
    with quantizing(quantizer, tensor, jnp.shape(x)):
        return quantizer.quantize(x, tensor)


@contextlib.contextmanager
def quantizing(
    quantizer: numerics.Quantizer, tensor: numerics.Tensor, shape: tuple[int, ...]
) -> Iterator[None]:
    """Names operations after the array that they quantize, and its bits if they are known."""
    with contextlib.ExitStack() as scopes:
        of_array = mark("quantize", f"{tensor.site}/quantize_{tensor.name}")
        scopes.enter_context(jax.named_scope(of_array))
        with jax.ensure_compile_time_eval():  # a width may be a number that is held by an array
            width, storage = (getattr(quantizer, name, None) for name in ("width", "storage"))
            bits = storage(shape, tensor) if is_scalar(width) and storage is not None else None
            scope = bits_scope(tensor.name, width, bits)
        if scope is not None:
            scopes.enter_context(jax.named_scope(scope))
        yield


def _is_real(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def _folded(key: Any, i: int) -> Any:
    return None if key is None else jax.random.fold_in(key, i)


def _multiplies(layer: Layer) -> bool:
    return layer.kind in {"linear", "matmul"}


def _weights(layer: Layer, setting: numerics.LayerQuantization) -> list[int]:
    """Finds the weights of products, never biases, and tables that rows are looked up in."""
    has = setting.weights is not None and (_multiplies(layer) or is_look_up(layer))
    return _signals(layer, layer.weights) if has else []


def _signals(layer: Layer, numbers: Sequence[int]) -> list[int]:
    """Leaves out the inputs that are variances, which aren't rounded, and complex numbers."""
    # Complex numbers have no grid, and a setting that meets nothing else has to be an error.
    return [i for i in numbers if layer.inputs[i].is_real_signal]


def _channels(layer: Layer, index: int) -> tuple[int, ...]:
    """Finds a weight's axes of output channels: those not summed over, or a table's rows."""
    if is_look_up(layer):
        return rows_of(layer)
    node = layer.op
    assert node is not None
    shape = layer.inputs[index].aval.shape
    side = _side(layer, index, is_data=False)
    if side is None and (transform := read_out_by(layer.nodes)):
        raise ValueError(
            f"{layer.site!r} can't be quantized per channel, for {transform} has cut it into tiles:"
            f' take {transform}(quantized(f, spec), ...), or per="tensor".'
        )
    if side is None:
        raise ValueError(
            f"The weight of {layer.site!r} has shape {shape} and reaches its "
            f"{node.primitive.name} in another, so its output channels are unknown; use "
            'per="tensor".'
        )
    contraction = Contraction.of(node)
    # A step per axis that isn't summed factors out of the sum; one per summed axis wouldn't.
    return tuple(sorted(contraction.batch(side) + contraction.free(side)))


def _summed(layer: Layer, index: int) -> tuple[int, ...]:
    """Finds the axes of an array that its layer sums over.

    Of a kernel, and of what it reads, these are input channels; of a table, a row's entries.
    """
    if is_look_up(layer):
        rows = rows_of(layer)
        rank = len(layer.inputs[index].aval.shape)
        return tuple(axis for axis in range(rank) if axis not in rows)
    v = layer.inputs[index]
    side = _side(layer, index, is_data=bool(getattr(v, "is_data", False)))
    if side is None:
        raise ValueError(
            f"{layer.site!r} reads an array of shape {v.aval.shape} that reaches its product in "
            "another, so the axis that it sums over is unknown: take a method per channel or per "
            "tensor there."
        )
    assert layer.op is not None
    return Contraction.of(layer.op).summed(side)


def _side(layer: Layer, index: int, is_data: bool) -> int | None:
    """Finds which operand of its product an array of a layer is."""
    assert layer.op is not None
    operand = layer.inputs[index]
    # By shape where it isn't there itself: a cast or a scaling may lie between.
    alike = (
        side
        for side, v in enumerate(layer.op.inputs)
        if bool(getattr(v, "is_data", False)) == is_data and v.aval.shape == operand.aval.shape
    )
    return next((s for s, v in enumerate(layer.op.inputs) if v is operand), next(alike, None))


def is_look_up(layer: Layer) -> bool:
    """Returns whether a layer takes rows of a table of parameters, and does nothing else."""
    # Slices must be whole rows, so that each has the one step of its channel.
    node = layer.nodes[0] if layer.kind == "shape" and len(layer.nodes) == 1 else None
    if node is None or row_axes(node.eqn) is None:
        return False
    if len(layer.inputs) != 2 or [*node.inputs] != [*layer.inputs] or layer.weights != (0,):
        return False
    return bool(jnp.issubdtype(layer.inputs[0].aval.dtype, jnp.floating))


def rows_of(layer: Layer) -> tuple[int, ...]:
    """Returns the axes of the table that a look-up chooses along."""
    return row_axes(layer.nodes[0].eqn) or ()


def looked_up(layer: Layer, codes: Array, steps: Array, at: Any) -> Array:
    """Looks rows of codes up and scales those alone.

    Sharp edge: a row is a channel, with a step of its own where `per="channel"`.

    `steps` has one for every row, or one for all of them, of size one along other axes.
    """
    gather = layer.nodes[0].params
    # Gathered as integers, then scaled: the table never exists in floating point.
    rows = _gathered(codes, at, gather, gather["slice_sizes"]).astype(steps.dtype)
    if steps.size == 1:
        return rows * steps.reshape(())
    # Steps have size one along axes that share them, and gather takes no larger slices.
    sizes = tuple(
        1 if n == 1 else size for n, size in zip(steps.shape, gather["slice_sizes"], strict=True)
    )
    return rows * _gathered(steps, at, gather, sizes)


def _gathered(table: Array, at: Any, gather: Any, sizes: tuple[int, ...]) -> Array:
    return jax.lax.gather(
        table,
        at,
        gather["dimension_numbers"],
        sizes,
        unique_indices=gather["unique_indices"],
        indices_are_sorted=gather["indices_are_sorted"],
        mode=gather["mode"],
    )


def find_samples(program: Program) -> None:
    """Notes for every activation of a program which axes of the data arguments its axes are."""
    data = [v for v in program.inputs if v.is_data and v.aval.ndim]
    # Arguments of several first sizes have no axis of samples in common.
    if not data or len({v.aval.shape[0] for v in data}) > 1:
        return
    lineages: dict[Value, Lineage] = {v: {v: identity(v.aval.shape)} for v in data}
    for layer in program.layers:
        if layer.kind == "control flow" or lineages.keys().isdisjoint(layer.inputs):
            continue
        if not layer.nodes:
            pairs = zip(layer.inputs, layer.outputs, strict=True)
            lineages.update((to, lineages[v]) for v, to in pairs if v in lineages)
            continue
        reached, _ = follow_lineages(
            layer.nodes, {v: lineages[v] for v in layer.inputs if v in lineages}
        )
        lineages.update((v, reached[v]) for v in layer.outputs if v in reached)
    leaves = {v.path: v.aval.ndim for v in program.inputs if v.path}
    for value, lineage in lineages.items():
        value.along = _merged(lineage)
    for layer in program.layers:
        _check_merged(layer, leaves)


def sample_axes(layer: Layer, value: Value, read: bool) -> tuple[int, ...] | None:
    """Returns the axes of an activation along which every entry has a range of its own.

    In most programs it is the first. A `vmap` over draws of the parameters (an ensemble, a
    posterior's samples) puts an axis of draws in front of it or behind it, and a transposed array
    has it elsewhere. So the first axis of the data arguments is followed through the program; and
    every draw has ranges of its own, as in `vmap(quantized(f, spec))`.

    Sharp edges:
        Inside loops and branches, and where the axis is lost (a reshape that joins it with others),
        the first axis is taken.
        Draws are known by products that multiply each with weights of its own, or by an axis in
        front of the samples. Where neither is there, draws behind the samples share a range.

    Args:
        layer: The layer that reads it, or makes it.
        value: The activation.
        read: Whether the layer reads it.

    Returns:
        The axes; None where draws and channels are joined in one axis.
    """
    if read and layer.merges_draws:
        return None
    labels, rank = value.along, value.aval.ndim
    if rank < 2:
        return ()
    if 0 not in labels:
        return (0,)
    samples = labels.index(0)
    summed, batched = _product_axes(layer, value) if read else ((), ())
    spare = rank - 1 - len(summed) if read else rank - 2  # an axis at least is covered by a range
    # `vmap` puts draws in front of the samples, where no axis comes from the data.
    draws = [i for i in range(samples) if is_common(labels[i]) and i not in summed]
    draws = draws[: max(spare, 0)]
    return tuple(sorted({samples, *draws, *batched}))


def _product_axes(layer: Layer, value: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Finds the axes that a layer's product sums over, and those with weights of their own."""
    op = layer.op
    if op is None or value not in op.inputs or (product := Contraction.of(op)).is_convolution:
        return (), ()
    side = op.inputs.index(value)
    return product.summed(side), product.batch(side) if layer.kind == "linear" else ()


def _merged(lineage: Lineage) -> Labels:
    """Returns the labels that all data arguments agree on."""
    first, *others = lineage.values()
    return tuple(
        label if all(labels[i] == label for labels in others) else SHARED
        for i, label in enumerate(first)
    )


def _check_merged(layer: Layer, leaves: Mapping[str, int]) -> None:
    """Notes whether a convolution has a kernel for each draw, all in one axis of channels."""
    op = layer.op if layer.kind == "linear" else None
    if op is None or not Contraction.of(op).is_convolution:
        return
    kernel = op.inputs[1]
    grouped = op.params["feature_group_count"] > 1
    draws = isinstance(kernel, Value) and leaves.get(kernel.path, 0) > kernel.aval.ndim
    layer.merges_draws = grouped and draws
