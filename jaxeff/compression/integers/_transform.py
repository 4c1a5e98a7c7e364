"""`integer`: a quantized model computed with true integer codes.

Products are sums of 8-bit codes in int32. Bias, batch norm, shortcut, ReLU and max pooling after a
product go into the step that writes its result as the codes that the next layer reads (Jacob et
al., section 2.4); means are means of whole numbers. `quantized(f, spec)` computes the same in
floating point, and `integer_aware(f, spec)` as well what sums read.

Here are the transform and what it converts parameters to; what each layer computes is in `_rule`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.compression import _quantized
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._coded import Argument, Coded, Grid, coded
from jaxeff.compression.integers._dataflow import ParameterCache, run_body, shortcuts_of
from jaxeff.compression.integers._operators import Codes, IntegerError
from jaxeff.compression.integers._rule import (
    IntegerRule,
    Widths,
    as_float,
    as_floats,
    as_value,
    to_float,
)
from jaxeff.compression.integers._values import PendingProduct
from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.compression.quantizers import Int, Uniform
from jaxeff.core import is_concrete, is_key, read_once, validate
from jaxeff.program import (
    INTEGER,
    Layer,
    Program,
    Rule,
    at_sites,
    check_open,
    closed,
    run_layers,
    trace,
)
from jaxeff.program.ir import channels_last, computed_at_once, turns
from jaxeff.program.reading import argument_leaves, without_dead_code

_ARRAYS = (jax.Array, np.ndarray)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class Converted:
    """The parameters of an integer network.

    Attributes:
        arrays: Arrays by `site/name`: codes (int8), biases (int32) and scales (float32). What uses
            of a weight have in common is there once.
        rest: Leaves that layers in float read, by number.
        shapes: Shape and dtype of every leaf of the float parameters.
        structure: Tree structure of the float parameters.
        shared: What further uses of a weight read: `site/name`, which of `arrays` it is, and
            whether transposed (a table of tokens that logits are made with, too).
    """

    arrays: Mapping[str, Any]
    rest: Mapping[str, Any]
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    structure: Any
    shared: tuple[tuple[str, str, bool], ...] = ()

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Splits it into named arrays and static fields."""
        key = jax.tree_util.DictKey
        named = [(key("arrays"), dict(self.arrays)), (key("rest"), dict(self.rest))]
        return named, (self.shapes, self.structure, self.shared)

    @classmethod
    def tree_unflatten(cls, static: Any, named: Any) -> Converted:
        """Rebuilds it from arrays and static fields."""
        return cls(*named, *static)

    def named(self) -> dict[str, Any]:
        """Returns the arrays of every site, those that uses of a weight share for each of them."""
        of_further_uses = {
            use: self.arrays[name].T if transposed else self.arrays[name]
            for use, name, transposed in self.shared
        }
        return {**self.arrays, **of_further_uses}

    def leaves(self) -> list[Array]:
        """Makes leaves for the float function; those that nobody reads are zeros."""
        return [
            self.rest[str(i)] if str(i) in self.rest else jnp.zeros(shape, dtype)
            for i, (shape, dtype) in enumerate(self.shapes)
        ]


