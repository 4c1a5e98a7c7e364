"""`to_onnx`: a pure function as an ONNX file, by its jaxpr.

<!-- skip: next if(no_onnx, reason="onnx or onnxruntime isn't installed") -->
```python
import numpy as np
import onnxruntime

from jaxeff.nn import small_classifier
from jaxeff_export import to_onnx

f, params, (x, y) = small_classifier(4)
file = to_onnx(f, (params, x), "net.onnx")
session = onnxruntime.InferenceSession(file.path)
(logits,) = session.run(file.outputs, {file.inputs[0]: np.asarray(x)})
assert np.allclose(logits, f(params, x), atol=1e-5)
```
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxeff import core
from jaxeff.compression import quantized
from jaxeff.core import primitives as p
from jaxeff.program.ir import Scan, While, signature, walk
from jaxeff.program.ir import primitives as prim
from jaxeff.store import write_atomically
from jaxeff_export.artifact import argument_names, flatten_named
from jaxeff_export.onnx_files import _graph
from jaxeff_export.onnx_files import _operations as operations
from jaxeff_export.onnx_files._gathers import GATHERS, fill_of
from jaxeff_export.targets import require_extra

Write = Callable[[_graph.OnnxGraph, core.ClosedJaxpr, Sequence[_graph.Value]], list[_graph.Value]]
"""Writes the equations of a jaxpr for values of its inputs."""

_TURN = np.dtype(np.int64), ()  # the number of an iteration
_GOES_ON = np.dtype(np.bool_), ()


def branched(
    g: _graph.OnnxGraph, eqn: Any, values: list[_graph.Value], write: Write
) -> list[_graph.Value]:
    """Writes a `cond` or `switch`: a branch of which only one is computed."""
    which, operands = values[0], values[1:]
    branches = eqn.params["branches"]
    if not isinstance(which, str):  # of parameters alone
        return write(g, branches[int(np.clip(which, 0, len(branches) - 1))], operands)
    kinds = [(var.aval.dtype, var.aval.shape) for var in eqn.outvars]

    def chosen(first: int) -> list[_graph.Value]:
        """Chooses among the branches from one on: it, or one of those after it."""
        if first == len(branches) - 1:
            return write(g, branches[first], operands)
        test = g.emit("LessOrEqual", [which, np.asarray(first, np.int32)])
        parts = {
            "then_branch": g.inside([], kinds, lambda _: write(g, branches[first], operands)),
            "else_branch": g.inside([], kinds, lambda _: chosen(first + 1)),
        }
        return [*g.emit_all("If", [test], len(kinds), **parts)]

    return chosen(0)


def repeated(g: _graph.OnnxGraph, loop: While[_graph.Value], write: Write) -> list[_graph.Value]:
    """Writes a `while_loop`; the test of what follows stands at the end of each iteration."""
    kinds = _kinds(loop.body.out_avals)

    def body(names: list[str]) -> list[_graph.Value]:
        carry, _ = loop.split(write(g, loop.body, loop.inputs(names[2:])))
        return [*write(g, loop.test, loop.test_inputs(carry)), *carry]

    first = write(g, loop.test, loop.test_inputs(loop.carry))
    part = g.inside([_TURN, _GOES_ON, *kinds], [_GOES_ON, *kinds], body)
    return [*g.emit_all("Loop", ["", *first, *loop.carry], len(kinds), body=part)]


def scanned(g: _graph.OnnxGraph, scan: Scan[_graph.Value], write: Write) -> list[_graph.Value]:
    """Writes a `scan` as a loop of a known number of iterations."""
    kinds = _kinds(scan.body.out_avals)
    last = np.asarray(scan.length - 1, np.int64)

    def body(names: list[str]) -> list[_graph.Value]:
        turn, goes_on, *carry = names
        at = g.emit("Sub", [last, turn]) if scan.reverse else turn
        row: list[_graph.Value] = [g.emit("Gather", [x, at], axis=0) for x in scan.xs]
        return [goes_on, *write(g, scan.body, scan.inputs(carry, row))]

    carried = kinds[: len(scan.carry)]
    part = g.inside([_TURN, _GOES_ON, *carried], [_GOES_ON, *kinds], body)
    count: list[_graph.Value] = [np.asarray(scan.length, np.int64), np.asarray(True)]
    outputs = g.emit_all("Loop", [*count, *scan.carry], len(kinds), body=part)
    carry, stacked = scan.split(outputs)
    if scan.reverse:
        # Rows were stacked in the order of iterations, the last row first.
        back = [_graph.integers([number]) for number in (-1, np.iinfo(np.int64).min, 0, -1)]
        stacked = [g.emit("Slice", [rows, *back]) for rows in stacked]
    return [*carry, *stacked]


def _kinds(avals: Sequence[Any]) -> list[tuple[Any, tuple[int, ...]]]:
    return [(aval.dtype, aval.shape) for aval in avals]


_FLOATS = frozenset({"float64", "float32", "float16"})
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_MOST = _FLOATS | _INTEGERS | {"bool"}  # no bfloat16, which has kernels where data move alone
_MOVES = prim.REARRANGING | {p.concatenate_p, p.convert_element_type_p, core.stack_p}

_KERNELS: dict[Any, frozenset[str]] = {
    p.conv_general_dilated_p: frozenset({"float32", "float16"}),
    p.reduce_window_sum_p: frozenset({"float32", "float16"}),
    p.reduce_window_max_p: _FLOATS,
    p.dot_general_p: _FLOATS | {"int64", "int32", "uint64", "uint32"},
    **dict.fromkeys(
        (p.reduce_sum_p, p.reduce_prod_p, p.cumsum_p, p.integer_pow_p), _FLOATS | {"int64", "int32"}
    ),
    **dict.fromkeys(
        (p.reduce_max_p, p.reduce_min_p, p.argmax_p, p.argmin_p),
        _FLOATS | {"int64", "int32", "int8", "uint8"},
    ),
    **dict.fromkeys(
        (p.max_p, p.min_p, p.clamp_p, p.cummax_p, p.cummin_p), _MOST - {"int16", "uint16", "bool"}
    ),
    **dict.fromkeys((p.sort_p, p.top_k_p), _MOST - {"uint64", "uint32"}),
    p.neg_p: _MOST - {"uint64", "uint32", "uint16", "uint8"},
    **dict.fromkeys(
        (
            p.erf_p, p.erfc_p, p.tan_p, p.sinh_p, p.cosh_p, p.asin_p, p.acos_p, p.atan_p,
            p.asinh_p, p.acosh_p, p.atanh_p,
        ),
        frozenset({"float32", "float16"}),
    ),
    p.is_finite_p: _FLOATS - {"float16"},
    **dict.fromkeys((p.select_n_p, p.gather_p), _MOST - {"int16", "uint16", "uint64", "bool"}),
    p.pad_p: _MOST - {"int16", "uint16"},
    **dict.fromkeys((p.lt_p, p.le_p, p.gt_p, p.ge_p), _MOST - {"bool"}),
    **dict.fromkeys(
        (p.scatter_add_p, p.scatter_mul_p, p.scatter_max_p, p.scatter_min_p), _MOST - {"float16"}
    ),
}  # fmt: skip
"""Dtypes with a kernel, of primitives that lack some."""

_WIDER = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), ("int32", "float64")),
    "int32": ("float64",), "uint32": ("int64", "float64"),
    "float16": ("float32",), "bfloat16": ("float32",),
}  # fmt: skip
_MODULAR = {
    p.select_n_p, p.gather_p, p.neg_p, p.reduce_sum_p, p.reduce_prod_p, p.cumsum_p,
    p.integer_pow_p,
}  # fmt: skip
"""What signed integers of as many bits compute as unsigned ones do."""
_ORDERED = {
    p.reduce_max_p, p.reduce_min_p, p.argmax_p, p.argmin_p, p.sort_p, p.top_k_p,
}  # fmt: skip
"""What signed integers compute as unsigned ones do, half of the range further down."""
_SIGNED = {"uint32": "int32", "uint64": "int64"}
"""Not wider ones: what reads the file may have integers of 32 bits alone, as JAX does."""


def computed_in(primitive: Any, dtype: Any) -> np.dtype:
    """Finds the dtype that an operand of a dtype is computed in."""
    kernels, name = _KERNELS.get(primitive, _MOST), np.dtype(dtype).name
    if name in kernels or primitive in _MOVES:
        return np.dtype(dtype)
    if primitive in _MODULAR | _ORDERED and _SIGNED.get(name) in kernels:
        return np.dtype(_SIGNED[name])
    for wider in _WIDER.get(name, ()):
        if wider in kernels:
            return np.dtype(wider)
    some = " or ".join(n for n in ("float32", "int32") if n in kernels)
    raise _graph.OnnxError(
        f"to_onnx: ONNX Runtime has no kernel for `{primitive}` of {name}; build the model to "
        f"compute it in {some}."
    )


def widened(
    graph: _graph.OnnxGraph,
    eqn: Any,
    inputs: Sequence[_graph.Value],
    write: Callable[[Any, list[_graph.Value]], list[_graph.Value]],
) -> list[_graph.Value]:
    """Writes an equation in dtypes that have kernels.

    Args:
        graph: The graph that the node is added to.
        eqn: The equation.
        inputs: Operands of the node.
        write: Writes an equation, or what has an equation's primitive, parameters and avals.
    """
    numbers = range(1, len(inputs)) if eqn.primitive is p.select_n_p else range(len(inputs))
    dtypes = [np.dtype(var.aval.dtype) for var in eqn.invars]
    taken = list(dtypes)
    for i in numbers:
        if not (eqn.primitive in _INDEXED and i in _INDEXED[eqn.primitive](len(inputs))):
            taken[i] = computed_in(eqn.primitive, dtypes[i])
    if taken == dtypes:
        return write(eqn, list(inputs))
    changed = {a: b for a, b in zip(dtypes, taken, strict=True) if a != b}

    def variable(var: Any, dtype: Any) -> Any:
        return SimpleNamespace(aval=SimpleNamespace(shape=var.aval.shape, dtype=dtype))

    params = dict(eqn.params)
    if eqn.primitive is p.gather_p:  # by default an extreme of the dtype, of the narrow one
        params["fill_value"] = fill_of(params["fill_value"], dtypes[0]).astype(taken[0])
    computed = [changed.get(np.dtype(var.aval.dtype), var.aval.dtype) for var in eqn.outvars]
    stated = SimpleNamespace(
        primitive=eqn.primitive,
        params=params,
        invars=[variable(var, dtype) for var, dtype in zip(eqn.invars, taken, strict=True)],
        outvars=[variable(var, dtype) for var, dtype in zip(eqn.outvars, computed, strict=True)],
    )
    ordered = eqn.primitive in _ORDERED

    def to_wider(value: _graph.Value, dtype: np.dtype, wider: np.dtype) -> _graph.Value:
        if ordered and dtype.name in _SIGNED:
            value = graph.emit("Add", [value, _half(dtype)])
        return graph.cast(value, wider)

    def from_wider(value: _graph.Value, dtype: np.dtype) -> _graph.Value:
        value = graph.cast(value, dtype)
        if ordered and dtype.name in _SIGNED and eqn.primitive not in (p.argmax_p, p.argmin_p):
            return graph.emit("Add", [value, _half(dtype)])
        return value

    operands = [
        value if a == b else to_wider(value, a, b)
        for value, a, b in zip(inputs, dtypes, taken, strict=True)
    ]
    results = write(stated, operands)
    return [
        value if var.aval.dtype == dtype else from_wider(value, var.aval.dtype)
        for value, var, dtype in zip(results, eqn.outvars, computed, strict=True)
    ]


def _half(dtype: np.dtype) -> np.ndarray:
    """Half of the range of an unsigned dtype: twice added, a number is what it was."""
    return np.array(np.iinfo(dtype).max // 2 + 1, dtype)


_INDEXED: dict[Any, Callable[[int], range]] = {
    p.gather_p: lambda count: range(1, 2),
    p.dynamic_slice_p: lambda count: range(1, count),
    p.dynamic_update_slice_p: lambda count: range(2, count),
    **dict.fromkeys(
        (p.scatter_p, p.scatter_add_p, p.scatter_mul_p, p.scatter_max_p, p.scatter_min_p),
        lambda count: range(1, 2),
    ),
}
"""Which operands are places, and are converted by themselves."""


def require_runnable(model: Any) -> None:
    """Reads a file back: by the format's checker, and by ONNX Runtime where that is installed.

    What ONNX Runtime has kernels for is a table below, of its versions 1.22 to 1.32 (its
    `docs/OperatorKernels.md`); a test holds it against the version that is installed. A wider dtype
    holds all numbers of the narrow one, or counts modulo a power of two as it does. A graph inside
    a node reads what is outside by name, so that only what an iteration changes is handed to the
    next; constants stay in the file's own list, wherever they are read.
    """
    import onnx  # optional

    try:
        onnx.checker.check_model(model, full_check=True)  # shapes and dtypes too
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise _graph.OnnxError(f"to_onnx: the file would be none of ONNX: {error}") from error
    try:
        import onnxruntime  # optional
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    # Its classes derive from nothing but Exception.
    except Exception as error:
        raise _graph.OnnxError(
            f"to_onnx: ONNX Runtime refuses what would be written, and says: {error}; build the "
            "model to compute in float32 and int32."
        ) from error


_RULES = operations.ELEMENTWISE | operations.TENSORS | GATHERS | operations.RUNNING
_OF_SEVERAL_RESULTS = {
    core.split_p: operations.split_value,
    p.sort_p: operations.sorted_values,
    p.top_k_p: operations.largest,
}
LONGEST = 128
"""Steps of a scan that are written one after the other."""
_SAME = {p.copy_p, p.name_p, p.stop_gradient_p, p.sharding_constraint_p}
CALLS = {
    p.jit_p, p.closed_call_p, p.call_p, p.custom_jvp_call_p, p.custom_vjp_call_p, p.remat_p,
    core.composite_p, core.export_composite_p,
}  # fmt: skip
"""Equations whose function is written in their place."""


class OnnxFile(NamedTuple):
    """What `to_onnx` wrote.

    Attributes:
        path: The file.
        inputs: Names of its inputs: leaves of the arguments that aren't parameters.
        outputs: Names of its results, the leaves of what the function returns.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@core.validate(
    f=core.function_of_form("f(*args)"),
    args=core.call_arguments,
    parameters=core.static_integer(0),
)
def to_onnx(
    f: Callable[..., Any], args: Sequence[Any], path: str | os.PathLike[str], *, parameters: int = 1
) -> OnnxFile:
    """Writes a function as an ONNX file of standard operators (opset 18, or 21).

    Sharp edges:

    - Operators of `jaxeff_export` (composites) are written as the plain operations they stand for.
    - What depends on parameters alone is computed here. Weights on uniform grids of at most 8 bits
      are written as integers with `DequantizeLinear` (of 4 bits, and by group, in opset 21), unless
      their steps differ along several axes otherwise; activations of a known range pass
      `QuantizeLinear`.
    - ONNX Runtime rounds activations that don't to 8 bits by itself where their weights are
      integers.
      The session option `session.qdq_matmulnbits_accuracy_level` at "1" has it compute what is
      written.
    - What ONNX leaves open is written out as JAX has it: conversions beyond an integer's range,
      powers of integers that wrap, and extremes, windows and arguments of NaN (a pooled window
      costs half as much again; the maximum of a softmax nothing).
    - A `scan` is written once for each of its steps, up to 128; longer ones and while loops are
      `Loop`, branches `If`. Weights and activations inside these stay in float.
    - Random numbers are refused by name, as ONNX has no generator that gives JAX's: draw them
      outside and hand them in. Keys that are constants are drawn from here, once, as JAX does in
      every call.
    - What ONNX Runtime has no kernel for in a dtype (most of bfloat16 and of small integers) is
      computed in a wider one and converted back; without one (a convolution in float64) it is
      refused.
    - ONNX Runtime adds up and multiplies int64 along an axis by way of doubles: exact up to 2^53.
    - A file is read back before it is there: by the checker of `onnx`, and by ONNX Runtime where
      that is installed.

    Args:
        f: Pure function; transforms such as `moments(f)` are functions too.
        args: Arguments that say the shapes and dtypes; those of parameters are written.
        path: The file, `.onnx`.
        parameters: How many of the first arguments are parameters: constants of the file.

    Returns:
        The path and the names of inputs and results.

    Raises:
        MissingExtraError: The package `onnx` isn't installed.
        OnnxError: The function has an operation that isn't written, or that no kernel takes; it is
            named. What was at `path` stays.
        OSError: The file can't be written.
    """
    require_extra("onnx", "to_onnx")
    model, file = _model_of(_graph.OnnxGraph(), f, args, path, parameters)
    require_runnable(model)
    write_atomically(path, model.SerializeToString())
    return file


