"""`from_onnx`: an ONNX file as a pure function and its parameters.

<!-- skip: next if(no_onnx, reason="onnx or onnxruntime isn't installed") -->
```python
import jax
import numpy as np

from jaxeff.nn import small_classifier
from jaxeff_export import from_onnx, to_onnx

f, params, (x, y) = small_classifier(4)
to_onnx(f, (params, x), "net.onnx")
g, weights = from_onnx("net.onnx")
assert np.allclose(jax.jit(g)(weights, x), f(params, x), atol=1e-5)
```
"""

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxeff.compression import PostTrained
from jaxeff.core import Kept, LibraryModel, functional, groups_left
from jaxeff_export.onnx_files import _operators as operators
from jaxeff_export.onnx_files._graph import OnnxError, StoredWeight, with_inner
from jaxeff_export.onnx_files._grids import (
    VENDOR,
    dequantized,
    requantized,
    stored_weights,
    with_pairs,
    without_pairs,
)
from jaxeff_export.onnx_files._loading import array_of, in_todays_form, loaded
from jaxeff_export.onnx_files._names import WeightPaths, paths_of, scope_of, settings_by_site
from jaxeff_export.onnx_files._operators_ml import (
    ML_DOMAIN,
    ML_OPERATORS,
    WAYS_OUT,
    with_linear_weights,
    without_linear_weights,
)
from jaxeff_export.onnx_files._operators_nn import NN_OPERATORS
from jaxeff_export.onnx_files._operators_steps import CONTROL_OPERATORS, RECURRENT_OPERATORS
from jaxeff_export.onnx_files._operators_tensors import TENSOR_OPERATORS

_DEEPEST = 64  # functions and graphs inside each other

_STATIC = {
    "Resize": (1, 2, 3), "Upsample": (1,), "Pad": (2,), "Range": (0, 1, 2), "OneHot": (1,),
    "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "Dropout": (1,), "Clip": (1, 2),
}  # fmt: skip
"""Inputs that are settings, not weights, of whatever dtype."""


Source = str | os.PathLike[str] | onnx.ModelProto


@overload
def from_onnx(
    model: Source, *, grids: Literal[False] = ...
) -> tuple[Callable[..., Any], dict[str, Any]]: ...


@overload
def from_onnx(model: Source, *, grids: Literal[True]) -> PostTrained: ...


def from_onnx(
    model: Source, *, grids: bool = False
) -> tuple[Callable[..., Any], dict[str, Any]] | PostTrained:
    """Reads an ONNX model as a pure function of its parameters and inputs.

    Sharp edges:

    - Parameters are the floating-point initializers that have axes, means and variances of batch
      norms are state, and everything else is a constant: integers, single numbers, and whatever
      says a shape.
      A name is cut at "/" and ".", unless another name would then stand in its way.
    - Integers of the file that `DequantizeLinear` makes floats of are parameters too, by the
      integers' names and of the floats' values. `restore` rounds them to the file's grid.
    - Shapes are computed while tracing, by NumPy. What depends on an input under `jax.jit` is not
      known then: an operator that needs it to know a shape is refused by name. Called without
      `jit`, integer inputs that are NumPy arrays are known.
    - An operator without a rule is computed as its definition in ONNX says, where that is a
      function of others, and refused by name otherwise. So are random numbers, strings and training
      modes.
    - A loop is unrolled where the number of its steps is known and small; else it is a scan, or a
      while loop, through which no gradient goes.
    - `Resize` with `align_corners` by a scale that makes no whole length is what ONNX's own tests
      say; ONNX Runtime takes the whole number of elements for the length.
    - Integers of 64 bits are 32 wide, and double precision is single, unless JAX has x64 enabled.

    Args:
        model: A path (`.onnx`), or what `onnx.load` returns. Operator sets from 1 to the newest
            that the installed package `onnx` knows.
        grids: Whether to return the grids of a quantized file's products as a spec, and a function
            that doesn't round there: `QuantizeLinear` and `DequantizeLinear` pairs, as ONNX
            Runtime, Brevitas and AIMET write them, or operators of integers (`QLinearConv`).

    Returns:
        ``(f, params)``: ``f(params, *inputs)`` takes the graph's inputs in order, or by name, and
        returns its result, or a tuple of several; ``params`` is a nested dict of the floating-point
        initializers. This is ``jaxeff.functional(model)``; with ``mutable=True`` that gives the
        statistics of batch norms too. With ``grids`` ``(f, params, spec)``: ``quantized(f, spec)``
        computes what the file does, and ``integer(f, spec)`` with the file's own integers.

    Raises:
        OnnxError: The file is damaged, is larger than 2 GiB, names data outside its folder, or has
            an operator that isn't read: the message names the operator, the node and the operator
            set. Operators are read when ``f`` is traced. Or `grids` finds none.
        OSError: There is no such file.
    """
    if not grids:
        return functional(model)
    without, settings = without_pairs(with_pairs(loaded(model), (VENDOR, "", "ai.onnx")))
    weights = _FloatWeights.of(without.graph)
    products = [name for name, array in weights.floats.items() if array.ndim > 1]
    spec = settings_by_site(weights.paths.by_name, products, settings)
    return PostTrained(*functional(without), spec)


