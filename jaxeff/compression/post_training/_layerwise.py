"""A model and its quantized self side by side, layer by layer, on one batch.

Every layer sees what the original network feeds it, and what the layers before it, quantized
already, feed it. GPTQ, AdaRound and bias correction are what is done at a layer.

Sharp edges:
    Values are concrete: this is host code that can't be traced, one layer's arrays at a time.
    A layer in a loop is quantized as its setting says and left alone otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.compression import _quantized
from jaxeff.compression.numerics import LayerQuantization, Method, Quantizer, Tensor
from jaxeff.compression.post_training import _multiplication as multiplication
from jaxeff.core import as_arguments
from jaxeff.program import (
    Layer,
    Program,
    Rule,
    SharedPrograms,
    at_sites,
    evaluate,
    plain_rule,
    trace,
)

_LAST_BITS = 4 * float(jnp.finfo(jnp.float32).eps)
At = Callable[[Layer, Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any] | None]


@dataclass(frozen=True, eq=False)
class RoundingProblem:
    """One layer's weights to be put on their grid.

    Attributes:
        at: The layer.
        tensor: Description of the weight for its quantizer.
        quantizer: The method, started.
        weights: The original weights, as matrices in float32.
        exact: The data that the original network feeds the layer.
        quantized: The data that the quantized network feeds it.
        dtype: Dtype of the weights as the layer reads them.
        run: Programs that layers share.
    """

    at: multiplication.Multiplication
    tensor: Tensor
    quantizer: Quantizer
    weights: multiplication.Matrix
    exact: Array
    quantized: Array
    dtype: Any
    run: SharedPrograms

    @cached_property
    def round(self) -> Callable[[multiplication.Matrix], multiplication.Matrix]:
        """`nearest`, compiled."""
        return jax.jit(self.nearest)

    @cached_property
    def numbers(self) -> tuple[multiplication.Matrix, ...]:
        """Numbers of groups and of inputs, as matrices like the weights; none of other methods."""
        by_entry = getattr(self.quantizer, "by_entry", None)
        if by_entry is None:
            return ()
        shape = self.at.contraction.weight(np.zeros_like(self.weights)).shape
        return tuple(map(self.at.contraction.matrix, by_entry(shape, self.tensor)))

    def nearest(
        self, matrix: multiplication.Matrix, *numbers: multiplication.Matrix
    ) -> multiplication.Matrix:
        """Rounds to values of the grid; weights of all inputs, or of a single one.

        Args:
            matrix: Weights.
            *numbers: Rows of `numbers`, where a single input is rounded.
        """
        return self.nearest_of(self.quantizer, matrix, *numbers)

    def nearest_of(
        self, quantizer: Any, matrix: multiplication.Matrix, *numbers: multiplication.Matrix
    ) -> multiplication.Matrix:
        """Rounds as `nearest`, by a quantizer that may be traced."""
        weight = self.at.contraction.weight(matrix).astype(self.dtype)
        # A single input is no group: the method by itself, with the numbers of its entries.
        if matrix.shape != self.weights.shape and hasattr(quantizer, "with_numbers"):
            quantizer = quantizer.with_numbers(
                [self.at.contraction.weight(each) for each in numbers]
            )
        values = quantizer.quantize(weight, self.tensor)
        return self.at.contraction.matrix(values).astype(jnp.float32)


Solve = Callable[[RoundingProblem], multiplication.Matrix]


class PostTrained(NamedTuple):
    """What every pass returns: `f, params, spec = gptq(f, params, batch, spec)`.

    Attributes:
        f: The function `f(params, *args)`, rewritten where the pass changes the program.
        params: The parameters of `f`, with the weights that the pass found.
        spec: The quantizer of each site, as `quantized` takes them.
    """

    f: Callable[..., Any]
    params: Any
    spec: dict[str, Any]


def with_leaves(params: Any, leaves: Sequence[Any]) -> Any:
    """Returns parameters with the first of some leaves."""
    old, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, leaves[: len(old)])


def arguments(where: str, batch: Any) -> tuple[Any, ...]:
    """Converts a batch to arguments.

    Raises:
        ValueError: It is empty, or holds NaN or infinity.
    """
    args = as_arguments(batch)
    for leaf in jax.tree.leaves(args):
        if np.size(leaf) == 0:
            raise ValueError(f"{where} needs a batch with at least one example, but it is empty.")
        numeric = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if numeric and not np.isfinite(leaf).all():
            raise ValueError(f"{where} needs a batch of finite numbers, but it holds NaN or inf.")
    return args


class ModelReading(NamedTuple):
    """A model as the methods of this package read it.

    Attributes:
        program: The model's layers.
        settings: Settings of layers, by site.
        linear: Products with weights, by site.
        refused: Reasons why other linear layers are none, by site.
        leaves: Leaves of the model's arguments.
    """

    program: Program
    settings: Mapping[str, LayerQuantization]
    linear: dict[str, multiplication.Multiplication]
    refused: dict[str, str]
    leaves: list[Any]


def read_model(
    where: str, f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Method | None]
) -> ModelReading:
    """Reads a model and the settings of its layers.

    `where` is a name for error messages.

    Raises:
        ValueError: The batch is empty or not finite.
    """
    _quantized.check_spec(spec)
    args = arguments(where, batch)
    program = trace(f, params, *args)
    settings = _quantized.settings_of(spec, program)
    leaves = jax.tree.leaves((params, *args))
    return ModelReading(program, settings, *multiplication.multiplications(program), leaves)


def on_grids(
    where: str,
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    solve: Solve,
) -> PostTrained:
    """Puts weights on their quantizers' grids, layer by layer.

    Args:
        where: The function's name, for error messages.
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        spec: Quantizers by site, as for `quantized`. Open numbers of a weight's method are those of
            the original weights; activations are quantized as they are set.
        solve: Function that finds the new weights of a layer.

    Returns:
        The function, the parameters, and a spec for them with one setting per site.

    Raises:
        ValueError: Nothing in the spec has weights, a weight can't be replaced, values aren't
            finite, or a method doesn't keep its own grid.
    """
    model = read_model(where, f, params, batch, spec)
    rounding = _WeightRounding(where, model, solve)
    side_by_side(model.program, model.settings, model.leaves, rounding, rounding.run)
    if not rounding.started:
        raise ValueError(f"{where} found no weights to quantize: no setting of the spec has any.")
    spec = started_spec(model.program, model.settings, rounding.started)
    return PostTrained(f, with_leaves(params, model.leaves), spec)


@dataclass(frozen=True, eq=False)
class _WeightRounding:
    """What `on_grids` does at each layer: its weight is solved for, and replaced among the leaves.

    Attributes:
        where: The function's name, for error messages.
        model: The model, whose leaves change.
        solve: Function that finds the new weights of a layer.
        run: Programs that layers share.
        solved: Path of a weight -> the layer that was solved for, its new weight and its method.
        started: Methods of weights by site.
    """

    where: str
    model: ModelReading
    solve: Solve
    run: SharedPrograms = field(default_factory=SharedPrograms)
    solved: dict[str, tuple[Layer, Array, Quantizer]] = field(default_factory=dict)
    started: dict[str, Quantizer] = field(default_factory=dict)

    def __call__(
        self,
        layer: Layer,
        exact: Sequence[Any],
        outputs: Sequence[Any],
        quantized_inputs: Sequence[Any],
    ) -> Sequence[Any] | None:
        """Computes a layer's outputs with its new weight, or returns None if it has no setting."""
        del outputs
        setting = self.model.settings.get(layer.site)
        if setting is None:
            return None
        inputs = list(quantized_inputs)
        weights = [q for q in _quantized.of_inputs(layer, setting, exact) if q[1].role == "weight"]
        if not weights:
            return None
        if layer.site not in self.model.linear:
            raise ValueError(
                f"{self.where} can't replace the weight of {layer.site!r}: "
                f"{self.model.refused[layer.site]}. Set None there."
            )
        ((quantizer, tensor, i),) = weights
        # The weight is fitted to what the layer will read: quantized activations of
        # quantized layers.
        for method, tensor_read, j in _quantized.of_inputs(layer, setting, quantized_inputs):
            if tensor_read.role == "activation":
                inputs[j] = rounded(self.run, method, tensor_read, inputs[j])
        path = self.model.linear[layer.site].origin.path
        # Two uses of one weight share its solution, that of the first use.
        if path not in self.solved:
            new, started = self._solution(layer, quantizer, tensor, exact, inputs, exact[i])
            self.solved[path] = layer, new, started
        first, inputs[i], quantizer = self.solved[path]
        if first is not layer and _turned(self.model.program, first, layer):
            inputs[i] = self._in_layout_of(layer, first, quantizer, tensor)
        self.started[layer.site] = quantizer
        return evaluated(layer, inputs, self.run)

    def _solution(
        self,
        layer: Layer,
        quantizer: Quantizer,
        tensor: Tensor,
        exact: Sequence[Any],
        inputs: Sequence[Any],
        w: Array,
    ) -> tuple[Array, Quantizer]:
        """Solves for the weight of a layer, replaces its leaf, and starts its method."""
        here, leaves = self.model.linear[layer.site], self.model.leaves
        check_users(self.where, self.model.program, here, self.model.linear)
        check_finite(self.where, layer.site, weights=w, inputs=here.reads(inputs))
        quantizer = start(quantizer, w, tensor)
        problem = RoundingProblem(
            here,
            tensor,
            quantizer,
            here.contraction.matrix(np.asarray(w)).astype(np.float32),
            here.reads(exact),
            here.reads(inputs),
            w.dtype,
            self.run,
        )
        matrix = np.asarray(self.solve(problem))
        new = jnp.asarray(here.contraction.weight(matrix).astype(w.dtype))
        new = _snapped(self.where, self.run, quantizer, new, tensor)
        leaves[here.origin.leaf] = here.origin.to_leaf(new, leaves[here.origin.leaf])
        return new, quantizer

    def _in_layout_of(
        self, layer: Layer, first: Layer, quantizer: Quantizer, tensor: Tensor
    ) -> Array:
        """Lays the weight that another layer was solved for as this one reads it."""
        origin = self.model.linear[layer.site].origin
        # The leaf holds the solution by now: the first use replaced it.
        w: Array = origin.to_input(self.model.leaves[origin.leaf])
        if not jnp.array_equal(rounded(self.run, quantizer, tensor, w), w):
            raise ValueError(
                f"{self.where} can't replace the weight of {layer.site!r}: {first.site!r} reads "
                f"{origin.path} in another layout, and the channels of one aren't those of the "
                'other. Give both a setting without channels (per="tensor"), or set None at both.'
            )
        return w


