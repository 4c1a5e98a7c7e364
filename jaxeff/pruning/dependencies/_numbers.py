"""Numbers that came from a size: which ones, and what they are once indices are gone.

A sum over an axis that is divided by how many entries it had is a mean, and stays one: it is
divided by how many are left. So is an unbiased variance's count less one. The root of a size, as
attention's 1/sqrt(d), stays what it was unless asked: what it scales was trained with it. It is the
root of what has been contracted or, before that, of the last axis of such a size.

A number counts as a size where it is one: a literal, a constant, or what is computed of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Contraction
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies._dimensions import Axis

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
    summed: dict[Any, tuple[Axis, ...]] = field(default_factory=dict)
    contracted: dict[Any, tuple[Axis, ...]] = field(default_factory=dict)

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
                    (found,) = _compat.bind(eqn, *values)
                self.known[outputs[0]] = np.asarray(found)

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
        axes: Callable[[Any], Sequence[Axis]],
        size: Callable[[Axis], int],
        counted: Callable[[Axis], int],
        *,
        rescale: bool,
    ) -> Sequence[Any]:
        """Returns the operands of an equation, its number replaced if it came from a size.

        Args:
            eqn: The equation; only products and quotients have such numbers.
            inputs: The operands in the program.
            operands: Their values.
            axes: The axes of a value.
            size: Number of indices of an axis that are left.
            counted: Number of them that count in a mean.
            rescale: Whether roots of sizes follow, too.
        """
        if eqn.primitive not in {p.div_p, p.mul_p}:
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

    def averaged(self, eqn: Any, inputs: Sequence[Any]) -> tuple[Axis, ...]:
        """Returns the axes of a sum that an equation divides by how many entries it had."""
        if eqn.primitive not in {p.div_p, p.mul_p}:
            return ()
        for i, j in ((0, 1), (1, 0))[: 1 if eqn.primitive is p.div_p else 2]:
            number = self.number(inputs[j])
            if number is None or isinstance(inputs[i], Literal):
                continue
            if self._less(inputs[i], float(number), eqn.primitive is p.mul_p) is not None:
                return self.summed[inputs[i]]
        return ()

    def _count(
        self, counted: Any, number: float, size: Callable[[Axis], int], inverse: bool
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


def _root(number: float, axes: Sequence[Axis], size: Callable[[Axis], int]) -> float | None:
    """Returns a size's root or its inverse for the new size; of equal sizes, the first's."""
    for axis in axes:
        old, new = axis.size, size(axis)
        for power in (0.5, -0.5) if old > 1 else ():
            if abs(number / old**power - 1) <= 1e-6:
                return None if old == new else float(new**power)
    return None
