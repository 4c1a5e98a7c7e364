"""Cheap sensitivity measures against walking noise: do they rank a network's layers alike?

    python -m experiments.beyond.sensitivity

Walking noise trains a network per slot, level and seed. Klein's thesis, section 11.3, calls for
something cheaper and proposes two, which it doesn't try. Measured here, for networks trained
without noise:

1. divergence: the noise level at which a slot alone moves the predictions by one bit;
2. a budget of noise spread over the slots by gradient, of the trained network;
3. the same along with the weights, in one training from scratch;
4. for comparison, noise that walks at evaluation only;

and Spearman's correlation of each with the midpoints of walking noise, and with (4), which sees the
same trained network: the difference is what networks learn from noise. Walking noise is read from
the JSON of `experiments.walking_noise`, or trained here: the same sweeps, which that study finds
finished in the same results folder, and the other way round. Killed, a run goes on where it was.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from scipy.stats import rankdata, spearmanr

from experiments import harness as h
from experiments.beyond.sensitivity import measures
from experiments.beyond.sensitivity.measures import WALKING, Effort
from experiments.harness import Found, Refused, Report, Row, Run, Study
from experiments.walking_noise import recipe, training
from experiments.walking_noise.recipe import Sweep

AGREES = 0.5
EVALUATED = "walking at evaluation"
MEASURES = ("divergence", EVALUATED, "budget, trained net", "budget, in training")


def by_site(rows: Sequence[Row], case: str, measure: str) -> dict[str, float]:
    """The level of every slot: of all seeds if there is such a row, else their median."""
    chosen = [r for r in rows if (r["case"], r["measure"]) == (case, measure)]
    joint = {r["site"]: r["level"] for r in chosen if r["seed"] is None}
    if joint:
        return joint
    sites = dict.fromkeys(r["site"] for r in chosen)
    return {s: float(np.median([r["level"] for r in chosen if r["site"] == s])) for s in sites}


def correlation(first: dict[str, float], second: dict[str, float]) -> tuple[float, float, int]:
    """Spearman's correlation, its p-value, and over how many slots; NaN for fewer than three."""
    sites = [s for s in first if s in second and not np.isnan([first[s], second[s]]).any()]
    a, b = ([values[s] for s in sites] for values in (first, second))
    if len(sites) < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return np.nan, np.nan, len(sites)
    correlation: Any = spearmanr(a, b)
    return float(correlation.statistic), float(correlation.pvalue), len(sites)


def between_seeds(rows: Sequence[Row], case: str, measure: str) -> float:
    """Mean correlation of a measure with itself over pairs of seeds: how far noise of its own goes.

    NaN for a single seed.
    """
    chosen = [r for r in rows if (r["case"], r["measure"]) == (case, measure)]
    seeds = sorted({r["seed"] for r in chosen if r["seed"] is not None})
    levels = [{r["site"]: r["level"] for r in chosen if r["seed"] == s} for s in seeds]
    pairs = [correlation(a, b)[0] for i, a in enumerate(levels) for b in levels[:i]]
    return float(np.mean(pairs)) if pairs else np.nan


def compare(rows: Sequence[Row], size: str) -> list[Row]:
    """A row per network and measure: its ranking against walking noise's, and what it took.

    `spearman` is with walking noise, for which networks train; `spearman_evaluation` with noise
    that walks through the same trained networks that the cheap measures see.
    """
    table = []
    for case in dict.fromkeys(r["case"] for r in rows):
        walking, evaluated = (by_site(rows, case, m) for m in (WALKING, EVALUATED))
        for measure in (*MEASURES, WALKING):
            levels = by_site(rows, case, measure)
            rho, p, n = correlation(levels, walking)
            chosen = [r for r in rows if (r["case"], r["measure"]) == (case, measure)]
            seconds = {r["seed"]: r["seconds"] for r in chosen}
            own = measure == WALKING
            table.append(
                {
                    "case": case, "measure": measure, "spearman": None if own else rho,
                    "p_value": None if own else p,
                    "spearman_evaluation": correlation(levels, evaluated)[0]
                    if measure != EVALUATED else None,
                    "slots": n, "between_seeds": between_seeds(rows, case, measure),
                    "most_sensitive": min(levels, key=lambda s: _sortable(levels[s])),
                    "updates": chosen[0]["updates"],
                    "seconds": float(np.median([*seconds.values()])), "size": size,
                }
            )  # fmt: skip
    return [plain(row) for row in table]


def references(report: Report) -> Iterator[Row]:
    """Selects the correlation of every cheap measure with either walking noise."""
    for row in report.rows:
        if row["measure"] not in (WALKING, EVALUATED):
            yield row | {"reference": "walking noise", "rho": row["spearman"]}
            yield row | {"reference": EVALUATED, "rho": row["spearman_evaluation"]}


CLAIMS = (
    h.Claim(  # the thesis proposes the measures and reports no number
        "{case}: {measure} ranks {slots} slots as {reference} (Spearman)",
        "rho", h.above(AGREES), f"> {AGREES} (not published)", references, "default",
    ),
)  # fmt: skip


