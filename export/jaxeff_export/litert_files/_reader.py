"""`from_litert`: a `.tflite` file as a pure function and its parameters.

<!-- skip: next if(no_litert, reason="litert-converter or ai-edge-litert isn't installed") -->

```python
import jax.numpy as jnp
from jaxeff_export import from_litert, to_litert

to_litert(lambda w, x: x @ w, (jnp.eye(3), jnp.ones((1, 3))), "net.tflite")
f, params = from_litert("net.tflite")
y = f(params, jnp.ones((1, 3)))
```

Sharp edges:

- Parameters are the constants of floats that have axes. Integers on a grid are the floats that they
  stand for: as parameters, as inputs (which may be the file's integers, too) and as results.
- Every result that the file has on a grid is rounded to it once, in float32, as XNNPACK does that
  LiteRT runs products by. The reference kernels round twice, in fixed point: of their codes one in
  some hundreds is the next one. Tables for tanh, logistic, softmax and hard swish aren't followed:
  these are computed in float, and may be one code apart, too.
- A product of float inputs with integer weights is one of floats. LiteRT rounds such inputs to
  8 bits while it runs.
- Shapes that the file says stay: a batch of one is one of one where a reshape says so.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxeff.compression import LSQ, LayerQuantization, PostTrained
from jaxeff.core import Kept, LibraryModel, functional
from jaxeff_export.litert_files._calls import OperatorCall
from jaxeff_export.litert_files._model import (
    LitertGraph,
    Operator,
    StoredGrid,
    StoredTensor,
    loaded,
)
from jaxeff_export.litert_files._operators import OPERATORS
from jaxeff_export.litert_files._operators_nn import NN_OPERATORS
from jaxeff_export.litert_files._to_litert import LitertError
from jaxeff_export.onnx_files import WeightPaths, paths_of, scope_of, settings_by_site

_RULES = OPERATORS | NN_OPERATORS
_PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
_MOVES = {
    "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "MAX_POOL_2D", "PAD", "SLICE",
    "STRIDED_SLICE", "CONCATENATION", "RELU",
}  # fmt: skip
"""Operators that move elements or take the largest: rounding before or after them is the same."""
_MOST_BITS = 8  # of codes that integer kernels take


Source = str | os.PathLike[str]


@overload
def from_litert(
    model: Source, *, grids: Literal[False] = ...
) -> tuple[Callable[..., Any], dict[str, Any]]: ...


@overload
def from_litert(model: Source, *, grids: Literal[True]) -> PostTrained: ...


def from_litert(
    model: Source, *, grids: bool = False
) -> tuple[Callable[..., Any], dict[str, Any]] | PostTrained:
    """Reads a LiteRT (TensorFlow Lite) model as a pure function of its parameters and inputs.

    Args:
        model: A path (`.tflite`).
        grids: Whether to return the grids of a quantized file's products as a spec, and a function
            that doesn't round there.

    Returns:
        ``(f, params)``: ``f(params, *inputs)`` takes the graph's inputs in order and returns its
        result, or a tuple of several, in float where the file has integers on a grid; ``params``
        is a nested dict of the floating-point constants. This is ``jaxeff.functional(model)``.
        With ``grids`` ``(f, params, spec)``: ``quantized(f, spec)`` computes what the file does,
        and ``integer(f, spec)`` with the file's own integers.

    Raises:
        LitertError: The file is damaged or forged, has more in it than a file of its size may, or
            has operators that aren't read: the message lists all of them. Or `grids` finds none.
        OSError: There is no such file.
    """
    if not grids:
        return functional(model)
    graph = loaded(model)
    weights = _FloatConstants.of(graph)
    settings, unrounded = _product_grids(graph)
    if not settings:
        raise LitertError(
            "from_litert: grids=True is for files in which products read integers of at most 8 "
            f"bits, and weights of such grids around zero; {graph.source} has none: take "
            "from_litert(model)."
        )
    products = [weights.names[i] for i, w in weights.floats.items() if w.ndim > 1]
    by_name = [(weights.names[number], setting) for number, setting in settings]
    spec = settings_by_site(weights.paths.by_name, products, by_name)
    return PostTrained(*functional(_model(graph, weights, unrounded)), spec)


def read_litert_model(model: str | os.PathLike[str]) -> LibraryModel:
    """Reads a model: constants of floats are its parameters, and it has no state."""
    graph = loaded(model)
    return _model(graph, _FloatConstants.of(graph), frozenset())


class _FloatConstants(NamedTuple):
    """The constants of a graph that are floats, or integers that stand for floats, and have axes.

    Attributes:
        floats: They by their number.
        names: Their names, no two of them the same, by their number.
        paths: Places of the weights in `params`.
    """

    floats: dict[int, np.ndarray]
    names: dict[int, str]
    paths: WeightPaths

    @classmethod
    def of(cls, graph: LitertGraph) -> _FloatConstants:
        """Reads a graph."""
        floats = {
            i: _known(graph, i)
            for i, tensor in enumerate(graph.tensors)
            if tensor.data is not None and tensor.shape and _is_float(tensor)
        }
        # A tensor that several operations were fused to is named after all of them.
        first = {i: graph.tensors[i].name.partition(";")[0] for i in floats}
        count = Counter(first.values())
        names = {
            i: name if name and count[name] == 1 else f"{name or 'weight'}_{i}"
            for i, name in first.items()
        }
        return cls(floats, names, paths_of([*names.values()]))


def _is_float(tensor: StoredTensor) -> bool:
    is_float = tensor.dtype is not None and jnp.issubdtype(tensor.dtype, jnp.floating)
    return is_float or tensor.grid is not None


def _known(graph: LitertGraph, number: int) -> np.ndarray:
    """Returns a constant: the floats that integers on a grid stand for."""
    tensor = graph.tensors[number]
    if tensor.dtype is None:
        raise LitertError(
            f"from_litert: {tensor.name!r} has texts, complex numbers or another kind of elements "
            "that isn't read."
        )
    array = graph.array(number)
    return array if tensor.grid is None else tensor.grid.values(array)


def _model(graph: LitertGraph, weights: _FloatConstants, unrounded: frozenset[int]) -> LibraryModel:
    """Makes the model that `functional` reads; `unrounded` are results that keep their values."""
    program = _LitertProgram(graph, unrounded)
    constants = {
        i: _known(graph, i)
        for i, tensor in enumerate(graph.tensors)
        if i in program.read and i not in weights.floats and tensor.data is not None
    }
    paths = {weights.paths.by_name[name]: i for i, name in weights.names.items()}

    def run(
        key: Any,
        params: dict[str, Any],
        state: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        del key
        if kwargs or len(args) != len(graph.inputs):
            names = [graph.tensors[number].name for number in graph.inputs]
            raise TypeError(
                f"the LiteRT model takes {len(names)} inputs in order, {names}, but got "
                f"{len(args)} and {sorted(kwargs)} by name."
            )
        leaves = {paths[path]: leaf for path, leaf in params.items()}
        results = program(constants | leaves, args)
        return results[0] if len(results) == 1 else tuple(results), state

    def restored(params: dict[str, Any], state: dict[str, Any], kept: Kept) -> bytes:
        del state, kept
        return _written(graph, {paths[path]: np.asarray(leaf) for path, leaf in params.items()})

    params = {path: jnp.asarray(weights.floats[i]) for path, i in paths.items()}
    return LibraryModel(run, params, {}, restored, weights.paths.keys)


class _LitertProgram:
    """Computes a graph.

    Attributes:
        read: Numbers of the tensors that it needs.
    """

    def __init__(self, graph: LitertGraph, unrounded: frozenset[int]) -> None:
        missing = sorted({operator.name for operator in graph.operators} - {*_RULES})
        if missing:
            raise LitertError(
                f"from_litert: {graph.source} has operators that aren't read: {', '.join(missing)}."
            )
        self._graph, self._unrounded = graph, unrounded
        self._calls = [_call(graph, operator) for operator in graph.operators]
        self.read = {i for operator in graph.operators for i in operator.inputs} | {*graph.outputs}

    def __call__(self, known: Mapping[int, Any], args: Sequence[Any]) -> list[Any]:
        """Computes the results of inputs; `known` are the constants."""
        tensors, values = self._graph.tensors, dict(known)
        for number, arg in zip(self._graph.inputs, args, strict=True):
            values[number] = self._rounded(number, _input(tensors[number], arg))
        for operator, call in zip(self._graph.operators, self._calls, strict=True):
            inputs = [None if i < 0 else self._value(values, i) for i in operator.inputs]
            while inputs and inputs[-1] is None:
                inputs.pop()
            results = self._results(operator, call, inputs)
            if len(results) < len(operator.outputs):
                raise call.refused(f"has {len(operator.outputs)} results, and {len(results)} are")
            for number, result in zip(operator.outputs, results, strict=False):
                if _moves(self._graph, operator):  # what is on the grid already
                    values[number] = result
                    continue
                with jax.named_scope(scope_of(call.place)):
                    values[number] = self._rounded(number, result)
        return [jnp.asarray(values[number]) for number in self._graph.outputs]

    def _value(self, values: Mapping[int, Any], number: int) -> Any:
        empty = self._graph.tensors[number]
        return values[number] if number in values else np.zeros(empty.shape, empty.dtype)

    def _results(self, operator: Operator, call: OperatorCall, inputs: list[Any]) -> list[Any]:
        grid = self._graph.tensors[operator.inputs[0]].grid if operator.inputs else None
        if call.name != "AVERAGE_POOL_2D" or grid is None:
            return self._computed(call, inputs)
        # Kernels average the codes themselves, and round halves of these away from zero.
        codes = _nearest(inputs[0], grid) + np.float32(grid.zeros)
        plain = dataclasses.replace(call, settings={**call.settings, "activation": 0})
        (mean,) = self._computed(plain, [codes])
        mean = lax.round(mean, lax.RoundingMethod.AWAY_FROM_ZERO)
        return [call.activated((mean - np.float32(grid.zeros)) * grid.steps)]

    def _computed(self, call: OperatorCall, inputs: list[Any]) -> list[Any]:
        def compute() -> list[Any]:
            result = _RULES[call.name](call, *inputs)
            return [*result] if isinstance(result, tuple) else [result]

        try:
            if all(value is None or isinstance(value, np.ndarray) for value in inputs):
                # Known already: computed now, in the full width of integers of 64 bits.
                with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                    return [np.asarray(result) for result in compute()]
            with jax.named_scope(scope_of(call.place)):
                return compute()
        except (TypeError, ValueError, IndexError, KeyError, ArithmeticError) as error:
            if isinstance(error, LitertError):
                raise
            shapes = ", ".join(str(np.shape(value)) for value in inputs if value is not None)
            raise call.refused(f"can't be computed of shapes {shapes}: {error}") from error

    def _rounded(self, number: int, x: Any) -> Any:
        tensor = self._graph.tensors[number]
        if tensor.grid is None or number in self._unrounded:
            return x
        return _on_grid(x, tensor)


def _on_grid(x: Any, tensor: StoredTensor) -> Any:
    """Rounds to the file's codes, halves to even ones as XNNPACK and `integer` do."""
    assert tensor.grid is not None
    assert tensor.dtype is not None
    ends = np.iinfo(tensor.dtype)
    zero = np.float32(tensor.grid.zeros)
    codes = _nearest(x, tensor.grid) + zero
    return (jnp.clip(codes, np.float32(ends.min), np.float32(ends.max)) - zero) * tensor.grid.steps