def _check_quant_nodes(operators: Sequence[str]) -> None:
    """Checks that all rounding of a graph is said by `Quant` nodes.

    Raises:
        OnnxError: It isn't, or there is none.
    """
    if "Round" in operators:
        raise _graph.OnnxError(
            "to_qonnx: a rounding has no grid that Quant can say: give uniform grids with ranges "
            "that are known, jaxeff.compression.calibrate(f, params, batches, spec).spec, without "
            "half zero points (1 bit), and a function that rounds nothing itself."
        )
    if "Quant" not in operators:
        raise _graph.OnnxError(
            "to_qonnx: the spec quantizes nothing; to_onnx writes functions in floats."
        )


@core.validate(
    f=core.function_of_form("f(*args)"),
    args=core.call_arguments,
    spec=core.spec_of(),
    parameters=core.static_integer(0),
)
def to_qonnx(
    f: Callable[..., Any],
    args: Sequence[Any],
    spec: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    parameters: int = 1,
) -> OnnxFile:
    """Writes `quantized(f, spec)` as a QONNX file, which FINN and hls4ml read.

    Each grid is one `Quant` node of `qonnx.custom_op.general` with its scale, zero point and width:
    weights are constants in front of one, of as few bits as their codes need. All else is as
    `to_onnx` writes it, without care for NaN.

    <!-- skip: next if(no_onnx, reason="onnx or onnxruntime isn't installed") -->
    ```python
    import jaxeff
    from jaxeff.compression import calibrate
    from jaxeff.nn import small_classifier
    from jaxeff_export import to_qonnx

    f, params, (x, y) = small_classifier(4)
    grids = {"*:linear": jaxeff.Int(4, 6, symmetric="weights")}
    file = to_qonnx(f, (params, x), calibrate(f, params, [x], grids).spec, "fpga.onnx")
    ```

    Args:
        f: Pure function.
        args: Arguments that say the shapes and dtypes; those of parameters are written.
        spec: Settings of uniform grids whose ranges of activations are known, from `calibrate`.
        path: The file, `.onnx`.
        parameters: How many of the first arguments are parameters: constants of the file.

    Returns:
        The path and the names of inputs and results.

    Raises:
        MissingExtraError: The package `onnx` isn't installed.
        OnnxError: A rounding is none of a grid that `Quant` has, or there is none; or as for
            `to_onnx`. What was at `path` stays.
        OSError: The file can't be written.
    """
    require_extra("onnx", "to_qonnx")
    import onnx  # optional

    model, file = _model_of(
        _graph.OnnxGraph(quant=True), quantized(f, spec), args, path, parameters
    )
    _check_quant_nodes([node.op_type for node in model.graph.node])
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise _graph.OnnxError(f"to_qonnx: the file would be none of ONNX: {error}") from error
    write_atomically(path, model.SerializeToString())
    return file


