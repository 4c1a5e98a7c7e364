"""The engines: each module has `mcmc(problem, settings)` and, where it does both, `svi`.

They are written as a user of the library would write them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.engines import load
from experiments.scaling.problem import Problem, Settings
from experiments.scaling.work import Work

ENGINES: dict[str, tuple[str, ...]] = {
    "numpyro": ("mcmc", "svi"),
    "blackjax": ("mcmc",),
    "tfp": ("mcmc", "svi"),
    "pyro": ("mcmc", "svi"),
    "jaxeff": ("mcmc", "svi"),
}
"""The methods that each engine is measured with; BlackJAX's own SVI takes no mini-batches."""


@dataclass(frozen=True)
class Session:
    """An engine that is through its warm-up, its sampler compiled.

    Attributes:
        work: Of one gradient (MCMC) or of one update (SVI).
        run: Draws samples or trains the epochs; returns the gradients or updates of each.
        warmup: Gradients of each transition of the warm-up.
        step_size: What the warm-up arrived at; None for SVI.
    """

    work: Work
    run: Callable[[], Sequence[int]]
    warmup: Sequence[int] = ()
    step_size: float | None = None


def prepare(engine: str, method: str, problem: Problem, settings: Settings) -> Session:
    """Compiles an engine and runs its warm-up."""
    return getattr(load(__name__, engine), method)(problem, settings)
