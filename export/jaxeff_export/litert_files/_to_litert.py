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
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from jaxeff import core
from jaxeff.core import primitives as p
from jaxeff.program.ir import Scan, walk
from jaxeff.store import write_atomically
from jaxeff_export import onnx_files
from jaxeff_export.litert_files import _int8 as int8
from jaxeff_export.litert_files import _not_a_number as not_a_number
from jaxeff_export.onnx_files import LONGEST
from jaxeff_export.targets import require_extra

_WAY_OUT = "deploy and to_onnx take it."
Run = Callable[[core.ClosedJaxpr, Sequence[Any]], list[Any]]
"""Computes a jaxpr."""


class LitertError(ValueError):
    """A function has what LiteRT or its converter doesn't take."""


def substituted(eqn: core.JaxprEqn, inputs: Sequence[Any], run: Run) -> list[Any] | None:
    """Computes an equation in another way; None for one that can be written as it is.

    `run` computes the body of a loop.
    """
    if eqn.primitive is p.scan_p:
        return _unrolled(Scan.of(eqn, inputs), run)
    if eqn.primitive is p.while_p:
        raise LitertError(f"to_litert: the converter writes no loops (`while`); {_WAY_OUT}")
    if eqn.primitive is p.scatter_add_p:
        return [_added(eqn, *inputs)]
    if eqn.primitive is p.gather_p:
        return [_taken(eqn, *inputs)]
    if eqn.primitive is p.conv_general_dilated_p and max(eqn.params["lhs_dilation"]) > 1:
        return _transposed_convolution(eqn, *inputs)
    if eqn.primitive in _WINDOWS and _is_narrow_float(inputs[0].dtype):
        return _pooled_in_float32(eqn, *inputs)
    return None


_WINDOWS = p.reduce_window_max_p, p.reduce_window_min_p, p.reduce_window_sum_p


def _is_narrow_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def _pooled_in_float32(eqn: core.JaxprEqn, x: Any) -> list[Any]:
    """Pools narrow floats in 32 bits: LiteRT's kernels have windows of no others."""
    (pooled,) = core.jax_internals.bind(eqn, x.astype(jnp.float32))
    return [pooled.astype(x.dtype)]


