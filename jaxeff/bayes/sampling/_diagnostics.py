"""The result of sampling, and whether its chains converged: split R-hat, effective sample size.

Both are those of Vehtari et al. 2021, the sample size of the bulk.

```python
import jax
import jax.numpy as jnp

from jaxeff.bayes import mixing

values = jax.random.normal(jax.random.key(0), (4, 100, 2))           # [chains, draws, quantities]
assert mixing(values).max_rhat < 1.05
apart = values + jnp.array([0.0, 0.0, 3.0, 3.0])[:, None, None]      # two chains are elsewhere
assert mixing(apart).max_rhat > 1.5
```
"""

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from numpyro.diagnostics import effective_sample_size, gelman_rubin
from numpyro.distributions import CategoricalLogits, CategoricalProbs, Distribution
from scipy.special import ndtri
from scipy.stats import rankdata

from jaxeff.bayes import posteriors
from jaxeff.core import (
    Table,
    input_batch,
    instance_of,
    optional,
    real_array,
    shown_as_table,
    validate,
)

RHAT = 1.05
"""Above it, chains are said not to have converged."""
SETTLED = 1e-3
"""Probabilities that vary by less, in standard deviations, are settled: no matter for R-hat."""
_COLUMNS = 512  # at a time, for memory's sake


class ConvergenceWarning(UserWarning):
    """Chains that have not converged: their draws don't represent the posterior."""


class Mixing(NamedTuple):
    """Convergence of several chains, for each of a number of quantities.

    Attributes:
        rhat: Split, rank-normalised R-hat; NaN for a quantity that never changes, infinite for
            one that isn't finite.
        ess: Bulk effective sample size, of all chains together; of no meaning where R-hat is NaN.
    """

    rhat: Float[np.ndarray, " *shape"]
    ess: Float[np.ndarray, " *shape"]

    @property
    def max_rhat(self) -> float:
        """The largest R-hat; 1 where nothing changes."""
        return float(np.nanmax(self.rhat, initial=1.0))

    @property
    def min_ess(self) -> float:
        """The smallest effective sample size of what changes."""
        changing = self.ess[~np.isnan(self.rhat)]
        return float(changing.min()) if changing.size else float("nan")


@validate(values=real_array(nan=True))
def mixing(values: Float[Any, "chains draws *shape"]) -> Mixing:
    """Computes R-hat and effective sample size of any quantity.

    Args:
        values: One value for each draw of each chain; at least four draws.

    Returns:
        An entry for each component.
    """
    chains, draws, *shape = np.shape(values)
    if draws < 4:
        raise ValueError(f"R-hat needs at least 4 draws of each chain, not {draws}")
    # Split chains: one that drifts disagrees with itself. An odd draw in the middle is left out.
    half = draws // 2
    flat = np.reshape(values, (chains, draws, -1))
    parts = [
        _mixing(np.concatenate([some[:, :half], some[:, -half:]]))
        for some in np.array_split(flat, math.ceil(flat.shape[2] / _COLUMNS), axis=2)
    ]
    rhat, ess = np.concatenate(parts, axis=1).reshape(2, *shape)
    return Mixing(rhat, ess)


@validate(posterior=instance_of(posteriors.Draws))
def parameter_mixing(posterior: posteriors.Draws) -> dict[str, Mixing]:
    """Computes R-hat and effective sample size of each random parameter, by path.

    ```python
    import jax
    from jaxeff.bayes import Draws, parameter_mixing

    w = jax.random.normal(jax.random.key(0), (4, 100))                   # [chains, draws]
    posterior = Draws({"w": w}, {"w": jax.numpy.zeros(())}, likelihood="gaussian")
    assert parameter_mixing(posterior)["w"].max_rhat < 1.05
    ```
    """
    return {path: mixing(values) for path, values in posterior.random.items()}


