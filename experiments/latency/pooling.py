"""Max pooling in the moment pass of LeNet-5: as a reduction of any window, and by whole rows.

The generic form folds Clark's maximum over the window, element by element, as a reduction. The
other is what `jaxeff.moments` exports: a tree, pairs of rows and then pairs of columns, each a loop
of several results over contiguous memory. Tuning leaves pooling out, as the source had to.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
from jax import lax
from jax.extend.core.primitives import reduce_window_max_p
from jaxeff_export import Bundle
from jaxeff_export.tuning import tune

from experiments.contests.tvm import host, meter_of, together
from experiments.latency.engines import Setup
from experiments.latency.networks import Subject
from experiments.timing import Meter, measure_rounds, ratio, summary
from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.moment_propagation.rules import maximum, window, window_max
from jaxeff.moment_propagation.values import Activated

GENERIC, BY_ROWS = "generic", "by rows"
SHAPES = ((28, 28, 6), (10, 10, 16))
"""What LeNet-5 pools."""
Pool = Callable[..., Gaussian]


def measure(net: Subject, setup: Setup, rounds: int) -> list[dict[str, Any]]:
    """Rows per form, part of the network and engine: `implementation`, `part`, `over_generic`."""
    deploy = functools.partial(jaxeff_export.deploy, target=host(setup.threads))
    batch = len(net.x)
    meters: dict[tuple[str, str, str], Meter] = {}
    for form, pool in ((GENERIC, generic), (BY_ROWS, by_rows)):
        alone = [_pools(pool, deploy, (batch, *shape)) for shape in SHAPES]
        meters[form, "max pools", "tvm_untuned"] = together([meter_of(b) for b in alone])
        rules = {reduce_window_max_p: functools.partial(_rule, pool)}
        network = deploy(moments(net.f, rules=rules), (net.belief, net.x))
        meters[form, "network", "tvm_untuned"] = meter_of(network)
        if setup.database is not None:
            tuned = tune(network, setup.database, trials=setup.trials)
            meters[form, "network", "tvm"] = meter_of(tuned)
    times = measure_rounds(meters, rounds)
    return [
        {
            **net.place("moments", engine, setup.threads), "implementation": form, "part": part,
            "over_generic": ratio(values, times[GENERIC, part, engine]), **summary(values),
        }
        for (form, part, engine), values in times.items()
    ]  # fmt: skip


def generic(x: Gaussian, size: tuple[int, ...], strides: tuple[int, ...]) -> Gaussian:
    """Clark's maximum folded over every window, without padding."""

    def larger(a: Any, b: Any) -> Any:
        result = maximum(Gaussian(*a), Gaussian(*b))
        return result.mean, result.var

    lowest = jnp.asarray(jnp.finfo(x.dtype).min / 4, x.dtype)
    start = (lowest, jnp.zeros((), x.dtype))
    return Gaussian(*lax.reduce_window((x.mean, x.var), start, larger, size, strides, "VALID"))


def by_rows(x: Gaussian, size: tuple[int, ...], strides: tuple[int, ...]) -> Gaussian:
    """The tree of maxima that moments exports, without padding."""
    return window_max(x, window(size, strides))


def _rule(pool: Pool, node: Any, x: Gaussian) -> list[Gaussian]:
    """A rule of moments; like the built-in one it pools before a rectifier that precedes."""
    place = node.params["window_dimensions"], node.params["window_strides"]
    if isinstance(x, Activated):
        return [x.apply(pool(x.before, *place))]
    return [pool(x, *place)]


def _pools(pool: Pool, deploy: Callable[..., Bundle], shape: tuple[int, ...]) -> Bundle:
    """A bundle of one pooling layer, 2 by 2."""
    mean = jax.random.normal(jax.random.key(0), shape)
    halved = (1, 2, 2, 1)
    return deploy(lambda _, x: pool(x, halved, halved), ((), Gaussian(mean, 0.1 + mean**2)))
