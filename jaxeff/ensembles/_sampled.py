"""Networks of which some layers are Bayesian, as ensembles of draws: what is shared runs once.

```python
import jax

import jaxeff
from jaxeff.ensembles import affordable_members, sampled
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
last = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params["fc2"])
posterior = {**params, "fc2": last}
count = affordable_members(f, params, x[:1], "fc2", times=2.0)  # for twice the MACs
g, draws = sampled(jax.random.key(0), f, posterior, count)
logits = g(draws, x)                                       # [draws, batch, classes]
```

A posterior over some layers (SVI with a prior of None elsewhere, a Laplace approximation of a last
layer) and an ensemble with members at some sites are then one function, and may be compared at
equal cost: which layers should be Bayesian (Sharma et al. 2023, arXiv:2211.06291, ask whether all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.core import (
    any_of,
    check_count,
    check_function,
    check_key,
    check_number,
    input_batch,
    positive,
    static_integer,
    string,
    string_sequence,
    validate,
)
from jaxeff.ensembles._ensemble import Ensemble
from jaxeff.ensembles._members import Members, chosen_leaves
from jaxeff.moment_propagation import is_gaussian
from jaxeff.program import cost
from jaxeff.program.reading import leaf_names


@validate(count=static_integer())
def sampled(
    key: PRNGKeyArray, f: Callable[..., Any], posterior: Any, count: int
) -> tuple[Ensemble, Any]:
    """Makes an ensemble of draws of a posterior.

    Args:
        key: Random key.
        f: `f(params, *args)`.
        posterior: Any posterior; parameters that aren't random are shared by all draws.
        count: Number of draws.

    Returns:
        The function and its parameters, as `jaxeff.ensemble` returns them.

    Raises:
        TypeError: It is no posterior, or an argument is of another kind.
        ValueError: The count is below 1, or there are fewer draws.
    """
    from jaxeff.bayes import sample, to_gaussians  # NumPyro and BlackJAX come with it

    check_key("sampled: key", key)
    check_function("sampled: f", f)
    check_count("sampled: count", count)
    # Only which of them are random is asked here, so what they have in common doesn't matter.
    leaves = jax.tree.leaves(to_gaussians(posterior, diagonal=True), is_leaf=is_gaussian)
    random = [is_gaussian(leaf) for leaf in leaves]
    draws, structure = jax.tree.flatten(sample(key, posterior, count))
    # A fixed parameter is the same in all draws: shared, so what it feeds runs once.
    params = [each if own else each[0] for each, own in zip(draws, random, strict=True)]
    tree = jax.tree.unflatten(structure, params)
    names = [name for name, own in zip(leaf_names(tree), random, strict=True) if own]
    # Tied: a weight that several sites read is one random number, with the same draws at all.
    return Ensemble(f, count, dict.fromkeys(names, Members(count, tied=True))), tree


@validate(x=input_batch, pattern=any_of(string, string_sequence), times=positive)
def affordable_members(
    f: Callable[..., Any], params: Any, x: Any, pattern: str | Sequence[str], *, times: float
) -> int:
    """Computes how many members of a site, or draws of its parameters, fit a budget.

    Args:
        f: `f(params, x)`.
        params: The parameters of `f`.
        x: Inputs; shapes are enough.
        pattern: Pattern of the sites that have members, as `jaxeff.ensemble` takes it, or several.
        times: The budget, in multiples of the network's own multiplications.

    Returns:
        At least 1: what multiplies nothing behind it is bought once.

    Raises:
        SpecError: The pattern matches no parameter.
        ValueError: The budget is below one network.
    """
    check_number("affordable_members: times", times, 1)

    def macs(count: int) -> int:
        patterns = (pattern,) if isinstance(pattern, str) else pattern
        chosen = chosen_leaves(dict.fromkeys(patterns, Members(count, tied=True)), params)
        g = Ensemble(f, count, chosen)
        leaves, structure = jax.tree.flatten(params)
        stacked = [
            jax.ShapeDtypeStruct((count, *jnp.shape(leaf)), jnp.result_type(leaf))
            if name in chosen else leaf
            for name, leaf in zip(leaf_names(params), leaves, strict=True)
        ]  # fmt: skip
        return cost(g, jax.tree.unflatten(structure, stacked), x).macs

    single, two = cost(f, params, x).macs, macs(2)
    # Cost is linear in members: one network, then `two - single` for each further one.
    return max(1, int(1 + (times - 1) * single / max(two - single, 1) + 1e-9))
