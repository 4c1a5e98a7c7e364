"""The source's claims, from the rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from experiments import harness
from experiments.analog.source import (
    ORDERED,
    SOFTWARE_ROWS,
    STRATEGIES,
    UNORDERED,
    WHITE_BOX_STEP,
)
from experiments.harness import Report, Row


def of(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(k) == v for k, v in wanted.items())]


def mean(rows: Sequence[Row], column: str) -> float | None:
    """Over chips; None without rows."""
    return harness.mean(row.get(column) for row in rows)


def strategies(rows: Sequence[Row], data: str) -> list[Row]:
    """A row per strategy, its accuracies over chips."""
    found = []
    for name, (software, on_chip) in STRATEGIES.items():
        own = of(rows, kind="training", data=data, strategy=name)
        if own:
            chips = [row["on_chip"] for row in own]
            found.append(
                {"strategy": name, "chips": f"{len(own)} synthetic", "epochs": own[0]["epochs"],
                 "seconds": mean(own, "seconds"),
                 "software": mean(own, "software"), "source_software": software,
                 "on_chip": float(np.mean(chips)), "source_on_chip": on_chip,
                 "worst": min(chips), "best": max(chips)}
            )  # fmt: skip
    return found


def judge(report: Report) -> None:
    """Every claim of the issue that a run can decide."""
    rows, check = report.rows, report.check
    fidelity = of(rows, kind="fidelity")
    for n in (8, 32, 128):
        own = of(fidelity, ordered=False, model="white box", active=n)
        worst = max(row["ratio"] for row in own)
        claim = f"white box over the noise floor, order-free chips, {n} rows (largest of chips)"
        check(claim, None, worst, worst <= 1.3, needs="default")
    errors = {
        (row["device"], row["active"], row["model"]): row["error"]
        for row in of(fidelity, ordered=True)
    }
    devices = sorted({d for d, _, _ in errors})
    for n in (32, 128):
        right = sum(
            errors[d, n, "linear"] > errors[d, n, "columnar"] > errors[d, n, "white box"]
            for d in devices
        )
        claim = f"chips where linear > columnar > white box, {n} rows"
        check(claim, "all", f"{right} of {len(devices)}", right == len(devices), needs="default")
    order = of(rows, kind="order")
    for ordered in (True, False):
        own = [row for row in order if row["ordered"] is ordered and row.get("mse_ratio")]
        for row in own:
            ratio = row["mse_ratio"]
            source = ORDERED / UNORDERED if ordered else None
            good = ratio <= 0.7 if ordered else abs(ratio - 1) <= 0.1
            wanted = "at most .7" if ordered else "1 within .1"
            claim = f"MSE ordered over permuted, {row['chip']} ({wanted})"
            check(claim, source, ratio, good, needs="default")
    _judge_training(report)
    for row in of(rows, kind="step"):
        claim = "a step through the white box over a quantized one (at most 3)"
        check(claim, WHITE_BOX_STEP, row["ratio"], row["ratio"] <= 3)
    drift = of(rows, kind="drift")
    lost = sum(row["fresh"] - row["drifted"] for row in drift)
    regained = sum(row["recalibrated"] - row["drifted"] for row in drift)
    share = regained / lost if lost > 0 else None
    claim = "share of what drift took that recalibration restores (at least .9)"
    check(claim, None, share, share is not None and share >= 0.9, needs="default")


def _judge_training(report: Report) -> None:
    data = report.config["data"]
    found = {row["strategy"]: row for row in strategies(report.rows, data)}
    on_chip = {name: row["on_chip"] for name, row in found.items()}
    check = report.check
    plain = found["plain"]
    kept = plain["on_chip"] / plain["software"]
    check("plain on the chips over digital (at most .5)", 12.3 / 80.8, kept, kept <= 0.5,
          needs="default")  # fmt: skip
    tau = kendalltau(
        [STRATEGIES[n][1] for n in SOFTWARE_ROWS], [on_chip[n] for n in SOFTWARE_ROWS]
    ).statistic
    claim = "Kendall's tau of the six software rows (at least .8)"
    check(claim, 1.0, float(tau), tau >= 0.8, needs="default")
    ahead = on_chip["representation, incremental"] - on_chip["representation"]
    claim = "incremental noise above a representation without, per cent"
    check(claim, 41.0 - 26.4, ahead, ahead > 0, needs="default")
    short = on_chip.get("representation + loop 1/30")
    if short is not None:
        ahead = short - on_chip["loop"]
        claim = "representation and 1/30 of the loop above the whole loop, per cent"
        check(claim, 69.7 - 66.8, ahead, ahead >= 0, needs="default")