def _nearest(x: Any, grid: StoredGrid) -> Any:
    """Returns the nearest whole numbers of steps."""
    # Of what is repeated XLA takes the reciprocal, whose rounding moves halves.
    return jnp.round(
        jnp.asarray(x) / lax.optimization_barrier(jnp.broadcast_to(grid.steps, jnp.shape(x)))
    )


def _input(tensor: StoredTensor, arg: Any) -> Any:
    """Returns an input as an array; integers of the file's grid as what they stand for."""
    array = jnp.asarray(arg)
    if len(tensor.shape) != array.ndim:
        raise ValueError(
            f"the input {tensor.name!r} has the shape {tensor.shape}, not {array.shape}."
        )
    if tensor.grid is not None and jnp.issubdtype(array.dtype, jnp.integer):
        return (array.astype(np.int32) - tensor.grid.zeros).astype(np.float32) * tensor.grid.steps
    return array


def _call(graph: LitertGraph, operator: Operator) -> OperatorCall:
    outputs = [graph.tensors[i] for i in operator.outputs if i >= 0]
    if not outputs:
        raise LitertError(f"from_litert: {operator.name} has no result.")
    dtypes = [np.float32 if t.grid is not None or t.dtype is None else t.dtype for t in outputs]
    return OperatorCall(
        operator.name,
        outputs[0].name.partition(";")[0],
        operator.settings,
        tuple(t.shape for t in outputs),
        tuple(jax.dtypes.canonicalize_dtype(dtype) for dtype in dtypes),
    )


