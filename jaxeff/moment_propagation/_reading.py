"""A function read at arguments any leaf of which may be random: its program and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxeff.moment_propagation.calibration import of_shared_pass, uncalibrated
from jaxeff.moment_propagation.regions import with_bias_vectors
from jaxeff.moment_propagation.values import MomentsError, check_gaussian, is_gaussian
from jaxeff.program import Program, check_open
from jaxeff.program.ir import Value
from jaxeff.program.reading import trace_live


class Reading(NamedTuple):
    """A function read for given arguments.

    Attributes:
        program: The program, with bias vectors.
        values: One per input of the program; a `Gaussian` for random ones.
        factors: Factors of the variances of its sites.
    """

    program: Program
    values: list[Any]
    factors: Mapping[str, Any]


def read(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rewrite: Callable[[Program, Sequence[Value]], Callable[..., Any] | None] | None = None,
) -> Reading:
    """Reads a function at arguments any leaf of which may be a `Gaussian`.

    Args:
        f: The function.
        args: Positional arguments of it.
        kwargs: Keyword arguments of it.
        rewrite: Makes an equal function of a program and its random inputs, which is read in its
            place; None where there is nothing to change. Functions whose sites are calibrated are
            read as they are.
    """
    _check((args, kwargs))
    args, factors = uncalibrated(args)
    means, named = jax.tree.map(
        lambda v: v.mean if is_gaussian(v) else v, (args, kwargs), is_leaf=is_gaussian
    )
    program = _opened(f, means, named)
    positions = range(program.in_tree.num_leaves)
    arrays = jax.tree.unflatten(program.in_tree, positions)[1]
    values = jax.tree.leaves((args, {k: kwargs[k] for k in arrays}), is_leaf=is_gaussian)
    if rewrite is not None and (not factors or of_shared_pass(factors)):
        random = [v for v, x in zip(program.inputs, values, strict=True) if is_gaussian(x)]
        other = rewrite(program, random)
        if other is not None:
            program = _opened(other, means, {k: named[k] for k in arrays})
    return Reading(program, values, factors)


def _opened(f: Callable[..., Any], means: Sequence[Any], named: Mapping[str, Any]) -> Program:
    """Reads a function at arrays."""
    program = trace_live(f, *means, **named)
    check_open(program, "moments")
    check_certain(jax.tree.unflatten(program.out_tree, range(program.out_tree.num_leaves)))
    _open_unchanged(program)
    with_bias_vectors(program)
    return program


def _open_unchanged(program: Program) -> None:
    """Takes layers that a transform evaluated as they are for those of the function itself.

    They are marked for their names' sake alone, as all layers are behind a batch norm's folding.
    """
    for layer in program.layers:
        for part in layer.programs:  # transforms nest, and act inside of loops
            _open_unchanged(part)
        if layer.mark and layer.programs:
            inside = [one for one in layer.programs[0].layers if one.kind != "shape"]
            if [(one.kind, one.programs) for one in inside] == [(layer.kind, ())]:
                layer.mark, layer.programs = "", ()


def check_certain(result: Any) -> None:
    """Checks that a function returns arrays, not random ones.

    Raises:
        MomentsError: A result is a `Gaussian` already.
    """
    if any(is_gaussian(v) for v in jax.tree.leaves(result, is_leaf=is_gaussian)):
        raise MomentsError(
            "moments can't act on moments(f), nor on another function that returns a Gaussian: a "
            "Gaussian holds arrays. Take moments once, of f; or of a function that returns the "
            "mean alone."
        )


def _check(tree: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_gaussian)
    for path, leaf in leaves:
        if is_gaussian(leaf):
            check_certain(leaf.mean)
            name = jax.tree_util.keystr(path[2:], simple=True, separator="/")
            check_gaussian(leaf, f"moments: argument {_position(path)}{name and ' '}{name}")


def _position(path: Any) -> str:
    return jax.tree_util.keystr(path[1:2], simple=True)
