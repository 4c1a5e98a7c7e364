"""Selective prediction: does one pass of moments order predictions as well as many draws do?

    python -m experiments.beyond.selective
    python -m experiments.beyond.selective --data fashion-mnist cifar-10 speech-commands

Small networks learn by Adam and then by IVON (arXiv 2402.17641), which leaves a Gaussian per
weight; how many times wider it is made is chosen by the NLL of 16 draws on inputs that are held
out. The same posterior is asked by the mean network, by two published passes of variances, by ours
(default, calibrated, linear) and by 4, 16 and 64 draws; the least sure predictions are given away.
Images and spoken words are read by a DS-CNN, a ViT and a ResNet-18, text by a decoder. A method
is judged by the areas under the risk-coverage curve (AURC) and under that of the generalized risk
(AUGRC, arXiv 2407.01032), by the coverage at a risk of half and of one per cent, by NLL and ECE of
its probabilities, by the AUROC of their entropy against inputs of another kind, and by its price
over the network's own: time under XLA and TVM, and instructions on an emulated Cortex-M7.

The published passes, derived from their descriptions, on the same weights:

- streamlined prediction (SUQ, ICLR 2025): exact means and variances of products with independent
  weights, activations linearized at the mean, statistics of norms and attention's weights fixed;
- Calibrated Variance Propagation (CVP, arXiv 2606.16214): moments of activations in closed form,
  variances through norms with the statistics as functions of the input, and one scalar a layer,
  the ratio of variances that draws have on learnt inputs.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jaxeff
from experiments import harness as h
from experiments import margins
from experiments.beyond import moment_prices
from experiments.beyond.microcontroller.moments import counted, has_toolchain
from experiments.beyond.selective import recipe
from experiments.beyond.selective.inputs import LEARNT
from experiments.beyond.selective.networks import Network
from experiments.beyond.selective.passes import Calibrating, Recording, Streamlined
from experiments.beyond.selective.recipe import (
    NETWORKS,
    OTHERS,
    TEXT,
    built,
    drawn,
    judged,
    learnt,
    no_worse,
)
from experiments.harness import Report, Row, Run
from experiments.timing import interleaved, measure_rounds, ratio
from jaxeff import Gaussian, bayes, uncertainty


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


MEAN, SUQ, CVP, DEFAULT, CALIBRATED, POOLED, LINEAR = (
    "mean network", "SUQ", "CVP", "moments", "moments, calibrated",
    "moments, calibrated, one variance an array", "moments, linear",
)  # fmt: skip
ON_CORE = ("DS-CNN", "ViT", "decoder")  # small enough for a microcontroller
AT_ONCE = 10
"""Inputs of a call under TVM."""
COMPILED = (MEAN, SUQ, CVP, DEFAULT, CALIBRATED, POOLED)
"""Methods whose price under TVM and on a microcontroller is taken; k draws cost k networks."""
PRICES = {"XLA": "price", "TVM": "price TVM", "Cortex-M7": "price M7"}
"""Columns, by engine."""


@dataclass(frozen=True)
class Settings(recipe.Settings):
    """How networks are trained and asked, and what prices are of."""

    data: tuple[str, ...] = ("digits", TEXT)  # data sets
    networks: tuple[str, ...] = NETWORKS  # which are asked; text is the decoder's alone
    engines: tuple[str, ...] = tuple(PRICES)  # what runs networks that are priced


@functools.cache
def _asking(settings: Settings, data: str, name: str) -> dict[str, Callable[..., Any]]:
    """Log-probabilities by method, of its parameters, inputs and a key; compiled once."""
    net, _ = built(settings, data, name)
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
        CALIBRATED: of_moments(jaxeff.moments(f, method="diagonal")),
        POOLED: of_moments(jaxeff.moments(f, method="diagonal")),
        LINEAR: of_moments(jaxeff.moments(f, method="linear")),
        **{drawn(count): by_draws(count) for count in settings.draws},
    }
    return {method: jax.jit(way) for method, way in ways.items()}


@dataclass(frozen=True)
class Task:
    """One network with one seed."""

    data: str
    network: str
    seed: int


def tasks(run: Run[Settings]) -> list[Task]:
    """Lists the networks of every data set."""
    settings = run.settings
    names = h.choose(settings.networks, NETWORKS, "network")
    return [
        Task(data, name, seed)
        for data in h.choose(settings.data, tuple(LEARNT), "data set")
        for name in names
        if (data == TEXT) == (name == "decoder")
        for seed in range(settings.seeds)
    ]


def rows(run: Run[Settings], task: Task) -> Iterator[Row]:
    """One network with one seed, by every method."""
    settings, data, name = run.settings, task.data, task.network
    if task.seed == 0:
        jax.clear_caches()  # of the last network, which none computes again
    key = jax.random.fold_in(run.key, task.seed)
    net, sets = built(settings, data, name)
    posterior, wider = learnt(settings, data, name, key)
    x = sets.train[0][: settings.calibration]
    # As many runs on one input as `calibrate_moments` takes.
    fitted = scalars(key, net, posterior, x, 50)
    factors, pooled = (
        jaxeff.calibrate_moments(key, net.f, posterior, x, progress=False, pool_variances=one_each)
        for one_each in (False, True)
    )
    params = {
        MEAN: means(posterior), CVP: (posterior, fitted), CALIBRATED: factors, POOLED: pooled,
    }  # fmt: skip
    ways = _asking(settings, data, name)
    x, y = sets.test
    for method, way in ways.items():
        p = params.get(method, posterior)
        yield {
            **asdict(task), "method": method, "wider": wider,
            **judged(way(p, x, key), y, way(p, sets.outside, key)),
        }  # fmt: skip
    # Prices depend on the network, hardly on what it reads: those of its first data set are taken.
    if task == next(one for one in tasks(run) if one.network == name):
        asked = {method: (way, params.get(method, posterior)) for method, way in ways.items()}
        for method, each in priced(settings, name, asked, x, key).items():
            yield {"network": name, "method": method, **each}


def priced(
    settings: Settings, name: str, asked: Mapping[str, tuple[Any, Any]], x: Any, key: Any
) -> dict[str, Row]:
    """Prices each method and its parameters over the mean network's, by engine."""
    prices: dict[str, Row] = {method: {} for method in asked}
    engines = h.choose(settings.engines, tuple(PRICES), "engine")
    if "XLA" in engines:
        calls = {method: functools.partial(way, p, x, key) for method, (way, p) in asked.items()}
        times = interleaved(calls, settings.rounds, relative_to=MEAN, clock=time.process_time)
        for method, measured in times.items():
            prices[method][PRICES["XLA"]] = measured["ratio"]
    passes = {method: asked[method] for method in COMPILED}
    # None of these draws, so that they take no key.
    keyless = {
        method: (functools.partial(_without_key, way), p) for method, (way, p) in passes.items()
    }
    if "TVM" in engines:
        meters = {
            method: moment_prices.METERS["TVM"](f, p, x[:AT_ONCE])[0]
            for method, (f, p) in keyless.items()
        }
        rounds = measure_rounds(meters, settings.rounds)
        for method, each in rounds.items():
            prices[method][PRICES["TVM"]] = ratio(each, rounds[MEAN])
    if "Cortex-M7" in engines and name in ON_CORE and has_toolchain(moment_prices.CORE):
        counts = {
            method: counted(f, p, x[:1], moment_prices.CORE)["instructions"]
            for method, (f, p) in keyless.items()
        }
        for method, count in counts.items():
            prices[method][PRICES["Cortex-M7"]] = count / counts[MEAN]
    return prices


