"""Midpoints of trained networks, the source's two tables beside ours, and its findings."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.hardening.networks import Network
from experiments.hardening.source import ARCHITECTURES, TABLE
from experiments.harness import Report, Row, grouped, mean
from jaxeff.robustness import fit_midpoint

CHANCE = 0.1
GAIN = 5.0
"""Least factor by which noisy training must raise the midpoint."""
COLLAPSED = 0.15
"""A peak accuracy below this counts as no training at all."""


def add_midpoints(rows: Sequence[Row], levels: Sequence[float]) -> None:
    """Gives every row the midpoint of its curve, or why it has none."""
    for row in rows:
        row |= _midpoint(levels, row["curve"])


def matched_curves(rows: Sequence[Row], levels: Sequence[float]) -> list[Row]:
    """Accuracy where training and inference noise are the same, and its midpoint.

    Every network is tested at the level it was trained at, the one trained without noise at the
    least one.
    """
    found = []
    least = min(level for level in levels if level)
    trained = [row for row in rows if row["method"] in ("noise", "qat+noise")]
    for network, scaling, bits in dict.fromkeys(map(_kind, trained)):
        kind = {"network": network, "scaling": scaling, "bits": bits, "scale": 1.0}
        points: dict[float, list[float]] = {}
        for row in rows:
            if all(row[name] == value for name, value in kind.items()):
                sigma = max(row["sigma"], least)
                points.setdefault(sigma, []).append(row["curve"][levels.index(sigma)])
        sigmas = sorted(points)
        accuracies = np.array([points[sigma] for sigma in sigmas]).T
        mean = accuracies.mean(axis=0).tolist()
        fit = _midpoint(sigmas, accuracies)
        found.append({**kind, "sigmas": sigmas, "curve": mean, "peak": max(mean), **fit})
    return found


def _midpoint(levels: Sequence[float], accuracies: Any) -> Row:
    """The midpoint on the logarithmic scale of the levels.

    The logistic of the level itself, the source's, has no place for the long tails of noisy
    training: its best fit then is an exponential decay, without a midpoint.
    """
    fit = fit_midpoint(np.array(levels), accuracies, scale="log", chance=CHANCE).record()
    return {name: fit[name] for name in ("mu", "mu_std", "message")}


def quantization_table(rows: Sequence[Row]) -> list[Row]:
    """Bit width and scale against peak accuracy and midpoint, the source's beside ours."""
    table = []
    for row in _seeds_averaged([r for r in rows if r["method"] in ("none", "qat")]):
        scaling = row["scale"] if row["scaling"] == "constant" else row["scaling"]
        theirs = TABLE.get((row["network"], row["bits"], scaling))
        table.append(
            {
                "network": row["network"], "bits": row["bits"], "scaling": scaling,
                "peak": row["peak"], "source_peak": theirs.peak / 100 if theirs else None,
                "mu": row["mu"], "source_mu": theirs.mu if theirs else None,
                "message": row["message"], "size": row["size"],
            }
        )  # fmt: skip
    return table


def architecture_table(
    rows: Sequence[Row], matched: Sequence[Row], build: Callable[[str], Network]
) -> list[Row]:
    """What each network costs and how robust it is with and without noisy training."""
    table = []
    for plain in _seeds_averaged([r for r in rows if r["method"] == "none"]):
        name = plain["network"]
        theirs = ARCHITECTURES[name]
        noisy = next((m for m in matched if (m["network"], m["scaling"]) == (name, "none")), None)
        ours = {
            **build(name).facts, "peak": plain["peak"], "mu": plain["mu"],
            "mu_noisy": noisy["mu"] if noisy else None,
        }  # fmt: skip
        reported = theirs._asdict() | {"peak": theirs.peak / 100}
        table += [
            {"network": name, "property": key, "ours": ours[key], "source": reported[key]}
            for key in ours
        ]
    return table


