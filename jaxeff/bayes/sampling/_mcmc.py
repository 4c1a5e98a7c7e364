"""Markov chain Monte Carlo over the parameters of any function.

```python
import jax
import jax.numpy as jnp

from jaxeff.bayes import NUTS, mcmc, predict

def f(params, x):                                          # a line; mean and log-variance
    return jnp.stack([params["slope"] * x + params["offset"], jnp.full_like(x, -2.0)], -1)

key, params = jax.random.key(0), {"slope": jnp.ones(()), "offset": jnp.zeros(())}
x = jnp.linspace(-1, 1, 20)
y = 2 * x + 0.3 * jax.random.normal(key, (20,))
result = mcmc(key, f, params, (x, y), NUTS(), likelihood="gaussian", chains=4)
outputs = predict(key, f, result.posterior, x)             # [chains * samples, 20, 2]
result.predictions.max_rhat, result.converged
```

An algorithm of BlackJAX's that isn't among them is one as it is (`MarkovKernel`).
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from jaxeff import core
from jaxeff.bayes import posteriors
from jaxeff.bayes.posteriors import prior_scales
from jaxeff.bayes.sampling import _kernels as kernels
from jaxeff.bayes.sampling import _program
from jaxeff.bayes.sampling import _run as chain_runs
from jaxeff.bayes.sampling._diagnostics import ConvergenceWarning, MCMCResult, prediction_mixing
from jaxeff.bayes.sampling._run import Trace
from jaxeff.store import Resume, describe_arrays, describe_computation, run_identity
from jaxeff.training import count_examples

_MONITORED = 100


class ChainOptions(TypedDict, total=False):
    """How `mcmc` samples; the classes below have the meaning and defaults of its options."""

    warmup: int
    samples: int
    thin: int
    likelihood: posteriors.Likelihood
    prior: posteriors.Prior
    shared: tuple[Any, ...]
    init: Any
    jitter: float
    devices: Sequence[Any] | None
    vectorized: bool | None
    checkpoint: str | os.PathLike[str] | None
    resume: Resume
    settings: Mapping[str, Any] | None
    progress: bool | None


@dataclass(frozen=True, kw_only=True)
class Density:
    """The density that is sampled, given a function, its parameters and data.

    Attributes:
        likelihood: Meaning of the outputs.
        prior: Standard deviations; None for a parameter that keeps its value.
        shared: Inputs that come after those of the data and are the same for all examples.
    """

    likelihood: posteriors.Likelihood = "categorical"
    prior: posteriors.Prior = "fan_in"
    shared: tuple[Any, ...] = ()

    def problem(
        self, f: Callable[..., Any], params: Any, data: tuple[Any, ...]
    ) -> _program.SamplingProblem:
        """Puts together what is sampled, once parameters, data and likelihood are found to fit."""
        # Checks come first: an error inside the compiled program would name no argument.
        posteriors.check_data(params, data)
        posteriors.check_targets(
            lambda p, *inputs: f(p, *inputs, *self.shared), params, data, self.likelihood
        )
        scales = prior_scales(self.prior, params, f, *data[:-1], *self.shared)
        return _program.SamplingProblem(params, scales, data, self.shared)


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Where chains start.

    Attributes:
        init: Draws from the prior if None, or from a posterior; around parameters; or at parameters
            with a leading axis of chains.
        jitter: Spread of the starts around parameters, in the prior's standard deviations.
    """

    init: Any = None
    jitter: float = 0.1


