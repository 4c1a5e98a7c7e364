"""What the rows say: midpoints, the thesis' findings as claims with numbers, and pictures."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments import margins
from experiments.harness import Report, Row
from jaxeff.robustness import Midpoint, fit_midpoint, summarize
from jaxeff.robustness.curves import draw_contour, draw_curve, draw_histograms, draw_midpoints

HUGE = 1e6
"""Multiplicative noise that no value survives, only its being zero or not."""
STRONGER = 10
"""Additive over multiplicative noise that networks withstand in the thesis' best cases."""
KEEPS = 0.7
"""Share of the accuracy above chance that counts as kept."""
CHANCE = 0.1
HALF = 0.5
"""Of the thesis' gain by guided repetition, that counts as the same finding."""
KINDS = {"add": "additive", "mul": "multiplicative"}
ORDERS = {"mul_add": "multiplicative first", "add_mul": "additive first"}
SCALES = {"global": "linear", "layers": "log"}
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
    fits = {}
    for curve in _curves(rows):
        levels, table = accuracies(rows, curve)
        fits[curve] = fit_midpoint(levels, table, chance=CHANCE, scale=SCALES[curve.where])
    return fits


def walked(rows: Iterable[Row], case: str, kind: str) -> list[Row]:
    """Finds the rows of a network with noise in one slot at a time."""
    return [r for r in rows if (r["case"], r["kind"], r["where"]) == (case, kind, "layers")]


def walked_midpoints(rows: Sequence[Row], case: str) -> dict[str, float]:
    """The midpoints of a network's slots under additive walking noise, where it was walked."""
    return {curve.site: fit.mu for curve, fit in midpoints(walked(rows, case, "add")).items()}


def weight_growth(rows: Sequence[Row], case: str) -> dict[str, float]:
    """How far the weights before each noisy slot grow, from the least noise to the most.

    The most is that with which networks still learn: half the accuracy above chance. Slots that
    tolerate no more than the least have no growth.
    """
    growth = {}
    chosen = walked(rows, case, "add")
    for site in dict.fromkeys(r["site"] for r in chosen if r["weight_rms"] is not None):
        at_site = [r for r in chosen if r["site"] == site and not r["diverged"]]
        levels = h.averaged(at_site, ["level"], ["accuracy", "weight_rms"])
        start = min(levels, key=lambda row: row["level"])
        least = CHANCE + (start["accuracy"] - CHANCE) / 2
        learned = [row for row in levels if row["accuracy"] > least and row is not start]
        if learned:
            most = max(learned, key=lambda row: row["level"])
            growth[site] = float(most["weight_rms"] / start["weight_rms"])
    return growth


def kept_shares(rows: Sequence[Row], case: str) -> dict[str, float]:
    """Share of the accuracy above chance that each slot keeps under huge multiplicative noise."""
    chosen = walked(rows, case, "mul")
    best = max(r["accuracy"] for r in chosen if not r["diverged"])
    kept = {}
    for site in dict.fromkeys(r["site"] for r in chosen):
        largest = [r for r in chosen if r["site"] == site and r["level"] >= HUGE]
        values = [CHANCE if r["diverged"] else r["accuracy"] for r in largest]
        kept[site] = float((np.mean(values) - CHANCE) / (best - CHANCE))
    return kept


def _curve(row: Row) -> Curve:
    return Curve(row["case"], row["kind"], row["where"], row["site"])


def _curves(rows: Iterable[Row]) -> list[Curve]:
    return list(dict.fromkeys(_curve(row) for row in rows if row["kind"] in ("add", "mul")))


def _cases(rows: Iterable[Row], **which: Any) -> list[str]:
    return sorted({r["case"] for r in rows if all(r[k] == v for k, v in which.items())})


def normed(report: Report) -> Iterator[Row]:
    """Selects the additive midpoints without batch norm over those with it."""
    fits = midpoints(report.rows)
    for case in sorted({row["case"].removesuffix("-bn") for row in report.rows}):
        pair = [Curve(name, "add", "global", "global") for name in (f"{case}-bn", case)]
        if not all(curve in fits for curve in pair):
            continue
        pair_of_fits, scale = [fits[curve] for curve in pair], SCALES["global"]
        if not all(fit.exists for fit in pair_of_fits):  # a long tail: the same scale for both
            scale = "log"
            pair_of_fits = [
                fit_midpoint(*accuracies(report.rows, curve), chance=CHANCE, scale=scale)
                for curve in pair
            ]
        if all(fit.exists for fit in pair_of_fits):
            error = math.hypot(*(fit.mu_std / fit.mu for fit in pair_of_fits))
            ratio = pair_of_fits[1].mu / pair_of_fits[0].mu
            yield {"case": case, "scale": scale, "ratio": ratio, "error": error}