class Integer:
    """The function that `integer` returns: `g(params, *args)` of parameters, float or converted."""

    def __init__(
        self,
        f: Callable[..., Any],
        spec: Mapping[str, Method | None],
        dynamic: bool,
        fixed: bool = False,
    ):
        self._f, self._spec, self._dynamic, self._fixed = read_once(f), spec, dynamic, fixed
        # Groups, and scales of inputs, belong to rows in their order: such weights keep it.
        rows = all(m is None or (isinstance(m, Int) and m.per != "group") for m in spec.values())
        self._channels_last = read_once(channels_last(f, kernels=False, rows=rows))
        self._widths: Widths = {}
        functools.update_wrapper(self, f, updated=())

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes what `f` returns with codes."""
        if not isinstance(params, Converted):
            return self._run((params, *args), kwargs, ParameterCache(None, {}))[0]
        # One program in the place of hundreds: equation by equation the first call compiles longer.
        leaves = jax.tree.leaves((params, args))
        if not kwargs and all(isinstance(x, _ARRAYS) and is_concrete(x) for x in leaves):
            return self._compiled(params, *args)
        return self._of_codes(params, *args, **kwargs)

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return jax.jit(self._of_codes)

    def _of_codes(self, params: Converted, *args: Any, **kwargs: Any) -> Any:
        # The function is traced on float parameters' shapes; leaves that only became codes
        # are zeros that nothing reads.
        inner = jax.tree.unflatten(params.structure, params.leaves())
        return self._run((inner, *args), kwargs, ParameterCache(params.named(), {}))[0]

    def convert(self, params: Any, *args: Any, **kwargs: Any) -> Converted:
        """Converts parameters to codes, once and for all.

        Args:
            params: Parameters of `f`, or their shapes (`jax.ShapeDtypeStruct`).
            *args: Further arguments; of data only shapes count.
            **kwargs: Keyword arguments of `f`; of data only shapes count.

        Returns:
            What `g` takes in their place. Of shapes it has shapes: the layout and the size of what
            parameters of these shapes become, where codes that uses of one weight may share are
            taken to be shared.

        Raises:
            IntegerError: A range was never calibrated, a grid is none that integer kernels take, or
                an accumulator could overflow.
            TypeError: The parameters are converted already, or a key stands before them.
            ValueError: A weight isn't finite, weights of one bit are zeros alone in an output, or
                as for `quantized`.
        """
        return self._converted(params, args, kwargs)

    def _converted(
        self,
        params: Any,
        args: tuple[Any, ...],
        kwargs: Any,
        stand_ins: Mapping[int, Argument] | None = None,
        results: Sequence[Grid] | None = None,
    ) -> Converted:
        if isinstance(params, Converted):
            raise TypeError("convert takes the float parameters of f, but these are converted.")
        if is_key(params):
            raise TypeError(
                "convert: the first argument is a random key, and codes stand in the place of the "
                "first. Take a function whose parameters come first: "
                "lambda params, key, *args: f(key, params, *args)."
            )
        kept: list[int] = []
        weights: dict[str, frozenset[str]] = {}

        def make(params: Any) -> dict[str, Any]:
            codes: dict[str, Any] = {}
            store = ParameterCache(None, codes)
            # No code depends on data, so any of their shapes do.
            data, named = jax.tree.map(_filled, (args, kwargs))
            _, rule = self._run((params, *data), named, store, stand_ins, results)
            kept[:] = rule.leaves_in_float()
            weights.update(rule.weights)
            return codes

        leaves, structure = jax.tree.flatten(params)
        abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
        arrays: dict[str, Any] = (jax.eval_shape if abstract else _computed)(make, params)
        for name, array in () if abstract else arrays.items():
            if array.dtype == np.float32 and not np.isfinite(array).all():
                raise ValueError(
                    f"{name} isn't finite: the layer's parameters hold NaN or infinity, or weights "
                    "of one bit that are zeros alone in an output, which have no sign."
                )
        shapes = tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
        # Only what layers in float read is kept beside the codes: the size of a converted network.
        floats = {str(i): leaves[i] if abstract else jax.device_put(leaves[i]) for i in kept}
        shared = _shared(arrays, weights)
        further_uses = {use for use, *_ in shared}
        stored = {n: a for n, a in arrays.items() if n not in further_uses}
        if not abstract:
            stored = jax.device_put(stored)
        return Converted(stored, floats, shapes, structure, shared)

    @validate()
    def coded(
        self,
        params: Any,
        *args: Any,
        results: Uniform | Sequence[Uniform] | None = None,
        arguments: Uniform | None = None,
    ) -> Coded:
        """Makes the function of codes to codes: `h(params, *codes)`, codes in and out.

        Data are uint8 codes on the grid of the layer that reads them, so they must be read by
        layers of the spec alone, perhaps reshaped or transposed first. With `arguments` they are
        int16 codes on that grid, whatever reads them.

        Args:
            params: Parameters of `f`, float or converted.
            *args: An example of the data; the results' ranges are taken from it.
            results: Grids of the results in float, with ranges: one for all, or one for each, in
                the order of `jax.tree.leaves`; of up to 8 bits as uint8, of up to 16 as int16. By
                default 8 bits from the smallest to the largest result of the example.
            arguments: A grid of 9 to 16 bits, with a range, for all data in float, such as
                `Uniform(16, range=(-1, 1))` for samples. Layers round it to codes of their own.

        Returns:
            The function, with the grids: `h.arguments`, `h.results`, `h.encode`, `h.decode`.

        Raises:
            IntegerError: Data are read in float or on several grids, a grid has no range or more
                than 16 bits, or one of `arguments` fewer than 9; or as for `convert`.
        """

        def run(args: tuple[Any, ...], stand_ins: Any, results: Any) -> Any:
            params, *data = args
            arrays = None
            if isinstance(params, Converted):
                arrays = params.named()
                converted_leaves = len(jax.tree.leaves(params))
                params = jax.tree.unflatten(params.structure, params.leaves())
                # Places of the data count the leaves before them.
                shift = len(jax.tree.leaves(params)) - converted_leaves
                stand_ins = {i + shift: value for i, value in stand_ins.items()}
            store = ParameterCache(arrays, {})
            return self._run((params, *data), {}, store, stand_ins, results)[0]

        def convert(params: Any, data: tuple[Any, ...], stand_ins: Any, results: Any) -> Converted:
            return self._converted(params, data, {}, stand_ins, results)

        coded_network = coded(run, convert, params, args, results, arguments)
        # Arguments keep the names that the model gave them, which exports write down.
        functools.update_wrapper(coded_network, self._f, updated=())
        return coded_network

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: Any,
        store: ParameterCache,
        stand_ins: Mapping[int, Argument] | None = None,
        results: Sequence[Grid] | None = None,
    ) -> tuple[Any, IntegerRule]:
        """Evaluates the network; `stand_ins` take the place of leaves of `args`, by number."""
        program = trace(self._f, *args, **kwargs)
        # Kernels have channels last: an image of a channels-first model is turned as codes, once.
        if any(turns(node.eqn) for layer in program.layers for node in layer.nodes):
            program = trace(self._channels_last, *args, **kwargs)
        _check_has_no_variances(program)
        check_open(program, "integer")
        with jax.ensure_compile_time_eval():  # a range is a number, also under jit
            settings = _quantized.settings_of(self._spec, program)
        rule = IntegerRule(program, settings, store, self._dynamic, self._fixed, self._widths)
        values = argument_leaves(args, kwargs)
        for i, value in (stand_ins or {}).items():
            values[i] = value
        outputs = _evaluate(program, rule, values)
        # Results are written as codes by the kernels that compute them.
        grids = [None] * len(outputs) if results is None else results
        written = [
            _written(y, v, grid) for y, v, grid in zip(outputs, program.outputs, grids, strict=True)
        ]
        done = closed(written, INTEGER)
        return jax.tree.unflatten(program.out_tree, done), rule


@validate()
def integer(
    f: Callable[..., Any],
    spec: Mapping[str, Method | None],
    *,
    dynamic: bool = False,
    requantize: Literal["float", "fixed"] = "float",
) -> Integer:
    """Computes a quantized model with integer codes.

    ```python
    from jaxeff.compression import Int, calibrate, integer
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
    g = integer(f, spec)
    codes = g.convert(params, x)     # int8 weights, int32 biases, and scales: no float weights
    logits = g(codes, x)             # what jaxeff_export.deploy(g, (codes, x)) compiles
    ```

    Sharp edges:
        A shortcut reads codes where `quantized` reads floats: below 8 bits train `integer_aware`.
        What no integer kernel takes runs as in `quantized` (an `IntegerFallbackWarning` names it).
        `g(params, x)` converts in every call, with running statistics as they are: convert once.
        A weight that another layer reads in float is kept in float, too, such as a table of tokens
        that logits are made with: "*" quantizes look-up and product, "*:linear" the product alone.
        What a norm or a softmax computes in float may have other codes in a bundle than under XLA
        (see `Bundle.check`), and others than in `quantized`: of many values a few lie between two
        codes. `quantized` itself moves by .047 of an untrained VAE's largest result when the last
        bits of its norms' scales change.
        Codes have no NaN: under JAX it becomes the smallest code of a calibrated grid, and infinity
        an end of the range, so that results are finite. Deployed bundles refuse NaN in arguments.

    Args:
        f: A pure function `f(params, *args)` in inference.
        spec: Quantizers by site, as for `quantized`, of uniform grids of at most 8 bits: symmetric
            ones for weights (`Int(8)`), with the ranges of activations that
            `calibrate` gives.
        dynamic: Whether activations without a range take their own smallest and largest value in
            every call, which costs two passes over them.
        requantize: Conversion of sums to codes: by a "float" scale, or by a "fixed"-point
            multiplier of 16 bits and shifts, for arithmetic of integers alone between the first
            codes and the last sums (means but for). The codes of a layer differ by one at most.

    Returns:
        A pure function `g(params, *args)`, whose parameters are those of `f` or what
        `g.convert(params, *args)` makes of them.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: `requantize` is neither.
        IntegerError: On the first call; as for `convert`.

    References:
        Jacob et al., arXiv:1712.05877.
    """
    _quantized.check_spec(spec)
    if requantize not in ("float", "fixed"):
        raise ValueError(f'requantize is "float" or "fixed", not {requantize!r}')
    return Integer(f, spec, dynamic, requantize == "fixed")


def _filled(leaf: Any) -> Any:
    """Returns an array in the place of a shape."""
    abstract = isinstance(leaf, jax.ShapeDtypeStruct)
    return jnp.zeros(leaf.shape, leaf.dtype) if abstract else leaf


def _computed(make: Callable[[Any], dict[str, Any]], params: Any) -> dict[str, np.ndarray]:
    """Calls a function of parameters that returns arrays by name, without compiling it."""
    # Of the network only the equations that make parameters are left: they run once, and would
    # take longer to compile than to compute.
    closed, shapes = jax.make_jaxpr(make, return_shape=True)(params)
    arrays = computed_at_once(without_dead_code(closed), jax.tree.leaves(params))
    return dict(zip(shapes, map(np.asarray, arrays), strict=True))


def _shared(
    arrays: Mapping[str, Any], weights: Mapping[str, frozenset[str]]
) -> tuple[tuple[str, str, bool], ...]:
    """Finds the arrays that several uses of a weight have in common, as in `Converted.shared`.

    Not all have: a bias or a shortcut beside which products are next to nothing changes the codes
    that are stored for its use, and scales are equal where the ranges of activations are.
    """
    first_use: dict[tuple[Any, ...], tuple[str, bool]] = {}
    shared = []
    # The first use has the shortest name, of which those of later ones are made.
    for name in sorted(arrays, key=lambda name: (len(name), name)):
        site, _, part = name.rpartition("/")
        array, leaves = arrays[name], weights.get(site)
        if not leaves or array.ndim < 1:
            continue
        # Weights are told by the leaves that they are made of, vectors by what they are, too.
        matrix = array.ndim > 1
        part_key = (leaves, array.dtype.str, "" if matrix else part)
        # Of shapes there are no codes that could differ, and later uses of a layer have its ranges.
        shapes_only = isinstance(array, jax.ShapeDtypeStruct)
        contents = "" if matrix else site.partition("#")[0]
        key = (*part_key, array.shape, contents if shapes_only else array.tobytes())
        if key in first_use:
            shared.append((name, *first_use[key]))
            continue
        first_use[key] = name, False
        if array.ndim == 2:
            transposed = contents if shapes_only else np.ascontiguousarray(array.T).tobytes()
            first_use.setdefault((*part_key, array.shape[::-1], transposed), (name, True))
    return tuple(shared)


def _written(y: Any, variable: Any, to: Grid) -> Any:
    """Returns a result as codes of a grid, or as the model has it."""
    if to is None:
        return as_float(y, variable)
    # No kernel ends in more than a byte: those codes are made of floats.
    return as_value(y).requantize(to) if isinstance(to, Codes) else to.write(to_float(y))


def _check_has_no_variances(program: Program) -> None:
    """Checks that a function computes no variances, which codes of signals can't stand for."""
    for layer in program.walk():
        if layer.mark and any(v.spread for v in layer.outputs):
            raise IntegerError(
                f"integer can't act on moments(f): {layer.site!r} has a variance beside its mean, "
                "and codes stand for means only. Take moments(quantized(f, spec)), or "
                "integer(f, spec) of sampled parameters."
            )