class _FloatWeights(NamedTuple):
    """The floating-point arrays of a graph that have axes.

    Attributes:
        floats: They by their initializer's name.
        paths: Places of the weights in `params`, or in the state.
        statistics: Names of those that are statistics of batch norms.
        sources: Names of integers that `DequantizeLinear` makes floats of, by the floats' names.
        integers: These integers by their name.
    """

    floats: dict[str, np.ndarray]
    paths: WeightPaths
    statistics: set[str]
    sources: dict[str, str]
    integers: dict[str, StoredWeight]

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> "_FloatWeights":
        """Reads a graph."""
        arrays = {tensor.name: array_of(tensor) for tensor in graph.initializer}
        statistics, settings = _roles(graph)
        stored = stored_weights(graph, arrays)
        read = Counter(n for node in graph.node for inner in with_inner(node) for n in inner.input)
        read.update(value.name for value in graph.output)
        # Integers that something else reads too stay what they are.
        sources = {name: source for name, (source, _) in stored.items() if read[source] == 1}
        integers = {source: stored[name][1] for name, source in sources.items()}
        floats = {
            name: dequantized(integers[name]) if name in integers else array
            for name, array in arrays.items()
            if name in integers
            or (jnp.issubdtype(array.dtype, jnp.floating) and array.ndim and name not in settings
                and array.dtype.itemsize > 1)
        }  # fmt: skip
        return cls(floats, paths_of([*floats]), statistics, sources, integers)