def _transposed_convolution(eqn: core.JaxprEqn, x: Any, kernel: Any) -> list[Any] | None:
    """Cuts a transposed convolution out of the one that pads nothing ("VALID").

    Of another, unless it is padded alike on both sides ("SAME" for an even sum of kernel and
    stride), the converter writes results of other sizes and places.
    """
    q = eqn.params
    numbers = q["dimension_numbers"]
    sizes = [jnp.shape(kernel)[axis] for axis in numbers.rhs_spec[2:]]
    extents = [(n - 1) * d + 1 for n, d in zip(sizes, q["rhs_dilation"], strict=True)]
    strides, asked = q["lhs_dilation"], [tuple(map(int, pair)) for pair in q["padding"]]
    unpadded = [(n - 1, max(n, stride) - 1) for n, stride in zip(extents, strides, strict=True)]
    # "SAME" pads n + stride - 2 in all, and alike on both sides where that is even.
    alike = [
        low == high and 2 * low == n + stride - 2 and stride < n
        for (low, high), n, stride in zip(asked, extents, strides, strict=True)
    ]
    if max(q["window_strides"]) == 1 and (asked == unpadded or all(alike)):
        return None
    ones = (1,) * len(strides)
    (result,) = core.jax_internals.bind(
        eqn, x, kernel, padding=tuple(unpadded), window_strides=ones
    )
    cut, steps = [(0, 0, 0)] * result.ndim, [1] * result.ndim
    for i, axis in enumerate(numbers.out_spec[2:]):
        # What is padded less than all that a result may read is cut off, and the other way around.
        low, high = (mine - most for mine, most in zip(asked[i], unpadded[i], strict=True))
        cut[axis], steps[axis] = (low, high, 0), q["window_strides"][i]
    result = jax.lax.pad(result, jnp.zeros((), result.dtype), cut)
    return [jax.lax.slice(result, (0,) * result.ndim, result.shape, steps)]


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

    `parameters` are values of its first arguments, `free` the shapes and dtypes of the others.
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

    Inputs are arrays, or tracers of what isn't known. `take` gets a constant on a grid and its
    parts, and returns what stands in its place where it meets a tracer.
    """
    grids: dict[int, onnx_files.GridWeight] = {}
    as_they_are = not_a_number.softmax_parts(closed.jaxpr)

    def compute(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
        if id(eqn) not in as_they_are:
            result = not_a_number.with_nan(eqn, inputs)
            if result is not None:
                return [result]
        other = substituted(eqn, inputs, lambda body, xs: _run(body, xs, compute, grids))
        if other is not None:
            return other
        taken = [take(v, grids[id(v)]) if id(v) in grids else v for v in inputs]
        return list(core.jax_internals.bind(eqn, *taken))

    return _run(closed, inputs, compute, grids)


def evaluate_in_int8(
    closed: core.ClosedJaxpr, inputs: Sequence[Any], place: int8.Place
) -> list[Any]:
    """Computes a network of integer codes by products of int8; what is known at once.

    Inputs are arrays, or tracers of what isn't known; `place` puts values on an int8 grid of their
    own range.
    """

    def compute(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
        try:
            result = int8.compute(eqn, inputs, place)
        except int8.NoInt8FormError as error:
            raise LitertError(f"to_litert: no int8 operator of LiteRT is {error}") from None
        if result is not None:
            return [result]
        ordinary = [int8.plain(value, place) for value in inputs]
        other = substituted(
            eqn, ordinary, lambda body, xs: _run(body, xs, compute, {}, int8.is_operator)
        )
        return list(core.jax_internals.bind(eqn, *ordinary)) if other is None else other

    results = _run(closed, inputs, compute, {}, int8.is_operator)
    return [int8.plain(value, place) for value in results]


def _run(
    closed: core.ClosedJaxpr,
    arguments: Sequence[Any],
    compute: Callable[[core.JaxprEqn, Sequence[Any]], list[Any]],
    grids: dict[int, onnx_files.GridWeight],
    is_kept: Callable[[core.JaxprEqn], bool] = lambda _: False,
) -> list[Any]:
    """Computes a jaxpr, by `compute` what reads anything that isn't known.

    Calls are computed equation by equation, but for those that `is_kept` names.
    """

    def rule(eqn: core.JaxprEqn, inputs: list[Any]) -> list[Any]:
        is_known = not any(isinstance(v, jax.core.Tracer) or int8.follows(v) for v in inputs)
        if not is_known and is_kept(eqn):
            return compute(eqn, inputs)
        if eqn.primitive in onnx_files.CALLS:
            return walk(core.jax_internals.sub_jaxprs(eqn)[0], inputs, rule, _constant)
        return _computed(eqn, inputs, grids) if is_known else compute(eqn, inputs)

    return walk(closed, arguments, rule, _constant)


def _constant(atom: Any, value: Any) -> Any:
    literal = isinstance(atom, core.Literal)
    return np.asarray(value, atom.aval.dtype) if literal else value


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

    Sharp edges:

    - `to_litert(integer(f, spec), (codes, x), path, batches=[x, ...])` writes int8 products, as
      Edge TPUs and Ethos-U read them (`_int8.py`); inputs and results next to them are int8, too,
      on grids that the interpreter tells. LiteRT rounds a shortcut's two sides to int8 before it
      adds them, and multiplies by other means: on the tests' networks a result's code differs from
      `integer`'s by one at most, by two after three shortcuts. What `integer` computes in float
      (GELU, softmax) stays so.
    - Otherwise products are computed in float. What depends on parameters alone is computed here.
      Matrices on uniform grids of at most 8 bits, as of a quantized function, are written as int8
      with a step for each channel (constants of StableHLO's quantized types and
      `uniform_dequantize`, which the converter keeps), which LiteRT widens; those by group stay
      float32.
    - The converter writes no loops, and scatters that LiteRT's interpreter refuses: scans of up to
      128 steps are written step by step, and rows that are added at indices (sums of segments) as a
      matrix product.
    - Conversions, extremes, arguments and exponentials of NaN are written out as JAX has them, by a
      test and a selection each. Pooled windows aren't: LiteRT's largest entry of a window, and its
      mean, are those of the other entries.
    - A file is read back by LiteRT's interpreter before it is there, where that is installed.
    - Weights pass through text, which is slow from some tens of megabytes on.

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
    args=core.call_arguments,
    parameters=core.static_integer(0),
)
def to_litert(
    f: Callable[..., Any],
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    parameters: int = 1,
    batches: Iterable[Any] | None = None,
) -> LitertFile:
    """Writes a function as a file for LiteRT (TensorFlow Lite).

    It computes in float, but for a network of integer codes (`integer`) with `batches`: there
    products are int8, and so are inputs and results next to them.

    Args:
        f: Pure function; transforms such as `moments(f)` are functions too.
        args: Arguments that say the shapes and dtypes; parameters among them become constants.
        path: The file, `.tflite`.
        parameters: How many of the first arguments are parameters.
        batches: For int8 products: inputs of the shapes of `args`, each `x` or a tuple of the
            arguments after the parameters, as for `calibrate`. Results that `integer` keeps in
            float, such as logits, get the grid of their range over them.

    Raises:
        MissingExtraError: The package `litert-converter` isn't installed.
        LitertError: LiteRT or its converter takes no such function.
        ValueError: `batches` is empty, has other shapes or NaN, or `f` has no products of codes.
        OSError: The file can't be written.
    """
    fixed, free = tuple(args[:parameters]), tuple(args[parameters:])
    typical = [] if batches is None else _leaves_of(batches, free)
    require_extra("litert_converter", "to_litert")
    # A signature has flat names; what is nested is put together inside.
    leaves, structure = jax.tree.flatten(free)

    def flat(parameters: Any, *values: Any) -> list[Any]:
        return jax.tree.leaves(f(*parameters, *jax.tree.unflatten(structure, values)))

    closed = jax.make_jaxpr(flat)(fixed, *leaves)
    known = [np.asarray(leaf) for leaf in jax.tree.leaves(fixed)]
    if int8.has_products(closed.jaxpr):
        if batches is None:
            raise LitertError(
                "to_litert: f has products of integer codes; give batches=[x, ...], inputs over "
                "which the results that it keeps in float (logits) get an int8 grid"
            )
        content = _in_int8(closed, known, leaves, typical)
    elif batches is not None:
        raise ValueError(
            "to_litert: batches are for products of integer codes, and f has none; "
            "write integer(f, spec) with its converted parameters, or leave batches out"
        )
    else:
        content = _in_float(closed, known, leaves)
    _require_readable(content)
    write_atomically(path, content)
    return LitertFile(Path(path), *_signature(leaves, closed))


def _in_float(closed: core.ClosedJaxpr, known: Sequence[Any], leaves: Sequence[Any]) -> bytes:
    """Writes a function that computes in float, with weights on grids as integers."""
    weights = find_weights(closed, known, [jax.typeof(leaf) for leaf in leaves])

    # Weights on grids are arguments until they are written; other parameters are closed over, so
    # they are constants.
    def with_weights(taken: Sequence[Any], *values: Any) -> list[Any]:
        at = {w.values.tobytes(): value for w, value in zip(weights, taken, strict=True)}
        return evaluate_known(closed, [*known, *values], lambda v, _: at.get(v.tobytes(), v))

    lowered = jax.jit(with_weights, keep_unused=True).lower([w.values for w in weights], *leaves)
    return _converted(
        lowered.as_text(),
        lambda module: _write_weights(module, weights),
        *_signature(leaves, closed),
    )


def _signature(
    leaves: Sequence[Any], closed: core.ClosedJaxpr
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    inputs = tuple(f"x{i}" for i in range(len(leaves)))
    return inputs, tuple(f"y{i}" for i in range(len(closed.out_avals)))


def _leaves_of(examples: Iterable[Any], free: tuple[Any, ...]) -> list[list[Any]]:
    """Reads inputs as leaves of the arguments that aren't parameters."""
    if isinstance(examples, str | Mapping) or not isinstance(examples, Iterable):
        kind = type(examples).__name__
        raise TypeError(f"to_litert: batches is a sequence of inputs, such as [x], not {kind}")
    batches = [list(jax.tree.leaves(b if isinstance(b, tuple) else (b,))) for b in examples]
    want = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(free)]
    if not batches:
        raise ValueError("to_litert: batches has no inputs")
    for batch in batches:
        shapes = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in batch]
        if shapes != want:
            raise ValueError(
                f"to_litert: batches has an input of shapes and dtypes {shapes}; args have {want}"
            )
        if not all(np.isfinite(leaf).all() for leaf in batch):
            raise ValueError("to_litert: batches has NaN or infinity, which no range holds")
    return batches


