"""Moments of a region of functions of one tensor, integrated as a whole.

`x * sigmoid(x)` primitive by primitive would treat its factors as independent and give a mean of 0
where it is 0.21. So a region with one random tensor is evaluated as one function:

1. what doesn't depend on the tensor is evaluated first (it may be random: a scale, a slope);
2. a region with reductions is read by `_statistics` (softmax, layer norm, ...);
3. a pointwise region is stripped of affine steps at both ends, exact one by one, and its core is a
   primitive with a closed form, a piecewise polynomial (`_polynomials`), or integrated.

Sharp edges
- A core with one further random operand (a random PReLU slope) is integrated over both; with more
  it is an error.
- Rounding and remainders have too many jumps for quadrature and are an error; quantization that
  `jaxeff.quantized` put there is known.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its `special` is loaded when first used, not at import

from jaxeff.core import primitives as p
from jaxeff.core import split_p
from jaxeff.moment_propagation import _polynomials as polynomials
from jaxeff.moment_propagation import _statistics as statistics
from jaxeff.moment_propagation import _values, dependence
from jaxeff.moment_propagation._linear_patterns import by_views
from jaxeff.moment_propagation._propagation import Environment, propagate, step
from jaxeff.moment_propagation.rules import (
    TABLE,
    Rule,
    gauss_legendre,
    gauss_pair,
    gelu,
    map_linear,
    piecewise,
    relu,
    sigmoid,
    silu,
    softplus,
    tanh_gelu,
)
from jaxeff.program import Layer
from jaxeff.program.ir import Node, Value, form_of, making, run_nodes
from jaxeff.program.reading import Constant, reduces, symbolic


def masked_alike(nodes: Sequence[Node], root: Value, env: Environment) -> list[Node]:
    """Finds the masks that change nothing once the entries they take away are -inf.

    A mask may leave some entries out of statistics, as `jax.nn.logsumexp(x, where=mask)` does. The
    maximum is taken of where(mask, x, -inf), the sum of where(mask, exp(x - max), 0): the second is
    the exponential of the first, less the maximum. So where everything that is made of x is masked
    alike, x is where(mask, x, -inf) from the start, and masks change nothing any more.

    `nodes` are made of the tensor `root`, in order. Returns the selections, the first one that of
    the tensor itself; none where something that isn't masked alike reaches a result or is combined
    along an axis.
    """
    made_by = {v: n for n in env.layer.nodes for v in n.outputs}
    bare, masks = {root}, list[Node]()
    for node in nodes:
        if _masks(node, root, env, made_by) and (not masks or _same(node, masks[0], made_by)):
            masks.append(node)
        elif not bare.isdisjoint(node.values):
            if not dependence.is_pointwise(node.eqn):
                return []
            bare.update(node.outputs)
    covers_all = bool(masks) and root in masks[0].inputs and bare.isdisjoint(env.layer.outputs)
    return masks if covers_all else []


def _masks(node: Node, root: Value, env: Environment, made_by: dict[Value, Node]) -> bool:
    """Returns whether an equation leaves entries of the tensor, or exponentials, by a mask."""
    if node.primitive is not p.select_n_p or len(node.inputs) != 3:
        return False
    mask, other, kept = node.inputs
    if not isinstance(mask, Value) or not isinstance(kept, Value) or env.sources(mask):
        return False
    if kept is root:
        return env.number(other) == -math.inf
    maker = made_by.get(kept)
    return maker is not None and maker.primitive is p.exp_p and env.number(other) == 0


def _same(one: Node, other: Node, made_by: dict[Value, Node]) -> bool:
    """Returns whether two selections have one mask, or masks that are broadcast alike."""
    a, b = one.inputs[0], other.inputs[0]
    if a is b:
        return True
    first, second = made_by.get(a), made_by.get(b)
    if first is None or second is None or not first.signature.repeated:
        return False
    alike = second.primitive is first.primitive and first.params == second.params
    return alike and first.inputs[0] is second.inputs[0]


@dataclass
class Deferred:
    """The equations that wait.

    Equation by equation `where(x > 0, x, a * x)` would choose by a decision that is random, and
    `max(softplus(x), b)` take a softplus as Gaussian. So pointwise equations that follow from one
    random value alone wait until one that isn't (a sum, a product with another random value) reads
    them, and are integrated over that value then.

    Attributes:
        env: Environment that values are read from and written to.
        integrate: Integrates equations over a random value and writes one result.
        root_of: For each value that waits, or has waited, the random value it is a function of.
        nodes: The equations that make them, in order.
    """

    env: Environment
    integrate: Callable[[list[Node], Value, Value], None]
    root_of: dict[Value, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def take(self, node: Node) -> None:
        """Evaluates an equation, or defers it."""
        if self.wait(node):
            return
        # The equation is no function of one random value alone: its operands are needed as moments.
        for value in node.values:
            self.settle(value)
        step(node, self.env)

    def wait(self, node: Node) -> bool:
        """Defers an equation that is a pointwise function of one random value."""
        values = self.env.values
        # A rule of the user's own replaces one equation, so that one can't be part of an integral.
        if not dependence.is_pointwise(node.eqn) or node.primitive in self.env.rules:
            return False
        others = [v for v in node.values if v not in self.root_of]
        if any(v not in values or isinstance(values[v], _values.AtMean) for v in others):
            return False
        # An integral over two random values would cost the square: they are combined as moments.
        roots = {self.root_of[v] for v in node.values if v in self.root_of}
        roots.update(v for v in others if _values.is_random(values[v]))
        if len(roots) != 1:
            return False
        self.root_of.update(dict.fromkeys(node.outputs, *roots))
        self.nodes.append(node)
        return True

    def settle(self, value: Value) -> None:
        """Integrates the deferred equations that make a value, if there are any."""
        if value not in self.root_of or value in self.env.values:
            return
        # Only the equations that this value follows from: others that wait may never be read.
        self.integrate(making(self.nodes, [value]), self.root_of[value], value)


def split_slices(layer: Layer, values: Sequence[Any]) -> tuple[Layer, list[Any]]:
    """Replaces disjoint slices of a layer's random inputs by separate inputs.

    The gates of a recurrent cell are slices of one product: as entries of one array they seem to be
    mixed wherever two gates meet, as separate arrays they are independent. Returns a layer without
    the equations that slice, and its inputs; both as given if there are none.
    """
    # LSTM gates are disjoint slices of one product: separate, they are independent.
    env = Environment(layer, {}, values=dict(zip(layer.inputs, values, strict=True)))
    cuts: list[Node] = []
    for value in layer.inputs:
        readers = [n for n in layer.nodes if value in n.values]
        # A value that is also a result, or read as a whole, must stay one array.
        if (
            _values.is_random(env.values[value])
            and value not in layer.outputs
            and _are_apart(readers)
        ):
            cuts += readers
    # A layer that does nothing but slice would have no equations left.
    if not cuts or len(cuts) == len(layer.nodes):
        return layer, list(values)
    propagate(cuts, env)
    nodes = tuple(n for n in layer.nodes if n not in cuts)
    read = {v for n in nodes for v in n.values}
    parts = [v for n in cuts for v in n.outputs]
    inputs = tuple(v for v in (*layer.inputs, *parts) if v in read or v in layer.outputs)
    return replace(layer, nodes=nodes, inputs=inputs), [env.values[v] for v in inputs]


def _are_apart(readers: Sequence[Node]) -> bool:
    """Returns whether equations take parts of their operand that don't overlap."""
    if len(readers) == 1:
        return readers[0].primitive is split_p
    if len(readers) < 2 or any(n.primitive is not p.slice_p for n in readers):
        return False
    boxes = [
        [*zip(n.params["start_indices"], n.params["limit_indices"], strict=True)] for n in readers
    ]
    # Boxes are disjoint if they are along one axis at least. Strides are ignored: a box then covers
    # more than the slice reads, which errs on the safe side.
    return all(
        any(high <= other_low or other_high <= low
            for (low, high), (other_low, other_high) in zip(one, other, strict=True))
        for i, one in enumerate(boxes)
        for other in boxes[i + 1 :]
    )  # fmt: skip


