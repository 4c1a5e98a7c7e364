"""NumPyro's `Predictive`, as its users call it: model, guide, parameters, number of samples.

Each call as it stands traces and compiles the model again, which is what takes the time; under
`jax.jit` (`numpyro_jit`) it is compiled once, and draws its weights on every call.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal

from experiments.latency.networks import SAMPLES, Subject


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
