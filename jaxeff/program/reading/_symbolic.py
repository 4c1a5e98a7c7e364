"""Reads equations on symbols in place of arrays: the one walker under every recognition.

Functions are recognised by evaluating their equations on symbols: on text (`expression`), on
piecewise polynomials of one variable, on the statistics of a tensor (both in `moments`). These
are *domains*: a table from primitives to rules over the domain's symbols. Their common part is
here. Calls and custom derivatives are followed into their bodies. Deterministic operands are
evaluated, and remembered with the number they are everywhere. Equations that leave their operand as
it is are passed over. A selection whose condition is known is the case it selects. Anything without
a rule is `UNKNOWN`.

Sharp edges
- A function with derivatives of its own is read as its primal: what is recognised in it is
  differentiated anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.program.ir import Node, walk, walk_nodes
from jaxeff.program.ir import primitives as prim

Rule = Callable[..., Any]

_UNIFORM = {p.broadcast_in_dim_p, p.reshape_p, p.copy_p}


@dataclass(frozen=True)
class Constant:
    """A deterministic operand: an array, and its number where it is a known uniform one."""

    array: Any
    number: float | None = None


class Unknown:
    """A value that the domain has no symbol for."""


UNKNOWN = Unknown()


class UnreadableError(Exception):
    """Raised by a rule: the result has no symbol in this domain."""


def constant(value: Any) -> Constant:
    """Returns a deterministic value as a symbol."""
    if isinstance(value, np.ndarray | np.generic | float | int | bool) and np.ndim(value) == 0:
        return Constant(np.asarray(value), float(value))
    return Constant(value)


def known_number(eqn: Any, numbers: Sequence[float | None]) -> float | None:
    """Returns the number an equation's result is everywhere, if its operands' numbers tell.

    Args:
        eqn: An equation of deterministic operands.
        numbers: For each operand the number it is everywhere, or None.
    """
    if None in numbers or not numbers or len(eqn.outvars) != 1:
        return None
    if eqn.primitive in _UNIFORM:
        return numbers[0]
    if eqn.primitive not in prim.ELEMENTWISE:
        return None
    # In the operand's dtype and by the primitive itself: the number is what the array would
    # hold.
    scalars = [np.asarray(n, v.aval.dtype) for n, v in zip(numbers, eqn.invars, strict=True)]
    with jax.ensure_compile_time_eval():
        return float(_compat.bind(eqn, *scalars)[0])


class SymbolicReader:
    """Evaluates equations on symbols; a domain is a subclass with a table of rules.

    Attributes:
        rules: From a primitive to `rule(eqn, *operands)`, the symbol of its one result. It may
            raise `UnreadableError`.
        transparent: Primitives whose result is their operand.
    """

    rules: Mapping[Any, Rule] = {}
    transparent: ClassVar[set[Any]] = {prim.NAME, p.copy_p, p.stop_gradient_p}

    def constant(self, value: Any) -> Any:
        """Returns the symbol of a deterministic value."""
        return constant(value)

    def equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """Returns the symbols of an equation's results."""
        if eqn.primitive in prim.CALLS | prim.CUSTOM:
            return self.body(_compat.sub_jaxprs(eqn)[0], operands)
        if eqn.primitive in self.transparent:
            return list(operands)
        # Before the rules: a domain may know a selection's cases and not what its condition
        # means.
        chosen = _chosen(eqn, operands)
        return self.apply(eqn, operands) if chosen is None else [chosen]

    def apply(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """Returns the symbols of the results of an equation that isn't a call."""
        # Known numbers are kept beside arrays: an array may be a tracer, whose value can't
        # be read.
        if all(isinstance(o, Constant) for o in operands):
            arrays = _compat.bind(eqn, *(o.array for o in operands))
            number = known_number(eqn, [o.number for o in operands])
            return [Constant(v, number) for v in arrays]
        rule, count = self.rules.get(eqn.primitive), len(eqn.outvars)
        if rule is None or count != 1 or any(isinstance(o, Unknown) for o in operands):
            return [UNKNOWN] * count
        try:
            return [rule(eqn, *operands)]
        except UnreadableError:
            return [UNKNOWN]

    def body(self, closed: Any, operands: Sequence[Any]) -> list[Any]:
        """Returns the symbols of a jaxpr's results."""
        return walk(closed, operands, self.equation, self._constant)

    def nodes(
        self, nodes: Iterable[Node], symbols: Mapping[Any, Any], outputs: Sequence[Any]
    ) -> list[Any]:
        """Returns the symbols of `outputs`, given those of all that `nodes` read and don't make."""
        return walk_nodes(nodes, dict(symbols), outputs, self.equation, self._constant)

    def _constant(self, atom: Any, value: Any) -> Any:
        del atom
        return self.constant(value)


def _chosen(eqn: Any, operands: Sequence[Any]) -> Any:
    """Returns the case that a selection takes everywhere, None if that isn't known."""
    if eqn.primitive is not p.select_n_p or not isinstance(operands[0], Constant):
        return None
    number = operands[0].number
    return None if number is None else operands[1 + int(number)]
