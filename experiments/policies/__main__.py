"""Bits as arguments: what evaluating many policies costs, and a quantization-aware training step.

    python -m experiments.policies

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

The source searches bits per layer with one compiled model per policy (arXiv 2212.07818).
"""

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

import jaxeff
from experiments import harness as h
from experiments.harness import Row
from experiments.policies import counts, speed
from experiments.transforms import cost
from jaxeff.compression import BitSensitivity, allocate_bits

LIMIT = 1.15  # of the hand-written count
TARGET = 3.0  # times the throughput of the loop
SECONDS = 5.0  # for an allocation
Net = Literal["mlp", "lenet5", "resnet18-imagenet"]


@dataclass(frozen=True)
class Settings:
    """What is measured, how often.

    Attributes:
        rounds: Rounds of each timing.
        policies: Policies in one program.
        nets: Networks under many policies.
        batches: Images each policy is evaluated on.
        at_once: How many policies a program takes side by side.
        steps: Networks whose training step is counted.
    """

    rounds: h.Count = 7
    policies: h.Count = 1000
    nets: tuple[Net, ...] = ("mlp", "lenet5")
    batches: tuple[h.Count, ...] = (1, 10)
    at_once: tuple[h.Count, ...] = (1, 10)
    steps: tuple[Net, ...] = ("lenet5", "resnet18-imagenet")


def allocate(of: str) -> Row:
    """Times an allocation for ResNet-18, weights and activations of 1 to 8 bits each."""
    net = cost.subject("resnet18-cifar", 1)
    found = jaxeff.cost(net.f, net.params, net.x)
    rows = [row for row in found.layers if row.macs]
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
    budget = 4 * sum(row.weights for row in rows) if of == "weights" else 16 * found.macs
    start = time.perf_counter()
    allocate_bits(sensitivity, found, budget, unit=of)
    return {"budget": of, "sites": len(rows), "seconds": time.perf_counter() - start}


PARTS = (
    h.Part[Settings, tuple[str, str]](
        lambda run: [(net, method) for net in run.settings.steps for method in counts.METHODS],
        lambda run, task: [counts.compare(task[0], 8, task[1])],
    ),
    h.Part[Settings, tuple[str, int]](
        lambda run: [(net, batch) for net in run.settings.nets for batch in run.settings.batches],
        lambda run, task: [
            speed.measure(*task, run.settings.policies, run.settings.rounds, run.settings.at_once)
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
            "net": "{net} x {batch}", "method": "method",
            "MFLOPs": lambda row: row["flops"] / 1e6, "ratio": "flops_ratio",
            "MB": lambda row: row["bytes"] / 1e6, "ratio ": "bytes_ratio",
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