def _model_of(
    graph: _graph.OnnxGraph,
    f: Callable[..., Any],
    args: Sequence[Any],
    path: str | os.PathLike[str],
    parameters: int,
) -> tuple[Any, OnnxFile]:
    """Makes the model of a function, and what says its names."""
    import onnx  # optional

    names = argument_names(f, len(args))
    closed, result = core.make_jaxpr(f)(*args)
    leaves, specs = flatten_named(args, names)
    fixed = len(jax.tree.leaves(tuple(args[:parameters])))
    inputs = [spec.name for spec in specs[fixed:]]
    values: list[_graph.Value] = [*(np.asarray(leaf) for leaf in leaves[:fixed]), *inputs]
    _, outputs = flatten_named((result,), ("result",))
    results = []
    for value, spec in zip(_write(graph, closed, values), outputs, strict=True):
        # A node of its own, so that the result has its name even if it is an input or a constant.
        node = onnx.helper.make_node("Identity", [graph.name(value)], [spec.name])
        graph.nodes.append(node)
        results.append(spec.name)
    _graph.fuse_roundings(graph, results)
    opset, version = graph.versions
    info = onnx.helper.make_tensor_value_info
    sets = [onnx.helper.make_opsetid("", opset)]
    if graph.quant:
        sets.append(onnx.helper.make_opsetid(_graph.QONNX, 1))
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            getattr(f, "__name__", "function"),
            [info(s.name, _graph.tensor_type(s.dtype), s.shape) for s in specs[fixed:]],
            [info(s.name, _graph.tensor_type(s.dtype), s.shape) for s in outputs],
            [onnx.numpy_helper.from_array(a, n) for n, a in graph.constants.items()],
        ),
        opset_imports=sets,
        ir_version=version,
        producer_name="jaxeff",
    )
    return model, OnnxFile(Path(path), tuple(inputs), tuple(results))