def _turned(program: Program, first: Layer, layer: Layer) -> bool:
    """Returns whether two uses of a weight lay it out otherwise, as a tied layer does."""
    makers = multiplication.producers(program)
    one, other = (multiplication.weight_entries(program, use, makers) for use in (first, layer))
    return one is None or other is None or not np.array_equal(one, other)


def _snapped(
    where: str, run: SharedPrograms, quantizer: Quantizer, new: Array, tensor: Tensor
) -> Array:
    """Moves weights to the values that a method by itself gives for them.

    Raises:
        ValueError: These are others.
    """
    # Compiled by itself, a method may round the last bits otherwise.
    again = rounded(run, quantizer, tensor, new)
    new = jnp.where(jnp.abs(again - new) <= _LAST_BITS * jnp.abs(new), again, new)
    # The returned spec must reproduce these weights: quantizing them again changes nothing.
    check_kept(where, quantizer, new, tensor, run)
    return new


def side_by_side(
    program: Program,
    settings: Mapping[str, LayerQuantization],
    leaves: Sequence[Any],
    at: At,
    run: SharedPrograms | None = None,
) -> None:
    """Evaluates a program twice: as it is, and quantized.

    `at(layer, exact inputs, exact outputs, quantized inputs)` may give the quantized outputs; None
    leaves them to the layer's setting. `run` has programs that layers share; new ones by default.
    """
    run = SharedPrograms() if run is None else run
    exact = multiplication.parameter_values(program, leaves)
    quantized_env = dict(exact)
    # Values are freed after their last reader: two copies of every activation are held otherwise.
    last = {v: i for i, layer in enumerate(program.layers) for v in layer.inputs}
    for i, layer in enumerate(program.layers):
        if any(v not in exact for v in layer.outputs):
            values, others = ([env[v] for v in layer.inputs] for env in (exact, quantized_env))
            plain = partial(_run, layer, plain_rule)
            outputs = run(plain, values)
            exact.update(zip(layer.outputs, outputs, strict=True))
            changed = None
            if layer.nodes and layer.kind != "control flow":
                changed = at(layer, values, outputs, others)
            if changed is None:
                quantizes = layer.kind == "control flow" or layer.site in settings
                rule = partial(_run, layer, at_sites(settings, _quantized.quantized_layer))
                changed = run(rule if quantizes else plain, others)
            quantized_env.update(zip(layer.outputs, changed, strict=True))
        for v in layer.inputs:
            if last[v] == i:
                del exact[v], quantized_env[v]


