"""Features and the dense layer that reads them, and a function that returns a score beside outputs.

```python
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of
from jaxeff.uncertainty import dense_head, react, scored

f, params, (x, y) = small_classifier()
features = inputs_of(f, "fc2")(params, x)            # what the last layer reads, [batch, 32]
head = dense_head(f, "fc2", params, x)               # its kernel and bias
g = scored(f, "fc2", react(features, head))          # g(params, x): logits and scores
logits, scores = g(params, x)
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import check_params, function_of_form, string, validate
from jaxeff.program.costs import inputs_of, last_layer

Score = Callable[[Any, Any], Float[Array, " batch"]]
"""From features and outputs to a score of each input, higher out of domain."""


class DenseHead(NamedTuple):
    """A last layer of features.

    Attributes:
        kernel: Weights, `[features, classes]`.
        bias: Biases, `[classes]`.
    """

    kernel: Float[Array, "features classes"]
    bias: Float[Array, " classes"]

    def __call__(self, features: Float[Array, "batch features"]) -> Float[Array, "batch classes"]:
        """Computes the logits of features."""
        return features @ self.kernel + self.bias[None]


@validate(f=function_of_form("f(params, *args)"), site=string)
def dense_head(f: Callable[..., Any], site: str, params: Any, *args: Any) -> DenseHead:
    """Returns a function's last layer.

    Args:
        f: A pure function `f(params, *args)` that returns the result of a dense layer.
        site: The layer's name.
        params: The parameters.
        *args: Inputs; shapes are enough.

    Raises:
        ValueError: The site is no last dense layer; the message says why.
    """
    check_params("params", params)
    layer = last_layer(f, site, params, *args)
    leaves = jax.tree.leaves(params)
    kernel = jnp.asarray(leaves[layer.kernel])
    bias = jnp.zeros(kernel.shape[1], kernel.dtype)
    # A bias may be stored with further axes of size one.
    return DenseHead(kernel, bias if layer.bias is None else leaves[layer.bias].reshape(-1))


@validate(f=function_of_form("f(*args)"), site=string, score=function_of_form("score(h, outputs)"))
def scored(f: Callable[..., Any], site: str, score: Score) -> Callable[..., tuple[Any, Array]]:
    """Makes a function return a score of each input beside its outputs.

    Args:
        f: A pure function such as `f(params, x)`.
        site: The layer whose input the score takes as features.
        score: What `knn`, `vim` and the others fitted, or any function of features and outputs.

    Returns:
        A function of the same arguments: outputs and scores. It jits, vmaps and deploys.
    """
    features = inputs_of(f, site)

    def g(*args: Any, **kwargs: Any) -> tuple[Any, Array]:
        # Both are read from one program: XLA computes what they share once.
        outputs = f(*args, **kwargs)
        return outputs, score(features(*args, **kwargs), outputs)

    return g
