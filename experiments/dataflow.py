"""Accuracy and throughput of a network of few bits on a dataflow pipeline, as on an FPGA.

    python -m experiments.dataflow

A narrow VGG is trained on in 1 to 8 bits of weights and of activations (learned steps, signs
for weights of one bit; 8 bits at the ends). Throughput is that of `contrib.DataflowPipeline`:
a unit for every layer, all as parallel as fits on the device together, by FINN's formulas.

Source: Klein's thesis, section 3.5 (figure 3.6 b, after Roth et al., JMLR 2024): VGGs of CIFAR-10
on a Xilinx Ultra96 by FINN. The Pareto front has weights of one and two bits and activations of
three and four; activations decide the accuracy. It gives no numbers in the text.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from experiments import classifiers, margins
from experiments import harness as h
from experiments.compression import recipe, training
from experiments.compression.methods import Method, at_bits
from experiments.harness import Count, Least, Report, Row, Run
from jaxeff.compression import DoReFa
from jaxeff.contrib import DataflowPipeline
from jaxeff.search import MIX, Candidate, FewBitLayers, Policy, SearchSpace

FEW_WEIGHTS, FEW_ACTIVATIONS = (1, 2), (3, 4)
"""Bits of the thesis' Pareto front."""
SHARP = 4.0
"""Throughput of the fewest bits over that of the most that counts as a sharp rise; ours."""
ANYTHING = FewBitLayers(1, 1, 1, last=True)
ENDS = 8


@dataclass(frozen=True, kw_only=True)
class Settings(classifiers.Settings):
    """What is trained, and on what it runs."""

    # bits of weights, and of activations
    bits: tuple[Annotated[int, Least(1)], ...] = (1, 2, 3, 4, 8)
    luts: Count = 70_560  # lookup tables of the device (those of the thesis' Ultra96)


def _vgg(images: int, epochs: int, tests: int, seeds: int, retrain: int) -> recipe.Subject:
    return recipe.Subject(
        "vgg11-eighth", "cifar-10", images, epochs, tests, seeds, images, retrain
    )  # fmt: skip


SIZES = {
    "fast": Settings(
        subjects=(recipe.Subject("lenet5", "digits", 1437, 6, 360, 1, 1437, 1),),
        bits=(1, 4), luts=5000, batch_size=32, calibration=256,
    ),
    "default": Settings(subjects=(_vgg(20_000, 12, 2000, 1, 3),)),
    "full": Settings(subjects=(_vgg(50_000, 100, 10_000, 3, 20),), batch_size=128),
}  # fmt: skip


def tasks(settings: Settings, subject: recipe.Subject, seed: int) -> Iterator[classifiers.Task]:
    """The network in float, then in every pair of bits."""
    yield classifiers.Task(subject.name, seed, "float")
    for weights in settings.bits:
        for activations in settings.bits:
            yield classifiers.Task(subject.name, seed, "bits", f"{weights} {activations}")


def measure(
    run: Run[Any], task: classifiers.Task, subject: recipe.Subject, model: classifiers.Trained
) -> list[Row]:
    """Accuracy after training on, and cycles between two images on the device."""
    if task.part == "float":
        return [classifiers.describe(model)]
    weights, activations = map(int, task.what.split())
    row = training.train(run, subject, model, method(weights, activations))
    names = ("subject", "seed", "weight_bits", "activation_bits", "trained", "bops")
    cycles = cycles_of(model, weights, activations, run.settings.luts)
    return [{**{name: row.get(name) for name in names}, "cycles": cycles}]


def method(weights: int, activations: int) -> Method:
    """Learned steps; weights of one bit are their signs times a mean, for steps have a zero."""
    steps = at_bits(weights, activations)
    return replace(steps, weights=lambda: DoReFa(1)) if weights == 1 else steps


def cycles_of(model: classifiers.Trained, weights: int, activations: int, luts: int) -> float:
    """Cycles between two results of a pipeline whose first and last layer have eight bits."""
    space = SearchSpace.read(
        model.network.evaluate, model.params, model.state, model.calibration(1),
        few_bit_layers=ANYTHING,
    )  # fmt: skip
    ends = {model.sites[0], model.sites[-1]}
    at_end = np.array([site.name in ends for site in space.sites])

    def bits(inside: int) -> np.ndarray:
        return np.where(at_end, ENDS, inside).astype(np.int32)

    policy = Policy(
        space.uncompressed.kept,
        np.full(len(space.sites), MIX, np.int32),
        bits(weights),
        bits(activations),
    )

    def deployed(_: Policy) -> Any:
        raise AssertionError("formulas of cycles deploy nothing")

    return DataflowPipeline(luts=luts)(Candidate(policy, space, deployed))


