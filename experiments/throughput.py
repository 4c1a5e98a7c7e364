"""Throughput and accuracy of pruned and of quantized networks, as kernels on processors give them.

    python -m experiments.throughput

A residual network loses a share of the channels of every layer, has weights and activations of few
bits, or both, and is trained on; then it is compiled: float kernels for what was pruned, kernels on
codes for what has bits. Three processors:

1. this one, measured: processor time of one thread, in turns with the whole network in float32;
2. a Cortex-A72 and a Cortex-A53, modelled from the machine code of their kernels (llvm-mca and
   nominal caches), for no board is at hand. Kernels without vectors aren't in it.

Klein's thesis, section 3.5 (figure 3.6 a, after Roth et al., JMLR 2024): wide residual networks of
CIFAR-10 on a Cortex-A53; pruned ones are the fastest at a competitive accuracy, and strong
compression of either kind costs accuracy. It gives no numbers in the text. `--subject-network`
names another network.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxeff_export import Bundle, deploy

from experiments import classifiers
from experiments import harness as h
from experiments.classifiers import how_to_train
from experiments.contests.tvm import host, modelled_cycles
from experiments.harness import Count, Report, Row, Run
from experiments.recipes import Training
from experiments.timing import Meter, measure_rounds, ratio
from experiments.trainable import Images
from jaxeff.compression import Int, calibrate, fold_batch_norm, integer, integer_aware
from jaxeff.pruning import Prune, prune_plan, pruned
from jaxeff.training import cross_entropy, fit

MODELLED = ("cortex-a72", "cortex-a53")
HERE = "this processor"
PROCESSORS = (HERE, *MODELLED)
FASTER = 1.1
"""Throughput over the whole network's that isn't the timings' noise."""
COMPETITIVE = 0.02
"""Of accuracy, that may be lost; ours, for the thesis gives none."""
FLOAT = 32


@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """What is compressed, and how far."""

    subject: classifiers.Classifier  # the network
    shares: tuple[float, ...] = (0.3, 0.5, 0.75)  # of the channels that stay
    bits: tuple[int, ...] = (8, 6, 4, 3, 2, 1)  # of weights and of activations
    retrain: Count = 3  # passes over the training images in few bits
    retrain_rate: float = 1e-3  # learning rate of them
    batch: Count = 8  # images of a call
    rounds: Count = 9  # rounds of each timing
    calibration: Count = 256  # training images that ranges of activations are measured on


class Compressed(NamedTuple):
    """What is left of every layer but the first and the last, whose bits are eight."""

    share: float = 1.0  # of the channels
    bits: int = FLOAT

    @property
    def how(self) -> str:
        """In a word."""
        words = {(True, True): "whole", (False, True): "pruned", (True, False): "quantized"}
        return words.get((self.share == 1, self.bits == FLOAT), "both")


SIZES = {
    "fast": Settings(
        subject=classifiers.Classifier("resnet8", "digits", 1200, 6, 597, 1),
        shares=(0.3, 0.5, 0.75), bits=(8, 4, 2, 1), retrain=2, rounds=5, batch_size=32,
    ),
    "default": Settings(
        subject=classifiers.Classifier("wrn-10-2", "cifar-10", 20_000, 12, 2000, 1)
    ),
    "full": Settings(
        subject=classifiers.Classifier("wrn-28-4", "cifar-10", 50_000, 100, 10_000, 3),
        bits=tuple(range(8, 0, -1)), retrain=10,
    ),
}  # fmt: skip


def tasks(run: Run[Settings]) -> list[tuple[float, int]]:
    """The whole network, and all that is left of it: pruned, quantized, half of it in few bits."""
    size = run.settings
    alone = [(share, FLOAT) for share in size.shares] + [(1.0, bits) for bits in size.bits]
    return [(1.0, FLOAT), *alone, *((0.5, bits) for bits in size.bits if bits in (8, 4))]


