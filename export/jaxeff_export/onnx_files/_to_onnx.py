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

Sharp edges:

- Operators of `jaxeff_export` (composites) are written as the plain operations they stand for.
- What depends on parameters alone is computed here. Weights on uniform grids of at most 8 bits are
  written as integers with `DequantizeLinear` (of 4 bits, and by group, in opset 21), unless their
  steps differ along several axes otherwise; activations of a known range pass `QuantizeLinear`.
- ONNX Runtime rounds activations that don't to 8 bits by itself where their weights are integers.
  The session option `session.qdq_matmulnbits_accuracy_level` at "1" has it compute what is written.
- A `scan` is written once for each of its steps, up to 128; longer ones and while loops are `Loop`,
  branches `If`. Weights and activations inside these stay in float.
- Random numbers are refused by name, as ONNX has no generator that gives JAX's: draw them outside
  and hand them in. Keys that are constants are drawn from here, once, as JAX does in every call.
- What ONNX Runtime has no kernel for in a dtype (most of bfloat16 and of small integers) is
  computed in a wider one and converted back; without one (a convolution in float64) it is refused.
- A file is read back before it is there: by the checker of `onnx`, and by ONNX Runtime where that
  is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxeff.core import (
    ClosedJaxpr,
    JaxprEqn,
    composite_p,
    export_composite_p,
    function_of_form,
    instance_of,
    jax_internals,
    make_jaxpr,
    split_p,
    static_integer,
    validate,
)
from jaxeff.core import primitives as p
from jaxeff.program.ir import Scan, While
from jaxeff.store import write_atomically
from jaxeff_export.artifact import argument_names, flatten_named
from jaxeff_export.onnx_files._activations import fuse_roundings
from jaxeff_export.onnx_files._control import branched, repeated, scanned
from jaxeff_export.onnx_files._elementwise import ELEMENTWISE
from jaxeff_export.onnx_files._gathers import GATHERS
from jaxeff_export.onnx_files._graph import OnnxError, OnnxGraph, Value, tensor_type
from jaxeff_export.onnx_files._grids import whole_of
from jaxeff_export.onnx_files._kernels import require_runnable, widened
from jaxeff_export.onnx_files._orders import RUNNING, largest, sorted_values
from jaxeff_export.onnx_files._tensors import TENSORS, split_value
from jaxeff_export.targets import require_extra

