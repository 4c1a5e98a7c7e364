"""Robustness over a range of noise: the relative area under the curve, and what it costs.

```python
>>> import numpy as np
>>> from jaxeff.robustness import envelope, preserved_accuracy, robustness_area
>>> levels = np.array([0.0, 0.5, 0.9])
>>> standard = np.array([[0.9, 0.5, 0.3], [0.8, 0.7, 0.6]])  # trained at two levels
>>> ideal = envelope(standard)
>>> ideal.tolist() == np.float32([0.9, 0.7, 0.6]).tolist()
True
>>> accuracy = np.array([0.85, 0.7, 0.65])
>>> print(f"{robustness_area(levels, accuracy, ideal):.3f}")  # rAUC, 1 for the envelope itself
0.996
>>> print(f"{preserved_accuracy(levels, accuracy, standard[1], 0.9):.3f}")
1.083

```

All are pure functions of arrays that jit and vmap; NaN accuracies of a diverged replicate give NaN.

Sharp edges:
    Pass means over seeds to `envelope`: the maximum over noisy estimates is too high.
    rAUC exceeds 1 for a network that beats noisy training at its own levels.

References:
    Wang et al., "Variance-Aware Noisy Training: Hardening DNNs against Unstable Analog
    Computations", arXiv:2503.16183.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import finite, is_concrete, real_array, validate


@validate(curves=real_array(nan=True))
def envelope(
    curves: Float[Array | np.ndarray, "*leading trainings levels"],
) -> Float[Array, "*leading levels"]:
    """Computes the ideal accuracy at every level: the best of the networks trained with noise.

    Where each level was trained for, this is training and inference noise that match; beyond the
    strongest one it is the best there is.

    Args:
        curves: Accuracy of the network of every training level at every evaluation level; NaN
            entries are left out.
    """
    # A replicate that diverged is no upper bound: NaN is skipped, not passed on.
    return jnp.nanmax(jnp.asarray(curves), axis=-2)


@validate(levels=real_array(1), accuracies=real_array(nan=True), ideal=real_array(1, nan=True))
def robustness_area(
    levels: Float[Array | np.ndarray, " levels"],
    accuracies: Float[Array | np.ndarray, "*leading levels"],
    ideal: Float[Array | np.ndarray, " levels"],
) -> Float[Array, "*leading"]:
    """Computes the relative area under the accuracy curve (rAUC), by the trapezoidal rule.

    Args:
        levels: Evaluation levels in rising order.
        accuracies: At each of them.
        ideal: Accuracy under matched noise (`envelope`).

    Returns:
        The area relative to the ideal one.

    Raises:
        ValueError: The shapes don't agree, fewer than two levels, or levels that don't rise.
    """
    x, y, best = jnp.asarray(levels), jnp.asarray(accuracies), jnp.asarray(ideal)
    if x.ndim != 1 or len(x) < 2 or y.shape[-1:] != x.shape or best.shape != x.shape:
        raise ValueError(
            f"an area needs at least two levels and an accuracy and an ideal for each, got shapes "
            f"{x.shape}, {y.shape} and {best.shape}."
        )
    if is_concrete(x) and not (np.diff(np.asarray(x)) > 0).all():
        raise ValueError(f"evaluation levels must rise, got {np.asarray(x).tolist()}.")
    # Both areas over the same levels: their spacing, linear or not, weighs alike in both.
    return jnp.trapezoid(y, jnp.broadcast_to(x, y.shape), axis=-1) / jnp.trapezoid(best, x)


@validate(
    levels=real_array(1),
    accuracies=real_array(nan=True),
    standard=real_array(1, nan=True),
    level=finite,
)
def preserved_accuracy(
    levels: Float[Array | np.ndarray, " levels"],
    accuracies: Float[Array | np.ndarray, "*leading levels"],
    standard: Float[Array | np.ndarray, " levels"],
    level: float,
) -> Float[Array, "*leading"]:
    """Computes accuracy at a network's nominal level, relative to standard noisy training.

    Args:
        levels: Evaluation levels.
        accuracies: Accuracies of the network at these levels.
        standard: Accuracies of the network trained at `level` with noise that doesn't vary.
        level: The nominal noise level, one of `levels`.

    Returns:
        1 where nothing is lost.

    Raises:
        ValueError: The networks weren't evaluated at this level.
    """
    grid = np.asarray(levels)
    (found,) = np.nonzero(np.isclose(grid, level, rtol=1e-5, atol=0))
    if not len(found):
        raise ValueError(f"level {level:g} is none of the evaluation levels, {grid.tolist()}.")
    i = int(found[0])
    return jnp.asarray(accuracies)[..., i] / jnp.asarray(standard)[i]
