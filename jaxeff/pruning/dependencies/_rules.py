"""How equations relate the axes of operands and results, read off their signatures.

`related` unifies what loses the same indices and holds what can't lose any, with a reason that
names the primitive, the site and the line. Of what signatures don't say (groups of channels, draws)
there are rules, `rule(eqn, axes, reader) -> axes of each result`.

Last stands `Crossing`, which says of every value at which removed channels it isn't known to be
zero.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Program, ir
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import _dimensions
from jaxeff.pruning.dependencies._labels import Axes, ChannelReader, Labels, Numbers, Rule

p = prim.p

# Where an entry stands is what they return: it means nothing without the others.
_PLACES = {p.argmax_p, p.argmin_p}
# Sums and the like may lose entries; `Crossing` notes where that changes them.
_MAY_LOSE = prim.REDUCTION.keys() - _PLACES


def related(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Relates axes as the equation's signature says; holds those that no relation covers."""
    of = ir.signature(eqn)
    # What nothing is known of holds all it reads: a missed chance to prune, never a wrong model.
    if not of.is_known:
        return reader.unknown(eqn, axes, _dimensions.UNKNOWN)
    reason = reader.reason(eqn)
    for left, right in of.pairs:
        _dimensions.unify(axes[0][left], axes[1][right], reason)
    results = [_result(eqn, of, number, axes, reader) for number in range(len(eqn.outvars))]
    for number, operand in enumerate(of.operands):
        covered = {
            a for along in operand.along if along is not None
            for one in along if one.relation in _COVERED or one.part is not None
            for a in one.axes
        }  # fmt: skip
        covered |= {pair[number] for pair in of.pairs} if number < 2 else set()
        covered |= set(operand.combined) if eqn.primitive in _MAY_LOSE else set()
        for a, axis in enumerate(axes[number]):
            if a not in covered:
                _dimensions.hold(axis, reason)
    return results


_COVERED = {ir.Relation.SAME, ir.Relation.MERGED, ir.Relation.SPLIT}


def _result(
    eqn: Any, of: ir.Signature, number: int, axes: Sequence[Axes], reader: ChannelReader
) -> Axes:
    """Returns the axes of a result."""
    sizes, reason = [int(n) for n in eqn.outvars[number].aval.shape], reader.reason(eqn)
    # How each operand that has a part in it lies along it.
    alongs = [
        (source, operand.along[number] or ())
        for source, operand in zip(axes, of.operands, strict=True)
        if operand.along[number] is not None
    ]
    grouped = _regrouped(eqn, *alongs[0], sizes, reader) if eqn.primitive in prim.MOVES else {}
    result: list[_dimensions.Axis] = []
    for r, size in enumerate(sizes):
        here = [(source, along[r]) for source, along in alongs]
        same = [source[one.axes[0]] for source, one in here if one.relation is ir.Relation.SAME]
        placed = [(source, one) for source, one in here if one.relation is ir.Relation.PLACED]
        others = [source[a] for source, one in here if one.relation in _TAKEN for a in one.axes]
        for other in same[1:]:
            _dimensions.unify(same[0], other, reason)
        if r in grouped:
            result.append(grouped[r])
        elif placed and not same and not others:
            result.append(_composed(eqn, placed, size, reader))
        elif placed or (others and not (same and of.family is ir.OperationFamily.SELECT)):
            # What is put or taken somewhere among the entries of an axis. (A row of indices that
            # take from a table may go by itself.)
            there = [*same, *others, *(source[a] for source, one in placed for a in one.axes)]
            for axis in there:
                _dimensions.hold(axis, reason)
            result.append(there[0] if there[0].size == size else _dimensions.fresh(size, reason))
        elif same:
            result.append(same[0])
        else:
            # New axes repeat what is there, so they may lose any entry, unless they count.
            result.append(_dimensions.fresh(size, *([reason] if r in of.distinct else [])))
    return tuple(result)


_REGROUPED = {ir.Relation.MERGED, ir.Relation.SPLIT}
_TAKEN = {ir.Relation.WINDOWED, ir.Relation.UNKNOWN}


