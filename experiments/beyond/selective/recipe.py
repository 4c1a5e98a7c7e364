"""How networks are trained by IVON and judged; shared by `selective` and `exits`."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
# The posterior starts with the variance 1 / (inputs x curvature). At curvature 1 its noise is as
# large as the weights of a ResNet's wide layers, which then learns nothing.
CURVATURES, RATES = {"ResNet-18": 4.0}, {"ResNet-18": 0.1}


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
    """Trains by IVON; returns the posterior."""
    net, sets = built(settings, name)
    epochs = max(1, settings.epochs // 4) if name == "decoder" else settings.epochs
    n = len(sets.train[1])
    batch = min(64, n)
    rate = optax.cosine_decay_schedule(RATES.get(name, 0.3), epochs * (n // batch))
    optimizer = bayes.ivon(
        key, rate, n, weight_decay=1e-3, decay=0.999, curvature=CURVATURES.get(name, 1.0)
    )
    fitted = training.fit(
        key, training.cross_entropy(net.f), net.init(key), sets.train, optimizer=optimizer,
        epochs=epochs, batch_size=batch, progress=False,
    )  # fmt: skip
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
