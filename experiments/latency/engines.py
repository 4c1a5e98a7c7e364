"""The engines that are timed: what each runs a network's methods with, ready to be called.

Every one gets the function that a method is, with its parameters and the batch. XLA runs several
networks (samples, members) as a loop, vmapped, or written out one after the other; which is fastest
depends on network and batch. TVM has default schedules, and tuned ones where there is a folder for
records. ONNX Runtime has graphs of its own, see `experiments.contests`. NumPyro draws its weights
on every call; its `Predictive` as it stands traces and compiles the model again then, which is what
takes the time; under `jax.jit` (`numpyro_jit`) it is compiled once. Pyro's is the thesis' own: 30
calls of PyTorch, one after the other.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxeff_export import Bundle
from jaxeff_export.tuning import tune
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal

from experiments.contests.tvm import host, meter_of
from experiments.contests.xla import compiled
from experiments.latency.networks import SAMPLES, SEVERAL, Subject
from experiments.timing import Meter, metered


@dataclass(frozen=True)
class Setup:
    """How engines are to run."""

    threads: int  # threads of each; the process is confined to as many cores
    database: Path | None = None  # a folder for TVM's tuning records; without one nothing is tuned
    trials: int = 0  # candidates per kernel


@dataclass(frozen=True)
class Contestant:
    """One way of predicting, ready to be timed."""

    method: str  # one of `networks.METHODS`
    engine: str  # what runs it, as rows name it
    meter: Meter  # times it
    # the largest deviation from JAX's float32 result, each output's relative to its own largest
    # magnitude; None where results are random
    error: float | None = None
    form: str = ""  # which of several forms of the same method and engine it is; the fastest counts

    @property
    def name(self) -> str:
        """Unique in a contest."""
        return "/".join(part for part in (self.method, self.engine, self.form) if part)


def deviation(found: Any, expected: Any) -> float:
    """The largest difference of two results, each leaf's relative to its largest magnitude."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(b))) for a, b in pairs
    )


def contestants(
    engine: str, net: Subject, methods: Collection[str], setup: Setup
) -> Iterator[Contestant]:
    """The methods that an engine can run, of those that are asked for."""
    for method in methods:
        yield from ENGINES[engine](net, method, setup)


def bundles(net: Subject, method: str, setup: Setup) -> Mapping[str, Bundle]:
    """A method's bundles, for this processor and as many threads as there are to be."""
    g, params = net.program(method)
    target = host(setup.threads)
    untuned = jaxeff_export.deploy(g, (params, net.x), target=target, check=False)
    if setup.database is None:
        return {"tvm_untuned": untuned}
    # Several networks have the kernels of one, and are much slower to search through.
    if method not in SEVERAL:
        tuned = tune(untuned, setup.database, trials=setup.trials)
    else:
        database = setup.database if setup.database.exists() else None
        tuned = jaxeff_export.deploy(
            g, (params, net.x), target=target, database=database, check=False
        )
    return {"tvm_untuned": untuned, "tvm": tuned}


def make_predictive(net: Subject) -> Predictive:
    """NumPyro's, as its users call it: an `AutoNormal` guide over every parameter, untrained."""

    def site(path: Any, leaf: jax.Array) -> Any:
        normal = dist.Normal(0, 1).expand(leaf.shape).to_event(leaf.ndim)
        return numpyro.sample(jax.tree_util.keystr(path, simple=True, separator="/"), normal)

    def model(x: jax.Array, labels: jax.Array | None = None) -> None:
        params = jax.tree_util.tree_map_with_path(site, net.params)
        logits = numpyro.deterministic("logits", net.f(params, x))
        with numpyro.plate("data", len(x)):
            numpyro.sample("labels", dist.Categorical(logits=logits), obs=labels)

    guide = AutoNormal(model)
    with handlers.trace() as sites, handlers.seed(rng_seed=0):
        guide(net.x, jnp.zeros(net.batch, int))
    params = {name: s["value"] for name, s in sites.items() if s["type"] == "param"}
    return Predictive(model, guide=guide, params=params, num_samples=SAMPLES)


def _xla(net: Subject, method: str, setup: Setup) -> Iterator[Contestant]:
    forms = {"": net.program(method)}
    if method in SEVERAL:
        stacked = net.stacked(method)
        loop = lambda weights, x: jax.lax.map(lambda w: net.f(w, x), weights)  # noqa: E731
        together = jax.vmap(net.f, (0, None))
        forms = {"map": (loop, stacked), "vmap": (together, stacked), "unrolled": forms[""]}
    for form, (g, params) in forms.items():
        yield Contestant(method, "xla", metered(compiled(g, params, net.x)), 0.0, form)


def _tvm(net: Subject, method: str, setup: Setup) -> Iterator[Contestant]:
    for engine, bundle in bundles(net, method, setup).items():
        yield Contestant(method, engine, meter_of(bundle), bundle.check().max_relative_error)


def _onnxruntime(net: Subject, method: str, setup: Setup) -> Iterator[Contestant]:
    if method not in SEVERAL:
        from experiments.contests.onnx_graph import build, started

        g, params = net.program(method)
        graph = build(net.model, params, net.x.shape, method == "moments")
        call = started(graph, net.x, setup.threads)
        expected = jax.tree.leaves(jax.jit(g)(params, net.x))
        outputs = [np.reshape(a, b.shape) for a, b in zip(call(), expected, strict=True)]
        yield Contestant(method, "onnxruntime", metered(call), deviation(outputs, expected))


def _numpyro(net: Subject, method: str, setup: Setup) -> Iterator[Contestant]:
    if method == "svi30":
        predictive, key = make_predictive(net), jax.random.key(0)
        jitted = jax.jit(predictive)
        yield Contestant(method, "numpyro", metered(lambda: predictive(key, net.x)))
        yield Contestant(method, "numpyro_jit", metered(lambda: jitted(key, net.x)))


def _pyro(net: Subject, method: str, setup: Setup) -> Iterator[Contestant]:
    if method == "svi30":
        from experiments.latency.with_pyro import predictive

        yield Contestant(method, "pyro", metered(predictive(net, setup.threads)))


ENGINES: dict[str, Callable[[Subject, str, Setup], Iterable[Contestant]]] = {
    "xla": _xla, "tvm": _tvm, "numpyro": _numpyro, "onnxruntime": _onnxruntime, "pyro": _pyro,
}  # fmt: skip
