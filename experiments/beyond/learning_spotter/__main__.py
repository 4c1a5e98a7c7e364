"""A keyword spotter that learns a word from a few recordings, or a speaker, where it is.

    python -m experiments.beyond.learning_spotter [--fast]

A network of depthwise separable convolutions over cepstra is trained without one of ten words, and
converted to whole numbers of eight bits. `jaxeff.adapters.learner` then tells it 1, 5 or 20
recordings of that word, one after the other and several times, by plain gradient steps of its last
layer in floating point, or of low-rank updates of it; either the new ones alone, or each followed
by some of the other classes, of which the device keeps a few. Beside it all layers are trained in
floats by the same steps. Recordings of other speakers say what it knows afterwards: the new word,
and what was forgotten.

A speaker that nothing was trained on is learnt from 1, 5 or 20 of his recordings, and tested on
his others. Words are also told to a head and low-rank updates whose state has 16 bits, the same
recordings as to those in floats. The step is a C library for a Cortex-M4, whose results are JAX's,
with and without learning, of either state. One that watches as well
(`jaxeff.uncertainty.monitor`) goes a walk in an emulator: it hears other speakers, then three
recordings of the new word, is told them, hears the word of other speakers, and, watching anew, what
drowns in noise by and by.

`--fast` has tones in place of words, needs no data and has no speakers. Speech Commands is read
from `JAXEFF_DATA`, of which the 4,890 recordings of its test archive are enough.
"""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jaxeff_export
import numpy as np
import optax
from jaxeff_export.clib import CLibrary, ExampleProgram

import jaxeff
from experiments import harness as h
from experiments.beyond.keyword_spotting.recordings import FRONT, WORDS, moved, tones
from experiments.beyond.learning_spotter import learning, walk
from experiments.beyond.learning_spotter.learning import Body, Recordings
from experiments.beyond.microcontroller.moments import has_toolchain
from experiments.harness import Count, Report, Row, Run
from jaxeff import data
from jaxeff.adapters import learner

