"""The figures to reach, how our order of activations compares with the thesis', and pictures."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from experiments import harness as h
from experiments import margins
from experiments.activations.network import LEARNED
from experiments.activations.source import MOONS, SINE
from experiments.harness import Report, Row
from experiments.sines import doubt_at_midpoints, draw_sines
from jaxeff.uncertainty import draw_plane

GOOD = 0.95
SHARE_GOOD = sum(row.auroc > GOOD for row in SINE.values())
"""How many activation functions of the thesis are better than that: 21."""
COUNTED = 2 * math.sqrt(SHARE_GOOD * (1 - SHARE_GOOD / len(SINE)))
"""Two standard errors of a binomial count, for whether an activation is good is partly luck."""
WINS = sum(row.auroc_nuts > row.auroc_svi for row in MOONS.values())
"""For how many activation functions of the thesis' ten NUTS beats SVI on the moons: 8."""
LOSSES = {name for name, row in MOONS.items() if row.auroc_svi > row.auroc_nuts}
"""Those for which SVI is better: Softplus and Sigmoid."""
ALIKE = 0.7
"""Spearman's correlation with the thesis' order that counts as the same one."""
GROUPS = {
    "periodic": ("Sine",), "smooth": ("LeakyReLU0.5", "SiLU", "Hardswish"),
    "one-sided": ("ReLU", "Softplus"), "shrinking": ("Softshrink", "Tanhshrink"),
    "saturating": ("Tanh", "Sigmoid"),
}  # fmt: skip
"""The thesis' five groups on the moons, by falling AUROC (section 7.5.1)."""
EQUAL = 0.01
"""AUROC on the sine by which LeakyReLU0.5 and ReLU may differ ("nearly indistinguishable")."""
WORST = {"Softmax", "Softmin", "Hardshrink"}
RHAT = 1.05
STARTS = {"sine-nuts": "trained", "sine-nuts-prior": "prior"}
MIXING = ("rhat_max", "rhat_share", "ess_min", "ess_median", "divergences", "converged", "seconds")
SINE_COLUMNS = (
    ("activation", "mse_prediction", "mse_aleatoric"),
    ("activation", "euc", "auroc", "converged"),
    ("activation", "auroc", *MIXING),
)
COLUMNS = {
    **dict.fromkeys(STARTS, SINE_COLUMNS),
    "moons-nuts": (
        ("activation", "accuracy", "auroc", "converged"), ("activation", "auroc", *MIXING),
    ),
    "moons-svi": (("activation", "accuracy", "auroc", "seconds"),),
}  # fmt: skip


def over_sets(rows: Sequence[Row]) -> list[Row]:
    """Averages accuracies and AUROC over data sets, and says of how many there are chains that mix.

    Args:
        rows: A row per network and data set; what isn't averaged is that of the first.
    """
    averaged = []
    for same in h.grouped(rows, "table", "activation").values():
        row = {**same[0]}
        if len(same) > 1:
            row |= {name: h.mean(one[name] for one in same) for name in ("accuracy", "auroc")}
            row |= {"auroc ±": margins.margin([one["auroc"] for one in same])}
            if "rhat_max" in row:
                row["rhat_max"] = max(one["rhat_max"] for one in same)
                row["converged"] = all(one["converged"] for one in same)
        averaged.append(row)
    return averaged


QUANTITIES = (("auroc", "accuracy"), ("auroc", "euc", "mse_prediction", "mse_aleatoric"))
"""Ranked for the moons, and for the sine."""


def of_table(name: str) -> h.Chosen:
    """Selects the rows of a table, by falling AUROC."""
    of = h.where(table=name)
    return lambda report: sorted(of(report), key=lambda row: -row["auroc"])


