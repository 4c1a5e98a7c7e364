"""Channels multiplied by numbers: whatever sums over channels sums gates times channels.

A dot product or convolution that sums over a gated channel reads z_c x_c in the place of x_c, and
so does a sum, a maximum or a mean over channels. Nothing before is touched, so a normalization in
front of it can't undo a gate, and a gate counts once however many layers make the channel. A gate
of zero is a removal, one of one nothing.

Sharp edge: where a statistic crosses channels (`Group.crossed`), what it sums is gated, and what it
counts isn't: like the masked function's and unlike the smaller one's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer, Program, interpret
from jaxeff.program.ir import Contraction, Node, Value
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import (
    Axis,
    Channels,
    Concatenation,
    Dimension,
    Group,
    Labels,
    PlanError,
    dimensions,
    read_channels,
    resolve,
)
from jaxeff.pruning.shrinking._emission import Emission

p = prim.p


def gated(
    f: Callable[..., Any],
    gates: Mapping[str, Any],
    groups: Channels,
    missing: Callable[[str], Exception],
) -> Callable[..., Any]:
    """Returns the model with channels multiplied by gates.

    Args:
        f: A pure function `f(params, *args)`.
        gates: Mapping from group to numbers `[channels]`; they may be traced.
        groups: Groups that the gates were made for.
        missing: The error for a group that the function doesn't have.
    """

    def g(*args: Any, **kwargs: Any) -> Any:
        def make_rule(program: Program) -> Callable[..., Any]:
            found = read_channels(program)
            ids = {group.name: d for group, d in zip(found, found.dimensions, strict=True)}
            for name in gates:
                if name not in ids:
                    raise missing(name)
                if found[name].size != groups[name].size:
                    raise _other(groups[name], f"there are {found[name].size} here")
            numbers = {ids[name]: jnp.asarray(gate) for name, gate in gates.items()}
            gating = Gating(found.labels, {}, gates=numbers)
            summed = gating.acting(program)
            for name in gates:
                # Gates that multiply nothing would leave the function as it is, silently.
                if ids[name] not in summed and not groups[name].held:
                    raise _other(groups[name], "nothing sums them here")
            return gating.rule

        return interpret(f, make_rule, None, args, kwargs, "masked (by gates)")

    return g


def _other(group: Group, why: str) -> PlanError:
    return PlanError(
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

    gates: Mapping[Dimension, Array] = field(default_factory=dict)

    def rule(self, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        """Evaluates one layer of the program with gates."""
        random = any(v.spread for v in layer.inputs)
        # A marked layer holds equations of moments or codes, where a factor on every sum would be
        # wrong.
        if layer.mark and (random or layer.kind == "linear"):
            return self._marked(layer, values)
        return super().rule(layer, key, *values)

    def acting(self, program: Program) -> set[Dimension]:
        """Returns the gates that a program sums over."""
        found = set[Dimension]()
        for layer in program.walk():
            for node in layer.nodes:
                if self._sums_inside(node.eqn, self.labels):
                    return set(self.gates)  # which, the call knows
                for *_, which in self._summed(node.eqn, node.inputs, self.labels):
                    found |= which
        return found

    def _marked(self, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Gates a layer that another transform computes (moments, codes, tiles).

        Its equations read a channel for more than sums (a range for codes, a square), but the layer
        as a whole only sums it. So a gate z is one on the layer's input: z times its value or mean,
        z^2 times its variance.
        """
        summed = set[Dimension]()
        for node in layer.nodes:
            for *_, which in self._summed(node.eqn, node.inputs, self.labels):
                summed |= which
        # No gated channel is summed here: the layer runs as it was marked.
        if not summed:
            return layer.fn(*values)
        if layer.kind not in {"linear", "pooling", "reduction"}:
            raise PlanError(
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

    def equation(self, node: Node, operands: Sequence[Any], labels: Labels) -> list[Any]:
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
            whole = labels.of(inputs[side])[number]
            operands[side] = self._times(operands[side], number, whole, summed)
        return _compat.bind(eqn, *operands)

    def _summed(
        self, eqn: Any, inputs: Sequence[Any], labels: Labels
    ) -> list[tuple[int, int, set[Dimension]]]:
        """Returns operands and axes that an equation sums over, with the gates that act there."""
        found: list[tuple[int, int, Axis]] = []
        if eqn.primitive in prim.LINEAR:
            contraction = Contraction.of(eqn)
            data = next((i for i, v in enumerate(inputs) if _is_data(v)), 0)
            # Of grouped convolutions only the channels of a group are summed, as the kernel says.
            side, operand = (0, 1) if contraction.is_convolution else (data, data)
            axes = labels.of(inputs[operand])
            pairs = zip(contraction.summed(side), contraction.summed(operand), strict=True)
            found += [(side, axis, axes[i]) for axis, i in pairs]
        elif eqn.primitive in prim.REDUCTION and _is_real(inputs[0]):
            axes = labels.of(inputs[0])
            found += [(0, axis, axes[axis]) for axis in eqn.params["axes"]]
        result = [(side, axis, self._gates_of(summed)) for side, axis, summed in found]
        return [(side, axis, which) for side, axis, which in result if which]

    def _gates_of(self, axis: Axis) -> set[Dimension]:
        return {dimension for dimension in dimensions(axis) if dimension in self.gates}

    def _times(self, x: Any, number: int, axis: Axis, which: set[Dimension], power: int = 1) -> Any:
        factor = _factors(axis, {d: self.gates[d] for d in which}, x.dtype) ** power
        shape = [-1 if i == number else 1 for i in range(jnp.ndim(x))]
        return x * factor.reshape(shape)

    def _sums_inside(self, eqn: Any, labels: Labels) -> bool:
        """Returns whether a call sums over gated channels."""
        inside = labels.bodies.get(id(eqn))
        if inside is None:
            return False
        # A call has labels of its own for each place it is called from, but no other equation.
        return any(
            self._sums_inside(e, inside) or bool(self._summed(e, e.invars, inside))
            for e in _compat.sub_jaxprs(eqn)[0].jaxpr.eqns
        )


def _factors(axis: Axis, gates: Mapping[Dimension, Array], dtype: Any) -> Array:
    """Returns a number per index of an axis: the product of the gates that it is a part of."""
    axis = resolve(axis)
    if isinstance(axis, Dimension):
        gate = gates.get(axis)
        return jnp.ones(axis.size, dtype) if gate is None else gate.astype(dtype)
    parts = [_factors(part, gates, dtype) for part in axis.parts]
    if isinstance(axis, Concatenation):
        return jnp.concatenate(parts)
    whole = jnp.ones(1, dtype)
    # Row-major, as the axes of a product: later factors vary fastest.
    for part in parts:
        whole = (whole[:, None] * part[None]).reshape(-1)
    return whole


def _is_real(value: Any) -> bool:
    return bool(jnp.issubdtype(value.aval.dtype, jnp.floating))


def _is_data(value: Any) -> bool:
    return not isinstance(value, Literal) and isinstance(value, Value) and value.is_data


__all__ = ["Gating", "gated"]
