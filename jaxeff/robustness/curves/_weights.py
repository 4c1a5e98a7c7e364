"""Growth of weights: networks answer additive noise with larger weights.

```python
>>> import jax
>>> from jaxeff.nn import small_classifier
>>> from jaxeff.robustness import weight_growth, weight_rms
>>> f, params, data = small_classifier()
>>> {layer: round(float(rms), 2) for layer, rms in weight_rms(params).items()}
{'conv1': 0.23, 'fc1': 0.17, 'fc2': 0.17}
>>> {k: float(v) for k, v in weight_growth(jax.tree.map(lambda w: 2 * w, params), params).items()}
{'conv1': 2.0, 'fc1': 2.0, 'fc2': 2.0}

```
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import parameter_tree, validate, widened


@validate()
def weight_rms(params: Any) -> dict[str, Float[Array, ""]]:
    """Computes the root mean square of every layer's weights.

    Args:
        params: Pytree of parameters. Weights are arrays of at least two axes: biases and the
            scales of a normalization, which have one, are left out.

    Returns:
        By the path of the layer that holds them, `conv1`, `blocks/0/fc`; a layer with several has
        the weight's own name too.
    """
    weights: dict[str, dict[str, Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.ndim(leaf) >= 2:
            *parents, name = (jax.tree_util.keystr((entry,), simple=True) for entry in path)
            weights.setdefault("/".join(parents), {})[name] = leaf
    found = {}
    for layer, leaves in weights.items():
        for name, leaf in leaves.items():
            alone = len(leaves) == 1 and layer
            found[layer if alone else f"{layer}/{name}".lstrip("/")] = _rms(leaf)
    return found


@validate(start=parameter_tree)
def weight_growth(params: Any, start: Any) -> dict[str, Float[Array, ""]]:
    """Computes the root mean square of every layer's weights relative to a start.

    Args:
        params: Pytree of parameters.
        start: Parameters to compare with, such as the initial parameters, or those of a network
            trained without noise.

    Returns:
        By layer, as `weight_rms`.

    Raises:
        ValueError: The two don't have the same layers.
    """
    now, before = weight_rms(params), weight_rms(start)
    if now.keys() != before.keys():
        raise ValueError(
            f"the parameters have layers {sorted(now)}, those to compare with {sorted(before)}."
        )
    return {layer: now[layer] / before[layer] for layer in now}


def _rms(leaf: Any) -> Float[Array, ""]:
    return jnp.sqrt(jnp.mean(jnp.square(widened(leaf))))