@dataclass(frozen=True, kw_only=True)
class ChainPlacement:
    """Where chains run.

    Attributes:
        devices: To spread the chains over; all there are if None.
        vectorized: Whether the chains of a device run together or one after the other; if None,
            together unless it is a CPU.
    """

    devices: Sequence[Any] | None = None
    vectorized: bool | None = None

    @property
    def together(self) -> bool:
        """Whether the chains of a device run together."""
        # Vectorized chains all take as many steps as the longest trajectory: worth it on
        # accelerators.
        return jax.default_backend() != "cpu" if self.vectorized is None else self.vectorized


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How a run is kept and shown.

    Attributes:
        checkpoint: Folder to keep the run in.
        resume: Whether to go on from it.
        settings: Further facts that define the run, as JSON.
        progress: Whether to show a bar.
    """

    checkpoint: str | os.PathLike[str] | None = None
    resume: Resume = True
    settings: Mapping[str, Any] | None = None
    progress: bool | None = None


@core.validate(
    data=core.supervised_data,
    monitor=core.all_of(core.instance_of(tuple), core.input_batch),
    warmup=core.static_integer(0),
    chains=core.static_integer(),
    thin=core.static_integer(),
    jitter=core.non_negative,
)
@core.forwards((chain_runs.Iterations, Density, Starts, ChainPlacement, Keeping), ChainOptions)
def mcmc(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    kernel: kernels.MarkovKernel | Callable[[kernels.LogDensity], blackjax.SamplingAlgorithm],
    *,
    chains: int = 4,
    monitor: tuple[Any, ...] | None = None,
    **options: Unpack[ChainOptions],
) -> MCMCResult:
    """Samples the posterior over the parameters of ``f``.

    All chains run in one compiled program, spread over the devices there are, of all processes
    (`jaxeff.core`). The program is compiled once for each `f`, likelihood, kernel and set of
    shapes: for other data, another prior, or another value of an input it is used again. So pass
    the same function object, and what tells models apart as an input: with ``f(params, x, index)``
    and ``shared=(index,)`` one program samples every model that ``jax.lax.switch(index, ...)``
    holds.

    Sharp edges:

    - `NUTS`, `HMC` and `MCLMC` use all data in each step.
    - Chains that run together wait for the longest trajectory among them.
    - On a CPU, spread chains over the cores by giving JAX as many devices, before it starts:
      ``XLA_FLAGS=--xla_force_host_platform_device_count=2``.
    - A result is bit for bit the same again, also after an interruption, on the same devices; on
      others it differs in rounding, which a chain amplifies.

    The sampler is an object, whose settings are those of a step. Samplers on mini-batches have a
    step size that you choose:

    ```python
    import jax
    import jax.numpy as jnp

    from jaxeff.bayes import HMC, MCLMC, SGHMC, SGLD, mcmc

    def f(params, x):                                          # a line; mean and log-variance
        return jnp.stack([params["slope"] * x + params["offset"], jnp.full_like(x, -2.0)], -1)

    key, params = jax.random.key(0), {"slope": jnp.ones(()), "offset": jnp.zeros(())}
    x = jnp.linspace(-1, 1, 40)
    y = 2 * x + 0.3 * jax.random.normal(key, (40,))
    run = {"likelihood": "gaussian", "chains": 2, "warmup": 500, "samples": 500}
    for kernel in (
        HMC(steps=5), MCLMC(steps=5), SGLD(step_size=2e-3, batch_size=20),
        SGHMC(step_size=1e-2, batch_size=20, friction=10.0),
    ):
        result = mcmc(key, f, params, (x, y), kernel, **run)
        assert abs(result.posterior.random["slope"].mean() - 1.89) < 0.05
    ```

    Args:
        key: Random key; the run is a function of it and of the other arguments.
        f: ``f(params, *inputs, *shared) -> outputs``.
        params: Pytree of parameters: structure, shapes and dtypes, and the values of those that
            have no prior.
        data: ``(*inputs, targets)``: arrays (or pytrees) with a common first axis of examples.
        kernel: The sampler: `NUTS`, `HMC`, `MCLMC`, `SGLD`, `SGHMC` or another `MarkovKernel`; or a
            function from the log-density, of a vector of all random parameters, to a
            ``blackjax.SamplingAlgorithm``, such as ``partial(blackjax.mala, step_size=0.1)``.
        chains: Number of chains.
        monitor: Inputs whose predictions are held to R-hat; 100 of the data's if None. If empty,
            neither predictions nor parameters are looked at.
        **options: `warmup`, the iterations that come first and aren't kept, 1000; `NUTS`, `HMC` and
            `MCLMC` adapt in them. `samples`, the draws to keep of each chain, 1000. `thin`, the
            iterations for each kept draw, 1; memory is ``chains * samples`` times the parameters.

            `likelihood`: ``"categorical"``, ``"gaussian"``, or a function from the outputs to a
            NumPyro distribution of the targets. `prior`: standard deviations; see
            `jaxeff.bayes.posteriors`. A parameter with the rule None keeps its value in ``params``.
            `shared`: inputs that come after those of ``data`` and are the same for all examples.

            `init`: starting points of the chains: draws from the prior (None) or from a posterior,
            such as that of an SVI run or earlier chains; around given parameters; or at parameters
            with a leading axis of chains. `jitter`: spread of the starts around given parameters,
            in the prior's standard deviations, 0.1.

            `devices` to spread the chains over; all there are if None, those of other processes too
            (`jaxeff.core`), as far as the number of chains is a multiple of theirs. `vectorized`:
            whether the chains of a device run together or one after the other; if None, together
            unless it is a CPU. There a step of a 2x50 network takes 15 % less time alone, and no
            chain waits for another's longer trajectory.

            `checkpoint`: folder to keep the run in. `resume`: whether to go on from it if it
            exists; the result is then that of an uninterrupted run, bit for bit. A run may be
            continued with more ``samples``. That of another run (another start, function,
            likelihood, kernel, other data or numbers) is refused, unless this is ``"force"``.
            `settings`: further facts that define the run, as JSON, such as the data's name; a
            checkpoint with other settings is refused. `progress`: whether to show a bar; see
            `jaxeff.core`.

    Returns:
        The draws, statistics, and R-hat and effective sample size of the predictions.

    Raises:
        ValueError: Data that don't fit together or hold less than a batch, labels out of range, a
            density that isn't finite at a start, starts of another model, counts below 1.
        TypeError: A parameter or label has the wrong dtype, or the kernel is none.
        ChainsDivergedError: A chain on mini-batches left the finite numbers.
        CheckpointError: The checkpoint is damaged or of another run; the message names what
            differs.
        InterruptedRun: Ctrl-C; its ``result`` are the draws so far, if there are any.

    Warns:
        ConvergenceWarning: The chains disagree, diverge or are stuck.
    """
    sampler = kernels.as_kernel(kernel)
    iterations = chain_runs.Iterations(**core.options_for(chain_runs.Iterations, options))
    density = Density(**core.options_for(Density, options))
    starts = Starts(**core.options_for(Starts, options))
    placement = ChainPlacement(**core.options_for(ChainPlacement, options))
    keeping = Keeping(**core.options_for(Keeping, options))

    likelihood = posteriors.hashable_likelihood(density.likelihood)
    problem = replace(density, likelihood=likelihood).problem(f, params, data)
    _check_batch(sampler, data)
    mesh = _mesh(chains, placement.devices)
    program = _program.CompiledSampler(f, likelihood, sampler, mesh, placement.together)
    # The starts have a key of their own: iterations depend on the other one only.
    start_key, key = jax.random.split(key)
    points = chain_runs.starting_points(
        start_key, params, problem.scales, chains, starts.init, starts.jitter
    )
    trace = _sampled(key, program, problem, _program.to_vectors(points), iterations, keeping)
    posterior = _draws(trace, program, problem)
    predictions = None
    if monitor is None:
        monitor = _spread_inputs(data)
    if monitor and iterations.samples >= 4:
        predictions = prediction_mixing(f, posterior, *monitor, *density.shared)
    result = _result(trace, posterior, predictions, iterations.warmup)
    if result.problems:
        warnings.warn(
            "the chains have not converged:\n- " + "\n- ".join(result.problems),
            ConvergenceWarning,
            stacklevel=4,  # the caller's line, behind the check of the arguments and options
        )
    return result


def _sampled(
    key: jax.Array,
    program: _program.CompiledSampler,
    problem: _program.SamplingProblem,
    starts: jax.Array,
    iterations: chain_runs.Iterations,
    keeping: Keeping,
) -> Trace:
    """Runs chains from their starts to the end, or goes on with those that are kept."""
    arrays = jax.tree.map(jnp.asarray, problem)
    state = _program.start(key, starts, arrays, program=program)
    _check_start(state)
    store = None
    if keeping.checkpoint is not None:
        described = {
            **(keeping.settings or {}),
            "kernel": kernels.describe_kernel(program.kernel),
            "likelihood": posteriors.likelihood_name(program.likelihood),
            "warmup": iterations.warmup,
            "chains": len(starts),
            "thin": iterations.thin,
            "prior": problem.scales,
        }
        identity = _identity(key, program, arrays, state, described)
        store = chain_runs.ChainStore(Path(keeping.checkpoint), identity, program.together)
    try:
        begin = chain_runs.resumed(store, state, keeping.resume)
        return chain_runs.run_chains(
            key, program, arrays, begin, iterations, store, keeping.progress
        )
    except core.InterruptedRun as error:
        error.result = error.result and _draws(error.result, program, problem)
        raise


def _identity(
    key: jax.Array,
    program: _program.CompiledSampler,
    problem: _program.SamplingProblem,
    state: _program.Chains,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Describes a run: functions can't be compared, so it is known by its starts and programs."""
    params = problem.params
    shapes = {path: np.shape(leaf) for path, leaf in posteriors.named_leaves(params).items()}
    described = {**settings, "parameters": shapes}
    return run_identity(key, {"data": problem.data, "shared": problem.shared}, described, {
        **describe_arrays("start", state.point.position),
        **describe_arrays("params", _fixed(params, problem.scales)),
        **_describe_functions(program, state.point, problem),
    })  # fmt: skip


