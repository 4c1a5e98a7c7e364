"""What sampling returns, and what it says when the chains have not converged."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxeff.bayes.likelihood import Likelihood
from jaxeff.bayes.posterior import Draws
from jaxeff.bayes.sampling.diagnostics import RHAT, Mixing, parameter_mixing
from jaxeff.tables import Table

_DIVERGENT = 0.01
_STUCK = 0.05
_ARVIZ = {
    "acceptance": "acceptance_rate",
    "divergent": "diverging",
    "log_density": "lp",
    "steps": "n_steps",
}


@dataclass(frozen=True, eq=False)
class MCMCResult:
    """Draws, and how they came about.

    Attributes:
        posterior: The draws.
        stats: Of each iteration after warm-up, ``[chains, iterations]``: ``step_size``, and from
            `NUTS` and `HMC` also ``log_density`` and ``energy`` (nats), ``acceptance`` (mean
            probability), ``steps`` (gradients) and ``divergent``.
        warmup_stats: The same of warm-up.
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
        """What the outputs of the sampled function mean."""
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

        Of a network they say little: see `jaxeff.bayes.sampling.diagnostics`.
        """
        return parameter_mixing(self.posterior)

    def __repr__(self) -> str:
        """A summary; the arrays are the attributes."""
        return str(self._table())

    def _repr_html_(self) -> str:
        """A summary, for a notebook."""
        return self._table()._repr_html_()

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
        """The draws and statistics for ArviZ, whose diagnostics and plots take them.

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
        """What speaks against convergence, in words."""
        found = []
        if self.predictions is not None and self.predictions.max_rhat > RHAT:
            above = int((self.predictions.rhat > RHAT).sum())
            found.append(
                f"R-hat of the predictions is {self.predictions.max_rhat:.2f} at worst, and above "
                f"{RHAT} for {above} of {self.predictions.rhat.size}: the chains disagree. Sample "
                "or warm up longer; chains that stay in different modes need other starts (init) "
                "or a simpler network"
            )
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
            if not rate > _STUCK:
                found.append(
                    f"chain {chain} is stuck: it accepts {100 * rate:.1f} % of its moves. Warm up "
                    "longer, or start it elsewhere (init)"
                )
        return found
