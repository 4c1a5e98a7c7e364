"""Markov kernels: which sampler, its settings, and one transition of one chain.

`NUTS`, `HMC` and `MCLMC` use the whole data in each step and adapt their step size and mass matrix
during warm-up; `SGLD` and `SGHMC` use mini-batches, have a step size that you choose, and no
correction for its error. What `mcmc` asks of any of them is `MarkovKernel`; an algorithm of
BlackJAX's that isn't among them is one as it is (`BlackJAXKernel`).

Sources: Hoffman and Gelman 2014 (NUTS, dual averaging), Neal 2011 (HMC), Welling and Teh 2011
(SGLD), Chen et al. 2014 (SGHMC), Robnik et al. 2025 (MCLMC, arXiv:2503.01707), Zhang et al. 2020
(cyclical step sizes, arXiv:1902.03932).

Transitions are BlackJAX's or NumPyro's, in one form. Positions are vectors: a step of a small
network costs as many operations as the position has arrays, not as many as it has numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    get_args,
    runtime_checkable,
)

import blackjax
import jax
import jax.numpy as jnp
from blackjax.sgmcmc.diffusions import sghmc
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.hmc import hmc as numpyro_hmc
from numpyro.infer.util import ParamInfo

from jaxeff.core import Choice, Count, Number, Setting, check_number

Engine = Literal["blackjax", "numpyro"]
StepSize = float | Callable[..., Any]
LogDensity = Callable[[Float[Array, " d"]], Float[Array, ""]]
"""The log-density of a position, in nats: of all data, or an estimate from a mini-batch."""
Stats = dict[str, Array]
"""Statistics of a transition by name; see `jaxeff.bayes.MCMCResult`."""


class Iteration(NamedTuple):
    """The iteration that a transition is part of.

    Attributes:
        number: For schedules.
        key: Random key of the iteration and the chain.
        shared_key: Random key of the iteration, the same for all chains.
    """

    number: Array
    key: PRNGKeyArray
    shared_key: PRNGKeyArray


class Tuning(NamedTuple):
    """What warm-up has adapted so far.

    Attributes:
        step_size: Step size of the integrator.
        inverse_mass: Inverse mass matrix: its diagonal, or all of it.
    """

    step_size: Float[Array, ""]
    inverse_mass: Array


@dataclass(frozen=True, kw_only=True)
class WindowAdaptation(Setting):
    """Stan's warm-up: step size by dual averaging, mass matrix in windows.

    Attributes:
        step_size: The integrator's first step size; warm-up adapts it.
        target_acceptance: The mean acceptance that warm-up adapts the step size to. Nearer to 1
            means smaller steps and fewer divergences.
        dense: Whether the mass matrix is dense; its memory and time grow with the square and
            the cube of the number of parameters.
        pooled: Whether the chains share one step size and one mass matrix, adapted on all of them
            together, so that a shorter warm-up does. Variances are those within the chains.
    """

    step_size: Annotated[float, Number(above=0)] = 0.1
    target_acceptance: Annotated[float, Number(above=0, below=1)] = 0.8
    dense: bool = False
    pooled: bool = True


@runtime_checkable
class MarkovKernel(Protocol):
    """What `mcmc` asks of a sampler: a hashable value, such as a frozen dataclass of settings.

    States are NamedTuples of arrays with the field ``position``, a vector of all random parameters.
    """

    @property
    def batch_size(self) -> int | None:
        """Examples of the mini-batch that each log-density is of; None for all data."""

    @property
    def adapts(self) -> WindowAdaptation | None:
        """The warm-up that the kernel's steps are tuned by; None for steps without tuning."""

    def start(
        self, key: PRNGKeyArray, position: Float[Array, " d"], log_density: LogDensity
    ) -> Any:
        """Makes the state of a chain at a position."""

    def step(
        self, iteration: Iteration, state: Any, log_density: LogDensity, tuning: Any
    ) -> tuple[Any, Stats]:
        """Moves a chain.

        Args:
            iteration: Number and keys of the iteration.
            state: The chain's state, from `start` or the last step.
            log_density: The log-density of a position.
            tuning: `Tuning`: step size and mass matrix; None where the kernel doesn't adapt.

        Returns:
            The next state, and statistics; a kernel that adapts reports its ``acceptance``.
        """


class Point(NamedTuple):
    """State of a chain.

    Attributes:
        position: Parameters as a vector.
        log_density: Log-density of the position, in nats; on mini-batches that of the start.
        gradient: Gradient of the log-density.
    """

    position: Float[Array, " d"]
    log_density: Float[Array, ""]
    gradient: Float[Array, " d"]


