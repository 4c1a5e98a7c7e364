"""Elementwise regions, and bodies of reductions, as scalar expressions.

Connected elementwise operations become one loop. Nothing is emitted for an elementwise node until
something else needs its tensor. Then the node and all elementwise ancestors that have no tensor yet
are emitted as one ``te.compute`` whose body is a chain of scalar lets. Intermediates that other
operations need too become further outputs of the same loop if they are costly, and are computed
again if they are cheap. Broadcasts, splat constants and iotas are read in place: they become
tensors only if another operation needs one.

A body is a region of scalar operations, which ``evaluate_region`` applies to the scalars of a loop.
"""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from tvm import te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer import _graph as graph
from jaxeff_export.importer import _scalar_rules as scalar_rules

INDEXED = ("stablehlo.broadcast_in_dim", "stablehlo.iota")
MAX_REGION = 128  # nodes; TVM walks nested lets recursively
KEEP_COST = 8  # additions; dearer intermediates are stored rather than computed again


def is_elementwise(value: graph.HloValue) -> bool:
    """Tells whether the value is computed element by element, and so is lazily emitted."""
    return value.node is not None and (
        value.node.name in scalar_rules.SCALAR_RULES or value.node.name in INDEXED
    )


def region_of(root: graph.HloValue, emitted: dict[graph.HloValue, object]) -> list[graph.HloValue]:
    """Returns the unemitted elementwise ancestors of ``root``, in topological order, root last."""
    # Depth first with a stack of its own: chains of elementwise nodes exceed Python's recursion.
    order: list[graph.HloValue] = []
    seen: set[graph.HloValue] = set()
    stack: list[tuple[graph.HloValue, bool]] = [(root, False)]
    while stack:
        value, done = stack.pop()
        if done:
            order.append(value)
            continue
        if value in seen:
            continue
        seen.add(value)
        stack.append((value, True))
        # A loop nest has one shape: an operand of another shape is a tensor to be read.
        for operand in _region_operands(value):
            if (
                operand not in seen
                and operand not in emitted
                and is_elementwise(operand)
                and operand.type.shape == root.type.shape
            ):
                stack.append((operand, False))
    return order


def _region_operands(value: graph.HloValue) -> Sequence[graph.HloValue]:
    """Returns the operands that may be computed in the same loop (a broadcast's may not)."""
    if value.node is None or value.node.name in INDEXED:
        return ()
    return value.node.operands


def with_siblings(
    region: list[graph.HloValue], emitted: dict[graph.HloValue, object]
) -> tuple[list[graph.HloValue], list[graph.HloValue]]:
    """Adds other values that are computed from a region's values and fit into the same loop.

    The mean and the variance of an activation share most of their terms, but neither needs the
    other: emitted one by one, the shared terms would go through memory or be computed twice.

    Returns the larger region, in topological order, and its roots: the values that need a tensor.
    """
    roots, order = [region[-1]], dict.fromkeys(region)
    for value in _needing_tensors(region, emitted):
        added = [v for v in region_of(value, emitted) if v not in order]
        # A root whose inputs are still to be emitted may depend on this very region.
        ready = all(v in emitted or v.constant is not None for v in leaves_of([*order, *added]))
        if ready and len(order) + len(added) <= MAX_REGION:
            order.update(dict.fromkeys(added))
            roots.append(value)
    return list(order), roots


def _needing_tensors(
    region: Sequence[graph.HloValue], emitted: dict[graph.HloValue, object]
) -> list[graph.HloValue]:
    """Finds elementwise values computed from a region that other operations need as tensors."""
    needing: list[graph.HloValue] = []
    seen = set(region)
    stack = list(region)
    # A region holds no more than that; an unbounded search per region would be quadratic.
    while stack and len(seen) < 2 * MAX_REGION:
        for user in stack.pop().users:
            for value in user.results:
                if value in seen or value in emitted or not _in_loop(value, region[-1]):
                    continue
                seen.add(value)
                stack.append(value)
                if value.is_output or not all(
                    _in_loop(result, value) for u in value.users for result in u.results
                ):
                    needing.append(value)
    return needing


def _in_loop(value: graph.HloValue, other: graph.HloValue) -> bool:
    """Tells whether a value is computed element by element, in the same loop as another."""
    return (
        is_elementwise(value)
        and bool(_region_operands(value))
        and value.type.shape == other.type.shape
    )


def kept_values(
    region: Sequence[graph.HloValue], roots: Sequence[graph.HloValue]
) -> list[graph.HloValue]:
    """Chooses which values of a region get a tensor: roots, and costly ones that others use.

    The last root to be computed comes last.
    """
    inside = {value.node for value in region}
    costs: dict[graph.HloValue, int] = {}
    kept = []
    for value in region:
        entry = scalar_rules.SCALAR_RULES.get(value.node.name) if value.node else None
        cost = entry.cost if entry else 0
        # Estimates recomputation from above: an ancestor of two operands counts twice.
        costs[value] = cost + sum(costs.get(o, 0) for o in set(_region_operands(value)))
        outside = value.is_output or any(user not in inside for user in value.users)
        if value in roots or (outside and costs[value] >= KEEP_COST):
            kept.append(value)
            # It has a tensor: whoever needs what follows computes from here.
            costs[value] = 0
    return kept


