"""Which form of factors suits a network: told by inputs that they weren't measured on.

Static factors are measured without a quarter of the inputs and judged on it, in turn; a regression
is judged at every group of inputs by what it says without that group. The regression takes the
place of static factors only where it errs less by more than twice the standard error of the
difference, over groups of inputs with draws of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.moment_propagation.calibration._regression import (
    MOST_CHANNELS,
    VarianceTable,
    fit_regression,
    regression_name,
)
from jaxeff.moment_propagation.values import Gaussian

FORMS = ("best", "static", "inputs")
_FOLDS, _SURE, _RESAMPLES = 4, 2.0, 200


class FactorPass(NamedTuple):
    """What one pass over the inputs finds.

    Attributes:
        factors: Static factors by site.
        errors: Their relative standard errors.
        results: Propagated moments of each result by its place, and the logarithms of sampled
            variances, `[3, ...]`: of all draws and of either half.
    """

    factors: dict[str, Array]
    errors: dict[str, Array]
    results: dict[int, tuple[Gaussian, Array]]


class Chosen(NamedTuple):
    """Factors of one form.

    Attributes:
        factors: The factors by site, regressions of results among them.
        errors: Relative standard errors of those of sites.
        unseen: Median error of the results' variances on inputs that weren't measured, and its own
            standard error.
    """

    factors: Mapping[str, Any]
    errors: Mapping[str, Any]
    unseen: tuple[float, float] | None


class Residuals(NamedTuple):
    """Logarithms of variances on unseen inputs beside sampled ones, entry by entry."""

    off: np.ndarray
    halves: np.ndarray  # difference of the two halves of the draws
    groups: np.ndarray


def choose(form: str, groups: np.ndarray, measure: Callable[..., FactorPass]) -> Chosen:
    """Measures factors of the form asked for, or of the best one.

    Args:
        form: One of `FORMS`.
        groups: For each input the number of those it shares its draws with.
        measure: `measure(rows, scale)`: factors from the inputs whose row is 1, and the results
            with factors to the power of `scale`.
    """
    rows = np.ones(len(groups), np.float32)
    folds = groups.max() + 1 >= _FOLDS
    plain = _tables(measure(rows, 0.0), groups) if folds or form == "inputs" else {}
    fits = bool(plain) and all(t.var.shape[1] <= MOST_CHANNELS for t in plain.values())
    fitted = {n: fit_regression(t) for n, t in plain.items()} if fits and form != "static" else {}
    unseen: dict[str, Residuals] = {}
    if folds and form != "inputs":
        unseen["static"] = _static_unseen(groups, measure)
    if folds and fitted:
        parts = [_residuals(one.left_out, one.table) for one in fitted.values()]
        unseen["inputs"] = _joined(parts)
    if form == "best":
        form = _best(unseen)
    elif form == "inputs" and not fits:
        raise ValueError(
            f"calibrate_moments: form 'inputs' reads results of at most {MOST_CHANNELS} channels; "
            "take form='static'."
        )
    stated = state_error(unseen[form]) if form in unseen and unseen[form].off.size else None
    if form == "inputs":
        factors = {regression_name(n): jnp.float32(one.regression) for n, one in fitted.items()}
        return Chosen(factors, {}, stated)
    whole = measure(rows, 1.0)
    return Chosen(whole.factors, whole.errors, stated)


def _best(unseen: Mapping[str, Residuals]) -> str:
    """Returns the form that errs least, or "static" where that isn't sure."""
    if "inputs" not in unseen:
        return "static"
    # Draws are shared inside a group, so a group counts once.
    static, inputs = (_by_group(unseen[form]) for form in FORMS[1:])
    gain = static - inputs
    sure = gain.mean() > _SURE * gain.std(ddof=1) / len(gain) ** 0.5
    return "inputs" if sure else "static"


def _by_group(residuals: Residuals) -> np.ndarray:
    numbers = np.unique(residuals.groups)
    return np.array([np.abs(residuals.off[residuals.groups == n]).mean() for n in numbers])


def state_error(residuals: Residuals) -> tuple[float, float]:
    """Estimates the median error beyond the draws' own, and its standard error."""
    members = [np.flatnonzero(residuals.groups == n) for n in np.unique(residuals.groups)]

    def beyond(rows: np.ndarray) -> float:
        off, noise = (np.median(np.abs(part[rows])) for part in residuals[:2])
        # The halves differ by twice the deviation that all draws leave in a logarithm; errors
        # and draws are independent, so squares add up.
        return float(off**2 - (noise / 2) ** 2)

    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(members), (_RESAMPLES, len(members)))
    again = [beyond(np.concatenate([members[i] for i in pick])) for pick in picks]
    # Few draws can leave more than the whole error, and the difference of squares below zero. Its
    # deviation is taken before it is cut off there: what isn't seen may still be that large.
    square = max(beyond(np.concatenate(members)), 0.0)
    found, above = (float(np.expm1(np.sqrt(v))) for v in (square, square + float(np.std(again))))
    return found, above - found


def _static_unseen(groups: np.ndarray, measure: Callable[..., FactorPass]) -> Residuals:
    """Computes residuals of static factors on quarters of the inputs that they don't know."""
    parts: list[Residuals] = []
    for fold in range(_FOLDS):
        # Whole groups: the rest of one would know its draws.
        seen = groups % _FOLDS != fold
        for table in _tables(measure(seen.astype(np.float32), 1.0), groups).values():
            held = table.rows(table.groups % _FOLDS == fold)
            parts.append(_residuals(np.log(np.where(held.var > 0, held.var, 1)), held))
    return _joined(parts)


def _joined(parts: Sequence[Residuals]) -> Residuals:
    if not parts:
        return Residuals(*[np.zeros(0)] * 3)
    return Residuals(*map(np.concatenate, zip(*parts, strict=True)))


def _residuals(ours: np.ndarray, held: VarianceTable) -> Residuals:
    known = ~held.unknown() & np.isfinite(held.halves).all(0)
    groups = np.broadcast_to(held.groups[:, None], known.shape)
    return Residuals((ours - held.logs)[known], (held.halves[0] - held.halves[1])[known],
                      groups[known])  # fmt: skip


def _tables(measured: FactorPass, groups: np.ndarray) -> dict[int, VarianceTable]:
    """Arranges what results have in rows; those that hold no examples are left out."""

    def row(array: Any) -> np.ndarray:
        array = np.asarray(array, float)
        return array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1)

    found: dict[int, VarianceTable] = {}
    for number, (ours, logs) in measured.results.items():
        mean, var, whole, *halves = (row(a) for a in (ours.mean, ours.var, *logs))
        count = len(mean)
        if count and count % len(groups) == 0:
            members = np.repeat(groups, count // len(groups))
            found[number] = VarianceTable(mean, var, whole, np.stack(halves), members)
    return found
