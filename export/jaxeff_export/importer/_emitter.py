"""From the graph to Relax: demand-driven emission of tensors, and the table of rules.

This is the importer's last step: `_module` reads StableHLO, `_graph_builder` makes the graph, and
`Emitter` walks it. A rule is ``rule(emitter, node) -> list of Relax expressions``, one for each
result; ``rules`` has them, a family a file. Elementwise operations have no rule: ``_elementwise``
makes one kernel of those that are read together.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from jaxlib.mlir import ir
from tvm import relax, te, tirx
from tvm.runtime import tensor as runtime_tensor

from jaxeff_export.importer import _elementwise as elementwise
from jaxeff_export.importer import _graph
from jaxeff_export.importer._expansions import registrar
from jaxeff_export.importer._loops import kernel
from jaxeff_export.importer._scalar_rules import HELD_AS_FLOAT32, SCALAR_RULES, store

MAX_STORED_SPLAT = 4096
"""Elements, at most, of a constant of equal elements that is stored rather than filled."""

Rule = Callable[["Emitter", _graph.HloNode], Sequence[relax.Expr]]
CompositeRule = Callable[..., "relax.Expr | Sequence[relax.Expr]"]
RULES: dict[str, Rule] = {}
_OPAQUE = 8  # TVM's OpPatternKind.kOpaque


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the lowering of one or more operations."""
    return registrar(RULES, names)


def known_ops() -> set[str]:
    """Lists the names of all operations with a lowering."""
    return {*RULES, *SCALAR_RULES, *elementwise.INDEXED, "stablehlo.composite"}


