"""Biases that take up a batch norm or the mean of quantization errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression._quantized import quantized_layer
from jaxeff.compression.numerics import Method
from jaxeff.compression.post_training import _layerwise, _multiplication
from jaxeff.compression.post_training._channels import Source, replace_weights, source, weights_of
from jaxeff.core import as_arguments, input_batch, spec_of, validate
from jaxeff.program import Layer, Program, Rule, interpret, plain_rule, trace
from jaxeff.program.ir import Node, Value

_DRAWS = 2


@dataclass(frozen=True, eq=False)
class _Fold:
    """A linear layer, the normalization after it, and that one's two numbers per channel."""

    source: Source
    norm: Layer
    factor: Float[np.ndarray, " channels"]
    shift: Float[np.ndarray, " channels"]

    @property
    def site(self) -> str:
        return self.source.at.layer.site


@validate(batch=input_batch, spec=spec_of())
def fold_batch_norm(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None] | None = None
) -> _layerwise.PostTrained:
    """Folds every batch norm that directly follows a linear layer.

    A normalization by running statistics is y = a x + b with a number a and b for each channel.
    With W' = a W and the bias a c + b the layer before it makes y at once, and the normalization is
    gone (Jacob et al., section 3.2).

    ```python
    import jax
    import jaxeff
    from flax import nnx
    from jaxeff.compression import Int, fold_batch_norm, quantized
    from jaxeff.nn import LeNet5

    model = LeNet5(batch_norm=True, rngs=nnx.Rngs(0))
    model.eval()
    f, params = jaxeff.functional(model)
    x = jax.numpy.ones((2, 28, 28, 1))
    f, params, spec = fold_batch_norm(f, params, x, {"*:linear": Int(8)})
    logits = quantized(f, spec)(params, x)
    ```

    Running statistics are closed over by a function or among its arguments, and most convolutions
    before a batch norm have no bias; so there is a new function besides new parameters. A bias that
    wasn't there is a leaf `bias` beside the weight, and the parameters of a folded normalization
    are gone.

    Sharp edges:
        The statistics are folded as they are now: fold again after training.
        A normalization by the statistics of its batch isn't affine, and stays.

    Args:
        f: A pure function `f(params, *args)` in inference: running statistics are used.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them; shapes count, and the values of state,
            but not those of data.
        spec: Quantizers by site, which are returned as they are.

    Returns:
        A function `g`, its parameters and the spec. `g` takes and returns what `f` does, and its
        layers have the same names. If there is nothing to fold they are `f` and `params`.

    Raises:
        ValueError: A normalization's numbers aren't finite.
        TypeError: A bias has to be added, but the parameters are no nested dict.

    References:
        Jacob et al., arXiv:1712.05877.
    """
    args, spec = as_arguments(batch), dict(spec or {})
    program = trace(f, params, *args)
    leaves = jax.tree.leaves((params, *args))
    folds = _folds(program, leaves)
    if not folds:
        return _layerwise.PostTrained(f, params, spec)
    count = len(jax.tree.leaves(params))
    for fold in folds:
        _scale(fold, leaves)
    nested = _is_nested(params)
    places = [_place(keys) for keys, _ in jax.tree.leaves_with_path(params)]
    new = {fold.site: _new(fold, places) for fold in folds if fold.source.bias is None}
    if new and not nested:
        raise TypeError(
            f"fold_batch_norm has to add a bias to {', '.join(new)}, so the parameters must be a "
            "nested dict, as jaxeff.functional makes it."
        )
    norms = {fold.norm.site for fold in folds}
    gone = set()
    for place, value in zip(places, program.inputs[:count], strict=True):
        # Read by folded normalizations alone: its numbers are in weights and biases now.
        used = _multiplication.users(program, value.path)
        if nested and used and set(used) <= norms:
            gone.add(place)
    structure = jax.tree.structure(params)
    shapes = [jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)) for x in leaves[:count]]
    axes = {fold.site: _axes(fold) for fold in folds}

    def rule(biases: Mapping[str, Any], layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if layer.site in norms:
            (x,) = (values[i] for i in layer.data)
            return (x,)
        outputs = list(plain_rule(layer, key, *values))
        if layer.site in new:
            bias, y = biases[layer.site], outputs[0]
            outputs[0] = y + jnp.expand_dims(bias, _missing(axes[layer.site], y.ndim))
        return outputs

    def g(params: Any, *args: Any, **kwargs: Any) -> Any:
        biases = {site: _at(params, place) for site, place in new.items()}
        if nested:
            # The original function still expects the leaves that are gone; its
            # normalizations are passed over, so zeros do.
            filled = [
                jnp.zeros(shape.shape, shape.dtype) if place in gone else _at(params, place)
                for place, shape in zip(places, shapes, strict=True)
            ]
            params = jax.tree.unflatten(structure, filled)

        def make_rule(program: Program) -> Rule:
            del program
            return lambda layer, key, *values: rule(biases, layer, key, *values)

        return interpret(f, make_rule, None, (params, *args), kwargs)

    if not nested:
        return _layerwise.PostTrained(g, _layerwise.with_leaves(params, leaves), spec)
    kept = {p: x for p, x in zip(places, leaves[:count], strict=True) if p not in gone}
    kept.update({new[fold.site]: _bias(fold) for fold in folds if fold.site in new})
    return _layerwise.PostTrained(g, _nest(kept), spec)


def _folds(program: Program, leaves: Sequence[Any]) -> list[_Fold]:
    linear, _ = _multiplication.multiplications(program)
    env = _multiplication.parameter_values(program, leaves)
    results = {v for v in program.outputs if isinstance(v, Value)}
    folds = []
    for at in linear.values():
        outputs = at.layer.outputs
        reading = [la for la in program.layers if outputs[0] in la.inputs]
        # Folding changes the weight: nobody else may read it, and nothing but the
        # normalization may read the product.
        alone = _multiplication.users(program, at.origin.path) == [at.layer.site]
        if len(outputs) != 1 or outputs[0] in results or len(reading) != 1 or not alone:
            continue
        (norm,) = reading
        # An affine function without numbers of its own, such as a factor, is no normalization.
        is_norm = len(norm.inputs) > 1 and norm.kind in {"normalization", "elementwise"}
        known = all(v is outputs[0] or v in env for v in norm.inputs)
        if not is_norm or not known or len(norm.outputs) != 1:
            continue
        first = source(program, at, leaves, env)
        numbers = None if first is None else _affine(first, norm, env)
        if first is not None and numbers is not None:
            folds.append(_Fold(first, norm, *numbers))
    return folds


def _affine(
    first: Source, norm: Layer, env: Mapping[Value, Any]
) -> tuple[Float[np.ndarray, " channels"], Float[np.ndarray, " channels"]] | None:
    """Finds the factor and shift of each channel; None where a layer isn't affine by channel."""
    value = first.at.layer.outputs[0]

    def run(x: Array) -> Array:
        output: Array = norm.fn(*(x if v is value else env[v] for v in norm.inputs))[0]
        return output

    @jax.jit
    def tangent(x: Array) -> tuple[Array, Array]:
        # At x = 0 the value is the shift, and the tangent along ones the factor of an
        # elementwise function.
        return jax.jvp(run, (x,), (jnp.ones_like(x),))

    zero = np.zeros(value.aval.shape, value.aval.dtype)
    shift, factor = (np.asarray(a, np.float64) for a in tangent(zero))
    if shift.shape != zero.shape:
        return None
    tolerance = 1e-4 if jnp.finfo(zero.dtype).bits >= 32 else 0.05
    # Affine or not is decided by values, not by the names of operations: random points must
    # lie on the line, up to rounding of the two terms.
    for draw in range(_DRAWS):
        x = np.asarray(10 * np.random.default_rng(draw).normal(size=zero.shape), zero.dtype)
        y = np.asarray(tangent(x)[0], np.float64)
        parts = np.abs(factor * x) + np.abs(shift)
        if not (np.abs(y - (factor * x + shift)) <= tolerance * parts).all():
            if not np.isfinite(parts).all():
                raise ValueError(f"fold_batch_norm: {norm.site!r} has numbers that aren't finite.")
            return None
    numbers = []
    for array in (factor, shift):
        each, flat = array.reshape(-1), first.channels.reshape(-1)
        # All entries of a channel must agree: otherwise no weight and bias can hold the numbers.
        mean = np.bincount(flat, each) / np.bincount(flat)
        if not np.allclose(mean[flat], each, rtol=tolerance, atol=0):
            return None
        numbers.append(mean)
    return numbers[0], numbers[1]


def _scale(fold: _Fold, leaves: list[Any]) -> None:
    """Puts a normalization's numbers into the weight, and the bias where there is one."""
    at, bias = fold.source.at, fold.source.bias
    # a (W x + b) + shift = (a W) x + (a b + shift).
    matrix = weights_of(at, leaves)
    replace_weights(at, leaves, matrix * fold.factor.reshape(matrix.shape[0], 1, -1))
    if bias is not None:
        channels, leaf = fold.source.bias_channels, leaves[bias.leaf]
        assert channels is not None
        new = np.asarray(leaf, np.float64) * fold.factor[channels] + fold.shift[channels]
        leaves[bias.leaf] = jnp.asarray(new.astype(leaf.dtype))


def _axes(fold: _Fold) -> tuple[int, ...]:
    """Finds the axes of a layer's output along which channels differ, counted from the end."""
    channels = fold.source.channels
    return tuple(
        axis - channels.ndim
        for axis in range(channels.ndim)
        if (channels != channels.take([0], axis)).any()
    )


def _bias(fold: _Fold) -> Array:
    """Makes a new bias: the shift, with the axes of the layer's channels."""
    channels, axes = fold.source.channels, _axes(fold)
    first = channels[
        tuple(slice(None) if a - channels.ndim in axes else 0 for a in range(channels.ndim))
    ]
    return jnp.asarray(fold.shift[first], fold.norm.outputs[0].aval.dtype)


def _missing(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if a - rank not in axes)


def _is_nested(tree: Any) -> bool:
    """Returns whether parameters are nested dicts of arrays with string keys."""
    if not isinstance(tree, Mapping):
        return False
    return all(
        isinstance(k, str) and (_is_nested(v) or not isinstance(v, Mapping | tuple | list))
        for k, v in tree.items()
    )


def _place(keys: Sequence[Any]) -> tuple[str, ...]:
    """Returns the keys that lead to a leaf of nested dicts."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in keys)


def _new(fold: _Fold, places: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Chooses a place for the bias of a layer that has none."""
    beside = places[fold.source.at.origin.leaf][:-1]
    taken = (*beside, "bias") in places
    return (*beside, "folded_bias" if taken else "bias")


def _at(tree: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def _nest(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for (*parents, last), leaf in leaves.items():
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree


@validate(batch=input_batch)
def correct_biases(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> _layerwise.PostTrained:
    """Corrects biases so that quantized layers keep the means of their outputs.

    The error of a layer's output has a mean that isn't zero: E[y'] = E[y] + E[e], with an entry of
    e for each output channel; subtracting E[e] from the bias removes it (Nagel et al., section 4.2,
    eqs. 16, 17). E[e] is measured on a batch, layer by layer, each on what the corrected, quantized
    layers before it give (appendix D).

    ```python
    from jaxeff.compression import Int, correct_biases, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    f, params, spec = correct_biases(f, params, x, {"*:linear": Int(4)})
    logits = quantized(f, spec)(params, x)
    ```

    Sharp edges:
        A layer without a bias stays as it is: `fold_batch_norm` gives a bias to those that have a
        batch norm. So does a layer in a loop.
        The mean is that before the activation function.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`, or those that `gptq` or `adaround` gave.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Quantizers by site, as for `quantized`.

    Returns:
        `f`, new parameters and the spec; only biases of layers with a setting are different.

    Raises:
        ValueError: The batch is empty or not finite, or no layer of the spec has a bias.

    References:
        Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
        arXiv:1906.04721.
    """
    model = _layerwise.read_model("correct_biases", f, params, batch, spec)
    # Biases change among the leaves, layer by layer, as the quantized network runs.
    correction = _Correction(model, _multiplication.producers(model.program))
    _layerwise.side_by_side(model.program, model.settings, model.leaves, correction)
    if not correction.sites:
        raise ValueError(
            "correct_biases found no bias of its own in any layer of the spec: "
            f"{_listed(model.program, model.settings)}. fold_batch_norm makes biases of batch "
            "norms."
        )
    return _layerwise.PostTrained(f, _layerwise.with_leaves(params, model.leaves), dict(spec))


@dataclass(frozen=True, eq=False)
class _Correction:
    """What `correct_biases` does at each layer: its bias takes up the mean error of its outputs.

    Attributes:
        model: The model, whose leaves change.
        makers: The node that makes each value.
        sites: The layers that were corrected.
    """

    model: _layerwise.ModelReading
    makers: dict[Value, Node]
    sites: set[str] = field(default_factory=set)

    def __call__(
        self,
        layer: Layer,
        exact: Sequence[Any],
        outputs: Sequence[Any],
        quantized_inputs: Sequence[Any],
    ) -> Sequence[Any] | None:
        """Computes a layer's outputs with its new bias, or returns None if it has none."""
        program, settings, leaves = self.model.program, self.model.settings, self.model.leaves
        if layer.site not in settings or not layer.biases:
            return None
        index = layer.biases[0]
        bias = _multiplication.origin(program, layer.inputs[index], self.makers, grows=True)
        # A bias that is computed, or read elsewhere too, can't take this layer's error alone.
        if bias is None or _multiplication.users(program, bias.path) != [layer.site]:
            return None
        rule = jax.jit(partial(quantized_layer, settings[layer.site], layer, None))
        (result,) = rule(*quantized_inputs)
        _layerwise.check_finite("correct_biases", layer.site, outputs=result)
        leaf = leaves[bias.leaf]
        error = np.asarray(result) - np.asarray(outputs[0])
        # E[e] of eqs. 16 and 17, over all places that an entry of the bias adds to.
        mean = _multiplication.mean_per_entry(layer, bias, index, leaf, exact, error)
        self.sites.add(layer.site)
        leaves[bias.leaf] = jnp.asarray(np.asarray(leaf) - np.asarray(mean), leaf.dtype)
        inputs = list(quantized_inputs)
        inputs[index] = bias.to_input(leaves[bias.leaf])
        # Later layers measure their error on corrected inputs (appendix D).
        changed: Sequence[Any] = rule(*inputs)
        return changed


def _listed(program: Program, settings: Mapping[str, Any]) -> str:
    names = [layer.site for layer in program.sites if layer.site in settings]
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
