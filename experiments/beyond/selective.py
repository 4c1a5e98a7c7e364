"""Selective prediction: does one pass of moments order predictions as well as many draws do?

    python -m experiments.beyond.selective
    python -m experiments.beyond.selective --data fashion-mnist --networks DS-CNN --learnt 20000

Small networks learn by IVON (arXiv 2402.17641), which leaves a Gaussian per weight. The same
posterior is asked by the mean network, by two published passes of variances, by ours (default,
calibrated, linear) and by 4, 16 and 64 draws; the least sure predictions are given away. A method
is judged by the areas under the risk-coverage curve (AURC) and under that of the generalized risk
(AUGRC, arXiv 2407.01032), by the coverage at a risk of half and of one per cent, by NLL and ECE of
its probabilities, by the AUROC of their entropy against inputs of another kind, and by its time
over the network's own under XLA.

The published passes, derived from their descriptions, on the same weights:

- streamlined prediction (SUQ, ICLR 2025): exact means and variances of products with independent
  weights, activations linearized at the mean, statistics of norms and attention's weights fixed;
- Calibrated Variance Propagation (CVP, arXiv 2606.16214): moments of activations in closed form,
  variances through norms with the statistics as functions of the input, and one scalar a layer,
  the ratio of variances that draws have on learnt inputs.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from typing_extensions import override

import jaxeff
from experiments import harness as h
from experiments import margins
from experiments.beyond.tokens.texts import texts, windows
from experiments.harness import Count, Least, Report, Row, Run
from experiments.timing import interleaved
from jaxeff import Gaussian, bayes, data, training, uncertainty

NETWORKS = ("DS-CNN", "ViT", "decoder", "ResNet-18")
OUTSIDE = {"digits": "digits-ood", "fashion-mnist": "mnist", "cifar-10": "fashion-mnist"}
LETTERS = 27


@dataclass(frozen=True)
class Settings:
    """How networks are trained and asked."""

    data: Literal["digits", "fashion-mnist", "cifar-10"] = "digits"  # images; the decoder has text
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


class Plain:
    """What layers compute of arrays."""

    def dense(self, x: Any, w: Any, b: Any) -> Any:
        """A product with a matrix, and a bias."""
        return x @ w + b

    def conv(self, x: Any, w: Any, b: Any, stride: int = 1, groups: int = 1) -> Any:
        """A convolution of images, channels last."""
        return _conv(x, w, stride, groups) + b

    def act(self, g: Callable[[Any], Any], x: Any) -> Any:
        """A function of every entry."""
        return g(x)

    def norm(self, x: Any) -> Any:
        """A layer norm of the last axis."""
        c = x - x.mean(-1, keepdims=True)
        return c * jax.lax.rsqrt(jnp.mean(c * c, -1, keepdims=True) + 1e-5)

    def attend(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        """Attention, `[batch, heads, tokens, features]`."""
        return _weights(q, k, causal) @ v

    def add(self, x: Any, y: Any) -> Any:
        """A sum."""
        return x + y

    def mean(self, x: Any, axes: tuple[int, ...]) -> Any:
        """A mean over axes."""
        return x.mean(axes)

    def move(self, g: Callable[[Any], Any], x: Any) -> Any:
        """A new arrangement of entries."""
        return g(x)


def _conv(x: Any, w: Any, stride: int, groups: int) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def _weights(q: Any, k: Any, causal: bool) -> Any:
    scores = q @ jnp.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if causal else True
    return jax.nn.softmax(jnp.where(mask, scores, -1e9))


class Streamlined(Plain):
    """The same of means and variances, as streamlined prediction has them."""

    def scaled(self, mean: Any, var: Any) -> Gaussian:
        """Returns a layer's result; a calibrated pass multiplies its variance."""
        return Gaussian(mean, var)

    def _linear(self, product: Callable[[Any, Any], Any], x: Any, w: Any, b: Any) -> Gaussian:
        if not isinstance(x, Gaussian):
            return self.scaled(product(x, w.mean) + b.mean, product(x * x, w.var) + b.var)
        var = product(x.mean**2 + x.var, w.var) + product(x.var, w.mean**2) + b.var
        return self.scaled(product(x.mean, w.mean) + b.mean, var)

    @override
    def dense(self, x: Any, w: Any, b: Any) -> Gaussian:
        return self._linear(lambda x, w: x @ w, x, w, b)

    @override
    def conv(self, x: Any, w: Any, b: Any, stride: int = 1, groups: int = 1) -> Gaussian:
        return self._linear(lambda x, w: _conv(x, w, stride, groups), x, w, b)

    @override
    def act(self, g: Callable[[Any], Any], x: Any) -> Gaussian:
        y, slope = jax.jvp(g, (x.mean,), (jnp.ones_like(x.mean),))
        return Gaussian(y, slope**2 * x.var)

    @override
    def norm(self, x: Any) -> Gaussian:
        c = x.mean - x.mean.mean(-1, keepdims=True)
        power = jnp.mean(c * c, -1, keepdims=True) + 1e-5
        return Gaussian(c * jax.lax.rsqrt(power), x.var / power)

    @override
    def attend(self, q: Any, k: Any, v: Any, causal: bool) -> Gaussian:
        p = _weights(q.mean, k.mean, causal)
        return self.scaled(p @ v.mean, p**2 @ v.var)

    @override
    def add(self, x: Any, y: Any) -> Any:
        if not isinstance(y, Gaussian):
            return Gaussian(x.mean + y, x.var)
        return Gaussian(x.mean + y.mean, x.var + y.var)

    @override
    def mean(self, x: Any, axes: tuple[int, ...]) -> Gaussian:
        count = np.prod([x.mean.shape[axis] for axis in axes])
        return Gaussian(x.mean.mean(axes), x.var.mean(axes) / count)

    @override
    def move(self, g: Callable[[Any], Any], x: Any) -> Any:
        return Gaussian(g(x.mean), g(x.var))


