"""A function's equations in one flat list of nodes, and the layers of a program made of them.

Calls that only structure the source (`jit`, composites, custom derivatives around a site) are read
in place; `scan`, `while`, `cond` and `remat` stay nodes of their own and carry graphs. Every value
has a *role*: whether it depends on data, on parameters, on a PRNG key, or on nothing but
constants. A parameter-derived value holds the leaf that it came from, through any chain of
reshapes, transposes, conversions and fake quantization.

Sharp edges:
    A `custom_jvp` or `custom_vjp` with a site inside is read in place, so its gradient becomes that
    of its primal; without one it stays a single node and keeps its gradient.
    The function inside a `shard_map` (and so a `pmap`) is not read: it stays one layer of kind
    `other` and runs as it is. Transform the function first and shard the result.
    The equations of a backward pass have no name scopes: these would name the forward layers.
    The first argument that is not a PRNG key holds the parameters.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import IntFlag
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from jaxeff.core import STATE_TAG, ClosedJaxpr, JaxprEqn, Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import _primitives as prim
from jaxeff.program.ir._signature import Signature, signature
from jaxeff.program.ir._walk import Scan, While, branch_operands, fixed_point, walk, walk_nodes

SPREAD_TAG = "jaxeff.spread"
DRAWN_TAG = "jaxeff.drawn"
"""Names random numbers that are a part of many: fewer of them are a part of the same ones."""


class Role(IntFlag):
    """The kinds of input that a value depends on: the union of its operands' roles."""

    CONSTANT = 0
    KEY = 1
    PARAM = 2
    STATE = 4
    DATA = 8


@dataclass(eq=False, slots=True)
class Value:
    """One array of the flattened function. Compared by identity.

    Attributes:
        aval: The shape and dtype.
        role: Kinds of arguments that it depends on.
        path: For a value derived from parameters or state, the leaf it mainly came from.
        leaves: All leaves it came from.
        along: For each axis, the axis of the data arguments that it is, or a label of
            `moment_propagation.lineage`; empty where nobody has looked.
        spread: Whether it describes another value's distribution rather than being a signal: the
            variance of a distribution that a transform has put in an array's place, or a statistic
            that only updates state.
    """

    aval: Any
    role: Role = Role.CONSTANT
    path: str = ""
    spread: bool = False
    leaves: frozenset[str] = frozenset()
    along: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.path and not self.leaves:
            self.leaves = frozenset((self.path,))

    @property
    def is_real_signal(self) -> bool:
        """Whether grids and noise are for it: neither describes another value nor is complex."""
        return not (self.spread or jnp.issubdtype(self.aval.dtype, jnp.complexfloating))

    @property
    def is_data(self) -> bool:
        """Whether it depends on an input that is neither parameter, state nor key."""
        return bool(self.role & Role.DATA)

    @property
    def is_weight(self) -> bool:
        """Whether it depends on parameters or state, and not on data."""
        return bool(self.role & (Role.PARAM | Role.STATE)) and not self.is_data


class KnownLiteral(Literal):  # type: ignore[misc]  # JAX declares its class final
    """A literal that may be looked up where values are; equal to itself alone."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # a literal has none


Atom: TypeAlias = Any  # a Value, or a KnownLiteral


@dataclass(eq=False, slots=True)
class Node:
    """One equation with its variables renamed to the flattened function's values.

    Attributes:
        eqn: The equation; its own variables are those of the jaxpr it came from.
        inputs: Values or numbers.
        outputs: Values.
        calls: Names and identities of the calls around it, outermost first.
        scopes: The name scopes around it, outermost first; empty for NNX.
        graphs: The sub-functions of a control-flow node.
    """

    eqn: JaxprEqn
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    calls: tuple[tuple[str, int], ...] = ()
    scopes: tuple[str, ...] = ()
    graphs: tuple["Graph", ...] = ()
    _signature: Signature | None = field(default=None, init=False, repr=False)

    @property
    def signature(self) -> Signature:
        """What the equation does to axes, read once."""
        if self._signature is None:
            self._signature = signature(self.eqn)
        return self._signature

    @property
    def primitive(self) -> Any:
        """The JAX primitive."""
        return self.eqn.primitive

    @property
    def params(self) -> dict[str, Any]:
        """The primitive's parameters."""
        return self.eqn.params

    @property
    def values(self) -> list[Value]:
        """Its inputs without the literals."""
        return [v for v in self.inputs if isinstance(v, Value)]


