"""The samplers by name: `mcmc` with the kernel's settings beside its own.

```python
import jax

from jaxeff.bayes import nuts
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
result = nuts(
    jax.random.key(0), f, params, (x[:50], y[:50]), chains=2, warmup=20, samples=20, max_depth=3
)
```

All of them take a model and data alike. Those of mini-batches have a step size that you choose:

```python
import jax.numpy as jnp

from jaxeff.bayes import hmc, mclmc, sghmc, sgld

def line(params, x):                                       # mean and log-variance
    return jnp.stack([params["slope"] * x + params["offset"], jnp.full_like(x, -2.0)], -1)

key, x = jax.random.key(0), jnp.linspace(-1, 1, 40)
params, y = {"slope": jnp.ones(()), "offset": jnp.zeros(())}, 2 * x
model = key, line, params, (x, y + 0.3 * jax.random.normal(key, (40,)))
run = {"likelihood": "gaussian", "chains": 2, "warmup": 500, "samples": 500}
found = [
    hmc(*model, steps=5, **run), mclmc(*model, steps=5, **run),
    sgld(*model, step_size=2e-3, batch_size=20, **run),
    sghmc(*model, step_size=1e-2, batch_size=20, steps=20, friction=10.0, **run),
]
for result in found:
    assert abs(result.posterior.random["slope"].mean() - 1.89) < 0.05
```
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Required, TypedDict, TypeVar, Unpack, get_type_hints

import jax

from jaxeff.bayes.posteriors import Likelihood, Prior
from jaxeff.bayes.sampling._kernels import HMC, MCLMC, NUTS, SGHMC, SGLD, Engine, Kernel, StepSize
from jaxeff.bayes.sampling._mcmc import mcmc
from jaxeff.bayes.sampling._result import MCMCResult
from jaxeff.core import (
    boolean,
    non_negative,
    one_of,
    parameter_tree,
    path_like,
    pure_function,
    single_key,
    string_mapping,
    supervised_data,
    validate,
)
from jaxeff.store import Resume

F = TypeVar("F", bound=Callable[..., Any])


class ChainOptions(TypedDict, total=False):
    """The options of `mcmc`, which every sampler takes; `mcmc` has their meaning and defaults."""

    warmup: int
    samples: int
    chains: int
    thin: int
    likelihood: Likelihood
    prior: Prior
    shared: tuple[Any, ...]
    init: Any
    jitter: float
    devices: Sequence[Any] | None
    vectorized: bool | None
    monitor: tuple[Any, ...] | None
    checkpoint: str | os.PathLike[str] | None
    resume: Resume
    settings: Mapping[str, Any] | None
    progress: bool | None


class HamiltonianOptions(ChainOptions, total=False):
    """The options of `mcmc` and the settings that `NUTS` and `HMC` share."""

    step_size: float
    target_acceptance: float
    dense: bool
    pooled: bool
    engine: Engine


class NUTSOptions(HamiltonianOptions, total=False):
    """The options of `nuts`."""

    max_depth: int


class HMCOptions(HamiltonianOptions, total=False):
    """The options of `hmc`."""

    steps: int


class MCLMCOptions(HMCOptions, total=False):
    """The options of `mclmc`."""


class SGLDOptions(ChainOptions, total=False):
    """The options of `sgld`."""

    step_size: Required[StepSize]
    batch_size: Required[int]
    temperature: StepSize


class SGHMCOptions(SGLDOptions, total=False):
    """The options of `sghmc`."""

    steps: int
    friction: float


def _sampler(kernel: type[Kernel]) -> Callable[[F], F]:
    """Gives a sampler the signature of its kernel's settings and of `mcmc`, and their checks."""

    def signed(run: F) -> F:
        # `help` and `validate` read the signature, so every option is listed with its default.
        run.__signature__ = _signature(kernel)  # type: ignore[attr-defined]
        return validate(
            key=single_key,
            f=pure_function,
            params=parameter_tree,
            data=supervised_data,
            jitter=non_negative,
            checkpoint=path_like,
            settings=string_mapping,
            progress=boolean,
            resume=one_of(True, False, "force"),
        )(run)

    return signed


