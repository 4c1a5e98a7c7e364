"""`integer`: a quantized model computed with true integer codes.

```python
import jax
import jaxeff
from jaxeff.compression import Int, calibrate, integer
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = calibrate(f, params, [x], {"*:linear": Int(8, symmetric="weights")})
g = integer(f, spec)
codes = g.convert(params, x)            # int8 weights, int32 biases, and scales: no float weights
logits = g(codes, x)                    # what jaxeff_export.deploy(g, (codes, x)) compiles
```

Products are sums of 8-bit codes in int32. Bias, batch norm, shortcut, ReLU and max pooling after a
product go into the step that writes its result as the codes that the next layer reads (Jacob et
al., section 2.4); means are means of whole numbers. `quantized(f, spec)` computes the same in
floating point.

Sharp edges:
    A shortcut reads the codes of its neighbour on the main road, where `quantized` reads floats:
    below 8 bits train `integer_aware(f, spec)`, which reads codes.
    What no integer kernel takes runs as in `quantized` (an `IntegerFallbackWarning` names it).
    `g(params, x)` converts in every call: convert once.
    Conversion folds running statistics as they are.
    Codes have no NaN: under JAX it becomes the smallest code of a calibrated grid, and infinity an
    end of the range, so that results are finite. Deployed bundles refuse NaN in arguments.

References:
    Jacob et al., arXiv:1712.05877.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.compression import _embedding as tables
from jaxeff.compression._quantized import check_spec, of_inputs, quantized_layer, settings_of
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._dynamic import ranged_by_itself
from jaxeff.compression.integers._forms import in_several_forms
from jaxeff.compression.integers._grids import (
    Codes,
    IntegerError,
    levels,
    weight_bits,
    weight_codes,
    width,
)
from jaxeff.compression.integers._means import Addition
from jaxeff.compression.integers._operators import LIMIT
from jaxeff.compression.integers._values import AffineMap, IntegerProduct, Mean, Plain, Sums, Value
from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.compression.quantizers.uniform import Uniform
from jaxeff.core import Literal as JaxprLiteral
from jaxeff.core import pure_function, validate
from jaxeff.program import INTEGER, Layer, Program, check_open, closed, evaluate, plain_rule, trace
from jaxeff.program import control_flow as control
from jaxeff.program.costs import bits_scope
from jaxeff.program.reading import argument_leaves, mark


class IntegerFallbackWarning(UserWarning):
    """A layer that the spec quantizes, but that no integer kernel takes."""


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class Converted:
    """The parameters of an integer network.

    Attributes:
        arrays: Arrays by `site/name`: codes (int8), biases (int32) and scales (float32).
        rest: Leaves that layers in float read, by number.
        shapes: Shape and dtype of every leaf of the float parameters.
        structure: Tree structure of the float parameters.
    """

    arrays: Mapping[str, Any]
    rest: Mapping[str, Any]
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    structure: Any

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Splits it into named arrays and static fields."""
        key = jax.tree_util.DictKey
        named = [(key(name), dict(part)) for name, part in self._parts()]
        return named, (self.shapes, self.structure)

    @classmethod
    def tree_unflatten(cls, static: Any, parts: Any) -> Converted:
        """Rebuilds it from arrays and static fields."""
        return cls(*parts, *static)

    def leaves(self) -> list[Array]:
        """Makes leaves for the float function; those that nobody reads are zeros."""
        return [
            self.rest[str(i)] if str(i) in self.rest else jnp.zeros(shape, dtype)
            for i, (shape, dtype) in enumerate(self.shapes)
        ]

    def _parts(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [("arrays", self.arrays), ("rest", self.rest)]


class Integer:
    """The function that `integer` returns: `g(params, *args)` of parameters, float or converted."""

    def __init__(
        self,
        f: Callable[..., Any],
        spec: Mapping[str, Method | None],
        dynamic: bool,
        fixed: bool = False,
    ):
        self._f, self._spec, self._dynamic, self._fixed = f, spec, dynamic, fixed
        functools.update_wrapper(self, f, updated=())

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes what `f` returns with codes."""
        if not isinstance(params, Converted):
            taken: dict[str, Any] = {}
            return self._run((params, *args), kwargs, _ParameterCache(None, taken))[0]
        # The function is traced on float parameters' shapes; leaves that only became codes
        # are zeros that nothing reads.
        inner = jax.tree.unflatten(params.structure, params.leaves())
        return self._run((inner, *args), kwargs, _ParameterCache(params.arrays, {}))[0]

    def convert(self, params: Any, *args: Any, **kwargs: Any) -> Converted:
        """Converts parameters to codes, once and for all.

        Args:
            params: Parameters of `f`.
            *args: Further arguments; of data only shapes count.
            **kwargs: Keyword arguments of `f`; of data only shapes count.

        Returns:
            What `g` takes in their place.

        Raises:
            IntegerError: A range was never calibrated, a grid is none that integer kernels take, or
                an accumulator could overflow.
            ValueError: A weight isn't finite, or as for `quantized`.
        """
        kept: list[int] = []

        @jax.jit
        def make(params: Any) -> dict[str, Any]:
            made: dict[str, Any] = {}
            _, needed = self._run((params, *args), kwargs, _ParameterCache(None, made))
            kept[:] = needed
            return made

        arrays = {name: np.asarray(array) for name, array in make(params).items()}
        for name, array in arrays.items():
            if array.dtype == np.float32 and not np.isfinite(array).all():
                raise ValueError(
                    f"{name} isn't finite: the layer's parameters hold NaN or infinity."
                )
        leaves, structure = jax.tree.flatten(params)
        shapes = tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
        # Only what layers in float read is kept beside the codes: the size of a converted
        # network.
        rest = {str(i): jnp.asarray(leaves[i]) for i in kept}
        return Converted({n: jnp.asarray(a) for n, a in arrays.items()}, rest, shapes, structure)

    def _run(
        self, args: tuple[Any, ...], kwargs: Any, store: _ParameterCache
    ) -> tuple[Any, list[int]]:
        program = trace(self._f, *args, **kwargs)
        _check_certain(program)
        check_open(program, "integer")
        with jax.ensure_compile_time_eval():  # a range is a number, also under jit
            settings = settings_of(self._spec, program)
        rule = _Rule(program, settings, store, self._dynamic, self._fixed)
        done = closed(_evaluate(program, rule, argument_leaves(args, kwargs)), INTEGER)
        paths = {v.path: i for i, v in enumerate(program.inputs) if v.path}
        needed = sorted({paths[path] for path in rule.read if path in paths})
        return jax.tree.unflatten(program.out_tree, done), needed


@validate(f=pure_function)
def integer(
    f: Callable[..., Any],
    spec: Mapping[str, Method | None],
    *,
    dynamic: bool = False,
    requantize: Literal["float", "fixed"] = "float",
) -> Integer:
    """Computes a quantized model with integer codes.

    Args:
        f: A pure function `f(params, *args)` in inference.
        spec: Quantizers by site, as for `quantized`, of uniform grids of at most 8 bits: symmetric
            ones for weights (`Int(8, symmetric="weights")`), with the ranges of activations that
            `calibrate` gives.
        dynamic: Whether activations without a range take their own smallest and largest value in
            every call, which costs two passes over them.
        requantize: Conversion of sums to codes: by a "float" scale, or by a "fixed"-point
            multiplier of 16 bits and shifts, for arithmetic of integers alone between the first
            codes and the last sums (means but for). The codes of a layer differ by one at most.

    NaN in data that is written as codes of a calibrated grid becomes the smallest code under JAX,
    and results are finite. A bundle deployed from it refuses arguments that hold NaN.

    Returns:
        A pure function `g(params, *args)`, whose parameters are those of `f` or what
        `g.convert(params, *args)` makes of them.

    Raises:
        TypeError: The spec isn't a mapping from patterns to methods.
        ValueError: `requantize` is neither.
        IntegerError: On the first call; as for `convert`.
    """
    check_spec(spec)
    if requantize not in ("float", "fixed"):
        raise ValueError(f'requantize is "float" or "fixed", not {requantize!r}')
    return Integer(f, spec, dynamic, requantize == "fixed")


def _check_certain(program: Program) -> None:
    """Checks that a function computes no variances, which codes of signals can't stand for."""
    for layer in program.walk():
        if layer.mark and any(v.spread for v in layer.outputs):
            raise IntegerError(
                f"integer can't act on moments(f): {layer.site!r} has a variance beside its mean, "
                "and codes stand for means only. Take moments(quantized(f, spec)), or "
                "integer(f, spec) of sampled parameters."
            )


def _evaluate(program: Program, rule: _Rule, values: Sequence[Any]) -> list[Any]:
    """Runs layers in order; a product runs where it is read, under the name of its own layer."""
    env: dict[Any, Any] = dict(program.constants)
    env.update(zip(program.inputs, values, strict=True))
    for layer in program.layers:
        arguments = [env[v] for v in layer.inputs]
        if layer.kind == "control flow":

            def body(program: Program, key: Any, values: Sequence[Any]) -> list[Any]:
                return evaluate(program, rule, key, values)

            made: Sequence[Any] = control.run(layer, None, list(map(_float, arguments)), body, None)
        else:
            made = rule(layer, None, *arguments)
        for v, value in zip(layer.outputs, made, strict=True):
            # A sum that is read in several forms is written once in float, and codes are
            # made of that.
            if isinstance(value, Sums) and v in rule.several:
                value = value.changed(several=True)
            env[v] = value
    return [v.val if isinstance(v, JaxprLiteral) else _float(env[v]) for v in program.outputs]


class _ParameterCache:
    """Store of arrays that depend on parameters alone: made once, or given."""

    def __init__(self, given: Mapping[str, Any] | None, made: dict[str, Any]):
        self.given, self.made = given, made

    def put(self, site: str, name: str, make: Callable[[], Array]) -> Array:
        # Conversion makes an array where inference looks it up: both name it alike.
        key = f"{site}/{name}"
        if self.given is not None:
            if key not in self.given:
                raise IntegerError(
                    f"The converted parameters have no {key}: they were made by another spec or "
                    "for another function; call convert again."
                )
            return self.given[key]  # type: ignore[no-any-return]
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]  # type: ignore[no-any-return]


