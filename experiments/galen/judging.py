"""Means over seeds beside the source's, and what the source claims."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.galen.recipe import AGENTS, BLIND, NAMES
from experiments.galen.source import AGENTS as SOURCE
from experiments.galen.source import FLOAT, SENSITIVITY
from experiments.harness import Report, Row, Table, error, grouped, mean

NEAR = 0.05
"""Of a target, that results land within."""
LANDED = 0.2
"""Of a target, within which a search has met it."""
SAME = 0.001
"""Accuracy by which a library may differ from what the search computes."""
COLLAPSED = 0.5
"""Share of the whole network's accuracy below which one has collapsed (the source's: .48)."""


def whole(report: Report) -> Row:
    """The network in float32."""
    return next(row for row in report.rows if row["part"] == "float")


def searches(report: Report) -> list[Row]:
    """Every searcher at every target: means over seeds, and errors."""
    own = [row for row in report.rows if row["part"] == "search"]
    found = []
    for (name, target), same in grouped(own, "searcher", "target").items():
        ended = [row for row in same if row.get("reward") is not None]
        found.append({
            "searcher": name, "target": target, "seeds": len(ended),
            **{key: mean(row[key] for row in ended) for key in
               ("reward", "accuracy", "ratio", "macs", "bops", "seconds")},
            "error": error([row["reward"] for row in ended]),
            "accuracy_error": error([row["accuracy"] for row in ended]),
            "message": next((row["message"] for row in same if "message" in row), ""),
        })  # fmt: skip
    return sorted(found, key=lambda row: (-row["target"], NAMES.index(row["searcher"])))


def finals(report: Report) -> list[Row]:
    """Results that were trained, compiled and measured."""
    return [row for row in report.rows if row["part"] == "final" and "share" in row]


def agents(report: Report) -> list[Row]:
    """The agents of Klein's thesis, table 4.1, as shares of the whole network's numbers."""
    base = whole(report)
    rows = []
    for row in finals(report):
        if row["searcher"] in AGENTS:
            theirs = SOURCE.get((row["searcher"], row["target"]), {})
            rows.append({
                "agent": row["searcher"], "c": row["target"], "seed": row["seed"],
                **_beside("macs", row["macs"] / base["macs"], theirs, FLOAT["macs"]),
                **_beside("bops", row["bops"] / base["bops"], theirs, FLOAT["bops"]),
                "latency": row["share"], "of_untuned": row["share"] * base["share_of_generic"],
                "source_latency": theirs["ms"] / FLOAT["ms"] if theirs else None,
                "accuracy": row["library"], "source_accuracy": theirs.get("accuracy"),
            })  # fmt: skip
    return rows


def _beside(name: str, ours: float, theirs: Row, whole: float) -> Row:
    """A share of the whole network's, ours and the source's."""
    return {name: ours, f"source_{name}": theirs[name] / whole if theirs else None}


def blind(report: Report) -> list[Row]:
    """With and without sensitivities, at the smallest share (Klein's thesis, table 4.2)."""
    base, least = whole(report), min(report.config["targets"])
    rows = []
    for row in searches(report):
        if row["searcher"] in SENSITIVITY and row["target"] == least and row["seeds"]:
            theirs = SENSITIVITY[row["searcher"]]
            rows.append({
                "searcher": row["searcher"],
                **_beside("macs", row["macs"] / base["macs"], theirs, FLOAT["macs"]),
                **_beside("bops", row["bops"] / base["bops"], theirs, FLOAT["bops"]),
                "latency": row["ratio"] * row["target"], "source_latency": theirs["share"],
                "accuracy": row["accuracy"], "source_accuracy": theirs["accuracy"],
                "reward": row["reward"], "error": row["error"],
            })  # fmt: skip
    return rows


def tables(report: Report) -> Sequence[Table]:
    """What is printed."""
    base = whole(report)
    kept = ("searcher", "target", "seeds", "reward", "error", "accuracy", "ratio", "seconds",
            "message")  # fmt: skip
    columns = ("searcher", "target", "seed", "told", "took", "share", "searched", "library")
    return [
        Table.from_rows(
            "float", [base], ("subject", "ms", "share_of_generic", "accuracy", "validation")
        ),
        Table.from_rows(
            "agents, trained and measured; shares of the whole network's",
            agents(report),
            ("agent", "c", "seed", "macs", "bops", "latency", "of_untuned", "accuracy"),
        ),
        Table.from_rows("every searcher at one budget, in the search", searches(report), kept),
        Table.from_rows("sensitivities off and on, in the search", blind(report)),
        Table.from_rows(
            "every result, trained and measured", [_first(row) for row in finals(report)], columns
        ),
    ]


def _first(row: Row) -> Row:
    """With what was told and took of the first candidate that was measured."""
    return row | {key: next(iter(row[key]), None) for key in ("told", "took")}


def judge(report: Report) -> None:
    """The source's claims, and what was asked for."""
    means = {(row["searcher"], row["target"]): row for row in searches(report)}
    targets = sorted(report.config["targets"], reverse=True)
    for row in finals(report):
        name = f"{row['searcher']} at {row['target']:g}, seed {row['seed']}"
        if row["searcher"] in AGENTS:
            off = row["share"] / row["target"] - 1
            report.check(f"{name}: measured latency over the target's, less 1", f"within {NEAR}",
                         off, abs(off) <= NEAR, needs="default")  # fmt: skip
        apart = abs(row["library"] - row["searched"])
        report.check(f"{name}: accuracy of the library apart from the search's", f"<= {SAME}",
                     apart, apart < SAME + 1e-9, needs="default")  # fmt: skip
    pairs = [pair for r in finals(report) for pair in zip(r["told"], r["took"], strict=True)]
    if pairs:
        apart = float(np.median([abs(told / took - 1) for told, took in pairs]))
        report.check("median distance of the table's sums from times end to end", "<= .05", apart,
                     apart <= NEAR, needs="default")  # fmt: skip
    _collapse(report, means, min(targets))
    for target in targets:
        _against(report, means, target)
    _layers(report)
    least = min(targets)
    seeing, without = means.get(("joint", least)), means.get((BLIND, least))
    if seeing and without and seeing["seeds"] and without["seeds"]:
        gain, tie = (of(seeing, without) for of in (_gain, _spread))
        claim = f"accuracy that sensitivities gain the joint agent at {least:g}, beyond two errors"
        theirs = SENSITIVITY["joint"]["accuracy"] - SENSITIVITY[BLIND]["accuracy"]
        report.check(f"{claim} ({tie:.3f})", theirs, gain, gain > tie, needs="default")


def _collapse(report: Report, means: dict[Any, Row], least: float) -> None:
    """Quantization alone loses its accuracy, if it lands at all; pruning and both don't."""
    base = whole(report)["validation"]
    for name in AGENTS:
        row = means.get((name, least))
        if row is None:
            continue
        wanted = name == "quantization"
        words = "collapses" if wanted else "holds"
        claim = f"{name} at {least:g} {words}: accuracy over the whole network's"
        theirs = SOURCE.get((name, least), {}).get("accuracy")
        # A budget that was missed is no collapse: nothing was compressed to it.
        share = row["accuracy"] / base if row["seeds"] and abs(row["ratio"] - 1) <= LANDED else None
        passed = share is not None and (share < COLLAPSED) == wanted
        report.check(claim, theirs and theirs / FLOAT["accuracy"],
                     share or "missed the latency", passed, needs="default")  # fmt: skip


def _against(report: Report, means: dict[Any, Row], target: float) -> None:
    """The joint agent against every other searcher, beyond two standard errors."""
    joint = means.get(("joint", target))
    if not joint or not joint["seeds"]:
        return
    for name in NAMES:
        row = means.get((name, target))
        if name in ("joint", BLIND) or not row:
            continue
        claim = f"joint agent at {target:g}: reward beyond {name}'s"
        if not row["seeds"]:
            report.check(claim, "> 0", row["message"], False, needs="default")
            continue
        gain, tie = (of(joint, row, "reward") for of in (_gain, _spread))
        wanted = f"> {tie:.3f}, two errors"
        report.check(claim, wanted, gain, gain > tie, needs="default")


ERRORS = {"reward": "error", "accuracy": "accuracy_error"}


def _gain(row: Row, other: Row, of: str = "accuracy") -> float:
    return float(row[of] - other[of])


def _spread(row: Row, other: Row, of: str = "accuracy") -> float:
    """Two standard errors of the gain."""
    first, second = (one[ERRORS[of]] or 0.0 for one in (row, other))
    return 2 * float(np.hypot(first, second))


def _layers(report: Report) -> None:
    """What the policies look like."""
    own = [r for r in report.rows if r["part"] == "search" and r.get("reward") is not None]
    of = {name: [r for r in own if r["searcher"] == name] for name in NAMES}
    if pruned := of["pruning"]:
        late = [_halves(row["channels"]) for row in pruned]
        claim = "pruning: channels kept in the first half of layers, less those in the second"
        report.check(claim, "> 0", _mean(late), _mean(late) > 0, needs="default")
    if few := of["quantization"]:
        bits = [np.mean(row["activations"]) - np.mean(row["weights"]) for row in few]
        claim = "quantization: bits of activations less those of weights"
        report.check(claim, "> 0", _mean(bits), _mean(bits) > 0, needs="default")
        milder = [np.mean([row["weights"][0], row["weights"][-1]]) - np.mean(row["weights"][1:-1])
                  for row in few]  # fmt: skip
        claim = "quantization: weight bits of the first and last layer less the others'"
        report.check(claim, "> 0", _mean(milder), _mean(milder) > 0, needs="default")
    for name, column, wants in (
        ("pruning first", "bits", "fewer bits"),
        ("quantization first", "channels", "fewer channels"),
    ):  # fmt: skip
        if of[name] and of["joint"]:
            ours, joint = (_mean([_used(row, column) for row in of[k]]) for k in (name, "joint"))
            claim = f"{name}: {column} left to the second stage, less the joint agent's"
            report.check(claim, f"< 0 ({wants})", ours - joint, ours < joint, needs="default")


def _halves(values: Sequence[float]) -> float:
    middle = len(values) // 2
    return float(np.mean(values[:middle]) - np.mean(values[middle:-1]))


def _used(row: Row, column: str) -> float:
    if column == "channels":
        return float(np.mean(row["channels"]))
    return float(np.mean(np.array(row["weights"]) + np.array(row["activations"])) / 2)


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(values))
