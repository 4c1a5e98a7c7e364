"""`to_litert`: a pure function as a LiteRT file, by StableHLO and Google's converter.

<!-- skip: next if(no_litert, reason="litert-converter or ai-edge-litert isn't installed") -->
```python
import numpy as np
from ai_edge_litert.interpreter import Interpreter

from jaxeff.nn import small_classifier
from jaxeff_export import to_litert

f, params, (x, y) = small_classifier(4)
file = to_litert(f, (params, x), "net.tflite")
run = Interpreter(str(file.path)).get_signature_runner()
logits = run(**{file.inputs[0]: np.asarray(x)})[file.outputs[0]]
assert np.allclose(logits, f(params, x), atol=1e-5)
```

Sharp edges:

- What depends on parameters alone is computed here. Matrices on uniform grids of at most 8 bits,
  as of a quantized function, are written as int8 with a step for each channel (constants of
  StableHLO's quantized types and `uniform_dequantize`, which the converter keeps); those by group
  stay float32. Products are computed in float: LiteRT widens the codes.
- The converter writes no loops, and scatters that LiteRT's interpreter refuses: scans of up to 128
  steps are written step by step, and rows that are added at indices (sums of segments) as a matrix
  product.
- A file is read back by LiteRT's interpreter before it is there, where that is installed.
- Weights pass through text, which is slow from some tens of megabytes on.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from jaxeff import core
from jaxeff.core import primitives as p
from jaxeff.program.ir import Scan
from jaxeff.store import write_atomically
from jaxeff_export import onnx_files
from jaxeff_export.onnx_files import LONGEST
from jaxeff_export.targets import require_extra

_WAY_OUT = "deploy and to_onnx take it."
Run = Callable[[core.ClosedJaxpr, Sequence[Any]], list[Any]]
"""Computes a jaxpr."""


class LitertError(ValueError):
    """A function has what LiteRT or its converter doesn't take."""


def substituted(eqn: core.JaxprEqn, inputs: Sequence[Any], run: Run) -> list[Any] | None:
    """Computes an equation in another way; None for one that can be written as it is.

    Args:
        eqn: The equation.
        inputs: Values of its operands.
        run: Computes the body of a loop.
    """
    if eqn.primitive is p.scan_p:
        return _unrolled(Scan.of(eqn, inputs), run)
    if eqn.primitive is p.while_p:
        raise LitertError(f"to_litert: the converter writes no loops (`while`); {_WAY_OUT}")
    if eqn.primitive is p.scatter_add_p:
        return [_added(eqn, *inputs)]
    if eqn.primitive is p.gather_p:
        return [_taken(eqn, *inputs)]
    return None


def _taken(eqn: core.JaxprEqn, x: Any, indices: Any) -> Any:
    """Takes entries at clamped places; LiteRT's interpreter stops at one beyond the array.

    XLA clamps those that JAX is promised to be inside, too (`x[i]`).
    """
    q = eqn.params
    numbers = q["dimension_numbers"]
    axes = numbers.start_index_map
    room = jnp.array([jnp.shape(x)[i] - q["slice_sizes"][i] for i in axes], indices.dtype)
    inner = jnp.clip(indices, 0, room)
    taken = eqn.primitive.bind(
        x, inner, **{**q, "mode": GatherScatterMode.PROMISE_IN_BOUNDS, "fill_value": None}
    )
    if q["mode"] is not GatherScatterMode.FILL_OR_DROP:
        return taken
    inside = (inner == indices).all(-1)
    batch = [i for i in range(taken.ndim) if i not in numbers.offset_dims]
    inside = jax.lax.broadcast_in_dim(inside, taken.shape, batch)
    return jnp.where(inside, taken, onnx_files.fill_of(q["fill_value"], taken.dtype))


def _unrolled(scan: Scan[Any], run: Run) -> list[Any]:
    if scan.length > LONGEST:
        raise LitertError(
            f"to_litert: a scan of {scan.length} steps; the converter writes no loops, and at most "
            f"{LONGEST} steps are written one after the other. Take fewer a call; {_WAY_OUT}"
        )
    carry, stacked = scan.unrolled(lambda inputs: run(scan.body, inputs), lambda x, i: x[i])
    return [*carry, *(jnp.stack(ys) for ys in zip(*stacked, strict=True))]


def _added(eqn: core.JaxprEqn, x: Any, indices: Any, updates: Any) -> Any:
    """Adds rows to those of another array that indices name, as sums of segments do."""
    numbers, rest = eqn.params["dimension_numbers"], tuple(range(1, jnp.ndim(updates)))
    kept = {GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS}
    rows = (
        numbers.update_window_dims == rest
        and numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and jnp.shape(updates)[1:] == jnp.shape(x)[1:]
        and eqn.params["mode"] in kept
    )
    if not rows:
        raise LitertError(
            "to_litert: a scatter that adds anything but whole rows (`.at[indices].add(rows)`, "
            f"segment_sum), which LiteRT's interpreter refuses; {_WAY_OUT}"
        )
    # An index out of bounds is a row of zeros: its update is dropped, as the scatter does.
    places = jax.nn.one_hot(indices[:, 0], jnp.shape(x)[0], dtype=x.dtype)
    return x + jnp.tensordot(places, updates, ([0], [0]))


