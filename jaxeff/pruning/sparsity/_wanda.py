"""`wanda`: the weights go that are small times what they multiply, output by output.

The score of weight w_ij is |w_ij| ||x_j||_2, with the norm of input j over a batch; weights compare
with those of the same output (Sun et al., eq. 1). None that stays is changed.

```python
from jaxeff.compression import Uniform, quantized
from jaxeff.nn import small_classifier
from jaxeff.pruning.sparsity import NofM, wanda

f, params, (x, y) = small_classifier()
params, spec = wanda(f, params, x, {"fc2": NofM(2, 4)})
logits = quantized(f, spec)(params, x)                                # the zeros are there already
eight = quantized(f, {"fc2": NofM(2, 4, values=Uniform(8, symmetric=True))})(params, x)
```

References:
    Sun et al., "A Simple and Effective Pruning Approach for Large Language Models",
    arXiv:2306.11695.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxeff.compression import LayerQuantization
from jaxeff.compression.post_training import Matrix, RoundingProblem, on_grids
from jaxeff.core import input_batch, validate
from jaxeff.pruning.sparsity._n_of_m import NofM
from jaxeff.pruning.sparsity._surgeon import share_of

_SLACK = 1e-6
"""A share of .9 in floating point leaves a tenth, not a bit less."""


@validate(batch=input_batch)
def wanda(
    f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Any]
) -> tuple[Any, dict[str, LayerQuantization | None]]:
    """Removes weights by their magnitude times the norm of what they multiply.

    Layers are taken in order; each reads what those before it, pruned, give it.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Maps patterns of sites to `Magnitude(fraction)`, the share of every output's weights
            that goes at least, or `NofM(n, m)`.

    Returns:
        Parameters with zeros, and the spec that reproduces them.

    Raises:
        TypeError: A method is another one.
        ValueError: The batch is empty or not finite, nothing has weights to remove, or a weight
            isn't one parameter's entries.
    """

    def solve(problem: RoundingProblem) -> Matrix:
        method, at = share_of("wanda", problem), problem.at
        # The mean in the place of the sum: both give the same order.
        norms = np.sqrt(np.asarray(at.squares(problem.quantized), np.float64))
        scores = np.abs(np.asarray(problem.weights, np.float64)) * norms[:, :, None]
        if isinstance(method, NofM):
            weight = at.contraction.weight(scores.astype(np.float32))
            mask = at.contraction.matrix(method.mask(weight, problem.tensor))
        else:
            # Rounded down, so that a mask of the whole array by magnitude keeps all of them.
            kept = int((1 - float(method.fraction)) * scores.shape[1] + _SLACK)
            # Stable: of equal scores the first stay, and no more than asked.
            order = np.argsort(-scores, axis=1, kind="stable")
            mask = np.argsort(order, axis=1, kind="stable") < kept
        return np.where(mask, problem.weights, np.float32(0))  # type: ignore[return-value]

    return on_grids("wanda", f, params, batch, spec, solve)


__all__ = ["wanda"]
