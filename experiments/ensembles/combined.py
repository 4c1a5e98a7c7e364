"""Ensembles and posteriors: moment passes of members, and which layers should be random at all."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jaxeff
from experiments.ensembles.bench import Bench, Said, judged, said
from experiments.ensembles.methods import apart, trained_apart
from experiments.harness import Row
from jaxeff.bayes import MixturePosterior, laplace, svi, to_gaussians
from jaxeff.ensembles import (
    Members,
    Mixture,
    MixtureUncertainty,
    affordable_members,
    member_loss,
    mixture_moments,
    sampled,
)
from jaxeff.uncertainty import Decomposition, in_batches, sample_logits

HEADS = "other"
"""The repulsive samples of the heads that are combined."""


def variational(bench: Bench, index: int, name: str, prior: Any = "fan_in") -> Any:
    """A posterior that starts at a trained network, over all weights unless its prior says less."""
    settings = bench.settings
    return svi(
        jax.random.fold_in(bench.run.fast_key, index), bench.f, bench.networks[index],
        bench.images.train, epochs=settings.svi_epochs, batch_size=settings.batch_size, prior=prior,
        init_scale=settings.svi_scale, optimizer=bench.adam(settings.svi_epochs), progress=False,
        checkpoint=bench.run.work / "trained" / f"svi-{name}.safetensors",
        settings={"rate": settings.rate},
    ).posterior  # fmt: skip


def deep(bench: Bench) -> Iterator[Row]:
    """Networks with posteriors of their own: a mixture of them, and of the networks alone."""
    few = bench.settings.few
    posteriors = [variational(bench, i, str(i)) for i in range(few * MIXTURES)]
    for i, posterior in enumerate(posteriors):
        yield _row(bench, "deep", "PFP", i, _one(bench, posterior))
    for i in range(MIXTURES):
        own = slice(i * few, (i + 1) * few)
        found = said(apart(bench.f), bench.networks[own], bench.images.test)
        yield _row(bench, "deep", "ensemble", i, found)
        yield _row(bench, "deep", "PFP x ensemble", i, _mixture(bench, tuple(posteriors[own])))


def heads(bench: Bench) -> Iterator[Row]:
    """Repulsive heads, each with the curvature of its own weights."""
    g, trained = trained_apart(bench, HEADS, bench.settings.seeds)
    spec = bench.last, "diag"  # a moment pass takes weights for independent
    for i, params in enumerate(trained[: bench.settings.some]):
        single = laplace(bench.f, bench.networks[i], bench.images.train, *spec)
        yield _row(bench, "heads", "PFP", i, _one(bench, single))
        yield _row(bench, "heads", "ensemble", i, said(g, params, bench.images.test))
        own = tuple(
            laplace(bench.f, g.member(params, j), bench.images.train, *spec)
            for j in range(bench.settings.members)
        )
        yield _row(bench, "heads", "PFP x ensemble", i, _mixture(bench, own))


KINDS = {"deep": deep, "heads": heads}
MIXTURES = 1
"""Deep ensembles of posteriors that share no member."""


def _row(bench: Bench, kind: str, method: str, seed: int, found: Said) -> Row:
    return {"kind": kind, "method": method, "seed": seed, **judged(found, bench)}


def _one(bench: Bench, posterior: Any) -> Said:
    """A moment pass, and draws of its logits."""
    g, key, samples = jaxeff.moments(bench.f), bench.run.key, bench.settings.samples

    def logits(weights: Any, x: Any) -> Any:
        return sample_logits(key, g(weights, x), samples)

    return said(logits, to_gaussians(posterior), bench.images.test)


def _mixture(bench: Bench, members: tuple[Any, ...]) -> Said:
    """A moment pass of each member; within and between them lies what is epistemic."""
    key, samples = bench.run.key, bench.settings.samples

    @jax.jit
    def of_batch(x: Any) -> MixtureUncertainty:
        mixture: Mixture = mixture_moments(bench.f, MixturePosterior(members), x)
        return mixture.decompose(key, samples)

    found = {}
    for domain, images in bench.images.test.items():
        parts = in_batches(of_batch, images)
        log_probs = jnp.log(jnp.maximum(parts.mean, jnp.finfo(parts.mean.dtype).tiny))
        found[domain] = log_probs, Decomposition(parts.total, parts.aleatoric, parts.epistemic)
    return found


def partial(bench: Bench, site: str) -> Iterator[Row]:
    """Every method at a site, `*` for all of them, each seed.

    All start at a trained network, are trained as long, and predict for as many multiplications:
    as many draws, or members, as `times` networks pay for.
    """
    settings = bench.settings
    x = bench.images.train[0][:1]
    alone = jaxeff.cost(bench.f, bench.networks[0], x).macs
    count = min(
        affordable_members(bench.f, bench.networks[0], x, site, times=settings.times),
        settings.samples,
    )
    for seed in range(settings.one):
        start = bench.networks[seed]
        key = jax.random.fold_in(bench.run.key, seed)
        prior = "fan_in" if site == "*" else {"*": None, f"{site}/*": "fan_in"}
        posterior = variational(bench, seed, _name(site, seed), prior)
        found = {"SVI": sampled(key, bench.f, posterior, count)}
        if site == bench.last:
            posterior = laplace(bench.f, start, bench.images.train, site, "full")
            found["Laplace"] = sampled(key, bench.f, posterior, count)
        found["members"] = _members(bench, site, seed, start, count)
        for method, (g, params) in found.items():
            one = {
                "site": site, "method": method, "seed": seed, "members": count,
                "macs_over_one": jaxeff.cost(g, params, x).macs / alone,
            }  # fmt: skip
            yield one | judged(said(g, params, bench.images.test), bench)


def _name(site: str, seed: int) -> str:
    return f"{'all' if site == '*' else site.replace('/', '.')}-of-{seed}"


def _members(bench: Bench, site: str, seed: int, start: Any, count: int) -> Any:
    spec: dict[str, Members | None] = {site: Members(count)}

    def ensemble(key: jax.Array) -> Any:
        return jaxeff.ensemble(key, bench.f, start, spec, init=bench.init)

    g, _ = ensemble(bench.run.key)
    (params,) = bench.train(
        f"members-{_name(site, seed)}", member_loss(g),
        lambda key: ensemble(jax.random.fold_in(key, seed))[1], 1,
        epochs=bench.settings.svi_epochs, count=count,
    )  # fmt: skip
    return g, params