class Weight(NamedTuple):
    """A constant of the file.

    Attributes:
        values: In float.
        codes: The integers, int8, of the same shape.
        kind: The quantized type of an element, as MLIR writes it.
    """

    values: np.ndarray
    codes: np.ndarray
    kind: str


def find_weights(
    closed: core.ClosedJaxpr, parameters: Sequence[Any], free: Sequence[Any]
) -> list[Weight]:
    """Finds the matrices on grids that meet what isn't known.

    Args:
        closed: The function.
        parameters: Values of its first arguments, the parameters.
        free: The shapes and dtypes of the others.
    """
    weights: list[Weight] = []
    known: dict[int, Any] = {}

    def keep(value: Any, on_grid: onnx_files.GridWeight) -> Any:
        weight = known.get(id(value)) or _weight(on_grid)
        if weight is not None and id(value) not in known:
            known[id(value)] = weight
            weights.append(weight)
        return value

    jax.eval_shape(lambda *xs: evaluate_known(closed, [*parameters, *xs], keep), *free)
    return weights


def evaluate_known(
    closed: core.ClosedJaxpr,
    inputs: Sequence[Any],
    take: Callable[[Any, onnx_files.GridWeight], Any],
) -> list[Any]:
    """Computes a jaxpr: what is known at once, the rest while it is traced.

    Args:
        closed: The function.
        inputs: The values of its arguments: arrays, or tracers of what isn't known.
        take: Function of a constant on a grid and its parts, of what stands in its place where it
            meets a tracer.
    """
    return _run(closed, inputs, take, {})


def _run(
    closed: core.ClosedJaxpr,
    arguments: Sequence[Any],
    take: Callable[[Any, onnx_files.GridWeight], Any],
    grids: dict[int, onnx_files.GridWeight],
) -> list[Any]:
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values |= dict(zip(closed.jaxpr.invars, arguments, strict=True))

    def read(var: Any) -> Any:
        literal = isinstance(var, core.jax_internals.Literal)
        return np.asarray(var.val, var.aval.dtype) if literal else values[var]

    for eqn in closed.jaxpr.eqns:
        inputs = [read(var) for var in eqn.invars]
        if eqn.primitive in onnx_files.CALLS:
            results = _run(core.jax_internals.sub_jaxprs(eqn)[0], inputs, take, grids)
        elif any(isinstance(value, jax.core.Tracer) for value in inputs):
            other = substituted(eqn, inputs, lambda body, xs: _run(body, xs, take, grids))
            if other is None:
                taken = [take(v, grids[id(v)]) if id(v) in grids else v for v in inputs]
            results = core.jax_internals.bind(eqn, *taken) if other is None else other
        else:
            results = _computed(eqn, inputs, grids)
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in closed.jaxpr.outvars]


def _computed(
    eqn: Any, inputs: Sequence[Any], grids: dict[int, onnx_files.GridWeight]
) -> list[Any]:
    # Now, and not as a part of the function that is being traced.
    with jax.ensure_compile_time_eval():
        results = [_known(value) for value in core.jax_internals.bind(eqn, *inputs)]
        if len(results) == 1:
            on_grid = onnx_files.grid_weight(
                eqn, inputs, [grids.get(id(value)) for value in inputs]
            )
            if on_grid is not None and np.array_equal(on_grid.values, results[0]):
                # Held by the record, so that no other array gets its id.
                grids[id(results[0])] = on_grid._replace(values=results[0])
    return results


def _known(array: Any) -> Any:
    # A random key has no NumPy array.
    return array if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else np.asarray(array)


def _weight(on_grid: onnx_files.GridWeight) -> Weight | None:
    integers = onnx_files.stored_weight(on_grid)
    # Steps by group have no quantized type in LiteRT, and none has a step of zero.
    if integers is None or integers.block is not None or np.any(integers.steps <= 0):
        return None
    return Weight(on_grid.values, *_typed(integers))


def _typed(integers: onnx_files.StoredWeight) -> tuple[np.ndarray, str]:
    # int8 is what LiteRT's kernels take: unsigned codes and their zeros move down by 128.
    down = 128 if integers.codes.dtype == np.uint8 else 0
    codes = (integers.codes.astype(np.int32) - down).astype(np.int8)
    zeros = np.ravel(integers.zeros.astype(np.int32)) - down
    steps = np.ravel(integers.steps).astype(float)
    each = ", ".join(f"{s!r}:{z}" for s, z in zip(steps.tolist(), zeros.tolist(), strict=True))
    if integers.axis is None:
        return codes, f"!quant.uniform<i8:f32, {each}>"
    return codes, f"!quant.uniform<i8:f32:{integers.axis}, {{{each}}}>"


