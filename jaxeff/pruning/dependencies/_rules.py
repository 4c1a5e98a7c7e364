"""Rules of primitives: relations between the axes of operands and results.

A rule is `rule(eqn, axes, reader) -> axes of each result`. It unifies what loses the same indices
and holds what can't lose any, with a reason that names the primitive, the site and the line.

First stand those that take or make a part of an axis, or put its entries in another order; last
`Crossing`, which says of every value at which removed channels it isn't known to be zero.
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
from jaxeff.program.ir import DRAWN_TAG, Contraction, Node, Scan, While, fixed_point, walk
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies._dimensions import (
    BLOCK,
    MEAN,
    ONE,
    PLACE,
    RECTANGLE,
    Axis,
    AxisProduct,
    Concatenation,
    Dimension,
    cut,
    dimensions,
    fresh,
    hold,
    is_held,
    kept_if,
    split,
    unify,
)
from jaxeff.pruning.dependencies._labels import Axes, ChannelReader, Labels, Numbers, Rule

p = prim.p


def slicing(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Cuts ranges out of axes."""
    q = eqn.params
    strides = q["strides"] or (1,) * len(axes[0])
    result: list[Axis] = []
    for axis, start, stop, stride in zip(
        axes[0], q["start_indices"], q["limit_indices"], strides, strict=True
    ):
        result.append(_part(eqn, axis, start, stop, stride, reader))
    return [tuple(result)]