def _write(
    graph: _graph.OnnxGraph, closed: core.ClosedJaxpr, inputs: Sequence[_graph.Value]
) -> list[_graph.Value]:
    """Writes the equations of a jaxpr; calls are written in place."""
    parts = softmax_parts(closed.jaxpr)

    def rule(eqn: core.JaxprEqn, operands: list[_graph.Value]) -> list[_graph.Value]:
        graph.numbers = {v for v in operands if isinstance(v, str)} if id(eqn) in parts else set()
        return _write_equation(graph, eqn, operands)

    return walk(closed, inputs, rule, _constant)


def _constant(atom: Any, value: Any) -> np.ndarray:
    literal = isinstance(atom, core.Literal)
    return np.asarray(value, atom.aval.dtype) if literal else _known(value)


def softmax_parts(jaxpr: core.Jaxpr) -> set[int]:
    """Finds the largest entries that softmaxes subtract, and the exponentials of what is left.

    NaN gets into their sums without care for it.
    """
    uses: dict[Any, list[Any]] = {}
    for eqn in core.jax_internals.equations(jaxpr):
        for var in eqn.invars:
            if not isinstance(var, core.jax_internals.Literal):
                uses.setdefault(var, []).append(eqn)
    returned = {id(var) for var in jaxpr.outvars}
    parts: set[int] = set()

    def only(var: Any, taken: Callable[[Any], bool]) -> bool:
        """Whether all that reads a variable, and something does, is taken."""
        readers = uses.get(var, [])
        return bool(readers) and id(var) not in returned and all(taken(e) for e in readers)

    def summed(eqn: Any) -> bool:
        return eqn.primitive in (p.reduce_sum_p, p.div_p)

    def shifts(x: Any, var: Any, exponentials: set[int]) -> bool:
        def raised(eqn: Any) -> bool:
            exponentials.add(id(eqn))
            return eqn.primitive is p.exp_p and only(eqn.outvars[0], summed)

        def passed(eqn: Any) -> bool:
            same = eqn.primitive in _SAME | {p.reshape_p, p.max_p}
            if same or signature(eqn).repeated:
                return shifts(x, eqn.outvars[0], exponentials)
            return eqn.primitive is p.sub_p and eqn.invars[0] is x and only(eqn.outvars[0], raised)

        return only(var, passed)

    for eqn in core.jax_internals.equations(jaxpr):
        exponentials: set[int] = set()
        if eqn.primitive is p.reduce_max_p and shifts(eqn.invars[0], eqn.outvars[0], exponentials):
            parts |= {id(eqn), *exponentials}
    return parts


