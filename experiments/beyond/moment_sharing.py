"""Whether `moments(f)` is right, or says so, of random programs that share noise.

    python -m experiments.beyond.moment_sharing --programs 200

A program is a few steps on tokens, drawn by its number: dense layers with kernels of their own, one
kernel used again, a layer called twice, a bias or scale that positions share and a pooling by
windows behind it, outer products, attention, scans, convolutions, residual sums. It ends in few
results an example, in many, or in all of its tokens. Weights are untrained; noise of each array is
a share of its deviation. The variance of each result is divided by that of draws. A call is

- right: the median of these ratios is within .8 to 1.25, and nothing was said;
- told: a `MomentsWarning` was given, and either the median isn't within these, or a twentieth of
  the entries are off by more than twice;
- false alarm: a warning was given, and neither is so;
- silent: the median isn't within these, and nothing was said.

Each program is called twice: with its values, as one does at a prompt, where `moments` compares its
results with a few draws before it warns, and under `jit`, where there are no values and it warns of
what may be off. The target is ours: nothing silent in either, and of the warnings with values nine
in ten right.
"""

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

import experiments.harness as h
from jaxeff import Gaussian, moments
from jaxeff.moment_propagation import MomentsWarning

BOUNDS, SINGLE = (0.8, 1.25), (0.5, 2.0)
"""What is right of the median of ratios, and of 5 to 95 % of them."""
WITH_VALUES, UNDER_JIT = CALLS = "with values", "under jit"
EXAMPLES, TOKENS, CHANNELS, MANY = 3, 16, 12, 80
STATUSES = "right", "told", "false alarm", "silent"

