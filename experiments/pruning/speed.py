"""What a pruned ResNet-18 saves on the clock, and how long planning takes.

    python -m experiments.pruning.speed

ResNet-18 with the 3x3 stem (32x32 images) loses channels, the same share of every group, until a
given share of its multiply-accumulates is left. Both networks are compiled by `jaxeff_export` for
this machine, one thread, batch 1, and timed in turn: a figure is the median over rounds of the
pruned network's time over the whole one's in the same round. Kept channels are a multiple of
`round_to`, so that vectors stay full. The whole network's time, and its multiply-accumulates by
that time, stand beside it: a saving over a slow network is none.

Planning is timed on ResNet-50 with 224x224 images, from its function to the smaller one's shapes.

Multiply-accumulates predict time poorly in general (Klein's thesis, section 3.6); its own
pruned networks follow them (table 4.1: .297 of the time at .299).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jaxeff_export
import numpy as np
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.contests.tvm import host, meter_of
from experiments.harness import Report, Row, Run
from experiments.pruning.networks import ResNet50
from experiments.timing import measure_rounds, ratio, summary
from jaxeff.nn import ResNet18
from jaxeff.pruning import Plan, Prune, channels, prune_plan, pruned
from jaxeff.pruning.scores import l1


@dataclass(frozen=True)
class Settings:
    """What is compiled and how often it is timed."""

    macs: float = 0.3  # the share of multiply-accumulates that may be left
    round_to: tuple[h.Count, ...] = (8, 16)  # multiples that are kept
    rounds: h.Count = 15  # how often each network is timed
    image: Annotated[int, h.Least(8)] = 32  # pixels along a side


def planning() -> list[Row]:
    """Seconds from a function to the shapes of a smaller one."""
    module = ResNet50(nnx.Rngs(0))
    module.eval()
    f, params = jaxeff.functional(module)
    params = jax.tree.map(np.asarray, params)
    x = np.zeros((1, 224, 224, 3), np.float32)
    start, processor = time.perf_counter(), time.process_time()
    plan = prune_plan(f, params, x, {"*:linear": Prune(0.5), "head": None})
    planned = time.perf_counter()
    small = plan.shrink(params)
    out = jax.eval_shape(pruned(f, plan), small, x)
    end = time.perf_counter()
    row = {
        "network": "ResNet-50", "groups": len(plan.channels), "planning_s": planned - start,
        "shrinking_s": end - planned, "processor_s": time.process_time() - processor,
        "macs_left": _macs(pruned(f, plan), small, x) / _macs(f, params, x),
        "params_left": _size(small) / _size(params), "outputs": list(out.shape),
    }  # fmt: skip
    return [row]


def timed(run: Run[Settings]) -> list[Row]:
    """Whole and pruned in turn, by TVM's own clock."""
    settings = run.settings
    module = ResNet18(stem="cifar", rngs=nnx.Rngs(run.seed))
    module.eval()
    f, params = jaxeff.functional(module)
    rng = np.random.default_rng(run.seed)
    x = rng.standard_normal((1, settings.image, settings.image, 3), np.float32)
    subjects = {0: (f, params)}
    for multiple in settings.round_to:
        plan = to_budget(f, params, x, settings.macs, multiple)
        subjects[multiple] = pruned(f, plan), plan.shrink(params)
    whole = _macs(f, params, x)
    bundles = {}
    for name, (g, p) in subjects.items():
        run.say(f"compiling {name or 'the whole network'}")
        bundles[name] = jaxeff_export.deploy(g, (p, x), target=host())
        bundles[name].check()
    meters = {str(name): meter_of(bundle) for name, bundle in bundles.items()}
    times = measure_rounds(meters, settings.rounds, 0.5)
    rows = []
    for name, (g, p) in subjects.items():
        found, macs = summary(times[str(name)]), _macs(g, p, x)
        rows.append(
            {
                "network": "ResNet-18" if not name else "pruned", "round_to": name,
                "macs_left": macs / whole, "params_left": _size(p) / _size(params),
                "time_left": ratio(times[str(name)], times["0"]),
                "gmacs_per_s": macs / found["ms"] / 1e6, **found,
            }
        )  # fmt: skip
    return rows


def to_budget(f: Callable[..., Any], params: Any, x: Any, macs: float, multiple: int) -> Plan:
    """The least that has to go: a share of every group, then one multiple back where it fits."""
    found = channels(f, params, x)
    scores = l1(params, found)
    order = {group.name: np.argsort(-scores[group.name], kind="stable") for group in found.free}
    budget = macs * _macs(f, params, x)

    def plan(kept: Mapping[str, int]) -> Plan:
        return Plan(
            {n: np.isin(np.arange(len(order[n])), order[n][:k]) for n, k in kept.items()}, found
        )

    def fits(kept: Mapping[str, int]) -> bool:
        chosen = plan(kept)
        return _macs(pruned(f, chosen), chosen.shrink(params), x) <= budget

    def rounded(share: float) -> dict[str, int]:
        return {n: max(1, round(share * len(o) / multiple)) * multiple for n, o in order.items()}

    kept = next(k for k in map(rounded, np.linspace(1, 0, 101)) if fits(k))
    for name in kept:
        more = kept | {name: kept[name] + multiple}
        if more[name] <= len(order[name]) and fits(more):
            kept = more
    return plan(kept)


def _macs(f: Any, params: Any, x: Any) -> int:
    return jaxeff.cost(f, params, x).macs


def _size(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def narrow(report: Report) -> list[Row]:
    """Selects the pruned networks."""
    return [row for row in report.rows if row.get("round_to")]


def fastest(report: Report) -> list[Row]:
    """Selects the pruned network that takes the least time."""
    return [min(narrow(report), key=lambda row: row["time_left"])]


CLAIMS = (
    h.Claim(
        "planning and shrinking ResNet-50 (s)",
        lambda row: row["planning_s"] + row["shrinking_s"], h.below(10), 10.0,
        h.having("planning_s"),
    ),
    h.Claim(
        "time left at {macs_left:.3f} of the multiply-accumulates", "time_left", h.at_most(0.36),
        0.36, fastest, "default",
    ),
)  # fmt: skip
LEFT = h.Bars(
    "multiples of {round_to}", {"macs_left": "MACs", "time_left": "time"}, narrow,
    axes={"ylabel": "left of ResNet-18"},
)  # fmt: skip
TABLES = (
    h.Listing(
        "time, one thread",
        (
            "network", "round_to", "macs_left", "params_left", "time_left", "ms", "spread",
            "gmacs_per_s",
        ),
        h.having("ms"),
    ),
    h.Listing(
        "planning",
        ("network", "groups", "planning_s", "shrinking_s", "processor_s", "macs_left"),
        h.having("planning_s"),
    ),
)  # fmt: skip


STUDY = h.Study(
    "pruning.speed",
    __doc__,
    {
        "fast": Settings(round_to=(8,), rounds=2, image=8),
        "default": Settings(),
        "full": Settings(rounds=51),
    },
    (
        h.Part[Settings, str](lambda run: ("planning",), lambda run, _: planning()),
        h.Part[Settings, str](lambda run: ("time",), lambda run, _: timed(run)),
    ),
    CLAIMS, (h.Plot("time", LEFT),), TABLES,
    differences=("The source times a Cortex-A72; this is the host, with default schedules.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
