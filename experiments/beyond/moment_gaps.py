"""Whether `moments` says so where its variances are off: the networks of the zoo, place by place.

    python -m experiments.beyond.moment_gaps --models unet convnext

A network is the zoo's, untrained; noise is that of `residual_streams`: a share of the deviation of
each array, a vector's over its size. Of each result the variance of the default moments is divided
by that of draws. A row is

- right: the median lies within .8 to 1.25, and nothing was said;
- told: it doesn't, and a `MomentsWarning` names a place;
- silent: it doesn't, and nothing was said;
- false alarm: it lies within .9 to 1.1, and a warning was given;
- early: it lies between, and a warning was given;
- refused: an error of the library.

A warning is of a structure, and an untrained network may have it at no harm: attention in a
residual stream loses .85 of a vision transformer's variance after training, and next to nothing
before.
"""

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

import experiments.harness as h
from experiments.beyond.residual_streams import spread
from experiments.beyond.trials import without_folders
from experiments.beyond.zoo import cells
from experiments.beyond.zoo.models import MODELS, OF_LIBRARIES, subject
from jaxeff.moment_propagation import MomentsError, MomentsWarning

RIGHT = 0.8, 1.25
SURELY_RIGHT = 0.9, 1.1
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
    row = {"network": name, "noise": f"{100 * noise:.0f} %"}
    try:
        s = subject(name)
    except ImportError:
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            propagated, sampled, errors = cells.variances(
                s, run.settings.draws, spread(s.params, noise)
            )
        except MomentsError as refusal:
            yield row | {"status": "refused", "words": without_folders(str(refusal))}
            return
    warned = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
    low, ratio, high = np.quantile(propagated / sampled, (0.05, 0.5, 0.95)).tolist()
    yield row | {
        "status": _status(ratio, bool(warned)), "ratio": ratio, "low": low, "high": high,
        "error": float(np.median(errors)), "warned": len(warned),
        "words": without_folders(" ".join(warned)),
    }  # fmt: skip


def _status(ratio: float, warned: bool) -> str:
    if not RIGHT[0] <= ratio <= RIGHT[1]:
        return "told" if warned else "silent"
    if not warned:
        return "right"
    return "false alarm" if SURELY_RIGHT[0] <= ratio <= SURELY_RIGHT[1] else "early"


def counts(report: h.Report) -> list[h.Table]:
    """How many networks have each status, by noise."""
    number = Counter((row["noise"], row["status"]) for row in report.rows)
    statuses = list(dict.fromkeys(status for _, status in number))
    lines = [
        {"noise": noise, **{status: number[noise, status] for status in statuses}}
        for noise in dict.fromkeys(noise for noise, _ in number)
    ]
    return [h.Table.from_rows("networks", lines)]


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
    ),
    (
        h.Plot(
            "ratios",
            h.Dots("{network}", "ratio", h.every, hue="{status}", facet="{noise}", guides=RIGHT,
                   axes={"xscale": "log", "xticks": TICKS, "xticklabels": TICKS,
                         "xlabel": "variance over sampled, median"}),
            columns=2, size=(4.2, 6.0),
        ),
    ),
    (
        counts,
        h.Listing("variances over sampled ones",
                  ("network", "noise", "status", "ratio", "low", "high", "error"), h.every),
        h.Listing("what is said", ("network", "noise", "words"), h.every),
    ),
    differences=("Networks are untrained.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
