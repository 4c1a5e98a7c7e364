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
SAME = 0.001
"""Accuracy by which a library may differ from what the search computes."""
COLLAPSED = 0.3
"""Accuracy below which a network has collapsed, relative to the whole one's."""


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
        gain = seeing["reward"] - without["reward"]
        claim = f"reward that sensitivities gain the joint agent at {least:g}"
        report.check(claim, 0.0011, gain, gain > _spread(seeing, without), needs="default")


def _collapse(report: Report, means: dict[Any, Row], least: float) -> None:
    """Quantization alone doesn't get there; pruning and both do."""
    base = whole(report)["validation"]
    for name in AGENTS:
        row = means.get((name, least))
        if row is None:
            continue
        accuracy = row["accuracy"] if row["seeds"] else 0.0
        fell = not row["seeds"] or accuracy < (1 - COLLAPSED) * base or abs(row["ratio"] - 1) > 0.2
        wanted = name == "quantization"
        claim = f"{name} at {least:g} {'collapses' if wanted else 'holds'}: accuracy"
        report.check(claim, SOURCE.get((name, least), {}).get("accuracy"), accuracy,
                     fell == wanted, needs="default")  # fmt: skip


def _against(report: Report, means: dict[Any, Row], target: float) -> None:
    """The joint agent against every other searcher; ties are within two standard errors."""
    joint = means.get(("joint", target))
    if not joint or not joint["seeds"]:
        return
    for name in NAMES:
        row = means.get((name, target))
        if name in ("joint", BLIND) or not row:
            continue
        claim = f"joint agent at {target:g}: reward beyond {name}'s"
        if not row["seeds"]:
            report.check(claim, "> 0", row["message"], True, needs="default")
            continue
        gain, tie = joint["reward"] - row["reward"], _spread(joint, row)
        wanted = f"> 0, or a tie: > -{tie:.3f}, two errors"
        report.check(claim, wanted, gain, gain > -tie, needs="default")


def _spread(*rows: Row) -> float:
    return 2 * float(np.sqrt(sum((row["error"] or 0.0) ** 2 for row in rows)))


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
