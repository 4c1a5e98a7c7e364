"""Bodies that were trained before, what they are told afterwards, and what comes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxeff
from experiments.beyond.keyword_spotting.network import spotter
from experiments.beyond.keyword_spotting.recordings import FRONT, WORDS, features
from experiments.beyond.keyword_spotting.training import BATCH, standardized
from experiments.recipes import cosine_adam
from jaxeff import training
from jaxeff.adapters import LoRA, learner
from jaxeff.compression import Int, calibrate

CLASSES, CALIBRATED = WORDS + 2, 1000
HEAD, REHEARSED = "head", "head, recordings kept"
ADAPTED, FLOATS = "low-rank updates, recordings kept", "all layers in floats, recordings kept"
WAYS = HEAD, REHEARSED, ADAPTED, FLOATS
ADAPTERS: Mapping[str, LoRA | None] = {"pointwise*": None, "dense": LoRA(4, alpha=4.0)}


@dataclass(frozen=True)
class Recordings:
    """Features int32 `[n, frames, 1, cepstra]` with labels and speakers."""

    x: np.ndarray
    y: np.ndarray
    speakers: np.ndarray  # of each; empty texts where nobody knows

    @classmethod
    def of(cls, audio: np.ndarray, y: np.ndarray, speakers: np.ndarray | None = None) -> Recordings:
        """Computes the features of sound."""
        return cls(features(audio), y, np.full(len(y), "") if speakers is None else speakers)

    def __getitem__(self, at: Any) -> Recordings:
        return Recordings(self.x[at], self.y[at], self.speakers[at])

    def __add__(self, other: Recordings) -> Recordings:
        pairs = (self.x, other.x), (self.y, other.y), (self.speakers, other.speakers)
        return Recordings(*map(np.concatenate, pairs))


@dataclass(frozen=True)
class Body:
    """A network that was trained before it came to its device.

    Attributes:
        f: `f(params, x)` of whole numbers of the front end.
        params: Its parameters.
        spec: Grids of eight bits of its layers.
    """

    f: Callable[..., Any]
    params: Any
    spec: Mapping[str, Any]


def trained(key: jax.Array, of: Recordings, epochs: int, width: int, blocks: int) -> Body:
    """Trains a network."""
    start, order = jax.random.split(key)
    net = spotter(FRONT.cepstra or FRONT.bands, CLASSES, width, blocks, nnx.Rngs(start))
    bare, params = jaxeff.functional(net)
    standard = standardized(of.x.mean((0, 1, 2)), of.x.std((0, 1, 2)))

    def f(params: Any, x: Any) -> Any:
        return bare(params, standard(x))

    steps = len(of.y) // BATCH * epochs
    params = training.fit(
        order, training.cross_entropy(f), params, (of.x, of.y), progress=False,
        optimizer=cosine_adam(3e-3, steps), epochs=epochs, batch_size=BATCH,
    ).params  # fmt: skip
    some = jax.random.choice(order, len(of.y), (min(CALIBRATED, len(of.y)),), replace=False)
    spec = calibrate(f, params, of.x[np.asarray(some)], {"*:linear": Int(8)}).spec
    return Body(f, params, spec)


@dataclass(frozen=True)
class Learner:
    """One way to learn.

    Attributes:
        begin: What is learnt, before.
        step: ``step(state, x, y) -> state`` of one recording.
        logits: ``logits(state, x)`` of many.
    """

    begin: Any
    step: Callable[[Any, jax.Array, jax.Array], Any]
    logits: Callable[[Any, jax.Array], jax.Array]

    @property
    def state_bytes(self) -> int:
        """What the state takes in memory, and where it is kept."""
        return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(self.begin))

    def all(self, orders: np.ndarray, of: Recordings) -> Any:
        """Learns recordings one after the other: a state for each row of `orders`."""
        return self._all(orders, jnp.asarray(of.x), jnp.asarray(of.y))

    def told(self, states: Any, x: np.ndarray) -> np.ndarray:
        """Computes the class of each recording by each state, `[states, recordings]`."""
        parts = np.array_split(x, max(len(x) // 500, 1))
        return np.concatenate([np.asarray(self._best(states, part)) for part in parts], axis=1)

    def right_before(self, of: Recordings) -> np.ndarray:
        """Tells which recordings are right before anything is learnt, `[recordings]`."""
        begin = jax.tree.map(lambda a: jnp.asarray(a)[None], self.begin)
        return np.asarray(self.told(begin, of.x)[0] == of.y)

    # Compiled once for all that a learner is told and asked.
    @functools.cached_property
    def _all(self) -> Callable[..., Any]:
        def learnt(order: jax.Array, x: jax.Array, y: jax.Array) -> Any:
            def one(state: Any, at: jax.Array) -> tuple[Any, None]:
                return self.step(state, x[at][None], y[at][None]), None

            return jax.lax.scan(one, self.begin, order)[0]

        return jax.jit(jax.vmap(learnt, (0, None, None)))

    @functools.cached_property
    def _best(self) -> Callable[..., jax.Array]:
        return jax.jit(jax.vmap(lambda state, x: self.logits(state, x).argmax(-1), (0, None)))


def way(name: str, body: Body, rate: float, dtype: str | None = None) -> Learner:
    """Makes a learner: the library's, or one of all layers without whole numbers."""
    example = np.zeros((1, FRONT.frames(16_000), 1, FRONT.cepstra or FRONT.bands), np.int32)
    if name == FLOATS:
        return _of_floats(body, rate)
    what = ADAPTERS if name == ADAPTED else "head"
    step, codes, state = learner(
        body.f, body.params, example, body.spec, what=what, optimizer=optax.sgd(rate), dtype=dtype
    )
    return Learner(
        state,
        lambda state, x, y: step(codes, x, y, state)[1],
        lambda state, x: step(codes, x, jnp.full(len(x), -1), state)[0],
    )


def _of_floats(body: Body, rate: float) -> Learner:
    optimizer = optax.sgd(rate)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(body.f(params, x), y).mean()

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, kept = state
        updates, kept = optimizer.update(jax.grad(loss)(params, x, y), kept, params)
        return optax.apply_updates(params, updates), kept

    begin = body.params, optimizer.init(body.params)
    return Learner(begin, step, lambda state, x: body.f(state[0], x))


def some_of_others(
    rng: np.random.Generator, labels: np.ndarray, word: int, count: int
) -> np.ndarray:
    """Draws so many recordings of each class but one."""
    classes = [c for c in range(CLASSES) if c != word]
    return np.concatenate(
        [rng.choice(np.flatnonzero(labels == c), count, replace=False) for c in classes]
    )


def order(
    rng: np.random.Generator, new: Sequence[int], kept: Sequence[int], passes: int, between: int
) -> np.ndarray:
    """Draws in which order recordings are told: each new one, then `between` of the kept ones."""
    told: list[int] = []
    queue: list[int] = []
    for _ in range(passes):
        for one in rng.permutation(new):
            told.append(int(one))
            for _ in range(between if len(kept) else 0):
                queue = queue or rng.permutation(kept).tolist()
                told.append(queue.pop())
    return np.array(told, np.int32)
