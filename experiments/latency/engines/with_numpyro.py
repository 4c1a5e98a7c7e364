"""NumPyro's `Predictive`, as its users call it: model, guide, parameters, number of samples.

Each call as it stands traces and compiles the model again, which is what takes the time; under
`jax.jit` (`numpyro_jit`) it is compiled once, and draws its weights on every call.
"""

from collections.abc import Collection, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal

from experiments.latency.engines import Contestant, Setup
from experiments.latency.networks import SAMPLES, Subject
from experiments.timing import metered


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """`svi30` only."""
    del setup
    if "svi30" not in methods:
        return
    predictive = make_predictive(net)
    jitted = jax.jit(predictive)
    key = jax.random.key(0)
    yield Contestant("svi30", "numpyro", metered(lambda: predictive(key, net.x)))
    yield Contestant("svi30", "numpyro_jit", metered(lambda: jitted(key, net.x)))


def make_predictive(net: Subject) -> Predictive:
    """Predicts with an `AutoNormal` guide over every parameter; its values are the initial ones."""

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