@validate(posterior=instance_of(posteriors.Draws), inputs=input_batch)
def prediction_mixing(
    f: Callable[..., Any],
    posterior: posteriors.Draws,
    *inputs: Any,
    likelihood: posteriors.Likelihood | None = None,
    chunk: int = 1,
) -> Mixing:
    """Computes R-hat and effective sample size of predictions.

    For a network the question is about its predictions: hidden units may be exchanged, so chains
    that agree on every prediction may disagree on every weight. Here they differ by the sign of
    one:

    ```python
    import jax
    import jax.numpy as jnp
    from jaxeff.bayes import Draws, parameter_mixing, prediction_mixing

    signs = jnp.array([1.0, 1.0, -1.0, -1.0])[:, None]                   # of four chains
    w = (5 + jax.random.normal(jax.random.key(0), (4, 100))) * signs
    posterior = Draws({"w": w}, {"w": jnp.zeros(())}, likelihood="gaussian")

    def even(params, x):                                                 # mean and log-variance
        return jnp.stack([params["w"] ** 2 * x, jnp.zeros_like(x)], -1)

    assert parameter_mixing(posterior)["w"].max_rhat > 1.5
    assert prediction_mixing(even, posterior, jnp.array([1.0, 2.0])).max_rhat < 1.05
    ```

    Args:
        f: ``f(params, *inputs) -> outputs``.
        posterior: The draws.
        *inputs: Inputs at which to predict.
        likelihood: Likelihood, as `resolve_likelihood` takes it: the prediction is the probability
            of each class, or else the mean of its distribution. By default that of the draws.
        chunk: Draws evaluated together.

    Returns:
        Of shape ``[inputs]``, ``[inputs, targets]`` or ``[inputs, classes]``; of several outputs
        side by side. Probabilities that
        hardly vary (`SETTLED`) have an R-hat of NaN.
    """
    likelihood = posteriors.require_likelihood("prediction_mixing", likelihood, posterior)
    outputs = posteriors.predict(jax.random.key(0), f, posterior, *inputs, chunk=chunk)
    likelihood = posteriors.hashable_likelihood(likelihood)
    if not isinstance(likelihood, posteriors.PerOutput):
        return _mixing_of(outputs, posterior, likelihood)
    each = [_mixing_of(outputs[name], posterior, one) for name, one in likelihood.parts]
    # Side by side, as the predictions of one output with several targets.
    rhat, ess = (
        np.concatenate([a.reshape(len(a), -1) for a in part], 1) for part in zip(*each, strict=True)
    )
    return Mixing(rhat, ess)


def _mixing_of(
    outputs: Any, posterior: posteriors.Draws, likelihood: posteriors.Likelihood
) -> Mixing:
    means = _means(outputs, likelihood=likelihood)
    means = np.reshape(means, (posterior.chains, posterior.draws_per_chain, *means.shape[1:]))
    # Of predictions: weights of exchanged hidden units differ where the functions agree.
    convergence = mixing(means)
    if likelihood == "categorical":
        # Probabilities of almost 0 or 1 differ between chains in digits that no decision
        # depends on.
        settled = means.std((0, 1)) < SETTLED
        return convergence._replace(rhat=np.where(settled, np.nan, convergence.rhat))
    return convergence


def _mixing(halves: np.ndarray) -> np.ndarray:
    """Computes R-hat and effective sample size of split chains ``[chains, draws, quantities]``."""
    total = halves.shape[0] * halves.shape[1]
    most = total * np.log10(total)
    with np.errstate(divide="ignore", invalid="ignore"):  # of what never changes
        # Rank-normalized R-hat (Vehtari et al., arXiv:1903.08008): of the values for
        # location, of their distances from the median for scale; the worse one counts.
        bulk = _normal_ranks(halves)
        tails = _normal_ranks(np.abs(halves - np.median(halves, (0, 1))))
        rhat = np.maximum(gelman_rubin(bulk), gelman_rubin(tails))
        ess = effective_sample_size(bulk)
    # Chains that jump from side to side would pass for more than they are (Stan's limit).
    ess = np.where((ess > 0) & (ess < most), ess, most)
    finite = np.isfinite(halves).all((0, 1))
    return np.stack([np.where(finite, rhat, np.inf), np.where(finite, ess, 0.0)])


def _normal_ranks(values: np.ndarray) -> np.ndarray:
    """Computes normal scores of the ranks among all draws."""
    ranks = rankdata(values.reshape(-1, values.shape[2]), axis=0)
    # Blom's offsets: ranks map into (0, 1) without its ends.
    return ndtri((ranks - 3 / 8) / (len(ranks) + 1 / 4)).reshape(values.shape)


