"""Robustness relative to the ideal, what variance costs, the source's findings and figures."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments import harness as h
from experiments.harness import Report, Row
from jaxeff.hardening import ALPHA, THETA_PER_SIGMA
from jaxeff.robustness import envelope, preserved_accuracy, robustness_area
from jaxeff.robustness.curves import draw_heatmap

SOURCE = "79.3 % to 97.6 % (ResNet-18)"


def ideal(rows: Sequence[Row], levels: Sequence[float]) -> np.ndarray:
    """Accuracy where training and inference noise match, at every level; means over seeds.

    Between two levels that were trained at, it is no less than on the line between them.
    """
    sigmas = _sigmas(rows, "noise")
    curves = np.array([curve(rows, method="noise", sigma=sigma) for sigma in sigmas])
    matched = [own[levels.index(sigma)] for sigma, own in zip(sigmas, curves, strict=True)]
    between = np.interp(levels, sigmas, matched, left=0, right=0)
    return np.maximum(envelope(curves), between)


def add_robustness(rows: Sequence[Row], levels: Sequence[float]) -> None:
    """Gives every row its rAUC, and VANT's the accuracy it preserves at its nominal level."""
    grid, best = jnp.array(levels), jnp.array(ideal(rows, levels))
    for row in rows:
        own = jnp.array(row["curve"])
        row["rauc"] = float(robustness_area(grid, own, best))
        if row["method"].startswith("vant"):
            standard = jnp.array(curve(rows, method="noise", sigma=row["sigma"]))
            row["preserved"] = float(preserved_accuracy(grid, own, standard, row["sigma"]))


def curve(rows: Sequence[Row], **which: Any) -> np.ndarray:
    """Computes the mean curve of the rows that match."""
    return np.mean([row["curve"] for row in chosen(rows, **which)], axis=0)


def chosen(rows: Sequence[Row], **which: Any) -> list[Row]:
    """The rows that match."""
    return [row for row in rows if all(row[name] == value for name, value in which.items())]


def rule(rows: Sequence[Row], sigma: float, method: str = "vant") -> list[Row]:
    """VANT's rows with the published alpha and the published rule for theta."""
    found = chosen(rows, method=method, sigma=sigma, alpha=ALPHA)
    return [row for row in found if np.isclose(row["theta"], THETA_PER_SIGMA * sigma)]


def comparison(rows: Sequence[Row]) -> list[Row]:
    """Noisy training and VANT by the rule, level by level."""
    table = []
    for sigma in _sigmas(rows, "vant"):
        vant, noise = rule(rows, sigma), chosen(rows, method="noise", sigma=sigma)
        best = max(chosen(rows, method="vant", sigma=sigma), key=lambda row: row["rauc"])
        table.append(
            {
                "sigma": sigma, "rauc_noise": h.mean(row["rauc"] for row in noise),
                "rauc_vant": h.mean(row["rauc"] for row in vant),
                "preserved_vant": h.mean(row["preserved"] for row in vant),
                "rauc_best": best["rauc"],
                "best_theta": best["theta"], "best_alpha": best["alpha"],
            }
        )  # fmt: skip
    return table


def heatmap(rows: Sequence[Row], name: str) -> tuple[np.ndarray, list[float], list[float]]:
    """A quantity of VANT with the published alpha: `[ratios of theta to sigma, sigmas]`."""
    found = chosen(rows, method="vant", alpha=ALPHA)
    ratios = sorted({round(row["theta"] / row["sigma"], 3) for row in found})
    sigmas = _sigmas(rows, "vant")
    table = np.full((len(ratios), len(sigmas)), np.nan)
    for i, ratio in enumerate(ratios):
        for j, sigma in enumerate(sigmas):
            cell = [r for r in found if r["sigma"] == sigma
                    and np.isclose(r["theta"], ratio * sigma, atol=1e-3)]  # fmt: skip
            if cell:
                table[i, j] = h.mean(row[name] for row in cell)
    return table, ratios, sigmas


def _sigmas(rows: Sequence[Row], method: str) -> list[float]:
    return sorted({row["sigma"] for row in rows if row["method"] == method})


def trained_levels(report: Report) -> list[Row]:
    """Selects a row per level of noisy training: which network is the best there."""
    rows, levels = report.rows, report.config["levels"]
    curves = {s: curve(rows, method="noise", sigma=s) for s in _sigmas(rows, "noise")}
    found = []
    for sigma in curves:
        at = levels.index(sigma)
        best = max(curves, key=lambda s: float(curves[s][at]))
        own, highest = float(curves[sigma][at]), float(curves[best][at])
        found.append(
            {"sigma": sigma, "own": own, "best": best, "highest": highest,
             "peak_at": levels[int(curves[sigma].argmax())]}
        )  # fmt: skip
    return found


