"""How soon drift is found, and how often where there is none: test martingales beside a window.

    python -m experiments.beyond.drift

A stream is of scores: standard normal ones, whose mean moves by a shift at one time, or by and by.
Held-out scores are of the first kind. `jaxeff.uncertainty.monitor` watches by its two procedures;
beside it stands what is often built: an alarm where the mean of the last scores lies outside the
held-out scores' quantiles for such a mean, at the same rate. All have one number to keep to: the
rate of false alarms. Of "ville" that is the probability that a stream ever has one, of
"shiryaev_roberts" one over the mean number of scores before one. A window promises the same for
every single test, and makes one at every score.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import experiments.harness as h
from jaxeff import uncertainty

PROCEDURES = "ville", "shiryaev_roberts", "window"
KINDS = "none", "abrupt", "gradual"


@dataclass(frozen=True)
class Settings:
    """What is watched."""

    streams: Annotated[int, h.Least(2)] = 1000  # streams of each kind
    held: Annotated[int, h.Least(2)] = 200  # held-out scores of a stream
    before: int = 400  # scores before the drift
    after: int = 600  # scores behind its begin
    gradual: int = 400  # scores that a gradual drift takes
    shifts: tuple[float, ...] = (0.5, 1.0, 2.0)  # of the mean, in deviations
    rate: float = 0.01  # of false alarms, as each procedure has it
    window: int = 50  # scores of the plain window


def tasks(run: h.Run[Settings]) -> list[tuple[str, str, float]]:
    """Every procedure with every drift."""
    shifts = [(kind, s) for kind in KINDS[1:] for s in run.settings.shifts]
    return [(each, *drift) for each in PROCEDURES for drift in [("none", 0.0), *shifts]]


def moved(settings: Settings, kind: str, shift: float) -> jax.Array:
    """Computes the mean of each score of a stream."""
    at = jnp.arange(settings.before + settings.after) - settings.before
    if kind == "gradual":
        return shift * jnp.clip(at / settings.gradual, 0, 1)
    return shift * (at >= 0)


def alarms(
    key: jax.Array, settings: Settings, procedure: str, held: jax.Array, scores: jax.Array
) -> jax.Array:
    """Tells of each score whether there is an alarm."""
    if procedure == "window":
        sums = jnp.cumsum(jnp.concatenate([held[-settings.window :], scores]))
        means = (sums[settings.window :] - sums[: -settings.window]) / settings.window
        deviation = held.std() * (1 / settings.window + 1 / settings.held) ** 0.5
        return jnp.abs(means - held.mean()) > norm.ppf(1 - settings.rate / 2) * deviation
    spec = uncertainty.Monitoring(false_alarms=settings.rate, procedure=procedure)
    # Sets aren't asked for: any will do.
    calibration = uncertainty.ConformalCalibration(jnp.ones(()), uncertainty.AbsoluteResidual())
    step, state = uncertainty.monitor(
        key, lambda params, x: x, {}, held, calibration, lambda scores: scores, spec
    )

    def one(state: Any, score: jax.Array) -> tuple[Any, jax.Array]:
        reading, state = step({}, score[None], jnp.full(1, jnp.nan), state)
        return state, reading.alarm

    return jax.lax.scan(one, state, scores)[1]


@functools.partial(jax.jit, static_argnums=(1, 2))
def watched(key: jax.Array, settings: Settings, procedure: str, mean: jax.Array) -> jax.Array:
    """Tells of each score of all streams whether there is an alarm, `[streams, scores]`."""

    def stream(key: jax.Array) -> jax.Array:
        scores = jax.random.normal(key, (settings.held + len(mean),))
        held, scores = jnp.split(scores, [settings.held])
        return alarms(jax.random.fold_in(key, 1), settings, procedure, held, scores + mean)

    return jax.vmap(stream)(jax.random.split(key, settings.streams))


def rows(run: h.Run[Settings], task: tuple[str, str, float]) -> Iterable[h.Row]:
    """One procedure and drift: all streams in one program."""
    (procedure, kind, shift), settings = task, run.settings
    is_alarm = np.asarray(watched(run.key, settings, procedure, moved(settings, kind, shift)))
    row = {"procedure": procedure, "drift": kind, "shift": shift}
    if kind == "none":
        ever = is_alarm.any(1)
        first = np.where(ever, is_alarm.argmax(1) + 1, is_alarm.shape[1])
        error = first.std() / settings.streams**0.5
        yield row | {
            "ever": ever.mean(),
            "most": settings.rate + 3 * (settings.rate / settings.streams) ** 0.5,
            "between": first.mean(), "least": 1 / settings.rate - 3 * error,
        }  # fmt: skip
        return
    early, later = is_alarm[:, : settings.before].any(1), is_alarm[:, settings.before :]
    # An alarm of "ville" stays: drift can't be found behind a false one.
    free = ~early if procedure == "ville" else np.ones_like(early)
    fine: np.ndarray = later[free & later.any(1)]
    delays = fine.argmax(1) + 1
    yield row | {
        "false before": early.mean(), "found": len(fine) / max(int(free.sum()), 1),
        "delay": float(np.median(delays)) if len(fine) else None,
        "slow delay": float(np.quantile(delays, 0.9)) if len(fine) else None,
    }  # fmt: skip


STUDY = h.Study(
    "drift", __doc__,
    {
        "fast": Settings(streams=20, held=20, before=40, after=60, gradual=40, shifts=(2.0,)),
        "default": Settings(),
        "full": Settings(streams=10_000, before=4000),
    },
    (h.Part(tasks, rows),),
    (
        h.Claim("ville: share of streams without drift that ever have an alarm", "ever",
                h.at_most("most"), None, h.where(procedure="ville", drift="none"), "default"),
        h.Claim("shiryaev_roberts: scores before a false alarm, in the mean", "between",
                h.at_least("least"), None, h.where(procedure="shiryaev_roberts", drift="none"),
                "default"),
        h.Claim("{procedure}, {drift} by {shift}: share of drifts that are found", "found",
                h.at_least(0.95), None, h.having("delay"), "default",
                when=lambda row: row["procedure"] == "ville" and row["shift"] >= 1),
    ),
    (
        h.Plot("delays", h.Curves("shift", {"delay": "median"}, h.having("delay"),
                                  hue="{procedure}", facet="{drift}",
                                  axes={"yscale": "log", "xlabel": "shift, deviations",
                                        "ylabel": "scores before the alarm"})),
    ),
    (
        h.Listing("streams without drift", ("procedure", "ever", "between"), h.having("ever")),
        h.Listing("drift: false alarms before it, share found, delay (median, 90 %)",
                  ("procedure", "drift", "shift", "false before", "found", "delay", "slow delay"),
                  h.having("found")),
    ),
    differences=(
        "Scores are normal and independent; those of a network in a room are neither.",
        "Streams end: the mean number of scores before a false alarm is at least what is shown.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
