"""What is measured of the chips, and networks trained through models of sequences.

Of the chips: fidelity of models, effects of order, and a column in detail. Through sequences:
ordered, in a wrong order, order-free, and the white box (Klein's thesis, tables 5.2 and 5.3).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.analog.recipe import Settings
from experiments.analog.source import SEQUENCES
from experiments.analog.training import GAIN, Problem, Trainer, small_images
from experiments.harness import Row, Run
from jaxeff import analog_hardware as hardware

POSITIONS = ("time", "permuted", "shuffled", "none")
ACTIVE = (8, 16, 32, 64, 128)
ORDERED_CHIP, ORDER_FREE, CIRCUITS = "synthetic", "synthetic, order-free", "circuits"
MODELS: dict[str, Callable[..., Any]] = {
    "linear": hardware.fit_linear,
    "columnar": hardware.fit_columnar,
    "white box": hardware.fit_white_box,
}
STATIC = dataclasses.replace(hardware.PUBLISHED_PHYSICS, ordered=False)


def make(device: int, ordered: bool = True) -> hardware.Chip:
    """A chip, or its control without leakage and memory."""
    return hardware.Chip(device, physics=hardware.PUBLISHED_PHYSICS if ordered else STATIC)


def measured(run: Run[Settings], chip: hardware.Chip) -> Any:
    """What every model of a chip is fitted to."""
    settings = run.settings
    design = hardware.Design(programs=settings.programs, drives=settings.programs)
    return hardware.characterize(jax.random.fold_in(run.key, 1), chip, design)


def white_box(run: Run[Settings], device: int) -> hardware.WhiteBox:
    """The white box of a chip."""
    return hardware.fit_white_box(measured(run, make(device)))


def fidelities(run: Run[Settings]) -> list[Row]:
    """Errors of the three models on every chip, as in Klein's thesis, figure 5.6.

    Beside each its order-free control, which has the form of the white box, and a chip of circuits,
    which has that of no model.
    """

    def one(task: dict[str, Any]) -> list[Row]:
        device, form = task["device"], task["form"]
        chip: Any = (
            hardware.CircuitChip(device) if form == CIRCUITS else make(device, form == ORDERED_CHIP)
        )
        measurements = measured(run, chip)
        rows = []
        for name, fit in MODELS.items():
            result = hardware.fidelity(
                jax.random.fold_in(run.key, 2), fit(measurements), chip, active=ACTIVE
            )
            for n, error, floor in zip(result.active, result.error, result.floor, strict=True):
                rows.append(
                    {"kind": "fidelity", **task, "model": name, "active": n, "error": error,
                     "noise": floor, "ratio": error / floor}
                )  # fmt: skip
        return rows

    forms = (ORDERED_CHIP, ORDER_FREE, CIRCUITS)
    return run.each(
        [{"task": "fidelity", "device": d, "form": f} for d in run.settings.chips for f in forms],
        one,
    )


def orders(run: Run[Settings]) -> list[Row]:
    """How much order matters, and what models make of it (Klein's thesis, section 5.4)."""
    settings = run.settings

    def one(task: dict[str, Any]) -> list[Row]:
        chip = make(task["device"], task["form"] == ORDERED_CHIP)
        keys = jax.random.split(jax.random.fold_in(run.key, 3), 3)
        effect = hardware.order_effect(keys[0], chip)
        events = hardware.measure_events(
            keys[1], chip, columns=settings.order_columns, programs=settings.event_programs
        )
        train, test = events.split()
        row: Row = {
            "kind": "order", **task, "rms": effect.rms, "control": effect.control,
            "noise": effect.noise,
        }  # fmt: skip
        for position in POSITIONS:
            model = hardware.fit_sequence(
                keys[2], train, position=position, epochs=settings.event_epochs, progress=False
            )
            row[f"mse_{position}"] = float(jnp.mean(model.error(test)))
        destroyed = {f"ratio_{p}": row["mse_time"] / row[f"mse_{p}"] for p in POSITIONS[1:]}
        return [row | destroyed]

    forms, devices = (ORDERED_CHIP, ORDER_FREE), settings.chips[: settings.order_chips]
    return run.each(
        [
            {"task": "order, destroyed", "device": d, "form": f, "columns": settings.order_columns}
            for d in devices
            for f in forms
        ],
        one,
    )


KNOWN = {"ordered": "time", "non-ordered": "none"}
"""What models know of time. Times that are permuted alike still tell the order, to positions that
are learnt; on a crossbar none at all is what is left of it once it is destroyed."""
WIDTH, HEADS = 8, 1
"""Of the transformers: smaller than where they are judged alone, for there is one per column."""


def sequences(run: Run[Settings]) -> list[Row]:
    """A row per model and chip: its errors, and accuracies of the networks trained through it."""
    devices = run.settings.chips[: run.settings.sequence_chips]

    # Both take minutes, and are made where rows of some model aren't kept yet.
    problem = functools.cache(lambda: small_images(run))
    known = functools.cache(lambda device: measurements(run, device))

    def rows(name: str) -> list[Row]:
        fits = [model_of(run, name, known(device)) for device in devices]
        return _networks(run, problem(), devices, name, fits)

    return [
        row
        for name in SEQUENCES
        for row in run.keep(
            {"task": "sequences", "model": name, "times": KNOWN.get(name)},
            functools.partial(rows, name),
        )
    ]


def _networks(
    run: Run[Settings], problem: Problem, devices: tuple[int, ...], name: str, models: Any
) -> list[Row]:
    """Retraining through one kind of model, then with the chip in the loop."""
    renamed = dataclasses.replace(problem, name=f"{problem.name}-{name.replace(' ', '-')}")
    trainer = Trainer(run, renamed, devices, [model for model, _ in models])
    params = jax.tree.map(lambda p: jnp.stack([p] * len(devices)), problem.params)
    retrain = run.settings.sequence_retrain
    short = max(1, round(retrain / 6))
    source = SEQUENCES[name]
    rows: list[Row] = [
        {"kind": "sequence", "data": problem.name, "device": device, "model": name, **errors,
         **{f"source_{k}": v for k, v in source._asdict().items()}}
        for device, (_, errors) in zip(devices, models, strict=True)
    ]  # fmt: skip

    def add(column: str, values: Any) -> None:
        for row, value in zip(rows, values, strict=True):
            row[column] = float(value)
        run.say(f"{renamed.name}, {column}: {values.mean():.1f} %")

    add("plain", trainer.accuracy("loop", params))
    if name == "no model":
        params = trainer.trained("loop", "loop", params, retrain + short)
    else:
        params = trainer.trained("incremental", "incremental", params, retrain)
        add("software", trainer.accuracy("box", params))
        add("on_chip", trainer.accuracy("loop", params))
        params = trainer.trained("incremental + loop", "loop", params, short)
    add("after_loop", trainer.accuracy("loop", params))
    return rows


class Measurements(NamedTuple):
    """What is known of a chip before it is modelled."""

    keys: jax.Array  # of fits, and of how far they are off
    chip: hardware.Chip
    design: hardware.Design
    measured: Any
    train: Any  # events
    test: Any


def measurements(run: Run[Settings], device: int) -> Measurements:
    """Measures a chip, program by program and event by event."""
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
    return Measurements(keys[2:], chip, design, measured, *events.split())


def model_of(run: Run[Settings], name: str, known: Measurements) -> tuple[Any, Row]:
    """A model of a chip, and how far it is from it."""
    errors: Row = {}
    if name in KNOWN:
        model: Any = hardware.fit_sequence(
            known.keys[0], known.train, known.design,
            noise=hardware.fit_noise(known.measured.noise), position=KNOWN[name], width=WIDTH,
            heads=HEADS, epochs=run.settings.event_epochs, progress=False,
        )  # fmt: skip
        errors["mse"] = float(jnp.mean(model.error(known.test)))
    elif name == "no model":
        model = hardware.Linear()
    else:
        model = hardware.fit_white_box(known.measured)
    far = hardware.fidelity(
        known.keys[1], model, known.chip, known.design,
        active=(run.settings.sequence_size,), gain=GAIN,
    )  # fmt: skip
    return model, errors | {"error": far.error[0], "noise": far.floor[0]}
