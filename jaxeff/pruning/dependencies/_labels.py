"""The axes of every value of a program, related by its equations.

Each equation is read by the rule of its primitive (`_rules.py`), which gives the axes of its
results and unifies what has to lose the same indices. Equations without a rule hold all axes of
what they read: nothing is removed there, and the reason names the primitive. Loops and branches are
read once, their carried values unified with themselves.

`Numbers` follows numbers that came from a size, and says what they are once indices are gone. A sum
over an axis that is divided by how many entries it had is a mean, and stays one: it is divided by
how many are left. So is an unbiased variance's count less one. The root of a size, as attention's
1/sqrt(d), stays what it was unless asked: what it scales was trained with it. It is the root of
what has been contracted or, before that, of the last axis of such a size.

A number counts as a size where it is one: a literal, a constant, or what is computed of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Contraction, Node, Scan, While
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import _dimensions

p = prim.p

_MOVED = prim.BROADCAST_BACK | {p.convert_element_type_p}


@dataclass
class Numbers:
    """The numbers and sums followed through the equations of one scope.

    Attributes:
        known: Scalars whose value doesn't depend on the arguments.
        summed: For a sum over axes, or what is moved of it, the axes that it summed.
        contracted: The same of a contraction.
    """

    known: dict[Any, Any] = field(default_factory=dict)
    summed: dict[Any, tuple[_dimensions.Axis, ...]] = field(default_factory=dict)
    contracted: dict[Any, tuple[_dimensions.Axis, ...]] = field(default_factory=dict)

    def number(self, atom: Any) -> Any | None:
        """Returns the value of a real scalar that is known."""
        # A count is never complex, as the imaginary unit of a Fourier layer is.
        if jnp.issubdtype(atom.aval.dtype, jnp.complexfloating):
            return None
        if isinstance(atom, Literal):
            return np.asarray(atom.val) if np.ndim(atom.val) == 0 else None
        return self.known.get(atom)

    def follow(
        self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], axes: Sequence[Any]
    ) -> None:
        """Records what an equation makes of sums and known numbers."""
        if eqn.primitive is p.reduce_sum_p:
            self.summed[outputs[0]] = tuple(axes[0][i] for i in eqn.params["axes"])
        elif eqn.primitive is p.dot_general_p:
            summed = Contraction.of(eqn).summed(0)
            self.contracted[outputs[0]] = tuple(axes[0][i] for i in summed)
        elif eqn.primitive in _MOVED:
            self.give(inputs, self, outputs)
        if eqn.primitive in prim.ELEMENTWISE and all(not a.aval.shape for a in inputs):
            values = [self.number(a) for a in inputs]
            if all(value is not None for value in values):
                # A count may be computed (n - 1, the root of d): known scalars are followed through
                # arithmetic.
                with jax.ensure_compile_time_eval():
                    (number,) = _compat.bind(eqn, *values)
                self.known[outputs[0]] = np.asarray(number)

    def give(self, atoms: Sequence[Any], to: Numbers, names: Sequence[Any]) -> None:
        """Copies what is known of values to other names for them, as in the body of a call."""
        for atom, name in zip(atoms, names, strict=True):
            if (number := self.number(atom)) is not None and not name.aval.shape:
                to.known[name] = number
            if isinstance(atom, Literal):
                continue
            for mine, theirs in ((self.summed, to.summed), (self.contracted, to.contracted)):
                if atom in mine:
                    theirs[name] = mine[atom]

    def restated(
        self,
        eqn: Any,
        inputs: Sequence[Any],
        operands: Sequence[Any],
        axes: Callable[[Any], Sequence[_dimensions.Axis]],
        size: Callable[[_dimensions.Axis], int],
        counted: Callable[[_dimensions.Axis], int],
        *,
        rescale: bool,
    ) -> Sequence[Any]:
        """Returns the operands of an equation, its number replaced if it came from a size.

        Only products and quotients have such numbers. `inputs` are the operands in the program,
        `operands` their values; `axes` gives those of a value, `size` the indices of an axis that
        are left, `counted` those of them that count in a mean; `rescale` says whether roots of
        sizes follow, too.
        """
        if eqn.primitive not in prim.SCALING:
            return operands
        for i, j in ((0, 1), (1, 0))[: 1 if eqn.primitive is p.div_p else 2]:
            number = self.number(inputs[j])
            if number is None or isinstance(inputs[i], Literal):
                continue
            # A sum divided by its count is a mean: the count follows what is left. Anything else
            # stays.
            value = self._count(inputs[i], float(number), counted, eqn.primitive is p.mul_p)
            if value is None and rescale:
                # The contracted axis first: in q k / sqrt(d) the scale is that of the sum before
                # it.
                sizes = (*self.contracted.get(inputs[i], ()), *reversed(axes(inputs[i])))
                value = _root(float(number), sizes, size)
            if value is not None:
                changed = list(operands)
                changed[j] = np.asarray(value, inputs[j].aval.dtype)
                return changed
        return operands

    def averaged(self, eqn: Any, inputs: Sequence[Any]) -> tuple[_dimensions.Axis, ...]:
        """Returns the axes of a sum that an equation divides by how many entries it had."""
        if eqn.primitive not in prim.SCALING:
            return ()
        for i, j in ((0, 1), (1, 0))[: 1 if eqn.primitive is p.div_p else 2]:
            number = self.number(inputs[j])
            if number is None or isinstance(inputs[i], Literal):
                continue
            if self._less(inputs[i], float(number), eqn.primitive is p.mul_p) is not None:
                return self.summed[inputs[i]]
        return ()

    def _count(
        self, counted: Any, number: float, size: Callable[[_dimensions.Axis], int], inverse: bool
    ) -> float | None:
        """Returns a count for the new size; of an unbiased variance a count less one."""
        less = self._less(counted, number, inverse)
        if less is None:
            return None
        axes = self.summed[counted]
        new = int(np.prod([size(axis) for axis in axes], dtype=np.int64))
        # Nothing removed, or too little left for an unbiased count: the old number stays.
        if new == np.prod([axis.size for axis in axes], dtype=np.int64) or new <= less:
            return None
        return 1 / new if inverse else float(new - less)

    def _less(self, counted: Any, number: float, inverse: bool) -> int | None:
        """Returns by how much a number is below a sum's count (0 or 1), or None."""
        if counted not in self.summed:
            return None
        old = int(np.prod([axis.size for axis in self.summed[counted]], dtype=np.int64))
        if inverse:
            return 0 if abs(number * old - 1) <= 1e-6 else None
        # The tolerance is that of float32. A sum of one entry less one would divide by zero.
        matching = (less for less in (0, 1) if abs(number - (old - less)) <= 1e-6 * old)
        return next((less for less in matching if old > less), None)