def started_spec(
    program: Program, settings: Mapping[str, LayerQuantization], started: Mapping[str, Quantizer]
) -> dict[str, LayerQuantization | None]:
    """Puts started methods of weights into settings, one pattern per site.

    A later use of a layer that is left alone says so.
    """
    used = {layer.base for layer in program.sites if layer.site in settings}
    spec: dict[str, LayerQuantization | None] = {}
    for layer in program.sites:
        if layer.base in used:
            setting = settings.get(layer.site)
            # Of "*", which may match what has nothing for a quantizer; a site's own name may not.
            if setting is not None and not _quantized.applies(layer, setting):
                continue
            if setting is not None and layer.site in started:
                setting = replace(setting, weights=started[layer.site])
            spec[layer.site] = setting
    return spec


def start(quantizer: Quantizer, w: Array, tensor: Tensor) -> Quantizer:
    """Computes a method's open numbers from a weight."""
    started: Quantizer = quantizer.start(w, tensor) if hasattr(quantizer, "start") else quantizer
    return started


def rounded(run: SharedPrograms, quantizer: Quantizer, tensor: Tensor, x: Array) -> Array:
    """Computes a method's values of an array, compiled."""
    # Its numbers are arguments, so that layers of one shape share the program.
    values: Array = run(lambda method, x: method.quantize(x, tensor), quantizer, x)
    return values


