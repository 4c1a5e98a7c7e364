"""The compiled program of a sampler: one block of iterations of all chains.

The data, the parameters without a prior, the prior's scales, the iteration and its phase are
arguments, so one program serves warm-up and sampling, runs of any length, other data of the same
shapes, and every model that `f` computes from an argument (an index into `jax.lax.switch`).

The randomness of an iteration is a function of the run's key, the iteration and the chain, so a run
doesn't depend on where it was interrupted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.bayes.posteriors import Likelihood, Random, Scales, log_joint, random_part
from jaxeff.bayes.sampling import _warmup as warmup
from jaxeff.bayes.sampling._kernels import Hamiltonian, Kernel, StochasticGradient
from jaxeff.bayes.sampling._transitions import (
    LogDensity,
    Point,
    evaluate,
    hamiltonian_step,
    stochastic_step,
)
from jaxeff.core import to_devices

AXIS = "chains"


class Chains(NamedTuple):
    """The state of a run: all that the next iteration depends on.

    Attributes:
        point: Current positions of the chains, ``[chains, ...]``.
        number: Number of each chain, ``[chains]``.
        adaptation: State of warm-up; None for a kernel that adapts nothing.
    """

    point: Point
    number: Int[Array, " chains"]
    adaptation: warmup.Adaptation | None


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
    kernel: Kernel
    mesh: Mesh | None
    vectorized: bool

    @property
    def together(self) -> bool:
        """Whether several processes make one run."""
        return self.mesh is not None and bool(self.mesh.is_multi_process)

    def log_density(self, problem: SamplingProblem) -> LogDensity:
        """Makes the log-density of a problem as a function of a vector."""
        return _log_density(self, problem)


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
    positions: Float[Array, "chains d"], problem: SamplingProblem, *, program: CompiledSampler
) -> Chains:
    """Makes the state before the first iteration; on one mini-batch if the kernel uses such."""
    log_density = _log_density(program, problem)
    data = problem.data
    if isinstance(program.kernel, StochasticGradient):
        # One batch tells whether a start is finite, and all of the data may not fit.
        size = program.kernel.batch_size
        data = jax.tree.map(lambda leaf: leaf[:size], data)
    point = jax.vmap(lambda position: evaluate(log_density, position, data))(positions)
    adaptation = None
    if isinstance(program.kernel, Hamiltonian):
        adaptation = warmup.init(program.kernel, positions)
    return Chains(point, jnp.arange(len(positions)), adaptation)


@partial(jax.jit, static_argnames=("program",))
def run_block(
    key: PRNGKeyArray,
    chains: Chains,
    first: Int[Array, ""],
    count: Int[Array, ""],
    phases: Int[Array, " block"],
    problem: SamplingProblem,
    *,
    program: CompiledSampler,
) -> tuple[Chains, BlockRecord]:
    """Runs up to a block of iterations.

    Args:
        key: The run's.
        chains: The state.
        first: The first iteration's number.
        count: Number of iterations to run, at most the block's length.
        phases: Phase of warm-up of each iteration (`warmup.Phase`).
        problem: Arrays of the problem.
        program: The rest of it.

    Returns:
        The state after them, and their records; those past `count` mean nothing.
    """
    block = partial(_block, program, chains.number.shape[0])
    if program.mesh is None:
        return block(key, chains, first, count, phases, problem)
    # Only chains are split: a transition needs no communication between devices.
    whole, of_chains = PartitionSpec(), _specs(program)
    return jax.shard_map(
        block,
        mesh=program.mesh,
        in_specs=(whole, of_chains, whole, whole, whole, whole),
        out_specs=(of_chains, PartitionSpec(None, AXIS)),
        check_vma=False,  # the user's function may hold anything
    )(key, chains, first, count, phases, problem)


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
    whole: Any = PartitionSpec()
    split: Any = PartitionSpec(AXIS)
    adaptation = None
    if isinstance(program.kernel, Hamiltonian):
        # Pooled numbers are the same on all devices; sums for the variances are each chain's.
        tuning = whole if program.kernel.pooled else split
        adaptation = warmup.Adaptation(tuning, tuning, tuning, split)
    return Chains(split, split, adaptation)


def _block(
    program: CompiledSampler,
    chains: int,
    key: PRNGKeyArray,
    state: Chains,
    first: Array,
    count: Array,
    phases: Array,
    problem: SamplingProblem,
) -> tuple[Chains, BlockRecord]:
    iterate = _iteration(program, chains, key, problem)
    # Records have the block's full length whatever `count` is: one compiled program for all
    # blocks.
    empty = jax.eval_shape(iterate, state, first, phases[0])[1]
    records = jax.tree.map(lambda a: jnp.zeros((len(phases), *a.shape), a.dtype), empty)

    def body(i: Array, carry: tuple[Chains, BlockRecord]) -> tuple[Chains, BlockRecord]:
        state, record = iterate(carry[0], first + i, phases[i])
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), carry[1], record)

    return jax.lax.fori_loop(0, count, body, (state, records))


def _iteration(
    program: CompiledSampler, chains: int, key: PRNGKeyArray, problem: SamplingProblem
) -> Callable[[Chains, Array, Array], tuple[Chains, BlockRecord]]:
    kernel, mesh = program.kernel, program.mesh
    log_density = _log_density(program, problem)

    def each_chain(move: Callable[..., Any], *of_chains: Any) -> Any:
        if program.vectorized:
            return jax.vmap(move)(*of_chains)
        # One after the other: no chain waits for another's longer trajectory.
        return jax.lax.map(lambda of_chain: move(*of_chain), of_chains)

    def pool_mean(values: Array) -> Array:
        # Devices have equally many chains, so a mean of their means is the mean of all.
        mean = values.mean(0)
        return mean if mesh is None else jax.lax.pmean(mean, AXIS)

    def hamiltonian(state: Chains, i: Array, phase: Array) -> tuple[Chains, BlockRecord]:
        assert isinstance(kernel, Hamiltonian)
        assert state.adaptation is not None
        shared_key, keys = _keys(key, i, state.number)
        density = partial(log_density, data=problem.data)
        tuning = state.adaptation.step_size, state.adaptation.inverse_mass

        def move(key: Array, point: Point, *own: Array) -> Any:
            step_size, inverse_mass = own or tuning
            return hamiltonian_step(
                kernel, shared_key, key, point, density, step_size, inverse_mass
            )

        # Pooled adaptation: tuning is closed over, one for all chains; else it is mapped
        # with them.
        own = () if kernel.pooled else tuning
        point, step = each_chain(move, keys, state.point, *own)
        adaptation = warmup.update(
            kernel, chains, pool_mean, phase, state.adaptation, point.position, step.acceptance
        )
        # The step size that this iteration used; `adaptation` has the next one.
        stats = {"log_density": point.log_density, "step_size": tuning[0], **step._asdict()}
        return Chains(point, state.number, adaptation), _record(point, stats)

    def stochastic(state: Chains, i: Array, phase: Array) -> tuple[Chains, BlockRecord]:
        assert isinstance(kernel, StochasticGradient)
        _, keys = _keys(key, i, state.number)
        examples = len(jax.tree.leaves(problem.data)[0])
        # The mini-batch's log-likelihood times N / n is an unbiased estimate of that of all
        # data.
        weight = examples / kernel.batch_size

        def move(key: Array, point: Point) -> Point:
            key, batch_key = jax.random.split(key)
            # With replacement: rows depend on the iteration alone, wherever a run resumes.
            rows = jax.random.randint(batch_key, (kernel.batch_size,), 0, examples)
            batch = jax.tree.map(lambda leaf: leaf[rows], problem.data)
            return stochastic_step(kernel, i, key, point, log_density, batch, weight)

        point = each_chain(move, keys, state.point)
        stats = {"step_size": jnp.asarray(kernel.step_size_at(i))}
        return Chains(point, state.number, None), _record(point, stats)

    return hamiltonian if isinstance(kernel, Hamiltonian) else stochastic


def _record(point: Point, stats: dict[str, Array]) -> BlockRecord:
    chains = point.position.shape[:1]
    return BlockRecord(
        point.position, {name: jnp.broadcast_to(a, chains) for name, a in stats.items()}
    )


def _keys(key: PRNGKeyArray, iteration: Array, index: Array) -> tuple[Any, Any]:
    # Keys depend on the iteration's and the chain's number only: the same draws in blocks
    # of any length, on any number of devices, and after a resume.
    of_iteration = jax.random.fold_in(key, iteration)
    of_chains = jax.vmap(lambda chain: jax.random.fold_in(of_iteration, 1 + chain))(index)
    return jax.random.fold_in(of_iteration, 0), of_chains


def _log_density(program: CompiledSampler, problem: SamplingProblem) -> LogDensity:
    # Samplers see one vector of the random parameters; fixed ones are closed over.
    _, unravel = ravel_pytree(random_part(problem.params, problem.scales))

    def f(params: Any, *inputs: Any) -> Any:
        return program.f(params, *inputs, *problem.shared)

    of_random = log_joint(f, problem.params, problem.scales, program.likelihood)
    return lambda position, data, weight=1.0: of_random(unravel(position), data, weight)


def to_vectors(random: Random) -> Float[Array, "chains d"]:
    """Flattens each chain's random parameters, of arrays with a leading axis of chains."""
    return jax.vmap(lambda one: ravel_pytree(one)[0])(random)
