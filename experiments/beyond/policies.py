"""Bits as arguments: what evaluating many policies costs, and a quantization-aware training step.

    python -m experiments.beyond.policies

1. Policies per second, of one program for all of them (`each_policy`) and of a jitted function that
   takes a policy as an argument and is called for each. Neither compiles anything for other bits.
   Rounds are interleaved, so ratios hold on a busy machine; times don't. What the program saves is
   dispatch and the quantization of weights and inputs, which it does once per width; with more
   images the layers themselves take the time, which is the same in both. In few bits, another order
   of sums moves an activation across a rounding now and then; `same` is the share of policies where
   no logit shows it.
2. FLOPs and bytes, by XLA's own count, of a step of gradient descent through fake quantization, by
   each tensor's own range (`int`) and by learned steps (`lsq`), beside the same written by hand.
3. The seconds that `allocate_bits` takes for ResNet-18.

The thesis searches bits per layer with one compiled model per policy (arXiv 2212.07818).
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import jaxeff
from experiments import harness as h
from experiments.beyond.transforms import cost, handwritten
from experiments.harness import Row
from experiments.timing import measure_rounds, metered, ratio
from jaxeff.compression import (
    LSQ,
    BitSensitivity,
    Int,
    allocate_bits,
    bit_policy,
    each_policy,
    init,
    learned,
    quantized,
)  # fmt: skip

LIMIT = 1.15  # of the hand-written count
TARGET = 3.0  # times the throughput of the loop
SECONDS = 5.0  # for an allocation
WIDTHS = range(1, 9)
BITS = 4  # of a training step
METHODS = ("int", "lsq")
RATE = 0.01
Net = Literal["mlp", "lenet5", "resnet18-imagenet"]


@dataclass(frozen=True)
class Settings:
    """What is measured, how often."""

    rounds: h.Count = 7  # rounds of each timing
    policies: h.Count = 1000  # policies in one program
    nets: tuple[Net, ...] = ("mlp", "lenet5")  # networks under many policies
    batches: tuple[h.Count, ...] = (1, 10)  # images each policy is evaluated on
    at_once: tuple[h.Count, ...] = (1, 10)  # how many policies a program takes side by side
    # networks whose training step is counted
    steps: tuple[Net, ...] = ("lenet5", "resnet18-imagenet")


def allocate(of: str) -> Row:
    """Times an allocation for ResNet-18, weights and activations of 1 to 8 bits each."""
    net = cost.subject("resnet18-cifar", 1)
    costs = jaxeff.cost(net.f, net.params, net.x)
    rows = [row for row in costs.layers if row.macs]
    shape = (len(rows), 8)
    generator = np.random.default_rng(0)
    widths = np.arange(1, 9)
    damages = [
        10 ** generator.uniform(-3, 1, (shape[0], 1))
        * 4.0**-widths
        * generator.uniform(0.5, 2, shape)
        for _ in range(2)
    ]
    sensitivity = BitSensitivity(tuple(row.site for row in rows), tuple(range(1, 9)), *damages)
    budget = 4 * sum(row.weights for row in rows) if of == "weights" else 16 * costs.macs
    start = time.perf_counter()
    allocate_bits(sensitivity, costs, budget, unit=of)
    return {"budget": of, "sites": len(rows), "seconds": time.perf_counter() - start}


def compare(name: str, batch: int, method: str) -> Row:
    """XLA's counts of one step of gradient descent, ours and by hand, and how far they differ."""
    net = cost.subject(name, batch)
    labels = jnp.arange(batch) % 10
    ours, by_hand, trained, other = _pair(net, method)
    step, expected = (functools.partial(_step, g) for g in (ours, by_hand))
    args, args_by_hand = ((p, net.x, labels) for p in (trained, other))
    compiled = cost.compile_for(step, args)
    compiled_by_hand = cost.compile_for(expected, args_by_hand)
    row: Row = {"net": name, "batch": batch, "method": method}
    counts, counts_by_hand = cost.count(compiled), cost.count(compiled_by_hand)
    for what in ("flops", "bytes"):
        row[what], row[f"{what}_by_hand"] = counts[what], counts_by_hand[what]
        row[f"{what}_ratio"] = counts[what] / counts_by_hand[what]
    losses = [float(c(*a)[0]) for c, a in ((compiled, args), (compiled_by_hand, args_by_hand))]
    row["difference"] = abs(losses[0] / losses[1] - 1)
    return row


