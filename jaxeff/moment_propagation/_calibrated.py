"""A posterior with factors that correct its network's variances, and the forms of these factors.

The factors are measured once (`calibrate_moments`) and travel with the posterior: `moments(f)`
takes the pair in place of the posterior, and so do `deploy` and bundles.

A static factor is an average over inputs. What is left of its error belongs to the input, and the
propagated means m and variances V of a result tell most of it: for channel c and input x

    log E[s^2]_c(x) = log V_c(x) + a_c + sum_n k(u(x), u(x_n)) w_nc,   u = (log V, m), standardised,

a kernel ridge regression (the mean of a Gaussian process) on the logarithm of sampled variances
s^2, k(u, u') = exp(-|u - u'|^2 / 2 l). Length and ridge are those of least error on
groups of inputs that are left out, which the inverse of the kernel's matrix gives without fitting
again (Rasmussen and Williams 2006, section 5.4.2, by blocks).

Sharp edges
- It costs 3 n multiplications and an exponential per n inputs that it keeps and result, at most
  256: thousandths of a convolutional network or a transformer, much of a tiny one.
- Far from every input that was measured the sum vanishes, and the factor is the static exp(a_c).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxeff.moment_propagation import _values
from jaxeff.program import Layer

RESULT = "linear result "
"""Begins the names of factors of the linear method's results; their places follow."""


