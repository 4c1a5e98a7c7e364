"""What plans of many shapes save on the clock in XLA and TVM, beside multiply-accumulates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.classifiers import Trained
from experiments.harness import Row, Run
from experiments.pruning.recipe import Settings
from experiments.timing import measure_rounds, metered, ratio
from jaxeff.compression import fold_batch_norm
from jaxeff.pruning import Plan, channels, pruned


def timed(run: Run[Settings], model: Trained) -> list[Row]:
    """Random plans, timed in turn with the whole network, one thread."""
    settings, state = run.settings, model.state
    x = model.images.test[0][: settings.batch]

    def f(params: Any, x: Any) -> Any:
        return model.network.evaluate(params, state, x)[0]

    g, folded = fold_batch_norm(f, model.params, x[:1])
    subjects = {"whole": (g, folded)}
    rng = np.random.default_rng(run.seed)
    found = channels(g, folded, x)
    for number in range(settings.plans):
        plan = _random(rng, found)
        subjects[f"plan {number}"] = pruned(g, plan), plan.shrink(folded)
    macs = {name: jaxeff.cost(h, p, x).macs for name, (h, p) in subjects.items()}
    meters = {("xla", name): metered(_jitted(h, p, x)) for name, (h, p) in subjects.items()}
    meters |= {("tvm", name): _library(h, p, x) for name, (h, p) in subjects.items()}
    flat = {f"{engine} {name}": meter for (engine, name), meter in meters.items()}
    times = measure_rounds(flat, settings.rounds, 0.02)
    return [
        {
            "subject": model.subject.name, "plan": name, "batch": settings.batch,
            "macs_left": macs[name] / macs["whole"],
            **{
                f"{engine}_time_left": ratio(times[f"{engine} {name}"], times[f"{engine} whole"])
                for engine in ("xla", "tvm")
            },
            **{
                f"{engine}_ms": float(np.median(times[f"{engine} {name}"]))
                for engine in ("xla", "tvm")
            },
        }
        for name in subjects
    ]  # fmt: skip


def _random(rng: np.random.Generator, found: Any) -> Plan:
    """A share of its own for every group, any channels of it."""
    keep = {}
    for group in found.free:
        count = max(1, round(group.size * rng.uniform(0.15, 1.0)))
        keep[group.name] = np.isin(np.arange(group.size), rng.permutation(group.size)[:count])
    return Plan(keep, found)


def _jitted(f: Any, params: Any, x: Any) -> Callable[[], Any]:
    compiled = jax.jit(f).lower(params, x).compile()
    return lambda: compiled(params, x)


def _library(f: Any, params: Any, x: jnp.ndarray) -> Callable[[int], float]:
    import jaxeff_export

    target = {**jaxeff_export.resolve_target("host"), "num-cores": 1}
    bundle = jaxeff_export.deploy(f, (params, x), target=target)
    return lambda repeats: bundle.benchmark("local", number=repeats, repeat=1).median_ms / 1e3