def own_peaks(report: Report) -> list[Row]:
    """Selects one row: whether every network is at its best under the noise of its training."""
    rows = trained_levels(report)
    shown = ", ".join(f"{row['sigma']:g}: {row['peak_at']:g}" for row in rows)
    return [{"all": all(row["sigma"] == row["peak_at"] for row in rows), "peaks": shown}]


def baselines(report: Report) -> Iterator[Row]:
    """Selects a row per baseline: the best rAUC of each, and that of noisy training."""
    best = {
        method: max(row["rauc"] for row in chosen(report.rows, method=method))
        for method in ("noise", "qat", "sam")
    }
    for method in ("qat", "sam"):
        yield {"method": method.upper(), "noise": best["noise"], "other": best[method]}


comparisons = h.extra("tables", "comparison")
claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        "at noise {sigma:g} the network trained at that level is the best", "best",
        h.equals("sigma"), "all levels", trained_levels,
        shown="{own:.3f}, best {highest:.3f} (trained at {best:g})",
    ),
    claim(
        "the noise under which a network is the best it can be is that of its training", "all",
        h.true, "precisely", own_peaks, shown="peaks",
    ),
    claim(
        "VANT's rAUC exceeds noisy training's at {sigma:g} (theta by the rule)", "rauc_vant",
        h.above("rauc_noise"), SOURCE, lambda report: comparison(report.rows),
        shown="{rauc_vant:.3f} over {rauc_noise:.3f}",
    ),
    claim(
        "noisy training beats {method} (best rAUC of each)", "noise", h.above("other"),
        "substantially", baselines, shown="{noise:.3f} over {other:.3f}",
    ),
)  # fmt: skip

TABLES = (
    h.Listing(
        "all networks",
        ("method", "bits", "rho", "sigma", "theta", "alpha", "peak", "rauc", "preserved",
         "diverged"),
    ),
    h.Listing("rAUC of noisy training and of VANT", of=comparisons),
)  # fmt: skip


def curves(report: Report) -> Iterator[Row]:
    """Selects the drawn curves: the best of each method, noisy training, VANT by its spread."""
    rows, config = report.rows, report.config
    for method in dict.fromkeys(row["method"] for row in rows):
        row = max(chosen(rows, method=method), key=lambda row: row["rauc"])
        panel = f"{row['network']}, {config['data']}: the best of each method"
        yield {"panel": panel, "label": _name(row), "curve": row["curve"], "style": ".-"}
    for sigma in _sigmas(rows, "noise"):
        own = curve(rows, method="noise", sigma=sigma).tolist()
        label = f"trained at {sigma:g}"
        yield {"panel": "noisy training", "label": label, "curve": own, "style": ".-"}
    best = ideal(rows, config["levels"]).tolist()
    label = "ideal: noise that matches"
    yield {"panel": "noisy training", "label": label, "curve": best, "style": "k--"}
    sigmas = _sigmas(rows, "vant")
    sigma = sigmas[len(sigmas) // 2]
    panel = f"VANT at σ = {sigma:g}"
    standard = curve(rows, method="noise", sigma=sigma).tolist()
    yield {"panel": panel, "label": "noisy training", "curve": standard, "style": "k.--"}
    found = chosen(rows, method="vant", sigma=sigma, seed=0)
    for row in sorted(found, key=lambda row: (row["alpha"], row["theta"])):
        yield {"panel": panel, "label": _name(row), "curve": row["curve"], "style": ".-"}


def heatmaps(report: Report) -> list[h.Panel]:
    """Makes a panel of rAUC, and one of what VANT preserves at its level."""

    def paint(name: str, axis: Any) -> None:
        draw_heatmap(axis, *heatmap(report.rows, name))
        axis.set(xlabel="σ of training", ylabel="θ / σ")

    return [
        h.Panel(f"{title}, in percent, α = {ALPHA:g}", partial(paint, name))
        for name, title in (
            ("rauc", "rAUC of VANT"), ("preserved", "accuracy VANT preserves at its level"),
        )
    ]  # fmt: skip


def _name(row: Row) -> str:
    spread = "σ {sigma:g}, θ {theta:g}, α {alpha:g}"
    templates = {
        "noise": "σ {sigma:g}", "qat": "{bits} bits", "sam": "ρ {rho:g}",
        "vant": spread, "vant-normal": spread,
    }  # fmt: skip
    return f"{row['method']} {templates.get(row['method'], '').format(**row)}".strip()


PLOTS = (
    h.Plot(
        "robustness",
        h.Curves(
            "levels", "curve", curves, "{label}", "{panel}", style="{style}",
            axes={"xlabel": "noise level σ at inference", "ylabel": "accuracy"},
        ),
        heatmaps,
        h.Curves(
            "sigma",
            {
                "rauc_noise": "noisy training", "rauc_vant": "VANT, θ = 0.4 σ",
                "rauc_best": "VANT, best θ and α",
            },
            comparisons, axes={"xlabel": "σ of training", "ylabel": "rAUC"},
        ),
        columns=3, size=(5.3, 4.2),
    ),
)  # fmt: skip