CORE = "cortex-m4"
SPEAKERS = 40  # recordings of somebody who is learnt, at least
WORDS_PART, SPEAKERS_PART, STATES_PART = "words", "speakers", "states"
BOARD, WALK = "board", "walk"
FLOATS, CODES = "float32", "int16"
Sounding = tuple[Body, np.ndarray, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Settings:
    """How networks are trained, and what they are told."""

    speech: bool = True  # whether recordings are words, or tones
    networks: Count = 3  # each trained without another word
    epochs: Count = 16  # of the training before
    width: Count = 32  # channels
    blocks: Count = 3  # pairs of a depthwise and a pointwise convolution
    examples: tuple[int, ...] = (1, 5, 20)  # recordings that are told
    draws: Count = 10  # of the recordings that are told
    passes: Count = 10  # times that each is told
    remembered: Count = 8  # recordings of each other class that the device keeps
    between: Count = 3  # of those that are told behind each new one
    rate: float = 0.002  # of the steps
    voices: Count = 12  # speakers that are learnt
    steps: Count = 12  # that the emulator runs
    stream: Count = 100  # recordings that a device hears before it is told a word, and in noise
    loudest: float = 3000.0  # deviation of that noise at last, where a sample is up to 32,767


def read(settings: Settings) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Reads sound, labels and speakers to learn from, and sound and labels of other speakers."""
    if not settings.speech:
        recordings = tones()
        return (*recordings.train, np.full(len(recordings.train[1]), "")), recordings.test
    commands = data.speech_commands()
    train = commands.train_audio, commands.train_labels, np.asarray(commands.train_speakers)
    return train, (commands.test_audio, commands.test_labels)


def sounds(settings: Settings) -> tuple[Recordings, Recordings, Recordings]:
    """Reads recordings to learn from, the same moved in time, and those of other speakers."""
    (audio, *rest), test = read(settings)
    known, more = (Recordings.of(each, *rest) for each in (audio, moved(audio, 0)))
    return known, more, Recordings.of(*test)


def body_of(run: Run[Settings], seed: int, of: Recordings) -> Body:
    """Trains a network."""
    at = run.settings
    return learning.trained(jax.random.fold_in(run.key, seed), of, at.epochs, at.width, at.blocks)


def new_word(run: Run[Settings], seed: int) -> Iterator[Row]:
    """One network, which is told a word that it doesn't know."""
    at, word = run.settings, (3 * seed + 1) % WORDS
    known, more, others = sounds(at)
    old = known.y != word
    body, is_new = body_of(run, seed, known[old] + more[old]), others.y == word
    rng = np.random.default_rng(seed)
    for name in learning.WAYS:
        learns = learning.way(name, body, at.rate)
        before = float(learns.right_before(others)[~is_new].mean())
        for examples in at.examples:
            orders = []
            for _ in range(at.draws):
                new = rng.choice(np.flatnonzero(known.y == word), examples, replace=False)
                kept = learning.some_of_others(rng, known.y, word, at.remembered)
                rehearsed = [] if name == learning.HEAD else kept.tolist()
                orders.append(learning.order(rng, new.tolist(), rehearsed, at.passes, at.between))
            states = learns.all(np.stack(orders), known)
            right = learns.told(states, others.x) == others.y
            recalled, rest = right[:, is_new].mean(1), right[:, ~is_new].mean(1)
            yield {
                "way": name, "network": seed, "examples": examples, "steps": len(orders[0]),
                "new": float(recalled.mean()), "before": before, "others": float(rest.mean()),
                "forgotten": float(before - rest.mean()), "all": float(right.mean()),
                "least": float(recalled.min()), "most": float(recalled.max()),
            }  # fmt: skip


def kept_states(run: Run[Settings], task: list[Any]) -> Iterator[Row]:
    """One network, which is told a word in a state of floats and in one of 16 bits."""
    at, seed = run.settings, int(task[1])
    word = (3 * seed + 1) % WORDS
    known, more, others = sounds(at)
    old, is_new = known.y != word, others.y == word
    body, rng = body_of(run, seed, known[old] + more[old]), np.random.default_rng(seed)
    ways = learning.HEAD, learning.REHEARSED, learning.ADAPTED
    # By a tenth of the rate, most updates are below half a step of the codes.
    for name, rate in itertools.product(ways, (at.rate, at.rate / 10)):
        learners = {
            FLOATS: learning.way(name, body, rate),
            CODES: learning.way(name, body, rate, CODES),
        }
        for examples in at.examples:
            orders = []
            for _ in range(at.draws):
                new = rng.choice(np.flatnonzero(known.y == word), examples, replace=False)
                kept = learning.some_of_others(rng, known.y, word, at.remembered)
                rehearsed = [] if name == learning.HEAD else kept.tolist()
                orders.append(learning.order(rng, new.tolist(), rehearsed, at.passes, at.between))
            classes = {
                dtype: learns.told(learns.all(np.stack(orders), known), others.x)
                for dtype, learns in learners.items()
            }
            for dtype, learns in learners.items():
                right = classes[dtype] == others.y
                yield {
                    "way": name, "rate": rate, "examples": examples, "state in": dtype,
                    "network": seed, "new": float(right[:, is_new].mean()),
                    "others": float(right[:, ~is_new].mean()), "all": float(right.mean()),
                    "alike": float((classes[dtype] == classes[FLOATS]).mean()),
                    "bytes": learns.state_bytes,
                }  # fmt: skip


def new_speaker(run: Run[Settings], task: str) -> Iterator[Row]:
    """One network, which is told recordings of speakers that it doesn't know."""
    at = run.settings
    known, more, others = sounds(at)
    names, counts = np.unique(known.speakers[known.speakers != ""], return_counts=True)
    voices = names[counts >= SPEAKERS][: at.voices]
    is_rest = ~np.isin(known.speakers, voices)
    body, rng = body_of(run, 100, known[is_rest] + more[is_rest]), np.random.default_rng(100)
    for name in (learning.HEAD, learning.REHEARSED, learning.FLOATS):
        learns = learning.way(name, body, at.rate)
        elsewhere = float(learns.right_before(others).mean())
        for voice in voices:
            said = np.flatnonzero(known.speakers == voice)
            mixed = rng.permutation(said)
            tested = known[mixed[max(at.examples) :]]
            before = float(learns.right_before(tested).mean())
            kept = rng.choice(
                np.flatnonzero(is_rest), at.remembered * learning.CLASSES, replace=False
            )
            for examples in at.examples:
                rehearsed = [] if name == learning.HEAD else kept.tolist()
                orders = [
                    learning.order(rng, mixed[:examples].tolist(), rehearsed, at.passes, 1)
                    for _ in range(2)
                ]
                states = learns.all(np.stack(orders), known)
                after, there = (
                    float((learns.told(states, each.x) == each.y).mean())
                    for each in (tested, others)
                )
                yield {
                    "way": name, "speaker": str(voice), "examples": examples, "before": before,
                    "after": after, "else before": elsewhere, "else after": there,
                }  # fmt: skip


def on_a_board(run: Run[Settings], task: str) -> Iterator[Row]:
    """The step from samples, with and without learning."""
    if not has_toolchain(CORE):
        run.say(f"without a microcontroller: no compiler for a {CORE}")
        return
    sounding = of_tones(run)
    yield learning_library(run, sounding, "learns", None)
    body, example, (audio, _) = sounding
    g = jaxeff.integer(body.f, body.spec)

    def tells(codes: Any, audio: Any) -> Any:
        return g(codes, FRONT.fixed(audio)[None, :, None])

    with tempfile.TemporaryDirectory() as home:
        bundle = jaxeff_export.deploy(
            tells, (g.convert(body.params, example), audio[0]), target=CORE
        )
        library = bundle.export_c(f"{home}/tells", name="tells")
        yield {"library": "only tells", **walk.costs(library, CORE)}


def in_16_bits(run: Run[Settings], task: str) -> Iterator[Row]:
    """The step from samples, whose state has 16 bits."""
    if not has_toolchain(CORE):
        return
    yield learning_library(run, of_tones(run), "learns in 16 bits", CODES)


def of_tones(run: Run[Settings]) -> Sounding:
    """Trains a network on tones; beside it, features as it takes them, and sound with labels."""
    recordings = tones(8)
    body = body_of(run, 200, Recordings.of(*recordings.train))
    example = Recordings.of(recordings.train[0][:1], recordings.train[1][:1]).x
    audio, words = (each[: run.settings.steps] for each in recordings.test)
    return body, example, (audio, words[:, None])


def learning_library(run: Run[Settings], sounding: Sounding, name: str, dtype: str | None) -> Row:
    """Compiles a step that learns, compares it with JAX and counts what it takes."""
    at, (body, example, (audio, words)) = run.settings, sounding
    step, codes, state = learner(
        body.f, body.params, example, body.spec, optimizer=optax.sgd(at.rate), dtype=dtype
    )

    def learns(codes: Any, audio: Any, word: Any, state: Any) -> Any:
        return step(codes, FRONT.fixed(audio)[None, :, None], word, state)

    with tempfile.TemporaryDirectory() as home:
        bundle = jaxeff_export.deploy(
            learns, (codes, audio[0], words[0], state), target=CORE, state=("state",)
        )
        library = bundle.export_c(f"{home}/learns", name="learns")
        return {
            "library": name,
            "steps": len(audio),
            **_compared(library, learns, codes, state, audio, words),
            "state": sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state)),
            **walk.costs(library, CORE),
        }


