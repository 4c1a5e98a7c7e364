"""Evaluates a program on arrays that have lost indices: the equations of the old shapes, restated.

An equation carries sizes where its operands don't tell them (a broadcast's shape, a slice's ends,
the groups of a convolution). They are recomputed from the axes of its results. Numbers that came
from sizes are scaled (`jaxeff.pruning.dependencies`): a mean stays a mean. Random bits are drawn at
the old shape and cut, so that a key gives a channel the same noise whatever else is removed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxeff.core import Literal, make_jaxpr, split_p
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer
from jaxeff.program.ir import Contraction, Node, run_nodes, walk
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import (
    RULES,
    UNKNOWN,
    Axes,
    Axis,
    ChannelReader,
    Dimension,
    Labels,
    PlanError,
    call_axes,
    kept,
    remedy,
)

p = prim.p
Keep = Mapping[Dimension, np.ndarray]


@dataclass(frozen=True)
class Emission:
    """A rule for `evaluate` that restates equations.

    Attributes:
        labels: The axes of the program's values.
        keep: Mask of the indices that stay.
        rescale: Whether roots of sizes are those of the new ones.
        zeros: Dimensions whose removed indices count in means, as zeros.
    """

    labels: Labels
    keep: Keep
    rescale: bool = False
    zeros: frozenset[Dimension] = frozenset()

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
                made = self.equation(node, operands, self.labels)
                self._check(made, [self.labels.of(v) for v in node.outputs])
                return made
            except (TypeError, ValueError) as error:
                if isinstance(error, PlanError):
                    raise
                raise PlanError(
                    f"{eqn.primitive.name} at {layer.site!r} can't be restated for fewer channels "
                    f"({error}). {remedy(UNKNOWN)}"
                ) from error

        return run_nodes(layer.nodes, layer.inputs, values, layer.outputs, bind)

    def equation(self, node: Node, operands: Sequence[Any], labels: Labels) -> list[Any]:
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
        if eqn.primitive is p.random_bits_p:
            # What is drawn depends on the shape: only the old one's draws are the masked model's.
            (drawn,) = _compat.bind(eqn, *operands)
            return [self.cut(drawn, results[0])]
        if eqn.primitive in prim.CALLS:
            closed = _compat.sub_jaxprs(eqn)[0]
            return self.jaxpr(closed, operands, labels.bodies[id(eqn)])
        if eqn.primitive in prim.CUSTOM:
            # The call keeps its derivative: all of its jaxprs are restated with it.
            places = call_axes([labels.of(a) for a in inputs], results)
            restate = functools.partial(self._restated, places)
            return _compat.bind(eqn, *operands, **_compat.restated(eqn, restate))
        return _compat.bind(eqn, *operands, **self._params(eqn, inputs, results, labels))

    def _check(self, made: Sequence[Any], results: Sequence[Axes]) -> None:
        """Checks that an equation's results have the shapes that its rule predicted."""
        for x, axes in zip(made, results, strict=True):
            # A wrong rule must not give a wrong model: shapes are compared after each
            # equation.
            if tuple(x.shape) != (left := tuple(map(self.size, axes))):
                raise ValueError(f"it gives {tuple(x.shape)}, not {left}")

    def is_whole(self, axes: Axes) -> bool:
        """Returns whether nothing is removed from an array."""
        return all(self.indices(axis).all() for axis in axes)

    def indices(self, axis: Axis) -> np.ndarray:
        """Returns which indices of an axis stay."""
        return kept(axis, self.keep)

    def size(self, axis: Axis) -> int:
        """Returns how many indices of an axis stay."""
        return int(self.indices(axis).sum())

    def counted(self, axis: Axis) -> int:
        """Returns how many indices count in a mean."""
        if not self.zeros:
            return self.size(axis)
        return int(kept(axis, {d: k for d, k in self.keep.items() if d not in self.zeros}).sum())

    def cut(self, x: Any, axes: Axes) -> Any:
        """Returns what stays of an array of the old shape."""
        for i, axis in enumerate(axes):
            where = self.indices(axis)
            if not where.all():
                x = x[(slice(None),) * i + (np.flatnonzero(where),)]
        return x

    def _params(
        self, eqn: Any, inputs: Sequence[Any], results: Sequence[Axes], labels: Labels
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
            whole = [self.indices(a).all() for a in axes]
            triples = zip(whole, q["start_indices"], before, strict=True)
            starts = [old if w else new for w, old, new in triples]
            pairs = zip(whole, q["limit_indices"], ends, strict=True)
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

    def _slices(self, sizes: Sequence[int], axes: Axes) -> tuple[int, ...]:
        return tuple(
            self.size(axis) if n == axis.size else n for axis, n in zip(axes, sizes, strict=True)
        )

    def _restated(self, places: dict[tuple[str, int], Axes], derivative: Any) -> Any:
        """Returns a derivative of a call for the new shapes."""
        closed = derivative.closed
        labels = ChannelReader(Labels(), "", RULES).derivative(derivative, places)
        shapes = [
            jax.ShapeDtypeStruct(tuple(map(self.size, places[at])), var.aval.dtype)
            for at, var in zip(derivative.given, closed.jaxpr.invars, strict=True)
        ]
        emitted, _ = make_jaxpr(lambda *values: self.jaxpr(closed, values, labels))(*shapes)
        return emitted

    def jaxpr(self, closed: Any, values: Sequence[Any], labels: Labels) -> list[Any]:
        """Evaluates a jaxpr."""

        def rule(eqn: Any, operands: Sequence[Any]) -> list[Any]:
            return self.equation(Node(eqn, eqn.invars, eqn.outvars), operands, labels)

        def constant(atom: Any, value: Any) -> Any:
            return value if isinstance(atom, Literal) else self.cut(value, labels.of(atom))

        return walk(closed, values, rule, constant)


__all__ = ["Emission", "Keep"]
