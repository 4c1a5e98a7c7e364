"""What the rows say: midpoints, and the source's findings as checks with numbers."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from experiments.harness import Report, Row
from jaxeff.robustness import Midpoint, fit_midpoint

HUGE = 1e6
"""Multiplicative noise that no value survives, only its being zero or not."""
KEEPS = 0.7
"""Share of the accuracy above chance that counts as kept."""
CHANCE = 0.1
ORDERS = {"mul_add": "multiplicative first", "add_mul": "additive first"}
SCALES = {
    ("add", "global"): "linear", ("mul", "global"): "linear",
    ("add", "layers"): "log", ("mul", "layers"): "log",
}  # fmt: skip
"""Of the fit: single slots are probed over many decades."""


class Curve(NamedTuple):
    """Which rows make a curve of accuracy over noise."""

    case: str
    kind: str
    where: str
    site: str


def accuracies(rows: Sequence[Row], curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Levels, and accuracies `[seeds, levels]`; NaN where a replicate diverged."""
    chosen = [row for row in rows if _curve(row) == curve]
    levels = np.array(sorted({row["level"] for row in chosen}))
    seeds = sorted({row["seed"] for row in chosen})
    table = np.full((len(seeds), len(levels)), np.nan)
    for row in chosen:
        if not row["diverged"]:
            place = seeds.index(row["seed"]), np.searchsorted(levels, row["level"])
            table[place] = row["accuracy"]
    return levels, table


def midpoints(rows: Sequence[Row]) -> dict[Curve, Midpoint]:
    """The midpoint of every curve of a single kind of noise, or why it has none."""
    found = {}
    for curve in _curves(rows):
        levels, table = accuracies(rows, curve)
        scale = SCALES[curve.kind, curve.where]
        found[curve] = fit_midpoint(levels, table, chance=CHANCE, scale=scale)
    return found


def judge(report: Report) -> None:
    """The source's findings, each with its numbers; few epochs on digits decide none of them."""
    claim = partial(report.check, needs="default")
    check(claim, report.rows, report.extra.get("repetition", ()))
    check_binarization(claim, report.extra.get("binarization", ()))


def check(claim: Callable[..., None], rows: Sequence[Row], tables: Sequence[Row]) -> None:
    """What the rows say of midpoints, weights, huge noise and the order of two kinds."""
    fits = midpoints(rows)
    for case in sorted({row["case"].removesuffix("-bn") for row in rows}):
        pair = [Curve(name, "add", "global", "global") for name in (f"{case}-bn", case)]
        if not all(curve in fits for curve in pair):
            continue
        with_bn, without, scale = *(fits[curve] for curve in pair), SCALES["add", "global"]
        if not (with_bn.found and without.found):  # a long tail: the same scale for both
            scale = "log"
            with_bn, without = (
                fit_midpoint(*accuracies(rows, curve), chance=CHANCE, scale=scale) for curve in pair
            )
        if with_bn.found and without.found:
            claim(
                f"{case}: batch norm lowers the additive midpoint ({scale} scale, without over "
                "with)",
                "> 1", without.mu / with_bn.mu, without.mu > with_bn.mu,
            )  # fmt: skip
    for case in _cases(rows, kind="add", where="layers", batch_norm=False):
        growth, site, level = weight_growth(rows, case)
        claim(
            f"{case}: additive noise grows weights (rms over that at the least noise, {site} at "
            f"{level:.2g})",
            "> 1", growth, growth > 1,
        )  # fmt: skip
    for case in _cases(rows, kind="mul", where="layers"):
        normed = case.endswith("-bn")
        kept = kept_shares(rows, case)
        site = max(kept, key=lambda s: kept[s])
        words = "with batch norm a slot keeps" if normed else "without batch norm no slot keeps"
        claim(
            f"{case}: {words} its accuracy under multiplicative noise >= 1e6 (best: {site})",
            f"{'>=' if normed else '<'} {KEEPS}", kept[site], (kept[site] >= KEEPS) is normed,
        )  # fmt: skip
    for case, site in sorted({(r["case"], r["site"]) for r in rows if r["kind"] in ORDERS}):
        means = {
            kind: np.mean([r["accuracy"] for r in found])
            for kind in ORDERS
            if (
                found := [
                    r for r in rows if (r["case"], r["site"], r["kind"]) == (case, site, kind)
                ]
            )
        }
        if len(means) == len(ORDERS):
            first, second = (means[kind] for kind in ORDERS)
            claim(
                f"{case}, {site}: multiplicative-first beats additive-first (mean accuracy)",
                f"> {second:.3f}", first, first > second,
            )  # fmt: skip
    for row in tables:
        claim(
            f"{row['case']}: guided over uniform repetition (accuracy, sigma {row['sigma']})",
            f"{row['source_guided']} over {row['source_uniform']}",
            f"{row['guided']:.3f} over {row['uniform']:.3f}",
            row["guided"] > row["uniform"],
        )