@partial(jax.jit, static_argnames=("likelihood",))
def _means(outputs: Any, *, likelihood: posteriors.Likelihood) -> Any:
    return jax.vmap(lambda one: _mean(posteriors.resolve_likelihood(likelihood)(one)))(outputs)


def _mean(distribution: Distribution) -> Any:
    if isinstance(distribution, CategoricalLogits | CategoricalProbs):
        return distribution.probs
    return distribution.mean


LEAST_DRAWS = 25
"""Least effective draws of a parameter per chain; R-hat is unreliable for fewer."""
# Shares of iterations: more divergent ones, or fewer accepted ones, are reported.
_DIVERGENT = 0.01
_STUCK = 0.05
_ARVIZ = {
    "acceptance": "acceptance_rate",
    "divergent": "diverging",
    "log_density": "lp",
    "steps": "n_steps",
}


@shown_as_table
@dataclass(frozen=True, eq=False)
class MCMCResult:
    """Draws of a sampler, with its statistics.

    Attributes:
        posterior: The draws.
        stats: Statistics of each iteration after warm-up, ``[chains, iterations]``, as far as the
            kernel has them: ``step_size``, ``log_density`` and ``energy`` (nats), ``acceptance``
            (mean probability), ``steps`` (gradients) and ``divergent``.
        warmup_stats: Such statistics of warm-up.
        predictions: R-hat and effective sample size of predictions for the monitored inputs;
            None where nothing was monitored.
        seconds: Wall time of warm-up, compilation included, and of sampling.
    """

    posterior: posteriors.Draws
    stats: dict[str, Float[np.ndarray, "chains iterations"]]
    warmup_stats: dict[str, Float[np.ndarray, "chains warmup"]]
    predictions: Mixing | None
    seconds: tuple[float, float]

    @property
    def likelihood(self) -> posteriors.Likelihood | None:
        """The likelihood of the outputs of the sampled function."""
        return self.posterior.likelihood

    @property
    def divergences(self) -> Float[np.ndarray, " chains"]:
        """Divergent iterations of each chain; 0 from a kernel that can't tell."""
        return self.stats.get("divergent", np.zeros(self._iterations, bool)).sum(1)

    @property
    def acceptance(self) -> Float[np.ndarray, " chains"]:
        """Mean acceptance of each chain; 1 from a kernel that accepts everything."""
        return self.stats.get("acceptance", np.ones(self._iterations)).mean(1)

    @property
    def _iterations(self) -> tuple[int, int]:
        """Chains, and iterations after warm-up."""
        return np.shape(next(iter(self.stats.values())))

    @cached_property
    def parameters(self) -> dict[str, Mixing]:
        """R-hat and effective sample size of each random parameter, by path.

        Of a network R-hat says little: see `jaxeff.bayes.sampling`.
        """
        return parameter_mixing(self.posterior)

    def _table(self) -> Table:
        step_sizes = self.stats.get("step_size", np.full(self._iterations, np.nan)).mean(1)
        by_chain = zip(self.divergences, self.acceptance, step_sizes, strict=True)
        rows = [
            (
                str(chain),
                f"{acceptance:.3f}",
                f"{int(divergent)}",
                "-" if np.isnan(step_size) else f"{step_size:.3g}",
            )
            for chain, (divergent, acceptance, step_size) in enumerate(by_chain)
        ]
        parts = [
            f"{self.posterior.chains} chains of {self.posterior.draws_per_chain} draws",
            f"{self.seconds[0]:.3g} s of warm-up and {self.seconds[1]:.3g} s of sampling",
        ]
        if self.predictions is not None:
            parts.append(
                f"predictions: R-hat at worst {self.predictions.max_rhat:.3f}, effective draws at "
                f"least {self.predictions.min_ess:.0f}"
            )
        parts.append("; ".join(self.problems) or "nothing speaks against convergence")
        columns = ("chain>", "acceptance>", "divergences>", "step size>")
        return Table(columns, rows, caption="\n".join(parts))

    def to_arviz(self) -> Any:
        """Converts draws and statistics for ArviZ's diagnostics and plots.

        Parameters are named by their paths, with dots for slashes (``fc1.kernel``). Statistics go
        by ArviZ's names; of thinned chains they are those of the draws that were kept.

        Returns:
            The groups ``posterior`` and ``sample_stats``: an ``xarray.DataTree``, or an
            ``arviz.InferenceData`` of ArviZ before 1.0.

        Raises:
            ImportError: ArviZ is not installed.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # announces its next version
            arviz = optional("arviz", "to_arviz", "arviz")
        thin = self._iterations[1] // self.posterior.draws_per_chain
        groups = {
            "posterior": {
                path.replace("/", "."): np.asarray(a) for path, a in self.posterior.random.items()
            },
            "sample_stats": {
                _ARVIZ.get(name, name): np.asarray(values)[:, thin - 1 :: thin]
                for name, values in self.stats.items()
            },
        }
        # Before version 1, groups were arguments by their names.
        first = next(iter(inspect.signature(arviz.from_dict).parameters))
        return arviz.from_dict(**groups) if first == "posterior" else arviz.from_dict(groups)

    @property
    def converged(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """Reasons, in words, to doubt convergence; empty if there are none."""
        reasons = []
        if self.predictions is not None and self.predictions.max_rhat > RHAT:
            above = int((self.predictions.rhat > RHAT).sum())
            reasons.append(
                f"R-hat of the predictions is {self.predictions.max_rhat:.2f} at worst, and above "
                f"{RHAT} for {above} of {self.predictions.rhat.size}: the chains disagree. Sample "
                "or warm up longer; chains that stay in different modes need other starts (init) "
                "or a simpler network"
            )
        reasons += self._slow_parameters()
        iterations = self._iterations[1]
        worst = int(np.argmax(self.divergences))
        if self.divergences[worst] > _DIVERGENT * iterations:
            reasons.append(
                f"{int(self.divergences.sum())} of {self.divergences.size * iterations} iterations "
                f"diverged, {int(self.divergences[worst])} of them in chain {worst}: the draws "
                "miss where the posterior is narrow. Raise target_acceptance, warm up longer, or "
                "choose a prior that is less wide"
            )
        for chain, rate in enumerate(self.acceptance):
            # In this form NaN counts as stuck.
            if not rate > _STUCK:
                reasons.append(
                    f"chain {chain} is stuck: it accepts {100 * rate:.1f} % of its moves. Warm up "
                    "longer, or start it elsewhere (init)"
                )
        return reasons

    def _slow_parameters(self) -> list[str]:
        """Lists what speaks against the convergence of parameters if predictions are monitored.

        Chains may hold the units of a network in different orders, so that their parameters differ
        and their predictions don't. Of a number that chains disagree about, or that has few
        effective draws, each chain is therefore looked at by itself.
        """
        if self.predictions is None or self.posterior.draws_per_chain < 4:
            return []
        least = LEAST_DRAWS * self.posterior.chains
        slow, total, worst = 0, 0, (math.inf, "", math.nan)
        for path, together in self.parameters.items():
            values = np.asarray(self.posterior.random[path])
            flat = values.reshape(*values.shape[:2], -1)
            rhat, ess = np.ravel(together.rhat), np.ravel(together.ess)
            total += rhat.size
            suspects = np.flatnonzero((rhat > RHAT) | ((ess < least) & ~np.isnan(rhat)))
            if not suspects.size:
                continue
            # Per chain: exchanged units raise R-hat between chains, and leave each one's own alone.
            alone = np.sum([mixing(chain[None][..., suspects]).ess for chain in flat], axis=0)
            # A number that never changes in a chain has no effective draws there.
            alone = np.where(np.ptp(flat[..., suspects], axis=1).all(0), alone, 0.0)
            slow += int((alone < least).sum())
            i = int(np.argmin(alone))
            if alone[i] < min(least, worst[0]):
                index = np.unravel_index(suspects[i], values.shape[2:])
                name = path + (f"[{', '.join(map(str, index))}]" if index else "")
                worst = (float(alone[i]), name, float(rhat[suspects[i]]))
        if not slow:
            return []
        return [
            f"{slow} of {total} numbers of the parameters mix too slowly; {worst[1]} has "
            f"{worst[0]:.0f} effective draws, the fewest, and R-hat {worst[2]:.2f}; {least} are "
            "asked for. Sample or warm up longer, or write the model so that the scale of a "
            "parameter doesn't depend on another one (a funnel)"
        ]
