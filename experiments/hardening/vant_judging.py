"""Robustness relative to the ideal, what variance costs, and the source's findings."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.harness import Report, Row, mean
from jaxeff.hardening import ALPHA, THETA_PER_SIGMA
from jaxeff.robustness import envelope, preserved_accuracy, robustness_area

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
    """The mean curve of the rows that match."""
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
                "sigma": sigma, "rauc_noise": mean(row["rauc"] for row in noise),
                "rauc_vant": mean(row["rauc"] for row in vant),
                "preserved_vant": mean(row["preserved"] for row in vant), "rauc_best": best["rauc"],
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
                table[i, j] = mean(row[name] for row in cell)
    return table, ratios, sigmas


def judge(report: Report) -> None:
    """The source's findings, each with its numbers; few epochs on digits decide none of them."""
    rows, levels = report.rows, report.config["levels"]
    claim = partial(report.check, needs="default")
    sigmas = [sigma for sigma in _sigmas(rows, "noise") if sigma in levels]
    for sigma in sigmas:
        at = levels.index(sigma)
        accuracy = {s: float(curve(rows, method="noise", sigma=s)[at]) for s in sigmas}
        best = max(accuracy, key=lambda s: accuracy[s])
        claim(
            f"at noise {sigma:g} the network trained at that level is the best",
            "all levels", f"{accuracy[sigma]:.3f}, best {accuracy[best]:.3f} (trained at {best:g})",
            best == sigma,
        )  # fmt: skip
    highest = {
        s: levels[int(curve(rows, method="noise", sigma=s).argmax())] for s in sigmas
    }  # fmt: skip
    claim(
        "the noise under which a network is the best it can be is that of its training",
        "precisely", ", ".join(f"{s:g}: {at:g}" for s, at in highest.items()),
        all(s == at for s, at in highest.items()),
    )  # fmt: skip
    for row in comparison(rows):
        claim(
            f"VANT's rAUC exceeds noisy training's at {row['sigma']:g} (theta by the rule)",
            SOURCE, f"{row['rauc_vant']:.3f} over {row['rauc_noise']:.3f}",
            row["rauc_vant"] > row["rauc_noise"],
        )  # fmt: skip
    noise = max(row["rauc"] for row in chosen(rows, method="noise"))
    for method in ("qat", "sam"):
        other = max(row["rauc"] for row in chosen(rows, method=method))
        claim(
            f"noisy training beats {method.upper()} (best rAUC of each)",
            "substantially", f"{noise:.3f} over {other:.3f}", noise > other,
        )  # fmt: skip


def _sigmas(rows: Sequence[Row], method: str) -> list[float]:
    return sorted({row["sigma"] for row in rows if row["method"] == method})