def _regrouped(
    eqn: Any, axes: Axes, along: Sequence[ir.Along], sizes: Sequence[int], reader: ChannelReader
) -> dict[int, _dimensions.Axis]:
    """Returns the axes that a reshape makes: merged axes are products, split ones become some."""
    result: dict[int, _dimensions.Axis] = {}
    for r, one in enumerate(along):
        if one.relation in _REGROUPED and r not in result:
            together = [i for i, other in enumerate(along) if other == one]
            # Row-major order: the new axes are read off the product of the old ones from the left.
            parts = _dimensions.split([axes[a] for a in one.axes], [sizes[i] for i in together])
            if parts is None:
                reason = reader.reason(eqn, _dimensions.RECTANGLE)
                for a in one.axes:
                    _dimensions.hold(axes[a], reason)
                parts = [_dimensions.fresh(sizes[i], reason) for i in together]
            result.update(zip(together, parts, strict=True))
    return result


def _composed(
    eqn: Any, placed: Sequence[tuple[Axes, ir.Along]], size: int, reader: ChannelReader
) -> _dimensions.Axis:
    """Returns an axis that is put together of parts of others, and of new entries between them."""
    reason, pieces, at = reader.reason(eqn), [], 0
    for operand_axes, one in placed:
        part, axis = one.part, operand_axes[one.axes[0]] if one.axes else None
        if part is None or axis is None or part.apart != 1:
            if axis is not None:
                _dimensions.hold(axis, reason)
            return _dimensions.fresh(size, reason)
        if part.at > at:
            pieces.append(_dimensions.fresh(part.at - at, reason))
        if part.step == -1:
            _dimensions.hold(axis, reason)
            pieces.append(axis)
        else:
            pieces.append(_part(eqn, axis, part.start, part.stop, part.step, reader))
        at = part.at + pieces[-1].size
    if at < size:
        pieces.append(_dimensions.fresh(size - at, reason))
    return pieces[0] if len(pieces) == 1 else _dimensions.Concatenation(tuple(pieces))


def _part(
    eqn: Any, axis: _dimensions.Axis, start: int, stop: int, stride: int, reader: ChannelReader
) -> _dimensions.Axis:
    if stride == 1 and (start, stop) == (0, axis.size):
        return axis
    size = len(range(start, stop, stride))
    # Nothing can go from it: the part needs no relation to the rest, and cutting it would split it
    # for nothing.
    if _dimensions.is_held(axis):
        return _dimensions.fresh(size, reader.reason(eqn))
    # A strided slice takes every k-th index: no expression of dimensions describes that.
    piece = _dimensions.cut(axis, start, stop) if stride == 1 else None
    if piece is None:
        reason = reader.reason(eqn, _dimensions.BLOCK)
        _dimensions.hold(axis, reason)
        return _dimensions.fresh(size, reason)
    return piece


