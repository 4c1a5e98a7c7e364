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
LETTERS = 27


class Sets(NamedTuple):
    """Inputs and labels to learn from and to test, and inputs of another kind."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    outside: Any


def images(name: str, learnt: int, asked: int, patches: bool) -> Sets:
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

    # Few to learn from: of all of them a network is right about nearly every digit.
    x = np.concatenate([inside.train_images, inside.test_images])
    y = np.concatenate([inside.train_labels, inside.test_labels]).astype(np.int32)
    others = outside.test_images[:asked]
    if others.shape[-1] != x.shape[-1]:
        others = np.repeat(others[:, 2:-2, 2:-2] if len(others[0]) > 32 else others, 3, -1)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:learnt], order[learnt : learnt + asked]
    return Sets(
        (seen(x[train]), jnp.asarray(y[train])), (seen(x[test]), jnp.asarray(y[test])),
        seen(others),
    )  # fmt: skip


def spoken(learnt: int, asked: int, patches: bool) -> Sets:
    """Ten spoken words as images of 49 frames by ten cepstra, or as frames.

    No speaker is on both sides. Inputs of another kind are what the speakers for testing say
    beside the ten words, and silence.
    """
    of, rng = data.speech_commands(), np.random.default_rng(0)

    def part(audio: Any, labels: Any, known: bool, count: int) -> tuple[Any, Any]:
        taken = rng.permutation(np.flatnonzero((labels < WORDS) == known))[:count]
        return features(audio[taken]), jnp.asarray(labels[taken])

    train, y = part(of.train_audio, of.train_labels, True, learnt)
    test, expected = part(of.test_audio, of.test_labels, True, asked)
    others, _ = part(of.test_audio, of.test_labels, False, asked)
    standard = standardized(train.mean((0, 1, 2)), train.std((0, 1, 2)))

    def seen(x: Any) -> Any:
        x = jnp.asarray(standard(x))[:, :, 0]
        return x if patches else x[..., None]

    return Sets((seen(train), y), (seen(test), expected), seen(others))


def letters(learnt: int, asked: int) -> Sets:
    """Twelve letters each, and the one that follows; of another kind are other languages."""
    rng = np.random.default_rng(0)

    def pieces(name: str, count: int) -> tuple[Any, Any]:
        plain = re.sub("[^a-z]+", " ", texts()[name].lower())
        codes = np.frombuffer(plain.encode(), np.uint8) % 32
        x = windows(codes.astype(np.int32), count, 12, rng)
        return jax.nn.one_hot(x[:, :12], LETTERS), jnp.asarray(x[:, 12])

    return Sets(
        pieces("learnt", 10 * learnt), pieces("in domain", asked),
        pieces("other languages", asked)[0],
    )  # fmt: skip
