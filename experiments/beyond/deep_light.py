"""Networks of photonic layers as they grow deeper: how far base noise adds up.

    python -m experiments.beyond.deep_light

Light of a crossbar's inputs is noisy at its quietest: chaotic carriers, shots, a detector's
electronics. Perceptrons of growing depth, every layer on `PhotonicWeights`, are trained in the dark
(the same cut-off and levels of weights, without noise), in base noise, or in noise whose level each
layer learns by its task alone; and judged in light. Each is read once, and many times. Images are
digits of 14 by 14 pixels; patches of photographs are out of domain.

Klein's thesis names it (section 11.3: "the tolerance of accumulating base noise in deeper
architectures and the development of training methods that can adapt to device-specific noise
processes") and has no numbers; its own photonic network has one noisy layer.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.beyond import small_digits
from experiments.harness import Count, Least, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from jaxeff.nn import MLP
from jaxeff.photonics import ChaoticLight, PhotonicWeights, photonic
from jaxeff.training import fit, stateless

WIDTH = 32
NONE, DARK, BASE, LEARNT = "no light", "trained in the dark", "in base noise", "in learnt noise"
QUIET = ChaoticLight(noise=0.0, modes=1e12, photons=1e12, electronic=0.0)
"""The same cut-off as light has, and no noise that float32 could tell."""


@dataclass(frozen=True)
class Settings(Training):
    """How deep networks are, and how noisy their light is."""

    depths: tuple[int, ...] = (1, 2, 4, 8, 12)  # hidden layers
    seeds: Count = 5  # trainings of each depth
    epochs: Count = 40  # of a training
    readings: Annotated[int, Least(4)] = 30  # behind a prediction of several
    photons: float = 100.0  # per unit of intensity; fewer are noisier
    electronic: float = 0.05  # standard deviation of the electronic noise of one slot


def network(key: jax.Array, depth: int) -> tuple[Callable[..., Any], Any]:
    """Makes a perceptron of so many hidden layers, and parameters that keep its signal's size."""
    sizes = (small_digits.PIXELS, *[WIDTH] * depth, small_digits.CLASSES)
    f, params = jaxeff.functional(MLP(sizes, rngs=nnx.Rngs(key)))
    # He's gain in front of a ReLU: with the default one a signal of eight layers falls to a
    # sixteenth, and the dark reference itself couldn't be trained.
    gain = {site: 2**0.5 if site != "fc1" else 1.0 for site in params}
    return f, {
        site: layer | {"kernel": gain[site] * layer["kernel"]} for site, layer in params.items()
    }


def lit(f: Any, light: ChaoticLight, levels: dict[str, Any]) -> Callable[..., Any]:
    """Puts every layer on a crossbar; `levels` are the logits of each layer's noise, or empty."""
    spec = {
        site: PhotonicWeights(light=replace(light, noise=jax.nn.sigmoid(level)))
        for site, level in levels.items()
    }
    return photonic(f, spec or {"fc*": PhotonicWeights(light=light)})


