"""A keyword spotter whose last layer learns where it is, and that watches what it hears.

A truth that is told is of the step before, and so is what is learnt: one gradient step of the last
layer, on the features of that step. The variances of its weights stay those of the posterior.
What isn't told is watched, by two scores that learning leaves as they are: the mean variance of the
logits, which rises where sound is unlike that of the training, and the loudness of the quietest
frame, since noise makes a network no less sure. A test martingale of their p-values alarms
(`jaxeff.uncertainty.monitor`).

Sharp edges:
    A window of every 1.28 seconds is watched: those that follow each other share sound, and are
    not exchangeable.
    The alarm stays until the state is reset; false ones are one in a hundred streams, of recordings
    like those that were held out. A room's own noise is a drift from those.
    What is told one word alone forgets others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxeff import Gaussian, adapters, data, uncertainty
from jaxeff.reporting import Report
from jaxeff_export.artifact import SignatureError
from jaxeff_export.cli import _spotter as spotting
from jaxeff_export.cli._spotter import NOBODY, Function, Spotter, WeightCodes, Words
from jaxeff_export.clib import CLibrary, count_instructions

WATCHED = 32
"""Steps from a window that is watched to the next: more than a second, so that they share no sound,
and no number of seconds, so that words stand anywhere in them."""
LOUD = 2**30
"""More than the loudness of any frame."""
PASSES = 20
"""Times that recordings are told, at the most."""
FEW = 3
"""Recordings that are told."""
LOUDEST = 3000.0
"""Deviation that noise rises to, where a sample is up to 32,767."""
DROWNED = 100
"""Recordings that it rises over."""


class Watched(NamedTuple):
    """What is watched: logits, and the loudness of the quietest frame since the window before."""

    logits: Gaussian
    floor: jax.Array


def doubt(heard: Watched) -> jax.Array:
    """Computes the scores of what is watched, `[batch, 2]`."""
    return jnp.stack([heard.logits.var.mean(-1), heard.floor.astype(jnp.float32)], -1)


class _OfLogits(uncertainty.LAC):
    """`LAC` of the logits: a watch makes sets, of which a spotter uses none."""

    def region(self, outputs: Any, threshold: Any) -> Any:
        return uncertainty.LAC().region(outputs.logits, threshold)


def learning(key: Any, spotter: Spotter, words: Words, rate: float) -> tuple[Function, Any, Any]:
    """Makes a step of a stream that learns and watches, its parameters, and its first state."""
    kernel, bias = spotter.posterior["kernel"], spotter.posterior["bias"]
    means = {n: spotting.decoded(c).mean for n, c in (("kernel", kernel), ("bias", bias))}
    learn, none, first = adapters.learner(
        lambda p, x: x @ p["kernel"] + p["bias"], means, jnp.zeros((1, len(kernel.std))),
        optimizer=optax.sgd(rate),
    )  # fmt: skip

    def learns(posterior: Any, x: Any, y: Any, state: Any) -> tuple[Watched, Any]:
        seen, floor = x
        logits = spotter.head(_around(posterior, state), seen)
        return Watched(logits, floor), learn(none, seen, y, state)[1]

    # The variances alone; a mean in floating point is its own step times one.
    kept = {n: WeightCodes(None, c.std, c.steps.at[0].set(1)) for n, c in spotter.posterior.items()}
    # Of a reading the sets aren't used: those of the stream are of smoothed probabilities.
    sets = uncertainty.ConformalCalibration(jnp.float32(0), _OfLogits())
    hears, kept, adapted = uncertainty.watched(
        key, (learns, kept, first), _held(spotter, words), sets, doubt
    )
    plain, heard = spotter.stepwise(spotting.silence(), seen=True)

    def step(params: Any, frames: Any, truth: Any, state: Any) -> tuple[Any, Any]:
        codes, posterior = params
        before, last = state["adapted"]["watch"], state["heard"]
        floor = jnp.minimum(state["floor"], last["quiet"])
        _, adapted = hears(posterior, (last["seen"], floor), truth, state["adapted"])
        # Whoever tells a truth chose the sound: the watch goes on when that has passed.
        is_due, is_told = state["since"] >= WATCHED, (truth >= 0).any()
        watch = jax.tree.map(lambda new, old: jnp.where(is_due, new, old), adapted["watch"], before)
        adapted = {"learnt": adapted["learnt"], "watch": watch}
        says = codes, _around(posterior, adapted["learnt"])
        said, heard = plain(says, frames, truth, state["heard"])
        begins = is_due | is_told
        since = jnp.where(begins, 1, state["since"] + 1)
        floor = jnp.where(begins, LOUD, floor)
        said |= {"alarm": watch.alarm, "unknown_rate": watch.unknown_rate}
        return said, {"heard": heard, "adapted": adapted, "since": since, "floor": floor}

    begin = {"since": jnp.int32(0), "floor": jnp.full(1, LOUD, jnp.int32)}
    return step, (spotter.codes, kept), {"heard": heard, "adapted": adapted, **begin}


def _held(spotter: Spotter, words: Words) -> tuple[jax.Array, jax.Array]:
    """Hears held-out recordings as a stream: features and floors of the windows to watch."""
    # A stream, as what is heard later: its windows have parts of two recordings as well.
    audio = words.held[0][np.random.default_rng(0).permutation(len(words.held[1]))]
    seen, quiet = (spotting.kept_of(spotter, audio, name) for name in ("seen", "quiet"))
    before = np.full(WATCHED - 1, LOUD, np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([before, quiet]), WATCHED)
    due = slice(spotting.SECOND, None, WATCHED)
    return jnp.asarray(seen[due]), jnp.asarray(windows.min(1)[due])


def _around(posterior: Any, learnt: Any) -> Any:
    """Puts the means that are learnt into the posterior."""
    return {n: replace(c, mean=learnt["learnt"][n]) for n, c in posterior.items()}


def windows(audio: np.ndarray) -> np.ndarray:
    """Cuts recordings, end to end, into the samples of each step, `[steps, SAMPLES]`.

    The last step of a recording ends with its last frame, as its features do where it stands alone.
    """
    audio = np.concatenate([np.zeros(spotting.NEW - spotting.FRONT.hop, np.int16), audio])
    return np.lib.stride_tricks.sliding_window_view(audio, spotting.SAMPLES)[:: spotting.NEW]


@dataclass(frozen=True)
class Heard:
    """What a stream made of a spotter.

    Attributes:
        best: The class that is most probable after each step, `[steps]`.
        alarms: Whether there was an alarm by then, `[steps]`.
        state: The state after it.
    """

    best: np.ndarray
    alarms: np.ndarray
    state: Any

    def after_recordings(self) -> np.ndarray:
        """Picks the classes at the end of each recording."""
        return self.best[spotting.SECOND - 1 :: spotting.SECOND]


def hearing(step: Function, params: Any) -> Callable[..., Heard]:
    """Makes `hear(state, audio, told)` of recordings `[n, 16000]`, under JAX."""

    @jax.jit
    def scanned(state: Any, sounds: Any, truths: Any) -> Any:
        def one(state: Any, at: Any) -> Any:
            frames = spotting.FRONT.fixed(at[0])[None, :, None]
            said, state = step(params, frames, at[1][None], state)
            return state, (said["mean"].argmax(), said["alarm"])

        return jax.lax.scan(one, state, (sounds, truths))

    def hear(state: Any, audio: np.ndarray, told: Mapping[int, int]) -> Heard:
        sounds = windows(audio.reshape(-1))
        truths = np.full(len(sounds), NOBODY, np.int32)
        truths[list(told)] = list(told.values())
        state, (best, alarms) = scanned(state, sounds, truths)
        return Heard(np.asarray(best), np.asarray(alarms), state)

    return hear


def in_noise(rng: np.random.Generator, audio: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Adds white noise of a deviation for each recording."""
    noisy = audio + levels[:, None] * rng.normal(size=audio.shape)
    return np.clip(np.rint(noisy), -(2**15), 2**15 - 1).astype(np.int16)