_MAX_KINKS = 4


def region(
    layer: Layer, values: Sequence[Any], rules: Mapping[Any, Rule], note: dependence.Note
) -> list[Any]:
    """Computes the moments of a layer as one function of its random inputs.

    Random inputs are taken as independent. `note` is called where dependence inside the layer has
    to be assumed away or is approximated.
    """
    # First as if nothing were dependent: closed forms and statistics are exact and cheapest, and
    # refuse with an error where dependent entries meet. Then exact treatments of dependence; and
    # only if none applies, independence, which is noted.
    layer, values = split_slices(layer, values)

    def independent(part: Layer, known: Mapping[Value, Any]) -> list[Any] | None:
        try:
            return _integrated(part, [known[v] for v in part.inputs], rules, note)
        except _values.DependenceError:
            return None

    results = independent(layer, dict(zip(layer.inputs, values, strict=True)))
    if results is not None:
        return results
    operands = {
        v: _values.to_variance(x) if _values.is_random(x) else x
        for v, x in zip(layer.inputs, values, strict=True)
    }
    random = [v for v in layer.inputs if _values.is_random(operands[v])]
    if not any(n.primitive in rules for n in layer.nodes):
        # Views first: where they apply their cost is a few times that of the function, while the
        # expansion differentiates by every mixed entry.
        results = by_views(layer, random, operands, independent)
        if results is not None:
            return results
        results = dependence.second_order(layer, random, operands)
        if results is not None:
            # Exact for polynomials of degree two (Isserlis), an approximation for all else.
            if dependence.degree(layer, random) > 2:
                reason = "dependent entries are combined, to second order about their means,"
                eqn = layer.nodes[-1].eqn
                note(dependence.Assumption.at(layer, eqn, reason, random, adds_up=False))
            return results
    return _integrated(layer, values, rules, note, note)


