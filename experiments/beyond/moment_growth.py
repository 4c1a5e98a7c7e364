"""How the price of moments grows with a network's width and depth.

    python -m experiments.beyond.moment_growth
    python -m experiments.beyond.moment_growth --widths 64 128 --depths 2 4

The network is an MLP-Mixer of 16 tokens and ten results (that of `moment_variances`, untrained), a
batch of four, noise of 10 % of the deviation of each weight array. Widths grow at a depth of two
blocks, depths at a width of 64 channels. For the linear method, and for the diagonal one with
static factors of `calibrate_moments`, a row states

- run: processor time over the network's own, medians over rounds in which both take turns, on one
  thread;
- compile: processor time of tracing and compiling over the network's own;
- memory: the bytes that XLA holds beside arguments and results, over those of a training step of
  the same network (cross-entropy and Adam).

A second table has the exponents with which these grow: slopes of their logarithms over those of
width and of depth, and for the run the network's own beside it.

The targets are ours: for the linear method and k results a run of 3 + 2.5 k times, an exponent
within .2 of the network's, compilation of 8 times with an exponent in depth of at most .6, and
three training steps' memory; calibrated, compilation of 8 times.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

import jax
import optax
from flax import nnx

import experiments.harness as h
import jaxeff
from experiments.beyond.moment_variances.networks import PATCH, TOKENS, Mixer, spread
from experiments.beyond.moment_variances.recipe import most_of_linear
from experiments.timing import measure_rounds, metered, processor_seconds, ratio
from jaxeff.moment_propagation import calibrate_moments, moments

LINEAR, CALIBRATED, ALONE = "linear", "calibrated", "alone"
BATCH, RESULTS, NOISE = 4, 10, 0.1
WIDTH, DEPTH = 64, 2
OPTIMIZER = optax.adam(1e-3)
COMPILATIONS = 8.0
"""Times the network's own compilation that a pass may take."""
STEPS = 3.0
"""Training steps' memory that a pass may hold."""


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        widths: Channels of networks of two blocks.
        depths: Blocks of networks of 64 channels.
        rounds: Interleaved rounds of running.
        compilations: Interleaved rounds of compiling.
    """

    widths: tuple[Annotated[int, h.Least(8)], ...] = (64, 128, 256, 512, 1024)
    depths: tuple[Annotated[int, h.Least(1)], ...] = (2, 4, 8, 16, 32)
    rounds: Annotated[int, h.Least(2)] = 9
    compilations: Annotated[int, h.Least(1)] = 3


def sizes(run: h.Run[Settings]) -> list[tuple[int, int]]:
    """Every width at the least depth, then every depth at the least width."""
    os.environ["NPROC"] = "1"  # before JAX starts: processor time is then work and no waiting
    grid = [(width, DEPTH) for width in run.settings.widths]
    grid += [(WIDTH, depth) for depth in run.settings.depths]
    return list(dict.fromkeys(grid))


def of_size(run: h.Run[Settings], size: tuple[int, int]) -> Iterable[h.Row]:
    """The network's own row, and one for each method."""
    width, depth = size
    keys = jax.random.split(jax.random.fold_in(run.key, width * 1000 + depth))
    f, params = jaxeff.functional(Mixer(nnx.Rngs(keys[0]), width, depth))
    x = jax.random.normal(keys[1], (BATCH, TOKENS, PATCH))
    posterior = spread(params, NOISE)
    factors = calibrate_moments(
        run.key, f, posterior, x[:2], samples=4, form="static", progress=False
    )
    calls: dict[str, tuple[Callable[..., Any], Any]] = {
        ALONE: (f, params),
        LINEAR: (moments(f, method="linear"), posterior),
        CALIBRATED: (moments(f, method="calibrated"), factors),
    }
    compiled, spent = _compiled(calls, x, run.settings.compilations)
    step = jax.jit(_training_step(f)).lower(params, OPTIMIZER.init(params), x).compile()
    meters = {
        name: metered(partial(compiled[name], weights, x), time.process_time)
        for name, (_, weights) in calls.items()
    }
    times = measure_rounds(meters, run.settings.rounds)
    for name in calls:
        row = {
            "width": width, "depth": depth, "method": name,
            "seconds": median(times[name]) / 1e3, "compile_seconds": median(spent[name]),
        }  # fmt: skip
        if name != ALONE:
            row["run"] = ratio(times[name], times[ALONE])
            row["compile"] = ratio(spent[name], spent[ALONE])
            row["memory"] = _memory(compiled[name]) / _memory(step)
        yield row


