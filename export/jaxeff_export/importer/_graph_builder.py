"""From a module to its graph.

Calls are inlined (so repeated private functions become repeated nodes), and composites are unless
they are known. Small constants are folded: loop counters, trip counts, static indices, tables.
Only integers and booleans are computed with (their arithmetic is exact and the same everywhere);
constants of any dtype are moved about. Loops that stay small are unrolled, and branches that are
cheap become selects; other loops and branches are nodes that hold graphs of their own. A custom
call is an annotation, which is dropped, or a node named ``custom_call @target``: rules register
under that name, as for operations.

Sharp edge: both branches of a cheap ``if`` or ``case`` are computed. StableHLO is pure, so this
costs time only.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxeff_export.importer import _expansions as expansions
from jaxeff_export.importer import _graph as graph
from jaxeff_export.importer._scalar_rules import SCALAR_RULES

_COMPARE: dict[str, Callable] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_FOLD: dict[str, Callable] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.minimum": np.minimum,
    "stablehlo.maximum": np.maximum,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.xor": np.bitwise_xor,
    "stablehlo.not": np.invert,
    "stablehlo.negate": np.negative,
    "stablehlo.select": np.where,
    "stablehlo.clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "stablehlo.convert": lambda x: x,
}
_SPLATS = ("stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.slice")
_MOVE: dict[str, Callable[..., np.ndarray]] = {
    "stablehlo.reshape": lambda op, kind, x: x.reshape(kind.shape),
    "stablehlo.slice": lambda op, kind, x: x[tuple(map(slice, *_slice_bounds(op)))],
    "stablehlo.concatenate": lambda op, kind, *xs: np.concatenate(
        xs, graph.attribute(op, "dimension")
    ),
    "stablehlo.transpose": lambda op, kind, x: x.transpose(graph.integers(op, "permutation")),
    "stablehlo.dynamic_slice": lambda op, kind, x, *starts: x[
        tuple(
            slice(begin, begin + size)
            for start, size, n in zip(starts, kind.shape, x.shape, strict=True)
            for begin in [min(max(int(start), 0), n - size)]
        )
    ],
}
MAX_FOLDED = 1024  # elements


def folded_value(
    op: ir.Operation,
    operands: Sequence[np.ndarray | None],
    shapes: Sequence[tuple[int, ...]],
    kinds: Sequence[graph.TensorType],
) -> np.ndarray | None:
    """Returns the value of ``op`` on constants, or None if it isn't folded.

    Operands are of rank 0 for a splat, None where unknown; `kinds` are the types of the results.
    Returns an array of the result's shape, or of rank 0 where all elements are the same.
    """
    if len(kinds) != 1 or not operands:
        return None
    (kind,) = kinds
    constants = [c for c in operands if c is not None]
    if len(constants) < len(operands):
        return None
    # A splat is one element whatever its shape; full arrays are folded only while small.
    if all(c.ndim == 0 for c in constants):
        if op.name in _SPLATS:
            return constants[0]
    elif kind.size > MAX_FOLDED or any(c.size > MAX_FOLDED for c in constants):
        return None
    if op.name in _MOVE and kind.size <= MAX_FOLDED:
        full = [np.broadcast_to(c, shape) for c, shape in zip(constants, shapes, strict=True)]
        return _MOVE[op.name](op, kind, *full).astype(kind.numpy_dtype)
    return _computed(op, kind, constants)


def _computed(
    op: ir.Operation, kind: graph.TensorType, constants: Sequence[np.ndarray]
) -> np.ndarray | None:
    # Floats are computed on the target, so that they round like all others there.
    if not _integral(kind.dtype) or not all(c.dtype.kind in "biu" for c in constants):
        return None
    if op.name == "stablehlo.compare":
        return np.asarray(_COMPARE[graph.direction(op)](*constants))
    if op.name not in _FOLD:
        return None
    # NumPy has neither of these for booleans.
    if kind.dtype == "bool" and op.name in ("stablehlo.subtract", "stablehlo.negate"):
        return None
    # Overflow wraps around modulo the width, in NumPy as in StableHLO.
    with np.errstate(over="ignore"):
        folded = np.asarray(_FOLD[op.name](*constants))
    if op.name == "stablehlo.convert" and kind.dtype == "bool":
        return folded != 0
    return folded.astype(kind.numpy_dtype)


def _slice_bounds(op: ir.Operation) -> list[list[int]]:
    return [graph.integers(op, name) for name in ("start_indices", "limit_indices", "strides")]


def _integral(dtype: str) -> bool:
    return dtype == "bool" or "int" in dtype


_ANNOTATIONS = (
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "annotate_device_placement",
    "shape_assertion",
    "LayoutConstraint",
)
_ADVICE = {
    "lapack_sgeev_ffi": "eigenvalues of unsymmetric matrices are complex; if it is symmetric, "
    "use jnp.linalg.eigh",
    "xla_ffi_python_cpu_callback": "Python callbacks cannot be exported; "
    "remove it (jax.debug.print too)",
    "xla_python_cpu_callback": "Python callbacks cannot be exported; "
    "remove it (jax.debug.print too)",
}
_ADVICE["lapack_dgeev_ffi"] = _ADVICE["lapack_sgeev_ffi"]
_COMPLEX_LAPACK = ("lapack_c", "lapack_z")


def is_annotation(op: ir.Operation) -> bool:
    """Tells whether a custom call only annotates its operands, such as with a sharding.

    The checks of StableHLO's own tests (``check.expect_close`` and its like), which have no
    results, are taken for one too: an imported module computes, it does not test itself.
    """
    target = graph.attribute(op, "call_target_name")
    if target.startswith("check.") and not len(op.results):
        return True
    if target not in _ANNOTATIONS and not target.startswith("xla.sdy."):
        return False
    kinds = [operand.type for operand in op.operands]
    return all(result.type == kind for result, kind in zip(op.results, kinds, strict=False))


def node_name(op: ir.Operation, known_ops: Collection[str]) -> str:
    """Returns the name under which a custom call's lowering is registered."""
    target = graph.attribute(op, "call_target_name")
    name = f"custom_call @{target}"
    if name not in known_ops:
        advice = _ADVICE.get(target)
        if target.startswith(_COMPLEX_LAPACK):
            advice = "TVM has no complex types; compute with real and imaginary parts"
        raise graph.Unsupported(
            f"no lowering of the custom call {target} is known" + (f": {advice}" if advice else "")
        )
    if target.startswith("lapack_"):
        _check_layouts(op, target)
    return name


