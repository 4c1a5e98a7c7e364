"""Forms of moment operators: joint or separate, variances or raw moments, and how pools reduce.

    python -m experiments.operator_forms

1. dense: the three layers of the MLP 784-100-100-10, one after the other. Mean and variance come
   from one operator or from one each; spreads come as variances or as second raw moments E[x²],
   which need no conversion before the next layer;
2. pool: both max pools of LeNet-5, as a generic reduction of each window by Clark's maximum of two
   Gaussians, or as a tree of pairs over whole images, which is how moment passes pool here.

By TVM, with the default schedule, and by XLA; one thread, in interleaved rounds. Results are held
against float64. Source: Klein's thesis, section 8.4 (figure 8.5, without numbers) and table 8.4.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tvm
from jaxeff_export import deploy
from jaxeff_export.operators import Form, dense_module
from jaxtyping import Array

from experiments import harness as h
from experiments.contests.tvm import host, meter_of, module_meter, module_results, together
from experiments.contests.xla import compiled
from experiments.harness import Count, Report, Row, Run
from experiments.latency.operators import LAYERS
from experiments.timing import Meter, measure_rounds, metered, ratio, summary
from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.moment_propagation.rules import maximum

POOLS = ((28, 28, 6), (10, 10, 16))
"""Inputs of LeNet-5's max pools."""
GENERIC = 12.09 / 3.54
ALIKE = 3.0
"""Factor within which a ratio of times on another processor counts as the same; ours."""
"""The thesis' generic max pool over its special one, on a Cortex-A72."""
NOISE = 1.05
"""A ratio of times that isn't the timings' noise."""
EXACT = 1e-4
"""Error of a result, relative to the largest entry; raw moments are subtracted in float32."""
PATHS, FORMS = ("joint", "separate"), ("raw", "variance")
BEST = "joint, raw"
Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Settings:
    """What is timed, how often."""

    batches: tuple[Count, ...] = (10,)  # inputs of a call (the thesis': 10)
    rounds: Count = 21  # rounds of each timing


SIZES = {"fast": Settings(rounds=3), "default": Settings(), "full": Settings((1, 10, 100), 51)}


def dense_rows(run: Run[Settings], engine: str, batch: int) -> Iterator[Row]:
    """Times the layers in every form."""
    make = {"tvm": _dense_tvm, "xla": _dense_xla}[engine]
    layers: dict[str, list[Meter]] = {}
    errors: dict[str, float] = {}
    for depth, columns in LAYERS:
        x, w = (_random((batch, depth), 0), _random((depth, columns), 1))
        exact = exact_dense(x, w)
        for path, form in itertools.product(PATHS, FORMS):
            name = f"{path}, {form}"
            meter, result = make(path == "joint", form, x, w)
            layers.setdefault(name, []).append(meter)
            errors[name] = float(np.maximum(errors.get(name, 0.0), _error(result, exact)))
    times = measure_rounds(
        {name: together(meters) for name, meters in layers.items()}, run.settings.rounds
    )
    for path, form in itertools.product(PATHS, FORMS):
        name = f"{path}, {form}"
        yield {
            "engine": engine, "batch": batch, "path": path, "form": form,
            **summary(times[name]), "over_best": ratio(times[name], times[BEST]),
            "over_joint": ratio(times[name], times[f"joint, {form}"]),
            "over_raw": ratio(times[name], times[f"{path}, raw"]), "error": errors[name],
        }  # fmt: skip


def pool_rows(run: Run[Settings], engine: str, batch: int) -> Iterator[Row]:
    """Times both pools, reduced in either way."""
    pools: dict[str, list[Meter]] = {}
    errors: dict[str, float] = {}
    for shape in POOLS:
        x = Gaussian(*map(jnp.asarray, _random((batch, *shape), 2)))
        forms: dict[str, Callable[..., Gaussian]] = {
            "tree": moments(_max_pool), "generic": generic_pool
        }  # fmt: skip
        for name, f in forms.items():
            meter, result = _compiled(engine, f, x)
            pools.setdefault(name, []).append(meter)
            exact = exact_pool(x, pairs=name == "tree")
            errors[name] = float(np.maximum(errors.get(name, 0.0), _error(result, exact)))
    times = measure_rounds(
        {name: together(meters) for name, meters in pools.items()}, run.settings.rounds
    )
    for name, values in times.items():
        yield {
            "engine": engine, "batch": batch, "pool": name, **summary(values),
            "over_tree": ratio(values, times["tree"]), "source_over_tree": GENERIC,
            "error": errors[name],
        }  # fmt: skip


