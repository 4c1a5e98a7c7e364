"""Posteriors and cheap ensembles on one network: quality, and what training and use cost.

    python -m experiments.beyond.certainty

A perceptron (196-32-10) on scikit-learn's digits of 14 by 14 pixels, patches of photographs out of
domain. Each method is trained from scratch or on top of the trained network; judged by accuracy,
negative log-likelihood and calibration of its mean prediction, by the AUROC of its mutual
information (of one network: entropy), by gradients of an example over those of the plain training,
and by the time of a prediction over the network's own, measured in turn.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxeff
from experiments import harness as h
from experiments import margins
from experiments.beyond import small_digits
from experiments.beyond.small_digits import CLASSES, PIXELS
from experiments.harness import Count, Least, Report, Row, Run
from experiments.recipes import Training, cosine_adam
from experiments.timing import interleaved
from jaxeff import bayes, ensembles, training, uncertainty
from jaxeff.ensembles import Members

# How an evidential head's outputs become evidence. The bound keeps one step that is too long from
# ending in infinity.
EVIDENCE: dict[str, Callable[[jax.Array], jax.Array]] = {
    "softplus": jax.nn.softplus,
    "exp": lambda outputs: jnp.exp(jnp.minimum(outputs, 10.0)),
}


@dataclass(frozen=True)
class Settings(Training):
    """How the networks are trained and asked."""

    seeds: Count = 3  # trainings of each method
    epochs: Count = 30  # passes of a training
    tail: Count = 10  # passes that SWAG goes on for
    samples: Annotated[int, Least(4)] = 30  # draws of a prediction
    # members of an ensemble; half of them with several inputs
    members: Annotated[int, Least(4)] = 4
    # iterations of the microcanonical sampler, a third of them warm-up
    chain: Annotated[int, Least(12)] = 90
    rounds: Count = 5  # rounds of the timing


class Bench(NamedTuple):
    """What methods share: images, the network, a seed's key and its trained parameters."""

    settings: Settings
    key: jax.Array
    f: Callable[..., Any]
    start: Any
    trained: Any
    train: tuple[Any, Any]

    def steps(self) -> int:
        """Batches of an epoch."""
        return len(self.train[1]) // self.settings.batch_size

    def fit(self, loss: Any, params: Any, optimizer: Any = None, epochs: int | None = None) -> Any:
        """Trains by Adam, or another optimizer."""
        epochs = epochs or self.settings.epochs
        optimizer = optimizer or cosine_adam(self.settings.rate, epochs * self.steps())
        return training.fit(
            self.key, loss, params, self.train, optimizer=optimizer, epochs=epochs,
            batch_size=self.settings.batch_size, progress=False,
        )  # fmt: skip

    def draws(self, posterior: Any) -> tuple[Any, Any]:
        """A prediction by draws of the weights."""
        count = self.settings.samples
        return lambda p, x: bayes.predict(self.key, self.f, p, x, samples=count), posterior

    def moments(self, posterior: Any) -> tuple[Any, Any]:
        """A prediction by one moment pass, and draws of its logits."""
        passed, count = jaxeff.moments(self.f), self.settings.samples

        def logits(p: Any, x: Any) -> Any:
            return uncertainty.sample_logits(self.key, passed(p, x), count)

        return logits, bayes.to_gaussians(posterior)


Forms = Iterator[tuple[str, float, tuple[Any, Any]]]
"""How it predicts, gradients over those of the plain training, and `logits(params, x)`."""


def _one(bench: Bench) -> Forms:
    yield "", 1.0, (lambda p, x: bench.f(p, x)[None], bench.trained)


def _laplace(sites: str, structure: str, *others: str) -> Callable[[Bench], Forms]:
    def forms(bench: Bench) -> Forms:
        posterior = bayes.laplace(
            jax.random.key(0), bench.f, bench.trained, bench.train, sites, structure
        )
        shape = (bench.settings.samples,)
        # A Jacobian is a gradient for each class.
        gradients = 1 + (CLASSES / bench.settings.epochs if sites == "*" else 0)
        yield "linear", gradients, (lambda p, x: p.logits(x).sample(bench.key, shape), posterior)
        for name in others:
            yield name, gradients, getattr(bench, name)(posterior)

    return forms


def _svi(bench: Bench) -> Forms:
    settings = bench.settings
    posterior = bayes.svi(
        bench.key, bench.f, bench.start, bench.train, epochs=settings.epochs, init_scale=1e-2,
        batch_size=settings.batch_size,
        optimizer=cosine_adam(settings.rate, settings.epochs * bench.steps()),
        progress=False,
    ).posterior  # fmt: skip
    yield "draws", 1.0, bench.draws(posterior)
    yield "moments", 1.0, bench.moments(posterior)