def _integrated(
    layer: Layer,
    values: Sequence[Any],
    rules: Mapping[Any, Rule],
    note: dependence.Note,
    assume: dependence.Note | None = None,
) -> list[Any]:
    """Integrates by statistics, closed forms and quadrature, else equation by equation.

    What is approximated is noted only if there is a result.
    """
    env = Environment.of(layer, values, rules, assume)
    root = _root(layer, env)
    if root is None:
        _apart(layer.nodes, layer.outputs, env)
    else:
        # What the root doesn't reach comes first: scales and slopes are then known values, random
        # or not, when the function of the root is read.
        inside = _dependent(layer.nodes, root)
        propagate([n for n in layer.nodes if n not in inside], env)
        nodes = [n for n in layer.nodes if n in inside]
        if any(reduces(n) for n in nodes):
            _with_statistics(nodes, root, env)
        else:
            _pointwise(nodes, root, layer.outputs, env)
    results = [env.read(v) for v in layer.outputs]
    for one in env.approximated:
        note(one)
    return results


def _root(layer: Layer, env: Environment) -> Value | None:
    """Returns the random input that the layer is a function of; None if several could be."""
    random = [v for v in layer.inputs if _values.is_random(env.values[v])]
    # Random data beside random parameters (a normalization's scale): a function of the data.
    data = [v for v in random if v.is_data]
    candidates = data or random
    return candidates[0] if len(candidates) == 1 else None


def _dependent(nodes: Sequence[Node], root: Value) -> set[Node]:
    reached, dependents = {root}, set()
    for node in nodes:
        if any(v in reached for v in node.values):
            reached.update(node.outputs)
            dependents.add(node)
    return dependents


def _with_statistics(nodes: Sequence[Node], root: Value, env: Environment) -> None:
    """Follows the tensor's statistics symbolically until they make a known function."""
    masks = masked_alike(nodes, root, env)
    if masks:
        step(masks[0], env)
        env.values[root] = env.values.pop(masks[0].outputs[0])
    tensor = env.values[root]
    deferred = _deferred(env)
    # Invariant: a value is in `symbols` if it is a known statistic of the root, in `env.values`
    # once it has moments, and it may be in both: a statistic is settled only where something other
    # than a statistic reads it, because its moments alone lose what it shares with the root.
    symbols: dict[Any, statistics.Statistic] = {root: statistics.tensor(tensor)}

    def settle(atom: Any, node: Node) -> None:
        """Turns a symbol into its moments."""
        if isinstance(atom, Value) and atom in symbols and atom not in env.values:
            gaussian = statistics.moments(symbols[atom], tensor, env.rules)
            if gaussian is not None:
                env.values[atom] = gaussian
                reason = statistics.approximation(symbols[atom], tensor)
                if reason is not None:
                    env.approximated.append(
                        dependence.Assumption.at(env.layer, node.eqn, reason, [root], adds_up=False)
                    )

    for node in nodes:
        if node in masks and node.inputs[2] in symbols:
            symbols[node.outputs[0]] = symbols[node.inputs[2]]
            continue
        others = [a for a in node.values if a not in symbols]
        settled = any(a in deferred.root_of or root in env.sources(a) for a in others)
        if len(others) < len(node.values) and not settled and len(node.outputs) == 1:
            operands = [
                symbols[a] if isinstance(a, Value) and a in symbols else env.read(a)
                for a in node.inputs
            ]
            numbers = [env.number(a) for a in node.inputs]
            symbol = statistics.read(node, operands, numbers)
            if symbol is not None:
                symbols[node.outputs[0]] = symbol
                deferred.wait(node)
                continue
        if deferred.wait(node):
            continue
        for atom in node.inputs:
            settle(atom, node)
        # An intermediate such as "exp of shifted" has no moments of its own: only the whole has.
        unknown = [a for a in node.values if a in symbols and a not in env.values]
        if any(a not in deferred.root_of for a in unknown):
            reason = "uses statistics of a random tensor in an unknown way"
            raise _values.no_rule(node, env.layer.site, reason, _values.DependenceError)
        deferred.take(node)
    for value in env.layer.outputs:
        settle(value, nodes[-1])
        deferred.settle(value)


