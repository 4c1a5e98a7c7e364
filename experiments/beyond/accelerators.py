"""Searches for accelerators that aren't at hand: a systolic array, and a pipeline on an FPGA.

    python -m experiments.beyond.accelerators

Channels and bits of a network by the knapsack, told cycles by published formulas
(`jaxeff.contrib.SystolicArray`, `DataflowPipeline`), over shares of the cycles of 16-bit products.
Beside them: what the searches that were told bit operations leave on the same accelerators, with as
many candidates at every share, and one setting for all layers.

Klein's thesis proposes it (section 11.3: FPGAs and ASICs "will require improved cost models") and
has no numbers; its frontier over shares (figure 4.6) is of a Raspberry Pi.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import numpy as np
import optax

from experiments import classifiers
from experiments import harness as h
from experiments.harness import Count, Least, Report, Row, Run
from experiments.recipes import Training
from experiments.trainable import load_images
from jaxeff import contrib, search
from jaxeff.search import Actions, FewBitLayers, Policy

DEVICES: dict[str, search.Latency] = {
    "systolic array": contrib.SystolicArray(rows=8, columns=8),
    "FPGA pipeline": contrib.DataflowPipeline(luts=10_000),
}
PROXY, SAME = "bit operations", "the same everywhere"
TOLD: dict[str, search.Latency] = {**DEVICES, PROXY: search.bit_operations}
NEAR = 0.1
"""Of a target, that the knapsack's budgets land within; also what counts as meeting it."""


@dataclass(frozen=True)
class Settings(Training):
    """What is compressed, and how far."""

    subject: classifiers.Classifier  # the network
    # shares of the latency of the whole model in 16 bits
    targets: tuple[float, ...] = (0.25, 0.125, 0.0625)
    # shares of bit operations, which whole models have in 32 bits
    operations: tuple[float, ...] = (0.03, 0.01, 0.004)
    episodes: Annotated[int, Least(4)] = 10  # candidates of every search
    steps: Annotated[int, Least(0)] = 16  # of every candidate's training
    step_images: Count = 32  # images per step of it
    validation: Count = 512  # images that candidates are measured on, none of the others
    images: Count = 32  # that sensitivities are measured on
    seeds: Count = 3  # searches of every kind
    levels: Annotated[int, Least(2)] = 6  # options of every action, of the knapsack


SIZES = {
    "fast": Settings(
        classifiers.Classifier("lenet5", "digits", 1200, 12, 297, 1), episodes=5, steps=4,
        batch_size=32, validation=200, seeds=1,
        levels=4,
    ),
    "default": Settings(classifiers.Classifier("lenet5", "mnist", 6000, 8, 2000, 1)),
    "full": Settings(
        classifiers.Classifier("resnet8", "cifar-10", 20_000, 12, 2000, 1), episodes=30,
    ),
}  # fmt: skip
ACTIONS = Actions(round_to=1)
"""Neither accelerator packs channels into words, so any number of them may stay."""
ANYTHING = FewBitLayers(1, 1, 1, last=True)


def measure(run: Run[Settings], task: tuple[str, str, float, int]) -> Iterator[Row]:
    """A row for every candidate of a search, with its cycles on all accelerators."""
    told, agent, target, seed = task
    candidates, known, whole = _prepared(run)
    searcher = search.UniformSearch() if agent == SAME else search.Knapsack(run.settings.levels)
    search_result = search.search_among(
        jax.random.fold_in(run.key, seed), candidates, latency=TOLD[told], target=target,
        agent=searcher, actions=ACTIONS, episodes=run.settings.episodes, known=known,
        progress=False,
    )  # fmt: skip
    for episode in search_result.episodes:
        if "accuracy" in episode:
            policy = Policy.from_plain(episode["policy"])
            shares = _costs(candidates, policy)
            yield {
                "told": told, "agent": agent, "target": target, "seed": seed,
                "episode": episode["episode"], "accuracy": episode["accuracy"],
                "ratio": episode["ratio"],
                **{name: shares[name] / whole[name] for name in TOLD},
                "channels": np.asarray(policy.kept), "weights": np.asarray(policy.weights),
                "activations": np.asarray(policy.activations),
            }  # fmt: skip


def tasks(run: Run[Settings]) -> list[tuple[str, str, float, int]]:
    """Every search: by whom, told what, for which share."""
    settings = run.settings
    return [
        (told, agent, target, seed)
        for seed in range(settings.seeds)
        for told in TOLD
        for agent in ("knapsack", *([SAME] if told in DEVICES else []))
        for target in (settings.operations if told == PROXY else settings.targets)
    ]


def _costs(candidates: search.Candidates, policy: Policy) -> dict[str, float]:
    candidate = search.Candidate(policy, candidates.space, candidates.smaller)
    return {name: cost(candidate) for name, cost in TOLD.items()}


