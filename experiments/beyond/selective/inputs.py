"""What networks learn from and are asked about: images, spoken words and letters."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.beyond.keyword_spotting.recordings import WORDS, features
from experiments.beyond.keyword_spotting.training import standardized
from experiments.beyond.tokens.texts import texts, windows
from jaxeff import data

OUTSIDE = {"digits": "digits-ood", "fashion-mnist": "mnist", "cifar-10": "fashion-mnist"}
# Few enough that networks err: of all of them one is right about nearly every digit.
LEARNT = {
    "digits": 600, "fashion-mnist": 2000, "cifar-10": 5000, "speech-commands": 2600, "text": 6000
}  # fmt: skip
"""Inputs to learn from, by data set; a few hundred others are held out."""
LETTERS = 27


class Sets(NamedTuple):
    """Inputs and labels to learn from, held out and to test, and inputs of another kind."""

    train: tuple[Any, Any]
    held: tuple[Any, Any]
    test: tuple[Any, Any]
    outside: Any


def images(name: str, learnt: int, held: int, asked: int, patches: bool) -> Sets:
    """Images of 14 by 14 pixels, or 49 patches of four pixels each."""
    inside, outside = data.load(name), data.load(OUTSIDE[name])

    def seen(images: Any) -> Any:
        x = np.asarray(data.normalize(images, name))
        # 14 by 14 pixels, and as many channels as the network has seen.
        side = x.shape[1] // 14
        x = x[:, : 14 * side, : 14 * side]
        x = x.reshape(len(x), 14, side, 14, side, -1).mean((2, 4))
        if patches:
            x = x.reshape(len(x), 7, 2, 7, 2, -1).swapaxes(2, 3).reshape(len(x), 49, -1)
        return jnp.asarray(x, jnp.float32)

    x = np.concatenate([inside.train_images, inside.test_images])
    y = np.concatenate([inside.train_labels, inside.test_labels]).astype(np.int32)
    others = outside.test_images[:asked]
    if others.shape[-1] != x.shape[-1]:
        others = np.repeat(others[:, 2:-2, 2:-2] if len(others[0]) > 32 else others, 3, -1)
    order = np.random.default_rng(0).permutation(len(x))[: learnt + asked + held]
    train, test, held_out = (
        (seen(x[part]), jnp.asarray(y[part])) for part in np.split(order, [learnt, learnt + asked])
    )
    return Sets(train, held_out, test, seen(others))


def spoken(learnt: int, held: int, asked: int, patches: bool) -> Sets:
    """Ten spoken words as images of 49 frames by ten cepstra, or as frames.

    No speaker is in two parts: a fifth of those to learn from is held out. Inputs of another kind
    are what the speakers for testing say beside the ten words, and silence.
    """
    of, rng = data.speech_commands(), np.random.default_rng(0)

    def part(audio: Any, labels: Any, chosen: Any, count: int) -> tuple[Any, Any]:
        taken = rng.permutation(np.flatnonzero(chosen))[:count]
        return features(audio[taken]), jnp.asarray(labels[taken])

    speakers = np.unique(of.train_speakers)
    held_out = np.isin(of.train_speakers, rng.permutation(speakers)[: -(-len(speakers) // 5)])
    words = of.train_labels < WORDS
    train, y = part(of.train_audio, of.train_labels, words & ~held_out, learnt)
    tuning, tuned = part(of.train_audio, of.train_labels, words & held_out, held)
    test, expected = part(of.test_audio, of.test_labels, of.test_labels < WORDS, asked)
    others, _ = part(of.test_audio, of.test_labels, of.test_labels >= WORDS, asked)
    standard = standardized(train.mean((0, 1, 2)), train.std((0, 1, 2)))

    def seen(x: Any) -> Any:
        x = jnp.asarray(standard(x))[:, :, 0]
        return x if patches else x[..., None]

    return Sets((seen(train), y), (seen(tuning), tuned), (seen(test), expected), seen(others))


def letters(learnt: int, held: int, asked: int) -> Sets:
    """Twelve letters each, and the one that follows; of another kind are other languages."""
    rng = np.random.default_rng(0)

    def encoded(name: str) -> Any:
        plain = re.sub("[^a-z]+", " ", texts()[name].lower())
        return np.frombuffer(plain.encode(), np.uint8).astype(np.int32) % 32

    def pieces(codes: Any, count: int) -> tuple[Any, Any]:
        x = windows(codes, count, 12, rng)
        return jax.nn.one_hot(x[:, :12], LETTERS), jnp.asarray(x[:, 12])

    # Pieces may overlap: the text that is tested and the one that is held out are two halves.
    tested, held_out = np.array_split(encoded("in domain"), 2)
    return Sets(
        pieces(encoded("learnt"), learnt), pieces(held_out, held), pieces(tested, asked),
        pieces(encoded("other languages"), asked)[0],
    )  # fmt: skip