class Emitter:
    """Emits the live part of a graph into a Relax dataflow block.

    Attributes:
        bb: the block builder; rules emit into it.
        unsupported: operations without a lowering, in program order.
    """

    def __init__(self, composites: Mapping[str, CompositeRule]):
        self.bb = relax.BlockBuilder()
        self.unsupported: list[_graph.UnsupportedOp] = []
        self.composites = composites
        self._emitted: dict[_graph.HloValue, relax.Expr] = {}
        self._parameters: list[relax.Var] = []
        self._model_parameters: frozenset[_graph.HloValue] = frozenset()

    def emit(self, graph: _graph.HloGraph, parameters: int = 0) -> None:
        """Emits ``graph`` as the function ``main``.

        The first ``parameters`` arguments are the model's, the same in every call.
        """
        self._model_parameters = frozenset(graph.arguments[:parameters])
        self._function(graph, graph.arguments, graph.outputs, unwrap_single=True)

    def emit_body(
        self,
        graph: _graph.HloGraph,
        captured: Sequence[_graph.HloValue],
        outputs: Sequence[_graph.HloValue],
    ) -> tvm.IRModule:
        """Emits the body of a loop or branch in a module of its own.

        Its ``main`` takes arguments and captured values, and returns a tuple.
        """
        # A module of its own: a body's values are no tensors of the outer function.
        body = Emitter(self.composites)
        body._function(graph, [*graph.arguments, *captured], outputs, unwrap_single=False)
        self.unsupported += body.unsupported
        return body.bb.get()

    def is_read_once(self, value: _graph.HloValue) -> bool:
        """Returns whether a value is a model's parameter with one reader, who may rearrange it."""
        return value in self._model_parameters and len(value.users) == 1

    def tensor(self, value: _graph.HloValue) -> relax.Expr:
        """Returns the tensor of a value, and emits its operands as needed."""
        if value not in self._emitted:
            # First of all, since TVM loads no constant without elements either.
            if value.type.size == 0:
                self._emitted[value] = self._empty(value.type)
            elif value.constant is not None:
                self._emitted[value] = self._constant(value)
            else:
                self._emit_region(value)
        return self._emitted[value]

    def te(
        self,
        function: Callable,
        *operands: _graph.HloValue,
        name: str,
        alone: bool = False,
        marks: Mapping[str, Any] | None = None,
    ) -> relax.Var:
        """Emits ``function``, which maps TE tensors of the operands to its result in TE.

        A kernel that is ``alone`` is not fused with its neighbours, nor is one of narrow floats.
        Its ``marks`` are attributes that later passes know it by.
        """
        tensors = [self.tensor(operand) for operand in operands]
        alone = alone or any(operand.type.dtype in HELD_AS_FLOAT32 for operand in operands)
        attributes = {"op_pattern": _OPAQUE} if alone else {}
        attributes |= marks or {}
        return self.bb.emit_te(
            function, *tensors, primfunc_name_hint=name, primfunc_attrs=attributes or None
        )

    def kernel(
        self, body: Callable[..., None], node: _graph.HloNode, *, name: str
    ) -> list[relax.Expr]:
        """Emits an imperative kernel that reads all operands of a node and writes its results.

        Splat constants among the operands become literals.
        """
        results = [(value.type.shape, value.type.dtype) for value in node.results]

        def function(*tensors: te.Tensor) -> object:
            remaining = iter(tensors)
            operands = [
                elementwise.immediate(v) if elementwise.is_immediate(v) else next(remaining)
                for v in node.operands
            ]
            return kernel(body, operands, results, name)

        written = self.te(
            function, *(v for v in node.operands if not elementwise.is_immediate(v)), name=name
        )
        return self.unpack(written, len(results))

    def unpack(self, result: relax.Expr, count: int) -> list[relax.Expr]:
        """Returns the first ``count`` tensors of a kernel's result: a tuple, or the only tensor."""
        if not isinstance(result.ty, relax.TupleType):
            return [result]
        return [self.bb.emit(relax.TupleGetItem(result, i)) for i in range(count)]

    def reshape(self, tensor: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        """Reshapes a tensor, unless that is its shape already."""
        if tuple(int(d) for d in tensor.ty.shape) == tuple(shape):
            return tensor
        return self.bb.emit(relax.op.reshape(tensor, tuple(shape)))

    def _function(
        self,
        graph: _graph.HloGraph,
        arguments: Sequence[_graph.HloValue],
        outputs: Sequence[_graph.HloValue],
        *,
        unwrap_single: bool,
    ) -> None:
        """Emits ``main``; if asked for, its only result is no tuple of one."""
        live = _live_nodes(graph, outputs)
        parameters = [
            relax.Var(f"arg{i}", relax.TensorType(value.type.shape, value.type.dtype))
            for i, value in enumerate(arguments)
        ]
        self._parameters = parameters
        self._emitted.update(zip(arguments, parameters, strict=True))
        with self.bb.function("main", parameters):
            with self.bb.dataflow():
                # Elementwise nodes wait: the operation that needs their tensor decides the loop.
                for node in live:
                    if node.name not in SCALAR_RULES and node.name not in elementwise.INDEXED:
                        self._emit_node(node)
                tensors = [self.tensor(value) for value in outputs]
                unwrapped = unwrap_single and len(tensors) == 1
                result = self.bb.emit_output(tensors[0] if unwrapped else relax.Tuple(tensors))
            self.bb.emit_func_output(result)

    def _emit_node(self, node: _graph.HloNode) -> None:
        try:
            if node.name == "stablehlo.composite":
                results: Sequence[relax.Expr] = self._emit_composite(node)
            else:
                results = RULES[node.name](self, node)
        except _graph.Unsupported as error:
            # Zeros stand in, so that the rules after this one still report what they cannot take.
            self.unsupported.append(_graph.describe(node.op, str(error)))
            results = [
                self.bb.emit(relax.op.zeros(r.type.shape, r.type.dtype)) for r in node.results
            ]
        except _graph.UnsupportedOpError:
            raise
        except Exception as error:
            raise _graph.failure(node.op, error) from error
        self._emitted.update(zip(node.results, results, strict=True))

    def _emit_composite(self, node: _graph.HloNode) -> Sequence[relax.Expr]:
        attributes = _composite_attributes(node.op)
        name = _graph.attribute(node.op, "name")
        operands = [self.tensor(operand) for operand in node.operands]
        results = self.composites[name](self.bb, *operands, **attributes)
        return results if isinstance(results, Sequence) else [results]

    def _empty(self, tensor_type: _graph.TensorType) -> relax.Expr:
        """Emits a tensor of no elements.

        TVM cannot load these as constants, and folds computations without inputs into constants.
        So it is computed "from" an argument. Without arguments it is allocated, never written.
        """
        if not self._parameters:
            shape = relax.ShapeExpr(tensor_type.shape)
            return self.bb.emit(relax.op.builtin.alloc_tensor(shape, tensor_type.dtype, 0))

        def nothing(_: te.Tensor) -> te.Tensor:
            return te.compute(
                tensor_type.shape, lambda *_: tirx.const(0, tensor_type.dtype), name="empty"
            )

        return self.bb.emit_te(nothing, self._parameters[0], primfunc_name_hint="empty")

    def _constant(self, value: _graph.HloValue) -> relax.Expr:
        """Emits a constant; a large one whose elements are all the same is filled at run time."""
        assert value.constant is not None
        # Rank 0 stands for a tensor of equal elements.
        if value.constant.ndim or value.type.size <= MAX_STORED_SPLAT:
            return constant(np.broadcast_to(value.constant, value.type.shape))
        element = store(elementwise.immediate(value), value.type.dtype)
        shape = value.type.shape

        def fill() -> te.Tensor:
            return te.compute(shape, lambda *_: element, name="splat")

        return self.bb.emit_te(fill, primfunc_name_hint="splat")

    def _emit_region(self, root: _graph.HloValue) -> None:
        """Emits the elementwise operations that make a value as one kernel, or as a few."""
        # Small tensors that are broadcast into the region, and constants, come first.
        while True:
            # Emitting a leaf may emit values of this region as well, so it is found anew.
            region = elementwise.region_of(root, self._emitted)
            pending = [leaf for leaf in elementwise.leaves_of(region) if leaf not in self._emitted]
            for leaf in pending:
                self.tensor(leaf)
            if not pending:
                break
        if len(region) > elementwise.MAX_REGION:
            # Cut: the first nodes in topological order become a kernel, opaque to TVM's fusion,
            # which would otherwise put the two parts together again.
            region = region[: elementwise.MAX_REGION]
            inside = {value.node for value in region}
            kept = [v for v in region if v.is_output or any(u not in inside for u in v.users)]
            self._emit_kept(region, kept, alone=True)
            self._emit_region(root)
            return
        region, roots = elementwise.with_siblings(region, self._emitted)
        self._emit_kept(region, elementwise.kept_values(region, roots))

    def _emit_kept(
        self,
        region: Sequence[_graph.HloValue],
        kept: Sequence[_graph.HloValue],
        *,
        alone: bool = False,
    ) -> None:
        """Emits a region as a kernel that writes the values that are kept."""
        leaves = elementwise.leaves_of(region)
        alone = alone or any(value.type.dtype in HELD_AS_FLOAT32 for value in kept)

        def function(*tensors: te.Tensor) -> object:
            return elementwise.compute_region(region, kept, leaves, *tensors)

        try:
            result = self.te(function, *leaves, name=elementwise.region_name(region), alone=alone)
        except _graph.Unsupported as error:
            assert region[-1].node is not None
            raise _graph.UnsupportedOpError(
                [_graph.describe(region[-1].node.op, str(error))]
            ) from error
        except Exception as error:
            assert region[-1].node is not None
            raise _graph.failure(region[-1].node.op, error) from error
        self._emitted.update(zip(kept, self.unpack(result, len(kept)), strict=True))


def constant(array: np.ndarray) -> relax.Expr:
    """Returns an array as a Relax constant, keeping its rank and dtype."""
    data = np.array(array, order="C", copy=True)  # np.ascontiguousarray would drop rank 0
    return relax.const(runtime_tensor(data))


def _live_nodes(graph: _graph.HloGraph, outputs: Sequence[_graph.HloValue]) -> list[_graph.HloNode]:
    """Drops nodes that no output needs, and records every value's users.

    A tensor of no elements needs no node.
    """
    inside = set(graph.nodes)
    live: set[_graph.HloNode] = set()
    stack = [value.node for value in outputs if value.type.size]
    while stack:
        node = stack.pop()
        if node is None or node in live or node not in inside:
            continue
        live.add(node)
        for operand in node.operands:
            # Only live readers count: a dead one must not force a tensor into memory.
            operand.users.append(node)
            if operand.type.size:
                stack.append(operand.node)
    for value in outputs:
        value.is_output = True
    return [node for node in graph.nodes if node in live]


def _composite_attributes(op: ir.Operation) -> dict[str, object]:
    """Reads a composite's attributes: numbers, booleans, strings and arrays of them."""
    if "composite_attributes" not in op.attributes:
        return {}
    named: Any = op.attributes["composite_attributes"]
    return {item.name: _attribute_value(item.attr) for item in named}


def _attribute_value(item: Any) -> object:
    if isinstance(item, ir.DenseElementsAttr):
        return np.array(item)
    if isinstance(item, ir.ArrayAttr):
        return [_attribute_value(part) for part in item]
    if hasattr(item, "value"):
        return item.value
    raise _graph.Unsupported(f"the composite attribute {item} is of an unknown kind")