def grown(report: Report) -> Iterator[Row]:
    """Selects how far weights grow under additive noise: geometric means over the slots."""
    for case in _cases(report.rows, kind="add", where="layers"):
        if found := weight_growth(report.rows, case):
            logs = np.log([*found.values()])
            yield {
                "case": case, "normed": case.endswith("-bn"), "slots": len(logs),
                "growth": float(np.exp(logs.mean())), "error": h.error(logs) or 0.0,
            }  # fmt: skip


def suppressed(report: Report) -> Iterator[Row]:
    """Selects the growth without batch norm over that with it."""
    growths = {row["case"]: row for row in grown(report)}
    for case, row in growths.items():
        if (normed := growths.get(f"{case}-bn")) is not None:
            error = float(np.hypot(row["error"], normed["error"]))
            yield {"case": case, "growth": row["growth"] / normed["growth"], "error": error}


def beyond(row: Row, growth: float) -> bool:
    """Requires a ratio to exceed one by two standard errors of its logarithm."""
    return bool(np.log(growth) > 2 * row["error"])


def kept(report: Report) -> Iterator[Row]:
    """Selects the slots that keep most under huge multiplicative noise."""
    for case in _cases(report.rows, kind="mul", where="layers"):
        shares = kept_shares(report.rows, case)
        site = max(shares, key=lambda s: shares[s])
        known = case.endswith("-bn")
        words = "with batch norm a slot keeps" if known else "without batch norm no slot keeps"
        yield {"case": case, "words": words, "normed": known, "site": site, "kept": shares[site]}


def mixed(report: Report) -> list[Row]:
    """Selects the rows of both kinds of noise at once."""
    return [row for row in report.rows if row["kind"] in ORDERS]


def ordered(report: Report) -> Iterator[Row]:
    """Selects what multiplicative noise first gains over additive noise first, level by level."""
    for (case, site), same in sorted(h.grouped(mixed(report), "case", "site").items()):
        pairs = h.grouped(same, "add", "mul", "seed").values()
        of = [{row["kind"]: row["accuracy"] for row in pair} for pair in pairs]
        gains = [one["mul_add"] - one["add_mul"] for one in of if one.keys() == ORDERS.keys()]
        if gains:
            yield {
                "case": case, "site": site, "gain": float(np.mean(gains)),
                "error": 2 * (h.error(gains) or 0.0),
            }  # fmt: skip


def stronger(report: Report) -> Iterator[Row]:
    """Selects where additive noise ten times as strong follows multiplicative: the best cell.

    The thesis says "in some cases up to one order of magnitude": more than ten times isn't claimed.
    """
    for (case, _), same in sorted(h.grouped(mixed(report), "case", "site").items()):
        learned = [r for r in report.rows if r["case"] == case and not r["diverged"]]
        clean = max(row["accuracy"] for row in learned)
        cells = [
            row for row in same
            if row["kind"] == "mul_add" and row["mul"] > 0
            and math.isclose(row["add"], STRONGER * row["mul"])
        ]  # fmt: skip
        if cells:
            accuracy = [CHANCE if row["diverged"] else row["accuracy"] for row in cells]
            kept = [(a - CHANCE) / (clean - CHANCE) for a in accuracy]
            good = sum(share >= KEEPS for share in kept)
            yield {**cells[0], "kept": max(kept), "good": good, "cells": len(cells)}


def guided(report: Report) -> Iterator[Row]:
    """Selects what guided repetition gains, and what it has to: all lists' networks are alike."""
    names = {
        "guided": "guided",
        "guided_by_evaluation": "guided by noise at evaluation of networks trained without",
    }
    for row in repeated(report):
        for how, name in names.items():
            if row[how] is not None:
                tie = margins.of_spreads(row["seeds"], row[f"{how}_std"], row["uniform_std"])
                theirs = row["source_guided"] - row["source_uniform"]
                yield {
                    **row, "name": name, "accuracy": row[how],
                    # One seed has no error, and says nothing.
                    "gain": None if tie is None else row[how] - row["uniform"],
                    "least": max(HALF * theirs, tie or 0.0),
                }  # fmt: skip


repeated, binarized = h.extra("repetition"), h.extra("binarization")


