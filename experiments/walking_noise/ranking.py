"""How well the cheap measures rank slots: Spearman's rank correlation with walking noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments.harness import Report, Row
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


def judge(report: Report) -> None:
    """The claims; the source proposes the measures and reports no number."""
    references = {"spearman": "walking noise", "spearman_evaluation": "walking at evaluation"}
    for row in report.rows:
        for column, reference in references.items():
            if row["measure"] not in (WALKING, EVALUATED):
                rho = row[column]
                report.check(
                    f"{row['case']}: {row['measure']} ranks {row['slots']} slots as {reference} "
                    "(Spearman)",
                    f"> {AGREES} (not published)", rho, rho is not None and rho > AGREES,
                    needs="default",
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