def _apart(nodes: Sequence[Node], outputs: Sequence[Value], env: Environment) -> None:
    """Evaluates equations one by one, but integrates functions of one random value whole."""
    deferred = _deferred(env)
    for node in nodes:
        deferred.take(node)
    for value in outputs:
        deferred.settle(value)


def _deferred(env: Environment) -> Deferred:
    return Deferred(env, lambda nodes, root, value: _pointwise(nodes, root, [value], env))


def _pointwise(
    nodes: Sequence[Node], root: Value, outputs: Sequence[Value], env: Environment
) -> None:
    if any(n.primitive in env.rules for n in nodes):
        propagate(nodes, env)
        return
    nodes = list(nodes)
    # An affine step is exact on mean and variance, so it is taken off at both ends. What is left is
    # more often a primitive or a polynomial that has a closed form, and quadrature sees entries at
    # their own scale.
    # So is a root: its rule knows that what it is taken of is never negative, as a Gaussian is.
    while nodes and (
        _is_affine(nodes[0], root, nodes, outputs, env) or _is_root(nodes, root, outputs)
    ):
        node = nodes.pop(0)
        step(node, env)
        (root,) = node.outputs
    tail: list[Node] = []
    end = outputs[0]
    while len(outputs) == 1 and nodes:
        last = nodes[-1]
        before = {v for n in nodes[:-1] for v in n.outputs}
        inner = [v for v in last.values if v is root or v in before]
        if end not in last.outputs or len(inner) != 1:
            break
        if not _is_affine(last, inner[0], nodes, (), env):
            break
        tail.insert(0, nodes.pop())
        (end,) = inner
    if nodes:
        _core(nodes, root, [end] if tail else list(outputs), env)
    propagate(tail, env)


def _is_affine(
    node: Node, variable: Value, nodes: Sequence[Node], outputs: Sequence[Value], env: Environment
) -> bool:
    """Returns whether `node` alone reads `variable`, as an affine function of it."""
    readers = [n for n in nodes if variable in n.values]
    if readers != [node] or variable in outputs:
        return False
    if node.primitive is p.select_n_p:  # of a mask that is none of the variable's making
        return node.inputs.count(variable) == 1 and node.inputs[0] is not variable
    if node.primitive not in dependence.AFFINE:
        return False
    if sum(a is variable for a in node.inputs) != 1:
        return False
    floating = jnp.issubdtype(node.outputs[0].aval.dtype, jnp.floating)
    if node.primitive is p.div_p:
        return floating and node.inputs[0] is variable
    return floating


def _is_root(nodes: Sequence[Node], variable: Value, outputs: Sequence[Value]) -> bool:
    """Returns whether the first of several equations alone reads `variable`, as its square root."""
    readers = [n for n in nodes if variable in n.values]
    alone = readers == [nodes[0]] and variable not in outputs
    return alone and len(nodes) > 1 and nodes[0].primitive is p.sqrt_p