@dataclass(frozen=True, kw_only=True)
class Hamiltonian(WindowAdaptation):
    """Common settings of the samplers that integrate Hamilton's equations.

    Attributes:
        engine: The library whose transition is used. Warm-up is the same for both.
    """

    engine: Annotated[Engine, Choice(*get_args(Engine))] = "blackjax"
    batch_size: ClassVar[None] = None

    @property
    def adapts(self) -> WindowAdaptation:
        """The settings of the warm-up, which are among the sampler's."""
        return self

    def start(self, key: PRNGKeyArray, position: Array, log_density: LogDensity) -> Point:
        """Evaluates density and gradient at a position."""
        return Point(position, *jax.value_and_grad(log_density)(position))


@dataclass(frozen=True, kw_only=True)
class NUTS(Hamiltonian):
    """The no-U-turn sampler.

    Attributes:
        max_depth: A trajectory has at most ``2**max_depth - 1`` steps; networks often reach it.
    """

    max_depth: Annotated[int, Count()] = 10

    def step(
        self, iteration: Iteration, state: Point, log_density: LogDensity, tuning: Tuning
    ) -> tuple[Point, Stats]:
        """Moves a chain along a trajectory that ends where it turns back."""
        if self.engine == "numpyro":
            options = {"algo": "NUTS", "dense_mass": self.dense, "max_tree_depth": self.max_depth}
            return _numpyro_step(iteration.key, state, log_density, tuning, options)
        step = blackjax.nuts.build_kernel()
        return _blackjax_step(step, iteration.key, state, log_density, tuning, self.max_depth)


@dataclass(frozen=True, kw_only=True)
class HMC(Hamiltonian):
    """Hamiltonian Monte Carlo.

    Attributes:
        steps: Steps of a trajectory on average; their number is drawn anew, uniformly from
            1 to ``2 * steps - 1``, for each iteration, so that no trajectory length resonates.
    """

    steps: Annotated[int, Count()] = 16

    def step(
        self, iteration: Iteration, state: Point, log_density: LogDensity, tuning: Tuning
    ) -> tuple[Point, Stats]:
        """Moves a chain along a trajectory of random length."""
        length = _trajectory_length(iteration, self.steps)
        if self.engine == "numpyro":
            options = {"algo": "HMC", "dense_mass": self.dense, "num_steps": length}
            return _numpyro_step(iteration.key, state, log_density, tuning, options)
        step = blackjax.hmc.build_kernel()
        return _blackjax_step(step, iteration.key, state, log_density, tuning, length)


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
        super().__post_init__()
        if self.dense or self.engine != "blackjax":
            raise ValueError('MCLMC has a diagonal mass matrix (dense=False) and engine="blackjax"')

    def step(
        self, iteration: Iteration, state: Point, log_density: LogDensity, tuning: Tuning
    ) -> tuple[Point, Stats]:
        """Moves a chain along a trajectory of random length.

        Raises:
            ValueError: There is a single random number.
        """
        if state.position.size < 2:
            raise ValueError("MCLMC: a single random number has no direction; use NUTS or HMC")
        length = _trajectory_length(iteration, self.steps)
        adjusted = blackjax.adjusted_mclmc.build_kernel()

        def step(key: Any, state: Any, density: Any, step_size: Any, mass: Any, length: Any) -> Any:
            return adjusted(key, state, density, step_size, (length,), mass)

        return _blackjax_step(step, iteration.key, state, log_density, tuning, length)


def _trajectory_length(iteration: Iteration, mean: int) -> Array:
    # The same for all chains, so that none waits for another.
    return jax.random.randint(iteration.shared_key, (), 1, 2 * mean)


def _blackjax_step(
    step: Callable[..., Any],
    key: PRNGKeyArray,
    point: Point,
    log_density: LogDensity,
    tuning: Tuning,
    length: Any,
) -> tuple[Point, Stats]:
    # Log-density and gradient of the point are carried along: each step costs one new gradient.
    state = blackjax.mcmc.hmc.HMCState(*point)
    state, info = step(key, state, log_density, *tuning, length)
    return _moved(Point(*state), tuning, info)