def _spread_inputs(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Selects the inputs to monitor, evenly: sorted data sets would show one class only."""
    rows = np.linspace(0, count_examples(data) - 1, _MONITORED).astype(int)
    return jax.tree.map(lambda leaf: leaf[np.unique(rows)], tuple(data[:-1]))


def _result(trace: Trace, posterior: posteriors.Draws, predictions: Any, warmup: int) -> MCMCResult:
    """Splits what chains recorded into the iterations of the warm-up and those that are kept."""
    stats = {name: values.T for name, values in trace.stats.items()}
    return MCMCResult(
        posterior,
        {name: values[:, warmup:] for name, values in stats.items()},
        {name: values[:, :warmup] for name, values in stats.items()},
        predictions,
        seconds=(float(trace.seconds[:warmup].sum()), float(trace.seconds[warmup:].sum())),
    )


def _mesh(chains: int, devices: Sequence[Any] | None) -> Mesh | None:
    """Chooses the devices that the chains are spread over, as many of each process."""
    available = jax.devices() if devices is None else list(devices)
    if devices is not None and chains % len(available):
        raise ValueError(
            f"{chains} chains can't be spread evenly over {len(available)} devices: choose a "
            "multiple"
        )
    processes = sorted({device.process_index for device in available})
    if chains % len(processes):
        raise ValueError(
            f"{chains} chains can't be spread evenly over {len(processes)} processes: choose a "
            "multiple, or devices=jax.local_devices() for a run of each process's own"
        )
    # Every device gets as many chains: shard_map splits axes evenly.
    count = math.gcd(chains, len(available)) // len(processes)
    if devices is None and count == len(processes) == 1:
        return None
    by_process = [[device for device in available if device.process_index == i] for i in processes]
    return Mesh(
        np.array([device for part in by_process for device in part[:count]]), (_program.AXIS,)
    )


def _draws(
    trace: Trace, program: _program.CompiledSampler, problem: _program.SamplingProblem
) -> posteriors.Draws:
    params = problem.params
    _, unravel = ravel_pytree(posteriors.random_part(params, problem.scales))
    # Traces are written draw by draw; results are by chain.
    positions = jnp.swapaxes(trace.positions, 0, 1)
    return posteriors.Draws(jax.vmap(jax.vmap(unravel))(positions), params, program.likelihood)


def _fixed(params: Any, scales: posteriors.Scales) -> dict[str, Any]:
    """Selects the parameters without a prior: only their values matter to a run."""
    return {
        path: leaf for path, leaf in posteriors.named_leaves(params).items() if scales[path] is None
    }


def _describe_functions(
    program: _program.CompiledSampler, points: Any, problem: _program.SamplingProblem
) -> dict[str, Any]:
    """Describes what chains compute: the density, and what settings of the kernel don't tell."""

    def density(position: Any, problem: _program.SamplingProblem) -> Any:
        # With the gradient, which samplers follow: it may be a custom one.
        return jax.value_and_grad(program.log_density(problem))(position, problem.data)

    def step(key: Any, point: Any, problem: _program.SamplingProblem) -> Any:
        log_density = partial(program.log_density(problem), data=problem.data)
        return program.kernel.step(
            kernels.Iteration(jnp.int32(0), key, key), point, log_density, None
        )

    point = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), points)
    parts = {"log-density": describe_computation(density, point.position, problem)}
    for name, value in vars(program.kernel).items():
        if name == "make":
            parts["step"] = describe_computation(step, jax.random.key(0), point, problem)
        elif callable(value):
            parts[name.replace("_", " ")] = describe_computation(value, jnp.int32(0))
    return parts


def _check_batch(kernel: kernels.MarkovKernel, data: tuple[Any, ...]) -> None:
    examples = count_examples(data)
    if kernel.batch_size is not None and kernel.batch_size > examples:
        raise ValueError(
            f"a batch of {kernel.batch_size} from {examples} examples: lower batch_size"
        )


def _check_start(chains: _program.Chains) -> None:
    # Without a finite energy to compare with, a trajectory can't be judged.
    finite = np.ones(len(chains.number), bool)
    for leaf in jax.tree.leaves(chains.point):
        finite &= np.isfinite(np.asarray(leaf)).reshape(len(finite), -1).all(1)
    if not finite.all():
        raise ValueError(
            f"at the start of chain {int(np.argmin(finite))} the log-density of parameters and "
            "data is NaN or infinite, or its gradient is: check f and its likelihood there, or "
            "start elsewhere (init), for example at trained parameters"
        )