def leaves_of(region: Sequence[graph.HloValue]) -> list[graph.HloValue]:
    """Finds the tensors that a region reads: operands from outside and sources of broadcasts."""
    inside = set(region)
    leaves: dict[graph.HloValue, None] = {}
    for value in region:
        assert value.node is not None
        if value.node.name == "stablehlo.broadcast_in_dim":
            source, _ = broadcast_source(value)
            if not is_immediate(source):
                leaves[source] = None
            continue
        for operand in value.node.operands:
            if operand not in inside and not is_immediate(operand):
                leaves[operand] = None
    return list(leaves)


def is_immediate(value: graph.HloValue) -> bool:
    """Tells whether a value is a splat constant, which is written into the code."""
    return value.constant is not None and value.constant.ndim == 0


def broadcast_source(value: graph.HloValue) -> tuple[graph.HloValue, tuple[int | None, ...]]:
    """Follows a chain of broadcasts to its source.

    Returns the source, and for each of its dimensions the result dimension that indexes it, or None
    where it has size one and is repeated.
    """
    dims: list[int | None] = list(range(len(value.type.shape)))
    while value.node is not None and value.node.name == "stablehlo.broadcast_in_dim":
        source = value.node.operands[0]
        mapped = graph.integers(value.node.op, "broadcast_dimensions")
        # Maps are composed from the result inwards; a repeated dimension (None) stays one.
        dims = [
            dims[d] if source.type.shape[i] == value.type.shape[d] else None
            for i, d in enumerate(mapped)
        ]
        value = source
    return value, tuple(dims)


def compute_region(
    region: Sequence[graph.HloValue],
    kept: Sequence[graph.HloValue],
    leaves: Sequence[graph.HloValue],
    *tensors: te.Tensor,
) -> te.Tensor | Sequence[te.Tensor]:
    """Builds the loop of a region in TE; one output for each kept value."""
    tensor_of = dict(zip(leaves, tensors, strict=True))
    shape = region[-1].type.shape

    def body(*indices: Expr) -> Expr | tuple[Expr, ...]:
        results = tuple(_element(region, value, tensor_of, indices) for value in kept)
        return results[0] if len(results) == 1 else results

    return te.compute(shape, body, name=region_name(region))


def _element(
    region: Sequence[graph.HloValue],
    root: graph.HloValue,
    tensor_of: dict[graph.HloValue, te.Tensor],
    indices: Sequence[Expr],
) -> Expr:
    """Writes the scalar expression of one kept value at one index."""
    needed = _needed(region, root)
    scope = scalar_rules.Scope()
    scalars: dict[graph.HloValue, Expr] = {}

    def scalar(value: graph.HloValue) -> Expr:
        if value in scalars:
            return scalars[value]
        if is_immediate(value):
            return immediate(value)
        # The predicate of a select and the bounds of a clamp may be scalars beside tensors.
        at = indices if value.type.shape else ()
        scalars[value] = scope.let(scalar_rules.load(tensor_of[value](*at)))
        return scalars[value]

    for value in region:
        if value in needed:
            scalars[value] = _apply(scope, value, scalar, tensor_of, indices)
    return scope.wrap(scalar_rules.store(scalars[root], root.type.dtype))


def _apply(scope, value, scalar, tensor_of, indices) -> Expr:  # type: ignore[no-untyped-def]
    node = value.node
    if node.name == "stablehlo.iota":
        dimension = graph.attribute(node.op, "iota_dimension")
        # Indices are int64: the conversion wraps or rounds as StableHLO's would.
        counter = scalar_rules.ScalarOp(value.type.dtype, None)
        return scalar_rules.apply_scalar("stablehlo.convert", scope, counter, indices[dimension])
    if node.name == "stablehlo.broadcast_in_dim":
        source, dims = broadcast_source(value)
        if is_immediate(source):
            return immediate(source)
        # A repeated dimension has one element, which every index reads.
        at = [tirx.const(0, "int64") if d is None else indices[d] for d in dims]
        return scope.let(scalar_rules.load(tensor_of[source](*at)))
    return scalar_rules.apply_scalar(
        node.name, scope, scalar_op(node, value), *(scalar(operand) for operand in node.operands)
    )


def scalar_op(node: graph.HloNode, value: graph.HloValue) -> scalar_rules.ScalarOp:
    """Describes an elementwise node to its scalar rule."""
    same = len(node.operands) == 2 and node.operands[0] is node.operands[1]
    return scalar_rules.ScalarOp(value.type.dtype, node.op, same)