def a_walk(run: Run[Settings], task: str) -> Iterator[Row]:
    """One library: it tells words, is told a new one, and hears what drowns in noise."""
    if not has_toolchain(CORE):
        return
    at, word, rng = run.settings, 1, np.random.default_rng(300)
    (audio, labels, _), (sound, truth) = read(at)
    known, more, others = sounds(at)
    old = known.y != word
    body = body_of(run, 300, known[old] + more[old])
    usual = rng.permutation(np.flatnonzero(truth != word))
    held, before, drowning = np.split(usual, [len(usual) - 2 * at.stream, len(usual) - at.stream])
    step, codes, state = walk.watched(run.key, body, at.rate, (others.x[held], others.y[held]))
    few = rng.choice(np.flatnonzero(labels == word), 3, replace=False)
    kept = learning.some_of_others(rng, labels, word, at.remembered)
    again = np.flatnonzero(truth == word)[: at.stream]
    new, rest = (walk.Heard(audio[i], labels[i], walk.FIRST) for i in (few, kept))
    heard = [
        walk.Heard(sound[before], truth[before], walk.USUAL),
        new,
        walk.told(rng, new, rest, at.passes, at.between),
        walk.Heard(sound[again], truth[again], walk.LEARNT),
        walk.Heard(walk.in_noise(rng, sound[drowning], at.loudest), truth[drowning], walk.NOISY),
    ]
    yield from walk.go(step, codes, state, heard, CORE)


