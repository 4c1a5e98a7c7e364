"""The figures to reach, and how our order of activation functions compares with the source's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments.activations.network import LEARNED
from experiments.activations.source import MOONS, SINE
from experiments.harness import Report, Row

GOOD, SHARE_GOOD = 0.95, 20
WORST = {"Softmax", "Softmin", "Hardshrink"}
RHAT = 1.05


def judge(report: Report) -> None:
    """Adds the checks whose trials are all there."""
    tables = {
        name: {row["activation"]: row for row in report.rows if row["table"] == name}
        for name in ("sine-nuts", "sine-nuts-prior", "moons-nuts", "moons-svi")
    }
    for name, start in (("sine-nuts", "trained"), ("sine-nuts-prior", "prior")):
        if SINE.keys() <= tables[name].keys():
            _judge_sine(tables[name], start, report)
    if MOONS.keys() <= tables["moons-nuts"].keys():
        _judge_moons(tables["moons-nuts"], tables["moons-svi"], report)
    for name, rows in tables.items():
        if rows and "rhat_max" in next(iter(rows.values())):
            converged = sum(row["converged"] for row in rows.values())
            ours = f"{converged} of {len(rows)}"
            report.check(
                f"{name}: R-hat of predictions below {RHAT}", None, ours, converged == len(rows),
                needs="default",
            )  # fmt: skip


def _judge_sine(rows: Mapping[str, Row], start: str, report: Report) -> None:
    sine = f"sine, {start} starts"
    ours = {name: rows[name]["auroc"] for name in SINE}
    good = sum(value > GOOD for value in ours.values())
    theirs = sum(row.auroc > GOOD for row in SINE.values())
    report.check(f"{sine}: activations with AUROC above {GOOD}", theirs, good, good >= SHARE_GOOD)
    lowest = sorted(ours, key=ours.__getitem__)[: len(WORST)]
    worst = ", ".join(lowest)
    names = ", ".join(sorted(WORST))
    report.check(f"{sine}: the three worst", names, worst, set(lowest) == WORST)


def _judge_moons(nuts: Mapping[str, Row], svi: Mapping[str, Row], report: Report) -> None:
    ours = {name: nuts[name]["auroc"] for name in MOONS}
    best, worst = max(ours, key=ours.__getitem__), min(ours, key=ours.__getitem__)
    report.check("moons, NUTS: best AUROC", "Sine", best, best == "Sine")
    report.check("moons, NUTS: worst AUROC", "Sigmoid", worst, worst == "Sigmoid")
    if MOONS.keys() <= svi.keys():
        wins = sum(ours[name] > svi[name]["auroc"] for name in MOONS)
        theirs = sum(row.auroc_nuts > row.auroc_svi for row in MOONS.values())
        report.check("moons: NUTS above SVI in AUROC", theirs, wins, wins > len(MOONS) / 2)


def compare(rows: Sequence[Row], quantity: str) -> dict[str, Any]:
    """Our ranking by a quantity beside the source's.

    Args:
        rows: Of one table; those without a number of the source (the learned activation) and
            those that are not finite don't count.
        quantity: A key of the rows, such as ``auroc``; the source's number is at
            ``source_<quantity>``.

    Returns:
        ``correlation``, Spearman's (None for fewer than three rows), its ``p_value``, and
        ``ranking``: per activation our and the source's place, 1 the highest number.
    """
    known = [row for row in rows if row["activation"] != LEARNED and np.isfinite(row[quantity])]
    ours = np.array([row[quantity] for row in known])
    theirs = np.array([row[f"source_{quantity}"] for row in known])
    if len(known) < 3:
        return {"quantity": quantity, "correlation": None, "p_value": None, "ranking": []}
    found = spearmanr(ours, theirs)
    ranking = [
        {
            "activation": row["activation"],
            "ours": int((ours > row[quantity]).sum()) + 1,
            "source": int((theirs > row[f"source_{quantity}"]).sum()) + 1,
        }
        for row in sorted(known, key=lambda row: -row[quantity])
    ]
    return {
        "quantity": quantity,
        "correlation": float(found.statistic),
        "p_value": float(found.pvalue),
        "ranking": ranking,
    }
