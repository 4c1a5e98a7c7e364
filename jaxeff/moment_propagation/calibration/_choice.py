"""Which form of factors suits a network: told by inputs that they weren't measured on.

Factors of every form are measured on each half of the inputs and judged on the other one, with the
same draws. A form takes the place of static factors only where it errs less by more than twice the
standard error of the difference, over inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.moment_propagation.calibration._levels import at_level, fit_level, level_name
from jaxeff.moment_propagation.values import Gaussian
from jaxeff.program import Program

FORMS = ("best", "static", "level", "static and level")
FEWEST = 8
"""Inputs that a choice can be made with."""
_SURE = 2.0


class FactorPass(NamedTuple):
    """What one pass over the inputs finds.

    Attributes:
        factors: Static factors by site.
        errors: Their relative standard errors.
        results: Propagated and sampled moments of the results, by their place among them.
    """

    factors: dict[str, Array]
    errors: dict[str, Array]
    results: dict[int, tuple[Gaussian, Gaussian]]


class Chosen(NamedTuple):
    """Factors of one form.

    Attributes:
        factors: The factors by site, levels of results among them.
        errors: Relative standard errors of those of sites.
        unseen: Median error of the results' variances on inputs that weren't measured.
    """

    factors: Mapping[str, Any]
    errors: Mapping[str, Any]
    unseen: float | None


class _Tables(NamedTuple):
    """Propagated and sampled variances of one result, `[entries, channels]`."""

    var: np.ndarray
    sampled: np.ndarray


def examples_of(program: Program) -> int:
    """Returns how many examples the arguments hold along their first axes; 1 if that is unclear."""
    sizes = {v.aval.shape[:1] for v in program.inputs if v.is_data}
    (size,) = sizes.pop() if len(sizes) == 1 and len(min(sizes)) else (1,)
    return int(size)


def choose(
    form: str,
    examples: int,
    measure: Callable[[np.ndarray, float], FactorPass],
    samples: int,
) -> Chosen:
    """Measures factors of the form asked for, or of the best one.

    Args:
        form: One of `FORMS`.
        examples: How many inputs there are.
        measure: `measure(rows, scale)`: factors from the inputs whose row is 1, and the results
            with factors to the power of `scale`.
        samples: How many draws a sampled variance is of.
    """
    noise, rows = 2 / samples, np.ones(examples, np.float32)
    whole = measure(rows, 1.0)
    plain = whole if form in ("static", "static and level") else measure(rows, 0.0)
    unseen: dict[str, np.ndarray] = {}
    if examples >= FEWEST:
        unseen = _unseen(measure, plain, examples, noise)
    if form == "best":
        form = _best(unseen)
    factors: dict[str, Any] = {} if form == "level" else dict(whole.factors)
    if form != "static":
        base = plain if form == "level" else whole
        for number, result in _tables(base).items():
            known = np.ones(len(result.var), bool)
            factors[level_name(number)] = jnp.asarray(fit_level(*result, known, noise), jnp.float32)
    errors = {site: error for site, error in whole.errors.items() if site in factors}
    left = float(np.expm1(np.median(unseen[form]))) if form in unseen else None
    return Chosen(factors, errors, left)


def _best(unseen: Mapping[str, np.ndarray]) -> str:
    """Returns the form that errs least, or "static" where that isn't sure."""
    if not unseen:
        return "static"
    means = {form: errors.mean(1) for form, errors in unseen.items()}
    form = min(means, key=lambda one: means[one].mean())
    gain = means["static"] - means[form]
    sure = gain.mean() > _SURE * gain.std(ddof=1) / len(gain) ** 0.5
    return form if sure else "static"


def _unseen(
    measure: Callable[[np.ndarray, float], FactorPass],
    plain: FactorPass,
    examples: int,
    noise: float,
) -> dict[str, np.ndarray]:
    """Computes errors of the logarithm on halves that weren't measured, `[examples, entries]`."""
    found: dict[str, list[np.ndarray]] = {}
    for half in range(2):
        # Every other input: those that are neighbours in a data set may be alike.
        rows = np.arange(examples) % 2 == half
        static = measure(rows.astype(np.float32), 1.0)
        for number, result in _tables(static).items():
            base = _tables(plain)[number]
            if not result.var.size or len(result.var) % examples:
                continue
            seen = np.repeat(rows, len(result.var) // examples)
            guesses = {
                "static": result.var,
                "static and level": _leveled(result, seen, noise),
                "level": _leveled(base, seen, noise),
            }
            for form, var in guesses.items():
                off = _off(var[~seen], result.sampled[~seen])
                found.setdefault(form, []).append(off.reshape(int((~rows).sum()), -1))
    return {form: _stacked(parts) for form, parts in found.items()}


def _leveled(result: _Tables, seen: np.ndarray, noise: float) -> np.ndarray:
    return np.asarray(at_level(result.var, fit_level(*result, seen, noise)))


def _off(var: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    known = (var > 0) & (sampled > 0)
    return np.abs(np.log(np.where(known, var, 1)) - np.log(np.where(known, sampled, 1)))


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks what each half has of each result: all results of an example side by side."""
    half = len(parts) // 2
    return np.concatenate([np.concatenate(side, 1) for side in (parts[:half], parts[half:])])


def _tables(measured: FactorPass) -> dict[int, _Tables]:
    def table(var: Any) -> np.ndarray:
        array = np.asarray(var, float)
        return array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1)

    return {
        number: _Tables(table(ours.var), table(sampled.var))
        for number, (ours, sampled) in measured.results.items()
    }
