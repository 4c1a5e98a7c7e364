"""Training for a chip at equal queries: with it in the loop, or on a model that they paid for.

    python -m experiments.beyond.chip_queries

A query is a vector that a tile answers. Budgets are those of characterizations of a synthetic chip
of growing size. One network is retrained through the white box that a characterization gave, which
asks no more; the other spends as many queries on steps with the chip in the loop, whose gradients
are an ideal array's. Both begin with the same digital network and are judged on the chip.

Klein's thesis (section 5.3) trains on models first and in the loop last, and doesn't count queries.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments import harness as h
from experiments.beyond import small_digits
from experiments.harness import Count, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from jaxeff import uncertainty
from jaxeff.analog_hardware import (
    PUBLISHED_PHYSICS,
    Chip,
    Crossbar,
    Design,
    calibrate_ranges,
    characterize,
    fit_white_box,
    growing_noise,
    in_the_loop,
    with_model,
)
from jaxeff.training import cross_entropy, fit

ARRAY = Crossbar(gain=0.004)
COLUMNS = 32
"""Of the array, which the network's layers lie in; no others are measured."""
LOOP, MODEL, NEITHER = "in the loop", "on the model", "not retrained"
OFFSETS = 64
"""Readings of silent columns that every characterization has."""


def design(size: int) -> Design:
    """Sizes of a characterization; each size asks about twice what the one before it does."""
    return Design(
        columns=COLUMNS, programs=2 * 2**size, averages=1, drives=4 * 2**size, vectors=64,
        active=(1, 32, 128), repeats=8,
    )  # fmt: skip


def queries_of(own: Design) -> int:
    """Counts the vectors that a characterization asks; a test has the chip count them."""
    singles = own.programs * own.rows * len(own.levels) * own.averages
    # Noise is read from eight vectors for each number of rows.
    return (
        singles + max(OFFSETS, 2 * own.repeats) + own.drives * own.vectors
        + 8 * len(own.active) * own.repeats
    )  # fmt: skip


@dataclass(frozen=True)
class Settings(Training):
    """How much the chip is asked, and how networks are trained."""

    sizes: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)  # of characterizations
    seeds: Count = 3  # chips, with a digital network each
    epochs: Count = 30  # of digital training
    steps: Count = 1000  # updates on a model, which cost no queries


class Retraining(NamedTuple):
    """What a retraining is compiled for."""

    f: Callable[..., Any]
    looped: bool  # with the chip in the loop, else on a model
    size: int  # of a batch


@functools.partial(jax.jit, static_argnames="way")
def retrained(
    key: Any, params: Any, spec: Any, given: Any, steps: Any, rate: float, way: Retraining
) -> Any:
    """Makes so many updates; `given` is the chip in the loop, else the model.

    Steps are traced, so that all budgets share a program.
    """
    data, (f, looped, size) = small_digits.images(standardized=False), way
    if looped:
        loss = cross_entropy(in_the_loop(f, spec, given), keyed=True)
    else:
        # Noise grows over the first half, as the library's recipe has it.
        loss = growing_noise(
            f, with_model(spec, given), lambda step: jnp.minimum(1.0, 2.0 * step / steps)
        )
    adam = optax.scale_by_adam()

    def update(step: Any, carry: Any) -> Any:
        p, state = carry
        draw, noise = jax.random.split(jax.random.fold_in(key, step))
        picked = jax.random.randint(draw, (size,), 0, len(data.train))
        batch = (data.train[picked], data.train_labels[picked])
        grads, _ = jax.grad(lambda q: loss(noise, q, None, batch, step), has_aux=True)(p)
        moves, state = adam.update(grads, state)
        # The rate decays over the budget: fewer steps must not end at a high rate.
        now = rate * 0.5 * (1 + jnp.cos(jnp.pi * step / steps))
        return optax.apply_updates(p, jax.tree.map(lambda m: -now * m, moves)), state

    return jax.lax.fori_loop(0, steps, update, (params, adam.init(params)))[0]


