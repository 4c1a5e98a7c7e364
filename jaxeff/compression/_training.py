"""Training of quantizers: their first numbers, terms of the loss, updates, and specs afterwards.

Bit widths are learnt against a price, or a budget of memory:

```python
import jax
import optax
from jaxeff.compression import LayerQuantization, init, learned, memory, penalty
from jaxeff.contrib import LearnedWidth
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = init(f, params, x, {"*:linear": LayerQuantization(LearnedWidth(8, price=1e-6))})
budget = 0.5 * memory(f, params, x, spec)

def loss(params, spec):
    logits = learned(f)((params, spec), x)
    fit = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    too_large = jax.nn.relu(memory(f, params, x, spec) / budget - 1)
    return fit + penalty(f, params, x, spec) + too_large**2

by_params, by_spec = jax.grad(loss, (0, 1))(params, spec)
```
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression import _quantized
from jaxeff.compression._quantized import quantized
from jaxeff.compression.numerics import BaseQuantizer, LayerQuantization, Method, Quantizer, Tensor
from jaxeff.core import as_arguments, check_choice, input_batch, parameter_tree, spec_of, validate
from jaxeff.program import Layer, at_sites, evaluate, plain_rule, trace
from jaxeff.program.reading import argument_leaves

Found = dict[str, Quantizer]


@validate(batch=input_batch)
def init(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> dict[str, LayerQuantization | None]:
    """Fills in the open numbers of every method of a spec.

    Sharp edges:
        Numbers are those of the model before quantization.
        A layer in a loop is one layer to a spec: its numbers can be given, but not measured.

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
    _quantized.check_spec(spec)
    args = as_arguments(batch)
    if any(np.size(leaf) == 0 for leaf in jax.tree.leaves(args)):
        raise ValueError("init needs a batch with at least one example, but it is empty.")
    program = trace(f, params, *args)
    settings = _quantized.settings_of(spec, program)
    methods: dict[str, dict[str, tuple[Quantizer, Tensor]]] = {}

    # `methods` is filled while this is traced: it is static, and only arrays leave the program.
    @jax.jit
    def arrays_of(*args: Any) -> dict[str, dict[str, Any]]:
        arrays: dict[str, dict[str, Any]] = {}

        def visit(layer: Layer, read: _quantized.Arrays) -> None:
            methods[layer.site] = {t.name: (q, t) for q, t, _ in read}
            arrays[layer.site] = {t.name: x for _, t, x in read}

        evaluate(program, _quantized.visiting(settings, visit), None, jax.tree.leaves((args, {})))
        # What is read inside a loop's body exists in that loop's trace alone.
        outside = {layer.site for layer in program.layers}
        return {site: by_name for site, by_name in arrays.items() if site in outside}

    arrays = arrays_of(params, *args)
    started = {
        site: {
            name: _started(quantizer, tensor, arrays.get(site, {}).get(name))
            for name, (quantizer, tensor) in by_name.items()
        }
        for site, by_name in methods.items()
    }
    return _spec(program.sites, settings, started)