def read_onnx_model(model: str | os.PathLike[str] | onnx.ModelProto) -> LibraryModel:
    """Reads a model: weights are its parameters, statistics of batch norms its state."""
    model = with_linear_weights(with_pairs(loaded(model), (VENDOR,)))
    arrays = {tensor.name: array_of(tensor) for tensor in model.graph.initializer}
    floats, (paths, keys), statistics, sources, integers = _FloatWeights.of(model.graph)
    names = {path: name for name, path in paths.items()}
    params = {paths[n]: jnp.asarray(w) for n, w in floats.items() if n not in statistics}
    state = {paths[n]: jnp.asarray(w) for n, w in floats.items() if n in statistics}
    constants = {name: array for name, array in arrays.items() if name not in paths}
    inputs = [value.name for value in model.graph.input if value.name not in arrays]
    outputs = [value.name for value in model.graph.output]
    program = _OnnxProgram(model)

    def run(
        key: Any,
        params: dict[str, Any],
        state: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        by_position = dict(zip(inputs, args, strict=False))
        if (
            len(args) > len(inputs)
            or {*by_position, *kwargs} != {*inputs}
            or {*by_position} & {*kwargs}
        ):
            raise TypeError(
                f"the ONNX model takes {len(inputs)} inputs, {inputs}, but got {len(args)} and "
                f"{sorted(kwargs)} by name."
            )
        values: dict[str, operators.Value] = {**constants}
        leaves = {names[path]: leaf for path, leaf in {**params, **state}.items()}
        # Of integers it is the floats that they stand for.
        values |= {name: leaf for name, leaf in leaves.items() if name not in integers}
        values |= {name: leaves[source] for name, source in sources.items()}
        values |= {name: _input(value) for name, value in {**by_position, **kwargs}.items()}
        with jax.named_scope(scope_of(model.graph.name or "onnx")):
            results = program.graph(model.graph, values, program.opsets, {}, 0)
        results = [jax.tree.map(operators.in_range, result) for result in results]
        return results[0] if len(outputs) == 1 else tuple(results), state

    def restored(params: dict[str, Any], state: dict[str, Any], kept: Kept) -> onnx.ModelProto:
        leaves = {names[path]: np.asarray(leaf) for path, leaf in {**params, **state}.items()}
        leaves |= {n: requantized(leaves[n], weight) for n, weight in integers.items()}
        result = copy.deepcopy(model)
        by_name = {names[path]: axes for path, axes in kept.items() if path in names}
        for node in result.graph.node:
            if node.op_type in ("Conv", "ConvTranspose") and node.input[1] in by_name:
                for attribute in node.attribute:
                    if attribute.name == "group":
                        attribute.i = groups_left(by_name[node.input[1]][0], attribute.i)
        return _with_initializers(result, leaves)

    return LibraryModel(run, params, state, restored, keys)


def _input(value: Any) -> operators.Value:
    """Returns an input as an array; integers of NumPy stay known, as shapes come by them."""
    if isinstance(value, (list, tuple)):  # a sequence
        return [_input(element) for element in value]
    if value is None:
        return None
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if isinstance(array, np.ndarray) and array.dtype.kind in "OSU":
        raise OnnxError("from_onnx: texts aren't read, only arrays of numbers.")
    if isinstance(array, np.ndarray) and array.dtype.kind in "iub":
        return array
    return jnp.asarray(array)


def _roles(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """Names the statistics of batch norms, and the settings, among all names of a graph."""
    statistics, settings, read = set(), set(), set()
    for node in graph.node:
        here = _STATIC.get(node.op_type, ())
        settings |= {name for i, name in enumerate(node.input) if i in here}
        if node.op_type == "BatchNormalization":
            statistics |= {*node.input[3:5]}
            read |= {*node.input[:3]}
    return statistics - read, settings


def _with_initializers(result: onnx.ModelProto, leaves: Mapping[str, np.ndarray]) -> Any:
    reshaped = False
    for tensor in result.graph.initializer:
        if tensor.name not in leaves:
            continue
        before = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        array = leaves[tensor.name]
        reshaped |= array.shape != tuple(tensor.dims)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(before), tensor.name))
    result = without_linear_weights(result)
    if reshaped:
        # Shapes between nodes are notes of the exporter; a shape that a node has as a constant may
        # not fit any more.
        del result.graph.value_info[:]
        for value in result.graph.input:
            if value.name in leaves:
                value.type.tensor_type.ClearField("shape")
        try:
            onnx.shape_inference.infer_shapes(result, check_type=True, strict_mode=True)
            _compute_shapes(result)
        except Exception as error:
            raise ValueError(f"restore: the ONNX graph can't hold these shapes: {error}") from error
    return result


def _compute_shapes(model: onnx.ModelProto) -> None:
    """Raises where an operator can't take its inputs; needs a model that says their shapes."""
    reading = read_onnx_model(model)
    kinds = {value.name: value.type.tensor_type for value in model.graph.input}
    inputs = []
    for kind in (kinds[n] for n in kinds if n not in {t.name for t in model.graph.initializer}):
        dtype = jnp.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type or 1))
        sizes = [size.dim_value for size in kind.shape.dim]
        if not (jnp.issubdtype(dtype, jnp.floating) and kind.HasField("shape") and all(sizes)):
            return
        inputs.append(jax.ShapeDtypeStruct(sizes, jax.dtypes.canonicalize_dtype(dtype)))

    jax.eval_shape(lambda *x: reading.run(None, reading.params, reading.state, x, {})[0], *inputs)


