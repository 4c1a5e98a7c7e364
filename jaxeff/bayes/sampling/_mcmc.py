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
from functools import partial
from pathlib import Path
from typing import Any

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


@core.validate(
    data=core.supervised_data,
    monitor=core.all_of(core.instance_of(tuple), core.input_batch),
    warmup=core.static_integer(0),
    chains=core.static_integer(),
    thin=core.static_integer(),
    jitter=core.non_negative,
)
def mcmc(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    kernel: kernels.MarkovKernel | Callable[[kernels.LogDensity], blackjax.SamplingAlgorithm],
    *,
    warmup: int = 1000,
    samples: int = 1000,
    chains: int = 4,
    thin: int = 1,
    likelihood: posteriors.Likelihood = "categorical",
    prior: posteriors.Prior = "fan_in",
    shared: tuple[Any, ...] = (),
    init: Any = None,
    jitter: float = 0.1,
    devices: Sequence[Any] | None = None,
    vectorized: bool | None = None,
    monitor: tuple[Any, ...] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: Resume = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
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
        warmup: Iterations that come first and aren't kept; `NUTS`, `HMC` and `MCLMC` adapt in them.
        samples: Draws to keep of each chain.
        chains: Number of chains.
        thin: Iterations for each kept draw; memory is ``chains * samples`` times the parameters.
        likelihood: ``"categorical"``, ``"gaussian"``, or a function from the outputs to a NumPyro
            distribution of the targets.
        prior: Standard deviations; see `jaxeff.bayes.posteriors`. A parameter with the rule None
            keeps its value in ``params``.
        shared: Inputs that come after those of ``data`` and are the same for all examples.
        init: Starting points of the chains: draws from the prior (None) or from a posterior, such
            as that of an SVI run or earlier chains; around given parameters; or at parameters with
            a leading axis of chains.
        jitter: Spread of the starts around given parameters, in the prior's standard deviations.
        devices: To spread the chains over; all there are if None, those of other processes too
            (`jaxeff.core`), as far as the number of chains is a multiple of theirs.
        vectorized: Whether the chains of a device run together or one after the other; if None,
            together unless it is a CPU. There a step of a 2x50 network takes 15 % less time alone,
            and no chain waits for another's longer trajectory.
        monitor: Inputs whose predictions are held to R-hat; 100 of the data's if None. If empty,
            neither predictions nor parameters are looked at.
        checkpoint: Folder to keep the run in.
        resume: Whether to go on from ``checkpoint`` if it exists; the result is then that of an
            uninterrupted run, bit for bit. A run may be continued with more ``samples``. That of
            another run (another start, function, likelihood, kernel, other data or numbers) is
            refused, unless this is ``"force"``.
        settings: Further facts that define the run, as JSON, such as the data's name; a checkpoint
            with other settings is refused.
        progress: Whether to show a bar; see `jaxeff.core`.

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
    likelihood = posteriors.hashable_likelihood(likelihood)
    posteriors.check_data(params, data)
    posteriors.check_targets(lambda p, *inputs: f(p, *inputs, *shared), params, data, likelihood)
    _check_batch(sampler, data)
    # Checks come first: an error inside the compiled program would name no argument.
    scales = prior_scales(prior, params, f, *data[:-1], *shared)
    problem = jax.tree.map(jnp.asarray, _program.SamplingProblem(params, scales, data, shared))
    # Vectorized chains all take as many steps as the longest trajectory: worth it on accelerators.
    together = jax.default_backend() != "cpu" if vectorized is None else vectorized
    program = _program.CompiledSampler(f, likelihood, sampler, _mesh(chains, devices), together)
    # The starts have a key of their own: iterations depend on the other one only.
    start_key, key = jax.random.split(key)
    starts = chain_runs.starting_points(start_key, params, scales, chains, init, jitter)
    state = _program.start(key, _program.to_vectors(starts), problem, program=program)
    _check_start(state)
    store = None
    if checkpoint is not None:
        described = {
            **(settings or {}),
            "kernel": kernels.describe_kernel(sampler),
            "likelihood": posteriors.likelihood_name(likelihood),
            "warmup": warmup,
            "chains": chains,
            "thin": thin,
            "prior": scales,
        }
        identity = _identity(key, program, problem, state, described)
        store = chain_runs.ChainStore(Path(checkpoint), identity, program.together)
    try:
        begin = chain_runs.resumed(store, state, resume)
        iterations = chain_runs.Iterations(warmup, samples, thin)
        trace = chain_runs.run_chains(key, program, problem, begin, iterations, store, progress)
    except core.InterruptedRun as error:
        error.result = error.result and _draws(error.result, params, scales, likelihood)
        raise
    posterior = _draws(trace, params, scales, likelihood)
    predictions = None
    if monitor is None:
        monitor = _spread_inputs(data)
    if monitor and samples >= 4:
        predictions = prediction_mixing(f, posterior, *monitor, *shared)
    result = _result(trace, posterior, predictions, warmup)
    if result.problems:
        warnings.warn(
            "the chains have not converged:\n- " + "\n- ".join(result.problems),
            ConvergenceWarning,
            stacklevel=3,  # the caller's line, behind the check of the arguments
        )
    return result


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
    trace: Trace, params: Any, scales: posteriors.Scales, likelihood: posteriors.Likelihood
) -> posteriors.Draws:
    _, unravel = ravel_pytree(posteriors.random_part(params, scales))
    # Traces are written draw by draw; results are by chain.
    positions = jnp.swapaxes(trace.positions, 0, 1)
    return posteriors.Draws(jax.vmap(jax.vmap(unravel))(positions), params, likelihood)


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
