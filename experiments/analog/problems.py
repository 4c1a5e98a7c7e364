"""The classifiers: digits as images, and spoken words."""

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jaxeff
from experiments.analog.recipe import Settings
from experiments.analog.training import GAIN, Problem, calibrated
from experiments.harness import Run
from jaxeff import data
from jaxeff.analog_hardware import Crossbar
from jaxeff.nn import MLP
from jaxeff.training import cross_entropy, fit


def images(run: Run[Settings]) -> Problem:
    """Pixels from 0 to 1 of an image data set."""
    settings = run.settings
    found = data.load(settings.data)

    def scaled(x: np.ndarray) -> np.ndarray:
        return (x.reshape(len(x), -1) / 255).astype(np.float32)

    train = scaled(found.train_images[: settings.images]), found.train_labels[: settings.images]
    test = scaled(found.test_images), found.test_labels
    test = test[0][: settings.test_images], test[1][: settings.test_images]
    return _trained(run, settings.data, train, test, settings.widths, found.num_classes)


def small_images(run: Run[Settings]) -> Problem:
    """Digits of 8 by 8 pixels, from 0 to 1, on an array that sequence models can afford."""
    settings = run.settings
    found = data.load("digits")

    def scaled(x: np.ndarray) -> np.ndarray:
        x = x.reshape(len(x), -1).astype(np.float32)
        return x / x.max()

    count, size = settings.sequence_images, settings.sequence_size
    train = scaled(found.train_images)[:count], found.train_labels[:count]
    test = scaled(found.test_images), found.test_labels
    array = Crossbar(rows=size, columns=size, gain=GAIN)
    return _trained(run, "digits-small", train, test, (size,), found.num_classes, array)


def speech(run: Run[Settings]) -> Problem:
    """Log-mel features of spoken words, from 0 to 1."""
    settings = run.settings
    found = data.speech_commands()
    bands = settings.speech_bands
    parts = [
        data.log_mel(a, bands, bands).reshape(len(a), -1)
        for a in (found.train_audio, found.test_audio)
    ]
    top = parts[0].max()
    train, test = (
        (x / top, y) for x, y in zip(parts, (found.train_labels, found.test_labels), strict=True)
    )
    return _trained(run, "speech-commands", train, test, settings.speech_widths, len(found.words))


def _trained(
    run: Run[Settings],
    name: str,
    train: Any,
    test: Any,
    widths: tuple[int, ...],
    classes: int,
    array: Crossbar | None = None,
) -> Problem:
    """A network that was trained digitally, with its crossbars."""
    settings = run.settings
    f, params = jaxeff.functional(
        MLP((train[0].shape[1], *widths, classes), rngs=nnx.Rngs(run.seed))
    )
    result = fit(
        jax.random.fold_in(run.key, 6), cross_entropy(f), params, train,
        optimizer=optax.adam(settings.rate), epochs=settings.digital,
        batch_size=settings.batch_size, checkpoint=run.work / f"{name}-digital.safetensors",
        progress=False,
    )  # fmt: skip
    return calibrated(name, f, result.params, train, test, array or Crossbar(gain=GAIN))
