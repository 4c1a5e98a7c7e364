"""What sampling returns, and what it says when the chains have not converged."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from jaxeff.bayes.posterior import Draws
from jaxeff.bayes.sampling.diagnostics import RHAT, Mixing, parameter_mixing

_DIVERGENT = 0.01
_STUCK = 0.05


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