# A pointwise function of one array gets its moments right from its input's.
_SCALED = {"linear", "matmul", "pooling", "reduction", "normalization"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Calibrated:
    """A posterior with factors for the variances that `moments` gives.

    Attributes:
        posterior: A pytree with `Gaussian` leaves, as `moments(f)` takes it.
        factors: Mapping from site to the factors of its result's variance, `[channels]`: one
            factor per entry of its last axis. For `moments(f, method="linear")` those of the
            function's own results, `"linear result 0"`, ... Factors that depend on the input are
            `"inputs 0"`, ..., `[2 + n, 3 channels]`: the regression of a result (`fit_regression`)
            on n inputs.
        errors: Mapping from site to the median standard error of its factors, relative to them,
            that the number of samples left; `()` if it isn't known.
        unseen: Median error of the results' variances, relative, on inputs that factors weren't
            measured on (by cross-validation), and that number's own standard error; None if that
            isn't known.
    """

    posterior: Any
    factors: Mapping[str, Array]
    errors: tuple[tuple[str, float], ...] = field(default=(), metadata={"static": True})
    unseen: tuple[float, float] | None = field(default=None, metadata={"static": True})

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Prepares draws of the Gaussians, as `jaxeff.bayes.Posterior.draws`."""
        leaves, structure = jax.tree.flatten(self.posterior, is_leaf=_values.is_gaussian)

        def at(key: PRNGKeyArray) -> Any:
            return jax.tree.unflatten(structure, _values.sample_all(key, leaves))

        return jax.random.split(key, n), at

    def to_gaussians(self, *, diagonal: bool = False) -> Calibrated:
        """Returns itself: `moments(f)` takes it as it is, and factors stay."""
        del diagonal
        return self

    def __repr__(self) -> str:
        """Returns the number of sites, their names, and what error is left."""
        parts = [f"{len(self.factors)} sites: {', '.join(self.factors)}"]
        if self.errors:
            errors = [error for _, error in self.errors]
            middle, most = statistics.median(errors), max(errors)
            parts.append(f"standard error {middle:.1%}, at most {most:.1%}")
        if self.unseen is not None:
            parts.append("median error on unseen inputs {:.1%} ± {:.1%}".format(*self.unseen))
        return f"Calibrated({'; '.join(parts)})"


def factor_of(factors: Mapping[str, Array], site: str, result: Any) -> Array:
    """Returns the factors of a site's result, for its channels.

    Their geometric mean, where it has another number of channels than it was measured with.
    """
    factor = factors[site]
    if jnp.ndim(factor) and jnp.shape(factor) != jnp.shape(result)[-1:]:
        return jnp.exp(jnp.mean(jnp.log(factor)))
    return factor


def is_scaled(layer: Layer, result: Any) -> bool:
    """Returns whether a layer's result may have a factor."""
    return (
        _values.is_random(result) and not isinstance(result, _values.Activated) and may_scale(layer)
    )


def may_scale(layer: Layer) -> bool:
    """Returns whether a layer's result may have a factor if it is random."""
    # A pointwise function of one array is exact; of several arrays (a residual sum) the shared
    # noise is missing.
    joins = sum(v.is_data for v in layer.inputs) > 1
    return bool(layer.site) and (layer.kind in _SCALED or joins)


def are_of_sites(factors: Mapping[str, Array]) -> bool:
    """Returns whether factors were measured beside the diagonal pass, as those of sites are."""
    return any(not name.startswith(RESULT) for name in factors)


def with_factors(
    rule: Callable[..., Any], factors: Mapping[str, Array], is_sum: Callable[[Layer], bool]
) -> Callable[..., Any]:
    """Makes a rule whose results have the factors of their sites.

    `is_sum` says of a layer whether its rule adds the variances of its operands.
    """
    if not factors:
        return rule

    def scaled(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if layer.site not in factors or not may_scale(layer):
            return rule(layer, key, *values)
        if is_sum(layer) and all(map(_values.is_random, values)):
            # XLA computes what ends in a sum of two arrays once, and what ends in a product with a
            # factor again in every loop that reads it: along a residual stream, all that is before.
            factor = factor_of(factors, layer.site, values[0])
            terms = [_values.to_variance(x) for x in values]
            values = tuple(_values.Gaussian(x.mean, x.var * factor) for x in terms)
            return rule(layer, key, *values)
        outputs: Sequence[Any] = rule(layer, key, *values)
        if not is_scaled(layer, outputs[0]):
            return outputs
        factor = factor_of(factors, layer.site, outputs[0])
        return [_values.Gaussian(outputs[0].mean, outputs[0].var * factor), *outputs[1:]]

    return scaled


def is_result(value: Any) -> bool:
    """Returns whether a value is a random result, with or without its covariances."""
    return _values.is_gaussian(value) or _values.is_joint_gaussian(value)


def with_result_factors(out: Any, factors: Mapping[str, Array]) -> Any:
    """Multiplies the variances of the linear method's results by their factors."""

    def scaled(i: int, result: Any) -> Any:
        factor = factors.get(f"{RESULT}{i}")
        if factor is None or not is_result(result):
            return result
        if _values.is_gaussian(result):
            return _values.Gaussian(result.mean, result.var * factor)
        # Standard deviations scale, correlations stay: the covariance remains positive
        # semidefinite.
        root = jnp.broadcast_to(jnp.sqrt(factor), result.shape)
        return _values.JointGaussian(result.mean, result.cov * root[..., None] * root[..., None, :])

    results, structure = jax.tree.flatten(out, is_leaf=is_result)
    return jax.tree.unflatten(structure, [scaled(i, r) for i, r in enumerate(results)])


def uncalibrated(args: Sequence[Any]) -> tuple[tuple[Any, ...], Mapping[str, Array]]:
    """Puts its posterior in the place of a `Calibrated` argument, and returns the factors."""
    posteriors = [a for a in args if isinstance(a, Calibrated)]
    if len(posteriors) > 1:
        raise TypeError(
            f"moments: {len(posteriors)} arguments are Calibrated, and one may be; calibrate them "
            "together, as one pytree."
        )
    plain = tuple(a.posterior if isinstance(a, Calibrated) else a for a in args)
    return plain, posteriors[0].factors if posteriors else {}


MOST_ROWS = 256
"""Inputs, or positions of inputs, that a regression keeps."""
MOST_CHANNELS = 64
"""Channels of a result that a regression reads; more have static factors alone."""
_LENGTHS = (2.0, 8.0, 32.0)
_STILL = 1e-6
_RIDGES = tuple(10.0**power for power in range(-3, 2))


class VarianceTable(NamedTuple):
    """Moments of one result, position by position, `[entries, channels]`.

    Attributes:
        mean: Propagated means.
        var: Propagated variances.
        logs: Logarithms of sampled variances, without bias.
        halves: The same of either half of the draws, `[2, entries, channels]`.
        groups: Numbers that inputs with the same draws share, `[entries]`.
    """

    mean: np.ndarray
    var: np.ndarray
    logs: np.ndarray
    halves: np.ndarray
    groups: np.ndarray

    def rows(self, kept: np.ndarray) -> VarianceTable:
        """Selects entries."""
        mean, var, logs = (part[kept] for part in (self.mean, self.var, self.logs))
        return VarianceTable(mean, var, logs, self.halves[:, kept], self.groups[kept])

    def unknown(self) -> np.ndarray:
        """Marks entries without a ratio: masked, dead."""
        return ~((self.var > 0) & np.isfinite(self.logs) & np.isfinite(self.mean))


def regression_name(number: int) -> str:
    """Returns the name of the regression of a result, by its place among the results."""
    return f"inputs {number}"


class FittedRegression(NamedTuple):
    """A regression and how well it does without a group.

    Attributes:
        regression: `[2 + rows, 3 channels]`. The last third holds the offsets a, a row without
            meaning, and the weights w; the others the middle, the reciprocal scale and the rows of
            (log V, m).
        table: The entries it was fitted to.
        left_out: Logarithms of variances at each entry, fitted without its group.
    """

    regression: np.ndarray
    table: VarianceTable
    left_out: np.ndarray


def fit_regression(table: VarianceTable) -> FittedRegression:
    """Fits the regression of one result."""
    # Evenly over all inputs and positions: neighbours are alike.
    count = len(table.var)
    table = table.rows(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(int))
    known = ~table.unknown()
    logs = np.log(np.where(known, table.var, 1))
    ratios = np.where(known, table.logs - logs, 0)
    offset = ratios.sum(0) / np.maximum(known.sum(0), 1)
    # What has no ratio says nothing: it lies on the offset.
    residuals = np.where(known, ratios - offset, 0)
    features = np.asarray(_features(table.mean, table.var), float)
    middle, spread = features.mean(0), features.std(0)
    # A feature that doesn't vary has no scale, and no word.
    scale = np.where(spread > _STILL, 1 / np.maximum(spread, _STILL), 0) / features.shape[1] ** 0.5
    places = (features - middle) * scale
    distances = np.square(places[:, None] - places).sum(-1)
    length, weights, off = _least_left_out(distances, residuals, table.groups)
    # The length goes into the scale, so that the kernel has none.
    scale = scale / length**0.5
    head = np.concatenate([[middle, scale], (features - middle) * scale])
    tail = np.concatenate([[offset, np.zeros_like(offset)], weights])
    return FittedRegression(np.concatenate([head, tail], 1), table, logs + offset + residuals - off)


def _features(mean: Any, var: Any) -> Any:
    logs = jnp.log(jnp.where(var > 0, var, 1))
    return jnp.concatenate([logs, mean], -1)


def _least_left_out(
    distances: np.ndarray, residuals: np.ndarray, groups: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Finds the length and the weights of least error on groups that are left out."""
    best = (np.inf, 1.0, np.zeros_like(residuals), residuals)
    blocks = [np.flatnonzero(groups == one) for one in np.unique(groups)]
    for length in _LENGTHS:
        values, vectors = np.linalg.eigh(np.exp(-distances / (2 * length)))
        for ridge in _RIDGES:
            inverse = (vectors / (np.maximum(values, 0) + ridge)) @ vectors.T
            weights, off = inverse @ residuals, np.empty_like(residuals)
            # Inputs of a group share their draws, so they are left out together: residuals of a
            # block are its block of the inverse, inverted, times its weights.
            for block in blocks:
                off[block] = np.linalg.solve(inverse[np.ix_(block, block)], weights[block])
            error = float(np.abs(off).mean())
            if error < best[0]:
                best = (error, length, weights, off)
    return best[1:]


def at_regression(mean: Any, var: Any, regression: Any) -> Any:
    """Computes the variances that a regression makes of propagated ones; none stays none."""
    channels = regression.shape[1] // 3
    inputs, outputs = regression[:, : 2 * channels], regression[:, 2 * channels :]
    places = (_features(mean, var) - inputs[0]) * inputs[1]
    kept = inputs[2:]
    # |u - u'|^2 by its three products: a matrix product in the place of all differences.
    squares = jnp.sum(places**2, -1, keepdims=True) + jnp.sum(kept**2, -1)
    kernel = jnp.exp(jnp.minimum(places @ kept.T - squares / 2, 0))
    logs = outputs[0] + kernel @ outputs[2:]
    return jnp.where(var > 0, var * jnp.exp(logs), var)


def with_regressions(results: Any, factors: Mapping[str, Array]) -> Any:
    """Takes the variances of a function's results to their regressions, where they have one."""
    leaves, structure = jax.tree.flatten(results, is_leaf=_values.is_gaussian)

    def moved(number: int, value: Any) -> Any:
        regression = factors.get(regression_name(number))
        if regression is None or not _values.is_gaussian(value):
            return value
        alone = value.ndim < 2  # one result per example
        mean, var = ((a[..., None] if alone else a) for a in (value.mean, value.var))
        if regression.shape[1] == 3 * mean.shape[-1]:
            var = at_regression(mean, var, regression)
        else:
            # Another number of channels than was measured has what the offsets have in common.
            channels = regression.shape[1] // 3
            var = var * jnp.exp(jnp.mean(regression[0, 2 * channels :]))
        return _values.Gaussian(value.mean, (var[..., 0] if alone else var).astype(value.dtype))

    return jax.tree.unflatten(structure, [moved(i, v) for i, v in enumerate(leaves)])


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
    results: dict[int, tuple[_values.Gaussian, Array]]


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

    `groups` says for each input the number of those it shares its draws with. `measure(rows,
    scale)` gives factors from the inputs whose row is 1, and the results with factors to the power
    of `scale`. Static factors are measured without a quarter of the inputs and judged on it, in
    turn; a regression is judged at every group of inputs by what it says without that group. It
    takes their place only where it errs less by more than twice the standard error of the
    difference, over groups of inputs with draws of their own.
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
    measured = measure(rows, 1.0)
    return Chosen(measured.factors, measured.errors, stated)


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
    error, above = (float(np.expm1(np.sqrt(v))) for v in (square, square + float(np.std(again))))
    return error, above - error


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

    tables: dict[int, VarianceTable] = {}
    for number, (ours, logs) in measured.results.items():
        mean, var, total, *halves = (row(a) for a in (ours.mean, ours.var, *logs))
        count = len(mean)
        if count and count % len(groups) == 0:
            members = np.repeat(groups, count // len(groups))
            tables[number] = VarianceTable(mean, var, total, np.stack(halves), members)
    return tables