def averaged(report: Report) -> list[Row]:
    """Selects a row per pair of bits: the means over seeds, and the throughput over the slowest."""
    rows = h.where(part="bits")(report)
    found = [
        {
            "weights": w, "activations": a, "cycles": same[0]["cycles"],
            "accuracy": h.mean(row["trained"] or 0.0 for row in same),
        }
        for (w, a), same in h.grouped(rows, "weight_bits", "activation_bits").items()
    ]  # fmt: skip
    slowest = max(row["cycles"] for row in found)
    return [{**row, "throughput": slowest / row["cycles"]} for row in found]


def front(report: Report) -> list[Row]:
    """Selects the pairs of bits that none beats in both accuracy and throughput."""
    rows = averaged(report)

    def beaten(row: Row) -> bool:
        return any(
            other["accuracy"] >= row["accuracy"] and other["cycles"] <= row["cycles"]
            and (other["accuracy"], -other["cycles"]) != (row["accuracy"], -row["cycles"])
            for other in rows
        )  # fmt: skip

    return sorted((row for row in rows if not beaten(row)), key=lambda row: row["throughput"])


def shares(report: Report) -> Iterator[Row]:
    """Selects how much of the front has the thesis' bits."""
    rows = front(report)
    pairs = ", ".join(f"W{row['weights']}A{row['activations']}" for row in rows)
    for name, bits in (("weights", FEW_WEIGHTS), ("activations", FEW_ACTIVATIONS)):
        share = h.mean(float(row[name] in bits) for row in rows)
        yield {"name": name, "bits": " or ".join(map(str, bits)), "share": share, "pairs": pairs}


def losses(report: Report) -> list[Row]:
    """Selects one row: what the fewest bits of weights, of activations and of both cost."""
    rows, images = averaged(report), report.config["subjects"][0]["test_images"]
    few, many = (pick(row["weights"] for row in rows) for pick in (min, max))
    by = {(row["weights"], row["activations"]): row for row in rows}
    whole, weights, activations, both = (
        by[pair]["accuracy"] for pair in ((many, many), (few, many), (many, few), (few, few))
    )
    return [{
        "few": few, "many": many, "weights": whole - weights, "activations": whole - activations,
        "both": whole - both, "more": weights - activations,
        "tie": margins.of_shares(images, weights, activations),
        "both_tie": margins.of_shares(images, whole, both),
        "faster": by[few, few]["throughput"] / by[many, many]["throughput"],
    }]  # fmt: skip


claim = functools.partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        "share of the Pareto front with {name} of {bits} bits: at least half", "share",
        h.at_least(0.5), "the front", shares, shown="{share:.2f} of {pairs}",
    ),
    claim(
        "accuracy that {few} bit of activations costs beyond what {few} bit of weights does, past "
        "two errors", "more", h.above("tie"), "activations dominate", losses,
        shown="{activations:.3f}, {weights:.3f}",
    ),
    claim(
        "accuracy that {few} bit of both costs, past two errors", "both", h.above("both_tie"),
        "falls", losses,
    ),
    claim(
        f"throughput of {{few}} bit over that of {{many}} bits: at least {SHARP:g}", "faster",
        h.at_least(SHARP), "rises sharply", losses,
    ),
)  # fmt: skip


def points(report: Report) -> Iterator[Row]:
    """Selects the drawn points: by bits of activations, and the front."""
    for row in averaged(report):
        yield {**row, "of": f"{row['activations']}-bit activations"}
    for row in front(report):
        yield {**row, "of": "Pareto front"}


PLOTS = (
    h.Plot(
        "tradeoff",
        h.Curves(
            "throughput", "accuracy", points, "{of}", style={"Pareto front": "k--"},
            axes={"xlabel": "throughput over that of the slowest", "ylabel": "accuracy"},
        ),
        size=(6.4, 4.2),
    ),
)  # fmt: skip
COLUMNS = ("weights", "activations", "accuracy", "cycles", "throughput")
TABLES = (
    h.Listing("by bits", COLUMNS, averaged),
    h.Listing("Pareto front", COLUMNS, front),
)
DIFFERENCES = (
    "the network is VGG-11 with an eighth of its channels and batch norm, trained for the epochs "
    "of `config`; the thesis' sizes and trainings aren't in the text",
    "no FPGA is at hand: throughput is cycles between two images by FINN's formulas, of lookup "
    "tables alone; memories and clock aren't in it",
    "trainings start at the network in float and are short",
)


def _rows(run: Run[Settings]) -> list[Row]:
    return classifiers.each(run, tasks, measure)


STUDY = h.Study("dataflow", __doc__, SIZES, (h.Kept(_rows),), CLAIMS, PLOTS, TABLES, DIFFERENCES)

if __name__ == "__main__":
    STUDY.main()
