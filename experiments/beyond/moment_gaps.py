"""Whether `moments` says so where its variances are off: the networks of the zoo, place by place.

    python -m experiments.beyond.moment_gaps --models unet convnext

A network is the zoo's, untrained; noise is that of `residual_streams`: a share of the deviation of
each array, a vector's over its size. Of each result the variance of the default moments is divided
by that of draws. A user is misled where the median of these ratios lies outside .8 to 1.25, or nine
in ten of them aren't within .5 to 2. A row is

- right: nobody is misled, and nothing was said;
- told: a user would be misled, and a `MomentsWarning` names a place;
- silent: a user is misled, and nothing was said;
- false alarm: nobody would be misled, and a warning was given;
- refused: an error of the library.

How many there are depends on the bounds, so they are counted for two others too: the median alone,
and nine in ten within 2/3 to 3/2, which is what variances of thirty draws keep.

`moments` is called as a user calls it, outside of `jit`, where it compares what it would warn of
with 100 draws. `moments_check` says more. It is asked wherever a warning was given, and is right if
it says of the variances what it would say of ratios to these draws.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import jax
import numpy as np

import experiments.harness as h
from experiments.beyond.residual_streams import spread
from experiments.beyond.trials import without_folders
from experiments.beyond.zoo import cells
from experiments.beyond.zoo.models import MODELS, OF_LIBRARIES, Subject, subject
from jaxeff import Gaussian, moments_check
from jaxeff.moment_propagation import MomentsError, MomentsWarning

MEDIAN = 0.8, 1.25
SINGLE = 0.5, 2.0
"""What nine in ten variances have to lie within, over sampled ones."""
OTHERS = {
    "median alone": (0.0, math.inf),
    "within .5 to 2": SINGLE,
    "within .67 to 1.5": (2 / 3, 1.5),
}
STATUSES = "right", "told", "false alarm", "silent", "refused"
ALARMS = 0.25
"""Share of networks whose variances are right that may be warned of; ours."""
TICKS = 0.4, 0.6, 0.8, 1, 1.25, 1.6


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        models: Names of models, those of libraries too; all tiny ones of the zoo's own if empty.
        noises: Deviations of weights over that of their array.
        draws: Draws for a variance, which is known to about the root of 2 over them.
    """

    models: Annotated[tuple[str, ...], h.SELECTS] = ()
    noises: Annotated[tuple[float, ...], h.SELECTS] = (0.03, 0.1)
    draws: Annotated[int, h.Least(2)] = 2048


def tasks(run: h.Run[Settings]) -> list[tuple[str, float]]:
    """Every model at every noise."""
    models = h.choose(run.settings.models or MODELS, (*MODELS, *OF_LIBRARIES), "model")
    return [(model, noise) for model in models for noise in run.settings.noises]


def rows(run: h.Run[Settings], task: tuple[str, float]) -> Iterable[h.Row]:
    """One network at one noise."""
    name, noise = task
    row: h.Row = {"network": name, "noise": f"{100 * noise:.0f} %"}
    try:
        s = subject(name)
    except ImportError:
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            propagated, sampled, errors = cells.variances(
                s, run.settings.draws, spread(s.params, noise), jit=False
            )
        except MomentsError as refusal:
            yield row | {"status": "refused", "words": without_folders(str(refusal))}
            return
    warned = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
    low, ratio, high = np.quantile(propagated / sampled, (0.05, 0.5, 0.95)).tolist()
    row |= {"ratio": ratio, "low": low, "high": high, "warned": len(warned)}
    yield row | {
        "status": _status(row, SINGLE), "error": float(np.median(errors)),
        "words": without_folders(" ".join(warned)), **(_checked(s, row, noise) if warned else {}),
    }  # fmt: skip


