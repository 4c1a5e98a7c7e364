"""A decoder's moments token by token: a cache of means and variances, over long contexts.

    python -m experiments.beyond.contexts

A small decoder of bytes learns docstrings, and its weights become random. One pass of moments reads
a context and leaves a cache of keys and values that are Gaussian; each further token is a step on
it. Asked for every length of a context: whether steps give what one pass over everything gives,
what share of the variance that draws of the weights have it finds, with factors measured on short
contexts (`calibrate_moments`) and without, and what reading and a step cost over the decoder's own,
by the processor's time under XLA and, with the cache resident, under TVM.
"""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.beyond.decoding.steps import restarted
from experiments.beyond.tokens.texts import texts, windows
from experiments.contests.tvm import host
from experiments.harness import Count, Least, Row, Run
from experiments.recipes import Training, cosine_adam
from experiments.timing import Meter, measure_rounds, metered, ratio
from jaxeff import Gaussian, bayes, training
from jaxeff.contrib import Decoder, DecoderConfig

STEPS = 4
"""Tokens that are read one by one, after all others at once."""
ROOM = 32
ALONE = "alone"


@dataclass(frozen=True)
class Settings(Training):
    """How the decoder is made and asked."""

    lengths: tuple[int, ...] = (64, 512, 1024)  # tokens of a context
    width: Annotated[int, Least(8)] = 48  # features of a token
    short: Annotated[int, Least(8)] = 64  # tokens of the texts that it learns and is calibrated on
    learnt: Annotated[int, Least(64)] = 6000  # texts to learn from
    epochs: Count = 4  # passes over them
    noise: float = 0.03  # deviation of weights over that of their array
    calibration: Annotated[int, Least(2)] = 16  # texts that factors are measured on
    asked: Count = 4  # texts of each length
    draws: Annotated[int, Least(8)] = 300  # of the weights
    rounds: Count = 7  # interleaved rounds of the timing


@dataclass(frozen=True, eq=False)
class Bench:
    """A trained decoder, its random weights, and how a text of any length is drawn."""

    f: Any
    params: Any
    posterior: Any
    config: DecoderConfig
    tokens: np.ndarray

    def read(self, params: Any, tokens: Any) -> Any:
        """Reads a text from its beginning: the logits of its last token, and the cache."""
        empty = self.config.empty_cache(*tokens.shape)
        return self.step(params, tokens, jnp.int32(tokens.shape[1]), empty)

    def step(self, params: Any, tokens: Any, count: Any, cache: Any) -> Any:
        """Reads on by so many tokens: the logits of the last one, and the cache."""
        return self.f(params, tokens, cache, count)

    def drawn(self, count: int, length: int) -> Any:
        """Cuts texts that it hasn't learnt, from the end of all there is."""
        rng = np.random.default_rng(length)
        return jnp.asarray(windows(self.tokens, count, length, rng)[:, :length])