def _ivon(bench: Bench) -> Forms:
    rate = optax.cosine_decay_schedule(0.3, bench.settings.epochs * bench.steps())
    optimizer = bayes.ivon(bench.key, rate, len(bench.train[1]), weight_decay=1e-3, decay=0.999)
    fitted = bench.fit(training.cross_entropy(bench.f), bench.start, optimizer)
    posterior = bayes.ivon_posterior(fitted.params, fitted.opt_state)
    yield "draws", 1.0, bench.draws(posterior)
    yield "moments", 1.0, bench.moments(posterior)


def _swag(bench: Bench) -> Forms:
    settings = bench.settings
    optimizer = bayes.swag(optax.sgd(0.05, momentum=0.9), start=0, every=bench.steps())
    loss = training.cross_entropy(bench.f)
    fitted = bench.fit(loss, bench.trained, optimizer, settings.tail)
    posterior = bayes.swag_posterior(fitted.params, fitted.opt_state)
    yield "draws", 1 + settings.tail / settings.epochs, bench.draws(posterior)


def _cyclical(bench: Bench) -> Forms:
    settings = bench.settings
    cycle = bayes.Cyclical(2e-4, max(1, settings.epochs * bench.steps() // settings.members))
    kernel = bayes.SGLD(
        step_size=cycle, temperature=cycle.temperature, batch_size=settings.batch_size
    )
    result = bayes.mcmc(
        bench.key, bench.f, bench.start, bench.train, kernel, warmup=0, chains=1,
        thin=cycle.length, samples=settings.members, init=bench.start, jitter=0.0, monitor=(),
        progress=False,
    )  # fmt: skip
    yield "draws", 1.0, _all(bench, result.posterior)


def _mclmc(bench: Bench) -> Forms:
    settings, steps = bench.settings, 8
    warmup = settings.chain // 3
    result = bayes.mcmc(
        bench.key, bench.f, bench.start, bench.train, bayes.MCLMC(steps=steps), warmup=warmup,
        chains=1,
        thin=max(1, (settings.chain - warmup) // settings.samples),
        samples=min(settings.samples, settings.chain - warmup), init=bench.trained, jitter=0.0,
        monitor=(), progress=False,
    )  # fmt: skip
    gradients = 1 + settings.chain * steps / settings.epochs
    yield "draws", gradients, _all(bench, result.posterior)


def _all(bench: Bench, posterior: bayes.Draws) -> tuple[Any, Any]:
    return lambda p, x: bayes.predict(bench.key, bench.f, p, x), posterior


def _deep(bench: Bench) -> Forms:
    members = {"*": Members(bench.settings.members)}
    g, start = jaxeff.ensemble(bench.key, bench.f, bench.start, members, init=_fresh)
    trained = bench.fit(ensembles.member_loss(g), start).params
    yield "", float(bench.settings.members), (g, trained)


def _factors(bench: Bench) -> Forms:
    members = {"*": Members(bench.settings.members)}
    x = bench.train[0][:1]
    g, start = ensembles.batch_ensemble(bench.key, bench.f, bench.start, x, members)
    trained = bench.fit(ensembles.member_loss(g), start).params
    yield "", float(bench.settings.members), (g, trained)


def _packed(bench: Bench) -> Forms:
    x, count = bench.train[0][:1], bench.settings.members
    g, start = ensembles.packed(bench.key, bench.f, bench.start, x, count)
    macs = jaxeff.cost(g, start, x).macs / jaxeff.cost(bench.f, bench.start, x).macs
    yield "", macs, (g, bench.fit(ensembles.member_loss(g), start).params)


def _mimo(bench: Bench) -> Forms:
    count = bench.settings.members // 2
    f, start = small_digits.network(bench.key, PIXELS * count, CLASSES * count)
    g = ensembles.mimo(f, count)
    yield "", 1.0, (g, bench.fit(ensembles.mimo_loss(g, repetition=0.5), start).params)


def _evidential(bench: Bench) -> Forms:
    for form, activation in EVIDENCE.items():
        loss = training.evidential(
            bench.f, ramp=10 * bench.steps(), weight=0.1, activation=activation
        )
        yield form, 1.0, (bench.f, bench.fit(loss, bench.start).params)


METHODS: dict[str, Callable[[Bench], Forms]] = {
    "one network": _one,
    "Laplace, last layer": _laplace("fc2", "kron"),
    "Laplace, Kronecker": _laplace("*", "kron", "draws"),
    "Laplace, diagonal": _laplace("*", "diag", "draws", "moments"),
    "SVI": _svi,
    "IVON": _ivon,
    "SWAG": _swag,
    "cyclical SGLD": _cyclical,
    "MCLMC": _mclmc,
    "deep ensemble": _deep,
    "BatchEnsemble": _factors,
    "Packed-Ensemble": _packed,
    "MIMO": _mimo,
    "evidential": _evidential,
}


def _fresh(key: jax.Array) -> Any:
    return small_digits.network(key)[1]


def _judged(form: str, logits: Any, params: Any) -> Row:
    """Quality of a method's predictions of the test images and of images from elsewhere."""
    images = small_digits.images()

    @jax.jit
    def said(params: Any, x: Any) -> tuple[Any, Any]:
        out = logits(params, x)
        if form in EVIDENCE:
            concentration = uncertainty.evidence(out, EVIDENCE[form]) + 1
            probs = uncertainty.dirichlet_probs(concentration)
            return probs, uncertainty.dirichlet_decomposition(concentration).epistemic
        return small_digits.said(out)

    both = said(params, images.test), said(params, images.elsewhere)
    return small_digits.judged(*both, images.test_labels)


@functools.cache
def _bench(settings: Settings, run: Run[Settings], seed: int) -> Bench:
    """A seed's network, trained once for all methods."""
    images, key = small_digits.images(), jax.random.fold_in(run.key, seed)
    f, start = small_digits.network(key)
    bench = Bench(settings, key, f, start, start, (images.train, images.train_labels))
    return bench._replace(trained=bench.fit(training.cross_entropy(f), start).params)


def rows(run: Run[Settings], method: str) -> Iterator[Row]:
    """A method with every seed and every way to predict."""
    settings, images = run.settings, small_digits.images()
    x = images.test[:100]
    for seed in range(settings.seeds):
        bench = _bench(settings, run, seed)
        f, trained = bench.f, bench.trained
        for form, gradients, (logits, params) in METHODS[method](bench):
            calls = {
                "one": functools.partial(jax.jit(f), trained, x),
                "this": functools.partial(jax.jit(logits), params, x),
            }
            times = interleaved(calls, settings.rounds, relative_to="one")
            yield {
                "method": method, "by": form, "seed": seed, **_judged(form, logits, params),
                "gradients_over_one": gradients, "time_over_one": times["this"]["ratio"],
            }  # fmt: skip


COLUMNS = ("accuracy", "nll", "ece", "auroc", "gradients_over_one", "time_over_one")
MEANS = h.summary(h.every, "method", "by", **{name: h.average(name) for name in COLUMNS})


ONE, DEEP = "one network", "deep ensemble"


def _beside(report: Report) -> Iterator[Row]:
    """Every other method beside one network and the deep ensemble, on the same seeds.

    Draws of Laplace approximations are left out: they leave where their curvature holds.
    """
    each = h.grouped(report.rows, "method", "by")
    seeds = {
        place: {name: [(row["seed"], row[name]) for row in rows] for name in ("nll", "auroc")}
        for place, rows in each.items()
    }
    for (method, by), own in seeds.items():
        if method == ONE or (method[0] == "L" and by == "draws"):
            continue
        better = margins.paired(seeds[ONE, ""]["nll"], own["nll"])
        tie = margins.margin(better)
        row: Row = {"method": method, "by": by, "gain": float(np.mean(better)), "tie": tie}
        ahead = margins.paired(own["auroc"], seeds[DEEP, ""]["auroc"])
        yield row | {"ahead": float(np.mean(ahead)) if method != DEEP else None}


STUDY = h.Study(
    "certainty", __doc__,
    {
        "fast": Settings(seeds=1, epochs=15, tail=5, samples=20, chain=30, rounds=3),
        "default": Settings(),
        "full": Settings(seeds=10, epochs=100, tail=30, samples=100, chain=600, rounds=15),
    },
    (h.Part(lambda run: tuple(METHODS), rows),),
    (
        h.Claim(
            "{method} {by}: negative log-likelihood less than one network's, by two errors over "
            "seeds ({tie:.3f})",
            lambda row: None if row["tie"] is None else row["gain"], h.above("tie"), None, _beside,
            "default", shown="gain",
        ),
        h.Claim(
            "{method} {by}: AUROC over the deep ensemble's, mean over seeds", "ahead",
            h.at_least(0), None, _beside, "default",
        ),
    ),
    (
        h.Plot(
            "quality",
            h.Dots(
                "{method} {by}", {"accuracy": "accuracy", "auroc": "AUROC"}, MEANS,
                axes={"xlabel": "higher is better"},
            ),
        ),
    ),
    (h.Listing("digits, and photographs out of domain", ("method", "by", *COLUMNS), MEANS),),
    differences=(
        "Embedded digits and a perceptron: an order of magnitude, and no ranking for other tasks.",
        "Gradients are counted, of one example by all weights; a forward pass alone isn't.",
        "Learning rates of SWAG and SGLD were set by hand on this task, once; IVON's rate and "
        "decay are the best of seven settings on another small classifier, a search that its "
        "rivals didn't get.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
