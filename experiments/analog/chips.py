"""What is measured of the chips: fidelity of models, effects of order, and a column in detail."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.analog.recipe import Settings
from experiments.analog.source import ORDERED, UNORDERED
from experiments.harness import Row, Run
from jaxeff import analog_hardware as hardware

POSITIONS = ("time", "permuted", "shuffled", "none")
ACTIVE = (8, 16, 32, 64, 128)
MODELS: dict[str, Callable[..., Any]] = {
    "linear": hardware.fit_linear,
    "columnar": hardware.fit_columnar,
    "white box": hardware.fit_white_box,
}
STATIC = dataclasses.replace(hardware.PUBLISHED_PHYSICS, ordered=False)
BENT = dataclasses.replace(STATIC, curve_mismatch=1.0)
"""With a curve of each synapse's own, which spreads as much as it bends: the white box, whose table
has the published chip's factors, can't hold it."""


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
    """Errors of the three models on every chip, and on its order-free controls.

    As in Klein's thesis, figure 5.6. One control has the form of the white box, the other hasn't.
    """

    def one(task: dict[str, Any]) -> list[Row]:
        chip, kind = make(task["device"], task["ordered"]), "fidelity"
        if task.get("bent"):
            chip, kind = hardware.Chip(task["device"], physics=BENT), "fidelity, own curves"
        found = measured(run, chip)
        rows = []
        for name, fit in MODELS.items():
            key = jax.random.fold_in(run.key, 2)
            result = hardware.fidelity(key, fit(found), chip, active=ACTIVE)
            for n, error, floor in zip(result.active, result.error, result.floor, strict=True):
                rows.append(
                    {"kind": kind, "chip": _name(chip, task["ordered"]), **task,
                     "model": name, "active": n, "error": error, "noise": floor,
                     "ratio": error / floor}
                )  # fmt: skip
        return rows

    tasks = [
        {"task": "fidelity", "device": d, "ordered": o}
        for d in run.settings.chips
        for o in (True, False)
    ]
    tasks += [
        {"task": "fidelity", "device": d, "ordered": False, "bent": True}
        for d in run.settings.chips
    ]
    return run.each(tasks, one)


def orders(run: Run[Settings]) -> list[Row]:
    """How much order matters, and what models make of it (Klein's thesis, section 5.4)."""
    settings = run.settings

    def one(task: dict[str, Any]) -> list[Row]:
        chip = make(task["device"], task["ordered"])
        keys = jax.random.split(jax.random.fold_in(run.key, 3), 3)
        effect = hardware.order_effect(keys[0], chip)
        row = {
            "kind": "order", "chip": _name(chip, task["ordered"]), **task, "rms": effect.rms,
            "control": effect.control, "noise": effect.noise,
        }  # fmt: skip
        if task["device"] in settings.chips[: settings.order_chips]:
            events = hardware.measure_events(
                keys[1], chip, columns=2, programs=settings.event_programs
            )
            train, test = events.split()
            for position in POSITIONS:
                model = hardware.fit_sequence(
                    keys[2], train, position=position, epochs=settings.event_epochs, progress=False
                )
                row[f"mse_{position}"] = float(jnp.mean(model.error(test)))
            row["mse_ratio"] = row["mse_time"] / row["mse_permuted"]
            row["mse_over_shuffled"] = row["mse_time"] / row["mse_shuffled"]
            row["source_mse_ratio"] = ORDERED / UNORDERED if task["ordered"] else None
        return [row]

    tasks = [
        {"task": "order", "device": d, "ordered": o} for d in settings.chips for o in (True, False)
    ]
    return run.each(tasks, one)


def column(run: Run[Settings], device: int, at: int = 5) -> dict[str, np.ndarray]:
    """One column's counts against the ideal sum, the table's, and the spline of that.

    As in Klein's thesis, figure 5.5.
    """
    chip = make(device, ordered=False)
    found = measured(run, chip)
    box = hardware.fit_white_box(found)
    drives = found.drives
    inputs = jnp.asarray(drives.inputs[:6], jnp.float32)
    weights = jnp.asarray(drives.weights[:6], jnp.float32)
    ideal = hardware.PUBLISHED_PHYSICS.gain * jnp.einsum("dpr,drc->dpc", inputs, weights)
    sums = jax.vmap(box.sums)(inputs, weights)
    means = jax.vmap(lambda a, w: box.counts(a, w, 1.0))(inputs, weights)
    parts = {"ideal": ideal, "table": sums, "spline": means, "counts": drives.counts[:6]}
    noise = found.noise
    return {
        **{f"column/{name}": np.asarray(x)[..., at].ravel() for name, x in parts.items()},
        "noise/active": noise.active,
        "noise/deviation": np.sqrt(noise.variance),
    }


def _name(chip: hardware.Chip, ordered: bool) -> str:
    return f"synthetic {int(chip.device)}" + ("" if ordered else ", order-free")