def walk(
    step: Function, params: Any, state: Any, words: Words, seed: int
) -> tuple[dict[str, Any], np.ndarray, dict[int, int]]:
    """Tells a word that is heard wrong, and drowns others in noise.

    Returns:
        Facts; a stream for the emulated core, in which a word is told and noise is loud, as
        samples; and the truths that are told in it, by step.
    """
    rng, hear = np.random.default_rng(seed), hearing(step, params)
    audio, truth = (part[np.random.default_rng(seed).permutation(len(part))] for part in words.test)
    first = hear(state, audio, {})
    before = first.after_recordings()
    wrong = [np.flatnonzero((truth == w) & (before != w)) for w in range(words.count)]
    word = max(range(words.count), key=lambda w: len(wrong[w]))
    few = wrong[word][:FEW]
    # The truth of each comes with the step behind it: one more recording, of silence, is heard.
    lesson = np.concatenate([audio[few], np.zeros((1, audio.shape[1]), np.int16)])
    told = {(i + 1) * spotting.SECOND: word for i in range(len(few))}
    passes, learnt, right = 0, state, 0
    while passes < PASSES and right < len(few):
        learnt, passes = hear(learnt, lesson, told).state, passes + 1
        right = int((hear(learnt, audio[few], {}).after_recordings() == word).sum())
    after = hear(learnt, audio, {}).after_recordings()
    is_told = np.isin(np.arange(len(truth)), few)
    is_word, others = (truth == word) & ~is_told, truth != word
    # The same recordings with and without noise: an alarm of both would be of the recordings.
    usual = rng.permutation(len(truth))[:DROWNED]
    noise = in_noise(rng, audio[usual], np.linspace(0, LOUDEST, len(usual)))
    drowned, dry = (hear(state, part, {}).alarms for part in (noise, audio[usual]))

    def share(where: np.ndarray, best: np.ndarray) -> float:
        return float((best[where] == truth[where]).mean())

    facts = {
        "word": words.names[word], "told": len(few), "passes": passes, "right": right,
        "word_before": share(is_word, before), "word_after": share(is_word, after),
        "others_before": share(others, before), "others_after": share(others, after),
        "seconds": len(usual), "loudest": LOUDEST, "alarm_dry": _seconds(dry),
        "alarm_in_noise": _seconds(drowned), "alarm_usual": _seconds(first.alarms),
        "usual": len(truth),
    }  # fmt: skip
    loud = in_noise(rng, audio[usual[:10]], np.full(10, LOUDEST)[: len(usual)])
    length = (len(few) + 1) * spotting.SECOND
    stream = np.concatenate([*[lesson] * passes, loud]).reshape(-1)
    return facts, stream, {k * length + i: word for k in range(passes) for i in told}


