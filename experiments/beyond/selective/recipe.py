"""How networks are trained by IVON and judged; shared by `selective` and `exits`."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import harness as h
from experiments.beyond.selective.inputs import LEARNT, LETTERS, Sets, images, letters, spoken
from experiments.beyond.selective.networks import Network, residual, separable, transformer
from experiments.harness import Count, Least, Report, Row
from jaxeff import Gaussian, bayes, training, uncertainty

NETWORKS = ("DS-CNN", "ViT", "ResNet-18", "decoder")
TEXT = "text"


@dataclass(frozen=True)
class Settings:
    """How networks are trained and asked."""

    seeds: Count = 3  # trainings of each
    learnt: Annotated[int, Least(64)] = 10_000  # inputs to learn from, at most
    held: Count = 500  # inputs that choose how wide a posterior is
    asked: Annotated[int, Least(16)] = 1000  # inputs to test, and of another kind
    steps: Count = 800  # of Adam, and as many of IVON
    width: Annotated[int, Least(4)] = 32  # channels; the ResNet's begin at a quarter
    calibration: Annotated[int, Least(8)] = 128  # learnt inputs that factors are measured on
    draws: tuple[int, ...] = (4, 16, 64)  # draws of weights
    widths: tuple[float, ...] = (1, 3, 10, 30)  # times the posterior's variances: one is chosen
    rounds: Count = 3  # rounds of the timing


class Posterior(NamedTuple):
    """A Gaussian for each weight, and the factor of IVON's variances that was chosen."""

    weights: Any
    factor: float


@functools.cache
def built(settings: Settings, data: str, name: str) -> tuple[Network, Sets]:
    """Makes a network and the inputs that it learns from and is asked about."""
    counts = min(settings.learnt, LEARNT[data]), settings.held, settings.asked
    width, patches = settings.width, name == "ViT"
    if data == TEXT:
        return transformer(width, 12, LETTERS, LETTERS, causal=True), letters(*counts)
    spoken_words = data == "speech-commands"
    sets = spoken(*counts, patches) if spoken_words else images(data, *counts, patches)
    channels = sets.outside.shape[-1]
    if patches:
        return transformer(width, 49, channels, 10, causal=False), sets
    make = {"DS-CNN": separable, "ResNet-18": residual}[name]
    return make(width, channels, 2 if name == "DS-CNN" else 1), sets


def learnt(settings: Settings, data: str, name: str, key: Any) -> Posterior:
    """Trains by IVON from where Adam ends, and chooses how wide the posterior is."""
    net, sets = built(settings, data, name)
    n = len(sets.train[1])
    batch = min(64, n)
    epochs = max(1, settings.steps * batch // n)

    def fit(params: Any, make: Callable[[Any], Any], rate: float) -> Any:
        falling = optax.cosine_decay_schedule(rate, epochs * (n // batch))
        return training.fit(
            key, training.cross_entropy(net.f), params, sets.train, optimizer=make(falling),
            epochs=epochs, batch_size=batch, progress=False,
        )  # fmt: skip

    def ivon(rate: Any) -> Any:
        # A wider start would undo what Adam has learnt: variances are 1 / (inputs x curvature).
        return bayes.ivon(key, rate, n, weight_decay=1e-3, decay=0.999, curvature=10)

    params = fit(net.init(key), optax.adam, 3e-3).params
    fitted = fit(params, ivon, 0.02)
    return widened(settings, key, net, bayes.ivon_posterior(fitted.params, fitted.opt_state), sets)


def widened(settings: Settings, key: Any, net: Network, posterior: Any, sets: Sets) -> Posterior:
    """Chooses the factor of variances whose draws are best in NLL of what is held out.

    A network that has learnt its few inputs by heart leaves a posterior too narrow for any method
    to differ from the mean network.
    """
    x, y = sets.held

    @jax.jit
    def nll(factor: Any) -> Any:
        said = bayes.predict(key, net.f, scaled(posterior, factor), x, samples=16)
        logs = uncertainty.predictive_log_probs(said)
        return -jnp.take_along_axis(logs, y[:, None], -1).mean()

    factor = min(settings.widths, key=lambda factor: float(nll(factor)))
    return Posterior(scaled(posterior, factor), factor)


def scaled(posterior: Any, factor: Any) -> Any:
    """Multiplies the variances of all weights."""

    def wider(g: Gaussian) -> Gaussian:
        return Gaussian(g.mean, g.var * factor)

    return jax.tree.map(wider, posterior, is_leaf=lambda v: isinstance(v, Gaussian))


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


OTHERS = ("data", "networks")
"""Settings that a network's rows don't depend on."""


SLIGHT = {
    "aurc": 0.05, "covered_half": 0.5, "covered_one": 0.5, "nll": 0.01, "auroc": 0.005,
}  # fmt: skip
"""What a mean may be worse by, where seeds explain as much; without it, wide spreads would pass."""


def no_worse(
    text: str, selection: Callable[[Report], Iterator[Row]], column: str, sign: int
) -> h.Claim:
    """Claims that a method isn't worse than another on the same seeds, or slightly at most.

    A mean that is worse passes where it is by less than `SLIGHT` and than seeds explain: noise
    alone, however large, passes nothing.

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
        return bool(sign * value <= min(row[f"{column} tie"], SLIGHT[column]))

    text += f" (at most {SLIGHT[column]:g}; {{{column} tie:.3f}} by seeds)"
    return h.Claim(text, gap, holds, None, selection, "default", shown=column, regardless=OTHERS)