@dataclass(eq=False, slots=True)
class Graph:
    """A flattened function: `inputs` and `constants` go in, `outputs` come out of `nodes`."""

    inputs: tuple[Value, ...]
    constants: dict[Value, Any]
    nodes: list[Node]
    outputs: tuple[Atom, ...]


@dataclass
class _Flattener:
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Value, Any] = field(default_factory=dict)
    call_count: int = 0

    def read(
        self,
        closed: ClosedJaxpr,
        arguments: Sequence[Atom],
        calls: tuple[tuple[str, int], ...],
        outer: tuple[str, ...],
        backward: bool,
    ) -> list[Atom]:
        def constant(atom: Any, number: Any) -> Atom:
            if isinstance(atom, Literal):
                return KnownLiteral(atom.val, atom.aval)
            value = Value(atom.aval)
            self.constants[value] = number
            return value

        def rule(eqn: Any, inputs: list[Atom]) -> Sequence[Atom]:
            # What a backward pass holds isn't what it was derived from, whatever its scopes say.
            transposed = backward or _compat.is_transposed(eqn)
            names = outer if backward else outer + _compat.scopes(eqn)
            # Calls are numbered: two calls of one function have the same name.
            if _is_inlined(eqn):
                self.call_count += 1
                inner = (*calls, (_compat.call_name(eqn), self.call_count))
                body = _compat.sub_jaxprs(eqn)[0]
                return self.read(body, inputs, inner, names, transposed)
            role, path, leaves = _provenance(inputs)
            if eqn.primitive is prim.NAME and eqn.params["name"].startswith(STATE_TAG):
                # Counters and keys feed random numbers; they are nobody's weights.
                numeric = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
                path = _state_path(eqn.params["name"]) if numeric else ""
                leaves = frozenset((path,)) if path else frozenset()
                role = Role.STATE if numeric else Role.KEY
            spread = _spreads(eqn, inputs)
            outputs = tuple(Value(v.aval, role, path, spread, leaves) for v in eqn.outvars)
            # Sets the outputs' roles too: they follow from the bodies, not from the inputs alone.
            graphs = _sub_graphs(eqn, inputs, outputs, transposed)
            self.nodes.append(Node(eqn, tuple(inputs), outputs, calls, names, graphs))
            return outputs

        return walk(closed, arguments, rule, constant)


def flatten(closed: ClosedJaxpr, inputs: Sequence[Value], backward: bool = False) -> Graph:
    """Reads a jaxpr into a graph whose inputs have the given roles; unused nodes are dropped.

    Args:
        closed: The jaxpr.
        inputs: One value per input.
        backward: Whether it is the body of a transposed call: its name scopes don't count.
    """
    flattener = _Flattener()
    outputs = flattener.read(closed, inputs, (), (), backward)
    # Dead equations would be layers with a site, a cost and a quantizer of their own.
    nodes = _used(flattener.nodes, outputs)
    return Graph(tuple(inputs), flattener.constants, nodes, tuple(outputs))


def has_site(closed: ClosedJaxpr) -> bool:
    """Returns whether a jaxpr holds, at any depth, a product or a pooling."""
    return not (prim.LINEAR | prim.WINDOW.keys()).isdisjoint(_compat.primitives_in(closed))


def _is_inlined(eqn: JaxprEqn) -> bool:
    if eqn.primitive in prim.CALLS:
        return True
    return eqn.primitive in prim.CUSTOM and has_site(_compat.sub_jaxprs(eqn)[0])


