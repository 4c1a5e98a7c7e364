"""Slopes of results by random inputs: by kernels, through the last hidden state, past a stop.

The derivative of a result by a kernel's entry w_tic is a sum over positions,

    dy / dw_tic = sum_p x[p + t, i] g[p, c],    g = dy / d(convolution's result).

A pass backward for each of K results would take it as K convolutions, each with an image of its own
for a kernel. What taps read is the same for all K, so their g stand side by side in one matrix
product instead, which processors have fast code for.

Where results outnumber the units of the last hidden state, their variances are taken through that.
A language model's logits are y_t = h_t E with a vocabulary larger than the width of h. Their slopes
are those of h_t times E, so the covariance S_t = J_t diag(v) J_t^T of one position's hidden state
gives all of its variances after as many passes backward as h_t has units:

    Var[y_tk] = (E^T S_t E)_kk + sum_i v_ik h_ti^2 + 2 c_tk,

where c is what an embedding that E is tied to adds, sum_w v_w (dy_tk/dh_t)(dh_t/dw) (dy_tk/dw) with
the last derivative at a fixed h.

The delta method follows derivatives, and would call results certain that only a `stop_gradient`
keeps from random inputs, as batch statistics in training. Where a result has another way to
what is random, as behind a straight-through estimator, that way is the one that is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation import shared_kernels
from jaxeff.moment_propagation._values import Gaussian, is_gaussian, is_random, to_variance
from jaxeff.moment_propagation.dependence import follow_lineages, identity
from jaxeff.program import Layer, Program, plain_rule
from jaxeff.program.ir import Axes, Node, Value
from jaxeff.program.ir import primitives as prim

# What may follow a convolution in its layer: a step of its result is one of the layer's.
_ADDING = {p.add_p, p.convert_element_type_p} | prim.MOVES - {p.transpose_p, p.squeeze_p}


@dataclass(frozen=True)
class ConvolvedKernel:
    """A random kernel that one convolution reads, and nobody else.

    Attributes:
        kernel: The random input.
        image: What it is applied to, an input of the layer.
        read: The convolution.
        layouts: The layouts of image and result.
    """

    kernel: Value
    image: Value
    read: shared_kernels.PositionContraction
    layouts: tuple[Axes, Axes]

    def windows(self, layer: Layer, operands: Sequence[Any]) -> shared_kernels.Windows:
        """Reads what each tap reads at each position, of the mean image."""
        image = operands[layer.inputs.index(self.image)]
        mean = to_variance(image).mean if is_random(image) else image
        return self.read.taps.windows(shared_kernels.canonical(mean, self.layouts[0]))

    def slopes(self, windows: shared_kernels.Windows, steps: Array) -> Array:
        """Computes slopes by the kernel, `[taps, in, groups, out of a group]`.

        `windows` are those that `windows` returns; `steps` are slopes by the convolution's result.
        """
        gate = shared_kernels.canonical(steps, self.layouts[1])
        # Means over positions times their number; examples that share the kernel add up.
        return self.read.taps.averages(windows, gate).sum(0) * math.prod(gate.shape[1:-1])

    def variances(self, kernel: Gaussian) -> Array:
        """Brings the kernel's variances to the form of its slopes."""
        return self.read.by_group(self.read.kernel(kernel.var))


def _convolved_kernels(
    program: Program, random: Collection[Value], owned: Collection[Layer]
) -> Mapping[Layer, ConvolvedKernel]:
    """Finds the convolutions whose random kernel no other layer reads.

    `random` are inputs whose slopes are asked for; `owned` are layers that are taken in another
    way.
    """
    readers: dict[Value, int] = {}
    for layer in program.layers:
        for value in layer.inputs:
            readers[value] = readers.get(value, 0) + 1
    convolutions = {}
    for layer in program.layers:
        one = None if layer in owned else _convolved(layer)
        if one is None or one.kernel not in random or one.kernel in program.outputs:
            continue
        if readers[one.kernel] == 1 and layer.inputs.count(one.kernel) == 1:
            convolutions[layer] = one
    return convolutions