@functools.lru_cache(maxsize=1)
def _prepared(run: Run[Settings]) -> tuple[search.Candidates, Any, dict[str, float]]:
    """The trained network's candidates, its sensitivities, and what the whole of it costs."""
    settings: Any = run.settings
    model = classifiers.trained(run, settings.subject, settings, 0)
    net, subject, x = model.network, model.subject, model.calibration(1)
    more = load_images(subject.data, subject.images + settings.validation, 1)
    # Judged on images that neither the network nor its candidates were trained on.
    held = tuple(part[subject.images :] for part in more.train)
    space = search.SearchSpace.read(
        net.evaluate, model.params, model.state, x, few_bit_layers=ANYTHING
    )
    candidates = search.Candidates(
        net.evaluate, model.params, model.images.train, held, space, state=model.state,
        train=net.train, steps=settings.steps, batch_size=settings.step_images,
        optimizer=optax.sgd(0.02, momentum=0.9),
    )  # fmt: skip
    known = search.sensitivity(
        net.evaluate,
        model.params,
        model.calibration(settings.images),
        space,
        ACTIONS,
        state=model.state,
    )
    return candidates, known, _costs(candidates, space.uncompressed)


def frontier(report: Report) -> Iterator[Row]:
    """Selects the most accurate candidate within each share, by who searched and what was told."""
    seeds = {row["seed"] for row in report.rows}
    for device in DEVICES:
        for target in report.config["targets"]:
            for name, told, agent in (
                ("told its cycles", device, "knapsack"),
                (f"told {PROXY}", PROXY, "knapsack"),
                (SAME, device, SAME),
            ):
                of_agent = h.where(told=told, agent=agent)(report)
                # All shares of a search count: a candidate that was meant for another may fit.
                within = [r for r in of_agent if r[device] <= target * (1 + NEAR)]
                best = [
                    max((r for r in within if r["seed"] == seed), key=lambda r: r["accuracy"],
                        default=None)
                    for seed in seeds
                ]  # fmt: skip
                there = [row for row in best if row]
                yield {
                    "device": device, "target": target, "name": name, "found": len(there),
                    "accuracy": h.mean(row["accuracy"] for row in there),
                    "error": h.error(row["accuracy"] for row in there),
                    "share": h.mean(row[device] for row in there),
                }  # fmt: skip


def gains(report: Report) -> Iterator[Row]:
    """Selects a row per device: what being told its cycles gains, averaged over shares."""
    for (device,), rows in h.grouped(list(frontier(report)), "device").items():
        by: dict[str, list[float]] = {}
        for row in rows:
            # Nothing that fits is a network that can't be used.
            by.setdefault(row["name"], []).append(row["accuracy"] or 0.0)
        of_formula, proxy, same = (np.array(values) for values in by.values())
        yield {
            "device": device,
            "proxy": (of_formula - proxy).mean(),
            "same": (of_formula - same).mean(),
        }


def landings(report: Report) -> Iterator[Row]:
    """Selects how near the target each knapsack's nearest candidate lies."""
    knapsacks = h.where(agent="knapsack")(report)
    for (told, target), rows in h.grouped(knapsacks, "told", "target").items():
        if told in DEVICES:
            yield {"told": told, "target": target, "off": min(abs(r["ratio"] - 1) for r in rows)}


def apart(report: Report) -> Iterator[Row]:
    """Selects how far apart the devices' shares of one policy lie, of those told the proxy."""
    rows = h.where(told=PROXY)(report)
    first, second = (np.array([row[name] for row in rows]) for name in DEVICES)
    yield {"most": float(np.max(np.maximum(first / second, second / first)))}


CLAIMS = (
    h.Claim("{told} at {target:g}: nearest candidate off the target", "off", h.at_most(NEAR),
            of=landings),
    h.Claim("{device}: accuracy that being told cycles gains over bit operations", "proxy",
            h.above(0), "no number", gains, needs="default"),
    h.Claim("{device}: the same over one setting for all layers", "same", h.above(0), "no number",
            gains, needs="default"),
    h.Claim("one policy, two devices: largest ratio of its shares", "most", h.at_least(2),
            "no number", apart),
)  # fmt: skip
PLOTS = (
    h.Plot(
        "frontier",
        h.Curves(
            "target", "accuracy", frontier, "{name}", facet="{device}", style="o-",
            axes={"xlabel": "share of the cycles in 16 bits, at most", "ylabel": "accuracy"},
        ),
    ),
)  # fmt: skip
TABLES = (
    h.Listing("most accurate within a share", ("device", "target", "name", "found", "accuracy",
              "error", "share"), frontier),
    h.Listing("gains in accuracy, averaged over shares", ("device", "proxy", "same"), gains),
)  # fmt: skip
DIFFERENCES = (
    "the thesis searches for a Raspberry Pi 4 that it measures; here cycles are formulas, of "
    "layers that multiply alone: neither memories nor transfers between layers",
    "the knapsack is no agent: it needs formulas that are looked up, which these are",
    "shares are of 16-bit arithmetic, the widest that both accelerators have; bit operations have "
    "targets of their own, and every candidate of theirs counts at every share",
)
STUDY = h.Study(
    "accelerators", __doc__, SIZES, (h.Part(tasks, measure),), CLAIMS, PLOTS, TABLES, DIFFERENCES
)

if __name__ == "__main__":
    STUDY.main()