def trained(run: Run[Settings], seed: int, f: Any, start: Any, light: ChaoticLight,
            levels: dict[str, Any]) -> Any:  # fmt: skip
    """Trains by the Gaussian model of light, whose noise is drawn anew at every step."""
    data, settings = small_digits.images(standardized=False), run.settings

    def loss(key: Any, p: Any, batch: Any) -> Any:
        x, labels = batch
        logits = lit(f, light, p["levels"])(key, p["net"], x)
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return nll, {"nll": nll}

    steps = settings.epochs * (len(data.train) // settings.batch_size)
    # A level is a logit: it has farther to go than a weight.
    optimizer = optax.multi_transform(
        {
            "net": cosine_adam(settings.rate, steps),
            "levels": cosine_adam(10 * settings.rate, steps),
        },
        {"net": "net", "levels": "levels"},
    )
    return fit(
        jax.random.fold_in(run.key, seed), stateless(loss), {"net": start, "levels": levels},
        (data.train, data.train_labels), epochs=settings.epochs, optimizer=optimizer,
        batch_size=settings.batch_size, progress=False,
    ).params  # fmt: skip


def measure(run: Run[Settings], task: tuple[int, int]) -> Iterator[Row]:
    """All trainings of one depth, read once and many times."""
    (depth, seed), settings = task, run.settings
    data = small_digits.images(standardized=False)
    f, start = network(jax.random.fold_in(run.key, 1000 * depth + seed), depth)
    base = ChaoticLight(noise=0.0, photons=settings.photons, electronic=settings.electronic)
    # Levels begin near the base: the task has to ask for noise.
    low = {site: jnp.float32(-2.0) for site in start}
    dark = trained(run, seed, f, start, QUIET, {})
    nets = {
        (NONE, QUIET): dark, (DARK, base): dark,
        (BASE, base): trained(run, seed, f, start, base, {}),
        (LEARNT, base): trained(run, seed, f, start, base, low),
    }  # fmt: skip
    x, count = jnp.concatenate([data.test, data.elsewhere]), len(data.test)
    keys = jax.random.split(jax.random.fold_in(run.key, seed), settings.readings)
    for (name, light), p in nets.items():
        read = jax.jit(lambda p, x, light=light: jax.lax.map(
            lambda key: lit(f, light, p["levels"])(key, p["net"], x), keys
        ))  # fmt: skip
        logits = read(p, x)
        # What noise is to logits: its deviation over that of their means between images.
        noise = logits[:, :count].std(0, ddof=1).mean() / logits[:, :count].mean(0).std(0).mean()
        levels = [float(jax.nn.sigmoid(level)) for level in p["levels"].values()]
        for readings in (1,) if name == NONE else (1, settings.readings):
            said = small_digits.said(logits[:readings, :count])
            elsewhere = small_digits.said(logits[:readings, count:])
            yield {
                "training": name, "depth": depth, "seed": seed, "readings": readings,
                **small_digits.judged(said, elsewhere, data.test_labels),
                "noise": float(noise), "level": h.mean(levels),
            }  # fmt: skip


COLUMNS = ("accuracy", "nll", "ece", "auroc", "noise", "level")
MEANS = h.means(h.every, ("training", "depth", "readings"), COLUMNS, ("accuracy", "nll", "auroc"))


def several(report: Report) -> list[Row]:
    """Selects means of predictions by several readings, and of those without light by one."""
    return [row for row in MEANS(report) if row["readings"] > 1 or row["training"] == NONE]


def effects(report: Report) -> Iterator[Row]:
    """Selects what depth costs and what training in noise gains, at the greatest depth."""
    by_depth = {(row["training"], row["depth"]): row for row in several(report)}
    first, last = min(report.config["depths"]), max(report.config["depths"])
    dark, base, learnt, none = (by_depth[name, last] for name in (DARK, BASE, LEARNT, NONE))
    yield {
        "depth": last, "grown": dark["noise"] / by_depth[DARK, first]["noise"],
        "gained": base["accuracy"] - dark["accuracy"],
        "lost": none["accuracy"] - base["accuracy"],
        "told": base["auroc"] - none["auroc"], "more": learnt["auroc"] - base["auroc"],
        "saved": none["nll"] - base["nll"],
    }  # fmt: skip


claim = functools.partial(h.Claim, source="no number", of=effects)
STUDY = h.Study(
    "deep_light", __doc__,
    {
        "fast": Settings(depths=(1, 2, 4, 8), seeds=1, readings=12),
        "default": Settings(),
        "full": Settings(depths=(1, 2, 4, 8, 12, 16, 24), seeds=10, epochs=100, readings=64),
    },
    (
        h.Part(
            lambda run: [(d, s) for d in run.settings.depths for s in range(run.settings.seeds)],
            measure,
        ),
    ),
    (
        claim("trained in the dark: noise of logits over their signal, deepest over shallowest",
              "grown", h.at_least(2)),
        claim("deepest: accuracy that training in base noise gains over the dark", "gained",
              h.above(0), needs="default"),
        claim("deepest: accuracy that light costs when trained in it", "lost", h.at_most(0.02),
              needs="default"),
        claim("deepest: AUROC that base noise gains over no light", "told", h.above(0),
              needs="default"),
        claim("deepest: NLL that it saves", "saved", h.above(0), needs="default"),
        claim("deepest: AUROC that learnt levels gain over base noise", "more", h.above(0),
              needs="default"),
    ),
    (
        h.Plot(
            "depth",
            *(h.Curves("depth", column, several, "{training}", error=True, style="o-",
                       axes={"xlabel": "hidden layers", "ylabel": label})
              for column, label in (("accuracy", "accuracy"), ("nll", "NLL"),
                                    ("auroc", "AUROC out of domain"))),
            h.Curves("depth", "noise", several, "{training}", style="o-",
                     axes={"xlabel": "hidden layers", "ylabel": "noise over signal of logits"}),
            columns=2,
        ),
    ),
    (h.Listing("photonic perceptrons by depth", ("training", "depth", "readings", *COLUMNS),
               MEANS),),
    differences=(
        "the light is simulated by the Gaussian model, and noise floors are ours: the thesis "
        "publishes neither photons nor electronics",
        "no layer normalizes and none has a shortcut, which a deep network would have",
        "learnt levels are asked for by the task alone, without a prior",
        "without light there is one reading, and its doubt is entropy",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
