"""What plans of many shapes save on the clock in XLA and TVM, beside multiply-accumulates."""

from typing import Any

import jaxeff_export
import numpy as np

import jaxeff
from experiments.classifiers import Trained
from experiments.contests.tvm import host, meter_of
from experiments.contests.xla import compiled
from experiments.harness import Row, Run
from experiments.pruning.recipe import Settings
from experiments.timing import measure_rounds, metered, ratio
from jaxeff.compression import fold_batch_norm
from jaxeff.pruning import Plan, channels, pruned

ENGINES = ("xla", "tvm")


def timed(run: Run[Settings], model: Trained) -> list[Row]:
    """Random plans, timed in turn with the whole network, one thread."""
    settings, state = run.settings, model.state
    x = model.images.test[0][: settings.batch]

    def f(params: Any, x: Any) -> Any:
        return model.network.evaluate(params, state, x)[0]

    g, folded, _ = fold_batch_norm(f, model.params, x[:1])
    subjects = {"whole": (g, folded)}
    rng = np.random.default_rng(run.seed)
    groups = channels(g, folded, x)
    for number in range(settings.plans):
        plan = _random(rng, groups)
        subjects[f"plan {number}"] = pruned(g, plan), plan.shrink(folded)
    macs = {name: jaxeff.cost(h, p, x).macs for name, (h, p) in subjects.items()}
    meters = {f"xla {name}": metered(compiled(h, p, x)) for name, (h, p) in subjects.items()}
    for name, (h, p) in subjects.items():
        meters[f"tvm {name}"] = meter_of(jaxeff_export.deploy(h, (p, x), target=host()))
    times = measure_rounds(meters, settings.rounds, 0.02)
    return [
        {
            "subject": model.subject.name, "plan": name, "batch": settings.batch,
            "macs_left": macs[name] / macs["whole"],
            **{
                f"{e}_time_left": ratio(times[f"{e} {name}"], times[f"{e} whole"]) for e in ENGINES
            },
            **{f"{e}_ms": float(np.median(times[f"{e} {name}"])) for e in ENGINES},
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
