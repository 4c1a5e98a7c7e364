"""What is done to a module's functions before its graph is built.

Its calls are checked: the importer inlines every one, so its graph can be exponentially larger than
the text, and recursion would never end. Both are found in time linear in the text.

Some operations are written as other StableHLO: deprecated ones, those that are several others, and
those that do nothing on a single device. Each is a JAX function of the operands,
``@expansion("stablehlo.x") def _(op, *operands)``, traced for the operation's types; a call of the
traced function takes the operation's place.

Composites of modules of symbolic sizes are written as calls of their decompositions, whose
attributes name them, because StableHLO's refinement of shapes goes through calls but not through
composites; once the sizes are known they become composites again.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.passmanager import PassManager

from jaxeff.core import jax_internals as _compat
from jaxeff_export.importer import _graph as graph

MAX_OPERATIONS = 500_000
MAX_DEPTH = 100  # regions and calls in one another; the importer recurses into them

_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}


@dataclasses.dataclass
class _Inlined:
    """A function with all its calls inlined: its operations, and how deep they nest."""

    operations: int = 0
    depth: int = 0


def functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """Returns the functions of a module by name."""
    return {
        graph.attribute(op.operation, "sym_name"): op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def public_function(functions: Mapping[str, ir.Operation]) -> ir.Operation:
    """Returns the function that a module is imported for."""
    public = [
        f
        for f in functions.values()
        if "sym_visibility" not in f.attributes or graph.attribute(f, "sym_visibility") == "public"
    ]
    # Of several, MLIR's convention makes `main` the entry.
    if len(public) > 1:
        public = [f for f in public if graph.attribute(f, "sym_name") == "main"]
    if len(public) != 1 or not len(public[0].regions[0].blocks):
        names = ", ".join(functions) or "none at all"
        raise graph.StableHLOParseError(
            f"the module has no single public function to import (its functions: {names}); "
            "mark one as public, or name it main"
        )
    return public[0]


def refuse_endless_calls(function: ir.Operation, functions: Mapping[str, ir.Operation]) -> None:
    """Checks that inlining all calls of ``function`` ends, and soon."""
    # A function called many times is measured once, which keeps the check linear in the text.
    known: dict[str, _Inlined] = {}
    open_calls: set[str] = set()

    def inlined(function: ir.Operation) -> _Inlined:
        total = _Inlined()
        for op, depth in operations(function):
            total.operations += 1
            total.depth = max(total.depth, depth)
            try:
                if depth > MAX_DEPTH:
                    raise graph.Unsupported(f"it is nested more than {MAX_DEPTH} regions deep")
                if op.name in _CALLS:
                    body = called(op)
                    total.operations += body.operations
                    total.depth = max(total.depth, depth + body.depth)
                if total.operations > MAX_OPERATIONS or total.depth > MAX_DEPTH:
                    raise graph.Unsupported(
                        f"its functions, inlined, come to more than {MAX_OPERATIONS} operations or "
                        f"nest more than {MAX_DEPTH} deep"
                    )
            except graph.Unsupported as error:
                raise graph.UnsupportedOpError([graph.describe(op, str(error))]) from error
        return total

    def called(op: ir.Operation) -> _Inlined:
        name = graph.attribute(op, _CALLS[op.name])
        if name not in known:
            # Still being inlined itself: recursion.
            if name in open_calls:
                raise graph.Unsupported(f"@{name} calls itself; XLA has no recursion either")
            if name not in functions or not len(functions[name].regions[0].blocks):
                raise graph.Unsupported(f"the module has no body for the function @{name}")
            # This check recurses into calls itself.
            if len(open_calls) >= MAX_DEPTH:
                raise graph.Unsupported(f"calls nest more than {MAX_DEPTH} deep")
            open_calls.add(name)
            known[name] = inlined(functions[name])
            open_calls.remove(name)
        return known[name]

    open_calls.add(graph.attribute(function, "sym_name"))
    inlined(function)


def operations(op: ir.Operation) -> Iterator[tuple[ir.Operation, int]]:
    """Yields all operations inside ``op``, each with the number of regions around it."""
    pending = [(op, 0)]
    while pending:
        parent, depth = pending.pop()
        for region in parent.regions:
            for block in region.blocks:
                for view in block.operations:
                    yield view.operation, depth + 1
                    if len(view.operation.regions):
                        pending.append((view.operation, depth + 1))


Expansion = Callable[..., "jax.Array | Sequence[jax.Array]"]
# jaxlib's CHLO decompositions are XLA's own, so the numbers agree with XLA's.
LEGALIZE_CHLO = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
EXPANSIONS: dict[str, Expansion] = {}
T = TypeVar("T")
_SYMBOL = re.compile(r"@([\w$.-]+)")


def registrar(table: dict[str, T], names: Sequence[str]) -> Callable[[T], T]:
    """Makes a decorator that enters a function into a table under several names."""

    def register(function: T) -> T:
        table.update(dict.fromkeys(names, function))
        return function

    return register


def expansion(*names: str) -> Callable[[Expansion], Expansion]:
    """Registers the expansion of one or more operations."""
    return registrar(EXPANSIONS, names)


def expand(module: ir.Module) -> None:
    """Replaces every operation of ``module`` that has an expansion, where it applies."""
    # Listed before any is replaced: erasing an operation invalidates a walk.
    expandable = [
        op
        for op, _ in operations(module.operation)
        if op.name in EXPANSIONS or op.name == "stablehlo.get_tuple_element"
    ]
    for i, op in enumerate(expandable):
        try:
            if op.name == "stablehlo.get_tuple_element":
                _untuple(op)
            else:
                _replace(module, op, f"expansion{i}")
        except graph.Unsupported:
            continue  # the graph builder refuses it, and says where it came from


def _replace(module: ir.Module, op: ir.Operation, prefix: str) -> None:
    kinds = [graph.tensor_type(operand.type) for operand in op.operands]
    results = [graph.tensor_type(result.type) for result in op.results]
    text = _traced(op, kinds, results)
    # Every traced module has a @main, so that names need a prefix in the common module.
    renamed = ir.Module.parse(_SYMBOL.sub(rf"@{prefix}.\1", text))
    # JAX lowers some functions to CHLO, for which the importer has no rules.
    PassManager.parse(LEGALIZE_CHLO).run(renamed.operation)
    for function in list(renamed.body.operations):
        added = function.operation.clone(ir.InsertionPoint(module.body))
        added.attributes["sym_visibility"] = ir.StringAttr.get("private")
    with ir.InsertionPoint(op), op.location:
        call = func.CallOp([r.type for r in op.results], f"{prefix}.main", list(op.operands))
    for old, new in zip(op.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _untuple(op: ir.Operation) -> None:
    """Replaces an element taken out of a tuple by the value that went into it."""
    owner: Any = op.operands[0].owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "stablehlo.tuple":
        op.results[0].replace_all_uses_with(owner.operation.operands[graph.attribute(op, "index")])
        op.erase()


def _traced(
    op: ir.Operation, kinds: Sequence[graph.TensorType], results: Sequence[graph.TensorType]
) -> str:
    def function(*operands: jax.Array) -> list[jax.Array]:
        arrays = EXPANSIONS[op.name](op, *operands)
        arrays = arrays if isinstance(arrays, Sequence) else [arrays]
        return [x.astype(kind.numpy_dtype) for x, kind in zip(arrays, results, strict=True)]

    arguments = [jax.ShapeDtypeStruct(kind.shape, kind.numpy_dtype) for kind in kinds]
    # Types are the operation's, whatever the caller's settings of JAX.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return jax.jit(function, keep_unused=True).lower(*arguments).as_text()


@expansion("stablehlo.dot")
def _dot(op: ir.Operation, x: jax.Array, y: jax.Array) -> jax.Array:
    kind = graph.tensor_type(op.results[0].type)
    return jax.lax.dot(x, y, preferred_element_type=kind.numpy_dtype)


@expansion("stablehlo.einsum", "stablehlo.unary_einsum")
def _einsum(op: ir.Operation, *operands: jax.Array) -> jax.Array:
    kind = graph.tensor_type(op.results[0].type)
    equation = graph.attribute(op, "einsum_config")
    return jnp.einsum(equation, *operands, preferred_element_type=kind.numpy_dtype)


@expansion("stablehlo.broadcast")
def _broadcast(op: ir.Operation, x: jax.Array) -> jax.Array:
    return jax.lax.broadcast(x, graph.integers(op, "broadcast_sizes"))


@expansion("stablehlo.torch_index_select")
def _torch_index_select(op: ir.Operation, x: jax.Array, index: jax.Array) -> jax.Array:
    batch = graph.attribute(op, "batch_dims")
    axis = graph.attribute(op, "dim") - batch

    def select(x: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.take(x, index, axis, mode="clip")

    for _ in range(batch):
        select = jax.vmap(select)
    return select(x, index)


@expansion("stablehlo.real_dynamic_slice")
def _real_dynamic_slice(
    op: ir.Operation, x: jax.Array, start: jax.Array, limit: jax.Array, stride: jax.Array
) -> jax.Array:
    # Sizes are static by now, so that a slice of unit strides is a dynamic_slice.
    if not (_constant(op.operands[3]) == 1).all():
        raise graph.Unsupported("its strides are not known at import time")
    starts = [start[d] for d in range(x.ndim)]
    return jax.lax.dynamic_slice(x, starts, graph.tensor_type(op.results[0].type).shape)


@expansion("stablehlo.get_dimension_size")
def _get_dimension_size(op: ir.Operation, x: jax.Array) -> jax.Array:
    return jnp.int32(x.shape[graph.attribute(op, "dimension")])


@expansion("stablehlo.set_dimension_size")
def _set_dimension_size(op: ir.Operation, x: jax.Array, size: jax.Array) -> jax.Array:
    if int(_constant(op.operands[1])) != x.shape[graph.attribute(op, "dimension")]:
        raise graph.Unsupported("the size of its result is not the operand's")
    return x


def _constant(value: ir.Value) -> np.ndarray:
    """Returns the integers that a value holds."""
    owner: Any = value.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "stablehlo.constant":
        return np.array(owner.operation.attributes["value"])
    raise graph.Unsupported("an operand is not known at import time")


@expansion("stablehlo.batch_norm_inference")
def _batch_norm_inference(
    op: ir.Operation,
    x: jax.Array,
    scale: jax.Array,
    offset: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
) -> jax.Array:
    along, _, epsilon = _features(op, x)
    deviation = jnp.sqrt(variance + epsilon)
    return along(scale) * ((x - along(mean)) / along(deviation)) + along(offset)


@expansion("stablehlo.batch_norm_training")
def _batch_norm_training(
    op: ir.Operation, x: jax.Array, scale: jax.Array, offset: jax.Array
) -> Sequence[jax.Array]:
    along, others, epsilon = _features(op, x)
    mean = jnp.mean(x, others)
    variance = jnp.mean(jnp.square(x - along(mean)), others)
    deviation = jnp.sqrt(variance + epsilon)
    return [along(scale) * ((x - along(mean)) / along(deviation)) + along(offset), mean, variance]


@expansion("stablehlo.batch_norm_grad")
def _batch_norm_grad(
    op: ir.Operation,
    x: jax.Array,
    scale: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    grad: jax.Array,
) -> Sequence[jax.Array]:
    along, others, epsilon = _features(op, x)
    # With s = sqrt(variance + epsilon):
    # grad_x = scale / s * (g - mean(g) - (x - mean) * mean(g * (x - mean)) / s^2).
    centred, deviation = x - along(mean), jnp.sqrt(variance + epsilon)
    grad_mean = jnp.mean(grad, others)
    slope = jnp.mean(grad * centred, others) / (variance + epsilon)
    grad_x = along(scale / deviation) * (grad - along(grad_mean) - along(slope) * centred)
    grad_scale = jnp.sum(grad * centred / along(deviation), others)
    return [grad_x, grad_scale, jnp.sum(grad, others)]


def _features(
    op: ir.Operation, x: jax.Array
) -> tuple[Callable[[jax.Array], jax.Array], tuple[int, ...], jax.Array]:
    """Returns a function that lays vectors along the features, the other dimensions, epsilon."""
    feature = graph.attribute(op, "feature_index")
    others = tuple(d for d in range(x.ndim) if d != feature)
    epsilon = jnp.asarray(graph.attribute(op, "epsilon"), x.dtype)
    return lambda vector: jnp.expand_dims(vector, others), others, epsilon


@expansion("stablehlo.partition_id", "stablehlo.replica_id")
def _id(_: ir.Operation) -> jax.Array:
    return jnp.uint32(0)


@expansion(
    "stablehlo.all_gather",
    "stablehlo.all_reduce",
    "stablehlo.all_to_all",
    "stablehlo.cross-replica-sum",
    "stablehlo.reduce_scatter",
)
def _collective(op: ir.Operation, *operands: jax.Array) -> Sequence[jax.Array]:
    # A group of device 0 alone has nobody to talk to: the operation is the identity.
    if np.array(op.attributes["replica_groups"]).any():
        raise graph.Unsupported("it communicates, and TVM has a single device")
    return operands


@expansion("stablehlo.collective_permute")
def _collective_permute(op: ir.Operation, x: jax.Array) -> jax.Array:
    pairs = np.array(op.attributes["source_target_pairs"])
    if pairs.any():
        raise graph.Unsupported("it communicates, and TVM has a single device")
    return x if pairs.size else jnp.zeros_like(x)


def restore_composites(module: ir.Module) -> None:
    """Writes calls of functions that say which composite they are as composites, in place."""
    marked = {
        name: function
        for name, function in functions_of(module).items()
        if _compat.COMPOSITE in function.attributes
    }
    calls = [op for op, _ in operations(module.operation) if op.name == "func.call"]
    for call in calls:
        callee = graph.attribute(call, "callee")
        if callee not in marked:
            continue
        said = marked[callee].attributes
        with ir.InsertionPoint(call), call.location:
            composite = ir.Operation.create(
                "stablehlo.composite",
                results=[result.type for result in call.results],
                operands=list(call.operands),
                attributes={
                    "name": said[_compat.COMPOSITE],
                    "decomposition": call.attributes["callee"],
                    "composite_attributes": said[_compat.COMPOSITE_ATTRIBUTES],
                    "version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1),
                },
            )
        for old, new in zip(call.results, composite.results, strict=True):
            old.replace_all_uses_with(new)
        call.erase()
