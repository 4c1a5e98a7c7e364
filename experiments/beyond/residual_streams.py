"""Which state of a residual stream has to be carried for variances that are right.

    python -m experiments.beyond.residual_streams

Small trained transformers in plain JAX: a vision transformer (pre-norm, mean over tokens), a
decoder (RMS norms, causal) and an encoder (post-norm) that restores a masked letter. With x the
stream of an input, all tokens by all channels, C its covariance and v the variances of a
sub-layer's weights,

    C' = J C J^T + J_w diag(v) J_w^T,    J = dg/dx, J_w = dg/dw

is exact to first order. After every sub-layer C is replaced by the nearest that a state can hold:
its diagonal, a diagonal and r shared columns, channels by channels alike at all tokens, channels
within a token, tokens by channels as one Kronecker product. Within a sub-layer nothing is
forgotten, so this is the least that a method with such a state loses. Prices are lower bounds as
well, in passes of the network: 3 of a diagonal pass, and a column of what is carried through every
layer as one more.

Norms alone are held against draws that have their inputs' sampled variances, by ours (moments of
the statistics, second order in the mean), by the tangent with the statistics as functions of the
input, as Calibrated Variance Propagation (arXiv 2606.16214) describes its rule, and with the
statistics held fixed.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg

import jaxeff
from experiments import harness as h
from experiments.beyond.tokens.texts import texts, windows
from experiments.harness import Count, Least, Row, Run
from experiments.recipes import Training, cosine_adam
from jaxeff import Gaussian, data
from jaxeff.training import cross_entropy, fit

NETWORKS = ("ViT", "decoder", "encoder")
LETTERS, MASK = 27, 27


@dataclass(frozen=True)
class Settings(Training):
    """How the transformers are made and asked."""

    networks: tuple[str, ...] = NETWORKS  # which are measured
    width: Annotated[int, Least(8)] = 32  # channels of a token, four heads
    depth: Count = 4  # blocks
    length: Annotated[int, Least(4)] = 16  # letters of a text
    learnt: Annotated[int, Least(64)] = 12_000  # texts to learn from
    epochs: Count = 8  # passes over them; five times as many over the few digits
    asked: Count = 4  # inputs
    draws: Annotated[int, Least(10)] = 1500  # of the weights, for each input
    noises: tuple[float, ...] = (0.03, 0.1)  # over the deviation of each array of weights
    ranks: tuple[int, ...] = (1, 3, 8)  # shared columns


def norm(x: Any, centred: bool) -> Any:
    """Layer norm, or RMS norm."""
    x = x - x.mean(-1, keepdims=True) if centred else x
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)


class Network(NamedTuple):
    """A transformer as its sub-layers, each from its weights and the stream to the stream."""

    layers: tuple[Callable[[Any, Any], Any], ...]
    params: Any  # one pytree of weights for each
    data: Any  # inputs and labels

    def batch(self, params: Any, x: Any) -> Any:
        """Computes the results of a batch."""
        return jax.vmap(self.__call__, (None, 0))(params, x)

    def __call__(self, params: Any, x: Any) -> Any:
        """Computes the result of one input."""
        for layer, w in zip(self.layers, params, strict=True):
            x = layer(w, x)
        return x


def build(name: str, settings: Settings, key: Any, tokens: int, features: int) -> Network:
    """Makes an untrained transformer; the text networks read letters as one-hot vectors."""
    d, heads, centred, post = settings.width, 4, name != "decoder", name == "encoder"
    causal = jnp.tril(jnp.ones((tokens, tokens), bool)) if name == "decoder" else True

    def around(inner: Any) -> Callable[[Any, Any], Any]:
        if post:
            return lambda w, x: norm(x + inner(w, x), centred) * w["scale"]
        return lambda w, x: x + inner(w, norm(x, centred) * w["scale"])

    def attend(w: Any, x: Any) -> Any:
        q, k, v = (
            (x @ w[name]).reshape(len(x), heads, -1).swapaxes(0, 1) for name in ("q", "k", "v")
        )
        scores = jnp.where(causal, q @ k.swapaxes(1, 2) / (d // heads) ** 0.5, -1e9)
        return (jax.nn.softmax(scores) @ v).swapaxes(0, 1).reshape(len(x), d) @ w["out"]

    def dense(w: Any, x: Any) -> Any:
        return jax.nn.gelu(x @ w["up"] + w["b"]) @ w["down"] + w["c"]

    def read(w: Any, x: Any) -> Any:
        x = x if post else norm(x, centred) * w["scale"]
        of = {"ViT": x.mean(0), "decoder": x[-1], "encoder": x[tokens // 2]}[name]
        return of @ w["head"] + w["b"]

    def weights(key: Any, **shapes: tuple[int, ...]) -> Any:
        keys = jax.random.split(key, len(shapes))
        return {
            leaf: jax.random.normal(k, shape) / shape[0] ** 0.5
            if len(shape) == 2
            else jnp.full(shape, float(leaf == "scale"))
            for (leaf, shape), k in zip(shapes.items(), keys, strict=True)
        }

    keys = iter(jax.random.split(key, 2 + 2 * settings.depth))
    layers = [lambda w, x: x @ w["embed"] + w["places"]]
    attention, perceptron = (
        around(attend),
        around(dense),
    )  # one function for all blocks: one compilation
    params = [weights(next(keys), embed=(features, d), places=(tokens, d))]
    for _ in range(settings.depth):
        layers += [attention, perceptron]
        params.append(weights(next(keys), scale=(d,), q=(d, d), k=(d, d), v=(d, d), out=(d, d)))
        params.append(
            weights(next(keys), scale=(d,), up=(d, 2 * d), b=(2 * d,), down=(2 * d, d), c=(d,))
        )
    classes = 10 if name == "ViT" else LETTERS
    params.append(weights(next(keys), scale=(d,), head=(d, classes), b=(classes,)))
    return Network((*layers, read), params, ())


def _digits() -> tuple[Any, Any]:
    digits = data.load("digits")
    x = jnp.asarray(data.normalize(digits.train_images, "digits"), jnp.float32)
    x = x.reshape(-1, 4, 7, 4, 7).swapaxes(2, 3).reshape(-1, 16, 49)
    return x, jnp.asarray(digits.train_labels)


def _letters(name: str, settings: Settings) -> tuple[Any, Any]:
    plain = re.sub("[^a-z]+", " ", texts()["learnt"].lower())
    codes = np.frombuffer(plain.encode(), np.uint8) % 32
    n = settings.length
    pieces = windows(codes.astype(np.int32), settings.learnt, n, np.random.default_rng(0))
    x, y = pieces[:, :n].copy(), pieces[:, n]
    if name == "encoder":
        y = x[:, n // 2].copy()
        x[:, n // 2] = MASK
    return jax.nn.one_hot(x, LETTERS + 1), jnp.asarray(y)


def trained(run: Run[Settings], name: str) -> Network:
    """Trains a transformer; the parameters are kept."""
    settings, key = run.settings, jax.random.fold_in(run.key, sum(name.encode()))
    x, y = _digits() if name == "ViT" else _letters(name, settings)
    net = build(name, settings, key, *x.shape[1:])
    epochs = settings.epochs * (5 if name == "ViT" else 1)
    steps = epochs * (len(y) // settings.batch_size)
    fitted = fit(
        key, cross_entropy(net.batch), net.params, (x, y), epochs=epochs,
        optimizer=cosine_adam(settings.rate, steps), batch_size=settings.batch_size,
        checkpoint=run.work / f"{name}.safetensors", progress=False,
    )  # fmt: skip
    return net._replace(params=fitted.params, data=(x, y))


def spread(params: Any, noise: float) -> Any:
    """Variances of weights: a share of the deviation of each array, a vector's over its size."""
    return jax.tree.map(
        lambda p: jnp.full_like(p, noise**2 * (jnp.var(p) if p.ndim > 1 else jnp.mean(p * p))),
        params,
    )


