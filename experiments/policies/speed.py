"""Policies per second: one program for all of them, against a jitted function called for each."""

from typing import Any

import jax
import numpy as np

import jaxeff
from experiments import timing
from experiments.harness import Row
from experiments.transforms import cost
from jaxeff.compression import bit_policy, each_policy, quantized

WIDTHS = range(1, 9)


def measure(name: str, batch: int, policies: int, rounds: int, at_once: tuple[int, ...]) -> Row:
    """Times both in interleaved rounds, and counts what other bits make JAX trace."""
    net = cost.subject(name, batch)
    sites = tuple(s.site for s in jaxeff.trace(net.f, net.params, net.x).sites if s.weights)
    sites = tuple(s for s in sites if not s.startswith("bn"))
    traced = []

    def f(params: Any, x: Any) -> Any:
        traced.append(1)
        return net.f(params, x)

    @jax.jit
    def one(weights: Any, activations: Any, params: Any, x: Any) -> Any:
        return quantized(f, bit_policy(sites, weights, activations))(params, x)

    generator = np.random.default_rng(0)

    def draw() -> np.ndarray:
        return generator.integers(*(WIDTHS[0], WIDTHS[-1] + 1), (2, policies, len(sites)), np.int32)

    def together(bits: np.ndarray, size: int) -> Any:
        return each_policy(f, net.params, net.x, sites, *bits, at_once=size)

    bits = draw()

    def loop() -> Any:
        return [one(w, a, net.params, net.x) for w, a in zip(*bits, strict=True)]

    calls = {"loop": loop} | {
        f"program_{size}": lambda size=size: together(bits, size) for size in at_once
    }
    results = [np.stack(jax.device_get(call())) for call in calls.values()]
    before = len(traced)
    for size in at_once:
        together(draw(), size)
    row: Row = {"net": name, "batch": batch, "policies": policies, "traces": len(traced) - before}
    # Another order of sums may bring a value to the other side of a rounding.
    same = [np.isclose(r, results[0], rtol=1e-3, atol=1e-3).all((1, 2)).mean() for r in results]
    row["same"] = min(same)
    times = timing.measure_rounds({n: timing.metered(c) for n, c in calls.items()}, rounds)
    for label, values in times.items():
        row[f"{label}_us"] = 1e3 * float(np.median(values)) / policies
        row[f"{label}_ratio"] = timing.ratio(times["loop"], values)
    ratios = {size: row[f"program_{size}_ratio"] for size in at_once}
    row["at_once"] = max(ratios, key=lambda size: ratios[size])
    row["ratio"] = ratios[row["at_once"]]
    return row
