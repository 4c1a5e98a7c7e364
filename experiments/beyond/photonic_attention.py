"""Attention by chaotic light: both of its products, its dense layers, or all of them.

    python -m experiments.beyond.photonic_attention

A transformer of one block classifies digits of 14 by 14 pixels, row by row. Its dense layers are
crossbars of weights (`PhotonicWeights`), the products of its attention crossbars that are written
for every example (`PhotonicProduct`: keys and values in cells, queries and the weights of attention
as light); negative activations are measured separately. Networks are trained in the dark, or in the
Gaussian model of the light that they are read by. Patches of photographs are out of domain.

Klein's thesis names attention as an extension of its photonic pooling (chapter 10, last paragraph)
and has no numbers.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.beyond import small_digits
from experiments.harness import Count, Least, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from jaxeff.nn import TransformerEncoder
from jaxeff.photonics import ChaoticLight, PhotonicProduct, PhotonicWeights, photonic
from jaxeff.training import fit, stateless

SIDE = 14
NONE, DENSE, SCORES, SUMS = "electronic", "dense layers", "scores", "weighted sums"
ATTENTION, ALL = "attention", "attention and dense layers"
PARTS = (DENSE, SCORES, SUMS, ATTENTION, ALL)
DARK, LIT = "in the dark", "in its light"


@dataclass(frozen=True)
class Settings(Training):
    """How long networks are trained, and how noisy their light is."""

    slots: tuple[Count, ...] = (2, 8, 32)  # pulses of a carrier; more are quieter
    width: Count = 32  # of the transformer
    heads: Count = 4  # of its attention
    seeds: Count = 5  # trainings
    epochs: Count = 40  # of a training
    readings: Annotated[int, Least(4)] = 30  # behind a prediction of several
    photons: float = 100.0  # per unit of intensity; fewer are noisier
    electronic: float = 0.05  # standard deviation of the electronic noise of one slot


def lit(f: Any, part: str, light: ChaoticLight) -> Callable[..., Any]:
    """Puts a part of the network on light."""
    dense = PhotonicWeights(light=light, inputs="signed")
    # As Flax writes attention, keys are a product's second operand and values the first of the
    # other; the weights of attention, which are sent to the values, are never negative.
    scores = PhotonicProduct(light=light)
    sums = PhotonicProduct(light=light, cells="left", inputs="positive")
    attention = {"*matmul": scores, "*matmul_1": sums}
    specs: dict[str, Any] = {
        DENSE: {"*:linear": dense}, SCORES: {"*matmul": scores}, SUMS: {"*matmul_1": sums},
        ATTENTION: attention, ALL: attention | {"*:linear": dense},
    }  # fmt: skip
    return photonic(f, specs.get(part, {}))


def trained(run: Run[Settings], seed: int, f: Any, start: Any, part: str, light: Any) -> Any:
    """Trains by the Gaussian model of light, whose noise is drawn anew at every step."""
    data, settings = small_digits.images(), run.settings
    g = lit(f, part, light)

    def loss(key: Any, p: Any, batch: Any) -> Any:
        nll = optax.softmax_cross_entropy_with_integer_labels(g(key, p, batch[0]), batch[1]).mean()
        return nll, {"nll": nll}

    steps = settings.epochs * (len(data.train) // settings.batch_size)
    return fit(
        jax.random.fold_in(run.key, seed), stateless(loss), start, (data.train, data.train_labels),
        epochs=settings.epochs, optimizer=cosine_adam(settings.rate, steps),
        batch_size=settings.batch_size,
        progress=False,
    ).params  # fmt: skip


def measure(run: Run[Settings], task: tuple[int, int]) -> Iterator[Row]:
    """Every part on light of so many slots, by networks of one seed."""
    (slots, seed), settings = task, run.settings
    # Full scale stays four deviations of a normalized activation, whatever it is made of.
    light = ChaoticLight(noise=0.0, slots=slots, cap=4.0 / slots, photons=settings.photons,
                         electronic=settings.electronic)  # fmt: skip
    model = TransformerEncoder(
        small_digits.CLASSES, SIDE, SIDE, width=settings.width, heads=settings.heads,
        hidden=2 * settings.width,
        depth=1, rngs=nnx.Rngs(jax.random.fold_in(run.key, 1000 + seed)),
    )  # fmt: skip
    f, start = jaxeff.functional(model)
    dark = Network(f, trained(run, seed, f, start, NONE, light), DARK)
    yield from judged(run, seed, dark, NONE, light)
    for part in PARTS:
        yield from judged(run, seed, dark, part, light)
        if part in (DENSE, ATTENTION, ALL):
            known = Network(f, trained(run, seed, f, start, part, light), LIT)
            yield from judged(run, seed, known, part, light)
        if part == ATTENTION:
            # What was trained by the Gaussian model is read by photons, too: once, for a draw of
            # photons takes a hundred times as long as one of a Gaussian.
            photons = replace(light, model="physical")
            yield from judged(run, seed, known, part, photons, 1)


class Network(NamedTuple):
    """A trained network."""

    f: Callable[..., Any]
    params: Any
    training: str  # in the dark, or in its light


def judged(
    run: Run[Settings], seed: int, network: Network, part: str, light: ChaoticLight, most: int = 0
) -> Iterator[Row]:
    """Predictions of one network, a part of it on light, by one reading and by several."""
    data = small_digits.images()
    count = 1 if part == NONE else most or run.settings.readings
    x, inside = jnp.concatenate([data.test, data.elsewhere]), len(data.test)
    keys = jax.random.split(jax.random.fold_in(run.key, seed), count)
    g = lit(network.f, part, light)
    logits = jax.jit(lambda p, x: jax.lax.map(lambda key: g(key, p, x), keys))(network.params, x)
    known = logits[:, :inside]
    # What noise is to logits: its deviation over that of their means between images.
    noise = known.std(0, ddof=int(count > 1)).mean() / known.mean(0).std(0).mean()
    for readings in sorted({1, count}):
        said = small_digits.said(known[:readings])
        elsewhere = small_digits.said(logits[:readings, inside:])
        yield {
            "part": part, "training": network.training, "model": light.model, "slots": light.slots,
            "seed": seed, "readings": readings,
            **small_digits.judged(said, elsewhere, data.test_labels), "noise": float(noise),
        }  # fmt: skip


COLUMNS = ("accuracy", "nll", "ece", "auroc", "noise")
KEYS = ("part", "training", "model", "slots", "readings")
MEANS = h.means(h.every, KEYS, COLUMNS, ("accuracy", "nll", "auroc"))


def once(report: Report) -> list[Row]:
    """Selects predictions by one reading of the Gaussian model, and the electronic ones."""
    return [r for r in MEANS(report) if r["readings"] == 1 and r["model"] == "gaussian"]


def several(report: Report) -> list[Row]:
    """Selects predictions by many readings, and the electronic ones."""
    return [
        row for row in MEANS(report)
        if row["model"] == "gaussian" and (row["readings"] > 1 or row["part"] == NONE)
    ]  # fmt: skip


def effects(report: Report) -> Iterator[Row]:
    """Selects what light costs where, by one reading."""
    by_slots = {(r["part"], r["training"], r["slots"]): r for r in once(report)}
    photons = {
        (r["part"], r["slots"]): r for r in MEANS(report)
        if r["model"] == "physical" and r["readings"] == 1
    }  # fmt: skip
    for slots in report.config["slots"]:
        electronic = by_slots[NONE, DARK, slots]["accuracy"]
        part, dense = by_slots[ATTENTION, DARK, slots], by_slots[DENSE, DARK, slots]
        yield {
            "slots": slots, "relative": part["noise"] / dense["noise"],
            "dark": electronic - part["accuracy"], "dense": electronic - dense["accuracy"],
            "lost": electronic - by_slots[ATTENTION, LIT, slots]["accuracy"],
            "all": electronic - by_slots[ALL, LIT, slots]["accuracy"],
            "scores": by_slots[SCORES, DARK, slots]["noise"] / by_slots[SUMS, DARK, slots]["noise"],
            "apart": abs(
                photons[ATTENTION, slots]["accuracy"] - by_slots[ATTENTION, LIT, slots]["accuracy"]
            ),
        }  # fmt: skip


claim = functools.partial(h.Claim, source="no number", of=effects)
STUDY = h.Study(
    "photonic_attention", __doc__,
    {
        "fast": Settings(slots=(2, 8), seeds=1, epochs=15, readings=8),
        "default": Settings(),
        "full": Settings(slots=(1, 2, 4, 8, 16, 32, 64), seeds=10, epochs=100, readings=64),
    },
    (
        h.Part(
            lambda run: [(n, s) for n in run.settings.slots for s in range(run.settings.seeds)],
            measure,
        ),
    ),
    (
        claim("{slots} slots, trained in the dark: noise of logits by photonic attention over that "
              "by photonic dense layers", "relative", h.at_most(1)),
        claim("{slots} slots: accuracy that one reading of photonic attention costs, trained in it",
              "lost", h.at_most(0.02), needs="default"),
        claim("{slots} slots: the same of attention and dense layers", "all", h.at_most(0.02),
              needs="default"),
        claim("{slots} slots: noise of logits by scores over that by weighted sums", "scores",
              h.at_most(1)),
        claim("{slots} slots: accuracy of attention by photons apart from that by the Gaussian "
              "model", "apart", h.at_most(0.02), needs="default"),
    ),
    (
        h.Plot(
            "slots",
            *(h.Curves("slots", column, chosen, "{part}, {training}", error=error, style="o-",
                       axes={"xlabel": "slots of a carrier", "ylabel": label})
              for column, chosen, label, error in (
                  ("accuracy", once, "accuracy by one reading", True),
                  ("noise", once, "noise over signal of logits", False),
                  ("nll", several, "NLL by several readings", True),
                  ("auroc", several, "AUROC out of domain, several", True))),
            columns=2,
        ),
    ),
    (h.Listing("a transformer of one block", (*KEYS, *COLUMNS), MEANS),),
    differences=(
        "light is simulated, and its floors are ours: the thesis publishes neither photons nor "
        "electronics; writing cells costs no time and no error",
        "norms, softmax and GELU are electronic, and so is every scale",
        "an electronic network has one reading, and its doubt is entropy",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