def _in_int8(
    closed: core.ClosedJaxpr,
    known: Sequence[Any],
    leaves: Sequence[Any],
    batches: Sequence[Sequence[Any]],
) -> bytes:
    """Writes a network of integer codes by int8 products."""

    def find_ranges(*values: Any) -> list[tuple[jax.Array, jax.Array]]:
        ranges: list[tuple[jax.Array, jax.Array]] = []

        def place(x: jax.Array) -> jax.Array:
            ranges.append((x.min(), x.max()))
            return x

        evaluate_in_int8(closed, [*known, *values], place)
        return ranges

    each = jax.device_get([jax.jit(find_ranges)(*batch) for batch in batches])
    lows, highs = np.asarray(each).min(0)[:, 0], np.asarray(each).max(0)[:, 1]
    grids = [int8.Int8Grid.over(*ends) for ends in zip(lows.tolist(), highs.tolist(), strict=True)]

    def on_grids(*values: Any) -> list[Any]:
        remaining = iter(grids)
        inputs = [*known, *values]
        return evaluate_in_int8(closed, inputs, lambda x: next(remaining).quantize(x))

    lowered = jax.jit(on_grids, keep_unused=True).lower(*leaves)
    return _converted(lowered.as_text(), _write_grids, *_signature(leaves, closed), "STATIC")