Params = dict[str, Any]
Step = Callable[[Params, Any], Any]


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        programs: How many programs.
        noise: Deviation of weights over that of their array.
        draws: Draws for a variance, which is known to about the root of 2 over them.
    """

    programs: Annotated[int, h.Least(1)] = 200
    noise: float = 0.05
    draws: Annotated[int, h.Least(2)] = 2048


class Program:
    """A random program: its parameters, and the steps that read them."""

    def __init__(self, number: int) -> None:
        """Draws the program of a number."""
        self.rng = np.random.default_rng(number)
        self.params: Params = {"again": self.normal(CHANNELS, CHANNELS)}
        self.names: list[str] = []
        self.steps: list[Step] = []
        kinds = list(STEPS)
        for kind in self.rng.choice(kinds, self.rng.integers(1, 4)):
            self.names.append(str(kind))
            self.steps.append(STEPS[str(kind)](self))
        end = str(self.rng.choice(list(ENDS)))
        self.names.append(end)
        self.steps.append(ENDS[end](self))

    def normal(self, *shape: int) -> jax.Array:
        """Draws weights that keep the size of what they read."""
        return jnp.float32(self.rng.normal(size=shape) / np.sqrt(shape[-2]))

    def weight(self, *shape: int) -> str:
        """Adds an array, and returns its name."""
        name = f"w{len(self.params)}"
        self.params[name] = self.normal(*shape) if len(shape) > 1 else self.normal(1, *shape)[0]
        return name

    def __call__(self, params: Params, x: jax.Array) -> jax.Array:
        """Evaluates it."""
        for step in self.steps:
            x = step(params, x)
        return x


def _dense(of: Program) -> Step:
    w, b = of.weight(CHANNELS, CHANNELS), of.weight(CHANNELS)
    return lambda p, x: jax.nn.relu(x @ p[w] + p[b])


def _again(of: Program) -> Step:
    return lambda p, x: jnp.tanh(x @ p["again"])


def _twice(of: Program) -> Step:
    w, sign = of.weight(CHANNELS, CHANNELS), of.rng.choice([-0.5, 1.0])
    return lambda p, x: jax.nn.relu(x @ p[w]) + sign * jax.nn.relu(x @ p[w])


def _value_twice(of: Program) -> Step:
    w = of.weight(CHANNELS, CHANNELS)

    def step(p: Params, x: jax.Array) -> jax.Array:
        y = jax.nn.relu(x @ p[w])
        return y - 0.5 * y

    return step


def _pooled(of: Program) -> Step:
    b = of.weight(CHANNELS)

    def step(p: Params, x: jax.Array) -> jax.Array:
        size = max(x.shape[1] // 4, 1)
        windows = (x + p[b]).reshape(len(x), -1, size, CHANNELS).mean(2)
        return jnp.repeat(windows, size, 1)

    return step


def _outer(of: Program) -> Step:
    w, v = of.weight(CHANNELS, 4), of.weight(16, CHANNELS)

    def step(p: Params, x: jax.Array) -> jax.Array:
        y = x @ p[w]
        return (y[..., :, None] * y[..., None, :]).reshape(*x.shape[:-1], 16) @ p[v]

    return step


def _attention(of: Program) -> Step:
    q, k, v = (of.weight(CHANNELS, CHANNELS) for _ in range(3))

    def step(p: Params, x: jax.Array) -> jax.Array:
        scores = (x @ p[q]) @ (x @ p[k]).mT / CHANNELS**0.5
        return x + jax.nn.softmax(scores) @ (x @ p[v])

    return step


def _scan(of: Program) -> Step:
    w = of.weight(CHANNELS, CHANNELS)

    def step(p: Params, x: jax.Array) -> jax.Array:
        def run(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jnp.tanh(0.5 * state @ p[w] + row)
            return state, state

        return jax.lax.scan(run, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return step


def _mapped(of: Program) -> Step:
    w = of.weight(CHANNELS, CHANNELS)
    return lambda p, x: jax.lax.map(lambda row: jax.nn.relu(row @ p[w]), x.swapaxes(0, 1)).swapaxes(
        0, 1
    )


def _convolution(of: Program) -> Step:
    w = of.weight(3, CHANNELS, CHANNELS)
    return lambda p, x: jax.nn.relu(
        jax.lax.conv_general_dilated(
            x, p[w] / 2, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
    )


def _residual(of: Program) -> Step:
    w, v = of.weight(CHANNELS, CHANNELS), of.weight(CHANNELS, CHANNELS)
    return lambda p, x: x + jax.nn.gelu(x @ p[w]) @ p[v]


def _norm(of: Program) -> Step:
    s = of.weight(CHANNELS)
    return lambda p, x: jax.nn.standardize(x) * (1 + p[s])


def _context(of: Program) -> Step:
    return lambda p, x: x + x.mean(1, keepdims=True)


def _few(of: Program) -> Step:
    w = of.weight(CHANNELS, 4)
    return lambda p, x: x.mean(1) @ p[w]


def _flat(of: Program) -> Step:
    w = of.weight(TOKENS * CHANNELS, 4)
    return lambda p, x: x.reshape(len(x), -1) @ p[w]


def _many(of: Program) -> Step:
    w = of.weight(CHANNELS, MANY)
    return lambda p, x: x.mean(1) @ p[w]


def _all(of: Program) -> Step:
    w = of.weight(CHANNELS, CHANNELS)
    return lambda p, x: x @ p[w]


STEPS: dict[str, Callable[[Program], Step]] = {
    "dense": _dense, "kernel again": _again, "layer twice": _twice, "value twice": _value_twice,
    "pooled windows": _pooled, "outer product": _outer, "attention": _attention, "scan": _scan,
    "map": _mapped, "convolution": _convolution, "residual": _residual, "norm": _norm,
    "context": _context,
}  # fmt: skip
ENDS: dict[str, Callable[[Program], Step]] = {
    "mean, few": _few, "flat, few": _flat, "mean, many": _many, "tokens": _all,
}  # fmt: skip


def tasks(run: h.Run[Settings]) -> list[int]:
    """The numbers of programs."""
    return list(range(run.settings.programs))


def rows(run: h.Run[Settings], number: int) -> Iterable[h.Row]:
    """One program."""
    program = Program(number)
    noise, draws = run.settings.noise, run.settings.draws
    x = jax.random.normal(jax.random.key(number), (EXAMPLES, TOKENS, CHANNELS))
    posterior = {
        name: Gaussian(w, jnp.full_like(w, (noise * jnp.std(w)) ** 2))
        for name, w in program.params.items()
    }

    @jax.jit
    def sampled(key: jax.Array) -> jax.Array:
        names = enumerate(posterior.items())
        params = {name: w.sample(jax.random.fold_in(key, i)) for i, (name, w) in names}
        return program(params, x)

    keys = jax.random.split(jax.random.key(1), draws)
    var = np.asarray(jax.lax.map(sampled, keys, batch_size=128)).var(0, ddof=1)
    g = moments(program)
    method = g.explain(posterior, x).method
    calls: dict[str, Callable[..., Any]] = {WITH_VALUES: g, UNDER_JIT: jax.jit(g)}
    for call, called in calls.items():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            propagated = called(posterior, x)
        warned = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
        low, ratio, high = np.quantile(np.asarray(propagated.var) / var, (0.05, 0.5, 0.95)).tolist()
        yield {
            "program": number, "steps": ", ".join(program.names), "call": call,
            "method": method, "ratio": ratio, "low": low, "high": high,
            "status": status(low, ratio, high, bool(warned)),
            "words": " ".join(warned),
        }  # fmt: skip


def status(low: float, ratio: float, high: float, warned: bool) -> str:
    """What a call is, by the ratios of its variances to drawn ones: 5 %, the median, 95 %."""
    right = BOUNDS[0] <= ratio <= BOUNDS[1]
    if not warned:
        return "right" if right else "silent"
    return "false alarm" if right and SINGLE[0] <= low and high <= SINGLE[1] else "told"


def counts(report: h.Report) -> list[h.Table]:
    """How many programs have each status, by the call and the method that was taken."""
    lines = []
    for call, method in itertools.product(CALLS, ("diagonal", "linear")):
        same = h.where(call=call, method=method)(report)
        number = Counter(row["status"] for row in same)
        lines.append({"call": call, "method": method, **{one: number[one] for one in STATUSES}})
    return [h.Table.from_rows("programs", lines)]


def alarms(report: h.Report) -> list[h.Row]:
    """Of the warnings that were given with values, the share that are right."""
    number = Counter(row["status"] for row in h.where(call=WITH_VALUES)(report))
    warned = number["told"] + number["false alarm"]
    return [{"warned": warned, "share": number["told"] / warned}] if warned else []


STUDY = h.Study(
    "moment_sharing", __doc__,
    {
        "fast": Settings(programs=6, draws=128),
        "default": Settings(),
        "full": Settings(programs=1000, draws=20_000),
    },
    (h.Part(tasks, rows),),
    (
        h.Claim(
            "program {program}, {call}: no variance is off in silence", "status",
            lambda _, judged: judged != "silent", None, h.every, "default",
        ),
        h.Claim("of {warned} warnings with values, the share that are right", "share",
                h.at_least(0.9), 0.9, alarms, "default"),
    ),
    (
        h.Plot(
            "ratios",
            h.Dots("{method}", "ratio", h.where(call=WITH_VALUES), hue="{status}", guides=BOUNDS,
                   axes={"xscale": "log", "xlabel": "variance over that of draws, median"}),
            size=(6, 2.4),
        ),
    ),
    (
        counts,
        h.Listing("programs",
                  ("program", "steps", "call", "method", "status", "ratio", "low", "high"),
                  h.every),
    ),
    differences=("Programs are untrained.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