@validate()
def learned(f: Callable[..., Any], *, keyed: bool = False) -> Callable[..., Any]:
    """Makes the spec a parameter of the quantized function, for a training loop.

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
        by_name = started.get(layer.site)
        spec[layer.site] = None
        if by_name:
            setting = settings[layer.site]
            weights = [q for name, q in by_name.items() if name.startswith("weights")]
            count = len(
                _quantized.operands(layer, setting) if setting.at == "input" else layer.outputs
            )
            place = [by_name.get(f"{setting.at}_{i}") for i in range(count)]
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


@runtime_checkable
class Updates(Quantizer, Protocol):
    """A quantizer whose numbers follow the arrays that it sees in training."""

    def update_statistics(self, x: Float[Array, "*shape"], tensor: Tensor) -> Quantizer:
        """Returns the quantizer after one more array."""
        ...


@validate(batch=input_batch)
def update_statistics(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> dict[str, Method | None]:
    """Updates a spec by one more batch of the quantized model.

    ```python
    from jaxeff.compression import init, update_statistics
    from jaxeff.contrib import LearnedBasis
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    spec = init(f, params, x, {"*:linear": LearnedBasis(2)})
    spec = update_statistics(f, params, x, spec)  # inside a training step too: it can be compiled
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        spec: Result of `init`.

    Returns:
        The spec, of the same structure. Methods without a rule stay, and so do layers in a loop.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: A pattern matches no site, or a layer has no setting of its own.
    """
    _quantized.check_spec(spec)
    args = as_arguments(batch)
    program = trace(f, params, *args)
    settings = _quantized.settings_of(spec, program)
    outside = {layer.site for layer in program.layers}
    updated: dict[str, dict[str, Quantizer]] = {}

    def rule(setting: LayerQuantization, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        of_layer: dict[str, Quantizer] = {}
        read = _quantized.of_inputs(layer, setting, values, key)
        outputs = plain_rule(layer, key, *_quantized_updating(values, read, of_layer))
        read = _quantized.of_outputs(layer, setting, outputs, key)
        outputs = _quantized_updating(outputs, read, of_layer)
        if layer.site in outside:
            updated[layer.site] = of_layer
        return outputs

    evaluate(program, at_sites(settings, rule), None, jax.tree.leaves((params, args, {})))
    missing = sorted(set(updated) - set(spec))
    if missing:
        raise ValueError(
            f"update_statistics needs a setting for {missing[0]!r} itself, as init returns it."
        )
    return {site: _with(setting, updated.get(site)) for site, setting in spec.items()}


def _quantized_updating(
    arrays: Sequence[Any],
    read: Sequence[tuple[Quantizer, Tensor, int]],
    updated: dict[str, Quantizer],
) -> list[Any]:
    """Quantizes arrays by the old numbers, and puts quantizers with new ones into `updated`."""
    arrays = list(arrays)
    for quantizer, tensor, i in read:
        x = arrays[i]
        # Statistics are those of the quantized model: all layers still use the old numbers.
        updated[tensor.name] = (
            quantizer.update_statistics(x, tensor) if isinstance(quantizer, Updates) else quantizer
        )
        arrays[i] = quantizer.quantize(x, tensor)
    return arrays


def _with(setting: Any, updated: dict[str, Quantizer] | None) -> Any:
    if not updated or not isinstance(setting, LayerQuantization):
        return setting
    weights = [q for name, q in updated.items() if name.startswith("weights")]
    several = isinstance(setting.activations, tuple)
    place: Any = setting.activations if several else (setting.activations,)
    new: Any = tuple(updated.get(f"{setting.at}_{i}", q) for i, q in enumerate(place))
    return replace(
        setting,
        weights=weights[0] if weights else setting.weights,
        activations=new if several else new[0],
    )


@validate(batch=parameter_tree)
def penalty(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> Float[Array, ""]:
    """Sums the penalties of all quantizers of a spec.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them. Arrays are those of the model before
            quantization; of methods whose numbers are known only their shapes matter, and compiled
            nothing else is computed.
        spec: Quantizers by site, as for `quantized`.

    Returns:
        A scalar, differentiable with respect to the spec.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: A pattern matches or decides no site, or a method with a penalty acts inside a
            loop or branch.
    """
    _quantized.check_spec(spec)
    args = as_arguments(batch)
    program = trace(f, params, *args)
    settings = _quantized.settings_of(spec, program)
    outside = set(program.layers)
    terms: list[Any] = []

    def visit(layer: Layer, arrays: _quantized.Arrays) -> None:
        for quantizer, tensor, x in arrays:
            if _has_penalty(quantizer):
                # Terms from a loop's body exist in its trace alone and can't be summed here.
                _check_outside(layer in outside, quantizer, tensor)
                terms.append(jnp.asarray(quantizer.penalty(x, tensor)))  # type: ignore[attr-defined]

    evaluate(
        program, _quantized.visiting(settings, visit), None, argument_leaves((params, *args), {})
    )
    return sum((term.astype(jnp.float32) for term in terms), jnp.zeros((), jnp.float32))


@validate(batch=parameter_tree)
def memory(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    arrays: str = "weights",
) -> Any:
    """Counts the bits of all arrays that a spec quantizes, with what decodes them.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`; of these and the batch shapes are enough.
        batch: `args` as a tuple, or the only one of them: the batch that counts.
        spec: Quantizers by site, as for `quantized`.
        arrays: "weights", each counted once; or "activations", together.

    Returns:
        Their sum, differentiable with respect to the spec where a method learns its width.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods, or a method can't tell.
        ValueError: A pattern matches or decides no site.
    """
    _quantized.check_spec(spec)
    check_choice("memory: arrays", arrays, ("weights", "activations"))
    args = as_arguments(batch)
    program = trace(f, params, *args)
    settings = _quantized.settings_of(spec, program)
    counted: set[frozenset[str]] = set()
    total: Any = 0.0
    for layer in program.walk():
        setting = settings.get(layer.site)
        if setting is None:
            continue
        inputs = [v.aval for v in layer.inputs]
        outputs = [v.aval for v in layer.outputs]
        read = _quantized.of_inputs(layer, setting, inputs)
        for quantizer, tensor, i in read if arrays == "weights" else ():
            # Stored once however many layers read it: known by the parameters it is made of.
            paths = layer.inputs[i].leaves
            if tensor.role == "weight" and paths not in counted:
                counted.add(paths)
                total = total + _storage(quantizer, tensor, inputs[i].shape)
        for quantizer, tensor, i in read if arrays == "activations" else ():
            if tensor.role == "activation":
                total = total + _storage(quantizer, tensor, inputs[i].shape)
        for quantizer, tensor, i in _quantized.of_outputs(layer, setting, outputs):
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


@validate(spec=spec_of())
def deterministic(spec: Mapping[str, Method | None]) -> dict[str, Method | None]:
    """Replaces methods that draw by the form of them that doesn't.

    ```python
    import jax.numpy as jnp

    from jaxeff.compression import Stochastic, Uniform, deterministic, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier(4)
    spec = {"conv1": Stochastic(4), "fc*": Uniform(8)}       # drawn in training: keyed=True
    settled = deterministic(spec)
    assert settled["fc*"] is spec["fc*"]
    logits = quantized(f, settled)(params, x)                # no key
    both = {"conv1": Uniform(4), "fc*": Uniform(8)}
    assert jnp.array_equal(logits, quantized(f, both)(params, x))
    ```

    A method says which that is in its `deterministic()`: `Relaxed` and `Stochastic` take the
    nearest value, `BayesianBits` opens or closes its gates, `Discrete` takes the most probable
    value, `DoReFa` leaves gradients alone and `Binary` draws no signs. Other methods stay.

    Args:
        spec: Quantizers by site, as for `quantized`.

    Returns:
        A spec for `quantized` without a key.
    """
    return {pattern: _settled(setting) for pattern, setting in spec.items()}


def _settled(setting: Any) -> Any:
    if isinstance(setting, tuple):
        return tuple(_settled(each) for each in setting)
    if isinstance(setting, LayerQuantization):
        weights, activations = _settled(setting.weights), _settled(setting.activations)
        return replace(setting, weights=weights, activations=activations)
    return setting.deterministic() if hasattr(setting, "deterministic") else setting


@validate(batch=parameter_tree)
def random_weights(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> Any:
    """Replaces discrete weights by the distributions that a spec has for them.

    ```python
    from jaxeff import moments
    from jaxeff.compression import LayerQuantization, init, random_weights
    from jaxeff.contrib import Discrete
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier(4)
    spec = init(f, params, x, {"fc2": LayerQuantization(Discrete())})       # ternary weights
    posterior = random_weights(f, params, x, spec)
    assert posterior["fc2"]["kernel"].var.shape == params["fc2"]["kernel"].shape
    logits = moments(f)(posterior, x)                        # their mean and variance, in one pass
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them; shapes are enough.
        spec: Quantizers by site, as for `quantized`; those without a
            method `gaussian` play no part.

    Returns:
        A pytree like `params` with a `Gaussian` for each of them, for `jaxeff.moments`,
        `jaxeff.moment_propagation.sampled` and whatever takes a mean-field posterior.

    Raises:
        ValueError: Two layers read one such weight, or it reaches its product changed.
    """
    _quantized.check_spec(spec)
    program = trace(f, params, *as_arguments(batch))
    settings = _quantized.settings_of(spec, program)
    leaves, structure = jax.tree.flatten(params)
    position = {v: i for i, v in enumerate(program.inputs[: len(leaves)])}
    taken: dict[int, str] = {}
    for layer in program.walk():
        setting = settings.get(layer.site)
        if setting is None or not hasattr(setting.weights, "gaussian"):
            continue
        for quantizer, tensor, i in _quantized.of_inputs(
            layer, setting, [v.aval for v in layer.inputs]
        ):
            if not hasattr(quantizer, "gaussian"):
                continue
            # A leaf holds one distribution, and only a parameter itself is a leaf.
            at = position.get(layer.inputs[i])
            if at is None:
                raise _no_distribution(layer, "reaches its product in another form")
            if at in taken:
                raise _no_distribution(layer, f"is read by {taken[at]!r}, too")
            taken[at] = layer.site
            leaves[at] = quantizer.gaussian(leaves[at], tensor)
    return jax.tree.unflatten(structure, leaves)


def _no_distribution(layer: Layer, why: str) -> ValueError:
    return ValueError(
        f"The weight of {layer.site!r} {why}, so it has no distribution of its own; leave the "
        "layer out of the spec, or draw its weights: quantized(f, spec, keyed=True)."
    )