class _Rule:
    """The rule that computes each layer.

    Attributes:
        read: Paths of the parameters that layers in float have read.
        several: Values that are read in several forms.
    """

    def __init__(
        self,
        program: Program,
        settings: Mapping[str, LayerQuantization],
        store: _ParameterCache,
        dynamic: bool,
        fixed: bool,
    ):
        self.settings, self.store, self.dynamic, self.fixed = settings, store, dynamic, fixed
        self.outside = set(program.layers)
        self.read: set[str] = set()
        loops = [layer for layer in program.layers if layer.kind == "control flow"]
        # Bodies of loops stay in float: all that they read is kept.
        self.read.update(path for layer in loops for v in layer.inputs for path in v.leaves)
        self.several = in_several_forms(program, settings)

    def __call__(self, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        """Computes one layer."""
        setting = self.settings.get(layer.site)
        if setting is not None and layer.kind in {"linear", "contraction"}:
            found = self._product(layer, setting, values)
            if found is not None:
                return [found]
        elif setting is not None and layer in self.outside and tables.is_look_up(layer):
            return [self._rows(layer, setting, values)]
        # Activations, batch norms, poolings and moves after a product: followed, so that
        # they go into its kernel instead of being arrays of their own.
        elif setting is None:
            found = self._followed(layer, values)
            if found is not None:
                return [found]
        if layer.site and layer.kind != "input":
            self.read.update(path for v in layer.inputs for path in v.leaves)
        floats = [_float(v) for v in values]
        if layer not in self.outside:
            return quantized_layer(self.settings, layer, key, *floats)
        if setting is None:
            with _named(layer):
                made = plain_rule(layer, key, *floats)
            several = [v.is_data and y.dtype == jnp.float32 for v, y in _with(layer, made)]
            # Kept with its codes, of which several readers take one.
            return [Plain(y) if s else y for s, y in zip(several, made, strict=True)]
        with _named(layer):
            return quantized_layer(self.settings, layer, key, *floats)

    def _product(
        self, layer: Layer, setting: LayerQuantization, values: Sequence[Any]
    ) -> Value | None:
        inside = layer not in self.outside
        kernel = "inside a loop or branch" if inside else read.kernel_of(layer, setting)
        if isinstance(kernel, str):
            warnings.warn(
                f"{layer.site!r} is {kernel}, which no integer kernel takes; it is computed in "
                "floating point on the values of its grid, as jaxeff.quantized does. Give it None "
                "in the spec to leave it in float.",
                IntegerFallbackWarning,
                stacklevel=2,
            )
            return None
        both = {t.role: (q, t, i) for q, t, i in of_inputs(layer, setting, read.arrays_like(layer))}
        (of_x, x_tensor, x_at), (of_w, w_tensor, w_at) = both["activation"], both["weight"]
        # The widths decide whether int32 accumulators suffice, so they have to be known.
        bits = weight_bits(of_w, f"{layer.site}/{w_tensor.name}")
        w, depth = values[w_at], read.depth_of(layer)
        put = functools.partial(self.store.put, layer.site)

        @functools.cache
        def weights() -> tuple[Array, Array]:
            codes, steps = weight_codes(of_w, w, w_tensor)
            return codes, jnp.broadcast_to(steps, (1,) * (w.ndim - 1) + w.shape[-1:]).reshape(-1)

        widths = [_bits(of_x, x_tensor, layer, x_at), _bits(of_w, w_tensor, layer, w_at)]
        told = _told(kernel, layer, widths)
        if self.dynamic and isinstance(of_x, Uniform) and of_x.range is None:
            made = functools.partial(ranged_by_itself, told, weights, layer, values, put, bits)
            _check_depth(layer.site, depth, width(of_x, layer.site), bits)
            with _named(layer):
                return Plain(made(of_x, x_tensor, _float(values[x_at])))
        # The codes of the input: taken as they are where the producer writes this grid
        # already.
        grid = Codes.of(of_x, x_tensor)
        _check_depth(layer.site, depth, grid.bits, bits)
        # Scopes tell `summary` and `cost` the widths.
        value = _value(values[x_at])
        with _named(layer) if isinstance(value, Plain) else contextlib.nullcontext():
            x = value.codes(grid)
        if read.is_convolution(layer):
            # Padding stands for zeros, so it is filled with their code.
            told = functools.partial(told, input_zero=grid.zero)
        pools = read.is_convolution(layer)
        product = IntegerProduct(told, x, grid, weights, bits, depth, pools, self.fixed)
        line = AffineMap(
            lambda: jnp.ones(w.shape[-1], jnp.float32), lambda: read.bias_of(layer, values)
        )
        shape = layer.outputs[0].aval.shape
        return Sums(layer.site, shape, product, line, put)

    def _rows(self, layer: Layer, setting: LayerQuantization, values: Sequence[Any]) -> Value:
        """Looks rows up in a table of codes."""
        ((quantizer, tensor, i),) = of_inputs(layer, setting, read.arrays_like(layer))
        weight_bits(quantizer, f"{layer.site}/{tensor.name}")

        @functools.cache
        def made() -> tuple[Array, Array]:
            return weight_codes(quantizer, values[i], tensor)

        codes = self.store.put(layer.site, "codes", lambda: made()[0])
        steps = self.store.put(layer.site, "steps", lambda: made()[1])
        call = _told(tables.looked_up, layer, [_bits(quantizer, tensor, layer, i)])
        return Plain(call(layer, codes, steps, _float(values[1 - i])))

    def _followed(self, layer: Layer, values: Sequence[Any]) -> Value | None:
        """Fuses a layer without a setting into sums or means that are not rounded yet."""
        ours = [v for v in values if isinstance(v, Sums | Mean)]
        if not ours:
            return None
        shape = layer.outputs[0].aval.shape
        if read.is_sum(layer):
            return _added(values)
        (value, *others) = ours
        if others:
            return None
        if isinstance(value, Sums):
            if value.takes_lines and (found := self._line(layer, values, value)) is not None:
                return found
            # A ReLU is a clip of codes: its bounds go into the clamp that writing codes
            # needs anyway.
            bounds = read.bounds_of(layer)
            if bounds is not None and value.low is None and not value.moves:
                return value.changed(low=bounds[0], high=bounds[1])
            window = read.pool_of(layer) if value.takes_pool else None
            if window is not None:
                return value.changed(pool=window, shape=tuple(shape))
            addition = Addition.of(layer)
            if addition is not None:
                return Mean(value, shape, addition)
        if read.is_move(layer):
            move: Any = lambda x: layer.fn(x)[0]  # noqa: E731
            if isinstance(value, Mean):
                return value.moved(move, shape)
            return value.changed(moves=(*value.moves, move), shape=tuple(shape))
        return None

    def _line(self, layer: Layer, values: Sequence[Any], value: Sums) -> Sums | None:
        """Folds a batch norm into the product before it."""
        (i,) = layer.data if len(layer.data) == 1 else (None,)
        if i is None or values[i] is not value:
            return None
        if not read.is_line(layer):
            return None
        before = value.line

        def gain() -> Array:
            return before.gain() * read.line_of(layer, values)[0]

        def offset() -> Array:
            a, b = read.line_of(layer, values)
            return before.offset() * a + b

        return value.changed(line=AffineMap(gain, offset))


def _named(layer: Layer) -> Any:
    """Returns the name scope of a layer, by which a later transform and `summary` know it."""
    if not layer.site or layer.kind == "input":
        return contextlib.nullcontext()
    return jax.named_scope(mark(layer.kind, layer.site, layer.occurrence))


def _bits(quantizer: Any, tensor: Any, layer: Layer, i: int) -> str | None:
    """Returns the name scope that tells `summary` and `cost` the width of an array."""
    storage = quantizer.storage(read.shape_of(layer.inputs[i].aval), tensor)
    return bits_scope(tensor.name, quantizer.width, storage)


def _told(kernel: Any, layer: Layer, widths: Sequence[str | None]) -> Callable[..., Array]:
    """Wraps a kernel in the name scopes of its layer and of its operands' widths."""

    def call(*operands: Array, **attributes: Any) -> Array:
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(_named(layer))
            for scope in widths:
                if scope is not None:
                    scopes.enter_context(jax.named_scope(scope))
            y: Array = kernel(*operands, **attributes)
        return y

    return call


def _added(values: Sequence[Any]) -> Sums | None:
    """Adds a shortcut to the product that has the longest sums."""
    # A residual sum is added in the accumulator of one of its products, before rounding.
    able = [v for v in values if isinstance(v, Sums) and v.takes_lines]
    if not able:
        return None
    first = max(able, key=lambda v: v.product.depth)
    other = values[1] if values[0] is first else values[0]
    other = _value(other)
    return first.changed(shortcut=other) if other.shape == first.shape else None


def _check_depth(site: str, depth: int, activation_bits: int, bits: int) -> None:
    # Half of int32 for the products, the other half for bias and shortcut.
    most = (2**activation_bits - 1) * levels(bits)
    deepest = 2 * LIMIT // most
    if depth > deepest:
        raise IntegerError(
            f"{site!r} sums {depth} products of {activation_bits} and {bits} bits, which can "
            f"overflow int32: from {deepest + 1} on, as a bias and a shortcut need room; take "
            "fewer bits, or None to leave it in float."
        )


def _value(value: Any) -> Value:
    return value if isinstance(value, Sums | Mean | Plain) else Plain(value)


def _float(value: Any) -> Any:
    return value.values() if isinstance(value, Sums | Mean | Plain) else value


def _with(layer: Layer, made: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(layer.outputs, made, strict=True))