State = Callable[[np.ndarray], np.ndarray]
"""From a covariance `[tokens, channels, tokens, channels]` to the nearest that can be held."""


def _with_diagonal(shared: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Puts the variances of a covariance onto another's diagonal."""
    n = c.shape[0] * c.shape[1]
    flat = shared.reshape(n, n).copy()
    np.fill_diagonal(flat, np.diag(c.reshape(n, n)))
    return flat.reshape(c.shape)


def diagonal(c: np.ndarray) -> np.ndarray:
    """Variances alone."""
    return _with_diagonal(np.zeros_like(c), c)


def columns(rank: int) -> State:
    """A diagonal and so many columns (principal factors, of correlations)."""

    def state(c: np.ndarray) -> np.ndarray:
        n = c.shape[0] * c.shape[1]
        flat = c.reshape(n, n)
        scale = np.sqrt(np.maximum(np.diag(flat), 1e-30))
        rest = flat / scale[:, None] / scale
        # Principal factors: the diagonal that the columns explain, until it stays.
        for _ in range(3):
            values, vectors = scipy.linalg.eigh(rest, subset_by_index=(n - rank, n - 1))
            low = (vectors * np.maximum(values, 0)) @ vectors.T
            np.fill_diagonal(rest, np.minimum(np.diag(low), 1))
        return _with_diagonal(low * scale[:, None] * scale, c)

    return state


def channels(c: np.ndarray) -> np.ndarray:
    """Channels by channels, the same at all pairs of tokens: the mean over pairs."""
    t = c.shape[0]
    apart = 1 - np.eye(t)
    shared = np.einsum("sctd,st->cd", c, apart) / apart.sum()
    values, vectors = np.linalg.eigh((shared + shared.T) / 2)
    shared = (vectors * np.maximum(values, 0)) @ vectors.T
    return _with_diagonal(np.broadcast_to(shared[None, :, None], c.shape), c)


def within(c: np.ndarray) -> np.ndarray:
    """Channels by channels within a token, tokens apart."""
    return c * np.eye(c.shape[0])[:, None, :, None]


def kronecker(c: np.ndarray) -> np.ndarray:
    """The nearest product of tokens by tokens and channels by channels, and the diagonal."""
    between = np.eye(c.shape[1])
    for _ in range(10):
        tokens = np.einsum("sctd,cd->st", c, between) / np.sum(between**2)
        between = np.einsum("sctd,st->cd", c, tokens) / np.sum(tokens**2)
    return _with_diagonal(np.einsum("st,cd->sctd", tokens, between), c)


def states(settings: Settings) -> dict[str, tuple[State, float | None]]:
    """All states, and the least number of passes each takes."""
    d, t = settings.width, settings.length
    # Columns go through layers like an input each; a channel's covariance is d columns, at one
    # token where all tokens have the same.
    return {
        "diagonal": (diagonal, 3.0),
        **{f"{r} columns": (columns(r), 3.0 + r) for r in settings.ranks},
        "channels, alike at tokens": (channels, 3.0 + 2 * d / t),
        "channels within a token": (within, 3.0 + d),
        "tokens by channels": (kronecker, 3.0 + 2 * d / t + t / d),
        "everything (linear)": (lambda c: c, None),
    }


@partial(jax.jit, static_argnums=0)
def _tangent(layer: Any, w: Any, v: Any, x: Any) -> tuple[Any, Any, Any]:
    """Computes a layer's result, its slopes by the stream, and the covariance its weights add."""
    y = layer(w, x)
    by_weight = jax.jacrev(layer)(w, x)
    added = sum(
        (rows := (j * jnp.sqrt(s)).reshape(y.size, -1)) @ rows.T
        for j, s in zip(jax.tree.leaves(by_weight), jax.tree.leaves(v), strict=True)
    )
    return y, jax.jacrev(layer, 1)(w, x).reshape(y.size, x.size), added


def tangents(net: Network, variances: Any, x: Any) -> list[tuple[Any, Any, Any]]:
    """Linearizes every layer at the means, for one input."""
    measurements = []
    for layer, w, v in zip(net.layers, net.params, variances, strict=True):
        x, slope, added = _tangent(layer, w, v, x)
        measurements.append((x.shape, np.asarray(slope), np.asarray(added)))
    return measurements


def followed(linear: list[tuple[Any, Any, Any]], state: State) -> Any:
    """Propagates covariance to first order, held in a state between layers."""
    (shape, _, c), *others = linear
    for after, slope, added in others:
        held = state(c.reshape(*shape, *shape)).reshape(c.shape)
        shape, c = after, slope @ held @ slope.T + added
    return np.diag(c)


def sampled(net: Network, variances: Any, x: Any, key: Any, draws: int) -> tuple[Any, Any]:
    """Draws variances of results, and the stream before the last norm, `[draws, ...]`."""

    def one(key: Any) -> Any:
        noise = optax.tree.random_like(key, net.params)
        w = jax.tree.map(lambda p, v, z: p + jnp.sqrt(v) * z, net.params, variances, noise)
        y = x
        for layer, part in zip(net.layers[:-1], w[:-1], strict=True):
            y = layer(part, y)
        return net.layers[-1](w[-1], y), y

    return jax.lax.map(one, jax.random.split(key, draws), batch_size=50)


def rows(run: Run[Settings], name: str) -> Iterator[Row]:
    """One network: every state at every noise, and its last norm by every rule."""
    settings, net = run.settings, trained(run, name)
    x, y = net.data
    accuracy = float((net.batch(net.params, x[:1000]).argmax(-1) == y[:1000]).mean())
    asked = x[:: len(x) // settings.asked][: settings.asked]
    # To first order everything is in proportion to the variances of the weights.
    linear = [tangents(net, spread(net.params, 1.0), one) for one in asked]
    followed_by = {
        state: np.stack([followed(one, project) for one in linear])
        for state, (project, _) in states(settings).items()
    }
    for noise in settings.noises:
        draw = jax.jit(partial(sampled, net, spread(net.params, noise), draws=settings.draws))
        keys = jax.random.split(run.key, len(asked))
        drawn = [draw(one, key) for one, key in zip(asked, keys, strict=True)]
        truth = np.stack([results.var(0, ddof=1) for results, _ in drawn])
        which = {"network": name, "noise": f"{noise:.0%}".replace("%", " %")}
        for state, (_, cost) in states(settings).items():
            low, median, high = np.quantile(
                noise**2 * followed_by[state] / truth, (0.05, 0.5, 0.95)
            )
            yield {
                "part": "states", **which, "state": state, "ratio": float(median),
                "low": float(low), "high": float(high), "cost": cost, "accuracy": accuracy,
            }  # fmt: skip
        yield from _norms(which, jnp.stack([streams for _, streams in drawn]), run.key)


def _norms(which: Row, streams: Any, key: Any) -> Iterator[Row]:
    """The rules for a norm alone, of independent entries with the stream's sampled moments."""
    centred = which["network"] != "decoder"
    mean, var = streams.mean(1), streams.var(1)
    plain = partial(norm, centred=centred)

    @jax.jit
    def drawn(key: Any) -> Any:
        z = jax.random.normal(key, (4000, *mean.shape[1:]))
        return jax.lax.map(lambda m: plain(m[0] + jnp.sqrt(m[1]) * z).var(0, ddof=1), (mean, var))

    def tangent(m: Any, v: Any) -> Any:
        return jax.jacfwd(plain)(m) ** 2 @ v

    tokens = jax.vmap(jax.vmap(tangent))
    fixed = var / (
        jnp.mean((mean - mean.mean(-1, keepdims=True) * centred) ** 2, -1, keepdims=True) + 1e-5
    )
    rules = {
        "ours": jaxeff.moments(plain)(Gaussian(mean, var)).var,
        "statistics as functions of the input": tokens(mean, var),
        "statistics fixed": fixed,
    }
    truth = drawn(key)
    for rule, of_rule in rules.items():
        ratio = np.asarray(of_rule / truth)
        low, median, high = np.quantile(ratio, (0.05, 0.5, 0.95))
        yield {
            "part": "norms", **which, "rule": rule, "ratio": float(median), "low": float(low),
            "high": float(high), "error": float(np.median(np.abs(ratio - 1))),
        }  # fmt: skip


STATES = h.where(part="states")
STUDY = h.Study(
    "residual_streams", __doc__,
    {
        "fast": Settings(
            width=8, depth=1, length=4, learnt=64, epochs=1, asked=2, draws=50, ranks=(1,)
        ),
        "default": Settings(),
        "full": Settings(asked=20, draws=20_000, epochs=16),
    },
    (h.Part(lambda run: h.choose(run.settings.networks, NETWORKS, "network"), rows),),
    (
        h.Claim(
            "{network}, {noise}: {state}, at {cost:.1f} passes, within .8 to 1.25", "ratio",
            lambda row, ratio: 0.8 <= ratio <= 1.25, None, STATES, "default",
            when=lambda row: row["cost"] is not None and row["cost"] <= 6,
        ),
        h.Claim(
            "{network}, {noise}: tokens by channels as one product, within .8 to 1.25", "ratio",
            lambda row, ratio: 0.8 <= ratio <= 1.25, None,
            h.where(part="states", state="tokens by channels"), "default",
        ),
        h.Claim(
            "{network}, {noise}: everything that is shared, within .8 to 1.25", "ratio",
            lambda row, ratio: 0.8 <= ratio <= 1.25, None,
            h.where(part="states", state="everything (linear)"), "default",
        ),
        h.Claim(
            "{network}, {noise}: a norm by ours errs no more than by the tangent", "error",
            h.at_most("other"), None,
            lambda report: [
                row | {"other": other["error"]}
                for row in h.where(part="norms", rule="ours")(report)
                for other in h.where(
                    part="norms", rule="statistics as functions of the input",
                    network=row["network"], noise=row["noise"],
                )(report)
            ],
            "default",
        ),
    ),
    (
        h.Plot(
            "states",
            h.Dots("{state}", "ratio", STATES, hue="{noise}", facet="{network}", guides=(0.8, 1.25),
                   axes={"xscale": "log", "xlabel": "variance over sampled, median"}),
            columns=3, size=(4.2, 3.2),
        ),
    ),
    (
        h.Listing("variances of results over sampled ones",
                  ("network", "noise", "state", "cost", "ratio", "low", "high"), STATES),
        h.Listing("variances of a norm over sampled ones",
                  ("network", "noise", "rule", "ratio", "low", "high", "error"),
                  h.where(part="norms")),
    ),
    differences=(
        "Projections are made of the exact covariance, which no method with such a state has: they "
        "bound what it loses from below.",
        "The rule of Calibrated Variance Propagation is derived from its description.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