def _check_layouts(op: ir.Operation, target: str) -> None:
    """Checks that matrices are column-major, which LAPACK's kernels here assume."""
    layouts: list[list[int]] = []
    for name in ("operand_layouts", "result_layouts"):
        listed: Any = op.attributes[name]
        layouts += [[int(d) for d in layout] for layout in listed]
    matrix_rank = max(len(layout) for layout in layouts)
    for layout in layouts:
        # Layouts name dimensions from the fastest on: batches row-major, matrices column-major.
        expected = list(reversed(range(len(layout))))
        if len(layout) == matrix_rank:
            expected[:2] = reversed(expected[:2])
        if layout != expected:
            raise graph.Unsupported(f"the layout {layout} in the custom call {target}")


MAX_UNROLLED_NODES = 400
MAX_UNROLLED_TURNS = 8  # more would update the outputs of a scan by copying them each time
MAX_TURNS = 10_000  # of all loops together, so that loops in loops take no longer
MAX_SELECTED_NODES = 32
_FOUR_BITS = (
    "stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim",
    "stablehlo.slice", "stablehlo.dynamic_slice", "stablehlo.concatenate", "stablehlo.gather",
    "stablehlo.reverse", "stablehlo.select", "stablehlo.pad", "stablehlo.constant",
)  # fmt: skip
"""What is done with numbers of four bits, which are held in eight: nothing that could overflow."""
_MOVES = ("stablehlo.broadcast_in_dim", "stablehlo.iota", "stablehlo.reshape")


