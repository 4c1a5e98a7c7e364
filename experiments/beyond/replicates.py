"""What a training step costs: a loop of steps, one scanned program, and vmapped replicates.

    python -m experiments.beyond.replicates

The network of the walking-noise study, 784-64-64-64-10 with additive noise in every slot, Adam,
batch 128, on random images. All forms do the same training and are timed in interleaved rounds of
one run; a replicate's time is a step's time over the replicates that take it. Also measured: the
matrix products alone, and a plain PyTorch loop where PyTorch is installed (the extra `benchmark`);
and how time and memory grow from 8 to 512 replicates and from 1 to 8 devices. A processor's virtual
devices share its cores: they show what spreading costs, not what it gains.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxeff
from experiments import harness as h
from experiments.beyond import growth
from experiments.beyond.growth import BATCH, WIDTHS, fresh, loss_at
from experiments.harness import Count, Found, Row, Run, Study
from experiments.timing import measure_rounds, metered, ratio, summary
from jaxeff.nn import MLP
from jaxeff.noise import Additive
from jaxeff.training import epoch_function, init, make_epoch, start_function

SIGMA = 0.3
TORCH = "PyTorch loop"
TARGETS = {"jitted steps": ("jitted steps", 4.0), TORCH: ("PyTorch's loop", 3.5)}
"""What a step of loops costs over a replicate's share: their names, and the least."""


@dataclass(frozen=True)
class Settings:
    """How much is timed."""

    steps: Count  # training steps of one call
    rounds: Count  # interleaved rounds


def jax_forms(steps: int, replicates: list[tuple[int, int]]) -> dict[str, Callable[[], Any]]:
    """The training as JAX programs; each call makes `steps` steps of all its replicates."""
    f, params = jaxeff.functional(MLP(WIDTHS, rngs=nnx.Rngs(0)))
    key = jax.random.key(0)
    images = jax.random.normal(key, (steps * BATCH, WIDTHS[0]))
    labels = jnp.argmax(images[:, :10], axis=-1)
    optimizer = optax.adam(1e-3)
    one_step = jax.jit(make_epoch(loss_at(f)({"*": Additive(SIGMA)}), optimizer, BATCH))
    epoch = jax.jit(make_epoch(loss_at(f)({"*": Additive(SIGMA)}), optimizer, BATCH))
    start = init(params, optimizer)

    def loop() -> Any:
        carry = start
        for i in range(steps):
            data = tuple(part[i * BATCH : (i + 1) * BATCH] for part in (images, labels))
            carry, _ = one_step(carry, jax.random.fold_in(key, i), data)
        return carry

    forms: dict[str, Callable[[], Any]] = {
        "jitted steps": loop,
        "scanned": lambda: epoch(start, key, (images, labels)),
    }
    for settings, seeds in replicates:
        begin = start_function(fresh, optimizer)
        train = jax.jit(epoch_function(loss_at(f), optimizer, BATCH, seeds, settings))
        starts, keys = jax.random.split(key, (2, seeds))
        carry = begin(starts, {"*": Additive(jnp.linspace(0, 1, settings))})
        forms[f"{settings} levels x {seeds} seeds"] = functools.partial(
            train, carry, keys, (images, labels)
        )
    forms["products alone"] = functools.partial(_products(steps), params, images)
    return forms


def _products(steps: int) -> Callable[..., Any]:
    """The matrix products of `steps` steps, forward and backward, and nothing else."""

    @jax.jit
    def products(params: Any, images: jax.Array) -> Any:
        weights = [params[f"fc{i}"]["kernel"] for i in range(1, len(WIDTHS))]

        def step(carry: Any, x: jax.Array) -> tuple[Any, None]:
            inputs = [x]
            for w in carry:
                inputs.append(inputs[-1] @ w)
            error = inputs[-1]
            after = []
            for i in reversed(range(len(carry))):
                after.append(carry[i] - 1e-9 * inputs[i].T @ error)
                error = error @ carry[i].T if i else error
            return after[::-1], None

        return jax.lax.scan(step, weights, images.reshape(steps, BATCH, -1))[0]

    return products