def _core(nodes: list[Node], root: Value, outputs: Sequence[Value], env: Environment) -> None:
    """Integrates a pointwise function of the root."""
    x = env.values[root]
    produced = {v for n in nodes for v in n.outputs}
    others = list(dict.fromkeys(v for n in nodes for v in n.values if v not in produced))
    others.remove(root)
    # One more random operand makes a double integral. A second would make the cost cubic, and
    # operands that share a source with the root aren't independent of it.
    random = [v for v in others if _values.is_random(env.values[v])]
    shared = any(env.sources(v) & env.sources(root) for v in random)
    if shared or len(random) > 1 or not all(dependence.is_pointwise(n.eqn) for n in nodes):
        _apart(nodes, outputs, env)
        return
    fixed = [v for v in others if v not in random]
    values = [env.values[v] for v in fixed]
    kinks: set[float] = set()

    if not random:
        row = TABLE.get(nodes[0].primitive) if len(nodes) == 1 else None
        if row is not None and row.function is not None:
            env.write(nodes[0].outputs, [row.function(x)])
            return
        # 1/x and powers have no moments near zero: their rules leave that part out (`arithmetic`).
        if len(nodes) == 1 and _has_pole(nodes[0], root):
            step(nodes[0], env)
            return
        # Exact where the function is a piecewise polynomial, and free of the error of quadrature at
        # kinks and jumps.
        moments, kinks = _closed_form(nodes, root, outputs, env)
        if moments is not None:
            env.write(outputs, moments)
            return
        known = _known_activation(nodes, root, outputs, env)
        if known is not None:
            rule, _, inner, factor, offset = known
            if inner != 1:
                x = _values.Gaussian(inner * x.mean, inner**2 * _values.to_variance(x).var)
            of_function: Any = env.rules.get(rule, rule)
            result = of_function(x)
            mean = factor * result.mean + offset
            env.write(outputs, [_values.Gaussian(mean, factor**2 * result.var)])
            return
    limited = dependence.is_limited(nodes)
    # Each kink is one more piece of 20 nodes. Without any, or with too many, the line is split at
    # zero, where activations change fastest.
    points = tuple(sorted(kinks)) if 0 < len(kinks) <= _MAX_KINKS else (0.0,)

    y = None
    if random:
        y = map_linear(lambda a: jnp.broadcast_to(a, x.shape), env.values[random[0]])
    fn = _Function(tuple(nodes), (root, *random, *fixed), tuple(outputs))
    results = _integral(fn, points, limited, _values.to_variance(x), y, values)
    env.write(outputs, [r if _values.is_random(r) else _values.AtMean(r) for r in results])


@dataclass(frozen=True, eq=False)
class _Function:
    """Equations as a function of values; the same equations of other layers are equal to it."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        return run_nodes(self.nodes, self.inputs, values, self.outputs)

    def __hash__(self) -> int:
        return hash(self._form)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and self._form == other._form

    @functools.cached_property
    def _form(self) -> Any:
        form = form_of(self.inputs, self.nodes, self.outputs)
        return id(self) if form is None else form


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _integral(
    fn: _Function, points: tuple[float, ...], limited: bool, x: Any, y: Any, values: list[Any]
) -> Any:
    """Integrates a function of one random array or two: equal ones of a network are traced once."""
    if y is None:
        return gauss_legendre(lambda at: fn(at, *values), x, points, limited=limited)
    return gauss_pair(lambda *at: fn(*at, *values), x, y, points, limited)


class _Activation(NamedTuple):
    """A function factor * plain(inner * x) + offset, and the rule of the plain one."""

    rule: Callable[[_values.Random], _values.Gaussian]
    plain: Callable[[float], float]
    inner: float
    factor: float
    offset: float

    def has(self, values: Mapping[float, float]) -> bool:
        """Returns whether these are its values."""
        scale = abs(self.factor) * max(abs(self.inner), 1e-3)
        return all(
            abs(self.factor * self.plain(self.inner * x) + self.offset - value)
            < 1e-6 * scale * (1 + abs(x))
            for x, value in values.items()
        )


_PROBES = (-30.0, -5.0, -2.6, -1.3, -0.6, -0.1, 0.0, 0.3, 0.9, 1.0, 1.8, 3.1, 30.0)
"""Where a function is asked which one it is; GELU's two forms differ by up to 5e-4."""


def _known_activation(
    nodes: Sequence[Node], root: Value, outputs: Sequence[Value], env: Environment
) -> _Activation | None:
    """Returns which smooth activation equations are, scaled and moved; None for none.

    However it is written, its values tell: those at a few numbers are compared.
    """
    if len(outputs) != 1 or not any(n.primitive in _SMOOTH for n in nodes):
        return None
    known = {v: env.number(v) for n in nodes for v in n.values if v in env.values and v is not root}
    if None in known.values() or outputs[0].aval.dtype not in (jnp.float32, jnp.float64):
        return None

    function = _Function(tuple(nodes), (root, *known), tuple(outputs))
    return _activation(function, tuple(known.values()))