def _numpyro_step(
    key: PRNGKeyArray,
    point: Point,
    log_density: LogDensity,
    tuning: Tuning,
    options: dict[str, Any],
) -> tuple[Point, Stats]:
    init, step = numpyro_hmc(lambda position: -log_density(position), algo=options.pop("algo"))
    # No warm-up: NumPyro only moves the chain. Potential and gradient are given, not computed.
    state = init(
        ParamInfo(point.position, -point.log_density, -point.gradient),
        num_warmup=0,
        step_size=tuning.step_size,
        inverse_mass_matrix=tuning.inverse_mass,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        trajectory_length=None,
        rng_key=key,
        **options,
    )
    state = step(state)
    return _moved(Point(state.z, -state.potential_energy, -state.z_grad), tuning, state)


# A statistic's name, and what BlackJAX's and NumPyro's reports call it.
_REPORTED = {
    "acceptance": ("acceptance_rate", "accept_prob"),
    "divergent": ("is_divergent", "diverging"),
    "steps": ("num_integration_steps", "num_steps"),
    "energy": ("energy",),
}


def _reported(info: Any) -> Stats:
    """Reads the statistics that a library's report of a transition has."""
    return {
        name: getattr(info, field)
        for name, names in _REPORTED.items()
        for field in names
        if hasattr(info, field)
    }


def _moved(point: Point, tuning: Tuning, info: Any) -> tuple[Point, Stats]:
    # The step size is the one that this step used.
    stats = {"log_density": point.log_density, "step_size": tuning.step_size}
    return point, stats | _reported(info)


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
    adapts: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.step_size):
            check_number(f"{type(self).__name__}.step_size", self.step_size, above=0)
        if not callable(self.temperature):
            check_number(f"{type(self).__name__}.temperature", self.temperature, 0)

    def start(self, key: PRNGKeyArray, position: Array, log_density: LogDensity) -> Point:
        """Evaluates density and gradient at a position, which tell whether a start is finite."""
        return Point(position, *jax.value_and_grad(log_density)(position))

    def step(
        self, iteration: Iteration, state: Point, log_density: LogDensity, tuning: None
    ) -> tuple[Point, Stats]:
        """Moves a chain; only the position of the next state is anew."""
        size, temperature = (
            value(iteration.number) if callable(value) else value
            for value in (self.step_size, self.temperature)
        )
        position = self._move(
            iteration.key, state.position, jax.grad(log_density), size, temperature
        )
        # The full density isn't computed: the next step takes a gradient on a batch of its own.
        state = state._replace(position=position.astype(state.position.dtype))
        return state, {"step_size": jnp.asarray(size)}

    def _move(
        self, key: PRNGKeyArray, start: Array, gradient: LogDensity, size: Any, temperature: Any
    ) -> Array:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticGradient):
    """Stochastic gradient Langevin dynamics, ``w += e * grad log p(w) + sqrt(2 e) noise``.

    Stable below a step size of about twice the smallest posterior variance.
    """

    def _move(
        self, key: PRNGKeyArray, start: Array, gradient: LogDensity, size: Any, temperature: Any
    ) -> Array:
        step = blackjax.sgld.build_kernel()
        return step(key, start, lambda position, _: gradient(position), None, size, temperature)


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

    def _move(
        self, key: PRNGKeyArray, start: Array, gradient: LogDensity, size: Any, temperature: Any
    ) -> Array:
        """Draws a momentum and takes a few steps of Langevin's equation with friction.

        BlackJAX's kernel draws momenta of variance 1 whatever the temperature, so that a short
        iteration is one at temperature 1; its integrator is used here without it.
        """
        integrate = sghmc(alpha=self.friction)
        momentum_key, key = jax.random.split(key)
        # Momenta have the variance that the dynamics keep: the temperature.
        momentum = jnp.sqrt(temperature) * jax.random.normal(momentum_key, start.shape, start.dtype)

        def step(state: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], None]:
            position, momentum = state
            # The integrator moves the position before it turns the momentum: the gradient is the
            # one there. With half a move taken back before all steps and added after them, that is
            # a drift, a kick and a drift, of second order; Euler's steps made variances too large.
            force = gradient(position + size * momentum)
            return integrate(key, position, momentum, force, size, temperature), None

        state = start - size / 2 * momentum, momentum
        (position, momentum), _ = jax.lax.scan(step, state, jax.random.split(key, self.steps))
        return position + size / 2 * momentum