def measure(run: Run[Settings], task: tuple[float, int]) -> Iterator[Row]:
    """One row: accuracy after training on, and what processors make of it."""
    what, size = Compressed(*task), run.settings
    model, baseline = _prepared(run)
    images = model.images
    g, params = _compressed(run, what)
    x = np.asarray(images.test[0][: size.batch])
    bundle = deploy(g, (params, x), target=host())
    # Of the compiled library, not of what it was compiled from: a wrong kernel would be seen.
    right, count = _accuracy(bundle, images, size.batch)
    row: Row = {
        "how": what.how, "share": what.share, "bits": what.bits, "accuracy": right,
        "error": math.sqrt(right * (1 - right) / count),
    }  # fmt: skip
    times = measure_rounds(
        {"whole": _meter(baseline[HERE], x), "own": _meter(bundle, x)}, size.rounds
    )
    row |= {
        HERE: ratio(times["whole"], times["own"]),
        "ms": float(np.median(times["own"])) / size.batch,
    }
    for core in MODELLED:
        cycles = modelled_cycles(deploy(g, (params, x), target=core))
        row |= {core: baseline[core] / cycles, f"{core} cycles": cycles / size.batch}
    yield row


def _accuracy(bundle: Bundle, images: Images, batch: int) -> tuple[float, int]:
    """Share of the test images that a library classifies rightly, and how many it was shown."""
    x, labels = (np.asarray(part) for part in images.test)
    # A library takes batches of one size, so that images beyond the last whole one are left out.
    count = len(labels) // batch * batch
    logits = [np.asarray(bundle.run(x[i : i + batch])) for i in range(0, count, batch)]
    return float(np.mean(np.concatenate(logits).argmax(-1) == labels[:count])), count


def _meter(bundle: Bundle, x: np.ndarray) -> Meter:
    """Seconds of processor time a call: of one thread, which other processes don't slow much."""

    def meter(repeats: int) -> float:
        start = time.process_time()
        for _ in range(repeats):
            bundle.run(x)
        return (time.process_time() - start) / repeats

    return meter


@functools.lru_cache(maxsize=1)
def _prepared(run: Run[Settings]) -> tuple[classifiers.Trained, dict[str, Any]]:
    """The trained network, and what the whole of it takes on every processor."""
    settings: Any = run.settings
    model = classifiers.trained(run, settings.subject, settings, 0)
    f, params = model.folded()
    x = np.asarray(model.images.test[0][: settings.batch])
    cycles = {core: modelled_cycles(deploy(f, (params, x), target=core)) for core in MODELLED}
    return model, {HERE: deploy(f, (params, x), target=host()), **cycles}


def _compressed(run: Run[Settings], what: Compressed) -> tuple[Callable[..., Any], Any]:
    """A network that was pruned, trained on in its bits, and brought to codes."""
    size, model = run.settings, _prepared(run)[0]
    f, params = _narrower(run, what.share)
    if what.bits == FLOAT:
        return f, params
    x = model.images.train[0][: size.calibration]
    first, *_, last = model.sites
    few, eight = (Int(b, b) for b in (what.bits, 8))
    grids = calibrate(f, params, [x], {"*:linear": few, first: eight, last: eight}).spec
    # Residual sums read codes as well, which training has to know.
    loss = cross_entropy(integer_aware(f, grids))
    data, key = model.images.train, jax.random.fold_in(run.fast_key, 17)
    how = how_to_train(size.retrain_rate, data, size.retrain, size.batch_size)
    params = fit(key, loss, params, data, **how).params
    g = integer(f, grids)
    return g, g.convert(params, x[:1])


@functools.lru_cache(maxsize=4)
def _narrower(run: Run[Settings], share: float) -> tuple[Callable[..., Any], Any]:
    """A network with a share of its channels, trained for as long again, its batch norms folded.

    The whole one too, so that what others lose isn't hidden by more training.
    """
    size, model = run.settings, _prepared(run)[0]
    net, x = model.network, model.calibration(2)
    spec = {"*:linear": Prune(1 - share), model.sites[-1]: None}
    plan = prune_plan(net.evaluate, model.params, (model.state, x), spec)
    data = model.images.train
    result = fit(
        jax.random.fold_in(run.fast_key, 16),
        cross_entropy(pruned(net.train, plan), mutable=True),
        plan.shrink(model.params),
        data,
        state=plan.shrink(model.state),
        **how_to_train(size.rate, data, size.subject.epochs, size.batch_size),
    )
    evaluate, state = pruned(net.evaluate, plan), result.state
    return fold_batch_norm(lambda params, x: evaluate(params, state, x)[0], result.params, x)[:2]


