"""Selective prediction: does one pass of moments order predictions as well as many draws do?

    python -m experiments.beyond.selective
    python -m experiments.beyond.selective --data fashion-mnist --networks DS-CNN --learnt 20000
    python -m experiments.beyond.selective --data speech-commands --networks DS-CNN --learnt 3287

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
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jaxeff
from experiments import harness as h
from experiments import margins
from experiments.beyond.selective.networks import Network
from experiments.beyond.selective.passes import Calibrating, Recording, Streamlined
from experiments.beyond.selective.recipe import (
    NETWORKS,
    OTHERS,
    Settings,
    built,
    drawn,
    judged,
    learnt,
    no_worse,
)
from experiments.harness import Report, Row, Run
from experiments.timing import interleaved
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


MEAN, SUQ, CVP, DEFAULT, CALIBRATED, LINEAR = (
    "mean network", "SUQ", "CVP", "moments", "moments, calibrated", "moments, linear",
)  # fmt: skip


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
        "images have 14 by 14 pixels, words 49 frames by ten cepstra of speakers split by us.",
        "Times are those under XLA on one machine's processor, with the softmax in them.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
