"""Steps of the recipe: mixing codes, stretching contrast, judging, balancing, labelling.

```python
import jax.numpy as jnp
import numpy as np

from jaxeff.dirty_mnist import (
    balance_entropy, draw_labels, is_ambiguous, mix_codes, stretch_contrast
)

rng = np.random.default_rng(0)
labels = np.arange(30) % 10
codes = mix_codes(rng, np.eye(30), labels, parts=3, n=200)           # weights of the digits
assert ((codes > 0).sum(1) == 3).all() and np.allclose(codes.sum(1), 1)

images = stretch_contrast(jnp.array([0.1, 0.5, 0.99]))               # of what is decoded
assert jnp.allclose(images, jnp.array([0.0, 0.45, 1.0]))

certain, torn, other = [9.0, 0, 0], [4.0, 4, 0], [0.0, 9, 0]
logits = jnp.array([[certain, torn, certain], [certain, torn, other]])     # of two members
assert is_ambiguous(logits, largest_mi=0.05, smallest_entropy=0.05).tolist() == [False, True, False]

entropy = rng.uniform(0, 1.6, 1000) ** 2 / 1.6                       # low ones are frequent
chosen = balance_entropy(rng, entropy, 100)
assert np.median(entropy[chosen]) > np.median(entropy)
drawn = draw_labels(rng, np.array([[0.5, 0.5, 0.0]]), 10)            # ten labels of one image
assert set(drawn[0]) <= {0, 1}
```
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxeff.core import integer_array, non_negative, positive, real_array, static_integer, validate
from jaxeff.uncertainty import decompose_logits


@validate(codes=real_array(2), labels=integer_array(1), parts=static_integer(), n=static_integer())
def mix_codes(
    rng: np.random.Generator,
    codes: Float[np.ndarray, "digits latents"],
    labels: Int[np.ndarray, " digits"],
    parts: int,
    n: int,
) -> Float[np.ndarray, "n latents"]:
    """Mixes the codes of digits of distinct classes (convex combinations).

    Args:
        rng: Source of randomness.
        codes: A code per digit.
        labels: The digits' classes.
        parts: Digits per combination. Their weights are uniform on the simplex.
        n: Number of combinations.

    Returns:
        The combinations.

    Raises:
        ValueError: The labels name fewer classes than there are parts.
    """
    # Sorted by class, the digits of a class are a run, drawn from by its start and length.
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    if not 1 <= parts <= len(starts):
        raise ValueError(f"can't mix {parts} digits of distinct classes out of {len(starts)}")
    # The order of uniform draws is a random permutation of the classes: its first entries are
    # distinct, each class equally likely.
    classes = np.argsort(rng.random((n, len(starts))), axis=1)[:, :parts]
    digits = order[starts[classes] + rng.integers(counts[classes])]
    # Dirichlet with all parameters 1: uniform on the simplex.
    weights = rng.dirichlet(np.ones(parts), n).astype(codes.dtype)
    return np.einsum("np,npl->nl", weights, codes[digits])


@validate(logits=real_array(3), largest_mi=non_negative, smallest_entropy=non_negative)
def is_ambiguous(
    logits: Float[Array, "members n classes"], largest_mi: float, smallest_entropy: float
) -> Bool[Array, " n"]:
    """Tells whether an ensemble agrees that an image may be of several classes.

    Args:
        logits: Logits of each member.
        largest_mi: Upper bound on the mutual information of label and member, in nats.
        smallest_entropy: Lower bound on the entropy of the mean prediction, in nats.

    Returns:
        A mask.
    """
    uncertainty = decompose_logits(logits)
    return (uncertainty.epistemic <= largest_mi) & (uncertainty.total >= smallest_entropy)


@validate(
    entropy=real_array(1),
    n=static_integer(),
    low=non_negative,
    high=positive,
    bins=static_integer(),
    power=non_negative,
)
def balance_entropy(
    rng: np.random.Generator,
    entropy: Float[np.ndarray, " candidates"],
    n: int,
    *,
    low: float = 0.05,
    high: float = 1.6,
    bins: int = 50,
    power: float = 0.2,
) -> Int[np.ndarray, " n"]:
    """Chooses candidates so that all entropies occur about as often.

    Entropies are counted in equal bins; a bin that holds ``h`` candidates is drawn from in
    proportion to ``h ** power``, and each of its candidates alike.

    Args:
        rng: Source of randomness.
        entropy: Entropy of each candidate's prediction, in nats.
        n: Number of candidates to choose, without repetition.
        low: Lower edge of the bins.
        high: Upper edge; candidates outside the bins are never chosen.
        bins: Number of bins.
        power: 1 keeps the candidates' own distribution, 0 makes it flat.

    Returns:
        Their indices, in random order.

    Raises:
        ValueError: Fewer than `n` candidates lie within the bins.
    """
    counts, edges = np.histogram(entropy, bins, (low, high))
    inside = (entropy >= low) & (entropy <= high)
    if inside.sum() < n:
        raise ValueError(
            f"{n} images are wanted, but only {inside.sum()} candidates have an entropy of "
            f"{low} to {high} nats"
        )
    # `digitize` puts the last edge into a bin of its own, `histogram` into the last bin.
    held = counts[np.clip(np.digitize(entropy, edges) - 1, 0, bins - 1)]
    # h candidates of weight h**(power - 1) give their bin the weight h**power.
    weights = np.where(inside, np.maximum(held, 1) ** (power - 1.0), 0.0)
    return rng.choice(len(entropy), n, replace=False, p=weights / weights.sum())


@validate(probs=real_array(2), labels=static_integer())
def draw_labels(
    rng: np.random.Generator, probs: Float[np.ndarray, "n classes"], labels: int
) -> Int[np.ndarray, "n labels"]:
    """Draws labels independently from each image's class probabilities (inverse transform)."""
    edges = np.cumsum(probs, axis=1)
    # The last edge is 1 exactly: rounded below it, a draw could fall beyond the last class.
    edges /= edges[:, -1:]
    drawn = rng.random((len(probs), labels, 1)) >= edges[:, None, :]
    return drawn.sum(-1).astype(np.int32)


@validate(images=real_array(nan=True, empty=True))
def stretch_contrast(images: Float[Array, "..."]) -> Float[Array, "..."]:
    """Stretches decoded images, which are soft, to MNIST's contrast: clip(1.2 x - 0.15)."""
    return jnp.clip(1.2 * images - 0.15, 0, 1)