def _convolved(layer: Layer) -> ConvolvedKernel | None:
    """Reads a layer; None where it is more than a convolution and what is added to it."""
    if layer.kind != "linear" or layer.mark or len(layer.outputs) != 1:
        return None
    _, op, after = shared_kernels.split_at_contraction(layer)
    read = None if op is None else shared_kernels.PositionContraction.of(op)
    if op is None or read is None or read.layouts is None:
        return None
    image, kernel = op.inputs
    if image is kernel or not all(any(v is one for one in layer.inputs) for v in op.inputs):
        return None
    # A kernel that is added to the result as well would have a second path.
    inside = [v for node in layer.nodes if node is not op for v in node.values]
    if kernel in inside or any(node.primitive not in _ADDING for node in after):
        return None
    if op.outputs[0].aval.shape != layer.outputs[0].aval.shape:
        return None
    return ConvolvedKernel(kernel, image, read, read.layouts)


def _owned_layers(program: Program, random: Sequence[Value]) -> dict[Layer, list[Value]]:
    """Finds linear layers with random inputs whose noise is new in each entry of their result.

    No other layer reads such an input, and no two entries of the result share one of its entries (a
    kernel of a dense layer, for one example). It adds to a result's variance its own part of the
    layer's variance times the squared slope after the layer: no derivative is taken by the entries
    of the kernel.
    """
    readers: dict[Value, list[Layer]] = {}
    for layer in program.layers:
        for value in layer.inputs:
            readers.setdefault(value, []).append(layer)
    owned: dict[Layer, list[Value]] = {}
    for value in random:
        if len(readers.get(value, ())) != 1 or value in program.outputs:
            continue
        (layer,) = readers[value]
        if layer.kind != "linear" or len(layer.outputs) != 1 or layer.inputs.count(value) != 1:
            continue
        (result,) = layer.outputs
        lineages, meetings = follow_lineages(
            layer.nodes, {value: {value: identity(value.aval.shape)}}
        )
        labels = lineages.get(result, {}).get(value, ())
        sizes = result.aval.shape
        # Each entry of the result depends on entries of its own, and the layer combines no
        # dependent ones.
        fresh = all(isinstance(x, int) or n == 1 for x, n in zip(labels, sizes, strict=True))
        if labels and fresh and not meetings:
            owned.setdefault(layer, []).append(value)
    return owned


@dataclass(frozen=True)
class RandomEntries:
    """The random inputs of a program, by how the slopes of results by them are found.

    Attributes:
        known: Values of all inputs.
        owned: Layers whose kernel's noise is new in each entry of one result, with these inputs: a
            step added to that result stands for all of their noise.
        convolved: Layers whose kernel's slopes are made of those by their result.
        followed: The others, which are differentiated.
    """

    known: Mapping[Value, Any]
    owned: Mapping[Layer, Sequence[Value]]
    convolved: Mapping[Layer, ConvolvedKernel]
    followed: Sequence[Value]

    @classmethod
    def of(cls, program: Program, values: Sequence[Any]) -> RandomEntries:
        """Divides a program's inputs."""
        known = dict(zip(program.inputs, values, strict=True))
        random = [v for v in program.inputs if is_gaussian(known[v])]
        owned = _owned_layers(program, random)
        apart = {v for inputs in owned.values() for v in inputs}
        rest = [v for v in random if v not in apart]
        convolved = _convolved_kernels(program, rest, owned)
        kernels = {one.kernel for one in convolved.values()}
        return cls(known, owned, convolved, [v for v in rest if v not in kernels])

    @property
    def kernels(self) -> list[Value]:
        """The kernels of convolutions."""
        return [one.kernel for one in self.convolved.values()]

    @property
    def apart(self) -> set[Value]:
        """The inputs that steps of owned layers stand for."""
        return {v for inputs in self.owned.values() for v in inputs}