@dataclass(frozen=True)
class BlackJAXKernel:
    """A sampling algorithm of BlackJAX's as a `MarkovKernel`, with the tuning it has.

    ```python
    from functools import partial

    import blackjax
    import jax
    import jax.numpy as jnp

    from jaxeff.bayes import mcmc

    def line(params, x):                                       # mean and log-variance
        return jnp.stack([params["slope"] * x, jnp.full_like(x, -2.0)], -1)

    x = jnp.linspace(-1, 1, 20)
    langevin = partial(blackjax.mala, step_size=0.01)          # log-density -> SamplingAlgorithm
    result = mcmc(
        jax.random.key(0), line, {"slope": jnp.zeros(())}, (x, 2 * x), langevin,
        likelihood="gaussian", warmup=100, samples=500,
    )
    assert abs(result.posterior.random["slope"].mean() - 2) < 0.2
    ```

    Attributes:
        make: Function from a log-density to a ``blackjax.SamplingAlgorithm``.
    """

    make: Callable[[LogDensity], blackjax.SamplingAlgorithm]
    batch_size: ClassVar[None] = None
    adapts: ClassVar[None] = None

    def start(self, key: PRNGKeyArray, position: Array, log_density: LogDensity) -> Any:
        """Makes the algorithm's state."""
        return self.make(log_density).init(position, key)

    def step(
        self, iteration: Iteration, state: Any, log_density: LogDensity, tuning: Any
    ) -> tuple[Any, Stats]:
        """Makes a step of the algorithm; one that can't tell accepts what changes the position."""
        after, info = self.make(log_density).step(iteration.key, state)
        moved = (after.position != state.position).any()
        return after, {"acceptance": moved.astype(state.position.dtype), **_reported(info)}


def as_kernel(sampler: Any) -> MarkovKernel:
    """Resolves what `mcmc` takes for a sampler."""
    if isinstance(sampler, MarkovKernel) and not isinstance(sampler, type):
        return sampler
    if isinstance(sampler, blackjax.SamplingAlgorithm):
        raise TypeError(
            "kernel has a log-density already, where mcmc samples that of f and data: give what "
            "makes the algorithm of a log-density, such as partial(blackjax.mala, step_size=0.1)"
        )
    if callable(sampler) and not isinstance(sampler, type):
        return BlackJAXKernel(sampler)
    raise TypeError(
        "kernel must be a sampler such as NUTS(), HMC(), MCLMC(), SGLD(...) or SGHMC(...), or a "
        "function from a log-density to a blackjax.SamplingAlgorithm, such as "
        f"partial(blackjax.mala, step_size=0.1), not {sampler!r}"
    )


def describe_kernel(kernel: MarkovKernel) -> dict[str, Any]:
    """Describes a kernel for a checkpoint, in JSON's types; a schedule by a few of its values."""
    if isinstance(kernel, BlackJAXKernel):
        return {"name": "blackjax"}  # known by what its step computes
    return {"name": type(kernel).__name__} | {
        name: [float(value(10**n)) for n in range(7)] if callable(value) else value
        for name, value in vars(kernel).items()
    }


@dataclass(frozen=True)
class Cyclical(Setting):
    """A schedule of the iteration: the step size; `temperature` is that of the noise.

    It starts anew, so that one chain visits several modes:

    ```python
    import jax

    from jaxeff.bayes import SGLD, Cyclical, mcmc
    from jaxeff.nn import small_classifier

    f, params, data = small_classifier()
    cycle = Cyclical(1e-3, length=50)
    kernel = SGLD(step_size=cycle, temperature=cycle.temperature, batch_size=32)
    result = mcmc(
        jax.random.key(0), f, params, data, kernel,
        warmup=0, thin=cycle.length, samples=4, chains=1, monitor=(),
    )
    ```

    A cycle (Zhang et al., equation (1) and algorithm 1) begins with large steps without noise,
    which leave the last mode, and ends with small ones with noise, which sample the next. With
    ``thin=cycle.length`` the last draw of each is kept.

    Sharp edge: draws of several modes are no converged chain: compare predictions, not parameters.

    Attributes:
        peak: Step size at the start of a cycle.
        length: Iterations of a cycle.
        exploring: Share of a cycle that comes first and has no noise.
    """

    peak: Annotated[float, Number(above=0)]
    length: Annotated[int, Count()]
    exploring: Annotated[float, Number(0, below=1)] = 0.5

    def __call__(self, iteration: Array) -> Float[Array, ""]:
        """Computes the step size: half a cosine from the peak towards zero."""
        return self.peak / 2 * (1 + jnp.cos(jnp.pi * self._passed(iteration)))

    def temperature(self, iteration: Array) -> Float[Array, ""]:
        """Computes the temperature: 0 while exploring, then 1."""
        return (self._passed(iteration) >= self.exploring).astype(jnp.float32)

    def _passed(self, iteration: Array) -> Array:
        """Computes the share of the cycle that has passed."""
        return (jnp.asarray(iteration) % self.length).astype(jnp.float32) / self.length
