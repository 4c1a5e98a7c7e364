"""The rows of Klein's thesis, table 9.1, and rivals that need no images from elsewhere.

Each method trains its networks and yields, seed by seed, what they say of the test images.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

import jaxeff
from experiments.ensembles.bench import CLASSES, Bench, Said, chosen, said, said_by_entropy
from experiments.ensembles.recipe import FORMS, KINDS
from jaxeff import ensembles
from jaxeff.bayes import MixturePosterior, laplace, to_gaussians
from jaxeff.noise import Dropout
from jaxeff.program.costs import inputs_of
from jaxeff.training import cross_entropy
from jaxeff.uncertainty import Decomposition, in_batches

Saying = Iterator[Said]
CHOSEN = "patches 8"
"""The repulsive samples that a strength is chosen with, for all kinds."""
RLLE = "RLLE, "
MAIN = ("other",)
"""The kind that is trained with all seeds."""


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str  # as it is printed
    # what each seed's network says of the test images, from a bench and the number of seeds
    say: Callable[[Bench, int], Saying]
    main: bool = True  # whether it is trained with all seeds
    source: str | None = None  # what the thesis calls it


@dataclass(frozen=True)
class Few:
    """The first so many of a batch's repulsive samples, which is how many a step pays for."""

    samples: Callable[[Any, Any], Any]
    count: int

    def __call__(self, key: Any, x: Any) -> Any:
        """Samples made of a part of the batch."""
        return self.samples(key, x[: self.count])


@dataclass(frozen=True, eq=False)
class OfSet:
    """So many repulsive samples of a set, drawn with replacement."""

    images: Array
    count: int

    def __call__(self, key: Any, x: Any) -> Array:
        """Samples that have nothing to do with the batch."""
        return self.images[jax.random.randint(key, (self.count,), 0, len(self.images))]


def samples_of(bench: Bench, kind: str) -> Callable[[Any, Any], Any]:
    """Repulsive samples by name."""
    count = bench.settings.repulsive
    if kind in ("ambiguous", "other"):
        images = bench.images.spare if kind == "ambiguous" else bench.images.other
        return OfSet(images, count)
    made: dict[str, Callable[[Any, Any], Any]] = {
        "shuffled": ensembles.ShuffledPixels(), "noise": ensembles.NoiseImages(),
        **{f"patches {size}": ensembles.Patches(size) for size in (4, 8, 16)},
    }  # fmt: skip
    return Few(made[kind], count)


def heads(bench: Bench, sites: tuple[str, ...] = ()) -> tuple[ensembles.Ensemble, Any]:
    """The last layer with members, or others, and what makes fresh parameters from a key."""
    spec = dict.fromkeys(sites or (bench.last,), ensembles.Members(bench.settings.members))
    key = jax.random.key(0)
    g, _ = jaxeff.ensemble(key, bench.f, bench.init(key), spec, init=bench.init)

    def init(key: jax.Array) -> Any:
        member_key, shared = jax.random.split(key)
        return jaxeff.ensemble(member_key, bench.f, bench.init(shared), spec, init=bench.init)[1]

    return g, init


def bounded(bench: Bench) -> Callable[..., Array]:
    """The network with bounded layers."""
    return ensembles.spectral(
        bench.f, dict.fromkeys(bench.hidden, ensembles.Spectral(bench.settings.bound))
    )


def dropping(bench: Bench) -> dict[str, Dropout]:
    """Dropout in front of the last two layers."""
    drop = Dropout(bench.settings.dropout, at="input")
    return {site: drop for site in (*bench.hidden[-1:], bench.last)}


def _map(bench: Bench, seeds: int) -> Saying:
    for params in bench.networks[:seeds]:
        yield said_by_entropy(bench.f, params, bench.images.test)


def _sampled(bench: Bench, logits: Callable[..., Array], trained: Iterable[Any]) -> Saying:
    for params in trained:
        yield said(logits, params, bench.images.test)


def _dropout(bench: Bench, seeds: int) -> Saying:
    g = jaxeff.noisy(bench.f, dropping(bench))
    keys = jax.random.split(bench.run.key, bench.settings.samples)

    def logits(params: Any, x: Any) -> Array:
        return jax.lax.map(lambda key: g(key, params, x), keys)

    trained = bench.train("dropout", cross_entropy(g, keyed=True), bench.init, seeds)
    return _sampled(bench, logits, trained)


