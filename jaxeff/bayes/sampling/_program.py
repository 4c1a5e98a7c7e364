"""The compiled program of a sampler: one block of iterations of all chains.

The data, the parameters without a prior, the prior's scales, the iteration and its phase are
arguments, so one program serves warm-up and sampling, runs of any length, other data of the same
shapes, and every model that `f` computes from an argument (an index into `jax.lax.switch`).

The randomness of an iteration is a function of the run's key, the iteration and the chain, so a run
doesn't depend on where it was interrupted.

Warm-up adapts the step size by dual averaging and the mass matrix in windows, for each chain or for
all together. The schedule and both estimators are Stan's, from BlackJAX. Shared between chains,
dual averaging follows their mean acceptance, and the covariance is the mean of the covariances
within the chains: what lies between chains that sit in different modes is no scale to step by.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import WelfordAlgorithmState, welford_algorithm
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.bayes.posteriors import Likelihood, Random, Scales, log_joint, random_part
from jaxeff.bayes.sampling._kernels import Iteration, MarkovKernel, Stats, Tuning, WindowAdaptation
from jaxeff.core import to_devices


class Phase(IntEnum):
    """Phase of warm-up: what an iteration does to the adaptation."""

    SAMPLE = 0
    FAST = 1
    """Adapt the step size."""
    SLOW = 2
    """Adapt the step size and gather variances."""
    WINDOW_END = 3
    """As `SLOW`; then take a new mass matrix from the variances and start anew."""
    LAST = 4
    """As `FAST`; then settle on the averaged step size."""


class Adaptation(NamedTuple):
    """State of warm-up. The first axis of each array is that of the chains, unless shared.

    Attributes:
        step_size: The integrator's.
        inverse_mass: Inverse mass matrix, or its diagonal.
        averaging: State of dual averaging.
        variances: State of Welford's algorithm; of each chain, shared or not.
    """

    step_size: Float[Array, "*chains"]
    inverse_mass: Float[Array, "*chains d"]
    averaging: DualAveragingAdaptationState
    variances: WelfordAlgorithmState


def phases(warmup: int) -> np.ndarray:
    """Schedules the phase of each iteration of warm-up."""
    # BlackJAX's schedule: by iteration, whether variances are gathered, and a window's end.
    slow, ends = np.asarray(build_schedule(warmup), int).reshape(warmup, 2).T
    phase = np.where(slow == 0, Phase.FAST, np.where(ends, Phase.WINDOW_END, Phase.SLOW))
    # Single step sizes of dual averaging fluctuate: warm-up ends on their average.
    phase[-1:] = Phase.LAST
    return phase.astype(np.int32)


def init(settings: WindowAdaptation, positions: Float[Array, "chains d"]) -> Adaptation:
    """Makes the adaptation before the first iteration: a mass matrix of one."""
    dimensions, dtype = positions.shape[1], positions.dtype
    averaging_init, _, _ = dual_averaging_adaptation(settings.target_acceptance)
    welford_init, _, _ = welford_algorithm(not settings.dense)
    step_size = jnp.asarray(settings.step_size, dtype)
    one = Adaptation(
        step_size,
        (jnp.eye if settings.dense else jnp.ones)(dimensions, dtype=dtype),
        averaging_init(step_size),
        welford_init(dimensions),
    )
    # Dtypes as the updates leave them, so that a loop can carry them.
    one = jax.tree.map(lambda x: jnp.asarray(x, dtype if np.ndim(x) or _is_float(x) else int), one)
    every = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(positions), *x.shape)), one)
    # Variances stay each chain's own: pooled, they are averaged at the end of a window.
    return one._replace(variances=every.variances) if settings.pooled else every


def update(
    settings: WindowAdaptation,
    chains: int,
    pool_mean: Callable[[Any], Any],
    phase: Array,
    state: Adaptation,
    positions: Float[Array, "chains d"],
    acceptance: Float[Array, " chains"],
) -> Adaptation:
    """Adapts after one iteration.

    `pool_mean` is over the leading axis of all chains, wherever they are; the `Phase` is traced and
    the same for all chains; positions and acceptance are those after the iteration.
    """
    averaging = dual_averaging_adaptation(settings.target_acceptance)
    welford_init, welford_update, welford_final = welford_algorithm(not settings.dense)
    averaging_init, averaging_update, averaging_final = (
        averaging if settings.pooled else map(jax.vmap, averaging)
    )

    def keep(state: Adaptation) -> Adaptation:
        return state

    def fast(state: Adaptation) -> Adaptation:
        # Pooled, one step size follows the mean acceptance: less noise, so a shorter warm-up.
        rate = pool_mean(acceptance) if settings.pooled else acceptance
        after = averaging_update(state.averaging, rate)
        return state._replace(averaging=after, step_size=jnp.exp(after.log_step_size))

    def slow(state: Adaptation) -> Adaptation:
        variances = jax.vmap(welford_update)(state.variances, positions)
        return fast(state._replace(variances=variances))

    def window_end(state: Adaptation) -> Adaptation:
        state = slow(state)
        covariance, count, _ = jax.vmap(welford_final)(state.variances)
        if settings.pooled:
            # The mean of the chains' own covariances: of all draws together it would count the
            # distance between chains that have not met yet as posterior variance.
            covariance, count = pool_mean(covariance), chains * count[0]
        inverse_mass = _regularized(settings, covariance, count)
        # A new metric changes what a good step size is: averaging starts anew, from its average.
        after = averaging_init(averaging_final(state.averaging))
        # Each window measures anew: the first ones saw the way to the bulk of the posterior.
        fresh = welford_init(positions.shape[1])
        fresh = jax.tree.map(lambda x, old: jnp.broadcast_to(x, old.shape), fresh, state.variances)
        return Adaptation(jnp.exp(after.log_step_size), inverse_mass, after, fresh)

    def last(state: Adaptation) -> Adaptation:
        state = fast(state)
        return state._replace(step_size=averaging_final(state.averaging))

    def typed(branch: Callable[[Adaptation], Adaptation]) -> Callable[[Adaptation], Adaptation]:
        # Branches of a switch must agree in dtypes, which some updates promote.
        return lambda state: jax.tree.map(
            lambda new, old: jnp.asarray(new, old.dtype), branch(state), state
        )

    branches = [typed(branch) for branch in (keep, fast, slow, window_end, last)]
    return jax.lax.switch(phase, branches, state)


def _regularized(settings: WindowAdaptation, covariance: Array, count: Array) -> Array:
    """Shrinks towards a thousandth of the identity, as by five more draws (Stan's rule)."""
    unit = jnp.eye(covariance.shape[-1]) if settings.dense else jnp.ones(covariance.shape[-1])
    # (n C + 5 * 1e-3 I) / (n + 5): keeps a metric from few draws positive definite.
    extra = covariance.ndim - count.ndim
    count = count.reshape(*count.shape, *[1] * extra)
    return (count * covariance + 5e-3 * unit) / (count + 5)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


AXIS = "chains"


class Chains(NamedTuple):
    """The state of a run: all that the next iteration depends on.

    Attributes:
        point: The kernel's states, with the chains' positions, ``[chains, ...]``.
        number: Number of each chain, ``[chains]``.
        adaptation: State of warm-up; None for a kernel that adapts nothing.
    """

    point: Any
    number: Int[Array, " chains"]
    adaptation: Adaptation | None


class SamplingProblem(NamedTuple):
    """The arrays of a sampling problem.

    Attributes:
        params: All parameters; those with a prior give shapes and dtypes.
        scales: Prior standard deviations by path, None for a parameter that is not random.
        data: ``(*inputs, targets)``; of equal length where a kernel takes mini-batches.
        shared: Inputs that follow those of the data and are no examples.
    """

    params: Any
    scales: Scales
    data: tuple[Any, ...]
    shared: tuple[Any, ...]


@dataclass(frozen=True)
class CompiledSampler:
    """The static part of a compiled program.

    Attributes:
        f: ``f(params, *inputs, *shared) -> outputs``.
        likelihood: Likelihood, as `resolve_likelihood` takes it.
        kernel: The sampler.
        mesh: Devices that the chains are spread over, of one process or several; None for one
            device.
        vectorized: Whether the chains of a device run together or one after the other.
    """

    f: Callable[..., Any]
    likelihood: Likelihood
    kernel: MarkovKernel
    mesh: Mesh | None
    vectorized: bool

    @property
    def together(self) -> bool:
        """Whether several processes make one run."""
        return self.mesh is not None and bool(self.mesh.is_multi_process)

    def log_density(self, problem: SamplingProblem) -> Callable[..., Float[Array, ""]]:
        """Makes the log-density of a problem, ``(position, data, weight=1)``, in nats."""
        # Samplers see one vector of the random parameters; fixed ones are closed over.
        _, unravel = ravel_pytree(random_part(problem.params, problem.scales))

        def f(params: Any, *inputs: Any) -> Any:
            return self.f(params, *inputs, *problem.shared)

        of_random = log_joint(f, problem.params, problem.scales, self.likelihood)
        return lambda position, data, weight=1.0: of_random(unravel(position), data, weight)


class BlockIterations(NamedTuple):
    """The iterations of a block.

    Attributes:
        first: Number of the first one.
        number: How many to run, at most the block's length.
        phases: Phase of each of the block's length.
    """

    first: Int[Array, ""] | int
    number: Int[Array, ""] | int
    phases: Int[Array | np.ndarray, " block"]


class BlockRecord(NamedTuple):
    """Records of a block, one entry for each iteration.

    Attributes:
        positions: ``[block, chains, d]``.
        stats: Mapping from name to ``[block, chains]``; see `jaxeff.bayes.MCMCResult`.
    """

    positions: Array
    stats: dict[str, Array]


@partial(jax.jit, static_argnames=("program",))
def start(
    key: PRNGKeyArray,
    positions: Float[Array, "chains d"],
    problem: SamplingProblem,
    *,
    program: CompiledSampler,
) -> Chains:
    """Makes the state before the first iteration; on one mini-batch if the kernel uses such."""
    kernel, number = program.kernel, jnp.arange(len(positions))
    # One batch tells whether a start is finite, and all of the data may not fit.
    data = jax.tree.map(lambda leaf: leaf[: kernel.batch_size], problem.data)
    density = partial(program.log_density(problem), data=data)
    # Numbered as no iteration is, whose keys are folded in as well.
    _, keys = _keys(key, jnp.uint32(2**32 - 1), number)
    point = jax.vmap(lambda key, position: kernel.start(key, position, density))(keys, positions)
    adaptation = None if kernel.adapts is None else init(kernel.adapts, positions)
    return Chains(point, number, adaptation)


@partial(jax.jit, static_argnames=("program",))
def run_block(
    key: PRNGKeyArray,
    chains: Chains,
    iterations: BlockIterations,
    problem: SamplingProblem,
    *,
    program: CompiledSampler,
) -> tuple[Chains, BlockRecord]:
    """Runs up to a block of iterations.

    `program` is the rest of the problem. Returns the state after them, and their records; those
    past their number mean nothing.
    """
    block = partial(_block, program, chains.number.shape[0])
    if program.mesh is None:
        return block(key, chains, iterations, problem)
    # Only chains are split: a transition needs no communication between devices.
    same, of_chains = PartitionSpec(), _specs(program)
    return jax.shard_map(
        block,
        mesh=program.mesh,
        in_specs=(same, of_chains, same, same),
        out_specs=(of_chains, PartitionSpec(None, AXIS)),
        check_vma=False,  # the user's function may hold anything
    )(key, chains, iterations, problem)


def spread(program: CompiledSampler, chains: Chains) -> Chains:
    """Spreads chains over the program's devices."""
    mesh = program.mesh
    if mesh is None:
        return chains
    return jax.tree.map(
        lambda spec, part: to_devices(part, NamedSharding(mesh, spec)),
        _specs(program),
        chains,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def copied(program: CompiledSampler, tree: Any) -> Any:
    """Copies arrays to each of the program's devices."""
    if program.mesh is None:
        return tree
    return to_devices(tree, NamedSharding(program.mesh, PartitionSpec()))


def _specs(program: CompiledSampler) -> Any:
    """Describes how a state lies on the devices, as a prefix of its tree."""
    same: Any = PartitionSpec()
    split: Any = PartitionSpec(AXIS)
    adaptation = None
    if program.kernel.adapts is not None:
        # Pooled numbers are the same on all devices; sums for the variances are each chain's.
        tuning = same if program.kernel.adapts.pooled else split
        adaptation = Adaptation(tuning, tuning, tuning, split)
    return Chains(split, split, adaptation)


def _block(
    program: CompiledSampler,
    chains: int,
    key: PRNGKeyArray,
    state: Chains,
    iterations: BlockIterations,
    problem: SamplingProblem,
) -> tuple[Chains, BlockRecord]:
    first, count, phases = iterations
    iterate = _iteration(program, chains, key, problem)
    # Records are as long as the block whatever `count` is: one compiled program for all blocks.
    empty = jax.eval_shape(iterate, state, first, phases[0])[1]
    records = jax.tree.map(lambda a: jnp.zeros((len(phases), *a.shape), a.dtype), empty)

    def body(i: Array, carry: tuple[Chains, BlockRecord]) -> tuple[Chains, BlockRecord]:
        state, record = iterate(carry[0], first + i, phases[i])
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), carry[1], record)

    return jax.lax.fori_loop(0, count, body, (state, records))