def _status(row: h.Row, single: tuple[float, float]) -> str:
    """What a warning, or none, was worth, if nine in ten variances have to lie within bounds."""
    if row.get("status") == "refused":
        return "refused"
    within = MEDIAN[0] <= row["ratio"] <= MEDIAN[1]
    within = within and single[0] <= row["low"] and row["high"] <= single[1]
    if row["warned"]:
        return "false alarm" if within else "told"
    return "right" if within else "silent"


def _checked(s: Subject, row: h.Row, noise: float) -> h.Row:
    """What `moments_check` says, and whether it would say so of the ratios to the study's draws."""
    posterior = jax.tree.map(Gaussian, s.params, spread(s.params, noise))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check = moments_check(jax.random.key(1), lambda w, x: s.f(w, *x), posterior, s.args)
    if check.ratio is None:
        return {"verdict": "wrong", "advice": check.advice}
    true = check.ratio._replace(median=row["ratio"], low=row["low"], high=row["high"])
    return {
        "verdict": "right" if replace(check, ratio=true).agrees == check.agrees else "wrong",
        "checked": check.ratio.median, "checked low": check.ratio.low,
        "checked high": check.ratio.high, "reference": check.reference, "advice": check.advice,
    }  # fmt: skip


def alarms(report: h.Report) -> Iterable[h.Row]:
    """Selects a row per noise: how many networks that are right are warned of all the same."""
    for (noise,), rows in h.grouped(report.rows, "noise").items():
        fine = [row for row in rows if row["status"] in ("right", "false alarm")]
        if fine:
            false = sum(row["status"] == "false alarm" for row in fine)
            yield {"noise": noise, "fine": len(fine), "share": false / len(fine)}


def counts(report: h.Report) -> list[h.Table]:
    """How many networks have each status, by noise and by the bounds of single variances."""
    lines = []
    for noise in dict.fromkeys(row["noise"] for row in report.rows):
        of = [row for row in report.rows if row["noise"] == noise]
        for bounds, single in OTHERS.items():
            number = Counter(_status(row, single) for row in of)
            statuses = {one: number[one] for one in STATUSES}
            lines.append({"noise": noise, "nine in ten": bounds, **statuses})
    verdicts = Counter((row["noise"], row["verdict"]) for row in report.rows if "verdict" in row)
    judged = [{"noise": n, "verdict": v, "networks": k} for (n, v), k in verdicts.items()]
    tables = [h.Table.from_rows("networks", lines)]
    return [*tables, h.Table.from_rows("what moments_check says", judged)] if judged else tables


STUDY = h.Study(
    "moment_gaps", __doc__,
    {
        "fast": Settings(models=("mobilenet", "graph"), noises=(0.03,), draws=64),
        "default": Settings(),
        "full": Settings(draws=20_000),
    },
    (h.Part(tasks, rows),),
    (
        h.Claim(
            "{network}, {noise}: no variance is off in silence", "status",
            lambda row, status: status != "silent", None, h.every, "default",
        ),
        # Always warning would pass the one before.
        h.Claim(
            f"{{noise}}: share of false alarms, of {{fine}} networks whose variances are right: at "
            f"most {ALARMS:.0%}", "share", h.at_most(ALARMS), None, alarms, "default",
        ),
    ),
    (
        h.Plot(
            "ratios",
            h.Dots("{network}", "ratio", h.every, hue="{status}", facet="{noise}", guides=MEDIAN,
                   axes={"xscale": "log", "xticks": TICKS, "xticklabels": TICKS,
                         "xlabel": "variance over sampled, median"}),
            columns=2, size=(4.2, 6.0),
        ),
    ),
    (
        counts,
        h.Listing("variances over sampled ones",
                  ("network", "noise", "status", "ratio", "low", "high", "error"), h.every),
        h.Listing("what moments_check says of those with a warning",
                  ("network", "noise", "verdict", "ratio", "checked", "checked low", "checked high",
                   "reference", "advice"), h.having("verdict")),
        h.Listing("what is said", ("network", "noise", "words"), h.every),
    ),
    differences=("Networks are untrained.",),
    version=2,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
