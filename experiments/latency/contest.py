"""One network, one batch, one number of threads: everything timed in the same rounds."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from experiments.latency.engines import Contestant, Setup, contestants
from experiments.latency.networks import METHODS, Subject
from experiments.timing import measure_rounds, ratio, summary
from jaxeff.program import cost

Place = tuple[str, str]
"""Method and engine."""
OURS = ("tvm", "tvm_untuned")
"""The engines that run our bundles, the best first."""


def hold(
    net: Subject, names: Collection[str], methods: Collection[str], setup: Setup, rounds: int
) -> list[dict[str, Any]]:
    """Times every method on every engine.

    Returns:
        One row per method and engine: `ms` and `spread` over the rounds, `error` (see
        `Contestant`), `macs` (multiply-accumulates of a prediction), and medians of the quotients
        of the same rounds:

        - `over_xla`: over the same method on XLA;
        - `over_deterministic`: over the deterministic net on the same engine;
        - `over_moments`: over our compiled moment pass;
        - `over_tuned`: of the untuned TVM, over the tuned.
    """
    entries = [entry for name in names for entry in contestants(name, net, methods, setup)]
    measured = measure_rounds({entry.name: entry.meter for entry in entries}, rounds)
    places = settle(entries, measured)
    times = {place: measured[entry.name] for place, entry in places.items()}
    macs = {method: cost(*net.program(method), net.x).macs for method in methods}
    return [
        {
            **net.place(place[0], place[1], setup.threads), **summary(times[place]),
            **_quotients(times, place), "macs": macs[place[0]], "error": entry.error,
            **({"form": entry.form} if entry.form else {}),
        }
        for place, entry in sorted(places.items(), key=lambda item: METHODS.index(item[0][0]))
    ]  # fmt: skip


def settle(
    entries: Sequence[Contestant], times: Mapping[str, Sequence[float]]
) -> dict[Place, Contestant]:
    """Who is named what: the fastest form has the engine's name, others theirs beside it."""
    places: dict[Place, Contestant] = {}
    for entry in sorted(entries, key=lambda entry: summary(times[entry.name])["ms"]):
        place = (entry.method, entry.engine)
        if place in places:
            place = (entry.method, f"{entry.engine}_{entry.form}")
        places[place] = entry
    return places


def _quotients(times: Mapping[Place, Sequence[float]], place: Place) -> dict[str, float]:
    method, engine = place
    moments = next((("moments", e) for e in OURS if ("moments", e) in times), ("", ""))
    bases = {
        "over_xla": (method, "xla"),
        "over_deterministic": ("deterministic", engine),
        "over_moments": moments,
        "over_tuned": (method, "tvm" if engine == "tvm_untuned" else ""),
    }
    return {name: ratio(times[place], times[base]) for name, base in bases.items() if base in times}
