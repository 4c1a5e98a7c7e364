"""Networks for an Ethos-U55 that a search finds by Vela's cycles, and by multiply-accumulates.

    python -m experiments.beyond.ethos_search

MLPerf Tiny's DS-CNN learns the words of Speech Commands. A knapsack chooses how many channels of it
stay for a share of the cycles that Vela, Arm's compiler for the accelerator, estimates, and is told
what a channel costs in one of two ways: in cycles, by a candidate of each number of channels of
each layer, compiled and kept (`looked_up`), or in multiply-accumulates (MACs), which is what it
adds up for any latency that isn't looked up.

Both searches have the same sensitivities, episodes and reward, which counts Vela's cycles of every
candidate: the budget of the search by MACs is corrected until its network takes the cycles that
were asked for. So both end at about the same cycles, and what is found is trained on in eight bits,
converted to integers and judged on other speakers, alike. What is left of a difference in cycles is
interpolated, on the line through the networks that were found by MACs and the whole one.

Another part counts how often MACs order two networks of random channels otherwise than cycles do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy
from jaxeff_export import vela_latency

from experiments import harness as h
from experiments import margins
from experiments.beyond.keyword_spotting.recordings import features, moved, speech, tones
from experiments.beyond.keyword_spotting.training import CALIBRATED, CLASSES, standardized
from experiments.harness import Count, Least, Refused, Report, Row, Run
from experiments.recipes import cosine_adam
from experiments.trainable import Network, trainable
from jaxeff import nn, search, training
from jaxeff.search import INT8, Actions, Candidate, Policy, SearchSpace
from jaxeff.store import Journal

CYCLES, MACS, WHOLE = "cycles", "MACs", "whole"
ORDER, SEARCHES = "order", "searches"
MEAN = "mean"
RATE = 3e-3
"""Learning rate of Adam, which a cosine brings to zero: of the network, and of what is found."""
NEAR = 0.05
"""Of a target's cycles, how far a network that was found may be off."""
ORDERED = 0.1
"""Of pairs of networks, how many may be ordered otherwise before a count misleads."""
SAME = 0.01
"""Of cycles, how much a network's weights may change them: candidates are counted by others'."""


@dataclass(frozen=True)
class Settings:
    """What is trained, and searched."""

    speech: bool = True  # whether recordings are words, or tones
    width: Count = 64  # channels of the network
    blocks: Count = 4  # pairs of a depthwise and a pointwise convolution
    copies: Count = 5  # copies of the recordings, each moved in time
    epochs: Count = 1  # of the first training, on recordings and copies
    batch_size: Count = 64  # recordings per update
    targets: tuple[float, ...] = (0.6, 0.45, 0.3)  # shares of the whole network's cycles
    episodes: Annotated[int, Least(2)] = 6  # candidates of every search
    steps: Annotated[int, Least(0)] = 8  # of every candidate's training
    step_recordings: Count = 32  # recordings per step of it
    validation: Count = 512  # recordings of other speakers that candidates are measured on
    sensed: Count = 128  # recordings that sensitivities are measured on
    retrained: Count = 3  # times as many recordings, of the copies, that what is found trains on
    seeds: Annotated[int, Least(2)] = 3  # networks, each with its own searches
    drawn: Annotated[int, Least(3)] = 30  # networks of random channels
    # channels that stay are multiples of it, as the accelerator computes eight at once
    round_to: Annotated[Count, h.SIZELESS] = 8
    # what Vela compiles for
    accelerator: Annotated[
        Literal["ethos-u55-32", "ethos-u55-128", "ethos-u55-256"], h.SIZELESS
    ] = "ethos-u55-128"


class Parts(NamedTuple):
    """Features float32 `[n, frames, cepstra, 1]` and labels, each part of other speakers."""

    train: tuple[np.ndarray, np.ndarray]
    held: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


class Subject(NamedTuple):
    """A trained network: its candidates, the sensitivities of its layers, and its data."""

    candidates: search.Candidates
    known: search.CompressionSensitivity
    parts: Parts


