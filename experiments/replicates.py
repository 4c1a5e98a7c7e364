"""What a training step costs: a loop of steps, one scanned program, and vmapped replicates.

    python -m experiments.replicates [--fast] [--json PATH]

The network of the walking-noise study, 784-64-64-64-10 with additive noise in every slot, Adam,
batch 128, on random images. All forms do the same training and are timed in interleaved rounds of
one run; a replicate's time is a step's time over the replicates that take it. Also measured: the
matrix products alone, and a plain PyTorch loop where PyTorch is installed (the extra `benchmark`).
"""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
import typer
from flax import nnx

import jaxeff
from experiments.report import Report, make_console, show_rows
from experiments.timing import measure_rounds, metered, ratio, summary
from jaxeff.nn import MLP
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, init, make_epoch
from jaxeff.training.replicates import epoch_function, start_function

WIDTHS = (784, 64, 64, 64, 10)
BATCH = 128
SIGMA = 0.3
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def loss_at(f: Callable[..., Any]) -> Callable[[Any], Any]:
    """The loss under noise of a level."""
    return lambda spec: cross_entropy(jaxeff.noisy(f, spec), keyed=True)


def jax_forms(steps: int, replicates: list[tuple[int, int]]) -> dict[str, Callable[[], Any]]:
    """The training as JAX programs; each call makes `steps` steps of all its replicates."""
    f, params = jaxeff.functional(MLP(WIDTHS, rngs=nnx.Rngs(0)))
    key = jax.random.key(0)
    images = jax.random.normal(key, (steps * BATCH, WIDTHS[0]))
    labels = jnp.argmax(images[:, :10], axis=-1)
    optimizer = optax.adam(1e-3)
    one_step = jax.jit(make_epoch(loss_at(f)({"*": Additive(SIGMA)}), optimizer, BATCH))
    whole = jax.jit(make_epoch(loss_at(f)({"*": Additive(SIGMA)}), optimizer, BATCH))
    start = init(params, optimizer)

    def loop() -> Any:
        carry = start
        for i in range(steps):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            data = (images[rows], labels[rows])
            carry, _ = one_step(carry, jax.random.fold_in(key, i), data)
        return carry

    forms: dict[str, Callable[[], Any]] = {
        "jitted steps": loop,
        "scanned": lambda: whole(start, key, (images, labels)),
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


def fresh(key: jax.Array) -> tuple[Any, None]:
    """Initial parameters of the network."""
    return jaxeff.functional(MLP(WIDTHS, rngs=nnx.Rngs(key)))[1], None


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


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="Few steps and rounds")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/replicates.json if unset")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds")] = 11,
) -> None:
    """Time a training step in every form, side by side."""
    steps, rounds = (20, 3) if fast else (100, rounds)
    accelerator = jax.default_backend() != "cpu"
    shapes = [(1, 1), (8, 1), (64, 1), (8, 8)] + ([(64, 8), (512, 1)] if accelerator else [])
    replicates = {f"{levels} levels x {seeds} seeds": levels * seeds for levels, seeds in shapes}
    forms = jax_forms(steps, shapes)
    if torch_loop := torch_form(steps):
        forms["PyTorch loop"] = torch_loop
    times = measure_rounds({name: metered(form) for name, form in forms.items()}, rounds, 0.0)
    each = {
        name: [t / steps / replicates.get(name, 1) for t in values]
        for name, values in times.items()
    }

    report = Report("replicates", {"steps": steps, "rounds": rounds, "widths": WIDTHS})
    report.config |= {"batch": BATCH, "device": jax.devices()[0].device_kind}
    for name, values in each.items():
        report.rows.append(
            {"form": name, "replicates": replicates.get(name, 1)}
            | {f"{k}_per_step": v for k, v in summary(values).items()}
            | {"over jitted steps": ratio(values, each["jitted steps"])}
        )
    best = min((n for n in replicates if replicates[n] >= 8), key=lambda n: summary(each[n])["ms"])
    report.check(
        f"jitted steps over a replicate ({best})", 4.0,
        speedup := ratio(each["jitted steps"], each[best]), speedup >= 4,
    )  # fmt: skip
    if torch_loop:
        speedup = ratio(each["PyTorch loop"], each[best])
        report.check(f"PyTorch's loop over a replicate ({best})", 3.5, speedup, speedup >= 3.5)
    if accelerator:
        slowdown = ratio(times["512 levels x 1 seeds"], times["1 levels x 1 seeds"])
        report.check("512 replicates over one, in time", 5.0, slowdown, slowdown < 5)
    path = report.save(json or Path("results/replicates.json"))
    console = make_console()
    show_rows(console, "ms per step and replicate", report.rows)
    report.show_checks(console)
    console.print(f"[bold]{path}[/bold]")


if __name__ == "__main__":
    app()
