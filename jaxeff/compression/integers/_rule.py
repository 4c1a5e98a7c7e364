"""The rule that computes each layer with codes."""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression import _quantized as tables
from jaxeff.compression._quantized import of_inputs, quantized_layer
from jaxeff.compression.integers import _dataflow as dataflow
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers import _operators as operators
from jaxeff.compression.integers import _packed as packed
from jaxeff.compression.integers import _values
from jaxeff.compression.integers._coded import Argument
from jaxeff.compression.integers._dataflow import bias_of
from jaxeff.compression.integers._layers import Kernel, kernel_of
from jaxeff.compression.numerics import LayerQuantization, Tensor
from jaxeff.core import Literal
from jaxeff.program import Layer, Program, plain_rule
from jaxeff.program.costs import bits_scope
from jaxeff.program.ir import Contraction
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import mark


class _ProductArrays(NamedTuple):
    """What a product of codes takes of its parameters.

    Attributes:
        put: `put(name, make)`, which keeps what depends on parameters alone.
        weights: Function that makes the weights' codes and their steps.
        bias: Function that makes what is added to each output.
        bits: Width of the weights' codes.
    """

    put: Callable[[str, Callable[[], Array]], Array]
    weights: Callable[[], tuple[Array, Array]]
    bias: Callable[[], Array]
    bits: int

    def codes_steps_bias_sums(self) -> tuple[Array, Array, Array, Array]:
        """Makes codes, steps, biases and the codes' sums by output, or looks them up."""
        codes = self.put("codes", lambda: self.weights()[0])
        steps = self.put("steps", lambda: self.weights()[1])
        bias = self.put("bias", self.bias)
        over = tuple(range(codes.ndim - 1))
        # Of the codes as they are made: conversion keeps sums where inference only looks them up.
        wide = lambda: self.weights()[0].astype(jnp.int32)  # noqa: E731
        return codes, steps, bias, self.put("sums", lambda: wide().sum(over, dtype=jnp.int32))


def _ranged_by_itself(
    kernel: Kernel,
    call: Callable[..., Array],
    arrays: _ProductArrays,
    quantizer: Any,
    tensor: Tensor,
    x: Float[Array, "*shape"],
) -> Float[Array, "*result"]:
    """Computes a linear layer whose activations are quantized by their own range.

    Two passes over the activations come first, for the range and for the codes, and the steps are
    arrays. So the result goes through memory as int32 and nothing is folded into it but the bias.

    `call` is the kernel's operator, under the name of the layer; `quantizer` is the activations'
    grid, of no range.
    """
    bits = operators.width(quantizer, tensor.site)
    x = x.astype(jnp.float32)
    to = quantizer.uniform_grid(x, tensor)
    if to is None:
        raise operators.IntegerError(
            f"{tensor.site}/{tensor.name} has no step yet: init(f, params, x, spec) finds one, and "
            "returns the spec to train and to pass here."
        )
    half = 2 ** (bits - 1)
    # Padded as values: a code of zero per sample is no number that a kernel could pad with.
    x = kernel.padded(kernel.lay_input(x))
    of_x = jax.tree.map(lambda v: kernel.lay_scale(v, x.shape[-1]), to)
    nearest = jax.lax.round(x / of_x.step, operators.HALF_TO_EVEN)
    u = jnp.clip(nearest - of_x.zero, of_x.lower, of_x.upper) + half
    w, steps, bias, sums = arrays.codes_steps_bias_sums()
    # The operator's plain sums: no clamp, and no shortcut.
    attributes: dict[str, Any] = {"result": "sums", "zero": 0, "lower": 0, "upper": 0}
    attributes |= {"shortcut": "none", "shortcut_zero": 0}
    attributes |= {"weight_bits": arrays.bits, "activation_bits": bits}
    if kernel.window:
        attributes |= {"padding": (0, 0, 0, 0), "input_zero": 0}
    acc = call(u.astype(jnp.uint8), w, jnp.zeros(w.shape[-1:], jnp.int32), **attributes)

    def along(vector: Array) -> Array:
        return vector.reshape((1,) * (acc.ndim - 1) + vector.shape)

    step, offset = (kernel.lay_scale(v, acc.shape[-1]) for v in (to.step, to.zero))
    zero = (half - offset).astype(jnp.int32)
    guard = operators.guard_bits(kernel.depth, bits, operators.levels(arrays.bits))
    # One unit of the accumulator as a number; guard bits make the bias finer.
    unit = step * along(steps) / 2**guard
    # sum (u - zero) w = sum u w - zero sum w, with a zero that only this call knows.
    products = (acc - zero * along(sums)) << guard
    return kernel.lay_result(operators.biased(products, along(bias), unit))


