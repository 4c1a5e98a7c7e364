"""The source's claims, from the rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from experiments import harness
from experiments.analog.source import (
    ORDERED,
    SEQUENCES,
    SOFTWARE_ROWS,
    STRATEGIES,
    UNORDERED,
    WHITE_BOX_STEP,
)
from experiments.harness import Report, Row

SEQUENCE_COLUMNS = ("mse", "error", "noise", "software", "on_chip", "after_loop")


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


def order_ratios(rows: Sequence[Row], ordered: bool) -> list[Row]:
    """Of chips or order-free ones, those with sequence models."""
    return [row for row in of(rows, kind="order", ordered=ordered) if row.get("mse_ratio")]


def through_sequences(rows: Sequence[Row]) -> list[Row]:
    """A row per model of sequences, its figures over chips."""
    found = []
    for name, source in SEQUENCES.items():
        own = of(rows, kind="sequence", model=name)
        if own:
            columns = {column: mean(own, column) for column in SEQUENCE_COLUMNS}
            theirs = {f"source_{k}": v for k, v in source._asdict().items()}
            found.append(
                {"model": name, "chips": f"{len(own)} synthetic", "data": own[0]["data"],
                 **columns, **theirs}
            )  # fmt: skip
    return found


def judge(report: Report) -> None:
    """Every claim of the issue that a run can decide."""
    rows, check = report.rows, report.check
    fidelity = of(rows, kind="fidelity")
    for n in (8, 32, 128):
        own = of(fidelity, ordered=False, model="white box", active=n)
        if own:
            worst = max(row["ratio"] for row in own)
            claim = f"white box over the noise floor, order-free chips, {n} rows (largest of chips)"
            check(claim, None, worst, worst <= 1.3, needs="default")
    errors = {
        (row["device"], row["active"], row["model"]): row["error"]
        for row in of(fidelity, ordered=True)
    }
    devices = sorted({d for d, _, _ in errors})
    for n in (32, 128) if devices else ():
        right = sum(
            errors[d, n, "linear"] > errors[d, n, "columnar"] > errors[d, n, "white box"]
            for d in devices
        )
        claim = f"chips where linear > columnar > white box, {n} rows"
        check(claim, "all", f"{right} of {len(devices)}", right == len(devices), needs="default")
    for ordered in (True, False):
        ratios = [row["mse_ratio"] for row in order_ratios(rows, ordered)]
        if not ratios:
            continue
        ratio, source = float(np.mean(ratios)), ORDERED / UNORDERED if ordered else None
        good = ratio <= 0.7 if ordered else abs(ratio - 1) <= 0.1
        name = "chips (at most .7)" if ordered else "order-free chips (1 within .1)"
        error = harness.error(ratios)
        spread = "" if error is None else f", standard error {error:.3f}"
        claim = f"MSE ordered over permuted, mean of {len(ratios)} {name}{spread}"
        check(claim, source, ratio, good, needs="default")
    if of(rows, kind="training", data=report.config["data"]):
        _judge_training(report)
    if of(rows, kind="sequence"):
        _judge_sequences(report)
    for row in of(rows, kind="step"):
        claim = "a step through the white box over a quantized one (at most 3)"
        check(claim, WHITE_BOX_STEP, row["ratio"], row["ratio"] <= 3)
    drift = of(rows, kind="drift")
    if not drift:
        return
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


def _judge_sequences(report: Report) -> None:
    """Differences are of the same networks and chips, so that chips give a standard error."""
    rows = of(report.rows, kind="sequence")
    for column, better, worse in (
        ("on_chip", "ordered", "order-free"),
        ("on_chip", "ordered", "white box"),
        ("after_loop", "ordered", "no model"),
    ):
        by_chip = [
            {row["device"]: row[column] for row in of(rows, model=name)} for name in (better, worse)
        ]
        ahead = [by_chip[0][d] - by_chip[1][d] for d in by_chip[0]]
        error = harness.error(ahead)
        spread = "" if error is None else f" (standard error {error:.1f})"
        where = {"on_chip": "on the chip", "after_loop": "after the loop"}[column]
        claim = f"networks through sequences, {where}: {better} above {worse}, per cent{spread}"
        source = getattr(SEQUENCES[better], column) - getattr(SEQUENCES[worse], column)
        report.check(claim, source, float(np.mean(ahead)), np.mean(ahead) > 0, needs="default")