def trained(run: Run[Settings]) -> Bench:
    """Trains the decoder; its parameters are kept."""
    settings = run.settings
    config = DecoderConfig(vocabulary=256, width=settings.width, hidden=2 * settings.width,
                           depth=2, heads=4, key_heads=2)  # fmt: skip
    f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(run.key)))
    tokens = np.frombuffer(texts()["learnt"].encode(), np.uint8).astype(np.int32)
    apart = len(tokens) * 9 // 10
    pieces = windows(tokens[:apart], settings.learnt, settings.short, np.random.default_rng(0))
    steps = settings.epochs * (settings.learnt // settings.batch_size)
    params = training.fit(
        run.key, training.cross_entropy(f), params, (pieces[:, :-1], pieces[:, 1:]),
        optimizer=cosine_adam(settings.rate, steps), epochs=settings.epochs,
        batch_size=settings.batch_size, checkpoint=run.work / "decoder.safetensors", progress=False,
    ).params  # fmt: skip
    posterior = jax.tree.map(
        lambda w: Gaussian(w, jnp.full_like(w, settings.noise**2 * w.var())) if w.ndim > 1 else w,
        params,
    )
    return Bench(f, params, posterior, config, tokens[apart:])


def rows(run: Run[Settings], length: int) -> Iterator[Row]:
    """A context of one length: variances of the next token's logits, and prices."""
    settings, bench = run.settings, trained(run)
    tokens = bench.drawn(settings.asked, length)
    short = bench.drawn(settings.calibration, settings.short)
    calibrated = jaxeff.calibrate_moments(run.key, bench.read, bench.posterior, short,
                                          progress=False)  # fmt: skip
    keys = jax.random.split(run.key, settings.draws)
    draw = jax.jit(lambda key: bench.read(bayes.draw(key, bench.posterior), tokens)[0])
    truth = np.stack([draw(key) for key in keys]).var(0, ddof=1)

    read, step = (jax.jit(jaxeff.moments(g)) for g in (bench.read, bench.step))
    for factors, posterior in (("none", bench.posterior), ("of short texts", calibrated)):
        one_pass, _ = read(posterior, tokens)
        empty = bench.config.empty_cache(*tokens.shape)
        logits, cache = step(posterior, tokens[:, :-STEPS], jnp.int32(length - STEPS), empty)
        for i in range(length - STEPS, length):
            logits, cache = step(posterior, tokens[:, i : i + 1], jnp.int32(1), cache)
        low, middle, high = np.quantile(one_pass.var / truth, (0.05, 0.5, 0.95))
        yield {
            "part": "variances", "length": length, "factors": factors, "ratio": float(middle),
            "low": float(low), "high": float(high),
            "apart": float(np.abs(logits.var / one_pass.var - 1).max()),
            "of_all": float(np.sum(one_pass.var) / np.sum(truth)),
        }  # fmt: skip
    yield {"part": "prices", "length": length, **_prices(bench, tokens[:1], calibrated,
                                                       settings.rounds)}  # fmt: skip


def _prices(bench: Bench, tokens: Any, calibrated: Any, rounds: int) -> Row:
    """Times reading and a step, the decoder's and of moments, under XLA and TVM."""
    last = tokens[:, -1:], jnp.int32(1)
    meters: dict[tuple[str, str, str], Meter] = {}
    for form, posterior in (
        (ALONE, bench.params), ("default", bench.posterior), ("calibrated", calibrated)
    ):  # fmt: skip
        transform = (lambda g: g) if form == ALONE else jaxeff.moments
        read, step = jax.jit(transform(bench.read)), transform(bench.step)
        run = jax.jit(step)
        # A few tokens more than the context: a session is begun again when they are full.
        room = bench.config.empty_cache(1, tokens.shape[1] + ROOM)
        _, cache = run(posterior, tokens[:, :-1], jnp.int32(tokens.shape[1] - 1), room)
        bundle = jaxeff_export.deploy(step, (posterior, *last, cache), target=host(),
                                      state=("cache",))  # fmt: skip
        calls: dict[tuple[str, str], Callable[[], Any]] = {
            ("read", "XLA"): functools.partial(read, posterior, tokens),
            ("step", "XLA"): functools.partial(run, posterior, *last, cache),
            ("step", "TVM"): restarted(bundle.session(), last, ROOM),
        }
        meters |= {
            (*which, form): metered(call, time.process_time) for which, call in calls.items()
        }
    times = measure_rounds(meters, rounds)
    return {
        f"{what}, {form}, {engine}": ratio(each, times[what, engine, ALONE])
        for (what, engine, form), each in times.items()
        if form != ALONE
    }


def prices(report: h.Report) -> Iterator[Row]:
    """Selects a row for each length, pass and engine, with what it costs over the decoder."""
    for row in h.where(part="prices")(report):
        for name, cost in row.items():
            if name.count(", ") == 2:
                what, form, engine = name.split(", ")
                yield {"length": row["length"], "what": what, "pass": form, "engine": engine,
                       "cost": cost}  # fmt: skip


VARIANCES = h.where(part="variances")
STUDY = h.Study(
    "contexts", __doc__,
    {
        "fast": Settings(lengths=(16, 32), width=16, short=16, learnt=640, epochs=1, calibration=4,
                         asked=2, draws=40, rounds=2),
        "default": Settings(),
        "full": Settings(lengths=(64, 512, 1024, 2048, 4096), width=128, learnt=50_000, epochs=8,
                         calibration=64, asked=16, draws=2000, rounds=15),
    },
    (h.Part(lambda run: run.settings.lengths, rows),),
    (
        h.Claim(
            "{length} tokens: variances of steps are those of one pass, but for a share of {bound}",
            # Factors of results apply to the cache, which is one, where one pass reads what is in
            # it before.
            "apart", h.at_most(1e-3), None, h.where(part="variances", factors="none"),
        ),
        h.Claim(
            "{length} tokens, factors {factors}: variances over those of draws within .8 to 1.25",
            "ratio", lambda row, ratio: 0.8 <= ratio <= 1.25, None, VARIANCES, "default",
        ),
        h.Claim(
            "{length} tokens: a step of the {pass} pass under {engine} takes at most {bound} of "
            "the decoder's", "cost",
            h.at_most(lambda row: 2.5 if row["pass"] == "calibrated" else 6), None, prices,
            "default", when=lambda row: row["what"] == "step",
        ),
    ),
    (
        h.Plot(
            "prices",
            h.Curves("length", "cost", prices, hue="{pass}, {engine}", facet="{what}",
                     axes={"xlabel": "tokens of the context", "ylabel": "over the decoder's",
                           "xscale": "log"}),
            columns=2,
        ),
    ),
    (
        h.Listing("variances of the next token's logits, over those of draws",
                  ("length", "factors", "ratio", "low", "high", "of_all", "apart"), VARIANCES),
        h.Listing("processor time over the decoder's",
                  ("length", "what", "pass", "engine", "cost"), prices),
    ),
    (
        "A decoder of bytes with tens of thousands of parameters, random weights with a share of "
        "each array's deviation; no posterior of a large language model.",
        "It learns short texts: what it says of the end of a long one is no better for its length.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