def _signature(kernel: type[Kernel]) -> inspect.Signature:
    """Builds the signature of `mcmc` with the kernel's settings in the place of the kernel."""
    hints = get_type_hints(kernel)
    settings = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kernel)
    ]
    signature = inspect.signature(mcmc)
    own = [p for name, p in signature.parameters.items() if name != "kernel"]
    first = [p for p in own if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return signature.replace(parameters=[*first, *settings, *own[len(first) :]])


@_sampler(NUTS)
def nuts(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    **options: Unpack[NUTSOptions],
) -> MCMCResult:
    """Samples by the no-U-turn sampler.

    Args:
        key: Random key, as for `mcmc`.
        f: Function, as for `mcmc`.
        params: Parameters, as for `mcmc`.
        data: Data, as for `mcmc`.
        **options: `step_size`, `target_acceptance`, `dense`, `pooled`, `engine` and `max_depth`,
            the settings of `NUTS`; all others are those of `mcmc`.

    Raises:
        TypeError: An unknown option; the message names the nearest one.
    """
    return _sample(NUTS, (key, f, params, data), options)


@_sampler(HMC)
def hmc(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    **options: Unpack[HMCOptions],
) -> MCMCResult:
    """Samples by Hamiltonian Monte Carlo.

    Args:
        key: Random key, as for `mcmc`.
        f: Function, as for `mcmc`.
        params: Parameters, as for `mcmc`.
        data: Data, as for `mcmc`.
        **options: `step_size`, `target_acceptance`, `dense`, `pooled`, `engine` and `steps`, the
            settings of `HMC`; all others are those of `mcmc`.

    Raises:
        TypeError: An unknown option; the message names the nearest one.
    """
    return _sample(HMC, (key, f, params, data), options)


@_sampler(MCLMC)
def mclmc(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    **options: Unpack[MCLMCOptions],
) -> MCMCResult:
    """Samples by microcanonical Langevin Monte Carlo, adjusted.

    Args:
        key: Random key, as for `mcmc`.
        f: Function, as for `mcmc`.
        params: Parameters, as for `mcmc`.
        data: Data, as for `mcmc`.
        **options: `step_size`, `target_acceptance`, `pooled` and `steps`, the settings of `MCLMC`;
            all others are those of `mcmc`.

    Raises:
        TypeError: An unknown option; the message names the nearest one.
        ValueError: There is a single random number, or another engine or a dense mass matrix.
    """
    return _sample(MCLMC, (key, f, params, data), options)


@_sampler(SGLD)
def sgld(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    **options: Unpack[SGLDOptions],
) -> MCMCResult:
    """Samples by stochastic gradient Langevin dynamics.

    Args:
        key: Random key, as for `mcmc`.
        f: Function, as for `mcmc`.
        params: Parameters, as for `mcmc`.
        data: Data, as for `mcmc`.
        **options: `step_size` and `batch_size`, which have no default, and `temperature`, the
            settings of `SGLD`; all others are those of `mcmc`.

    Raises:
        TypeError: An unknown option, or one that is missing; the message names the nearest one.
    """
    return _sample(SGLD, (key, f, params, data), options)


@_sampler(SGHMC)
def sghmc(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    **options: Unpack[SGHMCOptions],
) -> MCMCResult:
    """Samples by stochastic gradient Hamiltonian Monte Carlo.

    Args:
        key: Random key, as for `mcmc`.
        f: Function, as for `mcmc`.
        params: Parameters, as for `mcmc`.
        data: Data, as for `mcmc`.
        **options: `step_size` and `batch_size`, which have no default, `temperature`, `steps` and
            `friction`, the settings of `SGHMC`; all others are those of `mcmc`.

    Raises:
        TypeError: An unknown option, or one that is missing; the message names the nearest one.
    """
    return _sample(SGHMC, (key, f, params, data), options)


def _sample(
    kernel: type[Kernel], args: tuple[Any, Any, Any, Any], options: Mapping[str, Any]
) -> MCMCResult:
    """Runs `mcmc`: settings of the kernel make the kernel, all other options pass through."""
    name = kernel.__name__.lower()
    parameters = _signature(kernel).parameters.values()
    by_name = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    known = [p.name for p in by_name]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(known)}."
            raise TypeError(f"{name}() got an unexpected keyword argument {option!r}{hint}")
    missing = [p.name for p in by_name if p.default is p.empty and p.name not in options]
    if missing:
        raise TypeError(f"{name}() needs {' and '.join(missing)}.")
    own = {field.name for field in fields(kernel)}
    settings = {option: value for option, value in options.items() if option in own}
    rest = {option: value for option, value in options.items() if option not in own}
    return mcmc(*args, kernel(**settings), **rest)