def torch_form(steps: int) -> Callable[[], Any] | None:
    """The same training as a plain PyTorch loop, where PyTorch is installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], 1e-3)
    images = torch.randn(steps * BATCH, WIDTHS[0])
    labels = images[:, :10].argmax(dim=-1)

    def noisy(x: Any) -> Any:
        return x + SIGMA * torch.randn_like(x)

    def loop() -> Any:
        for i in range(steps):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            x = noisy(images[rows])
            for layer in layers[:-1]:
                x = noisy(torch.relu(noisy(layer(x))))
            loss = torch.nn.functional.cross_entropy(noisy(layers[-1](x)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return None

    return loop


def run(run: Run[Settings]) -> Found:
    """Times a training step in every form, side by side."""
    steps, rounds = run.settings.steps, run.settings.rounds
    accelerator = jax.default_backend() != "cpu"
    shapes = [(1, 1), (8, 1), (64, 1), (8, 8)] + ([(64, 8), (512, 1)] if accelerator else [])
    replicates = {f"{levels} levels x {seeds} seeds": levels * seeds for levels, seeds in shapes}

    def measure() -> list[Row]:
        forms = jax_forms(steps, shapes)
        if torch_loop := torch_form(steps):
            forms[TORCH] = torch_loop
        times = measure_rounds({name: metered(form) for name, form in forms.items()}, rounds, 0.0)
        each = {
            name: [t / steps / replicates.get(name, 1) for t in values]
            for name, values in times.items()
        }
        return [
            {"form": name, "replicates": replicates.get(name, 1)}
            | {f"{k}_per_step": v for k, v in summary(values).items()}
            | {"over jitted steps": ratio(values, each["jitted steps"])}
            | {f"over {base}": ratio(values, each[base]) for base in each if base in replicates}
            for name, values in each.items()
        ]

    setup = {"widths": WIDTHS, "batch": BATCH, "device": jax.devices()[0].device_kind}
    rows = run.keep("forms", measure)
    grown = run.keep("growth", lambda: growth.measure(max(2, steps // 10), min(rounds, 5)))
    return Found(rows, setup | {"growth": grown})


def targets(report: h.Report) -> Iterator[Row]:
    """Selects the loops, with what a step of theirs costs over the cheapest replicate's share."""
    many = [row for row in report.rows if row["replicates"] >= 8]
    best = min(many, key=lambda row: row["ms_per_step"])["form"]
    for form, name, target in (
        ("jitted steps", "jitted steps", 4.0),
        (TORCH, "PyTorch's loop", 3.5),
    ):
        for row in h.where(form=form)(report):
            yield {"name": name, "best": best, "target": target, "speedup": row[f"over {best}"]}


CLAIMS = (
    h.Claim(
        "{name} over a replicate ({best})", "speedup", h.at_least("target"), itemgetter("target"),
        targets, "default",
    ),
    h.Claim(
        "512 replicates over one, in time", lambda row: 512 * row["over 1 levels x 1 seeds"],
        h.below(5), 5.0, h.where(form="512 levels x 1 seeds"),
    ),
)  # fmt: skip
PLOT = h.Plot(
    "forms",
    h.Dots(
        "{form}: {ms_per_step:.3g}", "ms_per_step",
        axes={"xscale": "log", "xlabel": "ms per step and replicate"},
    ),
    size=(7, 4),
)  # fmt: skip
TABLES = (
    h.Listing(
        "ms per step and replicate",
        ("form", "replicates", "ms_per_step", "spread_per_step", "over jitted steps"),
    ),
    h.Listing(
        "growth over replicates and devices",
        ("devices", "replicates", "step_ms", "ms_per_replicate", "mb_per_device"),
        h.extra("growth"),
    ),
)  # fmt: skip
STUDY = Study(
    "replicates", __doc__,
    {"fast": Settings(20, 3), "default": Settings(100, 11), "full": Settings(400, 21)},
    (run,), CLAIMS, (PLOT,), TABLES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
