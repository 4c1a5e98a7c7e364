"""Where the time of a compiled moment pass goes, operator by operator."""

from collections import defaultdict
from collections.abc import Collection
from statistics import median
from typing import Any

from experiments.latency.engines import Setup, bundles
from experiments.latency.networks import Subject

MILLISECONDS = 20  # of calls of the network, in a round
KINDS = {
    "conv": "convolutions",
    "dense": "dense layers",
    "matmul": "dense layers",
    "pool": "max pool",
    "maximum": "max pool",
}
"""What a compiled operator counts as, by the first of these in its name; else `ReLU`, which is what
else there is in both networks, with the squares of inputs."""
REST, OVERHEAD = "ReLU", "overhead"
ORDER = ("convolutions", "dense layers", "max pool", REST, OVERHEAD)


def measure(
    net: Subject, methods: Collection[str], setup: Setup, rounds: int
) -> list[dict[str, Any]]:
    """Rows per operator: `operator`, `kind`, `calls`, `ms` (medians over rounds), `share`.

    The last row of each method and engine is the `overhead`: what the whole network takes, timed in
    the same rounds without a profiler, less the sum of its operators. It is negative where the
    profiler's own cost exceeds it.
    """
    rows = []
    for method in methods:
        for engine, bundle in bundles(net, method, setup).items():
            place = net.place(method, engine, setup.threads)
            rows += [{**place, **row} for row in _operators(bundle, rounds)]
    return rows


def kind_of(operator: str) -> str:
    """What an operator counts as."""
    return next((kind for part, kind in KINDS.items() if part in operator), REST)


def _operators(bundle: Any, rounds: int) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = defaultdict(list)
    calls: dict[str, float] = {}
    wholes = []
    number = max(1, int(MILLISECONDS / bundle.benchmark("local", 1, 3).median_ms))
    for _ in range(rounds):
        wholes.append(bundle.benchmark("local", number, 1).median_ms)
        for operator in bundle.profile("local", number):
            times[operator.name].append(operator.ms)
            calls[operator.name] = operator.calls
    duration = median(wholes)
    rows: list[dict[str, Any]] = [
        {"operator": n, "kind": kind_of(n), "calls": calls[n], "ms": median(values)}
        for n, values in times.items()
    ]
    rows.sort(key=lambda row: -row["ms"])
    rest = duration - sum(row["ms"] for row in rows)
    rows.append({"operator": OVERHEAD, "kind": OVERHEAD, "calls": 1, "ms": rest})
    return [{**row, "share": row["ms"] / duration} for row in rows]
