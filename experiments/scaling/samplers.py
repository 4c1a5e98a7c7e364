"""The two contenders, each a whole run in a process of its own: `run_alone`.

Both infer the noisy sine by a 2x50 MLP; effective samples are counted of its predictions.

NumPyro's is what its documentation has a user write: a model of sample statements, `NUTS` and
`MCMC` with one chain. Ours has its chains on both cores and one warm-up for all of them.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.infer import MCMC, NUTS

from jaxeff.bayes import mixing, nuts, predict, prior_scales
from jaxeff.data import REGIMES, noisy_sine, span

Record = dict[str, Any]
INPUTS = 100
"""Inputs of the predictions, over the data, the gaps, and one unit beyond."""


def make_params(hidden: int) -> dict[str, Any]:
    """Shapes of the network: two hidden layers; outputs are mean and log-variance."""
    widths = [1, hidden, hidden, 2]
    return {
        f"fc{i}": {"kernel": jnp.zeros((widths[i - 1], widths[i])), "bias": jnp.zeros(widths[i])}
        for i in (1, 2, 3)
    }


def network(params: dict[str, Any], x: Float[Array, "batch 1"]) -> Float[Array, "batch 2"]:
    """The network, with tanh."""
    for name in ("fc1", "fc2"):
        x = jnp.tanh(x @ params[name]["kernel"] + params[name]["bias"])
    return x @ params["fc3"]["kernel"] + params["fc3"]["bias"]


def data() -> tuple[Float[Array, "n 1"], Float[Array, " n"]]:
    """The training set, always the same."""
    return noisy_sine(jax.random.key(0))


def inputs() -> Float[Array, "inputs 1"]:
    """Where predictions are held to R-hat and counted."""
    return jnp.linspace(*span(REGIMES, margin=1.0), INPUTS)[:, None]


def summarize(means: Float[np.ndarray, "chains draws inputs"]) -> dict[str, float]:
    """Effective sample sizes and R-hat of the predictive mean over the inputs."""
    found = mixing(means)
    ess = {"min_ess": found.min_ess, "median_ess": float(np.median(found.ess))}
    return {**ess, "max_rhat": found.max_rhat}


class CompileClock:
    """Adds up the seconds that XLA compiles."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.seconds += duration_secs


def run_numpyro(seed: int, hidden: int, warmup: int, samples: int, chains: int) -> Record:
    """One chain by NumPyro as it comes.

    Args:
        seed: Of the run.
        hidden: The network's width.
        warmup: Iterations of warm-up.
        samples: Draws of each chain.
        chains: How many; NumPyro runs several one after the other.

    Returns:
        Seconds, gradients, effective sample sizes and R-hat.
    """
    params = make_params(hidden)
    scales = prior_scales("fan_in", params)

    def weights(value: Any) -> dict[str, Any]:
        """Values of all parameters, by their names."""
        return {
            layer: {name: value(f"{layer}/{name}", leaf) for name, leaf in leaves.items()}
            for layer, leaves in params.items()
        }

    def prior(name: str, leaf: Any) -> Any:
        normal = dist.Normal(0.0, scales[name]).expand(leaf.shape).to_event(leaf.ndim)
        return numpyro.sample(name, normal)

    def model(x: Any, y: Any) -> None:
        outputs = network(weights(prior), x)
        likelihood = dist.Normal(outputs[:, 0], jnp.exp(outputs[:, 1] / 2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", likelihood, obs=y)

    x, y = data()
    clock, start = CompileClock(), time.perf_counter()
    run = MCMC(
        NUTS(model), num_warmup=warmup, num_samples=samples, num_chains=chains, progress_bar=False
    )
    fields = ("num_steps", "diverging")
    run.warmup(jax.random.key(seed), x, y, extra_fields=fields, collect_warmup=True)
    warm_steps = int(run.get_extra_fields()["num_steps"].sum())  # waits for them
    compiled, now = clock.seconds, time.perf_counter()
    warm, start = now - start, now
    run.run(jax.random.key(seed + 1), x, y, extra_fields=fields)
    extra = jax.block_until_ready(run.get_extra_fields())
    # A user compiles once, for both phases.
    sampling = time.perf_counter() - start - (clock.seconds - compiled)

    def predict_means(draw: dict[str, Any]) -> Any:
        return network(weights(lambda name, _: draw[name]), inputs())[:, 0]

    means = jax.lax.map(predict_means, run.get_samples())
    return {
        "compile_s": compiled, "warmup_s": warm - compiled, "sampling_s": sampling,
        "warmup_gradients": warm_steps, "sampling_gradients": int(extra["num_steps"].sum()),
        "divergences": int(extra["diverging"].sum()),
        **summarize(np.reshape(means, (chains, samples, -1))),
    }  # fmt: skip


def run_jaxeff(seed: int, hidden: int, warmup: int, samples: int, chains: int) -> Record:
    """Several chains by `jaxeff.bayes.nuts`; arguments and result as of `run_numpyro`."""
    params = make_params(hidden)
    clock, start = CompileClock(), time.perf_counter()
    result = nuts(
        jax.random.key(seed), network, params, data(), likelihood="gaussian",
        warmup=warmup, samples=samples, chains=chains, monitor=(), progress=False,
    )  # fmt: skip
    total, compiled = time.perf_counter() - start, clock.seconds
    outputs = predict(jax.random.key(0), network, result.posterior, inputs())
    means = np.reshape(outputs[..., 0], (chains, samples, -1))
    return {
        "compile_s": compiled, "warmup_s": total - compiled - result.seconds[1],
        "sampling_s": result.seconds[1],
        "warmup_gradients": int(result.warmup_stats["steps"].sum()),
        "sampling_gradients": int(result.stats["steps"].sum()),
        "divergences": int(result.divergences.sum()),
        **summarize(means),
    }  # fmt: skip


RUNS = {"numpyro": run_numpyro, "jaxeff": run_jaxeff}
CORES = 2


def run_alone(contender: str, settings: Record) -> Record:
    """A run in a process of its own, which alone can set how many devices the cores are."""
    devices = CORES if contender == "jaxeff" else 1
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    arguments = [sys.executable, "-m", __name__, contender, json.dumps(settings)]
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        arguments, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(RUNS[sys.argv[1]](**json.loads(sys.argv[2]))))
