"""From features to an integer network: trained, made narrower, trained on its grid, converted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.beyond.keyword_spotting.network import spotter
from experiments.beyond.keyword_spotting.recordings import FRONT, WORDS, Sounds, features, moved
from experiments.recipes import cosine_adam
from jaxeff import training, uncertainty
from jaxeff.compression import LSQ, init, learned
from jaxeff.pruning import Prune

CLASSES = WORDS + 2
BATCH, CALIBRATED = 64, 200
Function = Callable[..., Any]


@dataclass(frozen=True)
class Stage:
    """A network on the way.

    Attributes:
        name: What was done last.
        f: `f(params, x)` of whole numbers of the front end.
        params: Its parameters.
        held: Logits of the recordings held out.
        test: Logits of those for testing.
    """

    name: str
    f: Function
    params: Any
    held: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Way:
    """All stages.

    Attributes:
        stages: In order.
        bare: The first one's function, of features of unit variance.
        standard: Makes such features.
        seen: Some features that it was trained on, int32 `[n, frames, 1, cepstra]`.
        tests: Those for testing.
    """

    stages: list[Stage]
    bare: Function
    standard: Callable[[Any], Any]
    seen: np.ndarray
    tests: np.ndarray


def go(
    sounds: Sounds, epochs: int, copies: int, width: int, blocks: int, pruned: float, bits: int
) -> Way:
    """Goes the way; every stage begins with the one before."""
    key, (audio, labels) = jax.random.key(0), sounds.train
    first = features(audio)
    more = [features(moved(audio, seed)) for seed in range(copies)]
    x, y = np.concatenate([first, *more]), np.tile(labels, copies + 1)
    tests = features(sounds.held[0]), features(sounds.test[0])
    bare, params = jaxeff.functional(
        spotter(FRONT.cepstra or FRONT.bands, CLASSES, width, blocks, nnx.Rngs(0))
    )
    standard = standardized(first.mean((0, 1, 2)), first.std((0, 1, 2)))

    def f(params: Any, x: jax.Array) -> jax.Array:
        return bare(params, standard(x))

    def trained(g: Function, params: Any, share: float, rate: float) -> Any:
        some = max(round(epochs * share), 1)
        optimizer = cosine_adam(rate, max(len(y) // BATCH, 1) * some)
        loss = training.cross_entropy(g)
        return training.fit(
            key, loss, params, (x, y), optimizer=optimizer, epochs=some, batch_size=BATCH
        ).params

    def stage(name: str, g: Function, params: Any) -> Stage:
        return Stage(name, g, params, *(logits(g, params, part) for part in tests))

    stages = [stage("float32", f, params := trained(f, params, 1, 3e-3))]
    # Whole words of four codes, as the kernels of microcontrollers read them.
    plan = jaxeff.prune_plan(f, params, x[:64], {"*:linear": Prune(pruned, round_to=4)})
    narrow = jaxeff.pruned(f, plan)
    params = trained(narrow, plan.shrink(params), 0.5, 1e-3)
    stages.append(stage("pruned", narrow, params))
    # Learnt steps, which begin with the least squared error: few epochs follow.
    spec = init(
        narrow, params, x[:CALIBRATED], {"*:linear": LSQ(bits, narrow=True, initial="error")}
    )
    params, spec = trained(learned(narrow), (params, spec), 0.25, 3e-4)
    stages.append(stage("trained on its grid", jaxeff.quantized(narrow, spec), params))
    g = jaxeff.integer(narrow, spec)
    stages.append(stage("integer", g, g.convert(params, x[:1])))
    return Way(stages, bare, standard, first[:CALIBRATED], tests[1])


def standardized(mean: np.ndarray, deviation: np.ndarray) -> Callable[[Any], Any]:
    """Makes features of unit variance of whole numbers of the front end."""
    factor, centre = (1 / deviation).astype(np.float32), mean.astype(np.float32)

    def standard(x: Any) -> Any:
        return (x.astype(np.float32) - centre) * factor

    return standard


def logits(g: Function, params: Any, x: np.ndarray) -> np.ndarray:
    """Logits, some recordings at a time."""
    call = jax.jit(g)
    parts = np.array_split(x, max(len(x) // 500, 1))
    return np.concatenate([np.asarray(call(params, part)) for part in parts])


def unsure(outputs: jax.Array) -> jax.Array:
    """Minus the distance of the two largest logits: a difference alone, the same bits anywhere."""
    two = jnp.sort(outputs, axis=-1)[:, -2:]
    return two[:, 0] - two[:, 1]


def threshold(held: np.ndarray, labels: np.ndarray, share: float) -> float:
    """The least certain that is taken: a share of held-out words is at least as certain."""
    right = (labels < WORDS) & (held.argmax(1) == labels)
    return float(uncertainty.coverage_threshold(unsure(jnp.asarray(held[right])), share))