class _OnnxProgram:
    """Computes the graphs of a model.

    Attributes:
        opsets: The version of each domain's operators.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.opsets = _versions(model.opset_import)
        self._functions = {(f.domain, f.name): f for f in model.functions}

    def graph(
        self,
        graph: onnx.GraphProto | onnx.FunctionProto,
        values: Mapping[str, operators.Value],
        opsets: Mapping[str, int],
        attributes: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> list[operators.Value]:
        """Computes the nodes in order; `values` are those of the graphs around it, and inputs."""
        if depth > _DEEPEST:
            raise OnnxError(f"from_onnx: functions are nested more than {_DEEPEST} deep.")
        values = {**values}
        if isinstance(graph, onnx.GraphProto):
            for tensor in graph.initializer:
                if depth:  # those of the outermost graph are given
                    values[tensor.name] = array_of(tensor)
            if graph.sparse_initializer:
                raise OnnxError("from_onnx: sparse initializers aren't read: store them dense.")
            outputs = [value.name for value in graph.output]
        else:
            outputs = [*graph.output]
        for node in graph.node:
            if not depth and node.output and all(name in values for name in node.output):
                continue  # a parameter, which the file has as integers
            results = self._node(node, values, opsets, attributes, depth)
            for name, result in zip(node.output, results, strict=False):
                if name:
                    values[name] = result
        if isinstance(graph, onnx.FunctionProto):
            # A node that has no name for a result has a function that doesn't compute it.
            return [values.get(name) for name in outputs]
        if missing := [name for name in outputs if name not in values]:
            raise OnnxError(f"from_onnx: nothing computes the result {missing[0]!r}.")
        for name in outputs:
            if isinstance(values[name], np.ndarray) and values[name].dtype.kind in "OSU":
                raise OnnxError(
                    f"from_onnx: the result {name!r} is texts: fit the model on whole numbers, or "
                    "cut it off (onnx.utils.extract_model with the other results)."
                )
        return [values[name] for name in outputs]

    def _node(
        self,
        node: onnx.NodeProto,
        values: Mapping[str, operators.Value],
        opsets: Mapping[str, int],
        attributes: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> list[operators.Value]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        inputs = _inputs(node, values)
        own_attributes = {
            a.name: a for a in (_bound(a, attributes) for a in node.attribute) if a is not None
        }
        scope = scope_of(node.name or next(filter(None, node.output), node.op_type))

        if (domain, node.op_type) in self._functions:
            body = self._functions[domain, node.op_type]
            with jax.named_scope(scope):
                return self._function(body, inputs, own_attributes, depth)

        opset = opsets.get(domain, 1)
        known_here = onnx.defs.has(node.op_type, opset, domain)
        schema = onnx.defs.get_schema(node.op_type, opset, domain) if known_here else None

        def graph_of(name: str, arguments: Sequence[operators.Value]) -> list[operators.Value]:
            graph = own_attributes[name].g
            inside = {**values, **{v.name: x for v, x in zip(graph.input, arguments, strict=True)}}
            return self.graph(graph, inside, opsets, attributes, depth + 1)

        defaults = {n: a.default_value for n, a in schema.attributes.items()} if schema else {}
        call = operators.Call(
            node.op_type,
            node.name,
            opset,
            {n: _value(a) for n, a in {**defaults, **own_attributes}.items() if a.type},
            tuple(bool(name) for name in node.output),
            graph_of,
        )
        rule = _RULES.get(domain, {}).get(node.op_type)
        if schema is None or (rule is None and not _is_function(schema)):
            raise call.refused(WAYS_OUT.get(node.op_type, "isn't read"), domain)
        while inputs and inputs[-1] is None and len(inputs) > schema.min_input:
            inputs.pop()

        def compute() -> list[operators.Value]:
            if rule is None:
                body = _body_of(schema, node, inputs, own_attributes, opset)
                if body is None:
                    raise call.refused("isn't read", domain)
                filled = {n: a for n, a in defaults.items() if a.type} | own_attributes
                return self._function(body, inputs, filled, depth)
            of_today, values = in_todays_form(call, inputs)
            result = rule(of_today, *values)
            return [*result] if isinstance(result, tuple) else [result]

        with jax.named_scope(scope):
            return _computed(call, inputs, compute)

    def _function(
        self,
        body: onnx.FunctionProto,
        inputs: Sequence[operators.Value],
        attributes: Mapping[str, onnx.AttributeProto],
        depth: int,
    ) -> list[operators.Value]:
        defaults = {a.name: a for a in body.attribute_proto}
        padded = [*inputs, *[None] * (len(body.input) - len(inputs))]
        values = dict(zip(body.input, padded, strict=True))
        versions = {**self.opsets, **_versions(body.opset_import)}
        return self.graph(body, values, versions, {**defaults, **attributes}, depth + 1)


def _computed(
    call: operators.Call,
    inputs: Sequence[operators.Value],
    compute: Callable[[], list[operators.Value]],
) -> list[operators.Value]:
    """Computes a node, at once if its inputs are known; errors name it and their shapes."""
    known = bool(inputs) and all(operators.is_static(v) for v in inputs)
    try:
        if known and call.operator not in CONTROL_OPERATORS:
            # In the full width of integers of 64 bits.
            with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                return [jax.tree.map(np.asarray, result) for result in compute()]
        return compute()
    except (TypeError, ValueError, IndexError, KeyError, ArithmeticError) as error:
        if isinstance(error, OnnxError):
            raise
        shapes = ", ".join(map(_shape_in_words, inputs))
        raise call.refused(f"can't take inputs of the shapes {shapes}: {error}") from error


def _shape_in_words(value: operators.Value) -> str:
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return "none" if value is None else str(np.shape(value))


def _inputs(node: onnx.NodeProto, values: Mapping[str, operators.Value]) -> list[operators.Value]:
    """Returns the values that a node reads, None where it leaves one out."""
    if missing := [name for name in node.input if name and name not in values]:
        raise OnnxError(f"from_onnx: nothing computes {missing[0]!r}, which {node.name!r} reads.")
    inputs = [values[name] if name else None for name in node.input]
    if any(isinstance(v, np.ndarray) and v.dtype.kind in "OSU" for v in inputs):
        raise OnnxError(
            f"from_onnx: {node.op_type} (node {node.name!r}) reads texts; only numbers are."
        )
    return inputs


def _versions(entries: Iterable[Any]) -> dict[str, int]:
    return {"" if e.domain == "ai.onnx" else e.domain: e.version for e in entries}


def _bound(
    attribute: onnx.AttributeProto, outer: Mapping[str, onnx.AttributeProto]
) -> onnx.AttributeProto | None:
    """Returns an attribute; inside a function it may be one of the function's."""
    if not attribute.ref_attr_name:
        return attribute
    if attribute.ref_attr_name not in outer:
        return None
    result = onnx.AttributeProto()
    result.CopyFrom(outer[attribute.ref_attr_name])
    result.name = attribute.name
    return result


