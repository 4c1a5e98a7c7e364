"""`Members`: how many copies of a site an ensemble has, and how they start.

Members have to start apart: identical ones get identical gradients and stay one network.

- fresh ones, from the function that made the parameters, `ensemble(..., init=init)`: what a deep
  ensemble is (Lakshminarayanan et al. 2017);
- fresh ones without such a function: each leaf drawn from a normal distribution with its own mean
  and standard deviation, and a constant leaf (biases of zero, scales of one) kept as it is;
- `Members(10, spread=0.1)`: around the given parameters, each leaf plus normal noise of `spread`
  times its standard deviation. With `spread=0.0` they are copies.

Sharp edges:
    The second way forgets what has been trained, and takes a leaf's distribution for a normal one.
    A leaf that is constant stays so under a spread, too: the noise is in its own units.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxeff.core import NonNegative, Number, Setting, check_function, register_setting, static
from jaxeff.program import Target, check_settings, deciding_patterns
from jaxeff.program.reading import leaf_names


@register_setting
@dataclass(frozen=True)
class Members(Setting):
    """The number of members of a site, and their start.

    Attributes:
        count: Number of members, at least 1; the same at every site of an ensemble.
        spread: Distance of the members' starts from the given parameters, in standard deviations of
            each leaf; None starts from fresh ones.
        tied: Whether a parameter that several sites read may have members all the same: those of
            one site are then those of the others.

    Raises:
        TypeError: A number is none.
        ValueError: `spread` is negative.
    """

    count: Annotated[int, Number(integer=True)] = static()
    spread: Annotated[NonNegative | None, Number(0)] = static(None)
    tied: bool = static(False)


def chosen_leaves(spec: Mapping[str, Members | None], params: Any) -> dict[str, Members]:
    """Finds the leaves that have members, by name.

    Args:
        spec: Settings by pattern of sites or parameters.
        params: The parameters of one network.

    Raises:
        TypeError: The spec is none.
        SpecError: A pattern matches or decides no parameter, or two are equally specific for one.
        ValueError: No leaf has members, a count is below one, or two counts differ.
    """
    check_settings(spec, Members, "so many members, such as Members(10)")
    for pattern, setting in spec.items():
        if setting is not None and setting.count < 1:
            raise ValueError(
                f"ensemble: {pattern!r} has {setting.count} members; give it Members(1) or more, "
                "or None for a shared one"
            )
    targets = [Target(name, name.rpartition("/")[0]) for name in leaf_names(params)]
    decided = deciding_patterns(spec, targets, what="parameter")
    found = {name: spec[pattern] for name, pattern in decided.items()}
    chosen = {name: setting for name, setting in found.items() if setting is not None}
    if not chosen:
        raise ValueError(
            "ensemble: the spec gives nothing members; name a site, such as "
            '{"fc3": Members(10)}, or "*" for whole networks'
        )
    counts = {setting.count: decided[name] for name, setting in chosen.items()}
    if len(counts) > 1:
        (first, a), (second, b), *_ = counts.items()
        raise ValueError(
            f"ensemble: {a!r} has {first} members and {b!r} {second}: a member is one network, so "
            "give all sites as many"
        )
    return chosen


def start(
    key: PRNGKeyArray,
    params: Any,
    chosen: Mapping[str, Members],
    init: Callable[[PRNGKeyArray], Any] | None,
) -> Any:
    """Makes an ensemble's parameters: chosen leaves with an axis of members, others as given.

    Raises:
        ValueError: `init` makes parameters of another structure or other shapes.
    """
    leaves, structure = jax.tree.flatten(params)
    names = leaf_names(params)
    count = next(iter(chosen.values())).count
    fresh: list[Any] = [None] * len(leaves)
    if init is not None:
        check_function("ensemble: init", init, "init(key) -> params")
        # Whole networks, of which only the chosen leaves are taken.
        made = jax.vmap(init)(jax.random.split(key, count))
        given: Any = structure
        if jax.tree.structure(made) != given:
            raise ValueError(
                "ensemble: init makes parameters of another structure than those given: it takes a "
                f"key and returns {structure}, not {jax.tree.structure(made)}"
            )
        fresh = jax.tree.leaves(made)
    started = []
    for name, leaf, new in zip(names, leaves, fresh, strict=True):
        if name not in chosen:
            started.append(leaf)
        elif new is not None and chosen[name].spread is None:
            if new.shape[1:] != jnp.shape(leaf):
                raise ValueError(
                    f"ensemble: init makes {name} of shape {new.shape[1:]}, the parameters given "
                    f"have {jnp.shape(leaf)}"
                )
            started.append(new)
        else:
            # By name: members of one leaf don't depend on which others have members.
            at = jax.random.fold_in(key, zlib.crc32(name.encode()))
            started.append(_started(at, jnp.asarray(leaf), chosen[name], count))
    return jax.tree.unflatten(structure, started)


def _started(key: PRNGKeyArray, leaf: Array, setting: Members, count: int) -> Array:
    # Counters and keys can't be perturbed: every member gets the same.
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.broadcast_to(leaf, (count, *leaf.shape))
    noise = jnp.std(leaf) * jax.random.normal(key, (count, *leaf.shape), leaf.dtype)
    if setting.spread is None:
        # A constant leaf's deviation may be a rounding error.
        drawn = jnp.mean(leaf) + noise
        return jnp.where(jnp.all(leaf == leaf.ravel()[0]), leaf.ravel()[0], drawn)
    return leaf[None] + jnp.asarray(setting.spread, leaf.dtype) * noise