def _compiled(
    calls: dict[str, tuple[Callable[..., Any], Any]], x: jax.Array, rounds: int
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The compiled calls, and the processor times of tracing and compiling each, in turns."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    compiled = {}
    for _ in range(rounds):
        for name, (g, weights) in calls.items():
            jax.clear_caches()
            # Another function each time: JAX finds the trace of one that it has seen.
            with processor_seconds(spent[name]):
                compiled[name] = jax.jit(partial(g)).lower(weights, x).compile()
    return compiled, spent


def _memory(compiled: Any) -> int:
    """Bytes beside arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def _training_step(f: Callable[..., Any]) -> Callable[..., Any]:
    """One update by Adam of a cross-entropy whose labels are all the first."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return -jax.nn.log_softmax(f(params, x))[:, 0].mean()

    def step(params: Any, state: Any, x: jax.Array) -> tuple[Any, Any]:
        updates, state = OPTIMIZER.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    return step


LINES = ("width", {"depth": DEPTH}), ("depth", {"width": WIDTH})
"""What grows, and what stays."""


def passes(fixed: dict[str, int]) -> h.Chosen:
    """Selects the rows of methods whose networks have a width, or a depth."""
    return lambda report: [row for row in h.where(**fixed)(report) if row["method"] != ALONE]


def exponents(report: h.Report) -> list[h.Row]:
    """How times grow with width and with depth, a row for each method and direction."""
    rows: list[h.Row] = []
    for along, fixed in LINES:
        for method in (ALONE, LINEAR, CALIBRATED):
            line = h.where(method=method, **fixed)(report)
            if len({row[along] for row in line}) < 2:
                continue
            columns = "seconds", "compile_seconds"
            slopes = {name: h.exponent(line, along, name) for name in columns}
            rows.append({"along": along, "method": method, **slopes})
    alone = {row["along"]: row["seconds"] for row in rows if row["method"] == ALONE}
    return [{**row, "beyond": row["seconds"] - alone[row["along"]]} for row in rows]


claim = partial(h.Claim, needs="default")
SIZED = "{width} channels, {depth} blocks, {method}: "
linear, calibrated = h.where(method=LINEAR), h.where(method=CALIBRATED)
CLAIMS = (
    claim(SIZED + "time over the network's", "run", h.at_most(most_of_linear(RESULTS)),
          most_of_linear(RESULTS), linear),
    claim(SIZED + "compilation over the network's", "compile", h.at_most(COMPILATIONS),
          COMPILATIONS, linear),
    claim(SIZED + "compilation over the network's", "compile", h.at_most(COMPILATIONS),
          COMPILATIONS, calibrated),
    claim(SIZED + "memory over a training step's", "memory", h.at_most(STEPS), STEPS, linear),
    claim("exponent in {along}, {method}: of the run, beyond the network's", "beyond",
          h.at_most(0.2), 0.2, exponents, when=lambda row: row["method"] == LINEAR),
    claim("exponent in depth, {method}: of compilation", "compile_seconds", h.at_most(0.6), 0.6,
          exponents, when=lambda row: row["method"] == LINEAR and row["along"] == "depth"),
)  # fmt: skip
PASSES = h.having("run")
PLOTS = tuple(
    h.Plot(
        along,
        h.Curves(along, "run", passes(fixed), "{method}",
                 guides=(most_of_linear(RESULTS),),
                 axes={"xscale": "log", "yscale": "log", "xlabel": along,
                       "ylabel": "time over the network's"}),
        size=(4.2, 3.0),
    )
    for along, fixed in LINES
)  # fmt: skip
STUDY = h.Study(
    "moment_growth", __doc__,
    {
        "fast": Settings(widths=(64, 128), depths=(2, 4), rounds=2, compilations=1),
        "default": Settings(),
        "full": Settings(rounds=25, compilations=9),
    },
    (h.Part(sizes, of_size),),
    CLAIMS, PLOTS,
    (
        h.Listing("over the network's; memory over a training step's",
                  ("width", "depth", "method", "run", "compile", "memory"), PASSES),
        h.Listing("exponents", ("along", "method", "seconds", "beyond", "compile_seconds"),
                  exponents),
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