def measure(run: Run[Settings], seed: int) -> Iterator[Row]:
    """Both ways at all budgets, on one chip."""
    data, settings = small_digits.images(standardized=False), run.settings
    key = jax.random.fold_in(run.key, seed)
    # Without leaks and memory of lines, which no model of a tile's sums can hold.
    chip = Chip(seed, physics=replace(PUBLISHED_PHYSICS, ordered=False))
    f, start = small_digits.network(key)
    params = fit(
        key, cross_entropy(f), start, (data.train, data.train_labels), epochs=settings.epochs,
        optimizer=cosine_adam(settings.rate,
        settings.epochs * (len(data.train) // settings.batch_size)),
        batch_size=settings.batch_size, progress=False,
    ).params  # fmt: skip
    spec = calibrate_ranges(f, params, [data.train], {"fc*": ARRAY})
    # Every tile of a layer answers each image once.
    tiles = sum(
        math.ceil(params[site]["kernel"].shape[0] / ARRAY.rows)
        * math.ceil(params[site]["kernel"].shape[1] / ARRAY.columns)
        for site in spec
    )
    ask = jax.jit(lambda k, p, x: in_the_loop(f, spec, chip)(k, p, x))

    def judged(name: str, queries: int, steps: int, trained: Any) -> Row:
        logits = ask(jax.random.fold_in(key, 9), trained, data.test)
        probs = jax.nn.softmax(logits)
        return {
            "method": name, "seed": seed, "queries": queries, "steps": steps,
            "accuracy": float(uncertainty.accuracy(probs, data.test_labels)),
            "nll": float(uncertainty.nll(probs, data.test_labels)),
        }  # fmt: skip

    yield judged(NEITHER, 0, 0, params)

    def train(source: Any, steps: int, looped: bool) -> Any:
        way = Retraining(f, looped, settings.batch_size)
        return retrained(key, params, spec, source, steps, settings.rate, way)

    for size in settings.sizes:
        asked = queries_of(design(size))
        box = fit_white_box(characterize(jax.random.fold_in(key, size), chip, design(size)))
        yield judged(MODEL, asked, settings.steps, train(box, settings.steps, looped=False))
        steps = asked // (tiles * settings.batch_size)
        yield judged(LOOP, asked, steps, train(chip, steps, looped=True))


MEANS = h.means(h.every, ("method", "queries"), ("steps", "nll", "accuracy"), ("nll", "accuracy"))
CURVES = h.means(
    lambda report: [row for row in report.rows if row["queries"]],
    ("method", "queries"), ("nll", "accuracy"), ("nll", "accuracy"),
)  # fmt: skip


def ends(report: Report) -> Iterator[Row]:
    """Selects what the model gains over the loop at fewest queries, and the loop at most."""
    by_method = {(row["method"], row["queries"]): row for row in MEANS(report)}
    asked = sorted({row["queries"] for row in report.rows if row["queries"]})
    few, many = asked[0], asked[-1]
    yield {
        "few": by_method[MODEL, few]["accuracy"] - by_method[LOOP, few]["accuracy"],
        "many": by_method[LOOP, many]["accuracy"] - by_method[MODEL, many]["accuracy"],
        "saved": by_method[MODEL, many]["nll"] - by_method[LOOP, many]["nll"],
    }  # fmt: skip


claim = functools.partial(h.Claim, source="no number", of=ends, needs="default")
STUDY = h.Study(
    "chip_queries", __doc__,
    {
        "fast": Settings(sizes=(0, 1, 2, 3, 4), seeds=1, epochs=15, steps=300, batch_size=32),
        "default": Settings(),
        "full": Settings(sizes=tuple(range(9)), seeds=10, epochs=100, steps=3000),
    },
    (h.Part(lambda run: range(run.settings.seeds), measure),),
    (
        claim("fewest queries: accuracy that the model gains over the loop", "few", h.above(0)),
        claim("most queries: accuracy that the loop gains over the model", "many", h.above(0)),
        claim("most queries: NLL that the loop saves", "saved", h.above(0)),
    ),
    (
        h.Plot(
            "curves",
            *(h.Curves("queries", column, CURVES, "{method}", style="o-",
                       axes={"xlabel": "queries of the chip", "ylabel": label, "xscale": "log"})
              for column, label in (("accuracy", "accuracy on the chip"), ("nll", "NLL"))),
        ),
    ),
    (h.Listing("equal queries", ("method", "queries", "steps", "accuracy", "nll"), MEANS),),
    differences=(
        "the chip is synthetic, without effects of the order of events; BrainScaleS-2 was not at "
        "hand",
        "all queries count the same, whatever they cost in time: a characterization asks 64 "
        "vectors or more of the same weights, the loop programs new ones at every step",
        "the loop begins with all its noise and the model's noise grows, as in the library's "
        "recipe, and the model's number of steps is that of no budget",
        "rates and batches are the same for both and weren't searched",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