def compare(rows: Sequence[Row], quantity: str) -> dict[str, Any]:
    """Ranks one table's rows by a column, beside the thesis' ranking.

    The learned activation, of which the thesis has no number, and what isn't finite don't count.
    Fewer than three rows have no rank correlation (Spearman's); places begin with 1, the highest.
    """
    known = [row for row in rows if row["activation"] != LEARNED and np.isfinite(row[quantity])]
    ours = np.array([row[quantity] for row in known])
    theirs = np.array([row[f"source_{quantity}"] for row in known])
    if len(known) < 3:
        return {"quantity": quantity, "correlation": None, "p_value": None, "ranking": []}
    correlation = spearmanr(ours, theirs)
    ranking = [
        {
            "activation": row["activation"], "ours": int((ours > row[quantity]).sum()) + 1,
            "source": int((theirs > row[f"source_{quantity}"]).sum()) + 1,
        }
        for row in sorted(known, key=lambda row: -row[quantity])
    ]  # fmt: skip
    return {
        "quantity": quantity, "correlation": float(correlation.statistic),
        "p_value": float(correlation.pvalue), "ranking": ranking,
    }  # fmt: skip


def comparisons(rows: Sequence[Row]) -> list[Row]:
    """Compares every table with the thesis', quantity by quantity."""
    return [
        {"table": table, **compare(own, quantity)}
        for table in COLUMNS
        if (own := [row for row in rows if row["table"] == table])
        for quantity in QUANTITIES[table in STARTS]
    ]


def _aurocs(report: Report, table: str) -> dict[str, float]:
    return {row["activation"]: row["auroc"] for row in h.where(table=table)(report)}


def sine_orders(report: Report) -> Iterator[Row]:
    """Selects a row per kind of start for which all activations of the thesis were run."""
    for table, start in STARTS.items():
        ours = _aurocs(report, table)
        if SINE.keys() <= ours.keys():
            lowest = sorted(SINE, key=ours.__getitem__)[: len(WORST)]
            good = sum(ours[name] > GOOD for name in SINE)
            yield {
                "start": start, "good": good, "worst": ", ".join(lowest), "same": {*lowest} == WORST
            }  # fmt: skip


def moons_orders(report: Report) -> Iterator[Row]:
    """Selects one row if all activations of the thesis were run on the moons by NUTS."""
    nuts, svi = (_aurocs(report, f"moons-{method}") for method in ("nuts", "svi"))
    if MOONS.keys() <= nuts.keys():
        by_auroc = sorted(MOONS, key=nuts.__getitem__)
        both = MOONS.keys() <= svi.keys()
        wins = [name for name in MOONS if both and nuts[name] > svi[name]]
        yield {
            "best": by_auroc[-1], "worst": by_auroc[0], "wins": len(wins) if both else None,
            "others": MOONS.keys() - LOSSES <= {*wins},
        }  # fmt: skip


def reversals(report: Report) -> Iterator[Row]:
    """Selects a row per activation that the thesis has SVI above NUTS of, if both were run."""
    nuts, svi = (_aurocs(report, f"moons-{method}") for method in ("nuts", "svi"))
    for name, theirs in MOONS.items():
        if theirs.auroc_svi > theirs.auroc_nuts and name in nuts.keys() & svi.keys():
            yield {
                "activation": name, "gain": svi[name] - nuts[name],
                "their_gain": theirs.auroc_svi - theirs.auroc_nuts,
            }  # fmt: skip


def orders(report: Report) -> Iterator[Row]:
    """Selects Spearman's correlations of the tables of which all activations were run."""
    for row in h.extra("rankings")(report):
        known = MOONS if row["table"].startswith("moons") else SINE
        if len(row["ranking"]) >= len(known) and row["quantity"] in ("auroc", "euc"):
            yield row


def limits(report: Report) -> Iterator[Row]:
    """Selects, by start, what the highest EUC is worth: it knows no calibration."""
    for table, start in STARTS.items():
        rows = [row for row in h.where(table=table)(report) if row["activation"] in SINE]
        rows = [row for row in rows if row.get("euc") is not None]
        if len(rows) == len(SINE):
            highest = max(rows, key=lambda row: row["euc"])
            place = sum(row["auroc"] > highest["auroc"] for row in rows) + 1
            yield {**highest, "start": start, "place": place, "half": len(SINE) / 2}


def groups(report: Report) -> Iterator[Row]:
    """Selects one row: the mean AUROC of each of the five groups, if all were run."""
    ours = _aurocs(report, "moons-nuts")
    if MOONS.keys() <= ours.keys():
        means = {name: float(np.mean([ours[one] for one in own])) for name, own in GROUPS.items()}
        values = [*means.values()]
        yield {
            "falling": all(a > b for a, b in itertools.pairwise(values)),
            "means": ", ".join(f"{name} {value:.3f}" for name, value in means.items()),
        }  # fmt: skip


