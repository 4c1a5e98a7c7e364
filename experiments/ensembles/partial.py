"""Which layers should be random: variational inference, Laplace and members at equal cost."""

from collections.abc import Iterator
from typing import Any

import jax

import jaxeff
from experiments.ensembles.bench import Bench, judged, said
from experiments.harness import Row
from jaxeff.bayes import laplace, svi
from jaxeff.ensembles import Members, affordable_members, member_loss, sampled


def rows(bench: Bench, site: str) -> Iterator[Row]:
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
        found = {"SVI": sampled(key, bench.f, _svi(bench, site, seed, start), count)}
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


def _svi(bench: Bench, site: str, seed: int, start: Any) -> Any:
    settings = bench.settings
    prior = "fan_in" if site == "*" else {"*": None, f"{site}/*": "fan_in"}
    name = "all" if site == "*" else site.replace("/", ".")
    return svi(
        jax.random.fold_in(bench.run.fast_key, seed), bench.f, start, bench.images.train,
        epochs=settings.svi_epochs, batch_size=settings.batch_size, prior=prior,
        init_scale=settings.svi_scale, optimizer=bench.adam(settings.svi_epochs), progress=False,
        checkpoint=bench.run.work / "trained" / f"svi-{name}-of-{seed}.safetensors",
        settings={"rate": settings.rate},
    ).posterior  # fmt: skip


def _members(bench: Bench, site: str, seed: int, start: Any, count: int) -> Any:
    spec: dict[str, Members | None] = {site: Members(count)}

    def ensemble(key: jax.Array) -> Any:
        return jaxeff.ensemble(key, bench.f, start, spec, init=bench.init)

    g, _ = ensemble(bench.run.key)
    name = "all" if site == "*" else site.replace("/", ".")
    (params,) = bench.train(
        f"members-{name}-of-{seed}", member_loss(g),
        lambda key: ensemble(jax.random.fold_in(key, seed))[1], 1,
        epochs=bench.settings.svi_epochs, count=count,
    )  # fmt: skip
    return g, params