def _write_grids(module: Any) -> None:
    """Puts quantized types in the place of the composites that name grids."""
    from litert_converter.mlir import ir  # optional

    marks = [op for op in _operations(module.operation) if op.name == "stablehlo.composite"]
    for mark in marks:
        name = ir.StringAttr(mark.attributes["name"]).value
        if name != int8.COMPOSITE:
            continue
        attributes = ir.DictAttr(mark.attributes["composite_attributes"])
        steps = tuple(float(step) for step in ir.DenseFPElementsAttr(attributes["steps"]))
        axis = ir.IntegerAttr(attributes["axis"]).value if "axis" in attributes else None
        grid = int8.Int8Grid(steps, ir.IntegerAttr(attributes["zero"]).value, axis)
        (result,) = mark.results
        shape = "".join(f"{n}x" for n in ir.RankedTensorType(result.type).shape)
        with ir.InsertionPoint(mark):
            codes = ir.Operation.create(
                "stablehlo.uniform_quantize",
                results=[ir.Type.parse(f"tensor<{shape}{grid.element_type()}>")],
                operands=list(mark.operands),
            )
            values = ir.Operation.create(
                "stablehlo.uniform_dequantize", results=[result.type], operands=[codes.result]
            )
        result.replace_all_uses_with(values.result)
        mark.erase()


def _operations(parent: Any) -> Iterator[Any]:
    for region in parent.regions:
        for block in region:
            for op in list(block.operations):
                yield op.operation
                yield from _operations(op.operation)


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
    text: str,
    write: Callable[[Any], None],
    inputs: Sequence[str],
    outputs: Sequence[str],
    mode: str = "NONE",
) -> bytes:
    """Converts a module, after `write` has put quantized types into it."""
    from litert_converter import converter_api_ext as converter  # optional
    from litert_converter.mlir import ir, passmanager  # optional

    # The converter has an MLIR of its own: JAX's module reaches it as text.
    context = ir.Context()
    converter.prepare_mlir_context(context)
    try:
        with context, ir.Location.unknown():
            module = ir.Module.parse(text, context)
            write(module)
            # Else results have no names, and their order is the converter's.
            converter.set_signature(module.operation, "serving_default", inputs, outputs)
            config = converter.ConvertToTFLConfig()
            config.qdq_conversion_mode = mode
            converter.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
            return bytes(converter.export_flatbuffer_to_bytes(module.operation))
    # MLIR's own errors, and what the extension raises for its passes.
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise LitertError(
            f"to_litert: the converter refuses the function, and says: {str(error).strip()!r}; "
            "deploy and to_onnx take more."
        ) from error
