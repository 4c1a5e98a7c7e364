"""Along which axes results vary by themselves: by weights, by captured arrays, by their place.

What a function makes of one example alone is what it makes of it in a batch only if nothing but the
example itself differs from row to row. A captured array with a row per example does, and so do
positions that are counted along the examples, rows of a table of them, and random bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence._lineage import FOLLOWED, SHARED, made_apart, through
from jaxeff.program import Program
from jaxeff.program.ir import Scan, Value, entering, fixed_point, walk, walk_nodes

Axes = tuple[bool, ...]
"""Whether an array may vary along each axis, for another reason than the data."""

_NEW = {
    p.cond_p, p.while_p,
    p.random_bits_p, p.random_fold_in_p, p.random_gamma_p, p.random_seed_p, p.random_split_p,
    p.rng_bit_generator_p, p.rng_uniform_p, p.threefry2x32_p,
}  # fmt: skip


def varying_axes(program: Program) -> list[Axes]:
    """Finds the axes of a program's outputs along which more differs than its data.

    In doubt (a branch, a loop that isn't a scan) every axis is one.
    """
    known: dict[Any, Axes] = {v: _all_of(v.aval.shape) for v in program.constants}
    for value in program.inputs:
        shape = value.aval.shape
        known[value] = (False,) * len(shape) if value.is_data else _all_of(shape)
    for layer in program.layers:
        if not layer.nodes:
            known.update(zip(layer.outputs, (known[v] for v in layer.inputs), strict=True))
        walk_nodes(layer.nodes, known, (), _rule, _constant)
    outputs = program.outputs
    return [known[v] if isinstance(v, Value) else _all_of(v.aval.shape) for v in outputs]


def _all_of(shape: Sequence[int]) -> Axes:
    # Along an axis of one place there is nothing to differ.
    return tuple(n != 1 for n in shape)


def _constant(atom: Any, value: Any) -> Axes:
    del value
    return _all_of(atom.aval.shape)


def _equation(eqn: Any, operands: list[Axes]) -> list[Axes]:
    shapes = [tuple(v.aval.shape) for v in eqn.outvars]
    if eqn.primitive is p.scan_p:
        return _scan(eqn, operands)
    if eqn.primitive in _NEW or (eqn.primitive not in FOLLOWED and any(map(any, operands))):
        return [_all_of(shape) for shape in shapes]
    # Each operand is a source of its own, so that two views of one array don't hide each other.
    lineages = [
        {i: tuple(a if varies else SHARED for a, varies in enumerate(axes))} if any(axes) else {}
        for i, axes in enumerate(operands)
    ]
    results, _ = through(eqn, lineages)
    apart = made_apart(eqn)
    return [
        tuple(
            n != 1 and (a in apart or any(x[a] != SHARED for x in found.values()))
            for a, n in enumerate(shape)
        )
        for found, shape in zip(results, shapes, strict=True)
    ]


_rule = entering(_equation, _constant)


def _scan(eqn: Any, operands: list[Axes]) -> list[Axes]:
    loop = Scan.of(eqn, operands)
    rows = [axes[1:] for axes in loop.xs]

    def step(carry: Sequence[Axes]) -> tuple[Sequence[Axes], list[Axes]]:
        return loop.split(walk(loop.body, loop.inputs(carry, rows), _rule, _constant))

    def either(a: Axes, b: Axes) -> Axes:
        return tuple(x or y for x, y in zip(a, b, strict=True))

    carry, stacked = fixed_point(step, loop.carry, either)
    # Steps may differ from one another.
    return [*carry, *((True, *axes) for axes in stacked)]
