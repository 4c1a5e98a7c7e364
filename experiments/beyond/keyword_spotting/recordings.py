"""Recordings, their split by speaker, and their features in fixed point."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import jax
import numpy as np

from jaxeff import data, nn
from jaxeff.data import DataError

WORDS = 10
"""The first so many classes are words; the others stand for none of them."""
SHIFT = 1600  # samples, a tenth of a second
FRONT = nn.LogMel(cepstra=10)
TONES = tuple(300.0 * 1.22**i for i in range(8))
_AT_ONCE = 256


@dataclass(frozen=True)
class Sounds:
    """Recordings int16 `[n, 16000]` with labels, of different speakers in each part."""

    train: tuple[np.ndarray, np.ndarray]
    held: tuple[np.ndarray, np.ndarray]  # what thresholds are taken from
    test: tuple[np.ndarray, np.ndarray]


def speech() -> Sounds:
    """Speech Commands: a fifth of the speakers tests, a sixth of the others is held out.

    Raises:
        DataError: The recordings aren't there.
    """
    commands = data.speech_commands()
    if not len(commands.train_speakers):
        raise DataError("speech-commands: the recordings have no speakers")
    # As the test's speakers are found, by another byte: no speaker is in two parts.
    codes = {
        s: hashlib.sha256(s.encode()).digest()[1] for s in set(commands.train_speakers.tolist())
    }
    held = np.array([codes[speaker] % 6 == 0 for speaker in commands.train_speakers])
    audio, labels = commands.train_audio, commands.train_labels
    test = commands.test_audio, commands.test_labels
    return Sounds((audio[~held], labels[~held]), (audio[held], labels[held]), test)


def tones(count: int = 60) -> Sounds:
    """Stands in for words where there are none: two tones after each other, in noise.

    A class is a pair of tones; of the last two one has any other pair, and one noise alone.
    """
    rng = np.random.default_rng(0)
    pairs = [(i, (3 * i + 1 + i // 8) % 8) for i in range(WORDS - 2)] + [(0, 5), (6, 2)]
    time = np.arange(16_000) / 16_000

    # Levels differ by more than what tells two words apart, as a speaker's do.
    def recording(label: int) -> np.ndarray:
        pair = pairs[label] if label < WORDS else tuple(rng.integers(0, 8, 2))
        begin, level = rng.integers(2_000, 6_000), rng.uniform(300, 6_000)
        first, second = (
            np.sin(2 * np.pi * TONES[p] * rng.uniform(0.98, 1.02) * time) for p in pair
        )
        at = np.arange(16_000) - begin
        sound = np.where(at < 3_000, first, second) * ((at >= 0) & (at < 6_000))
        noise = rng.normal(0, rng.uniform(5, 100), 16_000)
        return (level * sound * (label <= WORDS) + noise).astype(np.int16)

    def part(each: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.tile(np.arange(WORDS + 2), each).astype(np.int32)
        return np.stack([recording(int(label)) for label in labels]), labels

    return Sounds(part(count), part(count // 4), part(count // 4))


def moved(audio: np.ndarray, seed: int) -> np.ndarray:
    """Recordings that begin up to a tenth of a second earlier or later."""
    by = np.random.default_rng(seed).integers(-SHIFT, SHIFT + 1, len(audio))
    padded = np.pad(audio, ((0, 0), (SHIFT, SHIFT)))
    return np.stack([row[SHIFT + k :][: audio.shape[1]] for row, k in zip(padded, by, strict=True)])


def features(audio: np.ndarray) -> np.ndarray:
    """Cepstra, int32 `[n, frames, 1, cepstra]`."""
    of_some = jax.jit(FRONT.fixed)
    # Batches of one size, so that it is compiled once.
    padded = np.pad(audio, ((0, -len(audio) % _AT_ONCE), (0, 0)))
    parts = padded.reshape(-1, _AT_ONCE, audio.shape[1])
    features = np.concatenate([np.asarray(of_some(part)) for part in parts])
    return features[: len(audio), :, None]
