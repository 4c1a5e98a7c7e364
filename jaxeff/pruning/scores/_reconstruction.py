"""Score by what the next layers lose: ThiNet's greedy choice, and weights corrected by it.

A layer that reads channels sums what they contribute, Y = sum_c X_c W_c. Removing a set T changes
it by E_T = sum_(c in T) X_c W_c, so that over a batch

```text
|E_T|^2 = sum_(c, d in T) G_cd,    G_cd = sum_ij H_ij (W W^T)_ij,    i of channel c, j of d
```

with H = X^T X: one matrix of channels by channels holds every set's error. Channels are removed one
by one, each time the one that adds least (Luo et al., eq. 6 and algorithm 1); the score is the
order. All places and outputs count here, where the paper samples some; layers that read the same
channels add up, each as a share of its own |Y|^2.

With `corrected`, a set's error is what least squares leaves when the weights of the others may make
up for it. Removing channel c from those left then adds tr(W_c^T ((H^-1)_cc)^-1 W_c), the optimal
brain surgeon's of a block, with H and W those of what is left.

`corrected_weights` solves that least squares for a plan: the paper's eq. 7 scales whole channels,
this gives every weight that reads them its best value.

Sharp edges:
    Scores are ranks: between groups they say nothing of size.
    A channel that no layer outside loops reads through a parameter has no score.

Source: Luo et al., "ThiNet", arXiv:1707.06342.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.pruning.dependencies import Channels, Dimension, is_held, kept
from jaxeff.pruning.scores._reading import LinearStatistics, products, readers
from jaxeff.pruning.scores._summing import Score
from jaxeff.pruning.shrinking import Plan

DAMPING = 1e-6
"""Added to the diagonal of H, in units of its mean, so that channels that are equal can be told."""


def reconstruction(f: Callable[..., Any], batch: Any, *, corrected: bool = False) -> Score:
    """Scores channels by ThiNet's greedy order of removal, the last the most important.

    Args:
        f: A pure function `f(params, *args)`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        corrected: Whether the weights that are left may make up for a removal, as
            `corrected_weights` has them do.

    Raises:
        ValueError: When called: the batch is empty or not finite.
    """

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        del channels
        found = products(f, params, batch, "reconstruction")
        orders = {}
        for name, dimension, reading in readers(found):
            if reading and not is_held(dimension):
                removal = _removed_with_correction if corrected else _removed
                order = removal(reading, dimension)
                orders[name] = np.argsort(order).astype(np.float64) / len(order)
        return orders

    return score


def gram(product: LinearStatistics, dimension: Dimension) -> np.ndarray:
    """Computes G, the overlap of channels' contributions to a layer's result, `[c, c]`."""
    index = product.channel_of(dimension)
    total = np.zeros((dimension.size, dimension.size))
    for h, w, channel in zip(product.moment, product.weights, index, strict=True):
        inside = channel >= 0
        # Elementwise: (H * W W^T)_ij sums, over outputs, the products of contributions of
        # inputs i and j.
        overlap = h * (w @ w.T)
        np.add.at(total, np.ix_(channel[inside], channel[inside]), overlap[np.ix_(inside, inside)])
    return total


def corrected_weights(f: Callable[..., Any], params: Any, batch: Any, plan: Plan) -> Any:
    """Refits layers, by least squares, to make up for the channels that they lose.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        plan: Channels that stay.

    Returns:
        Parameters of the same shapes; what reads removed channels is zero there. Shrink them with
        the plan. Every layer is fitted to what the whole network gives it.

    Raises:
        ValueError: The batch is empty or not finite, or two layers read one weight.
        PlanError: The plan can't be carried out.
    """
    # A group that keeps everything needs no fit.
    gone = {name: keep for name, keep in plan.keep.items() if not np.all(keep)}
    plan.concrete()
    leaves = jax.tree.leaves(params)
    solved: dict[int, str] = {}
    for product in products(f, params, batch, "corrected_weights"):
        names = {
            g.name: d for g, d in zip(product.channels, product.channels.dimensions, strict=True)
        }
        keep = {names[name]: np.asarray(where) for name, where in gone.items()}
        if not product.dimensions & keep.keys():
            continue
        at = product.at
        if at.origin.leaf in solved:
            raise ValueError(
                f"corrected_weights: {at.layer.site!r} and {solved[at.origin.leaf]!r} read one "
                f"weight, {at.origin.path!r}, which can't be fitted to both; retrain instead."
            )
        solved[at.origin.leaf] = at.layer.site
        axes = product.channels.labels.of(at.layer.inputs[at.index])
        # An entry stays if all of the indices that it is summed over do; the result's own
        # channels keep their rows, which shrinking removes.
        stays = np.ones(at.contraction.weight_shape, bool)
        for i in product.summed:
            shape = [-1 if j == i else 1 for j in range(len(axes))]
            stays = stays & kept(axes[i], keep).reshape(shape)
        new = np.zeros_like(product.weights)
        rows = at.contraction.matrix(stays)[:, :, 0]
        for g, (h, w, row) in enumerate(zip(product.moment, product.weights, rows, strict=True)):
            # Normal equations: H_SS W' = H_S: W, with S the inputs that stay.
            left = _damped(h)
            new[g][row] = np.linalg.solve(left[np.ix_(row, row)], left[row] @ w)
        leaf = at.origin.leaf
        value = jnp.asarray(at.contraction.weight(new), leaves[leaf].dtype)
        leaves[leaf] = at.origin.to_leaf(value, leaves[leaf])
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _removed(reading: Sequence[LinearStatistics], dimension: Dimension) -> list[int]:
    """Orders channels by removal, without correction."""
    overlap = np.zeros((dimension.size, dimension.size))
    for product in reading:
        overlap += _share(product) * gram(product, dimension)
    # |E_T + E_c|^2 - |E_T|^2 = G_cc + 2 sum_(d in T) G_cd: kept up to date in O(n) a step.
    added = np.diag(overlap).copy()
    order: list[int] = []
    for _ in range(dimension.size):
        added[order] = np.inf
        order.append(int(np.argmin(added)))
        added = added + 2 * overlap[order[-1]]
    return order


def _removed_with_correction(
    reading: Sequence[LinearStatistics], dimension: Dimension
) -> list[int]:
    """Orders channels by removal, where the remaining weights make up for it."""
    states = [
        (_share(product), channel, np.linalg.inv(_damped(h)), w.copy())
        for product in reading
        for h, w, channel in zip(
            product.moment, product.weights, product.channel_of(dimension), strict=True
        )
    ]
    left, order = list(range(dimension.size)), []
    while left:
        # The cost of a block: tr(W_c^T ((H^-1)_cc)^-1 W_c), summed over the layers that
        # read it.
        errors = [sum(s * _block(c, *state) for s, *state in states) for c in left]
        order.append(left.pop(int(np.argmin(errors))))
        for _, channel, inverse, w in states:
            inside = channel == order[-1]
            if inside.any():
                # Block elimination: weights that stay take over what they can, and H^-1
                # becomes the inverse of H without the block, in O(n^2) rather than by a new
                # inversion.
                gain = inverse[:, inside] @ np.linalg.inv(inverse[np.ix_(inside, inside)])
                w -= gain @ w[inside]
                inverse -= gain @ inverse[inside]
                # Of a removed input nothing is left to be removed again.
                w[inside], inverse[inside], inverse[:, inside] = 0, 0, 0
    return order


def _block(c: int, channel: np.ndarray, inverse: np.ndarray, w: np.ndarray) -> float:
    inside = channel == c
    if not inside.any():
        return 0.0
    rows = w[inside]
    return float(np.sum(rows * np.linalg.solve(inverse[np.ix_(inside, inside)], rows)))


def _share(product: LinearStatistics) -> float:
    """Computes 1 / |Y|^2, or zero where the layer's result is zero."""
    size = sum(
        float(np.sum(h * (w @ w.T))) for h, w in zip(product.moment, product.weights, strict=True)
    )
    return 1 / size if size > 0 else 0.0


def _damped(h: np.ndarray) -> np.ndarray:
    mean = np.diag(h).mean()
    return h + np.eye(len(h)) * (DAMPING * mean if mean > 0 else 1.0)


__all__ = ["corrected_weights", "gram", "reconstruction"]