def _provenance(inputs: Sequence[Atom]) -> tuple[Role, str, frozenset[str]]:
    """Unites the inputs' roles and leaves; takes the path of the largest one with a path."""
    role, path, size = Role.CONSTANT, "", -1
    leaves: frozenset[str] = frozenset()
    for value in inputs:
        if isinstance(value, Literal):
            continue
        role |= value.role
        leaves = leaves | value.leaves if leaves else value.leaves
        # The largest: in a weight times its scale, the weight gives the name.
        if value.path and value.aval.size > size:
            path, size = value.path, value.aval.size
    return (role, path, leaves) if not role & Role.DATA else (role, "", frozenset())


def _spreads(eqn: JaxprEqn, inputs: Sequence[Atom]) -> bool:
    if eqn.primitive is prim.NAME and eqn.params["name"] == SPREAD_TAG:
        return True
    values = [v for v in inputs if isinstance(v, Value)]
    return bool(values) and all(v.spread for v in values)


def _sub_graphs(
    eqn: JaxprEqn, inputs: Sequence[Atom], outputs: Sequence[Value], backward: bool
) -> tuple[Graph, ...]:
    """Returns the graphs of a control-flow equation; sets its outputs' roles from their bodies."""
    if eqn.primitive not in prim.CONTROL:
        return ()
    bodies = [_compat.as_closed(b) for b in _compat.sub_jaxprs(eqn)]
    sources = [v if isinstance(v, Value) else Value(v.aval) for v in inputs]
    read = branch_operands(eqn, sources)
    if read is not None:
        graphs = [flatten(b, [_copy(v) for v in read], backward) for b in bodies]
    elif eqn.primitive is prim.p.scan_p:
        graphs = [_loop_graph(Scan.of(eqn, sources), backward)]
    else:
        loop = While.of(eqn, sources)
        # The body first: the test reads the carry, whose roles only the body raises.
        body = _loop_graph(loop, backward)
        tested = loop.test_inputs(body.inputs[len(loop.consts) :])
        graphs = [flatten(loop.test, [*map(_copy, tested)], backward), body]
    # A result may come from any branch: it depends on what each of them reads.
    for graph in graphs:
        if len(graph.outputs) == len(outputs):
            for inner, out in zip(graph.outputs, outputs, strict=True):
                out.role |= inner.role if isinstance(inner, Value) else Role.CONSTANT
                if out.is_data:
                    out.path, out.leaves = "", frozenset()
    return tuple(graphs)


def _loop_graph(loop: Scan[Value] | While[Value], backward: bool) -> Graph:
    """Flattens a loop body, raising the carry's roles until they are those it produces."""
    values = [
        Value(var.aval, s.role, s.path, s.spread, s.leaves)
        for var, s in zip(loop.body.jaxpr.invars, loop.inputs(loop.carry), strict=True)
    ]
    # The values themselves, not copies: `flatten` reads the roles that an iteration sets.
    carry = values[len(loop.consts) :][: len(loop.carry)]

    def iterate(roles: Sequence[Role]) -> tuple[list[Role], Graph]:
        for value, role in zip(carry, roles, strict=True):
            value.role = role
        graph = flatten(loop.body, values, backward)
        after, _ = loop.split(graph.outputs)
        return [v.role if isinstance(v, Value) else Role.CONSTANT for v in after], graph

    # Roles only grow and are finitely many: the fixed point is reached in a few passes.
    return fixed_point(iterate, [v.role for v in carry], operator.or_)[1]


def _state_path(tag: str) -> str:
    """Returns the path in a state tag, without Linen's collection name."""
    return tag.removeprefix(STATE_TAG).removeprefix("batch_stats/")


def _copy(value: Value) -> Value:
    return Value(value.aval, value.role, value.path, value.spread, value.leaves)