# --------------------------------------------------------------------------------------- grids


def _moves(graph: LitertGraph, operator: Operator) -> bool:
    """Tells whether an operator moves elements of a grid to the same one."""
    if operator.name not in _MOVES or operator.settings.get("activation", 0) not in (0, 1):
        return False
    sources = operator.inputs if operator.name == "CONCATENATION" else operator.inputs[:1]
    (result,) = operator.outputs[:1]
    grid = graph.tensors[result].grid
    return grid is not None and all(grid.same_as(graph.tensors[i].grid) for i in sources)


def _product_grids(
    graph: LitertGraph,
) -> tuple[list[tuple[int, LayerQuantization]], frozenset[int]]:
    """Finds the grids of products.

    Returns the weight and the setting of each, in order, and the results that nothing needs on a
    grid but products, which round what they read.
    """
    settings: list[tuple[int, LayerQuantization]] = []
    products: set[int] = set()
    readers: dict[int, list[int]] = {}
    for place, operator in enumerate(graph.operators):
        for number in operator.inputs:
            readers.setdefault(number, []).append(place)
        setting = _setting(graph, operator)
        if setting is not None:
            settings.append((operator.inputs[1], setting))
            products.add(place)

    unrounded: set[int] = set()
    # Backwards: what reads a result comes after it.
    for number in reversed([*graph.inputs, *(o for op in graph.operators for o in op.outputs)]):
        places = readers.get(number, [])
        if number not in graph.outputs and places and all(
            place in products
            or (_moves(graph, graph.operators[place])
                and {*graph.operators[place].outputs} <= unrounded)
            for place in places
        ):  # fmt: skip
            unrounded.add(number)
    return settings, frozenset(unrounded)


