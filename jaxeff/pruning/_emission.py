"""Evaluates a program on arrays that have lost indices: the equations of the old shapes, restated.

An equation carries sizes where its operands don't tell them (a broadcast's shape, a slice's ends,
the groups of a convolution). They are recomputed from the axes of its results. Numbers that came
from sizes are scaled (`jaxeff.pruning.dependencies`): a mean stays a mean. Random bits are drawn at
the old shape and cut, so that a key gives a channel the same noise whatever else is removed.

`gated` multiplies channels by numbers: whatever sums over channels sums gates times channels. A dot
product or convolution that sums over a gated channel reads z_c x_c in the place of x_c, and
so does a sum, a maximum or a mean over channels. Nothing before is touched, so a normalization in
front of it can't undo a gate, and a gate counts once however many layers make the channel. A gate
of zero is a removal, one of one nothing.

Sharp edge: where a statistic crosses channels (`Group.crossed`), what it sums is gated, and what it
counts isn't: like the masked function's and unlike the smaller one's.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import Literal, make_jaxpr, read_once, split_p
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer, Program, interpret
from jaxeff.program.ir import Contraction, Node, Value, run_nodes, walk
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning import dependencies

p = prim.p

Keep = Mapping[dependencies.Dimension, np.ndarray]


@dataclass(frozen=True)
class Emission:
    """A rule for `evaluate` that restates equations.

    Attributes:
        labels: The axes of the program's values.
        keep: Mask of the indices that stay.
        rescale: Whether roots of sizes are those of the new ones.
        zeros: Dimensions whose removed indices count in means, as zeros.
    """

    labels: dependencies.Labels
    keep: Keep
    rescale: bool = False
    zeros: frozenset[dependencies.Dimension] = frozenset()

    def rule(self, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        """Evaluates one layer of the program on smaller arrays."""
        del key
        if not layer.nodes:
            return values
        # Nodes have the operands' names, by which axes are known; an equation has its own
        # variables.
        by_equation = {id(node.eqn): node for node in layer.nodes}

        def bind(eqn: Any, *operands: Any) -> list[Any]:
            node = by_equation[id(eqn)]
            try:
                results = self.equation(node, operands, self.labels)
                self._check(results, [self.labels.of(v) for v in node.outputs])
                return results
            except (TypeError, ValueError) as error:
                if isinstance(error, dependencies.PlanError):
                    raise
                raise dependencies.PlanError(
                    f"{eqn.primitive.name} at {layer.site!r} can't be restated for fewer channels "
                    f"({error}). {dependencies.remedy(dependencies.UNKNOWN)}"
                ) from error

        return run_nodes(layer.nodes, layer.inputs, values, layer.outputs, bind)

    def equation(
        self, node: Node, operands: Sequence[Any], labels: dependencies.Labels
    ) -> list[Any]:
        """Evaluates one equation on operands of the new shapes."""
        eqn, inputs = node.eqn, node.inputs
        results = [labels.of(v) for v in node.outputs]
        # Before the shapes: a mean's divisor is a literal that has to become the new count.
        operands = labels.numbers.restated(
            eqn, inputs, operands, labels.of, self.size, self.counted, rescale=self.rescale
        )
        # Nothing removed: the original equation runs, bit by bit the same.
        if all(self.is_whole(axes) for axes in (*results, *map(labels.of, inputs))):
            return _compat.bind(eqn, *operands)
        if dependencies.is_drawn(eqn):
            # What is drawn depends on the shape: only the old one's draws are the masked model's.
            (drawn,) = _compat.bind(eqn, *operands)
            return [self.cut(drawn, results[0])]
        if eqn.primitive in prim.CALLS:
            closed = _compat.sub_jaxprs(eqn)[0]
            return self.jaxpr(closed, operands, labels.bodies[id(eqn)])
        if eqn.primitive in prim.CUSTOM:
            # The call keeps its derivative: all of its jaxprs are restated with it.
            places = dependencies.call_axes([labels.of(a) for a in inputs], results)
            restate = functools.partial(self._restated, places)
            return _compat.bind(eqn, *operands, **_compat.restated(eqn, restate))
        return _compat.bind(eqn, *operands, **self._params(eqn, inputs, results, labels))

    def _check(self, values: Sequence[Any], results: Sequence[dependencies.Axes]) -> None:
        """Checks that an equation's results have the shapes that its rule predicted."""
        for x, axes in zip(values, results, strict=True):
            # A wrong rule must not give a wrong model: shapes are compared after each equation.
            if tuple(x.shape) != (left := tuple(map(self.size, axes))):
                raise ValueError(f"it gives {tuple(x.shape)}, not {left}")

    def is_whole(self, axes: dependencies.Axes) -> bool:
        """Returns whether nothing is removed from an array."""
        return all(self.indices(axis).all() for axis in axes)

    def indices(self, axis: dependencies.Axis) -> np.ndarray:
        """Returns which indices of an axis stay."""
        return dependencies.kept(axis, self.keep)

    def size(self, axis: dependencies.Axis) -> int:
        """Returns how many indices of an axis stay."""
        return int(self.indices(axis).sum())

    def counted(self, axis: dependencies.Axis) -> int:
        """Returns how many indices count in a mean."""
        if not self.zeros:
            return self.size(axis)
        return int(
            dependencies.kept(
                axis, {d: k for d, k in self.keep.items() if d not in self.zeros}
            ).sum()
        )

    def cut(self, x: Any, axes: dependencies.Axes) -> Any:
        """Returns what stays of an array of the old shape."""
        for i, axis in enumerate(axes):
            where = self.indices(axis)
            if not where.all():
                x = x[(slice(None),) * i + (np.flatnonzero(where),)]
        return x

    def _params(
        self,
        eqn: Any,
        inputs: Sequence[Any],
        results: Sequence[dependencies.Axes],
        labels: dependencies.Labels,
    ) -> dict[str, Any]:
        """Returns the parameters of an equation that say sizes, for the new ones."""
        primitive, q = eqn.primitive, eqn.params
        shape = tuple(self.size(axis) for axis in results[0])
        if primitive in {p.broadcast_in_dim_p, p.iota_p}:
            return {"shape": shape}
        if primitive is p.reshape_p:
            return {"new_sizes": shape}
        if primitive is p.slice_p:
            axes = labels.of(inputs[0])
            # Positions among the kept indices: how many stay before the old start.
            before = [
                int(self.indices(a)[:n].sum())
                for a, n in zip(axes, q["start_indices"], strict=True)
            ]
            ends = [b + n for b, n in zip(before, shape, strict=True)]
            strides = q["strides"] or (1,) * len(axes)
            uncut = [self.indices(a).all() for a in axes]
            triples = zip(uncut, q["start_indices"], before, strict=True)
            starts = [old if w else new for w, old, new in triples]
            pairs = zip(uncut, q["limit_indices"], ends, strict=True)
            return {
                "start_indices": tuple(starts),
                "limit_indices": tuple(old if w else new for w, old, new in pairs),
                "strides": None if q["strides"] is None else tuple(strides),
            }
        if primitive is split_p:
            return {"sizes": tuple(self.size(axes[q["axis"]]) for axes in results)}
        if primitive is p.conv_general_dilated_p:
            # Groups = input channels / channels per group: whole groups may have gone.
            contraction = Contraction.of(eqn)
            (image,), (kernel,) = contraction.summed(0), contraction.summed(1)
            channels, inner = labels.of(inputs[0])[image], labels.of(inputs[1])[kernel]
            return {"feature_group_count": self.size(channels) // self.size(inner)}
        if primitive in {p.gather_p, p.dynamic_slice_p}:
            return {"slice_sizes": self._slices(q["slice_sizes"], labels.of(inputs[0]))}
        return {}

    def _slices(self, sizes: Sequence[int], axes: dependencies.Axes) -> tuple[int, ...]:
        return tuple(
            self.size(axis) if n == axis.size else n for axis, n in zip(axes, sizes, strict=True)
        )

    def _restated(self, places: dict[tuple[str, int], dependencies.Axes], derivative: Any) -> Any:
        """Returns a derivative of a call for the new shapes."""
        closed = derivative.closed
        labels = dependencies.ChannelReader(
            dependencies.Labels(), "", dependencies.RULES
        ).derivative(derivative, places)
        shapes = [
            jax.ShapeDtypeStruct(tuple(map(self.size, places[at])), var.aval.dtype)
            for at, var in zip(derivative.inputs, closed.jaxpr.invars, strict=True)
        ]
        emitted, _ = make_jaxpr(lambda *values: self.jaxpr(closed, values, labels))(*shapes)
        return emitted

    def jaxpr(self, closed: Any, values: Sequence[Any], labels: dependencies.Labels) -> list[Any]:
        """Evaluates a jaxpr."""

        def rule(eqn: Any, operands: Sequence[Any]) -> list[Any]:
            return self.equation(Node(eqn, eqn.invars, eqn.outvars), operands, labels)

        def constant(atom: Any, value: Any) -> Any:
            return value if isinstance(atom, Literal) else self.cut(value, labels.of(atom))

        return walk(closed, values, rule, constant)


def gated(
    f: Callable[..., Any],
    gates: Mapping[str, Any],
    groups: dependencies.Channels,
    missing: Callable[[str], Exception],
) -> Callable[..., Any]:
    """Returns the model with channels multiplied by gates.

    Gates are `[channels]` by group and may be traced; `missing` is the error for a group that the
    function doesn't have.
    """
    f = read_once(f)

    def g(*args: Any, **kwargs: Any) -> Any:
        def make_rule(program: Program) -> Callable[..., Any]:
            channels = dependencies.read_channels(program)
            ids = {group.name: d for group, d in zip(channels, channels.dimensions, strict=True)}
            for name in gates:
                if name not in ids:
                    raise missing(name)
                if channels[name].size != groups[name].size:
                    raise _other(groups[name], f"there are {channels[name].size} here")
            numbers = {ids[name]: jnp.asarray(gate) for name, gate in gates.items()}
            gating = Gating(channels.labels, {}, gates=numbers)
            summed = gating.acting(program)
            for name in gates:
                # Gates that multiply nothing would leave the function as it is, silently.
                if ids[name] not in summed and not groups[name].held:
                    raise _other(groups[name], "nothing sums them here")
            return gating.rule

        return interpret(f, make_rule, None, args, kwargs, "masked (by gates)")

    return g


def _other(group: dependencies.Group, why: str) -> dependencies.PlanError:
    return dependencies.PlanError(
        f"the gates of {group.name!r} are for {group.size} channels of another function ({why}): "
        "take masked(f, plan) of that function first, or make the plan of this one, with the "
        "groups of channels(f, params, x)"
    )


@dataclass(frozen=True)
class Gating(Emission):
    """A rule for `evaluate` that multiplies what is summed by gates.

    Attributes:
        gates: Mapping from dimension to gates.
    """

    gates: Mapping[dependencies.Dimension, Array] = field(default_factory=dict)

    def rule(self, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        """Evaluates one layer of the program with gates."""
        random = any(v.spread for v in layer.inputs)
        # A marked layer holds equations of moments or codes, where a factor on every sum would be
        # wrong.
        if layer.mark and (random or layer.kind == "linear"):
            return self._marked(layer, values)
        return super().rule(layer, key, *values)

    def acting(self, program: Program) -> set[dependencies.Dimension]:
        """Returns the gates that a program sums over."""
        gates = set[dependencies.Dimension]()
        for layer in program.walk():
            for node in layer.nodes:
                if self._sums_inside(node.eqn, self.labels):
                    return set(self.gates)  # which, the call knows
                for *_, which in self._summed(node.eqn, node.inputs, self.labels):
                    gates |= which
        return gates

    def _marked(self, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Gates a layer that another transform computes (moments, codes, tiles).

        Its equations read a channel for more than sums (a range for codes, a square), but the layer
        as a whole only sums it. So a gate z is one on the layer's input: z times its value or mean,
        z^2 times its variance.
        """
        summed = set[dependencies.Dimension]()
        for node in layer.nodes:
            for *_, which in self._summed(node.eqn, node.inputs, self.labels):
                summed |= which
        # No gated channel is summed here: the layer runs as it was marked.
        if not summed:
            return layer.fn(*values)
        if layer.kind not in {"linear", "pooling", "reduction"}:
            raise dependencies.PlanError(
                f"masked (by gates) can't act on moments(f) at {layer.site!r} ({layer.kind}), "
                "which doesn't only sum the channels: take moments(masked(f, plan))"
            )
        values = list(values)
        for i in layer.data:
            for number, axis in enumerate(self.labels.of(layer.inputs[i])):
                if which := self._gates_of(axis) & summed:
                    # Var[z x] = z^2 Var[x].
                    power = 2 if layer.inputs[i].spread else 1
                    values[i] = self._times(values[i], number, axis, which, power)
        return layer.fn(*values)

    def equation(
        self, node: Node, operands: Sequence[Any], labels: dependencies.Labels
    ) -> list[Any]:
        """Evaluates one equation; channels that it sums over are multiplied by their gates."""
        eqn, inputs = node.eqn, node.inputs
        operands = list(operands)
        if eqn.primitive in prim.CALLS | prim.CUSTOM:
            if not self._sums_inside(eqn, labels):
                return _compat.bind(eqn, *operands)
            if eqn.primitive in prim.CALLS:
                closed = _compat.sub_jaxprs(eqn)[0]
                return self.jaxpr(closed, operands, labels.bodies[id(eqn)])
            # A function with a derivative of its own stays as it is: its operands are gated.
            for side, atom in enumerate(inputs):
                if _is_real(atom):
                    for number, axis in enumerate(labels.of(atom)):
                        if which := self._gates_of(axis):
                            operands[side] = self._times(operands[side], number, axis, which)
            return _compat.bind(eqn, *operands)
        for side, number, summed in self._summed(eqn, inputs, labels):
            summed_axis = labels.of(inputs[side])[number]
            operands[side] = self._times(operands[side], number, summed_axis, summed)
        return _compat.bind(eqn, *operands)

    def _summed(
        self, eqn: Any, inputs: Sequence[Any], labels: dependencies.Labels
    ) -> list[tuple[int, int, set[dependencies.Dimension]]]:
        """Returns operands and axes that an equation sums over, with the gates that act there."""
        sums: list[tuple[int, int, dependencies.Axis]] = []
        if eqn.primitive in prim.LINEAR:
            contraction = Contraction.of(eqn)
            data = next((i for i, v in enumerate(inputs) if _is_data(v)), 0)
            # Of grouped convolutions only the channels of a group are summed, as the kernel says.
            side, operand = (0, 1) if contraction.is_convolution else (data, data)
            axes = labels.of(inputs[operand])
            pairs = zip(contraction.summed(side), contraction.summed(operand), strict=True)
            sums += [(side, axis, axes[i]) for axis, i in pairs]
        elif eqn.primitive in prim.REDUCTION and _is_real(inputs[0]):
            axes = labels.of(inputs[0])
            sums += [(0, axis, axes[axis]) for axis in eqn.params["axes"]]
        result = [(side, axis, self._gates_of(summed)) for side, axis, summed in sums]
        return [(side, axis, which) for side, axis, which in result if which]

    def _gates_of(self, axis: dependencies.Axis) -> set[dependencies.Dimension]:
        return {dimension for dimension in dependencies.dimensions(axis) if dimension in self.gates}

    def _times(
        self,
        x: Any,
        number: int,
        axis: dependencies.Axis,
        which: set[dependencies.Dimension],
        power: int = 1,
    ) -> Any:
        factor = _factors(axis, {d: self.gates[d] for d in which}, x.dtype) ** power
        shape = [-1 if i == number else 1 for i in range(jnp.ndim(x))]
        return x * factor.reshape(shape)

    def _sums_inside(self, eqn: Any, labels: dependencies.Labels) -> bool:
        """Returns whether a call sums over gated channels."""
        inside = labels.bodies.get(id(eqn))
        if inside is None:
            return False
        # A call has labels of its own for each place it is called from, but no other equation.
        return any(
            self._sums_inside(e, inside) or bool(self._summed(e, e.invars, inside))
            for e in _compat.equations(_compat.sub_jaxprs(eqn)[0])
        )


def _factors(
    axis: dependencies.Axis, gates: Mapping[dependencies.Dimension, Array], dtype: Any
) -> Array:
    """Returns a number per index of an axis: the product of the gates that it is a part of."""
    axis = dependencies.resolve_axis(axis)
    if isinstance(axis, dependencies.Dimension):
        gate = gates.get(axis)
        return jnp.ones(axis.size, dtype) if gate is None else gate.astype(dtype)
    parts = [_factors(part, gates, dtype) for part in axis.parts]
    if isinstance(axis, dependencies.Concatenation):
        return jnp.concatenate(parts)
    factors = jnp.ones(1, dtype)
    # Row-major, as the axes of a product: later factors vary fastest.
    for part in parts:
        factors = (factors[:, None] * part[None]).reshape(-1)
    return factors


def _is_real(value: Any) -> bool:
    return bool(jnp.issubdtype(value.aval.dtype, jnp.floating))


def _is_data(value: Any) -> bool:
    return not isinstance(value, Literal) and isinstance(value, Value) and value.is_data