def _unrolled(
    graph: _graph.OnnxGraph, scan: Scan[_graph.Value], outputs: Sequence[Any]
) -> list[_graph.Value]:
    """Writes the body of a scan for each step."""

    def row(x: _graph.Value, i: int) -> _graph.Value:
        return graph.emit("Gather", [x, np.asarray(i)], axis=0) if isinstance(x, str) else x[i]

    carry, per_step = scan.unrolled(lambda inputs: _write(graph, scan.body, inputs), row)
    stacked: list[_graph.Value] = []
    for j, var in enumerate(outputs[len(carry) :]):
        each = [graph.emit("Unsqueeze", [ys[j], np.zeros(1, np.int64)]) for ys in per_step]
        none = np.zeros(var.aval.shape, var.aval.dtype)
        stacked.append(graph.emit("Concat", each, axis=0) if each else none)
    return [*carry, *stacked]


def _known(array: Any) -> Any:
    # A random key has no NumPy array: dropout that is off holds one that nothing reads.
    return array if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else np.asarray(array)


def _write_equation(
    graph: _graph.OnnxGraph, eqn: core.JaxprEqn, operands: list[_graph.Value]
) -> list[_graph.Value]:
    if eqn.primitive in _SAME:
        return operands
    if eqn.primitive in CALLS:
        return _write(graph, core.jax_internals.sub_jaxprs(eqn)[0], operands)
    if not any(isinstance(value, str) for value in operands):
        # Of parameters alone: computed here, once.
        if eqn.primitive.multiple_results:
            return [_known(a) for a in eqn.primitive.bind(*operands, **eqn.params)]
        result = _known(eqn.primitive.bind(*operands, **eqn.params))
        constants = [value for value in operands if not isinstance(value, str)]
        weight = _graph.grid_weight(
            eqn, constants, [graph.on_grids.get(id(value)) for value in operands]
        )
        if weight is not None and np.array_equal(weight.values, result):
            graph.on_grids[id(result)] = weight._replace(values=result)
        return [result]
    if eqn.primitive is p.scan_p:
        scan = Scan.of(eqn, operands)
        if scan.length > LONGEST:
            return scanned(graph, scan, _write)
        return _unrolled(graph, scan, eqn.outvars)
    if eqn.primitive is p.while_p:
        return repeated(graph, While.of(eqn, operands), _write)
    if eqn.primitive is p.cond_p:
        return branched(graph, eqn, operands, _write)
    if eqn.primitive in _OF_SEVERAL_RESULTS:
        several = _OF_SEVERAL_RESULTS[eqn.primitive]
        return widened(graph, eqn, operands, lambda eqn, values: several(graph, eqn, values))
    rule = _RULES.get(eqn.primitive)
    if rule is None:
        raise _refusal(str(eqn.primitive))
    return widened(graph, eqn, operands, lambda eqn, values: [rule(graph, eqn, values)])


def _refusal(name: str) -> _graph.OnnxError:
    if name.startswith(("random_", "threefry")):
        return _graph.OnnxError(
            f"to_onnx: `{name}` draws random numbers, and ONNX has no generator that gives JAX's: "
            "draw outside and hand the numbers in, or make the key a constant of the function, "
            "whose numbers are those of every call."
        )
    return _graph.OnnxError(
        f"to_onnx: `{name}` isn't written yet; deploy and import_stablehlo take it."
    )
