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
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxeff.bayes.likelihood import Likelihood
from jaxeff.bayes.prior import Prior
from jaxeff.bayes.sampling.kernels import HMC, NUTS, SGHMC, SGLD, Engine, StepSize
from jaxeff.bayes.sampling.mcmc import mcmc
from jaxeff.bayes.sampling.result import MCMCResult


def nuts(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    *,
    step_size: float = 0.1,
    target_acceptance: float = 0.8,
    dense: bool = False,
    pooled: bool = True,
    engine: Engine = "blackjax",
    max_depth: int = 10,
    warmup: int = 1000,
    samples: int = 1000,
    chains: int = 4,
    thin: int = 1,
    likelihood: Likelihood = "categorical",
    prior: Prior = "fan_in",
    shared: tuple[Any, ...] = (),
    init: Any = None,
    jitter: float = 0.1,
    devices: Sequence[Any] | None = None,
    vectorized: bool | None = None,
    monitor: tuple[Any, ...] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> MCMCResult:
    """Sample by the no-U-turn sampler; see `NUTS` for its settings and `mcmc` for the rest."""
    kernel = NUTS(
        step_size=step_size,
        target_acceptance=target_acceptance,
        dense=dense,
        pooled=pooled,
        engine=engine,
        max_depth=max_depth,
    )
    return mcmc(
        key,
        f,
        params,
        data,
        kernel,
        warmup=warmup,
        samples=samples,
        chains=chains,
        thin=thin,
        likelihood=likelihood,
        prior=prior,
        shared=shared,
        init=init,
        jitter=jitter,
        devices=devices,
        vectorized=vectorized,
        monitor=monitor,
        checkpoint=checkpoint,
        resume=resume,
        settings=settings,
        progress=progress,
    )


def hmc(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    *,
    step_size: float = 0.1,
    target_acceptance: float = 0.8,
    dense: bool = False,
    pooled: bool = True,
    engine: Engine = "blackjax",
    steps: int = 16,
    warmup: int = 1000,
    samples: int = 1000,
    chains: int = 4,
    thin: int = 1,
    likelihood: Likelihood = "categorical",
    prior: Prior = "fan_in",
    shared: tuple[Any, ...] = (),
    init: Any = None,
    jitter: float = 0.1,
    devices: Sequence[Any] | None = None,
    vectorized: bool | None = None,
    monitor: tuple[Any, ...] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> MCMCResult:
    """Sample by Hamiltonian Monte Carlo; see `HMC` for its settings and `mcmc` for the rest."""
    kernel = HMC(
        step_size=step_size,
        target_acceptance=target_acceptance,
        dense=dense,
        pooled=pooled,
        engine=engine,
        steps=steps,
    )
    return mcmc(
        key,
        f,
        params,
        data,
        kernel,
        warmup=warmup,
        samples=samples,
        chains=chains,
        thin=thin,
        likelihood=likelihood,
        prior=prior,
        shared=shared,
        init=init,
        jitter=jitter,
        devices=devices,
        vectorized=vectorized,
        monitor=monitor,
        checkpoint=checkpoint,
        resume=resume,
        settings=settings,
        progress=progress,
    )


def sgld(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    *,
    step_size: StepSize,
    batch_size: int,
    temperature: float = 1.0,
    warmup: int = 1000,
    samples: int = 1000,
    chains: int = 4,
    thin: int = 1,
    likelihood: Likelihood = "categorical",
    prior: Prior = "fan_in",
    shared: tuple[Any, ...] = (),
    init: Any = None,
    jitter: float = 0.1,
    devices: Sequence[Any] | None = None,
    vectorized: bool | None = None,
    monitor: tuple[Any, ...] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> MCMCResult:
    """Sample by stochastic gradient Langevin dynamics.

    See `SGLD` for its settings and `mcmc` for the rest.
    """
    kernel = SGLD(
        step_size=step_size,
        batch_size=batch_size,
        temperature=temperature,
    )
    return mcmc(
        key,
        f,
        params,
        data,
        kernel,
        warmup=warmup,
        samples=samples,
        chains=chains,
        thin=thin,
        likelihood=likelihood,
        prior=prior,
        shared=shared,
        init=init,
        jitter=jitter,
        devices=devices,
        vectorized=vectorized,
        monitor=monitor,
        checkpoint=checkpoint,
        resume=resume,
        settings=settings,
        progress=progress,
    )


def sghmc(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    *,
    step_size: StepSize,
    batch_size: int,
    temperature: float = 1.0,
    steps: int = 20,
    friction: float = 1.0,
    warmup: int = 1000,
    samples: int = 1000,
    chains: int = 4,
    thin: int = 1,
    likelihood: Likelihood = "categorical",
    prior: Prior = "fan_in",
    shared: tuple[Any, ...] = (),
    init: Any = None,
    jitter: float = 0.1,
    devices: Sequence[Any] | None = None,
    vectorized: bool | None = None,
    monitor: tuple[Any, ...] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> MCMCResult:
    """Sample by stochastic gradient Hamiltonian Monte Carlo.

    See `SGHMC` for its settings and `mcmc` for the rest.
    """
    kernel = SGHMC(
        step_size=step_size,
        batch_size=batch_size,
        temperature=temperature,
        steps=steps,
        friction=friction,
    )
    return mcmc(
        key,
        f,
        params,
        data,
        kernel,
        warmup=warmup,
        samples=samples,
        chains=chains,
        thin=thin,
        likelihood=likelihood,
        prior=prior,
        shared=shared,
        init=init,
        jitter=jitter,
        devices=devices,
        vectorized=vectorized,
        monitor=monitor,
        checkpoint=checkpoint,
        resume=resume,
        settings=settings,
        progress=progress,
    )
