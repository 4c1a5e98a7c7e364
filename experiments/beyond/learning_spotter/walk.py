"""One library that tells words, learns one, and watches what it hears, in an emulator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import optax
from jaxeff_export.clib import CLibrary, ExampleProgram, count_instructions

from experiments.beyond.keyword_spotting.recordings import FRONT
from experiments.beyond.learning_spotter.learning import Body, order
from experiments.harness import Row
from jaxeff import uncertainty
from jaxeff.adapters import learner

USUAL, FIRST, TOLD = "as before", "a new word, three times", "the word, told"
LEARNT, NOISY = "the word, by other speakers", "watched anew, in noise"
UNKNOWN = -1
NANOJOULES = 0.33
"""Of a cycle: 100 uA per MHz at 3.3 V, as the data sheet of an STM32L4 has it (ST DS10198)."""


@dataclass(frozen=True)
class Heard:
    """Sound int16 `[n, samples]` and what it is; unknown to the device where it isn't told."""

    audio: np.ndarray
    y: np.ndarray
    phase: str


def watched(
    key: jax.Array, body: Body, rate: float, held: tuple[np.ndarray, np.ndarray]
) -> tuple[Callable[..., Any], Any, Any]:
    """Makes ``step(codes, audio, word, state)``: told a word it learns, else it watches.

    Args:
        key: Of the watch.
        body: The network.
        rate: Of the learner's steps.
        held: Features and labels of other speakers, of which the watch makes its bins.
    """
    features, labels = held
    learns = learner(body.f, body.params, features[:1], body.spec, optimizer=optax.sgd(rate))
    learn, codes, first = learns
    logits, _ = jax.jit(learn)(codes, features, jnp.full(len(features), UNKNOWN), first)
    sets = uncertainty.conformalize(logits, labels, uncertainty.LAC(), 0.9)
    hears, codes, begin = uncertainty.watched(key, learns, features, sets, uncertainty.msp)

    def step(codes: Any, audio: Any, word: Any, state: Any) -> Any:
        seen, state = hears(codes, FRONT.fixed(audio)[None, :, None], word, state)
        return (seen.outputs, seen.unknown, seen.alarm), state

    return step, codes, begin


def told(rng: np.random.Generator, new: Heard, kept: Heard, passes: int, between: int) -> Heard:
    """Puts recordings of a word, and of those kept, in the order in which they are told."""
    audio, y = (np.concatenate(pair) for pair in ((new.audio, kept.audio), (new.y, kept.y)))
    at = order(rng, range(len(new.y)), range(len(new.y), len(y)), passes, between)
    return Heard(audio[at], y[at], TOLD)


def in_jax(
    jitted: Callable[..., Any], codes: Any, state: Any, audio: np.ndarray, words: np.ndarray
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]], Any]:
    """Computes steps one after the other.

    Returns:
        What a library gets in each call, and what it is to give, the state included; the last
        state.
    """
    calls, expected = [], []
    for sound, word in zip(audio, words, strict=True):
        calls.append([np.asarray(leaf) for leaf in jax.tree.leaves((sound, word, state))])
        said, state = jitted(codes, sound, word, state)
        expected.append([np.asarray(leaf) for leaf in jax.tree.leaves((said, state))])
    return calls, expected, state


def go(
    step: Callable[..., Any], codes: Any, state: Any, heard: list[Heard], core: str
) -> Iterator[Row]:
    """Runs the library over all that is heard, each call with the state that JAX has then."""
    calls, expected, jitted, first = [], [], jax.jit(step), state
    for one in heard:
        # An alarm stays; before something else is looked at, the watch begins anew.
        state = {**state, "watch": first["watch"]} if one.phase == NOISY else state
        labels = one.y if one.phase == TOLD else np.full(len(one.y), UNKNOWN)
        inputs, results, state = in_jax(
            jitted, codes, state, one.audio, labels.astype(np.int32)[:, None]
        )
        calls += inputs
        expected += [result[:3] for result in results]
    with tempfile.TemporaryDirectory() as home:
        library = _library(step, codes, (calls[0][0], calls[0][1], state), core, home)
        program = ExampleProgram(library, core)
        ours = [results[:3] for results in program.run_all(calls)]
        program.close()
        spent = costs(library, core)
    begin = 0
    for one in heard:
        span = slice(begin, begin + len(one.y))
        begin = span.stop
        alarms = [bool(result[2].any()) for result in ours[span]]
        yield {
            "phase": one.phase, "calls": len(one.y),
            "right": float(np.mean([r[0].argmax() == y for r, y in
                                    zip(ours[span], one.y, strict=True)])),
            "unknown": float(np.mean([bool(r[1].any()) for r in ours[span]])),
            "alarm after": alarms.index(True) + 1 if any(alarms) else None,
            "same": sum(_same(*pair) for pair in zip(ours[span], expected[span], strict=True)),
        }  # fmt: skip
    state_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
    yield {"library": "learns and watches", "state": state_bytes, **spent}


def _same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    """Whether word, refusal and alarm are JAX's, and logits up to their last bits."""
    return (
        ours[0].argmax() == theirs[0].argmax()
        and np.allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
        and all(np.array_equal(a, b) for a, b in zip(ours[1:], theirs[1:], strict=True))
    )


def _library(step: Any, codes: Any, args: tuple[Any, ...], core: str, home: str) -> CLibrary:
    bundle = jaxeff_export.deploy(step, (codes, *args), target=core, state=("state",))
    return bundle.export_c(f"{home}/spotter", name="spotter")


def costs(library: CLibrary, core: str) -> Row:
    """Counts what a library takes, and the energy of a call."""
    sizes, count = library.sizes, count_instructions(library, core).total
    return {
        "instructions": count, "millijoules": count * NANOJOULES * 1e-6, "code": sizes.code,
        "parameters": sizes.parameters, "workspace": sizes.workspace, "stack": sizes.stack,
    }  # fmt: skip


def in_noise(rng: np.random.Generator, audio: np.ndarray, loudest: float) -> np.ndarray:
    """Adds white noise that rises from recording to recording, to a deviation of `loudest`."""
    levels = np.linspace(0, loudest, len(audio))[:, None]
    noisy = audio + levels * rng.normal(size=audio.shape)
    return np.clip(np.rint(noisy), -32768, 32767).astype(np.int16)