def plain(row: Row) -> Row:
    """A row without NaN and infinity, which JSON lacks: None, and `beyond` says which it was."""
    beyond = {"beyond": True} if np.isinf(row.get("level", 0.0)) else {}
    return {**{k: _finite(v) for k, v in row.items()}, **beyond}


def restored(row: Row) -> Row:
    """A row as it was before `plain`."""
    if row.get("level", 0.0) is None:
        return row | {"level": np.inf if row.get("beyond") else np.nan}
    return row


def _sortable(level: float) -> float:
    return np.inf if np.isnan(level) else level


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def slots(report: Report) -> Iterator[Row]:
    """Selects every slot's level and rank by every measure; none beyond the levels."""
    rows = [restored(row) for row in report.extra["slots"]]
    for case in dict.fromkeys(row["case"] for row in rows):
        walking = by_site(rows, case, WALKING)
        for measure in (WALKING, *MEASURES):
            sensitivities = by_site(rows, case, measure)
            sites = [s for s in walking if not np.isnan([walking[s], sensitivities[s]]).any()]
            ranks = [rankdata([of[s] for s in sites]).tolist() for of in (walking, sensitivities)]
            known = {"case": case, "rho": correlation(sensitivities, walking)[0]}
            yield {**known, "ranked": measure, "by walking noise": ranks[0], "rank": ranks[1]}
            for site, level in sensitivities.items():
                drawn = level if 0 < level < np.inf else None
                yield {**known, "measure": measure, "site": site, "level": drawn}


def ranked(report: Report) -> list[Row]:
    """Selects the cheap measures' ranks."""
    return [row for row in slots(report) if row.get("ranked") in MEASURES]


PLOTS = (
    h.Plot(
        "ranking",
        h.Dots(
            "site", "level", lambda report: (row for row in slots(report) if "site" in row),
            "{measure}", "{case}: tolerated noise by slot",
            axes={"xscale": "log", "xlabel": "noise level σ"},
        ),
        h.Curves(
            "by walking noise", "rank", ranked, "{ranked}: ρ = {rho:.2f}", "{case}", style="o",
            axes={
                "xlabel": "rank by walking noise (1: most sensitive)",
                "ylabel": "rank by the cheap measure",
            },
        ),
        columns=2, size=(6.5, 3.6),
    ),
)  # fmt: skip


COLUMNS = (
    "case", "measure", "spearman", "spearman_evaluation", "between_seeds", "most_sensitive",
    "updates", "seconds",
)  # fmt: skip
DIFFERENCES = (
    "The thesis proposes the measures without trying them: there is no number to compare with.",
    "Except at full size, networks are trained for fewer epochs, levels and seeds than the "
    "thesis' walking noise; every row names its size.",
    "Additive noise only: under multiplicative noise layers learn to binarize, which no measure of "
    "a network trained without noise can foresee.",
)
EFFORTS: dict[str, Any] = {
    "fast": {"networks": 2, "inputs": 256, "draws": 4, "budget_epochs": 20},
    "default": {"networks": 3, "inputs": 512, "draws": 4, "budget_epochs": 2},
    "full": {"networks": 5, "inputs": 1024, "draws": 16, "budget_epochs": 10},
}
SIZES = {size: Effort(**vars(recipe.SIZES[size]), **own) for size, own in EFFORTS.items()}


def run(run: Run[Effort]) -> Found:
    """Compares cheap sensitivity measures with walking noise."""
    problems = [s for s in run.settings.chosen()[0] if (s.kind, s.where) == ("add", "layers")]
    if not problems:
        raise Refused(f"noise walks in no network with {' or '.join(run.settings.only)}")
    rows = [
        {"case": str(problem.case), **row, "size": run.size}
        for problem in problems
        for row in measure(run, problem)
    ]
    slots = [plain(row) for row in rows]
    return Found(compare(rows, run.size), {"slots": slots})


def measure(run: Run[Effort], problem: Sweep) -> list[Row]:
    """All measures of a network, slot by slot."""
    case, settings, key = problem.case, run.settings, run.fast_key
    bench = training.bench(key, case, settings, run.work)
    subject, net = measures.Subject(problem, bench, settings), bench.network
    rows = measures.read(settings.walking, problem, net) if settings.walking else []
    if not rows:
        # Found finished by the study of walking noise in the same results, and the other way round.
        shared = run.shared(run.name.replace("sensitivity", "walking_noise")) / "work"
        rows = run.keep(["walking", str(case)], lambda: measures.walk(key, subject, shared))
    run.say(f"{case}: walking noise in {len(net.slots)} slots")
    clean = training.train_clean(bench, epochs=problem.epochs, seeds=settings.networks)
    for i in range(settings.networks):
        model = measures.take((clean.params, clean.state or {}), i)
        noise_key = jax.random.fold_in(key, i)
        cheap = lambda i=i: measures.measure_all(noise_key, subject, model, i)  # noqa: B023, E731
        rows = rows + run.keep(["measures", str(case), i], cheap)
        run.say(f"{case}: cheap measures of network {i + 1} of {settings.networks}")
    return rows


STUDY = Study(
    "sensitivity", __doc__, SIZES,
    (run,), CLAIMS, PLOTS,
    (h.Listing("ranking of slots against walking noise", COLUMNS),), DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