def leaky(report: Report) -> Iterator[Row]:
    """Selects what a slope of .5 makes of ReLU: nothing on the sine, much on the moons."""
    for table in COLUMNS:
        ours = _aurocs(report, table)
        if table != "moons-svi" and {"LeakyReLU0.5", "ReLU"} <= ours.keys():
            gain = ours["LeakyReLU0.5"] - ours["ReLU"]
            sine = table in STARTS
            yield {
                "table": table, "gain": gain, "right": abs(gain) <= EQUAL if sine else gain > 0,
                "words": f"at most {EQUAL} from ReLU" if sine else "above ReLU",
                "theirs": SINE["LeakyReLU0.5"].auroc - SINE["ReLU"].auroc if sine
                else MOONS["LeakyReLU0.5"].auroc_nuts - MOONS["ReLU"].auroc_nuts,
            }  # fmt: skip


CLAIMS = (
    h.Claim(
        f"sine, {{start}} starts: activations with AUROC above {GOOD}, as many as in the thesis "
        f"within {COUNTED:.1f}: two errors of such a count", "good",
        h.near(SHARE_GOOD, COUNTED), SHARE_GOOD, sine_orders,
    ),
    h.Claim(
        "sine, {start} starts: the three worst", "same", h.true, ", ".join(sorted(WORST)),
        sine_orders, shown="worst",
    ),
    h.Claim("moons, NUTS: best AUROC", "best", h.equals("Sine"), "Sine", moons_orders),
    h.Claim("moons, NUTS: worst AUROC", "worst", h.equals("Sigmoid"), "Sigmoid", moons_orders),
    h.Claim(
        "moons: activations for which NUTS is above SVI in AUROC, all but "
        f"{' and '.join(sorted(LOSSES))} among them",
        "wins", lambda row, wins: wins >= WINS and row["others"], WINS, moons_orders,
    ),
    h.Claim(
        "moons, {activation}: AUROC of SVI less that of NUTS", "gain", h.above(0),
        "{their_gain:.3f}", reversals,
    ),
    h.Claim(
        f"{{table}}: Spearman's correlation of {{quantity}} with the thesis', at least {ALIKE}",
        "correlation", h.at_least(ALIKE), 1.0, orders,
    ),
    h.Claim(
        "sine, {start} starts: highest EUC", "activation", h.equals("Tanhshrink"), "Tanhshrink",
        limits,
    ),
    h.Claim(
        "sine, {start} starts: place by AUROC of the activation of the highest EUC ({activation}), "
        "in the lower half", "place", h.above("half"), 24, limits,
    ),
    h.Claim("moons, NUTS: AUROC falls over the five groups", "falling", h.true,
            "periodic, smooth, one-sided, shrinking, saturating", groups, shown="means"),
    h.Claim("{table}: AUROC of LeakyReLU0.5 less that of ReLU, {words}", "gain",
            lambda row, gain: row["right"], lambda row: row["theirs"], leaky),
    h.Claim(
        f"{{table}}: R-hat of predictions below {RHAT}", "converged", h.equals("count"), None,
        h.summary(
            h.having("rhat_max"), "table", count=len,
            converged=lambda rows: sum(row["converged"] for row in rows),
        ),
        needs="default", shown="{converged} of {count}",
    ),
)  # fmt: skip


def middles(report: Report) -> Iterator[Row]:
    """Selects how far the doubt of each activation rises in the middle of the gap."""
    for table in STARTS:
        for row in of_table(table)(report):
            place = f"{table}/{row['activation']}/epistemic"
            if place in report.arrays:
                midpoints = doubt_at_midpoints(report.arrays["sine/x"], report.arrays[place])
                yield {
                    "table": table,
                    "activation": row["activation"],
                    "gap_over_regimes": midpoints,
                }


TABLES = (
    *(h.Listing(name, own, of_table(name)) for name, shown in COLUMNS.items() for own in shown),
    h.Listing("doubt at the middles of gap and regimes", of=middles),
    h.Listing(
        "rank correlation with the thesis",
        ("table", "quantity", "correlation", "p_value"),
        h.extra("rankings"),
    ),
)


