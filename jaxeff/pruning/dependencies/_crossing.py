"""Statistics over channels, for which a smaller model differs from the masked one.

Masking zeroes the parameters of a channel. Values computed of them alone are zero as well, through
products with zero and functions that are zero at zero, up to a layer that would read it. A sum over
channels of which every removed one is zero is the sum of those left. Any other crosses: a sum of
what isn't zero (a softmax, features that are positive at zero), a maximum, and a mean, whose count
changes. There `pruned` computes what a narrower model would, unless a plan lets removed channels
count as zeros (`_statistics.py`).

For each value this follows for which dimensions its entries aren't known to be zero at removed
indices.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxeff.core import Literal, split_p
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Program
from jaxeff.program.ir import Contraction, Node, Scan, While, fixed_point, walk
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies._dimensions import Dimension, dimensions
from jaxeff.pruning.dependencies._errors import MEAN
from jaxeff.pruning.dependencies._labels import ChannelReader, Labels
from jaxeff.pruning.dependencies._numbers import Numbers

p = prim.p
Dimensions = frozenset[Dimension]
_FIRST = {p.gather_p, p.dynamic_slice_p, p.slice_p, split_p}
"""Of whose operands only the first is what comes out."""
_KEPT = (
    (prim.SHAPE | set(prim.WINDOW) | {p.copy_p, p.sort_p, p.top_k_p, p.bitcast_convert_type_p})
    | {p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p}
) - {p.pad_p}
"""Primitives whose results are zero where their operands are."""
_NEUTRAL = {p.reduce_sum_p}


def every(labels: Labels, atom: Any) -> Dimensions:
    """Returns all dimensions of a value."""
    return frozenset(d for axis in labels.of(atom) for d in dimensions(axis))


@dataclass
class Crossing:
    """Follows what is zero through a program whose axes are known.

    Attributes:
        labels: The axes of its values; what crosses is noted there.
        known: For each value, the dimensions at whose removed indices it may differ from zero.
        zeros: Whether a function is zero for some operands, found out before.
    """

    labels: Labels
    known: dict[Any, Dimensions] = field(default_factory=dict)
    zeros: dict[Any, bool] = field(default_factory=dict)

    def program(self, program: Program, given: Sequence[Dimensions]) -> list[Dimensions]:
        """Follows a program, given its inputs; gives its results."""
        # Constants aren't masked: they are taken to be nonzero everywhere.
        for value in program.constants:
            self.known[value] = every(self.labels, value)
        self.known.update(zip(program.inputs, given, strict=True))
        for layer in program.layers:
            if layer.kind == "control flow":
                (node,) = layer.nodes
                made = self._control(node, layer.programs)
                self.known.update(zip(node.outputs, made, strict=True))
                continue
            if not layer.nodes:
                for value, made_value in zip(layer.inputs, layer.outputs, strict=True):
                    self.known[made_value] = self._of(value)
            reader = ChannelReader(self.labels, layer.site, {})
            for node in layer.nodes:
                read = [self._of(a) for a in node.inputs]
                made = self._equation(node, read, reader)
                self.known.update(zip(node.outputs, made, strict=True))
        return [self._of(a) for a in program.outputs]

    def _of(self, atom: Any) -> Dimensions:
        return frozenset() if isinstance(atom, Literal) else self.known[atom]

    def _equation(
        self, node: Node, given: Sequence[Dimensions], reader: ChannelReader
    ) -> list[Dimensions]:
        if node.primitive not in prim.CALLS | prim.CUSTOM:
            return self._made(node, given, reader)
        # Not `entering`: each call of a jaxpr has labels of its own.
        inner = ChannelReader(reader.labels.bodies[id(node.eqn)], reader.where, {})

        def rule(e: Any, read: Sequence[Dimensions]) -> list[Dimensions]:
            return self._equation(Node(e, e.invars, e.outvars), read, inner)

        def constant(atom: Any, value: Any) -> Dimensions:
            del value
            return frozenset() if isinstance(atom, Literal) else every(inner.labels, atom)

        return walk(_compat.sub_jaxprs(node.eqn)[0], given, rule, constant)

    def _made(
        self, node: Node, given: Sequence[Dimensions], reader: ChannelReader
    ) -> list[Dimensions]:
        """Follows one equation and notes what crosses in it."""
        labels, eqn, primitive = reader.labels, node.eqn, node.primitive
        inputs, outputs = node.inputs, node.outputs
        has = [every(labels, a) for a in inputs]
        made = [every(labels, v) for v in outputs]
        for axis in labels.numbers.averaged(eqn, inputs):
            reader.crosses(eqn, axis, MEAN)
        if primitive in prim.LINEAR:
            # A product is zero at a removed index if either factor is: x_c w_c with w_c
            # masked.
            zero = (has[0] - given[0]) | (has[1] - given[1])
            right = labels.of(inputs[1])
            for i in Contraction.of(eqn).summed(1):
                for dimension in dimensions(right[i]):
                    if dimension not in zero:
                        reader.crosses(eqn, dimension)
            return [made[0] - zero]
        if primitive in prim.REDUCTION:
            for i in eqn.params["axes"]:
                for dimension in dimensions(labels.of(inputs[0])[i]):
                    # Zero is neutral for a sum only: a maximum over negative entries would
                    # return the zero.
                    if primitive not in _NEUTRAL or dimension in given[0]:
                        reader.crosses(eqn, dimension)
            return [made[0] & given[0]]
        # Padding with anything but zero writes nonzero entries beside the removed ones.
        if primitive is p.pad_p:
            return made if labels.numbers.number(inputs[1]) != 0 else [made[0] & given[0]]
        if primitive in _KEPT:
            if primitive is p.broadcast_in_dim_p and labels.numbers.number(inputs[0]) == 0:
                return [frozenset()]
            count = 1 if primitive in _FIRST else len(inputs)
            zero = frozenset().union(*has[:count]) - frozenset().union(*given[:count])
            return [found - zero for found in made]
        if primitive in prim.ELEMENTWISE:
            return [
                frozenset(
                    d for d in made[0] if not self._zero(eqn, inputs, given, has, d, labels.numbers)
                )
            ]
        return made

    def _zero(
        self,
        eqn: Any,
        inputs: Sequence[Any],
        given: Sequence[Dimensions],
        has: Sequence[Dimensions],
        dimension: Dimension,
        numbers: Numbers,
    ) -> bool:
        """Returns whether a pointwise function is zero at the removed indices of a dimension."""
        values: list[Any] = []
        for atom, nonzero, there in zip(inputs, given, has, strict=True):
            # 0 where the operand is zero at removed indices, the number if it is a known
            # one, else None.
            zero = dimension in there and dimension not in nonzero
            values.append(0 if zero else numbers.number(atom))
        # 0 times an unknown operand is 0: the other one need not be known.
        if eqn.primitive in {p.mul_p, p.and_p} and any(v is not None and v == 0 for v in values):
            return True
        if eqn.primitive is p.div_p:
            return (
                values[0] is not None and values[0] == 0 and (values[1] is None or values[1] != 0)
            )
        if eqn.primitive is p.select_n_p:
            return all(v is not None and v == 0 for v in values[1:])
        if any(v is None for v in values):
            return False
        # Evaluated once per primitive and operands: f(0) decides for a whole region of
        # layers.
        key = (eqn.primitive, tuple(map(float, values)), str(eqn.params))
        if key not in self.zeros:
            operands = [np.asarray(v, a.aval.dtype) for v, a in zip(values, inputs, strict=True)]
            with jax.ensure_compile_time_eval():
                (found,) = _compat.bind(eqn, *operands)
            self.zeros[key] = bool(np.asarray(found) == 0)
        return self.zeros[key]

    def _control(self, node: Node, programs: Sequence[Program]) -> list[Dimensions]:
        """Follows loops and branches; a loop's carry until nothing more may differ."""
        given = [self._of(a) for a in node.inputs]
        if node.primitive is p.remat_p:
            return self.program(programs[0], given)
        if node.primitive is p.cond_p:
            branches = [self.program(branch, given[1:]) for branch in programs]
            return [frozenset().union(*found) for found in zip(*branches, strict=True)]
        loop = (Scan if node.primitive is p.scan_p else While).of(node, given)
        *test, body = programs
        # The sets only grow and are bounded by the carry's dimensions: this ends.
        carry, stacked = fixed_point(
            lambda carry: loop.split(self.program(body, loop.inputs(carry))),
            loop.carry,
            operator.or_,
        )
        # After the body: the test reads the carry of every iteration.
        if isinstance(loop, While):
            self.program(test[0], loop.test_inputs(carry))
        return [*carry, *stacked]
