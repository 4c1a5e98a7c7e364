"""Variances with everything that results share taken into account: `moments(f, correlations=True)`.

The variance of y = f(w) for independent Gaussian w of variances v is a sum over orders (the Hermite
expansion of f), and the first is

    sum_p v_p (d E[y] / d E[w_p])^2,

since the derivative of a mean by the mean of an input is the expected slope. Derived in reverse
through the means that moments propagate, it knows of every path from a random entry to a result: a
kernel's noise over positions, a residual stream, attention, noise at the input. The orders left out
are some per cent of a network's variance; `calibrate_moments(..., correlations=True)` measures them
as one factor per result.

Sharp edges
- One pass backward for each entry of a result that is left of an example, so about the cost of
  twice as many samples as there are logits, whatever the samples cost to draw.
- Examples are told apart by following the first axis of every data argument to the first of every
  result. Where that fails (a loop over a batch), all entries of a result are derived one by one, up
  to `MOST_RESULTS`.
- Variances inside the network, which the slopes are expected under, are those of the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.moments.calibrated import RESULT, uncalibrated
from jaxeff.moments.dependence import walk
from jaxeff.moments.errors import MomentsError
from jaxeff.moments.gaussian import Gaussian, is_gaussian
from jaxeff.moments.lineage import Lineage, identity
from jaxeff.program import Program
from jaxeff.program.graph import Value

MOST_RESULTS = 256
_EXAMPLES_AT_ONCE = 16
Run = Callable[[Sequence[Any], Mapping[str, Any]], Any]


def correlated(run: Run, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Moments with variances of first order, correlations included.

    Args:
        run: The moments of the function; no derivative passes through a variance.
        program: The function's program at these arguments.
        args: Positional arguments, any leaf of which may be a `Gaussian`.
        kwargs: Further arguments; they are taken as shared by the examples.

    Returns:
        As `run`.

    Raises:
        MomentsError: A result has more than `MOST_RESULTS` entries for an example.
    """
    args, factors = uncalibrated(args)
    leaves, structure = jax.tree.flatten(tuple(args), is_leaf=is_gaussian)
    batched = _batched(program, len(leaves))
    if not any(batched):
        out = _first_order(run, leaves, structure, kwargs)
    else:

        def one(examples: Sequence[Any]) -> Any:
            rows = iter(examples)
            given = [
                jax.tree.map(lambda a: a[None], next(rows)) if b else leaf
                for leaf, b in zip(leaves, batched, strict=True)
            ]
            return jax.tree.map(lambda a: a[0], _first_order(run, given, structure, kwargs))

        examples = [leaf for leaf, b in zip(leaves, batched, strict=True) if b]
        out = lax.map(one, examples, batch_size=_EXAMPLES_AT_ONCE)
    return _scaled(out, factors)


def _scaled(out: Any, factors: Mapping[str, Array]) -> Any:
    """The results' variances times their factors."""
    results, structure = jax.tree.flatten(out, is_leaf=is_gaussian)
    results = [
        Gaussian(r.mean, r.var * factors[f"{RESULT}{i}"])
        if is_gaussian(r) and f"{RESULT}{i}" in factors
        else r
        for i, r in enumerate(results)
    ]
    return jax.tree.unflatten(structure, results)


def _first_order(run: Run, leaves: Sequence[Any], structure: Any, kwargs: Mapping[str, Any]) -> Any:
    random = [i for i, leaf in enumerate(leaves) if is_gaussian(leaf)]

    def means(at: Sequence[Array]) -> tuple[list[Array], Any]:
        given = list(leaves)
        for i, mean in zip(random, at, strict=True):
            given[i] = Gaussian(mean, leaves[i].var)
        out = run(jax.tree.unflatten(structure, given), kwargs)
        found = jax.tree.leaves(out, is_leaf=is_gaussian)
        return [g.mean for g in found if is_gaussian(g)], out

    y, pull, out = jax.vjp(means, [leaves[i].mean for i in random], has_aux=True)
    variances = iter(
        [_variance(pull, y, number, [leaves[i].var for i in random]) for number in range(len(y))]
    )
    return jax.tree.map(
        lambda r: Gaussian(r.mean, next(variances)) if is_gaussian(r) else r,
        out,
        is_leaf=is_gaussian,
    )


def _variance(
    pull: Callable[..., Any], y: Sequence[Array], number: int, spreads: Sequence[Array]
) -> Array:
    one = y[number]
    if one.size > MOST_RESULTS:
        raise MomentsError(
            f"moments: correlations=True derives every entry of a result, and result {number} has "
            f"{one.size} for one example, more than {MOST_RESULTS}. Leave correlations out, return "
            "less, or, if these are examples, vmap over them: "
            "jax.vmap(moments(f, correlations=True), in_axes=(None, 0))."
        )

    def spread(direction: Array) -> Array:
        seeds = [
            direction.reshape(v.shape) if i == number else jnp.zeros_like(v)
            for i, v in enumerate(y)
        ]
        (slopes,) = pull(seeds)
        return jnp.stack([jnp.sum(v * s * s) for v, s in zip(spreads, slopes, strict=True)]).sum()

    return jax.vmap(spread)(jnp.eye(one.size, dtype=one.dtype)).reshape(one.shape)


def _batched(program: Program, count: int) -> list[bool]:
    """Which leaves hold one example per place of their first axis; none if that isn't sure."""
    inputs = program.inputs[:count]
    data = [v for v in inputs if v.is_data]
    none = [False] * count
    if (
        not data
        or any(v.is_data for v in program.inputs[count:])
        or not all(v.aval.ndim for v in data)
    ):
        return none
    if len({v.aval.shape[0] for v in data}) > 1:
        return none
    lineages: dict[Value, Lineage] = {v: {v: identity(v.aval.shape)} for v in data}
    for layer in program.layers:
        if not any(v in lineages for v in layer.inputs):
            continue
        if layer.kind == "control flow":
            return none
        if not layer.nodes:
            lineages.update(
                (o, lineages[i]) for i, o in zip(layer.inputs, layer.outputs, strict=True)
            )
            continue
        given = {v: lineages[v] for v in layer.inputs if v in lineages}
        found, _ = walk(layer.nodes, given)
        lineages.update((v, found[v]) for v in layer.outputs if v in found)
    for result in program.outputs:
        lineage = lineages.get(result) if isinstance(result, Value) else None
        if not lineage or any(not labels or labels[0] != 0 for labels in lineage.values()):
            return none
    return [v.is_data for v in inputs]
