"""Computes products of a loop's rows before the loop, and products of one operand as one.

A recurrent cell multiplies every step's input by the weights of its gates, and its state by others.
Inputs are all known before the first step: their products are one matrix product over all steps,
which reads each weight once and not once a step. Gates that read the same operand are one product
whose weights lie side by side; where those depend on parameters alone, they are laid out once, when
a function is deployed.

`products_ahead(f)` is read by `jaxeff_export.deploy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxeff.core import JaxprEqn, Literal, bind
from jaxeff.core import primitives as p
from jaxeff.program.ir._signature import OperationFamily, signature
from jaxeff.program.ir._walk import Scan, entering, evaluated_by, inlined, walk

MOST_BYTES = 1 << 26
"""What the products of all steps may take; larger ones stay in their loop."""
_FIXED, _ROW, _CARRIED = range(3)  # what a value depends on, at most
_FOR_ALL_ROWS = {
    OperationFamily.ELEMENTWISE, OperationFamily.MOVE, OperationFamily.REDUCE,
    OperationFamily.CONTRACTION,
}  # fmt: skip
"""What is computed of all rows at once as it is of each: random bits, for one, aren't."""


def products_ahead(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of the same results whose scans multiply as little as they can.

    Results are those of `f` up to the rounding of sums. Where no scan has such products, it is `f`.

    Args:
        f: A pure function of arrays.
    """

    def rule_for(closed: Any, arrays: Any) -> Any:
        return _entered if any(eqn.primitive is p.scan_p for eqn in inlined(closed)) else None

    return evaluated_by(f, rule_for)


@dataclass(frozen=True)
class _Product:
    """Products of one operand by fixed matrices.

    Attributes:
        equations: Products of the program.
        row: Whether the operand is known before the loop.
    """

    equations: tuple[JaxprEqn, ...]
    row: bool

    @property
    def axis(self) -> int:
        """The axis of the matrices along which they are laid side by side."""
        ((_, (summed,)), _) = self.equations[0].params["dimension_numbers"]
        return 1 - int(summed)

    def weights(self, read: Callable[[Any], Any]) -> Any:
        """Lays the matrices side by side."""
        # A single one stays as it is: a copy would be a second array of parameters.
        matrices = [read(eqn.invars[1]) for eqn in self.equations]
        return matrices[0] if len(matrices) == 1 else jnp.concatenate(matrices, self.axis)

    def parts(self, product: Any) -> Sequence[Any]:
        """Splits the product of all into those of each."""
        # Columns of the product are those of the matrices, in their order.
        results: list[Any] = [eqn.outvars[0].aval for eqn in self.equations]
        widths = [result.shape[-1] for result in results]
        return lax.split(product, widths, product.ndim - 1) if len(widths) > 1 else [product]


def _scanned(eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    """Evaluates an equation; of a scan, its products before it and together."""
    if eqn.primitive is not p.scan_p:
        return bind(eqn, *values)
    loop: Scan[Any] = Scan.of(eqn, values)
    inside, levels = _levels(loop)
    products = _grouped(inside, levels, loop.length)
    if not any(product.row or len(product.equations) > 1 for product in products):
        return bind(eqn, *values)
    fixed = dict(zip(loop.body.jaxpr.constvars, loop.body.consts, strict=True))
    fixed.update(zip(loop.body.jaxpr.invars, loop.consts, strict=False))
    # Weights are laid side by side once, outside of the loop.
    matrices = [each.invars[1] for product in products for each in product.equations]
    _compute(_makers(inside, matrices), fixed)
    weights = [product.weights(lambda v: _read(v, fixed)) for product in products]
    # Of every row, in one product, whatever the products of rows come from.
    rows = [i for i, product in enumerate(products) if product.row]
    operands = [products[i].equations[0].invars[0] for i in rows]
    makers = _makers(inside, operands)
    # Beside the operands themselves, what they come from, such as rows that are scaled first.
    row_names = loop.body.jaxpr.invars[len(loop.consts) + len(loop.carry) :]

    def of_row(row: Sequence[Any]) -> list[Any]:
        known = fixed | dict(zip(row_names, row, strict=True))
        _compute(makers, known)
        pairs = zip(rows, operands, strict=True)
        return [bind(products[i].equations[0], _read(v, known), weights[i])[0] for i, v in pairs]

    def step(carry: Sequence[Any], rows_and_products: tuple[Sequence[Any], Sequence[Any]]) -> Any:
        row, done = rows_and_products
        # All that a step doesn't have to compute any more is known when it begins.
        known = fixed | dict(zip(loop.body.jaxpr.invars, loop.inputs(carry, row), strict=True))
        ready = dict(zip(rows, done, strict=True))
        for i, product in ready.items():
            known.update(_by_variable(products[i], product))
        first = {
            id(product.equations[0]): i for i, product in enumerate(products) if i not in ready
        }
        # A product takes the place of the first of its group; the others are known by then.
        for each in inside:
            if id(each) in first:
                i = first[id(each)]
                (product,) = bind(each, _read(each.invars[0], known), weights[i])
                known.update(_by_variable(products[i], product))
            elif not all(v in known for v in each.outvars):
                _compute([each], known)
        return loop.split([_read(v, known) for v in loop.body.jaxpr.outvars])

    # The vmap of a product by one matrix is one product of a matrix of all rows.
    ahead = jax.vmap(of_row)(loop.xs) if rows else []
    carry, ys = lax.scan(step, loop.carry, (loop.xs, ahead), loop.length, loop.reverse, loop.unroll)
    return [*carry, *ys]


_entered = entering(_scanned)


def _levels(loop: Scan[Any]) -> tuple[list[JaxprEqn], dict[Any, int]]:
    """Finds what each value of a body depends on: nothing of the loop, its rows, or its carry.

    Returns the body's equations, and the levels of its variables.
    """
    names = loop.body.jaxpr.invars
    sizes = len(loop.consts), len(loop.carry), len(loop.xs)
    of_inputs = np.repeat([_FIXED, _CARRIED, _ROW], sizes).tolist()
    levels = dict(zip(names, of_inputs, strict=True))
    levels.update(dict.fromkeys(loop.body.jaxpr.constvars, _FIXED))
    inside = []

    def rule(eqn: JaxprEqn, read: Sequence[int]) -> Sequence[int]:
        level = max(read, default=_FIXED)
        if eqn.effects or (level == _ROW and signature(eqn).family not in _FOR_ALL_ROWS):
            level = _CARRIED
        inside.append(eqn)
        levels.update(dict.fromkeys(eqn.outvars, level))
        return [level] * len(eqn.outvars)

    # Literals depend on nothing, whatever reads them.
    walk(loop.body, of_inputs, rule, lambda atom, value: _FIXED)
    return inside, levels


def _grouped(inside: Sequence[JaxprEqn], levels: dict[Any, int], length: int) -> list[_Product]:
    """Groups the products of a body by fixed matrices that can be one."""
    groups: dict[Any, list[JaxprEqn]] = {}
    for eqn in inside:
        if eqn.primitive is not p.dot_general_p or any(isinstance(v, Literal) for v in eqn.invars):
            continue
        x, w = eqn.invars
        matrix: Any = w.aval
        (summed, batch) = eqn.params["dimension_numbers"]
        # Any other product, such as one of rows by rows, is its own in every step.
        plain = not any(batch) and len(summed[1]) == 1 and matrix.ndim == 2
        if plain and levels[w] == _FIXED and levels[x] != _FIXED:
            alike = str(sorted(eqn.params.items(), key=str)), matrix.dtype
            groups.setdefault((x, *alike), []).append(eqn)
    products = []
    for (x, *_), together in groups.items():
        results: list[Any] = [eqn.outvars[0].aval for eqn in together]
        size = sum(result.size * result.dtype.itemsize for result in results)
        # A batch that only a call determines has no size that could be compared.
        fits = isinstance(size, int) and size * length <= MOST_BYTES
        row = levels[x] == _ROW and length > 1 and fits
        products.append(_Product(tuple(together), row))
    return products


def _makers(inside: Sequence[JaxprEqn], wanted: Iterable[Any]) -> list[JaxprEqn]:
    """Lists the equations of a body that values come from, in their order."""
    needed = {v for v in wanted if not isinstance(v, Literal)}
    makers = []
    # From the last to the first: what an equation reads is needed once the equation is.
    for eqn in reversed(inside):
        if needed.intersection(eqn.outvars):
            makers.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return makers[::-1]


def _compute(makers: Iterable[JaxprEqn], known: dict[Any, Any]) -> None:
    """Adds what equations make of what is known."""
    for eqn in makers:
        results = _entered(eqn, [_read(v, known) for v in eqn.invars])
        known.update(zip(eqn.outvars, results, strict=True))


def _by_variable(product: _Product, array: Any) -> list[tuple[Any, Any]]:
    results = [eqn.outvars[0] for eqn in product.equations]
    return list(zip(results, product.parts(array), strict=True))


def _read(atom: Any, known: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]