@dataclass(frozen=True)
class LookedUp:
    """A latency that a searcher asks of any policy, and not of its episodes' alone."""

    latency: search.Latency
    looked_up: ClassVar[bool] = True

    def __call__(self, candidate: Candidate) -> float:
        """Counts a candidate's cycles."""
        return self.latency(candidate)


def settle(settings: Settings) -> Settings:
    """Refuses to begin where nothing can be counted."""
    packages = {"ethosu": "ethos-u-vela", "litert_converter": "litert-converter"}
    if absent := [name for module, name in packages.items() if find_spec(module) is None]:
        raise Refused(f"{' and '.join(absent)} not found: pip install 'jaxeff[vela]'")
    return settings


@functools.lru_cache(maxsize=1)
def recordings(words: bool, copies: int) -> Parts:
    """Reads recordings, and computes features of zero mean and unit variance."""
    sounds = speech() if words else tones()
    audio, labels = sounds.train
    first = features(audio)
    standard = standardized(first.mean((0, 1, 2)), first.std((0, 1, 2)))

    def shaped(x: np.ndarray) -> np.ndarray:
        return np.asarray(standard(x)[:, :, 0, :, None], np.float32)

    more = (features(moved(audio, i)) for i in range(copies))
    train = np.concatenate([shaped(x) for x in (first, *more)])
    held, test = ((shaped(features(x)), y) for x, y in (sounds.held, sounds.test))
    return Parts((train, np.tile(labels, copies + 1)), held, test)