def joint_dense(spread: str, x: Pair, w: Pair) -> Pair:
    """Moments of a dense layer of independent inputs and weights, spreads in one of `FORMS`."""
    return mean_of_dense(x, w), spread_of_dense(spread, x, w)


def mean_of_dense(x: Pair, w: Pair) -> Any:
    """Computes the mean alone."""
    return x[0] @ w[0]


def spread_of_dense(spread: str, x: Pair, w: Pair) -> Any:
    """Computes the variance alone; the inputs' spreads are variances or second raw moments."""
    if spread == "raw":
        return x[1] @ w[1] - (x[0] * x[0]) @ (w[0] * w[0])
    return (x[0] * x[0] + x[1]) @ w[1] + x[1] @ (w[0] * w[0])


def generic_pool(_: Any, x: Gaussian) -> Gaussian:
    """Max pool of 2x2 as a reduction of pairs of mean and variance, whatever the window."""

    def larger(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
        largest = maximum(Gaussian(*one), Gaussian(*other))
        return largest.mean, largest.var

    # Never a maximum, with room for a difference.
    start = np.float32(np.finfo(np.float32).min / 4), np.float32(0)
    window = (1, 2, 2, 1)
    mean, var = jax.lax.reduce_window((x.mean, x.var), start, larger, window, window, "VALID")
    return Gaussian(mean, var)


def _max_pool(_: Any, x: Array) -> Array:
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def exact_dense(x: Pair, w: Pair) -> Pair:
    """The same of means and variances, in float64."""
    inputs, weights = ((np.float64(mean), np.float64(var)) for mean, var in (x, w))
    return joint_dense("variance", inputs, weights)


def exact_pool(x: Gaussian, pairs: bool) -> Pair:
    """The same in float64: pairs, rows of a window first, or one entry of it after the other.

    Maxima of Gaussians are taken for Gaussians, so that the order counts.
    """
    with jax.enable_x64(True):
        entries = [
            Gaussian(*(jnp.asarray(np.float64(part[:, i::2, k::2])) for part in (x.mean, x.var)))
            for i in (0, 1) for k in (0, 1)
        ]  # fmt: skip
        if pairs:
            (a, b, c, d) = entries
            entries = [maximum(a, c), maximum(b, d)]
        largest = functools.reduce(maximum, entries)
        return np.asarray(largest.mean), np.asarray(largest.var)


def _dense_tvm(joint: bool, spread: str, x: Pair, w: Pair) -> tuple[Meter, Pair]:
    (batch, depth), columns = x[0].shape, w[0].shape[1]
    module = dense_module(batch, depth, columns, Form(spread), joint=joint)
    arguments = [tvm.runtime.tensor(part) for part in (*_spread(spread, x), *_spread(spread, w))]
    meter = module_meter(module, arguments, host())
    mean, var = module_results(module, arguments, host())
    return meter, (mean, var)


def _dense_xla(joint: bool, spread: str, x: Pair, w: Pair) -> tuple[Meter, Pair]:
    arguments = [tuple(map(jnp.asarray, _spread(spread, of))) for of in (x, w)]
    if joint:
        call = compiled(functools.partial(joint_dense, spread), *arguments)
        return metered(call), call()
    parts: list[Callable[..., Any]] = [mean_of_dense, functools.partial(spread_of_dense, spread)]
    calls = [compiled(part, *arguments) for part in parts]
    return together([metered(call) for call in calls]), tuple(call() for call in calls)


def _compiled(engine: str, f: Callable[..., Gaussian], x: Gaussian) -> tuple[Meter, Pair]:
    nothing = jnp.zeros(())
    if engine == "xla":
        call = compiled(f, nothing, x)
        return metered(call), (call().mean, call().var)
    bundle = deploy(f, (nothing, x), target=host())
    mean, var = jax.tree.leaves(bundle.run(x))
    return meter_of(bundle), (mean, var)


def _spread(spread: str, of: Pair) -> Pair:
    mean, var = of
    return mean, var if spread == "variance" else mean * mean + var


def _random(shape: tuple[int, ...], seed: int) -> Pair:
    draw = np.random.default_rng(seed)
    mean, deviation = draw.normal(size=shape), draw.uniform(0.1, 0.5, shape)
    return mean.astype(np.float32), (deviation**2).astype(np.float32)


def _error(found: Pair, exact: Pair) -> float:
    return max(
        float(np.abs(np.asarray(a) - b).max() / np.abs(b).max())
        for a, b in zip(found, exact, strict=True)
    )


def errors(report: Report) -> Iterator[Row]:
    """Selects the largest error of each part and engine."""
    for (part, engine), rows in h.grouped(report.rows, "part", "engine").items():
        yield {"part": part, "engine": engine, "error": max(row["error"] for row in rows)}


TOOLS: Mapping[str, str] = {"tvm": "TVM", "xla": "XLA"}
claim = functools.partial(h.Claim, needs="default")
CLAIMS = (
    h.Claim("{part} by {engine}: largest error of a result", "error", h.at_most(EXACT), of=errors),
    claim(
        "{engine}, batch {batch}, {form}: one operator each for mean and variance takes longer "
        "than one for both", "over_joint", h.above(NOISE), "consistently",
        h.where(part="dense", path="separate"),
    ),
    claim(
        "{engine}, batch {batch}, {path}: variances take longer than raw moments", "over_raw",
        h.above(NOISE), "> 1 (a figure)", h.where(part="dense", form="variance"),
    ),
    *(
        # From both sides: a tree that is ten times as fast says how slow the generic one is.
        claim(
            f"{TOOLS[engine]}, batch {{batch}}: the generic max pool over the tree, within a "
            f"factor of {ALIKE:g} of the thesis'", "over_tree",
            lambda row, over: 1 / ALIKE <= over / row["source_over_tree"] <= ALIKE,
            lambda row: row["source_over_tree"],
            h.where(part="pool", engine=engine, pool="generic"),
        )
        for engine in TOOLS
    ),
)  # fmt: skip


def bars(report: Report) -> Iterator[Row]:
    """Selects the drawn times, over those of joint operators of raw moments, or of the tree."""
    for row in report.rows:
        dense = row["part"] == "dense"
        form = f"{row['path']}, {row['form']}" if dense else f"{row['pool']} pool"
        title = f"{TOOLS[row['engine']]}, batch {row['batch']}"
        yield {"title": title, "form": form, "over": row["over_best" if dense else "over_tree"]}


PLOTS = (
    h.Plot(
        "forms",
        h.Bars(
            "form", "over", bars, facet="{title}",
            axes={"ylabel": "time over joint raw moments, or the tree", "yscale": "log"},
            then=h.labelled("%.2f"),
        ),
        size=(7, 3.6),
    ),
)  # fmt: skip
TABLES = (
    h.Listing(
        "dense layers", ("engine", "batch", "path", "form", "ms", "over_best", "error"),
        h.where(part="dense"),
    ),
    h.Listing("max pools", ("engine", "batch", "pool", "ms", "over_tree"), h.where(part="pool")),
)  # fmt: skip
DIFFERENCES = (
    "the thesis measures on a Cortex-A72 with its own operators of TVM; here it is this x86 "
    "processor, with TVM's default schedule and XLA, which the thesis doesn't have",
    "the thesis' special max pool is written for windows of two; ours is a tree of pairs for any "
    "window. Its generic one, a reduction, is `lax.reduce_window` of two operands here",
)


def _part(name: str, make: Callable[..., Iterator[Row]]) -> h.Part[Settings, Any]:
    def tasks(run: Run[Settings]) -> list[tuple[str, str, int]]:
        return [(name, engine, batch) for engine in TOOLS for batch in run.settings.batches]

    return h.Part(tasks, lambda run, task: make(run, *task[1:]), mark={"part": name})


STUDY = h.Study(
    "operator_forms", __doc__, SIZES, (_part("dense", dense_rows), _part("pool", pool_rows)),
    CLAIMS, PLOTS, TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