def _root(
    number: float, axes: Sequence[_dimensions.Axis], size: Callable[[_dimensions.Axis], int]
) -> float | None:
    """Returns a size's root or its inverse for the new size; of equal sizes, the first's."""
    for axis in axes:
        old, new = axis.size, size(axis)
        for power in (0.5, -0.5) if old > 1 else ():
            if abs(number / old**power - 1) <= 1e-6:
                return None if old == new else float(new**power)
    return None


Axes = tuple[_dimensions.Axis, ...]


@dataclass
class Labels:
    """The axes of a program's values.

    Attributes:
        axes: Axes of every value, also inside loops.
        bodies: Axes of the jaxprs of custom derivatives, by the equation that calls them: there a
            variable may be called several times.
        numbers: Numbers that came from sizes.
        crossed: Places where removing indices isn't the same as masking them (`_channels.py`).
    """

    axes: dict[Any, Axes] = field(default_factory=dict)
    bodies: dict[Any, Labels] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)
    crossed: dict[_dimensions.Dimension, list[str]] = field(default_factory=dict)

    def of(self, atom: Any) -> Axes:
        """Returns the axes of a value or literal; a new value gets new ones."""
        if isinstance(atom, Literal):
            return tuple(_dimensions.fresh(int(n)) for n in np.shape(atom.val))
        if atom not in self.axes:
            self.axes[atom] = tuple(_dimensions.fresh(int(n)) for n in atom.aval.shape)
        return self.axes[atom]

    def set(self, value: Any, axes: Sequence[_dimensions.Axis]) -> None:
        """Records the axes of a result; those it has already are the same ones."""
        if value in self.axes:
            for known, axis in zip(self.axes[value], axes, strict=True):
                _dimensions.unify(known, axis, "its parts don't line up")
        else:
            self.axes[value] = tuple(axes)


Rule = Callable[[Any, Sequence[Axes], "ChannelReader"], Sequence[Axes]]


