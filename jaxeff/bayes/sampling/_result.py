"""The result of sampling, and its report of chains that have not converged."""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxeff.bayes.posteriors import Draws, Likelihood
from jaxeff.bayes.sampling._diagnostics import RHAT, Mixing, mixing, parameter_mixing
from jaxeff.core import Table, shown_as_table

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
        stats: Statistics of each iteration after warm-up, ``[chains, iterations]``: ``step_size``,
            and from `NUTS` and `HMC` also ``log_density`` and ``energy`` (nats), ``acceptance``
            (mean probability), ``steps`` (gradients) and ``divergent``.
        warmup_stats: Such statistics of warm-up.
        predictions: R-hat and effective sample size of predictions for the monitored inputs;
            None where nothing was monitored.
        seconds: Wall time of warm-up, compilation included, and of sampling.
    """

    posterior: Draws
    stats: dict[str, Float[np.ndarray, "chains iterations"]]
    warmup_stats: dict[str, Float[np.ndarray, "chains warmup"]]
    predictions: Mixing | None
    seconds: tuple[float, float]

    @property
    def likelihood(self) -> Likelihood | None:
        """The likelihood of the outputs of the sampled function."""
        return self.posterior.likelihood

    @property
    def divergences(self) -> Float[np.ndarray, " chains"]:
        """Divergent iterations of each chain; 0 from a kernel that can't tell."""
        none = np.zeros(self.stats["step_size"].shape, bool)
        return self.stats.get("divergent", none).sum(1)

    @property
    def acceptance(self) -> Float[np.ndarray, " chains"]:
        """Mean acceptance of each chain; 1 from a kernel that accepts everything."""
        return self.stats.get("acceptance", np.ones_like(self.stats["step_size"])).mean(1)

    @cached_property
    def parameters(self) -> dict[str, Mixing]:
        """R-hat and effective sample size of each random parameter, by path.

        Of a network R-hat says little: see `jaxeff.bayes.sampling`.
        """
        return parameter_mixing(self.posterior)

    def _table(self) -> Table:
        sampled = [np.asarray(self.divergences), np.asarray(self.acceptance)]
        rows = [
            (str(chain), f"{acceptance:.3f}", f"{int(divergent)}", f"{step_size:.3g}")
            for chain, (divergent, acceptance, step_size) in enumerate(
                zip(*sampled, self.stats["step_size"].mean(1), strict=True)
            )
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
            An ``arviz.InferenceData`` with the groups ``posterior`` and ``sample_stats``.

        Raises:
            ImportError: ArviZ is not installed.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # announces its next version
                import arviz
        except ImportError as error:
            raise ImportError(
                "to_arviz needs ArviZ, which is optional: pip install 'jaxeff[arviz]'"
            ) from error
        thin = self.stats["step_size"].shape[1] // self.posterior.draws_per_chain
        return arviz.from_dict(
            posterior={
                path.replace("/", "."): np.asarray(a) for path, a in self.posterior.random.items()
            },
            sample_stats={
                _ARVIZ.get(name, name): np.asarray(values)[:, thin - 1 :: thin]
                for name, values in self.stats.items()
            },
        )

    @property
    def converged(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """Reasons, in words, to doubt convergence; empty if there are none."""
        found = []
        if self.predictions is not None and self.predictions.max_rhat > RHAT:
            above = int((self.predictions.rhat > RHAT).sum())
            found.append(
                f"R-hat of the predictions is {self.predictions.max_rhat:.2f} at worst, and above "
                f"{RHAT} for {above} of {self.predictions.rhat.size}: the chains disagree. Sample "
                "or warm up longer; chains that stay in different modes need other starts (init) "
                "or a simpler network"
            )
        found += self._slow_parameters()
        iterations = self.stats["step_size"].shape[1]
        worst = int(np.argmax(self.divergences))
        if self.divergences[worst] > _DIVERGENT * iterations:
            found.append(
                f"{int(self.divergences.sum())} of {self.divergences.size * iterations} iterations "
                f"diverged, {int(self.divergences[worst])} of them in chain {worst}: the draws "
                "miss where the posterior is narrow. Raise target_acceptance, warm up longer, or "
                "choose a prior that is less wide"
            )
        for chain, rate in enumerate(self.acceptance):
            # In this form NaN counts as stuck.
            if not rate > _STUCK:
                found.append(
                    f"chain {chain} is stuck: it accepts {100 * rate:.1f} % of its moves. Warm up "
                    "longer, or start it elsewhere (init)"
                )
        return found

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
        for path, whole in self.parameters.items():
            values = np.asarray(self.posterior.random[path])
            flat = values.reshape(*values.shape[:2], -1)
            rhat, ess = np.ravel(whole.rhat), np.ravel(whole.ess)
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
