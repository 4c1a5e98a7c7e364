"""Score by diversity: channels that a determinantal point process prefers together (DIVNET).

With a kernel K of similarities between channels, a set S has probability in proportion to
det(K_S): large where its channels differ. Mariet and Sra take

```text
K_cd = exp(-beta |a_c - a_d|^2) + epsilon [c = d]
```

of activations a over a batch, with beta = 10 over their number. The score is the order of a choice,
the first the highest. Greedily (Chen et al., arXiv:1709.05135), the channel is next that multiplies
the determinant most, by its variance given those chosen. With a key it is drawn in proportion to
that variance: a sample of the process where K is a projection, and a close one otherwise (randomly
pivoted Cholesky, Chen et al., arXiv:2207.06503).

Sharp edge: scores are ranks; between groups they say nothing of size.

Source: Mariet and Sra, "Diversity Networks", arXiv:1511.05077, section 2.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.core import check_number
from jaxeff.pruning.dependencies import Channels
from jaxeff.pruning.scores._reading import activations
from jaxeff.pruning.scores._summing import Score


def determinantal(
    f: Callable[..., Any],
    batch: Any,
    *,
    key: PRNGKeyArray | None = None,
    beta: float | None = None,
    epsilon: float = 0.01,
) -> Score:
    """Returns the order in which a determinantal point process takes channels.

    Args:
        f: A pure function `f(params, *args)`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        key: Draws the order; without one it is greedy.
        beta: Rate at which similarity falls with distance. Without it 10 over the number of a
            channel's activations, for activations of unit variance.
        epsilon: Added to the diagonal: a channel is never quite another.

    Raises:
        ValueError: `beta` or `epsilon` isn't positive; when called: the batch is empty or not
            finite.
    """
    check_number("determinantal: epsilon", epsilon, above=0)
    if beta is not None:
        check_number("determinantal: beta", beta, above=0)

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        del channels
        orders = {}
        for name, rows in activations(f, params, batch, "determinantal").items():
            # The paper's beta is for activations of unit variance: distances are divided by
            # the variance.
            given = rows.std() or 1.0
            scale = 10 / (rows.shape[1] * given**2) if beta is None else beta
            kernel = similarity(rows, scale) + epsilon * np.eye(len(rows))
            # By name, not by position: a group's draw doesn't depend on which others there
            # are.
            own = None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))
            order = chosen(kernel, own)
            orders[name] = 1 - np.argsort(order).astype(np.float64) / len(order)
        return orders

    return score


def similarity(rows: np.ndarray, beta: float) -> np.ndarray:
    """Computes exp(-beta |a_c - a_d|^2), `[channels, channels]`."""
    distances = np.stack([np.square(rows - row).sum(1) for row in rows])
    kernel: np.ndarray = np.exp(-beta * distances)
    return kernel


def chosen(kernel: np.ndarray, key: PRNGKeyArray | None = None) -> list[int]:
    """Orders channels by choice, with a Cholesky factorization that grows with it.

    Args:
        kernel: Similarities, positive semi-definite.
        key: Draws the order; without one it is greedy.

    Returns:
        All channels. Channels that the others determine come last, by number.
    """
    n = len(kernel)
    # `left` is the Schur complement's diagonal: each channel's variance given those chosen.
    # Incremental Cholesky makes each step O(n k), O(n^3) for all.
    left = np.diag(kernel).astype(np.float64).copy()
    least = 1e-10 * max(float(left.max()), 0.0)
    draws = np.zeros(n) if key is None else np.asarray(jax.random.uniform(key, (n,)), np.float64)
    factor = np.zeros((n, n))
    order: list[int] = []
    for k in range(n):
        if left.max() <= least:
            break
        # Rounding may leave small negative variances: they get probability zero.
        share = np.cumsum(np.maximum(left, 0))
        at = int(np.argmax(left))
        if key is not None:
            at = int(np.searchsorted(share, draws[k] * share[-1], side="right"))
        # One column of the Cholesky factor with row `at` as pivot; then left_i = K_ii -
        # |L_i|^2.
        factor[:, k] = (kernel[:, at] - factor[:, :k] @ factor[at, :k]) / np.sqrt(left[at])
        left = left - factor[:, k] ** 2
        order.append(at)
        left[order] = 0
    return order + [i for i in range(n) if i not in order]


__all__ = ["chosen", "determinantal", "similarity"]