def split(report: Report) -> Iterator[Row]:
    """Selects how many of them have two peaks of magnitudes that least noise doesn't give them."""
    for (case,), rows in h.grouped(binarized(report), "case").items():
        sites = [row["site"] for row in rows if row["valley"] < 1 <= row["valley_least_noise"]]
        yield {"case": case, "sites": ", ".join(sites), "split": len(sites), "slots": len(rows)}


claim = partial(h.Claim, needs="default")  # few epochs on digits decide nothing
CLAIMS = (
    claim(
        "{case}: batch norm lowers the additive midpoint ({scale} scale, without over with, log "
        "error {error:.2f}; by two errors)",
        "ratio", beyond, "> 1", normed,
    ),
    claim(
        "{case}: additive noise grows weights (rms at the most noise with which a slot learns over "
        "that at the least, mean of {slots} slots, log error {error:.2f}; by two errors)",
        "growth", beyond, "> 1", grown, when=lambda row: not row["normed"],
    ),
    claim(
        "{case}: batch norm suppresses that growth (without over with, log error {error:.2f}; by "
        "two errors)",
        "growth", beyond, "> 1", suppressed,
    ),
    claim(
        "{case}: {words} its accuracy under multiplicative noise >= 1e6 (best: {site})",
        "kept", lambda row, share: (share >= KEEPS) is row["normed"],
        lambda row: f"{'>=' if row['normed'] else '<'} {KEEPS}", kept,
    ),
    claim(
        "{case}, {site}: accuracy that multiplicative-first gains over additive-first (mean of all "
        "levels; by two errors, {error:.3f})",
        "gain", h.above("error"), "> 0", ordered,
    ),
    claim(
        "{case}, {site}: multiplicative-first keeps its accuracy with ten times as much additive "
        "noise in some cell ({good} of {cells}; share kept in the best)",
        "kept", h.at_least(KEEPS), "in some cases (LeNet-5, conv of layer 5)", stronger,
    ),
    claim(
        "{case}: {name} over uniform repetition (accuracy, sigma {sigma}), by half of the thesis' "
        "gain and by two errors: {least:.3f}",
        "gain", h.above("least"), "{source_guided} over {source_uniform}", guided,
        shown="{accuracy:.3f} over {uniform:.3f}",
    ),
    claim(
        "{case}: slots that keep their accuracy with two peaks of magnitudes, which they don't "
        "have at the least noise ({sites})",
        "split", h.at_least(1), ">= 1", split, shown="{split} of {slots}",
    ),
    claim(
        "{case}, {site}, noise {level:.0e}: accuracy lost by two values",
        lambda row: row["accuracy"] - row["accuracy_binarized"], h.below(0.02), "nearly none",
        binarized, when=lambda row: row["accuracy_binarized"] is not None,
    ),
)  # fmt: skip


fitted = h.extra("midpoints")


def _fitted(report: Report) -> str:
    fits = fitted(report)
    none = sum(fit["mu"] is None for fit in fits)
    return f"midpoints ({none} of {len(fits)} curves have none; the JSON says why)"


TABLES = (
    h.Listing(
        _fitted,
        ("case", "kind", "where", "site", "mu", "mu_std", "bracket_low", "bracket_high"), fitted,
    ),
    h.Listing(
        "self-binarization",
        (
            "case", "site", "level", "kept", "valley", "valley_least_noise", "low_peak",
            "high_peak", "zero", "accuracy", "accuracy_binarized",
        ),
        binarized,
    ),
    h.Listing(
        "repetition (accuracy)",
        {
            "case": "case", "sigma": "sigma", "clean": "clean", "uniform": "uniform",
            "guided": "guided", "guided by the thesis": "guided_by_source",
            "guided by evaluation": "guided_by_evaluation",
        },
        repeated,
    ),
)  # fmt: skip


def everywhere(report: Report) -> Iterator[h.Panel]:
    """Draws accuracy under noise in every slot at once: a panel per network and kind."""
    fits = midpoints(report.rows)
    chosen = [curve for curve in fits if curve.where == "global"]
    for case, kind in dict.fromkeys((c.case.removesuffix("-bn"), c.kind) for c in chosen):

        def draw(axis: Axes, case: str = case, kind: str = kind) -> None:
            for k, (suffix, label) in enumerate((("-bn", "batch norm"), ("", "no batch norm"))):
                curve = Curve(case + suffix, kind, "global", "global")
                if curve in fits:
                    summary = summarize(*accuracies(report.rows, curve))
                    draw_curve(axis, summary, fits[curve], label=label, color=f"C{k}")

        yield h.painted(f"{case}, {KINDS[kind]} noise everywhere", draw, ylim=(0, 1))