def convolution(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Relates channels in and out; groups are a factor of both."""
    if eqn.params["batch_group_count"] != 1:
        return reader.unknown(eqn, axes, "groups of a batch")
    contraction = ir.Contraction.of(eqn)
    groups, (of_image, of_kernel, of_result) = contraction.groups, contraction.layouts
    batch, channels, *places = (axes[0][i] for i in of_image)
    out, inner, *taps = (axes[1][i] for i in of_kernel)
    reason = reader.reason(eqn)
    # Positions and taps are paired by arithmetic on indices: removing one would shift the others.
    for axis in (*places, *taps):
        _dimensions.hold(axis, reason + _dimensions.PLACE)
    if groups == 1:
        _dimensions.unify(channels, inner, reason)
    else:
        # A grouped convolution's channels are a product (group, channel in group). All groups lose
        # the same inner channels, so that the kernel stays one rectangular array.
        group = _dimensions.fresh(groups)
        _dimensions.unify(channels, _dimensions.AxisProduct((group, inner)), reason)
        _dimensions.unify(
            out, _dimensions.AxisProduct((group, _dimensions.fresh(out.size // groups))), reason
        )
    shape = eqn.outvars[0].aval.shape
    result = [_dimensions.fresh(int(n), reason + _dimensions.PLACE) for n in shape]
    result[of_result[0]], result[of_result[1]] = batch, out
    return [tuple(result)]


def random(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Leaves drawn axes free: bits are drawn at the old shape; a key has no channels."""
    for operand_axes in axes:
        for axis in operand_axes:
            _dimensions.hold(axis, reader.reason(eqn))
    return [tuple(_dimensions.fresh(int(n)) for n in v.aval.shape) for v in eqn.outvars]


def named(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Passes axes on, but those of drawn numbers."""
    return (random if is_drawn(eqn) else related)(eqn, axes, reader)


def is_drawn(eqn: Any) -> bool:
    """Tells whether an equation makes random numbers, which are drawn at the old shape and cut."""
    tagged = eqn.primitive is p.name_p and eqn.params["name"] == ir.DRAWN_TAG
    return tagged or eqn.primitive is p.random_bits_p


RULES: dict[Any, Rule] = {
    p.conv_general_dilated_p: convolution,
    p.name_p: named,
    p.random_bits_p: random,
    None: related,
}
"""By primitive: what a signature doesn't say. All others are read by their signatures."""


Dimensions = frozenset[_dimensions.Dimension]
_FIRST = {p.gather_p, p.dynamic_slice_p}
"""Of whose operands only the first is what comes out."""
_KEPT = {
    ir.OperationFamily.MOVE,
    ir.OperationFamily.SELECT,
    ir.OperationFamily.WINDOW,
    ir.OperationFamily.RUNNING,
    ir.OperationFamily.SCATTER,
}
"""Of these, results are zero where operands are, but for those below."""
_CHANGED = {p.pad_p, p.cumlogsumexp_p}
_NEUTRAL = {p.reduce_sum_p}


def every(labels: Labels, atom: Any) -> Dimensions:
    """Returns all dimensions of a value."""
    return frozenset(d for axis in labels.of(atom) for d in _dimensions.dimensions(axis))


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

    def program(self, program: Program, nonzero: Sequence[Dimensions]) -> list[Dimensions]:
        """Follows a program, given its inputs; gives its results."""
        # Constants aren't masked: they are taken to be nonzero everywhere.
        for value in program.constants:
            self.known[value] = every(self.labels, value)
        self.known.update(zip(program.inputs, nonzero, strict=True))
        for layer in program.layers:
            if layer.kind == "control flow":
                (node,) = layer.nodes
                results = self._control(node, layer.programs)
                self.known.update(zip(node.outputs, results, strict=True))
                continue
            if not layer.nodes:
                for value, made_value in zip(layer.inputs, layer.outputs, strict=True):
                    self.known[made_value] = self._of(value)
            reader = ChannelReader(self.labels, layer.site, {})
            for node in layer.nodes:
                read = [self._of(a) for a in node.inputs]
                results = self._equation(node, read, reader)
                self.known.update(zip(node.outputs, results, strict=True))
        return [self._of(a) for a in program.outputs]

    def _of(self, atom: Any) -> Dimensions:
        return frozenset() if isinstance(atom, Literal) else self.known[atom]

    def _equation(
        self, node: ir.Node, nonzero: Sequence[Dimensions], reader: ChannelReader
    ) -> list[Dimensions]:
        if node.primitive not in prim.CALLS | prim.CUSTOM:
            return self._note_crossings(node, nonzero, reader)
        # Not `entering`: each call of a jaxpr has labels of its own.
        inner = ChannelReader(reader.labels.bodies[id(node.eqn)], reader.where, {})

        def rule(e: Any, read: Sequence[Dimensions]) -> list[Dimensions]:
            return self._equation(ir.Node(e, e.invars, e.outvars), read, inner)

        def constant(atom: Any, value: Any) -> Dimensions:
            del value
            return frozenset() if isinstance(atom, Literal) else every(inner.labels, atom)

        return ir.walk(_compat.sub_jaxprs(node.eqn)[0], nonzero, rule, constant)

    def _note_crossings(
        self, node: ir.Node, nonzero: Sequence[Dimensions], reader: ChannelReader
    ) -> list[Dimensions]:
        """Follows one equation and notes what crosses in it."""
        labels, eqn, primitive = reader.labels, node.eqn, node.primitive
        inputs, outputs = node.inputs, node.outputs
        has = [every(labels, a) for a in inputs]
        results = [every(labels, v) for v in outputs]
        for axis in labels.numbers.averaged(eqn, inputs):
            reader.crosses(eqn, axis, _dimensions.MEAN)
        if primitive in prim.LINEAR:
            # A product is zero at a removed index if either factor is: x_c w_c with w_c masked.
            zero = (has[0] - nonzero[0]) | (has[1] - nonzero[1])
            right = labels.of(inputs[1])
            for i in ir.Contraction.of(eqn).summed(1):
                for dimension in _dimensions.dimensions(right[i]):
                    if dimension not in zero:
                        reader.crosses(eqn, dimension)
            return [results[0] - zero]
        if primitive in prim.REDUCTION:
            for i in eqn.params["axes"]:
                for dimension in _dimensions.dimensions(labels.of(inputs[0])[i]):
                    # Zero is neutral for a sum only: a maximum over negative entries would
                    # return the zero.
                    if primitive not in _NEUTRAL or dimension in nonzero[0]:
                        reader.crosses(eqn, dimension)
            return [results[0] & nonzero[0]]
        # Padding with anything but zero writes nonzero entries beside the removed ones.
        if primitive is p.pad_p:
            return results if labels.numbers.number(inputs[1]) != 0 else [results[0] & nonzero[0]]
        of = ir.signature(eqn)
        kept = of.family in _KEPT and primitive not in _CHANGED
        if kept or primitive is p.bitcast_convert_type_p:
            if of.repeated and labels.numbers.number(inputs[0]) == 0:
                return [frozenset()]
            count = 1 if primitive in _FIRST else len(inputs)
            zero = frozenset().union(*has[:count]) - frozenset().union(*nonzero[:count])
            return [of_result - zero for of_result in results]
        if primitive in prim.ELEMENTWISE:
            return [
                frozenset(
                    d
                    for d in results[0]
                    if not self._zero(eqn, inputs, nonzero, has, d, labels.numbers)
                )
            ]
        return results

    def _zero(
        self,
        eqn: Any,
        inputs: Sequence[Any],
        nonzeros: Sequence[Dimensions],
        has: Sequence[Dimensions],
        dimension: _dimensions.Dimension,
        numbers: Numbers,
    ) -> bool:
        """Returns whether a pointwise function is zero at the removed indices of a dimension."""
        values: list[Any] = []
        for atom, nonzero, there in zip(inputs, nonzeros, has, strict=True):
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
        # Evaluated once per primitive and operands: f(0) decides for a whole region of layers.
        key = (eqn.primitive, tuple(map(float, values)), str(eqn.params))
        if key not in self.zeros:
            operands = [np.asarray(v, a.aval.dtype) for v, a in zip(values, inputs, strict=True)]
            with jax.ensure_compile_time_eval():
                (result,) = _compat.bind(eqn, *operands)
            self.zeros[key] = bool(np.asarray(result) == 0)
        return self.zeros[key]

    def _control(self, node: ir.Node, programs: Sequence[Program]) -> list[Dimensions]:
        """Follows loops and branches; a loop's carry until nothing more may differ."""
        nonzero = [self._of(a) for a in node.inputs]
        read = ir.branch_operands(node, nonzero)
        if read is not None:
            branches = [self.program(branch, read) for branch in programs]
            return [frozenset().union(*in_branches) for in_branches in zip(*branches, strict=True)]
        loop = (ir.Scan if node.primitive is p.scan_p else ir.While).of(node, nonzero)
        *test, body = programs
        # The sets only grow and are bounded by the carry's dimensions: this ends.
        carry, stacked = ir.fixed_point(
            lambda carry: loop.split(self.program(body, loop.inputs(carry))),
            loop.carry,
            operator.or_,
        )
        # After the body: the test reads the carry of every iteration.
        if isinstance(loop, ir.While):
            self.program(test[0], loop.test_inputs(carry))
        return [*carry, *stacked]
