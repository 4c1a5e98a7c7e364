"""A keyword spotter from recordings to a Cortex-M7, and the same network through LiteRT.

    python -m experiments.beyond.keyword_spotting [--fast]

A network of depthwise separable convolutions over cepstra is trained, made narrower, trained on its
grid (LSQ) and converted to integers. What it is not sure of is none of the words, by a threshold on
held-out speakers. One C library takes 16 kHz sound and returns logits and the decision; it runs in
the emulator over all recordings, those of speakers that nothing was trained or chosen on first, and
has JAX's bits.
Another one takes what is new of a stream alone, and keeps the rest as its state; its instructions
are counted on a network of the same form, whose parameters are random.

`--fast` has tones in place of words, and needs no data. Without it Speech Commands is read from
`JAXEFF_DATA`, of which the 4,890 recordings of its test archive are enough: a fifth of their
speakers test. The paper (Warden, arXiv:1804.03209, section 7.1) trains on 36,900 recordings of the
same twelve classes and reports 88.2 % for its baseline.
"""

import tempfile
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxeff_export import ToolchainError, resolve_target
from jaxeff_export.targets import find_c_toolchain

import jaxeff
from experiments import harness as h
from experiments.beyond.keyword_spotting import board, litert
from experiments.beyond.keyword_spotting.recordings import FRONT, WORDS, Sounds, speech, tones
from experiments.beyond.keyword_spotting.training import Stage, Way, go, threshold, unsure
from experiments.beyond.microcontroller.moments import has_toolchain
from experiments.harness import Row, Run

SOURCE = 0.882
"""Accuracy of the paper's baseline, trained on nine times as many recordings."""

AGREEING = 0.99
"""Share of decisions: sums of a grid in floating point round differently, seldom past a tie."""


@dataclass(frozen=True)
class Settings:
    """How the network is trained, and what is measured."""

    speech: bool = True  # whether recordings are words, or tones
    epochs: h.Count = 8  # of the first training; the others have a half and a quarter
    copies: int = 1  # copies of the recordings, moved in time
    width: h.Count = 64  # channels
    blocks: h.Count = 3  # pairs of a depthwise and a pointwise convolution
    pruned: float = 0.25  # share of channels that go
    bits: h.Count = 8  # of weights and activations
    share: float = 0.9  # of held-out words that are recognized, the share that is to be taken
    emulated: h.Count = 5000  # recordings at most that the emulator runs, those for testing first


def measure(run: Run[Settings], task: str) -> list[Row]:
    """Goes the way, once: one training makes all of its rows."""
    of = run.settings
    if task == "stream":
        return _stream_rows(run, of)
    sounds = speech() if of.speech else tones()
    way = go(sounds, of.epochs, of.copies, of.width, of.blocks, of.pruned, of.bits)
    before = [None, *way.stages]
    rows = [stage_row(*pair, sounds, of.share) for pair in zip(way.stages, before, strict=False)]
    try:
        find_c_toolchain(resolve_target(board.CORE))
    except ToolchainError as error:
        run.say(f"without a microcontroller: {error}")
    else:
        rows.append(board_row(run, way.stages[-1], sounds, of))
    if absent := litert.missing():
        run.say(f"without LiteRT: {', '.join(absent)} not found")
    else:
        rows.append(_litert_row(way, sounds, of.share))
    return rows


def _judged(logits: np.ndarray, labels: np.ndarray, least: float) -> Row:
    best, word = logits.argmax(1), labels < WORDS
    taken = (np.asarray(unsure(jnp.asarray(logits))) <= least) & (best < WORDS)
    return {
        "recordings": len(labels),
        "accuracy": float((best == labels).mean()),
        # Of words: taken for the right one, and for a wrong one. Of others: taken for any.
        "recognized": float((taken & (best == labels))[word].mean()),
        "mistaken": float((taken & (best != labels))[word].mean()),
        "false_alarms": float(taken[~word].mean()),
    }


def stage_row(stage: Stage, before: Stage | None, sounds: Sounds, share: float) -> Row:
    """Judges a stage on recordings for testing, and compares its decisions with those before."""
    least = threshold(stage.held, sounds.held[1], share)
    named: Row = {"table": "stages", "stage": stage.name}
    if before is not None:
        # Decisions, not accuracy: two networks may be right equally often about other recordings.
        named["agrees"] = float((stage.test.argmax(1) == before.test.argmax(1)).mean())
    if stage.name != "integer":
        example = jnp.zeros((1, FRONT.frames(16_000), 1, FRONT.cepstra or FRONT.bands), jnp.int32)
        params = stage.params[0] if isinstance(stage.params, tuple) else stage.params
        cost = jaxeff.cost(stage.f, params, example)
        named |= {"parameters": cost.params, "macs": cost.macs}
    return {**named, **_judged(stage.test, sounds.test[1], least)}


