"""Batch-polymorphic modules: one import for every size of the dynamic dimensions.

A module with dynamic dimensions is imported for a few fixed sizes, by the same rules as any other.
Where the results differ in nothing but numbers that are linear in the size, these numbers become
expressions of one symbolic variable, and the module holds for every size. An import at a small
size, where a rule that decides by sizes would first decide otherwise, has to agree too.

Sharp edges: all dynamic dimensions of the arguments are one and the same size. A number that is
not linear in the size, such as a tensor of size squared, is refused.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal, structural_map
from tvm_ffi.serialization import from_json_graph_str

from jaxeff_export.compiler.tir import called_kernel
from jaxeff_export.importer._graph import Unsupported

# Primes: no lane count or tile divides them, so rules take the path that fits any size.
_SIZES = ((101, 103), (211, 223), (307, 311))  # a line's two points; tried in turn
_SMALL_SIZE = 2
_FIRST_MARK = 2_000_000_000  # more than any number of a module, and still 32 bits

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class LinearSize:
    """A number that is linear in the size."""

    slope: int
    offset: int

    def at(self, size: Any) -> Any:
        """Evaluates the number at a size, which may be an expression."""
        value = size if self.slope == 1 else size * self.slope
        return value + self.offset if self.offset else value


def generalize(at_size: Callable[[int], tvm.IRModule]) -> tvm.IRModule:
    """Returns the module that is ``at_size(n)`` for every size n.

    `at_size` imports the module with all dynamic dimensions of one size.
    """
    for sizes in _SIZES:
        samples = [json.loads(tvm.ir.save_json(at_size(size))) for size in sizes]
        # TVM stores equal numbers once. A size that meets another number of the module by chance
        # changes the count of nodes; the next sizes then agree.
        if len(samples[0]["nodes"]) == len(samples[1]["nodes"]):
            break
    else:
        raise Unsupported("its code depends on the size in more than its shapes")
    lines = _lines(sizes, samples)
    # A third import, at a size where rules for small shapes apply, must give the same code.
    predicted = _fixed(samples[0], lines, _SMALL_SIZE)
    if not structural_equal(predicted, at_size(_SMALL_SIZE), map_free_vars=True):
        raise Unsupported(f"its code for the size {_SMALL_SIZE} is another than for {sizes[0]}")
    return _symbolic(samples[0], lines)


def _lines(sizes: tuple[int, int], samples: Sequence[Json]) -> dict[int, LinearSize]:
    """Fits a line in the size to the number of each node that differs."""
    lines: dict[int, LinearSize] = {}
    pairs = zip(samples[0]["nodes"], samples[1]["nodes"], strict=True)
    for index, (first, second) in enumerate(pairs):
        if first == second:
            continue
        if first["type"] != second["type"] or first["type"] not in ("int", "ir.FloatImm"):
            raise Unsupported(f"its code depends on the size in a {first['type']}")
        # Two points determine a line; a fraction shows that the number does not lie on one.
        slope = (_number(second) - _number(first)) / (sizes[1] - sizes[0])
        offset = _number(first) - slope * sizes[0]
        if slope % 1 or offset % 1:
            raise Unsupported(f"{_number(first)} at the size {sizes[0]} is not linear in the size")
        lines[index] = LinearSize(int(slope), int(offset))
    return lines


def _number(node: Json) -> float:
    return node["data"] if node["type"] == "int" else node["data"]["value"]


def _with_numbers(sample: Json, numbers: Mapping[int, float]) -> tvm.IRModule:
    """Loads a module with other numbers in some of its nodes."""
    nodes = list(sample["nodes"])
    for index, number in numbers.items():
        node = nodes[index]
        if node["type"] == "int":
            nodes[index] = {"type": "int", "data": int(number)}
        else:
            nodes[index] = {**node, "data": {**node["data"], "value": float(number)}}
    # TVM's load_json would first read and rewrite it all for the sake of what older versions wrote.
    return from_json_graph_str(json.dumps({**sample, "nodes": nodes}))


def _fixed(sample: Json, lines: Mapping[int, LinearSize], size: int) -> tvm.IRModule:
    """Loads the module that the lines predict for a size."""
    return _with_numbers(sample, {index: line.at(size) for index, line in lines.items()})


def _symbolic(sample: Json, lines: Mapping[int, LinearSize]) -> tvm.IRModule:
    """Replaces the marked numbers by expressions of one variable."""
    # JSON has no variables: unique numbers mark the places, and are replaced after loading.
    marks = {index: _FIRST_MARK + i for i, index in enumerate(lines)}
    marked = {mark: lines[index] for index, mark in marks.items()}
    size = tirx.Var("size", "int64")

    def expression(literal: tirx.IntImm | tirx.FloatImm) -> tirx.Expr:
        if literal.value not in marked:
            return literal
        value, dtype = marked[literal.value].at(size), str(literal.ty.dtype)
        return value if dtype == "int64" else tirx.Cast(dtype, value)

    module = _with_numbers(sample, marks)
    general = structural_map(module, ((tirx.IntImm, tirx.FloatImm), expression))
    # An argument whose shape has the size: kernels that can't read it off their own get this one.
    witness = next(p for p in general["main"].params if any(_slope(n, size) for n in p.ty.shape))
    with_witness: dict[str, tirx.PrimFunc] = {}
    for name, function in list(general.functions.items()):
        if not isinstance(function, tirx.PrimFunc):
            continue
        closed = _closed(function, size, witness.ty)
        if len(closed.params) == len(function.params):
            general.update_func(name, closed)
        else:
            with_witness[name.name_hint] = closed
    return _pass_witness(general, with_witness, witness) if with_witness else general


def _closed(function: tirx.PrimFunc, size: tirx.Var, witness: relax.TensorType) -> tirx.PrimFunc:
    """Gives a kernel a variable of its own for the size.

    The shapes of its arguments determine that, or, where they only hold multiples of it, their
    common divisor. Where they do not, a tensor of the type ``witness`` becomes the first argument.
    """
    shapes = [p.ty.shape for p in function.params if isinstance(p.ty, tirx.BufferType)]
    slopes = [slope for shape in shapes for n in shape if (slope := _slope(n, size))]
    used: set[int] = set()

    def record(expr: Any) -> Any:
        if slope := _slope(expr, size):
            used.add(slope)
            return size  # below a multiple is the size itself, which is not used on its own
        return expr

    structural_map(function, ((tirx.Var, tirx.Mul), record), order="pre")
    if not used:
        return function
    # Shapes give multiples of the size. The least of them serves as the variable if it divides
    # all that are used; otherwise the size itself has to be known.
    unit = min(slopes, default=1)
    needs_witness = not slopes or any(slope % unit for slope in used)
    unit = 1 if needs_witness else unit
    symbol = tirx.Var("size", "int64")

    def replace(expr: Any) -> Any:
        slope = _slope(expr, size)
        if not slope:
            return expr
        return symbol if slope == unit else symbol * (slope // unit)

    closed = structural_map(function, ((tirx.Var, tirx.Mul), replace), order="pre")
    if not needs_witness:
        return closed
    shape = [symbol if _slope(n, size) else n for n in witness.shape]
    argument = tirx.decl_buffer(shape, str(witness.dtype.dtype), "teller", layout=None)
    return tirx.PrimFunc([argument, *closed.params], closed.body, closed.ret_type, closed.attrs)


def _pass_witness(
    mod: tvm.IRModule, with_witness: Mapping[str, tirx.PrimFunc], witness: relax.Var
) -> tvm.IRModule:
    """Replaces kernels by versions that take the witness, and passes it to them."""
    builder = relax.BlockBuilder(mod)
    callees = {
        name: builder.add_func(function, f"{name}_of_size")
        for name, function in with_witness.items()
    }

    def call(expr: tvm.ir.Call) -> tvm.ir.Call:
        kernel = called_kernel(expr)
        if kernel is None or kernel.name_hint not in with_witness:
            return expr
        arguments = relax.Tuple([witness, *expr.args[1].fields])
        callee = callees[kernel.name_hint]
        return relax.Call(expr.op, [callee, arguments], expr.attrs, expr.ty_args, ret_ty=expr.ty)

    general = builder.get()
    main = general["main"]
    body = structural_map(main.body, (tvm.ir.Call, call))
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    general.update_func(general.get_global_var("main"), function)
    return relax.transform.DeadCodeElimination(["main"])(general)


def _slope(expr: Any, size: tirx.Var) -> int | None:
    """Finds the factor by which an expression is a multiple of the size; None for any other."""
    if isinstance(expr, tirx.Var):
        return 1 if expr.same_as(size) else None
    if isinstance(expr, tirx.Mul) and expr.a.same_as(size) and isinstance(expr.b, tirx.IntImm):
        return int(expr.b.value)
    return None
