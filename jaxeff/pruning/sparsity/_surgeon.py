"""`optimal_brain_surgeon`: weights removed one by one, each made good by those that are left.

For one layer, min over W' with zeros of sum |x W - x W'|^2 has the Hessian H = 2 X^T X, the same
for every output. The weight of an output that costs least goes, and the others move:

```text
cost = w_p^2 / (2 [H^-1]_pp)        dw = -w_p / [H^-1]_pp  H^-1 e_p
```

with H^-1 that of the inputs left to this output. Steps are taken from all outputs in the order of
their costs until the share is reached (`Magnitude`), or within every block (`NofM`). What is left
has then its best values, for the error is quadratic.

```python
from jaxeff.compression import quantized
from jaxeff.nn import small_classifier
from jaxeff.pruning.sparsity import Magnitude, optimal_brain_surgeon

f, params, (x, y) = small_classifier()
params, spec = optimal_brain_surgeon(f, params, x, {"fc2": Magnitude(0.5)})
logits = quantized(f, spec)(params, x)     # the zeros are in the parameters already
```

Sharp edges:
    Host code in float64: a layer of d inputs takes d^3 operations per output.
    Layers are taken in order; each reads what those before it, pruned, give it.

References:
    Hassibi and Stork, "Optimal Brain Surgeon", NIPS 1992; layer by layer Dong et al.,
    arXiv:1705.07565; exact and by outputs Frantar and Alistarh, "Optimal Brain Compression",
    arXiv:2208.11580, algorithms 1 and 2.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxeff.compression import LayerQuantization
from jaxeff.compression.post_training import Matrix, RoundingProblem, on_grids
from jaxeff.core import check_number
from jaxeff.pruning.sparsity._magnitude import Magnitude
from jaxeff.pruning.sparsity._n_of_m import NofM


def optimal_brain_surgeon(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Any],
    *,
    damping: float = 1e-4,
) -> tuple[Any, dict[str, LayerQuantization | None]]:
    """Removes weights by the second-order statistics of what their layers read.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Maps patterns of sites to `Magnitude(fraction)` or `NofM(n, m)`, which say how many
            weights go; which, is found here.
        damping: Added to the diagonal of H, in units of its mean.

    Returns:
        Parameters with zeros, and the spec that reproduces them.

    Raises:
        TypeError: A method is another one.
        ValueError: The batch is empty or not finite, nothing has weights to remove, or a weight
            isn't one parameter's entries.
    """
    check_number("optimal_brain_surgeon: damping", damping, above=0)

    def solve(problem: RoundingProblem) -> Matrix:
        method, at = share_of("optimal_brain_surgeon", problem), problem.at
        # In float64: n rank-one updates of an inverse lose several digits.
        hessian = np.asarray(at.moment(problem.quantized, problem.quantized), np.float64)
        weights = np.asarray(problem.weights, np.float64)
        for h in hessian:
            mean = np.diag(h).mean()
            h[np.diag_indices(len(h))] += damping * mean if mean > 0 else 1.0
        columns = [
            (h, w[:, o]) for h, w in zip(hessian, weights, strict=True) for o in range(w.shape[1])
        ]
        if isinstance(method, NofM):
            blocks = at.contraction.matrix(
                method.blocks(at.contraction.weight_shape, problem.tensor)
            )
            numbers = [b[:, o] for b in blocks for o in range(b.shape[1])]
            gone = [
                removal(h, w, number, method.m - method.n)[0]
                for (h, w), number in zip(columns, numbers, strict=True)
            ]
        else:
            kept = round((1 - float(method.fraction)) * weights.size)
            gone = cheapest([removal(h, w) for h, w in columns], weights.size - kept)
        new = [refitted(h, w, out) for (h, w), out in zip(columns, gone, strict=True)]
        groups, inputs, outputs = weights.shape
        found = np.stack(new).reshape(groups, outputs, inputs).swapaxes(1, 2)
        return np.asarray(found, np.float32)  # type: ignore[return-value]

    return on_grids("optimal_brain_surgeon", f, params, batch, spec, solve)


def share_of(where: str, problem: RoundingProblem) -> Magnitude | NofM:
    """Returns the method that says how many of a layer's weights go.

    Raises:
        TypeError: It is another one.
    """
    method = problem.quantizer
    if not isinstance(method, Magnitude | NofM) or method.values is not None:
        raise TypeError(
            f"{where} at {problem.tensor.site!r} takes Magnitude(fraction) or NofM(n, m) without "
            f"values, not {method!r}; quantize what it returns."
        )
    return method


def removal(
    h: np.ndarray, w: np.ndarray, blocks: np.ndarray | None = None, most: int = 0
) -> tuple[list[int], list[float]]:
    """Returns the weights of one output in the order in which they go, and what each step costs.

    Args:
        h: H, `[inputs, inputs]`, regular.
        w: The weights.
        blocks: The block of each input; all are one without it, and all go.
        most: Largest number of weights of a block that may go.
    """
    inverse, w = np.linalg.inv(h), w.copy()
    left = {} if blocks is None else dict.fromkeys(blocks.tolist(), most)
    open_ = np.ones(len(w), bool)
    order, costs = [], []
    while open_.any():
        # The factor 1/2 of the cost is left out: it changes no order.
        diagonal = np.where(open_, np.diag(inverse), 1.0)
        cost = np.where(open_, w**2 / diagonal, np.inf)
        p = int(np.argmin(cost))
        order.append(p)
        costs.append(float(cost[p]))
        # Rank-one downdate: H^-1 of the inputs that are left, in O(d^2).
        row = inverse[p].copy()
        w = w - w[p] / row[p] * row
        inverse = inverse - np.outer(row, row) / row[p]
        # Exactly zero, not up to rounding.
        w[p], open_[p] = 0.0, False
        if blocks is not None:
            left[int(blocks[p])] -= 1
            if not left[int(blocks[p])]:
                open_ &= blocks != blocks[p]
    return order, costs


def cheapest(found: list[tuple[list[int], list[float]]], count: int) -> list[list[int]]:
    """Takes the first steps of several outputs, `count` in all, the cheapest next one each."""
    # One entry per output, its next step: outputs don't influence each other, so a heap
    # merges their traces in O(count log outputs) (Optimal Brain Compression, algorithm 2).
    heap = [(costs[0], o, 0) for o, (_, costs) in enumerate(found) if costs]
    heapq.heapify(heap)
    taken = [0] * len(found)
    for _ in range(count):
        _, o, k = heapq.heappop(heap)
        taken[o] = k + 1
        if k + 1 < len(found[o][1]):
            heapq.heappush(heap, (found[o][1][k + 1], o, k + 1))
    return [order[:n] for (order, _), n in zip(found, taken, strict=True)]


def refitted(h: np.ndarray, w: np.ndarray, gone: list[int]) -> np.ndarray:
    """Returns the optimal weights of an output without some: the result of all steps."""
    # One solve instead of the accumulated updates: the same optimum without their rounding
    # errors.
    keep = np.ones(len(w), bool)
    keep[gone] = False
    new = np.zeros_like(w)
    if keep.any():
        new[keep] = np.linalg.solve(h[np.ix_(keep, keep)], h[keep] @ w)
    return new


__all__ = ["optimal_brain_surgeon"]
