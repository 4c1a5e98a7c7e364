"""Expected calibration error: how far stated confidence and accuracy lie apart.

Guo et al. 2017 (arXiv 1706.04599). Sharp edge: the estimate depends on the number of bins and is
biased upwards on small test sets (a perfectly calibrated model scores above zero).

```python
import jax.numpy as jnp

from jaxeff.uncertainty import ece

probs, labels = jnp.tile(jnp.array([0.75, 0.25]), (4, 1)), jnp.array([0, 0, 0, 1])
assert ece(probs, labels) < 1e-6                        # 75 % sure, and right as often
```
"""

import jax.numpy as jnp
from jax.ops import segment_sum
from jaxtyping import Array, Float, Int

from jaxeff.core import static_integer, validate
from jaxeff.uncertainty._scores import check_prediction


@validate(bins=static_integer())
def ece(
    probs: Float[Array, "batch classes"], labels: Int[Array, " batch"], bins: int = 15
) -> Float[Array, ""]:
    """Computes the expected calibration error of the most probable class, over bins of equal width.

    Args:
        probs: Class probabilities of the prediction (of samples: their mean).
        labels: True classes.
        bins: Number of confidence bins; each holds its upper edge.

    Returns:
        ``sum_b n_b / n |accuracy_b - confidence_b|``, 0 to 1.

    Raises:
        TypeError: Something else than floating-point probabilities or integer labels was given.
        ValueError: Rows that don't sum to one, as of logits, or a label out of range; where
            arrays are concrete.
    """
    check_prediction("ece", probs, labels)
    confidence = probs.max(-1)
    correct = (probs.argmax(-1) == labels).astype(probs.dtype)
    inner_edges = jnp.linspace(0, 1, bins + 1, dtype=probs.dtype)[1:-1]
    # "left": a confidence on an edge belongs to the bin below; the bins of Guo et al., section 2,
    # are open on the left.
    bin_of = jnp.searchsorted(inner_edges, confidence, side="left")
    # n_b |mean(correct) - mean(confidence)| is the absolute sum of the differences in the bin.
    return jnp.abs(segment_sum(correct - confidence, bin_of, bins)).sum() / len(labels)
