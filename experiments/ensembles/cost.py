"""What ensembles cost: multiplications, time of a prediction, and time of a training."""

from collections.abc import Iterator
from typing import Any

import jax
from flax import nnx

import jaxeff
from experiments.ensembles.bench import Bench
from experiments.ensembles.methods import CHOSEN, apart, heads, repelled
from experiments.harness import Row
from experiments.timing import measure_rounds, metered, ratio, summary
from jaxeff.ensembles import Members, member_loss
from jaxeff.nn import MLP
from jaxeff.training import cross_entropy, init, make_epoch

# Klein's thesis, table 9.2: millions of multiply-accumulates, batch 1000 (sine), 128 (LeNet-5).
SOURCE_MACS = {
    ("sine", "one"): 2.6, ("sine", "heads"): 7.8, ("sine", "networks"): 26.0,
    ("lenet5", "one"): 36.0, ("lenet5", "heads"): 37.0, ("lenet5", "networks"): 360.5,
}  # fmt: skip


def predictions(bench: Bench) -> Iterator[Row]:
    """One network, ten heads and ten networks, compiled by XLA and timed in turn."""
    members = bench.settings.members
    images = jax.random.normal(bench.run.key, (128, *bench.images.train[0].shape[1:]))
    subjects = {
        "sine": _sine_forms(members),
        bench.settings.network: (
            _forms(bench.f, bench.init(bench.run.key), bench.last, members), images
        ),
    }  # fmt: skip
    for name, (forms, x) in subjects.items():
        calls = {form: _call(f, params, x) for form, (f, params) in forms.items()}
        times = measure_rounds(calls, bench.settings.rounds * 3)
        for form, (f, params) in forms.items():
            yield {
                "network": name, "form": form, "members": members,
                "MMACs": jaxeff.cost(f, params, x).macs / 1e6,
                "source_MMACs": SOURCE_MACS.get((name, form)), **summary(times[form]),
                "over_one": ratio(times[form], times["one"]),
                "over_heads": ratio(times[form], times["heads"]),
            }  # fmt: skip


def _forms(f: Any, params: Any, last: str, members: int) -> dict[str, tuple[Any, Any]]:
    key = jax.random.key(0)
    g, member_params = jaxeff.ensemble(key, f, params, {last: Members(members)})
    deep, each = jaxeff.ensemble(key, f, params, {"*": Members(members)})
    networks = [deep.member(each, i) for i in range(members)]
    return {"one": (f, params), "heads": (g, member_params), "networks": (apart(f), networks)}


def _sine_forms(members: int) -> tuple[dict[str, tuple[Any, Any]], jax.Array]:
    """As the thesis counts them: heads of two layers, 50-10-2, and networks of one output."""
    one, headed = (
        jaxeff.functional(MLP(widths, rngs=nnx.Rngs(0)))
        for widths in ((1, 50, 50, 1), (1, 50, 50, 10, 2))
    )
    key, spec = jax.random.key(0), dict.fromkeys(("fc3", "fc4"), Members(members))
    forms = _forms(*one, "fc3", members) | {"heads": jaxeff.ensemble(key, *headed, spec)}
    return forms, jax.random.normal(key, (1000, 1))


def _call(f: Any, params: Any, x: Any) -> Any:
    compiled = jax.jit(f).lower(params, x).compile()
    return metered(lambda: compiled(params, x))


def trainings(bench: Bench) -> Iterator[Row]:
    """An epoch of every method on the same few images, over one of the plain network."""
    settings, key = bench.settings, bench.run.fast_key
    g, start = heads(bench)
    f, params = bench.f, bench.init(key)
    deep, networks = jaxeff.ensemble(
        key, f, params, {"*": Members(settings.members)}, init=bench.init
    )  # fmt: skip
    members = start(key)
    losses: dict[str, tuple[Any, Any]] = {
        "MAP": (cross_entropy(f), params),
        "heads": (member_loss(g), members),
        **{f"RLLE, {kind}": (repelled(bench, kind, 1.0), members) for kind in ("other", CHOSEN)},
        "DE, many, one program": (member_loss(deep), networks),
    }  # fmt: skip
    count = min(20 * settings.batch_size, len(bench.images.train[1]))
    data = jax.tree.map(lambda leaf: leaf[:count], bench.images.train)
    calls = {name: _epoch(bench, *one, data) for name, one in losses.items()}
    times = measure_rounds(calls, settings.rounds)
    for name, values in times.items():
        over = ratio(values, times["MAP"])
        yield {"method": name, **summary(values), "over_one": over}


def _epoch(bench: Bench, loss: Any, params: Any, data: Any) -> Any:
    optimizer = bench.adam(bench.settings.epochs)
    epoch = jax.jit(make_epoch(loss, optimizer, bench.settings.batch_size))
    carry = init(params, optimizer)
    return metered(lambda: epoch(carry, bench.run.fast_key, data))
