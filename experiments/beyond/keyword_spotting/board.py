"""The spotter as a C library for a microcontroller, run over recordings in the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
from flax import nnx
from jaxeff_export.clib import CLibrary, ExampleProgram, count_instructions

import jaxeff
from experiments.beyond.keyword_spotting.network import spotter
from experiments.beyond.keyword_spotting.recordings import FRONT
from experiments.beyond.keyword_spotting.training import CLASSES, Stage, standardized, unsure
from jaxeff import uncertainty
from jaxeff.compression import Int, calibrate

CORE = "cortex-m7"
NAME = "spotter"
HOP = 2
"""New frames of a step: the network's one stride."""
AT_ONCE = 500
"""Recordings after which it is said how far it is."""


def whole(stage: Stage, least: float) -> Callable[..., Any]:
    """From int16 sound to logits, and whether one of them is to be believed."""
    taken = uncertainty.selective(stage.f, unsure, least)

    def spot(params: Any, audio: jax.Array) -> Any:
        return taken(params, FRONT.fixed(audio)[None, :, None])

    return spot


def library(spot: Callable[..., Any], params: Any, audio: np.ndarray, home: str) -> CLibrary:
    """Compiles it."""
    bundle = jaxeff_export.deploy(spot, (params, audio), target=CORE)
    return bundle.export_c(f"{home}/{NAME}", name=NAME)


def run(
    made: CLibrary, audio: np.ndarray, say: Callable[[str], None] = lambda _: None
) -> tuple[np.ndarray, np.ndarray]:
    """Runs the library over recordings: logits and decisions, one after the other."""
    program, outputs = ExampleProgram(made, CORE), []
    for results in program.run_all([[sound] for sound in audio]):
        outputs.append(results)
        if len(outputs) % AT_ONCE == 0 or len(outputs) == len(audio):
            say(f"{len(outputs)} of {len(audio)} recordings emulated")
    program.close()
    logits, taken = (np.concatenate(column) for column in zip(*outputs, strict=True))
    return logits, taken.astype(bool)


def instructions(made: CLibrary) -> int:
    """Instructions of a call."""
    return count_instructions(made, CORE).total


@dataclass(frozen=True)
class Streamed:
    """A library of a step, and what JAX computes in it."""

    library: CLibrary
    expected: list[np.ndarray]
    state: int  # bytes

    def same(self) -> bool:
        """Whether result and state have JAX's bits."""
        results = ExampleProgram(self.library, CORE).run()
        return all(map(np.array_equal, results, self.expected))


def stream(width: int, blocks: int, bits: int, home: str) -> Streamed:
    """Compiles a step of a stream, for two frames: their samples, and half a frame of before."""
    rng = np.random.default_rng(0)
    cepstra = FRONT.cepstra or FRONT.bands
    f, params = jaxeff.functional(spotter(cepstra, CLASSES, width, blocks, nnx.Rngs(0)))
    standard = standardized(np.zeros(cepstra), np.full(cepstra, 500.0))
    samples = (HOP - 1) * FRONT.hop + FRONT.window
    audio = rng.normal(0, 1000, 16_000).astype(np.int16)
    window = FRONT.fixed(jnp.asarray(audio))[None, :, None]

    def scaled(params: Any, x: jax.Array) -> jax.Array:
        return f(params, standard(x))

    spec = calibrate(scaled, params, [window], {"*:linear": Int(min(bits, 8))}).spec
    g = jaxeff.integer(scaled, spec)
    codes = g.convert(params, window)
    step, state = jaxeff.streaming(g, codes, window, axis=1, hop=HOP)

    def spot(params: Any, audio: jax.Array, state: Any) -> Any:
        return step(params, FRONT.fixed(audio)[None, :, None], state)

    new = audio[:samples]
    bundle = jaxeff_export.deploy(spot, (codes, new, state), target=CORE, state=("state",))
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(spot)(codes, new, state))]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return Streamed(bundle.export_c(f"{home}/step", name="step"), expected, size)