@functools.lru_cache(64)
def _activation(function: _Function, numbers: tuple[float, ...]) -> _Activation | None:
    """Returns which smooth activation a function is, given numbers for all inputs but the first."""
    values: dict[float, float] = {}
    for probe in _PROBES:
        operands = zip(function.inputs, (probe, *numbers), strict=True)
        constants = {v: Constant(np.asarray(n, v.aval.dtype), n) for v, n in operands}
        with jax.ensure_compile_time_eval():
            (result,) = symbolic.SymbolicReader().nodes(function.nodes, constants, function.outputs)
        number = result.number if isinstance(result, Constant) else None
        if number is None or not math.isfinite(number):
            return None
        values[probe] = number
    return next((form for form in _forms(values) if form.has(values)), None)


def _forms(values: Mapping[float, float]) -> list[_Activation]:
    """Returns what a function may be, by its values at the ends, at 0 and at 1."""
    low, high, middle, one = (values[at] for at in (_PROBES[0], _PROBES[-1], 0.0, 1.0))
    rise = (high - low) / _PROBES[-1]
    if not rise:
        return []
    forms: list[_Activation] = []
    expit, ndtr = scipy.special.expit, scipy.special.ndtr
    # c x S(x) with S(x) + S(-x) = 1; SiLU's is S(1) = 1 / (1 + exp(-b)), to as many digits as
    # float32 tells.
    if slope := _logit(one / rise):
        forms.append(_Activation(silu, lambda x: x * expit(x), slope, rise / slope, 0.0))
    forms.append(_Activation(gelu, lambda x: x * ndtr(x), 1.0, rise, 0.0))
    forms.append(_Activation(tanh_gelu, _plain_tanh_gelu, 1.0, rise, 0.0))
    if slope := _logit((one - low) / (high - low)):
        forms.append(_Activation(sigmoid, expit, slope, high - low, low))
    # Far from zero softplus is zero or its input.
    if middle:
        scale, plain = middle / math.log(2), functools.partial(np.logaddexp, 0)
        forms.append(_Activation(softplus, plain, round(rise / scale, 5), scale, 0.0))
    return forms


_SMOOTH = {p.erf_p, p.erfc_p, p.tanh_p, p.logistic_p, p.exp_p, p.custom_jvp_call_p}


def _logit(share: float) -> float:
    """Returns the number whose sigmoid is a share, to as many digits as float32 tells, or 0."""
    return round(math.log(share / (1 - share)), 5) if 0 < share < 1 else 0.0


def _plain_tanh_gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _closed_form(
    nodes: Sequence[Node], root: Value, outputs: Sequence[Value], env: Environment
) -> tuple[list[Any] | None, set[float]]:
    """Computes the moments of a piecewise polynomial, else None; and the kinks in either case."""
    reader = polynomials.PolynomialReader()
    read = {v for n in nodes for v in n.values if v in env.values}
    symbols = {v: Constant(env.values[v], env.number(v)) for v in read} | {
        root: polynomials.VARIABLE
    }
    read_outputs = reader.nodes(nodes, symbols, outputs)
    x = env.values[root]
    moments = [_moments(symbol, v, x) for symbol, v in zip(read_outputs, outputs, strict=True)]
    return (None if None in moments else moments), reader.kinks


def _moments(symbol: Any, value: Value, x: Any) -> Any:
    if not isinstance(symbol, polynomials.Pieces):
        return None
    # A comparison: discrete, hence taken at the mean.
    if any(isinstance(v, bool) for v in symbol.values):
        mask = jnp.full(x.shape, symbol.values[0])
        for knot, truth in zip(symbol.breaks, symbol.values[1:], strict=True):
            mask = jnp.where(x.mean > knot, truth, mask)
        return _values.AtMean(mask)
    dtype = value.aval.dtype
    # The commonest kinked function has a rule, and an operator, of its own.
    is_relu = symbol == polynomials.Pieces((0.0,), ((0.0,), (0.0, 1.0)))

    def apply(x: _values.Gaussian) -> _values.Gaussian:
        if is_relu:
            return relu(x)
        moments = piecewise(x, symbol.breaks, symbol.values)
        return _values.Gaussian(moments.mean.astype(dtype), moments.var.astype(dtype))

    result = apply(x)
    # Kept with what it is a function of, so that a max pooling can be taken before it.
    if polynomials.is_nondecreasing(symbol):
        return _values.Activated(result.mean, result.var, _values.to_variance(x), apply)
    return result


def _has_pole(node: Node, root: Value) -> bool:
    """Returns whether a function has a pole or a branch at zero, which its rule treats."""
    if node.primitive is p.integer_pow_p:
        return node.eqn.params["y"] < 0
    if node.primitive is p.pow_p:
        return node.inputs[0] is root and node.inputs.count(root) == 1
    return node.primitive is p.div_p
