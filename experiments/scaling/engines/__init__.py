"""The engines: each module has `mcmc(problem, settings)` and, where it does both, `svi`.

They are written as a user of the library would write them. Those in `OPTIONAL` need packages that
the project doesn't: they are left out where they can't be imported.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

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
OPTIONAL = {"tfp": ("tensorflow_probability",), "pyro": ("torch", "pyro")}


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


def available() -> list[str]:
    """The engines that can be imported here."""
    return [
        name
        for name in ENGINES
        if all(find_spec(package) is not None for package in OPTIONAL.get(name, ()))
    ]


def prepare(engine: str, method: str, problem: Problem, settings: Settings) -> Session:
    """Compiles an engine and runs its warm-up."""
    module = importlib.import_module(f"{__name__}.with_{engine}")
    return getattr(module, method)(problem, settings)