def _without_key(way: Callable[..., Any], params: Any, x: Any) -> Any:
    return way(params, x, None)


COLUMNS = ("accuracy", "aurc", "augrc", "covered_half", "covered_one", "nll", "ece", "auroc")
JUDGED = h.having("aurc")


def table(report: Report) -> Iterator[Row]:
    """Means over seeds with half of their 95 % intervals, and the price."""
    rows = [row for row in report.rows if "aurc" not in row]
    prices = {(r["network"], r["method"]): r for r in rows}
    for place, each in h.grouped(JUDGED(report), "data", "network", "method").items():
        of_place = prices.get(place[1:], {})
        row: Row = dict(zip(("data", "network", "method"), place, strict=True))
        row |= {"wider": "/".join(f"{one['wider']:g}" for one in each)}
        row |= {column: of_place.get(column) for column in PRICES.values()}
        yield row | margins.means(each, COLUMNS)


def overall(report: Report) -> Iterator[Row]:
    """Each method's means over data sets, networks and seeds."""
    for (method,), each in h.grouped(JUDGED(report), "method").items():
        means = {column: sum(row[column] for row in each) / len(each) for column in COLUMNS}
        yield {"method": method, "trainings": len(each), **means}


def beside(other: str) -> Callable[[Report], Iterator[Row]]:
    """Our cheapest pass less another method on the same seeds, with what noise can explain."""

    def selection(report: Report) -> Iterator[Row]:
        each = h.grouped(JUDGED(report), "data", "network", "method")
        for (data, network, method), ours in each.items():
            if method == POOLED and (data, network, other) in each:
                row: Row = {"data": data, "network": network, "other": other}
                yield row | margins.differences(ours, each[data, network, other], COLUMNS)

    return selection