def _value(attribute: onnx.AttributeProto) -> Any:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        return array_of(attribute.t)
    if attribute.type == kinds.STRING:
        return attribute.s.decode(errors="replace")
    if attribute.type == kinds.STRINGS:
        return [text.decode(errors="replace") for text in attribute.strings]
    if attribute.type in (kinds.FLOAT, kinds.INT, kinds.FLOATS, kinds.INTS):
        value = helper.get_attribute_value(attribute)
        return value if isinstance(value, (int, float)) else [*value]
    return attribute


def _is_function(schema: Any) -> bool:
    return schema.has_function or schema.has_context_dependent_function


def _body_of(
    schema: Any,
    node: onnx.NodeProto,
    inputs: Sequence[operators.Value],
    attributes: Mapping[str, Any],
    opset: int,
) -> onnx.FunctionProto | None:
    """Returns an operator as the function of others that its definition has, for these inputs."""
    versions: Sequence[int] = (
        schema.function_opset_versions
        if schema.has_function
        else schema.context_dependent_function_opset_versions
    )
    # A body names the versions of what it calls: a newer one computes the same.
    version = max((v for v in versions if v <= opset), default=min(versions))
    if schema.has_function:
        source = schema.get_function_with_opset_version(version)
    else:
        bound = onnx.NodeProto()
        bound.CopyFrom(node)
        del bound.attribute[:]
        bound.attribute.extend(attributes.values())
        types = [_type(value) for value in inputs]
        source = schema.get_context_dependent_function_with_opset_version(
            version, bound.SerializeToString(), types
        )
    if not source:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(source if isinstance(source, bytes) else source.SerializeToString())
    return body


def _type(value: operators.Value) -> bytes:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    if isinstance(value, list):
        element = onnx.TypeProto()
        element.ParseFromString(_type(value[0]))
        return helper.make_sequence_type_proto(element).SerializeToString()
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return helper.make_tensor_type_proto(kind, value.shape).SerializeToString()


def _constant(call: operators.Call) -> operators.Value:
    for name, dtype in (("value_float", "f4"), ("value_floats", "f4"), ("value_int", "i8"),
                        ("value_ints", "i8")):  # fmt: skip
        if name in call.attributes:
            return np.asarray(call[name], dtype)
    if "value" not in call.attributes:
        raise call.refused("holds texts or a sparse tensor, which aren't read")
    return call["value"]


_RULES = {
    "": {
        **operators.OPERATORS,
        **TENSOR_OPERATORS,
        **NN_OPERATORS,
        **RECURRENT_OPERATORS,
        **CONTROL_OPERATORS,
        "Constant": _constant,
    },
    ML_DOMAIN: ML_OPERATORS,
}
