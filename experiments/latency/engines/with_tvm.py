"""TVM through `jaxeff_export.deploy`: with its default schedules, and with tuned ones."""

from collections.abc import Collection, Iterator, Mapping

import jaxeff_export
from jaxeff_export import Bundle
from jaxeff_export.tuning import tune

from experiments.contests.tvm import host, meter_of
from experiments.latency.engines import Contestant, Setup
from experiments.latency.networks import SEVERAL, Subject


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """Every method; the bundle's self-check says how far its results are from JAX's."""
    for method in methods:
        for engine, bundle in bundles(net, method, setup).items():
            error = bundle.check().max_relative_error
            yield Contestant(method, engine, meter_of(bundle), error)


def bundles(net: Subject, method: str, setup: Setup) -> Mapping[str, Bundle]:
    """A method's bundles, for this processor and as many threads as there are to be."""
    g, params = net.program(method)
    target = host(setup.threads)
    untuned = jaxeff_export.deploy(g, (params, net.x), target=target)
    if setup.database is None:
        return {"tvm_untuned": untuned}
    # Several networks have the kernels of one, and are much slower to search through.
    if method not in SEVERAL:
        return {
            "tvm_untuned": untuned,
            "tvm": tune(untuned, setup.database, trials=setup.trials),
        }
    database = setup.database if setup.database.exists() else None
    tuned = jaxeff_export.deploy(g, (params, net.x), target=target, database=database)
    return {"tvm_untuned": untuned, "tvm": tuned}