def sines(name: str, table: str, columns: int, shown: Callable[[Row], Any] = bool) -> Any:
    """Declares the thesis' three rows for each activation, by falling AUROC."""

    def draw(report: Report) -> Mapping[str, Figure]:
        arrays = report.arrays
        panels = {
            _title(row): {
                part: arrays[f"{table}/{row['activation']}/{part}"]
                for part in ("mean", "aleatoric", "epistemic")
            }
            for row in of_table(table)(report)
            if shown(row)
        }
        if not panels:
            return {}
        known = [arrays[f"sine/{k}"] for k in ("x", "noise", "sparsity", "target")]
        train = (arrays["sine/train x"], arrays["sine/train y"])
        return {name: draw_sines(panels, train, *known, columns=columns)}

    return draw


def moons(table: str, columns: int = 2) -> Any:
    """Declares the thesis' two panels for each activation, by falling AUROC."""

    def draw(report: Report) -> Mapping[str, Figure]:
        rows = of_table(table)(report)
        arrays: Mapping[str, Any] = report.arrays
        if not rows:
            return {}
        grid = (arrays["moons/first"], arrays["moons/second"])
        train = (arrays["moons/train x"], arrays["moons/train y"])
        lines = -(-len(rows) // columns)
        figure = plt.figure(figsize=(6.6 * columns, 2.9 * lines), layout="constrained")
        panels = np.ravel(np.asarray(figure.subfigures(lines, columns, squeeze=False)))
        for panel, row in zip(panels, rows, strict=False):
            axes = panel.subplots(1, 2, sharey=True)
            place = f"{table}/{row['activation']}"
            names = (f"{place}/probability", f"{place}/epistemic", "moons/outside")
            probability, epistemic, ood = (arrays[name].reshape(grid[0].shape) for name in names)
            filled = draw_plane(axes, grid, probability, epistemic, ood, train)
            for axis, contours, label in zip(axes, filled, ("mean", "nats"), strict=True):
                axis.tick_params(labelsize=7)
                bar = panel.colorbar(contours, ax=axis, format="%.2f")
                bar.set_label(label, fontsize=7)
                bar.ax.tick_params(labelsize=6)
            panel.suptitle(_title(row), fontsize=9)
        return {table: figure}

    return draw


def _title(row: Row) -> str:
    parts = [f"{row['activation']}: AUROC {row['auroc']:.3f}"]
    if "source_auroc" in row:
        parts.append(f"(thesis {row['source_auroc']:.3f})")
    if not row.get("converged", True):
        parts.append(f"not converged, R-hat {row['rhat_max']:.2f}")
    return " ".join(parts)


def ranking(table: str, report: Report) -> Iterator[h.Panel]:
    """Draws our AUROC against the thesis', by what is missing to 1: most are close to it."""
    rows = of_table(table)(report)

    def paint(axis: Axes) -> None:
        for row in (row for row in rows if "source_auroc" in row):
            colour = "C0" if row.get("converged", True) else "white"
            place = (1 - row["source_auroc"], 1 - row["auroc"])
            axis.plot(*place, "o", color="C0", mfc=colour)
            axis.annotate(
                row["activation"], place, fontsize=6, xytext=(4, 2), textcoords="offset points"
            )
        axis.axline((0.01, 0.01), (0.1, 0.1), color="gray", lw=0.7)
        axis.set(
            xscale="log", yscale="log", xlabel="1 - AUROC, thesis",
            ylabel="1 - AUROC, ours (hollow: not converged)",
        )  # fmt: skip
        axis.invert_xaxis()
        axis.invert_yaxis()

    if (correlation := compare(rows, "auroc")["correlation"]) is not None:
        yield h.Panel(f"Spearman's rank correlation of AUROC {correlation:.2f}", paint)


PLOTS = (
    *(sines(table, table, 4) for table in STARTS),
    sines("sine-ten", "sine-nuts", 2, lambda row: row["activation"] in MOONS),
    moons("moons-nuts"),
    moons("moons-svi"),
    *(h.Plot(f"{table}-ranking", partial(ranking, table), size=(6.5, 6)) for table in COLUMNS),
)