def judge(report: Report) -> None:
    """The source's findings, each with its numbers; few epochs on digits decide none of them."""
    rows, matched = report.rows, report.extra["tables"]["matched"]
    claim = partial(report.check, needs="default")
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in _seeds_averaged(rows) if row["network"] == network]
        curves = {(m["scaling"], m["bits"]): m for m in matched if m["network"] == network}
        plain = next(row for row in own if row["method"] == "none")
        noisy = curves["none", 32]
        theirs = ARCHITECTURES[network]
        if plain["mu"] and noisy["mu"]:
            gain = noisy["mu"] / plain["mu"]
            claim(
                f"{network}: noisy training raises the midpoint at least {GAIN:g} times (same "
                "noise in training and test)",
                f"{theirs.mu_noisy / theirs.mu:.1f} times", gain, gain >= GAIN,
            )  # fmt: skip
        single = [row for row in own if row["method"] == "noise" and row["mu"]]
        if plain["mu"] and single:
            enough = [row for row in single if row["mu"] >= GAIN * plain["mu"]]
            best = max(enough or single, key=lambda row: row["peak"])
            gain = best["mu"] / plain["mu"]
            claim(
                f"{network}: a single network's, on its own curve (trained at {best['sigma']:g}, "
                f"peak {best['peak']:.2f})",
                f"{theirs.mu_noisy / theirs.mu:.1f} times", gain, gain >= GAIN,
            )  # fmt: skip
        _check_scales(claim, network, [row for row in own if row["method"] == "qat"])
        quantized = [r["mu"] for r in own if r["method"] == "qat" and r["mu"]]
        if quantized and noisy["mu"]:
            strongest = max(quantized)
            claim(
                f"{network}: noisy training beats all quantization-aware training (midpoint)",
                f"{theirs.mu_noisy} over less than 0.7", f"{noisy['mu']:.3g} over {strongest:.3g}",
                noisy["mu"] > strongest,
            )  # fmt: skip
            for (scaling, bits), both in curves.items():
                if scaling != "none" and both["mu"]:
                    claim(
                        f"{network}: with {bits} bits, {scaling} scale, noisy training decides "
                        "(midpoint over the best without)",
                        "dominates", f"{both['mu']:.3g} over {strongest:.3g}",
                        both["mu"] > strongest,
                    )  # fmt: skip


def _check_scales(claim: Callable[..., None], network: str, rows: Sequence[Row]) -> None:
    for bits in dict.fromkeys(row["bits"] for row in rows):
        own = [row for row in rows if row["bits"] == bits and row["mu"]]
        dynamic = next((row for row in own if row["scaling"] == "dynamic"), None)
        constant = [row for row in own if row["scaling"] == "constant" and row["peak"] > COLLAPSED]
        if dynamic is None or not constant:
            continue
        best = max(constant, key=lambda row: row["mu"])
        claim(
            f"{network}, {bits} bits: a constant scale raises the midpoint over the dynamic one",
            "0.23 over 0.031 (VGG-11, 4 bits)",
            f"{best['mu']:.3g} (scale {best['scale']:g}) over {dynamic['mu']:.3g}",
            best["mu"] > dynamic["mu"],
        )
        claim(
            f"{network}, {bits} bits: which costs accuracy (peak, constant under dynamic)",
            "0.783 under 0.865 (VGG-11, 4 bits)",
            f"{best['peak']:.3g} under {dynamic['peak']:.3g}",
            best["peak"] < dynamic["peak"],
        )


def _kind(row: Row) -> tuple[str, str, int]:
    return row["network"], row["scaling"], row["bits"]


def _seeds_averaged(rows: Sequence[Row]) -> list[Row]:
    """One row per setting: means over seeds that have the number."""
    names = ("network", "method", "scaling", "bits", "rho", "sigma", "theta", "alpha", "scale")
    return [
        {**group[0], **{name: mean(row[name] for row in group) for name in ("peak", "mu")}}
        for group in grouped(rows, *names).values()
    ]