def slots(kind: str, report: Report) -> Iterator[h.Panel]:
    """Draws midpoints slot by slot."""
    fits = midpoints(report.rows)
    for case in dict.fromkeys(c.case for c in fits if (c.where, c.kind) == ("layers", kind)):
        fits_of_layers = {c.site: fit for c, fit in fits.items() if c[:3] == (case, kind, "layers")}
        title = f"{case}: midpoint of {KINDS[kind]} noise in one slot"
        yield h.Panel(title, partial(draw_midpoints, midpoints=fits_of_layers))


def single(kind: str, report: Report) -> Iterator[Row]:
    """Selects the curves of single slots."""
    for curve in _curves(report.rows):
        if (curve.where, curve.kind) == ("layers", kind):
            levels, table = accuracies(report.rows, curve)
            mean = np.where(np.isnan(table), CHANCE, table).mean(axis=0).tolist()
            yield {**curve._asdict(), "levels": levels, "accuracy": mean}


def looked_at(report: Report) -> Iterator[tuple[Row, dict[str, np.ndarray]]]:
    """Selects the slots whose values are in the arrays, with those."""
    names = ("before", "least", "noisy", "thresholds", "accuracies")
    for row in binarized(report):
        if row["accuracy"] is not None:
            yield row, {name: report.arrays[f"{row['case']}/{name}"] for name in names}


def peaks(report: Report) -> Iterator[h.Panel]:
    """Draws values on both scales (Klein's thesis, section 6.2.2)."""
    for row, mechanism in looked_at(report):
        level, before = row["level"], mechanism["before"]
        trained = {f"trained with σ = {level:.0e}": before, "least noise": mechanism["least"]}
        scaled = {"with noise, over σ": mechanism["noisy"] / level, "before noise": before}
        title = f"{row['case']}: values of {row['site']}, before noise"
        yield h.Panel(title, partial(draw_histograms, values=trained, scale="log"))
        yield h.Panel("the same, linear", partial(draw_histograms, values=scaled))


def cuts(report: Report) -> Iterator[Row]:
    """Selects the threshold checks."""
    for row, found in looked_at(report):
        places, two = (found["thresholds"] / row["level"]).tolist(), found["accuracies"].tolist()
        yield {"case": row["case"], "at": places, "two": two, "all": [row["accuracy"]] * len(two)}


def surfaces(report: Report) -> Iterator[h.Panel]:
    """Draws accuracy over both kinds of noise: a panel per network and order."""
    for (case, site, order), rows in h.grouped(mixed(report), "case", "site", "kind").items():
        add, mul = (np.unique([row[name] for row in rows]) for name in ("add", "mul"))
        table = np.full((len(add), len(mul)), np.nan)
        for row in rows:
            place = np.searchsorted(add, row["add"]), np.searchsorted(mul, row["mul"])
            table[place] = CHANCE if row["diverged"] else row["accuracy"]
        if min(table.shape) > 1:  # a surface

            def paint(axis: Axes, drawn: tuple[Any, ...] = (add, mul, table)) -> None:
                plt.colorbar(draw_contour(axis, *drawn), ax=axis, label="accuracy")

            yield h.Panel(f"{case}, {site}: {ORDERS[order]}", paint)


PLOTS = (
    h.Plot("curves", everywhere, columns=len(KINDS), size=(5.5, 2.9)),
    *(
        h.Plot(
            f"layers-{kind}", partial(slots, kind),
            h.Curves(
                "levels", "accuracy", partial(single, kind), "{site}", "{case}", style=".-",
                axes={
                    "xscale": "log", "ylim": (0, 1), "xlabel": "noise level σ",
                    "ylabel": "accuracy",
                },
            ),
            columns=2, size=(6, 3.1),
        )
        for kind in KINDS
    ),
    h.Plot(
        "binarization", peaks,
        h.Curves(
            "at", {"two": "two values only", "all": "all values"}, cuts, facet="{case}",
            style={"two values only": ".-", "all values": "--"},
            axes={
                "xscale": "log", "ylim": (0, 1), "xlabel": "threshold / σ",
                "ylabel": "accuracy under the noise",
            },
        ),
        columns=3, size=(4.3, 3.8),
    ),
    h.Plot("mixed", surfaces, columns=len(ORDERS), size=(5, 3.8)),
)  # fmt: skip