def _compared(
    library: CLibrary, learns: Any, codes: Any, state: Any, audio: np.ndarray, words: np.ndarray
) -> Row:
    """Runs a library over recordings.

    Returns:
        In how many steps all results have JAX's bits, in how many the states have them, and the
        largest difference of logits and of learnt floats.
    """
    calls, expected, _ = walk.in_jax(jax.jit(learns), codes, state, audio, words)
    program = ExampleProgram(library, CORE)
    differences = []
    for ours, theirs in zip(program.run_all(calls), expected, strict=True):
        pairs = zip(ours, theirs, strict=True)
        differences.append([float(np.abs(a - b.astype(np.float64)).max()) for a, b in pairs])
    program.close()
    table = np.array(differences)
    return {
        "same": int((table == 0).all(1).sum()),
        "states alike": int((table[:, 1:] == 0).all(1).sum()),
        "largest": float(table.max()),
    }


def of_words(report: Report) -> Any:
    """Selects means over networks."""
    columns = "new", "others", "forgotten", "all"
    rows = h.where(part=WORDS_PART)
    return h.means(rows, ("way", "examples", "steps"), columns, ("new", "all"))(report)


def of_speakers(report: Report) -> Any:
    """Selects means over speakers."""
    columns = "before", "after", "else before", "else after"
    rows = h.where(part=SPEAKERS_PART)
    return h.means(rows, ("way", "examples"), columns, ("after",))(report)


def of_states(report: Report) -> Any:
    """Selects means over networks, of states in floats and in 16 bits."""
    by, columns = (
        ("way", "rate", "examples", "state in"),
        ("new", "others", "all", "alike", "bytes"),
    )
    return h.means(h.where(part=STATES_PART), by, columns, ())(report)


def halves(report: Report) -> Iterator[Row]:
    """Selects what 16 bits make of most examples, for each way and rate."""
    rows = {
        (row["way"], row["rate"], row["examples"], row["state in"]): row
        for row in of_states(report)
    }
    most = max((examples for *_, examples, _ in rows), default=None)
    for (way, rate, examples, dtype), ours in rows.items():
        if dtype == CODES and examples == most:
            floats = rows[way, rate, examples, FLOATS]
            yield {
                "way": way, "rate": rate, "alike": ours["alike"],
                "lost": floats["all"] - ours["all"], "size": ours["bytes"] / floats["bytes"],
            }  # fmt: skip


def compared(report: Report) -> Iterator[Row]:
    """Selects what most examples make of each way, beside another."""
    rows = {(row["way"], row["examples"]): row for row in of_words(report)}
    if not rows:
        return
    most, least = max(k for _, k in rows), min(k for _, k in rows)
    ours, alone, floats = (
        rows[name, most] for name in (learning.REHEARSED, learning.HEAD, learning.FLOATS)
    )
    yield {
        "examples": most,
        "new": ours["new"],
        "forgotten": ours["forgotten"],
        "kept": alone["forgotten"] - ours["forgotten"],
        "more": ours["new"] - rows[learning.REHEARSED, least]["new"],
        "floats": floats["all"] - ours["all"],
    }


def voices(report: Report) -> Iterator[Row]:
    """Selects what a speaker's recordings bring."""
    rows = [row for row in of_speakers(report) if row["way"] == learning.REHEARSED]
    if rows:
        last = max(rows, key=lambda row: row["examples"])
        yield {
            "examples": last["examples"],
            "gain": last["after"] - last["before"],
            "lost": last["else before"] - last["else after"],
        }


