"""The spotter as a C library for a microcontroller, run over recordings in the emulator."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxeff_export
import numpy as np
from jaxeff_export.clib import CLibrary, count_instructions
from jaxeff_export.targets import emulation

from experiments.keyword_spotting.recordings import FRONT
from experiments.keyword_spotting.training import Stage, unsure
from jaxeff import uncertainty

CORE = "cortex-m7"
NAME = "spotter"
MAIN = Path(__file__).with_name("main.c")


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


def run(made: CLibrary, audio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Runs the library over recordings: logits and decisions, one after the other."""
    classes = int(made.outputs[0].shape[-1])
    # The library's own example has one call, and is linked anew for others: here a program of ours
    # reads all recordings through the emulator.
    with tempfile.TemporaryDirectory(prefix="jaxeff-spotter-") as home:
        folder = Path(home)
        for entry in made.folder.iterdir():
            shutil.copy(entry, folder / entry.name)
        shutil.copy(MAIN, folder / "main.c")
        audio.astype("<i2").tofile(folder / "recordings.bin")
        subprocess.run([*made.build, "-o", "program"], cwd=folder, check=True)
        command = emulation(CORE, made.target, folder / "program")
        subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL)
        data = (folder / "results.bin").read_bytes()
    rows = np.frombuffer(data, np.dtype([("logits", "<f4", classes), ("taken", "u1")]))
    return rows["logits"], rows["taken"].astype(bool)


def instructions(made: CLibrary) -> int:
    """Instructions of a call."""
    return count_instructions(made, CORE).total
