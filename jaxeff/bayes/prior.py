"""Gaussian priors: a standard deviation for each parameter array, by name or by rule.

The default, ``"fan_in"``, gives a weight array that feeds ``n`` inputs into each output the
standard deviation ``sqrt(2 / n)``, and a bias (any array with one axis or none) 1. It keeps the
prior variance of a layer's output the same whatever its width (Neal 1996; He et al. 2015 for the
2, which ReLU asks for); under a unit prior it grows with the width, so that the KL term pulls a
wide layer towards weights that drown its inputs in noise.

A rule of None makes a parameter a point estimate: it is not random, and has no prior (partial
Bayes).

Sharp edge: fan-in counts every axis but the last, as Flax lays out dense and convolution kernels
(``[in, out]``, ``[height, width, in, out]``). Name other layouts in a mapping.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Prior = float | str | Mapping[str, float | str | None]


def prior_scales(prior: Prior, params: Any) -> dict[str, float | None]:
    """Find the prior standard deviation of every parameter array.

    Args:
        prior: ``"fan_in"``, one standard deviation for all, or a mapping from patterns over
            parameter paths (``"conv*/kernel"``; first match wins) to either, or to None for
            parameters that are not random. Parameters that no pattern matches get ``"fan_in"``.
        params: Pytree of parameters.

    Returns:
        Standard deviations by parameter path (``"conv1/kernel"``), in the order of the leaves;
        None for those that are not random.

    Raises:
        ValueError: A standard deviation is not a positive number, a rule is unknown, a pattern
            matches no parameter, or no parameter is random.
    """
    leaves = named_leaves(params)
    rules = dict(prior) if isinstance(prior, Mapping) else {"*": prior}
    used = set()
    scales = {}
    for path, leaf in leaves.items():
        pattern = next((p for p in rules if fnmatchcase(path, p)), None)
        used.add(pattern)
        rule = "fan_in" if pattern is None else rules[pattern]
        scales[path] = _scale(rule, path, jnp.shape(leaf))
    if isinstance(prior, Mapping):
        for pattern in rules:
            if pattern not in used and not any(fnmatchcase(path, pattern) for path in leaves):
                raise ValueError(
                    f"the prior's pattern {pattern!r} matches no parameter; "
                    f"there are {', '.join(leaves)}"
                )
    if all(scale is None for scale in scales.values()):
        raise ValueError("the prior leaves no parameter random: give at least one a scale")
    return scales


def named_leaves(tree: Any, is_leaf: Any = None) -> dict[str, Any]:
    """The leaves of a pytree by path, path parts joined by slashes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}


def _scale(rule: Any, path: str, shape: tuple[int, ...]) -> float | None:
    if rule is None:
        return None
    if rule == "fan_in":
        return float(np.sqrt(2 / np.prod(shape[:-1]))) if len(shape) > 1 else 1.0
    if isinstance(rule, str) or not np.isscalar(rule) or not 0 < float(rule) < np.inf:  # type: ignore[arg-type]
        raise ValueError(
            f"the prior of {path} must be a positive standard deviation, 'fan_in' or None, "
            f"not {rule!r}"
        )
    return float(rule)  # type: ignore[arg-type]
