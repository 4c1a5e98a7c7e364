"""Monte Carlo over the network itself: its variances, and how well sampling finds them."""

import numpy as np
from jaxtyping import Float

Outputs = Float[np.ndarray, "samples n classes"]
_BATCHES = 50


def median_error(ratios: np.ndarray) -> float:
    """The median distance from one."""
    return float(np.median(np.abs(ratios - 1)))


def mean_error(means: np.ndarray, outputs: Outputs) -> float:
    """The distance from the sampled mean, in standard deviations, that 95 % of entries keep to."""
    off = np.abs(means - outputs.mean(0)) / outputs.std(0, ddof=1)
    return float(np.quantile(off, 0.95))


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