def splitting(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Cuts an axis into parts."""
    along, start = eqn.params["axis"], 0
    results = []
    for size in eqn.params["sizes"]:
        found = list(axes[0])
        found[along] = _part(eqn, axes[0][along], start, start + size, 1, reader)
        results.append(tuple(found))
        start += size
    return results


def _part(eqn: Any, axis: Axis, start: int, stop: int, stride: int, reader: ChannelReader) -> Axis:
    if stride == 1 and (start, stop) == (0, axis.size):
        return axis
    size = len(range(start, stop, stride))
    # Nothing can go from it: the part needs no relation to the rest, and cutting it would split it
    # for nothing.
    if is_held(axis):
        return fresh(size, reader.reason(eqn))
    # A strided slice takes every k-th index: no expression of dimensions describes that.
    found = cut(axis, start, stop) if stride == 1 else None
    if found is None:
        reason = reader.reason(eqn, BLOCK)
        hold(axis, reason)
        return fresh(size, reason)
    return found


def padding(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Puts constants around axes: a concatenation with ends that can't lose indices."""
    result: list[Axis] = []
    sizes = eqn.outvars[0].aval.shape
    for axis, (low, high, inside), n in zip(
        axes[0], eqn.params["padding_config"], sizes, strict=True
    ):
        if (low, high, inside) == (0, 0, 0):
            result.append(axis)
        # Interior padding and cropping move indices: no concatenation describes them.
        elif is_held(axis) or inside or low < 0 or high < 0:
            hold(axis, reader.reason(eqn))
            result.append(fresh(int(n), reader.reason(eqn)))
        else:
            ends = [fresh(k, reader.reason(eqn)) for k in (low, high)]
            parts = [part for part, k in ((ends[0], low), (axis, 1), (ends[1], high)) if k]
            result.append(Concatenation(tuple(parts)))
    return [tuple(result)]


def gather(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Takes rows of a table: axes that are taken in full are the result's, others are held."""
    q = eqn.params
    numbers = q["dimension_numbers"]
    table, indices = axes
    batching = {*numbers.operand_batching_dims}
    gone = {*numbers.collapsed_slice_dims, *batching}
    whole: list[Axis] = []
    for i, (axis, n) in enumerate(zip(table, q["slice_sizes"], strict=True)):
        # Only axes that every look-up takes completely can lose indices; where the start is
        # data, an index means a position.
        full = n == axis.size and i not in numbers.start_index_map
        if not full and i not in batching:
            hold(axis, reader.reason(eqn))
        if i not in gone:
            whole.append(axis if full else fresh(int(n), reader.reason(eqn)))
    for one, other in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        # Batched look-ups pair rows of the table with rows of indices.
        unify(table[one], indices[other], reader.reason(eqn))
    # The last axis of the indices holds coordinates, one per indexed axis.
    hold(indices[-1], reader.reason(eqn))
    rows, offsets = iter(indices[:-1]), iter(whole)
    rank = eqn.outvars[0].aval.ndim
    places = set(numbers.offset_dims)
    return [tuple(next(offsets) if i in places else next(rows) for i in range(rank))]


def dynamic_slice(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds axes whose range is known only when it runs."""
    sizes = zip(axes[0], eqn.params["slice_sizes"], strict=True)
    return [tuple(kept_if(axis.size == n, axis, int(n), reader.reason(eqn)) for axis, n in sizes)]


def dynamic_update(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Relates an array to a part that is written into it."""
    for axis, part in zip(axes[0], axes[1], strict=True):
        if axis.size == part.size:
            unify(axis, part, reader.reason(eqn))
        else:
            hold(axis, reader.reason(eqn))
            hold(part, reader.reason(eqn))
    return [axes[0]]


def sort(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds the axis whose entries change places."""
    first, *others = axes
    hold(first[eqn.params["dimension"]], reader.reason(eqn))
    for other in others:
        for a, b in zip(first, other, strict=True):
            unify(a, b, reader.reason(eqn))
    return [first] * len(axes)


def top(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds the axis whose largest entries are taken."""
    # The places it returns are indices among all entries: with fewer they would mean others.
    along = eqn.params["axis"] % len(axes[0]) if "axis" in eqn.params else len(axes[0]) - 1
    hold(axes[0][along], reader.reason(eqn))
    found = list(axes[0])
    found[along] = fresh(eqn.outvars[0].aval.shape[along], reader.reason(eqn))
    return [tuple(found)] * len(eqn.outvars)


_RUNNING = {p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p, p.cumlogsumexp_p}
_PASSED = {p.name_p, p.copy_p, p.sharding_constraint_p, p.device_put_p, p.stop_gradient_p}


def elementwise(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Unifies the axes of operands at the same position."""
    (result,) = eqn.outvars
    made: list[Axis] = []
    for i, n in enumerate(result.aval.shape):
        # A scalar stands for an array, and an axis of one index for any.
        there = [
            found[i] for found in axes if len(found) == result.aval.ndim and found[i].size == n
        ]
        for other in there[1:]:
            unify(there[0], other, reader.reason(eqn))
        made.append(there[0] if there else fresh(int(n)))
    return [tuple(made)]


def broadcast(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Makes new axes; they repeat what is there, so they may lose any index."""
    del reader
    shape = eqn.params["shape"]
    result: list[Axis] = [fresh(int(n)) for n in shape]
    for source, target in enumerate(eqn.params["broadcast_dimensions"]):
        if axes[0][source].size == shape[target]:
            result[target] = axes[0][source]
    return [tuple(result)]


def reshape(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Makes merged axes products; an axis that is split becomes one."""
    sizes = [int(n) for n in eqn.params["new_sizes"]]
    kept_axes = _unchanged(list(axes[0]), sizes)
    if kept_axes is not None:
        return [tuple(kept_axes)]
    # Row-major order: the new axes are read off the product of all old ones from the left.
    found = split(list(axes[0]), sizes)
    if found is None:
        return reader.unknown(eqn, axes, RECTANGLE)
    return [tuple(found)]


def _unchanged(axes: list[Axis], sizes: list[int]) -> list[Axis] | None:
    """Returns the axes where only axes of one index come and go."""
    rest = [axis for axis in axes if axis.size != 1]
    if [axis.size for axis in rest] != [n for n in sizes if n != 1]:
        return None
    left = iter(rest)
    return [ONE if n == 1 else next(left) for n in sizes]


def squeeze(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Drops axes of size one."""
    del reader
    gone = {d % len(axes[0]) for d in eqn.params["dimensions"]}
    return [tuple(axis for i, axis in enumerate(axes[0]) if i not in gone)]


def transpose(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Permutes axes."""
    del reader
    return [tuple(axes[0][i] for i in eqn.params["permutation"])]


def reduction(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Drops axes; those of argmax are held, for an index means nothing without the others."""
    # A sum may lose indices (`_crossing` notes where that changes it); a place may not.
    gone = set(eqn.params["axes"])
    for i in gone:
        if eqn.primitive in {p.argmax_p, p.argmin_p}:
            hold(axes[0][i], reader.reason(eqn))
    return [tuple(axis for i, axis in enumerate(axes[0]) if i not in gone)]


def running(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds the axis: later entries depend on earlier ones."""
    hold(axes[0][eqn.params["axis"]], reader.reason(eqn))
    return [axes[0]]


def dot(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Unifies summed axes and batch axes of both sides."""
    c = Contraction.of(eqn)
    for one, other in zip(c.summed(0) + c.batch(0), c.summed(1) + c.batch(1), strict=True):
        unify(axes[0][one], axes[1][other], reader.reason(eqn))
    # Result axes in JAX's order: batch, then the free axes of the left and of the right
    # operand.
    left = (axes[0][i] for i in c.batch(0) + c.free(0))
    return [(*left, *(axes[1][i] for i in c.free(1)))]


def convolution(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Relates channels in and out; groups are a factor of both."""
    if eqn.params["batch_group_count"] != 1:
        return reader.unknown(eqn, axes, "groups of a batch")
    contraction = Contraction.of(eqn)
    groups, (of_image, of_kernel, of_result) = contraction.groups, contraction.layouts
    batch, channels, *places = (axes[0][i] for i in of_image)
    out, inner, *taps = (axes[1][i] for i in of_kernel)
    reason = reader.reason(eqn)
    # Positions and taps are paired by arithmetic on indices: removing one would shift the
    # others.
    for axis in (*places, *taps):
        hold(axis, reason + PLACE)
    if groups == 1:
        unify(channels, inner, reason)
    else:
        # A grouped convolution's channels are a product (group, channel in group). All
        # groups lose the same inner channels, so that the kernel stays one rectangular
        # array.
        group = fresh(groups)
        unify(channels, AxisProduct((group, inner)), reason)
        unify(out, AxisProduct((group, fresh(out.size // groups))), reason)
    shape = eqn.outvars[0].aval.shape
    result = [fresh(int(n), reason + PLACE) for n in shape]
    result[of_result[0]], result[of_result[1]] = batch, out
    return [tuple(result)]


def window(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Keeps axes along which the window has size one, holds the others."""
    q = eqn.params
    result = []
    for i, (axis, n) in enumerate(zip(axes[0], eqn.outvars[0].aval.shape, strict=True)):
        whole = q["window_dimensions"][i] == q["window_strides"][i] == 1
        result.append(kept_if(whole and axis.size == n, axis, int(n), reader.reason(eqn)))
    return [tuple(result)]


def concatenation(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Concatenates along one axis and unifies the others."""
    along = eqn.params["dimension"]
    first, *others = axes
    for other in others:
        for i, (a, b) in enumerate(zip(first, other, strict=True)):
            if i != along:
                unify(a, b, reader.reason(eqn))
    result = list(first)
    result[along] = Concatenation(tuple(found[along] for found in axes))
    return [tuple(result)]


def reverse(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds reversed axes."""
    for i in eqn.params["dimensions"]:
        hold(axes[0][i], reader.reason(eqn))
    return [axes[0]]


def iota(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds the axis that is numbered; all others may lose indices."""
    del axes
    shape = eqn.params["shape"]
    result = [fresh(int(n)) for n in shape]
    hold(result[eqn.params["dimension"]], reader.reason(eqn))
    return [tuple(result)]


def random(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Leaves drawn axes free: bits are drawn at the old shape; a key has no channels."""
    for found in axes:
        for axis in found:
            hold(axis, reader.reason(eqn))
    return [tuple(fresh(int(n)) for n in v.aval.shape) for v in eqn.outvars]


def bitcast(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Passes axes on if both types have the same width."""
    if eqn.outvars[0].aval.ndim != len(axes[0]):
        return reader.unknown(eqn, axes, "the types have other widths")
    return list(axes)


def passed(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Passes axes on, but those of drawn numbers."""
    if is_drawn(eqn):
        return random(eqn, axes, reader)
    return list(axes)


def is_drawn(eqn: Any) -> bool:
    """Tells whether an equation makes random numbers, which are drawn at the old shape and cut."""
    tagged = eqn.primitive is p.name_p and eqn.params["name"] == DRAWN_TAG
    return tagged or eqn.primitive is p.random_bits_p


RULES: dict[Any, Rule] = {
    **dict.fromkeys(prim.ELEMENTWISE, elementwise),
    **dict.fromkeys(prim.REDUCTION, reduction),
    **dict.fromkeys(prim.WINDOW, window),
    **dict.fromkeys(_RUNNING, running),
    **dict.fromkeys(_PASSED, passed),
    p.broadcast_in_dim_p: broadcast,
    p.reshape_p: reshape,
    p.squeeze_p: squeeze,
    p.transpose_p: transpose,
    p.dot_general_p: dot,
    p.conv_general_dilated_p: convolution,
    p.concatenate_p: concatenation,
    p.rev_p: reverse,
    p.iota_p: iota,
    p.bitcast_convert_type_p: bitcast,
    p.random_bits_p: random,
    p.slice_p: slicing,
    split_p: splitting,
    p.pad_p: padding,
    p.gather_p: gather,
    p.dynamic_slice_p: dynamic_slice,
    p.dynamic_update_slice_p: dynamic_update,
    p.sort_p: sort,
    p.top_k_p: top,
}
"""By primitive. Whatever isn't here holds what it reads."""


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
