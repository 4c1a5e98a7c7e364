"""The parts of a program: layers with a site, a kind, inputs with roles, and a plain evaluation.

Kinds:
    input          a data argument of the whole function (identity)
    linear         one dot product or convolution with a weight operand, its bias included
    matmul         one with two data operands, as in attention
    elementwise    a maximal connected region of pointwise functions of one data input, or one
                   pointwise function of several
    pooling        a windowed reduction, with its division when it is an average
    reduction      a sum, mean, maximum ... over axes
    normalization  a tensor recombined with its own statistics (softmax, layer norm, batch norm in
                   training), or with running ones (batch norm in inference)
    shape          moves elements without changing them; an embedding look-up too
    quantize       a rounding or a physical read-out that another transform put there
    control flow   scan, while, cond, remat: holds programs of its own
    other          anything else

A layer computed from parameters or constants alone has no site: it prepares an operand.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import _primitives as prim
from jaxeff.program.ir._graph import Atom, Node, Value
from jaxeff.program.ir._walk import walk_nodes

KINDS = (
    "input", "linear", "matmul", "elementwise", "pooling", "reduction", "normalization",
    "shape", "quantize", "control flow", "other",
)  # fmt: skip

# Matched by a pattern only when it names the kind: `"*"` means computation, not plumbing.
UNMATCHED_KINDS = frozenset({"shape", "control flow", "quantize", "other"})


@dataclass(eq=False)
class Layer:
    """One layer of a program.

    Attributes:
        kind: One of `KINDS`.
        nodes: The equations, in order.
        inputs: The values it reads, each once.
        outputs: The values others read; the first is the layer's result.
        site: The unique name, e.g. `blocks/1/attn/query`, `relu_1`, or `fc#1` for the second use of
            `fc`; empty for a layer that only prepares an operand.
        base: The name without the occurrence index.
        occurrence: Number of layers with this base before it.
        programs: Sub-programs: a control-flow layer's bodies, or the layers inside a layer that
            another transform has already been applied to.
        mark: The site that transform gave it, or empty.
        auxiliary: Whether it only updates mutable state.
        merges_draws: Whether it is a convolution with a kernel for each draw of its parameters,
            whose draws share an axis with the channels; False where nobody has looked.
    """

    kind: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    site: str = ""
    base: str = ""
    occurrence: int = 0
    programs: tuple["Program", ...] = ()
    mark: str = ""
    auxiliary: bool = False
    merges_draws: bool = False

    @property
    def weights(self) -> tuple[int, ...]:
        """Indices into `inputs` of the parameter-derived ones, biases excluded."""
        biases = self.biases
        return tuple(
            i for i, v in enumerate(self.inputs) if v.is_weight and v.path and i not in biases
        )

    @property
    def biases(self) -> tuple[int, ...]:
        """Indices into `inputs` of a linear layer's biases."""
        if self.kind != "linear" or self.op is None:
            return ()
        # What the product itself reads, even through reshapes, is a weight; a parameter
        # that enters after it is a bias.
        operands = _ancestors(self.nodes, self.op)
        return tuple(
            i for i, v in enumerate(self.inputs) if v.is_weight and v.path and v not in operands
        )

    @property
    def data(self) -> tuple[int, ...]:
        """Indices into `inputs` of the data-derived ones."""
        return tuple(i for i, v in enumerate(self.inputs) if v.is_data)

    @property
    def op(self) -> Node | None:
        """The dot product or convolution of a linear or matmul layer."""
        # A product of two weights (a low-rank factorization) may precede that with the
        # data.
        for node in self.nodes:
            if node.primitive in prim.LINEAR and any(v.is_data for v in node.values):
                return node
        return next((n for n in self.nodes if n.primitive in prim.LINEAR), None)

    @property
    def head(self) -> Node:
        """The first node that does more than prepare a constant."""
        return next((n for n in self.nodes if any(v.role for v in n.outputs)), self.nodes[0])

    @property
    def is_matchable(self) -> bool:
        """Whether a pattern without a kind may select it: it computes real numbers."""
        if not self.site or not jnp.issubdtype(self.outputs[0].aval.dtype, jnp.floating):
            return False
        look_up = self.kind == "shape" and bool(self.weights)
        return look_up or self.kind not in UNMATCHED_KINDS

    def fn(self, *values: Any) -> tuple[Any, ...]:
        """Evaluates the layer as the traced function would, on arrays in the order of `inputs`."""
        return run_nodes(self.nodes, self.inputs, values, self.outputs)

    def __repr__(self) -> str:
        """Returns a line for people: site, kind and output types."""
        types = ", ".join(v.aval.str_short() for v in self.outputs)
        return f"{self.site or '(operand)'}: {self.kind} -> {types}"


@dataclass(eq=False)
class Program:
    """A function as an ordered list of layers.

    Attributes:
        inputs: One value per flattened argument.
        constants: Closed-over values.
        layers: In order of execution.
        outputs: One value or literal per flattened result.
        in_tree: Structure of `(params, *args)`.
        out_tree: Structure of the result.
    """

    inputs: tuple[Value, ...]
    constants: dict[Value, Any]
    layers: tuple[Layer, ...]
    outputs: tuple[Atom, ...]
    in_tree: Any = None
    out_tree: Any = None

    def walk(self) -> Iterator[Layer]:
        """Yields every layer, those of sub-programs too; a control-flow layer before its body."""
        for layer in self.layers:
            yield layer
            if layer.kind == "control flow":
                for program in layer.programs:
                    yield from program.walk()

    @property
    def sites(self) -> tuple[Layer, ...]:
        """Every layer that has a name."""
        return tuple(layer for layer in self.walk() if layer.site)


def run_nodes(
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    values: Sequence[Any],
    outputs: Sequence[Atom],
    bind: Callable[..., list[Any]] = _compat.bind,
) -> tuple[Any, ...]:
    """Evaluates nodes on arrays; `bind(eqn, *values)` evaluates one equation."""
    known = dict(zip(inputs, values, strict=True))
    rule = lambda eqn, operands: bind(eqn, *operands)  # noqa: E731
    return tuple(walk_nodes(nodes, known, outputs, rule))


def _ancestors(nodes: Sequence[Node], target: Node) -> set[Value]:
    needed = set(target.values)
    for node in reversed(nodes):
        if any(v in needed for v in node.outputs):
            needed.update(node.values)
    return needed