def _ddu(bench: Bench, seeds: int) -> Saying:
    f, bound = bounded(bench), bench.settings.bound
    hidden = jax.jit(inputs_of(f, bench.last))
    x, labels = bench.images.train
    for params in bench.train("ddu", cross_entropy(f), bench.init, seeds, bound=bound):

        def features(images: Any, params: Any = params) -> Any:
            return in_batches(lambda x: hidden(params, x), images)

        density = ensembles.feature_density(
            features(x), labels, CLASSES, shrinkage=bench.settings.shrinkage
        )  # fmt: skip
        alone = said_by_entropy(f, params, bench.images.test)
        yield {
            domain: (
                log_probs,
                parts._replace(epistemic=-density.log_density(features(bench.images.test[domain]))),
            )
            for domain, (log_probs, parts) in alone.items()
        }


def _sngp(bench: Bench, seeds: int) -> Saying:
    f, key, x = bounded(bench), jax.random.key(0), bench.images.train[0]
    g, start = ensembles.sngp(
        key, f, bench.init(key), x[:500], bench.last, features=bench.settings.features,
    )  # fmt: skip

    def init(key: jax.Array) -> Any:
        return {**start, "network": bench.init(key)}

    for params in bench.train("sngp", cross_entropy(g), init, seeds, bound=bench.settings.bound):
        process = laplace(
            jax.random.key(0), g, params, bench.images.train, "head", "outputs", prior_precision=1.0
        )
        yield said_by_entropy(_log_probs, process, bench.images.test)


def _log_probs(posterior: Any, x: Any) -> Array:
    return jnp.log(posterior.probs(x))


def _laplace(bench: Bench, seeds: int) -> Saying:
    key, shape = bench.run.key, (bench.settings.samples,)

    def logits(posterior: Any, x: Any) -> Array:
        return posterior.logits(x).sample(key, shape)

    posteriors = (
        laplace(jax.random.key(0), bench.f, params, bench.images.train, bench.last, "full")
        for params in bench.networks[:seeds]
    )
    return _sampled(bench, logits, posteriors)


def _plain(bench: Bench, seeds: int) -> Saying:
    g, init = heads(bench)
    return _sampled(bench, g, bench.train("ll", ensembles.member_loss(g), init, seeds))


def _weights(bench: Bench, seeds: int) -> Saying:
    g, init = heads(bench)
    strength = bench.settings.weight_strength
    loss = ensembles.repulsive(ensembles.member_loss(g), g, strength=strength, space="weights")
    return _sampled(bench, g, bench.train("rll", loss, init, seeds, strength=strength))


def repelled(bench: Bench, kind: str, strength: Any, form: str = "source") -> Any:
    """The loss of heads that disagree on a kind of samples, in one of `FORMS`."""
    g, _ = heads(bench)
    samples = samples_of(bench, kind)
    return ensembles.repulsive(
        ensembles.member_loss(g), g, samples, strength=strength, on="probabilities", **FORMS[form]
    )


def choose(bench: Bench, form: str = "source") -> list[dict[str, Any]]:
    """Strengths of a form tried on held-out images, with a seed that no row has."""
    g, init = heads(bench)
    tried = bench.settings.strengths

    def other_seed(key: jax.Array) -> Any:
        return init(jax.random.fold_in(key, 1))

    (trained,) = bench.train(
        f"choice, {form}", lambda strength: repelled(bench, CHOSEN, strength, form), other_seed, 1,
        strengths=tried, repulsive=bench.settings.repulsive,
    )  # fmt: skip
    runs = [
        (strength, said(g, params, bench.images.held))
        for strength, params in zip(tried, trained, strict=True)
    ]
    best, rows = chosen(runs, bench)
    return [{"form": form, **row, "chosen": row["strength"] == best} for row in rows]


def _repelled(bench: Bench, seeds: int, kind: str, form: str = "source") -> Saying:
    """Heads that disagree on a kind of samples, of the form's chosen strength."""
    g, init = heads(bench)
    strength = strength_of(bench, form)
    trained = bench.train(
        f"fll {kind}, {form}", repelled(bench, kind, strength, form), init, seeds,
        strength=strength, repulsive=bench.settings.repulsive,
    )  # fmt: skip
    return _sampled(bench, g, trained)


def strength_of(bench: Bench, form: str = "source") -> float:
    """The strength that was chosen for a form."""
    rows = bench.run.keep(f"strengths, {form}", lambda: choose(bench, form))
    return next(row["strength"] for row in rows if row["chosen"])


