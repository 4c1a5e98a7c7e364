"""Scores that cut features or weights before the last layer: ReAct, DICE, ASH.

All are the energy of the logits that a `DenseHead` makes of what is left.

```python
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of
from jaxeff.uncertainty import ash, dense_head, dice, react, scored

f, params, (x, y) = small_classifier()
features, head = inputs_of(f, "fc2")(params, x), dense_head(f, "fc2", params, x)
for score in (react(features, head), dice(features, head), ash(head, percentile=65)):
    logits, scores = scored(f, "fc2", score)(params, x)
```

Sharp edge: they are made for features behind a ReLU, which are never negative.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import instance_of, number, one_of, real_array, validate
from jaxeff.uncertainty.domain_scores._head import DenseHead
from jaxeff.uncertainty.domain_scores._logits import energy

PERCENT = number(0, 100, below=100)
FEATURES = real_array(2)
HEAD = instance_of(DenseHead)
ASH_KINDS = ("binary", "prune", "scale")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ReAct:
    """The energy of clipped features; `react` makes it.

    Attributes:
        threshold: What features are clipped at.
        head: The last layer.
    """

    threshold: Float[Array, ""]
    head: DenseHead

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes the energy of what is left."""
        return energy(self.head(jnp.minimum(features, self.threshold)))


@validate(features=FEATURES, head=HEAD, percentile=PERCENT)
def react(
    features: Float[Array, "examples features"], head: DenseHead, percentile: float = 90.0
) -> ReAct:
    """Finds the value above which few activations of training data lie.

    Sun, Guo, Li, "ReAct: Out-of-distribution Detection With Rectified Activations", NeurIPS 2021,
    arXiv 2111.12797.

    Args:
        features: Features of training examples.
        head: The layer that reads them.
        percentile: Percent of all activations that lie below.
    """
    return ReAct(jnp.percentile(jnp.asarray(features, float), percentile), head)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class DICE:
    """The energy of a last layer of few weights; `dice` makes it.

    Attributes:
        head: The last layer, most of whose weights are zero.
    """

    head: DenseHead

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes the energy of what is left."""
        return energy(self.head(features))


@validate(features=FEATURES, head=HEAD, percentile=PERCENT)
def dice(
    features: Float[Array, "examples features"], head: DenseHead, percentile: float = 90.0
) -> DICE:
    """Keeps the weights that contribute most to logits on training data.

    Sun and Li, "DICE: Leveraging Sparsification for Out-of-Distribution Detection", ECCV 2022,
    arXiv 2111.09805, eq. 4.

    Args:
        features: Features of training examples.
        head: The layer that reads them.
        percentile: Percent of the weights that are left out.
    """
    contributions = jnp.asarray(features, float).mean(0)[:, None] * head.kernel
    kept = contributions > jnp.percentile(contributions, percentile)
    return DICE(DenseHead(head.kernel * kept.astype(head.kernel.dtype), head.bias))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ASH:
    """The energy of the largest activations of each input; `ash` makes it.

    Attributes:
        head: The last layer.
        percentile: Percent of an input's activations that are set to zero.
        kind: What the others become: see `ash`.
    """

    head: DenseHead
    percentile: float = dataclasses.field(metadata={"static": True})
    kind: str = dataclasses.field(metadata={"static": True})

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes the energy of what is left."""
        size = features.shape[1]
        kept = size - round(size * self.percentile / 100)
        values, places = jax.lax.top_k(features, kept)
        sums = features.sum(-1, keepdims=True)
        if self.kind == "binary":
            values = jnp.broadcast_to(sums / kept, values.shape)
        elif self.kind == "scale":
            values = values * jnp.exp(sums / values.sum(-1, keepdims=True))
        rows = jnp.arange(len(features))[:, None]
        shaped = jnp.zeros_like(features).at[rows, places].set(values)
        return energy(self.head(shaped))


@validate(head=HEAD, percentile=PERCENT, kind=one_of(*ASH_KINDS))
def ash(head: DenseHead, percentile: float = 90.0, kind: str = "scale") -> ASH:
    """Sets the smaller activations of each input to zero; needs no training data.

    Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection",
    ICLR 2023, arXiv 2209.09858, algorithms 1 to 3.

    Args:
        head: The layer that reads features.
        percentile: Percent of the activations that are set to zero.
        kind: "prune" keeps the others, "binary" gives each their mean with the removed part
            added, "scale" multiplies them by the exponential of the sum before over that after.
    """
    return ASH(head, float(percentile), kind)