@dataclass
class Calibrating(Streamlined):
    """The same as Calibrated Variance Propagation has them.

    Attributes:
        factors: One scalar a layer in the order of layers; or, while they are measured, the
            sampled variances of each layer.
        measuring: Whether they are measured.
        measured: The scalars that a pass has measured.
    """

    factors: Sequence[Any]
    measuring: bool = False
    measured: list[Any] = field(default_factory=list)

    @override
    def scaled(self, mean: Any, var: Any) -> Gaussian:
        factor = self.factors[len(self.measured)]
        if self.measuring:
            factor = factor.sum() / var.sum()
        self.measured.append(factor)
        return Gaussian(mean, var * factor)

    @override
    def act(self, g: Callable[[Any], Any], x: Any) -> Gaussian:
        result: Gaussian = jaxeff.moments(g)(x)
        return result

    @override
    def norm(self, x: Any) -> Gaussian:
        # The squared entries of the tangent (1 - 1/n - h h' / n) / sqrt(power), times variances.
        y, n = super().norm(x), x.mean.shape[-1]
        v, h = y.var, y.mean

        def total(a: Any) -> Any:
            return a.sum(-1, keepdims=True) / n**2

        var = v * (1 - 2 / n - 2 * h**2 / n) + total(v) + 2 * h * total(h * v)
        return self.scaled(h, jnp.maximum(var + h**2 * total(h**2 * v), 0))