@dataclass
class ChannelReader:
    """Reads one layer's equations.

    Attributes:
        labels: Axes found so far, which it adds to.
        where: The site that errors and reasons name.
        rules: Rules by primitive; that of all others is under None.
        derived: Whether it's a derivative that is read, whose own derivatives aren't.
    """

    labels: Labels
    where: str
    rules: Mapping[Any, Rule]
    derived: bool = False

    def reason(self, eqn: Any, why: str = "") -> str:
        """Returns what forbids to remove an index, for people."""
        name = eqn.primitive.name
        place = f" at {self.where!r}" if self.where else ""
        line = _compat.source_line(eqn)
        return f"{name}{place}{f' ({why})' if why else ''}{f' [{line}]' if line else ''}"

    def equation(self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Relates the axes of an equation's operands and results."""
        labels, axes = self.labels, [self.labels.of(a) for a in inputs]
        results: Sequence[Axes]
        if eqn.primitive in prim.CALLS | prim.CUSTOM:
            results = self._called(eqn, inputs, outputs, axes)
        else:
            rule = self.rules.get(eqn.primitive, self.rules[None])
            results = rule(eqn, axes, self)
        for value, result_axes in zip(outputs, results, strict=True):
            labels.set(value, result_axes)
        labels.numbers.follow(eqn, inputs, outputs, axes)

    def unknown(self, eqn: Any, axes: Sequence[Axes], why: str = "") -> list[Axes]:
        """Holds everything that an equation reads; what it makes is held as well."""
        reason = self.reason(eqn, why)
        # The results are held too, with axes of their own: how they relate to the operands
        # is unknown.
        for operand_axes in axes:
            for axis in operand_axes:
                _dimensions.hold(axis, reason)
        return [tuple(_dimensions.fresh(int(n), reason) for n in v.aval.shape) for v in eqn.outvars]

    def crosses(self, eqn: Any, axis: _dimensions.Axis, why: str = "") -> None:
        """Notes that removing indices of an axis changes what is computed."""
        for dimension in _dimensions.dimensions(axis):
            notes = self.labels.crossed.setdefault(dimension, [])
            if (note := self.reason(eqn, why)) not in notes:
                notes.append(note)

    def _called(
        self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], axes: Sequence[Axes]
    ) -> list[Axes]:
        closed = _compat.sub_jaxprs(eqn)[0]
        inner = Labels(crossed=self.labels.crossed)
        # Variables of a jaxpr that is called twice are told apart by the call.
        self.labels.bodies[id(eqn)] = inner
        self.labels.numbers.give(inputs, inner.numbers, closed.jaxpr.invars)
        results = read_jaxpr(closed, axes, replace(self, labels=inner))
        inner.numbers.give(closed.jaxpr.outvars, self.labels.numbers, outputs)
        # The gradients of a custom derivative read the same channels: an axis that only its
        # backward pass would mix must be held in the forward pass as well.
        if eqn.primitive in prim.CUSTOM and not self.derived:
            places = call_axes(axes, results)
            for derivative in _derivatives(eqn):
                self.derivative(derivative, places)
        return results

    def derivative(self, derivative: Any, places: dict[tuple[str, int], Axes]) -> Labels:
        """Reads a derivative of a call: its gradients have to shrink as well.

        Args:
            derivative: What `_compat.derivatives` gives.
            places: The axes of the call's operands and results; those of residuals are added.
        """
        labels = Labels()
        reader = replace(self, labels=labels, derived=True)
        results = read_jaxpr(derivative.closed, [places[at] for at in derivative.inputs], reader)
        for at, result_axes in zip(derivative.outputs, results, strict=True):
            for known, axis in zip(
                places.setdefault(at, tuple(result_axes)), result_axes, strict=True
            ):
                _dimensions.unify(known, axis, f"the derivative at {self.where!r}")
        return labels


def _derivatives(eqn: Any) -> list[Any]:
    """Returns a call's derivatives; none where the function can't be differentiated."""
    try:
        return _compat.derivatives(eqn)
    except (TypeError, ValueError, NotImplementedError):
        return []


def call_axes(operands: Sequence[Axes], results: Sequence[Axes]) -> dict[tuple[str, int], Axes]:
    """Returns the axes of a call's operands and results, by what derivatives call them."""
    places = {("operand", i): value_axes for i, value_axes in enumerate(operands)}
    return places | {("result", i): value_axes for i, value_axes in enumerate(results)}


