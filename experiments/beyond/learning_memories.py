"""Memories that learn by pulses, and meshes of interferometers whose phases are off.

    python -m experiments.beyond.learning_memories

A perceptron of digits of 14 by 14 pixels is trained by descent, one image an update as arrays are:
in floats, on cells whose pulses are of one size (`RPU`), on the same with pulses that vanish at
their bounds, which is asymmetric everywhere but at zero, and on resistive cells as they were
measured (`RERAM`), whose single pulses scatter by four times their size; on the last two by
Tiki-Taka as well. Gokmen and Haensch (2020) report that Tiki-Taka on asymmetric cells is as
accurate as descent on symmetric ones, where descent on asymmetric ones isn't, of networks of the
same kind.

One that was trained in floats is then put on meshes of interferometers. Fang et al. (2019) and
Banerjee, Nikdast and Chakrabarty (2020) report what errors of phases and beam splitters of a few
hundredths of a radian do to such networks: up to 70 % of accuracy are lost.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments import harness as h
from experiments.beyond import small_digits
from experiments.harness import Count, Report, Row, Run
from jaxeff.analog_hardware import RERAM, RPU, pulsed, tiki_taka
from jaxeff.noise import noisy
from jaxeff.photonics import InterferometerMesh
from jaxeff.training import cross_entropy, fit

FLOATS, SYMMETRIC = "floats", "descent, symmetric cells"
ASYMMETRIC, TIKI_TAKA = "descent, asymmetric cells", "Tiki-Taka, asymmetric cells"
MEASURED, MEASURED_TIKI_TAKA = "descent, resistive memory", "Tiki-Taka, resistive memory"
SOFT = replace(RPU, slope_up=1.0, slope_down=1.0)
PULSES, MESHES = "pulses", "meshes"
LEVELS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class Settings:
    """How networks are trained."""

    rate: float = 0.02  # of descent
    transfer: float = 0.1  # of the fast array's weights, into the slow one
    batch_size: Count = 1  # images per update
    epochs: Count = 20  # of a training
    seeds: Count = 3  # networks, each on cells or devices of its own
    levels: tuple[float, ...] = LEVELS  # deviations of phases and of splitters' angles, radians


def optimizers(run: Run[Settings], key: jax.Array) -> dict[str, optax.GradientTransformation]:
    """Makes what networks are trained by."""
    rate = run.settings.rate
    return {
        FLOATS: optax.sgd(rate),
        SYMMETRIC: pulsed(key, RPU, rate),
        ASYMMETRIC: pulsed(key, SOFT, rate),
        TIKI_TAKA: tiki_taka(key, SOFT, rate, run.settings.transfer),
        MEASURED: pulsed(key, RERAM, rate),
        MEASURED_TIKI_TAKA: tiki_taka(key, RERAM, rate, run.settings.transfer),
    }


def trained(run: Run[Settings], seed: int, optimizer: Any) -> tuple[Any, Any]:
    """Trains a perceptron, and returns it with its parameters."""
    images, key = small_digits.images(), jax.random.fold_in(run.key, seed)
    f, start = small_digits.network(key)
    learnt = fit(
        key, cross_entropy(f), start, (images.train, images.train_labels), optimizer=optimizer,
        epochs=run.settings.epochs, batch_size=run.settings.batch_size, progress=False,
    )  # fmt: skip
    return f, learnt.params


def accuracy(logits: jax.Array) -> float:
    """Computes the share of test images that are told right."""
    return float(jnp.mean(jnp.argmax(logits, -1) == small_digits.images().test_labels))


def by_pulses(run: Run[Settings], task: tuple[str, int]) -> Iterator[Row]:
    """One training."""
    name, seed = task
    optimizer = optimizers(run, jax.random.fold_in(run.key, 1000 + seed))[name]
    f, params = trained(run, seed, optimizer)
    yield {
        "part": PULSES,
        "training": name,
        "seed": seed,
        "accuracy": accuracy(f(params, small_digits.images().test)),
    }


def on_meshes(run: Run[Settings], seed: int) -> Iterator[Row]:
    """One network on a device of its own, at all levels."""
    f, params = trained(run, seed, optax.sgd(run.settings.rate))
    key, images = run.key, small_digits.images()

    @jax.jit
    def logits(level: jax.Array) -> jax.Array:
        mesh = InterferometerMesh(phase=level, splitter=level, device=seed)
        return noisy(f, {"*": mesh})(key, params, images.test)

    for level in run.settings.levels:
        told = accuracy(logits(jnp.float32(level)))
        yield {"part": MESHES, "level": level, "seed": seed, "accuracy": told}


def of_part(part: str, key: str) -> Any:
    """Selects means over seeds."""
    return h.means(h.where(part=part), (key,), ("accuracy",), ("accuracy",))


def differences(report: Report) -> Iterator[Row]:
    """Selects what each way of training loses, and what errors cost."""
    by_name = {row["training"]: row["accuracy"] for row in of_part(PULSES, "training")(report)}
    by_level = {row["level"]: row["accuracy"] for row in of_part(MESHES, "level")(report)}
    if len(by_name) == 6 and by_level:
        yield {
            "symmetric": by_name[FLOATS] - by_name[SYMMETRIC],
            "asymmetric": by_name[SYMMETRIC] - by_name[ASYMMETRIC],
            "tiki": by_name[SYMMETRIC] - by_name[TIKI_TAKA],
            "measured": by_name[MEASURED_TIKI_TAKA] - by_name[MEASURED],
            "large": by_level[min(by_level)] - by_level[max(by_level)],
        }  # fmt: skip


claim = functools.partial(h.Claim, of=differences)
STUDY = h.Study(
    "learning_memories", __doc__,
    {
        "fast": Settings(seeds=1, epochs=3, levels=(0.0, 0.01, 0.1)),
        "default": Settings(),
        "full": Settings(seeds=10, epochs=40),
    },
    (
        h.Part(
            lambda run: [(name, seed) for name in optimizers(run, run.key)
                         for seed in range(run.settings.seeds)],
            by_pulses,
        ),
        h.Part(lambda run: list(range(run.settings.seeds)), on_meshes),
    ),
    (
        claim("symmetric cells: accuracy lost against floats", "symmetric", h.at_most(0.02),
              source="close", needs="default"),
        claim("asymmetric cells: accuracy that descent loses against symmetric ones", "asymmetric",
              h.above(0.02), source="much", needs="default"),
        claim("asymmetric cells: accuracy that Tiki-Taka loses against descent on symmetric ones",
              "tiki", h.at_most(0.02), source="none", needs="default"),
        claim("resistive memory: accuracy that Tiki-Taka gains over descent", "measured",
              h.above(0.02), source="no number", needs="default"),
        claim("meshes: accuracy lost at errors of .1", "large", h.at_least(0.5), source="up to .70",
              needs="default"),
    ),
    (
        h.Plot(
            "learning",
            h.Curves("level", "accuracy", of_part(MESHES, "level"), error=True, style="o-",
                     axes={"xlabel": "errors of phases and splitters [rad]",
                           "ylabel": "accuracy on meshes"}),
        ),
    ),
    (
        h.Listing("trainings by pulses", ("training", "accuracy"), of_part(PULSES, "training")),
        h.Listing("perceptrons on meshes", ("level", "accuracy"), of_part(MESHES, "level")),
    ),
    differences=(
        "a perceptron of 32 hidden units and digits of 14 by 14 pixels; the papers' have 256 and "
        "128, or are complex-valued",
        "gradients are rounded to pulses as a whole, not by the coincidence of coded trains",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