COLUMNS = {
    WORDS_PART: ("way", "examples", "steps", "new", "others", "forgotten", "all"),
    STATES_PART: ("way", "rate", "examples", "state in", "new", "others", "all", "alike", "bytes"),
    SPEAKERS_PART: ("way", "examples", "before", "after", "else before", "else after"),
    WALK: ("phase", "calls", "right", "unknown", "alarm after", "same"),
    BOARD: (
        "library", "steps", "same", "states alike", "largest", "instructions", "millijoules",
        "code", "parameters", "workspace", "stack", "state",
    ),
}  # fmt: skip
LEARNS = h.where(part=BOARD, library="learns")
LEARNS_CODES = h.where(part=BOARD, library="learns in 16 bits")
STUDY = h.Study(
    "learning_spotter", __doc__,
    {
        "fast": Settings(speech=False, networks=1, epochs=10, width=32, blocks=2, draws=2,
                         passes=4, examples=(1, 5), steps=4, stream=20),
        "default": Settings(),
        "full": Settings(networks=10, epochs=30, draws=20, voices=40),
    },
    (
        h.Part(lambda run: list(range(run.settings.networks)), new_word,
               mark={"part": WORDS_PART}),
        h.Part(lambda run: [SPEAKERS_PART], new_speaker, when=lambda settings: settings.speech,
               mark={"part": SPEAKERS_PART}),
        h.Part(lambda run: [BOARD], on_a_board, mark={"part": BOARD}),
        h.Part(lambda run: ["a walk"], a_walk, mark={"part": WALK}),
        h.Part(lambda run: [[STATES_PART, i] for i in range(run.settings.networks)], kept_states,
               mark={"part": STATES_PART}),
        h.Part(lambda run: ["in 16 bits"], in_16_bits, mark={"part": BOARD}),
    ),
    (
        h.Claim("a new word of {examples} recordings: share that is recognized", "new",
                h.at_least(0.5), "no number", compared, "default"),
        h.Claim("accuracy of the other classes that is lost for it", "forgotten", h.at_most(0.1),
                "no number", compared, "default"),
        h.Claim("the same without recordings that are kept, more than with them", "kept",
                h.above(0), "no number", compared, "default"),
        h.Claim("recognized from {examples} recordings, more than from one", "more", h.above(0),
                "no number", compared, "default"),
        h.Claim("accuracy of all classes: all layers in floats over the head", "floats",
                h.at_most(0.05), "no number", compared, "default"),
        h.Claim("a speaker of {examples} recordings: accuracy gained on others of his", "gain",
                h.above(0), "no number", voices, "default"),
        h.Claim("accuracy of other speakers that is lost for it", "lost", h.at_most(0.05),
                "no number", voices, "default"),
        h.Claim("learning in C: largest difference from JAX", "largest", h.at_most(1e-5),
                "no number", LEARNS),
        h.Claim("16 bits, {way}, rate {rate:g}: bytes over those of floats", "size",
                h.at_most(0.52), "no number", halves),
        h.Claim("16 bits, {way}, rate {rate:g}: recordings that get the class of floats",
                "alike", h.at_least(0.98), "no number", halves, "default"),
        h.Claim("16 bits, {way}, rate {rate:g}: accuracy lost", "lost", h.at_most(0.01),
                "no number", halves, "default"),
        h.Claim("learning in C, 16 bits: steps whose states have JAX's bits", "states alike",
                h.equals("steps"), "{steps}", LEARNS_CODES),
        h.Claim("learning in C, 16 bits: largest difference of logits", "largest",
                h.at_most(1e-5), "no number", LEARNS_CODES),
        h.Claim("{phase}: calls that decide as JAX does", "same", h.equals("calls"), "{calls}",
                h.where(part=WALK)),
        h.Claim("{phase}: alarm", lambda row: row["alarm after"] is not None, h.equals(False),
                "none", h.where(part=WALK, phase=walk.USUAL)),
        h.Claim("{phase}: recordings before the alarm",
                lambda row: row["alarm after"] or row["calls"] + 1, h.at_most("calls"),
                "{calls}", h.where(part=WALK, phase=walk.NOISY), "default"),
        h.Claim("{phase}: share that is right", "right", h.above(1 / learning.CLASSES),
                "no number", h.where(part=WALK, phase=walk.LEARNT), "default"),
    ),
    (
        h.Plot("words", h.Curves("examples", "new", of_words, hue="{way}", error=True, style="o-",
               axes={"xlabel": "recordings of the word", "ylabel": "recognized", "xscale": "log"})),
        h.Plot("forgotten", h.Curves("examples", "forgotten", of_words, hue="{way}", style="o-",
               axes={"xlabel": "recordings of the word", "xscale": "log",
                     "ylabel": "accuracy of other classes lost"})),
    ),
    (
        h.Listing("a new word: recognized, others, and what is forgotten", COLUMNS[WORDS_PART],
                  of_words),
        h.Listing("a new word by states of floats, and of 16 bits: classes that are alike, bytes",
                  COLUMNS[STATES_PART], of_states),
        h.Listing("another speaker: before and after, his and of others", COLUMNS[SPEAKERS_PART],
                  of_speakers),
        h.Listing(f"a step on a {CORE}, from samples", COLUMNS[BOARD],
                  lambda report: [row for row in report.rows if "library" in row]),
        h.Listing("one library that tells, learns and watches", COLUMNS[WALK],
                  lambda report: [row for row in report.rows if "phase" in row]),
    ),
    differences=(
        "the recordings are those of the test archive of Speech Commands alone, split by speaker",
        "energy is instructions times a data sheet's nanojoules a cycle, at one cycle each",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
