"""Networks through models of sequences: ordered, in a wrong order, order-free, and the white box.

See Klein's thesis, tables 5.2 and 5.3.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from experiments.analog.problems import small_images
from experiments.analog.recipe import Settings
from experiments.analog.source import SEQUENCES
from experiments.analog.training import GAIN, Problem, Trainer
from experiments.harness import Row, Run
from jaxeff import analog_hardware as hardware

POSITIONS = {"ordered": "time", "non-ordered": "permuted", "order-free": "none"}
WIDTH, HEADS = 8, 1
"""Of the transformers: smaller than where they are judged alone, for there is one per column."""


def sequences(run: Run[Settings]) -> list[Row]:
    """A row per model and chip: its errors, and accuracies of the networks trained through it."""
    devices = run.settings.chips[: run.settings.sequence_chips]

    def rows() -> list[Row]:
        problem = small_images(run)
        found = [models(run, device) for device in devices]
        return [
            row
            for name in SEQUENCES
            for row in _networks(
                run, problem, devices, name, [(m[name], e[name]) for m, e in found]
            )
        ]

    return run.keep({"task": "sequences"}, rows)


def _networks(
    run: Run[Settings], problem: Problem, devices: tuple[int, ...], name: str, models: Any
) -> list[Row]:
    """Retraining through one kind of model, then with the chip in the loop."""
    boxes = jax.tree.map(lambda *a: jnp.stack([jnp.asarray(x) for x in a]), *[m for m, _ in models])
    own = dataclasses.replace(problem, name=f"{problem.name}-{name.replace(' ', '-')}")
    trainer = Trainer(run, own, devices, boxes)
    params = jax.tree.map(lambda p: jnp.stack([p] * len(devices)), problem.params)
    retrain = run.settings.sequence_retrain
    short = max(1, round(retrain / 6))
    source = SEQUENCES[name]
    rows: list[Row] = [
        {"kind": "sequence", "data": problem.name, "chip": f"synthetic {device}", "device": device,
         "model": name, **errors, **{f"source_{k}": v for k, v in source._asdict().items()}}
        for device, (_, errors) in zip(devices, models, strict=True)
    ]  # fmt: skip

    def add(column: str, values: Any) -> None:
        for row, value in zip(rows, values, strict=True):
            row[column] = 100 * float(value)
        run.say(f"{own.name}, {column}: {100 * values.mean():.1f} %")

    add("plain", trainer.accuracy("loop", params))
    if name == "no model":
        params, _ = trainer.trained("loop", "loop", params, retrain + short)
    else:
        params, _ = trainer.trained("incremental", "incremental", params, retrain)
        add("software", trainer.accuracy("box", params))
        add("on_chip", trainer.accuracy("loop", params))
        params, _ = trainer.trained("incremental + loop", "loop", params, short)
    add("after_loop", trainer.accuracy("loop", params))
    return rows


def models(run: Run[Settings], device: int) -> tuple[dict[str, Any], dict[str, Row]]:
    """The models of a chip, and how far they are from it."""
    settings = run.settings
    size = settings.sequence_size
    chip = hardware.Chip(device, rows=size, columns=size)
    active = tuple(sorted({1, max(1, size // 8), size // 2, size}))
    design = hardware.Design(
        rows=size, columns=size, programs=settings.programs, drives=settings.programs,
        active=active,
    )  # fmt: skip
    keys = jax.random.split(jax.random.fold_in(run.key, 10), 4)
    measured = hardware.characterize(keys[0], chip, design)
    events = hardware.measure_events(
        keys[1], chip, design, columns=size, active=None, programs=settings.event_programs
    )
    train, test = events.split()
    found: dict[str, Any] = {"white box": hardware.fit_white_box(measured)}
    found["no model"] = hardware.Linear()
    errors: dict[str, Row] = {"white box": {}, "no model": {}}
    for name, position in POSITIONS.items():
        found[name] = hardware.fit_sequence(
            keys[2], train, design, noise=hardware.fit_noise(measured.noise), position=position,
            width=WIDTH, heads=HEADS, epochs=settings.event_epochs, progress=False,
        )  # fmt: skip
        errors[name] = {"mse": float(jnp.mean(found[name].error(test)))}
    for name, model in found.items():
        far = hardware.fidelity(keys[3], model, chip, design, active=(size,), gain=GAIN)
        errors[name] |= {"error": far.error[0], "noise": far.floor[0]}
    return found, errors
