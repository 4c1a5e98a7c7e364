"""How networks are trained by IVON and judged; shared by `selective` and `exits`."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import harness as h
from experiments.beyond.selective.inputs import LETTERS, Sets, images, letters, spoken
from experiments.beyond.selective.networks import Network, residual, separable, transformer
from experiments.harness import Count, Least, Report, Row
from jaxeff import bayes, training, uncertainty

NETWORKS = ("DS-CNN", "ViT", "decoder", "ResNet-18")


class Start(NamedTuple):
    """What IVON starts with: its rate, and a curvature: variances are 1 / (inputs x curvature)."""

    rate: float = 0.3
    curvature: float = 1.0


# At curvature 1 noise is as large as the weights of a ResNet's wide layers, and nothing is learnt;
# of trained weights it would undo what they have learnt.
STARTS = {"ResNet-18": Start(0.1, 4.0)}
TRAINED = Start(0.02, 10.0)


@dataclass(frozen=True)
class Settings:
    """How networks are trained and asked."""

    # images, or words; the decoder has text
    data: Literal["digits", "fashion-mnist", "cifar-10", "speech-commands"] = "digits"
    networks: tuple[str, ...] = NETWORKS  # which are asked
    seeds: Count = 3  # trainings of each
    # inputs to learn from; the decoder has ten times as many
    learnt: Annotated[int, Least(64)] = 600
    asked: Annotated[int, Least(16)] = 1000  # inputs to test, and of another kind
    epochs: Count = 240  # passes over the inputs; the decoder a quarter of them
    adam: Annotated[int, Least(0)] = 0  # passes by Adam before those, which then start there
    width: Annotated[int, Least(4)] = 16  # channels; the ResNet's begin at half of it
    calibration: Annotated[int, Least(8)] = 128  # learnt inputs that factors are measured on
    draws: tuple[int, ...] = (4, 16, 64)  # draws of weights
    rounds: Count = 3  # rounds of the timing


@functools.cache
def built(settings: Settings, name: str) -> tuple[Network, Sets]:
    """Makes a network and the inputs that it learns from and is asked about."""
    width, counts = settings.width, (settings.learnt, settings.asked)
    if name == "decoder":
        return transformer(width, 12, LETTERS, LETTERS, causal=True), letters(*counts)
    patches = name == "ViT"
    if settings.data == "speech-commands":
        sets = spoken(*counts, patches)
    else:
        sets = images(settings.data, *counts, patches)
    channels = sets.outside.shape[-1]
    if patches:
        return transformer(width, 49, channels, 10, causal=False), sets
    make = {"DS-CNN": separable, "ResNet-18": residual}[name]
    return make(width, channels, 2 if name == "DS-CNN" else 1), sets


def learnt(settings: Settings, name: str, key: Any) -> Any:
    """Trains by IVON, if asked from where Adam ends; returns the posterior."""
    net, sets = built(settings, name)
    n = len(sets.train[1])
    batch = min(64, n)

    def fit(params: Any, optimizer: Any, epochs: int) -> Any:
        return training.fit(
            key, training.cross_entropy(net.f), params, sets.train, optimizer=optimizer,
            epochs=epochs, batch_size=batch, progress=False,
        )  # fmt: skip

    def falling(rate: float, epochs: int) -> Any:
        return optax.cosine_decay_schedule(rate, epochs * (n // batch))

    params, start = net.init(key), STARTS.get(name, Start())
    if settings.adam:
        params = fit(params, optax.adam(falling(1e-2, settings.adam)), settings.adam).params
        start = TRAINED
    epochs = max(1, settings.epochs // 4) if name == "decoder" else settings.epochs
    rate = falling(start.rate, epochs)
    optimizer = bayes.ivon(key, rate, n, weight_decay=1e-3, decay=0.999, curvature=start.curvature)
    fitted = fit(params, optimizer, epochs)
    return bayes.ivon_posterior(fitted.params, fitted.opt_state)


def drawn(count: int) -> str:
    """The name of a method by draws."""
    return f"{count} draws"


def judged(logs: Any, labels: Any, outside: Any) -> Row:
    """Judges log-probabilities of test inputs and of others."""
    probs = jnp.exp(logs)
    wrong = (probs.argmax(-1) != labels).astype(jnp.float32)
    curve = uncertainty.risk_coverage(1 - probs.max(-1), wrong)
    risk, coverage = np.asarray(curve.risk), np.asarray(curve.coverage)

    def covered(bound: float) -> float:
        return float(coverage[risk <= bound].max(initial=0))

    def entropy(logs: Any) -> Any:
        return jax.scipy.special.entr(jnp.exp(logs)).sum(-1)

    return {
        "accuracy": 1 - float(wrong.mean()), "aurc": 100 * float(risk.mean()),
        "augrc": 100 * float((risk * coverage).mean()), "covered_half": 100 * covered(0.005),
        "covered_one": 100 * covered(0.01),
        "nll": -float(jnp.take_along_axis(logs, labels[:, None], -1).mean()),
        "ece": float(uncertainty.ece(probs, labels)),
        "auroc": float(uncertainty.auroc(entropy(logs), entropy(outside))),
    }  # fmt: skip


OTHERS = ("networks",)
"""Settings that a network's rows don't depend on."""


def no_worse(
    text: str, selection: Callable[[Report], Iterator[Row]], column: str, sign: int
) -> h.Claim:
    """Claims that a method isn't worse than another, beyond what seeds explain.

    Args:
        text: Says what is compared; what seeds explain is added.
        selection: Rows of differences, each with ``COLUMN tie`` beside it.
        column: What is compared.
        sign: 1 where less is better, else -1.
    """

    def gap(row: Row) -> float | None:
        # One seed says nothing of what seeds explain.
        return None if row[f"{column} tie"] is None else row[column]

    def holds(row: Row, value: float) -> bool:
        return bool(sign * value <= row[f"{column} tie"])

    text += f" ({{{column} tie:.3f}} by seeds)"
    return h.Claim(text, gap, holds, None, selection, "default", shown=column, regardless=OTHERS)