def board_row(run: Run[Settings], stage: Stage, sounds: Sounds, of: Settings) -> Row:
    """Runs the last stage's library over recordings, and compares it with JAX in two ways."""
    least = threshold(stage.held, sounds.held[1], of.share)
    parts = sounds.test, sounds.held, sounds.train
    audio, labels = (np.concatenate(each)[: of.emulated] for each in zip(*parts, strict=True))
    spot = board.whole(stage, least)
    with tempfile.TemporaryDirectory() as home:
        library = board.library(spot, stage.params, audio[0], home)
        count, sizes = board.instructions(library), library.sizes
        run.say(f"{len(audio)} recordings of {count / 1e6:.1f} million instructions each")
        logits, taken = board.run(library, audio, run.say)
    call = jax.jit(spot)
    expected = [call(stage.params, sound) for sound in audio]
    same = [
        np.array_equal(ours, theirs[0]) and bool(mine) == bool(its[0])
        for ours, mine, (theirs, its) in zip(logits, taken, expected, strict=True)
    ]
    # The same decisions by another way: features and logits of whole batches, thresholds by hand.
    tests = min(len(stage.test), len(audio))
    ours = (logits.argmax(1) == labels) & taken
    by_stage = np.asarray(unsure(jnp.asarray(stage.test))) <= least
    theirs = (stage.test.argmax(1) == sounds.test[1]) & by_stage
    return {
        "table": "board", "core": board.CORE, "recordings": len(audio), "same": sum(same),
        "right": int(ours[:tests].sum()), "in_batches": int(theirs[:tests].sum()),
        "instructions": count, "workspace": sizes.workspace, "stack": sizes.stack,
        "code": sizes.code, "parameters": sizes.parameters,
        "flash": sizes.code + sizes.parameters,
    }  # fmt: skip


def _stream_rows(run: Run[Settings], of: Settings) -> list[Row]:
    if not has_toolchain(board.CORE):
        return []
    with tempfile.TemporaryDirectory() as home:
        library = board.stream(round(of.width * (1 - of.pruned)), of.blocks, of.bits, home)
        count, same, sizes = (
            board.instructions(library.library),
            library.same(),
            library.library.sizes,
        )
    return [
        {
            "table": "stream", "core": board.CORE, "hop": board.HOP, "step": count,
            "second": round(count * FRONT.rate / (board.HOP * FRONT.hop)), "same": int(same),
            "state": library.state, "workspace": sizes.workspace, "stack": sizes.stack,
            "flash": sizes.code + sizes.parameters,
        }
    ]  # fmt: skip


def _litert_row(way: Way, sounds: Sounds, share: float) -> Row:
    comparison: dict[str, Any] = litert.compare(way)
    accuracy = float((comparison["logits"].argmax(1) == sounds.test[1]).mean())
    return {
        "table": "litert", "engine": "LiteRT, int8 after training", "accuracy": accuracy,
        "ours": float((way.stages[-1].test.argmax(1) == sounds.test[1]).mean()),
        "file": comparison["bytes"], "arena": comparison["arena"],
    }  # fmt: skip


STAGES, BOARD, STREAM, LITERT = (
    h.where(table=name) for name in ("stages", "board", "stream", "litert")
)
COLUMNS = {
    "stages": (
        "stage", "recordings", "accuracy", "agrees", "recognized", "mistaken", "false_alarms",
        "parameters", "macs",
    ),
    "board": (
        "core", "recordings", "same", "right", "in_batches", "instructions", "workspace", "stack",
        "code", "parameters", "flash",
    ),
    "stream": (
        "core", "hop", "step", "second", "same", "state", "workspace", "stack", "flash",
    ),
    "litert": ("engine", "accuracy", "ours", "file", "arena"),
}  # fmt: skip
CLAIMS = (
    h.Claim(
        "recordings with JAX's bits on a {core}", "same", h.equals("recordings"), "{recordings}",
        BOARD,
    ),
    h.Claim(
        "test recordings that the library takes, and rightly: as many as in batches under JAX",
        "right", h.equals("in_batches"), "{in_batches}", BOARD,
    ),
    h.Claim(
        "integers decide as the grid that they were trained on", "agrees", h.at_least(AGREEING),
        AGREEING, h.where(table="stages", stage="integer"),
    ),
    h.Claim("a step of a stream has JAX's bits", "same", h.equals(1), 1, STREAM),
    h.Claim(
        "integers: accuracy, with a ninth of the paper's recordings", "accuracy",
        h.at_least(SOURCE), SOURCE, h.where(table="stages", stage="integer"), "full",
    ),
    h.Claim("accuracy over LiteRT's, int8", "ours", h.at_least("accuracy"), "{accuracy}", LITERT,
            "default"),
)  # fmt: skip

STUDY = h.Study(
    "keyword_spotting", __doc__,
    {
        "fast": Settings(speech=False, epochs=12, copies=0, width=32, blocks=2, emulated=24),
        "default": Settings(),
        "full": Settings(epochs=30, copies=4),
    },
    (h.Part(lambda run: ["way", "stream"], measure),), CLAIMS,
    (
        h.Plot(
            "stages",
            h.Bars(
                "{stage}",
                {"accuracy": "all classes right", "recognized": "words recognized",
                 "false_alarms": "false alarms"},
                STAGES,
                axes={"ylabel": "share of recordings"},
            ),
        ),
    ),
    (h.Listing.each(COLUMNS),),
    differences=(
        "Warden's paper trains on 36,900 recordings; here there are those of the test archive "
        "alone, split by speaker.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