def members_of(bench: Bench, seed: int, count: int) -> list[Any]:
    """The networks of a deep ensemble; the first is that of the seed's first row."""
    networks, seeds = bench.networks, bench.settings.seeds
    return [networks[(seed + seeds * i + i * seeds // len(networks)) % len(networks)]
            for i in range(count)]  # fmt: skip


def apart(f: Callable[..., Array]) -> Callable[..., Array]:
    """What networks predict, one after the other, `[networks, n, classes]`."""
    return lambda networks, x: jnp.stack([f(params, x) for params in networks])


def _deep(bench: Bench, seeds: int, count: str) -> Saying:
    size = getattr(bench.settings, count)
    members = (members_of(bench, seed, size) for seed in range(seeds))
    return _sampled(bench, apart(bench.f), members)


def _bootstrap(bench: Bench, seeds: int) -> Saying:
    """Heads that weigh the images differently."""
    g, init = heads(bench)
    x, labels = bench.images.train
    weights = ensembles.bootstrap_weights(bench.run.key, len(x), bench.settings.members)
    loss, data = ensembles.member_loss(g), (x, labels, weights)
    return _sampled(bench, g, bench.train("bootstrap", loss, init, seeds, data=data))


def _features(bench: Bench, seeds: int) -> Saying:
    """Members of the last two layers, whose features for the batch itself are pushed apart."""
    g, init = heads(bench, (*bench.hidden[-1:], bench.last))
    hidden = g.of(inputs_of(bench.f, bench.last))
    strength = bench.settings.weight_strength
    loss = ensembles.repulsive(
        ensembles.member_loss(g), g, Few(ensembles.batch_inputs, bench.settings.repulsive),
        strength=strength, space=hidden,
    )  # fmt: skip
    return _sampled(bench, g, bench.train("features", loss, init, seeds, strength=strength))


def _priors(bench: Bench, seeds: int) -> Saying:
    """Random heads on a random network, added to trained ones: twice the cost of one network."""
    h, members = ensembles.with_prior(bench.f), ensembles.Members(bench.settings.members)
    spec = {f"{part}/{bench.last}": members for part in ("trained", "prior")}

    def both(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {"trained": bench.init(first), "prior": bench.init(second)}

    def init(key: jax.Array) -> Any:
        return jaxeff.ensemble(key, h, both(key), spec, init=both)[1]

    key = jax.random.key(0)
    g, _ = jaxeff.ensemble(key, h, both(key), spec, init=both)
    return _sampled(bench, g, bench.train("priors", ensembles.member_loss(g), init, seeds))


def _moments(bench: Bench, seeds: int) -> Saying:
    """A moment pass for each network of the small ensemble, of its last layer's curvature.

    What the members' means disagree on and what each doubts are both epistemic.
    """
    key, samples = bench.run.key, bench.settings.samples

    @jax.jit
    def of_batch(members: Any, x: Any) -> ensembles.MixtureUncertainty:
        mixture = ensembles.mixture_moments(bench.f, MixturePosterior(members), x)
        return mixture.decompose(key, samples)

    for seed in range(seeds):
        # A moment pass takes weights for independent.
        members = tuple(
            to_gaussians(
                laplace(jax.random.key(0), bench.f, params, bench.images.train, bench.last, "diag")
            )
            for params in members_of(bench, seed, bench.settings.few)
        )
        found = {}
        for domain, images in bench.images.test.items():
            parts = in_batches(partial(of_batch, members), images)
            log_probs = jnp.log(jnp.maximum(parts.mean, jnp.finfo(parts.mean.dtype).tiny))
            found[domain] = log_probs, Decomposition(parts.total, parts.aleatoric, parts.epistemic)
        yield found


SOURCES = {
    "ambiguous": "fLL-POVI + dirtyMNIST", "other": "fLL-POVI + eMNIST",
    **{f"patches {size}": f"fLL-POVI + Patches-{size}" for size in (16, 8, 4)},
}  # fmt: skip
METHODS = (
    Method("MAP", _map, source="MAP"),
    Method("MC dropout", _dropout, main=False),
    Method("DDU", _ddu, main=False, source="DDU"),
    Method("SNGP", _sngp, main=False, source="SNGP"),
    Method("Laplace", _laplace, source="LL-Laplace"),
    Method("heads", _plain, source="LL-POVI"),
    Method("heads, weights repel", _weights, main=False, source="RLL-POVI"),
    *(
        Method(f"{RLLE}{kind}", partial(_repelled, kind=kind), kind in MAIN, SOURCES.get(kind))
        for kind in KINDS
    ),
    Method(
        "heads, other, all layers", partial(_repelled, kind="other", form="all layers"), main=False
    ),
    Method("heads, bootstrap", _bootstrap, main=False),
    Method("heads, priors", _priors, main=False),
    Method("last two layers, features repel", _features, main=False),
    Method("DE, few, moment passes", _moments, main=False),
    Method("DE, few", partial(_deep, count="few"), source="DE-5"),
    Method("DE, many", partial(_deep, count="members")),
)


def methods(bench: Bench) -> list[Method]:
    """The rows that are asked for."""
    others = {f"{RLLE}{kind}" for kind in KINDS} - {f"{RLLE}{k}" for k in bench.settings.kinds}
    return [method for method in METHODS if method.name not in others]