def _codes_by_output(
    kernel: Kernel, quantizer: Any, w: Array, tensor: Tensor, width: operators.CodeWidth
) -> tuple[Array, Array]:
    """Computes a weight's codes, as the kernel lays them, and a step for each output."""
    codes, steps = operators.weight_codes(quantizer, w, tensor, width)
    steps = operators.steps_of_signs(codes, steps) if width[0] == 1 else steps
    channels = tensor.axes("channel")
    sizes = [n if axis in channels else 1 for axis, n in enumerate(w.shape)]
    of_outputs = kernel.lay_weight(jnp.broadcast_to(steps, sizes))
    return kernel.lay_weight(codes), of_outputs.reshape(-1)


Widths = dict[tuple[str, tuple[int, ...]], operators.CodeWidth]


class IntegerFallbackWarning(UserWarning):
    """A layer that the spec quantizes, but that no integer kernel takes."""


class IntegerRule:
    """The rule that computes each layer.

    Attributes:
        read: Paths of the parameters that layers in float have read.
        weights: Paths of the parameters whose codes each site has.
        several: Values that are read in several forms.
        widths: Sizes of the codes of weights, by site and shape, kept from call to call.
    """

    def __init__(
        self,
        program: Program,
        settings: Mapping[str, LayerQuantization],
        store: dataflow.ParameterCache,
        dynamic: bool,
        fixed: bool,
        widths: Widths,
    ):
        self.settings, self.store, self.dynamic, self.fixed = settings, store, dynamic, fixed
        self.widths = widths
        programs = list(dataflow.programs_of(program))
        self.makers = {v: node for each in programs for v, node in dataflow.makers_of(each).items()}
        shortcuts = dataflow.shortcuts_of(program, settings)
        self.several = {
            v for each in programs for v in dataflow.in_several_forms(each, settings, shortcuts)
        }
        self.readers = _readers(programs)
        self.read, self.changing = dataflow.carried_leaves(program), dataflow.changing(program)
        self.weights: dict[str, frozenset[str]] = {}
        self._leaves = {v.path: i for i, v in enumerate(program.inputs) if v.path}

    def leaves_in_float(self) -> list[int]:
        """Returns the numbers of the leaves that layers in float have read."""
        return sorted(self._leaves[path] for path in self.read if path in self._leaves)

    def storing(self, store: dataflow.ParameterCache) -> IntegerRule:
        """Returns the rule whose arrays of parameters are in another store."""
        new = copy.copy(self)
        new.store = store
        return new

    def __call__(self, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        """Computes one layer."""
        setting = self.settings.get(layer.site)
        if setting is None and not layer.nodes:
            return values
        if setting is not None and layer.kind in {"linear", "matmul"}:
            value = self._product(layer, setting, values)
            if value is not None:
                return [value]
        elif setting is not None and tables.is_look_up(layer) and self._is_fixed(layer):
            return [self._rows(layer, setting, values)]
        # Activations, batch norms, poolings and moves after a product: followed, so that
        # they go into its kernel instead of being arrays of their own.
        elif setting is None:
            value = self._followed(layer, values) or self._moved(layer, values)
            if value is not None:
                return [value]
        if layer.site:
            for v in layer.inputs:
                self.read.update(dataflow.needed_leaves(v, self.makers))
        floats = as_floats(values, layer.inputs)
        if setting is None:
            with _named(layer):
                outputs = plain_rule(layer, key, *floats)
            several = [v.is_data and _is_float(y) for v, y in _with(layer, outputs)]
            # Kept with its codes, of which several readers take one.
            return [
                _values.FloatValue(y) if s else y for s, y in zip(several, outputs, strict=True)
            ]
        with _named(layer):
            return quantized_layer(setting, layer, key, *floats)

    def _product(
        self, layer: Layer, setting: LayerQuantization, values: Sequence[Any]
    ) -> _values.IntegerValue | None:
        # Codes are made before a loop, and such a weight isn't known then.
        if not self._is_fixed(layer):
            _left_in_float(layer, "a product with a weight that a loop changes")
            return None
        if packed.takes_packed(setting):
            return self._packed_product(layer, setting, values)
        kernel = kernel_of(layer, setting)
        if not isinstance(kernel, str) and self._sums_samples(layer, setting):
            kernel = "a product over its samples, each with a range of its own"
        if isinstance(kernel, str):
            _left_in_float(layer, kernel)
            return None
        if dataflow.is_by_output(layer, kernel, self.makers):
            return self._codes_product(layer, setting, kernel, values, layer.biases)
        # Added to positions, not outputs: by the accumulator as a shortcut, where it takes one.
        self.read.update(path for i in layer.biases for path in layer.inputs[i].leaves)
        added = dataflow.added_by(layer, values)
        product = self._codes_product(layer, setting, kernel, values, ())
        if isinstance(product, _values.PendingProduct) and product.takes_affine:
            return product.fused(shortcut=_values.FloatValue(added))
        with _named(layer):
            return _values.FloatValue(product.dequantize() + added)

    def _is_fixed(self, layer: Layer) -> bool:
        """Returns whether no loop around a layer changes what it reads of parameters."""
        return not any(v in self.changing for v in layer.inputs if not v.is_data)

    def _packed_product(
        self, layer: Layer, setting: LayerQuantization, values: Sequence[Any]
    ) -> _values.IntegerValue | None:
        """Computes a product with weights by group, or with activations in float."""
        both = {t.role: (q, t, i) for q, t, i in of_inputs(layer, setting, read.arrays_like(layer))}
        of_w, w_tensor, w_at = both["weight"]
        self.weights[layer.site] = layer.inputs[w_at].leaves
        kernel = packed.packed_kernel(layer)
        if isinstance(kernel, str):
            _left_in_float(layer, kernel)
            return None
        weight = packed.packed_weight(
            of_w, w_tensor, kernel, read.shape_of(layer.inputs[w_at].aval)
        )
        if isinstance(weight, str):
            _left_in_float(layer, weight)
            return None
        grid = None
        if "activation" in both:
            grid = both["activation"][:2]
            shape = read.shape_of(layer.inputs[layer.data[0]].aval)
            packed.check_grids(*grid, shape, weight, self.dynamic)
        # Codes and steps come from one pass over the weight, but are stored by name.
        arrays = functools.cache(lambda: weight.stored(values[w_at].astype(jnp.float32), kernel))

        def stored(name: str) -> Array:
            return self.store.put(layer.site, name, lambda: arrays()[name])

        by_output = dataflow.is_by_output(layer, kernel, self.makers)
        bias = None
        if layer.biases and by_output:
            bias = self.store.put(layer.site, "bias", lambda: bias_of(layer, kernel, values))
        widths = [_bits(q, t, layer, i) for q, t, i in both.values()]
        call = _told(weight.operator, layer, widths)
        x = to_float(values[layer.data[0]])
        with _named(layer):
            of_layer = packed.PackedLayer(layer, kernel, weight, call, stored)
            y = packed.packed_product(of_layer, x, bias, grid)
            if layer.biases and not by_output:
                self.read.update(path for i in layer.biases for path in layer.inputs[i].leaves)
                y = y + dataflow.added_by(layer, values).astype(y.dtype)
            return _values.FloatValue(y)

    def _sums_samples(self, layer: Layer, setting: LayerQuantization) -> bool:
        """Returns whether a range is computed for each entry of an axis that is summed over."""
        contraction = Contraction.of(layer.op)
        side = 1 - contraction.side
        # An array of one axis is one sample.
        if not self.dynamic or layer.inputs[layer.data[0]].aval.ndim < 2:
            return False
        if 0 not in contraction.summed(side):
            return False
        inputs = of_inputs(layer, setting, read.arrays_like(layer))
        return any(operators.is_open(q, t) for q, t, _ in inputs if t.role == "activation")

    def _codes_product(
        self,
        layer: Layer,
        setting: LayerQuantization,
        kernel: Kernel,
        values: Sequence[Any],
        biases: Sequence[int],
    ) -> _values.IntegerValue:
        """Computes the product of a layer, and what of its biases goes to outputs."""
        both = {t.role: (q, t, i) for q, t, i in of_inputs(layer, setting, read.arrays_like(layer))}
        (of_x, x_tensor, x_at), (of_w, w_tensor, w_at) = both["activation"], both["weight"]
        self.weights[layer.site] = layer.inputs[w_at].leaves
        # The widths decide whether int32 accumulators suffice, so they have to be known.
        shape = read.shape_of(layer.inputs[w_at].aval)
        if (layer.site, shape) not in self.widths:
            self.widths[layer.site, shape] = operators.code_width(of_w, w_tensor, shape)
        bits, largest = width = self.widths[layer.site, shape]
        # Products of whole layers have positive steps, and room in int32 for symmetric codes.
        if largest > operators.levels(bits):
            raise operators.IntegerError(
                f"{layer.site}/{w_tensor.name}: a full grid is for weights by group or alone; take "
                f"symmetric=True here, of LSQ({bits}) narrow=True."
            )
        w, depth = values[w_at], kernel.depth
        put = functools.partial(self.store.put, layer.site)

        weights = functools.cache(lambda: _codes_by_output(kernel, of_w, w, w_tensor, width))

        def bias() -> Array:
            if not biases:
                return jnp.zeros(kernel.shape[-1], jnp.float32)
            return bias_of(layer, kernel, values)

        widths = [_bits(of_x, x_tensor, layer, x_at), _bits(of_w, w_tensor, layer, w_at)]
        if self.dynamic and operators.is_open(of_x, x_tensor):
            told = _told(kernel.product, layer, widths)
            arrays = _ProductArrays(put, weights, bias, bits)
            _check_depth(layer.site, depth, operators.width(of_x, layer.site), bits)
            with _named(layer):
                x = to_float(values[x_at])
                return _values.FloatValue(
                    _ranged_by_itself(kernel, told, arrays, of_x, x_tensor, x)
                )
        # The codes of the input: taken as they are where the producer writes this grid already.
        grid = operators.Codes.of(of_x, x_tensor)
        _check_depth(layer.site, depth, grid.bits, bits)
        # Scopes tell `summary` and `cost` the widths.
        value = as_value(values[x_at])
        with _named(layer) if isinstance(value, _values.FloatValue) else contextlib.nullcontext():
            x = value.requantize(grid)
        told = _told(kernel, layer, widths)
        if kernel.window:
            # Padding stands for zeros, so it is filled with their code.
            told = functools.partial(told, input_zero=grid.zero)
        product = _values.IntegerProduct(kernel, told, x, grid, weights, bits, self.fixed)
        affine = _values.AffineMap(lambda: jnp.ones(kernel.shape[-1], jnp.float32), bias)
        return _values.PendingProduct(product, affine, put)

    def _rows(
        self, layer: Layer, setting: LayerQuantization, values: Sequence[Any]
    ) -> _values.IntegerValue:
        """Looks rows up in a table of codes."""
        ((quantizer, tensor, i),) = of_inputs(layer, setting, read.arrays_like(layer))
        self.weights[layer.site] = layer.inputs[i].leaves

        @functools.cache
        def coded() -> tuple[Array, Array]:
            return operators.weight_codes(quantizer, values[i], tensor)

        codes = self.store.put(layer.site, "codes", lambda: coded()[0])
        steps = self.store.put(layer.site, "steps", lambda: coded()[1])
        call = _told(tables.looked_up, layer, [_bits(quantizer, tensor, layer, i)])
        return _values.FloatValue(call(layer, codes, steps, to_float(values[1 - i])))

    def _followed(self, layer: Layer, values: Sequence[Any]) -> _values.IntegerValue | None:
        """Fuses a layer without a setting into sums or means that are not rounded yet."""
        ours = [
            v
            for v in values
            if isinstance(v, _values.PendingProduct | _values.PendingMean | Argument)
        ]
        if not ours:
            return None
        if read.is_sum(layer):
            return self._added(layer, values)
        (value, *others) = ours
        if others:
            return None
        if isinstance(value, _values.PendingProduct):
            if value.takes_affine and (scaled := self._affine(layer, values, value)) is not None:
                return scaled
            # A ReLU is a clip of codes: its bounds go into the clamp that writing codes
            # needs anyway.
            bounds = read.bounds_of(layer)
            if bounds is not None and value.low is None and not value.moves:
                return value.fused(low=bounds[0], high=bounds[1])
            order = value.product.kernel.order
            window = read.pool_of(layer, order) if value.takes_pool else None
            if window is not None:
                return value.fused(pool=window)
            addition = _values.Addition.of(layer, () if value.moves else order)
            if addition is not None:
                return _values.PendingMean(value, addition)
        if read.is_move(layer):
            move: Any = lambda x: layer.fn(x)[0]  # noqa: E731
            return value.moved(move)
        return None

    def _moved(self, layer: Layer, values: Sequence[Any]) -> _values.FloatValue | None:
        """Leaves a transposition of floats for their codes, which are smaller."""
        transposes = any(node.primitive is prim.p.transpose_p for node in layer.nodes)
        if not (transposes and read.is_move(layer) and layer.data):
            return None
        # What a product with a range of its own leaves is in float already, and moved as such.
        if isinstance(values[0], _values.IntegerValue) or not _is_float(values[0]):
            return None
        return _values.FloatValue(values[0]).moved(lambda x: layer.fn(x)[0])

    def _added(self, layer: Layer, values: Sequence[Any]) -> _values.PendingProduct | None:
        """Adds a shortcut to the product that has the longest sums."""
        # A residual sum is added in the accumulator of one of its products, before rounding.
        able = [v for v in values if isinstance(v, _values.PendingProduct) and v.takes_affine]
        if not able:
            return None
        first = max(able, key=lambda v: v.product.kernel.depth)
        at = 1 if values[0] is first else 0
        other = as_value(values[at])
        # Data in float may be larger than an accumulator holds.
        if layer.inputs[at].aval.shape != layer.inputs[1 - at].aval.shape:
            return None
        if isinstance(other, _values.FloatValue) and other.written() is None:
            return None
        # As it is here: what reads it behind the sum doesn't change what the sum computes.
        in_codes = other.written() is not None
        variant = self._variant(layer, 1 - at, first)
        return first.fused(shortcut=other, shortcut_in_codes=in_codes, variant=variant)

    def _variant(self, layer: Layer, i: int, of: _values.PendingProduct) -> str:
        """Names the arrays of a product with a norm or a shortcut, if it is read without, too."""
        # One name for two scales would give both readers the one that was made first.
        readers = self.readers[layer.inputs[i]]
        return of.variant if len(readers) < 2 else f"{of.variant}~{readers.index(layer)}"

    def _affine(
        self, layer: Layer, values: Sequence[Any], value: _values.PendingProduct
    ) -> _values.PendingProduct | None:
        """Folds a batch norm into the product before it."""
        (i,) = layer.data if len(layer.data) == 1 else (None,)
        if i is None or values[i] is not value:
            return None
        kernel = value.product.kernel
        if not (read.is_affine(layer, kernel.channels) and self._is_fixed(layer)):
            return None
        before, along = value.affine, kernel.along

        def gain() -> Array:
            return before.gain() * along(read.affine_of(layer, values, kernel.channels)[0])

        def offset() -> Array:
            a, b = read.affine_of(layer, values, kernel.channels)
            return before.offset() * along(a) + along(b)

        variant = self._variant(layer, i, value)
        return value.fused(affine=_values.AffineMap(gain, offset), variant=variant)


def _readers(programs: Sequence[Program]) -> Mapping[Any, list[Any]]:
    """Lists the layers that read each value; None stands for what a program returns."""
    readers: dict[Any, list[Any]] = {}
    for program in programs:
        for layer in program.layers:
            for v in layer.inputs:
                readers.setdefault(v, []).append(layer)
        for v in program.outputs:
            if not isinstance(v, Literal):
                readers.setdefault(v, []).append(None)
    return readers


def _left_in_float(layer: Layer, kind: str) -> None:
    """Warns of a layer that no integer kernel takes."""
    warnings.warn(
        f"{layer.site!r} is {kind}, which no integer kernel takes; it is computed in "
        "floating point on the values of its grid, as jaxeff.quantized does. Give it None in "
        "the spec to leave it in float.",
        IntegerFallbackWarning,
        stacklevel=2,
    )


def _named(layer: Layer) -> Any:
    """Returns the name scope of a layer, by which a later transform and `summary` know it."""
    if not layer.site:
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


def _check_depth(site: str, depth: int, activation_bits: int, bits: int) -> None:
    # Half of int32 for the products, the other half for bias and shortcut.
    most = (2**activation_bits - 1) * operators.levels(bits)
    deepest = 2 * operators.LIMIT // most
    if depth > deepest:
        raise operators.IntegerError(
            f"{site!r} sums {depth} products of {activation_bits} and {bits} bits, which can "
            f"overflow int32: from {deepest + 1} on, as a bias and a shortcut need room; take "
            "fewer bits, or None to leave it in float."
        )


def as_value(value: Any) -> _values.IntegerValue:
    """Returns a value as one of an integer network."""
    return value if isinstance(value, _values.IntegerValue) else _values.FloatValue(value)


def to_float(value: Any) -> Any:
    """Returns a value as an array of floats."""
    return value.dequantize() if isinstance(value, _values.IntegerValue) else value


def as_floats(values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns values as arrays of the dtypes that the model has there."""
    return [as_float(v, var) for v, var in zip(values, variables, strict=True)]


def as_float(value: Any, variable: Any) -> Any:
    """Returns a value as an array of the dtype that the model has there."""
    # Kernels write float32; a model of narrow floats goes on in its own, as its layers expect.
    if not isinstance(value, _values.IntegerValue):
        return value
    y = value.dequantize()
    return y.astype(variable.aval.dtype) if _is_float(y) else y


def _is_float(y: Any) -> bool:
    return bool(jnp.issubdtype(y.dtype, jnp.floating))


def _with(layer: Layer, outputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(layer.outputs, outputs, strict=True))