def immediate(value: graph.HloValue) -> Expr:
    """Returns a splat constant as a scalar literal, as scopes hold it."""
    assert value.constant is not None
    kind = value.type.dtype
    # Exact: float32 represents every number of the narrow formats.
    item = (
        value.constant.item() if scalar_rules.scalar_dtype(kind) == kind else float(value.constant)
    )
    return scalar_rules.literal(item, scalar_rules.scalar_dtype(kind))


def _needed(region: Sequence[graph.HloValue], root: graph.HloValue) -> set[graph.HloValue]:
    inside = set(region)
    needed, stack = {root}, [root]
    while stack:
        for operand in _region_operands(stack.pop()):
            if operand in inside and operand not in needed:
                needed.add(operand)
                stack.append(operand)
    return needed


def region_name(region: Sequence[graph.HloValue]) -> str:
    """Names a region after its last operation."""
    names = [v.node.name.rpartition(".")[2] for v in region if v.node]
    return names[-1] if len(names) == 1 else f"region_{names[-1]}"


def evaluate_region(
    region: ir.Region, scope: scalar_rules.Scope, arguments: Sequence[Expr], *, wide: bool = False
) -> list[Expr]:
    """Applies a region of scalar operations to scalars, as scopes hold these.

    The region has one block of elementwise operations; `scope` takes the intermediate values. With
    `wide`, 16-bit floats are computed in 32 bits throughout, as reductions do; arguments and
    results are then float32 too.
    """
    block = region.blocks[0]
    env: dict[ir.Value, Expr] = dict(zip(block.arguments, arguments, strict=True))
    for view in block.operations:
        op = view.operation
        for operand in op.operands:
            # JAX may hoist constants out of the region; anything else would be captured data.
            if operand not in env:
                env[operand] = _outer_constant(operand, wide)
        operands = [env[operand] for operand in op.operands]
        if op.name in ("stablehlo.return", "func.return"):
            return operands
        if op.name == "func.call":
            callee = _function(op, graph.attribute(op, "callee"))
            results = evaluate_region(callee, scope, operands, wide=wide)
            env.update(zip(op.results, results, strict=True))
            continue
        kind = graph.tensor_type(op.results[0].type)
        # No rounding of intermediates: 16 bits would lose small terms of a long sum.
        if wide:
            kind = graph.TensorType(kind.shape, accumulator(kind.dtype))
        if op.name == "stablehlo.constant":
            env[op.results[0]] = _constant(op, kind)
        # Scalars of another rank: the one element is the same.
        elif op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim") and kind.size == 1:
            env[op.results[0]] = operands[0]
        elif op.name in scalar_rules.SCALAR_RULES:
            # TVM would simplify x - x and x / x as if x were always finite.
            same = len(op.operands) == 2 and op.operands[0] == op.operands[1]
            info = scalar_rules.ScalarOp(kind.dtype, op, same, in_reduction=wide)
            env[op.results[0]] = scalar_rules.apply_scalar(op.name, scope, info, *operands)
        else:
            raise graph.Unsupported(f"its body holds {op.name}, which is not elementwise")
    raise graph.Unsupported("its body returns nothing")


def _outer_constant(value: Any, wide: bool) -> Expr:
    """Reads a constant that stands before the operation whose region uses it."""
    op = getattr(value.owner, "operation", None)
    if op is None or op.name != "stablehlo.constant":
        raise graph.Unsupported("its body uses a value from outside")
    kind = graph.tensor_type(value.type)
    return _constant(op, graph.TensorType(kind.shape, accumulator(kind.dtype)) if wide else kind)


def _constant(op: ir.Operation, kind: graph.TensorType) -> Expr:
    value = graph.dense_array(op.attributes["value"])
    if value.size != 1:
        raise graph.Unsupported("its body holds a constant that is not a scalar")
    return immediate(graph.splat(value.reshape(()), kind))


def called_regions(op: ir.Operation) -> list[ir.Region]:
    """Returns the bodies of the functions that a custom call names."""
    names: Any = op.attributes["called_computations"]
    return [_function(op, name.value) for name in names]


def _function(op: ir.Operation, name: str) -> ir.Region:
    top: Any = op
    while top.parent is not None:
        top = top.parent.operation
    return ir.SymbolTable(top)[name].regions[0]


def accumulator(dtype: str) -> str:
    """Names the dtype in which reductions to ``dtype`` are carried out."""
    return "float32" if dtype in scalar_rules.NARROW else dtype


def rounded(total: te.Tensor, kind: graph.TensorType) -> te.Tensor:
    """Rounds accumulators to the dtype of the result."""
    if accumulator(kind.dtype) == kind.dtype:
        return total

    def element(*index: Expr) -> Expr:
        scope = scalar_rules.Scope()
        return scope.wrap(
            scalar_rules.store(scalar_rules.narrow(scope, total(*index), kind.dtype), kind.dtype)
        )

    return te.compute(kind.shape, element, name="round")
