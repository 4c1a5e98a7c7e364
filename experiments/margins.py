"""What a difference has to exceed before noise can't explain it.

`margin` is half of the 95 % interval of a difference of means: two standard errors where there are
many values, more where there are few (Student's t). A single value has no spread of its own; where
it is a share of so many images, the binomial distribution has one (`of_shares`), and for an area
under a curve `auroc_error` is Hanley and McNeil's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t

TWO = 2.0
"""Standard errors."""


def margin(*samples: Sequence[float]) -> float | None:
    """Computes what a mean, or the difference of two, has to exceed.

    Args:
        samples: One sample of differences of pairs, or two that are compared; their variance is
            taken to be the same.

    Returns:
        Half of the 95 % interval; None where no sample has two values.
    """
    free = sum(len(values) - 1 for values in samples)
    if free < 1:
        return None
    squares = sum(float(np.var(values)) * len(values) for values in samples)
    scale = squares / free * sum(1 / len(values) for values in samples)
    return float(t.ppf(0.975, free)) * float(np.sqrt(scale))


def of_spreads(count: int, *deviations: float) -> float | None:
    """Computes the same from standard deviations (divisor `count`) of samples of one size."""
    if count < 2:
        return None
    scale = sum(one**2 for one in deviations) / (count - 1)
    return float(t.ppf(0.975, len(deviations) * (count - 1))) * float(np.sqrt(scale))


def of_shares(images: int, *shares: float) -> float:
    """Computes two standard errors of a difference of shares of so many images.

    The same images are in both, which makes the difference surer than that.
    """
    return TWO * float(np.sqrt(sum(max(p * (1 - p), 0.0) for p in shares) / images))


def of_accuracies(images: int, *samples: Sequence[float]) -> float:
    """Computes the margin of accuracies over seeds, of the images alone where there is one seed."""
    difference = margin(*samples)
    return (
        of_shares(images, *(float(np.mean(one)) for one in samples))
        if difference is None
        else difference
    )


def paired(
    first: Iterable[tuple[object, float]], second: Iterable[tuple[object, float]]
) -> list[float]:
    """Lists the differences of what has the same name in both, such as a seed or a chip."""
    other = dict(second)
    return [value - other[name] for name, value in first if name in other]


def means(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> dict[str, Any]:
    """Averages columns over rows, one a seed: each mean, and its margin as ``COLUMN ±``."""
    row: dict[str, Any] = {}
    for column in columns:
        values = [one[column] for one in rows]
        row |= {column: float(np.mean(values)), f"{column} ±": margin(values)}
    return row


def differences(
    first: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]], columns: Iterable[str]
) -> dict[str, Any]:
    """Averages what columns differ by on the same seeds, with the margin as ``COLUMN tie``."""
    row: dict[str, Any] = {}
    for column in columns:
        gaps = paired(*([(one["seed"], one[column]) for one in rows] for rows in (first, second)))
        row |= {column: float(np.mean(gaps)), f"{column} tie": margin(gaps)}
    return row


def auroc_error(auroc: float, inside: int, outside: int) -> float:
    """Computes the standard error of an AUROC (Hanley and McNeil, Radiology 143, 1982)."""
    both, one = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    square = auroc * (1 - auroc) + (outside - 1) * (both - auroc**2)
    return float(np.sqrt((square + (inside - 1) * (one - auroc**2)) / (inside * outside)))