def _setting(graph: LitertGraph, operator: Operator) -> LayerQuantization | None:
    if operator.name not in _PRODUCTS:
        return None
    data, weight = (graph.tensors[number] for number in operator.inputs[:2])
    if data.grid is None or weight.grid is None or weight.data is None:
        return None
    of_data = _of_data(data.dtype, data.grid)
    if of_data is None:
        return None
    codes = graph.array(operator.inputs[1]).astype(np.int64) - weight.grid.zeros
    step = weight.grid.steps
    largest = int(np.abs(codes).max(initial=0))
    # A grid of fewer bits would do for codes that happen to be small; the file's width is kept.
    bits = max(np.iinfo(weight.dtype).bits if _is_wide(weight) else 4, largest.bit_length() + 1)
    if bits > _MOST_BITS or (step <= 0).any():
        return None
    # A layer of rows reads its weight transposed.
    step = step.T if operator.name == "FULLY_CONNECTED" else step
    of_weight = LSQ(
        bits, step=jnp.asarray(step) if step.size > 1 else step.item(), signed=True, narrow=True
    )
    return LayerQuantization(of_weight, of_data)


def _is_wide(tensor: StoredTensor) -> bool:
    return tensor.dtype is not None and tensor.dtype.kind in "iu"


def _of_data(dtype: Any, grid: StoredGrid) -> LSQ | None:
    """Returns the grid of what a product reads; None of a wide one, or one for each channel."""
    if grid.steps.size != 1 or np.iinfo(dtype).bits > _MOST_BITS or (grid.steps <= 0).any():
        return None
    step, zero = grid.steps.reshape(()), int(grid.zeros.item())
    return LSQ(
        np.iinfo(dtype).bits, step=float(step), signed=np.iinfo(dtype).min < 0,
        asymmetric=zero != 0, offset=float(np.float32(-zero) * step) if zero else None,
    )  # fmt: skip


def _written(graph: LitertGraph, leaves: Mapping[int, np.ndarray]) -> bytes:
    """Puts other values in the place of the file's constants, on their grids."""
    content = bytearray(graph.content)
    places: dict[int, bytes] = {}
    for number, leaf in leaves.items():
        tensor = graph.tensors[number]
        assert tensor.data is not None
        assert tensor.dtype is not None
        if leaf.shape != tensor.shape:
            raise ValueError(
                f"restore: {tensor.name!r} has the shape {tensor.shape} in the file, which "
                f"{leaf.shape} doesn't fit: write the small function by to_litert."
            )
        raw = _stored(leaf, tensor)
        start, size = tensor.data
        if places.setdefault(start, raw) != raw:
            raise ValueError(
                f"restore: {tensor.name!r} shares its bytes with another constant of the file; "
                "both must stay alike: write the function by to_litert."
            )
        content[start : start + size] = raw
    return bytes(content)


def _stored(leaf: np.ndarray, tensor: StoredTensor) -> bytes:
    if tensor.grid is not None:
        assert tensor.dtype is not None
        wide = np.dtype(np.int8 if tensor.dtype.name == "int4" else np.uint8)
        bounds = (-8, 7) if wide == np.int8 else (0, 15)
        if _is_wide(tensor):
            wide, bounds = tensor.dtype, (np.iinfo(tensor.dtype).min, np.iinfo(tensor.dtype).max)
        step = np.where(tensor.grid.steps > 0, tensor.grid.steps, 1).astype(np.float64)
        codes = np.rint(leaf / step) + tensor.grid.zeros
        integers = np.clip(codes, *bounds).astype(np.int64).astype(wide)
        if _is_wide(tensor):
            return integers.astype(wide.newbyteorder("<")).tobytes()
        halves = np.append(
            integers.ravel().view(np.uint8) & 15, np.zeros(integers.size % 2, np.uint8)
        )
        return (halves[::2] | halves[1::2] << 4).astype(np.uint8).tobytes()
    assert tensor.dtype is not None
    return leaf.astype(tensor.dtype).tobytes()