def _seconds(alarms: np.ndarray) -> float | None:
    """Tells after how many seconds of a stream the first alarm comes; None where there is none."""
    return (int(alarms.argmax()) + 1) / spotting.SECOND if alarms.any() else None


# 8 parameters: what the command is asked for.
def build(
    folder: Path | None, output: Path, target: str, say: Callable[[str], None], *, seed: int,
    listened: int, begin: Path | None, rate: float | None, **options: Any,
) -> Report:  # fmt: skip
    """Goes the whole way; the output gets a bundle, a C library and the page.

    Args:
        folder: Recordings; None for tones.
        output: Folder for what is made.
        target: A microcontroller.
        say: Tells what is being done.
        seed: Seed of the split, the training and the streams.
        listened: Seconds of test recordings that the emulated core hears.
        begin: Weights that the training begins with; None for random numbers.
        rate: The rate of the steps by which the last layer learns; None where it stays as it is.
        options: Settings of `SpotterRecipe`.
    """
    words = spotting.words_of(folder, seed)
    say(f"training on {len(words.train[1])} recordings of {len(words.names)} classes")
    key, recipe = jax.random.key(seed), spotting.SpotterRecipe(**options)
    spotter = spotting.train(key, words, recipe, seed=seed, begin=begin)
    say("judging it on other speakers")
    # Measured coverage stands in place of the one asked for, which is `asked`.
    section = {**options, **spotting.measured(spotter, words, seed)}
    audio, told = words.test[0][:listened].reshape(-1), dict[int, int]()
    if rate is None:
        step, state = spotter.stepwise(spotting.silence())
        params: Any = (spotter.codes, spotter.posterior)
    else:
        say("telling it words, and drowning others")
        step, params, state = learning(key, spotter, words, rate)
        section["learning"], more, told = walk(step, params, state, words, seed)
        # The lesson follows the recordings that are only heard.
        told = {len(audio) // spotting.NEW + at: word for at, word in told.items()}
        audio = np.concatenate([audio, more])
    say(f"compiling for {target}")
    bundle, spot, args = spotting.compiled(step, params, state, target, output / "bundle")
    library = bundle.export_c(output / "library", name="spotter")
    say("listening on the emulated core")
    steps, same = spotting.emulated(library, spot, args, audio, told)
    section |= {
        "classes": list(words.names), "words": words.count, "target": target, "steps": steps,
        "same": same, **_costs(library, target),
    }  # fmt: skip
    page = Report.of_target(f"Keyword spotter of {words.count} words", bundle.facts())
    page = replace(page, sections={"spotter": section, **page.sections})
    page.save(output / "report.html")
    page.save(output / "report.json")
    return page


def _costs(library: CLibrary, target: str) -> dict[str, int]:
    """Counts what a library takes of a board, and of its time for a second of sound."""
    sizes, count = library.sizes, count_instructions(library, target).total
    return {
        "flash": sizes.code + sizes.parameters, "code": sizes.code, "parameters": sizes.parameters,
        "ram": sizes.workspace + sizes.arrays + sizes.stack, "workspace": sizes.workspace,
        "arrays": sizes.arrays, "stack": sizes.stack,
        "instructions": round(count * spotting.FRONT.rate / spotting.NEW),
    }  # fmt: skip


def classes_of(folder: Path) -> list[str]:
    """Reads the names of the classes from the page about a spotter."""
    path = folder / "report.json"
    try:
        return [
            str(name) for name in json.loads(path.read_text())["sections"]["spotter"]["classes"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SignatureError(
            f"{folder} is no output of spotter: {path} has no classes of one"
        ) from error


def class_of(told: str, classes: Sequence[str]) -> int:
    """Finds the number of a class that somebody names."""
    if told not in classes:
        raise SignatureError(f"--told {told} is no class; they are {', '.join(classes)}")
    return classes.index(told)


def sounds_of(paths: Sequence[Path], times: int, noise: float, seed: int) -> np.ndarray:
    """Reads recordings, and adds noise that rises, `[n, samples]`."""
    try:
        audio = np.stack([data.recording(path) for path in paths] * times)
    except data.DataError as error:
        raise SignatureError(str(error)) from error
    rng = np.random.default_rng(abs(seed))
    return in_noise(rng, audio, np.linspace(0, noise, len(audio))) if noise else audio


def words_heard(
    session: Any, sounds: np.ndarray, truth: int, classes: Sequence[str]
) -> Iterator[tuple[str, list[str], bool]]:
    """Yields of each recording the class at its end, the words said, and whether drift is new."""

    def step(sound: np.ndarray, of_before: int) -> Any:
        return session.step(sound, np.array([of_before], np.int32))

    of_before, was = -1, False
    for audio in sounds:
        said: dict[str, None] = {}  # in their order
        for sound in windows(audio):
            result = step(sound, of_before)
            of_before = -1
            word = int(result["said"][0])
            said |= {classes[word]: None} if word >= 0 else {}
        alarm = bool(result.get("alarm", False))
        yield classes[int(result["mean"].argmax())], list(said), alarm and not was
        # It is told with the step behind it.
        of_before, was = truth, alarm
    # The last one has no recording behind it.
    if truth >= 0:
        step(np.zeros_like(sound), truth)
