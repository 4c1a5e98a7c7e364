"""Gaussian priors: a standard deviation for each parameter array, by name or by rule.

The default, ``"fan_in"``, gives a weight array that feeds ``n`` inputs into each output the
standard deviation ``sqrt(2 / n)``, and one that no product reads (a bias, a scale) 1. It keeps the
prior variance of a layer's output the same whatever its width (Neal 1996; He et al. 2015 for the
2, which ReLU asks for); under a unit prior it grows with the width, so that the KL term pulls a
wide layer towards weights that drown its inputs in noise. ``n`` is what the function's products sum
over (`jaxeff.program.costs`), whatever the layout of the array. A table of embeddings gets 1: a
look-up takes one row as it is, so its entries have variance 1 whatever the vocabulary; one that is
also the last layer's kernel gets that layer's ``sqrt(2 / n)``.

A rule of None makes a parameter a point estimate: it is not random, and has no prior (partial
Bayes).

A mapping's patterns are globs over parameter paths, of which the most specific one decides, in any
order (`jaxeff.program`).

```python
from jaxeff.bayes import prior_scales
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(4)
scales = prior_scales({"fc2/*": 0.1, "*/bias": None}, params, f, x)
assert scales["fc2/kernel"] == 0.1 and scales["fc1/bias"] is None
assert scales["conv1/kernel"] == (2 / 25) ** 0.5         # of a window of 5 x 5 pixels
```

Sharp edge: `prior_scales` without the function knows shapes alone, and takes arrays for laid out
and named as Flax does: ``[in, out]``, ``[height, width, in, out]``, ``embedding``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import parameter_tree, validate
from jaxeff.program import Target, deciding_patterns, trace
from jaxeff.program.costs import fan_ins

Prior = float | str | Mapping[str, float | str | None]


@validate(args=parameter_tree)
def prior_scales(
    prior: Prior, params: Any, f: Callable[..., Any] | None = None, *args: Any
) -> dict[str, float | None]:
    """Finds the prior standard deviation of every parameter array.

    Args:
        prior: ``"fan_in"``, one standard deviation for all, or a mapping from patterns over
            parameter paths (``"conv*/kernel"``; the most specific one decides) to either, or to
            None for parameters that are not random. Parameters that no pattern matches get
            ``"fan_in"``.
        params: Pytree of parameters.
        f: ``f(params, *args)``, whose products tell fan-ins; without it shapes do.
        *args: The inputs; shapes are enough.

    Returns:
        Standard deviations by parameter path (``"conv1/kernel"``), in the order of the leaves;
        None for those that are not random.

    Raises:
        ValueError: A standard deviation is not a positive number, a rule is unknown, a pattern
            matches or decides no parameter, two are equally specific for one, no parameter is
            random, or a fan-in can't be inferred.
    """
    leaves = named_leaves(params)
    rules: dict[str, Any] = dict.fromkeys(leaves, "fan_in")
    if isinstance(prior, Mapping):
        decided = deciding_patterns(prior, [Target(path) for path in leaves], what="parameter")
        rules |= {path: prior[pattern] for path, pattern in decided.items()}
    else:
        rules = dict.fromkeys(leaves, prior)
    # A function is traced only where some fan-in is asked for.
    asked = any(isinstance(rule, str) and rule == "fan_in" for rule in rules.values())
    found = _fan_ins(params, f, args) if asked and f is not None else {}
    scales = {
        path: _scale(rules[path], path, jnp.shape(leaf), found.get(path))
        for path, leaf in leaves.items()
    }
    if all(scale is None for scale in scales.values()):
        raise ValueError("the prior leaves no parameter random: give at least one a scale")
    return scales


def _fan_ins(params: Any, f: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, float | None]:
    program = trace(f, params, *args)
    found = fan_ins(program)
    # A program's inputs are the parameters first, leaf by leaf.
    return {
        path: found.get(value.path)
        for path, value in zip(named_leaves(params), program.inputs, strict=False)
    }


def named_leaves(tree: Any, is_leaf: Any = None) -> dict[str, Any]:
    """Names the leaves of a pytree by path, path parts joined by slashes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}


def _scale(rule: Any, path: str, shape: tuple[int, ...], fan_in: float | None) -> float | None:
    if rule is None:
        return None
    if isinstance(rule, str) and rule == "fan_in":
        n = _fan_in_of_layout(path, shape) if fan_in is None else fan_in
        # Variance 1 / n keeps outputs at one scale (Neal); ReLU halves it (He et al.).
        return float(np.sqrt(2 / n)) if n else 1.0
    if isinstance(rule, str) or not np.isscalar(rule) or not 0 < float(rule) < np.inf:  # type: ignore[arg-type]
        raise ValueError(
            f"the prior of {path} must be a positive standard deviation, 'fan_in' or None, "
            f"not {rule!r}"
        )
    return float(rule)  # type: ignore[arg-type]


def _fan_in_of_layout(path: str, shape: tuple[int, ...]) -> float:
    """Infers the fan-in of an array in Flax's layout from its name and shape."""
    if len(shape) < 2 or path.rpartition("/")[2] == "embedding":
        return 0.0
    if len(shape) == 3:
        raise ValueError(
            f"the fan-in of {path} can't be told from its shape {list(shape)}, which is that of an "
            "attention kernel as well as of a convolution: give prior_scales the function and its "
            "inputs, or this parameter a standard deviation"
        )
    # Outputs are last in Flax's layout; a product sums over all other axes.
    return float(np.prod(shape[:-1]))