def read_jaxpr(closed: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Reads the equations of a jaxpr; gives the axes of its results."""
    labels, jaxpr = reader.labels, closed.jaxpr
    _scalars(labels, dict(zip(jaxpr.constvars, closed.consts, strict=True)))
    for var, input_axes in zip(jaxpr.invars, axes, strict=True):
        labels.set(var, input_axes)
    for eqn in _compat.equations(jaxpr):
        reader.equation(eqn, eqn.invars, eqn.outvars)
    return [labels.of(a) for a in jaxpr.outvars]


def read_program(program: Program, labels: Labels, rules: Mapping[Any, Rule]) -> None:
    """Reads the layers of a program, loops and branches included."""
    _scalars(labels, program.constants)
    for layer in program.layers:
        if layer.kind == "control flow":
            _control(layer, labels, rules)
            continue
        reader = ChannelReader(labels, layer.site, rules)
        if not layer.nodes:
            for value, output in zip(layer.inputs, layer.outputs, strict=True):
                labels.set(output, labels.of(value))
        for node in layer.nodes:
            reader.equation(node.eqn, node.inputs, node.outputs)


def _scalars(labels: Labels, constants: Mapping[Any, Any]) -> None:
    for value, number in constants.items():
        traced = isinstance(number, jax.core.Tracer)
        if not traced and not np.shape(number) and not _compat.is_key(number):
            labels.numbers.known[value] = np.asarray(number)


def _control(layer: Layer, labels: Labels, rules: Mapping[Any, Rule]) -> None:
    """Unifies what goes into a body with its inputs, and what a loop carries with itself."""
    (node,) = layer.nodes
    axes = [labels.of(a) for a in node.inputs]
    reader = ChannelReader(labels, layer.site, rules)
    bodies = {p.scan_p: _scan, p.while_p: _while, p.cond_p: _cond, p.remat_p: _remat}
    for value, result_axes in zip(
        node.outputs, bodies[node.primitive](node, layer.programs, axes, reader), strict=True
    ):
        labels.set(value, result_axes)


def _body(program: Program, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    for value, input_axes in zip(program.inputs, axes, strict=True):
        reader.labels.set(value, input_axes)
    read_program(program, reader.labels, reader.rules)
    return [reader.labels.of(a) for a in program.outputs]


def _scan(
    node: Node, programs: Sequence[Program], axes: Sequence[Axes], reader: ChannelReader
) -> list[Axes]:
    loop = Scan.of(node, axes)
    reason = reader.reason(node.eqn, _dimensions.ALONG)
    along = _dimensions.fresh(loop.length, reason)
    for operand_axes in loop.xs:
        _dimensions.unify(along, operand_axes[0], reason)
    rows = [operand_axes[1:] for operand_axes in loop.xs]
    after, stacked = loop.split(_body(programs[0], loop.inputs(loop.carry, rows), reader))
    # An index that a step removes from the carry must be removed before the next step as
    # well: input and output of the body lose the same ones.
    _same(loop.carry, after, reason)
    return [*loop.carry, *((along, *operand_axes) for operand_axes in stacked)]


def _while(
    node: Node, programs: Sequence[Program], axes: Sequence[Axes], reader: ChannelReader
) -> list[Axes]:
    test, body = programs
    loop = While.of(node, axes)
    after = _body(body, loop.inputs(loop.carry), reader)
    _body(test, loop.test_inputs(loop.carry), reader)
    _same(loop.carry, after, reader.reason(node.eqn))
    return loop.carry


def _cond(
    node: Node, programs: Sequence[Program], axes: Sequence[Axes], reader: ChannelReader
) -> list[Axes]:
    # Which branch runs isn't known: all of them lose the same indices.
    branches = [_body(program, axes[1:], reader) for program in programs]
    for other in branches[1:]:
        _same(branches[0], other, reader.reason(node.eqn))
    return branches[0]


def _remat(
    node: Node, programs: Sequence[Program], axes: Sequence[Axes], reader: ChannelReader
) -> list[Axes]:
    del node
    return _body(programs[0], axes, reader)


def _same(ones: Sequence[Axes], others: Sequence[Axes], reason: str) -> None:
    for one, other in zip(ones, others, strict=True):
        for a, b in zip(one, other, strict=True):
            _dimensions.unify(a, b, reason)
