"""How well the cheap measures rank slots: Spearman's rank correlation with walking noise."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata, spearmanr

from experiments.harness import Claim, Curves, Dots, Plot, Report, Row, above
from experiments.walking_noise.reference import WALKING

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
    found: Any = spearmanr(a, b)
    return float(found.statistic), float(found.pvalue), len(sites)


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
    Claim(  # the source proposes the measures and reports no number
        "{case}: {measure} ranks {slots} slots as {reference} (Spearman)",
        "rho", above(AGREES), f"> {AGREES} (not published)", references, "default",
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
            found = by_site(rows, case, measure)
            sites = [s for s in walking if not np.isnan([walking[s], found[s]]).any()]
            ranks = [rankdata([of[s] for s in sites]).tolist() for of in (walking, found)]
            known = {"case": case, "rho": correlation(found, walking)[0]}
            yield {**known, "ranked": measure, "by walking noise": ranks[0], "rank": ranks[1]}
            for site, level in found.items():
                drawn = level if 0 < level < np.inf else None
                yield {**known, "measure": measure, "site": site, "level": drawn}


def ranked(report: Report) -> list[Row]:
    """Selects the cheap measures' ranks."""
    return [row for row in slots(report) if row.get("ranked") in MEASURES]


PLOTS = (
    Plot(
        "ranking",
        Dots(
            "site", "level", lambda report: (row for row in slots(report) if "site" in row),
            "{measure}", "{case}: tolerated noise by slot",
            axes={"xscale": "log", "xlabel": "noise level σ"},
        ),
        Curves(
            "by walking noise", "rank", ranked, "{ranked}: ρ = {rho:.2f}", "{case}", style="o",
            axes={
                "xlabel": "rank by walking noise (1: most sensitive)",
                "ylabel": "rank by the cheap measure",
            },
        ),
        columns=2, size=(6.5, 3.6),
    ),
)  # fmt: skip