def points(report: Report) -> Iterator[Row]:
    """Selects a row per network and processor."""
    for row in report.rows:
        for name in PROCESSORS:
            yield {
                **row, "processor": name if name == HERE else f"{name}, modelled",
                "speed": row[name], "measured": name == HERE,
            }  # fmt: skip


def verdicts(report: Report) -> Iterator[Row]:
    """Selects a row per processor: the fastest of either kind at a competitive accuracy."""
    for (processor,), rows in h.grouped(list(points(report)), "processor").items():
        (whole,) = (row for row in rows if row["how"] == "whole")
        gains: Row = {"processor": processor, "whole": whole["accuracy"]}
        for how in ("pruned", "quantized", "both"):
            variants = [row for row in rows if row["how"] == how]
            good = [row for row in variants if row["accuracy"] >= whole["accuracy"] - COMPETITIVE]
            gains[how] = max((row["speed"] for row in good), default=1.0)
            hardest = min(variants, key=lambda row: (row["share"], row["bits"]))
            gains[f"{how} lost"] = whole["accuracy"] - hardest["accuracy"]
            gains[f"{how} error"] = 2 * math.hypot(whole["error"], hardest["error"])
        yield gains


def losses(report: Report) -> Iterator[Row]:
    """Selects a row per kind: what the strongest compression costs."""
    first = next(verdicts(report))
    for how in ("pruned", "quantized"):
        yield {"how": how, "lost": first[f"{how} lost"], "error": first[f"{how} error"]}


claim = functools.partial(h.Claim, of=verdicts)
CLAIMS = (
    claim(
        "{processor}: pruning that keeps the accuracy is faster than nothing", "pruned",
        h.above(FASTER), "faster",
    ),
    claim(
        "{processor}: so is quantization that keeps it", "quantized", h.above(FASTER), "faster"
    ),
    claim(
        "{processor}: the fastest pruned network that keeps the accuracy within two hundredths, "
        "over the fastest quantized one",
        "pruned", h.above("quantized"), "highest throughput",
        shown="{pruned:.2f} over {quantized:.2f}",
    ),
    h.Claim(
        "{how}: accuracy that the strongest compression costs, beyond two errors", "lost",
        h.above("error"), "reduced", losses, shown="{lost:.3f} ({error:.3f})",
    ),
)  # fmt: skip
PLOTS = (
    h.Plot(
        "tradeoff",
        h.Curves(
            "speed", "accuracy", points, "{how}", facet="{processor}", style="o",
            axes={"xlabel": "throughput over the whole network's in float32", "ylabel": "accuracy"},
        ),
        columns=3,
    ),
)  # fmt: skip
TABLES = (
    h.Listing(
        "accuracy, and throughput over the whole network's in float32",
        ("how", "share", "bits", "accuracy", "error", *PROCESSORS, "ms"),
    ),
    h.Listing(
        "fastest at a competitive accuracy",
        ("processor", "whole", "pruned", "quantized", "both"), verdicts,
    ),
)  # fmt: skip
DIFFERENCES = (
    "the thesis' networks are WRNs of CIFAR-10; `config` says what ours is and how long it was "
    "trained. A ResNet-8 (the fast size's) has as many stages, activations after its convolutions, "
    "and all its batch norms folded",
    "of a WRN, batch norms that follow a convolution alone are folded into it; those of a sum are "
    "computed in float, also between layers of few bits, whose codes are decoded for them",
    "every layer but the last loses the same share of its channels, those of least magnitude, and "
    "is trained for as long again, the whole network too; the first and the last layer have 8 "
    "bits, ranges of activations are measured once",
    "the thesis' quantized kernels are bit-serial; ours multiply bytes, and count bits where few "
    "make that faster",
    "no board is at hand: the A72 and the A53 are static models of the kernels' main loops, which "
    "is an upper bound of speed; what is measured is this processor's",
)
STUDY = h.Study(
    "throughput", __doc__, SIZES, (h.Part(tasks, measure),), CLAIMS, PLOTS, TABLES, DIFFERENCES
)

if __name__ == "__main__":
    STUDY.main()