class GraphBuilder:
    """Builds the :class:`Graph` of a module's public function; collects what is unsupported."""

    def __init__(
        self,
        module: ir.Module,
        known_ops: Collection[str],
        composites: Collection[str],
        rewrite_complex: Callable[..., list[graph.HloValue]],
    ):
        self._functions = expansions.functions_of(module)
        self._known_ops = known_ops
        self._composites = composites
        self._rewrite_complex = rewrite_complex
        self._nodes: list[graph.HloNode] = []
        self._templates: list[ir.Module] = []  # of operations that the module itself lacks
        self._turns = 0  # iterations unrolled, those that were given up included
        self.unsupported: list[graph.UnsupportedOp] = []

    def build(self) -> graph.HloGraph:
        """Returns the graph of the public function.

        Raises:
            StableHLOParseError: there is no single public function with a body.
        """
        function = expansions.public_function(self._functions)
        expansions.refuse_endless_calls(function, self._functions)
        try:
            arguments = _body(function).arguments
            if any(graph.is_four_bits(a.type) for a in arguments):
                raise graph.Unsupported("TVM has no arrays of four bits; take int8")
            kinds = [graph.tensor_type(a.type) for a in arguments]
        except graph.Unsupported as error:
            self.unsupported.append(
                graph.describe(function, f"argument of the public function: {error}")
            )
            return graph.HloGraph((), [], ())
        inputs = tuple(graph.HloValue(kind) for kind in kinds)
        outputs = tuple(self._block(_body(function), inputs, {}))
        if any(isinstance(output, graph.Complex) for output in outputs):
            reason = "result of the public function: TVM has no complex types"
            self.unsupported.append(graph.describe(function, reason))
        return graph.HloGraph(inputs, self._nodes, outputs)

    def _block(
        self,
        block: ir.Block,
        arguments: Sequence[graph.HloValue],
        outer: dict[ir.Value, graph.HloValue],
    ) -> list[graph.HloValue]:
        """Adds the nodes of a block and returns the values of its terminator."""
        env = dict(outer)
        env.update(zip(block.arguments, arguments, strict=True))
        for view in block.operations:
            op = view.operation
            operands = tuple(env[operand] for operand in op.operands)
            if op.name in ("func.return", "stablehlo.return"):
                return list(operands)
            try:
                results = self._operation(op, operands, env)
            except (graph.StableHLOParseError, graph.UnsupportedOpError):
                raise
            # A stand-in result lets one import report every operation that it cannot take.
            except graph.Unsupported as error:
                self.unsupported.append(graph.describe(op, str(error)))
                results = [_placeholder(result.type) for result in op.results]
            except Exception as error:
                raise graph.failure(op, error) from error
            env.update(zip(op.results, results, strict=True))
        raise graph.StableHLOParseError(
            f"{graph.source_location(op)}: the block ends in {op.name} instead of a return; only "
            "StableHLO's own control flow is read"
        )

    def _operation(
        self,
        op: ir.Operation,
        operands: tuple[graph.HloValue, ...],
        env: dict[ir.Value, graph.HloValue],
    ) -> list[graph.HloValue]:
        results = self._special(op, operands, env)
        return self._computation(op, operands) if results is None else results

    def _special(
        self,
        op: ir.Operation,
        operands: tuple[graph.HloValue, ...],
        env: dict[ir.Value, graph.HloValue],
    ) -> list[graph.HloValue] | None:
        """Reads what isn't a node by itself: constants, calls, what only orders, control flow."""
        match op.name:
            case "stablehlo.constant" if graph.is_complex(op.results[0].type):
                kind = graph.part_type(op.results[0].type)
                real, imaginary = (
                    graph.HloValue(kind, constant=part) for part in graph.constant_parts(op)
                )
                return [graph.Complex.of(real, imaginary)]
            case "stablehlo.constant":
                kind = graph.tensor_type(op.results[0].type)
                return [_constant(op.attributes["value"], kind)]
            case "func.call":
                return self._call(graph.attribute(op, "callee"), operands)
            case "stablehlo.composite" if graph.attribute(op, "name") not in self._composites:
                return self._call(graph.attribute(op, "decomposition"), operands)
            # A constant behind a barrier is not to be known: a loop of so many turns stays one.
            case "stablehlo.optimization_barrier" if any(
                isinstance(o, graph.HloValue) and o.constant is not None for o in operands
            ):
                kinds = [graph.tensor_type(result.type) for result in op.results]
                return list(self._node(op.name, op, operands, kinds).results)
            case "stablehlo.optimization_barrier" | "sdy.sharding_constraint" | "sdy.reshard":
                return list(operands)
            case "stablehlo.create_token" | "stablehlo.after_all":
                return [graph.splat(True, graph.TensorType((), "bool"))]  # they order nothing here
            # A tuple that nothing reads: what took it apart reads its members by now.
            case "stablehlo.tuple" if not any(True for _ in op.results[0].uses):
                return [graph.splat(True, graph.TensorType((), "bool"))]
            case "stablehlo.custom_call" if is_annotation(op):
                return list(operands[: len(op.results)])
            case "stablehlo.if":
                return self._branch(op, operands[0], (1, 0), env)  # branch 0 is the false one
            case "stablehlo.case":
                return self._branch(op, operands[0], range(len(op.regions)), env)
            case "stablehlo.while":
                unrolled = self._unroll(op, operands, env)
                return self._loop(op, operands, env) if unrolled is None else unrolled
        return None

    def _computation(
        self, op: ir.Operation, operands: tuple[graph.HloValue, ...]
    ) -> list[graph.HloValue]:
        """Reads an operation that becomes one node, or a number that is known already."""
        name = op.name
        if name == "stablehlo.custom_call":
            name = node_name(op, self._known_ops)
        # TVM has no complex dtype: real operations on the two parts take its place.
        elif any(graph.is_complex(value.type) for value in (*op.operands, *op.results)):
            return self._rewrite_complex(op, operands, self._node, self._templates)
        elif name not in self._known_ops:
            raise graph.Unsupported("no lowering to TVM is known")
        kinds = [graph.tensor_type(result.type) for result in op.results]
        if any(graph.is_four_bits(value.type) for value in (*op.operands, *op.results)):
            operands = self._four_bits(name, op, operands, kinds)
        for operand in op.operands:
            # Raises where TVM lacks an operand's type, even if it has the result's.
            graph.tensor_type(operand.type)
        # Folded loop counters make trip counts and static indices known below.
        folded = folded_value(
            op, [o.constant for o in operands], [o.type.shape for o in operands], kinds
        )
        if folded is not None:
            return [graph.splat(folded, kinds[0])]
        return list(self._node(name, op, operands, kinds).results)

    def _four_bits(
        self,
        name: str,
        op: ir.Operation,
        operands: tuple[graph.HloValue, ...],
        kinds: Sequence[graph.TensorType],
    ) -> tuple[graph.HloValue, ...]:
        """Returns the operands of an operation on numbers of four bits."""
        if name not in _FOUR_BITS:
            raise graph.Unsupported("it computes in four bits; convert to int8 or to floats before")
        if name != "stablehlo.convert" or not graph.is_four_bits(op.results[0].type):
            return operands
        (operand,) = operands
        if operand.type.dtype not in ("int8", "uint8"):
            raise graph.Unsupported(
                f"numbers of four bits are made of int8, not of {operand.type.dtype}"
            )
        # The lower half alone, with its sign: up to the top of the byte, and down again.
        signed = kinds[0].dtype == "int8"
        four = graph.splat(4, graph.TensorType(operand.type.shape, kinds[0].dtype))
        down = "stablehlo.shift_right_arithmetic" if signed else "stablehlo.shift_right_logical"
        for shift in ("stablehlo.shift_left", down):
            operand = self._node(shift, op, (operand, four), kinds).result
        return (operand,)

    def _node(
        self,
        name: str,
        op: ir.Operation,
        operands: tuple[graph.HloValue, ...],
        kinds: Sequence[graph.TensorType],
    ) -> graph.HloNode:
        node = graph.HloNode(name, op, operands)
        node.results = tuple(graph.HloValue(kind, node, i) for i, kind in enumerate(kinds))
        self._nodes.append(node)
        return node

    def _call(self, name: str, operands: tuple[graph.HloValue, ...]) -> list[graph.HloValue]:
        return self._block(_body(self._functions[name]), operands, {})

    def _subgraph(
        self,
        block: ir.Block,
        arguments: Sequence[graph.HloValue],
        env: dict[ir.Value, graph.HloValue],
    ) -> graph.HloGraph:
        """Builds a block as a graph of its own; arguments without a node are its own."""
        outer, self._nodes = self._nodes, []
        try:
            outputs = self._block(block, arguments, env)
            return graph.HloGraph(tuple(arguments), self._nodes, tuple(outputs))
        finally:
            self._nodes = outer

    def _control(
        self,
        name: str,
        op: ir.Operation,
        operands: Sequence[graph.HloValue],
        bodies: Sequence[graph.HloGraph],
        kinds: Sequence[graph.TensorType],
    ) -> list[graph.HloValue]:
        captured = dict.fromkeys(value for body in bodies for value in body.captured())
        node = self._node(name, op, (*operands, *captured), kinds)
        node.bodies = tuple(bodies)
        return list(node.results)

    def _branch(
        self,
        op: ir.Operation,
        index: graph.HloValue,
        regions: Sequence[int],
        env: dict[ir.Value, graph.HloValue],
    ) -> list[graph.HloValue]:
        """Chooses between the results of regions; an index out of range means the last."""
        # Negative indices are out of range too, so they must not count from the end here.
        if index.constant is not None:
            i = int(index.constant)
            region = regions[i if 0 <= i < len(regions) else -1]
            return self._block(_body(op, region), (), env)
        branches = [self._subgraph(_body(op, i), (), env) for i in regions]
        chosen = branches[0].outputs
        for branch in branches:
            branch.outputs = tuple(graph.flattened(branch.outputs))
        # Both sides of a select are computed. For a few elementwise nodes that costs less than a
        # branch, which is a kernel of its own and keeps its neighbours from being fused.
        nodes = [node for branch in branches for node in branch.nodes]
        if len(nodes) <= MAX_SELECTED_NODES and all(_is_cheap(n) for n in nodes):
            self._nodes += nodes
            results = self._select(op, index, [branch.outputs for branch in branches])
        else:
            kinds = [output.type for output in branches[0].outputs]
            results = self._control("importer.branch", op, [index], branches, kinds)
        return graph.paired(results, chosen)

    def _select(
        self, op: ir.Operation, index: graph.HloValue, branches: Sequence[Sequence[graph.HloValue]]
    ) -> list[graph.HloValue]:
        # From the last branch backwards: what matches no earlier index falls to the last.
        chosen = list(branches[-1])
        for i, branch in reversed(list(enumerate(branches[:-1]))):
            # The regions of an `if` come as (false, true): the first is for a predicate not set.
            if index.type.dtype == "bool":
                hit = self._node("importer.not", op, (index,), [index.type]).result
            else:
                hit = self._node(
                    "importer.equal",
                    op,
                    (index, graph.splat(i, index.type)),
                    [graph.TensorType((), "bool")],
                ).result
            chosen = [
                a if a is b else self._node("stablehlo.select", op, (hit, a, b), [a.type]).result
                for a, b in zip(branch, chosen, strict=True)
            ]
        return chosen

    def _unroll(
        self,
        op: ir.Operation,
        operands: tuple[graph.HloValue, ...],
        env: dict[ir.Value, graph.HloValue],
    ) -> list[graph.HloValue] | None:
        """Returns a loop's results if its trip count is known and small, else None."""
        # Withdrawing an attempt restores nodes and complaints. The count of turns stays: nested
        # loops that are each tried in vain would otherwise take exponential time.
        carried = list(operands)
        start, refused = len(self._nodes), len(self.unsupported)
        # One evaluation more than turns, which sees the condition fail after the last turn.
        for _ in range(MAX_UNROLLED_TURNS + 1):
            if (
                len(self._nodes) - start > MAX_UNROLLED_NODES
                or len(self.unsupported) > refused
                or self._turns > MAX_TURNS
            ):
                break
            (proceed,) = self._block(_body(op, 0), carried, env)
            # Data decides when to stop, so the trip count is unknown until the call.
            if proceed.constant is None:
                break
            if not bool(proceed.constant):
                return carried
            self._turns += 1
            carried = self._block(_body(op, 1), carried, env)
        del self._nodes[start:]
        del self.unsupported[refused:]
        return None

    def _loop(
        self,
        op: ir.Operation,
        operands: tuple[graph.HloValue, ...],
        env: dict[ir.Value, graph.HloValue],
    ) -> list[graph.HloValue]:
        """Adds a loop; values that its body returns unchanged are not carried."""
        block = _body(op, 1)
        returned = list(block.operations)[-1].operands
        # Loop-invariant values are captured instead: no state buffer, and no copy at each turn.
        unchanged = [a == r for a, r in zip(block.arguments, returned, strict=True)]
        fresh = graph.paired([graph.HloValue(o.type) for o in graph.flattened(operands)], operands)
        arguments = [o if u else f for o, u, f in zip(operands, unchanged, fresh, strict=True)]
        bodies = [self._subgraph(_body(op, i), arguments, env) for i in (0, 1)]
        carried = [i for i, u in enumerate(unchanged) if not u]
        for body in bodies:
            body.arguments = tuple(graph.flattened(arguments[i] for i in carried))
        bodies[1].outputs = tuple(graph.flattened(bodies[1].outputs[i] for i in carried))
        inits = graph.flattened(operands[i] for i in carried)
        results = self._control("importer.loop", op, inits, bodies, [o.type for o in inits])
        final = iter(graph.paired(results, [operands[i] for i in carried]))
        return [o if u else next(final) for o, u in zip(operands, unchanged, strict=True)]


def _body(op: Any, index: int = 0) -> ir.Block:
    """Returns the block of a function, or of a region of an operation."""
    return op.regions[index].blocks[0]


def _is_cheap(node: graph.HloNode) -> bool:
    return node.name in SCALAR_RULES or node.name in _MOVES


def _constant(elements: Any, kind: graph.TensorType) -> graph.HloValue:
    if isinstance(elements, ir.DenseElementsAttr) and (elements.is_splat or kind.size == 1):
        # A splat stays one element: a large tensor of zeros costs nothing and still folds.
        scalar = ir.DenseElementsAttr.get_splat(
            ir.RankedTensorType.get([], elements.type.element_type), elements.get_splat_value()
        )
        return graph.splat(graph.dense_array(scalar), kind)
    return graph.HloValue(kind, constant=graph.dense_array(elements))


def _placeholder(mlir_type: ir.Type) -> graph.HloValue:
    """Makes a value for a result that could not be imported: the rest is still checked."""
    try:
        kind = graph.tensor_type(mlir_type)
    except graph.Unsupported:
        kind = graph.TensorType((), "float32")
    return graph.HloValue(kind)