@dataclass(frozen=True)
class OutputLayer:
    """A linear layer that makes the result, position by position, of fewer hidden units.

    Attributes:
        layer: The layer.
        hidden: The hidden state it reads, of the result's shape but for the last axis.
        arranging: Layers that rearrange its other operands, in order.
        sources: Random inputs among these operands, before they are rearranged.
        tied: Sources that other layers read, too.
    """

    layer: Layer
    hidden: Value
    arranging: tuple[Layer, ...]
    sources: tuple[Value, ...]
    tied: tuple[Value, ...]

    @property
    def units(self) -> int:
        """The size of a position's hidden state."""
        return self.hidden.aval.shape[-1]

    def result(self, hidden: Array, values: Mapping[Value, Any]) -> Array:
        """Evaluates the layer, given its hidden state and all other values it is made of."""
        env = {**values, self.hidden: hidden}
        for layer in (*self.arranging, self.layer):
            results = plain_rule(layer, None, *(env[v] for v in layer.inputs))
            env.update(zip(layer.outputs, results, strict=True))
        return env[self.layer.outputs[0]]

    def operands(self, known: Mapping[Value, Any], hidden: Array) -> list[Any]:
        """Returns the layer's operands, random ones as `Gaussian`s, and its hidden state."""
        env = {**known, self.hidden: hidden}
        for layer in self.arranging:
            (operand,) = (env[v] for v in layer.inputs)
            # Entries only change places, and so do their variances.
            env[layer.outputs[0]] = jax.tree.map(lambda a: layer.fn(a)[0], operand)  # noqa: B023
        return [env[v] for v in self.layer.inputs]


def last_layer(program: Program, random: Sequence[Value]) -> OutputLayer | None:
    """Finds a linear layer that makes the one result of fewer hidden units; None if there is none.

    Args:
        program: The program.
        random: Inputs that are random.
    """
    makers = {v: layer for layer in program.layers for v in layer.outputs}
    result = program.outputs[0]
    if len(program.outputs) != 1 or not isinstance(result, Value) or result not in makers:
        return None
    layer = makers[result]
    data = [v for v in layer.inputs if v.is_data]
    if layer.kind != "linear" or len(layer.outputs) != 1 or len(data) != 1:
        return None
    (hidden,) = data
    shape, wide = hidden.aval.shape, result.aval.shape
    if hidden not in makers or shape[:-1] != wide[:-1] or shape[-1] >= wide[-1]:
        return None
    # Every position of the result is made of the same position of the hidden state.
    lineages, _ = follow_lineages(layer.nodes, {hidden: {hidden: identity(shape)}})
    labels = lineages.get(result, {}).get(hidden, ())
    if tuple(labels[:-1]) != identity(shape)[:-1]:
        return None
    arranging: list[Layer] = []
    sources: list[Value] = []
    for operand in layer.inputs:
        value = operand
        while value in makers and value is not hidden:
            maker = makers[value]
            rearranges = all(node.primitive in prim.MOVES for node in maker.nodes)
            if len(maker.inputs) != 1 or len(maker.outputs) != 1 or not rearranges:
                return None
            arranging.insert(0, maker)
            value = maker.inputs[0]
        if value in random:
            sources.append(value)
        elif value not in program.inputs and value not in program.constants and value is not hidden:
            return None
    its_layers = {layer, *arranging}
    tied = tuple(
        v
        for v in sources
        if any(v in other.inputs for other in program.layers if other not in its_layers)
    )
    if len(set(sources)) != len(sources) or len(set(arranging)) != len(arranging):
        return None
    return OutputLayer(layer, hidden, tuple(arranging), tuple(sources), tied)


