"""Monte Carlo over the network itself: its variances, and how well sampling finds them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from jaxeff.moment_propagation import is_gaussian

Outputs = Float[np.ndarray, "samples n classes"]
_BATCHES = 50


def draws(key: jax.Array, f: Callable[..., Any], args: Any, samples: int, chunk: int) -> Outputs:
    """Results of a function for samples of its random arguments.

    Args:
        key: A PRNG key.
        f: A function of `args`, which returns one array.
        args: Arguments; `Gaussian` leaves are drawn.
        samples: How many.
        chunk: How many are run at once.
    """
    leaves, structure = jax.tree.flatten(args, is_leaf=is_gaussian)

    def draw(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, len(leaves))
        drawn = [v.sample(k) if is_gaussian(v) else v for v, k in zip(leaves, keys, strict=True)]
        return f(*jax.tree.unflatten(structure, drawn))

    run = jax.jit(lambda keys: jax.lax.map(draw, keys, batch_size=chunk if chunk > 1 else None))
    return np.asarray(run(jax.random.split(key, samples)), np.float64)


def median_error(ratios: np.ndarray) -> float:
    """The median distance from one."""
    return float(np.median(np.abs(ratios - 1)))


def compared(ours: np.ndarray, outputs: Outputs, seed: int) -> dict[str, float]:
    """How variances compare with sampled ones.

    Args:
        ours: Variances `[n, classes]`.
        outputs: Results for samples.
        seed: For the bootstrap.

    Returns:
        Median and range of the ratio over the entries, the median distance from one, and the
        standard error that the number of samples leaves in it (a bootstrap over batches).
    """
    ratios = ours / outputs.var(0, ddof=1)
    low, middle, high = np.quantile(ratios, (0.05, 0.5, 0.95))
    parts = np.array_split(outputs - outputs.mean(0), _BATCHES)
    counts = np.array([len(part) for part in parts], float)
    first = np.array([part.sum(0) for part in parts])
    second = np.array([(part**2).sum(0) for part in parts])
    rng = np.random.default_rng(seed)
    errors = []
    for _ in range(100):
        times = np.bincount(rng.integers(0, len(parts), len(parts)), minlength=len(parts))
        n = times @ counts
        mean, square = (np.tensordot(times, sums, 1) / n for sums in (first, second))
        errors.append(median_error(ours / (square - mean**2)))
    return {
        "ratio": float(middle),
        "low": float(low),
        "high": float(high),
        "error": median_error(ratios),
        "standard_error": float(np.std(errors)),
    }


def of_samples(n: int, outputs: Outputs) -> dict[str, float]:
    """The same of variances estimated from n samples, averaged over groups of the oracle's."""
    groups = min(len(outputs) // n, 50)
    true = outputs.var(0, ddof=1)
    ratios = np.array([g.var(0, ddof=1) / true for g in np.split(outputs[: groups * n], groups)])
    low, middle, high = np.quantile(ratios, (0.05, 0.5, 0.95))
    errors = [median_error(r) for r in ratios]
    return {
        "ratio": float(middle),
        "low": float(low),
        "high": float(high),
        "error": float(np.mean(errors)),
        "standard_error": float(np.std(errors) / len(errors) ** 0.5),
    }