def _step(g: Callable[..., Any], trained: Any, x: jax.Array, labels: jax.Array) -> Any:
    def loss(trained: Any) -> jax.Array:
        logits = g(trained, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, slope = jax.value_and_grad(loss)(trained)
    return value, jax.tree.map(lambda p, d: p - RATE * d, trained, slope)


def _pair(net: cost.Subject, method: str) -> tuple[Any, Any, Any, Any]:
    """Ours and by hand, as functions of what is trained and a batch; what is trained in each."""
    if method == "int":
        layers: Any = handwritten.Quantized(BITS)
        return (
            quantized(net.f, {"*:linear": Int(BITS, symmetric=False)}),
            lambda p, x: net.by_hand(layers, p, net.state, x),
            net.params,
            net.params,
        )
    spec: Any = init(net.f, net.params, net.x, {"*:linear": LSQ(BITS)})
    steps = {site: (s.weights.step, s.activations.step) for site, s in spec.items() if s}

    def by_hand(trained: Any, x: jax.Array) -> Any:
        params, steps = trained
        return net.by_hand(Learned(), _with_steps(params, steps), net.state, x)

    return learned(net.f), by_hand, (net.params, spec), (net.params, steps)


def _with_steps(params: Any, steps: dict[str, Any], path: str = "") -> Any:
    """The parameters with the steps of each layer among them."""
    if not isinstance(params, dict):
        return params
    inside = {k: _with_steps(v, steps, f"{path}/{k}".strip("/")) for k, v in params.items()}
    return inside | ({"steps": steps[path]} if path in steps else {})


class Learned(handwritten.Plain):
    """Learned step sizes (Esser et al., arXiv:1902.08153); only the first input has a sign."""

    def __init__(self) -> None:
        self._signed = True

    def _quantize(self, x: jax.Array, step: jax.Array, signed: bool) -> jax.Array:
        lower, upper = (-(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1) if signed else (0, 2**BITS - 1)
        still = lax.stop_gradient(step)
        step = still + (step - still) / (x.size * upper) ** 0.5
        v = jnp.clip(x / step, lower, upper)
        return (v + lax.stop_gradient(jnp.round(v) - v)) * step

    def _both(self, params: Any, x: Any) -> tuple[Any, Any]:
        of_weights, of_input = params["steps"]
        x = self._quantize(x, of_input, self._signed)
        self._signed = False
        return {**params, "kernel": self._quantize(params["kernel"], of_weights, True)}, x

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Any:
        """Convolution of quantized values."""
        return super().conv(*self._both(params, x), stride, padding)

    def dense(self, params: Any, x: Any) -> Any:
        """Matrix product of quantized values."""
        return super().dense(*self._both(params, x))


def measure(name: str, batch: int, policies: int, rounds: int, at_once: tuple[int, ...]) -> Row:
    """Times one program for all policies and a jitted function called for each, interleaved.

    Counts what other bits make JAX trace, too.
    """
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
    times = measure_rounds({n: metered(c) for n, c in calls.items()}, rounds)
    for label, values in times.items():
        row[f"{label}_us"] = 1e3 * float(np.median(values)) / policies
        row[f"{label}_ratio"] = ratio(times["loop"], values)
    ratios = {size: row[f"program_{size}_ratio"] for size in at_once}
    row["at_once"] = max(ratios, key=lambda size: ratios[size])
    row["ratio"] = ratios[row["at_once"]]
    return row


PARTS = (
    h.Part[Settings, tuple[str, str]](
        lambda run: [(net, method) for net in run.settings.steps for method in METHODS],
        lambda run, task: [compare(task[0], 8, task[1])],
    ),
    h.Part[Settings, tuple[str, int]](
        lambda run: [(net, batch) for net in run.settings.nets for batch in run.settings.batches],
        lambda run, task: [
            measure(*task, run.settings.policies, run.settings.rounds, run.settings.at_once)
        ],
    ),
    h.Part[Settings, str](lambda run: ("weights", "bops"), lambda run, of: [allocate(of)]),
)

STEPS, TIMED, ALLOCATED = h.having("method"), h.having("policies"), h.having("budget")
OF = "{policies} policies of {net}, batch {batch}"
CLAIMS = (
    *(
        h.Claim(
            f"{what} of a step of {{net}}, {{method}}, over hand-written: at most {{bound}}",
            f"{what}_ratio", h.at_most(LIMIT), of=STEPS,
        )
        for what in ("flops", "bytes")
    ),
    h.Claim(f"{OF}: traces for other bits", "traces", h.equals(0), 0, of=TIMED),
    h.Claim(
        f"{OF}: throughput over a loop's, at least {{bound:g}}",
        "ratio", h.at_least(TARGET), of=TIMED, needs="default",
    ),
    h.Claim(
        "seconds to allocate ResNet-18's bits by {budget}: under {bound:g}",
        "seconds", h.below(SECONDS), of=ALLOCATED, needs="default",
    ),
)  # fmt: skip

TABLES = (
    h.Listing(
        "microseconds per policy, and throughput over the loop's",
        ("net", "batch", "policies", "loop_us", "at_once", "ratio", "traces", "same"),
        TIMED,
    ),
    h.Listing(
        "a training step by XLA's count, ours over hand-written",
        {
            "net": "{net} x {batch}", "method": "method", **cost.COLUMNS,
            "losses differ by": "difference",
        },
        STEPS,
    ),
    h.Listing("allocation", of=ALLOCATED),
)  # fmt: skip

THROUGHPUT = h.Curves(
    "batch", "ratio", TIMED, hue="{net}", guides=(TARGET,),
    axes={
        "xscale": "log", "xlabel": "images", "ylabel": "policies per second, over a jitted loop's"
    },
)  # fmt: skip

STUDY = h.Study(
    "policies", __doc__,
    {
        "fast": Settings(3, 50, batches=(1, 10), at_once=(1,), steps=("lenet5",)),
        "default": Settings(),
        "full": Settings(51, batches=(1, 10, 100), at_once=(1, 10, 100)),
    },
    PARTS, CLAIMS, (h.Plot("throughput", THROUGHPUT),), TABLES,
    differences=("Policies are random; nothing is searched.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