def variance_through(
    last: OutputLayer,
    slopes: Callable[[Array], tuple[Array, Sequence[Array]]],
    hidden: Array,
    known: Mapping[Value, Any],
    own_variance: Callable[..., Array],
) -> Array:
    """Computes the variances of the last layer's result.

    `slopes`, of a position, returns the covariance of its hidden state, `[units, units]`, and the
    slopes of its units by each tied source, `[units, ...]`. `hidden` is that state at the means;
    `own_variance` computes the variance of a linear layer's result from its operands.
    """
    fixed = {v: x.mean if isinstance(x, Gaussian) else x for v, x in known.items()}
    width = last.units
    shape = last.layer.outputs[0].aval.shape
    unit = jnp.eye(width, dtype=hidden.dtype)

    def along(tangent: Array) -> Array:
        return jax.jvp(lambda h: last.result(h, fixed), (hidden,), (tangent,))[1]

    def by_sources(steps: Sequence[Array]) -> Array:
        def moved(at: Sequence[Array]) -> Array:
            return last.result(hidden, {**fixed, **dict(zip(last.tied, at, strict=True))})

        start = [fixed[v] for v in last.tied]
        return jax.jvp(moved, (start,), (list(steps),))[1]

    def position(number: Array) -> tuple[Array, Array]:
        covariance, by_tied = slopes(number)

        def cross(total: Array, i: Array) -> tuple[Array, None]:
            steps = [known[v].var * s[i] for v, s in zip(last.tied, by_tied, strict=True)]
            both = along(jnp.broadcast_to(unit[i], hidden.shape)) * by_sources(steps)
            return total + both.reshape(-1, shape[-1])[number], None

        none = jnp.zeros(shape[-1], hidden.dtype)
        shared = jax.lax.scan(cross, none, jnp.arange(width))[0] if last.tied else none
        return covariance, shared

    # One position after the other: the slopes of one are as many numbers as fit.
    covariance, shared = jax.lax.map(position, jnp.arange(hidden.size // width))
    covariance = covariance.reshape(*hidden.shape, width)

    def column(total: Array, i: Array) -> tuple[Array, None]:
        # The diagonal of E^T S E, a column of S at a time.
        row = along(jnp.broadcast_to(unit[i], hidden.shape))
        return total + row * along(covariance[..., i]), None

    through, _ = jax.lax.scan(column, jnp.zeros(shape, hidden.dtype), jnp.arange(width))
    kernel_variance = own_variance(last.layer, *last.operands(known, hidden)) if last.sources else 0
    # Rounding may leave a sum of squares below zero where its parts cancel.
    return jnp.maximum(through + kernel_variance + 2 * shared.reshape(shape), 0)


def let_through(program: Program, random: Sequence[Value]) -> Program:
    """Returns a program whose derivatives reach every result that depends on random inputs."""
    nodes = [node for layer in program.layers for node in layer.nodes]
    stops = [node for node in nodes if node.primitive is p.stop_gradient_p]
    if not stops:
        return program
    followed = _reached(nodes, random, stops)
    results = {v for v in program.outputs if isinstance(v, Value)}
    cut_off = (results & _reached(nodes, random, ())) - followed
    opened = [
        stop
        for stop in stops
        # The last one before such results, and before no other: an estimator's stays.
        if (ahead := _reached(nodes, stop.outputs, [s for s in stops if s is not stop])) & cut_off
        and not ahead & results & followed
    ]
    if not opened:
        return program

    def copied(node: Node) -> Node:
        if not any(node is stop for stop in opened):
            return node
        return replace(node, eqn=node.eqn.replace(primitive=p.copy_p, params={}))

    layers = (replace(layer, nodes=tuple(map(copied, layer.nodes))) for layer in program.layers)
    return replace(program, layers=tuple(layers))


def _reached(nodes: Iterable[Node], start: Iterable[Value], stops: Iterable[Node]) -> set[Value]:
    """Collects the values that depend on some, by no way through certain nodes."""
    values, closed = set(start), {id(stop) for stop in stops}
    for node in nodes:
        if id(node) not in closed and not values.isdisjoint(node.values):
            values |= set(node.outputs)
    return values