def weight_growth(rows: Sequence[Row], case: str) -> tuple[float, str, float]:
    """The largest growth of the weights before a noisy slot, at which slot and level.

    Only levels at which the network still learns count: half the accuracy above chance.
    """
    found = [(0.0, "", 0.0)]
    chosen = [r for r in rows if (r["case"], r["kind"], r["where"]) == (case, "add", "layers")]
    for site in dict.fromkeys(r["site"] for r in chosen if r["weight_rms"] is not None):
        at_site = [r for r in chosen if r["site"] == site and not r["diverged"]]
        least = min(r["level"] for r in at_site)
        start = [r for r in at_site if r["level"] == least]
        clean = np.mean([r["accuracy"] for r in start])
        rms = np.mean([r["weight_rms"] for r in start])
        found += [
            (r["weight_rms"] / rms, site, r["level"])
            for r in at_site
            if r["accuracy"] - CHANCE > (clean - CHANCE) / 2
        ]
    return max(found)


def kept_shares(rows: Sequence[Row], case: str) -> dict[str, float]:
    """Share of the accuracy above chance that each slot keeps under huge multiplicative noise."""
    chosen = [r for r in rows if (r["case"], r["kind"], r["where"]) == (case, "mul", "layers")]
    best = max(r["accuracy"] for r in chosen if not r["diverged"])
    kept = {}
    for site in dict.fromkeys(r["site"] for r in chosen):
        found = [r for r in chosen if r["site"] == site and r["level"] >= HUGE]
        values = [CHANCE if r["diverged"] else r["accuracy"] for r in found]
        kept[site] = float((np.mean(values) - CHANCE) / (best - CHANCE))
    return kept


def _curve(row: Row) -> Curve:
    return Curve(row["case"], row["kind"], row["where"], row["site"])


def _curves(rows: Iterable[Row]) -> list[Curve]:
    return list(dict.fromkeys(_curve(row) for row in rows if row["kind"] in ("add", "mul")))


def _cases(rows: Iterable[Row], **which: Any) -> list[str]:
    return sorted({r["case"] for r in rows if all(r[k] == v for k, v in which.items())})


def check_binarization(claim: Callable[..., None], binarizations: Sequence[Row]) -> None:
    """Two peaks where noise is survived, and quantization to two values nearly free."""
    for case in dict.fromkeys(row["case"] for row in binarizations):
        rows = [row for row in binarizations if row["case"] == case]
        split = [row["site"] for row in rows if row["valley"] < 1 <= row["valley_least_noise"]]
        claim(
            f"{case}: slots that keep their accuracy with two peaks of magnitudes, which they "
            f"don't have at the least noise ({', '.join(split)})",
            ">= 1", f"{len(split)} of {len(rows)}", bool(split),
        )  # fmt: skip
        for row in rows:
            if row["accuracy_binarized"] is not None:
                loss = row["accuracy"] - row["accuracy_binarized"]
                claim(
                    f"{case}, {row['site']}, noise {row['level']:.0e}: accuracy lost by two values",
                    "nearly none", loss, loss < 0.02,
                )  # fmt: skip
