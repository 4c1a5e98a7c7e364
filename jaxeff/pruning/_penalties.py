"""Penalties that make whole channels small: group lasso, and slimming's scales.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.pruning import channels, group_lasso
from jaxeff.training import cross_entropy

f, params, (x, y) = small_classifier()
found, fit = channels(f, params, x), cross_entropy(f)

def loss(key, params, state, batch, step):
    value, rest = fit(key, params, state, batch, step)
    return value + 1e-3 * group_lasso(params, found), rest

(value, _), gradient = jax.value_and_grad(loss, 1, True)(jax.random.key(0), params, None, (x, y), 0)
```

`slimming` penalises the scales of normalizations alone:

```python
from flax import nnx
from jaxeff import functional
from jaxeff.pruning import slimming

rngs = nnx.Rngs(0)
layers = nnx.Linear(3, 5, rngs=rngs), nnx.LayerNorm(5, rngs=rngs), nnx.relu
normalized, params = functional(nnx.Sequential(*layers, nnx.Linear(5, 2, rngs=rngs)))
found = channels(normalized, params, jax.numpy.ones((4, 3)))
assert slimming(params, found) == 5                      # five scales, which start at one
```

A gradient step makes norms small but never zero; `prune_plan` with a score (`l2`,
`batch_norm_scale`) then removes what is smallest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import instance_of, validate
from jaxeff.pruning.dependencies import Channels, leaf_path, membership
from jaxeff.pruning.scores import scales


@validate(channels=instance_of(Channels))
def group_lasso(params: Any, channels: Channels) -> Float[Array, ""]:
    """Returns the l2 norms of what every channel takes along, weighed by the roots of their sizes.

    ```text
    sum_g sqrt(n_g) sum_c |w_gc|_2
    ```

    Args:
        params: Parameters; held groups don't count.
        channels: The model's groups.

    Returns:
        A scalar; its gradient is zero where a norm is.

    Source: Yuan and Lin, J. R. Stat. Soc. B 68 (2006), eq. 2.1; for networks Wen et al., "Learning
    Structured Sparsity in Deep Neural Networks", arXiv:1608.03665, eq. 3.
    """
    leaves = _by_path(params, channels)
    total = jnp.zeros((), jnp.float32)
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        if group.held:
            continue
        squares = jnp.zeros(group.size, jnp.float32)
        for member in group.members:
            if member.path not in leaves:
                continue
            index = membership(channels.leaves[member.path][member.axis], dimension)
            values = jnp.square(leaves[member.path].astype(jnp.float32))
            if group.size > 1 and _earlier(group.members, member):
                # An entry that two axes of a kernel put into one channel counts once.
                values = jnp.where(_same(channels, group.members, member, dimension), 0.0, values)
            along = values.sum([i for i in range(values.ndim) if i != member.axis])
            inside = np.flatnonzero(index >= 0)
            squares = squares.at[index[inside]].add(along[inside])
        # The root of zero has an infinite slope: a removed channel gets a gradient of zero instead.
        some = squares > 0
        norms = jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1.0)), 0.0)
        # sqrt(n_g) makes large and small channels comparable (Yuan and Lin, eq. 2.1).
        total = total + np.float32(np.sqrt(group.parameters)) * norms.sum()
    return total


@validate(channels=instance_of(Channels))
def slimming(params: Any, channels: Channels) -> Float[Array, ""]:
    """Returns the magnitudes of all scales of normalizations: the l1 penalty of network slimming.

    Source: Liu et al., "Learning Efficient Convolutional Networks through Network Slimming",
    arXiv:1708.06519, eq. 1.

    Raises:
        ValueError: There are none.
    """
    leaves = _by_path(params, channels)
    found = sorted(scales(channels.program) & leaves.keys())
    if not found:
        raise ValueError(
            "slimming needs the scales of normalizations, and the model has none; group_lasso "
            "takes any model."
        )
    total = jnp.zeros((), jnp.float32)
    for path in found:
        total = total + jnp.abs(leaves[path].astype(jnp.float32)).sum()
    return total


def _by_path(params: Any, channels: Channels) -> Mapping[str, Any]:
    named = jax.tree_util.tree_leaves_with_path(params)
    found = {channels.find(leaf_path(path)): leaf for path, leaf in named}
    return {path: leaf for path, leaf in found.items() if path is not None}


def _earlier(members: Any, member: Any) -> bool:
    return any(m.path == member.path and m.axis < member.axis for m in members)


def _same(channels: Channels, members: Any, member: Any, dimension: Any) -> np.ndarray:
    """Marks entries that an earlier axis has put into the same channel already."""
    axes = channels.leaves[member.path]
    here = _along(membership(axes[member.axis], dimension), member.axis, len(axes))
    found = np.zeros(tuple(axis.size for axis in axes), bool)
    for m in members:
        if m.path == member.path and m.axis < member.axis:
            found |= (_along(membership(axes[m.axis], dimension), m.axis, len(axes)) == here) & (
                here >= 0
            )
    return found


def _along(index: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return index.reshape([-1 if i == axis else 1 for i in range(rank)])


__all__ = ["group_lasso", "slimming"]