def evaluated(layer: Layer, values: Sequence[Any], run: SharedPrograms) -> Sequence[Any]:
    """Computes a layer's outputs."""
    outputs: Sequence[Any] = run(layer.fn, *values)
    return outputs


def _run(layer: Layer, rule: Rule, values: Sequence[Any]) -> Sequence[Any]:
    one = Program(layer.inputs, {}, (layer,), layer.outputs)
    return evaluate(one, rule, None, values)


def check_users(
    where: str,
    program: Program,
    here: multiplication.Multiplication,
    linear: Mapping[str, multiplication.Multiplication],
) -> None:
    """Checks that no other kind of layer reads a weight."""
    others = [
        site
        for site in multiplication.users(program, here.origin.path)
        if site not in linear or linear[site].origin.path != here.origin.path
    ]
    if others:
        raise ValueError(
            f"{where} can't replace the weight of {here.layer.site!r}: {here.origin.path!r} is "
            f"read by {', '.join(others)} too. Set None there."
        )


def check_finite(where: str, site: str, **arrays: Array) -> None:
    """Checks a layer's arrays."""
    for what, x in arrays.items():
        if not np.isfinite(x).all():
            raise ValueError(
                f"{where}: the {what} of {site!r} hold NaN or infinity; look at the parameters and "
                "the batch."
            )


def check_kept(
    where: str, quantizer: Quantizer, new: Array, tensor: Tensor, run: SharedPrograms
) -> None:
    """Checks that a method gives its own values back."""
    again = rounded(run, quantizer, tensor, new)
    if not (np.asarray(again) == np.asarray(new)).all():
        raise ValueError(
            f"{where}: {type(quantizer).__name__} at {tensor.site!r} moves values that it made, so "
            "weights can't be kept on its grid; take a method with fixed numbers, such as "
            "Uniform(4) or LSQ(4)."
        )