_RULES = ELEMENTWISE | TENSORS | GATHERS | RUNNING
_OF_SEVERAL_RESULTS = {split_p: split_value, p.sort_p: sorted_values, p.top_k_p: largest}
LONGEST = 128
"""Steps of a scan that are written one after the other."""
_SAME = {p.copy_p, p.name_p, p.stop_gradient_p, p.sharding_constraint_p}
CALLS = {
    p.jit_p, p.closed_call_p, p.call_p, p.custom_jvp_call_p, p.custom_vjp_call_p, p.remat_p,
    composite_p, export_composite_p,
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


@validate(
    fn=function_of_form("fn(*args)"), args=instance_of(tuple, list), parameters=static_integer(0)
)
def to_onnx(
    fn: Callable[..., Any],
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    parameters: int = 1,
) -> OnnxFile:
    """Writes a function as an ONNX file of standard operators (opset 18, or 21).

    Args:
        fn: Pure function; transforms such as `moments(f)` are functions too.
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
    import onnx  # optional

    names = argument_names(fn, len(args))
    closed, result = make_jaxpr(fn)(*args)
    leaves, specs = flatten_named(args, names)
    fixed = len(jax.tree.leaves(tuple(args[:parameters])))
    graph = OnnxGraph()
    inputs = [spec.name for spec in specs[fixed:]]
    given: list[Value] = [*(np.asarray(leaf) for leaf in leaves[:fixed]), *inputs]
    _, outputs = flatten_named((result,), ("result",))
    results = []
    for value, spec in zip(_write(graph, closed, given), outputs, strict=True):
        # A node of its own, so that the result has its name even if it is an input or a constant.
        node = onnx.helper.make_node("Identity", [graph.name(value)], [spec.name])
        graph.nodes.append(node)
        results.append(spec.name)
    fuse_roundings(graph, results)
    opset, version = graph.versions
    info = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            getattr(fn, "__name__", "function"),
            [info(s.name, tensor_type(s.dtype), s.shape) for s in specs[fixed:]],
            [info(s.name, tensor_type(s.dtype), s.shape) for s in outputs],
            [onnx.numpy_helper.from_array(a, n) for n, a in graph.constants.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=version,
        producer_name="jaxeff",
    )
    require_runnable(model)
    write_atomically(path, model.SerializeToString())
    return OnnxFile(Path(path), tuple(inputs), tuple(results))


def _write(graph: OnnxGraph, closed: ClosedJaxpr, given: Sequence[Value]) -> list[Value]:
    """Writes the equations of a jaxpr; calls are written in place."""
    values: dict[Any, Value] = {}
    for var, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        values[var] = _known(constant)
    values |= dict(zip(closed.jaxpr.invars, given, strict=True))

    def read(var: Any) -> Value:
        literal = isinstance(var, jax_internals.Literal)
        return np.asarray(var.val, var.aval.dtype) if literal else values[var]

    for eqn in closed.jaxpr.eqns:
        results = _write_equation(graph, eqn, [read(var) for var in eqn.invars])
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in closed.jaxpr.outvars]


def _unrolled(graph: OnnxGraph, scan: Scan[Value], outputs: Sequence[Any]) -> list[Value]:
    """Writes the body of a scan for each step."""

    def row(x: Value, i: int) -> Value:
        return graph.emit("Gather", [x, np.asarray(i)], axis=0) if isinstance(x, str) else x[i]

    carry, made = scan.unrolled(lambda given: _write(graph, scan.body, given), row)
    stacked: list[Value] = []
    for j, var in enumerate(outputs[len(carry) :]):
        each = [graph.emit("Unsqueeze", [ys[j], np.zeros(1, np.int64)]) for ys in made]
        none = np.zeros(var.aval.shape, var.aval.dtype)
        stacked.append(graph.emit("Concat", each, axis=0) if each else none)
    return [*carry, *stacked]


def _known(array: Any) -> Any:
    # A random key has no NumPy array: dropout that is off holds one that nothing reads.
    return array if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else np.asarray(array)


def _write_equation(graph: OnnxGraph, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    if eqn.primitive in _SAME:
        return given
    if eqn.primitive in CALLS:
        return _write(graph, jax_internals.sub_jaxprs(eqn)[0], given)
    if not any(isinstance(value, str) for value in given):
        # Of parameters alone: computed here, once.
        if eqn.primitive.multiple_results:
            return [_known(a) for a in eqn.primitive.bind(*given, **eqn.params)]
        made = _known(eqn.primitive.bind(*given, **eqn.params))
        constants = [value for value in given if not isinstance(value, str)]
        whole = whole_of(eqn, constants, [graph.whole.get(id(value)) for value in given])
        if whole is not None and np.array_equal(whole.values, made):
            graph.whole[id(made)] = whole._replace(values=made)
        return [made]
    if eqn.primitive is p.scan_p:
        scan = Scan.of(eqn, given)
        if scan.length > LONGEST:
            return scanned(graph, scan, _write)
        return _unrolled(graph, scan, eqn.outvars)
    if eqn.primitive is p.while_p:
        return repeated(graph, While.of(eqn, given), _write)
    if eqn.primitive is p.cond_p:
        return branched(graph, eqn, given, _write)
    if eqn.primitive in _OF_SEVERAL_RESULTS:
        several = _OF_SEVERAL_RESULTS[eqn.primitive]
        return widened(graph, eqn, given, lambda eqn, values: several(graph, eqn, values))
    rule = _RULES.get(eqn.primitive)
    if rule is None:
        raise _refusal(str(eqn.primitive))
    return widened(graph, eqn, given, lambda eqn, values: [rule(graph, eqn, values)])


def _refusal(name: str) -> OnnxError:
    if name.startswith(("random_", "threefry")):
        return OnnxError(
            f"to_onnx: `{name}` draws random numbers, and ONNX has no generator that gives JAX's: "
            "draw outside and hand the numbers in, or make the key a constant of the function, "
            "whose numbers are those of every call."
        )
    return OnnxError(f"to_onnx: `{name}` isn't written yet; deploy and import_stablehlo take it.")