def network(settings: Settings, shape: tuple[int, ...]) -> Network:
    """Builds the network for features of a shape."""
    return trainable(
        lambda rngs: nn.DSCNN(
            CLASSES, width=settings.width, blocks=settings.blocks, rngs=rngs
        ), shape,
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def trained(run: Run[Settings], seed: int) -> Subject:
    """Trains a network in float32."""
    at, parts = run.settings, recordings(run.settings.speech, run.settings.copies)
    key, x = jax.random.fold_in(run.key, seed), parts.train[0]
    net = network(at, x.shape[1:])
    params, state = net.init(key)
    result = training.fit(
        key, training.cross_entropy(net.train, mutable=True), params, parts.train, state=state,
        optimizer=cosine_adam(RATE, at.epochs * (len(x) // at.batch_size)), epochs=at.epochs,
        batch_size=at.batch_size, progress=False, checkpoint=run.work / f"net{seed}.safetensors",
    )  # fmt: skip
    params, state = result.params, result.state
    space = SearchSpace.read(net.evaluate, params, state, x[:1])
    held = tuple(part[: at.validation] for part in parts.held)
    candidates = search.Candidates(
        net.evaluate, params, parts.train, held, space, state=state, train=net.train,
        steps=at.steps, batch_size=at.step_recordings, optimizer=optax.sgd(0.02, momentum=0.9),
    )  # fmt: skip
    known = search.sensitivity(
        net.evaluate, params, jnp.asarray(x[: at.sensed]), space, actions(at), state=state
    )
    return Subject(candidates, known, parts)


def actions(settings: Settings) -> Actions:
    """Says what searchers decide: channels."""
    return Actions("pruning", settings.round_to)


@functools.lru_cache(maxsize=1)
def counter(run: Run[Settings]) -> tuple[search.Latency, SearchSpace]:
    """Makes the count of any candidate's cycles, by untrained weights, which is kept.

    Channels decide them: what weights change is how well Vela packs these, and is in the rows.
    """
    at, parts = run.settings, recordings(run.settings.speech, run.settings.copies)
    x = parts.train[0]
    net = network(at, x.shape[1:])
    params, state = net.init(run.key)
    space = SearchSpace.read(net.evaluate, params, state, x[:1])
    candidates = search.Candidates(
        net.evaluate, params, parts.train, parts.held, space, state=state, train=net.train,
        batch_size=at.step_recordings, steps=0,
    )  # fmt: skip
    counted = vela_latency(jnp.asarray(x[:CALIBRATED]), accelerator=at.accelerator)
    same = {"accelerator": at.accelerator, "width": at.width, "blocks": at.blocks}
    kept = Journal(run.work / "cycles.jsonl", same)

    def cycles(candidate: Candidate) -> float:
        channels = np.asarray(candidate.policy.kept).tolist()
        if channels not in kept:
            kept.add(channels, counted(Candidate(candidate.policy, space, candidates.smaller)))
        return float(kept[channels])

    return cycles, space


def macs_of(space: SearchSpace, policy: Policy) -> float:
    """Counts multiply-accumulates."""
    return float(space.macs(policy).sum())


def ordered(run: Run[Settings], task: str) -> Iterator[Row]:
    """Networks of random channels by both counts, as shares of the whole network's."""
    cycles, space = counter(run)
    rng, everything = np.random.default_rng(run.seed), space.uncompressed

    def counts(policy: Policy) -> tuple[float, float]:
        candidate = Candidate(policy, space, _untouched)
        return macs_of(space, policy), cycles(candidate)

    all_macs, all_cycles = counts(everything)
    yield {"network": "whole", "macs": all_macs, "cycles": all_cycles}
    most = run.settings.width // run.settings.round_to
    for _ in range(run.settings.drawn):
        kept = run.settings.round_to * rng.integers(1, most + 1, len(space.groups))
        macs, took = counts(dataclasses.replace(everything, kept=kept.astype(np.int32)))
        yield {
            "network": "drawn", "channels": kept.tolist(), "macs": macs, "cycles": took,
            "macs share": macs / all_macs, "share": took / all_cycles,
        }  # fmt: skip


def _untouched(policy: Policy) -> Any:
    raise AssertionError("the count cuts a network of its own")


def find(run: Run[Settings], task: tuple[int, float, str]) -> Iterator[Row]:
    """Searches, trains on what was found, and judges it; or the whole network, treated alike."""
    seed, target, way = task
    at, subject = run.settings, trained(run, seed)
    (cycles, _), space = counter(run), subject.candidates.space
    key = jax.random.fold_in(jax.random.fold_in(run.key, seed), 1)
    policy, row = space.uncompressed, {"seed": seed, "target": target, "way": way}
    if way != WHOLE:
        outcome = search.search_among(
            key, subject.candidates, latency=LookedUp(cycles) if way == CYCLES else cycles,
            target=target, actions=actions(at), episodes=at.episodes, known=subject.known,
            agent=search.Knapsack(2 * (at.width // at.round_to)), progress=False,
        )  # fmt: skip
        policy = outcome.best
        row["episode"], row["searched"] = outcome.top["episode"], outcome.top["accuracy"]
        row["ratios"] = [episode.get("ratio") for episode in outcome.episodes]
    eight = np.full(len(space.sites), 8, np.int32)
    policy = Policy(np.asarray(policy.kept), np.full_like(eight, INT8), eight, eight)
    expected, full = (
        cycles(Candidate(each, space, _untouched)) for each in (policy, space.uncompressed)
    )
    accuracy, took = finished(at, subject, key, policy)
    full_macs = macs_of(space, space.uncompressed)
    yield {
        **row, "macs": macs_of(space, policy), "macs share": macs_of(space, policy) / full_macs,
        "cycles": took, "share": took / full, "of weights": abs(took / expected - 1),
        "accuracy": accuracy, "recordings": len(subject.parts.test[1]),
        "channels": np.asarray(policy.kept).tolist(),
    }  # fmt: skip


def finished(at: Settings, subject: Subject, key: jax.Array, policy: Policy) -> tuple[float, float]:
    """Trains on in eight bits, converts to integers, and measures accuracy and cycles."""
    parts, candidates = subject.parts, subject.candidates
    count = len(parts.train[1]) * at.retrained // (1 + at.copies)
    data = tuple(part[:count] for part in parts.train)
    small = candidates.smaller(policy).retrained(
        key, data, epochs=1, batch_size=at.batch_size,
        optimizer=cosine_adam(RATE, count // at.batch_size), progress=False,
    )  # fmt: skip
    ranges = jnp.asarray(parts.train[0][:CALIBRATED])
    g, codes = small.integer(ranges)
    x, labels = parts.test
    told = np.asarray(jax.jit(g)(codes, jnp.asarray(x))).argmax(-1)
    counted = vela_latency(ranges, accelerator=at.accelerator)
    took = counted(Candidate(policy, candidates.space, lambda _: small))
    return float((told == labels).mean()), took


def tasks(run: Run[Settings]) -> list[tuple[int, float, str]]:
    """Every search, and the whole network, of a seed before the next."""
    at = run.settings
    return [
        (seed, target, way)
        for seed in range(at.seeds)
        for target in (1.0, *at.targets)
        for way in ((WHOLE,) if target == 1.0 else (CYCLES, MACS))
    ]


COLUMNS = ("macs share", "share", "cycles", "macs", "accuracy")
FOUND, DRAWN = h.where(part=SEARCHES), h.where(network="drawn")
AVERAGES = h.means(FOUND, ("way", "target"), COLUMNS, ("accuracy", "share", "macs share"))


def curve(rows: list[Row], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists shares of cycles and accuracies of what MACs found, the whole network last."""
    points = sorted(
        (row["share"], row["accuracy"])
        for row in rows
        if row["seed"] == seed and row["way"] in (MACS, WHOLE)
    )
    shares, accuracies = np.array(points).T
    return shares, accuracies


def needed(shares: np.ndarray, accuracies: np.ndarray, accuracy: float) -> float:
    """Interpolates the least share of cycles at which a curve reaches an accuracy.

    Below the smallest network it goes on to chance, which takes no cycles.
    """
    shares, accuracies = np.r_[0, shares], np.r_[1 / CLASSES, accuracies]
    # Points that are no better than a smaller network's say nothing of what an accuracy needs.
    best = np.maximum.accumulate(accuracies)
    better = np.r_[True, best[1:] > best[:-1]]
    return float(np.interp(accuracy, best[better], shares[better]))


def gains(report: Report) -> Iterator[Row]:
    """Selects what being told cycles gains over MACs, at each target and on average.

    ``gain`` is accuracy at equal cycles, ``saved`` the share of cycles at equal accuracy; ``tie``
    and ``saved tie`` are what seeds explain.
    """
    rows = FOUND(report)
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for (target,), same in sorted(h.grouped(rows, "target").items(), reverse=True):
        pairs = []
        for row in same:
            if row["way"] == CYCLES:
                points = curve(rows, row["seed"])
                gain = row["accuracy"] - float(np.interp(row["share"], *points))
                pairs.append((gain, 1 - row["share"] / needed(*points, row["accuracy"])))
                by_seed.setdefault(row["seed"], []).append(pairs[-1])
        if pairs:
            yield {"target": target, "at": f"{target:g}", **_averaged(pairs)}
    if by_seed:
        averages = [tuple(np.mean(pairs, 0).tolist()) for pairs in by_seed.values()]
        yield {"at": MEAN, **_averaged(averages)}


def _averaged(pairs: list[tuple[float, float]]) -> Row:
    gained, saved = zip(*pairs, strict=True)
    return {
        "seeds": len(pairs), "gain": float(np.mean(gained)), "tie": margins.margin(gained),
        "saved": float(np.mean(saved)), "saved tie": margins.margin(saved),
    }  # fmt: skip


def of_mean(row: Row) -> bool:
    """Whether a row is of all targets."""
    return bool(row["at"] == MEAN)


def orders(report: Report) -> Iterator[Row]:
    """Selects how well MACs foretell cycles, over networks of random channels."""
    rows = DRAWN(report)
    if len(rows) > 2:
        macs, cycles = (np.array([row[name] for row in rows]) for name in ("macs share", "share"))
        yield {
            "networks": len(rows),
            "rank": float(scipy.stats.spearmanr(macs, cycles).statistic),
            "otherwise": (1 - float(scipy.stats.kendalltau(macs, cycles).statistic)) / 2,
            "least": float((cycles / macs).min()), "most": float((cycles / macs).max()),
        }  # fmt: skip


def lines(report: Report) -> Iterator[Row]:
    """Selects means over seeds, with the whole network at the end of each way."""
    rows = sorted(AVERAGES(report), key=lambda row: row["share"])
    for way in (CYCLES, MACS):
        yield from ({**row, "way": way} for row in rows if row["way"] in (way, WHOLE))


def dots(report: Report) -> Iterator[Row]:
    """Selects every network that was found or drawn, and says which it is."""
    for way in (CYCLES, MACS):
        yield from ({**row, "told": f"told {way}"} for row in h.where(way=way)(report))
    yield from ({**row, "told": "random"} for row in DRAWN(report))


def landings(report: Report) -> Iterator[Row]:
    """Selects how far networks are off the cycles asked for, and what their weights change."""
    for (way, target), rows in h.grouped(FOUND(report), "way", "target").items():
        if way != WHOLE:
            yield {
                "way": way, "target": target,
                "off": max(abs(row["share"] / target - 1) for row in rows),
                "of weights": max(row["of weights"] for row in rows),
            }  # fmt: skip


def diagonal(axis: Any, report: Report) -> None:
    """Marks where both shares are the same."""
    axis.plot([0, 1], [0, 1], color="grey", linestyle=":")


CLAIMS = (
    h.Claim("told {way}, at {target:g}: cycles off what was asked, of the furthest seed", "off",
            h.at_most(NEAR), "no number", landings, "default"),
    h.Claim("mean of targets: accuracy that cycles gain over MACs at equal cycles, above "
            "{bound:.3f}", "gain", h.above("tie"), "no number", gains, "default", when=of_mean),
    h.Claim("at {at}: accuracy that cycles gain over MACs at equal cycles, above {bound:.3f}",
            "gain", h.above("tie"), "no number", gains, "default",
            when=lambda row: not of_mean(row)),
    h.Claim("mean of targets: share of cycles that cycles save at equal accuracy, above "
            "{bound:.3f}", "saved", h.above("saved tie"), "no number", gains, "default",
            when=of_mean),
    h.Claim("pairs of random networks that MACs order otherwise than cycles", "otherwise",
            h.at_most(ORDERED), "no number", orders, "default"),
    h.Claim("told {way}, at {target:g}: share of its cycles that a network's weights change",
            "of weights", h.at_most(SAME), "no number", landings),
)  # fmt: skip

PLOTS = (
    h.Plot(
        "frontier",
        h.Curves(
            "share", "accuracy", lines, "told {way}", error=True,
            axes={"xlabel": "Vela's cycles, share of the whole network's",
                  "ylabel": "accuracy in int8, other speakers"},
        ),
        h.Curves(
            "macs share", "share", dots, "{told}", style="o", then=diagonal,
            axes={"xlabel": "MACs, share of the whole network's",
                  "ylabel": "Vela's cycles, share"},
        ),
    ),
)  # fmt: skip

TABLES = (
    h.Listing("means over seeds", ("way", "target", "seeds", *COLUMNS, "accuracy error"), AVERAGES),
    h.Listing("what cycles gain over MACs, and half of the 95 % intervals",
              ("at", "seeds", "gain", "tie", "saved", "saved tie"), gains),
    h.Listing("how MACs order networks of random channels", of=orders),
    h.Listing("what was found", ("seed", "target", "way", "share", "macs share", "accuracy",
              "searched", "episode", "channels"), FOUND),
)  # fmt: skip

STUDY = h.Study(
    "ethos_search", __doc__,
    {
        "fast": Settings(speech=False, width=16, blocks=2, copies=1, targets=(0.75,), episodes=2,
                         steps=2, sensed=32, retrained=2, seeds=2, drawn=3,
                         round_to=4),
        "default": Settings(),
        "full": Settings(copies=29, targets=(0.8, 0.6, 0.45, 0.3, 0.25), episodes=20, steps=48,
                         retrained=30, seeds=10, drawn=200),
    },
    (
        h.Part(lambda run: [ORDER], ordered, mark={"part": ORDER}),
        h.Part(tasks, find, mark={"part": SEARCHES}),
    ),
    CLAIMS, PLOTS, TABLES,
    (
        "Cycles are Vela's estimates by its own model of the accelerator: nothing was run on one.",
        "Recordings are those of the test archive of Speech Commands alone, split by speaker.",
        "Candidates of a search are judged in float32, as Vela's cycles depend on channels alone; "
        "what is found is in int8, and its accuracy that of JAX's integers.",
    ),
    settle=settle,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
