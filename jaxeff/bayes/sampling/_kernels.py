"""Markov kernels: which sampler, and its settings.

`NUTS`, `HMC` and `MCLMC` use the whole data in each step and adapt their step size and mass matrix
during warm-up; `SGLD` and `SGHMC` use mini-batches, have a step size that you choose, and no
correction for its error.

Sources: Hoffman and Gelman 2014 (NUTS, dual averaging), Neal 2011 (HMC), Welling and Teh 2011
(SGLD), Chen et al. 2014 (SGHMC), Robnik et al. 2025 (MCLMC, arXiv:2503.01707), Zhang et al. 2020
(cyclical step sizes, arXiv:1902.03932).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from jaxeff.core import Choice, Count, Number, Setting, check_number

Engine = Literal["blackjax", "numpyro"]
StepSize = float | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Hamiltonian(Setting):
    """Common settings of the samplers that integrate Hamilton's equations.

    Attributes:
        step_size: The integrator's first step size; warm-up adapts it.
        target_acceptance: The mean acceptance that warm-up adapts the step size to. Nearer to 1
            means smaller steps and fewer divergences.
        dense: Whether the mass matrix is dense; its memory and time grow with the square and
            the cube of the number of parameters.
        pooled: Whether the chains share one step size and one mass matrix, adapted on all of them
            together, so that a shorter warm-up does. Variances are those within the chains.
        engine: The library whose transition is used. Warm-up is the same for both.
    """

    step_size: Annotated[float, Number(above=0)] = 0.1
    target_acceptance: Annotated[float, Number(above=0, below=1)] = 0.8
    dense: bool = False
    pooled: bool = True
    engine: Annotated[Engine, Choice(*get_args(Engine))] = "blackjax"


@dataclass(frozen=True, kw_only=True)
class NUTS(Hamiltonian):
    """The no-U-turn sampler.

    Attributes:
        max_depth: A trajectory has at most ``2**max_depth - 1`` steps; networks often reach it.
    """

    max_depth: Annotated[int, Count()] = 10


@dataclass(frozen=True, kw_only=True)
class HMC(Hamiltonian):
    """Hamiltonian Monte Carlo.

    Attributes:
        steps: Steps of a trajectory on average; their number is drawn anew, uniformly from
            1 to ``2 * steps - 1``, for each iteration, so that no trajectory length resonates.
    """

    steps: Annotated[int, Count()] = 16


@dataclass(frozen=True, kw_only=True)
class MCLMC(Hamiltonian):
    """Microcanonical Langevin Monte Carlo, adjusted: its moves are accepted or rejected.

    The particle keeps its speed, whatever the density, and only turns towards where there is more.
    It needs two random numbers or more. The mass matrix is diagonal, and the transition BlackJAX's.

    Attributes:
        steps: Steps of a trajectory on average, drawn anew for each iteration as those of `HMC`.
    """

    target_acceptance: Annotated[float, Number(above=0, below=1)] = 0.9
    steps: Annotated[int, Count()] = 16

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.dense or self.engine != "blackjax":
            raise ValueError('MCLMC has a diagonal mass matrix (dense=False) and engine="blackjax"')


@dataclass(frozen=True, kw_only=True)
class StochasticGradient(Setting):
    """Common settings of the samplers on mini-batches.

    Attributes:
        step_size: Step size, or a schedule of the iteration, such as optax's.
        batch_size: Examples in each mini-batch, drawn with replacement for each chain.
        temperature: Temperature of the noise, or a schedule of the iteration; 1 samples the
            posterior, less a sharpened one, 0 descends to an optimum.
    """

    step_size: StepSize
    batch_size: Annotated[int, Count()]
    temperature: StepSize = 1.0

    def step_size_at(self, iteration: Any) -> Any:
        """Returns the step size of an iteration."""
        return self.step_size(iteration) if callable(self.step_size) else self.step_size

    def temperature_at(self, iteration: Any) -> Any:
        """Returns the temperature of an iteration."""
        return self.temperature(iteration) if callable(self.temperature) else self.temperature

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if not callable(self.step_size):
            check_number(f"{type(self).__name__}.step_size", self.step_size, above=0)
        if not callable(self.temperature):
            check_number(f"{type(self).__name__}.temperature", self.temperature, 0)


@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticGradient):
    """Stochastic gradient Langevin dynamics, ``w += e * grad log p(w) + sqrt(2 e) noise``.

    Stable below a step size of about twice the smallest posterior variance.
    """


@dataclass(frozen=True, kw_only=True)
class SGHMC(StochasticGradient):
    """Stochastic gradient Hamiltonian Monte Carlo.

    An iteration draws a momentum and takes a few steps on one mini-batch. The step size is one of
    time: ``step_size * steps`` should stay below the posterior's smallest standard deviation, or
    the chain follows each mini-batch to its own optimum; half its square compares with the step
    size of `SGLD`.

    Attributes:
        steps: Steps of an iteration.
        friction: Decay of the momentum per unit of time; should outweigh the gradient's noise.
            Variances miss theirs by up to half of ``step_size * friction``.
    """

    steps: Annotated[int, Count()] = 20
    friction: Annotated[float, Number(above=0)] = 1.0


Kernel = NUTS | HMC | MCLMC | SGLD | SGHMC