class LitertFile(NamedTuple):
    """What `to_litert` wrote.

    Attributes:
        path: The file, whose one signature is called `serving_default`.
        inputs: Names of the signature's inputs: `x0`, `x1`, ... for leaves of further arguments.
        outputs: Names of its results, `y0`, `y1`, ... for the leaves that the function returns.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@core.validate(
    f=core.function_of_form("f(*args)"),
    args=core.instance_of(tuple, list),
    parameters=core.static_integer(0),
)
def to_litert(
    f: Callable[..., Any],
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    parameters: int = 1,
) -> LitertFile:
    """Writes a function as a file for LiteRT (TensorFlow Lite); it computes in float.

    Args:
        f: Pure function; transforms such as `moments(f)` are functions too.
        args: Arguments that say the shapes and dtypes; parameters among them become constants.
        path: The file, `.tflite`.
        parameters: How many of the first arguments are parameters.

    Raises:
        MissingExtraError: The package `litert-converter` isn't installed.
        LitertError: LiteRT or its converter takes no such function.
        OSError: The file can't be written.
    """
    require_extra("litert_converter", "to_litert")
    fixed, free = tuple(args[:parameters]), tuple(args[parameters:])
    # A signature has flat names; what is nested is put together inside.
    leaves, structure = jax.tree.flatten(free)

    def flat(parameters: Any, *values: Any) -> list[Any]:
        return jax.tree.leaves(f(*parameters, *jax.tree.unflatten(structure, values)))

    closed = jax.make_jaxpr(flat)(fixed, *leaves)
    known = [np.asarray(leaf) for leaf in jax.tree.leaves(fixed)]
    weights = find_weights(closed, known, [jax.typeof(leaf) for leaf in leaves])

    # Weights on grids are arguments until they are written; other parameters are closed over, so
    # they are constants.
    def whole(taken: Sequence[Any], *values: Any) -> list[Any]:
        at = {w.values.tobytes(): value for w, value in zip(weights, taken, strict=True)}
        return evaluate_known(closed, [*known, *values], lambda v, _: at.get(v.tobytes(), v))

    lowered = jax.jit(whole, keep_unused=True).lower([w.values for w in weights], *leaves)
    inputs = tuple(f"x{i}" for i in range(len(leaves)))
    outputs = tuple(f"y{i}" for i in range(len(jax.tree.leaves(lowered.out_info))))
    content = _converted(lowered.as_text(), weights, inputs, outputs)
    _require_readable(content)
    write_atomically(path, content)
    return LitertFile(Path(path), inputs, outputs)


def _require_readable(content: bytes) -> None:
    """Has LiteRT's interpreter prepare a file, where it is installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter  # optional
    except ImportError:
        return
    try:
        Interpreter(model_content=content).allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise LitertError(
            f"to_litert: the interpreter refuses what would be written, and says: "
            f"{str(error).strip()!r}; deploy and to_onnx take more."
        ) from error


def _write_weights(module: Any, weights: Sequence[Weight]) -> None:
    """Puts quantized constants in the place of the first arguments."""
    from litert_converter.mlir import ir  # optional

    (main,) = (f for f in module.body.operations if f.attributes["sym_name"].value == "main")
    block = main.regions[0].blocks[0]
    types = [argument.type for argument in block.arguments]
    with ir.InsertionPoint.at_block_begin(block):
        for argument, weight in zip(list(block.arguments), weights, strict=False):
            shape = "".join(f"{n}x" for n in weight.codes.shape)
            codes = ir.Operation.create(
                "stablehlo.constant",
                results=[ir.Type.parse(f"tensor<{shape}{weight.kind}>")],
                attributes={"value": ir.DenseElementsAttr.get(weight.codes)},
            )
            dequantized = ir.Operation.create(
                "stablehlo.uniform_dequantize", results=[argument.type], operands=[codes.result]
            )
            argument.replace_all_uses_with(dequantized.result)
    for _ in weights:
        block.erase_argument(0)
    results = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
    kept = ir.FunctionType.get(types[len(weights) :], results)
    main.attributes["function_type"] = ir.TypeAttr.get(kept)
    if "arg_attrs" in main.attributes:
        each = list(ir.ArrayAttr(main.attributes["arg_attrs"]))[len(weights) :]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(each)


def _converted(
    text: str, weights: Sequence[Weight], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    from litert_converter import converter_api_ext as converter  # optional
    from litert_converter.mlir import ir, passmanager  # optional

    # The converter has an MLIR of its own: JAX's module reaches it as text.
    context = ir.Context()
    converter.prepare_mlir_context(context)
    try:
        with context, ir.Location.unknown():
            module = ir.Module.parse(text, context)
            _write_weights(module, weights)
            # Else results have no names, and their order is the converter's.
            converter.set_signature(module.operation, "serving_default", inputs, outputs)
            config = converter.ConvertToTFLConfig()
            converter.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
            return bytes(converter.export_flatbuffer_to_bytes(module.operation))
    # MLIR's own errors, and what the extension raises for its passes.
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise LitertError(
            f"to_litert: the converter refuses the function, and says: {str(error).strip()!r}; "
            "deploy and to_onnx take more."
        ) from error