def _evaluate(program: Program, rule: IntegerRule, values: Sequence[Any]) -> list[Any]:
    """Runs layers in order; a product runs where it is read, under the name of its own layer."""

    def body(program: Program, store: ParameterCache, values: Sequence[Any]) -> list[Any]:
        return as_floats(_evaluate(program, rule.storing(store), values), program.outputs)

    def outputs_of(layer: Layer, arguments: list[Any]) -> Sequence[Any]:
        if layer.kind == "control flow":
            return run_body(layer, as_floats(arguments, layer.inputs), rule.store, body)
        outputs = rule(layer, None, *arguments)
        # A product that is read in several forms is written once in float; codes are made of that.
        return [
            replace(value, in_several_forms=True)
            if isinstance(value, PendingProduct) and v in rule.several
            else value
            for v, value in zip(layer.outputs, outputs, strict=True)
        ]

    return run_layers(program, values, outputs_of)


@validate()
def integer_aware(
    f: Callable[..., Any], spec: Mapping[str, Method | None], *, keyed: bool = False
) -> Callable[..., Any]:
    """Quantizes the layers of a model, and the shortcuts that `integer` reads as their codes.

    ```python
    from jaxeff.compression import Int, calibrate, integer, integer_aware
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    spec = calibrate(f, params, [x], {"*:linear": Int(4)}).spec
    g = integer_aware(f, spec)               # train this one ...
    logits = integer(f, spec)(params, x)     # ... to deploy this one
    ```

    `quantized` puts what a layer reads on its grid, and a residual sum reads what it was before. An
    integer network has the codes alone, so that at few bits it computes something else. Here sums
    read codes, too. `integer(dynamic=True)` computes ranges in each call and reads no codes in
    sums: it is simulated by `quantized`.

    Args:
        f: A pure function `f(params, *args)`, in inference or in training.
        spec: Quantizers by site, as for `quantized`.
        keyed: Whether the result takes a random key first, as for `quantized`.

    Returns:
        A pure function `g(params, *args)`, or `g(key, params, *args)`, differentiable as that of
        `quantized`, and the same where no sum reads codes.

    Raises:
        TypeError: As for `quantized`.
        ValueError: As for `quantized`, on the first call.

    References:
        Jacob et al., arXiv:1712.05877, section 2.4 and appendix A.2.
    """

    def rule_of(program: Program, settings: Mapping[str, LayerQuantization]) -> Rule:
        readers = {
            layer: (shortcut.at, shortcut.reader)
            for layer, shortcut in shortcuts_of(program, settings).items()
            if shortcut.reader is not None
        }
        quantize = at_sites(settings, _quantized.quantized_layer)

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            if layer in readers:
                values = _as_codes(settings, *readers[layer], key, values)
            return quantize(layer, key, *values)

        return rule

    return _quantized.by_layer(f, spec, keyed, rule_of)


def _as_codes(
    settings: Mapping[str, LayerQuantization],
    shortcut: int,
    reader: Layer,
    key: Any,
    values: Sequence[Any],
) -> tuple[Any, ...]:
    """Quantizes a sum's shortcut, the number of an operand, on the grid of another reader."""
    operands = list(values)
    for quantizer, tensor, operand in _quantized.of_inputs(
        reader, settings[reader.site], read.arrays_like(reader), key
    ):
        if operand == reader.data[0]:
            operands[shortcut] = quantizer.quantize(values[shortcut], tensor)
    return tuple(operands)