def _iteration(
    program: CompiledSampler, chains: int, key: PRNGKeyArray, problem: SamplingProblem
) -> Callable[[Chains, Array, Array], tuple[Chains, BlockRecord]]:
    kernel, mesh, adapts = program.kernel, program.mesh, program.kernel.adapts
    log_density = program.log_density(problem)
    examples = len(jax.tree.leaves(problem.data)[0])

    def each_chain(move: Callable[..., Any], *of_chains: Any) -> Any:
        if program.vectorized:
            return jax.vmap(move)(*of_chains)
        # One after the other: no chain waits for another's longer trajectory.
        return jax.lax.map(lambda of_chain: move(*of_chain), of_chains)

    def pool_mean(values: Array) -> Array:
        # Devices have equally many chains, so a mean of their means is the mean of all.
        mean = values.mean(0)
        return mean if mesh is None else jax.lax.pmean(mean, AXIS)

    def minibatch_density(key: PRNGKeyArray, size: int) -> Callable[[Array], Array]:
        # With replacement: rows depend on the iteration alone, wherever a run resumes.
        rows = jax.random.randint(key, (size,), 0, examples)
        batch = jax.tree.map(lambda leaf: leaf[rows], problem.data)
        # The mini-batch's log-likelihood times N / n estimates that of all data without bias.
        return partial(log_density, data=batch, weight=examples / size)

    def iterate(state: Chains, i: Array, phase: Array) -> tuple[Chains, BlockRecord]:
        shared_key, keys = _keys(key, i, state.number)
        adaptation, pooled = state.adaptation, None
        separate: tuple[Array, ...] = ()
        if adaptation is not None and adapts is not None:
            tuning = Tuning(adaptation.step_size, adaptation.inverse_mass)
            # Pooled, one tuning for all chains is closed over; else each chain has its own.
            pooled, separate = (tuning, ()) if adapts.pooled else (None, tuning)

        def move(key: PRNGKeyArray, point: Any, *separate: Array) -> tuple[Any, Stats]:
            density: Callable[[Array], Array] = partial(log_density, data=problem.data)
            if kernel.batch_size is not None:
                key, batch_key = jax.random.split(key)
                density = minibatch_density(batch_key, kernel.batch_size)
            tuning = Tuning(*separate) if separate else pooled
            return kernel.step(Iteration(i, key, shared_key), point, density, tuning)

        point, stats = each_chain(move, keys, state.point, *separate)
        if adaptation is not None and adapts is not None:
            adaptation = update(
                adapts, chains, pool_mean, phase, adaptation, point.position, stats["acceptance"]
            )
        return Chains(point, state.number, adaptation), BlockRecord(point.position, stats)

    return iterate


def _keys(key: PRNGKeyArray, iteration: Array, index: Array) -> tuple[Any, Any]:
    """Makes the key that all chains of an iteration share, and one for each chain."""
    # Of numbers alone: the same draws in blocks of any length, on any devices, after a resume.
    of_iteration = jax.random.fold_in(key, iteration)
    of_chains = jax.vmap(lambda chain: jax.random.fold_in(of_iteration, 1 + chain))(index)
    return jax.random.fold_in(of_iteration, 0), of_chains


def to_vectors(random: Random) -> Float[Array, "chains d"]:
    """Flattens each chain's random parameters, of arrays with a leading axis of chains."""
    return jax.vmap(lambda one: ravel_pytree(one)[0])(random)