CLAIMS = (
    *(
        no_worse(
            f"{{data}}, {{network}}: {what} of pooled, calibrated moments less {name}'s",
            beside(other), column, sign,
        )
        for name, other in (("64 draws", drawn(64)), ("CVP", CVP), ("16 draws", drawn(16)))
        for what, column, sign in (
            ("AURC", "aurc", 1), ("coverage at .5 % risk", "covered_half", -1),
            ("coverage at 1 % risk", "covered_one", -1),
        )
    ),
    *(
        h.Claim(
            f"{{network}}: pooled, calibrated moments over the mean network's {price}", column,
            h.at_most(2.5), None, h.having(column), "default",
            when=lambda row: row["method"] == POOLED, regardless=OTHERS,
        )
        for column, price in (
            ("price", "time"), ("price TVM", "time under TVM"),
            ("price M7", "instructions on a Cortex-M7"),
        )
    ),
)  # fmt: skip


STUDY = h.Study(
    "selective", __doc__,
    {
        "fast": Settings(data=("digits",), networks=("DS-CNN",), seeds=1, learnt=64, held=64,
                         asked=64, steps=4, width=4, calibration=8, rounds=2, engines=("XLA",)),
        "default": Settings(),
        "full": Settings(data=tuple(LEARNT), asked=10_000, seeds=5),
    },
    (
        h.Part(tasks, rows),
    ),
    CLAIMS,
    (
        h.Plot(
            "aurc",
            h.Dots("{method}", "aurc", table, facet="{data}, {network}",
                   axes={"xlabel": "AURC in %, lower is better"}),
            columns=3, size=(5.4, 2.6),
        ),
    ),
    (
        h.Listing("means over data sets, networks and seeds",
                  ("method", "trainings", *COLUMNS), overall),
        h.Listing("means over seeds; how many times wider the posterior was made for each; price "
                  "over the mean network's",
                  ("data", "network", "method", "wider", *PRICES.values(), *COLUMNS), table),
        h.Listing("half of the 95 % intervals over seeds",
                  ("data", "network", "method", *(f"{column} ±" for column in COLUMNS)), table),
    ),
    version=2,
    differences=(
        "Both rivals' programs weren't at hand: their rules are derived from their descriptions, "
        "attention's weights are fixed in both, and a layer's scalar is a ratio of mean variances.",
        "Networks are small and learn from few inputs, so that there are errors to give away; "
        "images have 14 by 14 pixels, words 49 frames by ten cepstra of speakers split by us.",
        "Prices have the softmax in them: processor times of all test inputs under XLA and of ten "
        "under TVM, instructions of one input.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