@dataclass
class Recording(Plain):
    """Layers of arrays whose results are kept, in the order of a calibrated pass's scalars."""

    results: list[Any] = field(default_factory=list)

    def _kept(self, y: Any) -> Any:
        self.results.append(y)
        return y

    @override
    def dense(self, x: Any, w: Any, b: Any) -> Any:
        return self._kept(super().dense(x, w, b))

    @override
    def conv(self, x: Any, w: Any, b: Any, stride: int = 1, groups: int = 1) -> Any:
        return self._kept(super().conv(x, w, b, stride, groups))

    @override
    def norm(self, x: Any) -> Any:
        return self._kept(super().norm(x))

    @override
    def attend(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        return self._kept(super().attend(q, k, v, causal))


class Network(NamedTuple):
    """A network: what it computes with any layers, and its initial weights."""

    compute: Callable[[Any, Any, Any], Any]
    init: Callable[[Any], Any]

    def f(self, params: Any, x: Any) -> Any:
        """Computes logits."""
        return self.compute(Plain(), params, x)


def _layer(key: Any, *shape: int) -> Any:
    fan_in = int(np.prod(shape[:-1]))
    return {"w": jax.random.normal(key, shape) * (1.6 / fan_in) ** 0.5, "b": jnp.zeros(shape[-1])}


def separable(width: int, channels: int, stem: int) -> Network:
    """Depthwise separable convolutions, and a mean over positions."""

    def init(key: Any) -> Any:
        k = jax.random.split(key, 8)
        pairs = [
            (_layer(k[2 * i], 3, 3, 1, width), _layer(k[2 * i + 1], 1, 1, width, width))
            for i in range(3)
        ]
        return {"stem": _layer(k[6], 3, 3, channels, width), "pairs": pairs,
                "fc": _layer(k[7], width, 10)}  # fmt: skip

    def compute(o: Any, p: Any, x: Any) -> Any:
        x = o.act(jax.nn.relu, o.conv(x, **p["stem"], stride=stem))
        for depth, point in p["pairs"]:
            x = o.act(jax.nn.relu, o.conv(x, **depth, groups=width))
            x = o.act(jax.nn.relu, o.conv(x, **point))
        return o.dense(o.mean(x, (1, 2)), **p["fc"])

    return Network(compute, init)


def residual(width: int, channels: int, stem: int) -> Network:
    """A ResNet-18 whose norms are folded away: eight blocks of two convolutions, four widths."""
    widths = [width // 2 * 2**i for i in range(4) for _ in range(2)]
    strides = [1 + (i in (2, 4, 6)) for i in range(8)]
    before = [width // 2, *widths[:-1]]

    def init(key: Any) -> Any:
        blocks = []
        for k, a, b in zip(
            jax.random.split(jax.random.fold_in(key, 1), 8), before, widths, strict=True
        ):
            k1, k2, k3 = jax.random.split(k, 3)
            block = {"first": _layer(k1, 3, 3, a, b), "second": _layer(k2, 3, 3, b, b)}
            # Small second ones in place of a norm: the stream's variance stays.
            block["second"]["w"] *= 0.3
            blocks.append(block | ({"side": _layer(k3, 1, 1, a, b)} if a != b else {}))
        k1, k2 = jax.random.split(key)
        return {"stem": _layer(k1, 3, 3, channels, width // 2), "blocks": blocks,
                "fc": _layer(k2, widths[-1], 10)}  # fmt: skip

    def compute(o: Any, p: Any, x: Any) -> Any:
        x = o.act(jax.nn.relu, o.conv(x, **p["stem"], stride=stem))
        for block, stride in zip(p["blocks"], strides, strict=True):
            y = o.act(jax.nn.relu, o.conv(x, **block["first"], stride=stride))
            y = o.conv(y, **block["second"])
            side = o.conv(x, **block["side"], stride=stride) if "side" in block else x
            x = o.act(jax.nn.relu, o.add(side, y))
        return o.dense(o.mean(x, (1, 2)), **p["fc"])

    return Network(compute, init)


def transformer(width: int, tokens: int, features: int, classes: int, causal: bool) -> Network:
    """A pre-norm transformer of two blocks: the mean of tokens, or the last one, is classified."""
    heads = 2

    def init(key: Any) -> Any:
        k = iter(jax.random.split(key, 16))
        blocks = [
            {name: _layer(next(k), *shape) for name, shape in (
                ("q", (width, width)), ("k", (width, width)), ("v", (width, width)),
                ("out", (width, width)), ("up", (width, 2 * width)), ("down", (2 * width, width)),
            )}
            for _ in range(2)
        ]  # fmt: skip
        places = jax.random.normal(next(k), (tokens, width)) * 0.1
        return {"embed": _layer(next(k), features, width), "places": places, "blocks": blocks,
                "fc": _layer(next(k), width, classes)}  # fmt: skip

    def split(x: Any) -> Any:
        return jnp.swapaxes(x.reshape(*x.shape[:2], heads, -1), 1, 2)

    def joined(x: Any) -> Any:
        return jnp.swapaxes(x, 1, 2).reshape(len(x), tokens, width)

    def compute(o: Any, p: Any, x: Any) -> Any:
        x = o.add(o.dense(x, **p["embed"]), p["places"])
        for b in p["blocks"]:
            y = o.norm(x)
            q, k, v = (o.move(split, o.dense(y, **b[name])) for name in ("q", "k", "v"))
            x = o.add(x, o.dense(o.move(joined, o.attend(q, k, v, causal)), **b["out"]))
            y = o.act(jax.nn.gelu, o.dense(o.norm(x), **b["up"]))
            x = o.add(x, o.dense(y, **b["down"]))
        x = o.norm(x)
        return o.dense(o.move(lambda x: x[:, -1], x) if causal else o.mean(x, (1,)), **p["fc"])

    return Network(compute, init)


class Sets(NamedTuple):
    """Inputs and labels to learn from and to test, and inputs of another kind."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    outside: Any


def _images(settings: Settings, name: str) -> Sets:
    inside, outside = data.load(settings.data), data.load(OUTSIDE[settings.data])

    def seen(images: Any) -> Any:
        x = np.asarray(data.normalize(images, settings.data))
        # 14 by 14 pixels, and as many channels as the network has seen.
        side = x.shape[1] // 14
        x = x[:, : 14 * side, : 14 * side]
        x = x.reshape(len(x), 14, side, 14, side, -1).mean((2, 4))
        if name == "ViT":
            x = x.reshape(len(x), 7, 2, 7, 2, -1).swapaxes(2, 3).reshape(len(x), 49, -1)
        return jnp.asarray(x, jnp.float32)

    # Few to learn from: of all of them a network is right about nearly every digit.
    x = np.concatenate([inside.train_images, inside.test_images])
    y = np.concatenate([inside.train_labels, inside.test_labels]).astype(np.int32)
    n, m = settings.learnt, settings.asked
    others = outside.test_images[:m]
    if others.shape[-1] != x.shape[-1]:
        others = np.repeat(others[:, 2:-2, 2:-2] if len(others[0]) > 32 else others, 3, -1)
    order = np.random.default_rng(0).permutation(len(x))
    learnt, asked = order[:n], order[n : n + m]
    return Sets(
        (seen(x[learnt]), jnp.asarray(y[learnt])), (seen(x[asked]), jnp.asarray(y[asked])),
        seen(others),
    )  # fmt: skip


def _letters(settings: Settings) -> Sets:
    rng = np.random.default_rng(0)

    def pieces(name: str, count: int) -> tuple[Any, Any]:
        plain = re.sub("[^a-z]+", " ", texts()[name].lower())
        codes = np.frombuffer(plain.encode(), np.uint8) % 32
        x = windows(codes.astype(np.int32), count, 12, rng)
        return jax.nn.one_hot(x[:, :12], LETTERS), jnp.asarray(x[:, 12])

    return Sets(
        pieces("learnt", 10 * settings.learnt), pieces("in domain", settings.asked),
        pieces("other languages", settings.asked)[0],
    )  # fmt: skip


@functools.cache
def built(settings: Settings, name: str) -> tuple[Network, Sets]:
    """Makes a network and the inputs that it learns from and is asked about."""
    if name == "decoder":
        return transformer(settings.width, 12, LETTERS, LETTERS, causal=True), _letters(settings)
    sets = _images(settings, name)
    channels, width = sets.outside.shape[-1], settings.width
    if name == "ViT":
        return transformer(width, 49, channels, 10, causal=False), sets
    make = {"DS-CNN": separable, "ResNet-18": residual}[name]
    return make(width, channels, 2 if name == "DS-CNN" else 1), sets


def learnt(settings: Settings, name: str, key: Any) -> Any:
    """Trains by IVON; returns the posterior."""
    net, sets = built(settings, name)
    epochs = max(1, settings.epochs // 4) if name == "decoder" else settings.epochs
    n = len(sets.train[1])
    batch = min(64, n)
    rate = optax.cosine_decay_schedule(0.3, epochs * (n // batch))
    optimizer = bayes.ivon(key, rate, n, weight_decay=1e-3, decay=0.999)
    fitted = training.fit(
        key, training.cross_entropy(net.f), net.init(key), sets.train, optimizer=optimizer,
        epochs=epochs, batch_size=batch, progress=False,
    )  # fmt: skip
    return bayes.ivon_posterior(fitted.params, fitted.opt_state)


def scalars(key: Any, net: Network, posterior: Any, x: Any, count: int) -> list[Any]:
    """Measures a factor for every layer of Calibrated Variance Propagation."""

    def layers(params: Any) -> list[Any]:
        recording = Recording()
        net.compute(recording, params, x)
        return recording.results

    def sums(total: Any, key: Any) -> tuple[Any, None]:
        ys = layers(bayes.draw(key, posterior))
        return [(a + y, b + y * y) for (a, b), y in zip(total, ys, strict=True)], None

    @jax.jit
    def measured(key: Any) -> list[Any]:
        zeros = [(0 * y, 0 * y) for y in layers(means(posterior))]
        total, _ = jax.lax.scan(sums, zeros, jax.random.split(key, count))
        varied = [jnp.maximum(b - a * a / count, 0) / (count - 1) for a, b in total]
        passed = Calibrating(varied, measuring=True)
        net.compute(passed, posterior, x)
        return passed.measured

    return measured(key)


def means(posterior: Any) -> Any:
    """The mean network's weights."""
    is_leaf = lambda v: isinstance(v, Gaussian)  # noqa: E731
    return jax.tree.map(lambda g: g.mean, posterior, is_leaf=is_leaf)


MEAN, SUQ, CVP, DEFAULT, CALIBRATED, LINEAR = (
    "mean network", "SUQ", "CVP", "moments", "moments, calibrated", "moments, linear",
)  # fmt: skip


def drawn(count: int) -> str:
    """The name of a method by draws."""
    return f"{count} draws"


@functools.cache
def _asking(settings: Settings, name: str) -> dict[str, Callable[..., Any]]:
    """Log-probabilities by method, of its parameters, inputs and a key; compiled once."""
    net, _ = built(settings, name)
    f = net.f

    def of_moments(passed: Any) -> Callable[..., Any]:
        return lambda p, x, key: jax.nn.log_softmax(uncertainty.probit_logits(passed(p, x)))

    def by_draws(count: int) -> Callable[..., Any]:
        def said(p: Any, x: Any, key: Any) -> Any:
            return uncertainty.predictive_log_probs(bayes.predict(key, f, p, x, samples=count))

        return said

    ways = {
        MEAN: lambda p, x, key: jax.nn.log_softmax(f(p, x)),
        SUQ: of_moments(lambda p, x: net.compute(Streamlined(), p, x)),
        CVP: of_moments(lambda p, x: net.compute(Calibrating(p[1]), p[0], x)),
        DEFAULT: of_moments(jaxeff.moments(f)),
        CALIBRATED: of_moments(jaxeff.moments(f, shared=False)),
        LINEAR: of_moments(jaxeff.moments(f, method="linear")),
        **{drawn(count): by_draws(count) for count in settings.draws},
    }
    return {method: jax.jit(way) for method, way in ways.items()}


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


def rows(run: Run[Settings], task: str) -> Iterator[Row]:
    """One network with one seed, by every method."""
    settings = run.settings
    name, seed = task.rsplit(" ", 1)
    key = jax.random.fold_in(run.key, int(seed))
    net, sets = built(settings, name)
    posterior = learnt(settings, name, key)
    x = sets.train[0][: settings.calibration]
    # As many runs on one input as `calibrate_moments` takes.
    fitted = scalars(key, net, posterior, x, 50)
    factors = jaxeff.calibrate_moments(key, net.f, posterior, x, progress=False)
    params = {MEAN: means(posterior), CVP: (posterior, fitted), CALIBRATED: factors}
    ways = _asking(settings, name)
    x, y = sets.test
    for method, way in ways.items():
        p = params.get(method, posterior)
        yield {
            "network": name, "seed": int(seed), "method": method,
            **judged(way(p, x, key), y, way(p, sets.outside, key)),
        }  # fmt: skip
    if seed == "0":
        calls = {
            method: functools.partial(way, params.get(method, posterior), x, key)
            for method, way in ways.items()
        }
        times = interleaved(calls, settings.rounds, relative_to=MEAN)
        for method, time in times.items():
            yield {"network": name, "method": method, "price": time["ratio"]}


COLUMNS = ("accuracy", "aurc", "augrc", "covered_half", "covered_one", "nll", "ece", "auroc")
JUDGED = h.having("aurc")


def table(report: Report) -> Iterator[Row]:
    """Means over seeds with half of their 95 % intervals, and the price."""
    prices = {(r["network"], r["method"]): r["price"] for r in h.having("price")(report)}
    for place, each in h.grouped(JUDGED(report), "network", "method").items():
        row: Row = {"network": place[0], "method": place[1], "price": prices.get(place)}
        yield row | margins.means(each, COLUMNS)


def beside(other: str) -> Callable[[Report], Iterator[Row]]:
    """Ours, calibrated, less another method on the same seeds, with what noise can explain."""

    def selection(report: Report) -> Iterator[Row]:
        each = h.grouped(JUDGED(report), "network", "method")
        for (network, method), ours in each.items():
            if method == CALIBRATED and (network, other) in each:
                row: Row = {"network": network, "other": other}
                yield row | margins.differences(ours, each[network, other], COLUMNS)

    return selection


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


CLAIMS = (
    *(
        no_worse(
            f"{{network}}: {what} of calibrated moments less {name}'s", beside(other), column, sign
        )
        for name, other in (("64 draws", drawn(64)), ("CVP", CVP), ("16 draws", drawn(16)))
        for what, column, sign in (
            ("AURC", "aurc", 1), ("coverage at .5 % risk", "covered_half", -1),
            ("coverage at 1 % risk", "covered_one", -1),
        )
    ),
    h.Claim(
        "{network}: calibrated moments over the mean network's time", "price", h.at_most(2.5), None,
        h.having("price"), "default", when=lambda row: row["method"] == CALIBRATED,
        regardless=OTHERS,
    ),
)  # fmt: skip


STUDY = h.Study(
    "selective", __doc__,
    {
        "fast": Settings(networks=("DS-CNN",), seeds=1, learnt=64, asked=64, epochs=4,
                         width=4, calibration=8, draws=(4, 16, 64), rounds=2),
        "default": Settings(),
        "full": Settings(data="fashion-mnist", learnt=20_000, asked=10_000, epochs=20, width=32),
    },
    (
        h.Part(
            lambda run: [
                f"{name} {seed}"
                for name in h.choose(run.settings.networks, NETWORKS, "network")
                for seed in range(run.settings.seeds)
            ],
            rows,
        ),
    ),
    CLAIMS,
    (
        h.Plot(
            "aurc",
            h.Dots("{method}", "aurc", table, facet="{network}",
                   axes={"xlabel": "AURC in per cent, lower is better"}),
            columns=2, size=(4.2, 2.8),
        ),
    ),
    (
        h.Listing("means over seeds; time over the mean network's",
                  ("network", "method", "price", *COLUMNS), table),
        h.Listing("half of the 95 % intervals over seeds",
                  ("network", "method", *(f"{column} ±" for column in COLUMNS)), table),
    ),
    differences=(
        "Both rivals' programs weren't at hand: their rules are derived from their descriptions, "
        "attention's weights are fixed in both, and a layer's scalar is a ratio of mean variances.",
        "Networks are small and learn from few inputs, so that there are errors to give away; "
        "images have 14 by 14 pixels.",
        "Times are those under XLA on one machine's processor, with the softmax in them.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