def _used(nodes: Sequence[Node], outputs: Sequence[Atom]) -> list[Node]:
    needed = {v for v in outputs if isinstance(v, Value)}
    kept: list[Node] = []
    for node in reversed(nodes):
        # An equation with effects (a print, a callback) stays, though nobody reads its results.
        if node.eqn.effects or any(v in needed for v in node.outputs):
            kept.append(node)
            needed.update(node.values)
    return kept[::-1]


KINDS = (
    "input", "linear", "matmul", "elementwise", "pooling", "reduction", "normalization",
    "shape", "quantize", "control flow", "other",
)  # fmt: skip

# Matched by a pattern only when it names the kind: `"*"` means computation, not plumbing.
UNMATCHED_KINDS = frozenset({"shape", "control flow", "quantize", "other"})


@dataclass(eq=False)
class Layer:
    """One layer of a program.

    A layer has a site, inputs with roles, a plain evaluation, and one of these kinds:
        input          a data argument of the whole function (identity)
        linear         one dot product or convolution with a weight operand, its bias included
        matmul         one with two data operands, as in attention
        elementwise    a maximal connected region of pointwise functions of one data input, or one
                       pointwise function of several
        pooling        a windowed reduction, with its division when it is an average
        reduction      a sum, mean, maximum ... over axes
        normalization  a tensor recombined with its own statistics (softmax, layer norm, batch norm
                       in training), or with running ones (batch norm in inference)
        shape          moves elements without changing them; an embedding look-up too
        quantize       a rounding or a physical read-out that another transform put there
        control flow   scan, while, cond, remat: holds programs of its own
        other          anything else

    A layer computed from parameters or constants alone has no site: it prepares an operand.

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
        known: What functions have found out about it (`noted`).
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
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

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
        operands = {v for n in (*making(self.nodes, self.op.inputs), self.op) for v in n.values}
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
        # A product of two weights (a low-rank factorization) may precede that with the data.
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


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of a layer that isn't computed twice: its results are kept with the layer.

    Args:
        function: Function of a layer and of what has a hash.
    """

    @functools.wraps(function)
    def of(layer: Layer, *args: Any) -> Any:
        asked = function, args
        if asked not in layer.known:
            layer.known[asked] = function(layer, *args)
        return layer.known[asked]

    return of


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


def form_of(*parts: Any) -> Any:
    """Returns what is the same for parts of programs that compute the same, or None if unknown.

    Parts are values, equations, layers, and what holds them. Values count by what they are and by
    where they stand, layers without their names. Scopes belong to it: transforms name sites by
    them.
    """
    numbers: dict[Value, int] = {}

    def of(part: Any) -> Any:
        match part:
            case Value():
                if part in numbers:
                    return numbers[part]
                numbers[part] = len(numbers)
                return part.aval, part.role, bool(part.path), part.spread, part.along
            case Literal():
                return part.aval, np.asarray(part.val).tobytes()
            case Node():
                params = tuple(sorted(part.params.items()))
                ends = of(part.inputs), of(part.outputs), of(part.graphs)
                return part.primitive, params, *ends, part.eqn.source_info.name_stack, part.eqn.ctx
            case tuple() | list():
                return tuple(map(of, part))
            case Mapping():
                return tuple((of(key), of(value)) for key, value in part.items())
            case Layer():
                return type(part), *(of(getattr(part, f.name)) for f in fields(part)
                                     if f.name not in _NAMES)  # fmt: skip
        if is_dataclass(part) and not isinstance(part, type):
            return type(part), *(of(getattr(part, f.name)) for f in fields(part))
        return part

    form = of(parts)
    try:
        hash(form)
    except TypeError:  # parameters that may change
        return None
    return form


_NAMES = {"site", "base", "occurrence", "known"}
"""What a layer has of its own."""


def making(nodes: Sequence[Node], values: Iterable[Atom]) -> list[Node]:
    """Returns the equations, of some in order, that values are made by."""
    needed = {v for v in values if isinstance(v, Value)}
    makers: list[Node] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            makers.append(node)
            needed.update(node.values)
    return makers[::-1]
